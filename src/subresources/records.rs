//! Records of a run's log as they travel: split out of chunks of bytes, with offsets.
//!
//! A log is a sequence of lines `<unix_ms> <o|e> <F|P> <content>` (written by the agent's
//! shim; `skyward-agent`'s `log.rs` describes it). An offset counts bytes of that encoded
//! form, so whoever knows the offset after the last whole record can go on there, at the
//! agent, at the store or in another process, and neither loses nor doubles a line.
//! Empty lines are no records: they keep an idle connection alive and count for nothing.

use bytes::{Bytes, BytesMut};
use skyward_agent::log;
pub use skyward_agent::log::{MAX_CONTENT, Stream};

/// Room for the longest record with its head. A longer line means a damaged log.
const MAX_ENCODED: usize = MAX_CONTENT + 64;

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

/// Splits chunks into records.
#[derive(Debug)]
pub struct Decoder {
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
            buffer: BytesMut::new(),
            offset,
            seek: false,
        }
    }

    /// For chunks that begin anywhere: what stands before the next newline is skipped.
    pub fn seeking(offset: u64) -> Self {
        Self {
            buffer: BytesMut::new(),
            offset,
            seek: offset > 0,
        }
    }

    /// The connection broke: what was not a whole record is asked for again.
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

    /// The next whole record. A damaged line (a torn write on a full disk) is skipped:
    /// one lost line is better than a log that nobody can read.
    pub fn next_record(&mut self) -> Option<Record> {
        loop {
            let Some(length) = self.buffer.iter().position(|byte| *byte == b'\n') else {
                if self.buffer.len() > MAX_ENCODED {
                    self.offset += self.buffer.len() as u64;
                    self.buffer.clear();
                    self.seek = true;
                }
                return None;
            };
            let line = self.buffer.split_to(length + 1).freeze();
            if length == 0 && !self.seek {
                continue;
            }
            self.offset += line.len() as u64;
            if std::mem::take(&mut self.seek) {
                continue;
            }
            if let Some(record) = parse(&line, self.offset) {
                return Some(record);
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

/// What the aggregated API sends with `format=records`: records with their place, for a
/// client that wants to go on exactly there after a loss of connection.
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
    /// What follows is of this attempt, which has so many runs (or so many were asked for).
    Attempt {
        /// The attempt.
        attempt: u32,
        /// Runs that are sent.
        runs: u32,
    },
    /// The next record of this rank stands at that offset or after it: what is before was
    /// left out as asked.
    Position {
        /// The attempt.
        attempt: u32,
        /// The rank.
        rank: u32,
        /// Where to go on.
        offset: u64,
    },
    /// Something the server says about the log, for standard error.
    Notice(String),
}

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
    if let Some(text) = line.strip_prefix(b"# ") {
        let (attempt, runs) = std::str::from_utf8(text).ok()?.trim_end().split_once(' ')?;
        return Some(Framed::Attempt {
            attempt: attempt.parse().ok()?,
            runs: runs.parse().ok()?,
        });
    }
    if let Some(text) = line.strip_prefix(b"@ ") {
        let mut numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        return Some(Framed::Position {
            attempt: numbers.next()?.parse().ok()?,
            rank: numbers.next()?.parse().ok()?,
            offset: numbers.next()?.parse().ok()?,
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

    fn all(decoder: &mut Decoder) -> Vec<Record> {
        std::iter::from_fn(|| decoder.next_record()).collect()
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
            assert!(decoder.next_record().is_none());
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
        let position = Framed::Position {
            attempt: 2,
            rank: 13,
            offset: 77,
        };
        assert_eq!(parse_framed(&lines.next().unwrap()), Some(position));
        assert_eq!(
            parse_framed(&lines.next().unwrap()),
            Some(Framed::Notice("two lines".into()))
        );
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
