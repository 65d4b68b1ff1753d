use skyward_api::task::RunResult;

use super::*;

fn marks(lines: &[&str]) -> Vec<Mark> {
    lines.iter().map(|line| line.parse().expect("a mark")).collect()
}

/// A Task of one rank that returned 5 in that attempt.
fn returned(attempt: u32) -> Job {
    let status = TaskStatus {
        phase: Some(TaskPhase::Succeeded),
        reason: "Succeeded".to_owned(),
        attempt,
        restarts: attempt - 1,
        interruptions: attempt - 1,
        results: vec![RunResult {
            machine: "m1".to_owned(),
            value: Some(5.into()),
            ..RunResult::default()
        }],
        ..TaskStatus::default()
    };
    Job {
        name: "t".to_owned(),
        ranks: 1,
        retries: 3,
        expected: Expected::Values(vec![5.into()]),
        ended: Some((status.clone(), 9)),
        last: Some(status),
    }
}

fn failed(reason: &str, interruptions: u32) -> Job {
    let mut job = returned(1);
    let (status, _) = job.ended.as_mut().expect("it ended");
    status.phase = Some(TaskPhase::Failed);
    reason.clone_into(&mut status.reason);
    status.interruptions = interruptions;
    reason.clone_into(&mut status.results[0].reason);
    job.last = Some(status.clone());
    job
}

fn hit(what: Happening, machine: &str) -> Vec<Carried> {
    let machine = Some(machine.to_owned());
    vec![Carried { what, machine }]
}

fn problem(job: Job, lines: &[&str], carried: &[Carried]) -> String {
    broken(&[job], &marks(lines), carried).join("; ")
}

const ONCE: [&str; 2] = ["begin t 1 0 m1", "end t 1 0 m1"];
const AGAIN: [&str; 3] = ["begin t 1 0 m1", "begin t 2 0 m1", "end t 2 0 m1"];
const WATCHERS: Happening = Happening::Killed(Process::Watchers);

#[test]
fn a_task_that_ran_once_and_a_task_that_was_interrupted_break_no_rule() {
    assert_eq!(problem(returned(1), &ONCE, &[]), "");
    assert_eq!(problem(returned(2), &AGAIN, &hit(Happening::PowerLost, "m1")), "");
    // The first attempt had not begun.
    assert_eq!(problem(returned(2), &AGAIN[1..], &hit(WATCHERS, "m2")), "");
}

#[test]
fn a_run_that_began_twice_is_found() {
    let lines = [ONCE[0], ONCE[0], ONCE[1]];
    assert_eq!(
        problem(returned(1), &lines, &[]),
        "t: rank 0 of attempt 1 began 2 times"
    );
}

#[test]
fn an_attempt_without_a_reason_is_found() {
    let told = problem(returned(2), &AGAIN, &[]);
    assert!(told.contains("although only 0 happenings interrupt"), "{told}");
    let told = problem(returned(2), &AGAIN, &hit(Happening::PodDeleted, "m7"));
    assert!(told.contains("its machine was not hit"), "{told}");
    let told = problem(returned(2), &AGAIN, &hit(Happening::LinkCut, "m1"));
    assert!(told.contains("although only 0 happenings interrupt"), "{told}");
}

#[test]
fn two_attempts_at_once_are_found() {
    let lines = [AGAIN[0], AGAIN[1], "end t 1 0 m1", AGAIN[2]];
    let told = problem(returned(2), &lines, &hit(Happening::PowerLost, "m1"));
    assert!(told.contains("while attempt 2 ran already"), "{told}");
}

#[test]
fn a_run_after_the_end_and_a_run_of_no_attempt_are_found() {
    let mut job = returned(2);
    if let Some((_, seen_at)) = &mut job.ended {
        *seen_at = 1;
    }
    let told = problem(job, &AGAIN, &hit(Happening::PowerLost, "m1"));
    assert!(told.contains("came after its end"), "{told}");
    let told = problem(returned(1), &[ONCE[0], ONCE[1], "begin t 2 0 m1"], &[]);
    assert!(told.contains("is of no attempt on record"), "{told}");
}

#[test]
fn a_task_without_end_and_a_task_that_changes_after_its_end_are_found() {
    let stuck = Job {
        ended: None,
        ..returned(1)
    };
    assert_eq!(problem(stuck, &ONCE, &[]), "t: it never ended");
    let changed = Job {
        last: Some(TaskStatus::default()),
        ..returned(1)
    };
    assert!(problem(changed, &ONCE, &[]).contains("it changed after its end"));
}

#[test]
fn a_wrong_result_and_a_result_of_work_that_never_ran_are_found() {
    let wrong = Job {
        expected: Expected::Values(vec![6.into()]),
        ..returned(1)
    };
    assert!(problem(wrong, &ONCE, &[]).contains("its end is not"));
    let told = problem(returned(1), &[], &[]);
    assert!(told.contains("no Begin of rank 0"), "{told}");
}

#[test]
fn failures_are_excused_only_by_what_happened() {
    let killed = hit(WATCHERS, "m1");
    assert_eq!(problem(failed("WatcherKilled", 0), &ONCE[..1], &killed), "");
    let elsewhere = hit(WATCHERS, "m2");
    assert_ne!(problem(failed("WatcherKilled", 0), &ONCE[..1], &elsewhere), "");
    let full = hit(Happening::DiskFilled, "m1");
    assert_eq!(problem(failed("DiskFull", 0), &ONCE[..1], &full), "");
    let elsewhere = hit(Happening::DiskFilled, "m2");
    assert_ne!(problem(failed("DiskFull", 0), &ONCE[..1], &elsewhere), "");
    let none_left = Job {
        retries: 0,
        ..failed("Interrupted", 1)
    };
    assert_eq!(
        problem(none_left, &ONCE[..1], &hit(Happening::PodDeleted, "m1")),
        ""
    );
    let some_left = problem(failed("Interrupted", 1), &ONCE[..1], &killed);
    assert_ne!(some_left, "", "the Task has retries left");
}
