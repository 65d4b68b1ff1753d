//! Brings logs and results from agents into the store, a piece at a time.

mod ranks;
mod recall;
mod summary;

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{
    StreamExt,
    future::join,
    stream::{BoxStream, Fuse},
};
use skyward_agent::log::{Encoder, Stream};
use skyward_api::{condition::reason, task::RunResult};
use skyward_planner::{
    base::key::Key,
    task::{
        dispatcher::is_complete,
        message::{CollectError, CollectOrder, Collected},
        model::RunId,
    },
};
use skyward_remote::{
    AgentError, RunReader,
    protocol::{CHUNK_BYTES, Chunk},
    turns::Turns,
};
use skyward_store::{Class, Extent, Gap, Missing, Store};
use tokio::time::timeout;

use self::summary::summary;
use crate::{
    metrics::Metrics,
    task::{environment::RESULT_LIMIT, pace::Pace},
};

pub(crate) use ranks::keep_ranks;
pub(crate) use recall::{recall, recall_later};
pub(crate) use summary::{reason_of, signal_name};

/// Once so many bytes of a log or value have come, they are stored.
const PIECE: usize = 512 * 1024;
/// Most bytes of a piece: the chunk that completes it is not divided.
const HELD: usize = PIECE + CHUNK_BYTES;
/// Most bytes that one copy of a running log takes, so that others have their turn.
const TURN: u64 = 32 * 1024 * 1024;
/// Most gaps that are kept of one log: a machine that invents more would fill the store with names.
const MAX_GAPS: usize = 64;
/// Most of them while the run goes on. A run that prints faster than it is copied makes a gap with
/// each piece; one more comes before the newest part of its log, which is fetched when it has ended.
const GAPS_OF_A_RUNNING_LOG: usize = MAX_GAPS / 2;
/// Largest offset in a log: it fits where numbers are signed, too.
const MAX_OFFSET: u64 = i64::MAX as u64;
/// Longest wait for the store to take or give one piece.
const STORE_DEADLINE: Duration = Duration::from_mins(1);
/// The message about a machine that does not send the log or result of a run.
const SILENT: &str = "its machine sends next to nothing";

/// Copies what a running run has printed so far, until so many bytes of it are stored: then
/// its machine keeps the newest part, which is fetched when the run has ended. A failed copy is
/// tried again soon.
pub(crate) async fn copy_log(
    store: &Arc<Store>,
    agent: &dyn RunReader,
    run: &RunId,
    limit: u64,
    metrics: &Metrics,
) {
    let pace = Pace::begin();
    let bounds = Bounds {
        taken: TURN,
        stored: limit,
        end: MAX_OFFSET,
        gaps: GAPS_OF_A_RUNNING_LOG,
    };
    let copy = async {
        // Nothing is fetched for a namespace without room.
        let id = run.to_string();
        let room = store.has_room(&run.uid, &id, 1, Class::Bulk);
        if !matches!(timeout(STORE_DEADLINE, room).await, Ok(Ok(()))) {
            return Ok(0);
        }
        copy_to(store, agent, run, bounds, metrics, &pace).await
    };
    if let Err(error) = copy.await {
        tracing::debug!(%run, %error, "a log cannot be copied now");
    }
}

/// How far a copy goes.
struct Bounds {
    /// Bytes that it takes; the last piece is completed.
    taken: u64,
    /// Stops once so many bytes of the log are stored.
    stored: u64,
    /// Offset where the log ends.
    end: u64,
    /// Most gaps; the copy stops at the next one.
    gaps: usize,
}

