//! The loads of all Pools.
//!
//! The dispatchers know how many runs each machine has; Pools and Machines need that
//! to give up idle machines first and to drain busy ones. After a restart nothing is
//! known until a Pool's dispatcher has seen its Tasks, and unknown is not idle: `load`
//! answers `None`, and nobody may delete a machine on that.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use skyward_core::clock;
use skyward_planner::{
    base::key::Key,
    pool::load::{PoolLoad, became_idle},
};
use tokio::{sync::watch, time::Instant};

use crate::base::{broadcast::Broadcast, queue::WorkQueue};

/// How long a Pool's status may show outdated numbers of Tasks.
pub const NUMBERS: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Known {
    load: PoolLoad,
    /// The outdated numbers of Tasks in the Pool's status, and since when.
    outdated: Option<((u32, u32), Instant)>,
    /// Since when work waits.
    waits_since: Option<Instant>,
}

/// The loads of all Pools: written by dispatchers, read by Pools and Machines.
#[derive(Debug, Default)]
pub struct PoolLoads {
    pools: Mutex<HashMap<Key, Known>>,
    changed: watch::Sender<u64>,
    idle: Broadcast<Key>,
}

impl PoolLoads {
    /// Publishes a dispatcher's load. Readers are woken only when it changed.
    pub fn publish(&self, pool: &Key, mut load: PoolLoad) {
        let now = clock::now();
        let waits = load.demand.waits();
        let mut pools = self.pools.lock();
        let (changed, news) = if let Some(known) = pools.get_mut(pool) {
            let changed = !known.load.is_like(&load);
            let news = became_idle(&known.load, &load);
            load.uses = std::mem::take(&mut known.load.uses);
            load.uses.note(load.machines_in_use(), now);
            known.load = load;
            known.waits_since = waits.then(|| known.waits_since.unwrap_or_else(Instant::now));
            (changed, news)
        } else {
            load.uses.note(load.machines_in_use(), now);
            let known = Known {
                load,
                outdated: None,
                waits_since: waits.then(Instant::now),
            };
            pools.insert(pool.clone(), known);
            (true, true)
        };
        drop(pools);
        if changed {
            self.changed.send_modify(|n| *n += 1);
        }
        if news {
            self.idle.publish(pool);
        }
    }

    /// Since when work of a Pool waits; `None`: none does, or nothing is known.
    pub fn waits_since(&self, pool: &Key) -> Option<Instant> {
        self.pools.lock().get(pool)?.waits_since
    }

    /// Whether the numbers of Tasks, running and waiting, in a Pool's status have been outdated for
    /// long enough to be rewritten. Changes that come and go between two looks cost nothing, and
    /// numbers that never rest are written once each [`NUMBERS`].
    pub fn outdates(&self, pool: &Key, told: (u32, u32)) -> bool {
        let mut pools = self.pools.lock();
        let Some(known) = pools.get_mut(pool) else {
            return false;
        };
        if (known.load.running, known.load.queued) == told {
            known.outdated = None;
            return false;
        }
        // New numbers in the status begin a new wait.
        let outdated = known.outdated.filter(|(before, _)| *before == told);
        let (_, since) = *known.outdated.insert(outdated.unwrap_or((told, Instant::now())));
        since.elapsed() >= NUMBERS
    }

    /// Pools whose load became known, or of which a machine became idle: the code that gives up
    /// machines waits for that.
    pub fn subscribe_idle(&self) -> Arc<WorkQueue<Key>> {
        self.idle.subscribe()
    }

    /// A Pool is gone.
    pub fn forget(&self, pool: &Key) {
        self.pools.lock().remove(pool);
    }

    /// What is known of a Pool; `None` = nothing yet.
    pub fn load(&self, pool: &Key) -> Option<PoolLoad> {
        self.pools.lock().get(pool).map(|known| known.load.clone())
    }

    /// Runs on one Machine; `None` = not known.
    pub fn runs_on(&self, pool: &Key, machine: &str) -> Option<u32> {
        let pools = self.pools.lock();
        pools
            .get(pool)
            .map(|known| known.load.runs.get(machine).copied().unwrap_or(0))
    }

