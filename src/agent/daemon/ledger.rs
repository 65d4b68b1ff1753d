//! The agent's knowledge of its runs, and the only code that changes it.
//!
//! A single thread writes: it takes the waiting writes, numbers them, appends them to the journal
//! in one write and at most one flush (so many runs share a flush), and only then makes them
//! visible. So a client sees nothing that a crash could take back, and sees facts in the order of
//! their numbers without gaps.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    journal::{Accepted, Commander, Entry, Event, Forgotten, Journal, Opened, RunFinished, RunStarted},
    reserve::Reserve,
};
use crate::protocol::{Finished, RunSpec, RunState, Started, finished::Ending, run_state::Phase};

/// Writes that wait in the queue; further callers wait themselves.
const QUEUE: usize = 1024;
/// Most entries of one flush.
const BATCH: usize = 256;
/// The journal is compacted when it is this long and twice what it was when last compacted.
const COMPACT_BYTES: u64 = 4 * 1024 * 1024;
/// Between two looks at whether the reserve can be taken back.
const RESERVE_PAUSE: Duration = Duration::from_secs(30);
/// After a restart of the machine, facts that were never flushed may have been seen by the
/// controller: numbers go on far above them.
const SEQ_GAP: u64 = 1 << 20;

/// Why something was not recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the agent's journal has no room: {0}")]
    NoRoom(io::Error),
    #[error("the agent cannot write its journal: {0}")]
    Io(io::Error),
    #[error("stale epoch: this command is of epoch {given}, the newest seen is {newest}")]
    StaleEpoch { given: u64, newest: u64 },
    #[error("this machine is of installation \"{own}\", and the controller of \"{given}\"")]
    Foreign { own: String, given: String },
    #[error("the agent is stopping")]
    Closed,
}

/// What is known of one run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Kept until the work has started.
    pub(crate) spec: Option<RunSpec>,
    /// The boot in which it was accepted.
    pub(crate) boot_id: String,
    /// Its place on the machine, where places have numbers.
    pub(crate) place: Option<u32>,
    pub(crate) started: Option<(u64, Started)>,
    pub(crate) finished: Option<(u64, Finished)>,
}

impl Run {
    pub(crate) fn state(&self, run_id: &str) -> RunState {
        let phase = match (&self.started, &self.finished) {
            (_, Some(_)) => Phase::Finished,
            (Some(_), None) => Phase::Running,
            (None, None) => Phase::Starting,
        };
        RunState {
            run_id: run_id.to_owned(),
            phase: phase.into(),
            started_ms: self.started.as_ref().map_or(0, |(_, started)| started.at_ms),
            finished: self.finished.as_ref().map(|(_, finished)| finished.clone()),
        }
    }
}

/// A numbered fact.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) seq: u64,
    pub(crate) run_id: String,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Started(Started),
    Finished(Box<Finished>),
}

/// How many runs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) running: u32,
    pub(crate) uncollected: u32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    epoch: u64,
    commander: Commander,
    next_seq: u64,
    boot_id: String,
    runs: BTreeMap<String, Run>,
    facts: BTreeMap<u64, String>,
}

impl State {
    /// The state after these entries, and how many runs that are.
    pub(super) fn of(entries: Vec<Entry>) -> (Self, Counts) {
        let mut state = Self {
            next_seq: 1,
            ..Self::default()
        };
        for entry in entries {
            state.apply(entry);
        }
        let counts = state.counts();
        (state, counts)
    }

