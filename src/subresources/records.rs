//! Records of a run's log as they travel: split out of chunks of bytes, with offsets.
//!
//! A log is a sequence of lines `<unix_ms> <o|e> <F|P> <content>` (written by the agent's
//! shim; `skyward-agent`'s `log.rs` describes it). An offset counts bytes of that encoded
//! form, so a client that knows the offset after the last whole record can go on there, at the
//! agent, at the store or in another process, and neither loses nor doubles a line.
//! Empty lines are no records: they keep an idle connection alive and count for nothing.
//!
//! Where a part of a log is missing, a [`Mark`] stands in its place, which counts for nothing
//! either: it says at which offset the log goes on.

use bytes::{Buf, Bytes, BytesMut};
use skyward_agent::log;
pub use skyward_agent::log::{MAX_CONTENT, Stream};

use crate::options::Position;

/// Room for the longest record with its head, cut off by a mark. A longer line means a damaged
/// log.
const MAX_ENCODED: usize = MAX_CONTENT + 64 + MARK_BYTES;
/// Length of the line of a mark, with its newline.
const MARK_BYTES: usize = WORD_BYTES + 2 * (DIGITS + 1) + REASON_BYTES + 1;
const WORD_BYTES: usize = 32;
const DIGITS: usize = 20;
const REASON_BYTES: usize = 8;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the shim read it, Unix time in milliseconds.
    pub millis: i64,
    /// The stream it came from.
    pub stream: Stream,
    /// Whether its line ends here; otherwise the line goes on in this stream's next record.
    pub complete: bool,
    /// Raw bytes without the newline; they need not be UTF-8.
    pub content: Bytes,
    /// The record as it was encoded, with the newline.
    pub encoded: Bytes,
    /// Offset of the first byte after the record.
    pub end: u64,
}

/// Why a part of a log is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The run printed more than the Pool's `logs.limit`.
    OverLimit,
    /// The result store had no room for that part.
    NoRoom,
    /// The leader is of another version, whose word this one does not know.
    Unknown,
}

impl Missing {
    /// Reads the word that the result store and [`frame_gap`] write.
    pub fn from_word(word: &str) -> Self {
        match word {
            "limit" => Self::OverLimit,
            "room" => Self::NoRoom,
            _ => Self::Unknown,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::OverLimit => "limit",
            Self::NoRoom => "room",
            Self::Unknown => "unknown",
        }
    }
}

/// A part of a log that is missing, by the offsets of its first byte and of the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Where it begins.
    pub start: u64,
    /// Where the log goes on.
    pub end: u64,
    /// Why.
    pub why: Missing,
}

impl Gap {
    fn parse<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let (start, end) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self {
            start,
            // No log has a larger offset.
            end: Some(end).filter(|end| i64::try_from(*end).is_ok())?,
            why: Missing::from_word(parts.next()?),
        })
    }

    /// Joins this gap with a later one, for people.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            start: self.start,
            ..later
        }
    }

    /// The line that is shown in the place of the missing part.
    pub fn text(&self) -> String {
        let bytes = grouped(self.end.saturating_sub(self.start));
        let why = match self.why {
            Missing::OverLimit => ": more than the Pool's logs.limit was printed",
            Missing::NoRoom => ": the result store had no room for them",
            Missing::Unknown => "",
        };
        format!("--- {bytes} bytes of this log are missing here{why} ---")
    }
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Marks a gap among the bytes of a log. A reader makes up a word of its own, and only a line that
/// ends with that word is a mark: no output of a run and no message of a machine can be mistaken
/// for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// A new mark with a word that nobody can guess.
    pub fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    /// The mark with the word of a request; `None` if the word is not valid.
    pub fn parse(word: &str) -> Option<Self> {
        let ok = word.len() == WORD_BYTES && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        ok.then(|| Self(word.to_owned()))
    }

    /// The word, for a request.
    pub fn word(&self) -> &str {
        &self.0
    }

    /// The line that stands in the place of a gap; `why` is a word of [`Missing`].
    pub fn line(&self, start: u64, end: u64, why: &str) -> Bytes {
        Bytes::from(format!("{}{start:020} {end:020} {why:<8.8}\n", self.0))
    }

    /// The gap that a line announces at its end. The line may begin with the start of a record
    /// whose rest is missing.
    fn read(&self, line: &[u8]) -> Option<Gap> {
        let at = line.len().checked_sub(MARK_BYTES)?;
        let text = std::str::from_utf8(line.get(at..)?).ok()?.strip_prefix(&self.0)?;
        Gap::parse(text.split_ascii_whitespace())
    }
}

