//! How an attempt begins and ends. All its runs end together: the next step is decided only when
//! each run has ended and is collected, or its machine is gone.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    Task, TaskPhase,
    condition::{self, cut, reason},
    task::{RunResult, SourceStatus},
};
use skyward_core::Usd;

use super::{
    Dispatcher,
    deadlines::overdue,
    keeping::{self, Keeping},
    state::{Attempt, Collect, Fetch, References, Run, RunStage, Stage, StopWhy, Waiting, queue_key},
};
use crate::{
    base::time::after,
    events::{self, EventSpec},
    pool::resolved::Timeouts,
    task::{
        message::{Cause, Effect},
        model::{Entry, RunId, SlotAttempt, Uid},
        retries::{Failure, Policy, Verdict, interrupted_too_often},
        run::Ending,
        status::{self, Counts, Rank, Why},
    },
};

/// Bytes of how a run failed that are told beside what follows.
const SAID: usize = 500;

/// The outcome of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The Task ended: its runs tell how.
    Ended,
    /// Another attempt, because a machine was lost; it counts.
    Retry,
    /// Another attempt later, because it was stopped; it does not count.
    Later(&'static str),
    /// The Task failed: why.
    Failed(Why),
}

impl Dispatcher {
    /// Reserves the places and records the attempt; nothing is started before.
    pub(super) fn begin_attempt(&mut self, uid: &Uid, places: Vec<SlotAttempt>, now: Timestamp) {
        let names: Vec<Arc<str>> = places.iter().map(|place| self.machine_name(*place)).collect();
        let prices: Vec<_> = places.iter().map(|place| self.price_of(*place)).collect();
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Waiting(waiting) = &mut task.stage else {
            return;
        };
        let resolved = match std::mem::replace(&mut waiting.references, References::Unread) {
            References::Read(resolved, _) => Some(resolved),
            References::Unread | References::Reading { .. } | References::Missing(_) => None,
        };
        let fetched = match std::mem::take(&mut waiting.fetch) {
            Fetch::Done(source) => Some(source),
            Fetch::Not | Fetch::Failed(..) => None,
        };
        let is_stored = waiting.keeping.as_deref().is_some_and(Keeping::is_stored);
        let (kept, mut outcomes) = keeping::of_attempt(waiting.keeping.take(), places.len());
        if is_stored && kept.is_none() {
            // What is stored under that number would pass for the ends of its own runs.
            task.counts.attempt = task.counts.attempt.saturating_add(1);
        }
        let number = task.counts.attempt + 1;
        self.queue.remove(&queue_key(&task.entry));
        for (rank, ((place, name), price)) in places.iter().zip(&names).zip(prices).enumerate() {
            let rank = rank as u32;
            let run = if let Some(collected) = outcomes.remove(&rank) {
                Run::kept(*place, collected, now)
            } else {
                let mut run = Run::new(*place, name.clone(), RunStage::Reserved);
                run.price = price;
                run.placed_at = Some(now);
                run
            };
            self.runs.insert(RunId::new(uid, number, rank), run);
        }
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let counts = Counts {
            attempt: number,
            ..task.counts
        };
        task.progress.begin();
        let mut status = status::placed(&task.entry, counts, &places, &names, now);
        // What is on record stays.
        let read = resolved.as_ref().and_then(|resolved| resolved.source.clone());
        let read = read.map(|digest| SourceStatus {
            digest,
            ..SourceStatus::default()
        });
        status.source = status.source.take().or(read).or(fetched);
        if let Some(kept) = &kept {
            kept.note(&mut status);
        }
        let pool = self.pool.as_ref().map(|pool| pool.uid.clone());
        status.pool_uid = pool.clone().unwrap_or_default();
        task.stage = Stage::Placing(Attempt {
            number,
            places,
            started_at: now,
            pool,
            resolved,
            kept,
            ..Attempt::default()
        });
        self.write(uid, status);
    }