    fn apply(&mut self, entry: Entry) {
        let seq = entry.seq;
        self.next_seq = self.next_seq.max(seq.saturating_add(1));
        match entry.event {
            None => {}
            Some(Event::Opened(Opened { next_seq, boot_id })) => {
                self.next_seq = self.next_seq.max(next_seq);
                self.boot_id = boot_id;
            }
            Some(Event::Epoch(epoch)) => self.epoch = self.epoch.max(epoch),
            Some(Event::Commander(commander)) if commander.epoch < self.commander.epoch => {}
            Some(Event::Commander(commander)) => self.commander = commander,
            Some(Event::Accepted(Accepted {
                run_id,
                spec,
                boot_id,
                place,
            })) => {
                self.runs.insert(
                    run_id,
                    Run {
                        spec,
                        boot_id,
                        place,
                        started: None,
                        finished: None,
                    },
                );
            }
            Some(Event::Started(RunStarted { run_id, started })) => {
                if let Some(run) = self.runs.get_mut(&run_id) {
                    run.spec = None;
                    run.started = Some((seq, started));
                    self.facts.insert(seq, run_id);
                }
            }
            Some(Event::Finished(RunFinished { run_id, finished })) => {
                if let Some(run) = self.runs.get_mut(&run_id) {
                    run.spec = None;
                    run.finished = Some((seq, finished));
                    self.facts.insert(seq, run_id);
                }
            }
            Some(Event::Forgotten(Forgotten { run_ids })) => {
                for run_id in run_ids {
                    let Some(run) = self.runs.remove(&run_id) else {
                        continue;
                    };
                    for seq in [run.started.map(|it| it.0), run.finished.map(|it| it.0)]
                        .into_iter()
                        .flatten()
                    {
                        self.facts.remove(&seq);
                    }
                }
            }
        }
    }

    /// The entry that the journal was opened in this state.
    fn opened(&self) -> Entry {
        let opened = Opened {
            next_seq: self.next_seq,
            boot_id: self.boot_id.clone(),
        };
        Entry::new(0, Event::Opened(opened))
    }

    /// The entries that restore this state.
    pub(super) fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![
            self.opened(),
            Entry::new(0, Event::Commander(self.commander.clone())),
            Entry::new(0, Event::Epoch(self.epoch)),
        ];
        for (run_id, run) in &self.runs {
            let (run_id, boot_id) = (run_id.clone(), run.boot_id.clone());
            let accepted = Accepted {
                run_id: run_id.clone(),
                spec: run.spec.clone(),
                boot_id,
                place: run.place,
            };
            entries.push(Entry::new(0, Event::Accepted(accepted)));
            if let Some((seq, started)) = run.started {
                let run_id = run_id.clone();
                entries.push(Entry::new(seq, Event::Started(RunStarted { run_id, started })));
            }
            if let Some((seq, finished)) = run.finished.clone() {
                entries.push(Entry::new(seq, Event::Finished(RunFinished { run_id, finished })));
            }
        }
        entries
    }

    /// Places of runs that have not ended.
    fn taken_places(&self) -> BTreeSet<u32> {
        let unfinished = self.runs.values().filter(|run| run.finished.is_none());
        unfinished.filter_map(|run| run.place).collect()
    }

    fn counts(&self) -> Counts {
        let uncollected = self.runs.values().filter(|run| run.finished.is_some()).count() as u32;
        Counts {
            running: self.runs.len() as u32 - uncollected,
            uncollected,
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    newest: watch::Sender<u64>,
}

struct Write {
    event: Event,
    durable: bool,
    done: oneshot::Sender<Result<Written, LedgerError>>,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The write is on record.
    Now,
    /// A run of that id was on record before; nothing changed.
    Before,
}

/// The ledger; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    shared: Arc<Shared>,
    writes: mpsc::Sender<Write>,
}

