//! What a dispatcher remembers of the Tasks that wait and of the runs that have ended, for the demand of its Pool.

use std::{collections::VecDeque, time::Duration};

use jiff::Timestamp;

/// What is remembered for the demand.
#[derive(Debug, Default)]
pub(super) struct Durations {
    /// How long the last runs lasted that took one place, the newest last.
    pub(super) lasted: VecDeque<Duration>,
    /// The Tasks that wait, as the last tick counted them.
    pub(super) counted: Counted,
    /// Since when the Task of the queue waits that has waited longest, as the last tick found it.
    pub(super) oldest: Option<Timestamp>,
}

impl Durations {
    pub(super) fn typical(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.lasted.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Tasks that wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// No machine helps them.
    pub(super) stuck: usize,
    /// They wait for certain machines.
    pub(super) fixed: usize,
    /// Of these, the Tasks that run on all machines.
    pub(super) broadcasts: usize,
    /// They name Secrets, ConfigMaps or bundles that were not looked for yet, and no machine is there.
    pub(super) unread: usize,
}

impl Counted {
    /// Tasks of so many that wait which are no work. Tasks of which nothing is known are work beside one that is.
    pub(super) const fn no_work(self, all: usize) -> usize {
        if self.stuck.saturating_add(self.unread) >= all {
            all
        } else {
            self.stuck
        }
    }
}
