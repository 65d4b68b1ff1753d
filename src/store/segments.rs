//! Which objects make up the log of a run, and which of them the next piece is merged with.
//! Pure: it sees names and sizes only.

/// Why a part of a log is missing for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// The machine did not keep it: the run printed more than the limit of its log.
    OverLimit,
    /// The part was not stored: there was no room for it.
    NoRoom,
}

impl Missing {
    /// The word for it, in names of objects and for readers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OverLimit => "limit",
            Self::NoRoom => "room",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::OverLimit, Self::NoRoom]
            .into_iter()
            .find(|missing| missing.as_str() == word)
    }
}

/// One object of a log: bytes `start..start + size` of the encoded log, or the note that they
/// are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset of its first byte, with which its name begins.
    pub(crate) start: u64,
    /// Its size, or that of the gap.
    pub(crate) size: u64,
    /// Set for a note about missing bytes.
    pub(crate) missing: Option<Missing>,
}

impl Segment {
    /// Offset after its last byte.
    pub(crate) const fn end(self) -> u64 {
        self.start + self.size
    }

    /// The size of its object: the note of a gap has no content.
    pub(crate) const fn stored(self) -> u64 {
        match self.missing {
            Some(_) => 0,
            None => self.size,
        }
    }

    /// The segment in an object of this name and size; `None`: the object is no part of a log.
    pub(crate) fn parse(name: &str, size: u64) -> Option<Self> {
        let mut parts = name.splitn(3, '-');
        let start: u64 = parts.next()?.parse().ok()?;
        let segment = match (parts.next(), parts.next()) {
            (None, None) => Self {
                start,
                size,
                missing: None,
            },
            (Some(end), Some(word)) => Self {
                start,
                size: end.parse::<u64>().ok()?.checked_sub(start)?,
                missing: Some(Missing::parse(word)?),
            },
            _ => return None,
        };
        let end = start.checked_add(segment.size)?;
        (end <= MAX_OFFSET).then_some(segment)
    }

    /// The name of its object.
    pub(crate) fn name(self) -> String {
        let Self { start, missing, .. } = self;
        match missing {
            None => format!("{start:016}"),
            Some(missing) => format!("{start:016}-{:016}-{}", self.end(), missing.as_str()),
        }
    }
}

/// Largest offset in a log: it fits where numbers are signed, too.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;

/// Segments are merged up to this size; larger ones come only from larger single pieces. A piece of a
/// transfer, 512 KiB, is written twice at most: merging up to 4 MiB took two thirds of the time that
/// storing a value of 10 MB took.
pub(crate) const MERGED: u64 = 1024 * 1024;

/// What a listing says about a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The segments that hold the log, in order; missing parts have segments of their own.
    pub(crate) live: Vec<Segment>,
    /// Segments left by a merge that was interrupted before it cleaned up.
    pub(crate) obsolete: Vec<Segment>,
    /// Notes that something is missing, each with an object of its own.
    pub(crate) gaps: usize,
}

impl Layout {
    /// Sorts a listing. A segment that lies within earlier ones is obsolete; one behind a gap
    /// without a note is left alone and counts only when the gap is filled: a listing that is made
    /// during a merge may lack merged segments.
    pub(crate) fn of(mut listed: Vec<Segment>) -> Self {
        // In order of offsets; bytes come before the note that they are missing.
        listed.sort_unstable_by_key(|segment| (segment.start, segment.missing, segment.size));
        let mut layout = Self::default();
        let mut end = 0;
        for mut segment in listed {
            if segment.start > end {
                break;
            }
            if segment.end() <= end {
                layout.obsolete.push(segment);
                continue;
            }
            layout.gaps += usize::from(segment.missing.is_some());
            if segment.missing.is_some() {
                // Stored bytes are not missing.
                segment.size = segment.end() - end;
                segment.start = end;
            }
            end = segment.end();
            match layout.live.last_mut() {
                Some(last) if last.missing.is_some() && last.missing == segment.missing => {
                    last.size += segment.size;
                }
                _ => layout.live.push(segment),
            }
        }
        layout
    }

    /// The offset at which the next piece must start.
    pub(crate) fn end(&self) -> u64 {
        self.live.last().map_or(0, |segment| segment.end())
    }

    /// Bytes that are stored.
    pub(crate) fn bytes(&self) -> u64 {
        let there = self.live.iter().filter(|segment| segment.missing.is_none());
        // Leftovers overlap, so that the sizes may be more than any log has.
        there.fold(0, |sum: u64, segment| sum.saturating_add(segment.size))
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
            let is_gap = segment.missing.is_some();
            if is_gap || !adjacent || segment.size > total || segment.size + total > MERGED {
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
        Segment {
            start,
            size,
            missing: None,
        }
    }

    fn gap(start: u64, end: u64) -> Segment {
        Segment {
            start,
            size: end - start,
            missing: Some(Missing::OverLimit),
        }
    }

    #[test]
    fn a_gap_that_is_noted_is_passed_over_and_never_merged() {
        let layout = Layout::of(vec![segment(0, 10), gap(10, 50), segment(50, 10)]);
        assert_eq!((layout.end(), layout.bytes(), layout.gaps), (60, 20, 1));
        assert_eq!(layout.at(10), Some(gap(10, 50)));
        assert_eq!(layout.merge_with(1000), [segment(50, 10)]);
        let ends = Layout::of(vec![segment(0, 10), gap(10, 50)]);
        assert_eq!(ends.end(), 50);
        assert_eq!(ends.merge_with(1000), []);
    }

    #[test]
    fn gaps_side_by_side_are_one_and_what_is_there_is_not_missing() {
        let layout = Layout::of(vec![gap(10, 20), segment(0, 10), gap(20, 40)]);
        assert_eq!(layout.live, [segment(0, 10), gap(10, 40)]);
        assert_eq!(layout.gaps, 2);
        let covered = Layout::of(vec![segment(0, 10), gap(10, 40), segment(10, 5)]);
        assert_eq!(covered.live, [segment(0, 10), segment(10, 5), gap(15, 40)]);
        let within = Layout::of(vec![segment(0, 50), gap(10, 40)]);
        assert_eq!(within.obsolete, [gap(10, 40)]);
    }

    #[test]
    fn names_come_back_as_they_went_and_others_are_no_part_of_a_log() {
        for at in [
            segment(0, 7),
            segment(123_456, 7),
            gap(10, 40),
            gap(0, MAX_OFFSET),
        ] {
            let size = if at.missing.is_some() { 0 } else { at.size };
            assert_eq!(Segment::parse(&at.name(), size), Some(at));
        }
        for name in [
            "",
            "x",
            "1-2",
            "1-2-x",
            "2-1-limit",
            "1-9223372036854775808-limit",
            "9223372036854775807",
        ] {
            assert_eq!(Segment::parse(name, 1), None, "{name}");
        }
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
