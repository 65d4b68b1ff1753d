//! `kubectl skyward results`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use futures::AsyncReadExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use skyward_api::{
    Task, TaskStatus,
    task::{Placement, RunResult},
};

use crate::{
    api::{Cluster, Failure},
    complain, table,
};

/// Longest value in a table.
const SHORT: usize = 60;

/// Arguments of `results`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Name of the Task.
    name: String,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// How it is printed.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// An array with all that is known of each run.
    Json,
    /// The function's return value as JSON; of several ranks an array of {rank, value}.
    Raw,
}

/// Prints the results.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let Arguments { name, rank, output } = arguments;
    if output == Output::Raw {
        return raw(cluster, &name, rank).await;
    }
    let task = cluster.task(&name).await?.ok_or_else(|| {
        let namespace = &cluster.namespace;
        anyhow!("there is no Task {name:?} in the namespace {namespace:?}; `kubectl get tasks.skyward.dev -A` lists all")
    })?;
    let status = task.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    if !phase.is_finished() {
        complain(&format!("Task {name:?} has not ended: it is {}", phase.as_str()));
    }
    let values = if task.spec.function.is_some() && phase.is_finished() && is_incomplete(&status, rank) {
        fetch(cluster, &name, rank).await?
    } else {
        Vec::new()
    };
    let rows = rows(&task, &status, &values, rank);
    let mut out = io::stdout().lock();
    match output {
        Output::Json => {
            let list: Vec<Value> = rows.iter().map(Row::json).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        }
        Output::Table | Output::Raw => {
            if rows.is_empty() {
                complain(&format!("Task {name:?} has no results yet"));
            } else {
                let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
                out.write_all(table::render(&HEADINGS, &cells).as_bytes())?;
            }
            for row in rows.iter().filter(|row| !row.message.is_empty()) {
                out.flush()?;
                complain(&format!("rank {}: {}", row.rank, row.message));
            }
        }
    }
    if let Some(rank) = rank
        && rows.is_empty()
        && phase.is_finished()
    {
        return Err(anyhow!("Task {name:?} has no rank {rank}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The return value as the API gives it, without ever holding it whole.
async fn raw(cluster: &Cluster, name: &str, rank: Option<u32>) -> Result<ExitCode> {
    let mut stream = Box::pin(cluster.stream(name, "result", &query(rank)).await?);
    let mut out = io::stdout().lock();
    let mut piece = vec![0; 64 * 1024];
    let mut last = 0;
    loop {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            break;
        }
        last = piece[length - 1];
        out.write_all(&piece[..length])?;
    }
    if last != b'\n' {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn query(rank: Option<u32>) -> String {
    rank.map(|rank| format!("rank={rank}")).unwrap_or_default()
}

/// Whether the status lacks values that the result API may have.
fn is_incomplete(status: &TaskStatus, rank: Option<u32>) -> bool {
    let shown = status
        .results
        .iter()
        .filter(|result| rank.is_none_or(|rank| result.rank == rank));
    let mut count = 0;
    for result in shown {
        count += 1;
        if result.value.is_none() && result.value_bytes.is_some() {
            return true;
        }
    }
    count == 0 || (rank.is_none() && status.placed.len() > count)
}

/// Values by rank. None at all is no error: the table says how the runs ended.
async fn fetch(cluster: &Cluster, name: &str, rank: Option<u32>) -> Result<Vec<(u32, Value)>> {
    let mut stream = match cluster.stream(name, "result", &query(rank)).await {
        Ok(stream) => Box::pin(stream),
        Err(Failure::Lasting(error)) if error.to_string().contains("has no return value") => {
            return Ok(Vec::new());
        }
        Err(failure) => return Err(failure.into()),
    };
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await?;
    let value: Value = serde_json::from_slice(&text)?;
    let ranked = |value: &Value| {
        let rank = u32::try_from(value.get("rank")?.as_u64()?).ok()?;
        Some((rank, value.get("value")?.clone()))
    };
    let all: Option<Vec<_>> = value
        .as_array()
        .and_then(|list| list.iter().map(ranked).collect());
    Ok(match (rank, all) {
        (None, Some(list)) if !list.is_empty() => list,
        (rank, _) => vec![(rank.unwrap_or(0), value)],
    })
}

const HEADINGS: [&str; 6] = ["RANK", "MACHINE", "STATUS", "EXIT", "DURATION", "VALUE"];

/// One run, from the status and the values.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    rank: u32,
    result: Option<RunResult>,
    reason: String,
    message: String,
    value: Option<Value>,
}

/// Rows in order of rank: the status has details of at most eight runs, the others are known
/// as ranges of ranks that succeeded or failed.
fn rows(task: &Task, status: &TaskStatus, values: &[(u32, Value)], only: Option<u32>) -> Vec<Row> {
    let mut rows: std::collections::BTreeMap<u32, Row> = std::collections::BTreeMap::new();
    let named = [
        (&status.succeeded_ranks, "Succeeded"),
        (&status.failed_ranks, "Failed"),
    ];
    for (ranges, reason) in named {
        for rank in expand(ranges) {
            rows.insert(
                rank,
                Row {
                    rank,
                    reason: reason.to_owned(),
                    ..Row::default()
                },
            );
        }
    }
    for result in &status.results {
        let row = Row {
            rank: result.rank,
            reason: result.reason.clone(),
            message: result.message.clone(),
            value: result.value.clone(),
            result: Some(result.clone()),
        };
        rows.insert(result.rank, row);
    }
    // The value of a single run comes without its rank.
    let single = task.spec.parsed_placement() != Some(Placement::All) && rows.len() == 1;
    for (rank, value) in values {
        let rank = if single {
            rows.keys().next().copied().unwrap_or(*rank)
        } else {
            *rank
        };
        let row = rows.entry(rank).or_insert_with(|| Row {
            rank,
            ..Row::default()
        });
        row.value = Some(value.clone());
    }
    rows.into_values()
        .filter(|row| only.is_none_or(|rank| row.rank == rank))
        .collect()
}

/// Ranks of `0-3,5`.
fn expand(ranges: &str) -> Vec<u32> {
    let mut ranks = Vec::new();
    for range in ranges.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            ranks.extend(first..=last.min(first.saturating_add(skyward_api::MAX_POOL_NODES)));
        }
    }
    ranks
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let result = self.result.as_ref();
        let exit = match result {
            Some(RunResult {
                exit_code: Some(code),
                ..
            }) => code.to_string(),
            Some(RunResult { signal, .. }) if !signal.is_empty() => signal.clone(),
            _ => "-".to_owned(),
        };
        let value = match (&self.value, result.and_then(|result| result.value_bytes)) {
            (Some(value), _) => shorten(&value.to_string(), SHORT),
            (None, Some(bytes)) => format!("({bytes} bytes)"),
            (None, None) => "-".to_owned(),
        };
        vec![
            self.rank.to_string(),
            result.map_or_else(|| "-".to_owned(), |result| result.machine.clone()),
            if self.reason.is_empty() {
                "-".to_owned()
            } else {
                self.reason.clone()
            },
            exit,
            result.and_then(took).unwrap_or_else(|| "-".to_owned()),
            value,
        ]
    }

    fn json(&self) -> Value {
        let mut object = match self.result.as_ref().map(serde_json::to_value) {
            Some(Ok(Value::Object(object))) => object,
            _ => Map::new(),
        };
        object.insert("rank".to_owned(), json!(self.rank));
        if !self.reason.is_empty() {
            object.insert("reason".to_owned(), json!(self.reason));
        }
        if let Some(value) = &self.value {
            object.insert("value".to_owned(), value.clone());
        }
        Value::Object(object)
    }
}