    /// The placement is on record: start.
    pub(super) fn placement_is_recorded(
        &mut self,
        uid: &Uid,
        entry: Entry,
        object: Arc<Task>,
        now: Timestamp,
    ) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let stage = std::mem::replace(&mut task.stage, Stage::Waiting(Waiting::new(&entry, None, now)));
        let Stage::Placing(mut attempt) = stage else {
            task.stage = stage;
            return;
        };
        attempt.task = Some(object);
        // Also when a reread found the record because the answer was lost.
        task.written();
        task.invalid = 0;
        task.counts.attempt = attempt.number;
        if let Some(started) = &entry.status.started_at {
            attempt.started_at = started.0;
        }
        let number = attempt.number;
        let places = attempt.places.len() as u32;
        let running = condition::find(&entry.status.conditions, condition::RUNNING);
        let note = running.map(|c| c.message.clone()).unwrap_or_default();
        task.stage = Stage::Running(attempt);
        if !entry.is_older_than(&task.entry) {
            task.entry = entry;
        }
        let event = EventSpec::normal(events::reason::TASK_STARTED, "Start", note);
        self.publish_merged(uid, event);
        self.effects.push(Effect::Entered(TaskPhase::Running));
        for rank in 0..places {
            if let Some(run) = self.runs.get_mut(&RunId::new(uid, number, rank))
                && matches!(run.stage, RunStage::Reserved)
            {
                run.stage = RunStage::Starting;
            }
        }
        self.live(uid);
        // A Pool or Task that changed meanwhile stops the attempt before it begins.
        self.steer(uid, now);
        for run in self.runs_of(uid) {
            self.drive(&run, now);
        }
        self.look_for_lost(now);
    }

    /// The placement is not on record and never will be: the places are free again.
    pub(super) fn abandon_placement(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Placing(attempt) = &task.stage else {
            return;
        };
        let (number, kept) = (attempt.number, attempt.kept.clone());
        let mut waiting = Waiting::new(&task.entry, None, now);
        waiting.keep_still(kept);
        waiting.not_before = task.write_at;
        task.stage = Stage::Waiting(waiting);
        if task.queues() {
            self.queue.insert(queue_key(&task.entry));
        }
        for id in self.runs_of(uid) {
            if id.attempt == number {
                self.runs.remove(&id);
            }
        }
        self.dirty = true;
    }

    /// Asks every run of the attempt to end, or those whose machines go where the others do not run again. The gravest
    /// reason counts.
    pub(super) fn stop_attempt(&mut self, uid: &Uid, why: StopWhy, now: Timestamp) {
        let task = self.tasks.get(uid);
        let is_alone = matches!(why, StopWhy::Drained | StopWhy::Interrupted)
            && task.is_some_and(|task| self.keeps_ranks(&task.entry));
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Running(attempt) = &mut task.stage else {
            return;
        };
        // The machine of another rank may go later.
        if attempt
            .stop
            .is_some_and(|stop| stop > why || (stop == why && !is_alone))
        {
            return;
        }
        attempt.stop = Some(why);
        let number = attempt.number;
        let shutdown = self
            .pool
            .as_ref()
            .map_or(Timeouts::default().shutdown, |pool| pool.shutdown);
        let grace: Duration = match why {
            StopWhy::Drained | StopWhy::Interrupted | StopWhy::Suspended | StopWhy::Overdue => {
                task.entry.grace
            }
            StopWhy::PoolOff | StopWhy::PoolDeleted => shutdown,
        };
        if !is_alone {
            self.cancel_deliveries(uid);
        }
        for id in self.runs_of(uid) {
            let goes_on = is_alone && self.runs.get(&id).is_some_and(|run| !self.ends(run));
            if id.attempt == number && !goes_on {
                if let Some(run) = self.runs.get_mut(&id) {
                    let machine = self.machines.get(&run.place);
                    let grace = machine.map_or(grace, |machine| machine.grace(grace, now));
                    run.stop.get_or_insert((grace, why.as_str()));
                }
                self.drive(&id, now);
            }
        }
        self.conclude(uid, now);
    }

    /// Decides what comes after the attempt, once all of it has ended.
    pub(super) fn conclude(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get(uid) else { return };
        let Stage::Running(attempt) = &task.stage else {
            return;
        };
        if task.entry.map.is_some() {
            return self.conclude_map(uid, now);
        }
        let number = attempt.number;
        let ids: Vec<RunId> = (0..attempt.places.len() as u32)
            .map(|rank| RunId::new(uid, number, rank))
            .collect();
        let runs: Vec<&Run> = ids.iter().filter_map(|id| self.runs.get(id)).collect();
        let interrupted = runs.iter().any(|run| match &run.stage {
            RunStage::Lost => true,
            RunStage::Finished(finished) => is_interruption(finished.ending),
            RunStage::Reserved | RunStage::Starting | RunStage::Running => false,
        });
        let settled = runs.len() == ids.len() && runs.iter().all(|run| run.is_settled());
        if !settled {
            if interrupted && attempt.stop.is_none() && !self.keeps_ranks(&task.entry) {
                self.stop_attempt(uid, StopWhy::Interrupted, now);
            }
            return;
        }
        let stopped = runs.iter().any(
            |run| matches!(&run.stage, RunStage::Finished(finished) if finished.ending == Ending::Stopped),
        );
        let stop = attempt.stop;
        let policy = self.policy(&task.entry);
        let outcome = outcome(
            stop,
            interrupted,
            stopped,
            task.counts.interruptions,
            policy.on_interruption(),
            &task.entry.pool,
        );
        let failure = failure(&runs, |failures| match stop {
            // Nothing more may start.
            Some(StopWhy::Overdue | StopWhy::PoolDeleted) => Verdict::Fail(None),
            _ => policy.verdict(failures, task.counts.failures, number),
        });
        let cause = self.cause(&runs, interrupted, stop);
        match outcome {
            Outcome::Ended => {
                self.note_duration(uid, now);
                match failure {
                    Some((verdict, why)) => self.follow_failure(uid, &ids, verdict, why, now),
                    None => self.end_attempt(uid, &ids, None, now),
                }
            }
            Outcome::Failed(mut why) => {
                if why.reason == reason::INTERRUPTED {
                    why.message = format!("{}; the last time {cause}", why.message);
                    if let Some(task) = self.tasks.get_mut(uid) {
                        task.counts.interruptions = task.counts.interruptions.saturating_add(1);
                    }
                }
                self.end_attempt(uid, &ids, Some(why), now);
            }
            Outcome::Retry => {
                let message = format!("{cause}; attempt {} follows", number + 1);
                self.charge(uid, &ids, now);
                // Before the status is decided that tells of it.
                if let Some(task) = self.tasks.get_mut(uid) {
                    task.counts.interruptions = task.counts.interruptions.saturating_add(1);
                }
                self.put_back(uid, Why::new(reason::RETRYING, message.clone()), None, now);
                self.effects.push(Effect::Retried(Cause::Interruption));
                let event = EventSpec::warning(events::reason::TASK_RETRIED, "Retry", message);
                self.publish(uid, event);
            }
            Outcome::Later(message) => {
                self.charge(uid, &ids, now);
                self.put_back(uid, Why::new(reason::RETRYING, message), None, now);
            }
        }
    }

    /// When a Task runs again.
    pub(super) fn policy<'a>(&'a self, entry: &'a Entry) -> Policy<'a> {
        Policy {
            task: entry.retries.as_deref(),
            pool: self.pool.as_ref().map(|pool| &pool.retries),
        }
    }

    /// Runs of the attempt failed by themselves: the Task ends, or another attempt follows after a pause.
    fn follow_failure(&mut self, uid: &Uid, ids: &[RunId], verdict: Verdict, why: Why, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        task.counts.failed(&verdict);
        let counts = task.counts;
        let what = cut(&why.message, SAID);
        if let Verdict::Fail(no_more) = verdict {
            let because = no_more.map(|no_more| Why::new(why.reason, format!("{what}; {no_more}")));
            return self.end_attempt(uid, ids, because, now);
        }
        let Some(task) = self.tasks.get(uid) else { return };
        let pause = self
            .policy(&task.entry)
            .pause(counts.failures.saturating_add(counts.ignored));
        let (number, next) = (counts.attempt, counts.attempt.saturating_add(1));
        let (ignored, cause) = match verdict {
            Verdict::Ignore => (", which retries.rules ignores", Cause::IgnoredFailure),
            Verdict::Retry | Verdict::Fail(_) => ("", Cause::Failure),
        };
        let message = format!("attempt {number} failed{ignored}: {what}; attempt {next} follows");
        let note = format!("{message} after {}s", pause.as_secs());
        let again = Why::new(reason::RETRYING, message);
        self.charge(uid, ids, now);
        self.put_back(uid, again, Some(after(now, pause)), now);
        self.effects.push(Effect::Retried(cause));
        let event = EventSpec::warning(events::reason::TASK_RETRIED, "Retry", note);
        self.publish(uid, event);
    }

    /// What interrupted an attempt, in words.
    fn cause(&self, runs: &[&Run], interrupted: bool, stop: Option<StopWhy>) -> String {
        let first = |wanted: &dyn Fn(&Run) -> bool| runs.iter().find(|run| wanted(run));
        let lost = first(&|run| matches!(run.stage, RunStage::Lost));
        let watcher = first(
            &|run| matches!(&run.stage, RunStage::Finished(finished) if finished.ending == Ending::Interrupted),
        );
        let machine = lost
            .or(watcher)
            .or_else(|| first(&|run| self.ends(run)))
            .or_else(|| first(&|run| matches!(run.stage, RunStage::Finished(_))))
            .map(|run| run.machine.to_string())
            .unwrap_or_default();
        let what = match stop {
            _ if interrupted && lost.is_none() && watcher.is_some() => "lost the watcher of its run",
            _ if interrupted => "was lost",
            Some(_) => "goes",
            // The shutdown of its machine sends SIGTERM; work may send it as well.
            None => "stopped its run on a SIGTERM",
        };
        format!("machine \"{machine}\" {what}")
    }

    /// Adds what the runs of an attempt cost that is over, and that another one follows.
    pub(super) fn charge(&mut self, uid: &Uid, ids: &[RunId], now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        if let Stage::Running(attempt) = &task.stage {
            let runs = ids.iter().filter_map(|id| self.runs.get(id));
            let costs: Usd = runs.filter_map(|run| run.cost(attempt.started_at, now)).sum();
            task.counts.cost += costs;
        }
    }

    /// The Task ends with the outcomes of its runs.
    fn end_attempt(&mut self, uid: &Uid, ids: &[RunId], because: Option<Why>, now: Timestamp) {
        let Some(task) = self.tasks.get(uid) else { return };
        let started_at = match &task.stage {
            Stage::Running(attempt) => Some(attempt.started_at),
            _ => None,
        };
        let ranks: Vec<Rank<'_>> = ids
            .iter()
            .filter_map(|id| self.runs.get(id))
            .map(|run| Rank {
                place: Some(run.place),
                machine: &run.machine,
                cost: started_at.and_then(|placed| run.cost(placed, now)),
                collected: match &run.collect {
                    Collect::Done(collected) => Some(collected),
                    Collect::Not | Collect::InFlight => None,
                },
            })
            .collect();
        let status = status::ended(&task.entry, task.counts, &ranks, started_at, because, now);
        self.end_task(uid, status, now);
        self.live(uid);
    }

    /// The attempt is over and its runs are discarded; the Task waits for the next attempt.
    pub(super) fn put_back(&mut self, uid: &Uid, again: Why, retry_at: Option<Timestamp>, now: Timestamp) {
        let kept = self.to_be_kept(uid);
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let mut waiting = Waiting::new(&task.entry, Some(again), now);
        waiting.keep(kept);
        if let Some(at) = retry_at {
            waiting.pause(&task.entry, at);
        }
        task.stage = Stage::Waiting(waiting);
        if task.queues() {
            self.queue.insert(queue_key(&task.entry));
        }
        for id in self.runs_of(uid) {
            if let Some(run) = self.runs.get_mut(&id) {
                run.discard();
            }
            self.drive(&id, now);
        }
        self.live(uid);
        self.dirty = true;
        self.tell_wait(uid, None, now);
        self.steer(uid, now);
    }
}

