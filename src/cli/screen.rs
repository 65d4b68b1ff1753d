//! Prints logs line by line, and keeps where each ends, so that a new connection goes on there.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, Write},
    rc::Rc,
};

use bytes::Bytes;
use skyward_subresources::{
    options::Position,
    records::{Framed, parse_framed},
    text::{Joiner, Style},
};

use crate::{complain, yielded::Yielded};

/// Standard output, and the number of the log that has begun a line there and not ended it.
#[derive(Clone, Default)]
pub(crate) struct Paper(Rc<Cell<Option<usize>>>);

/// One of the logs on that screen.
pub(crate) struct Sheet {
    pub(crate) paper: Paper,
    pub(crate) number: usize,
    /// Prefix of each line where there are several logs.
    pub(crate) name: Option<String>,
}

impl Sheet {
    /// Stands in front of each line of ours.
    pub(crate) fn prefix(&self) -> String {
        let name = self.name.as_ref().map(|name| format!("[{name}] "));
        name.unwrap_or_default()
    }
    pub(crate) fn print(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.ink(bytes).as_slice())?;
        out.flush()
    }

    /// The bytes to write, so that no two lines become one.
    fn ink(&self, bytes: &[u8]) -> Vec<u8> {
        let Some(last) = bytes.last() else {
            return Vec::new();
        };
        let others = self.paper.0.get().is_some_and(|number| number != self.number);
        let mut ink = if others { b"\n".to_vec() } else { Vec::new() };
        ink.extend_from_slice(bytes);
        self.paper.0.set((*last != b'\n').then_some(self.number));
        ink
    }
}

/// What a line of the stream is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A record of the log, or a missing part of it.
    Log,
    /// The answer is not whole: the rest is to be asked for.
    TheRest,
    /// Anything else.
    Other,
}

/// The state of the output, and how to go on.
pub(crate) struct Screen {
    sheet: Sheet,
    timestamps: bool,
    /// The only rank that is asked for.
    only: Option<u32>,
    /// Whether only the last lines were requested, so that the server chooses where the attempt
    /// begins.
    tail: bool,
    /// Attempt that is printed; 0 = none yet.
    pub(crate) attempt: u32,
    /// Runs of it that are sent.
    runs: u32,
    joiner: Joiner,
    /// Set where values are printed, and no output.
    yielded: Option<Yielded>,
    /// Next offset of each rank.
    offsets: BTreeMap<u32, u64>,
    /// Something was added since the last look for an unfinished line.
    unfinished: bool,
    buffer: Vec<u8>,
}

impl Screen {
    pub(crate) fn new(timestamps: bool, only: Option<u32>, tail: bool, sheet: Sheet) -> Self {
        Self {
            sheet,
            timestamps,
            only,
            tail,
            attempt: 0,
            runs: 0,
            joiner: Joiner::default(),
            yielded: None,
            offsets: BTreeMap::new(),
            unfinished: false,
            buffer: Vec::new(),
        }
    }

    /// The same for what functions yield.
    pub(crate) fn of_values(mut self, yielded: Yielded) -> Self {
        self.yielded = Some(yielded);
        self
    }

    /// What functions have yielded, where values are printed.
    pub(crate) fn yielded(&mut self) -> Option<&mut Yielded> {
        self.yielded.as_mut()
    }

    pub(crate) fn waiting(&self) -> bool {
        self.attempt == 0
    }

    /// Whether something was added since the last look for an unfinished line.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Whether the next offset of each rank is known.
    pub(crate) fn knows_all(&self) -> bool {
        self.attempt > 0 && self.ranks().all(|rank| self.offsets.contains_key(&rank))
    }

    pub(crate) fn ranks(&self) -> impl Iterator<Item = u32> + use<> {
        let (first, last) = self
            .only
            .map_or((0, self.runs), |rank| (rank, rank.saturating_add(1)));
        first..last
    }

