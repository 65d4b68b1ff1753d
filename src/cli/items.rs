//! `kubectl skyward results` of a Task with `forEach`, and `kubectl skyward retry`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    ops::RangeInclusive,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::Args;
use futures::{AsyncBufReadExt, StreamExt};
use serde_json::value::RawValue;
use skyward_api::{TaskPhase, TaskStatus};
use skyward_subresources::items::{Again, ItemsQuery, Order, beyond, indices};
use tokio::time::sleep;

use crate::{
    api::{Cluster, Failure},
    complain, table,
};

/// Between two looks for more while the Task runs.
const LOOK: Duration = Duration::from_secs(1);
/// Most tries in a row without progress.
const TRIES: u32 = 5;
/// Letters of a value in a table.
const SHOWN: usize = 60;
const HEADINGS: [&str; 5] = ["INDEX", "ATTEMPT", "REASON", "TIME", "VALUE"];

/// Which items are printed, and how.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Only items that failed.
    pub(crate) failed: bool,
    /// Only those with these indices; none: all.
    pub(crate) indices: Vec<RangeInclusive<u32>>,
    /// As they end, until the Task has ended.
    pub(crate) follow: bool,
    /// How they are printed.
    pub(crate) form: Form,
}

/// How items are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Table,
    /// An array.
    Json,
    /// An object in each line.
    Lines,
    /// The value alone in each line.
    Raw,
}

/// One item, as the server tells it.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    index: u32,
    attempt: u32,
    text: String,
}

/// A page of items.
#[derive(Debug, Default, PartialEq)]
struct Page {
    items: Vec<Item>,
    /// Where the next page begins, and whether there is more now.
    rest: Option<(u64, bool)>,
}

impl Page {
    /// Takes a line of the answer in.
    fn take(&mut self, line: &str) -> Result<()> {
        let strange =
            || anyhow!("the server's answer cannot be read; is the plugin of the version of the operator?");
        let fields = fields(line).map_err(|_| strange())?;
        let number = |name: &str| fields.get(name).and_then(|value| value.get().parse::<u64>().ok());
        if let Some(index) = number("index") {
            self.items.push(Item {
                index: u32::try_from(index).map_err(|_| strange())?,
                attempt: number("attempt")
                    .and_then(|number| number.try_into().ok())
                    .unwrap_or(1),
                text: line.to_owned(),
            });
            return Ok(());
        }
        self.rest = match (number("next"), number("end")) {
            (Some(next), _) => Some((next, true)),
            (None, Some(end)) => Some((end, false)),
            (None, None) => return Err(strange()),
        };
        Ok(())
    }
}

/// Asks until there is an answer that is final: a few times, or for as long as it takes where somebody follows, who is told
/// once.
async fn patiently<T, F: Future<Output = Result<T, Failure>>>(
    name: &str,
    follows: bool,
    ask: impl Fn() -> F,
) -> Result<T, Failure> {
    let mut tries = 0;
    loop {
        let error = match ask().await {
            Err(Failure::Passing(error)) => error,
            answer => return answer,
        };
        tries += 1;
        if tries == TRIES && !follows {
            return Err(Failure::Passing(error));
        }
        if tries == TRIES {
            complain(&format!(
                "the items of Task {name:?} cannot be read at the moment, trying again: {error:#}"
            ));
        }
        sleep(Duration::from_millis(200 << tries.min(4))).await;
    }
}

async fn page(cluster: &Cluster, name: &str, query: &ItemsQuery) -> Result<Page, Failure> {
    let path = format!("result/items?{}", query.query());
    let stream = cluster.stream("tasks", name, &path).await?;
    let mut lines = Box::pin(stream).lines();
    let mut page = Page::default();
    while let Some(line) = lines.next().await {
        let line = line.map_err(|error| Failure::Passing(error.into()))?;
        page.take(&line).map_err(Failure::Lasting)?;
    }
    if page.rest.is_none() {
        return Err(Failure::Passing(anyhow!("the answer of the server broke off")));
    }
    Ok(page)
}

/// Writes items as they come.
struct Printer<W> {
    out: W,
    form: Form,
    printed: u64,
    /// Items that have no value, where values alone are printed.
    left_out: u64,
}

/// What was printed.
#[derive(Debug, PartialEq)]
struct Printed {
    items: u64,
    left_out: u64,
}

impl<W: Write> Printer<W> {
    fn new(out: W, form: Form) -> Self {
        Self {
            out,
            form,
            printed: 0,
            left_out: 0,
        }
    }

