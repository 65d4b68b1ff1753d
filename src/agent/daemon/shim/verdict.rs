//! The verdict about the end of a run: a pure function of the shim's observations. Its texts are
//! for the author of the Task.

use serde::Deserialize;

use super::{output::Ended, prepare::Failure};
use crate::protocol::{Finished, MESSAGE_BYTES, RunSpec, finished::Ending, is_exception, run_spec::Work};

/// A return value of at most this size is kept, unless the spec says otherwise.
const DEFAULT_RESULT_LIMIT: u64 = 256 * 1024 * 1024;
const KILLED: i32 = nix::libc::SIGKILL;
const KILLED_IN_A_SHELL: i32 = 128 + KILLED;

/// Why we ended the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    TimedOut,
    Stopped(String),
}

/// How the main process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Exited(i32),
    Signaled(i32),
}

/// What the function runner wrote about the end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Outcome {
    pub(super) ending: OutcomeEnding,
    #[serde(default)]
    pub(super) message: String,
    /// Class of the exception that was raised.
    #[serde(default)]
    pub(super) exception: String,
}

/// The runner's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutcomeEnding {
    Returned,
    Raised,
    BadSource,
    NotJson,
    TooLarge,
    NoRoom,
}

/// Everything the verdict depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) started_ms: u64,
    pub(super) finished_ms: u64,
    /// Why it did not start.
    pub(super) failure: Option<Failure>,
    pub(super) status: Option<Status>,
    pub(super) cause: Option<Cause>,
    /// Whether SIGKILL was needed.
    pub(super) killed: bool,
    pub(super) output: Ended,
    pub(super) outcome: Option<Outcome>,
    pub(super) result_bytes: Option<u64>,
    /// Whether a disk that it wrote to was full at the end.
    pub(super) no_room: bool,
    /// Processes that the kernel killed for want of memory while it ran, here or beside it.
    pub(super) memory_kills: u64,
    /// Whether a function was forked from a warm parent.
    pub(super) forked: Option<bool>,
}

/// The largest return value of a run that is kept.
pub(super) const fn result_limit(spec: &RunSpec) -> u64 {
    match spec.result_limit {
        0 => DEFAULT_RESULT_LIMIT,
        limit => limit,
    }
}

/// The end of a run as the controller learns it.
pub(super) fn finished(spec: &RunSpec, observed: &Observed) -> Finished {
    let (ending, message) = judge(spec, observed);
    let (exit_code, signal) = match observed.status {
        None => (0, 0),
        Some(Status::Exited(code)) => (code, 0),
        Some(Status::Signaled(signal)) => (0, signal),
    };
    let returned = observed
        .outcome
        .as_ref()
        .is_some_and(|outcome| outcome.ending == OutcomeEnding::Returned);
    let has_result = returned && ending == Ending::Exited;
    // The work may have written anything in the place of the runner.
    let exception = observed
        .outcome
        .as_ref()
        .map(|outcome| outcome.exception.as_str())
        .filter(|name| ending == Ending::FunctionRaised && is_exception(name))
        .unwrap_or_default();
    Finished {
        ending: ending.into(),
        exit_code,
        signal,
        message: shorten(message),
        started_ms: observed.started_ms,
        finished_ms: observed.finished_ms,
        log_bytes: observed.output.bytes,
        log_dropped_bytes: observed.output.dropped,
        log: Vec::new(),
        log_tail: observed.output.tail.clone(),
        result_bytes: if has_result {
            observed.result_bytes.unwrap_or(0)
        } else {
            0
        },
        result: Vec::new(),
        has_result,
        forked: observed.forked,
        exception: exception.to_owned(),
    }
}

