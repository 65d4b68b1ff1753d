use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use skyward_api::{CronTask, Task, TaskPhase, condition::reason, labels};

use super::{
    facts::{Child, Observed, Refusal, has_on_record},
    plan::{Plan, not_before, pause, plan},
};
use crate::base::{memory::ClusterMemory, requeue::Next};

fn at(text: &str) -> Timestamp {
    format!("2026-05-{text}:00Z").parse().unwrap()
}

/// A CronTask of three o'clock each night, made on the first of May, and its Tasks.
struct World {
    seen: Observed,
}

impl World {
    fn new(spec: &Value) -> Self {
        let mut cron = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask",
            "metadata": { "name": "nightly", "namespace": "team", "uid": "cron-uid", "generation": 1,
                          "creationTimestamp": "2026-05-01T12:00:00Z" },
            "spec": { "schedule": "0 3 * * *", "taskTemplate": {
                "metadata": { "labels": { "team": "a" } },
                "spec": { "pool": "p", "command": ["true"] } } },
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            cron["spec"][field] = value.clone();
        }
        let cron: CronTask = serde_json::from_value(cron).unwrap();
        Self {
            seen: Observed {
                cron: Arc::new(cron),
                children: Some(Vec::new()),
                served: true,
                memory: ClusterMemory::Whole,
                refusal: None,
            },
        }
    }

    fn cron(&mut self) -> &mut CronTask {
        Arc::make_mut(&mut self.seen.cron)
    }

    fn children(&mut self) -> &mut Vec<Child> {
        self.seen.children.get_or_insert_default()
    }

    /// Looks, carries the plan out, and names the Tasks that were made.
    fn look(&mut self, now: &str) -> Vec<String> {
        self.look_at(at(now))
    }

    fn look_at(&mut self, now: Timestamp) -> Vec<String> {
        let mut made = Vec::new();
        for _ in 0..4 {
            let plan = plan(&self.seen, now);
            self.carry_out(&plan, &mut made);
            if plan.next != Next::Again {
                assert_ne!(plan.next, Next::Wait, "the clock goes on");
                return made;
            }
        }
        panic!("it does not come to rest");
    }

    fn carry_out(&mut self, plan: &Plan, made: &mut Vec<String>) {
        for doomed in plan.replace.iter().chain(&plan.forget) {
            self.children().retain(|child| child.uid != doomed.uid);
        }
        if let Some(making) = &plan.make {
            let mut task = (*making.task).clone();
            let name = task.metadata.name.clone().unwrap();
            task.metadata.uid = Some(format!("uid-{name}"));
            let child = Child::of(&task, "cron-uid").expect("its owner is the CronTask");
            assert_eq!(child.scheduled_for, Some(making.at));
            self.children().push(child);
            made.push(name);
        }
        if let Some(status) = &plan.status {
            self.cron().status = Some(status.clone());
        }
    }

    /// All its Tasks end so.
    fn end(&mut self, phase: TaskPhase, when: &str) {
        for child in self
            .children()
            .iter_mut()
            .filter(|child| child.ended_at.is_none())
        {
            (child.phase, child.ended_at) = (phase, Some(at(when)));
        }
    }

    fn reason(&self) -> &str {
        self.seen.cron.status.as_ref().map_or("", |status| &status.reason)
    }
}

/// The name of the Task of that time.
fn task_of(time: &str) -> String {
    format!("nightly-{}", at(time).as_second() / 60)
}

#[test]
fn each_night_has_its_task_which_is_named_by_its_time_and_owned_by_the_cron_task() {
    let mut world = World::new(&json!({}));
    assert!(
        world.look("01T13:00").is_empty(),
        "what was before it was made does not count"
    );
    assert_eq!(world.reason(), reason::NEXT_SCHEDULED);
    let made = plan(&world.seen, at("02T03:00")).make.unwrap();
    let Task { metadata, spec, .. } = *made.task;
    assert_eq!(metadata.name, Some(task_of("02T03:00")));
    assert_eq!(metadata.namespace.as_deref(), Some("team"));
    assert_eq!(spec.pool, "p");
    let owner = &metadata.owner_references.unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
        ("CronTask", "cron-uid", Some(true))
    );
    let labels = metadata.labels.unwrap();
    assert_eq!(
        (labels["team"].as_str(), labels[labels::CRON_TASK_UID].as_str()),
        ("a", "cron-uid")
    );
    for day in ["02T03:00", "03T03:00"] {
        assert_eq!(world.look(day), [task_of(day)]);
        assert!(world.look(day).is_empty(), "once");
        world.end(TaskPhase::Succeeded, day);
    }
    let status = world.seen.cron.status.as_ref().unwrap();
    assert_eq!(status.last_schedule_time.as_ref().unwrap().0, at("03T03:00"));
    assert_eq!(status.next_schedule_time.as_ref().unwrap().0, at("04T03:00"));
}

