//! How an item ends: by itself, at its timeout, with its worker, or with the process that ran it. Here are the signals, and
//! what the kernel says of children.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

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
    daemon::{
        map::{
            links,
            queue::{Ended, Item},
        },
        memory::Kills,
    },
    protocol::{Finished, finished::Ending},
};

impl Watcher<'_> {
    /// The runner says how an item ended. Where a process of its own ended, the kernel is asked why, as for a command.
    pub(super) fn process_said(&mut self, ended: Ended) {
        let status = match (ended.signal, ended.exit_code) {
            (0, 0) => return self.item_ended(ended),
            (0, code) => Status::Exited(code),
            (signal, _) => Status::Signaled(signal),
        };
        let finished = self.judge(status, None, false, None);
        self.item_ended(ended_as(ended.index, ended.attempt, finished));
    }

    /// An item has ended, as the runner or the end of its process says.
    pub(super) fn item_ended(&mut self, mut ended: Ended) {
        let at = self
            .running
            .iter()
            .position(|running| running.item.index == ended.index);
        let Some(running) = at.map(|at| self.running.remove(at)) else {
            return;
        };
        if running.own.is_some() {
            self.kill_orphans();
        }
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
        if self.items.is_idle() {
            self.control.say(links::IDLE);
        }
    }

    /// A command has ended, and nothing of it is left.
    pub(super) fn command_ended(&mut self, status: Status) {
        let Some(running) = self.running.first() else {
            return;
        };
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
        let ran: Vec<Item> = self.running.iter().map(|running| running.item).collect();
        if ran.is_empty() {
            return;
        }
        let is_shared = ran.len() > 1 && outcome.is_none();
        let mut finished = self.judge(status, None, false, outcome);
        if finished.ending() == Ending::Exited && finished.exit_code == 0 {
            // No success: the item has no value.
            finished.ending = Ending::FunctionRaised.into();
            "the process exited with 0 before the function returned".clone_into(&mut finished.message);
        }
        if is_shared {
            // One of them may have ended the process, and nobody can say which.
            finished.ending = Ending::Interrupted.into();
            finished.message = format!(
                "the process that ran it as a thread, with {} other items, has ended: {}",
                ran.len() - 1,
                finished.message
            );
        }
        for item in ran {
            // What had to end by our will ended so.
            self.item_ended(ended_as(item.index, item.attempt, finished.clone()));
        }
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

    /// Asks an item that runs to end, by its place among those; the first cause counts. A thread that has run too long
    /// stays until [`Watcher::end_late_threads`] ends its process.
    pub(super) fn end_item(&mut self, index: usize, cause: Cause, grace: Duration) {
        let runner = self.runner.as_ref().map(|runner| runner.pid);
        let running = self.running.get_mut(index);
        let Some(running) = running.filter(|running| running.status.is_none()) else {
            return;
        };
        if self.has_threads && cause == Cause::TimedOut {
            running.cause.get_or_insert(cause);
            return;
        }
        let kill_at = Instant::now() + grace;
        running.kill_at = Some(running.kill_at.map_or(kill_at, |at| at.min(kill_at)));
        if running.cause.is_none() {
            running.cause = Some(cause);
            running.deadline = None;
            running.own_is_new = false;
            let own = running.command.or_else(|| own_process(running.own, runner));
            if let Some(group) = own.or(runner) {
                ask(group);
            }
            if own.is_none() {
                self.runner_is_asked();
            }
        }
    }

    /// Asks the items once more that had to end before it was known in which process they begin: the one that was announced
    /// may have been asked before it had the order. Once for all that was heard: work may write any number of messages, and
    /// each look for a process goes through all that there are.
    pub(super) fn ask_again(&mut self) {
        let runner = self.runner.as_ref().map(|runner| runner.pid);
        for running in &mut self.running {
            if running.cause.is_some()
                && std::mem::take(&mut running.own_is_new)
                && let Some(own) = own_process(running.own, runner)
            {
                ask(own);
            }
        }
    }

    /// The runner itself was asked to end: where the item ends by itself just then, the next one must not begin in a
    /// process that is about to hear of it.
    fn runner_is_asked(&mut self) {
        if let Some(runner) = &mut self.runner {
            runner.is_ending = true;
        }
    }

    /// While a thread has run too long no other item begins beside it. Once none is left that has time, their process is
    /// asked to end; how they ended is told only then, so that another attempt never runs beside a thread of this one.
    pub(super) fn end_late_threads(&mut self) {
        if !self.has_threads {
            return;
        }
        let late = self.running.iter().filter(|running| running.cause.is_some());
        let late = late.count();
        if self.items.pauses() != (late > 0) {
            let actions = self.items.pause(late > 0);
            self.take(actions);
        }
        let is_asked = self.runner.as_ref().is_none_or(|runner| runner.is_ending);
        if late == 0 || late < self.running.len() || is_asked {
            return;
        }
        let kill_at = Instant::now() + Duration::from_millis(self.spec.grace_ms);
        for running in &mut self.running {
            running.kill_at.get_or_insert(kill_at);
        }
        if let Some(runner) = &self.runner {
            ask(runner.pid);
        }
        self.runner_is_asked();
    }

    /// Ends what runs and had its grace.
    pub(super) fn kill_item(&mut self) {
        let runner = self.runner.as_ref().map(|runner| runner.pid);
        for running in &mut self.running {
            running.kill_at = None;
            running.killed = true;
        }
        if let [running] = &self.running[..]
            && running.command.is_none()
            && let Some(own) = own_process(running.own, runner)
        {
            // The runner tells how it ended.
            let _ = killpg(own, Signal::SIGKILL);
            processes::kill_all(|| processes::tree(own.as_raw()));
            return;
        }
        self.kill_left();
    }

    /// Ends what the process of an item left outside of its group: it became ours when its parent ended.
    fn kill_orphans(&mut self) {
        let runner = self.runner.as_ref().map(|runner| runner.pid.as_raw());
        let orphans = || -> BTreeSet<i32> {
            let children = processes::children().into_iter();
            let left = children.filter(|child| Some(*child) != runner);
            left.flat_map(processes::tree).collect()
        };
        if !orphans().is_empty() {
            processes::kill_all(orphans);
        }
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
            for running in &mut self.running {
                if running.command == Some(pid) {
                    running.status = Some(status);
                }
            }
        };
        let odd = |pid: Pid| (is_odd && is_gone(pid)).then_some(Status::Signaled(0));
        let is_new = self.running.first_mut().is_some_and(|running| {
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

/// Asks the processes of a group to end, stopped ones too.
fn ask(group: Pid) {
    let _ = killpg(group, Signal::SIGTERM);
    let _ = killpg(group, Signal::SIGCONT);
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

fn microseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}
