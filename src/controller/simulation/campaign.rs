//! A history from a seed, and thousands of them.
//!
//! `cargo test -p skyward-controller simulation` runs [`HISTORIES`]; `make soak` as many
//! again with each round's seed. `SKYWARD_HISTORY=<seed>` tells one of them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rand::Rng;
use skyward_remote::sessions::Stage;

use super::{
    kinds::{ALL, Kind},
    planted::Fault,
    rules::Want,
    server::Server,
    world::{Odds, World},
};

/// Histories of an ordinary run.
const HISTORIES: u64 = 10_000;
/// Histories of a round of `make soak`: twenty rounds are a million.
const IN_A_ROUND: u64 = 50_000;
/// Most failures that are printed.
const TOLD: usize = 5;
/// Seeds of histories that once broke a rule, with what it was.
const KEPT: &[(u64, &str)] = &[
    (
        228,
        "a Provider went before what its Pools shared there was returned",
    ),
    (
        26_603,
        "a list that lagged showed an earlier machine of the mark, and it was taken for the new one",
    ),
    (33_312, "the same, after the machine of before had vanished"),
    (
        35_042,
        "a list that lagged did not show a machine, and it was deleted under its runs",
    ),
];

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// Until each sweep has seen everything twice.
const ALL_SWEEPS: i64 = 1_400;

impl World {
    /// A while in which anything may happen.
    pub(super) fn turbulence(&mut self, steps: u32) {
        self.calm = false;
        for _ in 0..steps {
            if !self.broken.is_empty() {
                return;
            }
            let next = self.next_event();
            self.now = match next {
                Some(next) if self.random.random_bool(0.5) => next.min(self.now + 120),
                _ => self.now + self.random.random_range(0..20),
            };
            self.happen();
            self.perhaps_catch_up();
            self.connect();
            self.dispatch();
            self.work();
        }
    }

    /// A calm without faults until nothing changes, for at least `least` and at most `most`
    /// seconds.
    pub(super) fn calm_down(&mut self, least: i64, most: i64) {
        self.calm = true;
        self.change();
        let (least, end) = (self.now + least, self.now + most);
        for _ in 0..6_000 {
            self.catch_up();
            self.connect();
            self.dispatch();
            self.work();
            self.catch_up();
            let now = self.now;
            if self.process.due.values().any(|at| *at <= now) {
                continue;
            }
            // A machine that is not connected is waited for until it is given up.
            let is_connected = |name: &String| {
                let session = self.process.sessions.get(name);
                session.is_some_and(|session| session.state.stage == Stage::Ready)
            };
            let all_are = self.server.machines.0.keys().all(is_connected);
            let patience = if all_are { 200 } else { 700 };
            let Some(next) = self.next_event() else { return };
            self.now = if now < least || now - self.changed_at < patience {
                next
            } else {
                // Nothing moves; a long wait may be due.
                let waits = self.process.due.iter();
                let waits = waits.filter(|(work, at)| !work.is_periodic() && **at > now + 60);
                match waits.map(|(_, at)| *at).min() {
                    Some(at) => at,
                    None => return,
                }
            };
            if self.now > end {
                self.now = end;
                return;
            }
        }
        self.rule(false, || "it never comes to rest".to_owned());
    }

    /// Undoes what chance did, but for `want`.
    pub(super) fn put_right(&mut self, want: Want) {
        self.sell_out(want == Want::Stock);
        self.limit(None);
        for name in self.server.pools.names() {
            self.change_pool(&name, |spec| {
                spec.suspend = None;
                spec.budget = None;
                if want == Want::Money {
                    let budget = serde_json::json!({ "maxTotalCost": "0.01" });
                    spec.budget = serde_json::from_value(budget).ok();
                }
            });
        }
        for name in self.server.providers.names() {
            let kind = self.kind_of(&name);
            self.give_regions(&name, kind.regions);
            for account in [format!("{name}-1"), format!("{name}-2")] {
                if let Some(cloud) = self.clouds.get_mut(&account) {
                    cloud.revoked = false;
                }
            }
            // The credentials of the account where the machines are.
            let known = self
                .server
                .providers
                .get(&name)
                .and_then(|provider| provider.status.clone());
            let known = known
                .map(|status| status.account)
                .filter(|account| !account.is_empty());
            self.give_credentials(&name, &known.unwrap_or_else(|| format!("{name}-1")));
        }
    }

    fn delete_providers(&mut self) {
        let now = self.time();
        let Server {
            providers, version, ..
        } = &mut self.server;
        for name in providers.names() {
            providers.delete(version, &name, None, now);
        }
        self.tell(|| "all Providers are deleted".to_owned());
        self.change();
    }

    fn no_provider_is_left(&mut self) {
        let left = self.server.providers.names();
        self.rule(left.is_empty(), || format!("Providers are left: {left:?}"));
    }

    fn other_accounts(&mut self) {
        for name in self.server.providers.names() {
            let now = self.secrets[&name].account.clone();
            let other = if now.ends_with('1') {
                format!("{name}-2")
            } else {
                format!("{name}-1")
            };
            self.give_credentials(&name, &other);
        }
    }
}

/// Runs one history; the world has the rules that it broke.
fn history(seed: u64, tells: bool) -> World {
    tell(World::new(seed, tells))
}

/// The rules that an operator with that bug breaks in the history of a seed.
pub(super) fn with_fault(seed: u64, fault: Option<Fault>) -> Vec<String> {
    let mut world = World::new(seed, false);
    world.planted = fault;
    tell(world).broken
}

