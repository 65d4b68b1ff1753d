//! Runs that fail by themselves and start again, or do not; deadlines of Tasks.

use super::{world::World, *};

fn task(world: &mut World, more: serde_json::Value) -> Uid {
    let mut spec = json!({ "pool": "p", "command": ["true"] });
    if let (Some(spec), serde_json::Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    let uid = world.create_with("t", spec);
    world.quiet();
    uid
}

/// A Pool of one machine with a Task that runs.
fn running(more: serde_json::Value) -> (World, Uid) {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = task(&mut world, more);
    (world, uid)
}

/// The only run exits so.
fn exit(world: &mut World, code: i32) {
    let (place, run) = world.only_run();
    world.finish(place, &run, code);
    world.quiet();
}

/// Phase, reason, and the counts of attempts, failures and interruptions.
fn told(world: &World, uid: &Uid) -> (TaskPhase, String, [u32; 3]) {
    let status = world.status(uid);
    let counts = [status.attempt, status.failures, status.interruptions];
    (status.phase.unwrap_or_default(), status.reason, counts)
}

fn said(world: &World, uid: &Uid, type_: &str) -> String {
    let conditions = world.status(uid).conditions;
    let condition = condition::find(&conditions, type_);
    condition
        .map(|condition| condition.message.clone())
        .unwrap_or_default()
}

fn is(phase: TaskPhase, reason: &str, counts: [u32; 3]) -> (TaskPhase, String, [u32; 3]) {
    (phase, reason.to_owned(), counts)
}

#[test]
fn a_run_that_fails_starts_again_after_pauses_that_double_until_both_numbers_are_told() {
    let (mut world, uid) = running(json!({ "retries": { "onFailure": 2 } }));
    for (attempt, pause) in [(1, 10), (2, 20)] {
        exit(&mut world, 1);
        world.pass(pause - 1);
        assert!(world.active().is_empty(), "attempt {attempt} has its pause");
        assert_eq!(
            told(&world, &uid),
            is(TaskPhase::Pending, "Retrying", [attempt, attempt, 0])
        );
        let message = said(&world, &uid, condition::SCHEDULED);
        let begins = format!(
            "attempt {attempt} failed: uid-t-{attempt}-0; attempt {} follows at ",
            attempt + 1
        );
        assert!(message.starts_with(&begins), "{message}");
        assert!(world.status(&uid).retry_at.is_some());
        world.pass(1);
        assert_eq!(
            told(&world, &uid),
            is(TaskPhase::Running, "Started", [attempt + 1, attempt, 0])
        );
        assert_eq!(world.status(&uid).retry_at, None);
    }
    exit(&mut world, 1);
    assert_eq!(
        told(&world, &uid),
        is(TaskPhase::Failed, "NonZeroExit", [3, 3, 0])
    );
    assert_eq!(
        said(&world, &uid, condition::FAILED),
        "uid-t-3-0; 3 attempts failed, and retries.onFailure allows 2"
    );
    let retried = world.published.iter().filter(|reason| **reason == "TaskRetried");
    assert_eq!(retried.count(), 2);
    assert_eq!(world.counted, ["Failure", "Failure", "NonZeroExit"]);
    assert!(world.dispatcher.is_empty());
}

#[test]
fn a_new_leader_keeps_the_pause_and_the_counts() {
    let (mut world, uid) = running(json!({ "retries": { "onFailure": 2 } }));
    exit(&mut world, 1);
    world.pass(3);
    world.restart();
    world.quiet();
    world.pass(6);
    assert!(world.active().is_empty(), "one second is left");
    world.pass(2);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [2, 1, 0]));
}

#[test]
fn a_failure_of_which_a_leader_recorded_nothing_counts_once() {
    let (mut world, uid) = running(json!({ "retries": { "onFailure": 2 } }));
    exit(&mut world, 1);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    world.restart();
    world.quiet();
    world.pass(15);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [2, 1, 0]));
}

#[test]
fn a_pause_keeps_no_other_task_waiting() {
    let (mut world, _) = running(json!({ "retries": { "onFailure": 1 }, "priority": 5 }));
    exit(&mut world, 1);
    let other = world.create("other", json!("One"));
    world.quiet();
    assert_eq!(world.only_run().1.uid, other);
}

