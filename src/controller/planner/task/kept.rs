//! Ranks that have succeeded and do not run again, as the status of their Task has them: pure.

use skyward_api::{MAX_RANKS, TaskStatus};

use crate::task::status::ranges;

/// Ranks of an attempt that the next one does not run again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Which ones, sorted.
    pub ranks: Vec<u32>,
    /// How many ranks the attempt has.
    pub of: u32,
}

impl Kept {
    /// What is on record of a Task that has not ended.
    pub fn recorded(status: &TaskStatus) -> Option<Self> {
        let (_, of) = status.done.split_once('/')?;
        let of = of.parse().ok().filter(|of| *of <= MAX_RANKS)?;
        let ranks = numbers(&status.succeeded_ranks, of)?;
        (!ranks.is_empty()).then_some(Self { ranks, of })
    }

    /// Puts it on record.
    pub fn note(&self, status: &mut TaskStatus) {
        status.succeeded_ranks = ranges(&self.ranks);
        status.done = format!("{}/{}", self.ranks.len(), self.of);
    }
}

/// The numbers of ranges such as `0-3,5`, sorted; `None` where they are not below `of`, or are no ranges.
fn numbers(text: &str, of: u32) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let is_next = numbers.last().is_none_or(|before| *before < first);
        if !is_next || last < first || last >= of {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_no_status_of_ours_says_keeps_nothing() {
        for (done, succeeded) in [
            ("", "0"),
            ("1/4", ""),
            ("1/4", "4"),
            ("1/4", "2-1"),
            ("1/4", "1,1"),
            ("1/4", "3,0"),
            ("1/4", "0-"),
            ("1/4", "all"),
            ("1/many", "0"),
            ("1/4000000000", "0-3999999999"),
        ] {
            let status = TaskStatus {
                done: done.to_owned(),
                succeeded_ranks: succeeded.to_owned(),
                ..TaskStatus::default()
            };
            assert_eq!(Kept::recorded(&status), None, "{done} {succeeded}");
        }
    }

    proptest! {
        #[test]
        fn what_is_put_on_record_is_read_from_it(
            ranks in proptest::collection::btree_set(0_u32..500, 1..200),
        ) {
            let kept = Kept { ranks: ranks.into_iter().collect(), of: 500 };
            let mut status = TaskStatus::default();
            kept.note(&mut status);
            prop_assert!(status.succeeded_ranks.len() <= 4096);
            prop_assert_eq!(Kept::recorded(&status), Some(kept));
        }
    }
}
