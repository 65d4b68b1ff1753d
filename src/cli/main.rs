//! `kubectl skyward`: logs and results of Tasks.
//!
//! A kubectl plugin: any executable `kubectl-skyward` on the PATH. It asks the Kubernetes
//! API server only, with the user's own rights; nothing of a cloud or a machine is needed.

mod api;
mod logs;
mod results;
mod table;

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::api::Cluster;

/// Logs and results of Skyward's Tasks.
///
/// Needs the aggregated API subresources.skyward.dev (chart value subresources.enabled) and
/// the right to `get` tasks.skyward.dev, and tasks/log and tasks/result in the group
/// subresources.skyward.dev.
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
    /// Namespace of the Task. Default: that of the context.
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
}

#[derive(Subcommand)]
enum Command {
    /// Prints what a Task's runs printed.
    ///
    /// With several ranks each line begins with `[rank]`. With --follow it goes on until the
    /// Task has ended, through restarts of the Task, of the controller and of the connection,
    /// and no line is lost or shown twice; the exit code is 1 when the Task failed.
    #[command(after_help = "\
Examples:
  kubectl skyward logs train                     all of it, all ranks
  kubectl skyward logs -f train                  as it comes, until the Task has ended
  kubectl skyward logs train --rank 3 --tail 20  the last 20 lines of rank 3
  kubectl skyward logs train --since 10m --timestamps
  kubectl skyward logs train --attempt 1         what was printed before a machine was lost")]
    Logs(logs::Arguments),
    /// Prints how a Task's runs ended and what its function returned.
    #[command(after_help = "\
Examples:
  kubectl skyward results train                  a table, values shortened
  kubectl skyward results train -o json          everything that is known, as an array
  kubectl skyward results train -o raw           the value itself; for several ranks an array
  kubectl skyward results train --rank 3 -o raw > value.json")]
    Results(results::Arguments),
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
        // Whoever reads our output has enough, as `head` has.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(is_broken_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let cluster = || async {
        let Access {
            namespace,
            kubeconfig,
            context,
            impersonate,
        } = cli.access;
        Cluster::connect(kubeconfig, context, namespace, impersonate).await
    };
    match cli.command {
        Command::Logs(arguments) => logs::run(&cluster().await?, arguments).await,
        Command::Results(arguments) => results::run(&cluster().await?, arguments).await,
        Command::Version => {
            writeln!(std::io::stdout(), "kubectl-skyward {}", env!("CARGO_PKG_VERSION"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// Says something on standard error; nothing can be done when even that fails.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
