//! Tasks that wait for other Tasks.

use super::{world::World, *};

/// A Pool of one machine with two places: what waits does not wait for room.
fn world() -> World {
    let mut world = World::new(2, 1);
    world.quiet();
    world
}

fn dependent(world: &mut World, name: &str, others: &[&str]) -> Uid {
    let others: Vec<_> = others.iter().map(|other| json!({ "task": other })).collect();
    let spec = json!({ "pool": "p", "command": ["true"], "dependsOn": others });
    let uid = world.create_with(name, spec);
    world.quiet();
    uid
}

/// The run of a Task ends so.
fn ends(world: &mut World, uid: &Uid, code: i32) {
    let mut active = world.active().into_iter();
    let (place, run) = active.find(|(_, run)| run.uid == *uid).unwrap();
    world.finish(place, &run, code);
    world.quiet();
}

fn why(world: &World, uid: &Uid) -> String {
    let status = world.status(uid);
    let type_ = if status.phase == Some(TaskPhase::Failed) {
        condition::FAILED
    } else {
        condition::SCHEDULED
    };
    let found = condition::find(&status.conditions, type_);
    found.map_or_else(String::new, |it| format!("{}: {}", it.reason, it.message))
}

fn is_running(world: &World, uid: &Uid) -> bool {
    world.active().iter().any(|(_, run)| run.uid == *uid)
}

#[test]
fn a_chain_of_three_runs_one_after_the_other_and_a_waiting_task_is_no_demand() {
    let mut world = world();
    let third = dependent(&mut world, "third", &["second"]);
    let second = dependent(&mut world, "second", &["first"]);
    let first = world.create("first", json!("One"));
    world.quiet();
    world.pass(2);
    assert_eq!(world.dispatcher.load().unwrap().queued, 0);
    assert_eq!(
        why(&world, &second),
        r#"WaitingForTask: waits for the end of Task "first""#
    );
    assert_eq!(
        why(&world, &third),
        r#"WaitingForTask: waits for the end of Task "second""#
    );
    for (ends_now, next) in [(&first, Some(&second)), (&second, Some(&third)), (&third, None)] {
        assert_eq!(world.active().len(), 1);
        ends(&mut world, ends_now, 0);
        assert!(next.is_none_or(|next| is_running(&world, next)));
    }
    assert_eq!(world.status(&third).phase, Some(TaskPhase::Succeeded));
    let record = &world.status(&third).dependencies[0];
    assert_eq!((record.uid.as_str(), record.satisfied), ("uid-second", true));
}

#[test]
fn a_task_that_depends_on_one_that_ended_before_starts_without_another_write() {
    let mut world = world();
    let first = world.create("first", json!("One"));
    world.quiet();
    ends(&mut world, &first, 0);
    let second = dependent(&mut world, "second", &["first"]);
    assert!(is_running(&world, &second));
    assert_eq!(world.writes[&second], 1);
}

#[test]
fn a_missing_task_is_named_and_waited_for() {
    let mut world = world();
    let second = dependent(&mut world, "second", &["first"]);
    world.pass(2);
    let missing = r#"WaitingForTask: waits for Task "first", which does not exist yet"#;
    assert_eq!(
        (why(&world, &second).as_str(), world.writes[&second]),
        (missing, 1)
    );
    let first = world.create("first", json!("One"));
    world.quiet();
    world.pass(2);
    assert_eq!(
        why(&world, &second),
        r#"WaitingForTask: waits for the end of Task "first""#
    );
    assert_eq!(world.status(&second).dependencies[0].uid, "uid-first");
    ends(&mut world, &first, 0);
    assert!(is_running(&world, &second));
}

#[test]
fn a_failed_task_fails_the_tasks_that_depend_on_it_and_those_that_depend_on_them() {
    let mut world = world();
    let first = world.create("first", json!("One"));
    let second = dependent(&mut world, "second", &["first"]);
    let third = dependent(&mut world, "third", &["second"]);
    let spec =
        json!({ "pool": "p", "command": ["true"], "dependsOn": [{ "task": "first", "status": "Finished" }] });
    let after_any_end = world.create_with("after", spec);
    world.quiet();
    ends(&mut world, &first, 1);
    world.pass(2);
    assert!(
        why(&world, &second).starts_with(
            r#"DependencyFailed: Task "first", which this Task depends on, failed with NonZeroExit"#
        ),
        "{}",
        why(&world, &second)
    );
    assert_eq!(world.status(&second).phase, Some(TaskPhase::Failed));
    assert!(why(&world, &third).contains("failed with DependencyFailed"));
    assert!(is_running(&world, &after_any_end));
    assert_eq!((world.ends[&second], world.ends[&third]), (1, 1));
}

#[test]
fn a_task_that_was_found_and_is_deleted_fails_the_one_that_waits_also_for_a_new_leader() {
    for restarts in [false, true] {
        let mut world = world();
        let first = world.create("first", json!("One"));
        let second = dependent(&mut world, "second", &["first"]);
        world.pass(2);
        world.delete(&first);
        if restarts {
            world.restart();
        }
        world.quiet();
        world.pass(2);
        assert!(
            why(&world, &second).contains("was deleted before it ended"),
            "{restarts}"
        );
    }
}

#[test]
fn what_was_satisfied_may_be_deleted_while_the_task_waits_for_another_one() {
    let mut world = world();
    let first = world.create("first", json!("One"));
    let other = world.create("other", json!("One"));
    let second = dependent(&mut world, "second", &["first", "other"]);
    ends(&mut world, &first, 0);
    world.pass(2);
    assert!(
        world
            .status(&second)
            .dependencies
            .iter()
            .any(|record| record.satisfied)
    );
    world.delete(&first);
    world.restart();
    world.quiet();
    world.pass(2);
    assert_eq!(
        why(&world, &second),
        r#"WaitingForTask: waits for the end of Task "other""#
    );
    ends(&mut world, &other, 0);
    assert!(is_running(&world, &second));
}

