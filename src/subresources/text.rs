//! Makes the text that a person reads out of records: joins parts into lines, adds prefixes and
//! times.
//!
//! Used by the aggregated API (plain text) and by `kubectl skyward` (which gets records,
//! so that it can go on exactly after a loss of connection). A line longer than the buffer here
//! is passed on in parts: nothing ever holds a whole line of 1 GiB.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::records::{Gap, Record, Stream};

/// Most bytes of an unfinished line that are held; a longer one is passed on as it comes.
pub const MAX_HELD: usize = 64 * 1024;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Put `[rank] ` in front of each line.
    pub ranks: bool,
    /// Put the time in front of each line.
    pub timestamps: bool,
}

/// Joins records of several runs into lines.
#[derive(Debug, Default)]
pub struct Joiner {
    style: Style,
    /// Stands before the rank, where several Tasks are shown.
    name: String,
    held: BTreeMap<(u32, Stream), Held>,
    /// The rank whose line was begun in the output and not ended yet.
    open: Option<(u32, Stream)>,
}

#[derive(Debug)]
struct Held {
    millis: i64,
    bytes: Vec<u8>,
}

impl Joiner {
    /// A joiner that has seen nothing.
    pub fn new(style: Style) -> Self {
        Self {
            style,
            ..Self::default()
        }
    }

