//! Starts the daemon so that nothing but the end of the machine ends it: a small supervisor
//! in a session of its own starts it again whenever it dies. Starting twice is the same as
//! once; a newer agent takes the place of an older one only when no run goes on.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use hyper_util::rt::TokioIo;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, setsid},
};
use std::os::fd::AsFd;
use tonic::transport::{Channel, Endpoint};

use super::{files, home::Home, machine, server::Options};
use crate::protocol::{HelloReply, HelloRequest, agent_client::AgentClient, version};

/// Time for the socket to answer: a busy machine (an image is unpacked, a hundred neighbours start)
/// is slow, not broken.
const READY: Duration = Duration::from_secs(45);
const ANSWER: Duration = Duration::from_secs(10);
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// Shorter than [`READY`], so that a start sees the next attempt.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// A daemon that lived this long started well.
const STEADY: Duration = Duration::from_mins(1);

/// The outcome of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// The agent was started.
    Started,
    /// This very agent runs already.
    AlreadyRunning,
    /// Another agent runs, and has runs that go on: it stays.
    OlderKept,
}

/// Starts the agent in the background and returns when its socket answers. It starts without the
/// variables in `hide`, so its children do not get them either.
pub(super) async fn start(options: &Options, hide: &[String]) -> anyhow::Result<StartOutcome> {
    let deadline = Instant::now() + READY;
    let digest = machine::digest()?;
    if let Some(running) = hello(&options.home).await {
        if running.agent_digest == digest {
            return Ok(StartOutcome::AlreadyRunning);
        }
        if running.running > 0 {
            return Ok(StartOutcome::OlderKept);
        }
        stop_supervisor(&options.home, deadline).await?;
    }
    let mut supervisor = spawn_supervisor(options, hide)?;
    loop {
        if let Some(running) = hello(&options.home).await
            && running.agent_digest == digest
        {
            return Ok(StartOutcome::Started);
        }
        if Instant::now() >= deadline {
            let seconds = READY.as_secs();
            bail!(
                "the agent did not answer within {seconds}s; the end of its log:\n{}",
                end_of_log(&options.home)
            );
        }
        if supervisor.try_wait()?.is_some() && supervisor_lock(&options.home)?.is_some() {
            bail!(
                "the agent did not start; the end of its log:\n{}",
                end_of_log(&options.home)
            );
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Asks the agent of a home for its identity; `None` where none answers.
async fn hello(home: &Home) -> Option<HelloReply> {
    let ask = async {
        let mut agent = AgentClient::new(connect(home).await.ok()?);
        let request = HelloRequest {
            protocol_min: version::PROTOCOL_MIN,
            protocol_max: version::PROTOCOL_MAX,
            epoch: 0,
            ..HelloRequest::default()
        };
        agent.hello(request).await.ok().map(tonic::Response::into_inner)
    };
    tokio::time::timeout(ANSWER, ask).await.ok().flatten()
}

/// A connection to the agent of a home.
pub async fn connect(home: &Home) -> Result<Channel, tonic::transport::Error> {
    let socket = home.socket();
    // The address is never looked at: the connector knows where to go.
    Endpoint::from_static("http://agent")
        .connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
}

fn spawn_supervisor(options: &Options, hide: &[String]) -> anyhow::Result<std::process::Child> {
    let home = &options.home;
    files::make_folders(home.path(), 0o755)?;
    let log = files::append(home.log())?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("skyward-agent")
        .arg("supervise")
        .arg("--home")
        .arg(home.path());
    command.args(["--machine", &options.machine, "--user", &options.user]);
    if let Some(stop_command) = &options.stop_command {
        command.args(["--stop-command", stop_command]);
    }
    if let Some(reclaim_command) = &options.reclaim_command {
        command.args(["--reclaim-command", reclaim_command]);
    }
    for name in hide {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .current_dir("/")
        .spawn()
        .context("cannot start the supervisor")
}

/// The supervisor's lock, if it is free.
fn supervisor_lock(home: &Home) -> anyhow::Result<Option<File>> {
    let file = files::open(home.supervisor_lock())?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Ends the supervisor of an older agent, and with it its daemon.
async fn stop_supervisor(home: &Home, deadline: Instant) -> anyhow::Result<()> {
    loop {
        if supervisor_lock(home)?.is_some() {
            return Ok(());
        }
        // The lock is held, so the number is that of a living supervisor.
        let pid = std::fs::read_to_string(home.supervisor_lock())?
            .trim()
            .parse()
            .unwrap_or(0);
        if pid > 1 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if Instant::now() >= deadline {
            bail!("the older agent (supervisor process {pid}) does not stop");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Keeps a daemon running, and collects the processes it leaves behind when it dies.
pub(super) fn supervise(arguments: &[String], home: &Home) -> anyhow::Result<()> {
    let _ = setsid();
    prctl::set_child_subreaper(true)?;
    let Some(mut lock) = supervisor_lock(home)? else {
        return Ok(());
    };
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())?;

    let mut mask = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        mask.add(signal);
    }
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut backoff = FIRST_BACKOFF;
    loop {
        let began = Instant::now();
        if live(spawn_daemon(arguments), |daemon| attend(&signals, daemon))? == Ended::Asked {
            return Ok(());
        }
        backoff = if began.elapsed() >= STEADY {
            FIRST_BACKOFF
        } else {
            (backoff * 2).min(LONGEST_BACKOFF)
        };
        tracing::error!(again_in = ?backoff, "the agent's daemon died and is started again");
        if sleep(&signals, backoff)? == Ended::Asked {
            return Ok(());
        }
    }
}

fn spawn_daemon(arguments: &[String]) -> anyhow::Result<Pid> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("skyward-agent")
        .arg("daemon")
        .args(arguments)
        .stdin(Stdio::null());
    let child = command.spawn().context("cannot start the daemon")?;
    Ok(Pid::from_raw(child.id() as i32))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// A signal asked the agent to end.
    Asked,
    Died,
}

/// One life of the daemon. A daemon that could not even start, on a machine without room for
/// another process, counts as one that died: if we ended, nothing would start the next one or stop
/// the machine.
fn live(
    spawned: anyhow::Result<Pid>,
    attend: impl FnOnce(Pid) -> anyhow::Result<Ended>,
) -> anyhow::Result<Ended> {
    match spawned {
        Ok(daemon) => attend(daemon),
        Err(error) => {
            tracing::error!("{error:#}");
            Ok(Ended::Died)
        }
    }
}

/// Waits for the end of the daemon; passes a request to end on to it.
fn attend(signals: &SignalFd, daemon: Pid) -> anyhow::Result<Ended> {
    let mut ended = Ended::Died;
    loop {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, 0)) if pid == daemon => return Ok(Ended::Asked),
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) if pid == daemon => {
                    return Ok(ended);
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return Ok(ended),
            }
        }
        if wait_for_signal(signals, PollTimeout::NONE)? {
            ended = Ended::Asked;
            let _ = kill(daemon, Signal::SIGTERM);
        }
    }
}

fn sleep(signals: &SignalFd, time: Duration) -> anyhow::Result<Ended> {
    let until = Instant::now() + time;
    while let left = until.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        // Children of a dead daemon become ours, and take up room that the next one needs.
        while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
            waitpid(None, Some(WaitPidFlag::WNOHANG))
        {}
        let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        if wait_for_signal(signals, left)? {
            return Ok(Ended::Asked);
        }
    }
    Ok(Ended::Died)
}

/// Whether the signal that came asks for the end.
fn wait_for_signal(signals: &SignalFd, timeout: PollTimeout) -> anyhow::Result<bool> {
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut asked = false;
    while let Some(signal) = signals.read_signal()? {
        let number = signal.ssi_signo as i32;
        asked |= number == Signal::SIGTERM as i32 || number == Signal::SIGINT as i32;
    }
    Ok(asked)
}

fn end_of_log(home: &Home) -> String {
    let mut text = Vec::new();
    let read = File::open(home.log()).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(std::io::SeekFrom::Start(length.saturating_sub(2000)))?;
        file.read_to_end(&mut text)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!("(it cannot be read: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_cannot_be_started_is_one_that_died() {
        let no_room = Err(anyhow::anyhow!("Resource temporarily unavailable"));
        let ended = live(no_room, |_| panic!("there is none to wait for"));
        assert_eq!(ended.unwrap(), Ended::Died);
        let asked = live(Ok(Pid::from_raw(1)), |_| Ok(Ended::Asked));
        assert_eq!(asked.unwrap(), Ended::Asked);
    }

    #[test]
    fn a_start_waits_for_the_next_attempt_of_a_daemon_that_died_often() {
        assert!(LONGEST_BACKOFF < READY);
    }
}
