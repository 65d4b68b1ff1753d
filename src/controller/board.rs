//! What the controllers tell each other in memory: hints, never truth.
//!
//! The dispatchers know how many runs each machine has; Pools and Machines need that
//! to give up idle machines first and to drain busy ones. After a restart nothing is
//! known until a Pool's dispatcher has seen its Tasks, and unknown is not idle: `load`
//! answers `None`, and nobody may delete a machine on that.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use tokio::sync::watch;

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
        Self { namespace: namespace.into(), name: name.into() }
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
}

impl Default for Board {
    fn default() -> Self {
        Self { pools: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl Board {
    /// A dispatcher says what it knows. Readers are woken only when it differs.
    pub fn publish(&self, pool: &Key, load: PoolLoad) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.get(pool) != Some(&load) {
            pools.insert(pool.clone(), load);
            drop(pools);
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// A Pool is gone.
    pub fn forget(&self, pool: &Key) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }

    /// What is known of a Pool; `None` = nothing yet.
    pub fn load(&self, pool: &Key) -> Option<PoolLoad> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).get(pool).cloned()
    }

    /// Runs on one Machine; `None` = not known.
    pub fn runs_on(&self, pool: &Key, machine: &str) -> Option<u32> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.get(pool).map(|load| load.runs.get(machine).copied().unwrap_or(0))
    }

    /// Woken at each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
