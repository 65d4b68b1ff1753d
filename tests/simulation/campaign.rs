//! Runs histories on every core: with one fault at each call, from seeds, and of an operator with a bug.
//!
//! A failure prints its whole story, and is kept as a file of the log folder (`SKYWARD_LOG_DIR`).
//! `SKYWARD_HISTORIES` and `SKYWARD_FIRST` choose how many seeds are tried and from which on, `SKYWARD_MINUTES`
//! for how long; `SKYWARD_SEED` names a round of `make soak`, and `SKYWARD_THIRD` (0, 1 or 2) the third of the campaign that a run of
//! hack/test.sh tells. `SKYWARD_HISTORY=<seed>` tells one history. A seed
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
use skyward_thirds::{is_told, third};

use crate::{
    branches::{self, Candidate, alone, each_call},
    calls::Luck,
    elastic::{elastic, scaling},
    histories::{calm, former_account, history, whole_job, with_fault},
    kinds::ALL,
    mapping::{mapped, mapping},
    order::{by_the_minute, chain},
    planted::{self, Fault},
    play::Play,
    time::{MINUTE, Moment, SECOND},
};

/// Histories of users, clouds and processes to whom anything may happen.
const HISTORIES: Seeds = Seeds {
    in_a_third: 340,
    in_a_round: 2_000,
};
/// Histories of users who scale.
const SCALING: Seeds = Seeds {
    in_a_third: 14,
    in_a_round: 400,
};
/// Histories of maps.
const MAPPING: Seeds = Seeds {
    in_a_third: 20,
    in_a_round: 400,
};
/// Seeds within which each planted fault is found from its first one on, and each of maps.
const UNTIL_FOUND: u64 = 3_000;
const UNTIL_FOUND_IN_MAPS: u64 = 400;
/// Most failures that are looked for.
const TOLD: usize = 5;

