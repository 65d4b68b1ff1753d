//! `kubectl skyward logs`.
//!
//! The server sends records with their offsets; lines are joined here. So after a loss of
//! connection the next request begins exactly after the last record that arrived, with the
//! beginning of an unfinished line still at hand: nothing is lost, nothing comes twice.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use clap::Args;
use futures::AsyncBufReadExt;
use jiff::{SignedDuration, Timestamp};
use skyward_api::{Task, TaskPhase, condition};
use skyward_subresources::{
    options::{Format, LogOptions, Position},
    records::{Framed, parse_framed},
    text::{Joiner, Style},
};
use tokio::time::{sleep, timeout};

use crate::{
    api::{Cluster, Failure, task_name},
    complain,
};

/// The server sends something at least every 15 s; silence longer than this is a dead connection.
const SILENCE: Duration = Duration::from_mins(1);
/// An unfinished line is shown after this.
const PROMPT: Duration = Duration::from_millis(500);
/// How often a Task that waits is looked at, to say what for.
const LOOK: Duration = Duration::from_secs(2);
/// Tries of a request, when not following.
const TRIES: u32 = 4;

/// Arguments of `logs`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Name of the Task.
    #[arg(value_parser = task_name)]
    name: String,
    /// Go on until the Task has ended.
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines of each rank.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    tail: Option<i64>,
    /// Only lines newer than this, such as 30s, 10m or 2h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    since: Option<Duration>,
    /// Only lines from this time on, such as 2026-11-20T10:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    since_time: Option<Timestamp>,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// This attempt, from 1. Default: the current or last one, and with --follow those after it.
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Put the time in front of each line.
    #[arg(long)]
    timestamps: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    skyward_api::Duration(text.to_owned())
        .parse()
        .ok_or_else(|| format!("{text:?} is not a duration such as 30s, 10m or 1h30m"))
}

