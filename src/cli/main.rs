//! `kubectl skyward`: logs, results, progress and queues of Tasks, logs of Machines, uploads of code.
//!
//! A kubectl plugin: any executable `kubectl-skyward` on the PATH. It asks the Kubernetes
//! API server only, with the user's own rights; nothing of a cloud or a machine is needed.

mod api;
mod folder;
mod items;
mod logs;
mod progress;
mod queue;
mod results;
mod rows;
mod screen;
mod table;
mod target;
mod upload;
mod values;
mod yielded;

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::api::Cluster;

/// Logs, results and progress of Skyward's Tasks, retries of their items, and uploads of their code.
///
/// Needs the aggregated API subresources.skyward.dev (chart value subresources.enabled) and
/// the right to `get` tasks.skyward.dev (for -l and queue also to `list` them), and tasks/log, tasks/result,
/// tasks/progress and machines/log in the group subresources.skyward.dev; for upload the right to `update` bundles, and
/// for retry the right to `create` tasks/retry in that group.
#[derive(Parser)]
#[command(name = "kubectl skyward", bin_name = "kubectl skyward", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    access: Access,
}

/// Which cluster and namespace, as kubectl has it.
#[derive(Args)]
struct Access {
    /// Namespace of the Tasks and Machines. Default: that of the context.
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The kubeconfig file. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one.
    #[arg(long, global = true, value_name = "CONTEXT")]
    context: Option<String>,
    /// User to act as.
    #[arg(long = "as", global = true, value_name = "USER")]
    impersonate: Option<String>,
    /// Group to act as, with --as; may be given several times.
    #[arg(
        long = "as-group",
        global = true,
        value_name = "GROUP",
        requires = "impersonate"
    )]
    groups: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the output of Tasks' runs, or of a Machine's bootstrap.
    ///
    /// With several ranks each line begins with `[rank]`, with several Tasks with `[name/rank]`. With
    /// --follow it goes on until the Task has ended, through restarts of the Task, of the
    /// controller and of the connection, and no line is lost or shown twice; the exit code is 1
    /// when a Task failed, or its log could not be read.
    ///
    /// machine/NAME is for Machines that do not become ready: the output of a bootstrap that goes
    /// on, or of one of the last of its Pool that failed, also when the Machine is gone.
    #[command(after_help = "\
Examples:
  kubectl skyward logs train                     all of it, all ranks
  kubectl skyward logs -f train                  as it comes, until the Task has ended
  kubectl skyward logs train --rank 3 --tail 20  the last 20 lines of rank 3
  kubectl skyward logs train --since 10m --timestamps
  kubectl skyward logs train --attempt 1         what was printed before a machine was lost
  kubectl skyward logs prepare train             of both, one after the other
  kubectl skyward logs -f -l sweep=lr            of all Tasks with that label, as it comes
  kubectl skyward logs machine/train-5b9d2-0-1   why that Machine could not be prepared")]
    Logs(logs::Arguments),
    /// Prints how Tasks' runs ended and what their functions returned.
    ///
    /// Several Tasks are printed each under its name, with -o json as one object by their names. A
    /// Task that could not be read is named on standard error; the exit code is 1 then.
    ///
    /// What a generator yields is printed with --follow or -o jsonl, one value in a line: with --follow as it comes, until
    /// the Task has ended, through restarts of the Task, of the controller and of the connection, and no value is lost
    /// or printed twice; the exit code is 1 when the Task failed, or values are missing because there were more than the
    /// Pool's logs.limit takes.
    #[command(after_help = "\
Examples:
  kubectl skyward results train                  a table, values shortened
  kubectl skyward results train -o json          everything that is known, as an array
  kubectl skyward results train -o raw           the value itself; for several ranks an array
  kubectl skyward results train --rank 3 -o raw > value.json
  kubectl skyward results prepare train          a table for each
  kubectl skyward results -l sweep=lr -o json    an object of arrays, by name
  kubectl skyward results -f train               each value that it yields, as it comes
  kubectl skyward results -f train --rank 0 -o raw
  kubectl skyward results train -o jsonl         what it has yielded so far
  kubectl skyward results sweep -o raw           the value of each item of forEach, one in a line
  kubectl skyward results sweep --failed         the items of forEach that failed, and why
  kubectl skyward results sweep --index 3,7-9 -o json
  kubectl skyward results -f sweep -o jsonl      each item as it ends, until the Task has ended")]
    Results(results::Arguments),
    /// Runs items of an ended Task with forEach again.
    ///
    /// The other items stay as they are. It needs the right to create tasks/retry in the group subresources.skyward.dev.
    #[command(after_help = "\
Examples:
  kubectl skyward retry sweep                    the items that failed, and items that were not run
  kubectl skyward retry sweep --index 3,7-9      the items 3, 7, 8 and 9, also if they succeeded")]
    Retry(items::Arguments),
    /// Prints how far running Tasks are, as their programs say it.
    ///
    /// `kubectl get tasks` shows the same in the column PROGRESS, up to half a minute later. With
    /// --follow it goes on until all the Tasks have ended; the exit code is 1 when one of them failed.
    #[command(after_help = "\