#[test]
fn a_dependent_task_that_started_runs_again_although_the_other_one_is_gone() {
    let mut world = world();
    let first = world.create("first", json!("One"));
    world.quiet();
    ends(&mut world, &first, 0);
    let second = dependent(&mut world, "second", &["first"]);
    world.delete(&first);
    let (place, _) = world.active()[0].clone();
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    world.restart();
    world.add_machine(0);
    world.show_views();
    world.quiet();
    assert!(is_running(&world, &second));
    assert_eq!(world.status(&second).attempt, 2);
}

#[test]
fn a_suspended_task_stays_suspended_when_the_one_that_it_depends_on_ends() {
    let mut world = world();
    let first = world.create("first", json!("One"));
    let second = dependent(&mut world, "second", &["first"]);
    world.edit(&second, |task| task.spec.suspend = Some(true));
    world.quiet();
    ends(&mut world, &first, 0);
    world.pass(2);
    assert!(!is_running(&world, &second));
    world.edit(&second, |task| task.spec.suspend = Some(false));
    world.quiet();
    assert!(is_running(&world, &second));
}

#[test]
fn tasks_that_wait_for_each_other_say_so() {
    let mut world = world();
    let a = dependent(&mut world, "a", &["b"]);
    let b = dependent(&mut world, "b", &["a"]);
    world.pass(2);
    let names: Arc<[Arc<str>]> = [Arc::from("a"), Arc::from("b")].into();
    for uid in [&a, &b] {
        world.tell(Event::Circle(uid.clone(), names.clone()));
    }
    world.pass(2);
    for uid in [&a, &b] {
        assert!(
            why(&world, uid).starts_with("DependencyCycle: "),
            "{}",
            why(&world, uid)
        );
    }
    world.delete(&a);
    world.quiet();
    world.pass(2);
    assert!(
        why(&world, &b).starts_with("DependencyFailed: "),
        "{}",
        why(&world, &b)
    );
}

#[test]
fn a_task_that_hundreds_wait_for_is_read_once_for_all_of_them_and_each_of_them_costs_few_writes() {
    let mut world = world();
    let first = world.create("first", json!("One"));
    let waiting: Vec<Uid> = (0..300)
        .map(|number| dependent(&mut world, &format!("t{number}"), &["first"]))
        .collect();
    world.pass(10);
    assert!(world.dependency_reads < 4, "{}", world.dependency_reads);
    assert!(waiting.iter().all(|uid| world.writes[uid] == 1));
    world.pass(100);
    assert!(waiting.iter().all(|uid| world.writes[uid] == 1));
    ends(&mut world, &first, 0);
    assert!(world.dependency_reads < 8, "{}", world.dependency_reads);
    assert_eq!(world.active().len(), 2);
}

#[test]
fn a_queue_timeout_counts_from_the_end_of_the_tasks_that_a_task_depends_on() {
    let mut world = World::new(1, 1);
    world.quiet();
    let first = world.create("first", json!("One"));
    world.quiet();
    let spec = json!({ "pool": "p", "command": ["true"], "queueTimeout": "30s", "dependsOn": [{ "task": "first" }] });
    let second = world.create_with("second", spec);
    let more_urgent = world.create_with(
        "urgent",
        json!({ "pool": "p", "command": ["true"], "priority": 5 }),
    );
    world.quiet();
    world.pass(100);
    let status = world.status(&second);
    assert_eq!(
        (status.phase, status.queue_deadline),
        (Some(TaskPhase::Pending), None)
    );
    ends(&mut world, &first, 0);
    assert!(is_running(&world, &more_urgent));
    world.pass(20);
    assert!(world.status(&second).queue_deadline.is_some());
    world.restart();
    world.quiet();
    world.pass(9);
    assert_eq!(world.status(&second).phase, Some(TaskPhase::Pending));
    world.pass(2);
    assert_eq!(world.status(&second).reason, "QueueTimeout");
}

#[test]
fn a_task_that_comes_with_a_new_task_of_a_name_goes_by_that_one_and_not_by_what_was_read_before() {
    let mut world = world();
    world.create("first", json!("One"));
    dependent(&mut world, "third", &["first"]);
    world.pass(2);
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": { "name": "second", "namespace": "n", "uid": "uid-second", "resourceVersion": "1000",
                      "creationTimestamp": world.now.to_string() },
        "spec": { "pool": "p", "command": ["true"], "dependsOn": [{ "task": "first" }] },
    }))
    .unwrap();
    let second = Entry::of(&task).unwrap();
    let uid = second.uid.clone();
    let changed = || Event::DependencyChanged("first".into());
    let found = |uid: &str| {
        let found = Found {
            uid: uid.into(),
            phase: TaskPhase::Pending,
            reason: String::new(),
            has_items: false,
        };
        Event::Dependency("first".into(), Ok(Some(found)))
    };
    // "first" is made anew, and "second" right after it.
    for event in [
        changed(),
        Event::Task(Box::new(second)),
        changed(),
        found("uid-first"),
        found("another"),
    ] {
        world.dispatcher.on(event, world.now);
    }
    let effects = world.dispatcher.settle(world.now);
    let of_second = |effect: &Effect| matches!(effect, Effect::Write { uid: of, .. } if *of == uid);
    assert!(
        !effects.iter().any(of_second),
        "it waits for the new one: {effects:?}"
    );
}