    pub(crate) fn positions(&self) -> Vec<Position> {
        let attempt = self.attempt;
        self.offsets
            .iter()
            .map(|(&rank, &offset)| Position {
                attempt,
                rank,
                offset,
            })
            .collect()
    }

    /// Takes one line of the stream.
    pub(crate) fn line(&mut self, line: &Bytes) -> io::Result<About> {
        match parse_framed(line) {
            None => return Ok(About::Other),
            Some(Framed::More) => return Ok(About::TheRest),
            Some(Framed::Notice(text)) => {
                self.joiner.break_line(&mut self.buffer);
                self.print()?;
                complain(&text);
                return Ok(About::Other);
            }
            Some(Framed::Attempt { attempt, runs }) => {
                if attempt != self.attempt {
                    self.joiner.finish(&mut self.buffer);
                    self.joiner.break_line(&mut self.buffer);
                    self.print()?;
                    if self.attempt > 0 {
                        complain(&format!("{}--- attempt {attempt} ---", self.sheet.prefix()));
                        self.tail = false;
                    }
                    let style = Style {
                        ranks: runs > 1,
                        timestamps: self.timestamps,
                    };
                    self.joiner = Joiner::new(style);
                    if let Some(name) = &self.sheet.name {
                        self.joiner = std::mem::take(&mut self.joiner).named(name);
                    }
                    if let Some(yielded) = &mut self.yielded {
                        yielded.begin(attempt);
                    }
                    self.attempt = attempt;
                    self.offsets.clear();
                }
                self.runs = runs;
                if !self.tail {
                    for rank in self.ranks() {
                        self.offsets.entry(rank).or_default();
                    }
                }
                return Ok(About::Other);
            }
            Some(Framed::Position(Position { rank, offset, .. })) => {
                let seen = self.offsets.entry(rank).or_default();
                *seen = offset.max(*seen);
                return Ok(About::Other);
            }
            Some(Framed::Gap { rank, gap, .. }) => {
                let seen = self.offsets.entry(rank).or_default();
                if gap.end > *seen {
                    *seen = gap.end;
                    match &mut self.yielded {
                        Some(yielded) => yielded.gap(rank),
                        None => self.joiner.gap(rank, &gap, &mut self.buffer),
                    }
                }
            }
            Some(Framed::Record { rank, record, .. }) => {
                // Records that were shown are not shown again, even if the server repeats them.
                let seen = self.offsets.entry(rank).or_default();
                if record.end > *seen {
                    *seen = record.end;
                    if let Some(yielded) = &mut self.yielded {
                        yielded.push(rank, &record, &mut self.buffer);
                    } else {
                        self.joiner.push(rank, &record, &mut self.buffer);
                        self.unfinished = true;
                    }
                }
            }
        }
        self.print()?;
        Ok(About::Log)
    }