#[test]
fn of_nights_without_a_controller_the_last_one_is_made_up_for() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    assert_eq!(world.look("09T12:00"), [task_of("09T03:00")]);
    world.end(TaskPhase::Succeeded, "09T12:01");
    assert!(world.look("09T12:02").is_empty());
}

#[test]
fn what_is_too_late_is_left_out_and_said_once() {
    let mut world = World::new(&json!({ "startingDeadlineSeconds": 600 }));
    world.look("01T13:00");
    let late = plan(&world.seen, at("02T03:11"));
    assert_eq!((late.make, late.events.len()), (None, 1));
    assert_eq!(late.events[0].reason, crate::events::reason::SCHEDULE_MISSED);
    world.look("02T03:11");
    assert!(plan(&world.seen, at("02T03:12")).events.is_empty());
    assert_eq!(world.look("03T03:09"), [task_of("03T03:00")]);
}

#[test]
fn neither_a_clock_that_goes_back_nor_a_lost_status_makes_a_task_twice() {
    let mut world = World::new(&json!({ "concurrencyPolicy": "Allow" }));
    world.look("01T13:00");
    assert_eq!(world.look("03T03:00"), [task_of("03T03:00")]);
    assert!(world.look("02T03:00").is_empty());
    assert!(world.look("03T03:00").is_empty());
    // The process died between the Task and the status.
    world.cron().status = None;
    assert!(world.look("03T03:01").is_empty());
}

#[test]
fn a_clock_that_was_a_month_ahead_is_told_of_and_makes_no_task_twice() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    assert_eq!(world.look("28T04:00"), [task_of("28T03:00")]);
    world.end(TaskPhase::Succeeded, "28T04:01");
    for day in ["02T03:00", "28T03:00"] {
        assert!(world.look(day).is_empty());
        assert_eq!(world.reason(), reason::NEXT_SCHEDULED);
    }
    world.look("02T03:00");
    let status = world.seen.cron.status.clone().unwrap();
    assert_eq!(status.next_schedule_time.unwrap().0, at("29T03:00"));
    let message = &status.conditions[0].message;
    assert!(message.contains("a clock that was ahead"), "{message}");
    assert_eq!(world.look("29T03:00"), [task_of("29T03:00")]);
    let message = &world.seen.cron.status.as_ref().unwrap().conditions[0].message;
    assert!(!message.contains("ahead"), "{message}");
}

#[test]
fn while_an_earlier_task_runs_none_is_made_and_then_one_for_the_last_time() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    world.look("02T03:00");
    for day in ["03T03:00", "04T03:00"] {
        assert!(world.look(day).is_empty());
        assert_eq!(world.reason(), reason::EARLIER_TASK_RUNS);
    }
    world.end(TaskPhase::Failed, "04T05:00");
    assert_eq!(world.look("04T05:00"), [task_of("04T03:00")]);
}

#[test]
fn where_several_may_run_at_most_ten_do() {
    let mut world = World::new(&json!({ "concurrencyPolicy": "Allow", "schedule": "* * * * *" }));
    world.look("01T12:00");
    for minute in 1..=10 {
        assert_eq!(world.look(&format!("01T12:{minute:02}")).len(), 1);
    }
    assert!(world.look("01T12:11").is_empty());
    assert_eq!(world.reason(), reason::TOO_MANY_UNFINISHED);
    assert_eq!(world.seen.cron.status.as_ref().unwrap().active_tasks, 10);
    world.end(TaskPhase::Succeeded, "01T12:20");
    assert_eq!(world.look("01T12:20").len(), 1);
}

