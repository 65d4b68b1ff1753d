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
    task::{environment::RESULT_LIMIT, message::Collected, model::RunId, tail},
};

/// A piece of log that is held before it is stored, in bytes.
const PIECE: usize = 1024 * 1024;
/// What one copy of a running log takes at most, so that others have their turn.
const TURN: u64 = 16 * 1024 * 1024;
/// Longest time of one copy of a running log.
const TURN_TIME: Duration = Duration::from_secs(20);
/// Largest value that a status shows, in bytes of JSON.
const MAX_VALUE: usize = 4096;
/// Shown instead of a log tail that may hold values of a Secret that cannot be read.
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
) -> Result<u64, String> {
    let id = run.to_string();
    let mut end = store.log_end(&run.uid, &id).await.map_err(in_words)?;
    let limit = end.saturating_add(most);
    let mut stream = agent
        .read_log(&id, end, false)
        .await
        .map_err(|error| error.to_string())?;
    let mut held = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| error.to_string())?;
        if chunk.offset != end + held.len() as u64 {
            return Err(format!(
                "the agent sent offset {} of the log, {end} was next",
                chunk.offset
            ));
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
) -> Result<u64, String> {
    let count = bytes.len() as u64;
    let end = store
        .put_log_segment(&run.uid, &run.to_string(), start, bytes)
        .await
        .map_err(in_words)?;
    metrics.stored("log", count);
    Ok(end)
}

/// Brings all that is left of an ended run into the store; the error says why it must be
/// tried again. `secrets`: `None` when they cannot be read.
pub(crate) async fn collect(
    store: &Store,
    agent: Option<&dyn AgentApi>,
    run: &RunId,
    finished: &Finished,
    secrets: Option<&[String]>,
    metrics: &Metrics,
) -> Result<Collected, String> {
    if finished.log_bytes > 0 {
        if finished.log.len() as u64 == finished.log_bytes {
            put_log(store, run, 0, Bytes::copy_from_slice(&finished.log), metrics).await?;
        } else {
            let agent = agent.ok_or("its machine is not connected")?;
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
            store.put_result(&run.uid, &id, json).await.map_err(in_words)?;
            metrics.stored("result", finished.result_bytes);
        } else {
            let agent = agent.ok_or("its machine is not connected")?;
            let stream = agent
                .read_result(&id, 0)
                .await
                .map_err(|error| error.to_string())?;
            let pieces = stream.map(|chunk| chunk.map(|chunk| chunk.data));
            match store
                .put_result_stream(&run.uid, &id, RESULT_LIMIT, pieces.boxed())
                .await
            {
                Ok(size) if size == finished.result_bytes => metrics.stored("result", size),
                Ok(size) => {
                    return Err(format!(
                        "the agent sent {size} of {} bytes of the result",
                        finished.result_bytes
                    ));
                }
                Err(skyward_store::Error::TooLarge { .. }) => too_large = true,
                Err(error) => return Err(in_words(error)),
            }
        }
    }
    Ok(summary(finished, too_large, secrets))
}

fn in_words(error: skyward_store::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

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
    } else if reason == reason::SUCCEEDED {
        String::new()
    } else {
        let text = tail::harmless(&finished.message);
        secrets.map_or_else(|| text.clone(), |secrets| tail::masked(&text, secrets))
    };
    let value = (finished.has_result && finished.result.len() <= MAX_VALUE)
        .then(|| serde_json::from_slice(&finished.result).ok())
        .flatten();
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
