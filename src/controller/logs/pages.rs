//! Pages of the outcomes of a map's items: in the order of their indices, or as they were written.
//!
//! A list of a million items has hundreds of pages. The first one looks through all records of the map's log and notes
//! where the end of each item is; the next ones begin there, and read the bodies of their own items alone.

use std::{
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use skyward_api::for_each::MOST_ITEMS;
use skyward_planner::map::record::{Cause, Note, UnknownNote};
use skyward_store::maps::{Head, Heads, Outcome};

use crate::maps::of_stored;

/// Items of one page, and bytes of what they returned: a page is to come within 50 ms, and one of 4 MiB did not
/// (docs/benchmarks.md).
const PAGE: usize = 4096;
const PAGE_BYTES: u64 = 2 * 1024 * 1024;
/// How long the records of a log are kept for the next page.
const KEPT: Duration = Duration::from_mins(1);

/// Some outcomes, and the last line of their page.
pub(super) struct Page {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) rest: String,
}

/// The record that ends an item: the number of its object, and its own one in there.
type At = Option<(u32, u32)>;

/// The records of a log, without their bodies, and where the end of each item is.
#[derive(Debug)]
pub(super) struct Read {
    records: Vec<Heads>,
    ends: Vec<At>,
}

impl Read {
    /// Looks through these records.
    pub(super) fn of(records: Vec<Heads>) -> Result<Self, String> {
        let mut ends: Vec<At> = Vec::new();
        for (part, object) in (0..).zip(&records) {
            for (number, head) in (0..).zip(object.heads.iter()) {
                match head {
                    Head::Ended(ended, _) if ended.is_final => {
                        of_stored(*ended)?;
                        let index = ended.index as usize;
                        if index as u64 >= MOST_ITEMS {
                            return Err(format!("the log of the map has an item {index}: delete the Task"));
                        }
                        if ends.len() <= index {
                            ends.resize(index + 1, None);
                        }
                        // Of two ends of one item the later attempt is the one that counts.
                        let known = outcome(&records, ends[index]);
                        if known.is_none_or(|known| known.ended.attempt < ended.attempt) {
                            ends[index] = Some((part, number));
                        }
                    }
                    Head::Note(text) => {
                        let note: Note = text.parse().map_err(|error: UnknownNote| error.to_string())?;
                        if let Note::Reopened(range) = note {
                            let end = ends.len().min(range.end as usize);
                            let begin = end.min(range.start as usize);
                            ends[begin..end].fill(None);
                        }
                    }
                    Head::Ended(..) | Head::Leader(_) => {}
                }
            }
        }
        Ok(Self { records, ends })
    }

    /// The records, so that what is known of them is not read again.
    pub(super) fn records(&self) -> &[Heads] {
        &self.records
    }

    /// Whether these are the same records, by their objects, which never change.
    pub(super) fn is_of(&self, records: &[Heads]) -> bool {
        let is_same = |(a, b): (&Heads, &Heads)| a.place == b.place && Arc::ptr_eq(&a.heads, &b.heads);
        self.records.len() == records.len() && self.records.iter().zip(records).all(is_same)
    }

    /// The outcomes of items with these indices, or of failed items among them. An item that runs again has no outcome.
    pub(super) fn by_index(&self, indices: &RangeInclusive<u32>, failed: bool) -> Page {
        let (from, to) = (*indices.start(), *indices.end());
        let within = (to as usize).saturating_add(1);
        let ends = self.ends.iter().take(within).skip(from as usize);
        let wanted = ends
            .filter_map(|end| outcome(&self.records, *end))
            .filter(|outcome| !failed || is_failure(outcome));
        let mut bytes = 0;
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut what_follows = "end";
        for outcome in wanted {
            bytes += u64::from(outcome.body.len());
            if outcomes.len() == PAGE || (bytes > PAGE_BYTES && !outcomes.is_empty()) {
                what_follows = "next";
                break;
            }
            outcomes.push(outcome);
        }
        let last = outcomes.last();
        let after = last.map_or(from, |last| last.ended.index.saturating_add(1));
        let rest = format!("{{\"{what_follows}\":{after}}}");
        Page { outcomes, rest }
    }
}