/// The next item of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record(Record),
    /// The next record stands behind a gap.
    Gap(Gap),
}

/// Splits chunks into records.
#[derive(Debug, Default)]
pub struct Decoder {
    mark: Option<Mark>,
    buffer: BytesMut,
    /// Offset of the buffer's first byte.
    offset: u64,
    /// The first, possibly cut, line is to be thrown away.
    seek: bool,
}

impl Decoder {
    /// For chunks that begin at this offset, where a record begins.
    pub fn at(offset: u64) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    /// For chunks that begin anywhere: the bytes before the first newline are skipped.
    pub fn seeking(offset: u64) -> Self {
        Self {
            seek: offset > 0,
            ..Self::at(offset)
        }
    }

    /// Also reads the marks of the request's word.
    #[must_use]
    pub fn with(mut self, mark: Mark) -> Self {
        self.mark = Some(mark);
        self
    }

    /// The connection broke: bytes that were not a whole record are asked for again.
    pub fn reconnect(&mut self) {
        self.buffer.clear();
    }

    /// Adds a chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// Offset after the last whole record: where to go on after a loss of connection.
    pub fn position(&self) -> u64 {
        self.offset
    }

    /// The next whole record, or gap. A damaged line (a torn write on a full disk) is skipped:
    /// one lost line is better than a log that nobody can read.
    pub fn next_item(&mut self) -> Option<Item> {
        loop {
            let Some(length) = self.buffer.iter().position(|byte| *byte == b'\n') else {
                if self.buffer.len() > MAX_ENCODED {
                    // A mark may have begun.
                    let cut = self.buffer.len() - MARK_BYTES;
                    self.buffer.advance(cut);
                    self.offset += cut as u64;
                    self.seek = true;
                }
                return None;
            };
            let line = self.buffer.split_to(length + 1).freeze();
            if let Some(gap) = self.mark.as_ref().and_then(|mark| mark.read(&line)) {
                // Before the mark stands the beginning of a record whose rest is missing.
                let start = self.offset;
                self.seek = false;
                if gap.end > start {
                    self.offset = gap.end;
                    return Some(Item::Gap(Gap { start, ..gap }));
                }
                continue;
            }
            if length == 0 && !self.seek {
                continue;
            }
            self.offset += line.len() as u64;
            if std::mem::take(&mut self.seek) {
                continue;
            }
            if let Some(record) = parse(&line, self.offset) {
                return Some(Item::Record(record));
            }
        }
    }
}

/// One record from its line with the newline; `end` is the offset after it.
pub fn parse(line: &Bytes, end: u64) -> Option<Record> {
    let log::Record {
        offset: _,
        unix_ms,
        stream,
        partial,
        content,
    } = log::records(line, 0).next()?;
    Some(Record {
        millis: i64::try_from(unix_ms).ok()?,
        stream,
        complete: !partial,
        content: line.slice_ref(content),
        encoded: line.clone(),
        end,
    })
}

/// An item of `format=records` of the aggregated API: records with their place, for a client that
/// goes on exactly there after a loss of connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A record of one run.
    Record {
        /// The attempt.
        attempt: u32,
        /// The rank.
        rank: u32,
        /// The record.
        record: Record,
    },
    /// The following records are of this attempt, with the number of its runs that are sent.
    Attempt {
        /// The attempt.
        attempt: u32,
        /// Runs that are sent.
        runs: u32,
    },
    /// The next record of this rank stands at that offset or after it: earlier records were left
    /// out, as the client asked.
    Position(Position),
    /// The next record of this rank stands behind a gap.
    Gap {
        /// The attempt.
        attempt: u32,
        /// The rank.
        rank: u32,
        /// The missing part.
        gap: Gap,
    },
    /// Something the server says about the log, for standard error.
    Notice(String),
    /// The answer ends here although there may be more: the client asks for the rest.
    More,
}

/// The line of [`Framed::More`].
pub const MORE: &[u8] = b"+\n";

