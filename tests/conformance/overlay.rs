//! Vast.ai's overlay networks: what the machines of a Pool in one physical cluster share.

use std::time::Duration;

use serde_json::json;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{Bench, connect, machine, order, passes, pool, scope};
use skyward_core::{Deletion, ErrorKind, Market, Offer, Order, ProviderPhase};
use tokio::time::{Instant, sleep};

use crate::in_virtual_time;

/// The bench, and an order for each machine of a Pool of two.
async fn two() -> (Bench, Vec<Order>) {
    let bench = Bench::start("vastai", None).await;
    let offers = bench.provider.offers().await.unwrap();
    let whole = |offer: &&Offer| offer.instance_type == "8x H100 SXM/80GB/cluster-9";
    let offer = offers.iter().find(whole).unwrap();
    assert!(offer.connected);
    let orders = (0..2).map(|slot| {
        let mut order = order(offer, Market::OnDemand, slot);
        order.pool.connected = true;
        order.pool.machines = 2;
        order
    });
    let orders = orders.collect();
    (bench, orders)
}

#[test]
fn machines_of_a_pool_are_in_one_network_which_goes_after_them() {
    in_virtual_time(async || {
        let (bench, orders) = two().await;
        let provider = &bench.provider;
        let (first, second) = tokio::join!(provider.create(&orders[0]), provider.create(&orders[1]));
        assert_ne!(first.unwrap(), second.unwrap());
        for order in &orders {
            let (machine, _) = bench.bring_up(order).await;
            assert_eq!(machine.private_interface, Some("eth0"));
            assert_eq!(machine.rental.region.as_deref(), Some(order.region.as_str()));
        }
        let shared = provider.leftovers(&scope()).await.unwrap();
        assert_eq!(shared.len(), 1, "{shared:#?}");
        // Deleting it would delete the machines.
        assert!(provider.release(&pool()).await.is_err());
        assert_eq!(bench.machines(), 2);
        bench.end(&orders[0], None).await;
        bench.bring_down(&orders[1], None).await;
        assert_eq!(provider.release(&pool()).await.unwrap(), Deletion::Gone);
        bench.judge("overlay");
    });
}

/// Takes the machines out of the network into which they were ordered: it is not documented whether
/// the order alone suffices.
fn leave(bench: &Bench) {
    bench.sim.world(|world| {
        for resource in world.resources.values_mut() {
            if let Some(members) = resource.detail.get_mut("instances") {
                *members = json!([]);
            }
        }
    });
}

/// Waits until a machine is in such a phase.
async fn until(bench: &Bench, order: &Order, will_do: impl Fn(&ProviderPhase) -> bool) -> Duration {
    let began = Instant::now();
    loop {
        let found = bench.provider.get(&machine(order, None)).await.unwrap();
        let phase = found.map(|found| found.phase);
        if phase.as_ref().is_some_and(&will_do) {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_mins(10), "{phase:?}");
        sleep(Duration::from_secs(5)).await;
    }
}

#[test]
fn a_machine_that_cannot_join_at_once_joins_later() {
    in_virtual_time(async || {
        let (bench, orders) = two().await;
        let refused = Fault::Server {
            status: 500,
            when: When::Before,
        };
        bench.sim.fault(Rule::always("overlays.join", refused));
        bench.provider.create(&orders[0]).await.unwrap();
        assert_eq!(bench.machines(), 1, "what is accepted is told at once (P1)");
        leave(&bench);
        let joining = |phase: &ProviderPhase| matches!(phase, ProviderPhase::Starting(Some(why)) if why.contains("overlay"));
        until(&bench, &orders[0], joining).await;
        bench.sim.clear_faults();
        until(&bench, &orders[0], |phase| *phase == ProviderPhase::Running).await;
        bench.bring_down(&orders[0], None).await;
        bench.judge("overlay, later");
    });
}

#[test]
fn a_machine_that_is_in_no_network_after_overlay_timeout_has_failed() {
    in_virtual_time(async || {
        for (settings, least) in [(json!({}), 120), (json!({ "overlayTimeout": "200s" }), 200)] {
            let (mut bench, orders) = two().await;
            let credentials = bench.subject.credentials.clone();
            bench.provider = connect("vastai", bench.simulator.url("vastai"), &credentials, settings);
            let refused = Fault::Server {
                status: 500,
                when: When::Before,
            };
            bench.sim.fault(Rule::always("overlays.join", refused));
            let began = Instant::now();
            bench.provider.create(&orders[0]).await.unwrap();
            leave(&bench);
            let failed = |phase: &ProviderPhase| matches!(phase, ProviderPhase::Failed(failure) if failure.message.contains("overlayTimeout"));
            until(&bench, &orders[0], failed).await;
            let took = began.elapsed().as_secs();
            assert!((least..least + 90).contains(&took), "{least} s took {took} s");
            bench.sim.clear_faults();
            bench.bring_down(&orders[0], None).await;
            bench.judge("overlay, refused");
        }
    });
}

