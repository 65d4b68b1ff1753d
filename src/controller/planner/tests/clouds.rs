//! What clouds answer to orders: no capacity, quotas, refusals, lost answers, prices.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};
use skyward_api::condition::{READY, find, reason};
use skyward_core::ErrorKind;

use super::{
    tells,
    world::{World, error, sold},
};
use crate::machine::facts;

fn h100() -> Value {
    json!({ "provider": "acme", "accelerator": { "name": "H100" }, "nodes": { "desired": 1 } })
}

/// A Pool of one H100 at "acme" or "beta", of which the first is cheaper.
fn two_clouds() -> World {
    let spec = json!({
        "accelerator": { "name": "H100" }, "nodes": { "desired": 1 },
        "candidates": [{ "provider": "acme" }, { "provider": "beta" }]
    });
    World::of(&["acme", "beta"], spec, |cloud| {
        if cloud.is("beta") {
            cloud.offers = vec![sold("dear", Some("H100"), "us", (Some("3"), None))];
        }
    })
}

/// The same, where the first meets each order so.
fn first_meets(problem: skyward_core::ProviderError) -> World {
    let mut world = two_clouds();
    world.acme().every_order = Some(problem);
    world
}

#[test]
fn a_cloud_without_capacity_is_left_for_the_next_cheapest_at_once() {
    let mut world = first_meets(error(ErrorKind::NoCapacity, "rent a machine", "sold out"));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn where_nothing_has_capacity_the_cheapest_is_asked_for_again() {
    let mut world = World::new(h100());
    world.acme().every_order = Some(error(ErrorKind::NoCapacity, "rent a machine", "sold out"));
    world.pass(30);
    world.happens("the cloud has machines again");
    world.acme().every_order = None;
    world.pass(10);
    tells!(world.text());
}

#[test]
fn a_spot_market_without_capacity_is_left_for_machines_on_demand() {
    let mut spec = h100();
    spec["allocation"] = json!("SpotIfAvailable");
    let mut world = World::new(spec);
    let problem = error(ErrorKind::NoCapacity, "rent a machine", "no spot capacity");
    world.acme().next_orders.push_back(problem);
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_quota_of_the_account_is_left_for_another_cloud() {
    let quota = ErrorKind::Quota("P instances in eu".into());
    let mut world = first_meets(error(quota, "rent a machine", "quota exceeded"));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn an_account_without_credit_orders_nothing_and_says_so() {
    let mut world = World::new(h100());
    world.acme().every_order = Some(error(ErrorKind::NoCredit, "rent a machine", "insufficient funds"));
    world.pass(30);
    tells!(world.text());
}

#[test]
fn an_order_that_is_refused_as_it_is_moves_on_to_the_next_cloud_at_once() {
    let refused = error(
        ErrorKind::InvalidOrder,
        "rent a machine",
        "image \"x\" is not allowed here",
    );
    let mut world = first_meets(refused);
    world.pass(5);
    tells!(world.text());
}

#[test]
fn when_every_cloud_refuses_the_order_the_pool_says_what_each_said() {
    let refused = |why| error(ErrorKind::InvalidOrder, "rent a machine", why);
    let mut world = first_meets(refused("image \"x\" is not allowed here"));
    world.cloud("beta").every_order = Some(refused("the disk is too large"));
    world.pass(400);
    tells!(world.text());
}

#[test]
fn five_clouds_that_refuse_each_in_its_own_words_leave_the_order_to_the_sixth_within_seconds() {
    // The cheaper, the earlier it is asked.
    let clouds = [
        ("a-capacity", "1"),
        ("b-quota", "1.1"),
        ("c-credit", "1.2"),
        ("d-region", "1.3"),
        // It says that it is under maintenance, which does not prove that it took no order.
        ("e-maintenance", "1.4"),
        ("f-works", "1.5"),
    ];
    let refusals = [
        (
            "a-capacity",
            ErrorKind::NoCapacity,
            "no hosts are left for this flavor",
        ),
        (
            "b-quota",
            ErrorKind::Quota("GPUs".into()),
            "you have reached the limit of 0 GPUs",
        ),
        ("c-credit", ErrorKind::NoCredit, "please add funds to your wallet"),
        (
            "d-region",
            ErrorKind::InvalidOrder,
            "region eu takes no new customers",
        ),
        (
            "e-maintenance",
            ErrorKind::Outage,
            "the cloud answered HTTP 503: scheduled maintenance",
        ),
    ];
    let candidates: Vec<Value> = clouds
        .iter()
        .map(|(name, _)| json!({ "provider": name }))
        .collect();
    let spec = json!({
        "accelerator": { "name": "H100" }, "allocation": "OnDemand", "nodes": { "desired": 1 },
        "candidates": candidates,
    });
    let mut world = World::of(&clouds.map(|(name, _)| name), spec, |cloud| {
        let (_, price) = clouds.iter().find(|(name, _)| cloud.is(name)).unwrap();
        cloud.offers = vec![sold("h100", Some("H100"), "eu", (Some(*price), None))];
    });
    for (name, kind, words) in &refusals {
        world.cloud(name).every_order = Some(error(kind.clone(), "rent a machine", words));
    }
    let began = world.now;
    // In this world each answer to an order takes a second.
    let answers = SignedDuration::from_secs(6);
    // By then the fifth cloud would show what it made all the same.
    world.pass(25);
    let [machine] = world.machines.values().collect::<Vec<_>>()[..] else {
        panic!("there is not one machine");
    };
    assert_eq!(machine.spec.provider, "f-works");
    let accepted = machine
        .status
        .as_ref()
        .and_then(|status| status.accepted_at.as_ref());
    let took = accepted.unwrap().0.duration_since(began);
    assert!(took <= answers + SignedDuration::from_secs(3), "{took}");
    let status = world.pool.as_ref().and_then(|pool| pool.status.as_ref()).unwrap();
    let message = &find(&status.conditions, READY).unwrap().message;
    for (name, _, words) in refusals {
        let told = format!("Provider \"{name}\": could not rent a machine: {words}");
        assert!(message.contains(&told), "{told}: {message}");
    }
}

/// The cloud said that it is under maintenance, took the order all the same, and shows its machine when another cloud was asked.
#[test]
fn what_a_cloud_under_maintenance_made_all_the_same_is_ended_when_it_shows_up() {
    let mut world = first_meets(error(ErrorKind::Outage, "rent a machine", "under maintenance"));
    world.pass(3);
    let doubted: Vec<_> = world
        .machines
        .values()
        .filter(|machine| machine.spec.provider == "acme")
        .map(facts::machine_facts)
        .collect();
    let [doubted] = &doubted[..] else {
        panic!("the order that may have been taken is on record");
    };
    assert!(doubted.deleting_since.is_some(), "it is given up");
    world.acme().every_order = None;
    world.order(doubted).unwrap();
    world.pass(30);
    assert_eq!(world.acme().machines.len(), 0, "it is ended");
    assert_eq!(world.cloud("beta").machines.len(), 1);
    let [machine] = world.machines.values().collect::<Vec<_>>()[..] else {
        panic!("there is not one machine");
    };
    assert_eq!(machine.spec.provider, "beta");
}

/// Nothing else fits: the same machine is ordered again, and no try is counted.
#[test]
fn a_cloud_under_maintenance_that_no_other_replaces_is_asked_again() {
    let mut world = World::new(h100());
    world.acme().every_order = Some(error(ErrorKind::Outage, "rent a machine", "under maintenance"));
    world.pass(20);
    let [machine] = world.machines.values().collect::<Vec<_>>()[..] else {
        panic!("there is not one machine");
    };
    let status = machine.status.as_ref().unwrap();
    let ready = find(&status.conditions, READY).unwrap();
    assert_eq!(ready.reason, reason::PROVIDER_UNAVAILABLE, "{}", ready.message);
    assert_eq!(machine.spec.attempt, 1);
    world.acme().every_order = None;
    world.pass(60);
    assert_eq!(world.acme().machines.len(), 1);
    let pool = world.pool.as_ref().and_then(|pool| pool.status.as_ref()).unwrap();
    assert_eq!((pool.last_attempt, pool.failed_attempts), (1, 0));
}

#[test]
fn a_missing_pull_secret_is_waited_for() {
    let mut world =
        World::new(json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 1 } }));
    let why = "Secret \"registry\" of namespace \"team\" does not exist";
    world.acme().every_order = Some(error(ErrorKind::InvalidOrder, "create the Pod", why));
    world.pass(15);
    world.happens("a person makes the Secret");
    world.acme().every_order = None;
    world.pass(5);
    tells!(world.text());
}

