//! A history from a seed, and many of them.
//!
//! `SKYWARD_HISTORY=<seed> cargo test -p skyward-simulation -- --nocapture` tells one history.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rand::Rng;

use crate::{
    kinds::ALL,
    play::Play,
    time::{HOUR, MINUTE, SECOND},
    world::{Odds, TEAM, World, one_of},
};

/// Histories of an ordinary run.
const HISTORIES: u64 = 200;
/// Most failures that are printed.
const TOLD: usize = 5;
/// Machines that lived so long have a bill that is compared.
const LONG: i64 = 5 * MINUTE;
/// Until each sweep has seen everything twice.
const ALL_SWEEPS: i64 = 1_400 * SECOND;

thread_local! {
    /// Panics of this thread: the controller survives its own, and a history must not have any.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// A healthy world: a Pool of two gets its machines, and gives them back.
fn healthy(seed: u64) -> Play {
    dies_once(seed, None)
}

/// A world whose only fault is one death of the process, at that boundary of its calls.
fn dies_once(seed: u64, at: Option<u64>) -> Play {
    let mut play = Play::new(seed, |_| Odds::default());
    play.world.truth().crash_at = at;
    let kind = ALL[usize::try_from(seed).unwrap_or(0) % ALL.len()];
    play.world.add_provider("a", kind);
    play.add_pool("x", &["a"], 2);
    play.settle(0, HOUR / 2, World::unrest);
    give_back(&mut play);
    play
}

/// The Pools go, and with them everything that is of them.
fn give_back(play: &mut Play) {
    if play.is_broken() {
        return;
    }
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, HOUR, |world| world.remains(&accounts));
}

/// Runs one history.
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
    let accounts = play.world.accounts_in_use();
    play.settle(0, 2 * HOUR, |world| world.remains(&accounts));
    if play.is_broken() {
        return play;
    }
    // Orphans at former accounts are found there.
    play.other_accounts();
    let all = play.world.truth().clouds.keys().cloned().collect();
    play.settle(0, 2 * ALL_SWEEPS, |world| world.remains(&all));
    play.world.meter_agrees(LONG);
    play
}

/// The first rule that a history breaks, in words, and its story.
fn judge(run: impl FnOnce() -> Play) -> (Option<String>, Vec<String>) {
    PANICS.set(0);
    let Ok(play) = catch_unwind(AssertUnwindSafe(run)) else {
        return (
            Some("a panic of the simulation, see above".to_owned()),
            Vec::new(),
        );
    };
    let truth = play.world.truth();
    let panicked = (PANICS.get() > 0).then(|| "a panic of the controller, see above".to_owned());
    (truth.broken.first().cloned().or(panicked), truth.trace.clone())
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

/// Runs these seeds on every core.
fn run(seeds: std::ops::Range<u64>) -> Vec<(u64, String)> {
    count_panics();
    let (next, enough) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let failed = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || enough.load(Ordering::Relaxed) {
                        return;
                    }
                    if let (Some(what), _) = judge(|| history(seed)) {
                        let mut failed = failed.lock();
                        failed.push((seed, what));
                        enough.store(failed.len() >= TOLD, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failed.into_inner()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_pool_gets_its_machines_and_gives_them_back() {
    count_panics();
    for seed in 0..5 {
        let (broken, story) = judge(|| healthy(seed));
        assert_eq!(broken, None, "{}", story.join("\n"));
    }
}

#[test]
#[ignore = "not yet judged: some of its histories break rules, and it is not known whether the operator does"]
fn whatever_happens_nothing_leaks_and_nothing_is_doubled() {
    if let Some(seed) = number("SKYWARD_HISTORY") {
        let (broken, story) = judge(|| history(seed));
        println!("{}", story.join("\n"));
        assert_eq!(broken, None);
        return;
    }
    let first = number("SKYWARD_FIRST").unwrap_or(0);
    let histories = number("SKYWARD_HISTORIES").unwrap_or(HISTORIES);
    let failed = run(first..first + histories);
    for (seed, what) in &failed {
        println!(
            "seed {seed}: {what}\n    again: SKYWARD_HISTORY={seed} cargo test -p skyward-simulation -- --ignored --nocapture"
        );
    }
    assert!(failed.is_empty(), "{} seeds broke a rule", failed.len());
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let (_, first) = judge(|| healthy(1));
    let (_, second) = judge(|| healthy(1));
    assert_eq!(first, second);
}