/// Copies the log from where the store's copy ends; returns where the copy ends then.
async fn copy_to(
    store: &Arc<Store>,
    agent: &dyn RunReader,
    run: &RunId,
    bounds: Bounds,
    metrics: &Metrics,
    pace: &Pace,
) -> Result<u64, CollectError> {
    let id = run.to_string();
    let Extent {
        mut end,
        bytes,
        mut gaps,
    } = in_time(metrics, store.log_extent(&run.uid, &id)).await?;
    if bytes >= bounds.stored || end >= bounds.end {
        return Ok(end);
    }
    let stream = pace.open(agent.read_log(&id, end, false)).await;
    let mut stream = pace.limit(stream.map_err(of_machine)?, bounds.end);
    let mut held = BytesMut::new();
    // Offset of the first byte in `held`. The store may be further: the copy of a running log goes on for a
    // moment beside the collection of the ended run.
    let mut start = end;
    let mut taken = 0;
    while let Some(chunk) = stream.next().await {
        let Chunk { offset, data } = chunk.map_err(of_machine)?;
        if data.is_empty() {
            continue;
        }
        let next = start + held.len() as u64;
        if offset < next || offset >= bounds.end {
            return Err(CollectError::Machine(format!(
                "the agent sent offset {offset} of the log, {next} was next and {} is its end",
                bounds.end
            )));
        }
        if offset > next {
            if gaps >= bounds.gaps {
                tracing::debug!(%run, gaps, "a log has more gaps than are kept: the copy ends at the next one");
                break;
            }
            if !held.is_empty() {
                put_log(store, run, start, held.split().freeze(), metrics).await?;
            }
            let gap = Gap {
                start: next,
                end: offset,
                why: Missing::OverLimit,
            };
            end = in_time(metrics, store.put_log_gap(&run.uid, &id, gap)).await?;
            gaps += 1;
            start = offset;
        }
        let room = usize::try_from(bounds.end - offset).unwrap_or(usize::MAX);
        hold(&mut held, &data[..data.len().min(room)]);
        if held.len() >= PIECE {
            let count = held.len() as u64;
            end = put_log(store, run, start, held.split().freeze(), metrics).await?;
            start += count;
            taken += count;
            if taken >= bounds.taken {
                return Ok(end);
            }
        }
        if data.len() >= room {
            break;
        }
    }
    if held.is_empty() {
        Ok(end)
    } else {
        put_log(store, run, start, held.freeze(), metrics).await
    }
}

/// Appends bytes. A buffer that grows by itself would take up to twice the room.
fn hold(held: &mut BytesMut, data: &[u8]) {
    if held.is_empty() && data.len() < CHUNK_BYTES {
        held.reserve(data.len());
    } else {
        held.reserve(HELD.saturating_sub(held.len()).max(data.len()));
    }
    held.extend_from_slice(data);
}

async fn put_log(
    store: &Arc<Store>,
    run: &RunId,
    start: u64,
    bytes: Bytes,
    metrics: &Metrics,
) -> Result<u64, CollectError> {
    let count = bytes.len() as u64;
    let id = run.to_string();
    let end = in_time(metrics, store.put_log_segment(&run.uid, &id, start, bytes)).await?;
    metrics.stored("log", count);
    Ok(end)
}

/// One call of the store, with its deadline; a failure is counted.
async fn in_time<T>(
    metrics: &Metrics,
    call: impl Future<Output = Result<T, skyward_store::Error>>,
) -> Result<T, CollectError> {
    match timeout(STORE_DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(of_store(&error, metrics)),
        Err(_) => {
            metrics.store_failed("late");
            Err(CollectError::Store("the result store does not answer".to_owned()))
        }
    }
}

fn of_machine(error: AgentError) -> CollectError {
    CollectError::Machine(error.to_string())
}

/// What a failure of the store means; it is counted.
pub(crate) fn of_store(error: &skyward_store::Error, metrics: &Metrics) -> CollectError {
    use std::error::Error;
    let text = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    match error {
        skyward_store::Error::Full(_) | skyward_store::Error::Kept => {
            metrics.store_failed("full");
            // The system's own message helps no user.
            CollectError::Full(error.to_string())
        }
        skyward_store::Error::QuotaExceeded { .. } | skyward_store::Error::TooManyFiles { .. } => {
            metrics.store_failed("quota");
            CollectError::Quota(text)
        }
        skyward_store::Error::TooLarge => CollectError::TooLarge(text),
        skyward_store::Error::BadId(_)
        | skyward_store::Error::Gap { .. }
        | skyward_store::Error::TooManyUploads
        | skyward_store::Error::Contended
        | skyward_store::Error::Strange(_)
        | skyward_store::Error::Misnamed(_)
        | skyward_store::Error::Other(_) => {
            metrics.store_failed("other");
            CollectError::Store(text)
        }
    }
}