/// Prints the log.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let Arguments {
        name,
        follow,
        tail,
        since,
        since_time,
        rank,
        attempt,
        timestamps,
    } = arguments;
    let since = since.map(|since| {
        let since = SignedDuration::try_from(since).unwrap_or(SignedDuration::MAX);
        Timestamp::now().saturating_sub(since).unwrap_or(Timestamp::MIN)
    });
    let mut options = LogOptions {
        follow,
        // As kubectl has it: -1 is everything.
        tail_lines: tail.and_then(|lines| u64::try_from(lines).ok()),
        since: since.or(since_time),
        rank,
        attempt,
        format: Format::Records,
        ..LogOptions::default()
    };
    let tail = options.tail_lines;
    let mut screen = Screen::new(timestamps, rank, tail.is_some());
    let mut failures = 0;
    loop {
        options.positions = screen.positions();
        // Lines that came while the connection was lost are no part of what was left out.
        options.tail_lines = tail.filter(|_| !screen.knows_all());
        match read(cluster, &name, &options, &mut screen).await? {
            Stream::Ended if !follow => break,
            Stream::Ended => {
                failures = 0;
                // The stream ends with the Task, but also when the server restarts.
                match cluster.task(&name).await {
                    Ok(Some(task)) if phase(&task).is_finished() || attempt.is_some() => break,
                    Ok(None) => break,
                    Err(Failure::Lasting(error)) => {
                        complain(&format!(
                            "whether Task {name:?} has ended cannot be seen: {error:#}"
                        ));
                        break;
                    }
                    Ok(Some(_)) | Err(Failure::Passing(_)) => {}
                }
            }
            Stream::Broken { error, progress } => {
                failures = if progress { 1 } else { failures + 1 };
                if !follow && failures >= TRIES {
                    screen.finish()?;
                    return Err(error);
                }
                if failures == TRIES {
                    complain(&format!(
                        "the log cannot be read at the moment, trying again: {error:#}"
                    ));
                }
            }
        }
        sleep(Duration::from_millis(200 * (1 << failures.min(4)))).await;
    }
    screen.finish()?;
    if follow {
        verdict(cluster, &name).await
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

/// How a request ended.
enum Stream {
    /// In order.
    Ended,
    /// Otherwise; whether anything had come.
    Broken { error: anyhow::Error, progress: bool },
}

async fn read(cluster: &Cluster, name: &str, options: &LogOptions, screen: &mut Screen) -> Result<Stream> {
    let query = options.query();
    let mut reader = match cluster.stream(name, "log", &query).await {
        Ok(reader) => reader,
        Err(Failure::Lasting(error)) => return Err(error),
        Err(Failure::Passing(error)) => {
            return Ok(Stream::Broken {
                error,
                progress: false,
            });
        }
    };
    let mut progress = false;
    let mut line = Vec::new();
    let mut silent = Duration::ZERO;
    let mut waits_for = String::new();
    loop {
        let patience = match (screen.waiting(), screen.unfinished) {
            (_, true) => PROMPT,
            (true, false) => LOOK,
            (false, false) => SILENCE,
        };
        // A line that is cut off by the timeout stays in `line` and is read on.
        match timeout(patience, reader.read_until(b'\n', &mut line)).await {
            Ok(Ok(0)) if line.is_empty() => return Ok(Stream::Ended),
            Ok(Ok(_)) if line.ends_with(b"\n") => {
                silent = Duration::ZERO;
                progress |= screen.line(&Bytes::from(std::mem::take(&mut line)))?;
            }
            // The end in the middle of a line: the rest did not arrive.
            Ok(Ok(_)) => {
                return Ok(Stream::Broken {
                    error: anyhow!("the connection ended early"),
                    progress,
                });
            }
            Ok(Err(error)) => {
                return Ok(Stream::Broken {
                    error: error.into(),
                    progress,
                });
            }
            Err(_) => {
                silent += patience;
                if silent >= SILENCE {
                    return Ok(Stream::Broken {
                        error: anyhow!("the server is silent"),
                        progress,
                    });
                }
                screen.idle()?;
                if screen.waiting() && options.follow {
                    say_what_it_waits_for(cluster, name, &mut waits_for).await;
                }
            }
        }
    }
}

/// Says once, and again when it changes, why a Task has not started.
async fn say_what_it_waits_for(cluster: &Cluster, name: &str, said: &mut String) {
    let Ok(Some(task)) = cluster.task(name).await else {
        return;
    };
    if task.status.as_ref().is_some_and(|status| status.attempt > 0) {
        return;
    }
    let conditions = task.status.map(|status| status.conditions).unwrap_or_default();
    let why = condition::find(&conditions, condition::SCHEDULED)
        .or_else(|| condition::find(&conditions, condition::SUSPENDED))
        .map_or_else(
            || "the controller has not seen it yet".to_owned(),
            |c| format!("{}: {}", c.reason, c.message),
        );
    if *said != why {
        complain(&format!("Task {name:?} waits ({why})"));
        *said = why;
    }
}

fn phase(task: &Task) -> TaskPhase {
    task.status
        .as_ref()
        .and_then(|status| status.phase)
        .unwrap_or_default()
}

/// The exit code of `-f`: that of the Task.
async fn verdict(cluster: &Cluster, name: &str) -> Result<ExitCode> {
    let mut last = None;
    for _ in 0..TRIES {
        match cluster.task(name).await {
            Ok(Some(task)) if phase(&task) == TaskPhase::Failed => {
                let conditions = task.status.map(|status| status.conditions).unwrap_or_default();
                let why = condition::find(&conditions, condition::FAILED)
                    .map(|failed| format!(": {}: {}", failed.reason, failed.message))
                    .unwrap_or_default();
                complain(&format!("Task {name:?} failed{why}"));
                return Ok(ExitCode::FAILURE);
            }
            Ok(None) => {
                complain(&format!("Task {name:?} was deleted"));
                return Ok(ExitCode::FAILURE);
            }
            // That it cannot be seen was said already.
            Ok(Some(_)) | Err(Failure::Lasting(_)) => return Ok(ExitCode::SUCCESS),
            Err(Failure::Passing(error)) => last = Some(error),
        }
        sleep(Duration::from_secs(1)).await;
    }
    Err(last.unwrap_or_else(|| anyhow!("whether Task {name:?} succeeded cannot be seen")))
}

/// What was printed so far, and how to go on.
struct Screen {
    timestamps: bool,
    /// The only rank that is asked for.
    only: Option<u32>,
    /// The server chooses where the attempt begins that is printed: only its last lines
    /// were asked for.
    tail: bool,
    /// Attempt that is printed; 0 = none yet.
    attempt: u32,
    /// Runs of it that are sent.
    runs: u32,
    joiner: Joiner,
    /// Next offset of each rank.
    offsets: BTreeMap<u32, u64>,
    /// Something was added since the last look for an unfinished line.
    unfinished: bool,
    buffer: Vec<u8>,
}

impl Screen {
    fn new(timestamps: bool, only: Option<u32>, tail: bool) -> Self {
        Self {
            timestamps,
            only,
            tail,
            attempt: 0,
            runs: 0,
            joiner: Joiner::default(),
            offsets: BTreeMap::new(),
            unfinished: false,
            buffer: Vec::new(),
        }
    }

    fn waiting(&self) -> bool {
        self.attempt == 0
    }

    /// Whether it is known of each rank where to go on.
    fn knows_all(&self) -> bool {
        self.attempt > 0 && self.ranks().all(|rank| self.offsets.contains_key(&rank))
    }

    fn ranks(&self) -> impl Iterator<Item = u32> + use<> {
        let (first, last) = self
            .only
            .map_or((0, self.runs), |rank| (rank, rank.saturating_add(1)));
        first..last
    }

    fn positions(&self) -> Vec<Position> {
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

    /// One line of the stream; whether it was a record.
    fn line(&mut self, line: &Bytes) -> io::Result<bool> {
        match parse_framed(line) {
            None => return Ok(false),
            Some(Framed::Notice(text)) => {
                self.joiner.break_line(&mut self.buffer);
                self.print()?;
                complain(&text);
                return Ok(false);
            }
            Some(Framed::Attempt { attempt, runs }) => {
                if attempt != self.attempt {
                    self.joiner.finish(&mut self.buffer);
                    self.joiner.break_line(&mut self.buffer);
                    self.print()?;
                    if self.attempt > 0 {
                        complain(&format!("--- attempt {attempt} ---"));
                        self.tail = false;
                    }
                    let style = Style {
                        ranks: runs > 1,
                        timestamps: self.timestamps,
                    };
                    self.joiner = Joiner::new(style);
                    self.attempt = attempt;
                    self.offsets.clear();
                }
                self.runs = runs;
                if !self.tail {
                    for rank in self.ranks() {
                        self.offsets.entry(rank).or_default();
                    }
                }
                return Ok(false);
            }
            Some(Framed::Position {
                attempt: _,
                rank,
                offset,
            }) => {
                let seen = self.offsets.entry(rank).or_default();
                *seen = offset.max(*seen);
                return Ok(false);
            }
            Some(Framed::Record {
                attempt: _,
                rank,
                record,
            }) => {
                // What was seen already is not shown again, whatever the server sends.
                let seen = self.offsets.entry(rank).or_default();
                if record.end > *seen {
                    *seen = record.end;
                    self.joiner.push(rank, &record, &mut self.buffer);
                    self.unfinished = true;
                }
            }
        }
        self.print()?;
        Ok(true)
    }

    /// Nothing came for a moment.
    fn idle(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unfinished) {
            self.joiner.idle(&mut self.buffer);
            self.print()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.joiner.finish(&mut self.buffer);
        self.print()
    }

    fn print(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            let mut out = io::stdout().lock();
            out.write_all(&self.buffer)?;
            out.flush()?;
            self.buffer.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(lines: &[&str]) -> Screen {
        told(Screen::new(false, None, false), lines)
    }

    fn told(mut screen: Screen, lines: &[&str]) -> Screen {
        for line in lines {
            // Printing is not what is tested.
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
        let tail = || Screen::new(false, None, true);
        assert!(!tail().knows_all());
        let half = told(tail(), &["# 1 2", "@ 1 0 50"]);
        assert!(!half.knows_all());
        let all = told(half, &["1 1 70 1 o F a"]);
        assert!(all.knows_all());
        assert_eq!(at(&all), [(1, 0, 50), (1, 1, 70)]);
        let next = told(all, &["# 2 2"]);
        assert!(next.knows_all(), "a later attempt is shown from its beginning");
        assert_eq!(at(&next), [(2, 0, 0), (2, 1, 0)]);
        let one = told(Screen::new(false, Some(7), true), &["# 1 1", "@ 1 7 3"]);
        assert!(one.knows_all());
        assert_eq!(at(&one), [(1, 7, 3)]);
    }

    #[test]
    fn durations_are_written_as_in_specs() {
        assert_eq!(duration("10m"), Ok(Duration::from_mins(10)));
        assert!(duration("ten").unwrap_err().contains("30s"));
    }
}