fn tell(mut world: World) -> World {
    let kind = world.some_kind();
    world.add_provider("a", kind);
    let mut providers = vec!["a"];
    if world.random.random_ratio(1, 4) {
        let kind = world.some_kind();
        world.add_provider("b", kind);
        providers.push("b");
    }
    let pools = world.one_of(&["x", "xy", "xyz"][..]).chars();
    for pool in pools {
        let desired = world.random.random_range(1..3);
        world.add_pool(&pool.to_string(), &providers, desired);
    }
    world.begin();
    let steps = world.random.random_range(10..40);
    world.turbulence(steps);
    let want = world.one_of(&[
        Want::Nothing,
        Want::Nothing,
        Want::Stock,
        Want::Room,
        Want::Credentials,
        Want::Money,
    ]);
    if want != Want::Nothing && world.broken.is_empty() {
        run_short(&mut world, want);
    }
    finish(&mut world);
    world
}

/// Makes something unavailable; the Pools must name it.
fn run_short(world: &mut World, want: Want) {
    world.put_right(want);
    match want {
        Want::Room => world.limit(Some(1)),
        Want::Credentials => world.other_accounts(),
        Want::Nothing | Want::Stock | Want::Money => {}
    }
    if want == Want::Credentials && world.random.random_bool(0.5) {
        world.begin();
    }
    world.calm_down(0, HOUR / 2);
    if world.broken.is_empty() {
        world.at_rest(want);
    }
}

/// Everything is available again; then the Pools go, and the Providers.
fn finish(world: &mut World) {
    let ends: [fn(&mut World); 4] = [
        |world| {
            world.put_right(Want::Nothing);
            world.calm_down(0, 4 * HOUR);
            world.at_rest(Want::Nothing);
        },
        |world| {
            // A day passes, or the next steps meet faults.
            let day = world.random.random_ratio(1, 8);
            world.now += if day { DAY } else { 0 };
            world.delete_pools();
            world.turbulence(if day { 0 } else { 12 });
        },
        |world| {
            world.put_right(Want::Nothing);
            world.calm_down(ALL_SWEEPS, 2 * HOUR);
            world.at_rest(Want::Nothing);
            // Orphans at former accounts are found there.
            world.other_accounts();
            world.calm_down(ALL_SWEEPS, 2 * HOUR);
            world.nothing_is_left();
            world.at_rest(Want::Nothing);
            world.meter_agrees(DAY);
        },
        |world| {
            world.delete_providers();
            world.calm_down(0, HOUR);
            world.no_provider_is_left();
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        if !world.broken.is_empty() {
            return;
        }
        if number == 1 && world.torn.is_empty() && world.random.random_ratio(1, 4) {
            return all_at_once(world);
        }
        end(world);
    }
}

/// Pools and Providers go together, as a GitOps tool deletes them: in no helpful order. Orphans at
/// former accounts cannot be found then.
fn all_at_once(world: &mut World) {
    world.delete_pools();
    world.delete_providers();
    world.calm_down(0, HOUR);
    world.no_provider_is_left();
    let accounts = world.secrets.values().map(|secret| secret.account.clone());
    world.nothing_is_left_at(&accounts.collect());
}

/// The rules that a seed breaks, in words.
fn judge(seed: u64) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| history(seed, false).broken)) {
        Ok(broken) => broken.first().cloned(),
        Err(_) => Some("a panic, see above".to_owned()),
    }
}

fn again(seed: u64) -> String {
    format!("SKYWARD_HISTORY={seed} cargo test -p skyward-controller --lib simulation -- --nocapture")
}

/// Runs these seeds on every core.
fn run(seeds: std::ops::Range<u64>) -> Vec<(u64, String)> {
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
                    if let Some(what) = judge(seed) {
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
fn whatever_happens_nothing_leaks_nothing_is_doubled_and_pools_say_what_they_lack() {
    if let Some(seed) = number("SKYWARD_HISTORY") {
        let world = history(seed, true);
        println!("{}", world.story.unwrap_or_default().join("\n"));
        assert_eq!(world.broken, Vec::<String>::new());
        return;
    }
    let seeds = number("SKYWARD_SEED").map_or(0..HISTORIES, |round| {
        let first = HISTORIES + round * IN_A_ROUND;
        first..first + IN_A_ROUND
    });
    let failed = run(seeds);
    for (seed, what) in &failed {
        println!("seed {seed}: {what}\n    again: {}", again(*seed));
    }
    assert!(failed.is_empty(), "{} seeds broke a rule", failed.len());
}

#[test]
fn what_was_mended_stays_mended() {
    for (seed, what) in KEPT {
        assert_eq!(
            judge(*seed),
            None,
            "seed {seed} ({what}); again: {}",
            again(*seed)
        );
    }
}

/// A story whose only fault is one death of the process.
fn dies_once(kind: &'static Kind, at: u64) -> World {
    let mut world = World::new(at, true);
    world.odds = Odds {
        lag: 80,
        ..Odds::default()
    };
    world.calm = true;
    world.crash_at = Some(at);
    world.add_provider("a", kind);
    world.add_pool("x", &["a"], 2);
    world.begin();
    world.calm_down(0, HOUR);
    world.at_rest(Want::Nothing);
    world.change_pool("x", |spec| spec.nodes.desired = 1);
    world.calm_down(0, HOUR);
    world.at_rest(Want::Nothing);
    finish(&mut world);
    world
}

#[test]
fn a_crash_between_any_two_effects_leaks_nothing_and_doubles_nothing() {
    for kind in ALL {
        for at in 1_u64.. {
            let world = dies_once(kind, at);
            if !world.broken.is_empty() {
                println!("{}", world.story.unwrap_or_default().join("\n"));
            }
            assert_eq!(world.broken, Vec::<String>::new(), "{}, at {at}", kind.name());
            if world.boundaries < at {
                assert!(at > 20, "there are effects to die between");
                break;
            }
        }
    }
}
