use serde_json::json;
use skyward_api::Task;

use super::*;

fn entry() -> Entry {
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": { "name": "t", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
                      "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "pool": "p", "command": ["true"], "placement": "All" },
    }))
    .unwrap();
    Entry::of(&task).unwrap()
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn place(slot: u32) -> SlotAttempt {
    SlotAttempt { slot, attempt: 1 }
}

fn failed(text: &str) -> Collected {
    Collected {
        reason: reason::NON_ZERO_EXIT,
        result: RunResult {
            reason: reason::NON_ZERO_EXIT.into(),
            exit_code: Some(1),
            message: text.repeat(400),
            log_tail: end_of(&text.repeat(4000), 2048).to_owned(),
            value: Some(json!(text.repeat(1200))),
            finished_at: Some(Time(time(172))),
            ..RunResult::default()
        },
    }
}

const COUNTS: Counts = Counts {
    attempt: 1,
    interruptions: 0,
    failures: 0,
    ignored: 0,
    cost: Usd::ZERO,
};

#[test]
fn ranges_join_neighbours() {
    for (numbers, text) in [
        (vec![], ""),
        (vec![3], "3"),
        (vec![0, 1, 2, 3, 5, 7, 8], "0-3,5,7-8"),
    ] {
        assert_eq!(ranges(&numbers), text);
    }
}

#[test]
fn a_placement_names_its_machines_and_the_processes_on_each() {
    let running = |places: &[SlotAttempt], machines: &[&str]| {
        let status = placed(&entry(), COUNTS, places, machines, time(1));
        assert_eq!(status.done, format!("0/{}", places.len()));
        condition::find(&status.conditions, condition::RUNNING)
            .unwrap()
            .message
            .clone()
    };
    assert_eq!(
        running(&[place(0)], &["p-0"]),
        "attempt 1 runs on machine \"p-0\""
    );
    assert_eq!(
        running(&[place(0), place(1)], &["p-0", "p-1"]),
        "attempt 1 runs on 2 machines, rank 0 on \"p-0\""
    );
    assert_eq!(
        running(
            &[place(0), place(0), place(1), place(1)],
            &["p-0", "p-0", "p-1", "p-1"]
        ),
        "attempt 1 runs on 2 machines, rank 0 on \"p-0\", in 2 processes on each"
    );
    assert_eq!(
        running(&[place(0), place(0)], &["p-0", "p-0"]),
        "attempt 1 runs on machine \"p-0\", in 2 processes on each"
    );
}

#[test]
fn durations_are_read_at_a_glance() {
    for (milliseconds, text) in [
        (250, "0.2s"),
        (59_999, "59.9s"),
        (72_000, "1m12s"),
        (3_661_000, "1h1m1s"),
    ] {
        let end = Timestamp::from_millisecond(milliseconds).unwrap();
        assert_eq!(in_words(Timestamp::UNIX_EPOCH, end), text);
    }
}

#[test]
fn the_worst_broadcast_stays_below_the_limit() {
    for text in ["\u{1}", "é", "\"", "x"] {
        let collected = failed(text);
        let ranks: Vec<Rank<'_>> = (0..500)
            .map(|slot| Rank {
                place: Some(SlotAttempt {
                    slot: 4_000_000_000 + slot,
                    attempt: 4_000_000_000,
                }),
                machine: "m",
                cost: None,
                collected: (slot % 2 == 0).then_some(&collected),
            })
            .collect();
        let status = ended(&entry(), COUNTS, &ranks, Some(time(100)), None, time(200));
        assert!(serde_json::to_vec(&status).unwrap().len() <= MAX, "{text:?}");
        assert_eq!(status.phase, Some(TaskPhase::Failed));
        assert_eq!(status.done, "250/500");
        assert_eq!(status.duration, "1m12s");
    }
}

#[test]
fn failed_results_are_shown_before_others() {
    let good = Collected {
        reason: reason::SUCCEEDED,
        result: RunResult {
            reason: reason::SUCCEEDED.into(),
            ..RunResult::default()
        },
    };
    let bad = failed("x");
    let ranks: Vec<Rank<'_>> = (0..12)
        .map(|slot| Rank {
            place: Some(place(slot)),
            machine: "m",
            cost: None,
            collected: Some(if slot == 11 { &bad } else { &good }),
        })
        .collect();
    let status = ended(&entry(), COUNTS, &ranks, Some(time(0)), None, time(1));
    assert_eq!(
        status.results.iter().map(|r| r.rank).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6, 11]
    );
    assert_eq!(status.succeeded_ranks, "0-10");
    assert_eq!(status.failed_ranks, "11");
    assert!(condition::is_true(&status.conditions, condition::FAILED));
    let message = &condition::find(&status.conditions, condition::FAILED)
        .unwrap()
        .message;
    assert!(
        message.starts_with("1 of 12 runs failed; rank 11 on \"m\""),
        "{message}"
    );
}

