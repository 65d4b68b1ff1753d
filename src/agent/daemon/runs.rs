//! Starts, follows, stops and forgets runs. A run is driven by one task of ours as long as
//! the daemon lives; after a restart the task begins again from what is on disk: the lock
//! says whether the shim lives, `begun` whether the work may still be started, `exit` how it
//! ended. The boot id tells whether anything can be alive at all.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdUnixStream, process::CommandExt},
    },
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    process::Child,
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    files, frame,
    home::{Home, RunFolder},
    ledger::{Ledger, LedgerError, Written},
    log_files,
    map::{links::Links, queue, share},
    remains,
    reserve::free_bytes,
    trash::Trash,
    unix_ms,
    warm::Warm,
};
use crate::{
    log,
    protocol::{Finished, RunSpec, RunState, Started, TAIL_BYTES, finished::Ending},
};

/// Pause before a live shim that cannot be reached, or a busy disk, is tried again.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_RECORD: Duration = Duration::from_millis(500);
/// Tries to start a shim when the machine has no process to spare.
const FORKS: u32 = 20;
/// Shims of one run that may die before its work starts.
const LAUNCHES: u32 = 3;
/// A disk with less free room is full.
const LEAST_ROOM: u64 = 1024 * 1024;

/// The program of a shim, and of a keeper: our own file, even when a newer agent has replaced it under its name.
/// A test has none: its own file would run the tests again.
pub(super) const PROGRAM: &str = if cfg!(test) { "/dev/null" } else { "/proc/self/exe" };

/// An order to end a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopOrder {
    pub(crate) grace_ms: u64,
    pub(crate) why: String,
}

/// All runs of this agent; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Runs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    home: Home,
    ledger: Ledger,
    boot_id: String,
    default_user: String,
    /// Orders by run. Every driver looks here when it changes: there are few runs at a time,
    /// and an order can neither come too early nor get lost.
    stops: watch::Sender<BTreeMap<String, StopOrder>>,
    drivers: TaskTracker,
    shutdown: CancellationToken,
    trash: Trash,
    warm: Arc<Warm>,
    links: Links,
}

/// The state on disk of a run without a driver.
enum Found {
    Ended(Box<Finished>),
    /// The run has not begun.
    Fresh,
    Connected(UnixStream),
    Gone,
}

