//! Where Tasks run at this moment, for clients that read a log while it is written.
//!
//! A new leader learns this bit by bit: each dispatcher takes up the Tasks of its Pool. Until all
//! have, a Task that is missing here may still run on a machine: its log must not be taken for
//! complete. After that, a run that is missing here is in the store, or has not begun.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use skyward_planner::{
    base::key::Key,
    task::{message::LiveRun, model::RunId, run::Progress},
};

/// Where Tasks run, by UID.
#[derive(Debug, Default)]
pub struct Live(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    runs: HashMap<String, Vec<LiveRun>>,
    /// Pools whose Tasks are not all taken up; `None` = not known yet.
    pending: Option<BTreeSet<Key>>,
}

impl Live {
    /// The runs of a Task, in order of rank; empty when it does not run. `None` = not known yet.
    pub fn lookup(&self, task_uid: &str) -> Option<Vec<LiveRun>> {
        let known = self.0.lock();
        match known.runs.get(task_uid) {
            Some(runs) => Some(runs.clone()),
            None if known.pending.as_ref().is_some_and(BTreeSet::is_empty) => Some(Vec::new()),
            None => None,
        }
    }

    pub(crate) fn set(&self, task_uid: &str, runs: Vec<LiveRun>) {
        let mut known = self.0.lock();
        if runs.is_empty() {
            known.runs.remove(task_uid);
        } else {
            known.runs.insert(task_uid.to_owned(), runs);
        }
    }

    /// A run has come that far.
    pub(crate) fn progress(&self, run: &RunId, progress: Progress) {
        let mut known = self.0.lock();
        let runs = known.runs.get_mut(&*run.uid).into_iter().flatten();
        for live in runs.filter(|live| (live.attempt, live.rank) == (run.attempt, run.rank)) {
            live.progress = Some(progress);
        }
    }

    /// All Tasks are on their way to the dispatchers of these Pools.
    pub(crate) fn listed(&self, pools: impl IntoIterator<Item = Key>) {
        self.0
            .lock()
            .pending
            .get_or_insert_with(|| pools.into_iter().collect());
    }

    /// The dispatcher of that Pool has taken up its Tasks.
    pub(crate) fn taken_up(&self, pool: &Key) {
        if let Some(pending) = &mut self.0.lock().pending {
            pending.remove(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> LiveRun {
        LiveRun {
            run_id: "a-1-0".into(),
            rank: 0,
            attempt: 1,
            machine: skyward_core::session::MachineKey::new("n", "m"),
            progress: None,
        }
    }

    #[test]
    fn a_new_leader_does_not_take_a_task_that_nobody_has_taken_up_for_ended() {
        let live = Live::default();
        let (one, two) = (Key::new("n", "one"), Key::new("n", "two"));
        assert_eq!(live.lookup("a"), None, "Tasks are not listed yet");
        live.listed([one.clone(), two.clone()]);
        live.taken_up(&one);
        assert_eq!(live.lookup("a"), None, "Pool two may have it");
        live.set("a", vec![run()]);
        assert_eq!(live.lookup("a"), Some(vec![run()]));
        live.taken_up(&two);
        assert_eq!(live.lookup("b"), Some(Vec::new()));
        live.set("a", Vec::new());
        assert_eq!(live.lookup("a"), Some(Vec::new()), "it has ended");
    }

    #[test]
    fn the_progress_of_another_attempt_or_rank_changes_nothing() {
        let live = Live::default();
        live.set("a", vec![run()]);
        let told = |attempt, rank, done| {
            let progress = Progress { done, total: 9 };
            live.progress(&RunId::new(&"a".into(), attempt, rank), progress);
            live.lookup("a").unwrap()[0]
                .progress
                .map(|progress| progress.done)
        };
        assert_eq!((told(2, 0, 1), told(1, 1, 1)), (None, None));
        assert_eq!((told(1, 0, 3), told(2, 0, 4)), (Some(3), Some(3)));
        live.set("a", Vec::new());
        live.progress(&RunId::new(&"a".into(), 1, 0), Progress { done: 5, total: 9 });
        assert_eq!(live.lookup("a"), None, "a run that has ended does not come back");
    }
}