#[test]
fn a_task_that_is_replaced_is_deleted_before_the_new_one_is_made() {
    let mut world = World::new(&json!({ "concurrencyPolicy": "Replace" }));
    world.look("01T13:00");
    world.look("02T03:00");
    let replaces = plan(&world.seen, at("03T03:00"));
    assert_eq!(
        replaces
            .replace
            .iter()
            .map(|doomed| doomed.name.clone())
            .collect::<Vec<_>>(),
        [task_of("02T03:00")]
    );
    assert!(replaces.make.is_some());
    world.look("03T03:00");
    assert_eq!(world.children().len(), 1);
}

#[test]
fn tasks_that_take_long_to_go_are_not_replaced_without_end() {
    let mut world = World::new(&json!({ "concurrencyPolicy": "Replace", "schedule": "* * * * *" }));
    world.look("01T12:00");
    for minute in 1..=10 {
        let now = at(&format!("01T12:{minute:02}"));
        let mut plan = plan(&world.seen, now);
        // Their finalizers hold them.
        for doomed in std::mem::take(&mut plan.replace) {
            let there = world.children().iter_mut();
            there
                .filter(|child| child.uid == doomed.uid)
                .for_each(|child| child.deleting = true);
        }
        let mut made = Vec::new();
        world.carry_out(&plan, &mut made);
        assert_eq!(made.len(), 1, "{minute}");
    }
    let eleventh = plan(&world.seen, at("01T12:11"));
    assert_eq!(
        (eleventh.make, eleventh.replace),
        (None, Vec::new()),
        "the newest one stays"
    );
    let status = eleventh.status.unwrap();
    assert_eq!(status.reason, reason::TOO_MANY_UNFINISHED);
}

#[rstest]
#[case::of_the_time_zone(json!({ "timeZone": "America/New_York" }), "02T07:00")]
#[case::of_the_schedule(json!({ "schedule": "0 11 * * *" }), "02T11:00")]
fn a_change_makes_no_task_for_a_time_that_has_passed(#[case] change: Value, #[case] would_be: &str) {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    assert_eq!(world.look("02T03:00"), [task_of("02T03:00")]);
    world.end(TaskPhase::Succeeded, "02T03:01");
    let mut spec = serde_json::to_value(&world.seen.cron.spec).unwrap();
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    world.cron().spec = serde_json::from_value(spec).unwrap();
    assert!(world.look("02T12:00").is_empty(), "{would_be} had passed");
    let next = would_be.replacen("02", "03", 1);
    assert_eq!(world.look(&next), [task_of(&next)], "and the next one comes");
}

#[test]
fn the_task_of_a_leader_that_died_is_on_record_whatever_holds_its_cron_task_up_now() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    let before = world.seen.cron.status.clone();
    world.look("02T03:00");
    let mut task = Task::new("nightly-1", world.seen.cron.spec.task_template.spec.clone());
    task.metadata.owner_references = plan(&World::new(&json!({})).seen, at("02T03:00"))
        .make
        .unwrap()
        .task
        .metadata
        .owner_references;
    let scheduled_for = (labels::SCHEDULED_FOR.to_owned(), at("02T03:00").to_string());
    task.metadata.annotations = Some([scheduled_for].into());
    task.metadata.uid = Some("u".into());
    assert!(has_on_record(&world.seen.cron, &task));
    world.cron().status = before;
    assert!(!has_on_record(&world.seen.cron, &task), "its leader died before");
    world.cron().spec.suspend = Some(true);
    world.look("02T03:10");
    assert!(has_on_record(&world.seen.cron, &task));
    task.metadata.owner_references = None;
    world.cron().status = None;
    assert!(has_on_record(&world.seen.cron, &task), "it is somebody else's");
}

#[test]
fn times_that_pass_while_it_is_suspended_are_not_made_up_for() {
    let mut world = World::new(&json!({ "suspend": true }));
    assert!(world.look("03T12:00").is_empty());
    assert_eq!(world.reason(), reason::SUSPENDED);
    world.cron().spec.suspend = None;
    assert!(world.look("05T12:00").is_empty());
    assert_eq!(world.look("06T03:00"), [task_of("06T03:00")]);
}

