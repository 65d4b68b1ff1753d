//! What the controllers tell each other in memory: hints, never truth.
//!
//! The dispatchers know how many runs each machine has; Pools and Machines need that
//! to give up idle machines first and to drain busy ones. After a restart nothing is
//! known until a Pool's dispatcher has seen its Tasks, and unknown is not idle: `load`
//! answers `None`, and nobody may delete a machine on that.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use crate::wake::{Feed, Wakeups};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What one dispatcher knows of its Pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Runs on each Machine, by the Machine's name: those placed and not yet collected.
    pub runs: BTreeMap<String, u32>,
    /// Machines that the dispatcher knows to be given up: they get no run any more.
    pub closed: BTreeSet<String>,
    /// Runs that ended and whose results cannot be stored.
    pub unstored: u32,
    /// Tasks that wait.
    pub queued: u32,
    /// Tasks that run.
    pub running: u32,
}

/// The board: written by dispatchers, read by Pools and Machines.
#[derive(Debug)]
pub struct Board {
    pools: Mutex<HashMap<Key, PoolLoad>>,
    changed: watch::Sender<u64>,
    idle: Feed<Key>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            pools: Mutex::default(),
            changed: watch::Sender::new(0),
            idle: Feed::default(),
        }
    }
}

impl Board {
    /// A dispatcher says what it knows. Readers are woken only when it differs.
    pub fn publish(&self, pool: &Key, load: PoolLoad) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.get(pool) != Some(&load) {
            let news = pools.get(pool).is_none_or(|old| became_idle(old, &load));
            pools.insert(pool.clone(), load);
            drop(pools);
            self.changed.send_modify(|n| *n += 1);
            if news {
                self.idle.tell(pool);
            }
        }
    }

    /// Pools of which something became known for the first time, or of which a machine
    /// became idle: what those who give up machines wait for.
    pub fn subscribe_idle(&self) -> Arc<Wakeups<Key>> {
        self.idle.subscribe()
    }

    /// A Pool is gone.
    pub fn forget(&self, pool: &Key) {
        self.pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(pool);
    }

    /// What is known of a Pool; `None` = nothing yet.
    pub fn load(&self, pool: &Key) -> Option<PoolLoad> {
        self.pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(pool)
            .cloned()
    }

    /// Runs on one Machine; `None` = not known.
    pub fn runs_on(&self, pool: &Key, machine: &str) -> Option<u32> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools
            .get(pool)
            .map(|load| load.runs.get(machine).copied().unwrap_or(0))
    }

    /// Runs that are left on a Machine that was given up. None is left only when its
    /// dispatcher knows that it was: one that does not may be giving it a run just now.
    pub fn runs_left_on(&self, pool: &Key, machine: &str) -> Option<u32> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let load = pools.get(pool)?;
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

fn became_idle(old: &PoolLoad, new: &PoolLoad) -> bool {
    let is_idle = |machine: &String| new.runs.get(machine).copied().unwrap_or(0) == 0;
    let ended = old
        .runs
        .iter()
        .any(|(machine, runs)| *runs > 0 && is_idle(machine));
    ended
        || new
            .closed
            .iter()
            .any(|machine| !old.closed.contains(machine) && is_idle(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(runs: u32) -> PoolLoad {
        PoolLoad {
            runs: BTreeMap::from([("m".to_owned(), runs)]),
            ..PoolLoad::default()
        }
    }

    #[test]
    fn unknown_is_not_idle() {
        let board = Board::default();
        let pool = Key::new("team", "train");
        assert_eq!(board.runs_on(&pool, "m"), None);
        board.publish(&pool, load(2));
        assert_eq!(board.runs_on(&pool, "m"), Some(2));
        assert_eq!(board.runs_on(&pool, "other"), Some(0));
    }

    #[test]
    fn a_machine_given_up_is_idle_only_when_its_dispatcher_knows_that_it_was() {
        let board = Board::default();
        let pool = Key::new("team", "train");
        let idle = board.subscribe_idle();
        board.publish(&pool, load(0));
        let _first = idle.try_next();
        // Found idle, given up, and in this moment perhaps given a run.
        assert_eq!(board.runs_left_on(&pool, "m"), None);
        let closed = |runs| PoolLoad {
            closed: BTreeSet::from(["m".to_owned()]),
            ..load(runs)
        };
        board.publish(&pool, closed(1));
        assert_eq!(board.runs_left_on(&pool, "m"), Some(1));
        board.publish(&pool, load(0));
        while idle.try_next().is_some() {}
        board.publish(&pool, closed(0));
        assert_eq!(board.runs_left_on(&pool, "m"), Some(0));
        assert_eq!(idle.try_next(), Some(pool), "its Machine waits for that");
    }

    #[test]
    fn those_who_wait_for_idle_machines_are_woken_only_by_them() {
        let board = Board::default();
        let pool = Key::new("team", "train");
        let idle = board.subscribe_idle();
        board.publish(&pool, load(2));
        assert_eq!(idle.try_next(), Some(pool.clone()));
        board.publish(&pool, load(1));
        assert_eq!(idle.try_next(), None);
        board.publish(&pool, load(0));
        assert_eq!(idle.try_next(), Some(pool));
    }
}
