//! Which objects a map's log consists of, and which of them become one. Pure: it sees names and sizes only.

use std::collections::BTreeMap;

/// Neighbours that become one object.
pub(super) const TOGETHER: u64 = 8;
/// The widest object has so many records' objects in it.
const WIDEST: u64 = TOGETHER.pow(6);
/// A joined object is not larger.
pub(super) const MOST_BYTES: u64 = 8 * 1024 * 1024;

/// The numbers of an object of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    /// What one write makes.
    pub(super) const fn single(number: u64) -> Self {
        Self {
            first: number,
            last: number,
        }
    }

    /// How many writes it holds.
    pub(super) const fn width(self) -> u64 {
        self.last - self.first + 1
    }

    pub(super) fn name(self) -> String {
        format!("{:016}-{:016}", self.first, self.last)
    }

    /// The span in that name; `None`: no object of a log has it.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (first, last) = name.split_once('-')?;
        let span = Self {
            first: number(first)?,
            last: number(last)?,
        };
        let known = Self::around(span.first).any(|known| known == span);
        known.then_some(span)
    }

    /// Each span that can hold this number, the widest one first.
    pub(super) fn around(number: u64) -> impl Iterator<Item = Self> {
        let widths = std::iter::successors(Some(WIDEST), |width| {
            Some(width / TOGETHER).filter(|next| *next > 0)
        });
        widths.filter_map(move |width| {
            let first = number / width * width;
            Some(Self {
                first,
                last: first.checked_add(width - 1)?,
            })
        })
    }

    /// The wider one that it is a part of.
    fn wider(self) -> Option<Self> {
        let width = self
            .width()
            .checked_mul(TOGETHER)
            .filter(|width| *width <= WIDEST)?;
        let first = self.first / width * width;
        Some(Self {
            first,
            last: first + (width - 1),
        })
    }
}

fn number(text: &str) -> Option<u64> {
    let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// The objects that hold the log, without objects whose records a wider one holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Sizes by first number.
    live: BTreeMap<u64, (Span, u64)>,
    /// Left by a merge that was interrupted.
    pub(super) obsolete: Vec<(Span, u64)>,
}

impl Layout {
    /// Sorts a listing. Spans are aligned, so one lies in another or beside it.
    pub(super) fn of(mut listed: Vec<(Span, u64)>) -> Self {
        listed.sort_unstable_by_key(|(span, _)| (span.first, u64::MAX - span.last));
        let mut layout = Self::default();
        let mut end = 0;
        for (span, size) in listed {
            if span.first < end {
                layout.obsolete.push((span, size));
            } else {
                end = span.last + 1;
                layout.live.insert(span.first, (span, size));
            }
        }
        layout
    }

    /// Adds an object that was made, or found, and forgets those in it.
    pub(super) fn insert(&mut self, span: Span, size: u64) {
        self.live
            .retain(|first, _| !(span.first..=span.last).contains(first));
        self.live.insert(span.first, (span, size));
    }

    /// Forgets an object that is not there any more.
    pub(super) fn remove(&mut self, span: Span) {
        self.live.remove(&span.first);
    }

