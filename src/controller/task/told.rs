//! Facts that an agent tells, with the room that they take while a dispatcher holds them.
//!
//! A machine may tell of as many runs as it likes, and its dispatcher keeps each fact until a
//! Task claims it, or until its output is stored. So each is charged to the machine, its
//! namespace and the installation (`remote/budget.rs`) before the dispatcher gets it, and a
//! stream of facts is not read on while there is no room.

use skyward_planner::task::{
    model::RunId,
    run::{Ending, Fact, Finished, Permit, RunState, Told},
};
use skyward_remote::{
    budget::Account,
    protocol::{self as wire, fact, finished, run_state},
};

/// Bytes that a dispatcher keeps beside a fact.
const BESIDE: usize = 1024;

/// A fact as a dispatcher knows it; `None` for an impossible run.
pub(crate) fn fact(Told { what, room }: Told<wire::Fact>) -> Option<Told<Fact>> {
    let finished = match what.fact? {
        fact::Fact::Finished(end) => Some(ended(end)),
        fact::Fact::Started(_) => None,
        fact::Fact::Replayed(_)
        | fact::Fact::Reclaim(_)
        | fact::Fact::Progress(_)
        | fact::Fact::NotForked(_) => return None,
    };
    let run = RunId::parse(&what.run_id)?;
    Some(Told {
        what: Fact { run, finished },
        room,
    })
}

/// An answer about a run as a dispatcher knows it.
pub(crate) fn state(Told { what, room }: Told<wire::RunState>) -> Told<RunState> {
    let what = match (what.phase(), what.finished) {
        (run_state::Phase::Finished, Some(end)) => RunState::Finished(ended(end)),
        (run_state::Phase::Unknown, _) => RunState::Unknown,
        (run_state::Phase::Starting | run_state::Phase::Running | run_state::Phase::Finished, _) => {
            RunState::Running
        }
    };
    Told { what, room }
}

/// How the attempt of an item ended, as a run that ended so.
pub(crate) fn item(end: &wire::ItemEnded) -> Finished {
    Finished {
        ending: ending(end.ending()),
        exit_code: end.exit_code,
        signal: end.signal,
        message: end.message.clone(),
        exception: end.exception.clone(),
        ..Finished::default()
    }
}

const fn ending(ending: finished::Ending) -> Ending {
    match ending {
        finished::Ending::None => Ending::Unknown,
        finished::Ending::Exited => Ending::Exited,
        finished::Ending::Signaled => Ending::Signaled,
        finished::Ending::TimedOut => Ending::TimedOut,
        finished::Ending::Stopped => Ending::Stopped,
        finished::Ending::StartFailed => Ending::StartFailed,
        finished::Ending::ShimLost => Ending::ShimLost,
        finished::Ending::DiskFull => Ending::DiskFull,
        finished::Ending::FunctionRaised => Ending::FunctionRaised,
        finished::Ending::BadSource => Ending::BadSource,
        finished::Ending::ResultNotJson => Ending::ResultNotJson,
        finished::Ending::ResultTooLarge => Ending::ResultTooLarge,
        finished::Ending::MachineRestarted => Ending::MachineRestarted,
        finished::Ending::OutOfMemory => Ending::OutOfMemory,
        finished::Ending::Interrupted => Ending::Interrupted,
    }
}

fn ended(end: wire::Finished) -> Finished {
    Finished {
        ending: ending(end.ending()),
        exit_code: end.exit_code,
        signal: end.signal,
        message: end.message,
        exception: end.exception,
        started_ms: end.started_ms,
        finished_ms: end.finished_ms,
        log_bytes: end.log_bytes,
        log_dropped_bytes: end.log_dropped_bytes,
        log: end.log,
        log_tail: end.log_tail,
        result_bytes: end.result_bytes,
        result: end.result,
        has_result: end.has_result,
        forked: end.forked,
    }
}

