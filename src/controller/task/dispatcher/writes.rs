//! Statuses are written, one at a time for each Task, until they are on record.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{Task, TaskPhase, TaskStatus, condition};

use super::{
    AGAIN, Dispatcher,
    state::{Read, Stage, queue_key},
};
use crate::{
    events,
    pool::plan::after,
    task::{
        message::{Effect, WriteError},
        model::{Entry, Uid},
        status::{self, Why},
    },
};

impl Dispatcher {
    pub(super) fn write(&mut self, uid: &Uid, status: TaskStatus) {
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
                task.written();
                match &task.stage {
                    Stage::Placing(_) => self.placement_is_recorded(uid, entry, object, now),
                    Stage::Ending(_) if entry.phase().is_finished() => self.end_is_recorded(uid, now),
                    // It was about what held a run up; meanwhile that passed.
                    Stage::Ending(_) => {
                        self.refresh(entry, now);
                        self.write_end(uid, now);
                    }
                    Stage::Waiting(_) | Stage::Running(_) => self.refresh(entry, now),
                }
            }
            Err(WriteError::Gone) => self.task_is_gone(uid, now),
            Err(error @ (WriteError::Conflict | WriteError::Unknown(_))) => {
                // What cannot be written now cannot be a moment later. Whether it was written
                // is looked up at once, and what is decided anew after a conflict is written.
                if matches!(error, WriteError::Unknown(_)) {
                    task.put_off(now);
                }
                if let Stage::Waiting(waiting) = &mut task.stage {
                    waiting.told = None;
                    waiting.not_before = task.write_at;
                }
                self.reread(uid);
            }
            Err(WriteError::Invalid(message)) => {
                tracing::error!(task = %task.entry.name, %message, "the API server refuses a status of ours");
                task.write_at = Some(now + AGAIN * 30);
                match &mut task.stage {
                    Stage::Placing(_) => self.abandon_placement(uid, now),
                    Stage::Ending(status) => {
                        let bare = status::bare(status);
                        // Refused even so: slowly, then.
                        if **status != bare {
                            **status = bare;
                            task.write_at = Some(now + AGAIN);
                        }
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
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Ending(status) = &mut task.stage else {
            return;
        };
        if task.write.is_none() && task.read == Read::Not && task.write_at.is_none_or(|at| at <= now) {
            status::record_end(status, now);
            let status = (**status).clone();
            self.write(uid, status);
        }
    }

    /// The end is on record: the agents may forget, and so do we.
    pub(super) fn end_is_recorded(&mut self, uid: &Uid, now: Timestamp) {
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
        let (ttl, ended_at) = (task.entry.ttl, status::recorded_end(status));
        self.expire(uid, &name, ttl, ended_at.unwrap_or(now));
        self.effects.push(Effect::Publish {
            uid: uid.clone(),
            name,
            event: Box::new(event),
        });
        self.remove_task(uid, now);
    }

    /// An ended Task that says so is deleted when its time has come.
    pub(super) fn expire(&mut self, uid: &Uid, name: &Arc<str>, ttl: Option<u32>, ended_at: Timestamp) {
        if let Some(ttl) = ttl {
            self.effects.push(Effect::Expire {
                uid: uid.clone(),
                name: name.clone(),
                at: after(ended_at, Duration::from_secs(u64::from(ttl))),
            });
        }
    }
}