Examples:
  kubectl skyward progress train                 how far it is now
  kubectl skyward progress -f train              as it goes on, until the Task has ended
  kubectl skyward progress train --ranks         of each rank
  kubectl skyward progress -f -l sweep=lr        of all Tasks with that label")]
    Progress(progress::Arguments),
    /// Prints which Tasks wait, in the order in which they start, and why each of them waits.
    ///
    /// Each Pool has a queue of its own: Tasks of higher priority start first, among equals the older one. A Task
    /// that is suspended, or waits for other Tasks (dependsOn), has no place in it. The reasons are those of the
    /// condition Scheduled, which is written at most every half a minute.
    #[command(after_help = "\
Examples:
  kubectl skyward queue                          the queues of all Pools of the namespace
  kubectl skyward queue train                    that of the Pool train
  kubectl skyward queue --task fit               where the Task fit stands")]
    Queue(queue::Arguments),
    /// Uploads the files of a folder for Tasks of the namespace, and prints their digest.
    ///
    /// A Task names the digest as spec.source.bundle.digest, and its runs find the files in their working
    /// directory. The digest depends on names, contents and executable bits alone, and what the namespace has
    /// already is not sent again. An upload that was interrupted goes on where it was: give the same
    /// command again. It is kept for 24 hours, and then for as long as a Task or a CronTask names it.
    ///
    /// Patterns are those of a .gitignore, without exceptions (!). .git, .venv and __pycache__ are always
    /// left out; a .gitignore is not read. A link to a file of the folder becomes a copy; other links are
    /// refused. Files have at most 256 MiB together; there are at most 50,000.
    #[command(after_help = "\
Examples:
  kubectl skyward upload .                       prints sha256:9f86…
  kubectl skyward upload exp --exclude data --exclude '*.ipynb'
  kubectl skyward upload exp --include 'src/**' --include pyproject.toml
  kubectl skyward upload exp -o yaml             a Task's source, ready to be pasted")]
    Upload(upload::Arguments),
    /// Prints the version of this plugin.
    Version,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        complain("another TLS provider is installed already");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        // The reader of our output has enough, as `head` has.
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let cluster = || async {
        let access = cli.access;
        let user = access.impersonate.map(|user| (user, access.groups));
        Cluster::connect(access.kubeconfig, access.context, access.namespace, user).await
    };
    match cli.command {
        Command::Logs(arguments) => logs::run(&cluster().await?, arguments).await,
        Command::Results(arguments) => results::run(&cluster().await?, arguments).await,
        Command::Retry(arguments) => items::retry(&cluster().await?, arguments).await,
        Command::Progress(arguments) => progress::run(&cluster().await?, arguments).await,
        Command::Queue(arguments) => queue::run(&cluster().await?, arguments).await,
        Command::Upload(arguments) => {
            // What is wrong with the folder is said before anything is asked of a cluster.
            let files = arguments.read()?;
            upload::run(&cluster().await?, arguments, &files).await
        }
        Command::Version => {
            writeln!(std::io::stdout(), "kubectl-skyward {}", env!("CARGO_PKG_VERSION"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Whether the reader of our output is gone.
fn is_unread(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Prints to standard error; nothing can be done when even that fails.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, String> {
        let words = std::iter::once("kubectl-skyward").chain(line.split_whitespace());
        Cli::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn names_or_a_selector_say_what_is_meant_and_never_both() {
        for line in [
            "logs train",
            "logs -f train task/other",
            "logs machine/m --tail 5",
            "logs -l app=train,team!=x --follow",
            "logs a b c --max-log-requests 9",
            "results a b -o json",
            "results -l app=train -n team",
            "results -f a --rank 3 -o raw",
            "results a -o jsonl --attempt 2",
            "results a --as lea --as-group research --as-group ops",
            "results a --failed",
            "results a --index 3,7-9 -o jsonl",
            "retry a",
            "retry task/a --failed",
            "retry a --index 0",
            "progress a b --follow",
            "progress -l sweep=lr --ranks",
            "queue",
            "queue train -n team",
            "queue pool/train --task fit",
            "upload . -n team",
            "upload exp --include a --include b --exclude c -o yaml",
        ] {
            assert!(
                parsed(line).is_ok(),
                "{line}: {}",
                parsed(line).err().unwrap_or_default()
            );
        }
        for (line, word) in [
            ("logs", "NAME"),
            ("results", "NAME"),
            ("progress", "NAME"),
            ("logs train -l app=train", "cannot be used with"),
            ("logs pod/x", "machine/NAME"),
            ("logs a --max-log-requests x", "invalid value"),
            ("results -f a --save x", "cannot be used with"),
            ("results a --index x", "write such as 3,7-9"),
            ("retry", "TASK"),
            ("retry a --failed --index 3", "cannot be used with"),
            ("queue a b", "unexpected argument"),
            ("queue task/a", "pool/NAME"),
            ("upload", "FOLDER"),
            ("upload . -o json", "invalid value"),
        ] {
            let error = parsed(line).err().unwrap_or_default();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn every_example_of_the_help_is_understood() {
        use clap::CommandFactory as _;
        let mut seen = 0;
        for command in Cli::command().get_subcommands() {
            let examples = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            for line in examples
                .lines()
                .filter_map(|line| line.trim().strip_prefix("kubectl skyward "))
            {
                let line = line.split("  ").next().unwrap_or_default();
                let line = line.split(" > ").next().unwrap_or_default();
                assert!(
                    parsed(line).is_ok(),
                    "{line}: {}",
                    parsed(line).err().unwrap_or_default()
                );
                seen += 1;
            }
        }
        assert!(seen > 10, "{seen}");
    }
}
