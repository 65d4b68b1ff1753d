//! A keeper: one process for each warm parent, between the daemon and the shims. It starts the parent (a Python that
//! has imported what runs import, `python/skyward/_warm.py`), has it fork a process for each shim that asks, and is
//! the parent of all these forks in the eyes of the kernel. So it learns their exit codes at first hand, whether the
//! warm parent lives or not, and tells each to the fork's shim. It never sees the order of a run, and never touches
//! what a fork does: its shim ends it, at a timeout or on request.
//!
//! It is started with a socket to the daemon as standard input, and says `ready`, or `refused` with the reason why
//! nothing can be forked. The end of that connection, and of the warm parent, closes the keeper: it forks no more,
//! and goes away when the last of its forks is gone. A fork whose shim is gone is killed.

use std::{
    fs,
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{Signal, kill},
        socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt::PeerCredentials},
        stat::{Mode, umask},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, Uid, dup2_stdin, setsid},
};

use super::{
    super::{
        exec, files,
        home::Home,
        memory, processes,
        users::{self, User},
    },
    fork,
    prepare::{self, Prepared},
    signals::Signals,
    spawn, take_line,
    verdict::Status,
};
use crate::protocol::{RunSpec, WHY_BYTES};

/// How long the imports may take. Runs get fresh interpreters meanwhile.
const IMPORTS: Duration = Duration::from_mins(2);
/// How long a fork may take; a shim waits about as long.
const FORK: Duration = Duration::from_secs(2);
/// A parent that takes more memory is not kept, in KiB.
const LARGEST: u64 = 2 * 1024 * 1024;
/// More than a parent says in one line.
const LONGEST: usize = 1024;
/// Why nothing is forked where the agent cannot guard a parent that starts.
const UNGUARDED: &str = "other processes of its user could look into it while it starts: the container gives the agent none of CAP_NET_BIND_SERVICE, CAP_AUDIT_WRITE and CAP_BLOCK_SUSPEND, or its kernel has no ambient capabilities";

/// Keeps one warm parent. Errors go to standard error, the daemon's log.
pub(in super::super) fn main(
    home: &Home,
    socket: &str,
    user: &str,
    preload: &[String],
) -> anyhow::Result<()> {
    let _ = setsid();
    umask(Mode::from_bits_truncate(0o077));
    memory::go_before_the_agent();
    prctl::set_child_subreaper(true)?;
    std::env::set_current_dir("/")?;
    let signals = Signals::listen()?;
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    dup2_stdin(fs::File::open("/dev/null")?)?;
    if !exec::can_guard() {
        control.write_all(format!("refused {UNGUARDED}\n").as_bytes())?;
        return Ok(());
    }
    let spec = RunSpec {
        user: user.to_owned(),
        stdout: "none".to_owned(),
        stderr: "none".to_owned(),
        ..RunSpec::default()
    };
    let user = prepare::user(users::own(), &spec, "").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let (parent, channel) = start_parent(home, &user, &spec, preload)?;
    let mut keeper = Keeper {
        uid: user.uid,
        path: home.warm().join(socket),
        signals,
        control: Some(control),
        listener: None,
        parent: Some(parent),
        channel: Some(channel),
        heard: Vec::new(),
        imports_until: Some(Instant::now() + IMPORTS),
        asking: None,
        forks: Vec::new(),
    };
    keeper.keep()
}

/// Starts the Python that is forked from. It has the base of its user's environment, and nothing of a Task.
fn start_parent(
    home: &Home,
    user: &User,
    spec: &RunSpec,
    preload: &[String],
) -> anyhow::Result<(Pid, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut environment = prepare::base(home, user);
    environment.insert("PYTHONPATH".into(), prepare::text(&home.python_path()));
    // An earlier Task may have left packages in the home of its user.
    environment.insert("PYTHONNOUSERSITE".into(), "1".into());
    let mut arguments = vec![
        prepare::text(&home.python()),
        prepare::text(&home.python_path().join("skyward/_warm.py")),
        theirs.as_raw_fd().to_string(),
    ];
    arguments.extend_from_slice(preload);
    let prepared = Prepared {
        user: user.clone(),
        working_dir: PathBuf::from("/"),
        environment,
        arguments,
        is_own_program: true,
        // Another process of the user must not change what later Tasks are forked from, as it could until the
        // interpreter protects itself.
        is_guarded: true,
        hint: "",
        result: None,
        outcome: None,
        values: None,
        channel: None,
    };
    let work = spawn::spawn(&prepared, spec).map_err(|failure| anyhow::anyhow!(failure.message))?;
    Ok((work.pid, ours))
}

