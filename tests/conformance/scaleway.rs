//! Tests of Scaleway alone: an order is three calls, and a disk outlives its server.

use std::time::Duration;

use serde_json::json;
use skyward_cloudsim::{Left, Market as Sold, Shelf};
use skyward_conformance::{Bench, connect, machine};
use skyward_core::{Deletion, ErrorKind, Market, Order, ProviderPhase};
use tokio::time::sleep;

use crate::in_virtual_time;

/// Sets what is left of the type of an order, of which a server needs one to be switched on.
fn leave(bench: &Bench, order: &Order, left: Left) {
    let shelf = Shelf::new(&order.instance_type, &order.region, Sold::OnDemand);
    bench.sim.world(|world| world.stock.set(shelf, left));
}

#[test]
fn an_order_that_came_to_a_halt_between_its_calls_is_no_machine_and_goes_on_there() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        leave(&bench, &order, Left::Count(0));
        let refused = bench.provider.create(&order).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        assert_eq!(bench.machines(), 1);
        let unknown = machine(&order, None);
        assert_eq!(bench.provider.get(&unknown).await.unwrap(), None);
        leave(&bench, &order, Left::Plenty);
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(bench.machines(), 1, "nothing was ordered twice");
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("three calls");
    });
}

#[test]
fn a_server_that_finds_no_place_is_ended_with_its_disk() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        leave(&bench, &order, Left::Count(0));
        bench.provider.create(&order).await.unwrap_err();
        let refused = bench.end(&order, None).await;
        assert!(refused.is_empty(), "{refused:?}");
        bench.judge("no place");
    });
}

#[test]
fn the_disk_of_a_server_that_is_gone_is_listed_and_ended() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let reference = machine(&order, Some(&running.id));
        // The controller dies after this.
        assert_eq!(
            bench.provider.delete(&reference).await.unwrap(),
            Deletion::InProgress
        );
        let disk = loop {
            let listed = bench.list().await.unwrap();
            assert_eq!(listed.len(), 1, "the server, and then its disk: {listed:?}");
            if listed[0].id != running.id {
                break listed[0].clone();
            }
            sleep(Duration::from_secs(5)).await;
        };
        assert_eq!(disk.mark, order.mark);
        assert!(matches!(disk.phase, ProviderPhase::Stopped(_)), "{disk:?}");
        assert_eq!(bench.provider.get(&reference).await.unwrap(), None);
        // As the sweep does.
        bench.end(&order, Some(&disk.id)).await;
        bench.judge("a disk");
    });
}

#[test]
fn without_a_rate_nothing_has_a_price() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let url = bench.simulator.url("scaleway").to_owned();
        let mut settings = bench.subject.settings.clone();
        settings["exchangeRate"] = json!(null);
        let provider = connect("scaleway", &url, &bench.subject.credentials, settings);
        let offers = provider.offers().await.unwrap();
        assert!(!offers.is_empty() && offers.iter().all(|offer| offer.on_demand.is_none()));
    });
}
