//! What follows an attempt in which runs failed by themselves: pure, over `retries` of a Task and of its Pool.
//! Lost machines are no failures: `dispatcher/attempts.rs` counts them apart.

use std::time::Duration;

use skyward_api::{
    Duration as Lasting,
    condition::reason,
    task::{Retries, RetryAction, RetryRule, RetryScope},
};

use crate::base::time::{doubled, whole_seconds};

/// Default of `retries.onInterruption`, also for Tasks whose Pool is gone.
const ON_INTERRUPTION: u32 = 3;
/// Default of `retries.onFailure`.
const ON_FAILURE: u32 = 0;
/// Default of `retries.backoff.initial`.
const INITIAL: Duration = Duration::from_secs(10);
/// Default of `retries.backoff.max`.
const LONGEST: Duration = Duration::from_mins(5);
/// Longest pause that admission takes: a recorded one is never longer.
pub const LONGEST_PAUSE: Duration = Duration::from_hours(24);
/// Attempts after which no failure is retried: an ignored one would be for ever.
const MOST_ATTEMPTS: u32 = 10_000;

/// `retries` of a Task; a field that it leaves out is that of its Pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy<'a> {
    /// Of the Task.
    pub task: Option<&'a Retries>,
    /// Of its Pool, if there is one.
    pub pool: Option<&'a Retries>,
}

/// A run that failed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// One of the reasons of the condition Failed.
    pub reason: &'a str,
    /// Exit code of a process that exited.
    pub exit_code: Option<i32>,
    /// Class of the exception that a function raised, or empty.
    pub exception: &'a str,
}

/// What follows an attempt in which runs failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt; the failure counts.
    Retry,
    /// Another attempt; the failure does not count.
    Ignore,
    /// The Task fails. Why nothing else follows, where its user asked for more.
    Fail(Option<String>),
}

impl<'a> Policy<'a> {
    fn field<T>(self, of: impl Fn(&'a Retries) -> Option<T>) -> Option<T> {
        self.task.and_then(&of).or_else(|| self.pool.and_then(&of))
    }

    /// How often the Task runs again after a machine was lost.
    pub fn on_interruption(self) -> u32 {
        self.field(|retries| retries.on_interruption)
            .unwrap_or(ON_INTERRUPTION)
    }

    /// How often it runs again after a failure.
    pub fn on_failure(self) -> u32 {
        self.field(|retries| retries.on_failure).unwrap_or(ON_FAILURE)
    }

    /// Whether ranks that have succeeded do not run again.
    pub fn keeps_ranks(self) -> bool {
        self.field(|retries| retries.scope).unwrap_or_default() == RetryScope::Rank
    }

    fn rules(self) -> &'a [RetryRule] {
        self.field(|retries| Some(retries.rules.as_slice()).filter(|rules| !rules.is_empty()))
            .unwrap_or_default()
    }

    /// Whether a rule ignores some failures.
    pub fn ignores(self) -> bool {
        let mut rules = self.rules().iter();
        rules.any(|rule| rule.action == RetryAction::Ignore)
    }

    /// The pause before the attempt that follows the failure of that number, from 1.
    pub fn pause(self, failures: u32) -> Duration {
        let initial = self.field(|retries| retries.backoff.as_ref()?.initial.as_ref());
        let longest = self.field(|retries| retries.backoff.as_ref()?.max.as_ref());
        let initial = initial.and_then(Lasting::parse);
        let longest = longest
            .and_then(Lasting::parse)
            .unwrap_or_else(|| LONGEST.max(initial.unwrap_or_default()))
            .min(LONGEST_PAUSE);
        let earlier = failures.saturating_sub(1);
        whole_seconds(doubled(initial.unwrap_or(INITIAL), earlier, longest))
    }

