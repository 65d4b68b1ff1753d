//! One story each, without chance.

use skyward_api::condition;

use super::{world::World, *};

#[test]
fn a_task_costs_two_status_writes() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    assert_eq!(world.status(&uid).done, "0/1");
    let (place, run) = world.only_run();
    world.finish(place, &run, 0);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (
            status.phase,
            status.done.as_str(),
            status.succeeded_ranks.as_str()
        ),
        (Some(TaskPhase::Succeeded), "1/1", "0")
    );
    assert_eq!(world.writes[&uid], 2);
    assert!(world.dispatcher.is_empty());
    assert!(world.machines[&place].runs.is_empty());
    assert_eq!(world.published, ["TaskStarted", "TaskCompleted"]);
}

#[test]
fn nothing_is_placed_before_all_tasks_are_known() {
    let mut world = World::new(1, 1);
    world.watch.retain(|event| !matches!(event, Event::Synced));
    world.create("t", json!("One"));
    world.quiet();
    assert!(world.active().is_empty());
    assert!(world.dispatcher.load().is_none());
    world.tell(Event::Synced);
    world.quiet();
    assert_eq!(world.active().len(), 1);
    assert_eq!(world.dispatcher.load().unwrap().running, 1);
}

#[test]
fn higher_priority_starts_first_then_the_older_one() {
    let mut world = World::new(1, 1);
    world.quiet();
    let first = world.create("first", json!("One"));
    world.quiet();
    world.now += Duration::from_secs(1);
    let old = world.create("old", json!("One"));
    world.now += Duration::from_secs(1);
    let urgent = world.create_with(
        "urgent",
        json!({ "pool": "p", "command": ["true"], "priority": 5 }),
    );
    world.quiet();
    let mut order = Vec::new();
    for _ in 0..3 {
        let (place, run) = world.only_run();
        order.push(run.uid.clone());
        world.finish(place, &run, 0);
        world.quiet();
    }
    assert_eq!(order, [first, urgent, old]);
}

#[test]
fn what_reads_a_secret_first_keeps_its_turn() {
    let mut world = World::new(1, 1);
    world.quiet();
    let first = world.create("first", json!("One"));
    world.quiet();
    let secret = json!([{ "secretRef": { "name": "s" } }]);
    let urgent = world.create_with(
        "urgent",
        json!({ "pool": "p", "command": ["true"], "priority": 5, "envFrom": secret }),
    );
    world.create("late", json!("One"));
    world.quiet();
    // Values that were read before are too old by the time there is room.
    world.pass(60);
    let (place, run) = world.only_run();
    assert_eq!(run.uid, first);
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(world.only_run().1.uid, urgent);
}

#[test]
fn a_broadcast_is_not_starved_by_single_tasks() {
    let mut world = World::new(1, 2);
    world.quiet();
    world.create("a", json!("One"));
    world.create("b", json!("One"));
    world.quiet();
    world.now += Duration::from_secs(1);
    let all = world.create("all", json!("All"));
    world.now += Duration::from_secs(1);
    world.create("late", json!("One"));
    world.quiet();
    for _ in 0..2 {
        let (place, run) = world.active()[0].clone();
        world.finish(place, &run, 0);
        world.quiet();
    }
    let running: Vec<Uid> = world.active().into_iter().map(|(_, run)| run.uid).collect();
    assert_eq!(running, [all.clone(), all.clone()]);
    assert_eq!(world.status(&all).placed.len(), 2);
}

#[test]
fn a_lost_machine_is_one_interruption_and_another_attempt() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.interruptions),
        (Some(TaskPhase::Pending), 1)
    );
    world.add_machine(0);
    world.show_views();
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (
            status.phase,
            status.attempt,
            status.restarts,
            status.interruptions
        ),
        (Some(TaskPhase::Running), 2, 1, 1)
    );
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert!(world.published.contains(&"TaskRetried"));
}

