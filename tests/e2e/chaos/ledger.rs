//! What must hold of a round, whatever happened in it. The ledger is what the work itself told, outside
//! of the cluster, when it began and when it ended; the rules are pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use anyhow::Context as _;
use serde_json::Value;
use skyward_api::{TaskPhase, TaskStatus};

use crate::happenings::{Happening, Process};

/// Which half of a run told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Begin,
    End,
}

/// One line of the ledger, in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) side: Side,
    pub(crate) task: String,
    pub(crate) attempt: u32,
    pub(crate) rank: u32,
    pub(crate) machine: String,
}

impl FromStr for Mark {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [side, task, attempt, rank, machine] = words[..] else {
            anyhow::bail!("\"{line}\" is no mark");
        };
        let side = match side {
            "begin" => Side::Begin,
            "end" => Side::End,
            _ => anyhow::bail!("\"{line}\" is no mark"),
        };
        Ok(Self {
            side,
            task: task.to_owned(),
            attempt: attempt.parse().with_context(|| line.to_owned())?,
            rank: rank.parse().with_context(|| line.to_owned())?,
            machine: machine.to_owned(),
        })
    }
}

/// How a Task must end if nothing keeps its runs from ending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expected {
    /// Its process exits with that.
    Exit(i32),
    /// Each rank returns this, which depends on its rank.
    Values(Vec<Value>),
    /// It returns JSON of that many bytes.
    Bytes(i64),
}

/// A Task of a round, and what was seen of it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) ranks: u32,
    /// Its `retries.onInterruption`.
    pub(crate) retries: u32,
    pub(crate) expected: Expected,
    /// The status in which it was first seen ended, and how long the ledger was then.
    pub(crate) ended: Option<(TaskStatus, usize)>,
    /// The status at the end of the round.
    pub(crate) last: Option<TaskStatus>,
}

/// A happening that was carried out, and the machine it hit.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    pub(crate) what: Happening,
    pub(crate) machine: Option<String>,
}

/// Each broken rule, in words.
pub(crate) fn broken(jobs: &[Job], marks: &[Mark], carried: &[Carried]) -> Vec<String> {
    let mut problems = twice(marks);
    for job in jobs {
        let marks: Vec<(usize, &Mark)> = marks
            .iter()
            .enumerate()
            .filter(|(_, mark)| mark.task == job.name)
            .collect();
        let told = of_one(job, &marks, carried);
        problems.extend(told.into_iter().map(|problem| format!("{}: {problem}", job.name)));
    }
    problems
}

/// Each rank of an attempt begins at most once, and ends at most once.
fn twice(marks: &[Mark]) -> Vec<String> {
    let mut counts: BTreeMap<(&str, u32, u32, bool), usize> = BTreeMap::new();
    for mark in marks {
        *counts
            .entry((&mark.task, mark.attempt, mark.rank, mark.side == Side::Begin))
            .or_default() += 1;
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|((task, attempt, rank, begins), count)| {
            let what = if begins { "began" } else { "ended" };
            format!("{task}: rank {rank} of attempt {attempt} {what} {count} times")
        })
        .collect()
}

fn of_one(job: &Job, marks: &[(usize, &Mark)], carried: &[Carried]) -> Vec<String> {
    let mut problems = Vec::new();
    let Some((status, seen_at)) = &job.ended else {
        return vec!["it never ended".to_owned()];
    };
    if job.last.as_ref() != Some(status) {
        problems.push(format!("it changed after its end, to {:?}", job.last));
    }
    let after = |(at, mark): &&(usize, &Mark)| at >= seen_at && mark.side == Side::Begin;
    if let Some((_, mark)) = marks.iter().find(after) {
        problems.push(format!("{mark:?} came after its end"));
    }
    if let Some((_, mark)) = marks.iter().find(|(_, mark)| mark.attempt > status.attempt) {
        problems.push(format!("{mark:?} is of no attempt on record"));
    }
    let mut newest = 0;
    for (_, mark) in marks {
        match mark.side {
            Side::Begin => newest = newest.max(mark.attempt),
            Side::End if mark.attempt < newest => {
                problems.push(format!("{mark:?} while attempt {newest} ran already"));
            }
            Side::End => {}
        }
    }
    problems.extend(attempts(job, status, marks, carried));
    problems.extend(outcome(job, status, marks, carried));
    problems
}

