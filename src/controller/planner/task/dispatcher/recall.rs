//! Recalls outcomes that an earlier leader stored, and runs that it left on machines, without a
//! record in this cluster: after a crash, or after a restore of etcd from a backup.
//!
//! A recorded run that no agent has reported is not started before the store was asked for its end.
//! A Task that is older than this process is not placed before the store was asked for attempts
//! that its status does not know: a Task with a stored outcome does not run again, and no attempt
//! reuses a number under which something is stored.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use skyward_api::{condition::reason, task::Placement};

use super::{
    Dispatcher, STORE_AGAIN,
    runs::synthetic,
    state::{Collect, Read, RunStage, Stage, Stored, Unclaimed},
};
use crate::task::{
    message::{CollectError, Collected, Effect, Remembered},
    model::{RunId, SlotAttempt, Uid},
    retries::{Policy, Verdict},
    run::Ending,
    status::{self, Rank, Why},
};

impl Dispatcher {
    /// Its machine is gone: did an earlier leader bring its outcome into the store?
    pub(super) fn recall(&mut self, id: &RunId, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id)
            && !run.recalling
            && run.not_before.is_none_or(|at| at <= now)
        {
            run.recalling = true;
            run.unasked = false;
            self.effects.push(Effect::Recall(id.clone()));
        }
    }

    pub(super) fn on_recalled(
        &mut self,
        id: &RunId,
        result: Result<Option<Box<Collected>>, CollectError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        run.recalling = false;
        // Its agent may have reported the run meanwhile: then nothing is left to ask.
        let is_starting = matches!(run.stage, RunStage::Starting);
        let before_start = run.unasked;
        run.unasked &= is_starting && result.is_err();
        let decided = run.discard
            || !run.needs_machine()
            || matches!(run.collect, Collect::InFlight)
            || (before_start && !is_starting);
        match result {
            _ if decided => {}
            Ok(Some(collected)) => {
                let ending = match collected.reason {
                    reason::STOPPED => Ending::Stopped,
                    reason::INTERRUPTED => Ending::MachineRestarted,
                    _ => Ending::Exited,
                };
                run.stage = RunStage::Finished(Arc::new(synthetic(ending, String::new(), now)));
                if run.machine.is_empty() || run.kept {
                    run.machine = collected.result.machine.as_str().into();
                }
                run.collect = Collect::Done(collected);
                run.let_go_on();
                self.dirty = true;
                self.conclude(&id.uid, now);
            }
            // The run is not lost: the question was whether it may be started.
            Ok(None) if before_start => {
                // Somebody deleted what was kept: the rank runs again.
                run.kept = false;
                run.let_go_on();
                self.drive(id, now);
            }
            Ok(None) => self.lose(id, now),
            // An unknown outcome is no loss.
            Err(error) => {
                run.put_off(STORE_AGAIN, now);
                run.hold_up(error.why(), now);
            }
        }
    }

    /// Asks, before a recorded run is started that no agent has reported, whether it ended and was
    /// forgotten before the record was made.
    pub(super) fn ask_before_start(&mut self, id: &RunId) {
        if let Some(run) = self.runs.get_mut(id) {
            run.recalling = true;
            self.effects.push(Effect::Recall(id.clone()));
        }
    }

    /// The answer about a Task that waits.
    pub(super) fn on_task_recalled(
        &mut self,
        uid: &Uid,
        result: Result<Remembered, CollectError>,
        now: Timestamp,
    ) {
        self.recalling = self.recalling.saturating_sub(1);
        self.dirty = true;
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Waiting(waiting) = &mut task.stage else {
            task.stored = Stored::Unasked;
            return;
        };
        let remembered = match result {
            Ok(remembered) => remembered,
            Err(error) => {
                task.stored = Stored::Unasked;
                waiting.obstacle = Some(Why::new(
                    error.why().reason,
                    format!(
                        "whether it has run already cannot be read from the result store: {error}. It is tried again by itself"
                    ),
                ));
                waiting.not_before = Some(now + STORE_AGAIN);
                return;
            }
        };
        waiting.obstacle = None;
        task.stored = Stored::Known(remembered.newest);
        // The store need not have all ranks of an `All`.
        let is_one = !matches!(task.entry.placement, Some(Placement::All(_)));
        if let Some((attempt, collected)) = remembered.outcome
            && is_one
            && attempt > task.counts.attempt
        {
            task.counts.attempt = attempt;
            let policy = Policy {
                task: task.entry.retries.as_deref(),
                pool: self.pool.as_ref().map(|pool| &pool.retries),
            };
            let before = task.counts.failures;
            let verdict = collected.failure().map(|failure| {
                if attempt < remembered.newest {
                    // Another attempt has followed.
                    Verdict::Retry
                } else {
                    policy.verdict(&[failure], before, attempt)
                }
            });
            if let Some(verdict) = &verdict {
                task.counts.failed(verdict);
            }
            if matches!(verdict, Some(Verdict::Retry | Verdict::Ignore)) {
                return;
            }
            let rank = Rank {
                place: None,
                machine: &collected.result.machine,
                // It ran on a machine that this cluster may have no record of.
                cost: None,
                collected: Some(&collected),
            };
            let started = collected.result.started_at.as_ref().map(|time| time.0);
            let status = status::ended(&task.entry, task.counts, &[rank], started, None, now);
            self.end_task(uid, status, now);
        }
    }

    /// Runs of an attempt that their Tasks' statuses do not know: this cluster placed them there
    /// and has forgotten it, as after a restore. They are placed there again: the agent knows the
    /// run, so it goes on, or its end is collected, and nothing runs twice.
    pub(super) fn take_up_forgotten(&mut self, now: Timestamp) {
        let may_be = |id: &RunId| {
            self.tasks.get(&id.uid).is_some_and(|task| {
                matches!(task.stage, Stage::Waiting(_))
                    && task.write.is_none()
                    && task.read == Read::Not
                    && !task.entry.suspend
                    && task.entry.placement == Some(Placement::One)
                    // The items of a map are in its log: a worker that nobody knows is ended.
                    && task.entry.map.is_none()
                    && id.attempt > task.counts.attempt
                    && id.rank == 0
            })
        };
        let found = self
            .unclaimed
            .iter()
            .filter(|((id, place), _)| self.machines.contains_key(place) && may_be(id));
        // The newest attempt; of several machines that tell of it, the machine that told first.
        let rank = |key: &(RunId, SlotAttempt), run: &Unclaimed| (key.0.attempt, Reverse(run.since));
        let mut newest: BTreeMap<&Uid, (&(RunId, SlotAttempt), &Unclaimed)> = BTreeMap::new();
        for (key, run) in found {
            let best = newest.entry(&key.0.uid).or_insert((key, run));
            if rank(key, run) > rank(best.0, best.1) {
                *best = (key, run);
            }
        }
        let newest: Vec<(RunId, SlotAttempt)> = newest.into_values().map(|(key, _)| key.clone()).collect();
        for (id, place) in newest {
            let uid = id.uid.clone();
            self.unclaimed.remove(&(id.clone(), place));
            if let Some(task) = self.tasks.get_mut(&uid) {
                task.counts.attempt = id.attempt - 1;
            }
            self.begin_attempt(&uid, vec![place], now);
        }
    }
}
