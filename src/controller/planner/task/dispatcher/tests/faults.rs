//! Stories of loss, lack of room and delay, without chance.

use super::{agents::fact_of, world::World, *};

pub(super) fn run_of(world: &World, uid: &Uid, rank: u32) -> (SlotAttempt, RunId) {
    let active = world.active();
    let found = active.iter().find(|(_, run)| run.uid == *uid && run.rank == rank);
    found
        .cloned()
        .unwrap_or_else(|| panic!("rank {rank} of {uid} does not run: {active:?}"))
}

/// A Task that runs on the only machine, with its slot and its run.
pub(super) fn one_runs(world: &mut World) -> (Uid, SlotAttempt, RunId) {
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = run_of(world, &uid, 0);
    (uid, place, run)
}

pub(super) fn running(world: &World, uid: &Uid) -> (String, String) {
    let status = world.status(uid);
    let condition = condition::find(&status.conditions, condition::RUNNING).unwrap();
    (status.reason.clone(), condition.message.clone())
}

#[test]
fn a_rank_whose_end_left_its_machine_does_not_run_again_although_controller_and_machine_are_lost() {
    let mut world = World::new(1, 2);
    world.quiet();
    let uid = world.create("t", json!("All"));
    world.quiet();
    let (place, run) = run_of(&world, &uid, 0);
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(
        world.outcomes.len(),
        1,
        "while rank 1 runs, its end is in the store"
    );
    // Both are lost at once.
    world.lose_machine(place);
    world.add_machine(place.slot);
    world.restart();
    world.quiet();
    world.pass(10);
    assert_eq!(
        (world.status(&uid).attempt, world.status(&uid).interruptions),
        (1, 0)
    );
    let (place, run) = run_of(&world, &uid, 1);
    world.finish(place, &run, 0);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!((status.phase, status.attempt), (Some(TaskPhase::Succeeded), 1));
    assert_eq!(status.succeeded_ranks, "0-1");
    assert_eq!(status.results.len(), 2);
}

#[test]
fn what_is_not_known_of_a_lost_machine_is_asked_for_until_the_store_answers() {
    let mut world = World::new(1, 2);
    world.quiet();
    let uid = world.create("t", json!("All"));
    world.quiet();
    let (place, run) = run_of(&world, &uid, 0);
    world.finish(place, &run, 0);
    world.quiet();
    world.lose_machine(place);
    world.add_machine(place.slot);
    world.restart();
    world.store_problem = Some(CollectError::Store("input/output error".into()));
    world.quiet();
    world.pass(60);
    assert_eq!(world.status(&uid).attempt, 1, "unknown is not lost");
    assert_eq!(running(&world, &uid).0, "ResultStoreUnavailable");
    world.store_problem = None;
    world.pass(31);
    assert_eq!(world.status(&uid).interruptions, 0);
    assert_eq!(running(&world, &uid).0, "Started", "it is said that it goes on");
    world.calm();
    assert_eq!(
        (world.status(&uid).phase, world.status(&uid).attempt),
        (Some(TaskPhase::Succeeded), 1)
    );
}

#[test]
fn a_run_whose_end_was_told_does_not_run_again_because_its_machine_is_lost_then() {
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    world.finish(place, &run, 0);
    // The fact arrives; before the rest of the log is fetched, the machine vanishes.
    while let Some(event) = world.answers.pop_front() {
        world.tell(event);
    }
    world
        .effects
        .retain(|effect| !matches!(effect, Effect::Collect(_)));
    world.answers.push_back(Event::Collected(
        run,
        Err(CollectError::Machine("its machine is not connected".into())),
    ));
    world.lose_machine(place);
    world.quiet();
    world.pass(10);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.attempt, status.interruptions),
        (Some(TaskPhase::Succeeded), 1, 0)
    );
}