/// The outcome of one turn.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Everything is in the store.
    Done(Box<Collected>),
    /// The transfer goes on with the next turn.
    TurnOver,
}

/// Brings the log and result of an ended run into the store, in as many turns as it takes. Parts
/// that the fact itself carries wait for no turn.
pub(crate) async fn collect_in_turns(
    turns: &Arc<Turns>,
    pool: &Key,
    store: &Arc<Store>,
    agent: impl Fn() -> Option<AnyReader>,
    order: &CollectOrder,
    secrets: Option<&[String]>,
    metrics: &Metrics,
) -> Result<Box<Collected>, CollectError> {
    store.charge(&order.run.uid, &pool.namespace);
    loop {
        let turn = if is_complete(&order.finished) {
            None
        } else {
            Some(turns.wait(&pool.namespace, &pool.name).await)
        };
        let pace = Pace::begin();
        let agent = agent();
        let progress = collect(store, agent.as_deref(), order, secrets, metrics, &pace).await?;
        drop(turn);
        match progress {
            Progress::Done(collected) => return Ok(collected),
            // A machine that sends nothing is not waited for, but asked again later.
            Progress::TurnOver if pace.was_in_vain() => return Err(CollectError::Machine(SILENT.to_owned())),
            Progress::TurnOver => {}
        }
    }
}

/// One turn of a collection; the error says why it must be tried again. `secrets`: `None` when they
/// cannot be read.
pub(crate) async fn collect(
    store: &Arc<Store>,
    agent: Option<&dyn RunReader>,
    order: &CollectOrder,
    secrets: Option<&[String]>,
    metrics: &Metrics,
    pace: &Pace,
) -> Result<Progress, CollectError> {
    let (run, finished) = (&order.run, &*order.finished);
    // For a machine that is connected and still gives nothing.
    let gives_up_reading = order.unreadable && agent.is_some();
    let too_large = finished.result_bytes > RESULT_LIMIT;
    let has_value = finished.has_result && !too_large;
    // A value that came with the fact is stored before a log is fetched: it is safe then, and its
    // memory is free. A failed write is tried again below.
    let is_first = has_value
        && finished.result.len() as u64 == finished.result_bytes
        && finished.log.len() as u64 != finished.log_bytes;
    let is_stored = is_first && bring_value(store, agent, order, metrics, pace).await.is_ok();
    let (mut missing, mut cut, mut unread) = (0, None, None);
    match bring_log(store, agent, order, metrics, pace).await {
        Ok(_) if gives_up_reading && pace.was_in_vain() => unread = Some(SILENT.to_owned()),
        Ok(bytes) => missing = bytes,
        Err(CollectError::Quota(why) | CollectError::TooLarge(why)) => cut = Some(why),
        Err(CollectError::Full(why)) if order.give_up => cut = Some(why),
        Err(CollectError::Machine(why)) if gives_up_reading => unread = Some(why),
        Err(error) => return Err(error),
    }
    // The machine may give the value although it does not give the log.
    let another = Pace::begin();
    let pace = if unread.is_some() { &another } else { pace };
    if pace.is_over() {
        return Ok(Progress::TurnOver);
    }
    let mut given_up = None;
    if has_value && !is_stored {
        let lost = match bring_value(store, agent, order, metrics, pace).await {
            Ok(()) if gives_up_reading && pace.was_in_vain() => Some(SILENT.to_owned()),
            Ok(()) if pace.is_over() => return Ok(Progress::TurnOver),
            Ok(()) => None,
            Err(CollectError::Quota(why) | CollectError::Full(why)) if order.give_up => Some(why),
            Err(CollectError::Machine(why)) if gives_up_reading => Some(why),
            Err(error) => return Err(error),
        };
        if let Some(why) = lost {
            in_time(metrics, store.drop_result(&run.uid, &run.to_string())).await?;
            given_up = Some(why);
        }
    }
    let mut collected = summary(finished, too_large, secrets);
    if let Some(why) = given_up {
        collected.reason = reason::RESULT_NOT_STORED;
        reason::RESULT_NOT_STORED.clone_into(&mut collected.result.reason);
        collected.result.message = format!(
            "its return value of {} was given up after the wait of store.holdFor: {why}",
            skyward_store::amount(finished.result_bytes)
        );
        (collected.result.value, collected.result.value_bytes) = (None, None);
    }
    if missing > 0 {
        let note = format!("its machine was lost before the last {missing} bytes of its log were copied");
        add_note(&mut collected, &note);
    }
    if let Some(why) = unread {
        let why = format!("its machine did not give them: {why}");
        let end = in_time(metrics, store.log_end(&run.uid, &run.to_string())).await?;
        let missing = finished.log_bytes.saturating_sub(end);
        add_note(
            &mut collected,
            &format!("the last {missing} bytes of its log are missing, {why}"),
        );
        cut = Some(why);
    }
    let last = async {
        if let Some(why) = cut {
            end_log(store, order, &why, metrics).await?;
        }
        if order.keep {
            keep(store, order, &collected, metrics).await?;
        }
        Ok(())
    };
    match last.await {
        Ok(()) => {}
        // Not even the value has room, and it has waited long enough.
        Err(CollectError::Full(why) | CollectError::Quota(why)) if order.give_up => {
            tracing::warn!(%run, why, "a run ends although not even its end could be stored");
        }
        Err(error) => return Err(error),
    }
    Ok(Progress::Done(Box::new(collected)))
}

