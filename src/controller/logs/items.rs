//! Outcomes of the items of a map, in pages, and retries of items of an ended map. Both are read from the map's log in
//! the store, which is the truth under any leader.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use axum::{
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::IntoResponse,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use skyward_api::{
    Pool, Task as TaskObject, TaskPhase, TaskStatus,
    condition::{self, NewCondition, reason},
    task::ItemsStatus,
};
use skyward_core::clock;
use skyward_planner::{
    map::{
        indices::{Indices, SHOWN_BYTES},
        items::Items,
        outcome,
        record::{Cause, Note},
    },
    task::status::patch,
};
use skyward_store::{
    Store,
    maps::{MapError, Outcome, Record, Writer},
};
use skyward_subresources::items::{Again, ItemsQuery, Order, attempt, has_run_again};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::{
    Answer, Shared, Task,
    pages::{Page, Read, as_written},
};
use crate::maps::{of_stored, replay};

/// Ranges in one write of the log.
const RANGES: usize = 65_536;
/// Room for what a line has besides the body, which is the largest part of it.
const LINE_BYTES: usize = 64;
/// What is said of an item that no machine has told the end of.
const EXHAUSTED: &str = "it was interrupted more often than retries.onInterruption allows";

/// One request at a time retries items of a Task. Those of another Task do not wait for it: it waits for the API server,
/// which may be slow for one namespace. A Task is known only while a request has or awaits its turn.
#[derive(Debug, Default)]
pub(super) struct Retrying(Mutex<HashMap<String, Weak<Turn<()>>>>);

impl Retrying {
    /// Waits until no other request retries items of this Task.
    async fn turn(&self, uid: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut known = self.0.lock();
            known.retain(|_, turn| turn.strong_count() > 0);
            known.get(uid).and_then(Weak::upgrade).unwrap_or_else(|| {
                let new = Arc::default();
                known.insert(uid.to_owned(), Arc::downgrade(&new));
                new
            })
        };
        turn.lock_owned().await
    }
}

pub(super) async fn read(
    State(shared): State<Shared>,
    Path((_namespace, uid)): Task,
    Query(query): Query<BTreeMap<String, String>>,
) -> Answer {
    let query = ItemsQuery::parse(&query).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    // The log of a large map takes memory while it is looked through.
    let _turn = shared.maps.acquire().await;
    let since = match &query.order {
        Order::Index(_) => 0,
        Order::Log(since) => *since,
    };
    let known = shared.last_read.of(&uid);
    let objects = known.as_ref().map(|read| read.records()).unwrap_or_default();
    let records = shared.store.map_records(&uid, since, objects).await;
    let records = records.map_err(unreadable)?;
    let Page { outcomes, rest } = match query.order {
        Order::Index(wanted) => {
            let read = if let Some(read) = known.filter(|read| read.is_of(&records)) {
                read
            } else {
                let read = tokio::task::spawn_blocking(|| Read::of(records)).await;
                Arc::new(read.map_err(super::broken)?.map_err(super::broken)?)
            };
            shared.last_read.keep(&uid, &read);
            read.by_index(&wanted, query.failed)
        }
        Order::Log(since) => as_written(&records, since, query.failed),
    };
    let bodies = shared
        .store
        .map_bodies(&uid, &outcomes)
        .await
        .map_err(unreadable)?;
    let mut text = String::with_capacity(bodies.iter().map(|body| body.len() + LINE_BYTES).sum());
    for (outcome, body) in outcomes.iter().zip(&bodies) {
        write_line(&mut text, outcome, body);
    }
    text.push_str(&rest);
    text.push('\n');
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], text).into_response())
}

fn unreadable(error: MapError) -> (StatusCode, String) {
    super::broken(error)
}

/// One item, in one line.
fn write_line(text: &mut String, outcome: &Outcome, body: &[u8]) {
    let (index, attempt) = (outcome.ended.index, outcome.ended.attempt);
    text.extend([
        "{\"index\":",
        &index.to_string(),
        ",\"attempt\":",
        &attempt.to_string(),
    ]);
    if let Some((said, value)) = outcome::read(body) {
        let said = said.json();
        let fields = said.strip_prefix('{').and_then(|said| said.strip_suffix('}'));
        text.extend([",", fields.unwrap_or_default()]);
        write_value(text, value);
    } else {
        let is_success = of_stored(outcome.ended).is_ok_and(|ended| ended.cause == Cause::Success);
        let reason = if is_success {
            reason::SUCCEEDED
        } else {
            reason::INTERRUPTED
        };
        text.extend([",\"reason\":\"", reason, "\""]);
        // The leader itself ends an item whose machine was lost once too often.
        if body.is_empty() && !is_success {
            text.extend([",\"message\":\"", EXHAUSTED, "\""]);
        }
    }
    text.push_str("}\n");
}