    fn print(&mut self, items: &[&Item]) -> io::Result<()> {
        match self.form {
            Form::Table => {
                let rows: Vec<Vec<String>> = items.iter().map(|item| cells(item)).collect();
                if !rows.is_empty() {
                    let text = table::render(&HEADINGS, &rows);
                    // The headings stand over the first page.
                    let skipped = if self.printed == 0 {
                        0
                    } else {
                        text.find('\n').map_or(0, |end| end + 1)
                    };
                    self.out.write_all(&text.as_bytes()[skipped..])?;
                }
            }
            Form::Json => {
                for (number, item) in (self.printed..).zip(items) {
                    let before = if number == 0 { "[\n" } else { ",\n" };
                    write!(self.out, "{before}{}", item.text)?;
                }
            }
            Form::Lines => {
                for item in items {
                    writeln!(self.out, "{}", item.text)?;
                }
            }
            Form::Raw => {
                for item in items {
                    match fields(&item.text).unwrap_or_default().get("value") {
                        Some(value) => writeln!(self.out, "{}", value.get())?,
                        None => self.left_out += 1,
                    }
                }
            }
        }
        self.printed += items.len() as u64;
        self.out.flush()
    }

    fn end(mut self) -> io::Result<Printed> {
        if self.form == Form::Json {
            let end = if self.printed == 0 { "[]\n" } else { "\n]\n" };
            self.out.write_all(end.as_bytes())?;
        }
        Ok(Printed {
            items: self.printed,
            left_out: self.left_out,
        })
    }
}

impl Printed {
    /// The exit code; it fails where a value is missing, which a line that is not there does not say.
    fn code(&self, name: &str) -> ExitCode {
        if self.left_out == 0 {
            return ExitCode::SUCCESS;
        }
        complain(&format!(
            "{} items of Task {name:?} have no value: they failed, or their work returns none; `kubectl skyward results {name} \
             -o jsonl` shows how each item ended",
            self.left_out
        ));
        ExitCode::FAILURE
    }
}

/// The fields of a line. Values stay text, so that huge numbers and deep nesting do no harm.
fn fields(line: &str) -> serde_json::Result<BTreeMap<String, &RawValue>> {
    serde_json::from_str(line)
}

fn cells(item: &Item) -> Vec<String> {
    let fields = fields(&item.text).unwrap_or_default();
    let text = |name: &str| {
        let text = fields
            .get(name)
            .and_then(|value| serde_json::from_str::<String>(value.get()).ok());
        text.unwrap_or_default()
    };
    let milliseconds = fields
        .get("milliseconds")
        .and_then(|time| time.get().parse::<u64>().ok());
    let time = milliseconds.map_or_else(String::new, |time| format!("{}.{:03}s", time / 1000, time % 1000));
    let value = fields.get("value").map(|value| value.get().to_owned());
    let shown: String = value
        .unwrap_or_else(|| text("message"))
        .chars()
        .take(SHOWN)
        .collect();
    vec![
        item.index.to_string(),
        item.attempt.to_string(),
        text("reason"),
        time,
        shown.replace(['\n', '\r'], " "),
    ]
}

/// Prints what became of the items of a Task.
pub(crate) async fn print(cluster: &Cluster, name: &str, wanted: &Wanted) -> Result<ExitCode> {
    let mut printer = Printer::new(io::stdout(), wanted.form);
    if wanted.follow {
        return follow(cluster, name, wanted, printer).await;
    }
    // Asked before: what is said to have ended is in the pages that follow.
    let status = patiently(name, false, || status(cluster, name)).await?;
    let all = [0..=u32::MAX];
    let ranges = if wanted.indices.is_empty() {
        &all[..]
    } else {
        &wanted.indices[..]
    };
    for range in ranges {
        let mut from = *range.start();
        loop {
            let query = ItemsQuery {
                order: Order::Index(from..=*range.end()),
                failed: wanted.failed,
            };
            let page = patiently(name, false, || page(cluster, name, &query)).await?;
            let within: Vec<&Item> = page
                .items
                .iter()
                .filter(|item| range.contains(&item.index))
                .collect();
            printer.print(&within)?;
            let next = page
                .rest
                .filter(|(_, more)| *more)
                .and_then(|(next, _)| u32::try_from(next).ok());
            match next.filter(|next| next <= range.end() && *next > from) {
                Some(next) => from = next,
                None => break,
            }
        }
    }
    let printed = printer.end()?;
    if let Some(why) = no_such_item(name, wanted, &status) {
        complain(&why);
        return Ok(ExitCode::FAILURE);
    }
    if let Some(rest) = missing(name, wanted, &status, printed.items) {
        complain(&rest);
    }
    Ok(printed.code(name))
}

