//! One reader's view of one Task: which attempt, which ranks, and whether it has ended.

use std::{collections::BTreeSet, sync::Arc};

use skyward_api::{Task, TaskPhase, TaskStatus};

use crate::{
    data::{Data, Runs},
    tasks::Tasks,
};

/// What a request reads.
#[derive(Clone)]
pub(crate) struct Reading {
    pub(crate) data: Arc<dyn Data>,
    pub(crate) tasks: Arc<dyn Tasks>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// What became of the Task meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Now {
    /// It is there.
    There(Box<Task>),
    /// It was deleted, perhaps another one of its name was created.
    Gone,
    /// The API server does not answer.
    Unknown,
}

impl Reading {
    /// Looks at the Task again.
    pub(crate) async fn look(&self) -> Now {
        match self.tasks.get(&self.namespace, &self.name).await {
            Ok(Some(task)) if task.metadata.uid.as_deref() == Some(&self.uid) => Now::There(Box::new(task)),
            Ok(_) => Now::Gone,
            Err(error) => {
                tracing::info!(error, "a Task could not be read; it is tried again");
                Now::Unknown
            }
        }
    }
}

/// The attempt that the status speaks of; 0 = it was never placed.
pub(crate) fn attempt(task: &Task) -> u32 {
    task.status.as_ref().map_or(0, |status| status.attempt)
}

/// Its phase.
pub(crate) fn phase(task: &Task) -> TaskPhase {
    task.status
        .as_ref()
        .and_then(|status| status.phase)
        .unwrap_or_default()
}

/// The ranks of an attempt, from what the leader knows and from the status.
pub(crate) fn ranks(task: &Task, runs: &Runs, attempt: u32) -> BTreeSet<u32> {
    let mut ranks: BTreeSet<u32> = runs
        .runs
        .iter()
        .filter(|run| run.attempt == attempt)
        .map(|run| run.rank)
        .collect();
    if let Some(status) = &task.status {
        ranks.extend(
            status
                .results
                .iter()
                .filter(|r| r.attempt == attempt)
                .map(|r| r.rank),
        );
        if status.attempt == attempt && status.placed.len() > 1 {
            ranks.extend(0..u32::try_from(status.placed.len()).unwrap_or(u32::MAX));
        }
    }
    ranks
}

/// `Failed (NonZeroExit)`, for messages.
pub(crate) fn describe(task: &Task) -> String {
    let reason = task
        .status
        .as_ref()
        .map(|TaskStatus { reason, .. }| reason.as_str())
        .unwrap_or_default();
    let phase = phase(task).as_str();
    if reason.is_empty() || reason == phase {
        phase.to_owned()
    } else {
        format!("{phase} ({reason})")
    }
}
