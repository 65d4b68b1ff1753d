//! What agents bring: runs are started, stopped, found, collected, forgotten.
//!
//! [`Dispatcher::drive`] looks at one run and asks for what it needs next; whatever
//! happened before, calling it again is harmless.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use skyward_remote::{
    AgentError,
    protocol::{Fact, Finished, RunState, fact, finished::Ending, run_state},
};

use super::{
    COPY_LOG, Collect, Dispatcher, LOOK_AGAIN, Run, RunStage, Stage, UNCLAIMED, Unclaimed, is_complete,
};
use crate::task::{
    message::{CollectOrder, Collected, Effect, StartError, StartOrder},
    model::{Place, RunId, Uid},
};

/// What [`Dispatcher::drive`] found to be needed.
enum Need {
    Nothing,
    Remove,
    Start(u64),
    Stop(u64),
    Collect,
}

impl Dispatcher {
    pub(super) fn drive_all(&mut self, now: Timestamp) {
        for run in self.run_ids(|_| true) {
            self.drive(&run, now);
        }
    }

    /// Asks for what this run needs next.
    pub(super) fn drive(&mut self, id: &RunId, now: Timestamp) {
        let Some(run) = self.runs.get_mut(id) else { return };
        let connection = self
            .machines
            .get(&run.place)
            .and_then(|machine| machine.connection);
        let due = run.not_before.is_none_or(|at| at <= now);
        // An answer over a connection that is gone will not come.
        if run.start.is_some() && run.start != connection {
            run.start = None;
        }
        let need = match (&run.stage, connection) {
            (RunStage::Reserved | RunStage::Lost, _) if run.discard => Need::Remove,
            (RunStage::Starting, _) if run.discard && !run.sent => Need::Remove,
            (RunStage::Starting | RunStage::Running, Some(connection)) if run.stop.is_some() => {
                // A Start under way is waited for: a Stop that overtakes it would meet nothing.
                let sent = run.stop_sent == Some(connection);
                if run.start.is_none() && !sent && due {
                    Need::Stop(connection)
                } else {
                    Need::Nothing
                }
            }
            (RunStage::Starting, Some(connection)) if !run.discard && run.start.is_none() && due => {
                Need::Start(connection)
            }
            (RunStage::Finished(_), _) if !run.discard && matches!(run.collect, Collect::Not) && due => {
                Need::Collect
            }
            // A discarded run that has ended is forgotten with others of its machine.
            _ => Need::Nothing,
        };
        match need {
            Need::Nothing => {}
            Need::Remove => self.remove_run(id),
            Need::Start(connection) => self.start(id, connection),
            Need::Stop(connection) => {
                run.stop_sent = Some(connection);
                let machine = self
                    .machines
                    .get(&run.place)
                    .map_or(&run.machine, |machine| &machine.name)
                    .clone();
                if let Some((grace, why)) = run.stop {
                    self.effects.push(Effect::Stop {
                        run: id.clone(),
                        machine,
                        connection,
                        grace,
                        why,
                    });
                }
            }
            Need::Collect => self.collect(id),
        }
    }

    pub(super) fn remove_run(&mut self, id: &RunId) {
        self.runs.remove(id);
        self.dirty = true;
        self.delete_stored(&id.uid);
    }

    fn start(&mut self, id: &RunId, connection: u64) {
        let Some(pool) = self.pool.clone() else { return };
        let Some(task) = self.tasks.get(&id.uid) else {
            return;
        };
        let Stage::Running(attempt) = &task.stage else {
            return;
        };
        if attempt.number != id.attempt {
            return;
        }
        let peers = attempt
            .places
            .iter()
            .map(|place| {
                self.machines
                    .get(place)
                    .map(|machine| machine.address.clone())
                    .unwrap_or_default()
            })
            .collect();
        let Some(run) = self.runs.get_mut(id) else { return };
        let Some(machine) = self.machines.get(&run.place) else {
            return;
        };
        run.start = Some(connection);
        run.sent = true;
        let order = StartOrder {
            run: id.clone(),
            name: task.entry.name.clone(),
            machine: machine.name.clone(),
            connection,
            pool,
            slot: run.place.slot,
            peers,
            task: attempt.task.clone(),
            resolved: attempt.resolved.clone(),
        };
        self.effects.push(Effect::Start(Box::new(order)));
    }

