//! Lives of Pools: from nothing to Ready, larger and smaller, changed, off, deleted.

use serde_json::json;

use super::{
    tells,
    world::{World, fails, step_fails},
};
use skyward_core::machine::FailureKind;

/// A Pool that is ready.
pub(super) fn ready(spec: serde_json::Value) -> World {
    let mut world = World::new(spec);
    world.pass(60);
    world
}

/// A Pool that is ready, and what is told begins now.
pub(super) fn later(spec: serde_json::Value) -> World {
    let mut world = ready(spec);
    world.forget();
    world
}

fn two() -> serde_json::Value {
    json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 2 } })
}

#[test]
fn a_pool_of_two_becomes_ready_and_one_of_its_spot_machines_is_taken_back() {
    let mut world = ready(json!({
        "provider": "acme", "accelerator": { "name": "H100" }, "allocation": "SpotIfAvailable",
        "nodes": { "desired": 2 }
    }));
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("the cloud says that it takes the machine of slot 1 back in two minutes; a run is on it");
    let at = world.now + jiff::SignedDuration::from_mins(2);
    world.rented(1).rental.reclaim_at = Some(at);
    world.pass(60);
    world.happens("the cloud has taken it back");
    world.rented_before(1).phase = fails(FailureKind::Reclaimed, "the cloud took it back");
    world.load.runs.clear();
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_larger_pool_orders_what_is_missing() {
    let mut world = later(two());
    world.happens("a person wants four machines");
    world.edit(json!({ "nodes": { "desired": 4 } }));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_smaller_pool_gives_up_idle_machines_first_and_lets_runs_finish() {
    let mut world = later(json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 3 } }));
    world.load.runs = [
        ("train-0a1b2-0-1".to_owned(), 1),
        ("train-0a1b2-2-3".to_owned(), 2),
    ]
    .into();
    world.happens("a person wants one machine; runs are on the machines of slots 0 and 2");
    world.edit(json!({ "nodes": { "desired": 1 } }));
    world.pass(300);
    world.happens("the runs of slot 2 have ended");
    world.load.runs.remove("train-0a1b2-2-3");
    world.pass(20);
    tells!(world.text());
}

#[test]
fn a_changed_spec_replaces_idle_machines_at_once_and_busy_ones_when_they_are_idle() {
    let mut world = later(two());
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("a person asks for a larger /dev/shm; a run is on the machine of slot 1");
    world.edit(json!({ "shmSize": "2Gi" }));
    world.pass(60);
    world.happens("the run has ended");
    world.load.runs.clear();
    world.pass(5);
    tells!(world.text());
}

/// A Pool of two whose Tasks need a package.
fn with_image() -> serde_json::Value {
    let mut spec = two();
    spec["image"] = json!({ "pip": ["numpy"], "apt": ["git"] });
    spec
}

