//! `…/tasks/NAME/progress`: how far a Task says that it is, at this moment. `status.progress` says the
//! same, but is written at most once in 30 s, since each write goes to all watchers of Tasks. A Task with `forEach` is as
//! far as `status.done` says, whatever its items say of themselves.

use serde::{Deserialize, Serialize};
use skyward_api::{Task, TaskPhase, task::progress_text};

use crate::{
    data::DataError,
    reading::{Reading, attempt, phase},
    status::Failure,
};

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskProgress {
    /// Phase of the Task.
    pub phase: TaskPhase,
    /// Its attempt; 0 = it was never placed.
    pub attempt: u32,
    /// All ranks together as the status has it, such as `37/100`; empty where none says anything. Of a Task with `forEach`:
    /// its items with an outcome, of all.
    pub progress: String,
    /// The ranks that are on a machine and say something. Empty once the Task has ended.
    pub ranks: Vec<RankProgress>,
}

/// One rank of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgress {
    /// Which.
    pub rank: u32,
    /// Parts of its work that are done.
    pub done: u64,
    /// All parts; 0 where its program does not say.
    pub total: u64,
}

/// What the leader heard last, over what stands in the status.
pub(crate) async fn read(reading: &Reading, task: &Task) -> Result<TaskProgress, Failure> {
    let is_map = task.spec.for_each.is_some();
    let recorded = task.status.as_ref().map(|status| {
        let text = if is_map { &status.done } else { &status.progress };
        text.clone()
    });
    let mut answer = TaskProgress {
        phase: phase(task),
        attempt: attempt(task),
        progress: recorded.unwrap_or_default(),
        ranks: Vec::new(),
    };
    if answer.phase != TaskPhase::Running {
        return Ok(answer);
    }
    let runs = match reading.runs(task).await {
        Ok(runs) => runs.runs,
        Err(DataError::NotFound) => Vec::new(),
        Err(DataError::Unavailable(text)) => return Err(Failure::unavailable(text)),
    };
    let runs = runs.iter().filter(|run| run.attempt == answer.attempt);
    answer.ranks = runs
        .filter_map(|run| {
            let progress = run.progress?;
            Some(RankProgress {
                rank: run.rank,
                done: progress.done,
                total: progress.total,
            })
        })
        .collect();
    // A new leader has heard nothing yet.
    if !answer.ranks.is_empty() && !is_map {
        answer.progress = progress_text(answer.ranks.iter().map(|rank| (rank.done, rank.total)));
    }
    Ok(answer)
}