#[test]
fn a_full_store_is_said_loses_nothing_and_is_tried_less_and_less_often() {
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    world.store_problem = Some(CollectError::Full(
        "the result store is full; enlarge its volume".into(),
    ));
    world.finish(place, &run, 0);
    world.quiet();
    world.pass(4);
    assert_eq!(world.writes[&uid], 1, "a moment is not worth a write");
    world.pass(4);
    let (reason, message) = running(&world, &uid);
    assert_eq!(reason, "ResultStoreFull");
    assert!(
        message.contains("enlarge its volume") && message.contains("Nothing is lost"),
        "{message}"
    );
    assert!(world.published.contains(&"RunHeldUp"));
    assert_eq!(world.dispatcher.load().unwrap().unstored, 1);
    let mut tries = 0;
    for _ in 0..300 {
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        tries += world
            .effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Collect(_)))
            .count();
        world.quiet();
    }
    assert!((8..14).contains(&tries), "{tries} tries in five minutes");
    assert_eq!(world.writes[&uid], 2, "it is said once");
    assert!(
        world.machines[&place].runs.contains_key(&run),
        "the agent keeps it"
    );
    // A new leader finds the status as it is, and writes nothing new.
    world.restart();
    world.quiet();
    world.pass(40);
    assert_eq!(world.writes[&uid], 2);
    world.store_problem = None;
    world.pass(31);
    let status = world.status(&uid);
    assert_eq!((status.phase, status.attempt), (Some(TaskPhase::Succeeded), 1));
    assert!(world.dispatcher.is_empty());
}

#[test]
fn the_end_waits_for_what_was_just_being_said() {
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    world.store_problem = Some(CollectError::Full("full".into()));
    world.finish(place, &run, 0);
    world.quiet();
    // The write that says so is under way when there is room again.
    while !world
        .effects
        .iter()
        .any(|effect| matches!(effect, Effect::Write { .. }))
    {
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        let others: Vec<Effect> = std::mem::take(&mut world.effects);
        for effect in others {
            if matches!(effect, Effect::Write { .. }) {
                world.effects.push(effect);
            } else {
                world.carry_out(effect, false, false);
            }
        }
        while let Some(event) = world.answers.pop_front() {
            world.tell(event);
        }
    }
    world.store_problem = None;
    for _ in 0..40 {
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        let waiting: Vec<Effect> = std::mem::take(&mut world.effects);
        for effect in waiting {
            if matches!(effect, Effect::Collect(_)) {
                world.carry_out(effect, false, false);
            } else {
                world.effects.push(effect);
            }
        }
        while let Some(event) = world.answers.pop_front() {
            world.tell(event);
        }
    }
    world.quiet();
    let status = world.status(&uid);
    assert_eq!((status.phase, world.ends[&uid]), (Some(TaskPhase::Succeeded), 1));
    assert!(world.dispatcher.is_empty());
}

#[test]
fn a_machine_given_up_is_closed_once_the_dispatcher_saw_that_and_gets_no_run_after() {
    let mut world = World::new(1, 1);
    world.quiet();
    let place = *world.machines.keys().next().unwrap();
    world.machines.get_mut(&place).unwrap().deleting = true;
    // The deletion is not seen yet: the machine may still get a run, so it is not closed.
    assert!(world.dispatcher.load().unwrap().closed.is_empty());
    let early = world.create("early", json!("One"));
    world.quiet();
    assert_eq!(world.status(&early).phase, Some(TaskPhase::Running));
    world.show_views();
    let load = world.dispatcher.load().unwrap();
    let name = format!("p-{place}");
    assert!(load.closed.contains(&name), "{load:?}");
    assert_eq!(
        load.runs.get(&name),
        Some(&1),
        "the run that came in between is counted"
    );
    world.create("late", json!("One"));
    world.quiet();
    assert_eq!(world.active().len(), 1);
}

