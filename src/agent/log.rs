//! The encoding of a run's log file: one record for each line, the way container runtimes
//! do it, so that one file holds both streams with their times in the order of arrival.
//!
//! ```text
//! 1763675510123 o F first line
//! 1763675510124 e P the beginning of a long line, or of one that is not at its end yet
//! 1763675510125 v F 0 13 {"loss": 0.5}
//! ```
//!
//! A record is `<Unix milliseconds> <o|e|v> <F|P> <content>\n`. The third stream has what a function
//! yields (see [`Stream::Values`]): it travels, is kept and is bounded as output is, and no reader
//! of output sees it. A reader that does not know a stream leaves its records out. `F` ends a line; after `P` the
//! line goes on in the next record of that stream. The content is the raw output without
//! `\n`, at most [`MAX_CONTENT`] bytes; nothing is assumed about its encoding, and decoding
//! gives back exactly the bytes that were written. Offsets are byte offsets of the encoded
//! file. A file may end in the middle of a record (the machine lost power); readers leave
//! that record out.

use std::io::Write;

/// Longest content of one record.
pub const MAX_CONTENT: usize = 16 * 1024;

/// Most bytes of the JSON of one value that a function yields. A reader holds that many.
pub const MAX_VALUE: usize = 16 * 1024 * 1024;

/// One of the streams of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// What a function yields. A line is `<number> <bytes> <JSON>`: the number of the value, from 0, and
    /// the bytes of its JSON, at most [`MAX_VALUE`].
    Values,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Stdout, Self::Stderr, Self::Values];

    /// Whether it is output of the process, which people read as text.
    pub const fn is_output(self) -> bool {
        !matches!(self, Self::Values)
    }

    /// Its letter in a record.
    pub const fn letter(self) -> u8 {
        match self {
            Self::Stdout => b'o',
            Self::Stderr => b'e',
            Self::Values => b'v',
        }
    }
}

/// Turns bytes as they are read from the pipes into records. The encoder holds back an
/// unfinished line, at most [`MAX_CONTENT`] bytes for each stream, until its end comes or
/// [`Encoder::flush`] is called.
#[derive(Debug, Default)]
pub struct Encoder {
    held: [Vec<u8>; Stream::ALL.len()],
}

impl Encoder {
    /// An encoder that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the records of `bytes` to `out`.
    pub fn push(&mut self, stream: Stream, mut bytes: &[u8], unix_ms: u64, out: &mut Vec<u8>) {
        let held = &mut self.held[stream as usize];
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if held.is_empty() && line.len() <= MAX_CONTENT {
                write_record(out, unix_ms, stream, b'F', line);
            } else {
                hold(held, line, stream, unix_ms, out);
                write_record(out, unix_ms, stream, b'F', held);
                held.clear();
            }
            bytes = rest;
        }
        hold(held, bytes, stream, unix_ms, out);
    }

    /// Whether the beginning of a line is held back.
    pub fn holds_any(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    /// Writes unfinished lines as partial records: a reader may wait for a prompt or a progress
    /// bar, or no more output may come.
    pub fn flush(&mut self, unix_ms: u64, out: &mut Vec<u8>) {
        for stream in Stream::ALL {
            let held = &mut self.held[stream as usize];
            if !held.is_empty() {
                write_record(out, unix_ms, stream, b'P', held);
                held.clear();
            }
        }
    }
}

/// Adds to the unfinished line, writing a partial record each time it would grow too long.
fn hold(held: &mut Vec<u8>, mut bytes: &[u8], stream: Stream, unix_ms: u64, out: &mut Vec<u8>) {
    while held.len() + bytes.len() > MAX_CONTENT {
        let (part, rest) = bytes.split_at(MAX_CONTENT - held.len());
        held.extend_from_slice(part);
        write_record(out, unix_ms, stream, b'P', held);
        held.clear();
        bytes = rest;
    }
    held.extend_from_slice(bytes);
}

fn write_record(out: &mut Vec<u8>, unix_ms: u64, stream: Stream, end: u8, content: &[u8]) {
    write!(out, "{unix_ms} ").expect("writing to a vector cannot fail");
    out.extend_from_slice(&[stream.letter(), b' ', end, b' ']);
    out.extend_from_slice(content);
    out.push(b'\n');
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset of its first byte in the encoded file.
    pub offset: u64,
    /// When it was read from the pipe.
    pub unix_ms: u64,
    /// The stream it came from.
    pub stream: Stream,
    /// Whether the line goes on in the next record of this stream.
    pub partial: bool,
    /// The output itself, without the end of the line.
    pub content: &'a [u8],
}

/// The whole records of a piece of a log file, in order. Lines that are no records are skipped; a
/// record that is cut at the end of the piece is left for the next one.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: u64,
}

/// Reads the records of `bytes`, which start at `offset` of the file.
pub const fn records(bytes: &[u8], offset: u64) -> Records<'_> {
    Records { rest: bytes, offset }
}

impl Records<'_> {
    /// Offset after the last record that was returned: where to read on.
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let end = self.rest.iter().position(|byte| *byte == b'\n')?;
            let (line, rest) = (&self.rest[..end], &self.rest[end + 1..]);
            let offset = self.offset;
            self.rest = rest;
            self.offset += end as u64 + 1;
            if let Some(record) = parse(line, offset) {
                return Some(record);
            }
        }
    }
}

