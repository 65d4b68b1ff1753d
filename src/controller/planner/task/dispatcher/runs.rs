//! Handles runs on agents: starts, stops, finds, collects and forgets them.
//!
//! [`Dispatcher::drive`] looks at one run and asks for what it needs next; calling it again is
//! always harmless.

use std::sync::Arc;

use jiff::Timestamp;
use skyward_core::session::AgentError;

use super::{
    AGAIN, COPY_LOG, Dispatcher, LOOK_AGAIN,
    fetching::{self, is_of_git},
    is_complete,
    maps::HowMany,
    state::{Collect, RunStage, Stage, Unclaimed},
};
use crate::task::{
    message::{Effect, StartError, StartOrder},
    model::{MachineView, RunId, SlotAttempt, Uid},
    run::{Ending, Fact, Finished, Permit, RunState, Told},
    status::Why,
};

/// What a run needs next, as [`Dispatcher::drive`] found.
enum Need {
    Nothing,
    Remove,
    Ask,
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
        let is_held = self.is_held();
        // A worker of a map starts when it is known how many items there are.
        let has_items = self.items_of(&id.uid) != HowMany::Unread;
        let Some(run) = self.runs.get_mut(id) else { return };
        let connection = self
            .machines
            .get(&run.place)
            .and_then(|machine| machine.connection);
        let due = run.not_before.is_none_or(|at| at <= now);
        // No answer comes over a connection that is gone.
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
            (RunStage::Starting, Some(connection))
                if !run.discard && !run.recalling && run.start.is_none() && due && has_items =>
            {
                if run.unasked {
                    Need::Ask
                } else {
                    Need::Start(connection)
                }
            }
            (RunStage::Finished(finished), connection)
                if !run.discard && !run.recalling && matches!(run.collect, Collect::Not) && due =>
            {
                // Without its machine there is only the content of the fact.
                if connection.is_some() || run.gone || is_complete(finished) {
                    Need::Collect
                } else {
                    Need::Nothing
                }
            }
            // An ended run that is discarded is forgotten together with others of its machine.
            _ => Need::Nothing,
        };
        match need {
            Need::Start(_) | Need::Stop(_) if is_held => {}
            Need::Nothing => {}
            Need::Remove => self.remove_run(id),
            Need::Ask => self.ask_before_start(id),
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
            Need::Collect => self.collect(id, now),
        }
    }

    pub(super) fn remove_run(&mut self, id: &RunId) {
        self.runs.remove(id);
        self.dirty = true;
        self.delete_stored(&id.uid);
    }

    fn start(&mut self, id: &RunId, connection: u64) {
        let Some(pool) = self.pool.clone() else { return };
        let items = self.items_of(&id.uid);
        let place = self.runs.get(id).map(|run| run.place);
        let Some(task) = self.tasks.get(&id.uid) else {
            return;
        };
        let Stage::Running(attempt) = &task.stage else {
            return;
        };
        if attempt.number != id.attempt {
            return;
        }
        // The ranks of one machine follow each other. A worker of a map knows no other one.
        let mut machines = match items {
            HowMany::NoMap => attempt.places.clone(),
            HowMany::Unread | HowMany::Items(_) => place.into_iter().collect(),
        };
        machines.dedup();
        let processes = match items {
            HowMany::NoMap => attempt.places.len() / machines.len().max(1),
            HowMany::Unread | HowMany::Items(_) => 1,
        };
        let peers = machines
            .iter()
            .map(|place| {
                self.machines
                    .get(place)
                    .map(MachineView::peer)
                    .unwrap_or_default()
            })
            .collect();
        let Some(run) = self.runs.get_mut(id) else { return };
        let Some(machine) = self.machines.get(&run.place) else {
            return;
        };
        run.start = Some(connection);
        run.sent = true;
        run.holds_items = items != HowMany::NoMap && !run.items_lost;
        let order = StartOrder {
            run: id.clone(),
            name: task.entry.name.clone(),
            machine: machine.name.clone(),
            connection,
            pool,
            slot: run.place.slot,
            accelerator: machine.accelerator.clone(),
            peers,
            processes: u32::try_from(processes).unwrap_or(u32::MAX).max(1),
            grace: task.entry.grace,
            task: attempt.task.clone(),
            resolved: attempt.resolved.clone(),
            source: task.entry.recorded_source().map(ToOwned::to_owned),
            commit: task
                .entry
                .status
                .source
                .as_ref()
                .map(|source| source.commit.clone())
                .unwrap_or_default(),
            items: match items {
                HowMany::Items(total) => Some(total),
                HowMany::NoMap | HowMany::Unread => None,
            },
        };
        self.effects.push(Effect::Start(Box::new(order)));
    }

    pub(super) fn on_started(
        &mut self,
        id: &RunId,
        connection: u64,
        result: Result<Box<Told<RunState>>, StartError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        let current = run.start == Some(connection);
        if current {
            run.start = None;
        }
        match result {
            Ok(state) => self.on_state(id, *state, now),
            // Another connection has taken over; its answer counts.
            Err(_) if !current => {}
            // A fact that broke a limit does not count; its machine is given up.
            Err(StartError::Agent(
                AgentError::Disconnected(_) | AgentError::Busy(_) | AgentError::Protocol(_),
            )) => {
                run.not_before = Some(now + AGAIN);
            }
            Err(StartError::Agent(AgentError::StaleEpoch)) => {
                run.not_before = Some(now + AGAIN);
                let machine = run.machine.clone();
                self.doubt_leadership(machine);
            }
            Err(StartError::Agent(error @ (AgentError::NotFound | AgentError::Refused(_)))) => {
                let message = match error {
                    AgentError::Refused(reason) => reason,
                    other => other.to_string(),
                };
                run.never_had_items();
                let finished = synthetic(Ending::StartFailed, message, now);
                self.on_finished(id, Arc::new(finished), None, now);
            }
            Err(StartError::NotNow(_)) => run.not_before = Some(now + LOOK_AGAIN),
            Err(StartError::References(error)) => {
                let is_git = is_of_git(error.reason);
                run.hold_up(Why::new(error.reason, error.message), now);
                if is_git {
                    // A host that is down is asked less and less often.
                    run.put_off(fetching::LONGEST, now);
                } else {
                    run.not_before = Some(now + LOOK_AGAIN);
                }
            }
            Err(StartError::TaskGone) => {
                run.not_before = Some(now + AGAIN);
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
            // A start that is needed once more reads the references anew.
            if let Some(resolved) = attempt.resolved.take() {
                attempt.masks = Some(Arc::new(resolved.to_be_masked()));
            }
        }
    }

    fn on_state(&mut self, id: &RunId, told: Told<RunState>, now: Timestamp) {
        let Told { what: state, room } = told;
        match state {
            RunState::Finished(finished) => self.on_finished(id, Arc::new(finished), room, now),
            RunState::Running => self.on_running(id, now),
            RunState::Unknown => {}
        }
    }

    fn on_running(&mut self, id: &RunId, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id)
            && matches!(run.stage, RunStage::Starting)
        {
            run.stage = RunStage::Running;
            run.let_go_on();
            run.copy_at = Some(now + COPY_LOG);
        }
    }

    fn on_finished(&mut self, id: &RunId, finished: Arc<Finished>, room: Option<Permit>, now: Timestamp) {
        let Some(run) = self.runs.get_mut(id) else { return };
        match run.stage {
            RunStage::Starting | RunStage::Running => {
                run.stage = RunStage::Finished(finished);
                run.room = room;
                run.let_go_on();
                run.not_before = None;
                if run.discard {
                    // Only the fact that it has ended is needed.
                    run.let_go_of_output();
                }
                self.dirty = true;
            }
            // A repeated or late answer.
            RunStage::Reserved | RunStage::Finished(_) | RunStage::Lost => {}
        }
        self.drive(id, now);
        self.conclude(&id.uid, now);
    }

    pub(super) fn on_stopped(
        &mut self,
        id: &RunId,
        connection: u64,
        result: Result<Box<Told<RunState>>, AgentError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        // An answer of another connection, perhaps of another machine: the newest Stop has one of its own.
        if run.stop_sent != Some(connection) {
            return;
        }
        match result {
            Ok(state) => self.on_state(id, *state, now),
            Err(AgentError::NotFound) => {
                // The run was never started there: an agent keeps a run until we have it forget the
                // run.
                if run.discard {
                    self.remove_run(id);
                } else {
                    run.unstarted = true;
                    run.never_had_items();
                    let finished = synthetic(Ending::Stopped, "stopped before it started".to_owned(), now);
                    self.on_finished(id, Arc::new(finished), None, now);
                }
            }
            Err(error) => {
                run.stop_sent = None;
                run.not_before = Some(now + AGAIN);
                let machine = run.machine.clone();
                if error == AgentError::StaleEpoch {
                    self.doubt_leadership(machine);
                }
            }
        }
    }

    pub(super) fn on_fact(&mut self, place: SlotAttempt, told: Told<Fact>, now: Timestamp) {
        let Told { what: fact, room } = told;
        let (id, finished) = (fact.run, fact.finished.map(Arc::new));
        if self.runs.get(&id).is_some_and(|run| run.place == place) {
            match finished {
                Some(finished) => self.on_finished(&id, finished, room, now),
                None => self.on_running(&id, now),
            }
            return;
        }
        // Our view of the Task may be old: reread it, and leave the run alone meanwhile.
        if self
            .tasks
            .get(&id.uid)
            .is_some_and(|task| id.attempt > task.counts.attempt)
        {
            self.reread(&id.uid);
        }
        let known = self.unclaimed.entry((id, place)).or_insert(Unclaimed {
            since: now,
            finished: None,
            room: None,
        });
        // An end that is kept keeps its room.
        if finished.is_some() || known.finished.is_none() {
            known.room = room;
        }
        if finished.is_some() {
            known.finished = finished;
            // Its place is free.
            self.dirty = true;
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

    /// An agent refuses our epoch. That is the word of one machine: it gets no commands, and its
    /// runs wait as on a machine that is not connected. Only the Lease says whether this process
    /// still leads.
    pub(super) fn doubt_leadership(&mut self, machine: Arc<str>) {
        self.effects.push(Effect::DoubtLeadership(machine));
    }
}

/// The end of a run that no agent reports.
pub(super) fn synthetic(ending: Ending, message: String, now: Timestamp) -> Finished {
    let at = u64::try_from(now.as_millisecond()).unwrap_or_default();
    Finished {
        ending,
        message,
        started_ms: at,
        finished_ms: at,
        ..Finished::default()
    }
}
