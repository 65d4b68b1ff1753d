//! How far Tasks are, and how often that is written.

use super::{super::super::run::Progress, world::World, *};

/// A second passes, and as much is written as there is room for.
fn second(world: &mut World, room: usize) {
    world.pass(1);
    for _ in 0..room {
        if world.dispatcher.has_progress(world.now) {
            world.tell(Event::TellProgress);
        }
    }
    world.quiet();
}

fn say(world: &mut World, place: SlotAttempt, run: &RunId, done: u64, total: u64) {
    let progress = Progress { done, total };
    world.tell(Event::Progress(place, run.clone(), progress));
}

#[test]
fn the_status_says_how_far_a_task_is_at_most_every_half_minute_and_at_its_end() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.active().remove(0);
    say(&mut world, place, &run, 1, 100);
    second(&mut world, 5);
    assert_eq!(world.status(&uid).progress, "1/100");
    let writes = world.writes[&uid];
    for done in 2..=29 {
        say(&mut world, place, &run, done, 100);
        second(&mut world, 5);
    }
    assert_eq!(
        (world.writes[&uid], &*world.status(&uid).progress),
        (writes, "1/100")
    );
    second(&mut world, 5);
    second(&mut world, 5);
    assert_eq!(
        (world.writes[&uid], &*world.status(&uid).progress),
        (writes + 1, "29/100")
    );
    // The same again is no news.
    say(&mut world, place, &run, 29, 100);
    for _ in 0..40 {
        second(&mut world, 5);
    }
    assert_eq!(world.writes[&uid], writes + 1);
    say(&mut world, place, &run, 100, 100);
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(world.status(&uid).progress, "100/100");
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn ranks_are_summed_and_a_whole_that_one_of_them_does_not_know_is_not_told() {
    let mut world = World::new(1, 3);
    world.quiet();
    let uid = world.create("t", json!("All"));
    world.quiet();
    let runs = world.active();
    for ((place, run), (done, total)) in runs.iter().zip([(1, 10), (2, 20)]) {
        say(&mut world, *place, run, done, total);
    }
    second(&mut world, 5);
    assert_eq!(world.status(&uid).progress, "3/30");
    let (place, run) = &runs[2];
    say(&mut world, *place, run, u64::MAX, 0);
    for _ in 0..31 {
        second(&mut world, 5);
    }
    assert_eq!(world.status(&uid).progress, u64::MAX.to_string());
}

#[test]
fn a_machine_speaks_of_its_own_runs_and_of_the_attempt_that_is_under_way() {
    let mut world = World::new(1, 2);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.active().remove(0);
    let other = *world.machines.keys().find(|other| **other != place).unwrap();
    say(&mut world, other, &run, 1, 2);
    say(&mut world, place, &RunId::new(&uid, run.attempt + 1, 0), 1, 2);
    say(&mut world, place, &RunId::new(&uid, run.attempt, 7), 1, 2);
    say(&mut world, place, &RunId::new(&"somebody".into(), 1, 0), 1, 2);
    second(&mut world, 5);
    assert_eq!(world.status(&uid).progress, "");
    // What the first attempt did is done again.
    say(&mut world, place, &run, 1, 2);
    second(&mut world, 5);
    assert_eq!(world.status(&uid).progress, "1/2");
    world.lose_machine(place);
    world.pass(10);
    let status = world.status(&uid);
    assert_eq!((status.attempt, &*status.progress), (2, ""), "{status:#?}");
}

#[test]
fn where_many_tell_each_has_its_turn() {
    let mut world = World::new(40, 1);
    world.quiet();
    let uids: Vec<Uid> = (0..40)
        .map(|number| world.create(&format!("t{number}"), json!("One")))
        .collect();
    world.quiet();
    for done in 1..=30 {
        for (place, run) in world.active() {
            say(&mut world, place, &run, done, 30);
        }
        second(&mut world, 2);
    }
    let told = uids.iter().filter(|uid| !world.status(uid).progress.is_empty());
    assert_eq!(told.count(), 40);
}

#[test]
fn a_new_leader_keeps_what_is_on_record_until_it_hears_more() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.active().remove(0);
    say(&mut world, place, &run, 5, 9);
    second(&mut world, 5);
    world.restart();
    world.quiet();
    second(&mut world, 5);
    assert_eq!(world.status(&uid).progress, "5/9");
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(world.status(&uid).progress, "5/9");
}