#[test]
fn credentials_that_lack_the_right_to_rent_are_left_for_another_cloud() {
    let mut world = first_meets(error(ErrorKind::Permission, "rent a machine", "not authorized"));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn an_order_that_comes_too_early_waits_for_its_turn() {
    let mut world = World::new(h100());
    let limited = || ErrorKind::RateLimited(Some(Duration::from_secs(40)));
    for _ in 0..2 {
        let problem = error(limited(), "rent a machine", "too many requests");
        world.acme().next_orders.push_back(problem);
    }
    world.pass(85);
    tells!(world.text());
}

#[test]
fn an_order_whose_answer_is_lost_is_looked_for_before_it_is_sent_again() {
    let mut world = World::new(h100());
    let problem = error(
        ErrorKind::Indeterminate,
        "rent a machine",
        "the connection was reset",
    );
    world.acme().next_orders.push_back(problem);
    world.pass(10);
    tells!(world.text());
}

#[test]
fn a_machine_that_is_dearer_than_recorded_is_ended_and_its_offer_left_alone() {
    let mut world = World::new(h100());
    world.acme().bills = Some("2.6".parse().unwrap());
    world.pass(30);
    tells!(world.text());
}

#[test]
fn a_marketplace_may_bill_more_than_the_price_of_its_offer() {
    let mut spec = h100();
    spec["allocation"] = json!("OnDemand");
    let mut world = World::with(spec, |cloud| cloud.capabilities.marketplace = true);
    world.acme().bills = Some("2.6".parse().unwrap());
    world.pass(5);
    tells!(world.text());
}

#[test]
fn the_cheapest_of_two_clouds_is_ordered_and_a_lost_machine_comes_from_the_other() {
    let mut world = two_clouds();
    world.pass(60);
    world.forget();
    world.happens("the first cloud loses the machine and has no other");
    world.vanishes(0);
    world.acme().every_order = Some(error(ErrorKind::NoCapacity, "rent a machine", "sold out"));
    world.pass(10);
    tells!(world.text());
}
