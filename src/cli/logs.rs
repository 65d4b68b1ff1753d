//! `kubectl skyward logs`.
//!
//! The server sends records with their offsets; lines are joined here. So after a loss of
//! connection the next request begins exactly after the last record that arrived, with the
//! beginning of an unfinished line still at hand: nothing is lost, nothing comes twice. With
//! several Tasks and Machines each line begins with its owner.

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use clap::Args;
use futures::{AsyncBufReadExt, AsyncReadExt, StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use skyward_api::{Task, TaskPhase, condition};
use skyward_subresources::options::{Format, LogOptions};
use tokio::time::{sleep, timeout};

use crate::{
    api::{Cluster, Failure},
    complain, is_unread,
    screen::{About, Paper, Screen, Sheet},
    target::{Target, Targets},
    values::yielded_count,
    yielded::Yielded,
};

/// The server sends something at least every 15 s; silence longer than this is a dead connection.
const SILENCE: Duration = Duration::from_mins(1);
/// An unfinished line is shown after this.
const PROMPT: Duration = Duration::from_millis(500);
/// How often a waiting Task is looked at, to say what it waits for.
const LOOK: Duration = Duration::from_secs(2);
/// Tries of a request, when not following.
const TRIES: u32 = 4;

/// Arguments of `logs`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    targets: Targets,
    /// Go on until the Task has ended; of several, until all have.
    #[arg(short, long)]
    follow: bool,
    /// Most Tasks that are followed at once.
    #[arg(long, value_name = "N", default_value_t = 5)]
    max_log_requests: usize,
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

/// Prints the logs.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let since = arguments.since.map(|since| {
        let since = SignedDuration::try_from(since).unwrap_or(SignedDuration::MAX);
        Timestamp::now().saturating_sub(since).unwrap_or(Timestamp::MIN)
    });
    let options = LogOptions {
        follow: arguments.follow,
        // As in kubectl, -1 is everything.
        tail_lines: arguments.tail.and_then(|lines| u64::try_from(lines).ok()),
        since: since.or(arguments.since_time),
        rank: arguments.rank,
        attempt: arguments.attempt,
        timestamps: arguments.timestamps,
        format: Format::Records,
        ..LogOptions::default()
    };
    let targets = arguments.targets.find(cluster).await?;
    may_be_read(&targets, &options, arguments.max_log_requests)?;
    let (paper, several) = (Paper::default(), targets.len() > 1);
    let read = |(number, target): (usize, Target)| {
        let sheet = Sheet {
            paper: paper.clone(),
            number,
            name: several.then(|| target.to_string()),
        };
        let options = options.clone();
        async move {
            let read = match &target {
                Target::Task(name) => task(cluster, name, options, sheet).await,
                Target::Machine(name) => machine(cluster, name, options.tail_lines, sheet).await,
            };
            match read {
                // The others go on, unless the reader of the output is gone.
                Err(error) if several && !is_unread(&error) => {
                    complain(&format!("error: {target}: {error:#}"));
                    Ok(ExitCode::FAILURE)
                }
                read => read,
            }
        }
    };
    let at_once = if options.follow { targets.len() } else { 1 };
    let codes: Vec<ExitCode> = futures::stream::iter(targets.into_iter().enumerate())
        .map(read)
        .buffered(at_once)
        .try_collect()
        .await?;
    Ok(worst(codes))
}

/// Success, if all are.
pub(crate) fn worst(codes: Vec<ExitCode>) -> ExitCode {
    let failed = codes.into_iter().find(|code| *code != ExitCode::SUCCESS);
    failed.unwrap_or(ExitCode::SUCCESS)
}

/// Refuses impossible arguments before anything is read.
fn may_be_read(targets: &[Target], options: &LogOptions, most: usize) -> Result<()> {
    let machine = targets.iter().find(|target| matches!(target, Target::Machine(_)));
    if let Some(machine) = machine {
        if options.follow {
            return Err(anyhow!(
                "{machine} cannot be followed: without -f it shows what its bootstrap printed so far"
            ));
        }
        let of_tasks = options.since.is_some() || options.rank.is_some() || options.attempt.is_some();
        if of_tasks || options.timestamps {
            return Err(anyhow!(
                "the log of {machine} has no times, ranks and attempts: of the flags only --tail is for it"
            ));
        }
    }
    if options.follow && targets.len() > most {
        return Err(anyhow!(
            "you are attempting to follow {} Tasks, but at most {most} are followed at once; use --max-log-requests to raise that",
            targets.len()
        ));
    }
    Ok(())
}

