//! One reader's view of one Task: which attempt, which ranks, and whether it has ended.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use axum::body::Bytes;
use futures::{StreamExt as _, stream};
use skyward_api::{Task, TaskPhase, TaskStatus};
use tokio::time::{Instant, sleep};

use crate::{
    data::{Chunks, Data, DataError, Runs},
    tasks::Tasks,
};

/// How long a reader waits for a leader when one fails: long enough that another one leads, and
/// short enough that the API server in front of us does not give up first (after 60 s).
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

/// The subject of a request.
#[derive(Clone)]
pub(crate) struct Reading {
    pub(crate) data: Arc<dyn Data>,
    pub(crate) tasks: Arc<dyn Tasks>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// How long a leader may be away: [`PATIENCE`], except in tests.
    pub(crate) patience: Duration,
}

/// The present state of the Task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Now {
    /// It exists.
    There(Box<Task>),
    /// It was deleted; perhaps another Task of its name was created.
    Gone,
    /// The API server does not answer.
    Unknown,
}

/// Tries until a leader answers, or the last one has been away for too long.
pub(crate) async fn patiently<T, F: Future<Output = Result<T, DataError>>>(
    patience: Duration,
    mut call: impl FnMut() -> F,
    passes: impl Fn(&DataError) -> bool,
) -> Result<T, DataError> {
    let end = Instant::now() + patience;
    let mut failures = 0;
    loop {
        match call().await {
            Err(error) if passes(&error) && Instant::now() < end => {
                failures += 1;
                sleep(pause(failures)).await;
            }
            answer => return answer,
        }
    }
}

impl Reading {
    /// The runs of a Task. A leader that knows no run of a running Task has just begun.
    pub(crate) async fn runs(&self, task: &Task) -> Result<Runs, DataError> {
        let at_work = !phase(task).is_finished();
        let runs = || self.data.runs(&self.namespace, &self.uid);
        self.patiently(runs, |error| at_work || *error != DataError::NotFound)
            .await
    }

    /// The return value of a run from an offset. If the transfer breaks off, for example because
    /// the leader ends, it goes on at the same byte: a stored value never changes.
    pub(crate) async fn result(&self, run: &str, offset: u64) -> Result<Chunks, DataError> {
        let chunks = self.result_until_break(run, offset).await?;
        let rest = Rest {
            reading: self.clone(),
            run: run.to_owned(),
            offset,
            chunks,
            broken: None,
        };
        Ok(stream::unfold(Some(rest), |rest| async move { rest?.next().await }).boxed())
    }

    /// A page of what became of the items of a map.
    pub(crate) async fn items(&self, query: &str) -> Result<Chunks, DataError> {
        let items = || self.data.items(&self.namespace, &self.uid, query);
        self.patiently(items, |error| *error != DataError::NotFound).await
    }

    /// Has items run again after the attempt that the query names, and so once, however often this is asked.
    pub(crate) async fn retry(&self, query: &str) -> Result<String, DataError> {
        let retry = || self.data.retry(&self.namespace, &self.name, &self.uid, query);
        self.patiently(retry, |error| *error != DataError::NotFound).await
    }

    async fn result_until_break(&self, run: &str, offset: u64) -> Result<Chunks, DataError> {
        let result = || self.data.result(&self.namespace, &self.uid, run, offset);
        self.patiently(result, |error| *error != DataError::NotFound)
            .await
    }

    async fn patiently<T, F: Future<Output = Result<T, DataError>>>(
        &self,
        call: impl FnMut() -> F,
        passes: impl Fn(&DataError) -> bool,
    ) -> Result<T, DataError> {
        patiently(self.patience, call, passes).await
    }

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

/// The rest of a return value.
struct Rest {
    reading: Reading,
    run: String,
    offset: u64,
    chunks: Chunks,
    /// When the transfer broke off, if nothing has come since.
    broken: Option<Instant>,
}

impl Rest {
    /// The next chunk, and what comes after it; nothing follows an error.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Option<Self>)> {
        loop {
            let error = match self.chunks.next().await? {
                Ok(bytes) => {
                    self.offset += bytes.len() as u64;
                    self.broken = None;
                    return Some((Ok(bytes), Some(self)));
                }
                Err(error) => error,
            };
            let since = *self.broken.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.reading.patience {
                return Some((Err(error), None));
            }
            sleep(pause(0)).await;
            match self.reading.result_until_break(&self.run, self.offset).await {
                Ok(chunks) => self.chunks = chunks,
                Err(_) => return Some((Err(error), None)),
            }
        }
    }
}

/// The pause before the next try: it grows, but stays short, since a client waits.
pub(crate) fn pause(failures: u32) -> Duration {
    Duration::from_millis(200 * (1 << failures.min(3)))
}

/// The attempt in the status; 0 = the Task was never placed.
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

/// Whether runs of an attempt of an ended Task printed something, by its status, and nothing of it is stored: that was deleted,
/// and a longer `retention` came too late for it. A rank: that one alone counts.
pub(crate) fn has_lost_log(task: &Task, runs: &Runs, attempt: u32, rank: Option<u32>) -> bool {
    let is_meant = |of: (u32, u32)| of.0 == attempt && rank.is_none_or(|rank| rank == of.1);
    let mut runs = runs.runs.iter().filter(|run| is_meant((run.attempt, run.rank)));
    let results = task.status.iter().flat_map(|status| &status.results);
    let mut results = results.filter(|result| is_meant((result.attempt, result.rank)));
    phase(task).is_finished()
        && results.any(|result| !result.log_tail.is_empty())
        && runs.all(|run| !run.live && run.stored == 0)
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
