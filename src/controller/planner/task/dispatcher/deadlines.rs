//! Times that a Task sets itself: the pause after a failure, the longest wait for a start, and the longest time from
//! its first start on. Each stands in its status as the moment when it is over, for a later leader.

use jiff::Timestamp;
use skyward_api::{TaskPhase, condition::reason};

use super::{
    Dispatcher,
    state::{Read, Stage, Waiting},
};
use crate::{
    base::time::after,
    task::{
        model::{Entry, Uid},
        retries::LONGEST_PAUSE,
        status::{self, Why},
    },
};

/// Why a Task fails that runs longer than its `activeDeadline`.
pub(super) fn overdue() -> Why {
    Why::new(
        reason::DEADLINE_EXCEEDED,
        "the Task took longer than its activeDeadline, which counts from its first start; create it again with a longer one, or without one",
    )
}

/// The pause that is on record; never later than one that begins now could end.
pub(super) fn recorded_pause(entry: &Entry, now: Timestamp) -> Option<Timestamp> {
    let recorded = entry.status.retry_at.as_ref()?.0;
    Some(recorded.min(after(now, LONGEST_PAUSE))).filter(|at| *at > now)
}

/// When a wait is given up: as it is on record, or from the creation of the Task, or from now on.
pub(super) fn recorded_patience(
    entry: &Entry,
    retry_at: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let longest = entry.queue_timeout?;
    let latest = after(retry_at.unwrap_or(now), longest);
    let recorded = match entry.status.phase {
        None => Some(after(entry.created, longest)),
        Some(TaskPhase::Pending) => entry.status.queue_deadline.as_ref().map(|at| at.0),
        Some(TaskPhase::Running | TaskPhase::Suspended | TaskPhase::Succeeded | TaskPhase::Failed) => None,
    };
    Some(recorded.map_or(latest, |at| at.min(latest)))
}

impl Waiting {
    /// The Tasks that the Task depends on have ended as they must: from now on it waits for a start, unless an earlier
    /// leader has recorded when that began.
    pub(super) fn begin_patience(&mut self, entry: &Entry, now: Timestamp) {
        if entry.status.queue_deadline.is_none() {
            self.give_up_at = entry.queue_timeout.map(|longest| after(now, longest));
        }
    }

    /// No attempt starts before that time, from which on the Task waits for a start.
    pub(super) fn pause(&mut self, entry: &Entry, until: Timestamp) {
        self.retry_at = Some(until);
        self.give_up_at = entry.queue_timeout.map(|longest| after(until, longest));
    }
}

impl Dispatcher {
    /// Whether the Task runs longer than its `activeDeadline`. While this cluster's memory may be older than its
    /// machines, none does.
    pub(super) fn is_overdue(&self, entry: &Entry, now: Timestamp) -> bool {
        let deadline = entry.status.deadline.as_ref();
        let has_passed = deadline.is_some_and(|deadline| deadline.0 <= now);
        entry.active_deadline.is_some() && has_passed && !self.is_held()
    }

    /// Ends a Task that has waited too long.
    pub(super) fn end_wait(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get(uid) else { return };
        let Stage::Waiting(waiting) = &task.stage else {
            return;
        };
        if task.write.is_some() || task.read != Read::Not || !self.synced || self.is_held() {
            return;
        }
        let has_waited = waiting.give_up_at.is_some_and(|at| at <= now) && task.may_start();
        let why = if self.is_overdue(&task.entry, now) {
            overdue()
        } else if has_waited {
            let longest = task.entry.queue_timeout.unwrap_or_default().as_secs();
            let last = self.why_waiting(task, waiting, None).message;
            Why::new(
                reason::QUEUE_TIMEOUT,
                format!("the Task did not start within the {longest}s of its queueTimeout; at last: {last}"),
            )
        } else {
            return;
        };
        let why = why.or_retry(&task.entry.name, task.entry.status.items.is_some());
        let status = status::ended(&task.entry, task.counts, &[], None, Some(why), now);
        self.end_task(uid, status, now);
    }
}