#[test]
fn times_at_the_end_of_all_time_are_no_obstacle() {
    let mut world = World::new(1, 1);
    world.now = "9999-12-30T21:00:00Z".parse().unwrap();
    let spec = json!({ "pool": "p", "command": ["true"], "ttlSecondsAfterFinished": 86_400 });
    world.create_with("t", spec);
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 0);
    world.quiet();
    assert!(world.dispatcher.is_empty());
}

#[test]
fn work_that_stops_its_own_run_does_not_begin_for_ever() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create_with(
        "t",
        json!({ "pool": "p", "command": ["true"], "retries": { "onInterruption": 3 } }),
    );
    for _ in 0..10 {
        world.quiet();
        let Some((place, run)) = world.active().first().cloned() else {
            break;
        };
        world.stop_run(place, &run);
        world.finish(place, &run, 0);
        world.pass(6);
    }
    let status = world.status(&uid);
    assert_eq!((status.phase, status.interruptions), (Some(TaskPhase::Failed), 4));
    let failed = condition::find(&status.conditions, condition::FAILED).unwrap();
    assert!(
        failed
            .message
            .ends_with("the last time machine \"p-0.1\" stopped its run on a SIGTERM"),
        "{}",
        failed.message
    );
}

#[test]
fn a_machine_that_only_the_cache_lost_is_not_lost() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let views = Event::Views {
        pool: world.pool.clone().map(Arc::new),
        machines: Vec::new(),
        others: Vec::new(),
    };
    world.tell(views);
    world.quiet();
    world.pass(10);
    assert_eq!(world.status(&uid).attempt, 1);
    world.show_views();
    world.calm();
    assert_eq!(world.status(&uid).attempt, 1);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn too_many_interruptions_fail_the_task() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create_with(
        "t",
        json!({ "pool": "p", "command": ["true"], "retries": { "onInterruption": 0 } }),
    );
    world.quiet();
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.reason.as_str(), status.interruptions),
        (Some(TaskPhase::Failed), "Interrupted", 1)
    );
    assert_eq!(status.failed_ranks, "0");
}

#[test]
fn all_ranks_restart_together_and_only_after_the_others_stopped() {
    let mut world = World::new(1, 2);
    world.quiet();
    let uid = world.create("t", json!("All"));
    world.quiet();
    let (lost, _) = world.active()[0].clone();
    world.lose_machine(lost);
    world.add_machine(lost.slot);
    world.show_views();
    world.quiet();
    // The other rank was asked to stop and has not yet: nothing starts.
    assert_eq!(world.status(&uid).attempt, 1);
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    assert_eq!(world.status(&uid).attempt, 2);
    assert_eq!(world.active().len(), 2);
    assert_eq!(world.status(&uid).interruptions, 1);
}

#[test]
fn a_deleted_task_is_stopped_forgotten_and_its_data_deleted() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.delete(&uid);
    world.quiet();
    assert!(world.deleted_stored.is_empty());
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    assert!(world.machines[&place].runs.is_empty());
    assert_eq!(world.deleted_stored, [uid]);
    assert!(world.dispatcher.is_empty());
}

#[test]
fn a_task_that_left_the_watch_but_is_there_goes_on() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.tell(Event::Left(uid.clone()));
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert_eq!(world.status(&uid).attempt, 1);
}

#[test]
fn a_suspended_task_is_stopped_and_resumes_with_another_attempt() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(status.phase, Some(TaskPhase::Suspended));
    assert!(condition::is_true(&status.conditions, condition::SUSPENDED));
    assert!(!condition::is_true(&status.conditions, condition::RUNNING));
    world.edit(&uid, |task| task.spec.suspend = Some(false));
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.attempt, status.interruptions),
        (Some(TaskPhase::Running), 2, 0)
    );
    assert!(!condition::is_true(&status.conditions, condition::SUSPENDED));
}

#[test]
fn a_task_suspended_from_the_start_says_so_at_once_and_never_runs() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create_with("t", json!({ "pool": "p", "command": ["true"], "suspend": true }));
    world.pass(2);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Suspended));
    world.pass(20);
    assert_eq!(world.writes[&uid], 1);
    assert!(world.active().is_empty());
}