    /// What follows, where so many attempts failed before and this one has that number.
    pub fn verdict(self, failures: &[Failure<'_>], before: u32, attempt: u32) -> Verdict {
        let decisions = failures.iter().map(|failure| self.decision(failure));
        let gravest = decisions.max_by_key(|(action, _)| match action {
            RetryAction::Ignore => 0,
            RetryAction::Retry => 1,
            RetryAction::Fail => 2,
        });
        let Some((action, rule)) = gravest else {
            return Verdict::Fail(None);
        };
        let limit = self.on_failure();
        match action {
            RetryAction::Fail => {
                let why = rule.map(|rule| format!("retries.rules[{rule}] says Fail"));
                Verdict::Fail(why)
            }
            // Nothing was asked for: the failure speaks for itself.
            RetryAction::Retry if limit == 0 && rule.is_none() => Verdict::Fail(None),
            RetryAction::Retry if before >= limit => {
                Verdict::Fail(Some(failed_too_often(before.saturating_add(1), limit)))
            }
            RetryAction::Retry | RetryAction::Ignore if attempt >= MOST_ATTEMPTS => {
                Verdict::Fail(Some(format!("a Task has {MOST_ATTEMPTS} attempts at most")))
            }
            RetryAction::Retry => Verdict::Retry,
            RetryAction::Ignore => Verdict::Ignore,
        }
    }

    /// What the rules say about one failure of an item.
    pub fn action(self, failure: &Failure<'_>) -> RetryAction {
        self.decision(failure).0
    }

    /// What follows one failure, and the index of the rule that says it.
    fn decision(self, failure: &Failure<'_>) -> (RetryAction, Option<usize>) {
        let fitting = self.rules().iter().position(|rule| fits(rule, failure));
        let rule = fitting.and_then(|index| self.rules().get(index));
        (rule.map_or(RetryAction::Retry, |rule| rule.action), fitting)
    }
}

/// That no other attempt follows so many failed ones.
pub fn failed_too_often(attempts: u32, limit: u32) -> String {
    let failed = match attempts {
        1 => "1 attempt failed".to_owned(),
        many => format!("{many} attempts failed"),
    };
    format!("{failed}, and retries.onFailure allows {limit}")
}

/// That no other attempt follows so many interrupted ones.
pub fn interrupted_too_often(attempts: u32, limit: u32) -> String {
    let interrupted = match attempts {
        1 => "1 attempt was interrupted".to_owned(),
        many => format!("{many} attempts were interrupted"),
    };
    format!("{interrupted}, and retries.onInterruption allows {limit}")
}

fn fits(rule: &RetryRule, failure: &Failure<'_>) -> bool {
    let exited = failure
        .exit_code
        .filter(|_| failure.reason == reason::NON_ZERO_EXIT);
    let raised = failure.reason == reason::FUNCTION_RAISED && !failure.exception.is_empty();
    exited.is_some_and(|code| rule.exit_codes.contains(&code))
        || rule
            .reasons
            .iter()
            .any(|reason| reason.as_str() == failure.reason)
        || (raised && rule.exceptions.iter().any(|name| name == failure.exception))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn retries(json: Value) -> Retries {
        serde_json::from_value(json).unwrap()
    }

    fn exited(code: i32) -> Failure<'static> {
        Failure {
            reason: reason::NON_ZERO_EXIT,
            exit_code: Some(code),
            exception: "",
        }
    }

