//! Tests of DigitalOcean alone: tags that outlive what carried them, and private addresses.

use serde_json::json;
use skyward_cloudsim::{Fault, Rule};
use skyward_conformance::{Bench, pool};
use skyward_core::{ErrorKind, Market, order::PoolShape};

use crate::in_virtual_time;

#[test]
fn tags_are_no_leftovers_while_a_machine_carries_them_and_are_returned_with_their_pool() {
    in_virtual_time(async || {
        let bench = Bench::start("digitalocean", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        assert_eq!(bench.left().await, ["SSH key", "firewall"]);
        bench.end(&order, Some(&running.id)).await;
        // Of the machine, and of the firewall.
        assert_eq!(bench.left().await, ["SSH key", "firewall", "tag", "tag"]);
        bench.bring_down(&order, Some(&running.id)).await;
        assert_eq!(bench.left().await, [""; 0]);
        bench.judge("tags");
    });
}

/// DigitalOcean counts what a tag is carried by among the resources that a token may read.
#[test]
fn a_token_that_may_read_no_droplets_is_refused_and_takes_no_tag_from_them() {
    in_virtual_time(async || {
        let bench = Bench::start("digitalocean", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let blind = |is_blind: bool| {
            let set = bench.sim.control("tags", &json!({ "seesNoDroplets": is_blind }));
            assert!(matches!(set, Some(Ok(_))), "{set:?}");
        };
        blind(true);
        bench.sim.fault(Rule::always("droplets.list", Fault::Forbidden));
        let refused = bench.provider.account().await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Permission, "{refused}");
        let refused = bench.provider.release(&pool()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Permission, "{refused}");
        // Neither is a count believed where the list can be read.
        bench.sim.clear_faults();
        bench.provider.release(&pool()).await.unwrap();
        blind(false);
        let listed = bench.list().await.unwrap();
        assert_eq!(listed.len(), 1, "its mark is gone: {listed:?}");
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a token that sees little");
    });
}

#[test]
fn machines_that_must_reach_each_other_have_a_firewall_of_their_own() {
    in_virtual_time(async || {
        let bench = Bench::start("digitalocean", None).await;
        let mut orders = Vec::new();
        for slot in 0..2 {
            let mut order = bench.order(Market::OnDemand, slot).await;
            order.pool = PoolShape {
                machines: 2,
                connected: slot == 1,
            };
            let (running, refused) = bench.bring_up(&order).await;
            assert!(refused.is_empty(), "{refused:?}");
            assert!(running.private_address.is_some(), "{running:?}");
            orders.push(order);
        }
        assert_eq!(bench.left().await, ["SSH key", "firewall", "firewall"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        bench.bring_down(&orders[0], None).await;
        bench.judge("firewalls");
    });
}
