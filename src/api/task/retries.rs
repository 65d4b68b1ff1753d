//! When a Task starts again, as its spec and that of its Pool say it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{condition::reason, duration::Duration};

/// When a Task starts again. An attempt ends as one: the next one begins when every rank has ended, and runs
/// the ranks of `scope` again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retries {
    /// How often it may start again because a machine was lost. Default of a Task: what
    /// its Pool says in `retries`; of a Pool: 3. With `placement: All` every rank starts again together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub on_interruption: Option<u32>,
    /// How often it may start again because a run failed by itself: another exit code than 0, a signal, an
    /// exception, its `timeout`, too little memory. Lost machines do not count. Default of a Task: what its
    /// Pool says in `retries`; of a Pool: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub on_failure: Option<u32>,
    /// The pause before an attempt that follows a failure. A lost machine makes no pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// What follows certain failures. The first rule that fits decides; where none fits, `onFailure` does.
    /// Where ranks failed in several ways, `Fail` wins over `Retry`, and `Retry` over `Ignore`. Default of a
    /// Task: those of its Pool; a Task with rules has none of its Pool's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub rules: Vec<RetryRule>,
    /// Which ranks of a Task with `placement: All` run again: `All` (default) or `Rank`. Default of a Task: what its
    /// Pool says in `retries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RetryScope>,
}

/// Which ranks run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum RetryScope {
    /// All of them, as work needs it whose ranks talk to each other. Where a machine is lost, the ranks on the others are
    /// stopped.
    #[default]
    All,
    /// The ranks that have not succeeded, where each rank works for itself. The others go on when a machine is lost, and their
    /// return values are kept; a Pool with another number of machines than before runs all again. The log of a rank that
    /// does not run again is that of its attempt.
    Rank,
}

/// The pause before an attempt that follows a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = crate::rule::not_longer("initial", "max", "retries.backoff.initial must not be longer than retries.backoff.max; raise max"))]
pub struct Backoff {
    /// Pause after the first failure; it doubles with each further one. Default `10s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("retries.backoff.initial", "1s", "24h"))]
    pub initial: Option<Duration>,
    /// Longest pause. Default `5m`, or `initial` where that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("retries.backoff.max", "1s", "24h"))]
    pub max: Option<Duration>,
}

/// What follows a failure of a certain kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.exitCodes), has(self.reasons), has(self.exceptions)].filter(x, x).size() == 1").message("a rule of retries needs exactly one of exitCodes, reasons and exceptions: write two rules for two of them"))]
pub struct RetryRule {
    /// It fits a process that exited with one of these codes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32), inner(range(min = 1, max = 255)))]
    pub exit_codes: Vec<i32>,
    /// It fits a run that failed for one of these reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    pub reasons: Vec<FailureReason>,
    /// It fits a function that raised an exception of one of these classes, as `status.results[].exception`
    /// names it: `requests.exceptions.ConnectionError`, `ValueError`, or `OutOfData` of the function's own
    /// source. Classes that are derived from them do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = Rule::new(r"self.all(name, name.matches(r'^[^\s.]+([.][^\s.]+)*$') && !name.startsWith('builtins.'))").message("exceptions are named with their module, such as requests.exceptions.ConnectionError, and those of Python without one, such as ValueError"))]
    pub exceptions: Vec<String>,
    /// What follows.
    pub action: RetryAction,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum RetryAction {
    /// Another attempt, as long as `onFailure` allows one more.
    Retry,
    /// The Task fails at once.
    Fail,
    /// Another attempt that does not count for `onFailure`; a Task has 10,000 attempts at most.
    Ignore,
}

/// Why a run failed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum FailureReason {
    /// A process exited with another code than 0.
    NonZeroExit,
    /// A process was killed by a signal.
    KilledBySignal,
    /// `timeout` passed.
    TimedOut,
    /// It could not start: no such program, directory or user.
    StartFailed,
    /// The function raised.
    FunctionRaised,
    /// A syntax error, a missing entrypoint, or arguments that do not fit.
    BadSource,
    /// The return value is neither JSON nor can be pickled.
    #[serde(rename = "ResultNotJSON")]
    ResultNotJson,
    /// The return value is above the limit.
    ResultTooLarge,
    /// The return value found no room in the result store, or was not given by its machine.
    ResultNotStored,
    /// The disk of the machine is full.
    DiskFull,
    /// The kernel killed it for want of memory.
    OutOfMemory,
    /// Its watcher was killed, perhaps by the run itself.
    WatcherKilled,
}

impl FailureReason {
    /// As in a condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NonZeroExit => reason::NON_ZERO_EXIT,
            Self::KilledBySignal => reason::KILLED_BY_SIGNAL,
            Self::TimedOut => reason::TIMED_OUT,
            Self::StartFailed => reason::START_FAILED,
            Self::FunctionRaised => reason::FUNCTION_RAISED,
            Self::BadSource => reason::BAD_SOURCE,
            Self::ResultNotJson => reason::RESULT_NOT_JSON,
            Self::ResultTooLarge => reason::RESULT_TOO_LARGE,
            Self::ResultNotStored => reason::RESULT_NOT_STORED,
            Self::DiskFull => reason::DISK_FULL,
            Self::OutOfMemory => reason::OUT_OF_MEMORY,
            Self::WatcherKilled => reason::WATCHER_KILLED,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_written_before_there_were_failures_to_retry_means_the_same() {
        let old: Retries = serde_json::from_value(json!({ "onInterruption": 4 })).unwrap();
        let same = Retries {
            on_interruption: Some(4),
            ..Retries::default()
        };
        assert_eq!(old, same);
        assert_eq!(
            serde_json::to_value(&old).unwrap(),
            json!({ "onInterruption": 4 })
        );
    }

    #[test]
    fn a_reason_is_written_as_in_a_condition() {
        for reason in [
            FailureReason::NonZeroExit,
            FailureReason::KilledBySignal,
            FailureReason::TimedOut,
            FailureReason::StartFailed,
            FailureReason::FunctionRaised,
            FailureReason::BadSource,
            FailureReason::ResultNotJson,
            FailureReason::ResultTooLarge,
            FailureReason::ResultNotStored,
            FailureReason::DiskFull,
            FailureReason::OutOfMemory,
            FailureReason::WatcherKilled,
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), json!(reason.as_str()));
        }
    }
}