fn is_failure(outcome: &Outcome) -> bool {
    outcome.ended.cause != Cause::Success.number()
}

fn outcome(records: &[Heads], at: At) -> Option<Outcome> {
    let (part, number) = at?;
    let object = records.get(part as usize)?;
    finished(object, object.heads.get(number as usize)?)
}

/// The outcome that this record of the object tells, if it is final.
fn finished(object: &Heads, head: &Head) -> Option<Outcome> {
    match head {
        Head::Ended(ended, body) if ended.is_final => Some(Outcome {
            ended: *ended,
            place: object.place,
            body: *body,
        }),
        Head::Ended(..) | Head::Leader(_) | Head::Note(_) => None,
    }
}

/// Final outcomes in the order in which they were written, from that write on.
pub(super) fn as_written(records: &[Heads], since: u64, failed: bool) -> Page {
    let mut outcomes = Vec::new();
    let mut bytes = 0;
    for (number, object) in records.iter().enumerate() {
        // An object that was joined holds earlier writes, too.
        let next = records.get(number + 1).map(|next| next.first);
        if next.is_some_and(|next| next <= since) {
            continue;
        }
        if bytes > PAGE_BYTES || outcomes.len() > PAGE {
            let rest = format!("{{\"next\":{}}}", object.first);
            return Page { outcomes, rest };
        }
        for outcome in object.heads.iter().filter_map(|head| finished(object, head)) {
            if is_failure(&outcome) || !failed {
                bytes += u64::from(outcome.body.len());
                outcomes.push(outcome);
            }
        }
    }
    // Without anything new the next page begins where this one did.
    let end = records.last().map_or(since, |last| last.first);
    let rest = format!("{{\"end\":{end}}}");
    Page { outcomes, rest }
}

/// The log that was read last, for a while.
#[derive(Debug, Default)]
pub(super) struct LastRead(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    uid: String,
    read: Arc<Read>,
    at: Instant,
}

impl LastRead {
    /// What was read of this Task's log, if it was the last one.
    pub(super) fn of(&self, uid: &str) -> Option<Arc<Read>> {
        let known = self.0.lock();
        let known = known.as_ref().filter(|known| known.uid == uid)?;
        Some(Arc::clone(&known.read))
    }