    fn raised(exception: &str) -> Failure<'_> {
        Failure {
            reason: reason::FUNCTION_RAISED,
            exit_code: None,
            exception,
        }
    }

    fn ended(reason: &str) -> Failure<'_> {
        Failure {
            reason,
            exit_code: None,
            exception: "",
        }
    }

    fn verdict(task: Value, failures: &[Failure<'_>], before: u32) -> Verdict {
        let task = retries(task);
        let policy = Policy {
            task: Some(&task),
            pool: None,
        };
        policy.verdict(failures, before, before + 1)
    }

    fn fails(why: &str) -> Verdict {
        Verdict::Fail(Some(why.to_owned()))
    }

    #[test]
    fn a_task_that_asks_for_nothing_fails_at_its_first_failure_and_no_more_is_said() {
        assert_eq!(verdict(json!({}), &[exited(1)], 0), Verdict::Fail(None));
        let policy = Policy::default();
        assert_eq!(policy.verdict(&[exited(1)], 0, 1), Verdict::Fail(None));
        assert_eq!(policy.on_interruption(), 3);
    }

    #[test]
    fn a_failure_is_retried_as_often_as_allowed_and_then_both_numbers_are_told() {
        let twice = json!({ "onFailure": 2 });
        assert_eq!(verdict(twice.clone(), &[exited(1)], 0), Verdict::Retry);
        assert_eq!(verdict(twice.clone(), &[exited(1)], 1), Verdict::Retry);
        assert_eq!(
            verdict(twice, &[exited(1)], 2),
            fails("3 attempts failed, and retries.onFailure allows 2")
        );
    }

    #[test]
    fn a_rule_that_retries_needs_an_allowance_too_and_its_lack_is_told() {
        let rule = json!({ "rules": [{ "exitCodes": [75], "action": "Retry" }] });
        assert_eq!(
            verdict(rule, &[exited(75)], 0),
            fails("1 attempt failed, and retries.onFailure allows 0")
        );
    }

    #[rstest]
    #[case::a_code(exited(64), fails("retries.rules[0] says Fail"))]
    #[case::another_code(exited(1), Verdict::Retry)]
    #[case::a_reason(ended("TimedOut"), Verdict::Ignore)]
    #[case::another_reason(ended("OutOfMemory"), Verdict::Retry)]
    #[case::an_exception(raised("a.b.Refused"), fails("retries.rules[2] says Fail"))]
    #[case::the_end_of_its_name(raised("Refused"), Verdict::Retry)]
    #[case::its_reason_behind_it(raised("ValueError"), Verdict::Retry)]
    #[case::an_agent_that_names_none(raised(""), Verdict::Retry)]
    fn the_first_rule_that_fits_decides(#[case] failure: Failure<'static>, #[case] expected: Verdict) {
        let rules = json!({ "onFailure": 1, "rules": [
            { "exitCodes": [64, 65], "action": "Fail" },
            { "reasons": ["TimedOut", "DiskFull"], "action": "Ignore" },
            { "exceptions": ["a.b.Refused"], "action": "Fail" },
            { "reasons": ["FunctionRaised"], "action": "Retry" },
            { "exceptions": ["ValueError"], "action": "Fail" },
        ] });
        assert_eq!(verdict(rules, &[failure], 0), expected);
    }

    #[test]
    fn whether_a_rule_ignores_failures_is_known_before_any() {
        for (action, ignores) in [("Ignore", true), ("Retry", false), ("Fail", false)] {
            let task = retries(json!({ "rules": [{ "exitCodes": [75], "action": action }] }));
            let policy = Policy {
                task: Some(&task),
                pool: None,
            };
            assert_eq!(policy.ignores(), ignores, "{action}");
        }
        assert!(!Policy::default().ignores());
    }

    #[test]
    fn only_the_code_of_a_process_that_exited_is_one() {
        let rules = json!({ "rules": [{ "exitCodes": [1], "action": "Fail" }] });
        let killed = Failure {
            exit_code: Some(1),
            ..ended("KilledBySignal")
        };
        assert_eq!(verdict(rules, &[killed], 0), Verdict::Fail(None));
    }

    #[test]
    fn of_several_ranks_the_gravest_failure_decides() {
        let rules = json!({ "onFailure": 1, "rules": [
            { "exitCodes": [1], "action": "Ignore" }, { "exitCodes": [2], "action": "Fail" },
        ] });
        let of = |codes: &[i32]| {
            let failures: Vec<_> = codes.iter().map(|code| exited(*code)).collect();
            verdict(rules.clone(), &failures, 0)
        };
        assert_eq!(of(&[1, 1]), Verdict::Ignore);
        assert_eq!(of(&[1, 3]), Verdict::Retry);
        assert_eq!(of(&[2, 1, 3]), fails("retries.rules[1] says Fail"));
    }

    #[test]
    fn an_ignored_failure_is_not_retried_for_ever() {
        let rules = retries(json!({ "rules": [{ "exitCodes": [1], "action": "Ignore" }] }));
        let policy = Policy {
            task: Some(&rules),
            pool: None,
        };
        assert_eq!(policy.verdict(&[exited(1)], 0, 9_999), Verdict::Ignore);
        assert_eq!(
            policy.verdict(&[exited(1)], 0, 10_000),
            fails("a Task has 10000 attempts at most")
        );
    }

    #[test]
    fn each_field_that_a_task_leaves_out_is_that_of_its_pool() {
        let pool = retries(json!({
            "onInterruption": 7, "onFailure": 2, "backoff": { "initial": "3s", "max": "4s" },
            "rules": [{ "exitCodes": [9], "action": "Fail" }],
        }));
        let task = retries(json!({ "onFailure": 1, "backoff": { "initial": "1s" } }));
        let policy = Policy {
            task: Some(&task),
            pool: Some(&pool),
        };
        assert_eq!((policy.on_interruption(), policy.on_failure()), (7, 1));
        let pauses = [1, 2, 3, 4].map(|failures| policy.pause(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 4]);
        assert_eq!(policy.rules().len(), 1);
        let own = retries(json!({ "rules": [{ "exitCodes": [1], "action": "Retry" }] }));
        let policy = Policy {
            task: Some(&own),
            ..policy
        };
        assert_eq!(policy.rules(), own.rules);
        assert!(!policy.keeps_ranks());
        let ranks = retries(json!({ "scope": "Rank" }));
        let of_pool = Policy {
            pool: Some(&ranks),
            ..policy
        };
        assert!(of_pool.keeps_ranks());
        let all = retries(json!({ "scope": "All" }));
        let of_task = Policy {
            task: Some(&all),
            ..of_pool
        };
        assert!(!of_task.keeps_ranks());
    }

    #[rstest]
    #[case::default(json!({}), [10, 20, 300])]
    #[case::a_long_first_one(json!({ "initial": "1h" }), [3600, 3600, 3600])]
    #[case::a_short_longest_one(json!({ "max": "5s" }), [5, 5, 5])]
    #[case::not_even_seconds(json!({ "initial": "1.5s", "max": "1m" }), [2, 3, 60])]
    #[case::more_than_admitted(json!({ "initial": "900000h", "max": "900000h" }), [86_400; 3])]
    fn a_pause_doubles_up_to_the_longest(#[case] backoff: Value, #[case] expected: [u64; 3]) {
        let task = retries(json!({ "backoff": backoff }));
        let policy = Policy {
            task: Some(&task),
            pool: None,
        };
        assert_eq!(
            [1, 2, u32::MAX].map(|failures| policy.pause(failures).as_secs()),
            expected
        );
    }
}
