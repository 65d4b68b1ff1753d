//! Runs histories on every core: with one fault at each call, from seeds, and of an operator with a bug.
//!
//! A failure prints its whole story, and is kept as a file of the log folder (`SKYWARD_LOG_DIR`).
//! `SKYWARD_HISTORIES` and `SKYWARD_FIRST` choose how many seeds are tried and from which on, `SKYWARD_MINUTES`
//! for how long; `SKYWARD_SEED` names a round of `make soak`. `SKYWARD_HISTORY=<seed>` tells one history. A seed
//! fixes the world, its users, the luck of each call, and pauses after failures; it does not fix in which order
//! a process polls its tasks, so a history that failed may need some tries until it fails again.

use std::{
    cell::Cell,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    calls::Luck,
    histories::{calm, former_account, history, with_fault},
    kinds::ALL,
    planted,
    play::Play,
    time::MINUTE,
};

/// Histories of an ordinary run.
const HISTORIES: u64 = 10_000;
/// Histories of a round of `make soak`.
const IN_A_ROUND: u64 = 2_000;
/// Seeds within which each planted fault is found.
const UNTIL_FOUND: u64 = 3_000;
/// Most failures that are looked for.
const TOLD: usize = 5;

thread_local! {
    /// Panics of this thread: the controller survives its own, and a history must not have any.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// A history that broke a rule.
struct Failure {
    number: u64,
    what: String,
    story: Vec<String>,
}

/// What came of many histories.
struct Outcome {
    told: u64,
    failures: Vec<Failure>,
}

/// The first rule that a history breaks, and what happened in it.
fn judge(run: impl FnOnce() -> Play) -> (Option<String>, Vec<String>) {
    PANICS.set(0);
    let Ok(play) = catch_unwind(AssertUnwindSafe(run)) else {
        let what = "a panic of the simulation, see above";
        return (Some(what.to_owned()), Vec::new());
    };
    let mut truth = play.world.truth();
    let panicked = (PANICS.get() > 0).then(|| "a panic of the controller, see above".to_owned());
    let broken = truth.broken.first().cloned().or(panicked);
    (broken, std::mem::take(&mut truth.trace))
}

/// Counts the panics of each thread from now on.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
}

/// Tells the histories of these numbers on every core, until enough have failed or the time is over.
fn tell(
    numbers: Range<u64>,
    enough: usize,
    time: Option<Duration>,
    run: impl Fn(u64) -> Play + Sync,
) -> Outcome {
    count_panics();
    let until = time.map(|time| Instant::now() + time);
    let (next, failed, told) = (
        AtomicU64::new(numbers.start),
        AtomicUsize::new(0),
        AtomicU64::new(0),
    );
    let failures = Mutex::new(Vec::new());
    let work = || {
        while failed.load(Ordering::Relaxed) < enough && until.is_none_or(|until| Instant::now() < until) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            told.fetch_add(1, Ordering::Relaxed);
            if let (Some(what), story) = judge(|| run(number)) {
                failed.fetch_add(1, Ordering::Relaxed);
                failures.lock().push(Failure { number, what, story });
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    Outcome {
        told: told.into_inner(),
        failures: failures.into_inner(),
    }
}

fn first_failure(numbers: Range<u64>, run: impl Fn(u64) -> Play + Sync) -> Option<Failure> {
    tell(numbers, 1, None, run).failures.pop()
}

/// Keeps the story of a seed that failed; answers where.
fn keep(failure: &Failure) -> PathBuf {
    let folder = std::env::var_os("SKYWARD_LOG_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("simulation-seed-{}.txt", failure.number));
    let story = format!(
        "seed {}: {}\n{}\n",
        failure.number,
        failure.what,
        failure.story.join("\n")
    );
    // A folder that cannot be written hides no failure: it is printed, too.
    let _kept = std::fs::write(&path, story);
    path
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_pool_gets_its_machines_and_gives_them_back() {
    let kinds = 0..ALL.len() as u64;
    if let Some(failure) = first_failure(kinds, |kind| calm(kind as usize, None)) {
        panic!("{}:\n{}", failure.what, failure.story.join("\n"));
    }
}

fn one_at_each_call(luck: Luck) {
    for (kind, named) in ALL.iter().enumerate() {
        let calls = calm(kind, None).world.truth().calls;
        let failure = first_failure(1..calls + 1, |call| calm(kind, Some((call, luck))));
        if let Some(failure) = failure {
            let story = failure.story.join("\n");
            panic!(
                "{}, call {} with {luck:?}: {}\n{story}",
                named.name(),
                failure.number,
                failure.what
            );
        }
        println!("{}: {luck:?} at each of {calls} calls", named.name());
    }
}

#[test]
fn a_process_may_die_before_any_of_its_calls() {
    one_at_each_call(Luck::DiesBefore);
}

#[test]
fn a_process_may_die_after_any_of_its_calls() {
    one_at_each_call(Luck::DiesAfter);
}

#[test]
fn the_answer_of_any_call_may_be_lost() {
    one_at_each_call(Luck::LostAfter);
}

#[test]
fn a_process_may_stand_still_before_any_of_its_calls_while_another_one_leads() {
    one_at_each_call(Luck::StandsStill(3 * MINUTE));
}

#[test]
fn a_key_at_a_former_account_is_returned_when_its_credentials_come_back() {
    let (broken, story) = judge(former_account);
    assert_eq!(broken, None, "{}", story.join("\n"));
}

#[test]
fn whatever_happens_nothing_leaks_and_nothing_is_doubled() {
    if let Some(seed) = number("SKYWARD_HISTORY") {
        let (broken, story) = judge(|| history(seed));
        println!("{}", story.join("\n"));
        assert_eq!(broken, None);
        return;
    }
    let minutes = number("SKYWARD_MINUTES");
    let round = number("SKYWARD_SEED").map(|round| HISTORIES + round * IN_A_ROUND);
    let first = number("SKYWARD_FIRST").or(round).unwrap_or(0);
    let count = match (minutes, round) {
        (Some(_), _) => u64::MAX - first,
        (None, Some(_)) => IN_A_ROUND,
        (None, None) => HISTORIES,
    };
    let count = number("SKYWARD_HISTORIES").unwrap_or(count);
    let time = minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let outcome = tell(first..first + count, TOLD, time, history);
    println!("{} histories were told, from seed {first} on", outcome.told);
    let Some(failure) = outcome.failures.first() else {
        return;
    };
    println!("{}", failure.story.join("\n"));
    for failure in &outcome.failures {
        let kept = keep(failure);
        println!(
            "seed {}: {}; kept in {}",
            failure.number,
            failure.what,
            kept.display()
        );
        println!(
            "    again: SKYWARD_HISTORY={} cargo test --workspace --lib whatever_happens_nothing_leaks_and -- --nocapture",
            failure.number
        );
    }
    panic!("{} seeds broke a rule", outcome.failures.len());
}

#[test]
fn a_restore_is_noticed_in_many_histories() {
    let decided = |seed: &u64| history(*seed).world.was_decided();
    let restores = (0..640).filter(|seed| seed % 16 == 15);
    assert!(restores.filter(decided).count() > 5);
}

#[test]
fn each_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in planted::ALL {
        match first_failure(0..UNTIL_FOUND, |seed| with_fault(seed, Some(fault))) {
            Some(found) => println!("{fault:?}: seed {}: {}", found.number, found.what),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
