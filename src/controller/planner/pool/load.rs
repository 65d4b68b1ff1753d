//! What a dispatcher knows of its Pool.

use std::collections::{BTreeMap, BTreeSet};

/// What one dispatcher knows of its Pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Runs on each Machine, by the Machine's name: runs that are placed and not yet collected.
    pub runs: BTreeMap<String, u32>,
    /// Machines that the dispatcher knows are given up, or change their environment: they get no more runs.
    pub closed: BTreeSet<String>,
    /// Runs that ended and whose results cannot be stored.
    pub unstored: u32,
    /// Tasks that wait.
    pub queued: u32,
    /// Tasks that run.
    pub running: u32,
}

/// Whether a machine became idle between two loads.
pub fn became_idle(old: &PoolLoad, new: &PoolLoad) -> bool {
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
