//! The end of an attempt of an item, as its machine reports it: its cause, the pause before the next attempt, and the outcome
//! that is stored, without values of Secrets. What follows from an end is decided by the leader.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use skyward_api::condition::{cut, reason};
use skyward_planner::{
    map::{
        fitness::{Fault, Judgement, judge},
        items::{Counts, Retries},
        leader::{Event, Heard, Leader, Life},
        outcome::{self, Outcome},
        record::{Cause, Worker},
    },
    task::{
        retries::{Failure, Policy, failed_too_often, interrupted_too_often},
        status::Why,
    },
};
use skyward_remote::protocol::{EXCEPTION_BYTES, ItemEnded};

use super::Process;
use crate::task::{
    collect::{reason_of, signal_name},
    effects::now,
    tail, told,
};

/// Most bytes of a message about an item that failed.
pub(super) const MESSAGE: usize = 1000;

/// What the end of an attempt means beyond its item.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    /// How it ended, if its machine gets no other item for now.
    pub(super) unfit: Option<Why>,
    /// Whether the map is no further with it.
    pub(super) is_vain: bool,
}

/// How many failures of an item came before the one with that cause, as its pause counts them.
const fn failed_before(cause: Cause, counts: Counts) -> u32 {
    match cause {
        // Else each ignored failure would make the shortest pause.
        Cause::Uncounted => counts.failures.saturating_add(counts.uncounted),
        Cause::Success | Cause::Failure | Cause::Interruption => counts.failures,
    }
}

/// Why no other attempt of an item follows one with that cause, where its retries are used up.
fn used_up(cause: Cause, counts: Counts, retries: Retries) -> Option<String> {
    let why = match cause {
        // Nothing was asked for: the failure speaks for itself.
        Cause::Failure if retries.on_failure == 0 => None,
        Cause::Failure => Some(failed_too_often(
            counts.failures.saturating_add(1),
            retries.on_failure,
        )),
        Cause::Interruption => Some(interrupted_too_often(
            counts.interruptions.saturating_add(1),
            retries.on_interruption,
        )),
        Cause::Success | Cause::Uncounted => None,
    };
    why.filter(|_| counts.is_final(cause, retries))
}