impl Ledger {
    /// Reads the journal in `folder` and starts the writer. The thread ends when the last
    /// ledger is dropped.
    pub(crate) fn open(folder: &Path, reserve: Reserve, boot_id: &str) -> io::Result<(Self, JoinHandle<()>)> {
        let (mut journal, entries) = Journal::open(folder, reserve)?;
        let (mut state, _) = State::of(entries);
        if state.boot_id != boot_id {
            if !state.boot_id.is_empty() {
                state.next_seq = state.next_seq.saturating_add(SEQ_GAP);
            }
            boot_id.clone_into(&mut state.boot_id);
        }
        if let Err(error) = journal.compact(&state.snapshot()) {
            // A full disk must not keep the agent from starting; the old file is good as well.
            tracing::warn!(%error, "the journal was not compacted");
            journal.append(&[state.opened()], true)?;
        }
        let newest = watch::Sender::new(state.next_seq - 1);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            newest,
        });
        let (writes, waiting) = mpsc::channel(QUEUE);
        let writer = Writer {
            journal,
            shared: shared.clone(),
            waiting,
        };
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(|| writer.run())?;
        Ok((Self { shared, writes }, thread))
    }

    /// Admits a command of this epoch, and from then on none of an older one.
    pub(crate) async fn admit(&self, epoch: u64) -> Result<(), LedgerError> {
        let newest = self.epoch();
        if epoch < newest {
            return Err(LedgerError::StaleEpoch { given: epoch, newest });
        }
        if epoch > newest {
            self.write(Event::Epoch(epoch), true).await?;
        }
        Ok(())
    }

    /// A leader greets; answers with the newest epoch seen, and its proof: if it is above the given
    /// one, none of the leader's commands is taken. A leader that names no installation is refused
    /// then, as older versions expect.
    pub(crate) async fn greet(&self, given: Commander) -> Result<(u64, String), LedgerError> {
        let newest = self.epoch();
        let known = self.commander();
        if !self.is_ours(&given.installation)? && given.epoch < newest {
            return Err(LedgerError::StaleEpoch {
                given: given.epoch,
                newest,
            });
        }
        let news = given.epoch > known.epoch || (known.proof.is_empty() && given.epoch == known.epoch);
        if !given.installation.is_empty() && given.epoch >= newest && news {
            self.write(Event::Commander(given.clone()), true).await?;
        }
        if given.epoch > newest {
            self.write(Event::Epoch(given.epoch), true).await?;
        }
        let newest = self.epoch();
        let Commander { epoch, proof, .. } = self.commander();
        Ok((newest, if epoch == newest { proof } else { String::new() }))
    }

    /// Whether this id is that of our installation; an error says that it is another one's. Before
    /// the first id any is accepted.
    pub(crate) fn is_ours(&self, installation: &str) -> Result<bool, LedgerError> {
        let own = self.commander().installation;
        if installation.is_empty() {
            return Ok(false);
        }
        if own.is_empty() || own == installation {
            return Ok(true);
        }
        Err(LedgerError::Foreign {
            own,
            given: installation.to_owned(),
        })
    }

    fn commander(&self) -> Commander {
        self.shared.state.lock().commander.clone()
    }

    /// The newest epoch seen.
    pub(crate) fn epoch(&self) -> u64 {
        self.shared.state.lock().epoch
    }

    /// Promises a run. [`Written::Before`]: a run of that id is known already.
    pub(crate) async fn accept(&self, spec: RunSpec) -> Result<Written, LedgerError> {
        let boot_id = self.shared.state.lock().boot_id.clone();
        let run_id = spec.run_id.clone();
        let accepted = Accepted {
            run_id,
            spec: Some(spec),
            boot_id,
            // The writer knows which are free.
            place: None,
        };
        self.write(Event::Accepted(accepted), true).await
    }

    /// Records that the work of a run has started. Not flushed: a crash of the machine ends the run
    /// in any case, and a crash of the agent leaves the file as it is.
    pub(crate) async fn started(&self, run_id: &str, started: Started) -> Result<(), LedgerError> {
        let event = Event::Started(RunStarted {
            run_id: run_id.to_owned(),
            started,
        });
        self.write(event, false).await.map(drop)
    }

    /// Records how a run ended.
    pub(crate) async fn finished(&self, run_id: &str, finished: Finished) -> Result<(), LedgerError> {
        let event = Event::Finished(RunFinished {
            run_id: run_id.to_owned(),
            finished,
        });
        self.write(event, true).await.map(drop)
    }

    /// Drops ended runs from the record and returns which of the named ones it dropped.
    pub(crate) async fn forget(&self, run_ids: Vec<String>) -> Result<Vec<String>, LedgerError> {
        let run_ids: Vec<String> = {
            let state = self.shared.state.lock();
            let ended = |run_id: &String| state.runs.get(run_id).is_some_and(|run| run.finished.is_some());
            run_ids.into_iter().filter(ended).collect()
        };
        if !run_ids.is_empty() {
            let run_ids = run_ids.clone();
            self.write(Event::Forgotten(Forgotten { run_ids }), false).await?;
        }
        Ok(run_ids)
    }

    /// What is known of a run.
    pub(crate) fn run(&self, run_id: &str) -> Option<Run> {
        self.shared.state.lock().runs.get(run_id).cloned()
    }

    /// The runs whose ids begin so, each with how it ended, if it has.
    pub(crate) fn beginning_with(&self, prefix: &str) -> Vec<(String, Option<Ending>)> {
        let state = self.shared.state.lock();
        let runs = state.runs.range(prefix.to_owned()..);
        runs.take_while(|(run_id, _)| run_id.starts_with(prefix))
            .map(|(run_id, run)| {
                let ending = run.finished.as_ref().map(|(_, finished)| finished.ending());
                (run_id.clone(), ending)
            })
            .collect()
    }

    /// Whether a run has ended; `None` for an unknown one.
    pub(crate) fn has_finished(&self, run_id: &str) -> Option<bool> {
        let state = self.shared.state.lock();
        state.runs.get(run_id).map(|run| run.finished.is_some())
    }

    /// All runs that have not ended.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        self.ids_where(|run| run.finished.is_none())
    }

    /// Runs that were accepted and have not started: no fact tells of them.
    pub(crate) fn not_started(&self) -> Vec<String> {
        self.ids_where(|run| run.started.is_none() && run.finished.is_none())
    }

    /// Runs whose work has started and not ended.
    pub(crate) fn running(&self) -> Vec<String> {
        self.ids_where(|run| run.started.is_some() && run.finished.is_none())
    }

    /// Ids of the runs for which that holds.
    fn ids_where(&self, holds: impl Fn(&Run) -> bool) -> Vec<String> {
        let state = self.shared.state.lock();
        let runs = state.runs.iter().filter(|(_, run)| holds(run));
        runs.map(|(run_id, _)| run_id.clone()).collect()
    }

    /// The bundles of runs that have not started, by their digests without `sha256:`.
    pub(crate) fn wanted_bundles(&self) -> BTreeSet<String> {
        let state = self.shared.state.lock();
        let specs = state.runs.values().filter_map(|run| run.spec.as_ref());
        specs
            .filter_map(|spec| spec.bundle.strip_prefix("sha256:"))
            .map(ToOwned::to_owned)
            .collect()
    }

    /// All known runs.
    pub(crate) fn known(&self) -> BTreeSet<String> {
        self.shared.state.lock().runs.keys().cloned().collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.state.lock().counts()
    }

    /// At most `limit` facts after `since`, in order.
    pub(crate) fn facts(&self, since: u64, limit: usize) -> Vec<Happened> {
        let state = self.shared.state.lock();
        let fact = |(&seq, run_id): (&u64, &String)| {
            let run = state.runs.get(run_id)?;
            let what = match (&run.started, &run.finished) {
                (Some((at, started)), _) if *at == seq => What::Started(*started),
                (_, Some((at, finished))) if *at == seq => What::Finished(Box::new(finished.clone())),
                _ => return None,
            };
            Some(Happened {
                seq,
                run_id: run_id.clone(),
                what,
            })
        };
        state
            .facts
            .range(since.saturating_add(1)..)
            .filter_map(fact)
            .take(limit)
            .collect()
    }

    /// Number of the newest fact; it changes when there is a new one.
    pub(crate) fn newest(&self) -> watch::Receiver<u64> {
        self.shared.newest.subscribe()
    }

    async fn write(&self, event: Event, durable: bool) -> Result<Written, LedgerError> {
        let (done, written) = oneshot::channel();
        self.writes
            .send(Write { event, durable, done })
            .await
            .map_err(|_| LedgerError::Closed)?;
        written.await.map_err(|_| LedgerError::Closed)?
    }
}