/// Writes a record as [`Framed`] reads it.
pub fn frame(out: &mut Vec<u8>, attempt: u32, rank: u32, record: &Record) {
    out.extend_from_slice(format!("{attempt} {rank} {} ", record.end).as_bytes());
    out.extend_from_slice(&record.encoded);
}

/// Writes the head of an attempt as [`Framed`] reads it.
pub fn frame_attempt(out: &mut Vec<u8>, attempt: u32, runs: u32) {
    out.extend_from_slice(format!("# {attempt} {runs}\n").as_bytes());
}

/// Writes a position as [`Framed`] reads it.
pub fn frame_position(out: &mut Vec<u8>, attempt: u32, rank: u32, offset: u64) {
    out.extend_from_slice(format!("@ {attempt} {rank} {offset}\n").as_bytes());
}

/// Writes a gap as [`Framed`] reads it.
pub fn frame_gap(out: &mut Vec<u8>, attempt: u32, rank: u32, gap: &Gap) {
    let Gap { start, end, why } = gap;
    out.extend_from_slice(format!("~ {attempt} {rank} {start} {end} {}\n", why.word()).as_bytes());
}

/// Writes a notice as [`Framed`] reads it.
pub fn frame_notice(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"! ");
    out.extend(text.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte }));
    out.push(b'\n');
}