/// The process ends between the two calls of an order.
#[test]
fn the_next_process_puts_a_machine_into_its_network_once() {
    in_virtual_time(async || {
        for by_order in [true, false] {
            let (mut bench, orders) = two().await;
            let (provider, order) = (bench.provider.clone(), orders[0].clone());
            // The machine exists before the process knows it.
            let slow = Fault::Latency { millis: 5_000 };
            bench.sim.fault(Rule::always("instances.create", slow));
            let process = tokio::spawn(async move { provider.create(&order).await });
            while bench.machines() == 0 {
                sleep(Duration::from_millis(20)).await;
            }
            process.abort();
            assert!(process.await.unwrap_err().is_cancelled());
            bench.sim.clear_faults();
            assert_eq!(
                bench.sim.calls("overlays.join"),
                0,
                "it is rented, and not in its network"
            );
            leave(&bench);
            let credentials = bench.subject.credentials.clone();
            bench.provider = connect("vastai", bench.simulator.url("vastai"), &credentials, json!({}));
            // Its label says that it is in its network, whichever client asks for it first.
            if by_order {
                bench
                    .list_with(
                        &bench
                            .sim
                            .world(|world| world.machines.keys().next().unwrap().clone()),
                    )
                    .await;
                bench.provider.create(&orders[0]).await.unwrap();
                assert_eq!(bench.sim.calls("overlays.join"), 1);
            }
            until(&bench, &orders[0], |phase| *phase == ProviderPhase::Running).await;
            assert_eq!(bench.sim.calls("overlays.join"), 1, "by an order: {by_order}");
            assert_eq!(bench.sim.calls("instances.create"), 1);
            bench.bring_down(&orders[0], None).await;
            bench.judge("overlay, another process");
        }
    });
}

/// This client does not know what another process did, as after a change of its Secret or a
/// restart.
#[test]
fn a_machine_that_took_runs_goes_on_whatever_a_new_client_learns_of_its_network() {
    in_virtual_time(async || {
        for status in [500, 403, 404] {
            let (mut bench, orders) = two().await;
            let (running, _) = bench.bring_up(&orders[0]).await;
            let credentials = bench.subject.credentials.clone();
            bench.provider = connect("vastai", bench.simulator.url("vastai"), &credentials, json!({}));
            let refused = || Fault::Server {
                status,
                when: When::Before,
            };
            bench.sim.fault(Rule::always("overlays.list", refused()));
            bench.sim.fault(Rule::always("overlays.join", refused()));
            let mut recorded = machine(&orders[0], Some(&running.id));
            recorded.started = true;
            for _ in 0..10 {
                let found = bench.provider.get(&recorded).await.unwrap().unwrap();
                assert_eq!(found.phase, ProviderPhase::Running, "{status}");
                sleep(Duration::from_mins(1)).await;
            }
            bench.sim.clear_faults();
            bench.bring_down(&orders[0], None).await;
        }
    });
}

#[test]
fn a_list_of_networks_that_fails_is_no_verdict_on_a_machine_that_starts() {
    in_virtual_time(async || {
        for status in [500, 403, 404] {
            let (mut bench, orders) = two().await;
            bench.provider.create(&orders[0]).await.unwrap();
            let credentials = bench.subject.credentials.clone();
            bench.provider = connect("vastai", bench.simulator.url("vastai"), &credentials, json!({}));
            let refused = Fault::Server {
                status,
                when: When::Before,
            };
            bench.sim.fault(Rule::always("overlays.list", refused));
            let unknown = |phase: &ProviderPhase| matches!(phase, ProviderPhase::Starting(Some(why)) if why.contains("not known"));
            until(&bench, &orders[0], unknown).await;
            sleep(Duration::from_mins(4)).await;
            let found = bench
                .provider
                .get(&machine(&orders[0], None))
                .await
                .unwrap()
                .unwrap();
            assert!(unknown(&found.phase), "{status}: {:?}", found.phase);
            bench.sim.clear_faults();
            until(&bench, &orders[0], |phase| *phase == ProviderPhase::Running).await;
            bench.bring_down(&orders[0], None).await;
        }
    });
}

#[test]
fn a_network_that_cannot_be_made_is_had_elsewhere_after_overlay_timeout() {
    in_virtual_time(async || {
        let (bench, orders) = two().await;
        let refused = Fault::Server {
            status: 500,
            when: When::Before,
        };
        bench.sim.fault(Rule::always("overlays.create", refused));
        let began = Instant::now();
        let error = loop {
            let error = bench.provider.create(&orders[0]).await.unwrap_err();
            if error.kind == ErrorKind::NoCapacity {
                break error;
            }
            assert!(passes(&error), "{error}");
            assert!(began.elapsed() < Duration::from_mins(5), "{error}");
            sleep(Duration::from_secs(2)).await;
        };
        assert!(error.message.contains("overlayTimeout"), "{error}");
        assert!(began.elapsed() >= Duration::from_mins(2));
        assert_eq!(bench.machines(), 0);
        bench.judge("overlay, not made");
    });
}

#[test]
fn a_network_is_returned_by_settings_that_would_make_none() {
    in_virtual_time(async || {
        let (mut bench, orders) = two().await;
        bench.provider.create(&orders[0]).await.unwrap();
        bench.end(&orders[0], None).await;
        bench.provider = connect(
            "vastai",
            bench.simulator.url("vastai"),
            &bench.subject.credentials,
            json!({ "useOverlay": false }),
        );
        assert_eq!(bench.provider.leftovers(&scope()).await.unwrap().len(), 1);
        bench.provider.release(&pool()).await.unwrap();
        assert_eq!(bench.provider.release(&pool()).await.unwrap(), Deletion::Gone);
        bench.judge("overlay, given up");
    });
}
