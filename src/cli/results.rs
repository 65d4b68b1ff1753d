//! `kubectl skyward results`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use futures::{AsyncReadExt, StreamExt, TryStreamExt};
use jiff::Timestamp;
use serde_json::{Value, value::RawValue};
use skyward_api::{Task, TaskStatus, task::Kept};
use skyward_subresources::{
    items::indices,
    options::{Format, LogOptions},
};
use tokio::time::sleep;

use crate::{
    api::{Cluster, Failure},
    complain,
    items::{self, Form, Indices, Wanted},
    logs::{values as values_of, worst},
    rows::{HEADINGS, Row, SMALL, Shown, rows},
    table,
    target::{Target, Targets},
    values::{self, HEAD, Writer},
};

/// Values fetched at once for a table.
const AT_ONCE: usize = 16;
/// Most tries in a row without progress.
const TRIES: u32 = 4;

/// Arguments of `results`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    targets: Targets,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Prints each value that the function yields, or each item of forEach, as it comes, until the Task has ended. For
    /// one Task.
    #[arg(short, long)]
    follow: bool,
    /// Of a Task with forEach: only the items with these indices, such as 3,7-9.
    #[arg(long, value_name = "INDICES", value_parser = |text: &str| indices(text).map(Indices))]
    index: Option<Indices>,
    /// Of a Task with forEach: only items that failed.
    #[arg(long)]
    failed: bool,
    /// What this attempt yielded, from 1. Default: the current or last one, and with --follow those after it.
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// How it is printed.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Writes the return value into a file: the bytes of a NumPy array (.npy), an Arrow stream, a tensor of PyTorch or a
    /// pickle, else JSON. For one Task and one rank. Load a pickle only of a Task that you trust: it is a program.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "follow"])]
    save: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// An array with all that is known of each run; of several Tasks an object of such arrays.
    Json,
    /// What the function yields: an object {attempt, rank, index, value} for each value, one in a line; of a Task with
    /// forEach an object for each item. For one Task.
    Jsonl,
    /// The function's return value as JSON; of several ranks an array of {rank, value}; with -f each value that it yields,
    /// one in a line. Of a Task with forEach the value of each item in the order of the items, one in a line; the exit
    /// code is 1 when an item that ended has none. For one Task.
    Raw,
}

/// Prints the results.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let (targets, rank, output) = (arguments.targets, arguments.rank, arguments.output);
    let save = arguments.save;
    let wanted = Wanted {
        failed: arguments.failed,
        indices: arguments.index.map(|indices| indices.0).unwrap_or_default(),
        follow: arguments.follow,
        form: match output {
            Output::Table => Form::Table,
            Output::Json => Form::Json,
            Output::Jsonl => Form::Lines,
            Output::Raw => Form::Raw,
        },
    };
    let is_of_items = wanted.failed || !wanted.indices.is_empty();
    let could_be_items = targets.is_one() && rank.is_none() && arguments.attempt.is_none() && save.is_none();
    if is_of_items || could_be_items {
        match tasks(targets.clone().find(cluster).await?)?.as_slice() {
            [name] if has_items(cluster, name).await? => return items::print(cluster, name, &wanted).await,
            [name] if is_of_items => {
                return Err(anyhow!(
                    "Task {name:?} has no items (spec.forEach), which --index and --failed are for"
                ));
            }
            [_] => {}
            _ if is_of_items => return Err(anyhow!("--index and --failed are for one Task: name it")),
            _ => {}
        }
    }
    if arguments.follow || output == Output::Jsonl || arguments.attempt.is_some() {
        let options = LogOptions {
            follow: arguments.follow,
            rank,
            attempt: arguments.attempt,
            format: Format::Records,
            ..LogOptions::default()
        };
        return yielded(cluster, targets, options, output).await;
    }
    let is_one = targets.is_one();
    let names = tasks(targets.find(cluster).await?)?;
    if let (true, [name]) = (is_one, names.as_slice()) {
        if let Some(path) = save {
            return saved(cluster, name, rank, &path).await;
        }
        if output == Output::Raw {
            return raw(cluster, name, rank).await;
        }
        print(&gather(cluster, name, rank, output).await?, output, "")?;
        return Ok(ExitCode::SUCCESS);
    }
    if save.is_some() {
        return Err(anyhow!("--save writes the value of one Task: name it"));
    }
    if output == Output::Raw {
        return Err(anyhow!(
            "-o raw prints the value of one Task; of several -o json prints an object"
        ));
    }
    several(cluster, &names, rank, output).await
}