/// Reads one line (with its newline) of `format=records`; `None` for one that only
/// keeps the connection alive, or that this version does not understand.
pub fn parse_framed(line: &Bytes) -> Option<Framed> {
    if let Some(text) = line.strip_prefix(b"! ") {
        return Some(Framed::Notice(
            String::from_utf8_lossy(text).trim_end().to_owned(),
        ));
    }
    if line == MORE {
        return Some(Framed::More);
    }
    if let Some(text) = line.strip_prefix(b"# ") {
        let (attempt, runs) = std::str::from_utf8(text).ok()?.trim_end().split_once(' ')?;
        return Some(Framed::Attempt {
            attempt: attempt.parse().ok()?,
            runs: runs.parse().ok()?,
        });
    }
    if let Some(text) = line.strip_prefix(b"@ ") {
        let numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        return Position::parse(numbers).map(Framed::Position);
    }
    if let Some(text) = line.strip_prefix(b"~ ") {
        let mut parts = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        return Some(Framed::Gap {
            attempt: parts.next()?.parse().ok()?,
            rank: parts.next()?.parse().ok()?,
            gap: Gap::parse(parts)?,
        });
    }
    let mut at = 0;
    let mut number = || -> Option<u64> {
        let length = line[at..].iter().position(|byte| *byte == b' ')?;
        let value = std::str::from_utf8(&line[at..at + length]).ok()?.parse().ok()?;
        at += length + 1;
        Some(value)
    };
    let attempt = u32::try_from(number()?).ok()?;
    let rank = u32::try_from(number()?).ok()?;
    let end = number()?;
    Some(Framed::Record {
        attempt,
        rank,
        record: parse(&line.slice(at..), end)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(decoder: &mut Decoder) -> Vec<Item> {
        std::iter::from_fn(|| decoder.next_item()).collect()
    }

    fn all(decoder: &mut Decoder) -> Vec<Record> {
        let record = |item| match item {
            Item::Record(record) => record,
            Item::Gap(gap) => panic!("{gap:?}"),
        };
        items(decoder).into_iter().map(record).collect()
    }

    /// A decoder's items: contents, and gaps by their offsets.
    fn told(decoder: &mut Decoder) -> Vec<(u64, String)> {
        let told = |item| match item {
            Item::Record(record) => (record.end, String::from_utf8_lossy(&record.content).into_owned()),
            Item::Gap(Gap { start, end, why }) => (end, format!("{start} {why:?}")),
        };
        items(decoder).into_iter().map(told).collect()
    }

    #[test]
    fn behind_a_gap_the_next_record_is_read_and_half_of_one_before_it_is_dropped() {
        let mark = Mark::random();
        let mut decoder = Decoder::at(0).with(mark.clone());
        decoder.push(b"1 o F a\n2 o F cut he");
        decoder.push(&mark.line(21, 5000, "limit"));
        decoder.push(b"3 o F b\n");
        let expected = [(8, "a"), (5000, "8 OverLimit"), (5008, "b")].map(|(end, text)| (end, text.into()));
        assert_eq!(told(&mut decoder), expected);
        assert_eq!(decoder.position(), 5008);
        // A reader that begins within the gap.
        let mut decoder = Decoder::seeking(700).with(mark.clone());
        decoder.push(&mark.line(700, 5000, "room"));
        decoder.push(b"3 o F b\n");
        let expected = [(5000, "700 NoRoom"), (5008, "b")].map(|(end, text)| (end, text.into()));
        assert_eq!(told(&mut decoder), expected);
    }

    #[test]
    fn what_a_log_says_is_never_taken_for_a_gap() {
        let forged = Mark::random().line(8, 1 << 40, "limit");
        let mut decoder = Decoder::at(0).with(Mark::random());
        decoder.push(b"1 o F a\n");
        decoder.push(&forged);
        decoder.push(b"2 o F b\n");
        let at = 16 + forged.len() as u64;
        assert_eq!(told(&mut decoder), [(8, "a".into()), (at, "b".into())]);
        for word in ["", "x", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(Mark::parse(word), None, "{word}");
        }
        let mark = Mark::random();
        assert_eq!(Mark::parse(mark.word()), Some(mark));
    }

    #[test]
    fn a_gap_behind_a_line_without_end_is_found_wherever_the_chunks_are_cut() {
        let mark = Mark::random();
        let line = mark.line(0, 1 << 40, "limit");
        for cut in 0..line.len() {
            let mut decoder = Decoder::at(0).with(mark.clone());
            decoder.push(&vec![b'x'; 2 * MAX_ENCODED]);
            decoder.push(&line[..cut]);
            assert_eq!(decoder.next_item(), None);
            decoder.push(&line[cut..]);
            decoder.push(b"7 o F back\n");
            let told = told(&mut decoder);
            assert_eq!(told[0].0, 1 << 40, "cut at {cut}");
            assert_eq!(told[1], ((1 << 40) + 11, "back".into()));
        }
    }

    #[test]
    fn a_gap_never_leads_back() {
        let mark = Mark::random();
        let mut decoder = Decoder::at(5000).with(mark.clone());
        decoder.push(&mark.line(10, 5000, "limit"));
        decoder.push(&mark.line(10, 20, "limit"));
        decoder.push(b"1 o F a\n");
        assert_eq!(told(&mut decoder), [(5008, "a".into())]);
    }

    #[test]
    fn a_gap_that_ends_behind_the_last_offset_is_none() {
        let mark = Mark::random();
        let mut decoder = Decoder::at(0).with(mark.clone());
        decoder.push(&mark.line(0, u64::MAX, "limit"));
        decoder.push(b"1 o F a\n");
        let at = mark.line(0, 0, "").len() as u64 + 8;
        assert_eq!(told(&mut decoder), [(at, "a".into())]);
    }

    #[test]
    fn a_gap_says_how_much_is_missing_and_why() {
        let gap = |why| Gap {
            start: 100,
            end: 1_234_667,
            why,
        };
        assert_eq!(
            gap(Missing::OverLimit).text(),
            "--- 1,234,567 bytes of this log are missing here: more than the Pool's logs.limit was printed ---"
        );
        assert_eq!(
            gap(Missing::from_word("later")).text(),
            "--- 1,234,567 bytes of this log are missing here ---"
        );
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_000_000, "1,000,000")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_record_has_its_time_stream_and_raw_content() {
        let mut decoder = Decoder::at(100);
        decoder.push(b"1700000000123 e F caf\xe9 au lait \n1700000000124 o P x");
        let records = all(&mut decoder);
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].millis, 1_700_000_000_123);
        assert_eq!(records[0].stream, Stream::Stderr);
        assert_eq!(&records[0].content[..], b"caf\xe9 au lait ");
        assert_eq!(
            decoder.position(),
            records[0].end,
            "the record that is still incomplete is asked for again"
        );
    }

    #[test]
    fn empty_lines_keep_the_connection_and_count_for_nothing() {
        let mut decoder = Decoder::at(0);
        decoder.push(b"\n\n1 o F a\n\n2 o F b\n");
        let ends: Vec<u64> = all(&mut decoder).iter().map(|r| r.end).collect();
        assert_eq!(ends, [8, 16]);
    }

    #[test]
    fn reading_from_the_middle_begins_at_the_next_record() {
        let log = b"1 o F first\n2 o F second\n3 o F third\n";
        let mut decoder = Decoder::seeking(5);
        decoder.push(&log[5..]);
        let contents: Vec<Bytes> = all(&mut decoder).into_iter().map(|r| r.content).collect();
        assert_eq!(contents, ["second", "third"]);
        assert_eq!(decoder.position(), log.len() as u64);
    }

    #[test]
    fn a_damaged_line_is_skipped_and_the_offsets_stay_true() {
        let log = b"1 o F a\nrubbish\n1 o X b\n2 o F c\n";
        let mut decoder = Decoder::at(0);
        decoder.push(log);
        let records = all(&mut decoder);
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].end, log.len() as u64);
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let mut decoder = Decoder::at(0);
        for _ in 0..1000 {
            decoder.push(&[b'x'; 8192]);
            assert!(decoder.next_item().is_none());
            assert!(decoder.buffer.len() <= MAX_ENCODED + 8192);
        }
        decoder.push(b"\n7 o F back\n");
        assert_eq!(all(&mut decoder)[0].content, "back");
    }

    #[test]
    fn framed_lines_come_back_as_they_went() {
        let record = parse(&Bytes::from_static(b"5 e P half\n"), 77).unwrap();
        let mut out = Vec::new();
        frame(&mut out, 2, 13, &record);
        frame_attempt(&mut out, 2, 40);
        frame_position(&mut out, 2, 13, 77);
        let gap = Gap {
            start: 77,
            end: 100,
            why: Missing::NoRoom,
        };
        frame_gap(&mut out, 2, 13, &gap);
        frame_notice(&mut out, "two\nlines");
        let mut lines = out.split_inclusive(|b| *b == b'\n').map(Bytes::copy_from_slice);
        assert_eq!(
            parse_framed(&lines.next().unwrap()),
            Some(Framed::Record {
                attempt: 2,
                rank: 13,
                record
            })
        );
        let head = Framed::Attempt { attempt: 2, runs: 40 };
        assert_eq!(parse_framed(&lines.next().unwrap()), Some(head));
        let position = Framed::Position(Position {
            attempt: 2,
            rank: 13,
            offset: 77,
        });
        assert_eq!(parse_framed(&lines.next().unwrap()), Some(position));
        let gap = Framed::Gap {
            attempt: 2,
            rank: 13,
            gap,
        };
        assert_eq!(parse_framed(&lines.next().unwrap()), Some(gap));
        assert_eq!(
            parse_framed(&lines.next().unwrap()),
            Some(Framed::Notice("two lines".into()))
        );
        assert_eq!(parse_framed(&Bytes::from_static(MORE)), Some(Framed::More));
        assert_eq!(parse_framed(&Bytes::new()), None);
    }

    proptest! {
        /// However the bytes are cut into chunks, and wherever the connection breaks, every
        /// record arrives once.
        #[test]
        fn records_survive_any_cuts_and_breaks(
            lines in proptest::collection::vec((any::<u32>(), any::<bool>(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..30),
            cuts in proptest::collection::vec(1usize..20, 1..50),
            breaks in proptest::collection::vec(any::<bool>(), 1..50),
        ) {
            let mut log = Vec::new();
            let mut want = Vec::new();
            for (millis, error, complete, content) in lines {
                let content: Vec<u8> = content.into_iter().filter(|b| *b != b'\n').collect();
                log.extend_from_slice(format!("{millis} {} {} ", if error { 'e' } else { 'o' }, if complete { 'F' } else { 'P' }).as_bytes());
                log.extend_from_slice(&content);
                log.push(b'\n');
                want.push(Bytes::from(content));
            }
            let mut got = Vec::new();
            let mut decoder = Decoder::at(0);
            let mut at = 0;
            let mut step = 0;
            while at < log.len() {
                let end = (at + cuts[step % cuts.len()]).min(log.len());
                decoder.push(&log[at..end]);
                at = end;
                got.extend(all(&mut decoder).into_iter().map(|r| r.content));
                step += 1;
                // The connection breaks (at most so often that it gets on in between).
                if breaks[step % breaks.len()] && step % 7 == 0 && step < 500 {
                    at = decoder.position() as usize;
                    decoder = Decoder::at(decoder.position());
                }
            }
            prop_assert_eq!(got, want);
        }
    }
}