fn add_note(collected: &mut Collected, note: &str) {
    let message = &mut collected.result.message;
    if !message.is_empty() {
        message.push_str("; ");
    }
    message.push_str(note);
}

fn unreachable() -> CollectError {
    CollectError::Machine("its machine is not connected".to_owned())
}

/// Collects the log; returns how many bytes of it are lost with its machine.
async fn bring_log(
    store: &Arc<Store>,
    agent: Option<&dyn RunReader>,
    order: &CollectOrder,
    metrics: &Metrics,
    pace: &Pace,
) -> Result<u64, CollectError> {
    let (run, finished) = (&order.run, &*order.finished);
    if finished.log_bytes == 0 {
        return Ok(0);
    }
    if finished.log.len() as u64 == finished.log_bytes {
        put_log(store, run, 0, Bytes::copy_from_slice(&finished.log), metrics).await?;
    } else if order.gone {
        let end = in_time(metrics, store.log_end(&run.uid, &run.to_string())).await?;
        return Ok(finished.log_bytes.saturating_sub(end));
    } else {
        let agent = agent.ok_or_else(unreachable)?;
        let bounds = Bounds {
            taken: u64::MAX,
            stored: u64::MAX,
            end: finished.log_bytes.min(MAX_OFFSET),
            gaps: MAX_GAPS,
        };
        let end = copy_to(store, agent, run, bounds, metrics, pace).await?;
        if end < finished.log_bytes && !pace.is_over() {
            tracing::warn!(%run, end, wanted = finished.log_bytes, "the agent has less log than it said");
        }
    }
    Ok(0)
}

