//! Which objects make up the log of a run, and which of them the next piece is merged with.
//! Pure: it sees names and sizes only.

/// One object of a log: bytes `start..start + size` of the encoded log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    /// Offset of its first byte, which is its name.
    pub(crate) start: u64,
    /// Its size.
    pub(crate) size: u64,
}

impl Segment {
    /// Offset after its last byte.
    pub(crate) const fn end(self) -> u64 {
        self.start + self.size
    }
}

/// Segments are merged up to this size; larger ones come only from larger single pieces.
pub(crate) const MERGED: u64 = 4 * 1024 * 1024;

/// What a listing says about a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The segments that hold the log, in order and without gaps.
    pub(crate) live: Vec<Segment>,
    /// Left by a merge that was interrupted before it cleaned up.
    pub(crate) obsolete: Vec<Segment>,
}

impl Layout {
    /// Sorts a listing. A segment that lies within earlier ones is obsolete; one behind
    /// a gap is left alone and counts only when the gap is filled.
    pub(crate) fn of(mut listed: Vec<Segment>) -> Self {
        listed.sort_unstable();
        let mut layout = Self::default();
        let mut end = 0;
        for segment in listed {
            if segment.start > end {
                break;
            }
            if segment.end() <= end {
                layout.obsolete.push(segment);
            } else {
                end = segment.end();
                layout.live.push(segment);
            }
        }
        layout
    }

    /// The next offset that is wanted.
    pub(crate) fn end(&self) -> u64 {
        self.live.last().map_or(0, |segment| segment.end())
    }

    /// The live segment that holds this offset.
    pub(crate) fn at(&self, offset: u64) -> Option<Segment> {
        let after = self.live.partition_point(|segment| segment.end() <= offset);
        self.live
            .get(after)
            .copied()
            .filter(|segment| segment.start <= offset)
    }

    /// The trailing segments to merge a piece of `added` bytes with: as a binary counter
    /// carries, so that a log in n pieces has about log n objects below [`MERGED`] and
    /// each byte is written again at most log n times.
    pub(crate) fn merge_with(&self, added: u64) -> &[Segment] {
        let mut total = added;
        let mut first = self.live.len();
        for (index, segment) in self.live.iter().enumerate().rev() {
            // Overlapping leftovers of a larger single piece are never read back and merged.
            let adjacent = self
                .live
                .get(index + 1)
                .is_none_or(|next| next.start == segment.end());
            if !adjacent || segment.size > total || segment.size + total > MERGED {
                break;
            }
            total += segment.size;
            first = index;
        }
        &self.live[first..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(start: u64, size: u64) -> Segment {
        Segment { start, size }
    }

    #[test]
    fn what_an_interrupted_merge_left_is_obsolete() {
        let layout = Layout::of(vec![segment(100, 50), segment(0, 150), segment(150, 10)]);
        assert_eq!(layout.live, [segment(0, 150), segment(150, 10)]);
        assert_eq!(layout.obsolete, [segment(100, 50)]);
        assert_eq!(layout.end(), 160);
        assert_eq!(layout.at(149), Some(segment(0, 150)));
        assert_eq!(layout.at(150), Some(segment(150, 10)));
        assert_eq!(layout.at(160), None);
    }

    #[test]
    fn nothing_counts_behind_a_gap() {
        let layout = Layout::of(vec![segment(0, 10), segment(20, 10)]);
        assert_eq!(layout.end(), 10);
    }

    proptest! {
        #[test]
        fn a_slow_logger_makes_few_objects_and_few_bytes_are_written_twice(pieces in proptest::collection::vec(1_u64..2000, 1..600)) {
            let mut live: Vec<Segment> = Vec::new();
            let (mut total, mut written) = (0, 0);
            for size in &pieces {
                let layout = Layout::of(live.clone());
                let merged = layout.merge_with(*size).len();
                let start = layout.merge_with(*size).first().map_or(total, |s| s.start);
                live.truncate(live.len() - merged);
                total += size;
                live.push(segment(start, total - start));
                written += total - start;
            }
            prop_assert!(live.len() <= 24, "{} objects", live.len());
            prop_assert!(written <= total * 24, "{written} of {total}");
            prop_assert_eq!(Layout::of(live).end(), total);
        }
    }
}
