//! A cluster that remembers less than its machines: runs that it must not stop, forget or start
//! twice.

use super::{world::World, *};

/// The Task runs, and the cluster is restored to before it was placed.
fn restored_before_placement(world: &mut World) -> (Uid, SlotAttempt, RunId) {
    world.quiet();
    let uid = world.create("t", json!("One"));
    let before = world.objects[&uid].clone();
    world.quiet();
    let (place, run) = world.active()[0].clone();
    world.objects.insert(uid.clone(), before);
    world.edit(&uid, |_| {});
    world.restart();
    (uid, place, run)
}

#[test]
fn while_it_is_held_nothing_is_started_stopped_forgotten_or_given_up() {
    let mut world = World::new(1, 2);
    world.quiet();
    let gone = world.create("gone", json!("One"));
    let lost = world.create("lost", json!("One"));
    world.quiet();
    let before = world.active();
    world.objects.remove(&gone);
    world.restart();
    world.tell(Event::Memory(ClusterMemory::Held));
    world.create("new", json!("One"));
    let place = before.iter().find(|(_, run)| run.uid == lost).unwrap().0;
    let machine = world.machines.remove(&place).unwrap();
    world.show_views();
    world.quiet();
    world.pass(120);
    let there: Vec<_> = before.iter().filter(|(at, _)| *at != place).cloned().collect();
    assert_eq!(
        world.active(),
        there,
        "what runs there goes on, and nothing joins it"
    );
    assert!(
        world
            .machines
            .values()
            .all(|machine| machine.forgotten.is_empty())
    );
    assert_eq!(world.status(&lost).interruptions, 0, "it is not given up");
    world.machines.insert(place, machine);
    world.show_views();
    world.tell(Event::Memory(ClusterMemory::Whole));
    world.calm();
    assert!(world.dispatcher.is_empty());
    assert_eq!(world.status(&lost).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn a_run_that_no_task_claims_is_left_alone_until_proof_of_a_restore_would_be_known() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.objects.remove(&uid);
    world.restart();
    world.tell(Event::Memory(ClusterMemory::Unproved));
    world.quiet();
    world.pass(60);
    assert_eq!(world.active().len(), 1);
    world.tell(Event::Memory(ClusterMemory::Whole));
    world.pass(60);
    world.calm();
    assert!(world.active().is_empty(), "then it is stopped as ever");
}

#[test]
fn a_task_whose_placement_was_forgotten_takes_its_run_up_again_and_runs_once() {
    for ended in [false, true] {
        let mut world = World::new(1, 2);
        let (uid, place, run) = restored_before_placement(&mut world);
        if ended {
            world.finish(place, &run, 0);
        }
        world.tell(Event::Memory(ClusterMemory::Held));
        world.quiet();
        world.pass(20);
        world.tell(Event::Memory(ClusterMemory::Whole));
        world.pass(1);
        let status = world.status(&uid);
        assert!(status.placed == [place] || ended, "{status:?}");
        world.calm();
        let status = world.status(&uid);
        assert_eq!((status.phase, status.attempt), (Some(TaskPhase::Succeeded), 1));
        let runs: usize = world
            .machines
            .values()
            .map(|machine| machine.forgotten.len())
            .sum();
        assert_eq!(runs, 1, "one run, on one machine");
    }
}

#[test]
fn a_machine_that_tells_of_a_forgotten_run_after_its_own_machine_did_does_not_get_it() {
    let mut world = World::new(1, 2);
    let (uid, place, run) = restored_before_placement(&mut world);
    world.tell(Event::Memory(ClusterMemory::Held));
    world.quiet();
    world.pass(5);
    let liar = *world.machines.keys().find(|other| **other != place).unwrap();
    world.tell(super::agents::fact_of(liar, &run, None));
    world.tell(Event::Memory(ClusterMemory::Whole));
    world.quiet();
    assert_eq!(world.status(&uid).placed, [place]);
    world.pass(60);
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert!(world.machines[&liar].forgotten.is_empty());
}

/// What the store has of a run that succeeded.
fn outcome(machine: &str) -> Box<Collected> {
    Box::new(Collected {
        reason: reason::SUCCEEDED,
        result: RunResult {
            reason: reason::SUCCEEDED.to_owned(),
            exit_code: Some(0),
            machine: machine.to_owned(),
            ..RunResult::default()
        },
    })
}

fn run_of(uid: &Uid, attempt: u32) -> RunId {
    RunId {
        uid: uid.clone(),
        attempt,
        rank: 0,
    }
}

#[test]
fn a_task_whose_outcome_is_stored_does_not_run_again() {
    for attempt in [1, 3] {
        let mut world = World::new(1, 1);
        world.quiet();
        let uid = world.create("t", json!("One"));
        world.outcomes.insert(run_of(&uid, attempt), outcome("p-old"));
        world.restart();
        world.calm();
        let status = world.status(&uid);
        assert_eq!(
            (status.phase, status.attempt),
            (Some(TaskPhase::Succeeded), attempt)
        );
        assert_eq!(status.results[0].machine, "p-old");
        assert!(world.active().is_empty());
        let forgotten: usize = world
            .machines
            .values()
            .map(|machine| machine.forgotten.len())
            .sum();
        assert_eq!(forgotten, 0, "no machine ran it");
    }
}

#[test]
fn a_task_that_was_stopped_or_interrupted_later_runs_under_a_number_of_its_own() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    let mut stopped = outcome("p-old");
    stopped.reason = reason::INTERRUPTED;
    world.outcomes.insert(run_of(&uid, 4), stopped);
    world.restart();
    world.quiet();
    let (place, run) = world.active()[0].clone();
    assert_eq!(
        run.attempt, 5,
        "its log is not written behind that of another run"
    );
    world.finish(place, &run, 0);
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn a_run_on_record_that_its_agent_forgot_is_not_started_where_its_outcome_is_stored() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.active()[0].clone();
    let before = world.objects[&uid].clone();
    world.finish(place, &run, 0);
    world.calm();
    world.objects.insert(uid.clone(), before);
    world.edit(&uid, |_| {});
    world.ends.clear();
    world.outcomes.insert(run.clone(), outcome("p-0-1"));
    world.restart();
    world.calm();
    let status = world.status(&uid);
    assert_eq!((status.phase, status.attempt), (Some(TaskPhase::Succeeded), 1));
    assert!(
        !world.machines[&place].runs.contains_key(&run),
        "it did not run again"
    );
}

#[test]
fn a_store_that_does_not_answer_keeps_a_task_from_before_waiting_and_no_new_one() {
    let mut world = World::new(2, 1);
    world.quiet();
    world.store_problem = Some(CollectError::Store("test".into()));
    let before = world.create("before", json!("One"));
    world.restart();
    world.quiet();
    assert!(world.active().is_empty(), "it may have ended");
    let new = world.create("new", json!("One"));
    world.quiet();
    assert_eq!(world.active()[0].1.uid, new);
    world.store_problem = None;
    world.calm();
    assert_eq!(world.status(&before).phase, Some(TaskPhase::Succeeded));
}