fn judge(spec: &RunSpec, observed: &Observed) -> (Ending, String) {
    if let Some(failure) = &observed.failure {
        let ending = if failure.no_room {
            Ending::DiskFull
        } else {
            Ending::StartFailed
        };
        return (ending, failure.message.clone());
    }
    let how = if observed.killed {
        "SIGKILL, after the grace period"
    } else {
        "SIGTERM"
    };
    match &observed.cause {
        Some(Cause::TimedOut) => {
            let seconds = spec.timeout_ms as f64 / 1000.0;
            return (
                Ending::TimedOut,
                format!("it ran longer than its timeout of {seconds}s and was ended with {how}"),
            );
        }
        Some(Cause::Stopped(why)) => return (Ending::Stopped, why.clone()),
        None => {}
    }
    if let Some(Outcome { ending, message, .. }) = &observed.outcome {
        match ending {
            OutcomeEnding::Returned => {}
            OutcomeEnding::Raised => return unless_full(observed, Ending::FunctionRaised, message.clone()),
            OutcomeEnding::BadSource => return (Ending::BadSource, message.clone()),
            OutcomeEnding::NotJson => return (Ending::ResultNotJson, message.clone()),
            OutcomeEnding::TooLarge => return (Ending::ResultTooLarge, message.clone()),
            OutcomeEnding::NoRoom => return (Ending::DiskFull, message.clone()),
        }
        let limit = result_limit(spec);
        if observed.result_bytes.is_some_and(|bytes| bytes > limit) {
            return (
                Ending::ResultTooLarge,
                format!("its return value is larger than the limit of {limit} bytes"),
            );
        }
    }
    match observed.status {
        Some(Status::Exited(0)) => {
            let quiet_end = matches!(spec.work, Some(Work::Function(_))) && observed.outcome.is_none();
            let message = if quiet_end {
                "the process exited with 0 before the function returned"
            } else {
                ""
            };
            (Ending::Exited, message.to_owned())
        }
        // A shell's exit code for a killed program.
        Some(Status::Exited(code @ KILLED_IN_A_SHELL)) if observed.memory_kills > 0 => (
            Ending::OutOfMemory,
            out_of_memory(&format!("it exited with code {code}")),
        ),
        Some(Status::Signaled(KILLED)) if observed.memory_kills > 0 => {
            (Ending::OutOfMemory, out_of_memory("it was killed by SIGKILL"))
        }
        Some(Status::Exited(code)) => {
            let hint = if observed.memory_kills > 0 {
                "; while it ran, the kernel killed a process for want of memory"
            } else {
                ""
            };
            let message = format!("it exited with code {code}{}{hint}", meaning(code));
            unless_full(observed, Ending::Exited, message)
        }
        Some(Status::Signaled(signal)) => {
            let name =
                nix::sys::signal::Signal::try_from(signal).map_or("a signal", |signal| signal.as_str());
            let hint = if name == "SIGKILL" {
                "; the machine may have run out of memory"
            } else {
                ""
            };
            unless_full(
                observed,
                Ending::Signaled,
                format!("it was killed by {name}{hint}"),
            )
        }
        None => (Ending::ShimLost, "its end was not seen".to_owned()),
    }
}

/// The message for work that ended so, or whose watcher did, while the kernel killed for want of
/// memory.
pub(in super::super) fn out_of_memory(how: &str) -> String {
    format!(
        "{how}: the machine ran out of memory, and the kernel killed what used most of it. Ask for more memory, or use less"
    )
}

/// Conventions of shells.
fn meaning(code: i32) -> &'static str {
    match code {
        126 => " (a program could not be executed)",
        127 => " (a program was not found)",
        _ => "",
    }
}

/// Whether a failure is for want of room: a disk is full, or the program said so at the end.
fn is_full(observed: &Observed) -> bool {
    const SAID: &[u8] = b"No space left on device";
    observed.no_room
        || observed.output.no_room
        || observed
            .output
            .tail
            .windows(SAID.len())
            .any(|bytes| bytes == SAID)
}

/// That ending of work that failed, unless it failed for want of room.
fn unless_full(observed: &Observed, ending: Ending, message: String) -> (Ending, String) {
    if is_full(observed) {
        (
            Ending::DiskFull,
            format!("the disk of the machine is full: {message}"),
        )
    } else {
        (ending, message)
    }
}

