//! Tests of Google Cloud alone: rules of firewalls, orders that fail after they were accepted, two installations in one
//! project, permissions, and prices that settings tell.

use std::time::Duration;

use serde_json::json;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{ACCOUNT, Bench, mark, order, pool, scope};
use skyward_core::{
    Deletion, ErrorKind, Mark, Market, Order, PoolScope, Scope, Usd, offer::Availability, order::PoolShape,
};
use tokio::time::sleep;

use crate::in_virtual_time;

/// What is left over of which kind.
async fn left(bench: &Bench) -> Vec<&'static str> {
    let left = bench.provider.leftovers(&scope()).await.unwrap();
    left.iter().map(|left| left.kind).collect()
}

#[test]
fn a_rule_is_made_once_for_a_pool_and_returned_with_it() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let mut orders = Vec::new();
        for slot in 0..2 {
            let order = bench.order(Market::OnDemand, slot).await;
            let (_, refused) = bench.bring_up(&order).await;
            assert!(refused.is_empty(), "{refused:?}");
            orders.push(order);
        }
        assert_eq!(left(&bench).await, ["firewall rule"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        assert_eq!(left(&bench).await, ["firewall rule"]);
        bench.bring_down(&orders[0], None).await;
        assert_eq!(left(&bench).await, [""; 0]);
        bench.judge("a rule");
    });
}

#[test]
fn machines_that_must_reach_each_other_have_a_rule_that_lets_them() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let mut orders = Vec::new();
        for slot in 0..2 {
            let mut order = bench.order(Market::OnDemand, slot).await;
            order.pool = PoolShape {
                machines: 2,
                connected: true,
            };
            let (running, refused) = bench.bring_up(&order).await;
            assert!(refused.is_empty(), "{refused:?}");
            assert!(running.private_address.is_some(), "{running:?}");
            orders.push(order);
        }
        assert_eq!(left(&bench).await, ["firewall rule", "firewall rule"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        bench.bring_down(&orders[0], None).await;
        bench.judge("two rules");
    });
}

/// Google knows an order again by its token, and two machines of one name never stand in one zone.
#[test]
fn an_order_whose_answers_are_lost_makes_one_machine_whoever_sends_it_again() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        for _ in 0..2 {
            bench
                .sim
                .fault(Rule::once("instances.create", Fault::Cut { when: When::After }));
            let lost = bench.provider.create(&order).await;
            assert!(
                lost.as_ref().is_ok_and(|_| bench.machines() == 1)
                    || lost
                        .as_ref()
                        .is_err_and(|error| error.kind == ErrorKind::Indeterminate),
                "{lost:?}"
            );
        }
        sleep(bench.provider.capabilities().settle_time).await;
        let (running, _) = bench.bring_up(&order).await;
        assert_eq!(bench.machines(), 1);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("lost answers");
    });
}

#[test]
fn two_installations_in_one_project_see_and_return_what_is_their_own() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let ours = bench.order(Market::OnDemand, 0).await;
        let cluster = "9b1f0c7e-55a1-4a0e-8d0c-3a6f1f2b7d44".to_owned();
        let theirs = Order {
            mark: Mark {
                cluster: cluster.clone(),
                ..mark(1)
            },
            ..bench.order(Market::OnDemand, 1).await
        };
        let (first, _) = bench.bring_up(&ours).await;
        let (second, _) = bench.bring_up(&theirs).await;
        let other = Scope {
            cluster: cluster.clone(),
            ..scope()
        };
        for (scope, id) in [(&scope(), &first.id), (&other, &second.id)] {
            let listed = bench.provider.list(scope).await.unwrap();
            let ids: Vec<&String> = listed.iter().map(|machine| &machine.id).collect();
            assert_eq!(ids, [id]);
            assert_eq!(bench.provider.leftovers(scope).await.unwrap().len(), 1);
        }
        bench.bring_down(&ours, Some(&first.id)).await;
        assert_eq!(bench.provider.list(&other).await.unwrap().len(), 1);
        assert_eq!(bench.provider.leftovers(&other).await.unwrap().len(), 1);
        bench.end(&theirs, Some(&second.id)).await;
        let pool = PoolScope { cluster, ..pool() };
        let mut released = Deletion::InProgress;
        for _ in 0..60 {
            released = bench.provider.release(&pool).await.unwrap();
            if released == Deletion::Gone {
                break;
            }
            sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(released, Deletion::Gone);
        bench.judge("two installations");
    });
}

#[test]
fn a_price_of_the_settings_is_that_of_the_offer_the_order_and_the_machine() {
    in_virtual_time(async || {
        let first = {
            let bench = Bench::start("gcp", None).await;
            bench.order(Market::OnDemand, 0).await.instance_type
        };
        let settings = json!({ "prices": [{ "instanceType": first, "onDemand": "1.23" }] });
        let bench = Bench::start("gcp", Some(settings)).await;
        let offers = bench.provider.offers().await.unwrap();
        let is_it = |availability| availability != Availability::No;
        let offer = offers
            .iter()
            .find(|offer| offer.instance_type == first && is_it(offer.availability))
            .unwrap();
        assert_eq!(offer.on_demand, Some(Usd::cents(123)));
        let order = order(offer, Market::OnDemand, 0);
        let (running, _) = bench.bring_up(&order).await;
        assert_eq!(running.rental.hourly_price, Some(Usd::cents(123)));
        let dear = Order {
            max_hourly_cost: Some(Usd::cents(122)),
            mark: mark(1),
            ..order.clone()
        };
        let refused = bench.provider.create(&dear).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
        bench.bring_down(&order, Some(&running.id)).await;
    });
}

/// The permissions of the role that the page of this kind has, which a life of a machine needs.
#[test]
fn a_permission_that_is_missing_is_told_by_its_name() {
    const NEEDED: [&str; 12] = [
        "compute.projects.get",
        "compute.zones.list",
        "compute.machineTypes.list",
        "compute.acceleratorTypes.list",
        "compute.instances.list",
        "compute.instances.create",
        "compute.instances.delete",
        "compute.disks.create",
        "compute.subnetworks.use",
        "compute.firewalls.list",
        "compute.firewalls.create",
        "compute.firewalls.delete",
    ];
    let page = include_str!("../../docs/providers/gcp.md");
    for permission in NEEDED {
        assert!(page.contains(permission), "the page lacks {permission}");
        in_virtual_time(async || {
            let bench = Bench::start("gcp", None).await;
            let order = bench.order(Market::OnDemand, 0).await;
            let ends = permission.ends_with(".delete");
            let running = if ends {
                Some(bench.bring_up(&order).await.0)
            } else {
                None
            };
            let denied = json!({ "account": ACCOUNT, "actions": [permission] });
            let set = bench.sim.control("deny", &denied);
            assert!(matches!(set, Some(Ok(_))), "{set:?}");
            let mut refused = Vec::new();
            refused.extend(bench.provider.account().await.err());
            refused.extend(bench.provider.offers().await.err());
            if let Some(running) = &running {
                let machine = skyward_conformance::machine(&order, Some(&running.id));
                refused.extend(bench.provider.delete(&machine).await.err());
                refused.extend(bench.provider.release(&pool()).await.err());
            } else {
                refused.extend(bench.provider.create(&order).await.err());
            }
            let told = refused
                .iter()
                .any(|error| error.kind == ErrorKind::Permission && error.message.contains(permission));
            assert!(told, "{permission}: {refused:?}");
        });
    }
}
