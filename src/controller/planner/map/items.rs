//! Where each item of a map is, as its log says: waiting, granted to one worker, or done. Records are applied in the
//! order of the log, by the leader that writes them and by the next one that reads them, with the same outcome. A
//! record that does not fit, such as the outcome of an attempt that was cut, changes nothing.

use std::{collections::BTreeMap, ops::Range};

use super::{
    holders::Holders,
    indices::{Index, Indices, one},
    record::{Cause, Ended, Note, Record, Worker},
};

/// Attempts of an item after which none follows that counts for nothing: there would be no end.
const MOST_ATTEMPTS: u32 = 10_000;

/// How often an item may run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// After its machine or watcher was lost.
    pub on_interruption: u32,
    /// After it failed.
    pub on_failure: u32,
}

/// The attempts of one item that have ended. Attempts and failures are counted apart: an item that lost its machine
/// has not used up what the user allows it to fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub ended: u32,
    /// Attempts that failed by themselves, since the last retry by a user.
    pub failures: u32,
    /// Attempts that were interrupted, since the last retry by a user.
    pub interruptions: u32,
    /// Attempts that count for nothing, since the last retry by a user.
    pub uncounted: u32,
}

impl Counts {
    /// Whether the end of one more attempt is the last one.
    pub const fn is_final(self, cause: Cause, retries: Retries) -> bool {
        match cause {
            Cause::Success => true,
            Cause::Failure => self.failures >= retries.on_failure,
            Cause::Interruption => self.interruptions >= retries.on_interruption,
            Cause::Uncounted => self.ended >= MOST_ATTEMPTS,
        }
    }

    const fn add(&mut self, cause: Cause) {
        self.ended = self.ended.saturating_add(1);
        match cause {
            Cause::Success => {}
            Cause::Uncounted => self.uncounted = self.uncounted.saturating_add(1),
            Cause::Failure => self.failures = self.failures.saturating_add(1),
            Cause::Interruption => self.interruptions = self.interruptions.saturating_add(1),
        }
    }
}

/// The items of one map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Items {
    total: u32,
    done: Indices,
    /// Those among `done` that did not succeed.
    failed: Indices,
    /// Not done, and granted to no worker.
    waiting: Indices,
    /// Not done, and granted to one worker. No entry is empty.
    grants: BTreeMap<Worker, Indices>,
    /// Whose each granted item is.
    holders: Holders,
    /// Of items with more than one attempt.
    counts: BTreeMap<Index, Counts>,
    /// Attempts that have ended, of all items.
    ends: u64,
    /// The most interruptions that any item has had.
    most_interrupted: u32,
    /// Items without a final outcome that were interrupted.
    interrupted: Indices,
    /// Items that had failed when a user last had items run again, and that stayed as they were.
    old_failures: u32,
}

impl Items {
    /// The items of a map that has no records yet.
    pub fn new(total: u32) -> Self {
        Self {
            total,
            done: Indices::default(),
            failed: Indices::default(),
            waiting: Indices::of(0..total),
            grants: BTreeMap::new(),
            holders: Holders::default(),
            counts: BTreeMap::new(),
            ends: 0,
            most_interrupted: 0,
            interrupted: Indices::default(),
            old_failures: 0,
        }
    }

    /// Attempts of all items that have ended, including interrupted ones: it grows as long as the map goes on.
    pub const fn ends(&self) -> u64 {
        self.ends
    }

    /// How many there are.
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Items with a final outcome.
    pub const fn done(&self) -> &Indices {
        &self.done
    }

    /// Items whose final outcome is no success.
    pub const fn failed(&self) -> &Indices {
        &self.failed
    }

    /// Items that have failed since a user last had items run again. Only these count for `maxFailedItems`: by the others
    /// none of the items that a user names would begin.
    pub const fn new_failures(&self) -> u32 {
        self.failed.len().saturating_sub(self.old_failures)
    }

