//! What is left of a run is brought into the store, and then its agent may forget it.

use jiff::Timestamp;
use skyward_remote::AgentError;

use super::{
    Dispatcher, FETCH_AGAIN, STORE_AGAIN, is_complete,
    state::{Collect, Run, RunStage, Stage},
};
use crate::task::{
    message::{CollectError, CollectOrder, Collected, Effect},
    model::{Place, RunId},
};

impl Dispatcher {
    pub(super) fn collect(&mut self, id: &RunId) {
        // While others of its attempt go on, its end cannot be on record in the Task: so it
        // is in the store, for a later leader that finds its machine gone.
        let last = self
            .attempt_runs(&id.uid, id.attempt)
            .all(|(other, run)| other == id || run.is_settled());
        let Some(run) = self.runs.get_mut(id) else { return };
        let RunStage::Finished(finished) = &run.stage else {
            return;
        };
        let Some(task) = self.tasks.get(&id.uid) else {
            return;
        };
        let resolved = match &task.stage {
            Stage::Running(attempt) => attempt.resolved.clone(),
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => None,
        };
        let pool_refs = self.pool.iter().flat_map(|pool| &pool.env_from);
        run.collect = Collect::InFlight;
        let order = CollectOrder {
            run: id.clone(),
            machine: run.machine.clone(),
            finished: finished.clone(),
            gone: run.gone,
            keep: !last || !is_complete(finished),
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
        match result {
            Ok(collected) => {
                run.let_go_on();
                self.effects.push(Effect::RunEnded(collected.reason));
                run.collect = Collect::Done(collected);
                self.conclude(&id.uid, now);
            }
            Err(error) => {
                run.collect = Collect::Not;
                run.put_off(
                    match &error {
                        CollectError::Machine(_) => FETCH_AGAIN,
                        CollectError::Full(_) | CollectError::Store(_) => STORE_AGAIN,
                    },
                    now,
                );
                if run.failures.is_power_of_two() {
                    tracing::warn!(run = %id, %error, times = run.failures, "a run cannot be collected yet; it is tried again");
                }
                if !matches!(error, CollectError::Machine(_)) {
                    run.hold_up(error.why(), now);
                }
            }
        }
    }

    pub(super) fn copy_log(&mut self, id: &RunId, now: Timestamp) {
        let Some(run) = self.runs.get_mut(id) else { return };
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
            });
        }
    }

    /// Ended runs that nobody needs, one message for each machine.
    pub(super) fn forget_runs(&mut self, now: Timestamp) {
        let mut by_machine: std::collections::BTreeMap<Place, Vec<RunId>> = std::collections::BTreeMap::new();
        let over = |run: &Run| {
            let due = run.not_before.is_none_or(|at| at <= now);
            // A Start under way would begin it anew if it were forgotten before.
            run.discard
                && matches!(run.stage, RunStage::Finished(_))
                && run.start.is_none()
                && !run.forgetting
                && due
        };
        for id in self.run_ids(over) {
            // While the record names its attempt, another leader would start it again.
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
        for id in runs {
            match result {
                Ok(()) | Err(AgentError::NotFound) => self.remove_run(id),
                Err(AgentError::StaleEpoch) => self.abdicate(),
                Err(AgentError::Disconnected(_) | AgentError::Busy(_) | AgentError::Refused(_)) => {
                    if let Some(run) = self.runs.get_mut(id) {
                        run.forgetting = false;
                        run.not_before = Some(Self::again(now));
                    }
                }
            }
        }
    }
}