/// Prints what the function of one Task yields.
async fn yielded(
    cluster: &Cluster,
    targets: Targets,
    options: LogOptions,
    output: Output,
) -> Result<ExitCode> {
    let raw = match output {
        Output::Json => {
            return Err(anyhow!(
                "-o json prints an array when all is there; values as they come are printed with -o jsonl"
            ));
        }
        // Without -f this is the return value.
        Output::Table | Output::Raw if !options.follow => {
            return Err(anyhow!(
                "--attempt is for values that a function yields: add -f, or -o jsonl for the values that are there now"
            ));
        }
        Output::Raw => true,
        Output::Table | Output::Jsonl => false,
    };
    match tasks(targets.find(cluster).await?)?.as_slice() {
        [name] => values_of(cluster, name, options, raw).await,
        _ => Err(anyhow!("what a function yields is printed of one Task: name it")),
    }
}

/// Prints the results of several Tasks; one that cannot be read does not stop the others.
async fn several(cluster: &Cluster, names: &[String], rank: Option<u32>, output: Output) -> Result<ExitCode> {
    let mut codes = vec![ExitCode::SUCCESS];
    let mut objects = Vec::new();
    for name in names {
        match gather(cluster, name, rank, output).await {
            Ok(found) if output == Output::Json => objects.push(member(name, &found.json())),
            Ok(found) => {
                let gap = if codes.len() > 1 { "\n" } else { "" };
                print(&found, output, &format!("{gap}{name}:\n"))?;
                codes.push(ExitCode::SUCCESS);
            }
            Err(error) => {
                complain(&format!("error: {name}: {error:#}"));
                codes.push(ExitCode::FAILURE);
            }
        }
    }
    if output == Output::Json {
        writeln!(io::stdout(), "{}", object(&objects))?;
    }
    Ok(worst(codes))
}

/// One member of a JSON object.
fn member(name: &str, json: &str) -> String {
    format!("{}: {json}", Value::from(name))
}

fn object(members: &[String]) -> String {
    if members.is_empty() {
        return "{}".to_owned();
    }
    format!("{{\n{}\n}}", members.join(",\n"))
}

/// Names of Tasks: only Tasks have results, and say how far they are.
pub(crate) fn tasks(targets: Vec<Target>) -> Result<Vec<String>> {
    let name = |target| match target {
        Target::Task(name) => Ok(name),
        machine @ Target::Machine(_) => Err(anyhow!(
            "{machine} is no Task; `kubectl skyward logs {machine}` shows what its bootstrap printed"
        )),
    };
    targets.into_iter().map(name).collect()
}

/// The facts about a Task that are printed.
struct Gathered {
    name: String,
    rows: Vec<Row>,
}

impl Gathered {
    fn json(&self) -> String {
        let list: Vec<String> = self.rows.iter().map(Row::json).collect();
        if list.is_empty() {
            return "[]".to_owned();
        }
        format!("[\n{}\n]", list.join(",\n"))
    }
}

/// Prints a Task's facts, under a heading.
fn print(found: &Gathered, output: Output, heading: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(heading.as_bytes())?;
    if output == Output::Json {
        writeln!(out, "{}", found.json())?;
        return Ok(());
    }
    let Gathered { name, rows } = found;
    if rows.is_empty() {
        out.flush()?;
        complain(&format!("Task {name:?} has no results yet"));
        return Ok(());
    }
    let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    out.write_all(table::render(&HEADINGS, &cells).as_bytes())?;
    for row in rows.iter().filter(|row| !row.message.is_empty()) {
        out.flush()?;
        complain(&format!("rank {}: {}", row.rank, row.message));
    }
    Ok(())
}