    /// Items that no worker may run yet.
    pub const fn waiting(&self) -> &Indices {
        &self.waiting
    }

    /// Items that a worker may run, and whose end it has not reported.
    pub fn grant(&self, worker: Worker) -> Option<&Indices> {
        self.grants.get(&worker)
    }

    /// All that workers may run.
    pub const fn grants(&self) -> &BTreeMap<Worker, Indices> {
        &self.grants
    }

    /// The attempts of an item that have ended.
    pub fn counts(&self, index: Index) -> Counts {
        self.counts.get(&index).copied().unwrap_or_default()
    }

    /// The number that the next attempt of an item has, or the present one.
    pub fn attempt(&self, index: Index) -> u32 {
        self.counts(index).ended.saturating_add(1)
    }

    /// The items from there on that have the same attempt as the first one, up to an end.
    pub fn same_attempt(&self, range: Range<Index>) -> Range<Index> {
        let first = self.counts.get(&range.start);
        let end = match first {
            // Few items have counts: the next one of them ends it.
            None => self.counts.range(range.clone()).next().map(|(index, _)| *index),
            Some(first) => range
                .clone()
                .skip(1)
                .find(|index| self.counts(*index).ended != first.ended),
        };
        range.start..end.unwrap_or(range.end)
    }

    /// Whether an end that a worker tells counts: it is that of the present attempt of an item that only this worker
    /// may run. The end is to be acknowledged in any case.
    pub fn counts_from(&self, worker: Worker, index: Index, attempt: u32) -> bool {
        let is_granted = self.grant(worker).is_some_and(|grant| grant.contains(index));
        is_granted && self.attempt(index) == attempt
    }