#[test]
fn a_task_of_a_namespace_that_is_not_served_says_so_and_what_runs_goes_on() {
    let mut world = World::new(2, 1);
    world.quiet();
    let runs = world.create("runs", json!("One"));
    world.quiet();
    let served = std::mem::replace(&mut world.dispatcher, Dispatcher::new(Key::new("n", "p")));
    world.dispatcher = served.serving(false);
    let waits = world.create("waits", json!("One"));
    world.pass(30);
    let status = world.status(&waits);
    assert_eq!(
        (status.phase, status.reason.as_str()),
        (Some(TaskPhase::Pending), "NamespaceNotServed")
    );
    let (place, run) = world.only_run();
    world.finish(place, &run, 0);
    world.pass(5);
    assert_eq!(world.status(&runs).phase, Some(TaskPhase::Succeeded));
    assert!(world.active().is_empty());
}

#[test]
fn a_deleted_pool_stops_its_runs_and_fails_every_task_it_had() {
    let mut world = World::new(1, 1);
    world.quiet();
    let runs = world.create("runs", json!("One"));
    world.quiet();
    let waits = world.create("waits", json!("One"));
    world.quiet();
    world.pool.as_mut().unwrap().deleted_at = Some(world.now);
    world.show_views();
    world.quiet();
    assert_eq!(world.status(&waits).reason, "PoolDeleted");
    assert_eq!(world.status(&runs).phase, Some(TaskPhase::Running));
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    assert_eq!(
        (world.status(&runs).phase, world.status(&runs).reason.as_str()),
        (Some(TaskPhase::Failed), "PoolDeleted")
    );
    assert!(world.dispatcher.load().unwrap().runs.is_empty());
    // A Task that comes later is meant for the next Pool of that name.
    world.now += Duration::from_secs(1);
    let next = world.create("next", json!("One"));
    world.pass(6);
    assert_eq!(
        (world.status(&next).phase, world.status(&next).reason.as_str()),
        (Some(TaskPhase::Pending), "PoolNotReady")
    );
}

#[test]
fn a_new_leader_knows_the_pool_of_a_run_by_its_uid_whatever_the_clocks_say() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    assert_eq!(world.status(&uid).pool_uid, "pool-uid");
    // The clock was two minutes ahead when the Pool was made.
    world.pool.as_mut().unwrap().created = world.now + Duration::from_mins(2);
    world.restart();
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 0);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.pool_uid.as_str()),
        (Some(TaskPhase::Succeeded), "")
    );
}

#[test]
fn a_pool_that_is_made_again_did_not_own_the_runs_of_the_pool_before() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.pool.as_mut().unwrap().uid = "pool-2".into();
    world.restart();
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    assert_eq!(world.status(&uid).reason, "PoolDeleted");
}

#[test]
fn a_pool_turned_off_puts_its_tasks_back_without_counting() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.pool.as_mut().unwrap().why_suspended = Some("nodes.desired of the Pool is 0");
    world.show_views();
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.reason.as_str(), status.interruptions),
        (Some(TaskPhase::Pending), "PoolOff", 0)
    );
    world.pool.as_mut().unwrap().why_suspended = None;
    world.show_views();
    world.calm();
    assert_eq!(
        (world.status(&uid).phase, world.status(&uid).attempt),
        (Some(TaskPhase::Succeeded), 2)
    );
}

