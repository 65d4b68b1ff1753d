//! Tests of Google Cloud alone: rules of firewalls, orders that fail after they were accepted, zones without an answer,
//! two installations in one project, the account without a key, permissions, and prices that settings tell.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use serde_json::{Value, json};
use skyward_cloudsim::{Fault, Left, Market as Sold, Rule, Shelf, When};
use skyward_conformance::{ACCOUNT, Bench, connect, machine, mark, order, passes, pool, scope};
use skyward_core::{
    Deletion, ErrorKind, MachineRef, Mark, Market, Order, PoolScope, Provider, ProviderPhase, Scope, Usd,
    machine::{Failure, FailureKind},
    offer::{Availability, Offer},
};
use tokio::time::sleep;

use crate::in_virtual_time;

/// Sets a control of the simulator.
fn set(bench: &Bench, control: &str, body: &Value) {
    let set = bench.sim.control(control, body);
    assert!(matches!(set, Some(Ok(_))), "{control}: {set:?}");
}

/// A client that knows nothing of what the bench's own one did, as that of another process.
fn another(bench: &Bench) -> Arc<dyn Provider> {
    let url = bench.simulator.url("gcp");
    connect(
        "gcp",
        url,
        &bench.subject.credentials,
        bench.subject.settings.clone(),
    )
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
        assert_eq!(bench.left().await, ["firewall rule"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        assert_eq!(bench.left().await, ["firewall rule"]);
        bench.bring_down(&orders[0], None).await;
        assert_eq!(bench.left().await, [""; 0]);
        bench.judge("a rule");
    });
}

#[test]
fn machines_that_must_reach_each_other_have_a_rule_that_lets_them() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let orders = bench.connected_pair().await;
        assert_eq!(bench.left().await, ["firewall rule", "firewall rule"]);
        for order in &orders {
            bench.end(order, None).await;
        }
        bench.bring_down(&orders[0], None).await;
        bench.judge("two rules");
    });
}

/// Lists lag, and another process sends the order again: it finds the name taken, and the machine its own.
#[test]
fn an_order_whose_answers_are_lost_makes_one_machine() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let lag = SignedDuration::from_mins(10);
        bench.sim.world(|world| world.lag.created = lag);
        let cut = Fault::Cut { when: When::After };
        bench.sim.fault(Rule::once("instances.create", cut));
        let lost = bench.provider.create(&order).await.unwrap_err();
        assert_eq!(lost.kind, ErrorKind::Indeterminate, "{lost}");
        let again = bench.provider.create(&order).await.unwrap();
        let elsewhere = another(&bench).create(&order).await.unwrap();
        assert_eq!(again, elsewhere);
        assert_eq!(bench.machines(), 1);
        bench.sim.world(|world| world.lag.created = SignedDuration::ZERO);
        let (running, refused) = bench.bring_up(&order).await;
        assert_eq!((&running.id, refused.len()), (&again.id, 0), "{refused:?}");
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("lost answers");
    });
}

/// Waits until a machine is known to have failed.
async fn failed(bench: &Bench, reference: &MachineRef) -> Failure {
    for _ in 0..10 {
        let found = bench.provider.get(reference).await.unwrap();
        if let Some(ProviderPhase::Failed(failure)) = found.map(|found| found.phase) {
            return failure;
        }
        sleep(Duration::from_secs(2)).await;
    }
    panic!("nobody says that it was not made: {reference:?}");
}

#[test]
fn a_shortage_is_told_as_one_before_the_order_is_accepted_and_after_it() {
    for at_once in [true, false] {
        in_virtual_time(async || {
            let bench = Bench::start("gcp", None).await;
            set(&bench, "answers", &json!({ "shortAtOnce": at_once }));
            let order = bench.order(Market::OnDemand, 0).await;
            let shelf = Shelf::new(&order.instance_type, &order.region, Sold::OnDemand);
            bench.sim.world(|world| world.stock.set(shelf, Left::Count(0)));
            match bench.provider.create(&order).await {
                Err(error) => assert_eq!((at_once, error.kind), (true, ErrorKind::NoCapacity)),
                Ok(accepted) => {
                    let failure = failed(&bench, &machine(&order, Some(&accepted.id))).await;
                    assert_eq!((at_once, failure.kind), (false, FailureKind::NoCapacity));
                    let words = "does not have enough resources available";
                    assert!(failure.message.contains(words), "{}", failure.message);
                }
            }
            bench.bring_down(&order, None).await;
            bench.judge("a shortage");
        });
    }
}

