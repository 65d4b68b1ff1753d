//! From the prepared run to the process of the work. Two ways, with the same outcome: the short
//! one starts the program at once, the long one goes through our helper (`exec.rs`), which can
//! do more, can be waited for with a deadline, and finds words for what goes wrong. Where the short
//! way fails the long one is tried.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::wait::waitpid,
    unistd::Pid,
};

use super::{
    super::{exec, memory::ChildrenFirst},
    prepare::{Failure, Prepared},
};
use crate::{log::Stream, protocol::RunSpec};

/// How long the step from our helper to the user's program may take.
const EXEC_DEADLINE: Duration = Duration::from_mins(1);

/// Work that has started.
pub(super) struct Work {
    pub(super) pid: Pid,
    pub(super) pipes: Vec<(Stream, OwnedFd)>,
}

impl Work {
    fn of(child: Child) -> Self {
        let pid = Pid::from_raw(child.id() as i32);
        let mut pipes = Vec::new();
        if let Some(pipe) = child.stdout {
            pipes.push((Stream::Stdout, OwnedFd::from(pipe)));
        }
        if let Some(pipe) = child.stderr {
            pipes.push((Stream::Stderr, OwnedFd::from(pipe)));
        }
        Self { pid, pipes }
    }
}

/// Starts the work.
pub(super) fn spawn(prepared: &Prepared, spec: &RunSpec) -> Result<Work, Failure> {
    let files = [&prepared.result, &prepared.outcome].into_iter().flatten();
    let values = prepared.values.as_ref().map(|values| values.theirs.as_fd());
    let channel = prepared.channel.as_ref().map(AsFd::as_fd);
    for file in files.map(AsFd::as_fd).chain(values).chain(channel) {
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).map_err(io::Error::from)?;
    }
    let _first = ChildrenFirst::begin();
    match directly(prepared, spec) {
        Some(work) => Ok(work),
        None => through_helper(prepared, spec),
    }
}

fn output(choice: &str) -> Stdio {
    if choice == "none" {
        Stdio::null()
    } else {
        Stdio::piped()
    }
}

/// The short way, where it is the same as the long one.
fn directly(prepared: &Prepared, spec: &RunSpec) -> Option<Work> {
    let (program, arguments) = prepared.arguments.split_first()?;
    // A Task's path may lie on a hanging mount; only the helper can be given up. And only the helper guards.
    let is_local = !prepared.is_guarded
        && spec.working_dir.is_empty()
        && !spec.env.contains_key("PATH")
        && (!program.contains('/') || prepared.is_own_program);
    if !is_local {
        return None;
    }
    let identity = exec::prepare_parent(&prepared.user)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&prepared.environment)
        .current_dir(&prepared.working_dir)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output(&spec.stdout))
        .stderr(output(&spec.stderr));
    if let exec::Identity::Other(uid, gid) = identity {
        command.uid(uid).gid(gid);
    }
    command.spawn().ok().map(Work::of)
}

fn through_helper(prepared: &Prepared, spec: &RunSpec) -> Result<Work, Failure> {
    let order = serde_json::to_vec(&prepared.order()).map_err(io::Error::from)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut command = exec::helper();
    command
        .stdin(OwnedFd::from(theirs))
        .stdout(output(&spec.stdout))
        .stderr(output(&spec.stderr));
    let child = command.spawn()?;
    drop(command);
    let work = Work::of(child);
    // A helper that is gone by now has failed; its status says how.
    let _ = ours
        .write_all(&order)
        .and_then(|()| ours.shutdown(Shutdown::Write));
    // The socket closes when the helper has become the work, or brings why it could not.
    let mut complaint = String::new();
    ours.set_read_timeout(Some(EXEC_DEADLINE))?;
    let _ = ours.read_to_string(&mut complaint);
    if complaint.is_empty() {
        return Ok(work);
    }
    let _ = waitpid(work.pid, None);
    Err(Failure::new(complaint + prepared.hint))
}
