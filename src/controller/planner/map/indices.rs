//! A set of items as ranges of their indices: a map of a million items that end about in order takes a few ranges.

use std::{collections::BTreeMap, ops::Range};

/// The number of an item, from 0.
pub type Index = u32;

/// Most bytes of the indices of failed items in a status.
pub const SHOWN_BYTES: usize = 4096;

/// The range of one item.
pub const fn one(index: Index) -> Range<Index> {
    index..index + 1
}

/// Some items of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indices {
    /// The first index of each range, and the one after its last. No two ranges touch.
    ranges: BTreeMap<Index, Index>,
    len: u32,
}

impl Indices {
    /// The items of a range.
    pub fn of(range: Range<Index>) -> Self {
        let mut set = Self::default();
        set.insert(range);
        set
    }

    /// How many.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The lowest index.
    pub fn first(&self) -> Option<Index> {
        self.ranges.first_key_value().map(|(start, _)| *start)
    }

    /// Whether an item is among them.
    pub fn contains(&self, index: Index) -> bool {
        self.ranges
            .range(..=index)
            .next_back()
            .is_some_and(|(_, end)| index < *end)
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = Range<Index>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range and answers how many items of it are new.
    pub fn insert(&mut self, range: Range<Index>) -> u32 {
        if range.is_empty() {
            return 0;
        }
        // A range that only touches it is joined too.
        let first = self.begin(range.start, |end| end >= range.start);
        let touched: Vec<(Index, Index)> = self
            .ranges
            .range(first..=range.end)
            .map(|(start, end)| (*start, *end))
            .collect();
        let (mut joined, mut known) = (range, 0);
        for (start, end) in touched {
            self.ranges.remove(&start);
            known += end - start;
            joined = joined.start.min(start)..joined.end.max(end);
        }
        let added = joined.end - joined.start - known;
        self.ranges.insert(joined.start, joined.end);
        self.len += added;
        added
    }

    /// Removes a range and answers how many items of it were there.
    pub fn remove(&mut self, range: Range<Index>) -> u32 {
        if range.is_empty() {
            return 0;
        }
        let first = self.begin(range.start, |end| end > range.start);
        let cut: Vec<(Index, Index)> = self
            .ranges
            .range(first..range.end)
            .map(|(start, end)| (*start, *end))
            .collect();
        let mut removed = 0;
        for (start, end) in cut {
            self.ranges.remove(&start);
            if start < range.start {
                self.ranges.insert(start, range.start);
            }
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
            removed += end.min(range.end) - start.max(range.start);
        }
        self.len -= removed;
        removed
    }

    /// Adds all of another set.
    pub fn insert_all(&mut self, other: &Self) {
        for range in other.ranges() {
            self.insert(range);
        }
    }

    /// Removes all of another set.
    pub fn remove_all(&mut self, other: &Self) {
        for range in other.ranges() {
            self.remove(range);
        }
    }

    /// Which of them lie in a range.
    #[must_use]
    pub fn within(&self, range: Range<Index>) -> Self {
        let mut found = Self::default();
        if range.is_empty() {
            return found;
        }
        let first = self.begin(range.start, |end| end > range.start);
        for (start, end) in self.ranges.range(first..range.end) {
            found.insert((*start).max(range.start)..(*end).min(range.end));
        }
        found
    }

    /// The lowest ones, so many at most.
    #[must_use]
    pub fn front(&self, most: u32) -> Self {
        let mut found = Self::default();
        for range in self.ranges() {
            let room = most - found.len();
            if room == 0 {
                break;
            }
            found.insert(range.start..range.end.min(range.start.saturating_add(room)));
        }
        found
    }

    /// The lowest ones from `start` on that are not among the others, so many at most.
    #[must_use]
    pub fn front_without(&self, start: Index, others: &Self, most: u32) -> Self {
        let mut found = Self::default();
        let first = self.begin(start, |end| end > start);
        for (from, to) in self.ranges.range(first..) {
            let mut at = (*from).max(start);
            while at < *to && found.len() < most {
                let within = others.ranges.range(..=at).next_back();
                if let Some((_, end)) = within.filter(|(_, end)| at < **end) {
                    at = *end;
                    continue;
                }
                let gap = others.ranges.range(at..*to).next().map_or(*to, |(next, _)| *next);
                let end = gap.min(at.saturating_add(most - found.len()));
                found.insert(at..end);
                at = end;
            }
            if found.len() == most {
                break;
            }
        }
        found
    }

    /// The highest ones, so many at most.
    #[must_use]
    pub fn back(&self, most: u32) -> Self {
        let mut found = Self::default();
        for range in self.ranges().rev() {
            let room = most - found.len();
            if room == 0 {
                break;
            }
            found.insert(range.start.max(range.end.saturating_sub(room))..range.end);
        }
        found
    }

    /// The set as text for people, such as `0-4,7`, in at most `most` bytes: where it does not fit, the last words
    /// say how many more there are. `most` has room for these words.
    pub fn describe(&self, most: usize) -> String {
        let more = |count: u32| match count {
            0 => String::new(),
            count => format!(" +{count} more"),
        };
        let (mut text, mut left) = (String::new(), self.len);
        for range in self.ranges() {
            let comma = if text.is_empty() { "" } else { "," };
            let (start, last) = (range.start, range.end - 1);
            let piece = if start == last {
                format!("{comma}{start}")
            } else {
                format!("{comma}{start}-{last}")
            };
            let after = left - (range.end - start);
            if text.len() + piece.len() + more(after).len() > most {
                break;
            }
            text.push_str(&piece);
            left = after;
        }
        text.push_str(&more(left));
        text.trim_start().to_owned()
    }

    /// Where to begin looking at ranges: the one before `start`, if its end says that it matters.
    fn begin(&self, start: Index, matters: impl Fn(Index) -> bool) -> Index {
        let before = self.ranges.range(..=start).next_back();
        before
            .filter(|(_, end)| matters(**end))
            .map_or(start, |(first, _)| *first)
    }
}

impl FromIterator<Range<Index>> for Indices {
    fn from_iter<I: IntoIterator<Item = Range<Index>>>(ranges: I) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn items(set: &Indices) -> BTreeSet<Index> {
        set.ranges().flatten().collect()
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_set_holds(
            changes in proptest::collection::vec((any::<bool>(), 0_u32..60, 0_u32..12), 1..60),
            look in (0_u32..60, 0_u32..20),
            most in 0_u32..40,
        ) {
            let (mut set, mut plain) = (Indices::default(), BTreeSet::new());
            for (add, start, length) in changes {
                let before = plain.len();
                let range = start..start + length;
                let changed = if add {
                    plain.extend(range.clone());
                    set.insert(range)
                } else {
                    plain.retain(|index| !range.contains(index));
                    set.remove(range)
                };
                prop_assert_eq!(changed as usize, plain.len().abs_diff(before));
                prop_assert_eq!(set.len() as usize, plain.len());
                prop_assert_eq!(&items(&set), &plain);
                let ranges: Vec<_> = set.ranges().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            }
            let range = look.0..look.0 + look.1;
            let within: BTreeSet<Index> = plain.range(range.clone()).copied().collect();
            prop_assert_eq!(items(&set.within(range)), within);
            let front: BTreeSet<Index> = plain.iter().take(most as usize).copied().collect();
            prop_assert_eq!(items(&set.front(most)), front);
            let back: BTreeSet<Index> = plain.iter().rev().take(most as usize).copied().collect();
            prop_assert_eq!(items(&set.back(most)), back);
            let others: Indices = [look.0..look.0 + look.1, 3..5, 30..31].into_iter().collect();
            let free = plain.range(look.1..).filter(|index| !others.contains(**index));
            let free: BTreeSet<Index> = free.take(most as usize).copied().collect();
            prop_assert_eq!(items(&set.front_without(look.1, &others, most)), free);
            for index in 0..80 {
                prop_assert_eq!(set.contains(index), plain.contains(&index));
            }
        }

        #[test]
        fn text_of_any_set_keeps_its_bound_and_counts_what_it_leaves_out(
            starts in proptest::collection::btree_set(0_u32..1_000_000, 0..200),
            most in 32_usize..200,
        ) {
            let set: Indices = starts.iter().map(|start| one(*start)).collect();
            let text = set.describe(most);
            prop_assert!(text.len() <= most, "{text}");
            let (told, more) = text.split_once('+').unwrap_or((&text, "0 more"));
            let told: u32 = told
                .trim()
                .split(',')
                .filter(|piece| !piece.is_empty())
                .map(|piece| match piece.split_once('-') {
                    Some((start, last)) => last.parse::<u32>().unwrap() - start.parse::<u32>().unwrap() + 1,
                    None => 1,
                })
                .sum();
            let more: u32 = more.trim_end_matches(" more").parse().unwrap();
            prop_assert_eq!(told + more, set.len());
        }
    }

    #[test]
    fn text_of_a_set_is_its_ranges() {
        let set: Indices = [0..5, 7..8, 9..13].into_iter().collect();
        assert_eq!(set.describe(SHOWN_BYTES), "0-4,7,9-12");
        let set: Indices = [0..5, 7..8, 9..13, 20..30, 40..50].into_iter().collect();
        assert_eq!(set.describe(20), "0-4,7,9-12 +20 more");
        assert_eq!(Indices::default().describe(SHOWN_BYTES), "");
        let alternating: Indices = (0..1_000_000).step_by(2).map(one).collect();
        let text = alternating.describe(SHOWN_BYTES);
        assert!(
            text.len() <= SHOWN_BYTES && text.ends_with(" more"),
            "{}",
            text.len()
        );
    }
}