async fn has_items(cluster: &Cluster, name: &str) -> Result<bool> {
    let task = cluster.task(name).await?;
    Ok(task.is_some_and(|task| task.spec.for_each.is_some()))
}

async fn task(cluster: &Cluster, name: &str) -> Result<Task> {
    cluster.task(name).await?.ok_or_else(|| {
        let namespace = &cluster.namespace;
        anyhow!("there is no Task {name:?} in the namespace {namespace:?}; `kubectl get tasks.skyward.dev -A` lists all")
    })
}

/// Reads a Task's facts.
async fn gather(cluster: &Cluster, name: &str, rank: Option<u32>, output: Output) -> Result<Gathered> {
    let task = task(cluster, name).await?;
    let status = task.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    if !phase.is_finished() {
        complain(&format!("Task {name:?} has not ended: it is {}", phase.as_str()));
    }
    let mut rows = rows(&status, rank);
    let expired = task.expiry(Kept::Results).filter(|at| *at <= Timestamp::now());
    if let Some(at) = expired {
        complain(&format!(
            "the return values of Task {name:?} expired at {} (spec.retention.results); its status shows the small ones",
            at.strftime("%Y-%m-%d %H:%M:%S UTC")
        ));
    }
    if task.spec.function.is_some() && phase.is_finished() && expired.is_none() {
        match output {
            Output::Table | Output::Raw | Output::Jsonl => fill_small(cluster, name, &mut rows).await?,
            Output::Json if is_incomplete(&status, rank) => {
                let several = rank.is_none() && is_array(&status);
                for (rank, value) in fetch(cluster, name, rank, several, &rows).await? {
                    rows.entry(rank).or_insert_with(|| Row::of(rank)).value = Some(Shown::Text(value));
                }
            }
            Output::Json => {}
        }
    }
    let rows: Vec<Row> = rows.into_values().collect();
    if let Some(rank) = rank
        && rows.is_empty()
        && phase.is_finished()
    {
        return Err(anyhow!("Task {name:?} has no rank {rank}"));
    }
    Ok(Gathered {
        name: name.to_owned(),
        rows,
    })
}

