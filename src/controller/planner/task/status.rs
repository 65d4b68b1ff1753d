//! The statuses of a Task: pure, from the dispatcher's decisions. Three kinds of write: placement,
//! wait, end.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use skyward_api::{
    TaskPhase, TaskStatus,
    condition::{self, NewCondition, cut, reason},
    task::{ItemsStatus, RunResult},
};
use skyward_core::Usd;

use crate::{
    base::time::after,
    task::{
        cost,
        message::Collected,
        model::{Entry, SlotAttempt},
        retries::Verdict,
    },
};

/// A status must stay below this, in bytes of JSON.
pub const MAX: usize = 32 * 1024;
/// Room that the JSON around the status takes.
const MARGIN: usize = 512;
/// Results that a status shows.
const MAX_RESULTS: usize = 8;
/// Longest message of a run or condition, in bytes.
const MAX_MESSAGE: usize = 1000;

/// Recorded counters of a Task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The newest attempt.
    pub attempt: u32,
    /// Attempts that ended because a machine was lost.
    pub interruptions: u32,
    /// Attempts that ended because a run failed by itself, without ignored ones.
    pub failures: u32,
    /// Attempts that ended because a run failed in a way that a rule ignores.
    pub ignored: u32,
    /// What the runs of the attempts that are over cost.
    pub cost: Usd,
}

impl Counts {
    /// As they stand on record.
    pub fn recorded(entry: &Entry) -> Self {
        Self {
            attempt: entry.status.attempt,
            interruptions: entry.status.interruptions,
            failures: entry.status.failures,
            ignored: entry.status.ignored_failures,
            cost: Usd::or_zero(&entry.status.cost),
        }
    }

    /// An attempt failed, with that consequence.
    pub fn failed(&mut self, verdict: &Verdict) {
        let count = match verdict {
            Verdict::Ignore => &mut self.ignored,
            Verdict::Retry | Verdict::Fail(_) => &mut self.failures,
        };
        *count = count.saturating_add(1);
    }

    fn apply(self, entry: &Entry) -> TaskStatus {
        TaskStatus {
            mode: entry.mode.clone(),
            source: entry.status.source.clone(),
            dependencies: entry.status.dependencies.clone(),
            done: entry
                .status
                .items
                .as_ref()
                .map(ItemsStatus::done)
                .unwrap_or_default(),
            items: entry.status.items.clone(),
            attempt: self.attempt,
            restarts: self.attempt.saturating_sub(1),
            interruptions: self.interruptions,
            failures: self.failures,
            ignored_failures: self.ignored,
            deadline: entry.status.deadline.clone(),
            cost: cost::text(self.cost),
            observed_generation: entry.generation,
            ..TaskStatus::default()
        }
    }
}

/// The status of a Task whose machines are chosen and that is about to start.
pub fn placed(
    entry: &Entry,
    counts: Counts,
    places: &[SlotAttempt],
    machines: &[&str],
    now: Timestamp,
) -> TaskStatus {
    // The ranks of one machine follow each other.
    let mut names = machines.to_vec();
    names.dedup();
    let on = match names.as_slice() {
        [only] => format!("on machine \"{only}\""),
        many => format!(
            "on {} machines, rank 0 on \"{}\"",
            many.len(),
            many.first().copied().unwrap_or_default()
        ),
    };
    let on = match places.len() / names.len().max(1) {
        0 | 1 => on,
        several => format!("{on}, in {several} processes on each"),
    };
    let conditions = [
        NewCondition::new(condition::SCHEDULED, true, reason::PLACED, on.clone()),
        NewCondition::new(
            condition::RUNNING,
            true,
            reason::STARTED,
            format!("attempt {} runs {on}", counts.attempt),
        ),
    ];
    let deadline = entry.active_deadline.map(|longest| Time(after(now, longest)));
    TaskStatus {
        phase: Some(TaskPhase::Running),
        reason: reason::STARTED.to_owned(),
        done: match (&entry.map, &entry.status.items) {
            (None, _) => format!("0/{}", places.len()),
            (Some(_), items) => items.as_ref().map(ItemsStatus::done).unwrap_or_default(),
        },
        placed: places.to_vec(),
        started_at: Some(Time(now)),
        deadline: entry.status.deadline.clone().or(deadline),
        conditions: condition::apply(&entry.status.conditions, &conditions, entry.generation, now),
        ..counts.apply(entry)
    }
}