#[test]
fn a_wait_is_told_within_a_second_and_once() {
    let mut world = World::new(1, 1);
    world.pool = None;
    world.others = vec!["numpy".to_owned(), "torch".to_owned()];
    world.machines.clear();
    world.show_views();
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.moments(1);
    assert_eq!(world.writes.get(&uid), None);
    world.moments(2);
    assert_eq!(world.writes[&uid], 1, "no tick was needed");
    world.pass(20);
    assert_eq!(world.writes[&uid], 1);
    assert_eq!(world.status(&uid).reason, "PoolNotFound");
    let conditions = world.status(&uid).conditions;
    let said = &condition::find(&conditions, condition::SCHEDULED)
        .unwrap()
        .message;
    assert!(said.contains("(there are: numpy, torch)"), "{said}");
    world.pool = Some(super::world::view(1, 1));
    world.pool.as_mut().unwrap().not_ready =
        Some(("NoAvailableProvider".into(), "nothing has 9 GPUs".into()));
    world.show_views();
    world.pass(20);
    assert_eq!(world.writes[&uid], 2);
    let status = world.status(&uid);
    let message = &condition::find(&status.conditions, condition::SCHEDULED)
        .unwrap()
        .message;
    assert_eq!(status.reason, "PoolNotReady");
    assert!(
        message.contains("nothing has 9 GPUs (NoAvailableProvider)"),
        "{message}"
    );
    // A new leader does not write the same again.
    world.restart();
    world.quiet();
    world.pass(20);
    assert_eq!(world.writes[&uid], 2);
}

#[test]
fn a_missing_secret_holds_only_its_own_task() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.missing_references = true;
    let spec = json!({ "pool": "p", "command": ["true"], "envFrom": [{ "secretRef": { "name": "s" } }] });
    let held = world.create_with("held", spec);
    let free = world.create("free", json!("One"));
    world.quiet();
    assert_eq!(world.status(&free).phase, Some(TaskPhase::Running));
    world.pass(6);
    assert_eq!(world.status(&held).reason, "ReferenceNotFound");
    world.missing_references = false;
    world.calm();
    assert_eq!(world.status(&held).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn every_attempt_has_the_files_of_the_first_one_whatever_became_of_its_source() {
    let mut world = World::new(1, 1);
    world.quiet();
    let spec = json!({ "pool": "p", "command": ["true"], "source": { "configMap": { "name": "code" } } });
    let uid = world.create_with("t", spec);
    world.quiet();
    let first = || Some("sha256:first".to_owned());
    let digest = |world: &World| world.status(&uid).source.map(|source| source.digest);
    assert_eq!(
        (world.status(&uid).phase, digest(&world)),
        (Some(TaskPhase::Running), first())
    );
    world.content = Some("sha256:second");
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.quiet();
    world.add_machine(0);
    world.show_views();
    world.pass(8);
    for _ in 0..2 {
        let status = world.status(&uid);
        assert_eq!((status.reason.as_str(), status.attempt), ("SourceChanged", 1));
        let scheduled = condition::find(&status.conditions, condition::SCHEDULED).unwrap();
        assert!(
            scheduled.message.contains("sha256:second now"),
            "{}",
            scheduled.message
        );
        // A new leader knows it from the record.
        world.restart();
        world.quiet();
        world.pass(8);
    }
    world.content = Some("sha256:first");
    world.pass(8);
    assert_eq!((world.status(&uid).attempt, digest(&world)), (2, first()));
    assert_eq!(
        world.started_with,
        [(uid.clone(), first()), (uid.clone(), first())]
    );
    world.calm();
    assert_eq!(
        (world.status(&uid).phase, digest(&world)),
        (Some(TaskPhase::Succeeded), first())
    );
}

#[test]
fn a_rank_that_the_pool_never_has_is_said() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!(7));
    world.pass(6);
    assert_eq!(world.status(&uid).reason, "RankOutOfRange");
}

#[test]
fn a_run_that_nobody_claims_is_stopped_and_forgotten() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.only_run();
    // The Task is deleted while no controller runs.
    world.objects.remove(&uid);
    world.restart();
    world.quiet();
    world.pass(11);
    world.finish(place, &run, 143);
    world.quiet();
    assert!(world.machines[&place].runs.is_empty());
}

