//! Handles Tasks that are added, changed and deleted.

use std::sync::Arc;

use jiff::Timestamp;
use skyward_api::{Task, TaskPhase};

use super::{
    AGAIN, Dispatcher,
    depending::Depends,
    known::Known,
    state::{Attempt, Read, Run, RunStage, Stage, Stored, TaskState, Waiting, queue_key},
};
use crate::task::{
    kept::Kept,
    message::Effect,
    model::{Entry, RunId, Uid},
    status::Counts,
};

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
            self.take_growth(&uid, now);
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
        let counts = Counts::recorded(&entry);
        let running =
            entry.phase() == TaskPhase::Running && counts.attempt > 0 && !entry.status.placed.is_empty();
        let stage = if running {
            Stage::Running(self.recorded_attempt(&entry, now))
        } else {
            let mut waiting = Waiting::new(&entry, None, now);
            waiting.recall_fetch(&entry, now);
            Stage::Waiting(waiting)
        };
        if entry.has_own_pool {
            self.own_pool.tasks.insert(uid.clone());
        }
        let state = TaskState {
            counts,
            stage,
            write: None,
            read: Read::Not,
            write_at: None,
            refused: 0,
            invalid: 0,
            aside: false,
            barred: self.pool.as_deref().is_some_and(|pool| !pool.is_for(&entry)),
            left: false,
            // A Task that came while this process leads has no unknown attempts.
            stored: if self.synced {
                Stored::Known(0)
            } else {
                Stored::Unasked
            },
            depends: Depends::of(&entry),
            progress: Known::default(),
            entry,
        };
        if self.synced && state.queues() {
            self.newcomers.push_back(uid.clone());
        }
        self.enqueue(&state);
        self.tasks.insert(uid.clone(), state);
        self.depend(&uid);
        if running {
            self.live(&uid);
            self.look_for_lost(now);
        }
        self.dirty = true;
    }

    /// An attempt whose placement is on record; its agents may know its runs.
    fn recorded_attempt(&mut self, entry: &Entry, now: Timestamp) -> Attempt {
        let (number, places) = (entry.status.attempt, &entry.status.placed);
        let kept = Kept::recorded(&entry.status);
        for (rank, place) in places.iter().enumerate() {
            let id = RunId::new(&entry.uid, number, rank as u32);
            let mut run = Run::new(*place, self.machine_name(*place), RunStage::Starting);
            run.sent = true;
            run.kept = kept.as_ref().is_some_and(|kept| kept.ranks.contains(&id.rank));
            run.price = self.price_of(*place).filter(|_| !run.kept);
            run.unasked = true;
            run.holds_items = entry.map.is_some();
            // Only the recorded machine can report the run.
            let told = self.unclaimed.remove(&(id.clone(), *place));
            if let Some(finished) = told.as_ref().and_then(|told| told.finished.clone()) {
                run.stage = RunStage::Finished(finished);
                run.room = told.and_then(|told| told.room);
            }
            self.runs.insert(id, run);
        }
        Attempt {
            number,
            places: places.clone(),
            started_at: entry.status.started_at.as_ref().map_or(now, |time| time.0),
            kept,
            pool: Some(entry.status.pool_uid.clone()).filter(|uid| !uid.is_empty()),
            ..Attempt::default()
        }
    }

    fn enqueue(&mut self, state: &TaskState) {
        if state.queues() {
            self.queue.insert(queue_key(&state.entry));
        } else {
            self.queue.remove(&queue_key(&state.entry));
        }
    }

    /// A newer view of a Task that is known.
    pub(super) fn refresh(&mut self, entry: Entry, now: Timestamp) {
        let uid = entry.uid.clone();
        let Some(mut state) = self.tasks.remove(&uid) else {
            return;
        };
        if !entry.is_older_than(&state.entry) {
            self.queue.remove(&queue_key(&state.entry));
            let resumed = state.entry.suspend && !entry.suspend;
            let theirs = entry.phase() == TaskPhase::Running && entry.status.attempt > state.counts.attempt;
            if let Some(depends) = &mut state.depends {
                depends.take_in(&entry);
            }
            if let Stage::Waiting(waiting) = &mut state.stage {
                if resumed {
                    let keeping = waiting.keeping.take();
                    *waiting = Waiting::new(&entry, None, now);
                    waiting.keeping = keeping.or(waiting.keeping.take());
                }
                if theirs && state.write.is_none() && !entry.status.placed.is_empty() {
                    // Another leader's placement, written before this one led: it counts.
                    state.counts = Counts::recorded(&entry);
                    state.depends = None;
                    state.stage = Stage::Running(self.recorded_attempt(&entry, now));
                    state.written();
                }
            }
            state.entry = entry;
            self.dirty = true;
        }
        self.enqueue(&state);
        self.tasks.insert(uid, state);
    }

    /// The Task left the watch, because it ended or was deleted. Unless its end is just being
    /// written, reread it.
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
                let ours = entry.phase() == TaskPhase::Running
                    && entry.status.attempt == attempt.number
                    && entry.status.placed == attempt.places;
                if ours {
                    self.placement_is_recorded(uid, entry, object, now);
                } else {
                    self.abandon_placement(uid, now);
                    self.refresh(entry, now);
                }
            }
            Stage::Ending(_) => {
                self.refresh(entry, now);
                self.write_end(uid, now);
            }
            Stage::Waiting(_) => {
                self.refresh(entry, now);
                self.make_pool(uid, &object, now);
            }
            Stage::Placing(_) | Stage::Running(_) => {
                self.refresh(entry, now);
                self.take_growth(uid, now);
            }
        }
        self.steer(uid, now);
        for run in self.runs_of(uid) {
            self.drive(&run, now);
        }
        self.dirty = true;
    }

    /// The object says that the Task ended: by our write whose answer was lost, or by another
    /// writer.
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
            // Edited by hand, or by another leader: its runs belong to no Task any more.
            let ended_at = entry.status.recorded_end();
            self.expire(uid, &entry.name, entry.ttl, ended_at.unwrap_or(now));
            self.remove_task(uid, now);
        }
    }

    /// The Task is deleted: its runs are stopped, and its logs and results are deleted with them.
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
        self.end_map(uid);
        self.own_pool.forget(uid);
        if !task.left {
            self.departed.insert(uid.clone());
        }
        let grace = task.entry.grace;
        if task.entry.git().is_some() {
            self.cancel_starts(uid);
        }
        for id in self.runs_of(uid) {
            if let Some(run) = self.runs.get_mut(&id) {
                run.discard();
                run.stop.get_or_insert((grace, "Deleted"));
            }
            self.drive(&id, now);
        }
        self.live(uid);
        self.dirty = true;
    }
}
