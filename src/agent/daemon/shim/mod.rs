//! One process for each run, between the daemon and the work. It outlives the daemon, so an
//! exit code is never lost, and it is the reaper of everything the work leaves behind, so
//! nothing outlives the run.
//!
//! It is started with a socket to the daemon as standard input and the run's locked lock file
//! as standard output; the lock tells everybody that it lives. When the daemon goes away it
//! listens on a socket in the run's folder for the next one. It has one thread and waits in
//! one place ([`Shim::wait`]). What it found out becomes one verdict (`verdict.rs`), written
//! to the file `exit`; the end of the connection tells the daemon to look there.

mod control;
mod fork;
mod items;
mod keeper;
mod output;
mod places;
mod prepare;
mod signals;
mod sources;
mod spawn;
mod unpack;
mod verdict;

use std::{
    fs::File,
    io::{self, ErrorKind, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{Signal, killpg},
        stat::{Mode, umask},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, dup2_stdin, setsid},
};
use prost::Message;

use self::{
    control::Control,
    fork::{Asked, Kept},
    output::Output,
    prepare::{Failure, Prepared},
    signals::Signals,
    spawn::Work,
    verdict::{Cause, Observed, Status},
};
pub(super) use self::{keeper::main as keep, prepare::user_name, verdict::out_of_memory};
use super::{
    files, frame,
    home::{Home, RunFolder},
    machine,
    memory::{self, Kills},
    processes,
    remains::Begun,
    reserve::free_bytes,
    unix_ms,
};
use crate::{
    log::Stream,
    protocol::{RunSpec, run_spec},
};

/// Read from a pipe at once.
const READ_BYTES: usize = 128 * 1024;
/// An unfinished line becomes visible after this long.
const FLUSH_AFTER: Duration = Duration::from_millis(100);
/// How long output is read after the work and all its descendants are gone. Only a process outside
/// of the run could still hold the pipe.
const DRAIN: Duration = Duration::from_secs(2);
/// More than a verdict takes; allocated before the work can fill the disk.
const EXIT_BYTES: i64 = 16 * 1024;

/// The work, and what keeps a fork of the warm parent from its end until it is told.
type Started = (Work, Option<Kept>);

/// Runs the work of one run to its end, if it can be as a fork of the warm parent behind `parent`. Errors go to
/// standard error, the daemon's log.
pub(super) fn main(
    home: &Home,
    run_id: &str,
    default_user: &str,
    parent: Option<&Path>,
) -> anyhow::Result<()> {
    let _ = setsid();
    // Set regardless of the daemon's: our files and sockets are private.
    umask(Mode::from_bits_truncate(0o077));
    memory::go_before_the_agent();
    prctl::set_child_subreaper(true)?;
    // Done here, since a child with a directory costs the daemon a fork.
    std::env::set_current_dir("/")?;
    let signals = Signals::listen()?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    dup2_stdin(File::open("/dev/null")?)?;

    let folder = home.run(run_id);
    let spec = RunSpec::decode(std::fs::read(folder.spec())?.as_slice())?;
    let exit = ExitFile::allocate(&folder)?;
    let place = Place {
        home,
        folder: &folder,
        default_user,
        parent,
    };
    let control = Control::new(&folder, control);
    let (observed, control) = match &spec.worker {
        None => run(&place, &spec, signals, control)?,
        Some(worker) => items::run(&place, &spec, *worker, signals, control)?,
    };
    exit.write(&verdict::finished(&spec, &observed).encode_to_vec())?;
    // The end of the connection tells the daemon to read the verdict, so the verdict is written
    // before.
    drop(control);
    Ok(())
}

/// Where a run is to be.
#[derive(Clone, Copy)]
struct Place<'a> {
    home: &'a Home,
    folder: &'a RunFolder,
    default_user: &'a str,
    /// The socket of a keeper.
    parent: Option<&'a Path>,
}

impl Place<'_> {
    fn start(&self, asked: Option<Asked>, prepared: &Prepared, spec: &RunSpec) -> Result<Started, Failure> {
        let forked = asked.and_then(|asked| fork::start(asked, self.home, self.folder, prepared, spec));
        match forked {
            Some((work, kept)) => Ok((work, Some(kept))),
            None => Ok((spawn::spawn(prepared, spec)?, None)),
        }
    }
}