    /// Keeps it for a while.
    pub(super) fn keep(self: &Arc<Self>, uid: &str, read: &Arc<Read>) {
        *self.0.lock() = Some(Known {
            uid: uid.to_owned(),
            read: Arc::clone(read),
            at: Instant::now(),
        });
        let last = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            drop(last.0.lock().take_if(|known| known.at.elapsed() >= KEPT));
        });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use skyward_store::maps::{Ended, Record, Writer};

    use super::*;
    use crate::logs::items::tests::{TASK, ended, filled};

    #[tokio::test]
    async fn items_come_by_index_or_as_they_ended_and_the_newest_attempt_counts() {
        let success = |index| ended(index, 1, Cause::Success);
        let writes = [
            vec![success(3), ended(1, 1, Cause::Failure)],
            vec![success(0), Record::Note("reopened 1 2".into()), success(2)],
            vec![
                Record::Note("granted 1-0 1 2".into()),
                ended(1, 2, Cause::Failure),
            ],
        ];
        let (_folder, store) = filled(&writes).await;
        let records = store.map_records(TASK, 0, &[]).await.unwrap();
        let read = Read::of(records.clone()).unwrap();
        let told = |page: Page| {
            let found: Vec<(u32, u32)> = page
                .outcomes
                .iter()
                .map(|outcome| (outcome.ended.index, outcome.ended.attempt))
                .collect();
            (found, page.rest)
        };
        let all = vec![(0, 1), (1, 2), (2, 1), (3, 1)];
        assert_eq!(
            told(read.by_index(&(0..=u32::MAX), false)),
            (all, "{\"end\":4}".to_owned())
        );
        assert_eq!(told(read.by_index(&(2..=u32::MAX), false)).0, [(2, 1), (3, 1)]);
        assert_eq!(
            told(read.by_index(&(0..=u32::MAX), true)),
            (vec![(1, 2)], "{\"end\":2}".to_owned())
        );
        assert_eq!(
            told(read.by_index(&(9..=u32::MAX), false)),
            (vec![], "{\"end\":9}".to_owned())
        );
        let some = read.by_index(&(1..=2), false);
        assert_eq!(told(some), (vec![(1, 2), (2, 1)], "{\"end\":3}".to_owned()));
        let none = read.by_index(&RangeInclusive::new(2, 1), false);
        assert!(none.outcomes.is_empty());
        let as_they_ended = vec![(3, 1), (1, 1), (0, 1), (2, 1), (1, 2)];
        assert_eq!(told(as_written(&records, 0, false)).0, as_they_ended);
        assert_eq!(told(as_written(&records, 4, false)).0, [(1, 2)]);
        let end = as_written(&[], 4, false);
        assert_eq!(end.rest, "{\"end\":4}");
    }

    async fn read(records: &[Record]) -> Result<Read, String> {
        let (_folder, store) = filled(&[records.to_vec()]).await;
        Read::of(store.map_records(TASK, 0, &[]).await.unwrap())
    }

    #[tokio::test]
    async fn a_page_ends_at_its_number_of_items_and_an_item_that_runs_again_is_in_none() {
        let all: Vec<Record> = (0..=PAGE as u32)
            .map(|index| ended(index, 1, Cause::Success))
            .collect();
        let read_all = read(&all).await.unwrap();
        let page = read_all.by_index(&(0..=u32::MAX), false);
        assert_eq!(
            (page.outcomes.len(), page.rest),
            (PAGE, format!("{{\"next\":{PAGE}}}"))
        );
        let page = read_all.by_index(&(PAGE as u32..=u32::MAX), false);
        assert_eq!(
            (page.outcomes.len(), page.rest),
            (1, format!("{{\"end\":{}}}", PAGE + 1))
        );
        let reopened = read(&[
            ended(0, 1, Cause::Failure),
            ended(1, 1, Cause::Failure),
            Record::Note("reopened 1 9".into()),
        ])
        .await
        .unwrap();
        let page = reopened.by_index(&(0..=u32::MAX), true);
        let indices: Vec<u32> = page.outcomes.iter().map(|outcome| outcome.ended.index).collect();
        assert_eq!(indices, [0]);
        let far = read(&[ended(u32::MAX, 1, Cause::Success)]).await;
        assert!(far.is_err(), "no memory is taken for it");
    }

    #[tokio::test]
    async fn a_page_ends_before_its_values_are_too_large_but_has_one_whatever_its_size() {
        let large = |index| {
            let ended = Ended {
                index,
                attempt: 1,
                cause: Cause::Success.number(),
                is_final: true,
            };
            Record::Ended(ended, Bytes::from(vec![b'1'; PAGE_BYTES as usize - 1]))
        };
        let (_folder, store) = filled(&[vec![large(0)], vec![large(1)]]).await;
        let read = Read::of(store.map_records(TASK, 0, &[]).await.unwrap()).unwrap();
        for (index, rest) in [(0, "{\"next\":1}"), (1, "{\"end\":2}")] {
            let page = read.by_index(&(index..=u32::MAX), false);
            assert_eq!((page.outcomes.len(), page.rest.as_str()), (1, rest));
        }
    }

    #[tokio::test]
    async fn a_log_is_looked_through_again_only_when_it_has_another_object() {
        let last = Arc::new(LastRead::default());
        let (_folder, store) = filled(&[vec![ended(0, 1, Cause::Success)]]).await;
        let records = store.map_records(TASK, 0, &[]).await.unwrap();
        last.keep(TASK, &Arc::new(Read::of(records).unwrap()));
        assert!(last.of("another").is_none());
        let known = last.of(TASK).unwrap();
        let records = store.map_records(TASK, 0, known.records()).await.unwrap();
        assert!(known.is_of(&records));
        let (mut log, _) = store.lead_map(TASK, Writer([2; 16]), 2).await.unwrap();
        log.append(&[ended(1, 1, Cause::Success)]).await.unwrap();
        let records = store.map_records(TASK, 0, known.records()).await.unwrap();
        assert!(!known.is_of(&records));
    }
}