/// Collects the return value; it is stored whole unless the turn ended first.
async fn bring_value(
    store: &Arc<Store>,
    agent: Option<&dyn RunReader>,
    order: &CollectOrder,
    metrics: &Metrics,
    pace: &Pace,
) -> Result<(), CollectError> {
    let (run, finished) = (&order.run, &*order.finished);
    let (task, id, size) = (&run.uid, run.to_string(), finished.result_bytes);
    if finished.result.len() as u64 == size {
        let json = Bytes::copy_from_slice(&finished.result);
        in_time(metrics, store.put_result(task, &id, json)).await?;
        metrics.stored("result", size);
        return Ok(());
    }
    if in_time(metrics, store.whole_result(task, &id)).await? == Some(size) {
        // The fact brought the value.
        return Ok(());
    }
    let mut end = in_time(metrics, store.result_end(task, &id)).await?;
    if end < size {
        // All of it or nothing: a part would only take room from others.
        let room = store.has_room(task, &id, size - end, Class::of_value(size));
        in_time(metrics, room).await?;
        let agent = agent.ok_or_else(unreachable)?;
        let stream = pace.open(agent.read_result(&id, end)).await.map_err(of_machine)?;
        let mut stream = pace.limit(stream, size).fuse();
        let mut next = end;
        let mut piece = value_piece(&mut stream, &mut next).await?;
        while !piece.is_empty() {
            metrics.stored("result", piece.len() as u64);
            let written = in_time(metrics, store.put_result_piece(task, &id, end, piece, size));
            // One piece is written while the next one comes.
            let (written, following) = join(written, value_piece(&mut stream, &mut next)).await;
            end = written?;
            piece = following?;
        }
    }
    if end == size {
        return in_time(metrics, store.seal_result(task, &id, size)).await;
    }
    if pace.is_over() && end < size {
        return Ok(());
    }
    Err(CollectError::Machine(format!(
        "the agent sent {end} of {size} bytes of the result"
    )))
}

/// The next piece of a value, which begins at `next`; empty at the end.
async fn value_piece(
    stream: &mut Fuse<BoxStream<'_, Result<Chunk, AgentError>>>,
    next: &mut u64,
) -> Result<Bytes, CollectError> {
    let mut held = BytesMut::new();
    while held.len() < PIECE
        && let Some(chunk) = stream.next().await
    {
        let Chunk { offset, data } = chunk.map_err(of_machine)?;
        if offset != *next {
            return Err(CollectError::Machine(format!(
                "the agent sent offset {offset} of the result, {next} was next"
            )));
        }
        *next += data.len() as u64;
        hold(&mut held, &data);
    }
    Ok(held.freeze())
}

/// Ends a stored log with a line that says what is missing.
async fn end_log(
    store: &Arc<Store>,
    order: &CollectOrder,
    why: &str,
    metrics: &Metrics,
) -> Result<(), CollectError> {
    let (run, finished) = (&order.run, &*order.finished);
    let id = run.to_string();
    let end = in_time(metrics, store.log_end(&run.uid, &id)).await?;
    let missing = finished.log_bytes.saturating_sub(end);
    let text = format!("[skyward] the log ends here, {missing} bytes of it are not stored: {why}\n");
    // The stored log may end in the middle of a record.
    let mut line = b"\n".to_vec();
    Encoder::new().push(Stream::Stderr, text.as_bytes(), finished.finished_ms, &mut line);
    in_time(metrics, store.end_log(&run.uid, &id, line.into())).await
}

/// Stores the outcome too, for a later leader.
async fn keep(
    store: &Arc<Store>,
    order: &CollectOrder,
    collected: &Collected,
    metrics: &Metrics,
) -> Result<(), CollectError> {
    let result = RunResult {
        machine: order.machine.to_string(),
        ..collected.result.clone()
    };
    let json = serde_json::to_vec(&result).map_err(|error| CollectError::Store(error.to_string()))?;
    let (task, run) = (&order.run.uid, order.run.to_string());
    in_time(metrics, store.put_outcome(task, &run, Bytes::from(json))).await
}

/// A reader behind a pointer, as effects hold it.
pub(crate) type AnyReader = Arc<dyn RunReader>;

#[cfg(test)]
mod tests;