fn run(
    place: &Place<'_>,
    spec: &RunSpec,
    signals: Signals,
    control: Control,
) -> anyhow::Result<(Observed, Control)> {
    let Place {
        home,
        folder,
        default_user,
        ..
    } = *place;
    let mut observed = Observed {
        started_ms: unix_ms(),
        ..Observed::default()
    };
    let kills = Kills::now(machine::is_container());
    let asked = place.parent.and_then(|parent| fork::ask(parent, spec));
    let begun = || -> Result<(Prepared, Output, Started), Failure> {
        let prepared = prepare::prepare(home, folder, spec, default_user)?;
        let output = Output::create(folder, spec.log_limit)?;
        // From here on a second start would be a repetition.
        Begun {
            uid: prepared.user.uid,
            kills: kills.clone(),
        }
        .leave(folder)?;
        let work = place.start(asked, &prepared, spec)?;
        Ok((prepared, output, work))
    }();
    let (mut prepared, output, (mut work, kept)) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            observed.failure = Some(failure);
            observed.finished_ms = unix_ms();
            return Ok((observed, control));
        }
    };
    if let Some(values) = prepared.values.take() {
        // Without our copy of the other end the pipe is at its end when the work is.
        drop(values.theirs);
        work.pipes.push((Stream::Values, values.ours));
    }
    observed.started_ms = unix_ms();
    observed.forked = matches!(spec.work, Some(run_spec::Work::Function(_))).then_some(kept.is_some());
    let mut shim = Shim {
        spec,
        signals,
        control,
        pid: work.pid,
        kept,
        pipes: work.pipes,
        output,
        started_ms: observed.started_ms,
        deadline: (spec.timeout_ms != 0).then(|| Instant::now() + Duration::from_millis(spec.timeout_ms)),
        kill_at: None,
        killed: false,
        cause: None,
        status: None,
    };
    shim.control.say_started(shim.pid, shim.started_ms);
    shim.wait()?;
    observed.finished_ms = unix_ms();
    observed.status = shim.status;
    observed.cause = shim.cause;
    observed.killed = shim.killed;
    observed.output = shim.output.finish();
    observed.outcome = prepared.outcome.and_then(|file| prepare::read_outcome(&file));
    observed.result_bytes = prepared
        .result
        .and_then(|file| file.metadata().ok())
        .map(|metadata| metadata.len());
    observed.memory_kills = kills.and_then(|kills| kills.since()).unwrap_or(0);
    observed.no_room = has_no_room(&prepared.working_dir, folder);
    Ok((observed, shim.control))
}

/// Whether a disk that work writes to is full.
fn has_no_room(working_dir: &Path, folder: &RunFolder) -> bool {
    [working_dir, folder.path(), Path::new("/tmp")]
        .iter()
        .any(|path| free_bytes(path).is_some_and(|free| free < 256 * 1024))
}

struct Shim<'a> {
    spec: &'a RunSpec,
    signals: Signals,
    control: Control,
    pid: Pid,
    /// The keeper of the main process, where that is no child of ours.
    kept: Option<Kept>,
    pipes: Vec<(Stream, OwnedFd)>,
    output: Output,
    started_ms: u64,
    deadline: Option<Instant>,
    kill_at: Option<Instant>,
    killed: bool,
    cause: Option<Cause>,
    status: Option<Status>,
}