    /// Called when nothing came for a moment.
    pub(crate) fn idle(&mut self) -> io::Result<()> {
        // Half a line among lines of other logs would be no use.
        if std::mem::take(&mut self.unfinished) && self.sheet.name.is_none() {
            self.joiner.idle(&mut self.buffer);
            self.print()?;
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.joiner.finish(&mut self.buffer);
        self.print()
    }

    pub(crate) fn print(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.sheet.print(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        Sheet {
            paper: Paper::default(),
            number: 0,
            name: None,
        }
    }

    fn screen(lines: &[&str]) -> Screen {
        told(Screen::new(false, None, false, sheet()), lines)
    }

    fn told(mut screen: Screen, lines: &[&str]) -> Screen {
        for line in lines {
            // The printing itself is not tested.
            let _ = screen.line(&Bytes::from(format!("{line}\n")));
        }
        screen
    }

    #[test]
    fn a_new_connection_goes_on_after_the_last_record() {
        let screen = screen(&["# 2 2", "2 0 10 1 o F a", "2 1 7 1 o F b", "2 0 21 2 o P c", ""]);
        assert_eq!(
            screen.positions(),
            [
                Position {
                    attempt: 2,
                    rank: 0,
                    offset: 21
                },
                Position {
                    attempt: 2,
                    rank: 1,
                    offset: 7
                }
            ]
        );
        assert!(!screen.waiting());
    }

    #[test]
    fn a_gap_is_told_once_and_a_new_connection_goes_on_behind_it() {
        let lines = ["# 1 1", "1 0 10 1 o F a", "~ 1 0 10 500 limit"];
        let screen = screen(&lines);
        assert_eq!(at(&screen), [(1, 0, 500)]);
        let again = told(screen, &["# 1 1", "~ 1 0 10 500 limit", "1 0 508 1 o F b"]);
        assert_eq!(at(&again), [(1, 0, 508)]);
    }

    #[test]
    fn values_go_on_after_the_last_record_and_begin_anew_with_an_attempt() {
        let screen = Screen::new(false, None, false, sheet()).of_values(Yielded::new(true));
        let lines = ["# 1 1", "1 0 12 1 v F 0 1 7", "1 0 24 1 v F 1 1 8"];
        let mut screen = told(screen, &lines);
        assert_eq!(at(&screen), [(1, 0, 24)]);
        assert!(!screen.is_unfinished(), "half a value is never shown");
        let mut next = told(screen, &["# 2 1", "2 0 12 1 v F 0 1 7"]);
        assert_eq!(at(&next), [(2, 0, 12)]);
        assert!(!next.yielded().unwrap().is_missing());
        screen = told(next, &["~ 2 0 12 500 limit", "2 0 512 1 v F 3 1 7"]);
        assert!(screen.yielded().unwrap().is_missing());
    }

    #[test]
    fn the_next_attempt_begins_at_its_beginning() {
        let screen = screen(&["# 1 1", "1 0 10 1 o F a", "# 1 1", "# 2 1"]);
        assert_eq!(screen.attempt, 2);
        assert_eq!(at(&screen), [(2, 0, 0)]);
    }

    fn at(screen: &Screen) -> Vec<(u32, u32, u64)> {
        let positions = screen.positions();
        positions.iter().map(|p| (p.attempt, p.rank, p.offset)).collect()
    }

    #[test]
    fn the_tail_is_asked_for_until_the_server_said_where_each_rank_begins() {
        let tail = || Screen::new(false, None, true, sheet());
        assert!(!tail().knows_all());
        let half = told(tail(), &["# 1 2", "@ 1 0 50"]);
        assert!(!half.knows_all());
        let all = told(half, &["1 1 70 1 o F a"]);
        assert!(all.knows_all());
        assert_eq!(at(&all), [(1, 0, 50), (1, 1, 70)]);
        let next = told(all, &["# 2 2"]);
        assert!(next.knows_all(), "a later attempt is shown from its beginning");
        assert_eq!(at(&next), [(2, 0, 0), (2, 1, 0)]);
        let one = told(Screen::new(false, Some(7), true, sheet()), &["# 1 1", "@ 1 7 3"]);
        assert!(one.knows_all());
        assert_eq!(at(&one), [(1, 7, 3)]);
    }

    #[test]
    fn two_that_print_at_once_never_share_a_line() {
        let paper = Paper::default();
        let sheet = |number| Sheet {
            paper: paper.clone(),
            number,
            name: None,
        };
        let (a, b) = (sheet(0), sheet(1));
        let mut text = Vec::new();
        for (sheet, bytes) in [
            (&a, "one\nha"),
            (&a, "lf"),
            (&b, "two\n"),
            (&b, ""),
            (&a, "three\n"),
        ] {
            text.extend(sheet.ink(bytes.as_bytes()));
        }
        assert_eq!(String::from_utf8(text).unwrap(), "one\nhalf\ntwo\nthree\n");
    }
}
