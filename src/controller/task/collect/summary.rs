//! The summary of an ended run for the Task's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    condition::{cut, reason},
    task::RunResult,
};
use skyward_planner::task::{
    message::Collected,
    run::{Ending, Finished},
};
use skyward_remote::protocol::EXCEPTION_BYTES;

use crate::task::{environment::RESULT_LIMIT, inline::inline, tail};

/// Shown in the place of output that may hold values of an unreadable Secret.
pub(super) const WITHHELD: &str =
    "[not shown: the Secrets it may hold cannot be read now; see kubectl skyward logs]";

/// Every reason for which a run ends.
pub(super) const ENDINGS: [&str; 15] = [
    reason::SUCCEEDED,
    reason::NON_ZERO_EXIT,
    reason::KILLED_BY_SIGNAL,
    reason::TIMED_OUT,
    reason::STOPPED,
    reason::START_FAILED,
    reason::WATCHER_KILLED,
    reason::OUT_OF_MEMORY,
    reason::DISK_FULL,
    reason::FUNCTION_RAISED,
    reason::BAD_SOURCE,
    reason::RESULT_NOT_JSON,
    reason::RESULT_TOO_LARGE,
    reason::RESULT_NOT_STORED,
    reason::INTERRUPTED,
];

/// The status of an ended run.
pub(super) fn summary(finished: &Finished, too_large: bool, secrets: Option<&[String]>) -> Collected {
    let reason = if too_large {
        reason::RESULT_TOO_LARGE
    } else {
        reason_of(finished)
    };
    let exited = matches!(finished.ending, Ending::Exited);
    let message = if too_large {
        format!(
            "the return value has {} bytes; at most {RESULT_LIMIT} are kept",
            finished.result_bytes
        )
    } else {
        let text = tail::harmless(&finished.message);
        match secrets {
            Some(secrets) => tail::masked(&text, secrets),
            None if text.is_empty() || is_in_our_words(finished.ending) => text,
            None => WITHHELD.to_owned(),
        }
    };
    // What cannot be masked is not shown; `retries.rules` read it as the agent told it.
    let exception = secrets.map_or_else(String::new, |secrets| {
        cut(&tail::masked(&finished.exception, secrets), EXCEPTION_BYTES)
    });
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
            exception,
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

/// Whether the message of such an end is ours alone: those of an exception or a full disk repeat
/// the work's output.
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
            | Ending::OutOfMemory
            | Ending::Interrupted
    )
}

/// Why a run, or an item of a map, ended.
pub(crate) fn reason_of(finished: &Finished) -> &'static str {
    match finished.ending {
        Ending::Exited if finished.exit_code == 0 => reason::SUCCEEDED,
        Ending::Exited => reason::NON_ZERO_EXIT,
        Ending::Signaled => reason::KILLED_BY_SIGNAL,
        Ending::TimedOut => reason::TIMED_OUT,
        Ending::Stopped => reason::STOPPED,
        Ending::StartFailed => reason::START_FAILED,
        Ending::ShimLost | Ending::Unknown => reason::WATCHER_KILLED,
        Ending::DiskFull => reason::DISK_FULL,
        Ending::FunctionRaised => reason::FUNCTION_RAISED,
        Ending::BadSource => reason::BAD_SOURCE,
        Ending::ResultNotJson => reason::RESULT_NOT_JSON,
        Ending::ResultTooLarge => reason::RESULT_TOO_LARGE,
        Ending::OutOfMemory => reason::OUT_OF_MEMORY,
        Ending::MachineRestarted | Ending::Interrupted => reason::INTERRUPTED,
    }
}

fn time(milliseconds: u64) -> Option<Time> {
    let milliseconds = i64::try_from(milliseconds)
        .ok()
        .filter(|milliseconds| *milliseconds > 0)?;
    Timestamp::from_millisecond(milliseconds).ok().map(Time)
}

/// The name of a signal; empty where there was none.
pub(crate) fn signal_name(signal: i32) -> String {
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
