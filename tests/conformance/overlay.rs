//! Vast.ai's overlay networks: what the machines of a Pool in one physical cluster share.

use std::time::Duration;

use serde_json::json;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{Bench, connect, order, pool, scope};
use skyward_core::{Deletion, Market, Offer, Order};

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

#[test]
fn a_machine_that_cannot_join_is_returned_at_once() {
    in_virtual_time(async || {
        let (bench, orders) = two().await;
        let refused = Fault::Server {
            status: 500,
            when: When::Before,
        };
        bench.sim.fault(Rule::always("overlays.join", refused));
        assert!(bench.provider.create(&orders[0]).await.is_err());
        bench.pass(Duration::from_mins(1)).await;
        assert_eq!(bench.machines(), 0);
        bench.sim.clear_faults();
        bench.provider.create(&orders[0]).await.unwrap();
        assert_eq!(bench.machines(), 1);
        bench.bring_down(&orders[0], None).await;
        bench.provider.release(&pool()).await.unwrap();
        bench.judge("overlay, refused");
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
