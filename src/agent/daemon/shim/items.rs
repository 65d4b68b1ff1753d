//! The worker of a map: a shim that does its work once for each item that the daemon gives it, until it is asked to end
//! (`docs/decisions/0024-maps.md`). What happens next is decided by [`Items`](super::super::map::place::Place); here is
//! how an item is run, and in [`ends`] how its end is seen.
//!
//! - A command or script is a process for each item, with nothing left behind between two items.
//! - A function is run by a Python that gets one item after the other (`python/skyward/_items.py`). Where that Python
//!   ends, the item that it ran ended with it, and the next item gets another one. Where it cannot even load the
//!   function, the worker ends: no other item would fare better.
//! - Where a worker runs several items at the same time, they are threads of that Python. Nothing can end a thread alone:
//!   one that has run too long lets no other item begin, until the Python has ended with it and a new one is there. A
//!   Python that ends before that interrupts all items that it ran.
//!
//! The timeout of the run is that of one item. This process never begins an item twice, and never begins one whose
//! beginning is not written.

mod ends;

use std::{
    collections::{BTreeMap, VecDeque},
    io::{ErrorKind, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
    unistd::Pid,
};

use super::{
    Control, DRAIN, Failure, Output, Place, Prepared, READ_BYTES, RunFolder, Signals, patience, prepare,
    spawn, stop_order, unix_ms,
    verdict::{self, Cause, Observed, Status},
};
use crate::{
    daemon::{
        machine,
        map::{
            links::{self, Order},
            place::{Action, Place as Items},
            queue::{Chunk, Ended, Item},
            runner::{self, Heard, Said},
            share::Share,
            variables,
        },
        memory::Kills,
        remains::Begun,
    },
    log::Stream,
    protocol::{RunSpec, VALUE_BYTES, Worker, finished::Ending, run_spec::Work},
};

/// What a full disk did not take is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);
/// Read from the Python of a worker at once. An item's end is short as a rule.
const READ_RUNNER: usize = 16 * 1024;
/// Reads from the Python of a worker before all else is looked at again.
const READS: u32 = 256;
/// How long the Python of a worker may take to end by itself when no more items come.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs items until the worker is asked to end.
pub(super) fn run(
    at: &Place<'_>,
    spec: &RunSpec,
    worker: Worker,
    signals: Signals,
    mut control: Control,
) -> anyhow::Result<(Observed, Control)> {
    let folder = at.folder;
    let mut observed = Observed {
        started_ms: unix_ms(),
        ..Observed::default()
    };
    let kills = Kills::now(machine::is_container());
    let begun = || -> Result<(Prepared, Output, Share), Failure> {
        let mut prepared = prepare::prepare(at.home, folder, spec, at.default_user)?;
        let (total, key) = (worker.total.to_string(), variables::TOTAL.to_owned());
        prepared.environment.insert(key, total);
        let output = Output::create(folder, spec.log_limit)?;
        let share = Share::open(&folder.share())?;
        // From here on a second start would be a repetition.
        Begun {
            uid: prepared.user.uid,
            kills: kills.clone(),
        }
        .leave(folder)?;
        Ok((prepared, output, share))
    }();
    let (prepared, output, share) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            observed.failure = Some(failure);
            observed.finished_ms = unix_ms();
            return Ok((observed, control));
        }
    };
    observed.started_ms = unix_ms();
    control.say_started(Pid::this(), observed.started_ms);
    let mut watcher = Watcher {
        spec,
        folder,
        total: worker.total,
        signals,
        control,
        arguments: prepared.arguments.clone(),
        prepared,
        items: Items::new(share, prepare::threads(spec) as usize),
        has_threads: prepare::threads(spec) > 1,
        actions: VecDeque::new(),
        running: Vec::new(),
        runner: None,
        pipes: Vec::new(),
        output,
        memory_kills: 0,
        kills,
        coming: None,
        syncs: VecDeque::new(),
        again_at: None,
        cause: None,
        grace: Duration::ZERO,
        farewell: None,
        last_output_until: None,
        failure: None,
    };
    watcher.watch()?;
    observed.finished_ms = unix_ms();
    observed.cause = watcher.cause;
    observed.outcome = watcher.failure;
    observed.status = Some(Status::Exited(0));
    observed.output = watcher.output.finish();
    Ok((observed, watcher.control))
}

/// An item that runs.
struct Running {
    item: Item,
    began: Instant,
    /// Of a command: its process group.
    command: Option<Pid>,
    /// Of a function: the process that the runner says it has made for this item.
    own: Option<i32>,
    /// The runner has named another process since the item was asked to end.
    own_is_new: bool,
    deadline: Option<Instant>,
    kill_at: Option<Instant>,
    killed: bool,
    cause: Option<Cause>,
    /// How the command ended.
    status: Option<Status>,
    /// Its output is read until then.
    drain_until: Option<Instant>,
}