fn parse(line: &[u8], offset: u64) -> Option<Record<'_>> {
    let digits = line.iter().position(|byte| *byte == b' ')?;
    let unix_ms = std::str::from_utf8(&line[..digits]).ok()?.parse().ok()?;
    let [stream, b' ', end, b' ', content @ ..] = &line[digits + 1..] else {
        return None;
    };
    let stream = match stream {
        b'o' => Stream::Stdout,
        b'e' => Stream::Stderr,
        b'v' => Stream::Values,
        _ => return None,
    };
    let partial = match end {
        b'P' => true,
        b'F' => false,
        _ => return None,
    };
    Some(Record {
        offset,
        unix_ms,
        stream,
        partial,
        content,
    })
}

/// What one stream has, or the output of both in the order of arrival, as it was written.
pub fn decode(encoded: &[u8], only: Option<Stream>) -> Vec<u8> {
    let mut output = Vec::with_capacity(encoded.len());
    let is_wanted = |stream: Stream| only.map_or(stream.is_output(), |only| stream == only);
    for record in records(encoded, 0).filter(|record| is_wanted(record.stream)) {
        output.extend_from_slice(record.content);
        if !record.partial {
            output.push(b'\n');
        }
    }
    output
}

/// The last `limit` bytes of the output (decoded).
pub fn tail(encoded: &[u8], limit: usize) -> Vec<u8> {
    let mut tail = Tail::new(limit);
    for record in records(encoded, 0).filter(|record| record.stream.is_output()) {
        tail.push(record.content);
        if !record.partial {
            tail.push(b"\n");
        }
    }
    tail.bytes
}

/// The last bytes of a stream of any length.
#[derive(Clone, Debug)]
pub struct Tail {
    limit: usize,
    bytes: Vec<u8>,
}

impl Tail {
    /// Keeps the last `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
        }
    }

    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.limit)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(self.limit);
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes that it keeps.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(pieces: &[(Stream, Vec<u8>)], flush_every: usize) -> Vec<u8> {
        let mut encoder = Encoder::new();
        let mut out = Vec::new();
        for (index, (stream, bytes)) in pieces.iter().enumerate() {
            encoder.push(*stream, bytes, 1_763_675_510_000 + index as u64, &mut out);
            if flush_every != 0 && index % flush_every == 0 {
                encoder.flush(1_763_675_510_000 + index as u64, &mut out);
            }
        }
        encoder.flush(1_763_675_519_999, &mut out);
        out
    }

    fn joined(pieces: &[(Stream, Vec<u8>)], stream: Stream) -> Vec<u8> {
        pieces
            .iter()
            .filter(|piece| piece.0 == stream)
            .flat_map(|piece| piece.1.clone())
            .collect()
    }

    fn piece() -> impl Strategy<Value = (Stream, Vec<u8>)> {
        let bytes = prop_oneof![
            8 => prop::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n')], 0..200),
            1 => (any::<u8>(), 0_usize..50_000).prop_map(|(byte, count)| vec![byte; count]),
        ];
        (prop::sample::select(Stream::ALL.to_vec()), bytes)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn decoding_gives_back_what_was_written(pieces in prop::collection::vec(piece(), 0..12), flush_every in 0_usize..4) {
            let encoded = encode(&pieces, flush_every);
            for stream in Stream::ALL {
                prop_assert_eq!(decode(&encoded, Some(stream)), joined(&pieces, stream));
            }
            prop_assert!(records(&encoded, 0).all(|record| record.content.len() <= MAX_CONTENT));
        }

        #[test]
        fn a_file_can_be_read_in_pieces_cut_anywhere(pieces in prop::collection::vec(piece(), 0..8), cut in any::<prop::sample::Index>()) {
            let encoded = encode(&pieces, 0);
            let cut = cut.index(encoded.len() + 1);
            let mut first = records(&encoded[..cut], 0);
            let mut seen: Vec<_> = first.by_ref().collect();
            let resume = first.offset();
            seen.extend(records(&encoded[resume as usize..], resume));
            prop_assert_eq!(seen, records(&encoded, 0).collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_bytes_are_never_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(records(&bytes, 0).count() <= bytes.len());
        }

        #[test]
        fn the_tail_is_the_end_of_the_output(pieces in prop::collection::vec(piece(), 0..8), limit in 0_usize..3000) {
            let encoded = encode(&pieces, 1);
            let whole = decode(&encoded, None);
            prop_assert_eq!(tail(&encoded, limit), whole[whole.len().saturating_sub(limit)..].to_vec());
        }
    }

    #[test]
    fn what_a_function_yields_is_no_output() {
        let encoded = b"1 o F a\n2 v F 0 1 7\n3 e F b\n";
        assert_eq!(decode(encoded, None), b"a\nb\n");
        assert_eq!(tail(encoded, 100), b"a\nb\n");
        assert_eq!(decode(encoded, Some(Stream::Values)), b"0 1 7\n");
    }

    #[test]
    fn a_line_that_arrives_in_pieces_is_one_record() {
        let pieces = [
            (Stream::Stdout, b"hel".to_vec()),
            (Stream::Stderr, b"x\n".to_vec()),
            (Stream::Stdout, b"lo\n".to_vec()),
        ];
        let text = String::from_utf8(encode(&pieces, 0)).unwrap();
        assert_eq!(text, "1763675510001 e F x\n1763675510002 o F hello\n");
    }

    #[test]
    fn a_long_line_is_split_and_only_its_last_record_ends_it() {
        let encoded = encode(
            &[(
                Stream::Stdout,
                [vec![b'x'; MAX_CONTENT * 2], b"\n".to_vec()].concat(),
            )],
            0,
        );
        let partial: Vec<bool> = records(&encoded, 0).map(|record| record.partial).collect();
        assert_eq!(partial, [true, false]);
    }
}