/// Attempts after the first have a reason: a machine was lost, or watchers of runs were killed.
fn attempts(job: &Job, status: &TaskStatus, marks: &[(usize, &Mark)], carried: &[Carried]) -> Vec<String> {
    let mut problems = Vec::new();
    let reasons: Vec<&Carried> = carried
        .iter()
        .filter(|carried| carried.what.interrupts())
        .collect();
    let again = status.attempt.saturating_sub(1);
    if again as usize > reasons.len() {
        problems.push(format!(
            "it had {} attempts, although only {} happenings interrupt",
            status.attempt,
            reasons.len()
        ));
    }
    let last_one = u32::from(status.reason == "Interrupted");
    if (status.restarts, status.interruptions) != (again, again + last_one) {
        problems.push(format!(
            "{} attempts are {} restarts and {} interruptions",
            status.attempt, status.restarts, status.interruptions
        ));
    }
    // With several ranks, a rank that had not begun may have been the one whose machine was lost.
    if job.ranks == 1 {
        let lost: BTreeSet<&str> = reasons.iter().filter_map(|one| one.machine.as_deref()).collect();
        for (_, mark) in marks {
            if mark.attempt < status.attempt && !lost.contains(mark.machine.as_str()) {
                problems.push(format!(
                    "{mark:?} was not the last one, and its machine was not hit"
                ));
            }
        }
    }
    problems
}

/// The Task ended as its argument says, or in a way that the documents name for what happened.
fn outcome(job: &Job, status: &TaskStatus, marks: &[(usize, &Mark)], carried: &[Carried]) -> Vec<String> {
    // Of the ranks that failed so, since others are stopped with them.
    let explained = |cause: Happening| {
        let mut failed = status
            .results
            .iter()
            .filter(|result| result.reason == status.reason)
            .peekable();
        let hit = |machine: &str| {
            carried
                .iter()
                .any(|one| one.what == cause && one.machine.as_deref() == Some(machine))
        };
        failed.peek().is_some() && failed.all(|result| hit(&result.machine))
    };
    let excused = match status.reason.as_str() {
        "Interrupted" => status.interruptions == job.retries + 1,
        "WatcherKilled" => explained(Happening::Killed(Process::Watchers)),
        "DiskFull" => explained(Happening::DiskFilled),
        _ => false,
    };
    if excused && status.phase == Some(TaskPhase::Failed) {
        return Vec::new();
    }
    let first = status.results.first();
    let as_told = match &job.expected {
        Expected::Exit(0) => status.phase == Some(TaskPhase::Succeeded),
        Expected::Exit(code) => {
            (status.phase, status.reason.as_str()) == (Some(TaskPhase::Failed), "NonZeroExit")
                && first.and_then(|result| result.exit_code) == Some(*code)
        }
        Expected::Values(values) => {
            let mut results = status.results.clone();
            results.sort_by_key(|result| result.rank);
            let returned: Vec<&Value> = results
                .iter()
                .map(|result| result.value.as_ref().unwrap_or(&Value::Null))
                .collect();
            status.phase == Some(TaskPhase::Succeeded) && returned == values.iter().collect::<Vec<_>>()
        }
        Expected::Bytes(bytes) => {
            status.phase == Some(TaskPhase::Succeeded)
                && first.and_then(|result| result.value_bytes) == Some(*bytes)
        }
    };
    let mut problems = Vec::new();
    if !as_told {
        problems.push(format!("its end is not {:?}: {status:?}", job.expected));
    }
    for rank in 0..job.ranks {
        for side in [Side::Begin, Side::End] {
            let told = |(_, mark): &(usize, &Mark)| {
                (mark.side, mark.attempt, mark.rank) == (side, status.attempt, rank)
            };
            if !marks.iter().any(told) {
                problems.push(format!("it has a result, and no {side:?} of rank {rank}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests;