impl Runs {
    pub(crate) fn new(
        home: Home,
        ledger: Ledger,
        boot_id: String,
        default_user: String,
        shutdown: CancellationToken,
    ) -> io::Result<Self> {
        let trash = Trash::open(&home, &ledger.known())?;
        let warm = Arc::new(Warm::open(&home, &default_user));
        let inner = Inner {
            home,
            ledger,
            boot_id,
            default_user,
            stops: watch::Sender::new(BTreeMap::new()),
            drivers: TaskTracker::new(),
            shutdown,
            trash,
            warm,
            links: Links::default(),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Takes up every run that has not ended.
    pub(crate) fn recover(&self) {
        for run_id in self.0.ledger.unfinished() {
            self.drive(run_id);
        }
    }

    /// The ways to the watchers of workers of maps.
    pub(crate) fn links(&self) -> &Links {
        &self.0.links
    }

    /// Why functions are not forked; `""` where they are.
    pub(crate) fn why_not_forked(&self) -> watch::Receiver<String> {
        self.0.warm.why_not()
    }

    /// Ends what is kept for an environment that was replaced.
    pub(crate) fn end_old_parents(&self) {
        self.0.warm.end_old();
    }

    /// Starts a run, or answers with the state of the one of that id.
    pub(crate) async fn start(&self, spec: RunSpec) -> Result<RunState, LedgerError> {
        let run_id = spec.run_id.clone();
        if self.0.ledger.run(&run_id).is_none() {
            let (runs, run_id) = (self.clone(), run_id.clone());
            self.whole(async move {
                if runs.0.ledger.accept(spec).await? == Written::Now {
                    runs.drive(run_id);
                }
                Ok(())
            })
            .await?;
        }
        let run = self.0.ledger.run(&run_id);
        Ok(run.map_or_else(
            || RunState {
                run_id: run_id.clone(),
                ..RunState::default()
            },
            |run| run.state(&run_id),
        ))
    }

    /// Orders the end of a run; `None` for an unknown one.
    pub(crate) fn stop(&self, run_id: &str, order: StopOrder) -> Option<RunState> {
        let run = self.0.ledger.run(run_id)?;
        if run.finished.is_none() {
            self.0
                .stops
                .send_modify(|stops| drop(stops.insert(run_id.to_owned(), order)));
            // The run may have ended in between, and the order would stay for ever.
            if self.0.ledger.has_finished(run_id) != Some(false) {
                self.withdraw_stop(run_id);
            }
        }
        self.0.ledger.run(run_id).map(|run| run.state(run_id))
    }

    /// Deletes ended runs.
    pub(crate) async fn forget(&self, run_ids: Vec<String>) -> Result<(), LedgerError> {
        let runs = self.clone();
        self.whole(async move {
            for run_id in runs.0.ledger.forget(run_ids).await? {
                runs.0.trash.throw(runs.0.home.run(&run_id).path());
            }
            Ok(())
        })
        .await
    }

    /// Deletes a folder in the background, as that of a forgotten run.
    pub(crate) fn throw(&self, folder: &std::path::Path) {
        self.0.trash.throw(folder);
    }

    /// Runs a command to its end. Its future is dropped when its sender hangs up, perhaps between
    /// the record and the driver: a promised run without a driver would never end.
    async fn whole(
        &self,
        work: impl Future<Output = Result<(), LedgerError>> + Send + 'static,
    ) -> Result<(), LedgerError> {
        let done = self.0.drivers.spawn(work).await;
        done.unwrap_or(Err(LedgerError::Closed))
    }

    /// Detaches from the runs, which go on under their shims.
    pub(crate) async fn close(&self) {
        self.0.shutdown.cancel();
        self.0.drivers.close();
        self.0.drivers.wait().await;
    }

    fn drive(&self, run_id: String) {
        let runs = self.clone();
        let shutdown = self.0.shutdown.clone();
        self.0.drivers.spawn(async move {
            shutdown.run_until_cancelled(runs.drive_to_its_end(&run_id)).await;
        });
    }

    async fn drive_to_its_end(&self, run_id: &str) {
        let finished = self.follow(run_id).await;
        self.close_share(run_id, &finished).await;
        // Nothing of the run is alive. Where we are killed before this, they go with the run.
        let temporary = self.0.home.run(run_id).temporary();
        if std::fs::remove_dir(&temporary).is_err() {
            self.0.trash.throw(&temporary);
        }
        let ending = finished.ending().as_str_name();
        tracing::info!(
            run_id,
            ending,
            exit_code = finished.exit_code,
            signal = finished.signal,
            "a run has ended"
        );
        while let Err(error) = self.0.ledger.finished(run_id, finished.clone()).await {
            tracing::error!(run_id, %error, "the end of a run could not be recorded: trying again");
            tokio::time::sleep(RETRY_RECORD).await;
        }
        self.withdraw_stop(run_id);
    }

    /// Of a worker of a map: what its watcher has left is judged, before it is told that the worker has ended. After a
    /// restart of the machine nobody knows which items began; they stay as they are written.
    async fn close_share(&self, run_id: &str, finished: &Finished) {
        if finished.ending() == Ending::MachineRestarted {
            return;
        }
        loop {
            let share = self.0.home.run(run_id).share();
            let finished = finished.clone();
            // An item that began, and whose end nobody has seen, may have ended well. The run itself may be to blame for the
            // end of its watcher; the item that is may kill as many of them as it has retries.
            let ending = match finished.ending() {
                Ending::ShimLost => Ending::Interrupted,
                seen => seen,
            };
            let closed = tokio::task::spawn_blocking(move || {
                if !share.exists() {
                    return Ok(());
                }
                share::close(&share, |item| queue::Ended {
                    index: item.index,
                    attempt: item.attempt,
                    ending: ending.into(),
                    exit_code: finished.exit_code,
                    signal: finished.signal,
                    message: finished.message.clone(),
                    ..queue::Ended::default()
                })
            });
            match closed.await.map_err(io::Error::other).flatten() {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(run_id, %error, "the items of a worker could not be closed: trying again");
                    tokio::time::sleep(RETRY_RECORD).await;
                }
            }
        }
    }

    fn withdraw_stop(&self, run_id: &str) {
        self.0.stops.send_if_modified(|stops| {
            stops.remove(run_id);
            false
        });
    }

    async fn follow(&self, run_id: &str) -> Finished {
        let folder = self.0.home.run(run_id);
        let mut launches = 0;
        loop {
            let Some(run) = self.0.ledger.run(run_id) else {
                return failed(Ending::ShimLost, "the agent lost its record of this run");
            };
            let found = if run.boot_id == self.0.boot_id {
                self.find(&folder).await
            } else {
                read_exit(&folder).map_or(Found::Gone, |finished| Found::Ended(Box::new(finished)))
            };
            let (connection, child) = match (found, run.spec) {
                (Found::Ended(finished), _) => return *finished,
                (Found::Connected(connection), _) => (connection, None),
                (Found::Fresh, Some(_)) if launches == LAUNCHES => {
                    return if free_bytes(self.0.home.path()).is_some_and(|free| free < LEAST_ROOM) {
                        failed(Ending::DiskFull, "the disk of the machine is full")
                    } else {
                        failed(
                            Ending::StartFailed,
                            "the agent's watcher of this run does not start: see agent.log",
                        )
                    };
                }
                (Found::Fresh, Some(spec)) => match self.launch(&folder, spec).await {
                    Ok((connection, child)) => (connection, Some(child)),
                    Err(error) if error.kind() == ErrorKind::StorageFull => {
                        return failed(Ending::DiskFull, "the disk of the machine is full");
                    }
                    Err(error) => {
                        return failed(
                            Ending::StartFailed,
                            &format!("the agent could not start it: {error}"),
                        );
                    }
                },
                (Found::Fresh | Found::Gone, _) => return self.lost(run_id, &folder, &run.boot_id).await,
            };
            launches += 1;
            if let Some(mut child) = child {
                // Reaped in the background, without waiting for the kernel.
                let shutdown = self.0.shutdown.clone();
                self.0.drivers.spawn(async move {
                    let _ = shutdown.run_until_cancelled(child.wait()).await;
                });
            }
            self.attend(run_id, connection).await;
        }
    }

    /// Finds out where a run of this boot is.
    async fn find(&self, folder: &RunFolder) -> Found {
        loop {
            if let Some(finished) = read_exit(folder) {
                return Found::Ended(Box::new(finished));
            }
            let lock = match File::open(folder.lock()) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::NotFound => return Found::Fresh,
                Err(error) => {
                    tracing::error!(%error, run = %folder.path().display(), "the lock of a run cannot be read");
                    tokio::time::sleep(RETRY_RECORD).await;
                    continue;
                }
            };
            if lock.try_lock().is_ok() {
                // The shim is gone; its last act may have been the exit file.
                return match read_exit(folder) {
                    Some(finished) => Found::Ended(Box::new(finished)),
                    None if folder.begun().exists() => Found::Gone,
                    None => Found::Fresh,
                };
            }
            drop(lock);
            if let Ok(control) = files::short(&folder.control())
                && let Ok(connection) = UnixStream::connect(control.name()).await
            {
                return Found::Connected(connection);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Starts the shim of a run.
    async fn launch(&self, folder: &RunFolder, spec: RunSpec) -> io::Result<(UnixStream, Child)> {
        let mut tries = 0;
        loop {
            let (home, folder, user) = (self.0.home.clone(), folder.clone(), self.0.default_user.clone());
            let (spec, warm) = (spec.clone(), self.0.warm.clone());
            let launched = tokio::task::spawn_blocking(move || {
                let parent = warm.parent(&spec, Instant::now());
                launch(&home, &folder, &spec, &user, parent.as_deref())
            })
            .await;
            match launched.map_err(io::Error::other).flatten() {
                Ok((connection, child)) => {
                    connection.set_nonblocking(true)?;
                    return Ok((UnixStream::from_std(connection)?, child));
                }
                // No process to spare: other work is using up the machine, and may stop.
                Err(error) if error.kind() == ErrorKind::WouldBlock && tries < FORKS => tries += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(RETRY_RECORD).await;
        }
    }

    /// Talks with a shim until it is gone.
    async fn attend(&self, run_id: &str, connection: UnixStream) {
        let (from_shim, mut to_shim) = connection.into_split();
        let mut lines = BufReader::new(from_shim).lines();
        let mut stops = self.0.stops.subscribe();
        stops.mark_changed();
        let mut sent: Option<StopOrder> = None;
        let mut orders = self.0.links.connected(run_id);
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => self.hear(run_id, &line).await,
                    Ok(None) | Err(_) => break,
                },
                _ = stops.changed() => {
                    let order = stops.borrow_and_update().get(run_id).cloned();
                    if let Some(order) = order && sent.as_ref() != Some(&order) {
                        let why: String = order.why.chars().filter(|letter| !letter.is_control()).take(200).collect();
                        let line = format!("stop {} {why}\n", order.grace_ms);
                        // If this fails the shim is gone, and the other branch will see it.
                        let _ = to_shim.write_all(line.as_bytes()).await;
                        sent = Some(order);
                    }
                }
                // The same is true of this.
                Some(order) = orders.recv() => drop(to_shim.write_all(&order).await),
            }
        }
        self.0.links.disconnected(run_id);
    }

    async fn hear(&self, run_id: &str, line: &str) {
        if self.0.links.heard(run_id, line) {
            return;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["started", pid, at_ms] = words[..] else {
            return;
        };
        let (Ok(pid), Ok(at_ms)) = (pid.parse(), at_ms.parse()) else {
            return;
        };
        if self.0.ledger.run(run_id).is_none_or(|run| run.started.is_some()) {
            return;
        }
        if let Err(error) = self.0.ledger.started(run_id, Started { at_ms, pid }).await {
            tracing::warn!(run_id, %error, "the start of a run could not be recorded");
        }
    }

    /// The shim is gone and has not said how the run ended.
    async fn lost(&self, run_id: &str, folder: &RunFolder, boot_id: &str) -> Finished {
        let (ending, message) = if boot_id == self.0.boot_id {
            let folder = folder.clone();
            let ended = tokio::task::spawn_blocking(move || remains::end(&folder)).await;
            ended.unwrap_or_else(|_| (Ending::ShimLost, "the agent is stopping".to_owned()))
        } else {
            let restarted = "the machine restarted while it ran";
            (Ending::MachineRestarted, restarted.to_owned())
        };
        let mut finished = failed(ending, &message);
        if let Some((_, started)) = self.0.ledger.run(run_id).and_then(|run| run.started) {
            finished.started_ms = started.at_ms;
        }
        finished.log_bytes = log_files::end(folder);
        // Records have 16 KiB and less.
        finished.log_tail = log::tail(&log_files::last_bytes(folder, 64 * 1024), TAIL_BYTES);
        finished
    }
}

fn launch(
    home: &Home,
    folder: &RunFolder,
    spec: &RunSpec,
    user: &str,
    parent: Option<&Path>,
) -> io::Result<(StdUnixStream, Child)> {
    files::make_folder(folder.path(), 0o711)?;
    files::create(folder.spec())?.write_all(&spec.encode_to_vec())?;
    let lock = files::create(folder.lock())?;
    lock.lock()?;
    let (ours, theirs) = StdUnixStream::pair()?;
    let mut command = std::process::Command::new(PROGRAM);
    command
        .arg0("skyward-agent")
        .arg("shim")
        .arg(home.path())
        .arg(&spec.run_id)
        .arg(user)
        .args(parent)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::from(lock));
    let child = tokio::process::Command::from(command).spawn()?;
    Ok((ours, child))
}

fn read_exit(folder: &RunFolder) -> Option<Finished> {
    let bytes = std::fs::read(folder.exit()).ok()?;
    Finished::decode(frame::read(&bytes)?.0).ok()
}

fn failed(ending: Ending, message: &str) -> Finished {
    Finished {
        ending: ending.into(),
        message: message.to_owned(),
        finished_ms: unix_ms(),
        ..Finished::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::reserve::Reserve;

    /// A folder of runs whose work has ended already, so that no shim is needed.
    struct Bed {
        runs: Runs,
        ledger: Ledger,
        home: Home,
        _folder: tempfile::TempDir,
    }

    fn bed() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().to_owned());
        std::fs::create_dir_all(home.runs()).unwrap();
        let reserve = Reserve::new(folder.path().join("reserve"), 0);
        let (ledger, _) = Ledger::open(&folder.path().join("ledger"), reserve, "b").unwrap();
        let runs = Runs::new(
            home.clone(),
            ledger.clone(),
            "b".into(),
            "nobody".into(),
            CancellationToken::new(),
        );
        Bed {
            runs: runs.unwrap(),
            ledger,
            home,
            _folder: folder,
        }
    }

    impl Bed {
        fn leave_exit(&self, run_id: &str) {
            let folder = self.home.run(run_id);
            std::fs::create_dir_all(folder.path()).unwrap();
            let mut bytes = Vec::new();
            frame::write(&failed(Ending::ShimLost, "as if").encode_to_vec(), &mut bytes);
            std::fs::write(folder.exit(), bytes).unwrap();
        }

        async fn until(&self, is: impl Fn(&Self) -> bool) {
            let seen = async {
                while !is(self) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_mins(1), seen)
                .await
                .expect("it came");
        }
    }

    #[tokio::test]
    async fn a_run_whose_sender_hung_up_once_it_was_on_record_runs_all_the_same() {
        let bed = bed();
        bed.leave_exit("a");
        let spec = RunSpec {
            run_id: "a".into(),
            ..RunSpec::default()
        };
        let mut start = Box::pin(bed.runs.start(spec));
        assert!(futures::poll!(&mut start).is_pending());
        bed.until(|bed| bed.ledger.run("a").is_some()).await;
        drop(start);
        bed.until(|bed| bed.ledger.has_finished("a") == Some(true)).await;
    }
}