impl Process<'_> {
    pub(super) fn policy(&self) -> Policy<'_> {
        Policy {
            task: self.task.spec.retries.as_ref(),
            pool: Some(&self.order.pool.retries),
        }
    }

    /// The end of an attempt of an item that a worker tells, in the form that the leader takes; and what it means for
    /// the machine and the map.
    pub(super) fn ended(
        &mut self,
        machine: &Arc<str>,
        worker: Worker,
        end: &ItemEnded,
    ) -> (Heard<Bytes>, Meaning) {
        let finished = told::item(end);
        let why = reason_of(&finished);
        let fault = self.fault(machine, worker, end, why);
        let policy = self.policy();
        let took = Duration::from_micros(end.microseconds);
        let failure = Failure {
            reason: why,
            exit_code: (why == reason::NON_ZERO_EXIT).then_some(end.exit_code),
            exception: &end.exception,
        };
        let Judgement {
            cause,
            for_good,
            is_unfit,
            is_vain,
        } = judge(why, policy.action(&failure), took, fault);
        let counts = self
            .leader
            .as_ref()
            .map(|leader| leader.items().counts(end.index));
        let counts = counts.unwrap_or_default();
        let retries = self.leader.as_ref().map(Leader::retries);
        let used_up = retries.and_then(|retries| used_up(cause, counts, retries));
        let has_failed = !matches!(why, reason::SUCCEEDED | reason::INTERRUPTED | reason::STOPPED);
        let pause = match cause {
            // Else other machines that are no better would use up its interruptions at once.
            Cause::Interruption if is_vain => policy.pause(counts.interruptions.saturating_add(1)),
            _ if has_failed => policy.pause(failed_before(cause, counts).saturating_add(1)),
            _ => Duration::ZERO,
        };
        let is_known = self.secrets.is_some();
        let masked = |text: &str, most: usize| match &self.secrets {
            Some(secrets) => cut(&tail::masked(&tail::harmless(text), secrets), most),
            None => String::new(),
        };
        let mut outcome = Outcome {
            reason: why.to_owned(),
            exit_code: (why == reason::NON_ZERO_EXIT).then_some(end.exit_code),
            signal: signal_name(end.signal),
            exception: masked(&end.exception, EXCEPTION_BYTES),
            message: if is_known || end.message.is_empty() {
                masked(&end.message, MESSAGE)
            } else {
                "[not shown: the Secrets it may hold cannot be read now]".to_owned()
            },
            machine: machine.to_string(),
            milliseconds: end.microseconds / 1000,
        };
        let unfit = is_unfit.then(|| Why::new(why, outcome.message.clone()));
        // A rule that ends an item at once asks for no retries.
        if let Some(used_up) = used_up.filter(|_| !for_good) {
            if !outcome.message.is_empty() {
                outcome.message.push_str("; ");
            }
            outcome.message.push_str(&used_up);
        }
        let value = if cause == Cause::Success {
            &end.value[..]
        } else {
            &[]
        };
        let body = Bytes::from(outcome::body(&outcome, value));
        let heard = Heard::Ended {
            position: end.position,
            index: end.index,
            attempt: end.attempt,
            cause,
            for_good,
            pause,
            took,
            bytes: body.len(),
            body,
        };
        (heard, Meaning { unfit, is_vain })
    }

    /// Whose fault it is, if the item could not start. Ends that come again count once.
    fn fault(&mut self, machine: &Arc<str>, worker: Worker, end: &ItemEnded, why: &str) -> Fault {
        let Some(leader) = &self.leader else {
            return Fault::Unknown;
        };
        let items = leader.items();
        if !items.counts_from(worker, end.index, end.attempt) {
            return Fault::Unknown;
        }
        // Only of a start that failed it matters what the others do.
        let others_may = why == reason::START_FAILED
            && leader.holders().any(|holder| {
                let known = self.workers.get(&holder.rank);
                let known = known.filter(|_| holder.attempt == self.order.attempt);
                known.is_some_and(|known| {
                    known.life != Life::Lost
                        && known.machine != *machine
                        && !self.starts.fails_on(&known.machine)
                })
            });
        self.starts.on_end(machine, end.index, why, others_may)
    }

    /// No worker on that machine gets another item; their dispatcher ends them.
    pub(super) fn machine_is_unfit(&mut self, name: &Arc<str>, why: &Why) {
        let Some(leader) = &mut self.leader else { return };
        let workers = self.workers.values();
        for known in workers.filter(|worker| worker.machine == *name && worker.life != Life::Lost) {
            let worker = Worker {
                attempt: self.order.attempt,
                rank: known.rank,
            };
            leader.on(Event::Worker(worker, Life::Closing), now());
            self.unfit.insert(known.rank, why.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_after_which_no_retry_is_left_says_how_many_there_were() {
        let retries = Retries {
            on_interruption: 3,
            on_failure: 1,
        };
        let said = |cause, failures, interruptions| {
            let counts = Counts {
                ended: failures + interruptions,
                failures,
                interruptions,
                uncounted: 0,
            };
            used_up(cause, counts, retries)
        };
        assert_eq!(
            said(Cause::Failure, 1, 3).as_deref(),
            Some("2 attempts failed, and retries.onFailure allows 1")
        );
        assert_eq!(
            said(Cause::Interruption, 1, 3).as_deref(),
            Some("4 attempts were interrupted, and retries.onInterruption allows 3")
        );
        for (cause, failures, interruptions) in [
            (Cause::Failure, 0, 3),
            (Cause::Interruption, 1, 2),
            (Cause::Success, 1, 3),
            (Cause::Uncounted, 1, 3),
        ] {
            assert_eq!(said(cause, failures, interruptions), None, "{cause:?}");
        }
        let none = Retries {
            on_failure: 0,
            ..retries
        };
        let first = used_up(Cause::Failure, Counts::default(), none);
        assert_eq!(first, None, "nobody has asked for a retry");
    }

    #[test]
    fn the_pause_of_an_item_grows_with_failures_that_a_rule_ignores_as_that_of_a_run_does() {
        let of = |cause, uncounted| {
            let counts = Counts {
                ended: 3 + uncounted,
                failures: 1,
                interruptions: 2,
                uncounted,
            };
            Policy::default()
                .pause(failed_before(cause, counts) + 1)
                .as_secs()
        };
        let ignored = [0, 1, 2, 20].map(|uncounted| of(Cause::Uncounted, uncounted));
        assert_eq!(ignored, [20, 40, 80, 300]);
        assert_eq!(of(Cause::Failure, 20), 20);
    }
}
