//! Reads outcomes of runs that an earlier leader stored.

use std::{cmp::Reverse, sync::Arc};

use futures::StreamExt;
use skyward_api::{condition::reason, task::RunResult};
use skyward_planner::task::{
    message::{CollectError, Collected, Remembered},
    model::{RunId, Uid},
};
use skyward_store::Store;

use super::{in_time, of_store, summary::ENDINGS};
use crate::{metrics::Metrics, task::inline::inline};

/// Most bytes of a value that are read: no status shows more.
const LARGEST_INLINE: usize = 4096;

/// The stored outcome of a run; `None` = none, or not all of it. A run whose return value is stored
/// has ended: the value is stored last, after the log.
pub(crate) async fn recall(
    store: &Arc<Store>,
    run: &RunId,
    metrics: &Metrics,
) -> Result<Option<Collected>, CollectError> {
    let id = run.to_string();
    let found = in_time(metrics, store.get_outcome(&run.uid, &id)).await?;
    let kept = found.and_then(|json| {
        let result: RunResult = serde_json::from_slice(&json).ok()?;
        let reason = ENDINGS.iter().find(|known| **known == result.reason)?;
        Some(Collected { result, reason })
    });
    if kept.is_some() {
        return Ok(kept);
    }
    let Some(mut stored) = in_time(metrics, store.get_result(&run.uid, &id, 0)).await? else {
        return Ok(None);
    };
    let mut json = Vec::new();
    while json.len() <= LARGEST_INLINE
        && let Some(piece) = stored.bytes.next().await
    {
        json.extend_from_slice(&piece.map_err(|error| of_store(&error, metrics))?);
    }
    let result = RunResult {
        reason: reason::SUCCEEDED.to_owned(),
        exit_code: Some(0),
        value: inline(&json).filter(|_| json.len() as u64 == stored.size),
        value_bytes: Some(i64::try_from(stored.size).unwrap_or(i64::MAX)),
        ..RunResult::default()
    };
    Ok(Some(Collected {
        result,
        reason: reason::SUCCEEDED,
    }))
}

/// Stored attempts of a Task after that one.
pub(crate) async fn recall_later(
    store: &Arc<Store>,
    uid: &Uid,
    after: u32,
    metrics: &Metrics,
) -> Result<Remembered, CollectError> {
    let runs = in_time(metrics, store.runs(uid)).await?;
    let mut later: Vec<RunId> = runs.iter().filter_map(|run| RunId::parse(run)).collect();
    later.retain(|run| run.uid == *uid && run.attempt > after);
    later.sort_unstable_by_key(|run| Reverse((run.attempt, run.rank)));
    let mut remembered = Remembered {
        newest: later.first().map_or(0, |run| run.attempt),
        outcome: None,
    };
    for run in later.iter().filter(|run| run.rank == 0) {
        let found = recall(store, run, metrics).await?;
        // After such an end another attempt follows.
        let is_last =
            |collected: &Collected| ![reason::STOPPED, reason::INTERRUPTED].contains(&collected.reason);
        if let Some(collected) = found.filter(is_last) {
            remembered.outcome = Some((run.attempt, Box::new(collected)));
            break;
        }
    }
    Ok(remembered)
}