/// A fork, until its shim has learned how it ended.
struct Fork {
    pid: Pid,
    /// The shim.
    connection: UnixStream,
    status: Option<Status>,
    told: bool,
    /// The shim is gone: it knows all that it will ever know.
    alone: bool,
}

/// A shim that waits for a fork.
struct Asking {
    connection: UnixStream,
    until: Instant,
}

struct Keeper {
    /// Of the user that forks belong to.
    uid: u32,
    path: PathBuf,
    signals: Signals,
    /// The daemon.
    control: Option<UnixStream>,
    /// Where shims ask, from when the parent is ready.
    listener: Option<UnixListener>,
    parent: Option<Pid>,
    channel: Option<UnixStream>,
    /// The beginning of a line of the parent's.
    heard: Vec<u8>,
    imports_until: Option<Instant>,
    asking: Option<Asking>,
    forks: Vec<Fork>,
}

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
enum Ready {
    Signals,
    Control,
    Channel,
    Listener,
    /// The shim of the fork with that index is gone.
    Shim(usize),
}

impl Keeper {
    fn keep(&mut self) -> anyhow::Result<()> {
        loop {
            if self.parent.is_none() && self.forks.is_empty() {
                self.close();
                return Ok(());
            }
            for ready in self.poll()? {
                match ready {
                    Ready::Signals => {
                        // The work ends when its shims end it, also where the machine shuts down.
                        let _ = self.signals.take();
                    }
                    Ready::Control => self.take_control(),
                    Ready::Channel => self.hear(),
                    Ready::Listener => self.take_connection(),
                    Ready::Shim(index) => self.forks[index].alone = true,
                }
            }
            let now = Instant::now();
            if self.imports_until.is_some_and(|until| now >= until) {
                self.refuse("its packages take too long to be imported");
            }
            if self.asking.as_ref().is_some_and(|asking| now >= asking.until) {
                // It was stopped, or hangs; the next parent may do better.
                self.close();
            }
            self.look_after();
        }
    }

