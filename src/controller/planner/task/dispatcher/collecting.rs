//! Brings the log and result of a run into the store; then its agent may forget the run.

use jiff::Timestamp;
use skyward_core::session::AgentError;

use super::{
    AGAIN, Dispatcher, FETCH_AGAIN, STORE_AGAIN, is_complete,
    state::{Collect, Run, RunStage, Stage},
};
use crate::task::{
    message::{CollectError, CollectOrder, Collected, Effect},
    model::{RunId, SlotAttempt},
};

impl Dispatcher {
    pub(super) fn collect(&mut self, id: &RunId, now: Timestamp) {
        let give_up = self.has_waited_enough(id, now) && !self.is_held();
        let unreadable = self.is_unreadable(id);
        // While other runs of its attempt go on, the Task cannot record its end: the store keeps
        // it, for a later leader that finds its machine gone.
        let last = self
            .attempt_runs(&id.uid, id.attempt)
            .all(|(other, run)| other == id || run.is_settled());
        let task = self.tasks.get(&id.uid);
        let keeps_ranks = task.is_some_and(|task| self.keeps_ranks(&task.entry));
        let Some(run) = self.runs.get_mut(id) else { return };
        let RunStage::Finished(finished) = &run.stage else {
            return;
        };
        let Some(task) = self.tasks.get(&id.uid) else {
            return;
        };
        let resolved = match &task.stage {
            Stage::Running(attempt) => attempt.resolved.as_ref().or(attempt.masks.as_ref()).cloned(),
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => None,
        };
        let pool_refs = self.pool.iter().flat_map(|pool| &pool.env_from);
        run.collect = Collect::InFlight;
        let order = CollectOrder {
            run: id.clone(),
            machine: run.machine.clone(),
            finished: finished.clone(),
            gone: run.gone,
            keep: !last || keeps_ranks || !is_complete(finished),
            give_up,
            unreadable,
            refs: pool_refs.chain(&task.entry.env_from).cloned().collect(),
            resolved,
        };
        self.effects.push(Effect::Collect(Box::new(order)));
    }

    pub(super) fn on_collected(
        &mut self,
        id: &RunId,
        result: Result<Box<Collected>, CollectError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        if !matches!(run.collect, Collect::InFlight) || matches!(run.stage, RunStage::Lost) {
            return;
        }
        if run.discard {
            run.collect = Collect::Not;
            return;
        }
        match result {
            Ok(collected) => {
                let forked = match &run.stage {
                    RunStage::Finished(finished) => finished.forked,
                    _ => None,
                };
                run.let_go_on();
                self.effects.push(Effect::RunEnded(collected.reason, forked));
                run.collect = Collect::Done(collected);
                run.let_go_of_output();
                self.conclude(&id.uid, now);
            }
            Err(error) => {
                run.collect = Collect::Not;
                let of_machine = matches!(error, CollectError::Machine(_));
                run.put_off(if of_machine { FETCH_AGAIN } else { STORE_AGAIN }, now);
                if run.failures.is_power_of_two() {
                    self.effects.push(Effect::Warn(format!(
                        "run {id} cannot be collected yet, {} times; it is tried again: {error}",
                        run.failures
                    )));
                }
                let machine = self.machines.get(&run.place);
                let is_connected = machine.is_some_and(|machine| machine.connection.is_some());
                // A machine that is not connected is waited for, or given up by its Pool.
                let is_said = !of_machine || is_connected && self.on_unread(id, now);
                if is_said {
                    let mut why = error.why();
                    if let Some(held) = self.hold_in_words(id) {
                        why.message = format!("{}. {held}", why.message);
                    }
                    if let Some(run) = self.runs.get_mut(id) {
                        run.hold_up(why, now);
                        if is_connected {
                            run.let_wait();
                        }
                    }
                }
                self.tell_hold(id, now);
            }
        }
    }

    pub(super) fn copy_log(&mut self, id: &RunId, now: Timestamp) {
        let (Some(run), Some(pool)) = (self.runs.get_mut(id), &self.pool) else {
            return;
        };
        let Some(machine) = self
            .machines
            .get(&run.place)
            .filter(|machine| machine.connection.is_some())
        else {
            return;
        };
        if !run.copying && run.copy_at.is_none_or(|at| at <= now) {
            run.copying = true;
            self.effects.push(Effect::CopyLog {
                run: id.clone(),
                machine: machine.name.clone(),
                limit: pool.log_limit,
            });
        }
    }

    /// Has agents forget ended runs that no Task needs, one message for each machine.
    pub(super) fn forget_runs(&mut self, now: Timestamp) {
        let mut by_machine: std::collections::BTreeMap<SlotAttempt, Vec<RunId>> =
            std::collections::BTreeMap::new();
        let over = |run: &Run| {
            let due = run.not_before.is_none_or(|at| at <= now);
            // A Start under way would begin a forgotten run anew.
            run.discard
                && matches!(run.stage, RunStage::Finished(_))
                && run.start.is_none()
                && !run.forgetting
                && due
        };
        for id in self.run_ids(over) {
            // While the record names its attempt, another leader would start the run again.
            if self.is_recorded(&id) {
                continue;
            }
            let Some(run) = self.runs.get_mut(&id) else {
                continue;
            };
            if self
                .machines
                .get(&run.place)
                .is_some_and(|machine| machine.connection.is_some())
            {
                run.forgetting = true;
                by_machine.entry(run.place).or_default().push(id);
            }
        }
        for (place, runs) in by_machine {
            if let Some(machine) = self.machines.get(&place) {
                self.effects.push(Effect::Forget {
                    machine: machine.name.clone(),
                    runs,
                });
            }
        }
    }

    pub(super) fn on_forgotten(&mut self, runs: &[RunId], result: &Result<(), AgentError>, now: Timestamp) {
        let mut doubted = None;
        for id in runs {
            match result {
                Ok(()) | Err(AgentError::NotFound) => self.remove_run(id),
                Err(error) => {
                    if let Some(run) = self.runs.get_mut(id) {
                        run.forgetting = false;
                        run.not_before = Some(now + AGAIN);
                        if *error == AgentError::StaleEpoch {
                            doubted = Some(run.machine.clone());
                        }
                    }
                }
            }
        }
        if let Some(machine) = doubted {
            self.doubt_leadership(machine);
        }
    }
}
