//! What follows from how an attempt of an item ended: whether it counts as a failure of the item, or as an interruption
//! because its machine cannot begin items now. A machine that ends each item as soon as it begins would else have all
//! items of a map within a moment, and fail them.

use std::time::Duration;

use skyward_api::{condition::reason, task::RetryAction};

use super::record::Cause;

/// An attempt that meets a full disk so soon after its begin is not what filled it.
const AT_ONCE: Duration = Duration::from_secs(5);

/// How an attempt counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// As what.
    pub cause: Cause,
    /// Whether a rule of the Task says that no other attempt follows.
    pub for_good: bool,
    /// Whether its machine gets no other item for now.
    pub is_unfit: bool,
}

/// Judges the end of an attempt that took so long. `action` is what the Task says of such a failure.
pub fn judge(why: &str, action: RetryAction, took: Duration) -> Judgement {
    let counts = |cause| Judgement {
        cause,
        for_good: false,
        is_unfit: false,
    };
    let is_unfit = why == reason::START_FAILED || (why == reason::DISK_FULL && took < AT_ONCE);
    match (why, action) {
        (reason::SUCCEEDED, _) => counts(Cause::Success),
        (reason::INTERRUPTED, _) => counts(Cause::Interruption),
        (reason::STOPPED, _) => counts(Cause::Uncounted),
        (_, RetryAction::Fail) => Judgement {
            for_good: true,
            ..counts(Cause::Failure)
        },
        (_, RetryAction::Ignore) => Judgement {
            is_unfit,
            ..counts(Cause::Uncounted)
        },
        (_, RetryAction::Retry) if is_unfit => Judgement {
            is_unfit,
            ..counts(Cause::Interruption)
        },
        (_, RetryAction::Retry) => counts(Cause::Failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_its_machine_cannot_begin_is_interrupted_and_one_that_fills_the_disk_has_failed() {
        let (short, long) = (Duration::from_millis(2), Duration::from_mins(1));
        let (failure, interruption) = (Cause::Failure, Cause::Interruption);
        for (why, took, cause, is_unfit) in [
            (reason::START_FAILED, short, interruption, true),
            // It may have waited for a mount that hangs.
            (reason::START_FAILED, long, interruption, true),
            (reason::DISK_FULL, short, interruption, true),
            (reason::DISK_FULL, long, failure, false),
            (reason::NON_ZERO_EXIT, short, failure, false),
            (reason::INTERRUPTED, short, interruption, false),
            (reason::STOPPED, short, Cause::Uncounted, false),
            (reason::SUCCEEDED, short, Cause::Success, false),
        ] {
            let expected = Judgement {
                cause,
                for_good: false,
                is_unfit,
            };
            assert_eq!(
                judge(why, RetryAction::Retry, took),
                expected,
                "{why} after {took:?}"
            );
        }
    }

    #[test]
    fn what_a_rule_of_the_task_says_of_such_a_failure_counts() {
        let judged = |action| judge(reason::START_FAILED, action, Duration::ZERO);
        let failed = judged(RetryAction::Fail);
        assert_eq!((failed.cause, failed.for_good), (Cause::Failure, true));
        let ignored = judged(RetryAction::Ignore);
        assert_eq!((ignored.cause, ignored.is_unfit), (Cause::Uncounted, true));
    }
}
