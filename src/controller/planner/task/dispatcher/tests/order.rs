//! In which order Tasks start.

use super::{world::World, *};

/// Ends what runs, one after the other, until nothing runs; names the Tasks as they started.
fn started(world: &mut World) -> Vec<String> {
    let mut order = Vec::new();
    while let Some((place, run)) = world.active().first().cloned() {
        order.push(run.uid.trim_start_matches("uid-").to_owned());
        world.finish(place, &run, 0);
        world.quiet();
    }
    order
}

/// Tasks of one machine with one place, a second apart; the first one runs.
fn queued(names: &[&str]) -> (World, Vec<Uid>) {
    let mut world = World::new(1, 1);
    world.quiet();
    let mut uids = Vec::new();
    for name in names {
        uids.push(world.create(name, json!("One")));
        world.quiet();
        world.now += Duration::from_secs(1);
    }
    (world, uids)
}

#[test]
fn a_task_whose_priority_is_raised_while_it_waits_starts_next() {
    let (mut world, uids) = queued(&["a", "b", "c"]);
    world.edit(&uids[2], |task| task.spec.priority = Some(1));
    world.quiet();
    assert_eq!(started(&mut world), ["a", "c", "b"]);
}

#[test]
fn a_task_that_starts_again_keeps_its_age() {
    let (mut world, _) = queued(&["a", "b"]);
    let (place, _) = world.active()[0].clone();
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    world.add_machine(0);
    world.show_views();
    world.quiet();
    assert_eq!(started(&mut world), ["a", "b"]);
}

#[test]
fn a_new_leader_starts_tasks_in_the_same_order() {
    let (mut world, uids) = queued(&["a", "b", "c", "d"]);
    world.edit(&uids[3], |task| task.spec.priority = Some(1));
    world.restart();
    world.quiet();
    assert_eq!(started(&mut world), ["a", "d", "b", "c"]);
}

#[test]
fn a_task_that_waits_for_a_missing_secret_keeps_no_task_behind_it_waiting() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.missing_references = true;
    let secret = json!([{ "secretRef": { "name": "s" } }]);
    let spec = json!({ "pool": "p", "command": ["true"], "priority": 5, "envFrom": secret });
    world.create_with("urgent", spec);
    world.quiet();
    world.create("b", json!("One"));
    world.quiet();
    world.pass(1);
    assert_eq!(started(&mut world), ["b"]);
}
