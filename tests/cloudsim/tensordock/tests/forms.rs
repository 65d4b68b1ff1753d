//! The forms of answers, and lists.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{World, order, world};
use crate::{Fault, Rule};

/// A world whose answers come in all forms, with one machine.
async fn mixed() -> (World, String) {
    let world = world().await;
    let told = world.sim().control("answers", &json!({ "mixed": true }));
    told.unwrap().unwrap();
    let id = world.order(order()).await;
    (world, id)
}

#[tokio::test]
async fn a_list_has_names_and_statuses_and_no_addresses() {
    let world = world().await;
    let id = world.running(order()).await;
    let listed = world.get("instances").await.json()["data"]["instances"].clone();
    assert_eq!(
        listed,
        json!([{ "type": "VM", "id": id, "attributes": { "name": "pool-0-k3x9", "status": "running" } }])
    );
    world.is_content();
}

#[tokio::test]
async fn a_list_can_be_late_and_can_be_cut_short() {
    let world = world().await;
    let count = async || {
        let listed = world.get("instances").await.json()["data"]["instances"].clone();
        listed.as_array().unwrap().len()
    };
    world
        .sim()
        .world(|world| world.lag.created = SignedDuration::from_mins(1));
    let id = world.order(order()).await;
    assert_eq!(count().await, 0);
    assert_eq!(world.get(&format!("instances/{id}")).await.status, 200);
    world.0.advance(60);
    assert_eq!(count().await, 1);
    let forgets = Fault::PartialPage { keep: 0 };
    world.sim().fault(Rule::once("instances.list", forgets));
    assert_eq!(count().await, 0);
    assert_eq!(count().await, 1);
    world.is_content();
}

#[tokio::test]
async fn a_name_that_people_changed_is_the_one_that_is_told() {
    let world = world().await;
    let id = world.order(order()).await;
    world.sim().world(|world| {
        let machine = world.machines.get_mut(&id).unwrap();
        machine.mark.name = "pool-0".to_owned();
    });
    assert_eq!(world.machine(&id).await["name"], "pool-0");
    let listed = world.get("instances").await.json();
    assert_eq!(listed["data"]["instances"][0]["attributes"]["name"], "pool-0");
    world.is_content();
}

#[tokio::test]
async fn mixed_answers_have_every_form_of_a_machine_and_of_a_list() {
    let (world, id) = mixed().await;
    world.0.advance(20);
    let mut machines = BTreeSet::new();
    let mut lists = BTreeSet::new();
    // Three forms take turns over calls of two kinds, so that each kind has had all of them after six calls.
    for _ in 0..3 {
        let machine = world.machine(&id).await;
        let is_wrapped = machine["data"].is_object();
        let inner = if is_wrapped { &machine["data"] } else { &machine };
        let status = inner["status"].as_str().unwrap().to_owned();
        machines.insert((is_wrapped, inner["ipAddress"] == "", status));
        let list = world.get("instances").await.json();
        let is_nested = list["data"]["instances"].is_null();
        let items = if is_nested {
            &list["data"]["attributes"]["instances"]
        } else {
            &list["data"]["instances"]
        };
        let is_flat = items[0]["attributes"].is_null();
        let named = if is_flat {
            &items[0]
        } else {
            &items[0]["attributes"]
        };
        assert_eq!(named["name"], "pool-0-k3x9", "{list}");
        lists.insert((is_nested, is_flat));
    }
    assert_eq!(
        machines,
        BTreeSet::from([
            (false, false, "running".to_owned()),
            (true, true, "Running".to_owned())
        ])
    );
    assert_eq!(
        lists,
        BTreeSet::from([(false, false), (false, true), (true, false)])
    );
    world.is_content();
}

#[tokio::test]
async fn mixed_statuses_are_written_in_three_ways() {
    let (world, id) = mixed().await;
    world.0.advance(20);
    world
        .sim()
        .world(|world| world.reclaim(&id, SignedDuration::ZERO));
    world.0.advance(1);
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let machine = world.machine(&id).await;
        let status = machine["status"].as_str().or(machine["data"]["status"].as_str());
        seen.insert(status.unwrap().to_owned());
    }
    let all = [
        "StoppedDisassociated",
        "stopped_disassociated",
        "stoppeddisassociated",
    ];
    assert_eq!(seen, BTreeSet::from(all.map(str::to_owned)));
    world.is_content();
}

#[tokio::test]
async fn mixed_refusals_of_orders_are_inside_a_200_and_all_others_are_not() {
    let (world, _) = mixed().await;
    let quota = Fault::Quota {
        what: "GPUs".to_owned(),
    };
    let refused = async |fault: Fault| {
        world.sim().fault(Rule::once("create", fault));
        let reply = world.try_order(order()).await;
        (reply.status, reply.json())
    };
    let told = |status: u16, text: &str| json!({ "status": status, "message": text });
    for (fault, body) in [
        (
            Fault::NoCapacity,
            told(400, "No available hostnode has the requested resources"),
        ),
        (
            Fault::Funds,
            told(402, "Insufficient balance: you need at least $1 to deploy"),
        ),
        (
            quota,
            json!({ "error": "The organization has reached its limit of GPUs" }),
        ),
    ] {
        assert_eq!(refused(fault).await, (200, body));
    }
    let (status, body): (u16, Value) = refused(Fault::Unauthorized).await;
    assert_eq!((status, body), (401, json!({ "error": "Unauthorized" })));
    assert_eq!(world.get("instances/none").await.status, 404);
    assert_eq!(world.sim().world(|world| world.machines.len()), 1);
    world.is_content();
}