#[test]
fn a_machine_that_changes_its_environment_keeps_its_runs_and_its_rank_and_gets_no_new_ones() {
    let mut world = World::new(2, 1);
    world.quiet();
    let place = *world.machines.keys().next().unwrap();
    let early = world.create("early", json!("One"));
    world.quiet();
    world.machines.get_mut(&place).unwrap().changing = true;
    world.show_views();
    world.create("late", json!("One"));
    world.create("head", json!("Head"));
    world.quiet();
    assert_eq!(world.status(&early).phase, Some(TaskPhase::Running));
    assert_eq!(world.active().len(), 1);
    assert!(
        world
            .dispatcher
            .load()
            .unwrap()
            .closed
            .contains(&format!("p-{place}"))
    );
    let machine = world.machines.get_mut(&place).unwrap();
    (machine.changing, machine.environment) = (false, "b");
    world.show_views();
    world.quiet();
    assert_eq!(world.active().len(), 2, "it has two places");
}

#[test]
fn a_task_on_all_machines_waits_until_they_have_the_same_environment_and_says_so() {
    let mut world = World::new(1, 2);
    world.quiet();
    let place = *world.machines.keys().next().unwrap();
    world.machines.get_mut(&place).unwrap().environment = "b";
    world.show_views();
    let all = world.create("all", json!("All"));
    world.quiet();
    assert_eq!(world.active().len(), 0);
    let one = world.create("one", json!("One"));
    world.quiet();
    assert_eq!(
        world.status(&one).phase,
        Some(TaskPhase::Running),
        "others may run"
    );
    assert_ne!(world.status(&all).phase, Some(TaskPhase::Running));
}

#[test]
fn runs_of_a_machine_that_is_taken_back_are_asked_to_end_and_go_on_elsewhere() {
    let mut world = World::new(1, 2);
    world.quiet();
    let uid = world.create("t", json!("One"));
    let other = world.create("other", json!("One"));
    world.quiet();
    let (place, run) = run_of(&world, &uid, 0);
    world.take_back(place);
    world.quiet();
    let stopping = |world: &World, place: &SlotAttempt, run: &RunId| world.machines[place].runs[run].stopping;
    assert!(stopping(&world, &place, &run));
    let (stays, at_work) = run_of(&world, &other, 0);
    assert!(!stopping(&world, &stays, &at_work));

    // Another leader finds the run stopped, and knows why all the same.
    world.finish(place, &run, 143);
    world.restart();
    world.finish(stays, &at_work, 0);
    world.quiet();
    assert_eq!(run_of(&world, &uid, 0).0, stays);
    let status = world.status(&uid);
    assert_eq!((status.attempt, status.interruptions), (2, 1));
    assert!(world.published.contains(&crate::events::reason::TASK_RETRIED));
}

#[test]
fn a_task_of_an_older_pool_of_that_name_fails_and_clocks_that_differ_do_not_matter() {
    let mut world = World::new(1, 1);
    // The API server's clock is ahead of ours by half a minute.
    world.pool.as_mut().unwrap().created = world.now + Duration::from_secs(30);
    world.show_views();
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    world.restart();
    world.quiet();
    world.pass(2);
    assert_eq!(world.active().len(), 1, "it is not stopped");
    let second = world.pool.as_mut().unwrap();
    second.uid = "another".into();
    second.created = world.now + Duration::from_mins(10);
    world.show_views();
    world.quiet();
    let (place, run) = run_of(&world, &uid, 0);
    world.finish(place, &run, 143);
    world.quiet();
    assert_eq!(world.status(&uid).reason, "PoolDeleted");
}

#[test]
fn a_secret_that_went_before_a_later_leader_could_start_the_run_is_named() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    // The placement is on record, and the controller dies before it starts anything.
    while world.status(&uid).phase != Some(TaskPhase::Running) {
        if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
            world.tell(event);
        } else {
            let effect = world.effects.remove(0);
            world.carry_out(effect, false, false);
        }
    }
    world.restart();
    for _ in 0..12 {
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        for _ in 0..20 {
            let start = world
                .effects
                .iter()
                .position(|effect| matches!(effect, Effect::Start(_)));
            if let Some(start) = start {
                let Effect::Start(order) = world.effects.remove(start) else {
                    continue;
                };
                world.answers.push_back(Event::Started {
                    run: order.run,
                    connection: order.connection,
                    result: Err(StartError::References("there is no Secret \"s\"".into())),
                });
            } else if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
                world.tell(event);
            } else if !world.effects.is_empty() {
                let effect = world.effects.remove(0);
                world.carry_out(effect, false, false);
            }
        }
    }
    let (reason, message) = running(&world, &uid);
    assert_eq!(reason, "ReferenceNotFound");
    assert!(message.contains("there is no Secret"), "{message}");
    world.pass(4);
    assert_eq!(world.active().len(), 1);
    world.pass(2);
    assert_eq!(running(&world, &uid).0, "Started");
}