/// How long a run took, such as `1m12s`.
fn took(result: &RunResult) -> Option<String> {
    let (start, end): (Timestamp, Timestamp) =
        (result.started_at.as_ref()?.0, result.finished_at.as_ref()?.0);
    Some(human(end.duration_since(start)))
}

fn human(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        // Times in the status are whole seconds.
        (0, 0, 0) => "<1s".to_owned(),
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

fn shorten(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    text.chars().take(longest - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(placement: &str, status: Value) -> Task {
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
            "spec": { "pool": "p", "placement": placement, "function": { "source": "x" } }, "status": status,
        }))
        .unwrap()
    }

    fn cells(task: &Task, values: &[(u32, Value)]) -> Vec<Vec<String>> {
        rows(task, task.status.as_ref().unwrap(), values, None)
            .iter()
            .map(Row::cells)
            .collect()
    }

    #[test]
    fn a_row_tells_how_a_run_ended() {
        let task = task(
            "all",
            json!({
                "phase": "Failed", "placed": ["0.1", "1.1"], "succeededRanks": "0", "failedRanks": "1",
                "results": [
                    { "rank": 1, "machine": "m-1", "attempt": 1, "reason": "KilledBySignal", "signal": "SIGKILL", "message": "killed" },
                    { "rank": 0, "machine": "m-0", "attempt": 1, "reason": "Succeeded", "exitCode": 0, "value": { "loss": 0.5 },
                      "startedAt": "2026-11-20T10:00:00Z", "finishedAt": "2026-11-20T10:01:12Z" },
                ],
            }),
        );
        assert_eq!(
            cells(&task, &[]),
            [
                ["0", "m-0", "Succeeded", "0", "1m12s", r#"{"loss":0.5}"#],
                ["1", "m-1", "KilledBySignal", "SIGKILL", "-", "-"],
            ]
        );
    }

    #[test]
    fn ranks_beyond_those_in_the_status_are_listed_with_their_values() {
        let results: Vec<Value> = (0..2)
            .map(|n| json!({ "rank": n, "machine": "m", "attempt": 1, "reason": "Succeeded", "exitCode": 0 }))
            .collect();
        let task = task(
            "all",
            json!({ "phase": "Succeeded", "placed": ["0.1", "1.1", "2.1", "3.1"], "succeededRanks": "0-3", "results": results }),
        );
        assert!(is_incomplete(task.status.as_ref().unwrap(), None));
        let cells = cells(&task, &[(3, json!("three"))]);
        assert_eq!(cells.len(), 4);
        assert_eq!(cells[3], ["3", "-", "Succeeded", "-", "-", "\"three\""]);
    }

    #[test]
    fn the_value_of_a_single_run_is_put_to_its_rank() {
        let task = task(
            "2",
            json!({ "phase": "Succeeded", "placed": ["4.1"], "succeededRanks": "2",
                "results": [{ "rank": 2, "machine": "m", "attempt": 1, "reason": "Succeeded", "valueBytes": 99 }] }),
        );
        assert!(is_incomplete(task.status.as_ref().unwrap(), None));
        let cells = cells(&task, &[(0, json!([1, 2]))]);
        assert_eq!(cells.len(), 1);
        assert_eq!(cells[0][5], "[1,2]");
    }

    #[test]
    fn long_values_are_shortened_at_a_character() {
        assert_eq!(shorten("ééé", 3), "ééé");
        assert_eq!(shorten("éééé", 3), "éé…");
    }

    #[test]
    fn ranges_are_ranks() {
        assert_eq!(expand("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(expand(""), Vec::<u32>::new());
        assert_eq!(expand("rubbish"), Vec::<u32>::new());
    }
}
