//! Tests of Novita alone: a password with each machine, a mark in two places, images of several CUDA versions, a
//! reclaim that the API tells of beforehand.

use std::time::Duration;

use skyward_cloudsim::{Fault, Rule};
use skyward_conformance::{Bench, machine, order, scope};
use skyward_core::{Deletion, Market, Order, ProviderPhase};
use tokio::time::sleep;

use crate::{
    canary::Log,
    in_virtual_time,
    marks::{Mark, exchange},
};

#[test]
fn the_password_of_a_machine_is_in_its_endpoint_and_in_no_line_of_the_log() {
    in_virtual_time(async || {
        let log = Log::default();
        let logged = log.listen();
        let bench = Bench::start("novita", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, refused) = bench.bring_up(&order).await;
        let listed = bench.list().await.unwrap();
        bench.bring_down(&order, Some(&running.id)).await;
        drop(logged);
        let password = running.endpoint.clone().and_then(|endpoint| endpoint.password);
        let password = password.unwrap();
        assert!(password.expose().len() >= 8, "a shorter one may stand anywhere");
        let said = format!("{order:?} {running:?} {listed:?} {refused:?}");
        assert!(!said.contains(password.expose()), "{said}");
        let log = log.text();
        assert!(log.contains(" TRACE "), "everything is logged");
        let told = log.lines().find(|line| line.contains(password.expose()));
        assert_eq!(told, None);
        bench.judge("a password");
    });
}

#[test]
fn a_machine_is_known_by_its_name_or_by_its_environment_alone() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let mut whole = Mark::default();
        exchange(&bench, "novita", &running.id, &mut whole);
        for mut half in [whole.clone().renamed(), whole.clone().without_environment()] {
            exchange(&bench, "novita", &running.id, &mut half);
            let found = bench
                .provider
                .get(&machine(&order, Some(&running.id)))
                .await
                .unwrap()
                .unwrap();
            assert!(found.mark.is(&order.mark), "{found:?}");
            assert_eq!(bench.list().await.unwrap().len(), 1);
            exchange(&bench, "novita", &running.id, &mut half);
        }
        exchange(&bench, "novita", &running.id, &mut whole);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("half a mark");
    });
}

#[test]
fn machines_on_every_page_of_the_list_are_seen() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        let offers = bench.provider.offers().await.unwrap();
        let first = bench.order(Market::OnDemand, 0).await;
        let offer = offers.iter().find(|offer| offer.id == first.offer).unwrap();
        let orders: Vec<Order> = (0..2).map(|slot| order(offer, Market::OnDemand, slot)).collect();
        for order in &orders {
            bench.provider.create(order).await.unwrap();
        }
        bench.sim.world(|world| world.page = Some(1));
        sleep(bench.provider.capabilities().settle_time).await;
        assert_eq!(bench.provider.list(&scope()).await.unwrap().len(), 2);
        for order in &orders {
            bench.bring_down(order, None).await;
        }
        bench.judge("pages");
    });
}

#[test]
fn an_order_that_no_host_takes_is_sent_again_with_an_older_cuda() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        bench.sim.fault(Rule::once("instances.create", Fault::NoCapacity));
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(bench.sim.calls("instances.create"), 2);
        assert_eq!(bench.machines(), 1);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("an older CUDA");
    });
}

#[test]
fn a_spot_machine_tells_when_it_will_be_taken_back_while_it_still_runs() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        let order = bench.order(Market::Spot, 0).await;
        let reclaim = Fault::Reclaim {
            after: 900,
            notice: 300,
        };
        bench.sim.fault(Rule::once("instances.create", reclaim));
        let (running, _) = bench.bring_up(&order).await;
        let reference = machine(&order, Some(&running.id));
        let mut told = None;
        for _ in 0..180 {
            let found = bench.provider.get(&reference).await.unwrap();
            told = found.filter(|found| found.rental.reclaim_at.is_some());
            if told.is_some() {
                break;
            }
            sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(told.map(|found| found.phase), Some(ProviderPhase::Running));
        bench.bring_down(&order, Some(&running.id)).await;
        let again = bench.provider.delete(&reference).await.unwrap();
        assert_eq!(again, Deletion::Gone);
        bench.judge("a notice");
    });
}