    /// Runs that are left on a Machine that was given up. 0 only when its dispatcher knows that it
    /// was given up: before that it may be giving the machine a run.
    pub fn runs_left_on(&self, pool: &Key, machine: &str) -> Option<u32> {
        let pools = self.pools.lock();
        let load = &pools.get(pool)?.load;
        match load.runs.get(machine).copied().unwrap_or(0) {
            0 if !load.closed.contains(machine) => None,
            runs => Some(runs),
        }
    }

    /// Woken at each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn load(runs: u32) -> PoolLoad {
        PoolLoad {
            runs: BTreeMap::from([("m".to_owned(), runs)]),
            ..PoolLoad::default()
        }
    }

    #[test]
    fn unknown_is_not_idle() {
        let loads = PoolLoads::default();
        let pool = Key::new("team", "train");
        assert_eq!(loads.runs_on(&pool, "m"), None);
        loads.publish(&pool, load(2));
        assert_eq!(loads.runs_on(&pool, "m"), Some(2));
        assert_eq!(loads.runs_on(&pool, "other"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_of_tasks_that_never_rest_are_told_all_the_same_and_those_of_a_moment_never() {
        let loads = PoolLoads::default();
        let pool = Key::new("team", "train");
        let running = |running, queued| PoolLoad {
            queued,
            running,
            ..PoolLoad::default()
        };
        assert!(!loads.outdates(&pool, (3, 9)), "unknown is not none");
        let (mut told, mut writes) = ((0, 0), 0);
        for second in 0..60 {
            let now = (7 + second % 2, 42 - second / 2);
            loads.publish(&pool, running(now.0, now.1));
            if loads.outdates(&pool, told) {
                (told, writes) = (now, writes + 1);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((9..=12).contains(&writes), "{writes} writes in a minute");
        for second in 0..60 {
            loads.publish(&pool, running(second % 2, 0));
            assert!(!loads.outdates(&pool, (0, 0)), "a Task now and then costs none");
            tokio::time::advance(NUMBERS.saturating_sub(Duration::from_secs(1))).await;
        }
    }

    #[test]
    fn a_machine_given_up_is_idle_only_when_its_dispatcher_knows_that_it_was() {
        let loads = PoolLoads::default();
        let pool = Key::new("team", "train");
        let idle = loads.subscribe_idle();
        loads.publish(&pool, load(0));
        let _first = idle.try_next();
        // The machine was found idle and given up; the dispatcher may just now give it a run.
        assert_eq!(loads.runs_left_on(&pool, "m"), None);
        let closed = |runs| PoolLoad {
            closed: BTreeSet::from(["m".to_owned()]),
            ..load(runs)
        };
        loads.publish(&pool, closed(1));
        assert_eq!(loads.runs_left_on(&pool, "m"), Some(1));
        loads.publish(&pool, load(0));
        while idle.try_next().is_some() {}
        loads.publish(&pool, closed(0));
        assert_eq!(loads.runs_left_on(&pool, "m"), Some(0));
        assert_eq!(idle.try_next(), Some(pool), "its Machine waits for that");
    }

    #[tokio::test(start_paused = true)]
    async fn work_waits_since_it_came_and_no_longer_when_it_runs() {
        let loads = PoolLoads::default();
        let pool = Key::new("team", "train");
        let waiting = |places| {
            let mut load = load(1);
            load.demand.places = places;
            load
        };
        assert_eq!(loads.waits_since(&pool), None);
        loads.publish(&pool, waiting(1));
        let since = loads.waits_since(&pool);
        assert!(since.is_some());
        tokio::time::advance(Duration::from_secs(9)).await;
        loads.publish(&pool, waiting(7));
        assert_eq!(loads.waits_since(&pool), since);
        assert_eq!(
            loads.load(&pool).unwrap().uses.unused_since(8),
            None,
            "eight are of use"
        );
        loads.publish(&pool, waiting(0));
        assert_eq!(loads.waits_since(&pool), None);
        assert!(loads.load(&pool).unwrap().uses.last_used(8).is_some());
    }

    #[test]
    fn those_who_wait_for_idle_machines_are_woken_only_by_them() {
        let loads = PoolLoads::default();
        let pool = Key::new("team", "train");
        let idle = loads.subscribe_idle();
        loads.publish(&pool, load(2));
        assert_eq!(idle.try_next(), Some(pool.clone()));
        loads.publish(&pool, load(1));
        assert_eq!(idle.try_next(), None);
        loads.publish(&pool, load(0));
        assert_eq!(idle.try_next(), Some(pool));
    }
}
