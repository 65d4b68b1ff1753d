//! The work that waits, as a Pool counts with it.

use super::{world::World, *};
use crate::pool::load::PoolLoad;

fn load(world: &World) -> PoolLoad {
    world.dispatcher.load().unwrap()
}

#[test]
fn what_waits_for_any_machine_is_told_apart_from_what_waits_for_all() {
    let mut world = World::new(1, 1);
    world.quiet();
    for name in ["a", "b", "c"] {
        world.create(name, json!("One"));
    }
    world.create("all", json!("All"));
    world.quiet();
    let told = load(&world);
    assert_eq!(
        (told.demand.places, told.demand.fixed, told.places_each),
        (2, 1, 1)
    );
    assert_eq!(
        (told.demand.typical, told.demand.backlog),
        (None, None),
        "nothing has ended"
    );
    assert_eq!(told.demand.running_since, Some(world.now));
    assert_eq!(told.machines_in_use(), 3);
}

#[test]
fn a_broadcast_fills_all_its_machines_however_many_places_they_have() {
    let mut world = World::new(4, 3);
    world.quiet();
    let all = json!({ "pool": "p", "command": ["true"], "placement": "All", "processesPerMachine": 2 });
    world.create_with("all", all);
    world.quiet();
    assert_eq!(world.active().len(), 6);
    assert_eq!((load(&world).widest, load(&world).machines_in_use()), (3, 3));
    for (place, run) in world.active() {
        world.finish(place, &run, 0);
    }
    world.quiet();
    assert_eq!(load(&world).widest, 0);
    world.create("one", json!("One"));
    world.quiet();
    assert_eq!((load(&world).widest, load(&world).machines_in_use()), (1, 1));
}

#[test]
fn a_task_for_the_head_is_no_broadcast() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.create("a", json!("One"));
    world.quiet();
    world.create("head", json!("Head"));
    world.quiet();
    let demand = load(&world).demand;
    assert_eq!((demand.places, demand.fixed, demand.broadcasts), (0, 1, 0));
    world.create("all", json!("All"));
    world.quiet();
    let demand = load(&world).demand;
    assert_eq!((demand.places, demand.fixed, demand.broadcasts), (0, 2, 1));
}

#[test]
fn work_lasts_as_long_as_such_work_lasted() {
    let mut world = World::new(2, 1);
    world.quiet();
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!("One"));
    }
    world.quiet();
    world.pass(40);
    let (place, run) = world.active().remove(0);
    world.finish(place, &run, 0);
    world.quiet();
    let demand = load(&world).demand;
    let forty = Duration::from_secs(40);
    assert_eq!(
        (demand.typical, demand.backlog),
        (Some(forty), Some(forty)),
        "one waits"
    );
}

#[test]
fn a_task_that_no_machine_helps_is_no_work_until_what_it_lacks_is_there_also_without_a_machine() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.missing_references = true;
    let spec = json!({ "pool": "p", "command": ["true"], "envFrom": [{ "secretRef": { "name": "s" } }] });
    world.create_with("held", spec);
    world.create("rank", json!(7));
    world.quiet();
    world.pass(6);
    assert!(load(&world).is_idle(), "{:?}", load(&world).demand);
    // The Pool sleeps.
    let place = *world.machines.keys().next().unwrap();
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    assert!(load(&world).is_idle(), "{:?}", load(&world).demand);
    world.missing_references = false;
    world.pass(6);
    assert_eq!(load(&world).demand.places, 1, "the Secret is there");
}

#[test]
fn a_task_whose_secret_is_missing_wakes_no_pool_that_sleeps_and_one_whose_secret_is_there_does() {
    let mut world = World::new(1, 1);
    world.quiet();
    let place = *world.machines.keys().next().unwrap();
    world.lose_machine(place);
    world.quiet();
    world.missing_references = true;
    let spec = json!({ "pool": "p", "command": ["true"], "envFrom": [{ "secretRef": { "name": "s" } }] });
    world.create_with("held", spec.clone());
    world.quiet();
    assert!(load(&world).is_idle(), "{:?}", load(&world).demand);
    world.restart();
    world.quiet();
    assert!(
        load(&world).is_idle(),
        "another controller: {:?}",
        load(&world).demand
    );
    world.missing_references = false;
    world.create_with("starts", spec);
    world.quiet();
    assert_eq!(load(&world).demand.places, 1, "without a tick");
}