/// The value of an item, which a machine told: it may be anything.
fn write_value(text: &mut String, value: &[u8]) {
    match serde_json::from_slice::<&RawValue>(value) {
        _ if value.is_empty() => {}
        Err(_) => text.extend([",\"valueBytes\":", &value.len().to_string()]),
        Ok(value) => {
            text.push_str(",\"value\":");
            let breaks_lines = [b'\n', b'\r']
                .iter()
                .any(|end| value.get().as_bytes().contains(end));
            if breaks_lines {
                text.push_str(&value.get().replace(['\n', '\r'], " "));
            } else {
                text.push_str(value.get());
            }
        }
    }
}

/// Has items of an ended Task run again: first the log says so, then the status. Asked again after a crash in between,
/// the rest is done.
pub(super) async fn retry(
    State(shared): State<Shared>,
    Path((namespace, uid)): Task,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<String, (StatusCode, String)> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let again = Again::parse(&query).map_err(bad)?;
    let attempt = attempt(&query).map_err(bad)?;
    let name = query
        .get("name")
        .ok_or_else(|| bad("name: name the Task".to_owned()))?;
    let client = shared.client.clone().ok_or_else(super::just_begun)?;
    // A request that was sent twice would take the log over from the map that the first one has begun.
    let _turn = shared.retrying.turn(&uid).await;
    let api: Api<TaskObject> = Api::namespaced(client.clone(), &namespace);
    let unread = |error| {
        let why = format!("Task {name:?} and its Pool cannot be read now ({error}); try again");
        (StatusCode::SERVICE_UNAVAILABLE, why)
    };
    let found = api.get_opt(name).await.map_err(unread)?;
    let task = found
        .filter(|task| task.metadata.uid.as_ref() == Some(&uid))
        .ok_or_else(|| {
            (
                StatusCode::NOT_FOUND,
                format!("there is no Task {name:?} any more"),
            )
        })?;
    let status = task.status.clone().unwrap_or_default();
    if !status.phase.unwrap_or_default().is_finished() {
        return Ok(format!("Task {name:?} runs already\n"));
    }
    if attempt.is_some_and(|attempt| attempt != status.attempt) {
        return Ok(has_run_again(name));
    }
    if task.spec.pool_template.is_some() {
        let pools: Api<Pool> = Api::namespaced(client, &namespace);
        // The Task would end with that Pool.
        let pool = pools.get_opt(name).await.map_err(unread)?;
        if pool.is_some_and(|pool| pool.metadata.deletion_timestamp.is_some()) {
            let why =
                format!("the Pool of Task {name:?} is being returned; try again when Pool {name:?} is gone");
            return Err((StatusCode::CONFLICT, why));
        }
    }
    let Some(total) = status.items.as_ref().map(|items| items.total) else {
        return Ok(format!(
            "Task {name:?} ended before its items were read, so none can run again: create the Task again\n"
        ));
    };
    let items = {
        // Not while the API server is waited for: others look through logs, too.
        let _look = shared.maps.acquire().await;
        shared.store.charge(&uid, &namespace);
        reopened(&shared.store, shared.epoch, &uid, total, &again).await?
    };
    if has_lost_outcomes(&status, &items) {
        let why = format!(
            "the outcomes of the items of Task {name:?} are not in the result store any more, as after spec.retention.results: \
             no item can be told from the others, so none runs again; create the Task again"
        );
        return Err((StatusCode::CONFLICT, why));
    }
    let open = items.total() - items.done().len();
    if open == 0 {
        return Ok(format!("Task {name:?} has no item to retry\n"));
    }
    let now = clock::now();
    // Before the status, by which the Task begins again.
    (shared.forget)(&namespace);
    let version = task.metadata.resource_version.as_deref().unwrap_or_default();
    let next = begun_anew(status, &items, task.metadata.generation, now);
    drop(items);
    let change = patch(&uid, version, &next);
    let change = serde_json::from_value(change).map_err(|error| bad(error.to_string()))?;
    api.patch_status(name, &PatchParams::default(), &Patch::<()>::Json(change))
        .await
        .map_err(|error| {
            let why = format!("the status of Task {name:?} cannot be written now ({error}); try again");
            (StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
    let (items, run) = if open == 1 {
        ("item", "runs")
    } else {
        ("items", "run")
    };
    Ok(format!("{open} {items} of Task {name:?} {run} again\n"))
}

/// Writes into the log which items run again; answers where each of them is then.
async fn reopened(
    store: &Arc<Store>,
    epoch: u64,
    uid: &str,
    total: u32,
    again: &Again,
) -> Result<Items, (StatusCode, String)> {
    let (mut log, records) = store
        .lead_map(uid, Writer(rand::random()), epoch)
        .await
        .map_err(unreadable)?;
    let mut items = Items::new(total);
    for part in &records {
        replay(part, &mut items).map_err(super::broken)?;
        tokio::task::yield_now().await;
    }
    let wanted: Indices = match again {
        Again::Failed => items.failed().clone(),
        Again::Indices(ranges) => ranges
            .iter()
            .map(|range| *range.start()..range.end().saturating_add(1).min(total))
            .filter(|range| !range.is_empty())
            .collect(),
    };
    // Items that were not run are named, too: from then on failures count anew for `maxFailedItems`.
    let notes: Vec<Note> = wanted.ranges().map(Note::Reopened).collect();
    for some in notes.chunks(RANGES) {
        let records: Vec<Record> = some.iter().map(|note| Record::Note(note.to_string())).collect();
        log.append(&records).await.map_err(unreadable)?;
    }
    for note in notes {
        items.apply(&skyward_planner::map::record::Record::Note(note));
    }
    Ok(items)
}

/// Whether items have ended, as the status says, and the log knows of none: the log was deleted, and a longer `retention`
/// comes too late for it. A retry would run all items again, also items that succeeded.
fn has_lost_outcomes(status: &TaskStatus, items: &Items) -> bool {
    let ended = status
        .items
        .as_ref()
        .is_some_and(|items| items.succeeded > 0 || items.failed > 0);
    ended && items.ends() == 0
}

/// The status of a Task that waits again for its next attempt.
fn begun_anew(status: TaskStatus, items: &Items, generation: Option<i64>, now: Timestamp) -> TaskStatus {
    let failed = items.failed().len();
    let counts = ItemsStatus {
        total: items.total(),
        active: 0,
        succeeded: items.done().len() - failed,
        failed,
        failed_indexes: items.failed().describe(SHOWN_BYTES),
    };
    let ended = [condition::COMPLETE, condition::FAILED, condition::FINISHED];
    let kept: Vec<Condition> = status
        .conditions
        .iter()
        .filter(|condition| !ended.contains(&condition.type_.as_str()))
        .cloned()
        .collect();
    let message = "items run again, as a user has asked";
    let waits = [condition::SCHEDULED, condition::RUNNING]
        .map(|type_| NewCondition::new(type_, false, reason::RETRYING, message.to_owned()));
    TaskStatus {
        phase: Some(TaskPhase::Pending),
        reason: reason::RETRYING.to_owned(),
        done: counts.done(),
        items: Some(counts),
        mode: status.mode,
        source: status.source,
        dependencies: status.dependencies,
        attempt: status.attempt,
        restarts: status.restarts,
        // Retries that were used up are there again, as for the items.
        interruptions: 0,
        failures: status.failures,
        ignored_failures: status.ignored_failures,
        cost: status.cost,
        conditions: condition::apply(&kept, &waits, generation, now),
        observed_generation: generation,
        ..TaskStatus::default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use skyward_planner::map::outcome::{Outcome as Said, body};
    use skyward_store::maps::Ended;

    use super::*;

    pub(crate) const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000003";

    pub(crate) fn ended(index: u32, attempt: u32, cause: Cause) -> Record {
        let said = Said {
            reason: if cause == Cause::Success {
                "Succeeded"
            } else {
                "FunctionRaised"
            }
            .into(),
            ..Said::default()
        };
        let value = if cause == Cause::Success {
            format!("{index}")
        } else {
            String::new()
        };
        let ended = Ended {
            index,
            attempt,
            cause: cause.number(),
            is_final: true,
        };
        Record::Ended(ended, Bytes::from(body(&said, value.as_bytes())))
    }

    pub(crate) async fn filled(writes: &[Vec<Record>]) -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        store.charge(TASK, "team");
        let (mut log, _) = store.lead_map(TASK, Writer([1; 16]), 1).await.unwrap();
        log.append(&[Record::Note("granted 1-0 0 5".into())])
            .await
            .unwrap();
        for records in writes {
            log.append(records).await.unwrap();
        }
        (folder, store)
    }

    #[tokio::test]
    async fn an_item_whose_machines_were_lost_too_often_says_so() {
        let ended = Ended {
            index: 3,
            attempt: 4,
            cause: Cause::Interruption.number(),
            is_final: true,
        };
        let (_folder, store) = filled(&[vec![Record::Ended(ended, Bytes::new())]]).await;
        let records = store.map_records(TASK, 0, &[]).await.unwrap();
        let page = as_written(&records, 0, false);
        let bodies = store.map_bodies(TASK, &page.outcomes).await.unwrap();
        let mut line = String::new();
        write_line(&mut line, &page.outcomes[0], &bodies[0]);
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "index": 3, "attempt": 4, "reason": "Interrupted",
            "message": "it was interrupted more often than retries.onInterruption allows",
        });
        assert_eq!(said, expected);
    }

    #[tokio::test]
    async fn a_retry_waits_for_another_one_of_its_own_task_alone_and_leaves_nothing_in_memory() {
        let retrying = Retrying::default();
        let first = retrying.turn(TASK).await;
        let mut second = Box::pin(retrying.turn(TASK));
        assert!(second.as_mut().now_or_never().is_none(), "the first one goes on");
        let other = retrying.turn("another");
        assert!(other.now_or_never().is_some(), "another Task waits for it");
        drop(first);
        drop(second.await);
        drop(retrying.turn("a third").await);
        let known = retrying.0.lock();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["a third"]);
    }

    #[tokio::test]
    async fn items_that_a_user_asks_for_run_again_once_however_often_they_ask() {
        let writes = [vec![ended(0, 1, Cause::Failure), ended(1, 1, Cause::Success)]];
        let (_folder, store) = filled(&writes).await;
        let items = reopened(&store, 2, TASK, 5, &Again::Failed).await.unwrap();
        assert!(!items.done().contains(0) && items.done().contains(1));
        let length = store.map_records(TASK, 0, &[]).await.unwrap().len();
        let items = reopened(&store, 3, TASK, 5, &Again::Failed).await.unwrap();
        assert_eq!(items.done().describe(64), "1");
        assert!(
            store.map_records(TASK, 0, &[]).await.unwrap().len() <= length + 1,
            "only its mark was written"
        );
    }

    #[tokio::test]
    async fn an_item_that_a_user_names_runs_although_too_many_others_have_failed() {
        let writes = [vec![ended(0, 1, Cause::Failure), ended(1, 1, Cause::Failure)]];
        for (wanted, failed) in [(0, 1), (4, 2)] {
            let (_folder, store) = filled(&writes).await;
            let again = Again::Indices(vec![wanted..=wanted]);
            let items = reopened(&store, 2, TASK, 5, &again).await.unwrap();
            assert_eq!((items.failed().len(), items.new_failures()), (failed, 0));
            let (_, records) = store.lead_map(TASK, Writer([3; 16]), 3).await.unwrap();
            let mut next = Items::new(5);
            for part in &records {
                replay(part, &mut next).unwrap();
            }
            assert_eq!(next.new_failures(), 0, "the next leader knows it, too");
        }
    }

    #[tokio::test]
    async fn nothing_runs_again_where_the_outcomes_were_deleted() {
        let told = |succeeded| TaskStatus {
            items: Some(ItemsStatus {
                total: 5,
                succeeded,
                ..ItemsStatus::default()
            }),
            ..TaskStatus::default()
        };
        let (_folder, deleted) = filled(&[]).await;
        let items = reopened(&deleted, 2, TASK, 5, &Again::Failed).await.unwrap();
        assert!(has_lost_outcomes(&told(1), &items));
        assert!(!has_lost_outcomes(&told(0), &items), "none was run");
        let (_folder, kept) = filled(&[vec![ended(0, 1, Cause::Success)]]).await;
        let all = Again::Indices(vec![0..=4]);
        let items = reopened(&kept, 2, TASK, 5, &all).await.unwrap();
        assert!(items.done().is_empty() && !has_lost_outcomes(&told(1), &items));
    }

    #[test]
    fn a_status_of_items_that_run_again_is_that_of_a_task_that_waits() {
        let mut items = Items::new(3);
        for index in 0..2 {
            items.apply(&skyward_planner::map::record::Record::Ended(
                skyward_planner::map::record::Ended {
                    index,
                    attempt: 1,
                    cause: Cause::Success,
                    is_final: true,
                },
            ));
        }
        let ended = TaskStatus {
            phase: Some(TaskPhase::Failed),
            attempt: 2,
            interruptions: 4,
            duration: "1m".into(),
            conditions: condition::apply(
                &[],
                &[NewCondition::new(
                    condition::FAILED,
                    true,
                    reason::ITEMS_FAILED,
                    "x".to_owned(),
                )],
                None,
                Timestamp::UNIX_EPOCH,
            ),
            ..TaskStatus::default()
        };
        let status = begun_anew(ended, &items, Some(1), Timestamp::UNIX_EPOCH);
        assert_eq!(
            (status.phase, status.done.as_str()),
            (Some(TaskPhase::Pending), "2/3")
        );
        assert_eq!((status.attempt, status.duration.as_str()), (2, ""));
        assert_eq!(
            status.interruptions, 0,
            "the next lost machine must not end the Task at once"
        );
        assert!(condition::find(&status.conditions, condition::FAILED).is_none());
    }
}