#[test]
fn an_end_whose_answer_was_lost_is_written_once() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 0);
    loop {
        if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
            world.tell(event);
        } else if world.effects.is_empty() {
            break;
        } else {
            let effect = world.effects.remove(0);
            let end = matches!(&effect, Effect::Write { .. });
            world.carry_out(effect, false, end);
        }
    }
    assert_eq!(world.ends[&uid], 1);
    assert!(world.dispatcher.is_empty());
    assert!(world.published.contains(&"TaskCompleted"));
}

#[test]
fn a_status_edited_to_finished_by_hand_stops_what_runs() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.edit(&uid, |task| {
        task.status.as_mut().unwrap().phase = Some(TaskPhase::Succeeded);
    });
    world.quiet();
    let (place, run) = world.only_run();
    world.finish(place, &run, 143);
    world.quiet();
    assert!(world.machines[&place].runs.is_empty());
    assert!(world.dispatcher.is_empty());
    assert!(world.deleted_stored.is_empty());
}

#[test]
fn a_reason_that_changes_is_told_again() {
    let mut world = World::new(1, 1);
    world.machines.clear();
    world.show_views();
    world.quiet();
    let spec = json!({ "pool": "p", "command": ["true"], "envFrom": [{ "secretRef": { "name": "s" } }] });
    let uid = world.create_with("t", spec);
    world.pass(8);
    assert_eq!(world.status(&uid).reason, "WaitingForMachine");
    // Meanwhile the Secret is deleted.
    world.pass(120);
    world.missing_references = true;
    let told = world.writes[&uid];
    world.add_machine(0);
    world.show_views();
    world.pass(8);
    assert_eq!(world.status(&uid).reason, "ReferenceNotFound");
    let again = world.writes[&uid];
    assert!(again > told);
    world.pass(20);
    assert_eq!(world.writes[&uid], again, "it is told once");
}

#[test]
fn a_new_leader_gives_a_machine_nothing_before_its_agent_has_told_what_it_runs() {
    let mut world = World::new(1, 1);
    world.quiet();
    let gone = world.create("gone", json!("One"));
    world.quiet();
    let (place, run) = world.only_run();
    // Deleted while no controller runs: only the agent knows of its run.
    world.objects.remove(&gone);
    world.create("next", json!("One"));
    world.restart();
    while let Some(event) = world.watch.pop_front() {
        world.tell(event);
    }
    let starts = |world: &World| {
        let begins = |effect: &Effect| matches!(effect, Effect::Write { .. } | Effect::Start(_));
        world.effects.iter().any(begins)
    };
    assert!(!starts(&world), "{:?}", world.effects);
    world.quiet();
    assert_eq!(world.active(), [(place, run.clone())]);
    world.finish(place, &run, 0);
    world.quiet();
    assert!(matches!(&world.active()[..], [(_, next)] if next.uid != gone));
}

#[test]
fn a_machine_that_was_killed_for_want_of_memory_is_a_failure_of_what_ran_there() {
    let mut world = World::new(1, 1);
    world.quiet();
    let spec = json!({ "pool": "p", "command": ["true"], "retries": { "onInterruption": 3 } });
    let uid = world.create_with("t", spec);
    world.quiet();
    let (place, _) = world.only_run();
    world.starve(place);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.reason.as_str(), status.interruptions),
        (Some(TaskPhase::Failed), "OutOfMemory", 0)
    );
    let failed = condition::find(&status.conditions, condition::FAILED).unwrap();
    assert!(failed.message.contains("more memory"), "{}", failed.message);
    assert!(!world.published.contains(&"TaskRetried"));
    // Its machine goes, and cannot be asked any more.
    world.lose_machine(place);
    world.pass(6);
    assert!(world.dispatcher.is_empty());
}

#[test]
fn what_ended_before_its_machine_was_killed_for_want_of_memory_is_what_counts() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    let (place, run) = world.only_run();
    // An earlier leader stored the result; this one does not know.
    let result = skyward_api::task::RunResult {
        reason: "Succeeded".into(),
        ..Default::default()
    };
    let collected = Collected {
        reason: "Succeeded",
        result,
    };
    world.outcomes.insert(run, Box::new(collected));
    world.starve(place);
    world.quiet();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}