    fn poll(&self) -> anyhow::Result<Vec<Ready>> {
        let until = [
            self.imports_until,
            self.asking.as_ref().map(|asking| asking.until),
        ];
        let timeout = until
            .into_iter()
            .flatten()
            .min()
            .map_or(PollTimeout::NONE, |until| {
                let wait = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
                PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
            });
        let mut sources: Vec<(Ready, BorrowedFd<'_>)> = vec![(Ready::Signals, self.signals.as_fd())];
        sources.extend(self.control.as_ref().map(|fd| (Ready::Control, fd.as_fd())));
        sources.extend(self.channel.as_ref().map(|fd| (Ready::Channel, fd.as_fd())));
        if self.asking.is_none() {
            sources.extend(self.listener.as_ref().map(|fd| (Ready::Listener, fd.as_fd())));
        }
        let first = sources.len();
        for (index, fork) in self.forks.iter().enumerate().filter(|(_, fork)| !fork.alone) {
            sources.push((Ready::Shim(index), fork.connection.as_fd()));
        }
        let mut fds: Vec<PollFd<'_>> = sources
            .iter()
            .enumerate()
            .map(|(index, (_, fd))| {
                // What a shim sends is for its fork; only its end is for us.
                let events = if index < first {
                    PollFlags::POLLIN
                } else {
                    PollFlags::empty()
                };
                PollFd::new(*fd, events)
            })
            .collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let ready = sources
            .into_iter()
            .zip(is_ready)
            .filter(|(_, is_ready)| *is_ready);
        Ok(ready.map(|((ready, _), _)| ready).collect())
    }

    /// The daemon says nothing; it hangs up.
    fn take_control(&mut self) {
        let mut buffer = [0; 64];
        let read = self.control.as_mut().map(|control| control.read(&mut buffer));
        if !matches!(read, Some(Ok(1..))) {
            self.control = None;
            self.close();
        }
    }

    fn tell_daemon(&mut self, line: &str) {
        if let Some(control) = &mut self.control {
            let _ = control.write_all(line.as_bytes());
        }
    }

    /// Reads what the parent says.
    fn hear(&mut self) {
        let mut buffer = [0; LONGEST];
        let read = self.channel.as_mut().map(|channel| channel.read(&mut buffer));
        match read {
            Some(Ok(count @ 1..)) if self.heard.len() < LONGEST => self.heard.extend(&buffer[..count]),
            Some(Err(error)) if error.kind() == ErrorKind::Interrupted => return,
            // How a parent ended that had not imported everything is worth telling, and is seen when it is reaped.
            Some(Ok(0)) if self.imports_until.is_some() => {
                self.channel = None;
                return;
            }
            _ => return self.close(),
        }
        while let Some(line) = take_line(&mut self.heard) {
            match line.split_once(' ').unwrap_or((line.as_str(), "")) {
                ("ready", "") => self.open(),
                ("forked", pid) => self.take_fork(pid),
                // The machine has no process to spare: this run gets a fresh interpreter, or waits as it would.
                ("busy", _) => self.asking = None,
                ("no", why) => self.refuse(why),
                _ => self.close(),
            }
        }
    }

    /// The parent has imported everything.
    fn open(&mut self) {
        if self.imports_until.take().is_none() {
            return;
        }
        let kilobytes = self
            .parent
            .and_then(|parent| processes::resident(parent.as_raw()));
        if let Some(kilobytes) = kilobytes.filter(|kilobytes| *kilobytes > LARGEST) {
            return self.refuse(&format!("its packages take {} MiB of memory", kilobytes / 1024));
        }
        let bound = files::short(&self.path).and_then(|short| UnixListener::bind(short.name()));
        match bound {
            Ok(listener) => {
                self.listener = Some(listener);
                self.tell_daemon("ready\n");
            }
            Err(error) => self.refuse(&format!("the agent cannot listen for it: {error}")),
        }
    }

    /// A shim asks for a fork.
    fn take_connection(&mut self) {
        let accepted = self.listener.as_ref().map(UnixListener::accept);
        let Some(Ok((connection, _))) = accepted else {
            // It would be ready again at once.
            return self.close();
        };
        let own = Uid::effective().as_raw();
        if !getsockopt(&connection, PeerCredentials).is_ok_and(|peer| peer.uid() == own) {
            return;
        }
        let handed_on = self.channel.as_ref().is_some_and(|channel| {
            sendmsg::<()>(
                channel.as_raw_fd(),
                &[IoSlice::new(b"f")],
                &[ControlMessage::ScmRights(&[connection.as_raw_fd()])],
                MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
                None,
            )
            .is_ok()
        });
        if !handed_on {
            return self.close();
        }
        self.asking = Some(Asking {
            connection,
            until: Instant::now() + FORK,
        });
    }

    /// The parent says that it forked. It runs as the user, so it is believed only what the kernel confirms.
    fn take_fork(&mut self, pid: &str) {
        let Some(Asking { mut connection, .. }) = self.asking.take() else {
            return self.close();
        };
        let pid = pid.parse().unwrap_or(0);
        let is_new = self.parent != Some(Pid::from_raw(pid))
            && self.forks.iter().all(|fork| fork.pid.as_raw() != pid)
            && processes::is_child_of_user(pid, self.uid);
        if !is_new {
            return self.close();
        }
        // A shim that is gone by now is seen as such.
        let _ = connection.write_all(format!("forked {pid}\n").as_bytes());
        self.forks.push(Fork {
            pid: Pid::from_raw(pid),
            connection,
            status: None,
            told: false,
            alone: false,
        });
    }

    /// Nothing can be forked from this parent, nor from another one of its kind.
    fn refuse(&mut self, why: &str) {
        let mut why: String = why
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .collect();
        why.truncate(why.floor_char_boundary(WHY_BYTES));
        self.tell_daemon(&format!("refused {why}\n"));
        self.close();
    }

    /// Forks no more. What was forked goes on.
    fn close(&mut self) {
        self.imports_until = None;
        self.channel = None;
        self.asking = None;
        if self.listener.take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
        // The daemon sees that we are closed by the end of its connection.
        self.control = None;
        if let Some(parent) = self.parent {
            let _ = kill(parent, Signal::SIGKILL);
        }
    }

    /// Reaps what is dead, kills what must not live, and tells shims how their forks ended.
    fn look_after(&mut self) {
        if let Some(parent) = self.parent {
            let end = waitpid(parent, Some(WaitPidFlag::WNOHANG));
            if !matches!(end, Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)) {
                self.parent = None;
                match end.ok().and_then(fault_of_imports) {
                    Some(why) if self.imports_until.is_some() => self.refuse(&why),
                    _ => self.close(),
                }
            }
        }
        for fork in self
            .forks
            .iter()
            .filter(|fork| fork.alone && fork.status.is_none())
        {
            processes::kill_all(|| processes::tree(fork.pid.as_raw()));
        }
        for fork in &mut self.forks {
            if fork.status.is_none() {
                fork.status = ended(fork.pid);
            }
        }
        // A fork that is not known yet looks like a leftover.
        if self.asking.is_some() {
            return;
        }
        if self.forks.iter().any(|fork| fork.status.is_some() && !fork.told) || self.has_strangers() {
            self.end_leftovers();
        }
        for fork in &mut self.forks {
            if let Some(status) = fork.status
                && !fork.told
            {
                fork.told = true;
                let _ = fork.connection.write_all(fork::said(status).as_bytes());
            }
        }
        self.forks.retain(|fork| {
            let is_over = fork.alone && fork.status.is_some();
            if is_over {
                let _ = waitpid(fork.pid, Some(WaitPidFlag::WNOHANG));
            }
            !is_over
        });
    }

