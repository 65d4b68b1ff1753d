//! Brings logs and results from agents into the store, a piece at a time.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{condition::reason, task::RunResult};
use skyward_remote::{
    AgentApi,
    protocol::{Finished, finished::Ending},
};
use skyward_store::Store;
use tokio::time::timeout;

use crate::{
    metrics::Metrics,
    task::{
        environment::RESULT_LIMIT,
        inline::inline,
        message::{CollectError, CollectOrder, Collected},
        model::RunId,
        tail,
    },
};

/// A piece of log that is held before it is stored, in bytes.
const PIECE: usize = 1024 * 1024;
/// What one copy of a running log takes at most, so that others have their turn.
const TURN: u64 = 16 * 1024 * 1024;
/// Longest time of one copy of a running log.
const TURN_TIME: Duration = Duration::from_secs(20);
/// Longest wait for the store to take or give one piece.
const STORE_DEADLINE: Duration = Duration::from_mins(1);
/// Longest wait for a whole result, from its machine into the store.
const RESULT_DEADLINE: Duration = Duration::from_mins(30);
/// Shown instead of words of the work's that may hold values of a Secret that cannot be read.
const WITHHELD: &str = "[not shown: the Secrets it may hold cannot be read now; see kubectl skyward logs]";

/// Copies what a running run has printed so far. What goes wrong is tried again soon.
pub(crate) async fn copy_log(store: &Store, agent: &dyn AgentApi, run: &RunId, metrics: &Metrics) {
    let copy = copy_to(store, agent, run, TURN, metrics);
    match timeout(TURN_TIME, copy).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%run, %error, "a log cannot be copied now"),
        Err(_) => tracing::debug!(%run, "copying a log takes long"),
    }
}

/// Copies the log from where the store's ends; answers where it ends then.
async fn copy_to(
    store: &Store,
    agent: &dyn AgentApi,
    run: &RunId,
    most: u64,
    metrics: &Metrics,
) -> Result<u64, CollectError> {
    let id = run.to_string();
    let mut end = in_time(metrics, store.log_end(&run.uid, &id)).await?;
    let limit = end.saturating_add(most);
    let mut stream = agent.read_log(&id, end, false).await.map_err(of_machine)?;
    let mut held = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(of_machine)?;
        if chunk.offset != end + held.len() as u64 {
            return Err(CollectError::Machine(format!(
                "the agent sent offset {} of the log, {end} was next",
                chunk.offset
            )));
        }
        held.extend_from_slice(&chunk.data);
        if held.len() >= PIECE {
            end = put_log(store, run, end, held.split().freeze(), metrics).await?;
            if end >= limit {
                return Ok(end);
            }
        }
    }
    if held.is_empty() {
        Ok(end)
    } else {
        put_log(store, run, end, held.freeze(), metrics).await
    }
}