/// The Python that runs a function.
struct Runner {
    pid: Pid,
    channel: UnixStream,
    heard: Heard,
    /// The process that it says waits for the next item.
    waiting: Option<i32>,
    /// Of the order for the item that runs.
    unsent: Vec<u8>,
    /// Whether it has told the end of an item.
    has_answered: bool,
    /// Its end of the channel is closed: nothing more comes.
    is_mute: bool,
    /// It was asked to end, for an item that had to. It may not have heard that yet, and no other item begins there.
    is_ending: bool,
}

struct Watcher<'a> {
    spec: &'a RunSpec,
    folder: &'a RunFolder,
    total: u32,
    signals: Signals,
    control: Control,
    prepared: Prepared,
    /// Those of the work, in which an item is not put yet.
    arguments: Vec<String>,
    items: Items<Share>,
    /// Whether several items of a function run at the same time, in one process.
    has_threads: bool,
    actions: VecDeque<Action>,
    running: Vec<Running>,
    runner: Option<Runner>,
    pipes: Vec<(Stream, OwnedFd)>,
    output: Output,
    kills: Option<Kills>,
    /// Processes that the kernel had killed for want of memory when an item last failed.
    memory_kills: u64,
    /// An order whose items have not come yet.
    coming: Option<(Chunk, usize)>,
    /// Answered once all that came before is written.
    syncs: VecDeque<u64>,
    again_at: Option<Instant>,
    /// Why the worker ends.
    cause: Option<Cause>,
    grace: Duration,
    /// When what is left of the work is killed.
    farewell: Option<Instant>,
    last_output_until: Option<Instant>,
    /// The function cannot be loaded.
    failure: Option<verdict::Outcome>,
}