#[test]
fn nothing_is_made_or_left_out_before_it_is_known_whether_the_cluster_was_restored() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    let before = world.seen.cron.status.clone();
    world.seen.memory = ClusterMemory::Unproved;
    assert!(world.look("02T03:00").is_empty());
    assert_eq!(world.seen.cron.status, before);
    world.seen.memory = ClusterMemory::Whole;
    assert_eq!(world.look("02T03:01"), [task_of("02T03:00")]);
    world.end(TaskPhase::Succeeded, "02T03:02");
    // A restore is known: what is due may have run already.
    world.seen.memory = ClusterMemory::Held;
    assert!(world.look("03T03:00").is_empty());
    assert_eq!(world.reason(), reason::RESTORE_PENDING);
    world.seen.memory = ClusterMemory::Whole;
    assert!(world.look("03T12:00").is_empty());
    assert_eq!(world.look("04T03:00"), [task_of("04T03:00")]);
}

#[test]
fn tasks_that_cannot_be_listed_are_no_reason_to_make_or_delete_any() {
    let mut world = World::new(&json!({}));
    world.seen.children = None;
    let plan = plan(&world.seen, at("09T03:00"));
    assert_eq!((plan.make, plan.forget, plan.status), (None, Vec::new(), None));
    assert!(matches!(plan.next, Next::After(_)));
}

#[test]
fn a_refused_task_is_tried_again_later_and_says_why() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    let now = at("02T03:00");
    world.seen.refusal = Some(Refusal {
        at: now,
        why: "exceeded quota".into(),
        until: not_before(now, 1),
    });
    assert!(world.look("02T03:00").is_empty());
    assert_eq!(world.reason(), reason::TASK_REFUSED);
    assert_eq!(world.look("02T03:01"), [task_of("02T03:00")]);
    let pauses = [1, 2, 3, 7, 99].map(|times| pause(times).as_secs());
    assert_eq!(pauses, [5, 10, 20, 300, 300]);
}

#[rstest]
#[case::three_and_one_are_kept(json!({}), 3, 1)]
#[case::as_many_as_it_says(json!({ "successfulTasksHistoryLimit": 1, "failedTasksHistoryLimit": 0 }), 1, 0)]
fn older_tasks_are_deleted_beyond_the_history(
    #[case] spec: Value,
    #[case] succeeded: usize,
    #[case] failed: usize,
) {
    let mut world = World::new(&spec);
    world.look("01T13:00");
    for day in 2..=9 {
        let night = format!("{day:02}T03:00");
        assert_eq!(world.look(&night).len(), 1);
        let phase = if day % 2 == 0 {
            TaskPhase::Succeeded
        } else {
            TaskPhase::Failed
        };
        world.end(phase, &night);
    }
    world.look("09T04:00");
    let mut left: Vec<String> = world.children().iter().map(|child| child.name.clone()).collect();
    left.sort();
    let nights = |days: &[u32]| {
        days.iter()
            .map(|day| task_of(&format!("{day:02}T03:00")))
            .collect::<Vec<_>>()
    };
    let mut kept = nights(&[8, 6, 4][..succeeded]);
    kept.extend(nights(&[9][..failed]));
    kept.sort();
    assert_eq!(left, kept);
}

#[test]
fn history_deletes_no_task_whose_logs_or_results_are_still_to_be_kept() {
    let mut world = World::new(&json!({ "successfulTasksHistoryLimit": 0 }));
    world.look("01T13:00");
    world.look("02T03:00");
    world.end(TaskPhase::Succeeded, "02T03:10");
    world.children()[0].kept_until = Some(at("05T00:00"));
    world.look("02T04:00");
    assert_eq!(world.children().len(), 1);
    world.look("05T00:00");
    assert_eq!(world.children().len(), 1, "the one before is deleted");
    assert_eq!(world.children()[0].name, task_of("04T03:00"));
}

#[test]
fn history_deletes_no_task_that_another_one_waits_for() {
    let mut world = World::new(&json!({ "successfulTasksHistoryLimit": 0 }));
    world.look("01T13:00");
    world.look("02T03:00");
    world.end(TaskPhase::Succeeded, "02T03:10");
    world.children()[0].awaited = true;
    world.look("02T04:00");
    assert_eq!(world.children().len(), 1);
    world.children()[0].awaited = false;
    world.look("02T04:10");
    assert!(world.children().is_empty());
}