#[test]
fn more_such_tasks_than_are_counted_at_once_wake_no_pool_when_another_controller_begins_to_lead() {
    let mut world = World::new(1, 1);
    world.quiet();
    let place = *world.machines.keys().next().unwrap();
    world.lose_machine(place);
    world.quiet();
    world.missing_references = true;
    let spec = json!({ "pool": "p", "command": ["true"], "envFrom": [{ "secretRef": { "name": "s" } }] });
    for n in 0..70 {
        world.create_with(&format!("t{n}"), spec.clone());
        world.quiet();
    }
    world.restart();
    world.quiet();
    assert!(load(&world).is_idle(), "{:?}", load(&world).demand);
    world.missing_references = false;
    world.pass(6);
    assert_eq!(load(&world).demand.places, 70, "the Secret is there");
}

#[test]
fn a_pool_that_is_off_has_no_demand() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.create("a", json!("All"));
    world.pool.as_mut().unwrap().why_suspended = Some("the Pool is suspended");
    world.show_views();
    world.quiet();
    assert_eq!(load(&world).queued, 1);
    assert!(!load(&world).demand.waits());
}

#[test]
fn a_task_that_pauses_after_a_failure_is_no_work_until_the_pause_is_over() {
    let mut world = World::new(1, 1);
    world.quiet();
    let retries = json!({ "onFailure": 1, "backoff": { "initial": "100s" } });
    world.create_with(
        "t",
        json!({ "pool": "p", "command": ["true"], "retries": retries }),
    );
    world.quiet();
    let (place, run) = world.active().remove(0);
    world.finish(place, &run, 1);
    world.quiet();
    // The Pool sleeps.
    world.lose_machine(place);
    world.quiet();
    world.pass(90);
    assert!(load(&world).is_idle(), "{:?}", load(&world).demand);
    world.pass(12);
    assert_eq!(load(&world).demand.places, 1);
}

#[test]
fn the_age_of_the_queue_is_the_longest_wait_for_a_start_and_not_the_age_of_a_task() {
    let mut world = World::new(1, 1);
    world.quiet();
    assert_eq!(load(&world).oldest, None);
    let hour = Duration::from_hours(1);
    let first = world.create("first", json!("One"));
    world.quiet();
    world.now += hour;
    let since = world.now;
    world.create("second", json!("One"));
    world.quiet();
    world.pass(3);
    assert_eq!(load(&world).oldest, Some(since), "{first} runs");
    world.restart();
    world.quiet();
    world.pass(3);
    assert_eq!(
        load(&world).oldest,
        Some(since),
        "a new leader does not begin anew"
    );
    // The first Task waits again, for a moment only.
    world.now += hour;
    let (place, run) = world.active().remove(0);
    assert_eq!(run.uid, first);
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    assert_eq!((load(&world).queued, load(&world).oldest), (2, Some(since)));
}

#[test]
fn a_task_that_was_suspended_or_waited_for_others_ages_in_the_queue_from_then_on() {
    let mut world = World::new(1, 1);
    world.quiet();
    let first = world.create("first", json!("One"));
    world.quiet();
    let held = json!({ "pool": "p", "command": ["true"], "suspend": true });
    let held = world.create_with("held", held);
    world.quiet();
    world.pass(3);
    assert_eq!(load(&world).oldest, None, "it is in no queue");
    world.now += Duration::from_hours(1);
    let since = world.now;
    world.edit(&held, |task| task.spec.suspend = Some(false));
    world.quiet();
    world.pass(3);
    let told = load(&world).oldest.unwrap();
    assert!(told >= since, "{told} {since}");

    let after_first = json!({ "pool": "p", "command": ["true"], "dependsOn": [{ "task": "first" }] });
    world.create_with("dependent", after_first);
    world.quiet();
    world.now += Duration::from_hours(1);
    let ended = world.now;
    let (place, run) = world.active().remove(0);
    assert_eq!(run.uid, first);
    world.finish(place, &run, 0);
    world.quiet();
    world.pass(3);
    assert_eq!(world.active()[0].1.uid, held, "it has the place");
    assert_eq!(load(&world).oldest, Some(ended));
}