impl Shim<'_> {
    /// Waits until the main process, its descendants and its output are at their end.
    fn wait(&mut self) -> anyhow::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut drain_until: Option<Instant> = None;
        loop {
            if self.status.is_some() && drain_until.is_none() {
                self.end_descendants();
                drain_until = Some(Instant::now() + DRAIN);
            }
            if let Some(end) = drain_until
                && (self.pipes.is_empty() || Instant::now() >= end)
            {
                return Ok(());
            }
            let ready = self.poll(drain_until)?;
            if ready.signals {
                self.take_signals();
            }
            if ready.control {
                self.take_control();
            }
            if ready.kept {
                self.hear_keeper()?;
            }
            for index in ready.pipes.into_iter().rev() {
                let (stream, pipe) = &self.pipes[index];
                match nix::unistd::read(pipe, &mut buffer) {
                    Ok(0) => drop(self.pipes.remove(index)),
                    Ok(count) => self.output.push(*stream, &buffer[..count], unix_ms()),
                    Err(Errno::EINTR | Errno::EAGAIN) => {}
                    Err(_) => drop(self.pipes.remove(index)),
                }
            }
            let now = Instant::now();
            self.control.listen_again(now);
            if self.output.flush_at().is_some_and(|at| now >= at) {
                self.output.flush(unix_ms());
            }
            if self.deadline.is_some_and(|at| now >= at) {
                self.deadline = None;
                self.end(Cause::TimedOut, Duration::from_millis(self.spec.grace_ms));
            }
            if self.kill_at.is_some_and(|at| now >= at) && self.status.is_none() {
                self.kill();
            }
        }
    }

    fn poll(&self, drain_until: Option<Instant>) -> anyhow::Result<Ready> {
        let until = [
            self.deadline,
            self.kill_at,
            drain_until,
            self.output.flush_at(),
            self.control.listens_at(),
        ];
        let until = until.into_iter().flatten().min();
        let timeout = patience(until);
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let other = self.control.fd();
        fds.extend(other.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let kept = self.kept.as_ref().filter(|_| self.status.is_none());
        let kept_at = kept.map(|_| fds.len());
        fds.extend(kept.map(|kept| PollFd::new(kept.as_fd(), PollFlags::POLLIN)));
        let first_pipe = fds.len();
        fds.extend(
            self.pipes
                .iter()
                .map(|(_, pipe)| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
        );
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        Ok(Ready {
            signals: is_ready(&fds[0]),
            control: other.is_some() && is_ready(&fds[1]),
            kept: kept_at.is_some_and(|at| is_ready(&fds[at])),
            pipes: (first_pipe..fds.len())
                .filter(|index| is_ready(&fds[*index]))
                .map(|index| index - first_pipe)
                .collect(),
        })
    }

    fn take_signals(&mut self) {
        if self.signals.take() {
            let why = "the machine is shutting down".to_owned();
            self.end(Cause::Stopped(why), Duration::from_millis(self.spec.grace_ms));
        }
        self.reap();
    }

    /// Learns from the keeper how the main process ended. Without its keeper nobody knows that, and the run
    /// is as lost as one whose shim was killed: the daemon ends what is left of it and judges.
    fn hear_keeper(&mut self) -> anyhow::Result<()> {
        if let Some(kept) = &mut self.kept
            && self.status.is_none()
        {
            self.status = kept.ended().context("the keeper of the run's process is gone")?;
        }
        Ok(())
    }

    /// Collects dead children, ours and orphans that became ours. Returns whether any child is left.
    fn reap(&mut self) -> bool {
        loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Status::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Status::Signaled(signal as i32)),
                Ok(WaitStatus::StillAlive) => return true,
                Ok(_) | Err(Errno::EINTR) => continue,
                // A real-time signal has no name in nix; the child is gone all the same.
                Err(Errno::EINVAL) => (self.pid, Status::Signaled(0)),
                Err(_) => return false,
            };
            if pid == self.pid && self.status.is_none() {
                self.status = Some(status);
            }
        }
    }

    /// The run ends when its main process ends: nothing stays behind.
    fn end_descendants(&mut self) {
        if self.reap() {
            self.kill_all();
        }
    }

    /// Asks the work to end; the first cause counts.
    fn end(&mut self, cause: Cause, grace: Duration) {
        if self.status.is_some() {
            return;
        }
        let kill_at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(kill_at, |at| at.min(kill_at)));
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.deadline = None;
            let _ = killpg(self.pid, Signal::SIGTERM);
            let _ = killpg(self.pid, Signal::SIGCONT);
        }
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.killed = true;
        self.kill_all();
    }

    fn kill_all(&mut self) {
        let _ = killpg(self.pid, Signal::SIGKILL);
        let own = std::process::id() as i32;
        let forked = self.kept.as_ref().map(|_| self.pid.as_raw());
        processes::kill_all(|| {
            let mut left = processes::descendants(own);
            left.extend(forked.map(processes::tree).unwrap_or_default());
            left
        });
        self.reap();
    }

    fn take_control(&mut self) {
        self.control.take();
        while let Some(line) = self.control.line() {
            if let Some((grace, why)) = stop_order(&line) {
                self.end(Cause::Stopped(why), grace);
            }
        }
    }
}

/// How long to wait until then.
fn patience(until: Option<Instant>) -> PollTimeout {
    until.map_or(PollTimeout::NONE, |until| {
        // Rounded up, so that we never wake just before.
        let wait = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
    })
}

/// What the daemon says when a run is to end: in which time, and why.
fn stop_order(line: &str) -> Option<(Duration, String)> {
    let mut words = line.trim_end().splitn(3, ' ');
    if words.next() != Some("stop") {
        return None;
    }
    let grace = words.next()?.parse().ok()?;
    Some((
        Duration::from_millis(grace),
        words.next().unwrap_or_default().to_owned(),
    ))
}

/// Takes the first whole line out of what was received.
fn take_line(received: &mut Vec<u8>) -> Option<String> {
    let end = received.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = received.drain(..=end).collect();
    Some(String::from_utf8_lossy(&line[..end]).into_owned())
}

#[derive(Debug)]
struct Ready {
    signals: bool,
    control: bool,
    kept: bool,
    /// Indices, ascending.
    pipes: Vec<usize>,
}

/// The verdict's file: allocated before the work starts, there under its name only when whole.
struct ExitFile {
    file: File,
    folder: RunFolder,
}

impl ExitFile {
    fn allocate(folder: &RunFolder) -> io::Result<Self> {
        let file = files::create(folder.path().join("exit.next"))?;
        let _ = fallocate(&file, FallocateFlags::empty(), 0, EXIT_BYTES);
        Ok(Self {
            file,
            folder: folder.clone(),
        })
    }

    /// Not flushed: it must survive us and the daemon, not the machine; the daemon flushes its own
    /// record of the end.
    fn write(mut self, verdict: &[u8]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        frame::write(verdict, &mut bytes);
        for _ in 0..60 {
            self.file.rewind()?;
            match self.file.write_all(&bytes) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    std::thread::sleep(Duration::from_secs(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.file.set_len(bytes.len() as u64)?;
        Ok(std::fs::rename(
            self.folder.path().join("exit.next"),
            self.folder.exit(),
        )?)
    }
}
