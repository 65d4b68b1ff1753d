//! `…/tasks/NAME/result/items`: how the items of a Task with `forEach` ended, and what they returned, in pages of JSON
//! lines. `…/tasks/NAME/retry`: has items of an ended Task run again. Here are what a user asks for, and the words of the
//! answers; the leader knows the items.
//!
//! Each line of a page is an object `{"index", "attempt", "reason", …, "value"}`. The last one is `{"next": N}`, where the
//! page that follows begins, or `{"end": N}`; without such a line the page is not whole.

use std::{collections::BTreeMap, ops::RangeInclusive};

use skyward_api::Task;

use crate::{
    data::{Chunks, DataError},
    options::number,
    reading::{Reading, describe, phase},
    status::Failure,
};

/// Ranges of indices that one request names.
const RANGES: usize = 256;

/// Which items a page has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// By their indices, those within.
    Index(RangeInclusive<u32>),
    /// As they ended, from that write of the map's log on.
    Log(u64),
}

/// What is asked of the items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemsQuery {
    /// In which order, and from where on.
    pub order: Order,
    /// Only items that failed.
    pub failed: bool,
}

impl ItemsQuery {
    /// Reads the query's pairs. Unknown parameters are ignored, as Kubernetes does: a server of an older version answers
    /// with items behind `to`, too.
    pub fn parse(query: &BTreeMap<String, String>) -> Result<Self, String> {
        let to = query.get("to").map_or(Ok(u32::MAX), |to| number("to", to))?;
        let order = match (query.get("from"), query.get("since")) {
            (Some(_), Some(_)) => return Err("from and since exclude each other".to_owned()),
            (None, Some(since)) => Order::Log(number("since", since)?),
            (Some(from), None) => Order::Index(number("from", from)?..=to),
            (None, None) => Order::Index(0..=to),
        };
        let failed = query.get("failed").is_some_and(|text| text == "true");
        Ok(Self { order, failed })
    }

    /// The query string, without the question mark.
    pub fn query(&self) -> String {
        let order = match &self.order {
            Order::Index(range) => format!("from={}&to={}", range.start(), range.end()),
            Order::Log(since) => format!("since={since}"),
        };
        if self.failed {
            format!("{order}&failed=true")
        } else {
            order
        }
    }
}

/// Which items run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    /// Items that failed.
    Failed,
    /// Those with these indices.
    Indices(Vec<RangeInclusive<u32>>),
}

impl Again {
    /// Reads the query's pairs.
    pub fn parse(query: &BTreeMap<String, String>) -> Result<Self, String> {
        query
            .get("index")
            .map_or(Ok(Self::Failed), |text| indices(text).map(Self::Indices))
    }

    /// The query string, without the question mark.
    pub fn query(&self) -> String {
        match self {
            Self::Failed => "failed=true".to_owned(),
            Self::Indices(ranges) => {
                let ranges: Vec<String> = ranges
                    .iter()
                    .map(|range| format!("{}-{}", range.start(), range.end()))
                    .collect();
                format!("index={}", ranges.join(","))
            }
        }
    }
}

/// The attempt of the Task that has ended, as far as the user has seen: no other one is followed.
pub fn attempt(query: &BTreeMap<String, String>) -> Result<Option<u32>, String> {
    let attempt = query.get("attempt");
    attempt.map(|text| number("attempt", text)).transpose()
}

/// The answer to a request that was sent twice, when the Task has ended once more meanwhile.
pub fn has_run_again(name: &str) -> String {
    format!("Task {name:?} has run again since; nothing was changed\n")
}

/// Indices such as `3,7-9`.
pub fn indices(text: &str) -> Result<Vec<RangeInclusive<u32>>, String> {
    let wrong = |piece: &str| format!("index: {piece:?} is no index and no range; write such as 3,7-9");
    let ranges: Result<Vec<_>, String> = text
        .split(',')
        .map(|piece| {
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            let first: u32 = first.trim().parse().map_err(|_| wrong(piece))?;
            let last: u32 = last.trim().parse().map_err(|_| wrong(piece))?;
            if first > last {
                return Err(wrong(piece));
            }
            Ok(first..=last)
        })
        .collect();
    let ranges = ranges?;
    if ranges.len() > RANGES {
        return Err(format!("index: at most {RANGES} ranges at once"));
    }
    Ok(ranges)
}

fn has_items(name: &str, task: &Task) -> Result<(), Failure> {
    if task.spec.for_each.is_none() {
        return Err(Failure::not_found(format!(
            "Task {name:?} has no items (spec.forEach); `kubectl skyward results {name}` shows how its runs ended"
        )));
    }
    Ok(())
}

