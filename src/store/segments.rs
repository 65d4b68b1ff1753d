//! Which objects make up the log of a run, and which of them are merged next.
//! Pure: it sees names and sizes only.
//!
//! No object is ever written over, its name says which bytes it holds, and it is deleted only when one other
//! object holds all of them. So whatever two processes do that write one log for a moment, none of its bytes
//! goes. Objects may overlap then; the bytes at an offset are the same in each of them.

use std::cmp::Reverse;

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
/// are missing. Its name is `<start>-<end>`, or `<start>-<end>-<why>` for a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset of its first byte, with which its name begins.
    pub(crate) start: u64,
    /// Its size, or that of the gap.
    pub(crate) size: u64,
    /// Set for a note about missing bytes.
    pub(crate) missing: Option<Missing>,
    /// Set where the name is `<start>` alone: parts of uploads, and logs of versions that wrote over objects.
    pub(crate) old: bool,
}

impl Segment {
    /// These bytes.
    pub(crate) const fn piece(start: u64, size: u64) -> Self {
        Self {
            start,
            size,
            missing: None,
            old: false,
        }
    }

    /// The note that these bytes are missing.
    pub(crate) const fn note(start: u64, end: u64, why: Missing) -> Self {
        Self {
            start,
            size: end - start,
            missing: Some(why),
            old: false,
        }
    }

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
        let ends = parts.next();
        let length = match ends {
            Some(end) => end.parse::<u64>().ok()?.checked_sub(start)?,
            None => size,
        };
        let missing = match parts.next() {
            Some(word) => Some(Missing::parse(word)?),
            None => None,
        };
        // Bytes of another size than their name says were not written by us.
        if missing.is_none() && length != size {
            return None;
        }
        let segment = Self {
            start,
            size: length,
            missing,
            old: ends.is_none(),
        };
        let end = start.checked_add(segment.size)?;
        (end <= MAX_OFFSET).then_some(segment)
    }

    /// The name of its object.
    pub(crate) fn name(self) -> String {
        let Self {
            start, missing, old, ..
        } = self;
        match missing {
            None if old => format!("{start:016}"),
            None => format!("{start:016}-{:016}", self.end()),
            Some(missing) => format!("{start:016}-{:016}-{}", self.end(), missing.as_str()),
        }
    }

    /// Whether all offsets of another one are among its own.
    const fn holds(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }
}

/// Largest offset in a log: it fits where numbers are signed, too.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;

/// Segments are merged up to this size; larger ones come only from larger single pieces.
pub(crate) const MERGED: u64 = 1024 * 1024;
/// So many segments are merged at once: fewer would be written again and again. So pieces of a transfer,
/// which have 512 KiB, are written once.
pub(crate) const TOGETHER: usize = 8;

/// What a listing says about a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The segments that hold the log, each ending behind the one before it; missing parts have segments of
    /// their own. They overlap only where two processes wrote.
    pub(crate) live: Vec<Segment>,
    /// Segments of which one other segment holds all, as a merge leaves them that was interrupted before it
    /// cleaned up.
    pub(crate) obsolete: Vec<Segment>,
    /// Notes that something is missing, each with an object of its own.
    pub(crate) gaps: usize,
}

impl Layout {
    /// Finds the log in a listing: it begins at offset 0, and ends where neither bytes nor a note go on. What is
    /// behind that is left alone and counts only when the log comes to it: a listing that is made during a merge
    /// may lack merged segments.
    pub(crate) fn of(listed: Vec<Segment>) -> Self {
        let (listed, empty): (Vec<_>, Vec<_>) = listed.into_iter().partition(|segment| segment.size > 0);
        let (notes, pieces): (Vec<_>, Vec<_>) =
            listed.into_iter().partition(|segment| segment.missing.is_some());
        let mut layout = Self::default();
        let pieces = layout.largest(pieces);
        let mut notes = layout.largest(notes);
        notes.retain(|note| {
            let before = pieces.partition_point(|piece| piece.start <= note.start);
            let is_needed = before == 0 || !pieces[before - 1].holds(*note);
            if !is_needed {
                layout.obsolete.push(*note);
            }
            is_needed
        });
        let mut end = 0;
        while let Some(next) = following(&pieces, end).or_else(|| following(&notes, end)) {
            if let Some(why) = next.missing {
                layout.gaps += 1;
                match layout.live.last_mut() {
                    // Notes of one reason side by side are one gap.
                    Some(last) if last.missing == next.missing => last.size = next.end() - last.start,
                    // Stored bytes are not missing.
                    _ => layout.live.push(Segment::note(end, next.end(), why)),
                }
            } else {
                layout.live.push(next);
            }
            end = next.end();
        }
        // An empty object holds nothing.
        layout
            .obsolete
            .extend(empty.into_iter().filter(|segment| segment.start <= end));
        layout
    }

