//! Keeps the return values of ranks that do not run again under the number of the next attempt, where readers look for
//! them. Logs of these ranks stay where they are.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use skyward_api::condition::reason;
use skyward_planner::task::{
    message::{CollectError, Collected},
    model::{RunId, Uid},
};
use skyward_store::Store;

use super::{PIECE, in_time, of_store, recall::recall};
use crate::metrics::Metrics;

/// Stores the newest outcome of each of these ranks, which has succeeded, under that attempt, too, and answers the
/// outcomes that it found. What is stored there already stays, so that this may be asked for again.
pub(crate) async fn keep_ranks(
    store: &Arc<Store>,
    uid: &Uid,
    ranks: &[u32],
    attempt: u32,
    metrics: &Metrics,
) -> Result<Vec<(u32, Box<Collected>)>, CollectError> {
    let runs = in_time(metrics, store.runs(uid)).await?;
    let mut earlier: Vec<RunId> = runs.iter().filter_map(|run| RunId::parse(run)).collect();
    earlier.retain(|run| run.uid == *uid && run.attempt < attempt && ranks.contains(&run.rank));
    earlier.sort_unstable_by_key(|run| Reverse((run.attempt, run.rank)));
    let mut kept = BTreeMap::new();
    for run in &earlier {
        let Entry::Vacant(place) = kept.entry(run.rank) else {
            continue;
        };
        let found = recall(store, run, metrics).await?;
        if let Some(collected) = found.filter(|collected| collected.reason == reason::SUCCEEDED) {
            copy(store, run, attempt, &collected, metrics).await?;
            place.insert(Box::new(collected));
        }
    }
    Ok(kept.into_iter().collect())
}

/// The value first, then the outcome: a run whose outcome is stored has its value, too.
async fn copy(
    store: &Arc<Store>,
    run: &RunId,
    attempt: u32,
    collected: &Collected,
    metrics: &Metrics,
) -> Result<(), CollectError> {
    let (uid, from) = (&run.uid, run.to_string());
    let to = RunId::new(uid, attempt, run.rank).to_string();
    if let Some(mut value) = in_time(metrics, store.get_result(uid, &from, 0)).await? {
        let size = value.size;
        let mut held = BytesMut::new();
        let mut start = 0;
        while let Some(bytes) = value.bytes.next().await {
            held.extend_from_slice(&bytes.map_err(|error| of_store(&error, metrics))?);
            if held.len() >= PIECE {
                let piece = held.split().freeze();
                let count = piece.len() as u64;
                // More of it may be there already.
                in_time(metrics, store.put_result_piece(uid, &to, start, piece, size)).await?;
                start += count;
            }
        }
        let rest = held.freeze();
        if start + rest.len() as u64 != size {
            let what = format!("{from} has another value than its size says");
            return Err(CollectError::Store(what));
        }
        if start == 0 {
            in_time(metrics, store.put_result(uid, &to, rest)).await?;
        } else {
            if !rest.is_empty() {
                in_time(metrics, store.put_result_piece(uid, &to, start, rest, size)).await?;
            }
            in_time(metrics, store.seal_result(uid, &to, size)).await?;
        }
    }
    let json =
        serde_json::to_vec(&collected.result).map_err(|error| CollectError::Store(error.to_string()))?;
    in_time(metrics, store.put_outcome(uid, &to, Bytes::from(json))).await
}

#[cfg(test)]
mod tests {
    use skyward_api::task::RunResult;

    use super::*;

    fn outcome(reason: &str, value: Option<i64>) -> Bytes {
        let result = RunResult {
            machine: "m".to_owned(),
            reason: reason.to_owned(),
            value_bytes: value,
            ..RunResult::default()
        };
        serde_json::to_vec(&result).unwrap().into()
    }

    async fn read(store: &Arc<Store>, run: &str) -> Option<Vec<u8>> {
        let mut value = store.get_result("task", run, 0).await.unwrap()?;
        let mut bytes = Vec::new();
        while let Some(piece) = value.bytes.next().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        Some(bytes)
    }

    #[tokio::test]
    async fn what_ranks_have_returned_is_there_under_the_next_attempt_also_when_it_is_asked_for_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        store.charge("task", "team");
        let (uid, metrics) = (Uid::from("task"), Metrics::default());
        let large: Vec<u8> = (0..3 * PIECE).map(|at| b'0' + (at % 10) as u8).collect();
        // Rank 0 succeeded at once, rank 1 in the second attempt, rank 2 failed, and of rank 3 nothing is known.
        store.put_result("task", "task-1-0", "42".into()).await.unwrap();
        store
            .put_outcome("task", "task-1-0", outcome(reason::SUCCEEDED, Some(2)))
            .await
            .unwrap();
        store
            .put_outcome("task", "task-1-1", outcome(reason::NON_ZERO_EXIT, None))
            .await
            .unwrap();
        let size = large.len() as u64;
        store
            .put_result_piece("task", "task-2-1", 0, large.clone().into(), size)
            .await
            .unwrap();
        store.seal_result("task", "task-2-1", size).await.unwrap();
        store
            .put_outcome("task", "task-2-1", outcome(reason::SUCCEEDED, Some(size as i64)))
            .await
            .unwrap();
        store
            .put_outcome("task", "task-2-2", outcome(reason::NON_ZERO_EXIT, None))
            .await
            .unwrap();
        for _ in 0..2 {
            let kept = keep_ranks(&store, &uid, &[0, 1, 2, 3], 3, &metrics)
                .await
                .unwrap();
            let ranks: Vec<u32> = kept.iter().map(|(rank, _)| *rank).collect();
            assert_eq!(ranks, [0, 1]);
            assert_eq!(kept[0].1.result.machine, "m");
            assert_eq!(read(&store, "task-3-0").await, Some(b"42".to_vec()));
            assert_eq!(read(&store, "task-3-1").await, Some(large.clone()));
            assert!(store.get_outcome("task", "task-3-1").await.unwrap().is_some());
        }
        let later = keep_ranks(&store, &uid, &[1], 4, &metrics).await.unwrap();
        assert_eq!(later.len(), 1, "as often as it takes");
    }
}
