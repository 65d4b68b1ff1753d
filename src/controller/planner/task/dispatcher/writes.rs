//! Statuses are written, one at a time for each Task, until they are on record.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    Task, TaskPhase, TaskStatus,
    condition::{self, cut},
};

use super::{
    AGAIN, Dispatcher, LASTING, SAID_EACH,
    state::{Read, Stage, queue_key},
};
use crate::{
    base::time::after,
    events::{self, EventSpec},
    task::{
        message::{Effect, WriteError},
        model::{Entry, Uid},
        status,
    },
};

/// Bytes of what the API server says that an Event repeats.
const MOST_SAID: usize = 500;

impl Dispatcher {
    pub(super) fn write(&mut self, uid: &Uid, mut status: TaskStatus) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        task.progress.add_to(&mut status, &task.entry);
        if let Some(depends) = &task.depends {
            status.dependencies.clone_from(&depends.records);
        }
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
                    // The write reported a held-up run; meanwhile the trouble passed.
                    Stage::Ending(_) => {
                        self.refresh(entry, now);
                        self.write_end(uid, now);
                    }
                    Stage::Waiting(_) | Stage::Running(_) => {
                        self.refresh(entry, now);
                        self.take_growth(uid, now);
                    }
                }
            }
            Err(WriteError::Gone) => self.task_is_gone(uid, now),
            Err(error @ (WriteError::Conflict | WriteError::Unknown(_))) => {
                // A status that cannot be written now cannot be written a moment later either:
                // after an unknown outcome the next write waits. The object is read again at once,
                // and a status that is decided anew after a conflict is written at once.
                if let WriteError::Unknown(message) = &error {
                    task.put_off(now);
                    let lasts = task.refused.checked_sub(LASTING);
                    if lasts.is_some_and(|more| more % SAID_EACH == 0) {
                        self.say_refused(uid, message);
                    }
                }
                let Some(task) = self.tasks.get_mut(uid) else {
                    return;
                };
                if task.aside {
                    self.queue.remove(&queue_key(&task.entry));
                }
                if let Stage::Waiting(waiting) = &mut task.stage {
                    waiting.told = None;
                    waiting.not_before = task.write_at;
                }
                self.reread(uid);
            }
            Err(WriteError::Invalid(message)) => {
                task.set_aside(now);
                self.queue.remove(&queue_key(&task.entry));
                self.say_refused(uid, &message);
                let Some(task) = self.tasks.get_mut(uid) else {
                    return;
                };
                match &mut task.stage {
                    Stage::Placing(_) => self.abandon_placement(uid, now),
                    Stage::Ending(status) => {
                        let bare = status::bare(status);
                        // Even the bare status was refused: try again slowly.
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

    /// Publishes that the Task's status cannot be written, which no status can say.
    fn say_refused(&mut self, uid: &Uid, message: &str) {
        let Some(task) = self.tasks.get(uid) else { return };
        let (namespace, task) = (&self.key.namespace, &task.entry.name);
        self.effects.push(Effect::Warn(format!(
            "the API server does not take the status of Task {namespace}/{task}: {message}"
        )));
        let note = format!(
            "the API server does not take the status of this Task, so it neither starts nor ends: {}. That is tried again by itself, and no other Task waits for it. If a policy or webhook of this cluster refuses it, that has to admit the operator; else delete the Task and create it with other values",
            cut(message, MOST_SAID)
        );
        let event = EventSpec::warning(events::reason::STATUS_REFUSED, "Record", note);
        self.publish_merged(uid, event);
    }

    /// The end of a Task is decided; it is written until it is on record.
    pub(super) fn end_task(&mut self, uid: &Uid, status: TaskStatus, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
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
        self.ended[0] += 1;
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
        let event = if phase == TaskPhase::Succeeded {
            let note = format!("completed after {}: {message}", status.duration);
            EventSpec::normal(events::reason::TASK_COMPLETED, "Complete", note)
        } else {
            self.effects.push(Effect::Failed(status.reason.clone()));
            let note = format!("{}: {message}", status.reason);
            EventSpec::warning(events::reason::TASK_FAILED, "Fail", note)
        };
        let name = task.entry.name.clone();
        let (ttl, ended_at) = (task.entry.ttl, status.recorded_end());
        self.expire(uid, &name, ttl, ended_at.unwrap_or(now));
        self.publish_merged(uid, event);
        self.remove_task(uid, now);
    }

    /// Deletes an ended Task once its `ttlSecondsAfterFinished` has passed.
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