/// An index among these that none of so many items has.
pub fn beyond(ranges: &[RangeInclusive<u32>], total: u32) -> Option<u32> {
    ranges.iter().map(|range| *range.end()).find(|end| *end >= total)
}

/// An index that no item has is a mistake: without a word of it, a user would wait for what never runs.
fn are_there(name: &str, again: &Again, total: u32) -> Result<(), String> {
    let Again::Indices(ranges) = again else {
        return Ok(());
    };
    match beyond(ranges, total) {
        Some(end) => Err(format!(
            "index: Task {name:?} has no item {end}, but {total} items, which are numbered from 0; nothing was changed"
        )),
        None => Ok(()),
    }
}

/// A page of items.
pub(crate) async fn open(reading: &Reading, task: &Task, query: &ItemsQuery) -> Result<Chunks, Failure> {
    has_items(&reading.name, task)?;
    let asked = reading.items(&query.query()).await;
    asked.map_err(|error| failure(&reading.name, error))
}

/// Has items run again after that attempt, or the newest one; the answer is a line for the user.
pub(crate) async fn retry(
    reading: &Reading,
    task: &Task,
    again: &Again,
    attempt: Option<u32>,
) -> Result<String, Failure> {
    has_items(&reading.name, task)?;
    if !phase(task).is_finished() {
        return Err(Failure::bad_request(format!(
            "Task {:?} has not ended: it is {}. Items that fail meanwhile run again as spec.retries says; when it has ended, \
             retry runs others again",
            reading.name,
            describe(task)
        )));
    }
    let items = task.status.as_ref().and_then(|status| status.items.as_ref());
    if let Some(items) = items {
        are_there(&reading.name, again, items.total).map_err(Failure::bad_request)?;
    }
    let ended = task.status.as_ref().map_or(0, |status| status.attempt);
    if attempt.is_some_and(|attempt| attempt != ended) {
        return Ok(has_run_again(&reading.name));
    }
    let query = format!("{}&attempt={ended}", again.query());
    let asked = reading.retry(&query).await;
    asked.map_err(|error| failure(&reading.name, error))
}

fn failure(name: &str, error: DataError) -> Failure {
    match error {
        DataError::NotFound => Failure::not_found(format!("nothing is known of the items of Task {name:?}")),
        DataError::Unavailable(text) => Failure::unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &str) -> BTreeMap<String, String> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        query.split('&').map(pair).collect()
    }

    #[test]
    fn what_is_asked_is_read_back() {
        for order in [
            Order::Index(0..=u32::MAX),
            Order::Index(4096..=4099),
            Order::Log(7),
        ] {
            for failed in [false, true] {
                let query = ItemsQuery {
                    order: order.clone(),
                    failed,
                };
                assert_eq!(ItemsQuery::parse(&pairs(&query.query())), Ok(query));
            }
        }
        for again in [Again::Failed, Again::Indices(vec![3..=3, 7..=9])] {
            let query = format!("{}&attempt=3", again.query());
            assert_eq!(attempt(&pairs(&query)), Ok(Some(3)));
            assert_eq!(Again::parse(&pairs(&query)), Ok(again));
        }
        assert_eq!(attempt(&pairs("failed=true")), Ok(None));
        assert!(attempt(&pairs("attempt=x")).is_err());
        assert!(ItemsQuery::parse(&pairs("from=1&since=2")).is_err());
        assert!(ItemsQuery::parse(&pairs("from=-1")).is_err());
        assert!(ItemsQuery::parse(&pairs("from=1&to=x")).is_err());
        let of_older_client = ItemsQuery::parse(&pairs("from=7")).unwrap();
        assert_eq!(of_older_client.order, Order::Index(7..=u32::MAX));
    }

    #[test]
    fn an_index_that_no_item_has_is_told_with_the_number_of_items() {
        let asked = |text: &str, total| are_there("t", &Again::Indices(indices(text).unwrap()), total);
        assert_eq!(asked("0,7-9", 10), Ok(()));
        assert_eq!(are_there("t", &Again::Failed, 0), Ok(()));
        for (text, total, part) in [
            ("3,7-10", 10, "no item 10, but 10 items"),
            ("10-4294967295", 10, "no item 4294967295"),
            ("0", 0, "no item 0, but 0 items"),
        ] {
            let why = asked(text, total).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn indices_are_numbers_and_ranges_and_nothing_else() {
        assert_eq!(indices("3,7-9"), Ok(vec![3..=3, 7..=9]));
        for bad in ["", "a", "3,", "9-7", "-1", "1-2-3", "4294967296"] {
            assert!(indices(bad).unwrap_err().contains("write such as 3,7-9"), "{bad}");
        }
        let many = vec!["1"; RANGES + 1].join(",");
        assert!(indices(&many).is_err());
    }
}