#[rstest]
#[case::no_such_zone(json!({ "timeZone": "Europe/Atlantis" }), "Europe/Atlantis")]
#[case::a_day_that_never_comes(json!({ "schedule": "0 0 31 2 *" }), "four years")]
#[case::no_minute_61(json!({ "schedule": "61 * * * *" }), "61")]
fn a_schedule_that_cannot_be_followed_stops_it_and_says_why(#[case] spec: Value, #[case] word: &str) {
    let mut world = World::new(&spec);
    assert!(world.look("09T03:00").is_empty());
    assert_eq!(world.reason(), reason::INVALID_SCHEDULE);
    let conditions = &world.seen.cron.status.as_ref().unwrap().conditions;
    let stalled = conditions
        .iter()
        .find(|condition| condition.type_ == "Stalled")
        .unwrap();
    assert!(stalled.message.contains(word), "{}", stalled.message);
}

#[test]
fn a_namespace_that_is_not_served_gets_no_task() {
    let mut world = World::new(&json!({}));
    world.seen.served = false;
    assert!(world.look("09T03:00").is_empty());
    assert_eq!(world.reason(), reason::NAMESPACE_NOT_SERVED);
}

#[test]
fn it_is_looked_at_again_when_its_time_comes_and_every_ten_minutes() {
    let world = World::new(&json!({}));
    assert_eq!(
        plan(&world.seen, at("02T02:00")).next,
        Next::After(Duration::from_mins(10))
    );
    assert_eq!(
        plan(&world.seen, at("02T02:57")).next,
        Next::After(Duration::from_mins(3))
    );
}

#[test]
fn a_task_with_the_label_of_a_cron_task_that_it_does_not_belong_to_is_not_its_own() {
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": { "name": "t", "uid": "u", "labels": { "skyward.dev/crontask-uid": "cron-uid" } },
        "spec": { "pool": "p", "command": ["true"] },
    }))
    .unwrap();
    assert_eq!(Child::of(&task, "cron-uid"), None);
    assert_eq!(Child::not_ended(&task.metadata, "cron-uid"), None);
}

#[test]
fn a_task_that_cannot_be_read_goes_on_and_no_other_one_is_made_beside_it() {
    let mut world = World::new(&json!({}));
    world.look("01T13:00");
    let made = plan(&world.seen, at("02T03:00")).make.unwrap().task;
    world.look("02T03:00");
    let mut metadata = made.metadata;
    metadata.uid = Some("u".into());
    let unread = Child::not_ended(&metadata, "cron-uid").unwrap();
    assert_eq!(unread.scheduled_for, Some(at("02T03:00")));
    *world.children() = vec![unread];
    assert!(world.look("03T03:00").is_empty());
    assert_eq!(world.reason(), reason::EARLIER_TASK_RUNS);
}

proptest! {
    #[test]
    fn no_time_has_two_tasks_whatever_the_clock_and_the_leaders_do(
        policy in prop_oneof![Just("Allow"), Just("Forbid")],
        steps in proptest::collection::vec((0_u8..7, 0_i64..4000), 1..80),
    ) {
        let mut world = World::new(&json!({ "schedule": "*/10 * * * *", "concurrencyPolicy": policy }));
        let mut now = at("01T12:00");
        let mut made = Vec::new();
        for (kind, seconds) in steps {
            match kind {
                0 | 1 => now += SignedDuration::from_secs(seconds),
                2 => now -= SignedDuration::from_secs(seconds),
                // A leader dies between the Task and the status.
                3 => {
                    let dies = Plan { status: None, forget: Vec::new(), ..plan(&world.seen, now) };
                    world.carry_out(&dies, &mut made);
                    continue;
                }
                4 => world.end(TaskPhase::Succeeded, "01T12:00"),
                // The ttl of those that have ended passes.
                5 => {
                    let status = world.seen.cron.status.clone().unwrap_or_default();
                    let last = status.last_schedule_time.map(|time| time.0);
                    world.children().retain(|child| child.ended_at.is_none() || child.scheduled_for > last);
                }
                _ => world.cron().spec.suspend = Some(seconds % 2 == 0),
            }
            made.extend(world.look_at(now));
        }
        let mut once = made.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), made.len(), "{:?}", made);
    }
}
