//! `…/tasks/NAME/result`: the return values of a function's runs, as JSON.
//!
//! Small values stand in the Task's status and are taken from there, so they can be read
//! while no controller leads; the others come from the leader, piece by piece.

use std::{io, sync::Arc};

use axum::body::Bytes;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use serde_json::Value;
use skyward_api::Task;

use crate::{
    data::{Chunks, DataError, Runs, run_id},
    reading::{Reading, attempt, describe, phase, ranks},
    status::Failure,
};

/// One value, or all of them as an array of `{"rank": …, "value": …}`.
pub(crate) async fn open(
    reading: Reading,
    task: Task,
    rank: Option<u32>,
) -> Result<BoxStream<'static, io::Result<Bytes>>, Failure> {
    let name = reading.name.clone();
    if task.spec.function.is_none() {
        return Err(Failure::not_found(format!(
            "Task {name:?} ran no function, and only functions return values; how its runs ended stands in its status (kubectl skyward results {name}), what they printed in its log"
        )));
    }
    if !phase(&task).is_finished() {
        return Err(Failure::not_found(format!(
            "Task {name:?} has not ended, so it has no result yet: it is {}",
            describe(&task)
        )));
    }
    let number = attempt(&task);
    let several = task.status.as_ref().is_some_and(|status| status.placed.len() > 1);
    let task = Arc::new(task);
    if let (false, Some(rank)) = (several && rank.is_none(), only_rank(&task, rank)) {
        return match value(&reading, &task, number, rank).await? {
            Some(chunks) => Ok(chunks),
            None => Err(none(&task, &name, Some(rank))),
        };
    }
    let known = match reading.runs(&task).await {
        Ok(runs) => runs,
        Err(DataError::NotFound) => Runs::default(),
        Err(DataError::Unavailable(text)) => return Err(Failure::unavailable(text)),
    };
    let mut all = ranks(&task, &known, number).into_iter();
    if !several {
        // One run, whose rank the status does not tell.
        let Some(rank) = all.next() else {
            return Err(none(&task, &name, None));
        };
        return value(&reading, &task, number, rank)
            .await?
            .ok_or_else(|| none(&task, &name, None));
    }
    // The first value is found before the answer begins, so that "none at all" can be said.
    let first = loop {
        let Some(rank) = all.next() else {
            return Err(none(&task, &name, None));
        };
        if let Some(chunks) = value(&reading, &task, number, rank).await? {
            break (rank, chunks);
        }
    };
    let rest = stream::iter(all).filter_map(move |rank| {
        let (reading, task) = (reading.clone(), Arc::clone(&task));
        async move {
            match value(&reading, &task, number, rank).await {
                Ok(None) => None,
                Ok(Some(chunks)) => Some((rank, chunks)),
                Err(failure) => {
                    let error = Err(io::Error::other(failure.message));
                    Some((rank, stream::once(async { error }).boxed()))
                }
            }
        }
    });
    let array = stream::once(async { first })
        .chain(rest)
        .enumerate()
        .flat_map(|(index, (rank, chunks))| {
            let head = format!(
                "{}{{\"rank\":{rank},\"value\":",
                if index == 0 { "[" } else { "," }
            );
            text(head).chain(chunks).chain(text("}".to_owned()))
        });
    Ok(array.chain(text("]\n".to_owned())).boxed())
}

fn text(text: String) -> BoxStream<'static, io::Result<Bytes>> {
    stream::once(async { Ok(Bytes::from(text)) }).boxed()
}

/// The rank to read: that asked for, or that of the only run in the status.
fn only_rank(task: &Task, wanted: Option<u32>) -> Option<u32> {
    wanted.or_else(|| match task.status.as_ref()?.results.as_slice() {
        [one] => Some(one.rank),
        _ => None,
    })
}

async fn value(reading: &Reading, task: &Task, number: u32, rank: u32) -> Result<Option<Chunks>, Failure> {
    let inline = task
        .status
        .iter()
        .flat_map(|status| &status.results)
        .find(|result| result.rank == rank && result.attempt == number);
    if let Some(value) = inline.and_then(|result| result.value.as_ref()) {
        return Ok(Some(text(value.to_string())));
    }
    match reading.result(&run_id(&reading.uid, number, rank)).await {
        Ok(chunks) => Ok(Some(chunks)),
        // `null` in the status cannot be told from no value; its size can.
        Err(DataError::NotFound) if inline.is_some_and(|r| r.value_bytes == Some(4)) => {
            Ok(Some(text(Value::Null.to_string())))
        }
        Err(DataError::NotFound) => Ok(None),
        Err(DataError::Unavailable(text)) => Err(Failure::unavailable(text)),
    }
}

fn none(task: &Task, name: &str, rank: Option<u32>) -> Failure {
    let message = task
        .status
        .iter()
        .flat_map(|status| &status.results)
        .find(|r| rank.is_none_or(|rank| r.rank == rank));
    let why = message
        .map(|result| result.message.as_str())
        .filter(|text| !text.is_empty());
    let what = rank
        .filter(|_| several(task))
        .map_or_else(String::new, |rank| format!(" of rank {rank}"));
    Failure::not_found(match why {
        Some(why) => format!(
            "Task {name:?} has no return value{what}: it is {}: {why}",
            describe(task)
        ),
        None => format!(
            "Task {name:?} has no return value{what}: it is {}",
            describe(task)
        ),
    })
}

fn several(task: &Task) -> bool {
    task.status.as_ref().is_some_and(|status| status.placed.len() > 1)
}