/// Until no message is under way, while no write is answered as it should be: it is refused, or
/// its answer is lost. How many there were.
fn unwritten(world: &mut World, refused: bool) -> usize {
    let mut writes = 0;
    for _ in 0..200 {
        if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
            world.tell(event);
        } else if world.effects.is_empty() {
            return writes;
        } else {
            let effect = world.effects.remove(0);
            let is_write = matches!(effect, Effect::Write { .. });
            writes += usize::from(is_write);
            world.carry_out(effect, is_write && refused, is_write && !refused);
        }
    }
    panic!("{writes} writes, and it does not come to rest");
}

#[test]
fn a_placement_that_is_refused_for_now_is_not_tried_again_at_once() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    assert_eq!(unwritten(&mut world, true), 1, "time stands still");
    world.pass(2);
    assert_eq!(world.active().len(), 1, "it goes on when it can");
    assert_eq!((world.status(&uid).attempt, world.writes[&uid]), (1, 1));
}

#[test]
fn a_placement_that_is_refused_for_long_is_said_and_no_wait_until_it_can_be_written() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    unwritten(&mut world, true);
    let said = |world: &World| {
        world
            .published
            .iter()
            .filter(|it| **it == "StatusRefused")
            .count()
    };
    for second in 0..60 {
        if second < 10 {
            assert_eq!(said(&world), 0, "a moment is nothing to speak of");
        }
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        unwritten(&mut world, true);
    }
    assert_eq!(said(&world), 1);
    assert_eq!(world.dispatcher.load().unwrap().queued, 0);
    world.pass(31);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
}

#[test]
fn an_end_that_is_refused_for_long_is_tried_less_and_less_often_and_not_lost() {
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    world.finish(place, &run, 0);
    assert_eq!(unwritten(&mut world, true), 1, "time stands still");
    let mut tries = 0;
    for _ in 0..120 {
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        tries += unwritten(&mut world, true);
    }
    assert!((6..10).contains(&tries), "{tries} tries in two minutes");
    world.pass(31);
    let status = world.status(&uid);
    assert_eq!((status.phase, world.ends[&uid]), (Some(TaskPhase::Succeeded), 1));
    let recorded = status.recorded_end().unwrap();
    assert!(
        recorded + Duration::from_secs(31) > world.now,
        "a ttl counts from when it could be seen"
    );
    assert!(world.dispatcher.is_empty());
}

#[test]
fn an_answer_that_is_lost_costs_no_time() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    assert_eq!(unwritten(&mut world, false), 1);
    let (place, run) = run_of(&world, &uid, 0);
    world.finish(place, &run, 0);
    assert_eq!(unwritten(&mut world, false), 1, "its end waits for nothing");
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert!(world.dispatcher.is_empty());
}

#[test]
fn a_task_that_was_changed_meanwhile_is_placed_again_at_once() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    let seen = world.watch.pop_front().unwrap();
    world.tell(seen);
    assert!(matches!(&world.effects[..], [Effect::Write { .. }]));
    world.edit(&uid, |task| task.spec.priority = Some(1));
    world.quiet();
    assert_eq!(world.active().len(), 1, "time stands still");
}