/// What follows where runs of a settled attempt failed by themselves, and how the first of them did.
fn failure(runs: &[&Run], verdict: impl Fn(&[Failure<'_>]) -> Verdict) -> Option<(Verdict, Why)> {
    let failures: Vec<Failure<'_>> = runs.iter().filter_map(|run| run.failure()).collect();
    let (rank, first) = runs.iter().enumerate().find(|(_, run)| run.failure().is_some())?;
    let Collect::Done(collected) = &first.collect else {
        return None;
    };
    let result = RunResult {
        rank: rank as u32,
        machine: first.machine.to_string(),
        ..collected.result.clone()
    };
    let message = status::failure_message(&result, failures.len(), runs.len());
    Some((verdict(&failures), Why::new(collected.reason, message)))
}

/// Whether a run that ended so may run again, like a run whose machine is gone.
const fn is_interruption(ending: Ending) -> bool {
    matches!(ending, Ending::MachineRestarted | Ending::Interrupted)
}

pub(super) fn outcome(
    stop: Option<StopWhy>,
    interrupted: bool,
    stopped: bool,
    interruptions: u32,
    limit: u32,
    pool: &str,
) -> Outcome {
    match stop {
        // The run ended by itself before it could be stopped.
        _ if !interrupted && !stopped => Outcome::Ended,
        Some(StopWhy::PoolDeleted) => Outcome::Failed(Why::new(
            reason::POOL_DELETED,
            format!("Pool \"{pool}\" was deleted while the Task ran; create the Task again for another Pool"),
        )),
        Some(StopWhy::Overdue) => Outcome::Failed(overdue()),
        Some(StopWhy::Suspended) => {
            Outcome::Later("it was suspended; another attempt starts when it is resumed")
        }
        Some(StopWhy::PoolOff) => {
            Outcome::Later("its Pool was turned off; another attempt starts when it is on")
        }
        // Also without a reason: else work that stops itself would begin for ever.
        Some(StopWhy::Drained | StopWhy::Interrupted) | None => {
            if interruptions >= limit {
                Outcome::Failed(Why::new(
                    reason::INTERRUPTED,
                    interrupted_too_often(interruptions.saturating_add(1), limit),
                ))
            } else {
                Outcome::Retry
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_by_itself_counts_although_a_stop_was_on_its_way() {
        for stop in [
            None,
            Some(StopWhy::Suspended),
            Some(StopWhy::PoolOff),
            Some(StopWhy::PoolDeleted),
        ] {
            assert_eq!(outcome(stop, false, false, 0, 3, "p"), Outcome::Ended);
        }
    }

    #[test]
    fn a_lost_machine_is_a_retry_until_the_limit() {
        assert_eq!(outcome(None, true, false, 2, 3, "p"), Outcome::Retry);
        assert!(
            matches!(outcome(None, true, false, 3, 3, "p"), Outcome::Failed(why) if why.reason == reason::INTERRUPTED)
        );
        assert!(matches!(
            outcome(None, true, false, 0, 0, "p"),
            Outcome::Failed(_)
        ));
    }

    #[test]
    fn a_machine_that_goes_is_a_retry_that_counts() {
        let drained = |interruptions| outcome(Some(StopWhy::Drained), false, true, interruptions, 1, "p");
        assert_eq!(drained(0), Outcome::Retry);
        assert!(matches!(drained(1), Outcome::Failed(why) if why.reason == reason::INTERRUPTED));
        let ended = outcome(Some(StopWhy::Drained), false, false, 0, 0, "p");
        assert_eq!(ended, Outcome::Ended, "it came to its end before");
    }

    #[test]
    fn a_stop_that_nobody_asked_for_counts_too() {
        let stopped = |interruptions| outcome(None, false, true, interruptions, 3, "p");
        assert_eq!(stopped(2), Outcome::Retry);
        assert!(matches!(stopped(3), Outcome::Failed(why) if why.reason == reason::INTERRUPTED));
    }

    #[test]
    fn what_was_stopped_at_its_deadline_fails_with_it_whatever_became_of_its_machine() {
        for interrupted in [false, true] {
            let outcome = outcome(Some(StopWhy::Overdue), interrupted, true, 0, 3, "p");
            assert!(
                matches!(outcome, Outcome::Failed(why) if why.reason == reason::DEADLINE_EXCEEDED),
                "{interrupted}"
            );
        }
        let ended = outcome(Some(StopWhy::Overdue), false, false, 0, 3, "p");
        assert_eq!(ended, Outcome::Ended, "it came to its end before");
    }

    #[test]
    fn a_pool_turned_off_does_not_count_as_an_interruption() {
        assert!(matches!(
            outcome(Some(StopWhy::PoolOff), true, true, 9, 3, "p"),
            Outcome::Later(_)
        ));
        assert!(matches!(
            outcome(Some(StopWhy::Suspended), false, true, 9, 3, "p"),
            Outcome::Later(_)
        ));
    }
}