    /// With `[name/rank] ` in front of each line.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self.style.ranks = true;
        self
    }

    fn prefix(&self, rank: u32) -> String {
        match (self.style.ranks, self.name.as_str()) {
            (false, _) => String::new(),
            (true, "") => format!("[{rank}] "),
            (true, name) => format!("[{name}/{rank}] "),
        }
    }

    /// Adds a record of a rank; text that can be written now is appended to `out`.
    pub fn push(&mut self, rank: u32, record: &Record, out: &mut Vec<u8>) {
        let source = (rank, record.stream);
        if self.open == Some(source) {
            out.extend_from_slice(&record.content);
            if record.complete {
                out.push(b'\n');
                self.open = None;
            }
            return;
        }
        if record.complete {
            let held = self.held.remove(&source);
            let millis = held.as_ref().map_or(record.millis, |held| held.millis);
            self.begin(rank, millis, out);
            out.extend_from_slice(&held.map(|held| held.bytes).unwrap_or_default());
            out.extend_from_slice(&record.content);
            out.push(b'\n');
            return;
        }
        let held = self.held.entry(source).or_insert_with(|| Held {
            millis: record.millis,
            bytes: Vec::new(),
        });
        held.bytes.extend_from_slice(&record.content);
        if held.bytes.len() > MAX_HELD {
            self.release(source, out);
        }
    }

    /// Tells that a part of a rank's log is missing: a line of ours says so, and lines that were
    /// begun before the gap do not go on behind it.
    pub fn gap(&mut self, rank: u32, gap: &Gap, out: &mut Vec<u8>) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.release((rank, stream), out);
        }
        self.break_line(out);
        out.extend_from_slice(self.prefix(rank).as_bytes());
        out.extend_from_slice(gap.text().as_bytes());
        out.push(b'\n');
    }

    /// Called when nothing came for a while: shows an unfinished line, if there is only one, since
    /// it may be a prompt or a progress bar.
    pub fn idle(&mut self, out: &mut Vec<u8>) {
        if self.open.is_none() && self.held.len() == 1 {
            let sources: Vec<_> = self.held.keys().copied().collect();
            for source in sources {
                self.release(source, out);
            }
        }
    }

    /// Called when these runs have ended: writes out their unfinished lines.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let sources: Vec<_> = self.held.keys().copied().collect();
        for source in sources {
            self.release(source, out);
        }
        // Bare output stays as it was printed; with anything in front of lines, a line is a line.
        if self.style != Style::default() && self.open.take().is_some() {
            out.push(b'\n');
        }
    }

    /// Ends a line that was begun, so that other text can follow.
    pub fn break_line(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            out.push(b'\n');
        }
    }

    fn release(&mut self, source: (u32, Stream), out: &mut Vec<u8>) {
        if let Some(held) = self.held.remove(&source) {
            self.begin(source.0, held.millis, out);
            out.extend_from_slice(&held.bytes);
            self.open = Some(source);
        }
    }

    fn begin(&mut self, rank: u32, millis: i64, out: &mut Vec<u8>) {
        self.break_line(out);
        out.extend_from_slice(self.prefix(rank).as_bytes());
        if self.style.timestamps {
            let time = Timestamp::from_millisecond(millis).unwrap_or_default();
            out.extend_from_slice(format!("{time:.3} ").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn record(text: &str) -> Record {
        let line = Bytes::from(format!("{text}\n"));
        crate::records::parse(&line, line.len() as u64).unwrap()
    }

    fn joined(style: Style, records: &[(u32, &str)]) -> String {
        let mut joiner = Joiner::new(style);
        let mut out = Vec::new();
        for (rank, text) in records {
            joiner.push(*rank, &record(text), &mut out);
        }
        joiner.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    const BARE: Style = Style {
        ranks: false,
        timestamps: false,
    };
    const RANKS: Style = Style {
        ranks: true,
        timestamps: false,
    };

    #[test]
    fn lines_of_several_tasks_begin_with_its_name_and_rank() {
        let mut joiner = Joiner::new(BARE).named("train");
        let mut out = Vec::new();
        joiner.push(0, &record("1 o F a"), &mut out);
        let gap = Gap {
            start: 0,
            end: 9,
            why: crate::records::Missing::OverLimit,
        };
        joiner.gap(3, &gap, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("[train/0] a\n[train/3] --- "), "{text}");
    }

    #[test]
    fn parts_of_a_line_come_out_as_one_line() {
        assert_eq!(
            joined(BARE, &[(0, "1 o P ab"), (0, "2 o P cd"), (0, "3 o F ef")]),
            "abcdef\n"
        );
    }

    #[test]
    fn the_other_stream_does_not_cut_a_line_that_is_still_held() {
        assert_eq!(
            joined(BARE, &[(0, "1 o P ab"), (0, "2 e F error"), (0, "3 o F cd")]),
            "error\nabcd\n"
        );
    }

    #[test]
    fn a_gap_ends_what_its_rank_had_begun_and_that_of_others_goes_on() {
        let gap = Gap {
            start: 0,
            end: 1000,
            why: crate::records::Missing::OverLimit,
        };
        let mut joiner = Joiner::new(RANKS);
        let mut out = Vec::new();
        joiner.push(0, &record("1 o P half"), &mut out);
        joiner.push(1, &record("1 o P other"), &mut out);
        joiner.gap(0, &gap, &mut out);
        joiner.push(0, &record("2 o F new"), &mut out);
        joiner.push(1, &record("2 o F wise"), &mut out);
        joiner.finish(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "[0] half\n[0] --- 1,000 bytes of this log are missing here: more than the Pool's logs.limit was \
             printed ---\n[0] new\n[1] otherwise\n"
        );
    }

    #[test]
    fn output_without_a_last_newline_stays_without_it() {
        assert_eq!(joined(BARE, &[(0, "1 o F a"), (0, "2 o P b")]), "a\nb");
    }

    #[test]
    fn several_ranks_get_a_prefix_and_whole_lines() {
        assert_eq!(
            joined(
                RANKS,
                &[
                    (0, "1 o F zero"),
                    (1, "1 o P on"),
                    (0, "2 o F zero again"),
                    (1, "2 o P e")
                ]
            ),
            "[0] zero\n[0] zero again\n[1] one\n"
        );
    }

    #[test]
    fn a_line_has_the_time_of_its_beginning() {
        let style = Style {
            ranks: true,
            timestamps: true,
        };
        assert_eq!(
            joined(style, &[(3, "1700000000007 o P a"), (3, "1700000009000 o F b")]),
            "[3] 2023-11-14T22:13:20.007Z ab\n"
        );
    }

    #[test]
    fn an_endless_line_passes_through_and_others_stay_readable() {
        let part = format!("1 o P {}", "x".repeat(16 * 1024));
        let mut joiner = Joiner::new(RANKS);
        let mut written = 0;
        let mut out = Vec::new();
        for round in 0..1000 {
            joiner.push(0, &record(&part), &mut out);
            if round == 500 {
                let before = out.len();
                joiner.push(1, &record("1 o F other"), &mut out);
                assert_eq!(&out[before..], b"\n[1] other\n");
            }
            written += out.len();
            out.clear();
            let held: usize = joiner.held.values().map(|held| held.bytes.len()).sum();
            assert!(held <= MAX_HELD + 16 * 1024);
        }
        assert!(written >= 999 * 16 * 1024);
    }
}