#[test]
fn rules_read_codes_and_the_names_of_exceptions() {
    let rules = json!({ "retries": { "onFailure": 1, "backoff": { "initial": "1s" }, "rules": [
        { "exitCodes": [75], "action": "Ignore" }, { "exceptions": ["a.Refused"], "action": "Fail" },
    ] } });
    let (mut world, uid) = running(rules);
    for attempt in 1..4 {
        exit(&mut world, 75);
        world.pass(300);
        assert_eq!(
            told(&world, &uid),
            is(TaskPhase::Running, "Started", [attempt + 1, 0, 0])
        );
        assert_eq!(world.status(&uid).ignored_failures, attempt);
    }
    exit(&mut world, 1);
    world.pass(300);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [5, 1, 0]));
    let (place, run) = world.only_run();
    world.raise(place, &run, "a.Refused");
    world.quiet();
    assert_eq!(
        told(&world, &uid),
        is(TaskPhase::Failed, "FunctionRaised", [5, 2, 0])
    );
    let message = said(&world, &uid, condition::FAILED);
    assert!(message.ends_with("; retries.rules[1] says Fail"), "{message}");
    assert_eq!(world.status(&uid).results[0].exception, "a.Refused");
}

#[test]
fn lost_machines_and_failures_are_counted_apart() {
    let (mut world, uid) = running(json!({ "retries": { "onInterruption": 1, "onFailure": 1 } }));
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.add_machine(0);
    world.show_views();
    world.pass(3);
    exit(&mut world, 1);
    world.pass(11);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [3, 1, 1]));
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.quiet();
    assert_eq!(
        told(&world, &uid),
        is(TaskPhase::Failed, "Interrupted", [3, 1, 2])
    );
}

#[test]
fn all_ranks_run_again_and_not_before_each_has_ended() {
    let mut world = World::new(1, 2);
    world.quiet();
    let more = json!({ "placement": "All", "retries": { "onFailure": 1, "backoff": { "initial": "1s" } } });
    let uid = task(&mut world, more);
    let (place, run) = world.active()[0].clone();
    world.finish(place, &run, 1);
    world.quiet();
    world.pass(30);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [1, 0, 0]));
    exit(&mut world, 0);
    world.pass(2);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [2, 1, 0]));
    assert_eq!(world.active().len(), 2);
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn a_task_that_says_nothing_has_what_its_pool_says() {
    let mut world = World::new(1, 1);
    world.pool.as_mut().unwrap().retries.on_failure = Some(1);
    world.show_views();
    world.quiet();
    let uid = task(&mut world, json!({}));
    exit(&mut world, 1);
    world.pass(11);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [2, 1, 0]));
}

#[test]
fn a_task_that_is_suspended_in_its_pause_starts_when_it_is_resumed() {
    let (mut world, uid) = running(json!({ "retries": { "onFailure": 1 } }));
    exit(&mut world, 1);
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    world.pass(30);
    assert_eq!(
        told(&world, &uid),
        is(TaskPhase::Suspended, "Suspended", [1, 1, 0])
    );
    world.edit(&uid, |task| task.spec.suspend = Some(false));
    world.pass(2);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [2, 1, 0]));
}

#[test]
fn a_stored_failure_that_this_cluster_has_forgotten_is_retried_as_any_other() {
    for (allowed, expected) in [
        (1, is(TaskPhase::Running, "Started", [2, 1, 0])),
        (0, is(TaskPhase::Failed, "NonZeroExit", [1, 1, 0])),
    ] {
        let mut world = World::new(1, 1);
        world.quiet();
        let spec = json!({ "pool": "p", "command": ["true"], "retries": { "onFailure": allowed } });
        let uid = world.create_with("t", spec);
        let failed = Collected {
            reason: reason::NON_ZERO_EXIT,
            result: RunResult {
                reason: reason::NON_ZERO_EXIT.to_owned(),
                exit_code: Some(1),
                ..RunResult::default()
            },
        };
        world.outcomes.insert(RunId::new(&uid, 1, 0), Box::new(failed));
        world.restart();
        world.quiet();
        world.pass(2);
        assert_eq!(told(&world, &uid), expected);
    }
}

#[test]
fn a_run_is_stopped_at_the_deadline_of_its_task_also_by_a_new_leader() {
    for restarts in [false, true] {
        let (mut world, uid) = running(json!({ "activeDeadline": "60s" }));
        assert!(world.status(&uid).deadline.is_some());
        world.pass(30);
        if restarts {
            world.restart();
            world.quiet();
        }
        let (place, run) = world.only_run();
        world.pass(29);
        assert!(!world.machines[&place].runs[&run].stopping, "a second is left");
        world.pass(1);
        assert!(world.machines[&place].runs[&run].stopping);
        exit(&mut world, 143);
        assert_eq!(
            told(&world, &uid),
            is(TaskPhase::Failed, "DeadlineExceeded", [1, 0, 0])
        );
        assert!(world.dispatcher.is_empty());
    }
}

