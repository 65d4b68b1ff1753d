//! Tests of Novita alone: a password with each machine, a mark in two places, images of several CUDA versions, a
//! reclaim that the API tells of beforehand.

use std::time::Duration;

use serde_json::json;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{Bench, connect, machine, order, scope};
use skyward_core::{Deletion, Market, Order, ProviderPhase, machine::Endpoint};
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
fn a_password_that_is_told_once_and_by_no_list_lets_the_operator_in() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        answer_in(&bench, &["password-once"]);
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let reference = machine(&order, Some(&running.id));
        let password = |endpoint: &Option<Endpoint>| endpoint.as_ref().unwrap().password.clone();
        assert!(password(&running.endpoint).is_some());
        for _ in 0..3 {
            let found = bench.provider.get(&reference).await.unwrap().unwrap();
            assert_eq!(
                (found.phase, found.endpoint),
                (ProviderPhase::Running, running.endpoint.clone())
            );
        }
        // Another process has the key that was let in.
        let url = bench.simulator.url("novita");
        let next = connect("novita", url, &bench.subject.credentials, json!({}));
        let found = next.get(&reference).await.unwrap().unwrap();
        assert_eq!(found.phase, ProviderPhase::Running);
        assert_eq!(password(&found.endpoint), None);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a password that is told once");
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

/// From now on answers have these forms, which other sources have.
fn answer_in(bench: &Bench, forms: &[&str]) {
    let forms = json!({ "forms": forms });
    bench.sim.control("answers", &forms).unwrap().unwrap();
}

#[test]
fn answers_are_understood_in_each_form_that_a_source_has() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        let usual = bench.provider.offers().await.unwrap();
        answer_in(
            &bench,
            &["prices-are-texts", "regions-are-objects", "password-above"],
        );
        assert_eq!(bench.provider.offers().await.unwrap(), usual);
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert!(
            running
                .endpoint
                .is_some_and(|endpoint| endpoint.password.is_some())
        );
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("other forms");
    });
}

#[test]
fn machines_on_every_page_of_the_list_are_seen_also_where_the_first_page_has_two_numbers() {
    for forms in [vec![], vec!["pages-begin-twice"]] {
        in_virtual_time(async || {
            let bench = Bench::start("novita", None).await;
            answer_in(&bench, &forms);
            let offers = bench.provider.offers().await.unwrap();
            let first = bench.order(Market::OnDemand, 0).await;
            let offer = offers.iter().find(|offer| offer.id == first.offer).unwrap();
            let orders: Vec<Order> = (0..2).map(|slot| order(offer, Market::OnDemand, slot)).collect();
            for order in &orders {
                bench.provider.create(order).await.unwrap();
            }
            bench.sim.world(|world| world.page = Some(1));
            sleep(bench.provider.capabilities().settle_time).await;
            assert_eq!(bench.provider.list(&scope()).await.unwrap().len(), 2, "{forms:?}");
            for order in &orders {
                bench.bring_down(order, None).await;
            }
            bench.judge("pages");
        });
    }
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

#[test]
fn a_machine_that_is_shown_is_not_gone_where_its_deletion_finds_none() {
    in_virtual_time(async || {
        let bench = Bench::start("novita", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let not_found = Fault::Server {
            status: 404,
            when: When::Before,
        };
        bench.sim.fault(Rule::once("instances.delete", not_found));
        let reference = machine(&order, Some(&running.id));
        let ended = bench.provider.delete(&reference).await.unwrap();
        assert_eq!((ended, bench.machines()), (Deletion::InProgress, 1));
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a deletion that finds nothing");
    });
}
