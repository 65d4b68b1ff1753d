//! What runs on the machine. `docs/agent.md` tells the life of a run; the files in order of
//! that life:
//!
//! - `supervise` starts the daemon and keeps it running, `server` is the daemon, `service`
//!   answers the controller;
//! - `ledger` remembers (on disk through `journal`, `frame` and `reserve`; `files` makes private
//!   files), `runs` drives;
//! - `shim` watches over one run in a process of its own, `exec` becomes its work, `remains` ends a
//!   run whose shim was killed, `memory` says which processes the kernel kills first;
//! - `warm` says which keepers of warm parents there are; a keeper is a process of its own, and `shim`
//!   holds its side of it;
//! - `items` brings items of maps to the runs that are their workers, and tells how they ended; `map` is what both
//!   sides keep of them;
//! - `bundles` keeps the code that runs take their files from, `git` fetches it;
//! - `lease` decides when a forgotten machine stops itself, `reclaim` asks whether its cloud
//!   takes it back, `trash` deletes forgotten runs.
//!
//! One binary is all of it; the first argument says which.

mod bridge;
mod bundles;
mod exec;
mod files;
mod frame;
mod git;
mod home;
#[doc(hidden)]
pub mod hostile;
mod items;
mod journal;
mod lease;
mod ledger;
mod log_files;
mod machine;
mod map;
mod memory;
mod processes;
mod progress;
mod python;
mod reclaim;
mod remains;
mod reserve;
mod runs;
mod server;
mod service;
mod shim;
mod supervise;
mod tracing_log;
mod trash;
mod users;
mod warm;

use std::{
    path::Path,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::{Args, Parser, Subcommand};

pub use self::{
    home::Home,
    server::Options,
    supervise::{StartOutcome, connect},
};
use crate::protocol::{GIT_USER, version};

/// The agent of a machine of Skyward.
#[derive(Debug, Parser)]
#[command(name = "skyward-agent", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start the agent in the background, if it does not run, and wait until it answers.
    Start(StartArguments),
    /// Serve in the foreground.
    Daemon(DaemonArguments),
    /// Start the daemon again whenever it dies; `start` does this in the background.
    #[command(hide = true)]
    Supervise(DaemonArguments),
    /// Connect standard input and output to the agent.
    Bridge(HomeArgument),
    /// Print version and digest as JSON.
    Version,
}

#[derive(Debug, Args)]
struct HomeArgument {
    /// The agent's folder.
    #[arg(long)]
    home: std::path::PathBuf,
}

#[derive(Debug, Args)]
struct StartArguments {
    #[command(flatten)]
    daemon: DaemonArguments,
    /// Environment variables of the machine that neither the agent nor any run has.
    #[arg(long, value_delimiter = ',')]
    hide: Vec<String>,
}

#[derive(Debug, Args)]
struct DaemonArguments {
    #[command(flatten)]
    home: HomeArgument,
    /// The Machine's name, as namespace/name.
    #[arg(long)]
    machine: String,
    /// User of runs that name none; the agent's own where this is left out.
    #[arg(long, default_value = "")]
    user: String,
    /// User that fetches from git run as, where the agent is root.
    #[arg(long, default_value = GIT_USER)]
    git_user: String,
    /// Shell command that stops the machine, instead of the usual way.
    #[arg(long)]
    stop_command: Option<String>,
    /// Shell command that prints when the cloud takes the machine back, and fails as long as
    /// it does not; asked every few seconds.
    #[arg(long)]
    reclaim_command: Option<String>,
}

impl DaemonArguments {
    fn options(self) -> Options {
        // Processes change their directory; the home stays where it is.
        let home = std::path::absolute(&self.home.home).unwrap_or(self.home.home);
        Options {
            home: Home::new(home),
            machine: self.machine,
            user: self.user,
            git_user: self.git_user,
            stop_command: self.stop_command,
            reclaim_command: self.reclaim_command,
        }
    }
}

/// The program.
#[expect(
    clippy::print_stderr,
    reason = "a command line tool says on standard error why it failed"
)]
pub fn main() -> ExitCode {
    // The supervisor waits for signals that it blocks, and what it starts inherits that.
    let _ = nix::sys::signal::SigSet::empty().thread_set_mask();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // For each run, so without a parser.
    let result = match arguments.first().map(String::as_str) {
        Some("exec") => exec::main(),
        Some("git") => git::helper::main(),
        Some("shim") => match &arguments[1..] {
            [home, run_id, user] => shim::main(&Home::new(home), run_id, user, None),
            [home, run_id, user, parent] => {
                shim::main(&Home::new(home), run_id, user, Some(Path::new(parent)))
            }
            _ => Err(anyhow::anyhow!("shim is for the agent itself")),
        },
        Some("keeper") => match &arguments[1..] {
            [home, socket, user, preload @ ..] => shim::keep(&Home::new(home), socket, user, preload),
            _ => Err(anyhow::anyhow!("keeper is for the agent itself")),
        },
        _ => command_line(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("skyward-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "a command line tool answers on standard output"
)]
fn command_line(arguments: &[String]) -> anyhow::Result<()> {
    match Cli::parse().command {
        CliCommand::Start(StartArguments { daemon, hide }) => {
            let outcome = runtime(1)?.block_on(supervise::start(&daemon.options(), &hide))?;
            println!(
                "{}",
                match outcome {
                    StartOutcome::Started => "started",
                    StartOutcome::AlreadyRunning => "already running",
                    StartOutcome::OlderKept => "another version runs and has runs that go on: left as it is",
                }
            );
            Ok(())
        }
        CliCommand::Supervise(given) => {
            close_inherited();
            // Logs to standard error: `agent.log`, or systemd's journal after a reboot. A line that a
            // full disk does not take must not end the process.
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_target(false)
                .with_writer(std::io::stderr)
                .log_internal_errors(false)
                .init();
            supervise::supervise(&arguments[1..], &given.options().home)
        }
        CliCommand::Daemon(given) => {
            close_inherited();
            let options = given.options();
            log_to(&options.home)?;
            runtime(2)?
                .block_on(server::serve(options))
                .inspect_err(|error| tracing::error!("{error:#}"))
        }
        CliCommand::Bridge(HomeArgument { home }) => bridge::bridge(&Home::new(home)),
        CliCommand::Version => {
            let version = serde_json::json!({
                "version": version::AGENT_VERSION,
                "digest": machine::digest()?,
                "protocol": [version::PROTOCOL_MIN, version::PROTOCOL_MAX],
            });
            println!("{version}");
            Ok(())
        }
    }
}

/// Closes the descriptors that our parent process left open: every run would inherit them.
fn close_inherited() {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        let _ = nix::unistd::close(descriptor);
    }
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    // Blocking work is file reads and starting shims; more threads would not be faster.
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(16)
        .enable_all()
        .build()
}

fn log_to(home: &Home) -> anyhow::Result<()> {
    std::fs::create_dir_all(home.path())?;
    let log = tracing_log::BoundedLog::open(home)?;
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .with_writer(log)
        .init();
    Ok(())
}

/// Now, in milliseconds since 1970.
fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as u64)
}