async fn put_log(
    store: &Store,
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

fn of_machine(error: skyward_remote::AgentError) -> CollectError {
    CollectError::Machine(error.to_string())
}

fn of_store(error: &skyward_store::Error, metrics: &Metrics) -> CollectError {
    use std::error::Error;
    let text = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    match error {
        skyward_store::Error::Full(_) => {
            metrics.store_failed("full");
            // What the system calls it helps nobody.
            CollectError::Full(error.to_string())
        }
        skyward_store::Error::Source(_) => CollectError::Machine(text),
        skyward_store::Error::BadId(_)
        | skyward_store::Error::Gap { .. }
        | skyward_store::Error::TooLarge { .. }
        | skyward_store::Error::Other(_) => {
            metrics.store_failed("other");
            CollectError::Store(text)
        }
    }
}

/// Brings all that is left of an ended run into the store; the error says why it must be
/// tried again. `secrets`: `None` when they cannot be read.
pub(crate) async fn collect(
    store: &Store,
    agent: Option<&dyn AgentApi>,
    order: &CollectOrder,
    secrets: Option<&[String]>,
    metrics: &Metrics,
) -> Result<Collected, CollectError> {
    let (run, finished) = (&order.run, &*order.finished);
    let unreachable = || CollectError::Machine("its machine is not connected".to_owned());
    let mut missing = 0;
    if finished.log_bytes > 0 {
        if finished.log.len() as u64 == finished.log_bytes {
            put_log(store, run, 0, Bytes::copy_from_slice(&finished.log), metrics).await?;
        } else if order.gone {
            let end = in_time(metrics, store.log_end(&run.uid, &run.to_string())).await?;
            missing = finished.log_bytes.saturating_sub(end);
        } else {
            let agent = agent.ok_or_else(unreachable)?;
            let end = copy_to(store, agent, run, u64::MAX, metrics).await?;
            if end < finished.log_bytes {
                tracing::warn!(%run, end, wanted = finished.log_bytes, "the agent has less log than it said");
            }
        }
    }
    let mut too_large = finished.result_bytes > RESULT_LIMIT;
    if finished.has_result && !too_large {
        let id = run.to_string();
        if finished.result.len() as u64 == finished.result_bytes {
            let json = Bytes::copy_from_slice(&finished.result);
            in_time(metrics, store.put_result(&run.uid, &id, json)).await?;
            metrics.stored("result", finished.result_bytes);
        } else {
            let agent = agent.ok_or_else(unreachable)?;
            let stream = agent.read_result(&id, 0).await.map_err(of_machine)?;
            let pieces = stream.map(|chunk| chunk.map(|chunk| chunk.data));
            let put = store.put_result_stream(&run.uid, &id, RESULT_LIMIT, pieces.boxed());
            match timeout(RESULT_DEADLINE, put).await {
                Ok(Ok(size)) if size == finished.result_bytes => metrics.stored("result", size),
                Ok(Ok(size)) => {
                    return Err(CollectError::Machine(format!(
                        "the agent sent {size} of {} bytes of the result",
                        finished.result_bytes
                    )));
                }
                Ok(Err(skyward_store::Error::TooLarge { .. })) => too_large = true,
                Ok(Err(error)) => return Err(of_store(&error, metrics)),
                Err(_) => return Err(CollectError::Machine("the result takes too long".to_owned())),
            }
        }
    }
    let mut collected = summary(finished, too_large, secrets);
    if missing > 0 {
        let note = format!("its machine was lost before the last {missing} bytes of its log were copied");
        let message = &mut collected.result.message;
        *message = if message.is_empty() {
            note
        } else {
            format!("{message}; {note}")
        };
    }
    if order.keep {
        keep(store, order, &collected, metrics).await?;
    }
    Ok(collected)
}

/// What it came to is stored too, for a later leader.
async fn keep(
    store: &Store,
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

/// What an earlier leader collected of a run; `None` = nothing, or not all of it.
pub(crate) async fn recall(
    store: &Store,
    run: &RunId,
    metrics: &Metrics,
) -> Result<Option<Collected>, CollectError> {
    let found = in_time(metrics, store.get_outcome(&run.uid, &run.to_string())).await?;
    Ok(found.and_then(|json| {
        let result: RunResult = serde_json::from_slice(&json).ok()?;
        let reason = ENDINGS.iter().find(|known| **known == result.reason)?;
        Some(Collected { result, reason })
    }))
}

/// Every reason for which a run ends.
const ENDINGS: [&str; 13] = [
    reason::SUCCEEDED,
    reason::NON_ZERO_EXIT,
    reason::KILLED_BY_SIGNAL,
    reason::TIMED_OUT,
    reason::STOPPED,
    reason::START_FAILED,
    reason::WATCHER_KILLED,
    reason::DISK_FULL,
    reason::FUNCTION_RAISED,
    reason::BAD_SOURCE,
    reason::RESULT_NOT_JSON,
    reason::RESULT_TOO_LARGE,
    reason::INTERRUPTED,
];

/// What the status shows of a run.
fn summary(finished: &Finished, too_large: bool, secrets: Option<&[String]>) -> Collected {
    let reason = if too_large {
        reason::RESULT_TOO_LARGE
    } else {
        reason_of(finished)
    };
    let exited = matches!(finished.ending(), Ending::Exited);
    let message = if too_large {
        format!(
            "the return value has {} bytes; at most {RESULT_LIMIT} are kept",
            finished.result_bytes
        )
    } else {
        let text = tail::harmless(&finished.message);
        match secrets {
            Some(secrets) => tail::masked(&text, secrets),
            None if text.is_empty() || is_in_our_words(finished.ending()) => text,
            None => WITHHELD.to_owned(),
        }
    };
    let value = finished.has_result.then(|| inline(&finished.result)).flatten();
    let log_tail = match secrets {
        Some(secrets) => tail::readable(&finished.log_tail, secrets),
        None if finished.log_tail.is_empty() => String::new(),
        None => WITHHELD.to_owned(),
    };
    Collected {
        reason,
        result: RunResult {
            reason: reason.to_owned(),
            exit_code: exited.then_some(finished.exit_code),
            signal: signal_name(finished.signal),
            message,
            value,
            value_bytes: finished
                .has_result
                .then(|| i64::try_from(finished.result_bytes).unwrap_or(i64::MAX)),
            log_tail,
            started_at: time(finished.started_ms),
            finished_at: time(finished.finished_ms),
            ..RunResult::default()
        },
    }
}

/// Whether the message of such an end repeats nothing that the work said, as that of an
/// exception does, or of a full disk.
const fn is_in_our_words(ending: Ending) -> bool {
    matches!(
        ending,
        Ending::Exited
            | Ending::Signaled
            | Ending::TimedOut
            | Ending::Stopped
            | Ending::StartFailed
            | Ending::ShimLost
            | Ending::ResultTooLarge
            | Ending::MachineRestarted
    )
}

fn reason_of(finished: &Finished) -> &'static str {
    match finished.ending() {
        Ending::Exited if finished.exit_code == 0 => reason::SUCCEEDED,
        Ending::Exited => reason::NON_ZERO_EXIT,
        Ending::Signaled => reason::KILLED_BY_SIGNAL,
        Ending::TimedOut => reason::TIMED_OUT,
        Ending::Stopped => reason::STOPPED,
        Ending::StartFailed => reason::START_FAILED,
        Ending::ShimLost | Ending::None => reason::WATCHER_KILLED,
        Ending::DiskFull => reason::DISK_FULL,
        Ending::FunctionRaised => reason::FUNCTION_RAISED,
        Ending::BadSource => reason::BAD_SOURCE,
        Ending::ResultNotJson => reason::RESULT_NOT_JSON,
        Ending::ResultTooLarge => reason::RESULT_TOO_LARGE,
        Ending::MachineRestarted => reason::INTERRUPTED,
    }
}

fn time(milliseconds: u64) -> Option<Time> {
    let milliseconds = i64::try_from(milliseconds)
        .ok()
        .filter(|milliseconds| *milliseconds > 0)?;
    Timestamp::from_millisecond(milliseconds).ok().map(Time)
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        0 => return String::new(),
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// An agent behind a pointer, as effects hold it.
pub(crate) type AnyAgent = Arc<dyn AgentApi>;

#[cfg(test)]
mod tests;
