//! What a dispatcher has under way about the Pool that is made for one Task; `own_pool.rs` decides each step.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use skyward_api::condition::reason;

use crate::{
    base::time::{after, doubled},
    task::{
        model::{PoolView, Uid},
        status::Why,
    },
};

/// What is done about the Pool that is made for one Task.
#[derive(Debug, Default)]
pub(super) struct OwnPool {
    /// The Tasks that want the Pool of this name for themselves: one, and the next one of its name as well.
    pub(super) tasks: BTreeSet<Uid>,
    pub(super) step: Step,
    /// No next step before.
    pub(super) not_before: Option<Timestamp>,
    /// Failed tries in a row.
    pub(super) failures: u32,
    /// Why the last try made no Pool.
    pub(super) why: Option<Why>,
    /// UID of the Pool that is there.
    pub(super) there: Option<String>,
}

/// What is under way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Step {
    #[default]
    Nothing,
    /// This Task is read, for which the Pool is to be made.
    ReadingTask(Uid),
    Making,
    /// This Task is read, whose Pool is perhaps needed no more.
    ReadingOwner(Uid),
    Deleting,
}

impl OwnPool {
    /// The Task is gone, or has ended.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.tasks.remove(uid);
        if self.step == Step::ReadingTask(uid.clone()) {
            self.step = Step::Nothing;
        }
    }

    /// Another Pool is there than before, or none: what was tried before counts no more.
    pub(super) fn look(&mut self, pool: Option<&PoolView>) {
        let there = pool.map(|pool| pool.uid.clone());
        if self.there != there {
            self.there = there;
            (self.not_before, self.failures, self.why) = (None, 0, None);
        }
    }

    pub(super) fn may_go_on(&self, now: Timestamp) -> bool {
        self.step == Step::Nothing && self.not_before.is_none_or(|at| at <= now)
    }

    pub(super) fn put_off(&mut self, first: Duration, longest: Duration, now: Timestamp) {
        let wait = doubled(first, self.failures, longest);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(after(now, wait));
    }

    /// Why a Task waits for its Pool that is not there.
    pub(super) fn why(&self, pool: &str) -> Why {
        self.why.clone().unwrap_or_else(|| {
            Why::new(
                reason::CREATING_POOL,
                format!("Pool \"{pool}\" of spec.poolTemplate is being made"),
            )
        })
    }
}