#[test]
fn an_agent_that_says_stale_epoch_to_everything_keeps_no_other_machine_from_its_work() {
    let mut world = World::new(1, 2);
    world.quiet();
    let uids: Vec<Uid> = (0..2)
        .map(|number| world.create(&format!("t{number}"), json!("One")))
        .collect();
    world.quiet();
    let (liar, stuck) = run_of(&world, &uids[0], 0);
    // The agent lies from now on: to Stop, to Forget, to each Start.
    world.machines.get_mut(&liar).unwrap().refuses_epoch = true;
    world.delete(&uids[0]);
    world.quiet();
    let mut ended = 0;
    for minute in 0..5 {
        let uid = world.create(&format!("more{minute}"), json!("One"));
        world.quiet();
        for (place, run) in world.active() {
            if place != liar {
                world.finish(place, &run, 0);
                ended += 1;
            }
        }
        world.pass(60);
        assert!(world.status(&uid).attempt <= 1);
    }
    assert!(ended >= 5, "{ended} Tasks ended beside it");
    assert!(world.doubted.iter().all(|name| **name == *format!("p-{liar}")));
    assert!(!world.doubted.is_empty());
    assert!(
        world.active().contains(&(liar, stuck)),
        "what runs there goes on, and nothing of it is forgotten"
    );
    world.machines.get_mut(&liar).unwrap().refuses_epoch = false;
    world.calm();
    assert!(world.dispatcher.is_empty());
    assert_eq!(world.status(&uids[1]).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn another_machine_cannot_tell_a_new_leader_how_a_run_ended() {
    let mut world = World::new(1, 2);
    let (uid, place, run) = one_runs(&mut world);
    let other = *world.machines.keys().find(|other| **other != place).unwrap();
    let lie = Finished {
        ending: Ending::Exited,
        exit_code: 7,
        ..Finished::default()
    };
    // The lying machine reports before a new leader knows the Task, and after the honest one did.
    for told_before in [None, Some(place)] {
        world.restart();
        let tasks = std::mem::take(&mut world.watch);
        if let Some(place) = told_before {
            world.tell(fact_of(place, &run, None));
        }
        world.tell(fact_of(other, &run, Some(lie.clone())));
        world.watch = tasks;
        world.quiet();
        assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
        // Nor once it is known.
        world.tell(fact_of(other, &run, Some(lie.clone())));
        world.pass(30);
        assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    }
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn a_run_that_no_task_claims_ends_and_is_forgotten_although_another_machine_tells_of_it_too() {
    for (tells_first, ends) in [(true, false), (false, false), (false, true)] {
        let mut world = World::new(1, 2);
        let (uid, place, run) = one_runs(&mut world);
        let liar = *world.machines.keys().find(|other| **other != place).unwrap();
        // It never lets go of what it says it has.
        world.machines.get_mut(&liar).unwrap().refuses_epoch = true;
        if ends {
            world.finish(place, &run, 0);
        }
        world.objects.remove(&uid);
        world.restart();
        if tells_first {
            world.tell(fact_of(liar, &run, None));
        }
        world.quiet();
        if !tells_first {
            world.tell(fact_of(liar, &run, None));
        }
        world.pass(60);
        world.calm();
        let forgotten = &world.machines[&place].forgotten;
        assert!(
            forgotten.contains(&run),
            "tells first: {tells_first}, ends: {ends}"
        );
    }
}

#[test]
fn a_run_that_another_machine_tells_of_while_its_task_runs_ends_there_once_the_task_has_ended() {
    let mut world = World::new(1, 2);
    let (uid, place, run) = one_runs(&mut world);
    let other = *world.machines.keys().find(|other| **other != place).unwrap();
    let twin = world.machines[&place].runs[&run].clone();
    world
        .machines
        .get_mut(&other)
        .unwrap()
        .runs
        .insert(run.clone(), twin);
    world.tell(fact_of(other, &run, None));
    world.pass(60);
    assert!(
        !world.machines[&other].runs[&run].stopping,
        "the Task may be placed there"
    );
    world.finish(place, &run, 0);
    world.pass(60);
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert!(world.machines[&other].forgotten.contains(&run));
    assert!(world.dispatcher.is_empty());
}
