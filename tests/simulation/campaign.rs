//! Histories with one fault at each call, and histories from seeds.
//!
//! A failure prints its whole story. `SKYWARD_HISTORIES` and `SKYWARD_FIRST` choose how many seeds are tried
//! and from which on; `SKYWARD_HISTORY=<seed>` tells one of them. A seed fixes the world, its users and the
//! luck of each call. Where the controller itself lets chance decide (which of two branches that are ready
//! runs first, jitter after a failure), a seed may tell another history when it is told again.

use std::{
    cell::Cell,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rand::Rng;

use crate::{
    calls::Luck,
    kinds::ALL,
    play::Play,
    time::{HOUR, SECOND},
    world::{Odds, TEAM, World, one_of},
};

/// Histories of an ordinary run.
const HISTORIES: u64 = 100;
/// Until each sweep has seen everything twice.
const ALL_SWEEPS: i64 = 1_400 * SECOND;

thread_local! {
    /// Panics of this thread: the controller survives its own, and a history must not have any.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// A Pool of two at a cloud of that kind gets its machines and gives them back; all that goes wrong is
/// this fault, at the call of that number.
fn calm(kind: usize, fault: Option<(u64, Luck)>) -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.truth().fault = fault;
    play.world.add_provider("a", ALL[kind]);
    play.world.truth().add_stranger("a-1");
    play.add_pool("x", &["a"], 2);
    play.settle(0, HOUR / 2, World::unrest);
    if play.is_broken() {
        return play;
    }
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, HOUR, |world| world.remains(&accounts));
    play.world.meter_agrees();
    play
}

/// The history of a seed.
fn history(seed: u64) -> Play {
    let mut play = Play::new(seed, Play::some_odds);
    let kind = ALL[play.random.random_range(0..ALL.len())];
    play.world.add_provider("a", kind);
    let mut providers = vec!["a"];
    if play.random.random_ratio(1, 4) {
        let kind = ALL[play.random.random_range(0..ALL.len())];
        play.world.add_provider("b", kind);
        providers.push("b");
    }
    play.world.truth().add_stranger("a-1");
    let pools = one_of(&mut play.random, &["x", "x", "xy"]).chars();
    for pool in pools {
        let desired = play.random.random_range(1..3);
        play.add_pool(&pool.to_string(), &providers, desired);
    }
    let steps = play.random.random_range(5..20);
    play.turbulence(steps);
    if play.is_broken() {
        return play;
    }
    play.put_right();
    play.settle(0, 4 * HOUR, World::unrest);
    if play.is_broken() {
        return play;
    }
    play.delete_all("pools", TEAM);
    play.turbulence(3);
    play.put_right();
    play.settle(0, 2 * HOUR, |world| world.remains(&world.accounts_in_use()));
    if play.is_broken() {
        return play;
    }
    // Orphans at former accounts are found there.
    play.other_accounts();
    play.settle(0, 2 * ALL_SWEEPS, World::orphans);
    play.world.meter_agrees();
    play
}

/// A history that broke a rule.
struct Failure {
    number: u64,
    what: String,
    story: Vec<String>,
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

/// Runs the histories of these numbers on every core, until one fails.
fn first_failure(numbers: Range<u64>, run: impl Fn(u64) -> Play + Sync) -> Option<Failure> {
    count_panics();
    let (next, enough) = (AtomicU64::new(numbers.start), AtomicBool::new(false));
    let failed = Mutex::new(None);
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            if let (Some(what), story) = judge(|| run(number)) {
                enough.store(true, Ordering::Relaxed);
                *failed.lock() = Some(Failure { number, what, story });
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    failed.into_inner()
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
    }
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
fn whatever_happens_nothing_leaks_and_nothing_is_doubled() {
    if let Some(seed) = number("SKYWARD_HISTORY") {
        let (broken, story) = judge(|| history(seed));
        println!("{}", story.join("\n"));
        assert_eq!(broken, None);
        return;
    }
    let first = number("SKYWARD_FIRST").unwrap_or(0);
    let histories = number("SKYWARD_HISTORIES").unwrap_or(HISTORIES);
    if let Some(failure) = first_failure(first..first + histories, history) {
        let story = failure.story.join("\n");
        panic!("{story}\nseed {}: {}", failure.number, failure.what);
    }
}
