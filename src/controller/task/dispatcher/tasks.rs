//! What Tasks bring: they come, change, wait, are written and go.

use std::sync::Arc;

use jiff::Timestamp;
use skyward_api::{
    Task, TaskPhase,
    condition::{self, reason},
};

use super::{
    AGAIN, Attempt, Dispatcher, LOOK_AGAIN, Read, References, Run, RunStage, Stage, StopWhy, TaskState,
    WORTH_TELLING, Waiting, queue_key,
};
use crate::{
    events,
    task::{
        message::{Effect, Resolved, WriteError},
        model::{Entry, MachineView, Place, RunId, Uid},
        status::{self, Counts, Why},
    },
};

impl Waiting {
    pub(super) fn new(entry: &Entry, again: Option<Why>, now: Timestamp) -> Self {
        // What is on record already need not be told again.
        let told = condition::find(&entry.status.conditions, condition::SCHEDULED)
            .filter(|scheduled| scheduled.status == "False" && entry.phase() != TaskPhase::Running)
            .and_then(|scheduled| {
                let reason = KNOWN_WAITS.iter().find(|known| **known == scheduled.reason)?;
                Some(Why {
                    reason,
                    detail: detail_of(&scheduled.message),
                    message: scheduled.message.clone(),
                })
            });
        Self {
            tell_at: now + WORTH_TELLING,
            again,
            references: References::Unread,
            obstacle: None,
            not_before: None,
            told,
        }
    }
}

const KNOWN_WAITS: [&str; 9] = [
    reason::WAITING_FOR_MACHINE,
    reason::POOL_NOT_FOUND,
    reason::POOL_NOT_READY,
    reason::POOL_OFF,
    reason::RANK_OUT_OF_RANGE,
    reason::REFERENCE_NOT_FOUND,
    reason::RETRYING,
    reason::SUSPENDED,
    reason::INVALID_SPEC,
];

/// A message that repeats another reason names it in brackets at its end.
fn detail_of(message: &str) -> String {
    message
        .strip_suffix(')')
        .and_then(|rest| rest.rsplit_once('('))
        .map(|(_, detail)| detail)
        .filter(|detail| !detail.is_empty() && detail.chars().all(|c| c.is_ascii_alphanumeric()))
        .unwrap_or_default()
        .to_owned()
}

impl Dispatcher {
    pub(super) fn on_task(&mut self, entry: Entry, now: Timestamp) {
        let uid = entry.uid.clone();
        if entry.deleting {
            if self.tasks.contains_key(&uid) {
                self.task_is_gone(&uid, now);
            }
            return;
        }
        if self.departed.contains(&uid) {
            return;
        }
        if let Some(task) = self.tasks.get_mut(&uid) {
            task.left = false;
            self.refresh(entry, now);
        } else if !entry.phase().is_finished() {
            self.adopt(entry, now);
        }
        self.steer(&uid, now);
        for run in self.runs_of(&uid) {
            self.drive(&run, now);
        }
    }

    /// A Task that this process sees for the first time: its status says where it is.
    fn adopt(&mut self, entry: Entry, now: Timestamp) {
        let uid = entry.uid.clone();
        let counts = Counts {
            attempt: entry.status.attempt,
            interruptions: entry.status.interruptions,
        };
        let places: Option<Vec<Place>> = entry
            .status
            .placed
            .iter()
            .map(|text| Place::parse(text))
            .collect();
        let places = places.unwrap_or_default();
        let running = entry.phase() == TaskPhase::Running && counts.attempt > 0 && !places.is_empty();
        let stage = if running {
            Stage::Running(self.recorded_attempt(&entry, counts.attempt, places, now))
        } else {
            Stage::Waiting(Waiting::new(&entry, None, now))
        };
        let state = TaskState {
            entry,
            counts,
            stage,
            write: None,
            read: Read::Not,
            write_at: None,
            left: false,
        };
        self.enqueue(&state);
        self.tasks.insert(uid.clone(), state);
        if running {
            self.live(&uid);
            self.look_for_lost();
        }
        self.dirty = true;
    }