    pub(super) fn on_started(
        &mut self,
        id: &RunId,
        connection: u64,
        result: Result<RunState, StartError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        let current = run.start == Some(connection);
        if current {
            run.start = None;
        }
        match result {
            Ok(state) => self.on_state(id, state, now),
            // Another connection has taken over; its answer counts.
            Err(_) if !current => {}
            Err(StartError::Agent(AgentError::Disconnected(_) | AgentError::Busy(_))) => {
                run.not_before = Some(Self::again(now));
            }
            Err(StartError::Agent(AgentError::StaleEpoch)) => self.abdicate(),
            Err(StartError::Agent(error @ (AgentError::NotFound | AgentError::Refused(_)))) => {
                let message = match error {
                    AgentError::Refused(reason) => reason,
                    other => other.to_string(),
                };
                let finished = synthetic(Ending::StartFailed, message, now);
                self.on_finished(id, Arc::new(finished), now);
            }
            Err(StartError::NotNow(_)) => run.not_before = Some(now + LOOK_AGAIN),
            Err(StartError::TaskGone) => {
                run.not_before = Some(Self::again(now));
                self.reread(&id.uid);
            }
        }
        self.drive(id, now);
        self.release_object(&id.uid);
    }

    /// The object is no longer needed once every run is started.
    fn release_object(&mut self, uid: &Uid) {
        let starting = self.runs_of(uid).iter().any(|id| {
            self.runs
                .get(id)
                .is_some_and(|run| matches!(run.stage, RunStage::Starting))
        });
        if !starting
            && let Some(Stage::Running(attempt)) = self.tasks.get_mut(uid).map(|task| &mut task.stage)
        {
            attempt.task = None;
        }
    }

    fn on_state(&mut self, id: &RunId, state: RunState, now: Timestamp) {
        match (state.phase(), state.finished) {
            (run_state::Phase::Finished, Some(finished)) => self.on_finished(id, Arc::new(finished), now),
            (run_state::Phase::Starting | run_state::Phase::Running | run_state::Phase::Finished, _) => {
                self.on_running(id, now);
            }
            (run_state::Phase::Unknown, _) => {}
        }
    }

