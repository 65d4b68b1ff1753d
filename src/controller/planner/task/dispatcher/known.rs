//! How far the ranks of one Task are, as their programs said it last.

use std::collections::BTreeMap;

use jiff::Timestamp;
use skyward_api::{TaskPhase, TaskStatus, task::progress_text};

use crate::task::{model::Entry, run::Progress};

/// What is known of how far one Task is.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Of the attempt that is under way, by rank.
    pub(super) ranks: BTreeMap<u32, Progress>,
    /// When it was written by itself.
    pub(super) told_at: Option<Timestamp>,
    /// Whether the Task stands in `Dispatcher::progressed`, which is too long to be searched each time.
    pub(super) is_queued: bool,
}

impl Known {
    /// How far a rank is.
    pub(super) fn of(&self, rank: u32) -> Option<Progress> {
        self.ranks.get(&rank).copied()
    }

    /// Nothing is known of a new attempt.
    pub(super) fn begin(&mut self) {
        self.ranks.clear();
    }

    /// All ranks together.
    pub(super) fn text(&self) -> String {
        progress_text(
            self.ranks
                .values()
                .map(|progress| (progress.done, progress.total)),
        )
    }

    /// Adds it to a status that is about to be written.
    pub(super) fn add_to(&self, status: &mut TaskStatus, entry: &Entry) {
        let recorded = &entry.status;
        status.progress = match status.phase.unwrap_or_default() {
            TaskPhase::Pending | TaskPhase::Suspended => String::new(),
            // An item speaks of itself alone, and the next one at its place begins from 0: `done` tells of all items.
            _ if entry.map.is_some() => String::new(),
            // A new leader has heard nothing yet.
            _ if self.ranks.is_empty() && status.attempt == recorded.attempt => recorded.progress.clone(),
            _ => self.text(),
        };
    }
}