/// A fact with its room. Where there is no room for a log and a result inside it, they are left to
/// be fetched, and the rest waits for room. `None`: no room for long; the stream is followed again
/// later, from its beginning.
pub(crate) async fn weighed(account: &Account, fact: wire::Fact) -> Option<Told<wire::Fact>> {
    let mut told = answered(account, fact);
    if told.room.is_none() {
        told.room = Some(Box::new(account.take(told.what.bytes()).await?));
    }
    Some(told)
}

/// An answer about a run that a dispatcher holds already, with its room. Where there is none, log
/// and result are left to be fetched, and the small rest does not wait: other facts may give their
/// room back only because of this answer.
pub(crate) fn answered<T: Weight>(account: &Account, mut what: T) -> Told<T> {
    let room = account.try_take(what.bytes());
    if room.is_none() {
        what.leave_output();
    }
    Told {
        what,
        room: room.map(|charge| Box::new(charge) as Permit),
    }
}

/// A value that takes room as long as a dispatcher holds it.
pub(crate) trait Weight {
    fn end(&self) -> Option<&wire::Finished>;
    fn end_mut(&mut self) -> Option<&mut wire::Finished>;

    /// Its own bytes, and those that a dispatcher keeps beside it.
    fn bytes(&self) -> usize {
        BESIDE
            + self.end().map_or(0, |end| {
                end.message.len()
                    + end.exception.len()
                    + end.log_tail.len()
                    + end.log.len()
                    + end.result.len()
            })
    }

    /// Drops log and result, which stay on the machine.
    fn leave_output(&mut self) {
        if let Some(end) = self.end_mut() {
            (end.log, end.result) = (Vec::new(), Vec::new());
        }
    }
}

impl Weight for wire::Fact {
    fn end(&self) -> Option<&wire::Finished> {
        match &self.fact {
            Some(fact::Fact::Finished(end)) => Some(end),
            _ => None,
        }
    }
    fn end_mut(&mut self) -> Option<&mut wire::Finished> {
        match &mut self.fact {
            Some(fact::Fact::Finished(end)) => Some(end),
            _ => None,
        }
    }
}

impl Weight for wire::RunState {
    fn end(&self) -> Option<&wire::Finished> {
        self.finished.as_ref()
    }
    fn end_mut(&mut self) -> Option<&mut wire::Finished> {
        self.finished.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use skyward_remote::budget::Budget;

    use super::*;

    fn end(output: usize) -> wire::Fact {
        wire::Fact {
            fact: Some(fact::Fact::Finished(wire::Finished {
                log: vec![0; output],
                log_bytes: output as u64,
                result: vec![0; output],
                result_bytes: output as u64,
                has_result: true,
                ..wire::Finished::default()
            })),
            ..wire::Fact::default()
        }
    }

    #[tokio::test]
    async fn facts_of_one_machine_leave_their_output_there_once_they_fill_their_room_and_then_wait() {
        let account = Budget::default().account("n");
        let mut held = Vec::new();
        let mut whole = 0;
        // Without a reader the stream of facts is not read on.
        while let Some(told) = weighed(&account, end(64 * 1024)).now_or_never() {
            let told = told.expect("nobody has waited for long");
            let end = told.what.end().unwrap();
            assert_eq!(
                (end.log_bytes, end.result_bytes),
                (64 * 1024, 64 * 1024),
                "what to fetch stays"
            );
            whole += usize::from(!end.log.is_empty());
            held.push(told);
        }
        assert!((10..100).contains(&whole), "{whole} came with their output");
        assert!(held.len() > whole, "some came without it");
        let bytes: usize = held.iter().map(|told| told.what.bytes()).sum();
        assert!(bytes <= 3 << 20, "{bytes} bytes are held");

        let before = held.len();
        held.remove(0);
        let next = weighed(&account, end(0)).now_or_never();
        assert!(
            next.is_some(),
            "of {before} one was taken, so there is room for the next"
        );
    }
}