/// Why a Task waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// One of the reasons of the condition Scheduled.
    pub reason: &'static str,
    /// Another detail that makes it a different reason, such as the Pool's reason.
    pub detail: String,
    /// For the user.
    pub message: String,
    /// How many Tasks come first, where the message counts them.
    pub before: Option<u32>,
}

impl Why {
    /// A reason without detail.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            detail: String::new(),
            message: message.into(),
            before: None,
        }
    }

    /// The same reason, for the end of a Task of that name. If the Task has items, the message names the command that keeps
    /// their outcomes: a Task that is created again runs all items again.
    #[must_use]
    pub fn or_retry(mut self, name: &str, has_items: bool) -> Self {
        if has_items {
            self.message = format!(
                "{}; `kubectl skyward retry {name}` goes on with the items that are left",
                self.message
            );
        }
        self
    }

    /// Whether a status with one reason need not be rewritten for the other.
    pub fn is_like(&self, other: &Self) -> bool {
        self.reason == other.reason && self.detail == other.detail
    }
}

/// The status of a Task that waits.
pub fn waiting(entry: &Entry, counts: Counts, why: &Why, now: Timestamp) -> TaskStatus {
    let suspended = why.reason == reason::SUSPENDED;
    let message = cut(&why.message, MAX_MESSAGE);
    let of = |type_, status| NewCondition::new(type_, status, why.reason, message.clone());
    let mut conditions = vec![of(condition::SCHEDULED, false)];
    if counts.attempt > 0 {
        conditions.push(of(condition::RUNNING, false));
    }
    if suspended || condition::find(&entry.status.conditions, condition::SUSPENDED).is_some() {
        conditions.push(of(condition::SUSPENDED, suspended));
    }
    TaskStatus {
        phase: Some(if suspended {
            TaskPhase::Suspended
        } else {
            TaskPhase::Pending
        }),
        reason: why.reason.to_owned(),
        conditions: condition::apply(&entry.status.conditions, &conditions, entry.generation, now),
        ..counts.apply(entry)
    }
}

/// The status of a Task that runs; `held_up` says what holds up its end.
pub fn running(entry: &Entry, held_up: Option<&Why>, now: Timestamp) -> TaskStatus {
    let (reason, message) = match held_up {
        Some(why) => (why.reason, cut(&why.message, MAX_MESSAGE)),
        None => (reason::STARTED, format!("attempt {} runs", entry.status.attempt)),
    };
    let condition = NewCondition::new(condition::RUNNING, true, reason, message);
    let mut status = entry.status.clone();
    reason.clone_into(&mut status.reason);
    condition::set(&mut status.conditions, condition, entry.generation, now);
    status
}

/// A rank of an attempt that ended, or whose machine is gone.
pub struct Rank<'a> {
    /// Its place, where that is known.
    pub place: Option<SlotAttempt>,
    /// Name of its machine.
    pub machine: &'a str,
    /// What it cost, where that is known.
    pub cost: Option<Usd>,
    /// The summary of the run.
    pub collected: Option<&'a Collected>,
}