#[test]
fn a_quota_of_the_project_is_told_by_its_name_when_the_order_has_failed() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        bench.sim.world(|world| {
            let account = world.accounts.get_mut(ACCOUNT).unwrap();
            account.quotas.insert("GPUS_ALL_REGIONS".to_owned(), 0);
        });
        let id = bench.provider.create(&order).await.unwrap().id;
        let failure = failed(&bench, &machine(&order, Some(&id))).await;
        assert_eq!(failure.kind, FailureKind::NoCapacity);
        assert!(
            failure.message.contains("GPUS_ALL_REGIONS"),
            "{}",
            failure.message
        );
        bench.bring_down(&order, Some(&id)).await;
        bench.judge("a quota");
    });
}

#[test]
fn a_quota_of_a_region_is_told_with_the_region_and_another_region_sells_on() {
    for at_once in [true, false] {
        in_virtual_time(async || {
            let priced = json!([{ "instanceType": "g2-standard-4", "onDemand": "0.75" }]);
            let settings = json!({ "regions": ["europe-west4"], "prices": priced });
            let bench = Bench::start("gcp", Some(settings)).await;
            set(&bench, "answers", &json!({ "quotaLate": !at_once }));
            let offers = bench.provider.offers().await.unwrap();
            let sold: Vec<&Offer> = offers
                .iter()
                .filter(|offer| offer.instance_type == "g2-standard-4" && offer.on_demand.is_some())
                .filter(|offer| offer.availability != Availability::No)
                .collect();
            let region = |offer: &Offer| offer.region.rsplit_once('-').unwrap().0.to_owned();
            let (first, used_up) = (sold[0], region(sold[0]));
            bench.sim.world(|world| {
                let account = world.accounts.get_mut(ACCOUNT).unwrap();
                account.quotas.insert(format!("{used_up} NVIDIA_L4_GPUS"), 0);
            });
            let refused = order(first, Market::OnDemand, 0);
            let told = match bench.provider.create(&refused).await {
                Err(error) => {
                    assert!(at_once && matches!(error.kind, ErrorKind::Quota(_)), "{error}");
                    error.quota_region
                }
                Ok(accepted) => {
                    assert!(!at_once);
                    let failure = failed(&bench, &machine(&refused, Some(&accepted.id))).await;
                    failure.quota_region
                }
            };
            assert_eq!(told, Some(used_up.clone()));
            bench.bring_down(&refused, None).await;
            let elsewhere = sold.iter().find(|offer| region(offer) != used_up).unwrap();
            let taken = order(elsewhere, Market::OnDemand, 1);
            let (running, _) = bench.bring_up(&taken).await;
            bench.bring_down(&taken, Some(&running.id)).await;
            bench.judge("a quota of a region");
        });
    }
}

#[test]
fn a_zone_that_cannot_be_reached_makes_no_machine_gone() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        set(&bench, "zones", &json!({ "unreachable": [order.region] }));
        let reference = machine(&order, Some(&running.id));
        for error in [
            bench.provider.get(&reference).await.unwrap_err(),
            bench.provider.delete(&reference).await.unwrap_err(),
            bench.list().await.unwrap_err(),
        ] {
            assert!(passes(&error), "{error}");
        }
        set(&bench, "zones", &json!({ "unreachable": [] }));
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a zone without an answer");
    });
}

#[test]
fn an_end_that_another_process_ordered_goes_on() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        set(&bench, "answers", &json!({ "busy": true }));
        let reference = machine(&order, Some(&running.id));
        for provider in [&bench.provider, &another(&bench)] {
            let ended = provider.delete(&reference).await.unwrap();
            assert_eq!(ended, Deletion::InProgress);
        }
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("an end of another process");
    });
}