    /// Waiting items that were interrupted more often than they may run again. They get a final outcome.
    pub fn exhausted(&self, retries: Retries) -> impl Iterator<Item = (Index, Counts)> + '_ {
        // Seldom is there one, a million items may have counts, and this is asked for with each report of a machine.
        let is_any = self.most_interrupted > retries.on_interruption;
        let interrupted = is_any.then_some(&self.interrupted).into_iter();
        let interrupted = interrupted.flat_map(Indices::ranges).flatten();
        let counts = interrupted.map(move |index| (index, self.counts(index)));
        counts.filter(move |(index, counts)| {
            counts.interruptions > retries.on_interruption && self.waiting.contains(*index)
        })
    }

    /// Waiting items that have failed, each with how often. Attempts that count for nothing are among these failures
    /// where a rule `ignores` some.
    pub fn failed_before(&self, ignores: bool) -> impl Iterator<Item = (Index, u32)> + '_ {
        let failures = self.counts.iter().map(move |(index, counts)| {
            let ignored = if ignores { counts.uncounted } else { 0 };
            (*index, counts.failures.saturating_add(ignored))
        });
        failures.filter(move |(index, failures)| *failures > 0 && self.waiting.contains(*index))
    }

    /// Takes in the next record of the log. Answers whether it changed anything.
    pub fn apply(&mut self, record: &Record) -> bool {
        match record {
            Record::Ended(ended) => self.end(*ended),
            Record::Note(Note::Granted(worker, range)) => {
                let granted = self.waiting.within(range.clone());
                self.waiting.remove_all(&granted);
                for range in granted.ranges() {
                    self.holders.insert(range, *worker);
                }
                if !granted.is_empty() {
                    self.grants.entry(*worker).or_default().insert_all(&granted);
                }
                !granted.is_empty()
            }
            Record::Note(Note::Released(worker, range)) => {
                let released = self.take(*worker, range.clone());
                self.waiting.insert_all(&released);
                !released.is_empty()
            }
            Record::Note(Note::Cut(worker)) => {
                let Some(cut) = self.grants.remove(worker) else {
                    return false;
                };
                for range in cut.ranges() {
                    self.holders.remove(range.clone());
                    for index in range {
                        self.count(index, Cause::Interruption);
                    }
                }
                self.ends = self.ends.saturating_add(u64::from(cut.len()));
                self.waiting.insert_all(&cut);
                true
            }
            Record::Note(Note::Reopened(range)) => {
                let reopened = self.done.within(range.clone());
                self.done.remove_all(&reopened);
                self.failed.remove_all(&reopened);
                for index in reopened.ranges().flatten() {
                    let counts = self.counts.entry(index).or_default();
                    *counts = Counts {
                        // The final outcome of a first attempt was not counted.
                        ended: counts.ended.max(1),
                        ..Counts::default()
                    };
                }
                self.waiting.insert_all(&reopened);
                let before = std::mem::replace(&mut self.old_failures, self.failed.len());
                !reopened.is_empty() || before != self.old_failures
            }
        }
    }

    fn end(&mut self, ended: Ended) -> bool {
        let Ended {
            index,
            attempt,
            cause,
            is_final,
        } = ended;
        if index >= self.total || self.done.contains(index) || self.attempt(index) != attempt {
            return false;
        }
        let range = one(index);
        match self.holders.of(index) {
            Some(worker) => {
                self.take(worker, range.clone());
            }
            // The leader itself ends an item that is exhausted.
            None => {
                self.waiting.remove(range.clone());
            }
        }
        self.ends = self.ends.saturating_add(1);
        // Most items have one attempt, and need no count.
        if !is_final || attempt > 1 {
            self.count(index, cause);
        }
        if is_final {
            self.interrupted.remove(range.clone());
            self.done.insert(range.clone());
            if cause != Cause::Success {
                self.failed.insert(range);
            }
        } else {
            self.waiting.insert(range);
        }
        true
    }

    fn count(&mut self, index: Index, cause: Cause) {
        let counts = self.counts.entry(index).or_default();
        counts.add(cause);
        self.most_interrupted = self.most_interrupted.max(counts.interruptions);
        if cause == Cause::Interruption {
            self.interrupted.insert(one(index));
        }
    }

    /// Takes away what a worker was granted in a range.
    fn take(&mut self, worker: Worker, range: Range<Index>) -> Indices {
        let Some(grant) = self.grants.get_mut(&worker) else {
            return Indices::default();
        };
        let taken = grant.within(range.clone());
        grant.remove(range);
        if grant.is_empty() {
            self.grants.remove(&worker);
        }
        for range in taken.ranges() {
            self.holders.remove(range);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Worker = Worker { attempt: 1, rank: 0 };
    const B: Worker = Worker { attempt: 1, rank: 1 };

    fn ended(index: Index, attempt: u32, cause: Cause, is_final: bool) -> Record {
        Record::Ended(Ended {
            index,
            attempt,
            cause,
            is_final,
        })
    }

    fn granted(worker: Worker, range: Range<Index>) -> Record {
        Record::Note(Note::Granted(worker, range))
    }

    fn after(total: u32, records: &[Record]) -> Items {
        let mut items = Items::new(total);
        for record in records {
            items.apply(record);
        }
        items
    }

    #[test]
    fn a_worker_that_is_cut_leaves_interruptions_and_its_late_outcomes_do_not_count() {
        let mut items = after(
            10,
            &[
                granted(A, 0..6),
                ended(0, 1, Cause::Success, true),
                Record::Note(Note::Cut(A)),
            ],
        );
        assert_eq!(items.waiting().describe(64), "1-9");
        assert_eq!((items.attempt(1), items.attempt(6)), (2, 1));
        assert!(!items.counts_from(A, 1, 1) && !items.counts_from(A, 1, 2));
        assert!(
            !items.apply(&ended(1, 1, Cause::Success, true)),
            "an attempt that was cut"
        );
        items.apply(&granted(B, 1..3));
        assert!(items.counts_from(B, 1, 2) && !items.counts_from(B, 1, 1));
        assert!(items.apply(&ended(1, 2, Cause::Success, true)));
        assert!(
            !items.apply(&ended(1, 2, Cause::Failure, true)),
            "it has an outcome"
        );
        assert_eq!(items.failed().len(), 0);
    }

    #[test]
    fn what_one_worker_may_run_no_other_one_is_granted() {
        let items = after(10, &[granted(A, 0..5), granted(B, 3..8)]);
        assert_eq!(items.grant(A).unwrap().describe(64), "0-4");
        assert_eq!(items.grant(B).unwrap().describe(64), "5-7");
        let released = Record::Note(Note::Released(A, 2..8));
        let items = after(10, &[granted(A, 0..5), granted(B, 5..8), released]);
        assert_eq!(items.grant(A).unwrap().describe(64), "0-1");
        assert_eq!(
            items.grant(B).unwrap().describe(64),
            "5-7",
            "only the worker itself lets go"
        );
        assert_eq!(items.waiting().describe(64), "2-4,8-9");
    }

    #[test]
    fn attempts_and_failures_are_two_counts() {
        let retries = Retries {
            on_interruption: 1,
            on_failure: 1,
        };
        let mut counts = Counts::default();
        assert!(!counts.is_final(Cause::Interruption, retries) && counts.is_final(Cause::Success, retries));
        counts.add(Cause::Interruption);
        assert!(counts.is_final(Cause::Interruption, retries));
        assert!(!counts.is_final(Cause::Failure, retries), "it has not failed yet");
        counts.add(Cause::Failure);
        assert!(counts.is_final(Cause::Failure, retries));
        assert_eq!(counts.ended, 2);
    }

    #[test]
    fn items_that_were_interrupted_too_often_wait_for_their_final_outcome() {
        let retries = Retries {
            on_interruption: 1,
            on_failure: 0,
        };
        let cut = Record::Note(Note::Cut(A));
        let twice = [granted(A, 0..2), cut.clone(), granted(A, 1..3), cut];
        let mut items = after(4, &twice);
        let exhausted: Vec<Index> = items.exhausted(retries).map(|(index, _)| index).collect();
        assert_eq!(exhausted, [1]);
        items.apply(&ended(1, 3, Cause::Interruption, true));
        assert_eq!(items.exhausted(retries).count(), 0);
        assert_eq!(
            (items.failed().describe(64), items.waiting().describe(64)),
            ("1".into(), "0,2-3".into())
        );
    }

    #[test]
    fn an_item_that_a_user_asks_for_again_has_a_new_attempt_and_its_retries_back() {
        let mut items = after(
            3,
            &[
                granted(A, 0..3),
                ended(0, 1, Cause::Failure, false),
                ended(1, 1, Cause::Failure, true),
                ended(2, 1, Cause::Success, true),
            ],
        );
        items.apply(&granted(A, 0..1));
        items.apply(&ended(0, 2, Cause::Failure, true));
        assert_eq!(items.failed().describe(64), "0-1");
        assert!(items.apply(&Record::Note(Note::Reopened(0..2))));
        assert_eq!((items.attempt(0), items.attempt(1)), (3, 2));
        assert_eq!(items.counts(0).failures, 0);
        assert_eq!((items.done().describe(64), items.failed().len()), ("2".into(), 0));
        assert!(
            !items.apply(&ended(1, 1, Cause::Failure, true)),
            "of the attempt before"
        );
        assert!(
            !items.apply(&Record::Note(Note::Reopened(0..1))),
            "it has no outcome yet"
        );
    }

    #[test]
    fn a_retry_by_a_user_begins_the_pauses_after_ignored_failures_anew() {
        let mut items = after(
            1,
            &[
                granted(A, 0..1),
                ended(0, 1, Cause::Uncounted, false),
                granted(A, 0..1),
                ended(0, 2, Cause::Failure, false),
            ],
        );
        let failed: Vec<(Index, u32)> = items.failed_before(true).collect();
        assert_eq!(failed, [(0, 2)]);
        let failed: Vec<(Index, u32)> = items.failed_before(false).collect();
        assert_eq!(failed, [(0, 1)]);
        items.apply(&granted(A, 0..1));
        items.apply(&ended(0, 3, Cause::Failure, true));
        items.apply(&Record::Note(Note::Reopened(0..1)));
        assert_eq!(items.failed_before(true).count(), 0);
    }

    #[test]
    fn items_that_failed_before_a_user_had_others_run_again_are_no_new_failures() {
        let failed = |index, attempt| ended(index, attempt, Cause::Failure, true);
        let mut items = after(9, &[granted(A, 0..4), failed(0, 1), failed(1, 1), failed(2, 1)]);
        assert_eq!(items.new_failures(), 3);
        items.apply(&Record::Note(Note::Reopened(1..2)));
        assert_eq!((items.failed().len(), items.new_failures()), (2, 0));
        items.apply(&granted(B, 1..2));
        items.apply(&failed(1, 2));
        assert_eq!((items.failed().len(), items.new_failures()), (3, 1));
        assert!(
            items.apply(&Record::Note(Note::Reopened(7..8))),
            "an item that was not run is asked for"
        );
        assert_eq!(items.new_failures(), 0);
        items.apply(&Record::Note(Note::Reopened(0..3)));
        assert_eq!((items.failed().len(), items.new_failures()), (0, 0));
    }

    #[test]
    fn items_side_by_side_with_the_same_attempt_make_one_chunk() {
        let records = [
            granted(A, 3..5),
            ended(3, 1, Cause::Failure, false),
            ended(4, 1, Cause::Failure, false),
        ];
        let items = after(10, &records);
        assert_eq!(items.same_attempt(0..10), 0..3);
        assert_eq!(items.same_attempt(3..10), 3..5);
        assert_eq!(items.same_attempt(5..10), 5..10);
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let worker = (1_u32..3, 0_u32..3).prop_map(|(attempt, rank)| Worker { attempt, rank });
        let range = (0_u32..20, 1_u32..8).prop_map(|(start, length)| start..start + length);
        let cause = prop_oneof![
            Just(Cause::Success),
            Just(Cause::Failure),
            Just(Cause::Interruption)
        ];
        prop_oneof![
            (worker.clone(), range.clone()).prop_map(|(worker, range)| granted(worker, range)),
            (worker.clone(), range.clone())
                .prop_map(|(worker, range)| Record::Note(Note::Released(worker, range))),
            worker.prop_map(|worker| Record::Note(Note::Cut(worker))),
            range.prop_map(|range| Record::Note(Note::Reopened(range))),
            (0_u32..24, 1_u32..4, cause, any::<bool>())
                .prop_map(|(index, attempt, cause, is_final)| ended(index, attempt, cause, is_final)),
        ]
    }

    proptest! {
        #[test]
        fn each_item_is_at_one_place_whatever_the_log_says(
            records in proptest::collection::vec(any_record(), 0..80),
        ) {
            let mut items = Items::new(20);
            for record in &records {
                let before = items.clone();
                prop_assert_eq!(items.apply(record), items != before, "{:?}", record);
                for index in 0..20 {
                    let holder = items.grants().iter().find(|(_, grant)| grant.contains(index));
                    prop_assert_eq!(items.holders.of(index), holder.map(|(worker, _)| *worker), "item {}", index);
                    let granted = items.grants().values().filter(|grant| grant.contains(index)).count();
                    let waiting = usize::from(items.waiting().contains(index));
                    let done = usize::from(items.done().contains(index));
                    prop_assert_eq!(granted + waiting + done, 1, "item {}", index);
                    prop_assert!(items.attempt(index) >= before.attempt(index));
                    prop_assert!(!items.failed().contains(index) || done == 1);
                }
                prop_assert!(items.grants().values().all(|grant| !grant.is_empty()));
                prop_assert_eq!(items.done().within(20..100).len(), 0);
                prop_assert!(items.old_failures <= items.failed().len());
            }
        }
    }
}