/// The return value as the API gives it, without ever holding it whole.
async fn raw(cluster: &Cluster, name: &str, rank: Option<u32>) -> Result<ExitCode> {
    let mut out = io::stdout();
    read(cluster, name, rank, |piece| out.write_all(piece).map(|()| true)).await?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the return value of one run into a file, which has its name once it is whole.
async fn saved(cluster: &Cluster, name: &str, rank: Option<u32>, path: &Path) -> Result<ExitCode> {
    let status = task(cluster, name).await?.status.unwrap_or_default();
    if rank.is_none() && is_array(&status) {
        return Err(anyhow!(
            "Task {name:?} has a value for each rank: say with --rank which one"
        ));
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let file = File::create(&part).with_context(|| format!("{} cannot be written", part.display()))?;
    let mut writer = Writer::new(BufWriter::new(file));
    let all = read(cluster, name, rank, |piece| writer.take(piece).map(|()| true)).await;
    let whole = match all {
        Ok(()) => writer.finish().map_err(anyhow::Error::from),
        Err(failure) => Err(failure.into()),
    };
    if let Err(error) = whole.and_then(|()| Ok(fs::rename(&part, path)?)) {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the API's answer to its end, or until `take` has enough. The API server cuts
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
        let error = match cluster.stream("tasks", name, &query(rank, offset)).await {
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

/// The part that begins at that offset.
fn query(rank: Option<u32>, offset: u64) -> String {
    rank.map_or_else(
        || format!("result?offset={offset}"),
        |rank| format!("result?rank={rank}&offset={offset}"),
    )
}

/// Whether the result API answers with an array of ranks.
fn is_array(status: &TaskStatus) -> bool {
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

/// Whether the failure just means that there is no value: the table says how the runs ended.
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

/// The values of an answer: that of one rank, or an array of `{rank, value}`. The values stay text,
/// so huge numbers and deep nesting do no harm. Invalid JSON is left out; the size shows that there
/// is a value.
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

/// Fetches values that the status lacks, for a table, which shows only the size of a large one.
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
    for row in rows.values_mut().filter(|row| row.wants_header()) {
        row.value = described(cluster, name, row.rank).await?.map(Shown::Described);
    }
    Ok(())
}

/// What a large value is, where it is no JSON.
async fn described(cluster: &Cluster, name: &str, rank: u32) -> Result<Option<String>> {
    let mut text = Vec::new();
    let beginning = |piece: &[u8]| {
        text.extend_from_slice(piece);
        Ok(text.len() < HEAD && values::described(&text).is_none())
    };
    match read(cluster, name, Some(rank), beginning).await {
        Ok(()) => Ok(values::described(&text)),
        Err(failure) if is_none(&failure) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// The value of one rank, if it is small.
async fn small(cluster: &Cluster, name: &str, rank: u32) -> Result<Option<Shown>> {
    let mut text = Vec::new();
    let some = |piece: &[u8]| {
        text.extend_from_slice(piece);
        // The newline at the end is no part of the value.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rows::tests::{cells, rows_of, task};

    #[test]
    fn ranks_beyond_those_in_the_status_are_listed_with_their_values() {
        let results: Vec<Value> = (0..2)
            .map(|n| json!({ "rank": n, "machine": "m", "attempt": 1, "reason": "Succeeded", "exitCode": 0 }))
            .collect();
        let task = task(
            "all",
            json!({ "phase": "Succeeded", "placed": [{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }, { "slot": 2, "attempt": 1 }, { "slot": 3, "attempt": 1 }], "succeededRanks": "0-3", "results": results }),
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
    fn a_single_run_may_return_what_looks_like_ranks() {
        let list = r#"[{"rank":5,"value":1},{"rank":6,"value":2}]"#;
        assert_eq!(split(list.as_bytes(), Some(0)), [(0, list.to_owned())]);
        assert_eq!(
            split(format!("{list}\n").as_bytes(), None),
            [(5, "1".to_owned()), (6, "2".to_owned())]
        );
        let status = |placed: Value| task("all", json!({ "placed": placed })).status.unwrap();
        assert!(!is_array(&status(json!([{ "slot": 0, "attempt": 1 }]))));
        assert!(is_array(&status(
            json!([{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }])
        )));
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
            let task = task(
                "one",
                json!({ "placed": [{ "slot": 0, "attempt": 1 }], "results": [result] }),
            );
            is_incomplete(task.status.as_ref().unwrap(), None)
        };
        assert!(!shown(json!({ "a": [1, 2] }), 11));
        assert!(shown(json!(1), 3), "it was 1.0");
    }

    #[test]
    fn several_tasks_are_one_object_by_their_names() {
        let of = |placement: &str, results: Value| Gathered {
            name: "t".into(),
            rows: rows_of(&task(
                placement,
                json!({ "phase": "Succeeded", "placed": [{ "slot": 0, "attempt": 1 }], "results": results }),
            ))
            .into_values()
            .collect(),
        };
        let run = json!([{ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": 1 }]);
        let members = [
            member("a", &of("one", run).json()),
            member("b.c", &of("one", json!([])).json()),
        ];
        let whole: Value = serde_json::from_str(&object(&members)).unwrap();
        assert_eq!((&whole["a"][0]["value"], &whole["b.c"]), (&json!(1), &json!([])));
        assert_eq!(object(&[]), "{}");
    }

    #[test]
    fn a_machine_has_no_results_and_it_is_said_what_it_has() {
        let refused = tasks(vec![Target::Task("t".into()), Target::Machine("m".into())]);
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("kubectl skyward logs machine/m")
        );
    }
}
