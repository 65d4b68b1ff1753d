//! What the log of a map says. An outcome is stored with its value by the store; the other records are notes, whose
//! text is made and read here. An older operator must not act on a note that it does not know, so an unknown note is
//! an error.

use std::{fmt, ops::Range, str::FromStr};

use super::indices::Index;

/// A run of the Task that runs items: an attempt of the Task and a rank in it. No two workers of a map have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    /// Attempt of the Task.
    pub attempt: u32,
    /// Rank in that attempt.
    pub rank: u32,
}

/// How an attempt of an item ended, as far as it decides what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It succeeded.
    Success,
    /// It failed by itself.
    Failure,
    /// Its machine or watcher was lost.
    Interruption,
    /// We stopped it, or a rule of its Task ignores how it failed: the attempt counts for nothing.
    Uncounted,
}

impl Cause {
    /// As the log has it.
    pub const fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Interruption => 2,
            Self::Uncounted => 3,
        }
    }

    /// What the log means; `None`: a newer version wrote it.
    pub const fn of_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Success,
            1 => Self::Failure,
            2 => Self::Interruption,
            3 => Self::Uncounted,
            _ => return None,
        })
    }
}

/// The end of one attempt of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which item.
    pub index: Index,
    /// Which attempt of it, from 1.
    pub attempt: u32,
    /// How.
    pub cause: Cause,
    /// Whether no other attempt follows. Decided when it was recorded, and never again.
    pub is_final: bool,
}

/// A record that is no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Only this worker may run these items, until another record says otherwise.
    Granted(Worker, Range<Index>),
    /// The worker has not begun them and never will.
    Released(Worker, Range<Index>),
    /// The worker is gone, and which of its items began is not known: all that it was granted and that has no
    /// outcome was interrupted.
    Cut(Worker),
    /// A user asked that these items run again.
    Reopened(Range<Index>),
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A note.
    Note(Note),
    /// The end of an attempt.
    Ended(Ended),
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.attempt, self.rank)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(worker, range) => write!(f, "granted {worker} {} {}", range.start, range.end),
            Self::Released(worker, range) => write!(f, "released {worker} {} {}", range.start, range.end),
            Self::Cut(worker) => write!(f, "cut {worker}"),
            Self::Reopened(range) => write!(f, "reopened {} {}", range.start, range.end),
        }
    }
}

/// A note that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownNote(pub String);

impl fmt::Display for UnknownNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the log of the map has a record that this version does not know: {:?}",
            self.0
        )
    }
}

impl std::error::Error for UnknownNote {}

impl FromStr for Note {
    type Err = UnknownNote;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split(' ').collect();
        let note = match words[..] {
            ["granted", who, start, end] => {
                worker(who).and_then(|worker| Some(Self::Granted(worker, range(start, end)?)))
            }
            ["released", who, start, end] => {
                worker(who).and_then(|worker| Some(Self::Released(worker, range(start, end)?)))
            }
            ["cut", who] => worker(who).map(Self::Cut),
            ["reopened", start, end] => range(start, end).map(Self::Reopened),
            _ => None,
        };
        note.ok_or_else(|| UnknownNote(text.chars().take(80).collect()))
    }
}

fn worker(text: &str) -> Option<Worker> {
    let (attempt, rank) = text.split_once('-')?;
    Some(Worker {
        attempt: attempt.parse().ok()?,
        rank: rank.parse().ok()?,
    })
}

fn range(start: &str, end: &str) -> Option<Range<Index>> {
    let range: Range<Index> = start.parse().ok()?..end.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_as_it_was_written_and_another_one_is_an_error() {
        let worker = Worker { attempt: 2, rank: 17 };
        for (note, text) in [
            (Note::Granted(worker, 0..100), "granted 2-17 0 100"),
            (Note::Released(worker, 7..8), "released 2-17 7 8"),
            (Note::Cut(worker), "cut 2-17"),
            (Note::Reopened(3..4), "reopened 3 4"),
        ] {
            assert_eq!(note.to_string(), text);
            assert_eq!(text.parse(), Ok(note));
        }
        for text in [
            "",
            "cut",
            "cut 2",
            "cut 2-17 ",
            "granted 2-17 5 5",
            "granted 2-17 6 5",
            "granted 2-17 0 4294967296",
            "paused 2-17",
        ] {
            assert_eq!(text.parse::<Note>(), Err(UnknownNote(text.to_owned())));
        }
    }
}