    /// An attempt whose placement is on record; its agents may know its runs.
    fn recorded_attempt(
        &mut self,
        entry: &Entry,
        number: u32,
        places: Vec<Place>,
        now: Timestamp,
    ) -> Attempt {
        for (rank, place) in places.iter().enumerate() {
            let id = RunId {
                uid: entry.uid.clone(),
                attempt: number,
                rank: rank as u32,
            };
            let machine = self
                .machines
                .get(place)
                .map_or_else(|| Arc::from(""), |machine| machine.name.clone());
            let mut run = Run::new(*place, machine, RunStage::Starting);
            run.sent = true;
            if let Some(unclaimed) = self.unclaimed.remove(&id)
                && let Some(finished) = unclaimed.finished
            {
                run.stage = RunStage::Finished(finished);
            }
            self.runs.insert(id, run);
        }
        Attempt {
            number,
            places,
            started_at: entry.status.started_at.as_ref().map_or(now, |time| time.0),
            resolved: None,
            task: None,
            stop: None,
        }
    }

    fn enqueue(&mut self, state: &TaskState) {
        if matches!(state.stage, Stage::Waiting(_)) && !state.entry.suspend {
            self.queue.insert(queue_key(&state.entry));
        } else {
            self.queue.remove(&queue_key(&state.entry));
        }
    }

    /// A newer view of a Task that is known.
    fn refresh(&mut self, entry: Entry, now: Timestamp) {
        let uid = entry.uid.clone();
        let Some(mut state) = self.tasks.remove(&uid) else {
            return;
        };
        if !entry.is_older_than(&state.entry) {
            self.queue.remove(&queue_key(&state.entry));
            let resumed = state.entry.suspend && !entry.suspend;
            let theirs = entry.phase() == TaskPhase::Running && entry.status.attempt > state.counts.attempt;
            if let Stage::Waiting(waiting) = &mut state.stage {
                if resumed {
                    *waiting = Waiting::new(&entry, None, now);
                }
                if theirs && state.write.is_none() {
                    // Another leader's placement, written before this one led: it counts.
                    let places: Option<Vec<Place>> = entry
                        .status
                        .placed
                        .iter()
                        .map(|text| Place::parse(text))
                        .collect();
                    if let Some(places) = places.filter(|places| !places.is_empty()) {
                        state.counts = Counts {
                            attempt: entry.status.attempt,
                            interruptions: entry.status.interruptions,
                        };
                        state.stage =
                            Stage::Running(self.recorded_attempt(&entry, state.counts.attempt, places, now));
                    }
                }
            }
            state.entry = entry;
            self.dirty = true;
        }
        self.enqueue(&state);
        self.tasks.insert(uid, state);
    }

    /// It left the watch: ended, or gone? Unless its end is just being written, look.
    pub(super) fn on_left(&mut self, uid: &Uid) {
        let Some(task) = self.tasks.get_mut(uid) else {
            self.departed.remove(uid);
            return;
        };
        task.left = true;
        if matches!(task.stage, Stage::Ending(_)) && task.write.is_some() {
            return;
        }
        self.reread(uid);
    }