impl Watcher<'_> {
    /// Waits until the worker has nothing more to do and all its processes are gone.
    fn watch(&mut self) -> anyhow::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            self.act();
            if self.is_done() {
                return Ok(());
            }
            let ready = self.poll()?;
            if ready.signals {
                if self.signals.take() {
                    let grace = Duration::from_millis(self.spec.grace_ms);
                    self.stop("the machine is shutting down".to_owned(), grace);
                }
                self.reap();
            }
            if ready.control {
                self.hear();
            }
            if ready.runner {
                self.send_order();
                self.hear_runner();
                self.ask_again();
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
            self.keep_time();
        }
    }

    fn poll(&self) -> anyhow::Result<Ready> {
        let running = self
            .running
            .iter()
            .flat_map(|running| [running.deadline, running.kill_at, running.drain_until]);
        let until = [
            self.again_at,
            self.farewell,
            self.last_output_until,
            self.output.flush_at(),
            self.control.listens_at(),
        ];
        let until = running.chain(until).flatten().min();
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let control = self.control.fd();
        fds.extend(control.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let runner = self.runner.as_ref().filter(|runner| !runner.is_mute);
        let runner_at = runner.map(|_| fds.len());
        fds.extend(runner.map(|runner| {
            let flags = if runner.unsent.is_empty() {
                PollFlags::POLLIN
            } else {
                PollFlags::POLLIN | PollFlags::POLLOUT
            };
            PollFd::new(runner.channel.as_fd(), flags)
        }));
        let first_pipe = fds.len();
        fds.extend(
            self.pipes
                .iter()
                .map(|(_, pipe)| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
        );
        match poll(&mut fds, patience(until)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for the items of a worker"),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        Ok(Ready {
            signals: is_ready(&fds[0]),
            control: control.is_some() && is_ready(&fds[1]),
            runner: runner_at.is_some_and(|at| is_ready(&fds[at])),
            pipes: (first_pipe..fds.len())
                .filter(|index| is_ready(&fds[*index]))
                .map(|index| index - first_pipe)
                .collect(),
        })
    }

    /// Whether all is over. What is left of the work is ended first.
    fn is_done(&mut self) -> bool {
        if !self.items.is_over() || !self.running.is_empty() {
            return false;
        }
        if let Some(runner) = &mut self.runner {
            if self.farewell.is_none() {
                // The end of the channel is the end of the work.
                let _ = runner.channel.shutdown(std::net::Shutdown::Write);
                self.farewell = Some(Instant::now() + FAREWELL.min(self.grace.max(AGAIN)));
            }
            return false;
        }
        let until = *self
            .last_output_until
            .get_or_insert_with(|| Instant::now() + DRAIN);
        self.pipes.is_empty() || Instant::now() >= until
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if is_due(self.output.flush_at()) {
            self.output.flush(unix_ms());
        }
        if is_due(self.again_at) {
            let actions = self.items.try_again();
            self.take(actions);
        }
        if is_due(self.farewell) {
            // It comes once: from then on there is nothing to be killed.
            self.farewell = Some(now + DRAIN);
            self.kill_left();
        }
        self.control.listen_again(now);
        for index in 0..self.running.len() {
            if is_due(self.running[index].deadline) {
                self.running[index].deadline = None;
                self.end_item(index, Cause::TimedOut, Duration::from_millis(self.spec.grace_ms));
            }
        }
        self.end_late_threads();
        if self.running.iter().any(|running| is_due(running.kill_at)) {
            self.kill_item();
        }
        let Some(running) = self.running.first() else {
            return;
        };
        if let (Some(status), Some(until)) = (running.status, running.drain_until)
            && (self.pipes.is_empty() || now >= until)
        {
            self.pipes.clear();
            self.command_ended(status);
        }
    }

    /// Carries out what the place says.
    fn act(&mut self) {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Answer(released) => {
                    self.control.say(&links::released(released));
                }
                Action::Run(item, json) => self.begin(item, &json),
            }
        }
    }

    fn take(&mut self, actions: Vec<Action>) {
        self.actions.extend(actions);
        if self.items.waits() {
            self.again_at = Some(Instant::now() + AGAIN);
            return;
        }
        self.again_at = None;
        while let Some(number) = self.syncs.pop_front() {
            self.control.say(&links::synced(number));
        }
    }

    /// What the daemon says.
    fn hear(&mut self) {
        if self.control.take() {
            // The rest of it never comes, so it was not taken.
            self.coming = None;
            self.syncs.clear();
        }
        loop {
            if let Some((chunk, bytes)) = self.coming.take() {
                let Some(payload) = self.control.bytes(bytes) else {
                    self.coming = Some((chunk, bytes));
                    return;
                };
                let actions = self.items.give(chunk, links::items(payload.into()));
                self.take(actions);
                continue;
            }
            let Some(line) = self.control.line() else { return };
            match links::order(&line) {
                Some(Order::Give(chunk, bytes)) => self.coming = Some((chunk, bytes)),
                Some(Order::Recall(range)) => {
                    let actions = self.items.recall(range);
                    self.take(actions);
                }
                Some(Order::Sync(number)) => {
                    self.syncs.push_back(number);
                    let actions = self.items.try_again();
                    self.take(actions);
                }
                None => {
                    if let Some((grace, why)) = stop_order(&line) {
                        self.stop(why, grace);
                    }
                }
            }
        }
    }

    /// The worker ends: with the item that runs, which has that time.
    fn stop(&mut self, why: String, grace: Duration) {
        let cause = self.cause.get_or_insert(Cause::Stopped(why)).clone();
        self.grace = grace;
        let actions = self.items.close();
        self.take(actions);
        for index in 0..self.running.len() {
            self.end_item(index, cause.clone(), grace);
        }
    }

    fn begin(&mut self, item: Item, json: &Bytes) {
        // A runner that has ended, or to which nothing can be said, runs no other item.
        self.reap();
        let is_unusable = |runner: &Runner| runner.is_mute || runner.is_ending;
        if self.cause.is_none() && self.runner.as_ref().is_some_and(is_unusable) {
            self.kill_left();
        }
        let now = Instant::now();
        let timeout = (self.spec.timeout_ms != 0).then(|| Duration::from_millis(self.spec.timeout_ms));
        self.running.push(Running {
            item,
            began: now,
            command: None,
            own: None,
            own_is_new: false,
            deadline: timeout.map(|timeout| now + timeout),
            kill_at: None,
            killed: false,
            cause: self.cause.clone(),
            status: None,
            drain_until: None,
        });
        if self.cause.is_some() {
            // The worker was asked to end before it could begin, which is on record all the same.
            self.item_ended(Ended {
                index: item.index,
                attempt: item.attempt,
                ending: Ending::Stopped.into(),
                ..Ended::default()
            });
            return;
        }
        let is_function = matches!(self.spec.work, Some(Work::Function(_)));
        let begun = if is_function {
            self.begin_function(item, json)
        } else {
            self.begin_command(item, json)
        };
        if let Err(failure) = begun {
            let ending = if failure.no_room {
                Ending::DiskFull
            } else {
                Ending::StartFailed
            };
            self.item_ended(Ended {
                index: item.index,
                attempt: item.attempt,
                ending: ending.into(),
                message: failure.message,
                ..Ended::default()
            });
        }
    }

    fn begin_command(&mut self, item: Item, json: &Bytes) -> Result<(), Failure> {
        let text = variables::text(item.index, json);
        let mut known = BTreeMap::from([
            (variables::INDEX, item.index.to_string()),
            (variables::TOTAL, self.total.to_string()),
        ]);
        if text.len() <= variables::LONGEST && !text.contains('\0') {
            known.insert(variables::ITEM, text);
        } else {
            let path = prepare::leave_item(self.folder, &self.prepared.user, &text)?;
            known.insert(variables::FILE, prepare::text(&path));
        }
        let environment = &mut self.prepared.environment;
        for name in [variables::ITEM, variables::FILE] {
            environment.remove(name);
        }
        if matches!(self.spec.work, Some(Work::Command(_))) {
            let expanded = self.arguments.iter().map(|text| variables::expand(text, &known));
            self.prepared.arguments = expanded.collect();
        }
        environment.extend(known.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let work = spawn::spawn(&self.prepared, self.spec)?;
        self.pipes = work.pipes;
        if let Some(running) = self.running.last_mut() {
            running.command = Some(work.pid);
        }
        Ok(())
    }

    fn begin_function(&mut self, item: Item, json: &Bytes) -> Result<(), Failure> {
        if self.runner.is_none() {
            let channel = prepare::connect_runner(&mut self.prepared, self.folder)?;
            let work = spawn::spawn(&self.prepared, self.spec);
            // Without our copy of the other end the channel is at its end when the runner is.
            self.prepared.channel = None;
            let work = work?;
            self.pipes.extend(work.pipes);
            self.runner = Some(Runner {
                pid: work.pid,
                channel,
                heard: Heard::new(VALUE_BYTES),
                waiting: None,
                unsent: Vec::new(),
                has_answered: false,
                is_mute: false,
                is_ending: false,
            });
        }
        if let Some(runner) = &mut self.runner {
            runner.unsent.extend_from_slice(&runner::order(item.index, json));
            if let Some(running) = self.running.last_mut() {
                running.own = runner.waiting.take();
            }
        }
        self.send_order();
        Ok(())
    }

    /// Sends what the runner takes of the order now.
    fn send_order(&mut self) {
        let Some(runner) = &mut self.runner else { return };
        while !runner.unsent.is_empty() {
            match runner.channel.write(&runner.unsent) {
                Ok(count @ 1..) => drop(runner.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // It is gone, or has closed the channel: its end tells.
                Ok(0) | Err(_) => runner.unsent.clear(),
            }
        }
    }

    /// What the runner says.
    fn hear_runner(&mut self) {
        let mut buffer = [0; READ_RUNNER];
        // Work in its process may write without end: orders and timeouts are heard in between. What a process that has
        // ended left in the socket is less.
        for _ in 0..READS {
            let Some(runner) = &mut self.runner else { return };
            match runner.channel.read(&mut buffer) {
                Ok(count @ 1..) => {
                    runner.heard.push(&buffer[..count]);
                    self.heed();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => {
                    // It ends, or nothing can be said to it any more. Python closes the channel before it reports why
                    // it ends: it has a moment for that.
                    if !std::mem::replace(&mut runner.is_mute, true) && !self.running.is_empty() {
                        self.hurry();
                    }
                    return;
                }
            }
        }
    }

    /// What runs has no more than a moment.
    fn hurry(&mut self) {
        let at = Instant::now() + FAREWELL;
        for running in &mut self.running {
            running.kill_at = Some(running.kill_at.map_or(at, |known| known.min(at)));
        }
    }

    fn heed(&mut self) {
        loop {
            let (Some(runner), false) = (&mut self.runner, self.running.is_empty()) else {
                return;
            };
            let running = &self.running;
            let of_index = |index: u32| {
                running
                    .iter()
                    .map(|one| one.item)
                    .find(|item| item.index == index)
            };
            match runner.heard.next(of_index) {
                Ok(None) => return,
                Ok(Some(Said::Began(index, pid))) => {
                    let one = self.running.iter_mut().find(|one| one.item.index == index);
                    if let Some(one) = one {
                        one.own_is_new |= one.own != Some(pid);
                        one.own = Some(pid);
                    }
                }
                Ok(Some(Said::Waits(pid))) => runner.waiting = Some(pid),
                Ok(Some(Said::Ended(ended))) => {
                    runner.has_answered = true;
                    self.process_said(ended);
                }
                Err(runner::Garbage) => {
                    // Work in its process may have written there. Its end is the end of the item.
                    runner.is_mute = true;
                    self.kill_left();
                    return;
                }
            }
        }
    }
}

struct Ready {
    signals: bool,
    control: bool,
    runner: bool,
    /// Indices, ascending.
    pipes: Vec<usize>,
}