    /// The segments that no other one holds, by their offsets; the others are obsolete.
    fn largest(&mut self, mut segments: Vec<Segment>) -> Vec<Segment> {
        segments.sort_unstable_by_key(|segment| {
            (segment.start, Reverse(segment.size), segment.missing, segment.old)
        });
        let mut end = 0;
        segments.retain(|segment| {
            let is_needed = segment.end() > end;
            if is_needed {
                end = segment.end();
            } else {
                self.obsolete.push(*segment);
            }
            is_needed
        });
        segments
    }

    /// The offset at which the next piece must start.
    pub(crate) fn end(&self) -> u64 {
        self.live.last().map_or(0, |segment| segment.end())
    }

    /// Bytes that are stored.
    pub(crate) fn bytes(&self) -> u64 {
        let mut end = 0;
        let mut bytes = 0;
        for segment in &self.live {
            if segment.missing.is_none() {
                bytes += segment.end() - end;
            }
            end = segment.end();
        }
        bytes
    }

    /// The live segment that holds this offset.
    pub(crate) fn at(&self, offset: u64) -> Option<Segment> {
        let after = self.live.partition_point(|segment| segment.end() <= offset);
        self.live
            .get(after)
            .copied()
            .filter(|segment| segment.start <= offset)
    }

    /// Notes a piece that was stored at the end.
    pub(crate) fn push(&mut self, piece: Segment) {
        self.live.push(piece);
    }

    /// The last segments, where there are [`TOGETHER`] of them to merge. The largest of them has at most half of
    /// all their bytes, so that a byte is written again at most as often as [`MERGED`] can be halved.
    pub(crate) fn due(&self) -> &[Segment] {
        let (mut total, mut largest, mut due) = (0, 0, 0);
        let mut joins = self.end();
        for (index, segment) in self.live.iter().rev().enumerate() {
            let is_adjacent = segment.end() == joins;
            if segment.missing.is_some() || !is_adjacent || segment.size.saturating_add(total) > MERGED {
                break;
            }
            joins = segment.start;
            total += segment.size;
            largest = segment.size.max(largest);
            let count = index + 1;
            if count >= TOGETHER && largest * 2 <= total {
                due = count;
            }
        }
        &self.live[self.live.len() - due..]
    }

    /// The last segments are one now.
    pub(crate) fn replace(&mut self, count: usize, whole: Segment) {
        self.live.truncate(self.live.len().saturating_sub(count));
        self.live.push(whole);
    }
}