struct Writer {
    journal: Journal,
    shared: Arc<Shared>,
    waiting: mpsc::Receiver<Write>,
}

impl Writer {
    fn run(mut self) {
        let mut compacted = self.journal.length();
        let mut looked = Instant::now();
        while let Some(first) = self.waiting.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH
                && let Ok(next) = self.waiting.try_recv()
            {
                batch.push(next);
            }
            self.write(batch);
            if self.journal.length() > COMPACT_BYTES.max(compacted * 2) {
                let snapshot = self.shared.state.lock().snapshot();
                if let Err(error) = self.journal.compact(&snapshot) {
                    tracing::warn!(%error, "the journal was not compacted");
                }
                compacted = self.journal.length();
            }
            if looked.elapsed() >= RESERVE_PAUSE {
                self.journal.restore_reserve();
                looked = Instant::now();
            }
        }
    }

    fn write(&mut self, batch: Vec<Write>) {
        let mut entries = Vec::with_capacity(batch.len());
        let mut waiting = Vec::with_capacity(batch.len());
        let mut durable = false;
        let mut newest = 0;
        {
            let state = self.shared.state.lock();
            let mut next_seq = state.next_seq;
            let mut accepted = BTreeSet::new();
            let mut taken = state.taken_places();
            for mut write in batch {
                let is_fact = match &mut write.event {
                    Event::Accepted(run) => {
                        if state.runs.contains_key(&run.run_id) || !accepted.insert(run.run_id.clone()) {
                            waiting.push((write.done, Written::Before));
                            continue;
                        }
                        if let Some(spec) = run.spec.as_mut().filter(|spec| spec.places > 0) {
                            let wanted = Some(spec.place).filter(|place| *place < spec.places);
                            spec.place = wanted
                                .into_iter()
                                .chain(0..u32::MAX)
                                .find(|place| !taken.contains(place))
                                .unwrap_or_default();
                            run.place = Some(spec.place);
                            taken.insert(spec.place);
                        }
                        false
                    }
                    Event::Finished(run) => {
                        let ended = state.runs.get(&run.run_id);
                        if let Some(place) = ended.and_then(|run| run.place) {
                            taken.remove(&place);
                        }
                        true
                    }
                    Event::Started(_) => true,
                    Event::Opened(_) | Event::Epoch(_) | Event::Commander(_) | Event::Forgotten(_) => false,
                };
                let seq = if is_fact { next_seq } else { 0 };
                next_seq += u64::from(is_fact);
                newest = newest.max(seq);
                durable |= write.durable;
                entries.push(Entry::new(seq, write.event));
                waiting.push((write.done, Written::Now));
            }
        }
        if let Err(error) = self.journal.append(&entries, durable) {
            tracing::error!(%error, "the journal cannot be written");
            for (done, _) in waiting {
                let copy = io::Error::new(error.kind(), error.to_string());
                let refused = if copy.kind() == io::ErrorKind::StorageFull {
                    LedgerError::NoRoom(copy)
                } else {
                    LedgerError::Io(copy)
                };
                let _ = done.send(Err(refused));
            }
            return;
        }
        {
            let mut state = self.shared.state.lock();
            for entry in entries {
                state.apply(entry);
            }
        }
        if newest != 0 {
            self.shared.newest.send_replace(newest);
        }
        for (done, written) in waiting {
            let _ = done.send(Ok(written));
        }
    }
}

#[cfg(test)]
mod tests;
