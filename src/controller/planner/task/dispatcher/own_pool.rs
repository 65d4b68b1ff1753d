//! The Pool that is made for one Task (`spec.poolTemplate`): when it is made, and when it is deleted.
//!
//! The Task is the record of the intent: the Pool has its name and names it as its owner. So a Pool that is made
//! twice is made once, and each leader sees for which Task a Pool was made. Before the Pool is made the
//! Task is read past the watch, or a Task that has ended or is gone would get one. A Pool whose Task is not among
//! the active ones is deleted only after the Task was read, too: it has ended, and then all that it left is stored,
//! or it is gone. Other Tasks never run in such a Pool, and its Task runs nowhere else.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    Task, TaskPhase,
    condition::{cut, reason},
};

use super::{
    AGAIN, Dispatcher,
    state::{Read, Stage, TaskState, queue_key},
    steps::Step,
};
use crate::{
    base::time::after,
    task::{
        message::{Effect, PoolError},
        model::{Entry, PoolView, Uid},
        own_pool::{Owner, pool_of},
        status::Why,
    },
};

/// Pause after a Pool was made or deleted, in which the watch shows that; it doubles where the watch does not.
const SHOWN: Duration = Duration::from_secs(5);
/// Pause before a Pool is made again that the API server refused; it doubles, up to the longest one.
const REFUSED_AGAIN: Duration = Duration::from_secs(10);
const REFUSED_LONGEST: Duration = Duration::from_mins(5);
/// Longest pause before an effect is repeated whose outcome is not known.
const UNKNOWN_LONGEST: Duration = Duration::from_secs(30);
/// Bytes of what the API server says that a condition repeats.
const MOST_SAID: usize = 600;

impl Dispatcher {
    /// Tasks that the Pool which is there is not for leave the queue, and others come back into it.
    pub(super) fn sort_by_pool(&mut self) {
        let pool = self.pool.as_deref();
        self.own_pool.look(pool);
        for task in self.tasks.values_mut() {
            let barred = pool.is_some_and(|pool| !pool.is_for(&task.entry));
            if std::mem::replace(&mut task.barred, barred) == barred {
                continue;
            }
            if task.queues() {
                self.queue.insert(queue_key(&task.entry));
            } else {
                self.queue.remove(&queue_key(&task.entry));
            }
        }
    }

    /// The next step towards the Pool that a Task wants for itself, or towards the end of a Pool whose Task has ended.
    pub(super) fn tend_own_pool(&mut self, now: Timestamp) {
        if !self.synced || !self.viewed || self.is_held() || !self.own_pool.may_go_on(now) {
            return;
        }
        if self.pool.is_none() {
            self.ask_for_pool();
        } else if let Some(Owner { uid, name }) = self.owner_without_task() {
            self.own_pool.step = Step::ReadingOwner(uid.clone());
            self.effects.push(Effect::Reread { uid, name });
        }
    }

    fn ask_for_pool(&mut self) {
        if !self.served {
            return;
        }
        let wants = |task: &TaskState| {
            task.queues() && !task.pauses() && task.write.is_none() && task.read == Read::Not
        };
        let mut tasks = self.own_pool.tasks.iter();
        let Some(uid) = tasks.find(|uid| self.tasks.get(*uid).is_some_and(wants)).cloned() else {
            return;
        };
        self.own_pool.step = Step::ReadingTask(uid.clone());
        self.reread(&uid);
    }

    /// A Task that waits was read: its Pool is made, if it still wants one.
    pub(super) fn make_pool(&mut self, uid: &Uid, task: &Task, now: Timestamp) {
        if self.own_pool.step != Step::ReadingTask(uid.clone()) {
            return;
        }
        self.own_pool.step = Step::Nothing;
        let wants = self.tasks.get(uid).is_some_and(TaskState::queues);
        if !wants || self.pool.is_some() || self.is_held() {
            return;
        }
        if let Some(pool) = pool_of(task) {
            self.own_pool.step = Step::Making;
            self.effects.push(Effect::MakePool(Box::new(pool)));
        } else {
            self.own_pool.not_before = Some(after(now, SHOWN));
        }
    }

    pub(super) fn on_pool_made(&mut self, result: Result<(), PoolError>, now: Timestamp) {
        let name = &self.key.name;
        let own = &mut self.own_pool;
        own.step = Step::Nothing;
        match result {
            Ok(()) => {
                own.why = None;
                if self.pool.is_none() {
                    own.put_off(SHOWN, REFUSED_LONGEST, now);
                }
            }
            Err(PoolError::Refused(said)) => {
                own.put_off(REFUSED_AGAIN, REFUSED_LONGEST, now);
                let message = format!(
                    "the API server refuses Pool \"{name}\" of spec.poolTemplate: {}. Mend what it names, such as a quota \
                     or a policy, and the Task goes on by itself; or create the Task again with another template. Where it \
                     says that the operator may not create Pools, ask a platform engineer: the chart grants that right \
                     with admissionPolicy.enabled",
                    cut(&said, MOST_SAID)
                );
                own.why = Some(Why::new(reason::POOL_REFUSED, message));
            }
            Err(PoolError::Unknown(said)) => {
                own.put_off(AGAIN, UNKNOWN_LONGEST, now);
                let message = format!(
                    "Pool \"{name}\" of spec.poolTemplate could not be made: {}; that is tried again by itself",
                    cut(&said, MOST_SAID)
                );
                own.why = Some(Why::new(reason::CREATING_POOL, message));
            }
        }
        self.dirty = true;
    }