    /// The objects, in order.
    pub(super) fn live(&self) -> impl Iterator<Item = (Span, u64)> + '_ {
        self.live.values().copied()
    }

    /// The object that begins with this number.
    pub(super) fn at(&self, number: u64) -> Option<(Span, u64)> {
        self.live.get(&number).copied()
    }

    /// Where the object begins that holds this number; the end: none does.
    pub(super) fn begin(&self, number: u64) -> u64 {
        let before = self.live.range(..=number).next_back();
        before
            .filter(|(_, (span, _))| span.last >= number)
            .map_or_else(|| self.end(), |(first, _)| *first)
    }

    /// The first number that no object holds.
    pub(super) fn first_missing(&self) -> u64 {
        let mut next = 0;
        for (span, _) in self.live() {
            if span.first != next {
                break;
            }
            next = span.last + 1;
        }
        next
    }

    /// The number after the last object.
    pub(super) fn end(&self) -> u64 {
        self.live
            .last_key_value()
            .map_or(0, |(_, (span, _))| span.last + 1)
    }

    /// Neighbours that become one object now, with that object's span. Those for which `stays` are left as they are.
    pub(super) fn to_join(&self, stays: impl Fn(u64) -> bool) -> Option<(Span, Vec<(Span, u64)>)> {
        let mut wider = None;
        let mut parts: Vec<(Span, u64)> = Vec::new();
        for (span, size) in self.live() {
            let here = span.wider();
            let width = parts.first().map(|(part, _)| part.width());
            if here != wider || width.is_some_and(|width| width != span.width()) {
                parts.clear();
                wider = here;
            }
            if stays(span.first) {
                // No object of the wider span can be made without this one.
                parts.clear();
                continue;
            }
            parts.push((span, size));
            let total = parts
                .iter()
                .fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
            if let Some(whole) = here
                && parts.len() as u64 == TOGETHER
                && parts[0].0.first == whole.first
                && total <= MOST_BYTES
            {
                return Some((whole, parts));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(first: u64, last: u64) -> Span {
        Span { first, last }
    }

    #[test]
    fn names_come_back_as_they_went_and_others_are_no_part_of_a_log() {
        for span in [
            span(0, 0),
            span(8, 15),
            span(64, 127),
            Span::single(9_999_999_999),
        ] {
            assert_eq!(Span::parse(&span.name()), Some(span));
        }
        for name in [
            "",
            "0-0",
            "0000000000000001-0000000000000000",
            "0000000000000001-0000000000000008",
            "0000000000000000-0000000000000006",
            "+000000000000000-0000000000000000",
            "0000000000000000-0000000000000000-x",
        ] {
            assert_eq!(Span::parse(name), None, "{name}");
        }
    }

    #[test]
    fn an_object_within_a_wider_one_does_not_count() {
        let listed = vec![
            (span(3, 3), 10),
            (span(0, 7), 80),
            (span(8, 8), 10),
            (span(0, 0), 10),
        ];
        let layout = Layout::of(listed);
        assert_eq!(
            layout.live().collect::<Vec<_>>(),
            [(span(0, 7), 80), (span(8, 8), 10)]
        );
        assert_eq!(layout.obsolete.len(), 2);
        assert_eq!((layout.first_missing(), layout.end()), (9, 9));
        assert_eq!(
            [0, 5, 7, 8, 9, 99].map(|number| layout.begin(number)),
            [0, 0, 0, 8, 9, 9]
        );
        let gap = Layout::of(vec![(span(0, 0), 1), (span(2, 2), 1)]);
        assert_eq!((gap.first_missing(), gap.end()), (1, 3));
    }

    #[test]
    fn the_mark_of_a_leader_is_never_joined_and_objects_do_not_grow_beyond_their_bound() {
        let all = |size: u64| Layout::of((0..16).map(|number| (Span::single(number), size)).collect());
        assert_eq!(all(10).to_join(|_| false).unwrap().0, span(0, 7));
        assert_eq!(all(10).to_join(|first| first == 3).unwrap().0, span(8, 15));
        assert_eq!(all(10).to_join(|first| first == 3 || first == 15), None);
        assert_eq!(all(MOST_BYTES / 8 + 1).to_join(|_| false), None);
        assert!(all(MOST_BYTES / 8).to_join(|_| false).is_some());
    }

    proptest! {
        #[test]
        fn a_log_of_many_small_writes_has_few_objects_that_hold_each_number_once(
            writes in 1_u64..3_000,
            leaders in proptest::collection::btree_set(0_u64..3_000, 0..5),
        ) {
            let mut layout = Layout::default();
            let mut written = 0;
            for number in 0..writes {
                layout.insert(Span::single(number), 100);
                written += 1;
                while let Some((whole, parts)) = layout.to_join(|first| leaders.contains(&first)) {
                    layout.insert(whole, parts.iter().map(|(_, size)| size).sum());
                    written += whole.width();
                }
            }
            let mut next = 0;
            for (span, size) in layout.live() {
                prop_assert_eq!((span.first, size), (next, 100 * span.width()));
                prop_assert_eq!(Span::parse(&span.name()), Some(span));
                prop_assert!(span.width() == 1 || leaders.range(span.first..=span.last).next().is_none());
                next = span.last + 1;
            }
            prop_assert_eq!(next, writes);
            // Beside each mark at most seven of each width stay alone, on both sides.
            let objects = layout.live().count();
            prop_assert!(objects <= 7 * 5 * (1 + 2 * leaders.len()) + leaders.len(), "{objects} objects");
            prop_assert!(written <= writes * 7);
        }
    }
}
