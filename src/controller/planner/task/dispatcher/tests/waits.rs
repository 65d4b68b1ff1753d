//! Statuses of Tasks that wait, how often they are written, and statuses that cannot be written.

use super::{world::World, *};

fn tasks(world: &mut World, count: usize) -> Vec<Uid> {
    let uids = (0..count).map(|number| world.create(&format!("t{number:03}"), json!("One")));
    uids.collect()
}

fn scheduled(world: &World, uid: &Uid) -> String {
    let status = world.status(uid);
    let scheduled = condition::find(&status.conditions, condition::SCHEDULED);
    scheduled.map(|it| it.message.clone()).unwrap_or_default()
}

fn end_some(world: &mut World, count: usize) {
    for (place, run) in world.active().into_iter().take(count) {
        world.finish(place, &run, 0);
    }
    world.quiet();
}

#[test]
fn a_task_that_starts_at_once_costs_no_other_write() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.moments(8);
    world.pass(8);
    assert_eq!(world.writes[&uid], 1);
}

#[test]
fn each_that_waits_says_within_a_second_what_is_taken_and_how_many_come_first() {
    let mut world = World::new(4, 2);
    world.quiet();
    let uids = tasks(&mut world, 50);
    world.quiet();
    world.moments(3);
    assert!(
        uids.iter().all(|uid| world.writes[uid] == 1),
        "{:?}",
        world.writes
    );
    let first = r#"8 of 8 places of Pool "p" taken, no Task before it"#;
    assert_eq!(scheduled(&world, &uids[8]), first);
    let last = r#"8 of 8 places of Pool "p" taken, 41 Tasks before it"#;
    assert_eq!(scheduled(&world, &uids[49]), last);
    let all = world.create("u", json!("All"));
    world.quiet();
    world.moments(3);
    let each = r#"needs a free place on each machine: 8 of 8 places of Pool "p" taken, 42 Tasks before it"#;
    assert_eq!(scheduled(&world, &all), each);
}

#[test]
fn where_many_end_in_a_second_none_is_told_that_is_about_to_start() {
    let mut world = World::new(30, 1);
    world.quiet();
    let uids = tasks(&mut world, 100);
    world.quiet();
    end_some(&mut world, 25);
    world.moments(3);
    let waiting = &uids[55..];
    assert!(waiting.iter().all(|uid| !world.writes.contains_key(uid)));
    // Nothing ends any more.
    world.pass(3);
    assert!(waiting.iter().all(|uid| world.writes[uid] == 1));
}

#[test]
fn a_count_is_told_anew_when_it_has_halved_and_not_before_half_a_minute() {
    let mut world = World::new(1, 1);
    world.quiet();
    let last = tasks(&mut world, 9).pop().unwrap();
    world.quiet();
    world.moments(3);
    let told = |world: &World, before: &str, writes: u32| {
        let message = scheduled(world, &last);
        assert!(message.ends_with(before), "{message}");
        assert_eq!(world.writes[&last], writes, "{message}");
    };
    let end = |world: &mut World, count| (0..count).for_each(|_| end_some(world, 1));
    told(&world, "7 Tasks before it", 1);
    end(&mut world, 2);
    world.pass(60);
    told(&world, "7 Tasks before it", 1);
    end(&mut world, 2);
    world.pass(1);
    told(&world, "3 Tasks before it", 2);
    end(&mut world, 2);
    world.pass(28);
    told(&world, "3 Tasks before it", 2);
    world.pass(3);
    told(&world, "1 Task before it", 3);
    // A new leader reads the status.
    world.restart();
    world.quiet();
    world.pass(60);
    told(&world, "1 Task before it", 3);
}

#[test]
fn a_task_whose_status_is_never_taken_says_so_counts_for_nothing_and_keeps_nobody_waiting() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.invalid.insert("bad".into());
    let bad = world.create("bad", json!("One"));
    world.quiet();
    let said = |world: &World| {
        world
            .published
            .iter()
            .filter(|it| **it == "StatusRefused")
            .count()
    };
    assert_eq!(said(&world), 1);
    let good = world.create("good", json!("One"));
    world.quiet();
    assert_eq!(world.status(&good).phase, Some(TaskPhase::Running));
    let load = world.dispatcher.load().unwrap();
    assert_eq!((load.queued, load.running), (0, 1));
    world.pass(600);
    assert!(
        (4..7).contains(&said(&world)),
        "{} tries in ten minutes",
        said(&world)
    );
    assert_eq!(world.dispatcher.load().unwrap().queued, 0);
    end_some(&mut world, 1);
    assert_eq!(world.ends[&good], 1);
    world.invalid.clear();
    world.pass(600);
    assert_eq!(world.status(&bad).phase, Some(TaskPhase::Running));
    assert_eq!(world.status(&bad).attempt, 1);
}

#[test]
fn a_new_leader_knows_that_a_task_waits_although_its_status_is_never_taken() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.invalid.insert("bad".into());
    let running = world.create("running", json!("One"));
    world.quiet();
    let bad = world.create("bad", json!("One"));
    world.quiet();
    // Every place is taken: the status of the wait cannot be written.
    world.moments(3);
    assert_eq!(world.dispatcher.load().unwrap().queued, 0);
    world.restart();
    world.invalid.clear();
    world.quiet();
    end_some(&mut world, 1);
    assert_eq!(world.ends[&running], 1);
    assert_eq!(world.status(&bad).phase, Some(TaskPhase::Running));
}
