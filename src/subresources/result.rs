//! `…/tasks/NAME/result`: the return values of a function's runs, as JSON.
//!
//! Small values stand in the Task's status and are taken from there, so they can be read
//! while no controller leads; the others come from the leader, piece by piece. A value that
//! the status shows in another text than the function's own comes from the leader, too.
//!
//! The API server cuts every answer off after 60 s. So a client that asks for an `offset` gets a
//! part that can be sent before that, properly ended, and asks for the rest at the next offset. The
//! answer as a whole ends with a newline, and no part of it before the last one does.

use std::{io, sync::Arc, time::Duration};

use axum::body::Bytes;
use futures::{
    StreamExt,
    future::ready,
    stream::{self, BoxStream},
};
use serde_json::Value;
use skyward_api::Task;
use tokio::time::{Instant, timeout_at};

use crate::{
    data::{Chunks, DataError, Runs, run_id},
    reading::{Reading, attempt, describe, phase, ranks},
    records::MORE,
    status::Failure,
};

/// How long a part may take: well below the 60 s of the API server.
const PART: Duration = Duration::from_secs(45);

/// One value, or all of them as an array of `{"rank": …, "value": …}`; with an offset, a part from
/// there on.
pub(crate) async fn open(
    reading: Reading,
    task: Task,
    rank: Option<u32>,
    offset: Option<u64>,
) -> Result<Chunks, Failure> {
    let end = Instant::now() + PART;
    has_ended(&reading.name, &task, rank)?;
    let begin = offset.unwrap_or_default();
    let is_array = several(&task) && rank.is_none();
    let mut chunks = if is_array {
        from(all(reading, task).await?, begin)
    } else {
        one(&reading, &task, rank, begin).await?
    };
    if is_array || offset.is_some() {
        chunks = chunks.chain(text("\n".to_owned())).boxed();
    }
    Ok(if offset.is_some() {
        part(chunks, end)
    } else {
        chunks
    })
}

/// Checks whether the Task has a function.
pub(crate) fn has_function(name: &str, task: &Task) -> Result<(), Failure> {
    if task.spec.function.is_none() {
        return Err(Failure::not_found(format!(
            "Task {name:?} ran no function, and only functions return values; how its runs ended stands in its status (kubectl skyward results {name}), what they printed in its log"
        )));
    }
    Ok(())
}

/// Checks whether the Task can have a result of that rank.
fn has_ended(name: &str, task: &Task, rank: Option<u32>) -> Result<(), Failure> {
    has_function(name, task)?;
    if !phase(task).is_finished() {
        return Err(Failure::not_found(format!(
            "Task {name:?} has not ended, so it has no result yet: it is {}",
            describe(task)
        )));
    }
    let placed = task.status.as_ref().map_or(0, |status| status.placed.len());
    if let (Some(rank), Some(last)) = (rank, placed.checked_sub(1))
        && usize::try_from(rank).map_or(true, |rank| rank > last)
    {
        return Err(Failure::bad_request(format!(
            "Task {name:?} has no rank {rank}; its highest rank is {last}"
        )));
    }
    Ok(())
}

/// The value of one rank, or of the only run, from an offset.
async fn one(reading: &Reading, task: &Task, rank: Option<u32>, offset: u64) -> Result<Chunks, Failure> {
    let number = attempt(task);
    let known = only_rank(task, rank);
    let rank = match known {
        Some(rank) => Some(rank),
        // There is one run, and the status does not tell its rank.
        None => ranks(task, &runs(reading, task).await?, number)
            .into_iter()
            .next(),
    };
    let value = match rank {
        Some(rank) => value(reading, task, number, rank, offset).await?,
        None => None,
    };
    value.ok_or_else(|| none(task, &reading.name, known))
}

async fn runs(reading: &Reading, task: &Task) -> Result<Runs, Failure> {
    match reading.runs(task).await {
        Ok(runs) => Ok(runs),
        Err(DataError::NotFound) => Ok(Runs::default()),
        Err(DataError::Unavailable(text)) => Err(Failure::unavailable(text)),
    }
}

