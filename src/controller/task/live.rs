//! Where Tasks run at this moment, for those who want to read a log while it is written.
//! A hint: what it does not know is in the store, or not there yet.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use skyward_remote::MachineKey;

/// A run that its agent has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRun {
    /// Its id, as the agent and the store know it.
    pub run_id: String,
    /// Its rank.
    pub rank: u32,
    /// Its attempt.
    pub attempt: u32,
    /// Its machine.
    pub machine: MachineKey,
}

/// Where Tasks run, by UID.
#[derive(Debug, Default)]
pub struct Live(Mutex<HashMap<String, Vec<LiveRun>>>);

impl Live {
    /// The runs of a Task, in order of rank; none when it does not run.
    pub fn lookup(&self, task_uid: &str) -> Vec<LiveRun> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(task_uid)
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn set(&self, task_uid: &str, runs: Vec<LiveRun>) {
        let mut live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.is_empty() {
            live.remove(task_uid);
        } else {
            live.insert(task_uid.to_owned(), runs);
        }
    }
}