fn shorten(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(observed: &Observed) -> (Ending, String) {
        judge(
            &RunSpec {
                timeout_ms: 1500,
                ..RunSpec::default()
            },
            observed,
        )
    }

    #[test]
    fn the_end_of_a_run_tells_whether_it_was_forked() {
        for forked in [None, Some(false), Some(true)] {
            let observed = Observed {
                forked,
                ..Observed::default()
            };
            assert_eq!(finished(&RunSpec::default(), &observed).forked, forked);
        }
    }

    #[test]
    fn a_process_that_exits_in_its_grace_time_timed_out_all_the_same() {
        let observed = Observed {
            cause: Some(Cause::TimedOut),
            status: Some(Status::Exited(0)),
            ..Observed::default()
        };
        let expected = "it ran longer than its timeout of 1.5s and was ended with SIGTERM";
        assert_eq!(judged(&observed), (Ending::TimedOut, expected.to_owned()));
    }

    #[test]
    fn a_failure_on_a_full_disk_is_named_and_a_success_is_not() {
        let failed = Observed {
            status: Some(Status::Exited(1)),
            no_room: true,
            ..Observed::default()
        };
        assert_eq!(judged(&failed).0, Ending::DiskFull);
        let said = Observed {
            status: Some(Status::Exited(2)),
            output: Ended {
                tail: b"cp: error writing 'x': No space left on device\n".to_vec(),
                ..Ended::default()
            },
            ..Observed::default()
        };
        assert_eq!(judged(&said).0, Ending::DiskFull);
        let fine = Observed {
            status: Some(Status::Exited(0)),
            no_room: true,
            ..Observed::default()
        };
        assert_eq!(judged(&fine), (Ending::Exited, String::new()));
    }

    #[test]
    fn work_that_was_killed_ran_out_of_memory_only_where_the_kernel_counted_a_kill() {
        let judged = |status, memory_kills| {
            judged(&Observed {
                status: Some(status),
                memory_kills,
                ..Observed::default()
            })
        };
        let (ending, message) = judged(Status::Signaled(9), 1);
        assert_eq!(ending, Ending::OutOfMemory);
        assert!(message.starts_with("it was killed by SIGKILL: the machine ran out of memory"));
        assert_eq!(judged(Status::Exited(137), 2).0, Ending::OutOfMemory);
        assert_eq!(judged(Status::Signaled(9), 0).0, Ending::Signaled);
        assert_eq!(judged(Status::Exited(137), 0).0, Ending::Exited);
        assert_eq!(judged(Status::Signaled(15), 1).0, Ending::Signaled);
        // The kill of a neighbour, or of a child whose end the program handled.
        assert_eq!(judged(Status::Exited(0), 1), (Ending::Exited, String::new()));
        let (ending, message) = judged(Status::Exited(1), 1);
        assert_eq!(ending, Ending::Exited);
        assert!(
            message.ends_with("killed a process for want of memory"),
            "{message}"
        );
    }

    #[test]
    fn what_we_ended_ourselves_did_not_run_out_of_memory() {
        for cause in [Cause::TimedOut, Cause::Stopped("Deleted".into())] {
            let observed = Observed {
                cause: Some(cause),
                status: Some(Status::Signaled(9)),
                killed: true,
                memory_kills: 1,
                ..Observed::default()
            };
            assert_ne!(judged(&observed).0, Ending::OutOfMemory);
        }
    }

    #[test]
    fn a_result_counts_only_when_the_process_ended_well() {
        let mut observed = Observed {
            status: Some(Status::Exited(0)),
            outcome: Some(Outcome {
                ending: OutcomeEnding::Returned,
                message: String::new(),
                exception: String::new(),
            }),
            result_bytes: Some(4),
            ..Observed::default()
        };
        let spec = RunSpec::default();
        assert!(finished(&spec, &observed).has_result);
        observed.cause = Some(Cause::Stopped("Deleted".into()));
        assert!(!finished(&spec, &observed).has_result);
        observed.cause = None;
        observed.result_bytes = Some(DEFAULT_RESULT_LIMIT + 1);
        assert_eq!(finished(&spec, &observed).ending(), Ending::ResultTooLarge);
    }

    #[test]
    fn the_class_of_an_exception_is_told_where_the_function_raised_and_it_can_be_one() {
        let told = |exception: &str, cause: Option<Cause>| {
            let observed = Observed {
                status: Some(Status::Exited(1)),
                outcome: Some(Outcome {
                    ending: OutcomeEnding::Raised,
                    message: "Timeout: no answer".to_owned(),
                    exception: exception.to_owned(),
                }),
                cause,
                ..Observed::default()
            };
            finished(&RunSpec::default(), &observed).exception
        };
        assert_eq!(
            told("requests.exceptions.Timeout", None),
            "requests.exceptions.Timeout"
        );
        assert_eq!(told("requests.exceptions.Timeout", Some(Cause::TimedOut)), "");
        assert_eq!(told(&"e".repeat(300), None), "");
        assert_eq!(told("two words", None), "");
    }

    #[test]
    fn a_runner_of_an_earlier_version_names_no_exception() {
        let outcome: Outcome =
            serde_json::from_str(r#"{"ending": "raised", "message": "KeyError: 1"}"#).unwrap();
        assert_eq!(outcome.exception, "");
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let cut = shorten("ä".repeat(MESSAGE_BYTES));
        assert!(cut.len() <= MESSAGE_BYTES + 3 && cut.ends_with('…'));
    }
}
