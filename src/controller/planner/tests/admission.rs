//! Pools that may order nothing, and what would help: one look each, and what comes when it is
//! mended.

use std::time::Duration;

use serde_json::{Value, json};
use skyward_core::offer::Architecture;

use super::{
    lives::{later, ready},
    tells,
    world::World,
};
use crate::{
    accounts::facts::NamespaceFacts,
    pool::facts::{Refusal, Unread},
};

fn cpu() -> Value {
    json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 1 } })
}

/// One look at a new Pool, and another one once that is mended.
fn mended(spec: Value, cause: impl FnOnce(&mut World), mend: &str, how: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(spec);
    cause(&mut world);
    world.pass(0);
    world.happens(mend);
    how(&mut world);
    world.pass(2);
    world
}

#[test]
fn a_pool_of_an_unknown_provider_names_the_providers_there_are() {
    let mend = |world: &mut World| world.edit(json!({ "provider": "acme" }));
    let spec = json!({ "provider": "acmee", "instanceType": "cpu", "nodes": { "desired": 1 } });
    tells!(mended(spec, |_| {}, "a person corrects the name", mend).text());
}

#[test]
fn a_namespace_that_the_provider_does_not_admit_says_which_labels_it_needs() {
    let cause = |world: &mut World| world.acme().admits = Err("team=research".into());
    let mend = |world: &mut World| world.acme().admits = Ok(());
    tells!(mended(cpu(), cause, "the namespace has the label", mend).text());
}

#[test]
fn a_namespace_that_is_not_served_orders_nothing_and_keeps_what_it_has() {
    let mut world = later(cpu());
    world.happens("the operator is installed anew, for other namespaces");
    world.namespace = NamespaceFacts::NotServed;
    world.edit(json!({ "nodes": { "desired": 2 } }));
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_namespace_that_is_being_deleted_orders_nothing() {
    let mut world = World::new(cpu());
    world.namespace = NamespaceFacts::Terminating;
    world.pass(0);
    tells!(world.text());
}

#[test]
fn a_limit_of_machines_is_reached() {
    let cause = |world: &mut World| world.acme().edit(json!({ "limits": { "machines": 1 } }));
    let mend = |world: &mut World| world.acme().edit(json!({ "limits": { "machines": 2 } }));
    let spec = json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 2 } });
    tells!(mended(spec, cause, "the limit is raised", mend).text());
}

#[test]
fn a_limit_of_dollars_per_hour_is_reached() {
    let cause = |world: &mut World| world.acme().edit(json!({ "limits": { "hourlyCost": "3" } }));
    let mend = |world: &mut World| world.acme().edit(json!({ "limits": { "hourlyCost": "4" } }));
    let spec = json!({ "provider": "acme", "accelerator": { "name": "H100" }, "nodes": { "desired": 2 } });
    tells!(mended(spec, cause, "the limit is raised", mend).text());
}

#[test]
fn an_entry_of_limits_whose_selector_cannot_be_read_admits_nothing() {
    let entry =
        json!({ "selector": { "matchExpressions": [{ "key": "team", "operator": "In" }] }, "machines": 9 });
    let cause = |world: &mut World| world.acme().edit(json!({ "limits": { "namespaces": [entry] } }));
    let mend = |world: &mut World| world.acme().edit(json!({ "limits": { "namespaces": [] } }));
    tells!(mended(cpu(), cause, "the entry is taken out", mend).text());
}

#[test]
fn nothing_is_as_large_as_the_pool_asks() {
    let mend = |world: &mut World| world.edit(json!({ "cpu": "8" }));
    let spec = json!({ "provider": "acme", "cpu": "1000", "nodes": { "desired": 1 } });
    tells!(mended(spec, |_| {}, "a person asks for less", mend).text());
}

#[test]
fn nothing_has_the_accelerator_that_the_pool_asks_for() {
    let mut world = World::new(json!({ "provider": "acme", "accelerator": { "name": "B200" } }));
    world.pass(0);
    tells!(world.text());
}

#[test]
fn everything_costs_more_than_the_pool_may_pay() {
    let mend = |world: &mut World| world.edit(json!({ "maxHourlyCost": "2.5" }));
    let spec = json!({ "provider": "acme", "accelerator": { "name": "H100" }, "maxHourlyCost": "1.5" });
    tells!(mended(spec, |_| {}, "a person may pay more", mend).text());
}