#[test]
fn a_package_more_goes_from_machine_to_machine_when_they_are_idle_and_orders_none() {
    let mut world = later(with_image());
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("a person adds a package; a run is on the machine of slot 1");
    world.edit(json!({ "image": { "pip": ["numpy", "torch"] } }));
    world.pass(60);
    world.happens("the run has ended");
    world.load.runs.clear();
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_package_that_does_not_exist_stops_at_the_first_machine_and_all_go_on_as_they_are() {
    let mut world = later(with_image());
    world.happens("a person misspells a package");
    world.environment_fails = Some(step_fails("exit code 1", "error: no such package torhc"));
    world.edit(json!({ "image": { "pip": ["numpy", "torhc"] } }));
    world.pass(60);
    world.happens("the person corrects it");
    world.environment_fails = None;
    world.edit(json!({ "image": { "pip": ["numpy", "torch"] } }));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_debian_package_that_goes_replaces_machines() {
    let mut world = later(with_image());
    world.happens("a person takes a Debian package out of the image");
    world.edit(json!({ "image": { "apt": [] } }));
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_suspended_pool_returns_its_machines_and_orders_them_again_when_it_goes_on() {
    let mut world = later(two());
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("a person suspends the Pool; a run is on the machine of slot 1");
    world.edit(json!({ "suspend": true }));
    world.pass(30);
    world.happens("the run has ended");
    world.load.runs.clear();
    world.pass(200);
    world.happens("the Pool goes on");
    world.edit(json!({ "suspend": false }));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_pool_of_no_machines_is_off() {
    let mut world = World::new(json!({ "provider": "acme", "nodes": { "desired": 0 } }));
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_deleted_pool_stops_its_runs_and_leaves_nothing() {
    let mut world = later(two());
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("a person deletes the Pool; a run is on the machine of slot 1");
    world.delete_pool();
    world.pass(30);
    world.happens("the run has stopped");
    world.load.runs.clear();
    world.pass(120);
    tells!(world.text());
}

#[test]
fn a_pool_can_be_deleted_while_its_machines_boot() {
    let mut world = World::new(two());
    world.pass(10);
    world.forget();
    world.happens("a person deletes the Pool");
    world.delete_pool();
    world.pass(120);
    tells!(world.text());
}

#[test]
fn a_machine_without_a_record_is_ended_before_its_pool_goes() {
    let mut world = later(two());
    world.happens("somebody takes the finalizer off a Machine, and a person deletes the Pool");
    world.machines.remove("train-0a1b2-1-2");
    world.delete_pool();
    world.pass(120);
    tells!(world.text());
}

#[test]
fn a_pool_waits_for_a_list_of_its_machines_before_it_goes() {
    let mut world = later(two());
    world.happens("a person deletes the Pool; the cloud does not answer");
    world.acme().account = Err(super::world::error(
        skyward_core::ErrorKind::Transient,
        "list the machines",
        "connection timed out",
    ));
    world.delete_pool();
    world.pass(60);
    world.happens("the cloud answers");
    world.acme().account = Ok("acme".into());
    world.pass(120);
    tells!(world.text());
}

#[test]
fn a_machine_deleted_by_hand_is_drained_returned_and_replaced() {
    let mut world = later(two());
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("a person deletes the Machine of slot 1, on which a run is");
    world.delete_machine("train-0a1b2-1-2", false);
    world.pass(60);
    world.happens("the run has stopped");
    world.load.runs.clear();
    world.pass(20);
    tells!(world.text());
}

#[test]
fn a_lost_machine_is_replaced_although_runs_were_on_it() {
    let mut world = later(two());
    world.load.runs = [("train-0a1b2-1-2".to_owned(), 1)].into();
    world.happens("the machine of slot 1 vanishes with a run");
    world.vanishes(1);
    world.disconnects("train-0a1b2-1-2");
    world.pass(15);
    tells!(world.text());
}

#[test]
fn a_spent_budget_ends_every_machine_and_a_larger_one_goes_on() {
    let mut world = World::new(json!({
        "provider": "acme", "accelerator": { "name": "H100" }, "allocation": "OnDemand", "budget": { "maxTotalCost": "1" },
        "nodes": { "desired": 1 }
    }));
    world.pass(60);
    world.load.runs = [("train-0a1b2-0-1".to_owned(), 1)].into();
    world.pass(1780);
    world.happens("the run has stopped");
    world.load.runs.clear();
    world.pass(300);
    world.happens("a person raises the budget");
    world.edit(json!({ "allocation": "OnDemand", "budget": { "maxTotalCost": "5" } }));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_spent_month_of_a_provider_orders_nothing_more() {
    let mut world = World::new(
        json!({ "provider": "acme", "accelerator": { "name": "H100" }, "allocation": "OnDemand", "nodes": { "desired": 1 } }),
    );
    world.acme().edit(json!({ "limits": { "monthlyCost": "1" } }));
    world.pass(2400);
    world.happens("a person wants two machines");
    world.edit(json!({ "nodes": { "desired": 2 } }));
    world.pass(5);
    tells!(world.text());
}
