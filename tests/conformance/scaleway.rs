//! Tests of Scaleway alone: an order is four calls, and a disk outlives its server.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use serde_json::json;
use skyward_cloudsim::{Fault, Left, Market as Sold, Rule, Shelf, When};
use skyward_conformance::{Bench, connect, machine};
use skyward_core::{Deletion, ErrorKind, Market, Order, Provider, ProviderPhase};
use tokio::time::sleep;

use crate::in_virtual_time;

/// Sets what is left of the type of an order, of which a server needs one to be switched on.
fn leave(bench: &Bench, order: &Order, left: Left) {
    let shelf = Shelf::new(&order.instance_type, &order.region, Sold::OnDemand);
    bench.sim.world(|world| world.stock.set(shelf, left));
}

/// What the operator sends of a call that fails in a passing way, until it gives up.
const TRIES: u32 = 4;
/// How long lists of servers lag here: less than the client says.
const LAG: SignedDuration = SignedDuration::from_secs(50);

/// Lets the next calls of this name fail in a passing way.
fn trouble(bench: &Bench, call: &str) {
    let down = Fault::Server {
        status: 503,
        when: When::Before,
    };
    let rule = Rule::always(call, down);
    bench.sim.fault(Rule {
        times: Some(TRIES),
        ..rule
    });
}

/// A client that knows nothing of what was ordered, as after a restart.
fn another(bench: &Bench) -> Arc<dyn Provider> {
    let url = bench.simulator.url("scaleway").to_owned();
    connect(
        "scaleway",
        &url,
        &bench.subject.credentials,
        bench.subject.settings.clone(),
    )
}

/// A Bench whose lists lag, and an order there.
async fn lagging() -> (Bench, Order) {
    let bench = Bench::start("scaleway", None).await;
    let order = bench.order(Market::OnDemand, 0).await;
    bench.sim.world(|world| world.lag.created = LAG);
    (bench, order)
}

#[test]
fn an_order_whose_later_call_fails_is_no_second_server_though_lists_lag() {
    for call in [
        "servers.get",
        "volumes.update",
        "user-data.set",
        "servers.poweron",
    ] {
        in_virtual_time(async || {
            let (bench, order) = lagging().await;
            trouble(&bench, call);
            let refused = bench.provider.create(&order).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Indeterminate, "{call}: {refused}");
            // At once, with the lists as they are.
            let accepted = bench.provider.create(&order).await.unwrap();
            assert_eq!(bench.machines(), 1, "{call}");
            let (running, refused) = bench.bring_up(&order).await;
            assert!(refused.is_empty(), "{call}: {refused:?}");
            assert_eq!(running.id, accepted.id, "{call}");
            bench.bring_down(&order, Some(&running.id)).await;
            bench.judge(call);
        });
    }
}

#[test]
fn an_order_that_lacks_a_right_goes_on_with_its_server_when_the_right_is_there() {
    in_virtual_time(async || {
        let (bench, order) = lagging().await;
        bench.sim.fault(Rule::always("volumes.update", Fault::Forbidden));
        for _ in 0..3 {
            let refused = bench.provider.create(&order).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Permission, "{refused}");
        }
        bench.sim.clear_faults();
        let accepted = bench.provider.create(&order).await.unwrap();
        assert_eq!(bench.machines(), 1, "nothing was ordered twice");
        bench.bring_down(&order, Some(&accepted.id)).await;
        bench.judge("a right");
    });
}

#[test]
fn a_server_that_no_list_shows_yet_is_ended_with_its_disk() {
    in_virtual_time(async || {
        let (bench, order) = lagging().await;
        leave(&bench, &order, Left::Count(0));
        let refused = bench.provider.create(&order).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        let refused = bench.end(&order, None).await;
        assert!(refused.is_empty(), "{refused:?}");
        bench.judge("a server that is not listed");
    });
}

#[test]
fn a_disk_whose_server_no_list_shows_yet_is_no_reason_to_order_another_server() {
    in_virtual_time(async || {
        let (bench, order) = lagging().await;
        trouble(&bench, "servers.poweron");
        bench.provider.create(&order).await.unwrap_err();
        // The disk is marked, and is all that the lists show.
        let another = another(&bench);
        let refused = another.create(&order).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Indeterminate, "{refused}");
        assert_eq!(bench.machines(), 1);
        sleep(another.capabilities().settle_time).await;
        let accepted = another.create(&order).await.unwrap();
        assert_eq!(bench.machines(), 1);
        bench.bring_down(&order, Some(&accepted.id)).await;
        bench.judge("a disk without a listed server");
    });
}

/// Takes the disk of a server away, or gives it back: what no server has is shown by none.
fn exchange_disk(bench: &Bench, server: &mut Option<String>) {
    bench.sim.world(|world| {
        let mut things = world.resources.values_mut();
        let disk = things
            .find(|thing| thing.kind == "volume" && thing.exists())
            .unwrap();
        match server.take() {
            Some(id) => drop(disk.tags.insert("server".to_owned(), id)),
            None => *server = disk.tags.remove("server"),
        }
    });
}

#[test]
fn a_server_that_is_switched_off_is_not_deleted_before_it_shows_its_disk() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        bench.sim.fault(Rule::once("volumes.update", Fault::Forbidden));
        bench.provider.create(&order).await.unwrap_err();
        let mut server = None;
        exchange_disk(&bench, &mut server);
        let refused = bench.provider.delete(&machine(&order, None)).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Transient, "{refused}");
        assert_eq!(bench.machines(), 1, "its disk would be left without a mark");
        exchange_disk(&bench, &mut server);
        bench.end(&order, None).await;
        bench.judge("a disk that is not shown");
    });
}

#[test]
fn a_server_that_runs_is_ended_though_block_storage_cannot_be_changed() {
    for fault in [Fault::Forbidden, Fault::Cut { when: When::Before }] {
        in_virtual_time(async || {
            let bench = Bench::start("scaleway", None).await;
            let order = bench.order(Market::OnDemand, 0).await;
            let (running, _) = bench.bring_up(&order).await;
            for call in ["volumes.update", "volumes.delete"] {
                bench.sim.fault(Rule::always(call, fault.clone()));
            }
            let reference = machine(&order, Some(&running.id));
            let deleted = bench.provider.delete(&reference).await.unwrap();
            assert_eq!(deleted, Deletion::InProgress);
            assert_eq!(bench.sim.calls("servers.terminate"), 1);
            bench.sim.clear_faults();
            bench.bring_down(&order, Some(&running.id)).await;
            bench.judge("block storage is out of order");
        });
    }
}

#[test]
fn a_disk_without_our_mark_that_a_person_put_into_a_server_stays() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        // As if another one were in the place of its own.
        let disks = || {
            bench.sim.world(|world| {
                let mut things = world.resources.values_mut();
                let disk = things.find(|thing| thing.kind == "volume").unwrap();
                (
                    disk.exists(),
                    std::mem::replace(&mut disk.detail["tags"], json!([])),
                )
            })
        };
        disks();
        bench.end(&order, Some(&running.id)).await;
        assert_eq!(disks(), (true, json!([])), "it never carried our mark");
    });
}

#[test]
fn each_zone_that_sells_gpus_is_offered() {
    in_virtual_time(async || {
        let bench = Bench::start("scaleway", None).await;
        let offers = bench.provider.offers().await.unwrap();
        for zone in ["fr-par-2", "pl-waw-2", "pl-waw-3"] {
            assert!(offers.iter().any(|offer| offer.region == zone), "{zone}");
        }
    });
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