#[test]
fn nothing_is_in_the_region_that_the_pool_asks_for() {
    let mut world = World::new(json!({ "provider": "acme", "instanceType": "cpu", "region": "us" }));
    world.pass(0);
    tells!(world.text());
}

#[test]
fn nothing_is_sold_on_the_spot_market() {
    let mut world = World::new(json!({ "provider": "acme", "instanceType": "cpu", "allocation": "Spot" }));
    world.pass(0);
    tells!(world.text());
}

#[test]
fn there_is_no_agent_for_the_only_architecture() {
    let mut world = World::with(json!({ "provider": "acme", "instanceType": "cpu" }), |cloud| {
        for offer in &mut cloud.offers {
            offer.architecture = Architecture::Arm64;
        }
    });
    world.pass(0);
    tells!(world.text());
}

#[test]
fn a_cloud_that_sells_nothing_now_says_that_of_the_pool() {
    let mut world = World::with(cpu(), |cloud| cloud.offers.clear());
    world.pass(0);
    tells!(world.text());
}

#[test]
fn machines_that_must_reach_each_other_are_not_sold() {
    let spec = json!({ "provider": "acme", "instanceType": "cpu", "topology": "Connected", "nodes": { "desired": 2 } });
    let mut world = World::with(spec, |cloud| {
        for offer in &mut cloud.offers {
            offer.connected = false;
        }
    });
    world.pass(0);
    tells!(world.text());
}

#[test]
fn an_accelerator_whose_name_contradicts_its_fields_is_an_invalid_spec() {
    let mut world =
        World::new(json!({ "provider": "acme", "accelerator": { "name": "H100-80GB", "memory": "40Gi" } }));
    world.pass(0);
    tells!(world.text());
}

#[test]
fn an_override_that_the_provider_does_not_list_is_an_invalid_spec() {
    let mend = |world: &mut World| world.acme().edit(json!({ "overridable": ["image"] }));
    let spec = json!({ "candidates": [{ "provider": "acme", "instanceType": "cpu", "settings": { "image": "x" } }] });
    tells!(mended(spec, |_| {}, "a platform engineer lists it", mend).text());
}

#[test]
fn a_secret_that_a_pool_names_is_missing() {
    let cause = |world: &mut World| world.missing = Ok(vec!["Secret \"tokens\"".into()]);
    let mend = |world: &mut World| world.missing = Ok(Vec::new());
    tells!(mended(cpu(), cause, "the Secret is made", mend).text());
}

#[test]
fn references_that_are_too_large_are_refused_with_both_numbers() {
    let mut world = World::new(cpu());
    world.too_large = Some("Its references have 2 MiB together, and at most 1 MiB is taken".into());
    world.pass(0);
    tells!(world.text());
}

#[test]
fn references_that_cannot_be_read_now_are_waited_for() {
    let mut world = World::new(cpu());
    world.missing = Err("Secret \"tokens\" of namespace \"team\" cannot be read: forbidden".into());
    world.pass(0);
    tells!(world.text());
}

#[test]
fn a_quota_of_the_namespace_refuses_machines_and_is_tried_again() {
    let cause = |world: &mut World| {
        world.refusal = Some(Refusal {
            why: "exceeded quota: machines, requested: 1, used: 0, limited: 0".into(),
            until: world.now + Duration::from_secs(30),
        });
    };
    let mut world = mended(cpu(), cause, "the quota is raised", |_| {});
    world.pass(30);
    tells!(world.text());
}

#[test]
fn a_machine_whose_record_cannot_be_read_keeps_its_slot_empty() {
    let mut world = ready(json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 2 } }));
    world.forget();
    world.happens("the record of the Machine of slot 1 is of a later version");
    world.machines.remove("train-0a1b2-1-2");
    world.unread = vec![Unread {
        name: "train-0a1b2-1-2".into(),
        pool_uid: "0a1b2c3d-0000".into(),
        slot: Some(1),
        error: "unknown variant `Future` of spec.market".into(),
    }];
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_withdrawal_between_the_record_and_the_order_orders_nothing() {
    let mut world = World::new(cpu());
    world.look();
    world.look();
    world.happens("before it is ordered, the Provider's selector changes");
    world.acme().admits = Err("team=research".into());
    world.pass(10);
    tells!(world.text());
}
