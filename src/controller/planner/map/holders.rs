//! Which worker each granted item belongs to, as ranges of neighbours: the end of an item names no worker, and a map has
//! hundreds of them. It says the same as the grants of [`Items`](super::items::Items), the other way round.

use std::{collections::BTreeMap, ops::Range};

use super::{indices::Index, record::Worker};

/// The worker of each item that is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holders {
    /// The first index of each range: the one after its last, and whose it is. No two ranges overlap.
    ranges: BTreeMap<Index, (Index, Worker)>,
}

impl Holders {
    /// The worker that may run an item.
    pub(super) fn of(&self, index: Index) -> Option<Worker> {
        let (_, (end, worker)) = self.ranges.range(..=index).next_back()?;
        (index < *end).then_some(*worker)
    }

    /// Items that belong to nobody become those of a worker.
    pub(super) fn insert(&mut self, range: Range<Index>, worker: Worker) {
        if !range.is_empty() {
            self.ranges.insert(range.start, (range.end, worker));
        }
    }

    /// These items belong to nobody.
    pub(super) fn remove(&mut self, range: Range<Index>) {
        if range.is_empty() {
            return;
        }
        // Ranges do not overlap, so only the last one that begins before may reach into it.
        let before = self.ranges.range_mut(..range.start).next_back();
        if let Some((_, (end, worker))) = before
            && *end > range.start
        {
            let rest = (*end, *worker);
            *end = range.start;
            if rest.0 > range.end {
                self.ranges.insert(range.end, rest);
            }
        }
        while let Some((start, (end, worker))) = self.ranges.range(range.clone()).next() {
            let (start, end, worker) = (*start, *end, *worker);
            self.ranges.remove(&start);
            if end > range.end {
                self.ranges.insert(range.end, (end, worker));
            }
        }
    }
}