/// As in a Pod with Workload Identity: there is no key, and the metadata server gives the tokens.
#[test]
fn without_a_key_the_service_account_of_the_operator_is_used_and_without_one_that_is_told() {
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        let settings = json!({ "project": ACCOUNT });
        let provider = connect("gcp", bench.simulator.url("gcp"), &[], settings);
        let nobody = provider.account().await.unwrap_err();
        assert_eq!(nobody.kind, ErrorKind::Credentials, "{nobody}");
        assert!(nobody.message.contains("Workload Identity"), "{nobody}");
        set(&bench, "metadata", &json!({ "account": ACCOUNT }));
        assert_eq!(
            provider.account().await.unwrap(),
            bench.provider.account().await.unwrap()
        );
        let order = bench.order(Market::OnDemand, 0).await;
        let id = provider.create(&order).await.unwrap().id;
        bench.bring_down(&order, Some(&id)).await;
        bench.judge("no key");
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

#[test]
fn what_has_no_price_is_ordered_on_demand_and_only_by_a_pool_that_says_what_it_may_cost() {
    in_virtual_time(async || {
        let settings = json!({ "zone": "europe-west4-a" });
        let bench = Bench::start("gcp", Some(settings)).await;
        let offers = bench.provider.offers().await.unwrap();
        let without = |offer: &&Offer| offer.on_demand.is_none() && offer.spot.is_none();
        let offer = offers
            .iter()
            .find(without)
            .expect("the table has no prices of Europe");
        let unbounded = order(offer, Market::OnDemand, 0);
        let bounded = |market| Order {
            market,
            max_hourly_cost: Some(Usd::from(5)),
            ..unbounded.clone()
        };
        let none = Order {
            max_hourly_cost: None,
            ..unbounded.clone()
        };
        for refused in [none, bounded(Market::Spot)] {
            let refused = bench.provider.create(&refused).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::NoCapacity, "{refused}");
            assert!(refused.message.contains("gcp.prices"), "{refused}");
        }
        let order = bounded(Market::OnDemand);
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(running.rental.hourly_price, None);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("no price");
    });
}

/// The permissions of the role that the page of this kind has.
fn role() -> Vec<&'static str> {
    let page = include_str!("../../docs/providers/gcp.md");
    let (_, list) = page.split_once("includedPermissions:").unwrap();
    let (list, _) = list.split_once("```").unwrap();
    let lines = list.lines().map(str::trim);
    lines.filter_map(|line| line.strip_prefix("- ")).collect()
}

fn lacks(bench: &Bench, permissions: &[&str]) {
    let body = json!({ "account": ACCOUNT, "lacks": permissions });
    set(bench, "permissions", &body);
}

#[test]
fn the_role_of_the_page_is_enough() {
    // What the simulator asks for beside the role, where somebody makes such a call.
    const BESIDE: [&str; 6] = [
        "compute.firewalls.get",
        "compute.instances.setServiceAccount",
        "compute.networks.get",
        "compute.regions.get",
        "compute.zoneOperations.list",
        "iam.serviceAccounts.actAs",
    ];
    in_virtual_time(async || {
        let bench = Bench::start("gcp", None).await;
        lacks(&bench, &BESIDE);
        bench.provider.account().await.unwrap();
        bench.provider.account_facts().await.unwrap();
        for market in [Market::OnDemand, Market::Spot] {
            let order = bench.order(market, 0).await;
            let (running, refused) = bench.bring_up(&order).await;
            assert!(refused.is_empty(), "{refused:?}");
            let refused = bench.bring_down(&order, Some(&running.id)).await;
            assert!(refused.is_empty(), "{refused:?}");
        }
        bench.judge("the role of the page");
    });
}

#[test]
fn a_permission_that_is_missing_is_told_by_its_name() {
    let role = role();
    assert!(role.len() > 15, "{role:?}");
    for permission in role {
        in_virtual_time(async || {
            let bench = Bench::start("gcp", None).await;
            let provider = &bench.provider;
            // Made while nothing is missing: its end is asked for below.
            let first = bench.order(Market::OnDemand, 0).await;
            let (running, _) = bench.bring_up(&first).await;
            // Of another Pool, so that a rule has to be made as well.
            let second = Order {
                mark: Mark {
                    pool_uid: "6c0e3d65-3d4f-4d40-8e3c-6d2e0b8a1c33".to_owned(),
                    ..mark(1)
                },
                ..first.clone()
            };
            let third = Order {
                mark: mark(2),
                ..first.clone()
            };
            // What no list shows is looked at by itself.
            bench
                .sim
                .world(|world| world.lag.created = SignedDuration::from_hours(1));
            lacks(&bench, &[permission]);
            let mut refused = Vec::new();
            refused.extend(provider.account().await.err());
            refused.extend(provider.account_facts().await.err());
            refused.extend(provider.offers().await.err());
            refused.extend(provider.create(&second).await.err());
            // A shortage is told by the operation alone.
            bench.sim.fault(Rule::once("instances.create", Fault::NoCapacity));
            match provider.create(&third).await {
                Ok(accepted) => {
                    let looked = provider.get(&machine(&third, Some(&accepted.id))).await;
                    refused.extend(looked.err());
                }
                Err(error) => refused.push(error),
            }
            let ended = provider.delete(&machine(&first, Some(&running.id))).await;
            refused.extend(ended.err());
            refused.extend(provider.release(&pool()).await.err());
            let told = refused
                .iter()
                .any(|error| error.kind == ErrorKind::Permission && error.message.contains(permission));
            assert!(told, "{permission}: {refused:?}");
        });
    }
}
