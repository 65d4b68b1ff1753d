//! `kubectl skyward progress`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Args;
use futures::AsyncReadExt as _;
use skyward_api::TaskPhase;
use skyward_subresources::progress::TaskProgress;
use tokio::time::{sleep, timeout};

use crate::{
    api::{Cluster, Failure},
    complain,
    logs::worst,
    results::tasks,
    target::Targets,
};

/// Between two looks at a Task.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(45);
/// Most bytes of an answer: it has a line for each of 500 ranks.
const MOST: u64 = 1024 * 1024;
/// Most tries in a row, when not following.
const TRIES: u32 = 4;

/// Arguments of `progress`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    targets: Targets,
    /// Go on until the Tasks have ended: a line each time that one has gone on.
    #[arg(short, long)]
    follow: bool,
    /// Also print how far each rank is.
    #[arg(long)]
    ranks: bool,
}

/// Prints how far Tasks are.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let names = tasks(arguments.targets.find(cluster).await?)?;
    let mut codes = Vec::new();
    // The Tasks that go on, and the lines that were printed of each last.
    let mut left: BTreeMap<String, String> = names.into_iter().map(|name| (name, String::new())).collect();
    while !left.is_empty() {
        for name in left.keys().cloned().collect::<Vec<_>>() {
            let progress = match look(cluster, &name, arguments.follow).await {
                Ok(progress) => progress,
                Err(error) => {
                    complain(&format!("error: {name}: {error:#}"));
                    codes.push(ExitCode::FAILURE);
                    left.remove(&name);
                    continue;
                }
            };
            let lines = lines(&name, &progress, arguments.ranks);
            if left.get(&name) != Some(&lines) {
                let mut out = io::stdout().lock();
                out.write_all(lines.as_bytes())?;
                out.flush()?;
            }
            if arguments.follow && progress.phase == TaskPhase::Failed {
                codes.push(ExitCode::FAILURE);
            }
            if arguments.follow && !progress.phase.is_finished() {
                left.insert(name, lines);
            } else {
                left.remove(&name);
            }
        }
        if !left.is_empty() {
            sleep(PAUSE).await;
        }
    }
    Ok(worst(codes))
}

/// Asks once; again while trying may help.
async fn look(cluster: &Cluster, name: &str, follow: bool) -> Result<TaskProgress> {
    let mut failures = 0;
    loop {
        match read(cluster, name).await {
            Ok(progress) => return Ok(progress),
            Err(Failure::Lasting(error)) => return Err(error),
            Err(Failure::Passing(error)) => {
                failures += 1;
                if failures == TRIES {
                    if !follow {
                        return Err(error);
                    }
                    complain(&format!(
                        "how far Task {name:?} is cannot be read at the moment, trying again: {error:#}"
                    ));
                }
            }
        }
        sleep(Duration::from_millis(200 << failures.min(4))).await;
    }
}

async fn read(cluster: &Cluster, name: &str) -> Result<TaskProgress, Failure> {
    let asked = async {
        let mut text = Vec::new();
        let reader = cluster.stream("tasks", name, "progress").await?;
        let read = Box::pin(reader).take(MOST).read_to_end(&mut text).await;
        read.map_err(|error| Failure::Passing(error.into()))?;
        serde_json::from_slice(&text)
            .context("the answer is not that of this version of Skyward")
            .map_err(Failure::Lasting)
    };
    let late = |_| Failure::Passing(anyhow::anyhow!("the server is silent"));
    timeout(PATIENCE, asked).await.map_err(late)?
}

/// `train  Running  37/100  37 %`, and below it each rank that says something.
fn lines(name: &str, progress: &TaskProgress, ranks: bool) -> String {
    let TaskProgress {
        phase,
        progress: text,
        ranks: each,
        ..
    } = progress;
    let mut lines = format!("{name}  {}{}\n", phase.as_str(), said(text));
    if ranks {
        for rank in each {
            let text = skyward_api::task::progress_text([(rank.done, rank.total)]);
            let _ = writeln!(lines, "  rank {}{}", rank.rank, said(&text));
        }
    }
    lines
}

/// The text, and how many percent it is where the whole is known.
fn said(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let percent = text.split_once('/').and_then(|(done, total)| {
        let (done, total): (u64, u64) = (done.parse().ok()?, total.parse().ok()?);
        (u128::from(done) * 100).checked_div(u128::from(total))
    });
    percent.map_or_else(|| format!("  {text}"), |percent| format!("  {text}  {percent} %"))
}

#[cfg(test)]
mod tests {
    use skyward_subresources::progress::RankProgress;

    use super::*;

    #[test]
    fn a_line_says_the_phase_the_parts_and_the_percent_that_are_known() {
        let of = |phase, text: &str| TaskProgress {
            phase,
            progress: text.to_owned(),
            ..TaskProgress::default()
        };
        for (phase, text, line) in [
            (TaskPhase::Running, "37/100", "t  Running  37/100  37 %\n"),
            (TaskPhase::Running, "37", "t  Running  37\n"),
            (TaskPhase::Pending, "", "t  Pending\n"),
            (
                TaskPhase::Succeeded,
                "18446744073709551615/18446744073709551615",
                "t  Succeeded  18446744073709551615/18446744073709551615  100 %\n",
            ),
            (TaskPhase::Failed, "1/0", "t  Failed  1/0\n"),
        ] {
            assert_eq!(lines("t", &of(phase, text), true), line);
        }
        let rank = |rank, done, total| RankProgress { rank, done, total };
        let both = TaskProgress {
            ranks: vec![rank(0, 1, 4), rank(2, 5, 0)],
            ..of(TaskPhase::Running, "6")
        };
        assert_eq!(lines("t", &both, false), "t  Running  6\n");
        assert_eq!(
            lines("t", &both, true),
            "t  Running  6\n  rank 0  1/4  25 %\n  rank 2  5\n"
        );
    }
}