    pub(super) fn reread(&mut self, uid: &Uid) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        match task.read {
            Read::InFlight | Read::InFlightAndAgain => task.read = Read::InFlightAndAgain,
            Read::Not | Read::At(_) => {
                task.read = Read::InFlight;
                self.effects.push(Effect::Reread {
                    uid: uid.clone(),
                    name: task.entry.name.clone(),
                });
            }
        }
    }

    pub(super) fn on_reread(&mut self, uid: &Uid, result: Result<Option<Arc<Task>>, String>, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let again = std::mem::replace(&mut task.read, Read::Not) == Read::InFlightAndAgain;
        if again {
            self.reread(uid);
            return;
        }
        let Ok(object) = result else {
            task.read = Read::At(now + AGAIN);
            return;
        };
        let found = object.and_then(|object| Some((Entry::of(&object)?, object)));
        let Some((entry, object)) = found.filter(|(entry, _)| entry.uid == *uid && !entry.deleting) else {
            self.task_is_gone(uid, now);
            return;
        };
        if entry.phase().is_finished() {
            self.on_found_finished(uid, &entry, now);
            return;
        }
        match &task.stage {
            Stage::Placing(attempt) if task.write.is_none() => {
                let places: Vec<String> = attempt.places.iter().map(ToString::to_string).collect();
                let ours = entry.phase() == TaskPhase::Running
                    && entry.status.attempt == attempt.number
                    && entry.status.placed == places;
                if ours {
                    self.placement_is_recorded(uid, entry, object, now);
                } else {
                    self.abandon_placement(uid, now);
                    self.refresh(entry, now);
                }
            }
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Running(_) | Stage::Ending(_) => {
                self.refresh(entry, now);
            }
        }
        self.steer(uid, now);
        for run in self.runs_of(uid) {
            self.drive(&run, now);
        }
        self.dirty = true;
    }

    /// The object says that it ended: by our write whose answer was lost, or by somebody else.
    fn on_found_finished(&mut self, uid: &Uid, entry: &Entry, now: Timestamp) {
        let ours = self.tasks.get(uid).is_some_and(|task| match &task.stage {
            Stage::Ending(status) => {
                status.phase == entry.status.phase && status.attempt == entry.status.attempt
            }
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Running(_) => false,
        });
        if ours {
            self.end_is_recorded(uid, now);
        } else {
            // Edited by hand, or another leader's: what runs is nobody's any more.
            self.remove_task(uid, now);
        }
    }

    /// It is deleted: its runs are stopped, and what the store has of it goes with them.
    pub(super) fn task_is_gone(&mut self, uid: &Uid, now: Timestamp) {
        let started = self.tasks.get(uid).is_some_and(|task| task.counts.attempt > 0);
        self.remove_task(uid, now);
        if started {
            self.deleted.insert(uid.clone());
            self.delete_stored(uid);
        }
    }

    /// Deletes what the store has of a Task that is gone, once nothing writes to it any more.
    pub(super) fn delete_stored(&mut self, uid: &Uid) {
        if self.deleted.contains(uid) && self.runs_of(uid).is_empty() {
            self.deleted.remove(uid);
            self.effects.push(Effect::DeleteStored(uid.clone()));
        }
    }

    pub(super) fn remove_task(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.remove(uid) else {
            return;
        };
        self.queue.remove(&queue_key(&task.entry));
        if !task.left {
            self.departed.insert(uid.clone());
        }
        let grace = task.entry.grace;
        for id in self.runs_of(uid) {
            if let Some(run) = self.runs.get_mut(&id) {
                run.discard = true;
                run.stop.get_or_insert((grace, "Deleted"));
            }
            self.drive(&id, now);
        }
        self.live(uid);
        self.dirty = true;
    }

    pub(super) fn on_resolved(&mut self, uid: &Uid, result: Result<Arc<Resolved>, String>, now: Timestamp) {
        self.resolving = self.resolving.saturating_sub(1);
        self.dirty = true;
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Waiting(waiting) = &mut task.stage else {
            return;
        };
        match result {
            Ok(resolved) => {
                waiting.references = References::Read(resolved, now);
                waiting.obstacle = None;
            }
            Err(message) => {
                waiting.references = References::Missing(now + LOOK_AGAIN);
                waiting.obstacle = Some(Why::new(reason::REFERENCE_NOT_FOUND, message));
            }
        }
    }

    /// What the Pool and the Task itself ask for now.
    pub(super) fn steer(&mut self, uid: &Uid, now: Timestamp) {
        if !self.viewed {
            return;
        }
        let Some(task) = self.tasks.get(uid) else { return };
        let pool = self.pool.as_deref();
        let deleted = pool.is_some_and(|pool| pool.deleted_at.is_some_and(|at| task.entry.created <= at));
        match &task.stage {
            Stage::Waiting(_) if deleted && task.write.is_none() && task.read == Read::Not => {
                let name = &task.entry.pool;
                let why = Why::new(
                    reason::POOL_DELETED,
                    format!(
                        "Pool \"{name}\" was deleted before the Task could run; create the Task again for another Pool"
                    ),
                );
                self.end_task(uid, &[], None, Some(why), now);
            }
            Stage::Running(attempt) => {
                let stop = match pool {
                    None => Some(StopWhy::PoolDeleted),
                    Some(pool) if attempt.started_at < pool.created || deleted => Some(StopWhy::PoolDeleted),
                    Some(_) if task.entry.suspend => Some(StopWhy::Suspended),
                    Some(pool) if pool.off.is_some() => Some(StopWhy::PoolOff),
                    Some(_) => None,
                };
                if let Some(stop) = stop {
                    self.stop_attempt(uid, stop, now);
                }
            }
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => {}
        }
    }

    /// What was put off until now.
    pub(super) fn retry_task(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        if matches!(task.read, Read::At(at) if at <= now) {
            task.read = Read::Not;
            self.reread(uid);
            return;
        }
        match &task.stage {
            Stage::Waiting(waiting) => {
                let due = matches!(waiting.references, References::Missing(until) if until <= now)
                    || waiting.not_before.is_some_and(|at| at <= now);
                self.dirty |= due;
                self.steer(uid, now);
            }
            Stage::Ending(_) => self.write_end(uid, now),
            Stage::Placing(_) => {
                if task.write.is_none() && task.read == Read::Not {
                    self.reread(uid);
                }
            }
            Stage::Running(_) => self.conclude(uid, now),
        }
    }

    /// Why it waits, as far as is known now.
    fn why_waiting(&self, task: &TaskState, waiting: &Waiting) -> Why {
        let name = &task.entry.pool;
        if task.entry.suspend {
            return Why::new(
                reason::SUSPENDED,
                "spec.suspend is true; set it to false to let the Task run",
            );
        }
        let Some(pool) = self.pool.as_deref() else {
            return Why::new(
                reason::POOL_NOT_FOUND,
                format!(
                    "there is no Pool \"{name}\" in namespace \"{}\"; the Task starts when there is",
                    self.key.namespace
                ),
            );
        };
        if pool.deleted_at.is_some() {
            return Why::new(
                reason::POOL_NOT_READY,
                format!(
                    "Pool \"{name}\" is being deleted; the Task starts when there is a new one of that name"
                ),
            );
        }
        if let Some(off) = pool.off {
            return Why::new(reason::POOL_OFF, format!("Pool \"{name}\" is off: {off}"));
        }
        let hindrance = waiting.obstacle.as_ref().filter(|why| {
            why.reason != reason::WAITING_FOR_MACHINE || self.machines.values().any(MachineView::takes_runs)
        });
        if let Some(why) = hindrance {
            return why.clone();
        }
        if !self.machines.values().any(MachineView::takes_runs) {
            return match &pool.not_ready {
                Some((reason, message)) => Why {
                    reason: reason::POOL_NOT_READY,
                    detail: reason.clone(),
                    message: format!("no machine of Pool \"{name}\" takes Tasks: {message} ({reason})"),
                },
                None => Why::new(
                    reason::WAITING_FOR_MACHINE,
                    format!("no machine of Pool \"{name}\" takes Tasks at this moment"),
                ),
            };
        }
        let away = self
            .machines
            .values()
            .find(|machine| machine.ready && !machine.takes_runs());
        waiting.again.clone().unwrap_or_else(|| {
            let message = match away {
                Some(machine) => format!(
                    "machine \"{}\" of Pool \"{name}\" is being connected to",
                    machine.name
                ),
                None => format!("every place of Pool \"{name}\" is taken"),
            };
            Why::new(reason::WAITING_FOR_MACHINE, message)
        })
    }

    /// Writes why it waits, if that is worth a write; whether it was.
    pub(super) fn tell_wait(&mut self, uid: &Uid, now: Timestamp) -> bool {
        let Some(task) = self.tasks.get(uid) else {
            return false;
        };
        let Stage::Waiting(waiting) = &task.stage else {
            return false;
        };
        let stopped = task.entry.phase() == TaskPhase::Running;
        let at_once =
            task.entry.suspend || (stopped && self.pool.as_deref().is_some_and(|pool| pool.off.is_some()));
        let hold = task.write.is_some()
            || task.read != Read::Not
            || !self.viewed
            || !self.synced
            || task.write_at.is_some_and(|at| at > now)
            || (!at_once && waiting.tell_at > now);
        if hold {
            return false;
        }
        let why = self.why_waiting(task, waiting);
        if waiting.told.as_ref().is_some_and(|told| told.is_like(&why)) && !stopped {
            return false;
        }
        let status = status::waiting(&task.entry, task.counts, &why, now);
        if let Some(Stage::Waiting(waiting)) = self.tasks.get_mut(uid).map(|task| &mut task.stage) {
            waiting.told = Some(why);
        }
        self.write(uid, status);
        true
    }

    pub(super) fn write(&mut self, uid: &Uid, status: skyward_api::TaskStatus) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        self.writes += 1;
        task.write = Some(self.writes);
        task.write_at = None;
        self.effects.push(Effect::Write {
            uid: uid.clone(),
            name: task.entry.name.clone(),
            write: self.writes,
            version: task.entry.version.clone(),
            status: Box::new(status),
        });
    }

    pub(super) fn on_written(
        &mut self,
        uid: &Uid,
        write: u64,
        result: Result<Arc<Task>, WriteError>,
        now: Timestamp,
    ) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        if task.write != Some(write) {
            return;
        }
        task.write = None;
        self.dirty = true;
        match result {
            Ok(object) => {
                let Some(entry) = Entry::of(&object) else { return };
                match &task.stage {
                    Stage::Placing(_) => self.placement_is_recorded(uid, entry, object, now),
                    Stage::Ending(_) => self.end_is_recorded(uid, now),
                    Stage::Waiting(_) | Stage::Running(_) => self.refresh(entry, now),
                }
            }
            Err(WriteError::Gone) => self.task_is_gone(uid, now),
            Err(WriteError::Conflict | WriteError::Unknown(_)) => {
                if let Stage::Waiting(waiting) = &mut task.stage {
                    waiting.told = None;
                }
                self.reread(uid);
            }
            Err(WriteError::Invalid(message)) => {
                tracing::error!(task = %task.entry.name, %message, "the API server refuses a status of ours");
                task.write_at = Some(now + AGAIN * 30);
                match &mut task.stage {
                    Stage::Placing(_) => self.abandon_placement(uid, now),
                    Stage::Ending(status) => {
                        **status = status::bare(status);
                        task.write_at = Some(now + AGAIN);
                    }
                    Stage::Waiting(_) | Stage::Running(_) => {}
                }
            }
        }
        self.steer(uid, now);
    }

    /// The end of a Task is decided; it is written until it is on record.
    pub(super) fn end_task(
        &mut self,
        uid: &Uid,
        ranks: &[status::Rank<'_>],
        started_at: Option<Timestamp>,
        because: Option<Why>,
        now: Timestamp,
    ) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let status = status::ended(&task.entry, task.counts, ranks, started_at, because, now);
        self.queue.remove(&queue_key(&task.entry));
        task.stage = Stage::Ending(Box::new(status));
        self.write_end(uid, now);
    }

    pub(super) fn write_end(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get(uid) else { return };
        let Stage::Ending(status) = &task.stage else {
            return;
        };
        if task.write.is_none() && task.read == Read::Not && task.write_at.is_none_or(|at| at <= now) {
            let status = (**status).clone();
            self.write(uid, status);
        }
    }

    /// The end is on record: the agents may forget, and so do we.
    fn end_is_recorded(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get(uid) else { return };
        let Stage::Ending(status) = &task.stage else {
            return;
        };
        let phase = status.phase.unwrap_or_default();
        self.effects.push(Effect::Entered(phase));
        let what = condition::find(
            &status.conditions,
            if phase == TaskPhase::Succeeded {
                condition::COMPLETE
            } else {
                condition::FAILED
            },
        );
        let message = what
            .map(|condition| condition.message.clone())
            .unwrap_or_default();
        let mut event = if phase == TaskPhase::Succeeded {
            let note = format!("completed after {}: {message}", status.duration);
            events::EventSpec::normal(events::reason::TASK_COMPLETED, "Complete", note)
        } else {
            events::EventSpec::warning(
                events::reason::TASK_FAILED,
                "Fail",
                format!("{}: {message}", status.reason),
            )
        };
        if let Some(pool) = &self.pool {
            event = event.merged_into(pool.reference.clone());
        }
        let name = task.entry.name.clone();
        if let Some(ttl) = task.entry.ttl {
            let end = status.finished_at.as_ref().map_or(now, |time| time.0);
            let at = end + std::time::Duration::from_secs(u64::from(ttl));
            self.effects.push(Effect::Expire {
                uid: uid.clone(),
                name: name.clone(),
                at,
            });
        }
        self.effects.push(Effect::Publish {
            uid: uid.clone(),
            name,
            event: Box::new(event),
        });
        self.remove_task(uid, now);
    }
}
