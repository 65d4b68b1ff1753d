//! `kubectl skyward results`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use futures::{AsyncReadExt, StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json, value::RawValue};
use skyward_api::{TaskStatus, task::RunResult};
use tokio::time::sleep;

use crate::{
    api::{Cluster, Failure, task_name},
    complain, table,
};

/// Longest value in a table.
const SHORT: usize = 60;
/// A larger value is not fetched for a table, in bytes.
const SMALL: usize = 4096;
/// Values fetched at once for a table.
const AT_ONCE: usize = 16;
/// Tries in a row that bring nothing.
const TRIES: u32 = 4;

/// Arguments of `results`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Name of the Task.
    #[arg(value_parser = task_name)]
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
    let mut rows = rows(&status, rank);
    if task.spec.function.is_some() && phase.is_finished() {
        match output {
            Output::Table | Output::Raw => fill_small(cluster, &name, &mut rows).await?,
            Output::Json if is_incomplete(&status, rank) => {
                let several = rank.is_none() && several(&status);
                for (rank, value) in fetch(cluster, &name, rank, several, &rows).await? {
                    rows.entry(rank).or_insert_with(|| Row::of(rank)).value = Some(Shown::Text(value));
                }
            }
            Output::Json => {}
        }
    }
    let rows: Vec<Row> = rows.into_values().collect();
    let mut out = io::stdout().lock();
    match output {
        Output::Json => {
            let list: Vec<String> = rows.iter().map(Row::json).collect();
            let list = list.join(",\n");
            writeln!(
                out,
                "{}",
                if list.is_empty() {
                    "[]".to_owned()
                } else {
                    format!("[\n{list}\n]")
                }
            )?;
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
    let mut out = io::stdout();
    read(cluster, name, rank, |piece| out.write_all(piece).map(|()| true)).await?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Reads what the API answers until its end, or until `take` has enough. The API server cuts
/// every answer off after 60 s, so it comes in parts; the last one ends with a newline.
async fn read(
    cluster: &Cluster,
    name: &str,
    rank: Option<u32>,
    mut take: impl FnMut(&[u8]) -> io::Result<bool>,
) -> Result<(), Failure> {
    let (mut offset, mut failures) = (0_u64, 0);
    let mut piece = vec![0; 64 * 1024];
    loop {
        let before = offset;
        let error = match cluster.stream(name, "result", &query(rank, offset)).await {
            Err(Failure::Passing(error)) => error,
            Err(lasting) => return Err(lasting),
            Ok(stream) => {
                let mut stream = Box::pin(stream);
                let mut last = None;
                loop {
                    match stream.read(&mut piece).await {
                        Ok(0) if last == Some(b'\n') => return Ok(()),
                        Ok(0) => break anyhow!("the server is too slow to send any of the rest"),
                        Ok(length) => {
                            last = piece[..length].last().copied();
                            offset += length as u64;
                            if !take(&piece[..length]).map_err(|error| Failure::Lasting(error.into()))? {
                                return Ok(());
                            }
                        }
                        Err(error) => break error.into(),
                    }
                }
            }
        };
        if offset > before {
            failures = 0;
            continue;
        }
        failures += 1;
        if failures == TRIES {
            return Err(Failure::Passing(error));
        }
        sleep(Duration::from_millis(200 << failures)).await;
    }
}

fn query(rank: Option<u32>, offset: u64) -> String {
    rank.map_or_else(
        || format!("offset={offset}"),
        |rank| format!("rank={rank}&offset={offset}"),
    )
}

/// Whether the result API answers with an array of ranks.
fn several(status: &TaskStatus) -> bool {
    status.placed.len() > 1
}

/// Whether the status lacks values that the result API may have, or shows them in other words.
fn is_incomplete(status: &TaskStatus, rank: Option<u32>) -> bool {
    let shown = status
        .results
        .iter()
        .filter(|result| rank.is_none_or(|rank| result.rank == rank));
    let mut count = 0;
    for result in shown {
        count += 1;
        let length = result.value.as_ref().map(|value| value.to_string().len());
        let bytes = result.value_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        if bytes.is_some() && length != bytes {
            return true;
        }
    }
    count == 0 || (rank.is_none() && status.placed.len() > count)
}

/// Whether there is just no value: the table says how the runs ended.
fn is_none(failure: &Failure) -> bool {
    matches!(failure, Failure::Lasting(error) if error.to_string().contains("has no return value"))
}

/// The JSON of values by rank.
async fn fetch(
    cluster: &Cluster,
    name: &str,
    rank: Option<u32>,
    several: bool,
    rows: &BTreeMap<u32, Row>,
) -> Result<Vec<(u32, String)>> {
    let mut text = Vec::new();
    let all = |piece: &[u8]| {
        text.extend_from_slice(piece);
        Ok(true)
    };
    match read(cluster, name, rank, all).await {
        Ok(()) => {}
        Err(failure) if is_none(&failure) => return Ok(Vec::new()),
        Err(failure) => return Err(failure.into()),
    }
    // The value of a single run comes without its rank.
    let single = rank.or_else(|| rows.keys().next().copied()).unwrap_or_default();
    Ok(split(&text, (!several).then_some(single)))
}

/// The values of an answer: that of one rank, or an array of `{rank, value}`. They are only
/// passed on, so numbers and nesting that nothing here could hold do no harm. What is not
/// JSON is left out; the size says that there is something.
fn split(text: &[u8], single: Option<u32>) -> Vec<(u32, String)> {
    type Object<'a> = BTreeMap<String, &'a RawValue>;
    let owned = |value: &RawValue| value.get().to_owned();
    if let Some(rank) = single {
        let value: Option<&RawValue> = serde_json::from_slice(text).ok();
        return value.map(|value| (rank, owned(value))).into_iter().collect();
    }
    let list: Vec<Object<'_>> = serde_json::from_slice(text).unwrap_or_default();
    list.iter()
        .filter_map(|object| {
            Some((
                object.get("rank")?.get().parse().ok()?,
                owned(object.get("value")?),
            ))
        })
        .collect()
}

/// Fetches what a table shows of values that the status does not have. Of a large one it
/// shows the size.
async fn fill_small(cluster: &Cluster, name: &str, rows: &mut BTreeMap<u32, Row>) -> Result<()> {
    let wanted: Vec<u32> = rows
        .values()
        .filter(|row| row.wants_value())
        .map(|row| row.rank)
        .collect();
    let fetched: Vec<(u32, Option<Shown>)> = futures::stream::iter(wanted)
        .map(|rank| async move { Ok::<_, anyhow::Error>((rank, small(cluster, name, rank).await?)) })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    for (rank, value) in fetched {
        rows.entry(rank).or_insert_with(|| Row::of(rank)).value = value;
    }
    Ok(())
}

/// The value of one rank, if it is small.
async fn small(cluster: &Cluster, name: &str, rank: u32) -> Result<Option<Shown>> {
    let mut text = Vec::new();
    let some = |piece: &[u8]| {
        text.extend_from_slice(piece);
        // The newline at the end is no part of it.
        Ok(text.len() <= SMALL + 1)
    };
    match read(cluster, name, Some(rank), some).await {
        Ok(()) if text.len() > SMALL + 1 => Ok(Some(Shown::Large)),
        Ok(()) => Ok(Some(Shown::Text(
            String::from_utf8_lossy(&text).trim_end().to_owned(),
        ))),
        Err(failure) if is_none(&failure) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

const SUCCEEDED: &str = skyward_api::condition::reason::SUCCEEDED;

const HEADINGS: [&str; 6] = ["RANK", "MACHINE", "STATUS", "EXIT", "DURATION", "VALUE"];

/// A return value, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    /// Its JSON.
    Text(String),
    /// It has more bytes than a table asks for.
    Large,
}

/// One run, from the status and the values.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    rank: u32,
    result: Option<RunResult>,
    reason: String,
    message: String,
    value: Option<Shown>,
}

/// Rows in order of rank: the status has details of at most eight runs, the others are known
/// as ranges of ranks that succeeded or failed.
fn rows(status: &TaskStatus, only: Option<u32>) -> BTreeMap<u32, Row> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let named = [
        (&status.succeeded_ranks, SUCCEEDED),
        (&status.failed_ranks, "Failed"),
    ];
    for (ranges, reason) in named {
        for rank in expand(ranges) {
            let reason = reason.to_owned();
            rows.insert(
                rank,
                Row {
                    reason,
                    ..Row::of(rank)
                },
            );
        }
    }
    for result in &status.results {
        let row = Row {
            rank: result.rank,
            reason: result.reason.clone(),
            message: result.message.clone(),
            value: result.value.as_ref().map(|value| Shown::Text(value.to_string())),
            result: Some(result.clone()),
        };
        rows.insert(result.rank, row);
    }
    rows.retain(|rank, _| only.is_none_or(|only| only == *rank));
    rows
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
    fn of(rank: u32) -> Self {
        Self {
            rank,
            ..Self::default()
        }
    }

    /// Whether the store may have a small value that the status does not show.
    fn wants_value(&self) -> bool {
        let bytes = self.result.as_ref().map(|result| result.value_bytes);
        self.value.is_none()
            && match bytes {
                Some(bytes) => {
                    bytes.is_some_and(|bytes| usize::try_from(bytes).is_ok_and(|bytes| bytes <= SMALL))
                }
                None => self.reason == SUCCEEDED,
            }
    }

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
            (Some(Shown::Text(value)), _) => shorten(value, SHORT),
            (_, Some(bytes)) => format!("({bytes} bytes)"),
            (Some(Shown::Large), None) => format!("(more than {SMALL} bytes)"),
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

    /// An object; the value stands in it as the function gave it.
    fn json(&self) -> String {
        let mut object = match self.result.as_ref().map(serde_json::to_value) {
            Some(Ok(Value::Object(object))) => object,
            _ => serde_json::Map::new(),
        };
        object.insert("rank".to_owned(), json!(self.rank));
        if !self.reason.is_empty() {
            object.insert("reason".to_owned(), json!(self.reason));
        }
        let mut members: Vec<(String, String)> = object
            .into_iter()
            .filter(|(name, _)| name != "value")
            .map(|(name, member)| (name, member.to_string()))
            .collect();
        if let Some(Shown::Text(value)) = &self.value {
            members.push(("value".to_owned(), value.clone()));
        }
        let lines: Vec<String> = members
            .iter()
            .map(|(name, text)| format!("    {}: {text}", Value::from(name.as_str())))
            .collect();
        format!("  {{\n{}\n  }}", lines.join(",\n"))
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
    use skyward_api::Task;

    use super::*;

    fn task(placement: &str, status: Value) -> Task {
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
            "spec": { "pool": "p", "placement": placement, "function": { "source": "x" } }, "status": status,
        }))
        .unwrap()
    }

    fn rows_of(task: &Task) -> BTreeMap<u32, Row> {
        rows(task.status.as_ref().unwrap(), None)
    }

    fn cells(rows: &BTreeMap<u32, Row>) -> Vec<Vec<String>> {
        rows.values().map(Row::cells).collect()
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
            cells(&rows_of(&task)),
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
        let mut rows = rows_of(&task);
        assert!(!rows[&0].wants_value(), "it returned nothing");
        assert!(rows[&3].wants_value());
        rows.get_mut(&3).unwrap().value = Some(Shown::Text("\"three\"".to_owned()));
        rows.get_mut(&2).unwrap().value = Some(Shown::Large);
        let cells = cells(&rows);
        assert_eq!(cells.len(), 4);
        assert_eq!(cells[2][5], "(more than 4096 bytes)");
        assert_eq!(cells[3], ["3", "-", "Succeeded", "-", "-", "\"three\""]);
    }

    #[test]
    fn a_large_value_is_not_fetched_for_the_table() {
        let result = |bytes: i64| {
            let result = json!({ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "valueBytes": bytes });
            rows_of(&task(
                "one",
                json!({ "phase": "Succeeded", "placed": ["4.1"], "succeededRanks": "0", "results": [result] }),
            ))
        };
        assert!(result(99)[&0].wants_value());
        assert!(!result(50_000_000)[&0].wants_value());
        assert_eq!(cells(&result(50_000_000))[0][5], "(50000000 bytes)");
    }

    #[test]
    fn a_single_run_may_return_what_looks_like_ranks() {
        let list = r#"[{"rank":5,"value":1},{"rank":6,"value":2}]"#;
        assert_eq!(split(list.as_bytes(), Some(0)), [(0, list.to_owned())]);
        assert_eq!(
            split(format!("{list}\n").as_bytes(), None),
            [(5, "1".to_owned()), (6, "2".to_owned())]
        );
        let status = |placed: Value| task("all", json!({ "placed": placed })).status.unwrap();
        assert!(!several(&status(json!(["0.1"]))));
        assert!(several(&status(json!(["0.1", "1.1"]))));
    }

    #[test]
    fn values_that_nothing_here_can_hold_are_passed_on() {
        let large = "9".repeat(400);
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for value in [large, nested, "18446744073709551615".to_owned(), "1.0".to_owned()] {
            assert_eq!(split(value.as_bytes(), Some(0)), [(0, value.clone())]);
            let row = Row {
                value: Some(Shown::Text(value.clone())),
                ..Row::of(0)
            };
            assert!(
                row.json().contains(&format!("\"value\": {value}")),
                "{}",
                row.json()
            );
        }
        assert_eq!(split(b"NaN", Some(0)), []);
    }

    #[test]
    fn what_the_status_shows_in_other_words_is_asked_for() {
        let shown = |value: Value, bytes: usize| {
            let result = json!({ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": value, "valueBytes": bytes });
            let task = task("one", json!({ "placed": ["0.1"], "results": [result] }));
            is_incomplete(task.status.as_ref().unwrap(), None)
        };
        assert!(!shown(json!({ "a": [1, 2] }), 11));
        assert!(shown(json!(1), 3), "it was 1.0");
    }

    #[test]
    fn all_that_is_known_is_json() {
        let task = task(
            "one",
            json!({ "phase": "Succeeded", "placed": ["4.1"], "succeededRanks": "0",
                "results": [{ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": { "a": "\"" } }] }),
        );
        let row: Value = serde_json::from_str(&rows_of(&task)[&0].json()).unwrap();
        assert_eq!(
            row,
            json!({ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": { "a": "\"" } })
        );
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