/// Prints the output of a Machine's bootstrap.
async fn machine(cluster: &Cluster, name: &str, tail: Option<u64>, sheet: Sheet) -> Result<ExitCode> {
    let mut failures = 0;
    let text = loop {
        match read_all(cluster, name).await {
            Ok(text) => break text,
            Err(Failure::Passing(_)) if failures + 1 < TRIES => failures += 1,
            Err(failure) => return Err(failure.into()),
        }
        sleep(Duration::from_millis(200 << failures)).await;
    };
    let text = String::from_utf8_lossy(&text);
    sheet.print(last_lines(&text, tail, &sheet.prefix()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Most bytes that are held; the stored log is shorter.
const MOST: u64 = 4 * 1024 * 1024;

async fn read_all(cluster: &Cluster, name: &str) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let reader = cluster.stream("machines", name, "log").await?;
    let mut reader = Box::pin(reader).take(MOST);
    match timeout(SILENCE, reader.read_to_end(&mut text)).await {
        Ok(Ok(_)) => Ok(text),
        Ok(Err(error)) => Err(Failure::Passing(error.into())),
        Err(_) => Err(Failure::Passing(anyhow!("the server is silent"))),
    }
}

/// The last lines of a text, each whole and with something in front of it.
fn last_lines(text: &str, count: Option<u64>, prefix: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let count = count.and_then(|count| usize::try_from(count).ok());
    let from = lines.len().saturating_sub(count.unwrap_or(lines.len()));
    lines[from..]
        .iter()
        .flat_map(|line| [prefix, line, "\n"])
        .collect()
}

/// Prints the log of a Task.
async fn task(cluster: &Cluster, name: &str, mut options: LogOptions, sheet: Sheet) -> Result<ExitCode> {
    let tail = options.tail_lines.is_some();
    let mut screen = Screen::new(options.timestamps, options.rank, tail, sheet);
    // The lines have their times in any case.
    options.timestamps = false;
    stream(cluster, name, "log", options, &mut screen).await
}

/// Prints what the function of a Task yields. A value that is missing is a failure.
pub(crate) async fn values(
    cluster: &Cluster,
    name: &str,
    options: LogOptions,
    raw: bool,
) -> Result<ExitCode> {
    let sheet = Sheet {
        paper: Paper::default(),
        number: 0,
        name: None,
    };
    let screen = Screen::new(false, options.rank, false, sheet);
    let mut screen = screen.of_values(Yielded::new(raw));
    let only = options.rank;
    let code = stream(cluster, name, "result/values", options, &mut screen).await?;
    let Some(yielded) = screen.yielded() else {
        return Ok(code);
    };
    let status = cluster.task(name).await?.and_then(|task| task.status);
    let results = status.into_iter().flat_map(|status| status.results);
    for result in results.filter(|result| only.is_none_or(|only| only == result.rank)) {
        if let Some(count) = result.value.as_ref().and_then(yielded_count) {
            yielded.ends(result.attempt, result.rank, count);
        }
    }
    Ok(if yielded.is_missing() {
        ExitCode::FAILURE
    } else {
        code
    })
}

/// Prints one stream of a Task's runs.
async fn stream(
    cluster: &Cluster,
    name: &str,
    subresource: &str,
    mut options: LogOptions,
    screen: &mut Screen,
) -> Result<ExitCode> {
    let (follow, tail, attempt) = (options.follow, options.tail_lines, options.attempt);
    let mut failures = 0;
    // Whether the Task had ended before the request was made. A stream that ends in order says only
    // that nothing more is known now: a leader that has just begun may not know yet what runs.
    let mut had_ended = false;
    loop {
        options.positions = screen.positions();
        // Lines that came while the connection was lost must not be left out.
        options.tail_lines = tail.filter(|_| !screen.knows_all());
        let path = format!("{subresource}?{}", options.query());
        match read(cluster, name, &path, follow, screen).await? {
            Stream::Ended if !follow || had_ended => break,
            Stream::Ended => {
                failures = 0;
                // The stream ends with the Task, but also when the server restarts.
                match cluster.task(name).await {
                    // Once more, for lines that came in between.
                    Ok(Some(task)) if phase(&task).is_finished() || attempt.is_some() => {
                        had_ended = true;
                        continue;
                    }
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
            Stream::Cut => failures = 0,
            Stream::Broken { error, progress } => {
                failures = if progress { 1 } else { failures + 1 };
                if !follow && failures >= TRIES {
                    screen.finish()?;
                    return Err(error);
                }
                if failures == TRIES {
                    complain(&format!(
                        "the {subresource} of Task {name:?} cannot be read at the moment, trying again: {error:#}"
                    ));
                }
            }
        }
        sleep(Duration::from_millis(200 * (1 << failures.min(4)))).await;
    }
    screen.finish()?;
    if follow {
        verdict(cluster, name).await
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

/// How a request ended.
enum Stream {
    /// In order.
    Ended,
    /// In order, and the server says that it is not the end.
    Cut,
    /// Otherwise; whether anything had come.
    Broken { error: anyhow::Error, progress: bool },
}

async fn read(
    cluster: &Cluster,
    name: &str,
    path: &str,
    follow: bool,
    screen: &mut Screen,
) -> Result<Stream> {
    let (mut progress, mut is_cut) = (false, false);
    let mut reader = match cluster.stream("tasks", name, path).await {
        Ok(reader) => reader,
        Err(Failure::Lasting(error)) => return Err(error),
        Err(Failure::Passing(error)) => return Ok(Stream::Broken { error, progress }),
    };
    let mut line = Vec::new();
    let mut silent = Duration::ZERO;
    let mut waits_for = String::new();
    let error = loop {
        let patience = match (screen.waiting(), screen.is_unfinished()) {
            (_, true) => PROMPT,
            (true, false) => LOOK,
            (false, false) => SILENCE,
        };
        // A line that is cut off by the timeout stays in `line` and is read on.
        match timeout(patience, reader.read_until(b'\n', &mut line)).await {
            Ok(Ok(0)) if line.is_empty() && is_cut => return Ok(Stream::Cut),
            Ok(Ok(0)) if line.is_empty() => return Ok(Stream::Ended),
            Ok(Ok(_)) if line.ends_with(b"\n") => {
                silent = Duration::ZERO;
                match screen.line(&Bytes::from(std::mem::take(&mut line)))? {
                    About::Log => progress = true,
                    About::TheRest => is_cut = true,
                    About::Other => {}
                }
            }
            // The end in the middle of a line: the rest did not arrive.
            Ok(Ok(_)) => break anyhow!("the connection ended early"),
            Ok(Err(error)) => break error.into(),
            Err(_) => {
                silent += patience;
                if silent >= SILENCE {
                    break anyhow!("the server is silent");
                }
                screen.idle()?;
                if screen.waiting() && follow {
                    say_what_it_waits_for(cluster, name, &mut waits_for).await;
                }
            }
        }
    };
    Ok(Stream::Broken { error, progress })
}

/// Prints why a Task has not started, once and after each change.
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
            // The failure was printed already.
            Ok(Some(_)) | Err(Failure::Lasting(_)) => return Ok(ExitCode::SUCCESS),
            Err(Failure::Passing(error)) => last = Some(error),
        }
        sleep(Duration::from_secs(1)).await;
    }
    Err(last.unwrap_or_else(|| anyhow!("whether Task {name:?} succeeded cannot be seen")))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use hyper::{Request, Response};
    use kube::Client;
    use parking_lot::Mutex;

    use super::*;
    use crate::screen::Paper;

    /// A Task that has ended when it is first looked at. The first stream of its log ends in order and
    /// too early, as under a leader that does not know yet what runs. Returns the requested logs.
    async fn follow(first: &'static str, then: &'static str) -> Vec<String> {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let requests = asked.clone();
        let server = tower::service_fn(move |request: Request<kube::client::Body>| {
            let path = request.uri().to_string();
            let body = match path.split_once("/log?") {
                Some((_, query)) => {
                    let mut requests = requests.lock();
                    requests.push(query.to_owned());
                    if requests.len() == 1 { first } else { then }.to_owned()
                }
                None => serde_json::json!({
                    "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
                    "spec": { "pool": "p", "command": ["true"] }, "status": { "phase": "Succeeded", "attempt": 1 },
                })
                .to_string(),
            };
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let cluster = Cluster::of(Client::new(server, "team"));
        let options = LogOptions {
            follow: true,
            format: Format::Records,
            ..LogOptions::default()
        };
        let sheet = Sheet {
            paper: Paper::default(),
            number: 0,
            name: None,
        };
        assert_eq!(
            task(&cluster, "t", options, sheet).await.unwrap(),
            ExitCode::SUCCESS
        );
        let asked = asked.lock();
        asked.clone()
    }

    #[tokio::test]
    async fn a_stream_that_the_server_cut_is_asked_for_again_and_counts_for_no_end() {
        let asked = follow("# 1 1\n1 0 10 1 o F a\n+\n", "# 1 1\n1 0 20 2 o F b\n").await;
        assert_eq!(
            asked.len(),
            3,
            "the one that was cut, one, and one after the Task had ended"
        );
    }

    #[tokio::test]
    async fn a_stream_that_was_asked_for_before_the_task_had_ended_is_not_taken_for_the_whole() {
        let asked = follow("# 1 1\n1 0 10 1 o F a\n", "# 1 1\n1 0 20 2 o F b\n").await;
        assert_eq!(
            asked,
            [
                "follow=true&format=records",
                "follow=true&format=records&positions=1.0.10"
            ]
        );
    }

    #[tokio::test]
    async fn a_log_that_is_whole_at_once_is_asked_for_once_more_and_not_for_ever() {
        let whole = "# 1 1\n1 0 10 1 o F a\n";
        assert_eq!(follow(whole, whole).await.len(), 2);
    }

    #[test]
    fn durations_are_written_as_in_specs() {
        assert_eq!(duration("10m"), Ok(Duration::from_mins(10)));
        assert!(duration("ten").unwrap_err().contains("30s"));
    }

    #[test]
    fn the_log_of_a_machine_is_shown_from_its_end_with_whose_it_is() {
        let text = "a\nb\nc";
        assert_eq!(last_lines(text, None, ""), "a\nb\nc\n");
        assert_eq!(
            last_lines(text, Some(2), "[machine/m] "),
            "[machine/m] b\n[machine/m] c\n"
        );
        assert_eq!(last_lines(text, Some(0), ""), "");
        assert_eq!(last_lines(text, Some(99), ""), "a\nb\nc\n");
        assert_eq!(last_lines("", None, "x"), "");
    }

    fn refused(targets: &[Target], options: &LogOptions, most: usize) -> String {
        let refused = may_be_read(targets, options, most);
        refused.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn what_cannot_be_read_so_is_refused_with_what_can() {
        let tasks: Vec<Target> = (0..6).map(|n| Target::Task(format!("t-{n}"))).collect();
        let machine = [Target::Machine("m".into())];
        let plain = LogOptions::default();
        let follow = LogOptions {
            follow: true,
            ..LogOptions::default()
        };
        let rank = LogOptions {
            rank: Some(0),
            ..LogOptions::default()
        };
        assert_eq!(refused(&tasks, &plain, 5), "", "one after the other");
        assert_eq!(refused(&tasks[..5], &follow, 5), "");
        assert_eq!(
            refused(&tasks, &follow, 5),
            "you are attempting to follow 6 Tasks, but at most 5 are followed at once; use --max-log-requests to raise that"
        );
        assert_eq!(refused(&machine, &plain, 5), "");
        assert!(refused(&machine, &follow, 5).contains("without -f"));
        assert!(refused(&machine, &rank, 5).contains("--tail"));
    }

    #[test]
    fn one_failure_among_many_is_the_exit_code_of_all() {
        let (good, bad) = (ExitCode::SUCCESS, ExitCode::FAILURE);
        assert_eq!(worst(vec![good, bad, good]), bad);
        assert_eq!(worst(vec![good, good]), good);
        assert_eq!(worst(vec![]), good);
    }
}