/// The values of all ranks that have one, as an array.
async fn all(reading: Reading, task: Task) -> Result<Chunks, Failure> {
    let number = attempt(&task);
    let mut all = ranks(&task, &runs(&reading, &task).await?, number).into_iter();
    // The first value is found before the answer begins, so that "none at all" can be a 404.
    let first = loop {
        let Some(rank) = all.next() else {
            return Err(none(&task, &reading.name, None));
        };
        if let Some(chunks) = value(&reading, &task, number, rank, 0).await? {
            break (rank, chunks);
        }
    };
    let task = Arc::new(task);
    let rest = stream::iter(all).filter_map(move |rank| {
        let (reading, task) = (reading.clone(), Arc::clone(&task));
        async move {
            match value(&reading, &task, number, rank, 0).await {
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
    Ok(array.chain(text("]".to_owned())).boxed())
}

/// The part that can be sent before that moment. It ends with a newline only if all was sent.
fn part(chunks: Chunks, end: Instant) -> Chunks {
    stream::unfold((chunks, true), move |(mut chunks, may_end)| async move {
        let chunk = if !may_end {
            chunks.next().await?
        } else if Instant::now() >= end {
            return None;
        } else {
            timeout_at(end, chunks.next()).await.ok()??
        };
        let may_end = chunk.as_ref().map_or(true, |bytes| !bytes.ends_with(b"\n"));
        Some((chunk, (chunks, may_end)))
    })
    .boxed()
}

/// As much of a stream of framed records as can be sent before the API server cuts the answer off. Each chunk has whole
/// lines.
pub(crate) fn records_in_part(chunks: Chunks) -> Chunks {
    records_until(chunks, Instant::now() + PART)
}

fn records_until(chunks: Chunks, end: Instant) -> Chunks {
    stream::unfold(Some(chunks), move |chunks| async move {
        let mut chunks = chunks?;
        let next = if Instant::now() < end {
            timeout_at(end, chunks.next()).await.ok()
        } else {
            None
        };
        match next {
            Some(chunk) => Some((chunk?, Some(chunks))),
            None => Some((Ok(Bytes::from_static(MORE)), None)),
        }
    })
    .boxed()
}

/// The stream without its first bytes.
fn from(chunks: Chunks, offset: u64) -> Chunks {
    let mut left = offset;
    chunks
        .map(move |chunk| {
            chunk.map(|bytes| {
                let passed = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                left -= passed as u64;
                bytes.slice(passed..)
            })
        })
        .filter(|chunk| ready(chunk.as_ref().map_or(true, |bytes| !bytes.is_empty())))
        .boxed()
}

fn text(text: String) -> BoxStream<'static, io::Result<Bytes>> {
    stream::once(async { Ok(Bytes::from(text)) }).boxed()
}

/// The rank to read: the rank that was asked for, or the rank of the only run in the status.
fn only_rank(task: &Task, wanted: Option<u32>) -> Option<u32> {
    wanted.or_else(|| match task.status.as_ref()?.results.as_slice() {
        [one] => Some(one.rank),
        _ => None,
    })
}

async fn value(
    reading: &Reading,
    task: &Task,
    number: u32,
    rank: u32,
    offset: u64,
) -> Result<Option<Chunks>, Failure> {
    let inline = task
        .status
        .iter()
        .flat_map(|status| &status.results)
        .find(|result| result.rank == rank && result.attempt == number);
    let shown = inline.and_then(|result| Some((result.value.as_ref()?.to_string(), result.value_bytes)));
    // Kubernetes writes some values in its own way, such as 1.0 as 1. The size tells.
    if let Some((value, bytes)) = &shown
        && bytes.is_none_or(|bytes| usize::try_from(bytes) == Ok(value.len()))
    {
        return Ok(Some(from(text(value.clone()), offset)));
    }
    match reading.result(&run_id(&reading.uid, number, rank), offset).await {
        Ok(chunks) => Ok(Some(chunks)),
        Err(DataError::NotFound) => Ok(shown
            .map(|(value, _)| value)
            // `null` in the status looks like no value; its size shows the difference.
            .or_else(|| {
                inline
                    .filter(|result| result.value_bytes == Some(4))
                    .map(|_| Value::Null.to_string())
            })
            .map(|value| from(text(value), offset))),
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
        .filter(|result| !result.message.is_empty())
        .map_or_else(String::new, |result| format!(": {}", result.message));
    let what = rank
        .filter(|_| several(task))
        .map_or_else(String::new, |rank| format!(" of rank {rank}"));
    Failure::not_found(format!(
        "Task {name:?} has no return value{what}: it is {}{why}",
        describe(task)
    ))
}

fn several(task: &Task) -> bool {
    task.status.as_ref().is_some_and(|status| status.placed.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(chunks: Chunks) -> String {
        let pieces: Vec<Bytes> = chunks.map(Result::unwrap).collect().await;
        String::from_utf8(pieces.concat()).unwrap()
    }

    /// A chunk each second.
    fn slow(chunks: &'static [&'static str]) -> Chunks {
        stream::iter(chunks)
            .then(|chunk| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Bytes::from_static(chunk.as_bytes()))
            })
            .boxed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_with_records_says_that_there_is_more_unless_it_is_whole() {
        let pieces = &["1 0 8 1 v F a\n", "1 0 16 1 v F b\n"];
        let end = |millis| Instant::now() + Duration::from_millis(millis);
        assert_eq!(
            read(records_until(slow(pieces), end(9000))).await,
            pieces.concat()
        );
        let cut = format!("{}+\n", pieces[0]);
        assert_eq!(read(records_until(slow(pieces), end(1500))).await, cut);
        let ready = stream::repeat_with(|| Ok(Bytes::from_static(b"1\n"))).boxed();
        assert_eq!(
            read(records_until(ready, end(0))).await,
            "+\n",
            "also one that never waits ends"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn parts_make_the_whole_and_only_the_last_one_ends_with_a_newline() {
        let pieces = &["[1,", "2,\n", "3]", "\n"];
        let end = |millis| Instant::now() + Duration::from_millis(millis);
        assert_eq!(read(part(slow(pieces), end(9000))).await, "[1,2,\n3]\n");
        assert_eq!(read(part(slow(pieces), end(1500))).await, "[1,");
        assert_eq!(
            read(part(slow(pieces), end(2500))).await,
            "[1,2,\n3]",
            "a newline inside does not look like the end"
        );
        assert_eq!(read(part(from(slow(pieces), 6), end(9000))).await, "3]\n");
        let ready = stream::repeat_with(|| Ok(Bytes::from_static(b"1"))).boxed();
        assert_eq!(
            read(part(ready, end(0))).await,
            "",
            "also one that never waits ends"
        );
    }
}
