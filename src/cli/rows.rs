//! Rows of the table of results: how each run ended, and what it returned.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skyward_api::{TaskStatus, task::RunResult};

use crate::values;

/// Longest value in a table.
const SHORT: usize = 60;
/// Largest value that is fetched for a table, in bytes.
pub(crate) const SMALL: usize = 4096;
pub(crate) const SUCCEEDED: &str = skyward_api::condition::reason::SUCCEEDED;

pub(crate) const HEADINGS: [&str; 6] = ["RANK", "MACHINE", "STATUS", "EXIT", "DURATION", "VALUE"];

/// A return value, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Its JSON.
    Text(String),
    /// It has more bytes than a table asks for.
    Large,
    /// It is no JSON: its type and size.
    Described(String),
}

/// One run, from the status and the values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) rank: u32,
    pub(crate) result: Option<RunResult>,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) value: Option<Shown>,
}

/// Rows in order of rank: the status has details of at most eight runs, the others are known
/// as ranges of ranks that succeeded or failed.
pub(crate) fn rows(status: &TaskStatus, only: Option<u32>) -> BTreeMap<u32, Row> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let named = [
        (&status.succeeded_ranks, SUCCEEDED),
        (&status.failed_ranks, "Failed"),
    ];
    for (ranges, reason) in named {
        for rank in expand(ranges) {
            let row = rows.entry(rank).or_insert_with(|| Row::of(rank));
            reason.clone_into(&mut row.reason);
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
    pub(crate) fn of(rank: u32) -> Self {
        Self {
            rank,
            ..Self::default()
        }
    }

    /// Whether the store may have a small value that the status does not show.
    pub(crate) fn wants_value(&self) -> bool {
        let bytes = self.result.as_ref().map(|result| result.value_bytes);
        self.value.is_none()
            && match bytes {
                Some(bytes) => {
                    bytes.is_some_and(|bytes| usize::try_from(bytes).is_ok_and(|bytes| bytes <= SMALL))
                }
                None => self.reason == SUCCEEDED,
            }
    }

    /// Whether the store has a large value, which may have a header.
    pub(crate) fn wants_header(&self) -> bool {
        let bytes = self.result.as_ref().and_then(|result| result.value_bytes);
        self.value.is_none()
            && bytes.is_some_and(|bytes| usize::try_from(bytes).is_ok_and(|bytes| bytes > SMALL))
    }

    pub(crate) fn cells(&self) -> Vec<String> {
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
            (Some(Shown::Text(value)), _) => {
                values::described(value.as_bytes()).unwrap_or_else(|| shorten(value, SHORT))
            }
            (Some(Shown::Described(what)), _) => what.clone(),
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
    pub(crate) fn json(&self) -> String {
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

pub(crate) fn human(length: SignedDuration) -> String {
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
pub(crate) mod tests {
    use skyward_api::Task;

    use super::*;

    pub(crate) fn task(placement: &str, status: Value) -> Task {
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
            "spec": { "pool": "p", "placement": placement, "function": { "source": "x" } }, "status": status,
        }))
        .unwrap()
    }

    pub(crate) fn rows_of(task: &Task) -> BTreeMap<u32, Row> {
        rows(task.status.as_ref().unwrap(), None)
    }

    pub(crate) fn cells(rows: &BTreeMap<u32, Row>) -> Vec<Vec<String>> {
        rows.values().map(Row::cells).collect()
    }

    #[test]
    fn a_row_tells_how_a_run_ended() {
        let task = task(
            "all",
            json!({
                "phase": "Failed", "placed": [{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }], "succeededRanks": "0", "failedRanks": "1",
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
    fn a_large_value_is_not_fetched_for_the_table() {
        let result = |bytes: i64| {
            let result = json!({ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "valueBytes": bytes });
            rows_of(&task(
                "one",
                json!({ "phase": "Succeeded", "placed": [{ "slot": 4, "attempt": 1 }], "succeededRanks": "0", "results": [result] }),
            ))
        };
        assert!(result(99)[&0].wants_value());
        assert!(!result(50_000_000)[&0].wants_value());
        assert_eq!(cells(&result(50_000_000))[0][5], "(50000000 bytes)");
    }

    #[test]
    fn all_that_is_known_is_json() {
        let task = task(
            "one",
            json!({ "phase": "Succeeded", "placed": [{ "slot": 4, "attempt": 1 }], "succeededRanks": "0",
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