#[test]
fn what_ends_by_itself_at_the_deadline_counts_and_is_not_retried() {
    for (code, expected) in [
        (0, is(TaskPhase::Succeeded, "Succeeded", [1, 0, 0])),
        (1, is(TaskPhase::Failed, "NonZeroExit", [1, 1, 0])),
    ] {
        let (mut world, uid) = running(json!({ "activeDeadline": "60s", "retries": { "onFailure": 5 } }));
        let (place, run) = world.only_run();
        world.pass(59);
        // Its end is on its way when the deadline passes.
        world.finish(place, &run, code);
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        world.quiet();
        assert_eq!(told(&world, &uid), expected);
    }
}

#[test]
fn a_deadline_counts_all_attempts_and_the_waits_between_them() {
    let (mut world, uid) = running(json!({ "activeDeadline": "60s" }));
    let deadline = world.status(&uid).deadline;
    world.pass(20);
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.add_machine(0);
    world.show_views();
    world.pass(10);
    assert_eq!(told(&world, &uid), is(TaskPhase::Running, "Started", [2, 0, 1]));
    assert_eq!(world.status(&uid).deadline, deadline);
    let (place, _) = world.only_run();
    world.lose_machine(place);
    world.pass(29);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Pending));
    world.pass(1);
    assert_eq!(
        told(&world, &uid),
        is(TaskPhase::Failed, "DeadlineExceeded", [2, 0, 2])
    );
}

/// A Pool without a machine, with a Task that waits.
fn waiting(more: serde_json::Value) -> (World, Uid) {
    let mut world = World::new(1, 1);
    world.machines.clear();
    world.show_views();
    world.quiet();
    let uid = task(&mut world, more);
    (world, uid)
}

#[test]
fn a_task_that_waits_too_long_fails_and_says_for_what_it_waited_also_with_a_new_leader() {
    for restarts in [false, true] {
        let (mut world, uid) = waiting(json!({ "queueTimeout": "30s" }));
        world.pass(20);
        assert!(world.status(&uid).queue_deadline.is_some());
        if restarts {
            world.restart();
            world.quiet();
        }
        world.pass(9);
        assert_eq!(
            world.status(&uid).phase,
            Some(TaskPhase::Pending),
            "a second is left"
        );
        world.pass(1);
        assert_eq!(
            told(&world, &uid),
            is(TaskPhase::Failed, "QueueTimeout", [0, 0, 0])
        );
        let message = said(&world, &uid, condition::FAILED);
        assert!(
            message.contains("within the 30s of its queueTimeout"),
            "{message}"
        );
        assert!(message.ends_with("takes Tasks at this moment"), "{message}");
        assert!(world.dispatcher.is_empty());
    }
}

#[test]
fn a_suspended_task_is_not_one_that_waits() {
    let (mut world, uid) = waiting(json!({ "queueTimeout": "30s", "suspend": true }));
    world.pass(100);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Suspended));
    assert_eq!(world.status(&uid).queue_deadline, None);
    world.edit(&uid, |task| task.spec.suspend = Some(false));
    world.pass(29);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Pending));
    world.pass(2);
    assert_eq!(world.status(&uid).reason, "QueueTimeout");
}

#[test]
fn a_pause_after_a_failure_is_no_wait_for_a_start() {
    let more =
        json!({ "queueTimeout": "30s", "retries": { "onFailure": 1, "backoff": { "initial": "100s" } } });
    let (mut world, uid) = running(more);
    let (place, run) = world.only_run();
    world.finish(place, &run, 1);
    world.quiet();
    world.lose_machine(place);
    world.pass(129);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Pending));
    world.pass(2);
    assert_eq!(
        told(&world, &uid),
        is(TaskPhase::Failed, "QueueTimeout", [1, 1, 0])
    );
}

#[test]
fn no_task_is_given_up_while_the_memory_of_this_cluster_may_be_old() {
    let (mut world, uid) = waiting(json!({ "queueTimeout": "30s" }));
    world.tell(Event::Memory(ClusterMemory::Held));
    world.quiet();
    world.pass(100);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Pending));
    world.tell(Event::Memory(ClusterMemory::Whole));
    world.pass(2);
    assert_eq!(world.status(&uid).reason, "QueueTimeout");
}

#[test]
fn tasks_of_before_have_no_times_and_no_more_writes() {
    let (mut world, uid) = running(json!({}));
    world.pass(1000);
    let status = world.status(&uid);
    assert_eq!((status.deadline, status.queue_deadline), (None, None));
    assert_eq!(world.writes[&uid], 1);
}