    /// Children that are neither the parent nor forks. A fork keeps its own orphans as long as it lives, so these
    /// are of forks that ended, or of forks that let go of their orphans.
    fn strangers(&self) -> impl Iterator<Item = i32> {
        processes::children().into_iter().filter(move |pid| {
            let pid = Pid::from_raw(*pid);
            self.parent != Some(pid) && self.forks.iter().all(|fork| fork.pid != pid)
        })
    }

    fn has_strangers(&self) -> bool {
        self.strangers().next().is_some()
    }

    /// Nothing outlives its run.
    fn end_leftovers(&self) {
        processes::kill_all(|| self.strangers().flat_map(processes::tree).collect());
        for pid in self.strangers() {
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// What to say of a parent that ended while it imported, where the next one would end in the same way. Somebody may
/// have killed it, or the kernel for want of memory: that says nothing about the next one.
fn fault_of_imports(end: WaitStatus) -> Option<String> {
    let how = match end {
        WaitStatus::Exited(_, code) => format!("exited with code {code}"),
        WaitStatus::Signaled(_, Signal::SIGKILL | Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP, _) => {
            return None;
        }
        WaitStatus::Signaled(_, signal, _) => format!("was killed by {}", signal.as_str()),
        _ => return None,
    };
    Some(format!("its Python {how} while it imported its packages"))
}

/// How a child ended, without reaping it.
fn ended(pid: Pid) -> Option<Status> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), flags) {
        Ok(WaitStatus::Exited(_, code)) => Some(Status::Exited(code)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(Status::Signaled(signal as i32)),
        // A real-time signal has no name in nix; the child is gone all the same.
        Err(Errno::EINVAL) => Some(Status::Signaled(0)),
        // It is no child of ours, and never was.
        Err(Errno::ECHILD) => Some(Status::Signaled(Signal::SIGKILL as i32)),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_the_next_parent_would_have_too_is_a_fault_of_the_imports() {
        let pid = Pid::from_raw(7);
        let signaled = |signal| fault_of_imports(WaitStatus::Signaled(pid, signal, false));
        let said = fault_of_imports(WaitStatus::Exited(pid, 3)).unwrap();
        assert_eq!(
            said,
            "its Python exited with code 3 while it imported its packages"
        );
        let said = signaled(Signal::SIGSEGV).unwrap();
        assert_eq!(
            said,
            "its Python was killed by SIGSEGV while it imported its packages"
        );
        for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            assert_eq!(signaled(signal), None);
        }
    }
}