    /// The Task that the Pool was made for, where it is not among the active ones and the Pool is not being deleted.
    fn owner_without_task(&self) -> Option<Owner> {
        let pool = self.pool.as_deref().filter(|pool| pool.deleted_at.is_none())?;
        let owner = pool.owner.as_ref()?;
        (!self.tasks.contains_key(&owner.uid)).then(|| owner.clone())
    }

    /// Whether its Pool was made for a Task that is not among the active ones.
    pub(super) fn outlives_its_task(&self) -> bool {
        self.synced && self.owner_without_task().is_some()
    }

    /// The Task was read for which the Pool was made; gives the answer back where it was read for another purpose.
    pub(super) fn on_owner_read(
        &mut self,
        uid: &Uid,
        result: Result<Option<Arc<Task>>, String>,
        now: Timestamp,
    ) -> Option<Result<Option<Arc<Task>>, String>> {
        if self.own_pool.step != Step::ReadingOwner(uid.clone()) {
            return Some(result);
        }
        self.own_pool.step = Step::Nothing;
        let needs_no_pool = result.map(|task| task.is_none_or(|task| !needs_pool(&task, uid)));
        let is_still_its = self.owner_without_task().is_some_and(|owner| owner.uid == *uid);
        let pool = self.pool.as_ref().filter(|_| is_still_its && !self.is_held());
        match (needs_no_pool, pool) {
            (Ok(true), Some(pool)) => {
                self.effects.push(Effect::DeletePool(pool.uid.clone()));
                self.own_pool.step = Step::Deleting;
            }
            // The watch will show that Task, or is about to.
            (Ok(_), _) => self.own_pool.put_off(AGAIN, REFUSED_LONGEST, now),
            (Err(_), _) => self.own_pool.put_off(AGAIN, UNKNOWN_LONGEST, now),
        }
        None
    }

    pub(super) fn on_pool_deleted(&mut self, result: &Result<(), String>, now: Timestamp) {
        self.own_pool.step = Step::Nothing;
        match result {
            Ok(()) => self.own_pool.put_off(SHOWN, REFUSED_LONGEST, now),
            Err(said) => {
                let (namespace, name) = (&self.key.namespace, &self.key.name);
                self.effects.push(Effect::Warn(format!(
                    "Pool {namespace}/{name}, whose Task has ended, could not be deleted: {said}"
                )));
                self.own_pool.put_off(AGAIN, UNKNOWN_LONGEST, now);
            }
        }
    }
}

/// Whether the Task that was found under the name of an owner is that owner and still needs its Pool. A Task that
/// names another Pool made none: a person wrote that owner down.
fn needs_pool(task: &Task, uid: &Uid) -> bool {
    let is_it = task.metadata.uid.as_deref() == Some(&**uid) && task.metadata.deletion_timestamp.is_none();
    let phase = task.status.as_ref().and_then(|status| status.phase);
    let has_ended = phase.is_some_and(TaskPhase::is_finished);
    is_it && (!has_ended || task.spec.pool_template.is_none())
}

/// Why a Task does not run in the Pool of that name, which is not for it.
pub(super) fn why_barred(task: &Entry, pool: &PoolView) -> Why {
    let name = &pool.name;
    if !task.has_own_pool {
        return Why::new(
            reason::POOL_NOT_SHARED,
            format!(
                "Pool \"{name}\" was made for Task \"{name}\" alone (spec.poolTemplate) and goes with its end; create this \
                 Task for another Pool"
            ),
        );
    }
    let what = if pool.deleted_at.is_some() {
        "which is being deleted; the Task goes on by itself once that Pool is gone"
    } else if pool.owner.is_some() {
        "which was made for an earlier Task and goes with it; the Task goes on by itself once that Pool is gone"
    } else {
        "which was not made for this Task: delete that Pool, and the Task goes on by itself; or create the Task under \
         another name"
    };
    Why::new(
        reason::POOL_NAME_TAKEN,
        format!(
            "the Pool of spec.poolTemplate has the name of the Task, and there is another Pool \"{name}\", {what}"
        ),
    )
}

impl TaskState {
    /// Whether the Pool that is being deleted takes this Task with it.
    pub(super) fn goes_with(&self, pool: &PoolView) -> bool {
        let is_older = pool.deleted_at.is_some_and(|at| self.entry.created <= at);
        is_older && (pool.is_for(&self.entry) || !matches!(self.stage, Stage::Waiting(_)))
    }
}