/// The segment with which a log goes on at an offset: the one that begins there, or the last that holds it. Of these
/// segments each begins and ends behind the one before it.
fn following(segments: &[Segment], at: u64) -> Option<Segment> {
    let behind = segments.partition_point(|segment| segment.start <= at);
    let last = segments.get(behind.checked_sub(1)?)?;
    (at < last.end()).then_some(*last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(start: u64, size: u64) -> Segment {
        Segment::piece(start, size)
    }

    fn old(start: u64, size: u64) -> Segment {
        let old = true;
        Segment {
            old,
            ..segment(start, size)
        }
    }

    fn gap(start: u64, end: u64) -> Segment {
        Segment::note(start, end, Missing::OverLimit)
    }

    /// Pieces of these sizes, one behind the other.
    fn row(sizes: &[u64]) -> Vec<Segment> {
        let mut end = 0;
        let piece = |size: &u64| {
            let piece = segment(end, *size);
            end += size;
            piece
        };
        sizes.iter().map(piece).collect()
    }

    #[test]
    fn a_gap_that_is_noted_is_passed_over_and_never_merged() {
        let layout = Layout::of(vec![segment(0, 10), gap(10, 50), segment(50, 10)]);
        assert_eq!((layout.end(), layout.bytes(), layout.gaps), (60, 20, 1));
        assert_eq!(layout.at(10), Some(gap(10, 50)));
        let mut pieces = row(&[10; TOGETHER]);
        assert_eq!(Layout::of(pieces.clone()).due(), pieces);
        // The second of them is missing now, and too few are left behind it.
        pieces[1] = gap(10, 20);
        assert_eq!(Layout::of(pieces).due(), []);
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
            old(0, 7),
            old(123_456, 7),
            gap(10, 40),
            gap(0, MAX_OFFSET),
        ] {
            let size = if at.missing.is_some() { 0 } else { at.size };
            assert_eq!(Segment::parse(&at.name(), size), Some(at));
        }
        for name in [
            "",
            "x",
            "1-3",
            "3-1",
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
    fn what_is_merged_holds_the_pieces_that_a_crash_left() {
        let left = Layout::of(vec![
            segment(0, 10),
            segment(10, 10),
            segment(0, 20),
            segment(20, 5),
        ]);
        assert_eq!(left.live, [segment(0, 20), segment(20, 5)]);
        assert_eq!(left.obsolete, [segment(0, 10), segment(10, 10)]);
        assert_eq!(left.bytes(), 25);
        // As versions left it that wrote over objects.
        let before = Layout::of(vec![old(0, 20), old(10, 10), segment(20, 5), segment(0, 20)]);
        assert_eq!(before.live, [segment(0, 20), segment(20, 5)]);
        assert_eq!(before.obsolete, [old(0, 20), old(10, 10)]);
        let empty = Layout::of(vec![segment(0, 10), old(10, 0)]);
        assert_eq!((empty.end(), empty.obsolete), (10, vec![old(10, 0)]));
    }

    #[test]
    fn what_two_processes_wrote_is_one_log_of_which_nothing_goes_that_is_needed() {
        // Each merged other pieces, and deleted them.
        let both = [segment(0, 60), segment(40, 60), segment(90, 30)];
        let layout = Layout::of(both.to_vec());
        assert_eq!(
            (layout.live.as_slice(), layout.obsolete.as_slice()),
            (&both[..], &[][..])
        );
        assert_eq!((layout.end(), layout.bytes()), (120, 120));
        assert_eq!(layout.at(59), Some(segment(0, 60)));
        assert_eq!(layout.at(60), Some(segment(40, 60)));
        // One of them is late, and adds what the other has in larger objects.
        for late in [segment(40, 5), segment(50, 50), segment(0, 1)] {
            let layout = Layout::of([both.as_slice(), &[late]].concat());
            assert_eq!(layout.live, both, "{late:?}");
            assert_eq!(layout.obsolete, [late]);
        }
    }

    #[test]
    fn pieces_are_merged_when_there_are_many_and_a_large_one_is_not_written_again_for_small_ones() {
        assert_eq!(Layout::of(row(&[10; TOGETHER - 1])).due(), []);
        let mut sizes = vec![100_000];
        sizes.extend([10; TOGETHER]);
        let layout = Layout::of(row(&sizes));
        assert_eq!(layout.due().len(), TOGETHER);
        assert_eq!(layout.due()[0].start, 100_000);
        assert_eq!(
            Layout::of(row(&[512 * 1024; 20])).due(),
            [],
            "they are large enough"
        );
    }

    #[test]
    fn nothing_counts_behind_a_gap() {
        let layout = Layout::of(vec![segment(0, 10), segment(20, 10)]);
        assert_eq!(layout.end(), 10);
    }

    fn any_segment() -> impl Strategy<Value = Segment> {
        (0_u64..40, 1_u64..20, 0_u8..4).prop_map(|(start, size, kind)| match kind {
            0 => gap(start, start + size),
            1 => old(start, size),
            _ => segment(start, size),
        })
    }

    proptest! {
        #[test]
        fn a_log_has_no_holes_and_what_is_obsolete_is_held_by_one_other_object(
            listed in proptest::collection::vec(any_segment(), 0..20), another in any_segment()
        ) {
            // No two objects have one name.
            let mut unique: Vec<Segment> = Vec::new();
            for segment in listed {
                if !unique.contains(&segment) {
                    unique.push(segment);
                }
            }
            let listed = unique;
            let layout = Layout::of(listed.clone());
            let (mut end, mut bytes) = (0, 0);
            for segment in &layout.live {
                prop_assert!(segment.start <= end && end < segment.end());
                if segment.missing.is_none() {
                    bytes += segment.end() - end;
                }
                end = segment.end();
            }
            prop_assert_eq!((layout.end(), layout.bytes()), (end, bytes));
            for offset in 0..end {
                let at = layout.at(offset);
                prop_assert!(at.is_some_and(|at| at.start <= offset && offset < at.end()));
            }
            let kept: Vec<Segment> = listed.iter().copied().filter(|segment| !layout.obsolete.contains(segment)).collect();
            for gone in &layout.obsolete {
                let holds = |other: &Segment| other.holds(*gone) && (other.missing.is_none() || gone.missing.is_some());
                prop_assert!(kept.iter().any(holds), "{:?}", gone);
            }
            prop_assert_eq!(Layout::of(kept).live, layout.live);
            let more = [listed, vec![another]].concat();
            prop_assert!(Layout::of(more).end() >= end);
        }

        #[test]
        fn a_slow_logger_makes_few_objects_and_few_bytes_are_written_twice(pieces in proptest::collection::vec(1_u64..2000, 1..600)) {
            let mut layout = Layout::default();
            let (mut total, mut written) = (0, 0);
            for size in &pieces {
                layout.push(segment(total, *size));
                total += size;
                written += size;
                let due = layout.due();
                if let [first, .., last] = due {
                    let (count, whole) = (due.len(), segment(first.start, last.end() - first.start));
                    written += whole.size;
                    layout.replace(count, whole);
                }
                // As a listing says it.
                layout = Layout::of(layout.live);
            }
            let live = layout.live;
            prop_assert!(live.len() <= 24, "{} objects", live.len());
            prop_assert!(written <= total * 24, "{written} of {total}");
            prop_assert_eq!(Layout::of(live).end(), total);
        }
    }
}
