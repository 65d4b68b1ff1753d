//! How an item ends: by itself, at its timeout, with its worker, or with the process that ran it. Here are the signals, and
//! what the kernel says of children.

use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use super::{
    super::{
        DRAIN, has_no_room, prepare, processes,
        verdict::{self, Cause, Observed, OutcomeEnding, Status},
    },
    Watcher,
};
use crate::{
    daemon::{map::queue::Ended, memory::Kills},
    protocol::{Finished, finished::Ending},
};

impl Watcher<'_> {
    /// An item has ended, as the runner or the end of its process says.
    pub(super) fn item_ended(&mut self, mut ended: Ended) {
        let Some(running) = self.running.take() else {
            return;
        };
        let is_success = ended.ending == i32::from(Ending::Exited) && ended.exit_code == 0;
        let is_ours = match running.cause {
            None => false,
            Some(Cause::TimedOut) => true,
            // It came to its end in its grace.
            Some(Cause::Stopped(_)) => !is_success,
        };
        if is_ours {
            let observed = Observed {
                cause: running.cause,
                killed: running.killed,
                ..Observed::default()
            };
            let Finished { ending, message, .. } = verdict::finished(self.spec, &observed);
            ended = Ended {
                ending,
                message,
                value: Bytes::new(),
                exception: String::new(),
                ..ended
            };
        }
        ended.microseconds = microseconds(running.began);
        let actions = self.items.ended(ended);
        self.take(actions);
    }

    /// A command has ended, and nothing of it is left.
    pub(super) fn command_ended(&mut self, status: Status) {
        let Some(running) = &self.running else { return };
        let (index, attempt) = (running.item.index, running.item.attempt);
        let (cause, killed) = (running.cause.clone(), running.killed);
        let finished = self.judge(status, cause, killed, None);
        self.item_ended(ended_as(index, attempt, finished));
    }

    /// The runner has ended.
    pub(super) fn runner_ended(&mut self, status: Status) {
        // It may have told the end of the item before its own. Its number may be another process's from here on.
        if let Some(runner) = &mut self.runner {
            runner.is_mute = true;
        }
        self.hear_runner();
        let runner = self.runner.take();
        self.kill_left();
        let outcome = self.prepared.outcome.take();
        let outcome = outcome.and_then(|file| prepare::read_outcome(&file));
        let has_answered = runner.is_some_and(|runner| runner.has_answered);
        let is_unfit = outcome
            .as_ref()
            .is_some_and(|outcome| outcome.ending == OutcomeEnding::BadSource);
        if is_unfit && !has_answered {
            self.failure.clone_from(&outcome);
            let actions = self.items.close();
            self.take(actions);
        }
        let Some(running) = &self.running else { return };
        let (index, attempt) = (running.item.index, running.item.attempt);
        let (cause, killed) = (running.cause.clone(), running.killed);
        let mut finished = self.judge(status, cause, killed, outcome);
        if finished.ending() == Ending::Exited && finished.exit_code == 0 {
            // No success: the item has no value.
            finished.ending = Ending::FunctionRaised.into();
            finished.message = "the process exited with 0 before the function returned".to_owned();
        }
        self.item_ended(ended_as(index, attempt, finished));
    }

    /// How a process ended that ran an item.
    fn judge(
        &mut self,
        status: Status,
        cause: Option<Cause>,
        killed: bool,
        outcome: Option<verdict::Outcome>,
    ) -> Finished {
        let failed = status != Status::Exited(0);
        let mut memory_kills = 0;
        if failed {
            let all = self.kills.as_ref().and_then(Kills::since).unwrap_or_default();
            memory_kills = all.saturating_sub(self.memory_kills);
            self.memory_kills = all;
        }
        let observed = Observed {
            status: Some(status),
            cause,
            killed,
            outcome,
            memory_kills,
            no_room: failed && has_no_room(&self.prepared.working_dir, self.folder),
            ..Observed::default()
        };
        verdict::finished(self.spec, &observed)
    }

    /// Asks the item that runs to end; the first cause counts.
    pub(super) fn end_item(&mut self, cause: Cause, grace: Duration) {
        let runner = self.runner.as_ref().map(|runner| runner.pid);
        let Some(running) = self.running.as_mut().filter(|running| running.status.is_none()) else {
            return;
        };
        let kill_at = Instant::now() + grace;
        running.kill_at = Some(running.kill_at.map_or(kill_at, |at| at.min(kill_at)));
        if running.cause.is_none() {
            running.cause = Some(cause);
            running.deadline = None;
            if let Some(group) = running
                .command
                .or_else(|| own_process(running.own, runner))
                .or(runner)
            {
                let _ = killpg(group, Signal::SIGTERM);
                let _ = killpg(group, Signal::SIGCONT);
            }
        }
    }

    pub(super) fn kill_item(&mut self) {
        let runner = self.runner.as_ref().map(|runner| runner.pid);
        let Some(running) = &mut self.running else { return };
        running.kill_at = None;
        running.killed = true;
        if running.command.is_none()
            && let Some(own) = own_process(running.own, runner)
        {
            // The runner tells how it ended.
            let _ = killpg(own, Signal::SIGKILL);
            processes::kill_all(|| processes::tree(own.as_raw()));
            return;
        }
        self.kill_left();
    }

    /// Ends all processes of the work.
    pub(super) fn kill_left(&mut self) {
        let own = std::process::id() as i32;
        processes::kill_all(|| processes::descendants(own));
        self.reap();
    }

    /// Collects dead children, ours and orphans that became ours.
    pub(super) fn reap(&mut self) {
        let (mut ended, mut is_odd) = (None, false);
        let has_others = loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Status::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Status::Signaled(signal as i32)),
                Ok(WaitStatus::StillAlive) => break true,
                Ok(_) | Err(Errno::EINTR) => continue,
                // A real-time signal has no name in nix; the child is gone all the same.
                Err(Errno::EINVAL) => {
                    is_odd = true;
                    continue;
                }
                Err(_) => break false,
            };
            if self.runner.as_ref().is_some_and(|runner| runner.pid == pid) {
                ended = Some(status);
            }
            if let Some(running) = self
                .running
                .as_mut()
                .filter(|running| running.command == Some(pid))
            {
                running.status = Some(status);
            }
        };
        let odd = |pid: Pid| (is_odd && is_gone(pid)).then_some(Status::Signaled(0));
        let is_new = self.running.as_mut().is_some_and(|running| {
            running.status = running.status.or_else(|| running.command.and_then(odd));
            let is_new = running.status.is_some() && running.drain_until.is_none();
            if is_new {
                running.drain_until = Some(Instant::now() + DRAIN);
            }
            is_new
        });
        let ended = ended.or_else(|| odd(self.runner.as_ref()?.pid));
        if is_new && has_others {
            // Nothing of an item stays behind.
            self.kill_left();
        }
        if let Some(status) = ended {
            self.runner_ended(status);
        }
    }
}

/// Whether a child of ours was reaped.
fn is_gone(pid: Pid) -> bool {
    nix::sys::signal::kill(pid, None::<Signal>) == Err(Errno::ESRCH)
}

/// The process that a runner has made for an item, if it is one of the runner's: work may have written any number.
fn own_process(own: Option<i32>, runner: Option<Pid>) -> Option<Pid> {
    let (own, runner) = (own?, runner?);
    processes::descendants(runner.as_raw())
        .contains(&own)
        .then(|| Pid::from_raw(own))
}

fn ended_as(index: u32, attempt: u32, finished: Finished) -> Ended {
    let Finished {
        ending,
        exit_code,
        signal,
        message,
        exception,
        ..
    } = finished;
    Ended {
        index,
        attempt,
        ending,
        exit_code,
        signal,
        message,
        exception,
        ..Ended::default()
    }
}

pub(super) fn microseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}