/// What is said of an index that no item has.
fn no_such_item(name: &str, wanted: &Wanted, status: &TaskStatus) -> Option<String> {
    let total = status.items.as_ref()?.total;
    let index = beyond(&wanted.indices, total)?;
    Some(format!(
        "error: Task {name:?} has no item {index}, but {total} items, which are numbered from 0"
    ))
}

/// What is said where items may be missing among so many that were printed.
fn missing(name: &str, wanted: &Wanted, status: &TaskStatus, printed: u64) -> Option<String> {
    let phase = status.phase.unwrap_or_default();
    let how_far = status.items.as_ref().map_or_else(
        || "its items have not been read".to_owned(),
        |items| format!("{} items have ended", items.done()),
    );
    let phase_and_items = format!("it is {}, and {how_far}", phase.as_str());
    if printed > 0 {
        return (!phase.is_finished()).then(|| format!("Task {name:?} has not ended: {phase_and_items}"));
    }
    let which = match (wanted.failed, wanted.indices.is_empty()) {
        (true, true) => "no item has failed",
        (true, false) => "none of these items has failed",
        (false, true) => "no item has ended",
        (false, false) => "none of these items has ended",
    };
    Some(format!("Task {name:?}: {which}; {phase_and_items}"))
}

/// Prints items as they end, each of its attempts that is the last one, until the Task has ended.
async fn follow<W: Write>(
    cluster: &Cluster,
    name: &str,
    wanted: &Wanted,
    mut printer: Printer<W>,
) -> Result<ExitCode> {
    let mut seen: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut since = 0;
    loop {
        // Asked before: what ended before the Task did is in the pages that follow.
        let status = patiently(name, true, || status(cluster, name)).await?;
        let phase = status.phase.unwrap_or_default();
        if let Some(why) = no_such_item(name, wanted, &status) {
            printer.end()?;
            complain(&why);
            return Ok(ExitCode::FAILURE);
        }
        loop {
            let query = ItemsQuery {
                order: Order::Log(since),
                failed: wanted.failed,
            };
            let page = patiently(name, true, || page(cluster, name, &query)).await?;
            let is_wanted = |item: &&Item| {
                wanted.indices.is_empty() || wanted.indices.iter().any(|range| range.contains(&item.index))
            };
            let new: Vec<&Item> = page
                .items
                .iter()
                .filter(is_wanted)
                .filter(|item| seen.insert((item.index, item.attempt)))
                .collect();
            printer.print(&new)?;
            let Some((next, more)) = page.rest else { break };
            let goes_on = more && next > since;
            since = next;
            if !goes_on {
                break;
            }
        }
        if phase.is_finished() {
            let printed = printer.end()?;
            if let Some(none) = missing(name, wanted, &status, printed.items) {
                complain(&none);
            }
            let code = printed.code(name);
            return Ok(if phase == TaskPhase::Failed {
                ExitCode::FAILURE
            } else {
                code
            });
        }
        sleep(LOOK).await;
    }
}

async fn status(cluster: &Cluster, name: &str) -> Result<TaskStatus, Failure> {
    let task = cluster.task(name).await?;
    let task = task.ok_or_else(|| Failure::Lasting(anyhow!("Task {name:?} was deleted")))?;
    Ok(task.status.unwrap_or_default())
}

/// Arguments of `retry`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The Task, which has ended.
    #[arg(value_name = "TASK")]
    task: String,
    /// The items that failed, and the items that were not run. This is the default.
    #[arg(long, conflicts_with = "index")]
    failed: bool,
    /// The items with these indices, such as 3,7-9, also if they succeeded, and the items that were not run.
    #[arg(long, value_name = "INDICES", value_parser = |text: &str| indices(text).map(Indices))]
    index: Option<Indices>,
}

/// Indices on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Indices(pub(crate) Vec<RangeInclusive<u32>>);