/// The status of a Task that ended. `because` says why it failed although (or before) its runs
/// ended.
pub fn ended(
    entry: &Entry,
    counts: Counts,
    ranks: &[Rank<'_>],
    started_at: Option<Timestamp>,
    because: Option<Why>,
    now: Timestamp,
) -> TaskStatus {
    let costs: Usd = ranks.iter().filter_map(|run| run.cost).sum();
    let counts = Counts {
        cost: counts.cost + costs,
        ..counts
    };
    let mut succeeded = Vec::new();
    let mut failed = Vec::new();
    let mut results = Vec::new();
    for (rank, run) in ranks.iter().enumerate() {
        let rank = rank as u32;
        let ok = run
            .collected
            .is_some_and(|collected| collected.reason == reason::SUCCEEDED);
        if ok { &mut succeeded } else { &mut failed }.push(rank);
        if let Some(collected) = run.collected {
            let result = RunResult {
                rank,
                machine: run.machine.to_owned(),
                attempt: counts.attempt,
                message: cut(&collected.result.message, MAX_MESSAGE),
                cost: cost::text(run.cost.unwrap_or_default()),
                ..collected.result.clone()
            };
            results.push((ok, result));
        }
    }
    let ended = ranks.iter().filter(|run| run.collected.is_some()).count();
    let first_failure = results.iter().find(|(ok, _)| !ok).map(|(_, result)| result);
    let reason_of = |result: &RunResult| {
        ranks
            .get(result.rank as usize)
            .and_then(|run| run.collected)
            .map_or(reason::INTERRUPTED, |collected| collected.reason)
    };
    let failure = because.or_else(|| {
        first_failure.map(|result| {
            Why::new(
                reason_of(result),
                failure_message(result, failed.len(), ranks.len()),
            )
        })
    });
    let (phase, condition) = match &failure {
        None => {
            let message = match ranks.len() {
                0 => "every item succeeded".to_owned(),
                1 => "the run succeeded".to_owned(),
                many => format!("all {many} runs succeeded"),
            };
            (
                TaskPhase::Succeeded,
                NewCondition::new(condition::COMPLETE, true, reason::SUCCEEDED, message),
            )
        }
        Some(why) => (
            TaskPhase::Failed,
            NewCondition::new(
                condition::FAILED,
                true,
                why.reason,
                cut(&why.message, MAX_MESSAGE),
            ),
        ),
    };
    let mut conditions = Vec::new();
    if let Some(scheduled) = condition::find(&entry.status.conditions, condition::SCHEDULED) {
        let done = scheduled.status == "True";
        conditions.push(NewCondition::new(
            condition::SCHEDULED,
            done,
            if done { reason::PLACED } else { condition.reason },
            scheduled.message.clone(),
        ));
    }
    let of = |type_, status| NewCondition::new(type_, status, condition.reason, condition.message.clone());
    if counts.attempt > 0 {
        conditions.push(of(condition::RUNNING, false));
    }
    conditions.push(of(condition::FINISHED, true));
    let reason = condition.reason.to_owned();
    conditions.push(condition);
    // Over all ranks, not only the shown ones. A machine whose clock is wrong may tell impossible
    // times.
    let finished_at = results
        .iter()
        .filter_map(|(_, result)| result.finished_at.as_ref())
        .map(|time| time.0)
        .max()
        .filter(|at| *at <= now && started_at.is_none_or(|started| *at >= started))
        .unwrap_or(now);
    results.sort_by_key(|(ok, result)| (*ok, result.rank));
    results.truncate(MAX_RESULTS);
    let mut results: Vec<RunResult> = results.into_iter().map(|(_, result)| result).collect();
    // A list map by rank reads best in order of rank.
    results.sort_by_key(|result| result.rank);
    let mut status = TaskStatus {
        phase: Some(phase),
        reason,
        done: if ranks.is_empty() {
            entry
                .status
                .items
                .as_ref()
                .map(ItemsStatus::done)
                .unwrap_or_default()
        } else {
            format!("{ended}/{}", ranks.len())
        },
        placed: ranks.iter().filter_map(|run| run.place).collect(),
        started_at: started_at.map(Time),
        finished_at: Some(Time(finished_at)),
        duration: started_at.map_or_else(String::new, |start| in_words(start, finished_at)),
        succeeded_ranks: ranges(&succeeded),
        failed_ranks: ranges(&failed),
        results,
        conditions: condition::apply(&entry.status.conditions, &conditions, entry.generation, now),
        ..counts.apply(entry)
    };
    shorten(&mut status);
    status
}

/// The status of a Task with `forEach` that runs: the counts of its items, and where its workers are, with workers that
/// are about to be started.
pub fn mapping(entry: &Entry, items: Option<&ItemsStatus>, places: &[SlotAttempt]) -> TaskStatus {
    let mut status = entry.status.clone();
    if let Some(items) = items {
        status.done = items.done();
        status.items = Some(items.clone());
    }
    status.placed = places.to_vec();
    status
}

/// The status of a Task with `forEach` that ended. `counts` has what all its workers cost.
pub fn mapped(
    entry: &Entry,
    counts: Counts,
    items: Option<&ItemsStatus>,
    started_at: Option<Timestamp>,
    because: Option<Why>,
    now: Timestamp,
) -> TaskStatus {
    let mut status = ended(entry, counts, &[], started_at, because, now);
    if let Some(items) = items {
        status.done = items.done();
        status.items = Some(ItemsStatus {
            active: 0,
            ..items.clone()
        });
    }
    shorten(&mut status);
    status
}

/// An end that could not be written for a while counts from its write: nobody saw it before.
pub fn record_end(status: &mut TaskStatus, now: Timestamp) {
    for end in &mut status.conditions {
        if [condition::COMPLETE, condition::FAILED, condition::FINISHED].contains(&end.type_.as_str()) {
            end.last_transition_time = Time(now);
        }
    }
}

/// How a run failed, and of how many; its result names rank and machine.
pub fn failure_message(result: &RunResult, failed: usize, total: usize) -> String {
    let what = if !result.message.is_empty() {
        result.message.clone()
    } else if let Some(code) = result.exit_code {
        format!("the process exited with code {code}")
    } else if result.signal.is_empty() {
        "the run failed".to_owned()
    } else {
        format!("the process was killed by {}", result.signal)
    };
    if total == 1 {
        what
    } else {
        format!(
            "{failed} of {total} runs failed; rank {} on \"{}\": {what}",
            result.rank, result.machine
        )
    }
}

/// Brings a status below [`MAX`]: shorter tails, then no large values, then fewer results.
fn shorten(status: &mut TaskStatus) {
    let too_long =
        |status: &TaskStatus| serde_json::to_vec(status).map_or(usize::MAX, |json| json.len()) > MAX - MARGIN;
    for longest in [1024, 512, 256, 0] {
        if !too_long(status) {
            return;
        }
        for result in &mut status.results {
            result.log_tail = end_of(&result.log_tail, longest).to_owned();
        }
    }
    if too_long(status) {
        for result in &mut status.results {
            if result
                .value
                .as_ref()
                .is_some_and(|value| value.to_string().len() > 1024)
            {
                result.value = None;
            }
        }
    }
    while too_long(status) && status.results.pop().is_some() {}
}

/// A status that the API server is sure to take, when it did not take the full one.
pub fn bare(status: &TaskStatus) -> TaskStatus {
    let mut bare = status.clone();
    bare.results = Vec::new();
    for condition in &mut bare.conditions {
        condition.message = cut(&condition.message, 256);
    }
    bare
}

/// The patch that makes an object's status exactly this one, if nobody changed the
/// object since the version that it was decided on (else the answer is a conflict).
///
/// A JSON patch: a merge patch would drop every `null` inside a return value.
pub fn patch(uid: &str, version: &str, status: &TaskStatus) -> Value {
    json!([
        { "op": "replace", "path": "/metadata/uid", "value": uid },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
        { "op": "add", "path": "/status", "value": status },
    ])
}

/// `1m12s`, and tenths of a second below a minute.
fn in_words(start: Timestamp, end: Timestamp) -> String {
    let milliseconds = (end.as_millisecond() - start.as_millisecond()).max(0);
    let seconds = milliseconds / 1000;
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}.{}s", milliseconds % 1000 / 100),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Sorted numbers as ranges, such as `0-3,5`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut index = 0;
    while let Some(first) = numbers.get(index).copied() {
        let mut last = first;
        while numbers.get(index + 1) == Some(&(last + 1)) {
            index += 1;
            last += 1;
        }
        parts.push(if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        });
        index += 1;
    }
    parts.join(",")
}

/// The last bytes of a text, from a character's boundary.
pub fn end_of(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests;