fn succeeded_at(second: i64) -> Collected {
    Collected {
        reason: reason::SUCCEEDED,
        result: RunResult {
            reason: reason::SUCCEEDED.into(),
            finished_at: Some(Time(time(second))),
            ..RunResult::default()
        },
    }
}

#[test]
fn a_task_ends_with_its_last_rank_also_where_its_status_does_not_show_that_one() {
    let (quick, slow) = (succeeded_at(110), succeeded_at(3700));
    let ranks: Vec<Rank<'_>> = (0..12)
        .map(|slot| Rank {
            place: Some(place(slot)),
            machine: "m",
            cost: None,
            collected: Some(if slot == 11 { &slow } else { &quick }),
        })
        .collect();
    let status = ended(&entry(), COUNTS, &ranks, Some(time(100)), None, time(3701));
    assert_eq!(status.finished_at, Some(Time(time(3700))));
    assert_eq!(status.duration, "1h0m0s");
    assert!(status.results.iter().all(|result| result.rank != 11));
}

#[test]
fn a_task_is_finished_at_either_end() {
    for (collected, reason) in [
        (succeeded_at(1), reason::SUCCEEDED),
        (failed("x"), reason::NON_ZERO_EXIT),
    ] {
        let rank = Rank {
            place: Some(place(0)),
            machine: "m",
            cost: None,
            collected: Some(&collected),
        };
        let status = ended(&entry(), COUNTS, &[rank], Some(time(0)), None, time(1));
        let finished = condition::find(&status.conditions, condition::FINISHED).unwrap();
        assert_eq!(
            (finished.status.as_str(), finished.reason.as_str()),
            ("True", reason)
        );
    }
}

#[test]
fn a_machine_whose_clock_is_wrong_neither_shortens_nor_lengthens_a_ttl() {
    for (said, finished, what) in [
        (150, 150, "it ended, and was collected a while later"),
        (5, 160, "before it was placed"),
        (7000, 160, "after now"),
    ] {
        let collected = succeeded_at(said);
        let rank = Rank {
            place: Some(place(0)),
            machine: "m",
            cost: None,
            collected: Some(&collected),
        };
        let status = ended(&entry(), COUNTS, &[rank], Some(time(100)), None, time(160));
        assert_eq!(status.finished_at, Some(Time(time(finished))), "{what}");
        assert_eq!(status.recorded_end(), Some(time(160)), "{what}");
    }
}

#[test]
fn an_end_that_was_written_by_hand_has_a_time_too() {
    let mut status = TaskStatus::default();
    assert_eq!(status.recorded_end(), None);
    let condition = NewCondition::new(condition::RUNNING, true, reason::STARTED, "it runs");
    status.conditions = condition::apply(&[], &[condition], None, time(10));
    assert_eq!(status.recorded_end(), Some(time(10)));
    status.finished_at = Some(Time(time(20)));
    assert_eq!(status.recorded_end(), Some(time(20)));
}

#[test]
fn a_null_inside_a_return_value_reaches_the_api_server() {
    let status = TaskStatus {
        results: vec![skyward_api::task::RunResult {
            value: Some(json!({"loss": null})),
            ..Default::default()
        }],
        ..TaskStatus::default()
    };
    let patch = patch("u", "7", &status);
    assert_eq!(patch[1]["value"], "7");
    assert_eq!(patch[2]["path"], "/status");
    assert_eq!(patch[2]["value"]["results"][0]["value"], json!({"loss": null}));
}

#[test]
fn a_wait_after_an_attempt_says_that_nothing_runs() {
    let why = Why::new(reason::RETRYING, "a machine was lost");
    let status = waiting(&entry(), COUNTS, &why, time(1));
    assert_eq!(status.phase, Some(TaskPhase::Pending));
    assert!(status.placed.is_empty());
    assert!(!condition::is_true(&status.conditions, condition::RUNNING));
    let held = waiting(
        &entry(),
        Counts::default(),
        &Why::new(reason::SUSPENDED, "held"),
        time(1),
    );
    assert_eq!(held.phase, Some(TaskPhase::Suspended));
    assert!(condition::is_true(&held.conditions, condition::SUSPENDED));
}

#[test]
fn what_a_task_costs_is_what_its_runs_cost_also_those_of_earlier_attempts() {
    let collected = succeeded_at(1);
    let rank = |cents| Rank {
        place: Some(place(0)),
        machine: "m",
        cost: Some(Usd::cents(cents)),
        collected: Some(&collected),
    };
    let counts = Counts {
        cost: Usd::cents(50),
        ..COUNTS
    };
    let status = ended(
        &entry(),
        counts,
        &[rank(25), rank(0)],
        Some(time(0)),
        None,
        time(1),
    );
    assert_eq!(status.cost, "0.75");
    let costs: Vec<&str> = status.results.iter().map(|result| result.cost.as_str()).collect();
    assert_eq!(costs, ["0.25", ""]);
}