thread_local! {
    /// Panics of this thread: the controller survives its own, and a history must not have any.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// A campaign of histories from seeds: how many a third of an ordinary run and a round of `make soak` tell.
struct Seeds {
    in_a_third: u64,
    in_a_round: u64,
}

impl Seeds {
    /// The seeds of this run. Those of a round are told by no other round and by no ordinary run.
    fn of_this_run(&self) -> Range<u64> {
        let all = 3 * self.in_a_third;
        if let Some(seed) = number("SKYWARD_HISTORY") {
            return seed..seed + 1;
        }
        if let Some(round) = number("SKYWARD_SEED") {
            let first = all + round * self.in_a_round;
            return first..first + self.in_a_round;
        }
        third().map_or(0..all, |third| {
            third * self.in_a_third..(third + 1) * self.in_a_third
        })
    }
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
pub(crate) fn judge(run: impl FnOnce() -> Play) -> (Option<String>, Vec<String>) {
    count_panics();
    PANICS.set(0);
    let Ok(play) = catch_unwind(AssertUnwindSafe(run)) else {
        let what = "a panic of the simulation, see above";
        return (Some(what.to_owned()), Vec::new());
    };
    let mut truth = play.world.truth();
    let panicked = (PANICS.get() > 0).then(|| "a panic of the controller, see above".to_owned());
    let broken = truth.broken.first().cloned().or(panicked);
    let story = std::mem::take(&mut truth.trace);
    drop(truth);
    branches::end_of_child(broken.as_deref(), &story);
    (broken, story)
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

fn no_seed_fails(campaign: &Seeds, history: impl Fn(u64) -> Play + Sync) {
    if let Some(failure) = first_failure(campaign.of_this_run(), history) {
        println!("{}", failure.story.join("\n"));
        panic!(
            "seed {}: {}; kept in {}",
            failure.number,
            failure.what,
            keep(&failure).display()
        );
    }
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

/// Whether this may befall the call. A call that only reads changes nothing, so a process that dies beside one
/// dies between two calls that may change something. And to die before a call is to die after the one before it, unless
/// something may have happened in between: a call takes milliseconds.
fn may_befall(luck: Luck, call: Candidate) -> bool {
    match luck {
        Luck::DiesBefore => call.changes && !(0..SECOND / 10).contains(&call.after),
        Luck::DiesAfter => call.changes,
        _ => true,
    }
}

const STANDS_STILL: Luck = Luck::StandsStill(3 * MINUTE);

/// A Pool's whole life at each kind of cloud, with this fault at each of its calls. A third has it at every third call, which
/// for the next kind is the call before: the thirds of three kinds are all calls.
fn a_life_with(luck: Luck) {
    alone(|| {
        for (kind, named) in ALL.iter().enumerate() {
            let faults = move |call: Candidate| {
                let befalls = is_told(call.number + kind as u64) && may_befall(luck, call);
                befalls.then_some(luck).into_iter().collect()
            };
            let told = each_call(named.name(), || calm(kind, None), faults);
            println!("{}: told with {told} faults", named.name());
        }
    });
}

#[test]
fn a_process_may_die_before_any_of_its_calls() {
    a_life_with(Luck::DiesBefore);
}

#[test]
fn a_process_may_die_after_any_of_its_calls() {
    a_life_with(Luck::DiesAfter);
}

#[test]
fn the_answer_of_any_call_may_be_lost() {
    a_life_with(Luck::LostAfter);
}

#[test]
fn a_process_may_stand_still_before_any_of_its_calls_while_another_one_leads() {
    a_life_with(STANDS_STILL);
}

#[test]
fn a_bug_that_only_a_fault_shows_is_found_by_the_child_with_that_fault() {
    alone(|| {
        let story = || calm(0, Some(Fault::FenceIgnored));
        let told = || each_call("ignores the fence", story, |_| vec![STANDS_STILL]);
        let said = catch_unwind(told).expect_err("it is found");
        let said = said.downcast_ref::<String>().expect("a message");
        assert!(
            said.contains("broken with [(") && said.contains("StandsStill"),
            "{said}"
        );
    });
}

/// Of the calls of a longer story one in so many has a fault.
const ONE_IN: u64 = 9;

/// Tells a longer story without a fault, and then with one at one in [`ONE_IN`] of its calls.
fn whatever_befalls_a_call(name: &str, story: fn() -> Play) {
    alone(|| {
        let told = each_call(name, story, |call| {
            let lucks = [Luck::DiesBefore, Luck::DiesAfter, Luck::LostAfter, STANDS_STILL];
            let nth = (call.number - 1) / ONE_IN;
            if (call.number - 1).is_multiple_of(ONE_IN) {
                vec![lucks[nth as usize % lucks.len()]]
            } else {
                Vec::new()
            }
        });
        println!("{name}: told with {told} faults");
    });
}

#[test]
fn a_pool_grows_shrinks_sleeps_and_wakes_at_each_kind_of_cloud() {
    let kinds = 0..ALL.len() as u64;
    if let Some(failure) = first_failure(kinds, |kind| elastic(kind as usize)) {
        panic!("{}:\n{}", failure.what, failure.story.join("\n"));
    }
}

#[test]
fn a_pool_grows_shrinks_sleeps_and_wakes_whatever_befalls_one_of_its_calls() {
    whatever_befalls_a_call("a Pool that grows", || elastic(0));
}

#[test]
fn tasks_of_a_chain_run_one_after_the_other_whatever_befalls_one_of_its_calls() {
    whatever_befalls_a_call("a chain", chain);
}

#[test]
fn a_minute_has_its_task_once_whatever_befalls_one_of_its_calls() {
    whatever_befalls_a_call("a CronTask", by_the_minute);
}

#[test]
fn each_item_of_a_map_has_one_outcome_whatever_befalls_one_of_its_calls() {
    whatever_befalls_a_call("a map", mapped);
}

#[test]
fn no_item_of_a_map_is_lost_or_runs_twice_whatever_happens() {
    no_seed_fails(&MAPPING, |seed| mapping(seed, None));
}

#[test]
fn pools_that_grow_order_machines_for_work_alone_and_end_none_that_is_needed_whatever_happens() {
    no_seed_fails(&SCALING, scaling);
}

#[test]
fn the_pool_of_one_task_is_made_once_and_goes_with_it_whatever_befalls_any_call() {
    alone(|| {
        let told = each_call(
            "a whole job",
            || whole_job(0, None),
            |call| {
                let lucks = [
                    Luck::DiesBefore,
                    Luck::DiesAfter,
                    Luck::LostBefore,
                    Luck::LostAfter,
                    STANDS_STILL,
                ];
                let befalls = |luck: &Luck| is_told(call.number) && may_befall(*luck, call);
                lucks.into_iter().filter(befalls).collect()
            },
        );
        println!("a whole job: told with {told} faults");
    });
}

#[test]
fn nothing_is_left_of_a_task_that_is_deleted_while_its_pool_is_being_made() {
    let moments: [Moment; 8] = [
        0,
        50,
        200,
        SECOND,
        2 * SECOND,
        5 * SECOND,
        20 * SECOND,
        60 * SECOND,
    ];
    // A third has each kind and each moment, and the next kind at the moment before.
    let cases = (0..ALL.len()).flat_map(|kind| (0..moments.len()).map(move |nth| (kind, nth)));
    let cases: Vec<_> = cases.filter(|(kind, nth)| is_told((kind + nth) as u64)).collect();
    let failure = first_failure(0..cases.len() as u64, |number| {
        let (kind, nth) = cases[number as usize];
        whole_job(kind, Some(moments[nth]))
    });
    if let Some(failure) = failure {
        panic!("{}:\n{}", failure.what, failure.story.join("\n"));
    }
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
    let seeds = HISTORIES.of_this_run();
    let first = number("SKYWARD_FIRST").unwrap_or(seeds.start);
    let count = minutes.map_or(seeds.end - seeds.start, |_| u64::MAX - first);
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
        let first = fault.first_seed();
        match first_failure(first..first + UNTIL_FOUND, |seed| with_fault(seed, Some(fault))) {
            Some(found) => println!("{fault:?}: seed {}: {}", found.number, found.what),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn each_planted_fault_of_maps_is_found() {
    let mut missed = Vec::new();
    for fault in planted::OF_MAPS {
        match first_failure(0..UNTIL_FOUND_IN_MAPS, |seed| mapping(seed, Some(fault))) {
            Some(found) => println!("{fault:?}: seed {}: {}", found.number, found.what),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