/// Runs items of a Task again.
pub(crate) async fn retry(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let Arguments { task, index, .. } = arguments;
    let name = crate::api::name_of(&task, &["task", "tasks", "sktask"]).unwrap_or(task);
    let again = index.map_or(Again::Failed, |indices| Again::Indices(indices.0));
    // A request that is sent twice must not have items run twice. Not everybody who may retry may read Tasks.
    let task = cluster.task(&name).await.ok().flatten();
    let attempt = task.and_then(|task| task.status).map(|status| status.attempt);
    let attempt = attempt.map_or_else(String::new, |attempt| format!("&attempt={attempt}"));
    let said = cluster
        .create("tasks", &name, &format!("retry?{}{attempt}", again.query()))
        .await?;
    io::stdout().write_all(said.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};

    use super::*;

    fn filled(lines: &[&str]) -> Page {
        let mut page = Page::default();
        for line in lines {
            page.take(line).unwrap();
        }
        page
    }

    const ONE: &str = r#"{"attempt":1,"index":0,"milliseconds":1500,"reason":"Succeeded","value":[1, 2]}"#;
    const TWO: &str =
        r#"{"attempt":2,"index":7,"message":"ValueError: x","milliseconds":20,"reason":"FunctionRaised"}"#;

    #[test]
    fn a_page_is_whole_with_its_last_line() {
        let page = filled(&[ONE, TWO, r#"{"next":8}"#]);
        let items: Vec<(u32, u32)> = page.items.iter().map(|item| (item.index, item.attempt)).collect();
        assert_eq!((items, page.rest), (vec![(0, 1), (7, 2)], Some((8, true))));
        assert_eq!(filled(&[r#"{"end":3}"#]).rest, Some((3, false)));
        assert!(Page::default().take("[]").is_err() && Page::default().take("{}").is_err());
    }

    fn printed(form: Form, pages: &[&[&str]]) -> String {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, form);
        for lines in pages {
            let page = filled(lines);
            printer.print(&page.items.iter().collect::<Vec<_>>()).unwrap();
        }
        printer.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    /// How an answer that comes after so many failures of a moment is waited for.
    async fn waited(failures: u32, follows: bool) -> bool {
        let asked = std::cell::Cell::new(0);
        let ask = || async {
            asked.set(asked.get() + 1);
            if asked.get() > failures {
                Ok(())
            } else {
                Err(Failure::Passing(anyhow!("nobody leads")))
            }
        };
        patiently("t", follows, ask).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_gives_up_after_a_few_tries_and_a_follower_never() {
        assert!(waited(TRIES - 1, false).await && !waited(TRIES, false).await);
        assert!(waited(100, true).await);
        let lasting = || async { Err::<(), _>(Failure::Lasting(anyhow!("no right"))) };
        assert!(patiently("t", true, lasting).await.is_err());
    }

    fn wanted(indices: Vec<RangeInclusive<u32>>, failed: bool, follow: bool) -> Wanted {
        Wanted {
            failed,
            indices,
            follow,
            form: Form::Table,
        }
    }

    /// A Task with ten items, of which the first one alone has ended, as in `status`.
    async fn asked(status: &Value, wanted: &Wanted) -> ExitCode {
        let task = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
            "spec": { "pool": "p", "command": ["true"], "forEach": { "count": 10 } }, "status": status,
        });
        let server = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().to_string();
            let body = if path.contains("/result/items?") {
                format!("{ONE}\n{{\"end\":1}}\n")
            } else {
                task.to_string()
            };
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let cluster = Cluster::of(Client::new(server, "team"));
        print(&cluster, "t", wanted).await.unwrap()
    }

    #[tokio::test]
    async fn an_index_that_no_item_has_ends_with_a_failure_also_while_the_task_runs() {
        let running = json!({ "phase": "Running", "items": { "total": 10, "succeeded": 1 } });
        let ended = json!({ "phase": "Succeeded", "items": { "total": 10, "succeeded": 10 } });
        for follow in [false, true] {
            for indices in [vec![999..=999], vec![0..=0, 9..=10]] {
                let wanted = wanted(indices, false, follow);
                assert_eq!(asked(&running, &wanted).await, ExitCode::FAILURE, "{wanted:?}");
                assert_eq!(asked(&ended, &wanted).await, ExitCode::FAILURE, "{wanted:?}");
            }
            let last = wanted(vec![9..=9], false, follow);
            assert_eq!(asked(&ended, &last).await, ExitCode::SUCCESS);
        }
        let unread = wanted(vec![999..=999], false, false);
        assert_eq!(
            asked(&json!({ "phase": "Pending" }), &unread).await,
            ExitCode::SUCCESS,
            "it may have so many"
        );
    }

    #[tokio::test]
    async fn the_server_is_asked_for_no_item_behind_a_range_and_one_that_tells_of_such_items_does_no_harm() {
        let (asks, asked) = std::sync::mpsc::channel();
        let server = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().to_string();
            let body = match path.split_once("/result/items?") {
                // An older server knows no end of a range.
                Some((_, query)) => {
                    asks.send(query.to_owned()).unwrap();
                    format!("{ONE}\n{TWO}\n{{\"next\":8}}\n")
                }
                None => json!({
                    "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
                    "spec": { "pool": "p", "command": ["true"], "forEach": { "count": 10 } },
                })
                .to_string(),
            };
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let cluster = Cluster::of(Client::new(server, "team"));
        let some = wanted(vec![0..=0, 3..=7], false, false);
        print(&cluster, "t", &some).await.unwrap();
        let asked: Vec<String> = asked.try_iter().collect();
        assert_eq!(asked, ["from=0&to=0", "from=3&to=7"]);
    }

    #[test]
    fn where_items_are_missing_it_is_said_how_far_the_task_is() {
        let status = |value: Value| -> TaskStatus { serde_json::from_value(value).unwrap() };
        let running =
            status(json!({ "phase": "Running", "items": { "total": 10, "succeeded": 2, "failed": 1 } }));
        let said = |wanted: &Wanted, printed| missing("t", wanted, &running, printed);
        assert_eq!(
            said(&wanted(vec![7..=8], false, false), 0).unwrap(),
            "Task \"t\": none of these items has ended; it is Running, and 3/10 items have ended"
        );
        assert_eq!(
            said(&wanted(vec![], false, false), 3).unwrap(),
            "Task \"t\" has not ended: it is Running, and 3/10 items have ended"
        );
        let failed = wanted(vec![], true, false);
        let whole = status(json!({ "phase": "Succeeded", "items": { "total": 1, "succeeded": 1 } }));
        assert_eq!(missing("t", &failed, &whole, 1), None);
        assert_eq!(
            missing("t", &failed, &whole, 0).unwrap(),
            "Task \"t\": no item has failed; it is Succeeded, and 1/1 items have ended"
        );
        let unread = status(json!({}));
        assert_eq!(
            missing("t", &wanted(vec![], false, false), &unread, 0).unwrap(),
            "Task \"t\": no item has ended; it is Pending, and its items have not been read"
        );
        assert_eq!(
            no_such_item("t", &wanted(vec![3..=4, 9..=12], false, false), &running).unwrap(),
            "error: Task \"t\" has no item 12, but 10 items, which are numbered from 0"
        );
    }

    #[test]
    fn items_of_several_pages_make_one_table_and_one_array() {
        let table = printed(Form::Table, &[&[ONE], &[TWO]]);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], HEADINGS);
        assert_eq!(lines[1], ["0", "1", "Succeeded", "1.500s", "[1,", "2]"]);
        assert_eq!(
            lines[2],
            ["7", "2", "FunctionRaised", "0.020s", "ValueError:", "x"]
        );
        let array: Vec<Value> = serde_json::from_str(&printed(Form::Json, &[&[ONE], &[TWO]])).unwrap();
        assert_eq!(array.len(), 2);
        assert_eq!(printed(Form::Json, &[]), "[]\n");
        assert_eq!(printed(Form::Lines, &[&[ONE, TWO]]), format!("{ONE}\n{TWO}\n"));
    }

    #[test]
    fn a_value_alone_is_one_line_as_it_was_returned_and_an_item_without_one_is_counted() {
        let value = format!("{}{}{}", "[".repeat(200), "9".repeat(400), "]".repeat(200));
        let large = format!(r#"{{"attempt":1,"index":8,"reason":"Succeeded","value":{value}}}"#);
        const NONE: &str = r#"{"attempt":1,"index":9,"reason":"Succeeded","value":null}"#;
        let pages: &[&[&str]] = &[&[ONE, TWO], &[&large, NONE]];
        assert_eq!(printed(Form::Raw, pages), format!("[1, 2]\n{value}\nnull\n"));
        let mut printer = Printer::new(Vec::new(), Form::Raw);
        let page = filled(&[ONE, TWO]);
        printer.print(&page.items.iter().collect::<Vec<_>>()).unwrap();
        let expected = Printed {
            items: 2,
            left_out: 1,
        };
        assert_eq!(printer.end().unwrap(), expected);
    }
}
