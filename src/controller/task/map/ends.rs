//! The end of an attempt of an item, as its machine reports it: its cause, the pause before the next attempt, and the outcome
//! that is stored, without values of Secrets. What follows from an end is decided by the leader.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use skyward_api::condition::{cut, reason};
use skyward_planner::{
    map::{
        fitness::{Fault, Judgement, judge},
        items::Counts,
        leader::{Event, Heard, Life},
        outcome::{self, Outcome},
        record::{Cause, Worker},
    },
    task::{
        retries::{Failure, Policy},
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
        // Ignored failures have no count of their own, and each of them would make the shortest pause.
        Cause::Uncounted => counts.ended.saturating_sub(counts.interruptions),
        Cause::Success | Cause::Failure | Cause::Interruption => counts.failures,
    }
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
        let outcome = Outcome {
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
        let unfit = is_unfit.then(|| Why::new(why, outcome.message));
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
    fn the_pause_of_an_item_grows_with_failures_that_a_rule_ignores_as_that_of_a_run_does() {
        let of = |cause, ended| {
            let counts = Counts {
                ended,
                failures: 1,
                interruptions: 2,
            };
            Policy::default()
                .pause(failed_before(cause, counts) + 1)
                .as_secs()
        };
        let ignored = [2, 3, 4, 20].map(|ended| of(Cause::Uncounted, ended));
        assert_eq!(ignored, [10, 20, 40, 300]);
        assert_eq!(of(Cause::Failure, 20), 20);
    }
}