    fn on_running(&mut self, id: &RunId, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id)
            && matches!(run.stage, RunStage::Starting)
        {
            run.stage = RunStage::Running;
            run.copy_at = Some(now + COPY_LOG);
        }
    }

    fn on_finished(&mut self, id: &RunId, finished: Arc<Finished>, now: Timestamp) {
        let Some(run) = self.runs.get_mut(id) else { return };
        match run.stage {
            RunStage::Starting | RunStage::Running => {
                run.stage = RunStage::Finished(finished);
                run.not_before = None;
                self.dirty = true;
            }
            // Told again, or too late.
            RunStage::Reserved | RunStage::Finished(_) | RunStage::Lost => {}
        }
        self.drive(id, now);
        self.conclude(&id.uid, now);
    }

    pub(super) fn on_stopped(
        &mut self,
        id: &RunId,
        connection: u64,
        result: Result<RunState, AgentError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        match result {
            Ok(state) => self.on_state(id, state, now),
            Err(AgentError::NotFound) => {
                // It was never started there: the agent keeps what it started until we forget it.
                if run.discard {
                    self.remove_run(id);
                } else {
                    run.unstarted = true;
                    let finished = synthetic(Ending::Stopped, "stopped before it started".to_owned(), now);
                    self.on_finished(id, Arc::new(finished), now);
                }
            }
            Err(AgentError::StaleEpoch) => self.abdicate(),
            Err(AgentError::Disconnected(_) | AgentError::Busy(_) | AgentError::Refused(_)) => {
                if run.stop_sent == Some(connection) {
                    run.stop_sent = None;
                    run.not_before = Some(Self::again(now));
                }
            }
        }
    }

    pub(super) fn on_fact(&mut self, place: Place, fact: Fact, now: Timestamp) {
        let Some(id) = RunId::parse(&fact.run_id) else {
            return;
        };
        let finished = match fact.fact {
            Some(fact::Fact::Finished(finished)) => Some(Arc::new(finished)),
            Some(fact::Fact::Started(_)) => None,
            None => return,
        };
        if self.runs.get(&id).is_some_and(|run| run.place == place) {
            match finished {
                Some(finished) => self.on_finished(&id, finished, now),
                None => self.on_running(&id, now),
            }
            return;
        }
        // Perhaps our view of that Task is old; look, and leave the run alone meanwhile.
        if self
            .tasks
            .get(&id.uid)
            .is_some_and(|task| id.attempt > task.counts.attempt)
        {
            self.reread(&id.uid);
        }
        let known = self.unclaimed.entry(id).or_insert(Unclaimed {
            place,
            since: now,
            finished: None,
        });
        known.place = place;
        if finished.is_some() {
            known.finished = finished;
        }
    }

    /// Runs that no Task has claimed for a while are stopped and forgotten.
    pub(super) fn drop_unclaimed(&mut self, now: Timestamp) {
        if !self.synced || !self.viewed {
            return;
        }
        let gone = |place: &Place| !self.machines.contains_key(place);
        let old: Vec<RunId> = self
            .unclaimed
            .iter()
            .filter(|(_, run)| gone(&run.place) || now.duration_since(run.since).unsigned_abs() >= UNCLAIMED)
            .map(|(id, _)| id.clone())
            .collect();
        for id in old {
            let Some(unclaimed) = self.unclaimed.remove(&id) else {
                continue;
            };
            self.dirty = true;
            let claimed = self.runs.contains_key(&id);
            let Some(machine) = self.machines.get(&unclaimed.place) else {
                continue;
            };
            if claimed {
                continue;
            }
            let stage = unclaimed.finished.map_or(RunStage::Running, RunStage::Finished);
            let mut run = Run::new(unclaimed.place, machine.name.clone(), stage);
            run.sent = true;
            run.discard = true;
            run.stop = Some((super::super::model::GRACE, "Unclaimed"));
            self.runs.insert(id.clone(), run);
            self.drive(&id, now);
        }
    }

    /// Facts of each connection are read from the first on.
    pub(super) fn follow(&mut self) {
        for machine in self.machines.values() {
            match machine.connection {
                Some(connection) if self.following.get(&machine.place) != Some(&connection) => {
                    self.following.insert(machine.place, connection);
                    self.effects.push(Effect::Follow {
                        place: machine.place,
                        machine: machine.name.clone(),
                        connection,
                    });
                }
                Some(_) | None => {}
            }
        }
    }

    /// Runs on machines that the cache does not show: look past the cache before believing it.
    pub(super) fn look_for_lost(&mut self) {
        let missing = self.runs.values().any(|run| {
            !matches!(run.stage, RunStage::Lost | RunStage::Reserved)
                && !self.machines.contains_key(&run.place)
        });
        if missing && self.viewed && !self.listing {
            self.listing = true;
            self.effects.push(Effect::ListMachines);
        }
    }

    pub(super) fn on_machines_listed(&mut self, result: Result<Vec<Place>, String>, now: Timestamp) {
        self.listing = false;
        let Ok(there) = result else { return };
        let there: BTreeSet<Place> = there.into_iter().collect();
        let gone = |run: &Run| !self.machines.contains_key(&run.place) && !there.contains(&run.place);
        for id in self.run_ids(gone) {
            let Some(run) = self.runs.get_mut(&id) else {
                continue;
            };
            let kept = match &run.stage {
                // What is collected, or arrived with the fact, needs no machine any more.
                RunStage::Finished(finished) => {
                    !run.discard && (matches!(run.collect, Collect::Done(_)) || is_complete(finished))
                }
                // Its placement may just be written; decided when that is known.
                RunStage::Reserved => true,
                RunStage::Starting | RunStage::Running | RunStage::Lost => false,
            };
            if !kept {
                run.stage = RunStage::Lost;
                run.start = None;
                self.dirty = true;
                self.drive(&id, now);
                self.conclude(&id.uid, now);
            }
        }
    }

    fn collect(&mut self, id: &RunId) {
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
            refs: pool_refs.chain(&task.entry.env_from).cloned().collect(),
            resolved,
        };
        self.effects.push(Effect::Collect(Box::new(order)));
    }

    pub(super) fn on_collected(
        &mut self,
        id: &RunId,
        result: Result<Box<Collected>, String>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        if !matches!(run.collect, Collect::InFlight) || matches!(run.stage, RunStage::Lost) {
            return;
        }
        match result {
            Ok(collected) => {
                self.effects.push(Effect::RunEnded(collected.reason));
                run.collect = Collect::Done(collected);
                self.conclude(&id.uid, now);
            }
            Err(message) => {
                tracing::warn!(run = %id, %message, "a run cannot be collected yet");
                run.collect = Collect::Not;
                run.not_before = Some(Self::again(now));
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

    /// A newer leader is at work: whatever this process still did would be wrong.
    fn abdicate(&mut self) {
        if !self.halted {
            self.halted = true;
            self.effects.clear();
            self.effects.push(Effect::Abdicate);
        }
    }
}

/// The end of a run that no agent tells of.
fn synthetic(ending: Ending, message: String, now: Timestamp) -> Finished {
    let at = u64::try_from(now.as_millisecond()).unwrap_or_default();
    Finished {
        ending: ending.into(),
        message,
        started_ms: at,
        finished_ms: at,
        ..Finished::default()
    }
}
