//! One leader's view of a map: its input is the reports of workers and the stored records of the log, its output is what to
//! write, send and acknowledge. [`plan`](super::plan) decides; this module keeps what the plan needs from one call to the
//! next, and enforces the order: no record is used or acknowledged before it is stored, and only one write is under way.
//!
//! A leader's view is lost with its process. The next leader reads the items from the log, and asks the workers.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use jiff::Timestamp;

use super::{
    indices::{Index, Indices, one},
    items::{Items, Retries},
    pace::Pace,
    plan::{self, Chunk, End, Spec, State, Step, Verdict, WorkerView, World},
    record::{Cause, Note, Record, Worker},
};

/// A write is made at this size at the latest, in bytes of bodies.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// A write is made this long after its first record at the latest.
const LONGEST: Duration = Duration::from_secs(1);
/// The same where somebody waits for it.
const SOON: Duration = Duration::from_millis(20);

/// A machine looks for ends of items at least so often (`agent/daemon/map/teller.rs`): so much later than an item ends,
/// its end may begin its way.
const LOOK: Duration = Duration::from_millis(160);
/// A worker that was given up gets nothing for so long: it is about to be stopped.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// A worker that has less to do is not worth its start.
const LEAST_WORK: Duration = Duration::from_secs(1);
/// Steps in which the age of items is told, in seconds.
const AGE_STEP: u64 = 10;

/// Names one connection to a worker. No two have the same.
pub type Session = u64;

/// What the rest of the controller knows of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its run goes on.
    Runs,
    /// Its run goes on and shall end: its place goes, or fewer items are to run at the same time.
    Closing,
    /// Its machine is confirmed to be gone, or was restarted.
    Lost,
}

/// What a worker tells, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard<V> {
    /// What it was given and has not ended, the running item first.
    Holds(Vec<Range<Index>>),
    /// How an attempt ended.
    Ended {
        /// For the acknowledgement.
        position: u64,
        /// Which item.
        index: Index,
        /// Which attempt.
        attempt: u32,
        /// How.
        cause: Cause,
        /// Whether a rule of the Task says that no other attempt follows such a failure.
        for_good: bool,
        /// How long the item pauses, if another attempt follows.
        pause: Duration,
        /// How long it ran.
        took: Duration,
        /// What is stored of it beside that.
        body: V,
        /// How much room that takes.
        bytes: usize,
    },
    /// It has not begun these and never will; none: it had begun all that it was asked for.
    Released(Range<Index>),
    /// All was told. `over`: its run has ended, and what it held otherwise never began.
    Told {
        /// Whether its run has ended.
        over: bool,
        /// Whether its machine was restarted: what it held otherwise may have begun.
        cut: bool,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<V> {
    /// The user's wishes changed.
    Spec(Spec),
    /// There is such a worker.
    Worker(Worker, Life),
    /// It was asked over a new connection, over which a message and its answer take so long.
    Opened(Worker, Session, Duration),
    /// A connection ended.
    Closed(Worker, Session),
    /// A report of a worker over a connection.
    Heard(Worker, Session, Heard<V>),
    /// The write under way is in the log.
    Stored,
}

/// A record with what is stored of it beside that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<V> {
    /// The record.
    pub record: Record,
    /// About an end that a worker reported.
    pub body: Option<V>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<V> {
    /// Write this to the log in one write, and answer with [`Event::Stored`]. No other write is asked for before.
    Write(Vec<Entry<V>>),
    /// Give a worker a chunk.
    Send(Worker, Session, Chunk),
    /// Ask a worker to let go of items.
    Recall(Worker, Session, Range<Index>),
    /// The log has all ends of a worker up to this position.
    Acknowledge(Worker, Session, u64),
    /// End the run of a worker, which has nothing.
    Close(Worker),
    /// The map is over.
    Finish(Verdict),
}

/// What is known of a worker.
#[derive(Clone, Debug)]
struct Known {
    life: Life,
    view: WorkerView,
    session: Option<Session>,
    /// Recalls without an answer.
    recalls: u32,
    /// The last item of each chunk that it was sent, and how many the chunk had.
    chunks: BTreeMap<Index, u32>,
    /// When it last reported an end, or was given its first items.
    heard: Timestamp,
    /// The last batch with a record or an acknowledgement that is about it.
    touched: u64,
    /// When its end was asked for.
    closed: Option<Timestamp>,
}

/// Records that are written together.
#[derive(Clone, Debug)]
struct Batch<V> {
    entries: Vec<Entry<V>>,
    grants: BTreeMap<Worker, Indices>,
    acknowledge: BTreeMap<(Worker, Session), u64>,
    bytes: usize,
    since: Option<Timestamp>,
    /// Whether something waits for it.
    urgent: bool,
}

impl<V> Default for Batch<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            grants: BTreeMap::new(),
            acknowledge: BTreeMap::new(),
            bytes: 0,
            since: None,
            urgent: false,
        }
    }
}

/// The leader of one map.
#[derive(Clone, Debug)]
pub struct Leader<V> {
    spec: Spec,
    items: Items,
    pace: Pace,
    workers: BTreeMap<Worker, Known>,
    next: Batch<V>,
    writing: Option<Batch<V>>,
    /// The number of the batch that is being filled, from 1, and of the last one that is stored.
    batch: u64,
    stored: u64,
    /// Waiting items that pause after a failure. It stands in no record until when: another leader begins each pause
    /// anew ([`Leader::rest_anew`]).
    resting: Indices,
    /// Which of them go on, and when, in whole seconds.
    rests: BTreeMap<Timestamp, Indices>,
    /// What follows from the last write.
    due: Vec<Command<V>>,
}

impl<V> Leader<V> {
    /// With what the log says.
    pub fn new(spec: Spec, items: Items) -> Self {
        Self {
            spec,
            items,
            pace: Pace::default(),
            workers: BTreeMap::new(),
            next: Batch::default(),
            writing: None,
            batch: 1,
            stored: 0,
            resting: Indices::default(),
            rests: BTreeMap::new(),
            due: Vec::new(),
        }
    }

    /// Items that have failed pause, each as after its last failure: when that was, the log does not say. Nor does it tell
    /// an attempt that was stopped from a failure that a rule ignores: where a rule `ignores` some, both pause.
    pub fn rest_anew(&mut self, ignores: bool, pause: impl Fn(u32) -> Duration, now: Timestamp) {
        let failed: Vec<(Index, u32)> = self.items.failed_before(ignores).collect();
        for (index, failures) in failed {
            self.rest(index, pause(failures), now);
        }
    }

    /// An item that waits pauses.
    fn rest(&mut self, index: Index, pause: Duration, now: Timestamp) {
        if pause.is_zero() {
            return;
        }
        let until = now.checked_add(pause).unwrap_or(now);
        let second = until.as_second() + i64::from(until.subsec_nanosecond() > 0);
        let until = Timestamp::from_second(second).unwrap_or(until);
        self.resting.insert(one(index));
        self.rests.entry(until).or_default().insert(one(index));
    }

    /// How often an item may run again.
    pub const fn retries(&self) -> Retries {
        self.spec.retries
    }

    /// Where each item is, with the records that are not stored yet.
    pub const fn items(&self) -> &Items {
        &self.items
    }

    /// Whether a worker has ended or is lost, and all that it told, and what follows from that, is in the log: nobody
    /// needs it any more.
    pub fn is_done_with(&self, worker: Worker) -> bool {
        let is_over = self.workers.get(&worker).is_some_and(|known| {
            let is_gone = known.life == Life::Lost || known.view.state == State::Ended;
            is_gone && known.touched <= self.stored
        });
        is_over && self.items.grant(worker).is_none()
    }

    /// Bytes of ends that were reported and are not stored yet.
    pub fn pending(&self) -> usize {
        let writing = self.writing.as_ref().map_or(0, |batch| batch.bytes);
        self.next.bytes.saturating_add(writing)
    }

    /// Items that run now.
    pub fn busy(&self) -> u32 {
        let runs = |known: &Known| {
            let held = known.view.held.iter().map(|range| range.end - range.start);
            held.fold(0, u32::saturating_add).min(self.spec.threads)
        };
        self.workers.values().map(runs).fold(0, u32::saturating_add)
    }

    /// How long one worker would take for all items that have no outcome. Where no item has ended yet, the items that
    /// run last at least as long as they have run, in the median; 0: nothing is known.
    pub fn work(&self, now: Timestamp) -> Duration {
        let measured = self.pace.mean().map(Duration::try_from_secs_f64);
        let each = match measured {
            Some(mean) => mean.unwrap_or(Duration::MAX),
            None => self.age(now),
        };
        each.saturating_mul(self.left()) / self.spec.threads
    }

    /// How many workers have something to do that is worth their start, including the workers that exist.
    pub fn useful(&self) -> u32 {
        let worth = self.pace.mean().map_or(f64::MAX, |mean| {
            (mean * f64::from(self.left()) / f64::from(self.spec.threads) / LEAST_WORK.as_secs_f64()).ceil()
        });
        // Floats are cut to the bounds of the integer.
        (worth as u32)
            .max(1)
            .min(self.within_reach().div_ceil(self.spec.threads))
    }

    /// Items that more workers could run. One that does not tell what it holds keeps its items, and is one worker; so is
    /// each worker where no other item begins.
    fn within_reach(&self) -> u32 {
        let begins = self.spec.begins(self.items.new_failures());
        let held = self.items.grants().iter().map(|(worker, grant)| {
            let known = self.workers.get(worker).map(|known| known.view.state);
            match known {
                Some(State::Working) if begins => grant.len(),
                Some(_) => self.spec.threads,
                None => 0,
            }
        });
        let waiting = if begins { self.items.waiting().len() } else { 0 };
        held.fold(waiting, u32::saturating_add)
    }

    fn left(&self) -> u32 {
        self.items.total() - self.items.done().len()
    }

    /// For how long the items that run have run, in the median and in steps: each step is told to others.
    fn age(&self, now: Timestamp) -> Duration {
        let busy = self.workers.values().filter(|known| !known.view.held.is_empty());
        let mut ages: Vec<Duration> = busy.map(|known| known.since(now)).collect();
        ages.sort_unstable();
        let age = ages.get(ages.len() / 2).copied().unwrap_or_default();
        Duration::from_secs(age.as_secs() / AGE_STEP * AGE_STEP)
    }

    /// The workers that hold items according to the log.
    pub fn holders(&self) -> impl Iterator<Item = Worker> + '_ {
        self.items.grants().keys().copied()
    }

    /// Takes in what happened.
    pub fn on(&mut self, event: Event<V>, now: Timestamp) {
        match event {
            Event::Spec(spec) => self.spec = spec,
            Event::Worker(worker, life) => {
                let known = self.know(worker, now);
                // One that is lost does not come back.
                if known.life != Life::Lost {
                    known.life = life;
                    if life == Life::Lost {
                        known.session = None;
                    }
                }
            }
            Event::Opened(worker, session, round_trip) => {
                let known = self.know(worker, now);
                known.disconnect();
                known.session = Some(session);
                known.view.distance = round_trip.saturating_add(LOOK);
            }
            Event::Closed(worker, session) => {
                if let Some(known) = self.workers.get_mut(&worker).filter(|known| known.hears(session)) {
                    known.disconnect();
                }
            }
            Event::Heard(worker, session, heard) => {
                if self
                    .workers
                    .get(&worker)
                    .is_some_and(|known| known.hears(session))
                {
                    self.hear(worker, session, heard, now);
                }
            }
            Event::Stored => {
                if let Some(mut stored) = self.writing.take() {
                    self.stored = self.batch - 1;
                    self.due.extend(stored.acknowledgements());
                }
            }
        }
    }

    /// What is to be done now.
    pub fn settle(&mut self, now: Timestamp) -> Vec<Command<V>> {
        while let Some(rested) = self.rests.first_entry()
            && *rested.key() <= now
        {
            self.resting.remove_all(&rested.remove());
        }
        let mut commands = std::mem::take(&mut self.due);
        for step in self.plan(now) {
            match step {
                Step::Record(record) => self.record(record, None, now),
                Step::Send(worker, chunk) => {
                    if let Some((known, session)) = self.connected(worker) {
                        if known.view.held.is_empty() {
                            known.heard = now;
                        }
                        known.view.held.push(chunk.first..chunk.first + chunk.count);
                        known.chunks.insert(chunk.first + (chunk.count - 1), chunk.count);
                        commands.push(Command::Send(worker, session, chunk));
                    }
                }
                Step::Recall(worker, range) => {
                    if let Some((known, session)) = self.connected(worker) {
                        known.recalls += 1;
                        commands.push(Command::Recall(worker, session, range));
                    }
                }
                Step::Close(worker) => {
                    if let Some(known) = self.workers.get_mut(&worker) {
                        known.closed.get_or_insert(now);
                    }
                    commands.push(Command::Close(worker));
                }
                Step::Finish(verdict) => {
                    if self.writing.is_none() && self.next.since.is_none() {
                        commands.push(Command::Finish(verdict));
                    } else {
                        self.next.urgent = true;
                    }
                }
            }
        }
        commands.extend(self.write(now));
        commands
    }

    /// When [`Leader::settle`] has something to do without another event; `None`: not before one.
    pub fn wakes_at(&self) -> Option<Timestamp> {
        let since = self.next.since.filter(|_| self.writing.is_none());
        let written = since.map(|since| since + self.next.patience());
        let rested = self.rests.first_key_value().map(|(until, _)| *until);
        written.into_iter().chain(rested).min()
    }

    fn plan(&mut self, now: Timestamp) -> Vec<Step> {
        let mut views = BTreeMap::new();
        for (worker, known) in &mut self.workers {
            let since = known.since(now);
            (known.view.quiet, known.view.idle) = if known.view.held.is_empty() {
                (Duration::ZERO, since)
            } else {
                (since, Duration::ZERO)
            };
            known.view.recalling = known.recalls > 0;
            known.closed = known
                .closed
                .filter(|at| now.duration_since(*at).unsigned_abs() < GIVEN_UP);
            let state = match (known.life, known.view.state) {
                (_, State::Ended) => State::Ended,
                (Life::Lost, _) => State::Lost,
                (Life::Closing, State::Working) => State::Closing,
                (Life::Runs, State::Working) if known.closed.is_some() => State::Closing,
                (Life::Closing | Life::Runs, state) => state,
            };
            views.insert(
                *worker,
                WorkerView {
                    state,
                    ..known.view.clone()
                },
            );
        }
        let mut unstored = self.next.grants.clone();
        for (worker, grant) in self.writing.iter().flat_map(|batch| &batch.grants) {
            unstored.entry(*worker).or_default().insert_all(grant);
        }
        plan::plan(&World {
            spec: self.spec,
            items: &self.items,
            resting: &self.resting,
            unstored: &unstored,
            workers: &views,
            pace: &self.pace,
        })
    }

    fn know(&mut self, worker: Worker, now: Timestamp) -> &mut Known {
        self.workers.entry(worker).or_insert_with(|| Known {
            life: Life::Runs,
            view: WorkerView {
                state: State::Silent,
                distance: Duration::ZERO,
                held: Vec::new(),
                quiet: Duration::ZERO,
                idle: Duration::ZERO,
                recalling: false,
            },
            session: None,
            recalls: 0,
            chunks: BTreeMap::new(),
            heard: now,
            touched: 0,
            closed: None,
        })
    }

    fn connected(&mut self, worker: Worker) -> Option<(&mut Known, Session)> {
        let known = self.workers.get_mut(&worker)?;
        let session = known.session?;
        Some((known, session))
    }

    fn hear(&mut self, worker: Worker, session: Session, heard: Heard<V>, now: Timestamp) {
        let retries = self.spec.retries;
        let Some(known) = self.workers.get_mut(&worker) else {
            return;
        };
        match heard {
            Heard::Holds(held) => {
                // A machine may name anything, and any of it often: what it was not granted is not held.
                let mut granted = self.items.grant(worker).cloned().unwrap_or_default();
                known.view.held.clear();
                for range in held {
                    let part = granted.within(range);
                    granted.remove_all(&part);
                    known.view.held.extend(part.ranges());
                }
            }
            Heard::Released(range) => {
                known.let_go(&range);
                // An unsolicited answer ends no other recall.
                known.recalls = known.recalls.saturating_sub(1);
            }
            Heard::Told { over, cut } => {
                known.view.state = if over { State::Ended } else { State::Working };
                if over {
                    known.view.held.clear();
                }
                if cut {
                    known.life = Life::Lost;
                    known.view.state = State::Silent;
                }
            }
            Heard::Ended {
                position,
                index,
                attempt,
                cause,
                for_good,
                pause,
                took,
                body,
                bytes,
            } => {
                let end = End {
                    index,
                    attempt,
                    cause,
                    for_good,
                };
                let ended = plan::outcome(&self.items, retries, worker, end);
                if let Some(ended) = ended {
                    // A new connection tells old ends once more: a later attempt of the item may wait or run there.
                    let chunk = known.chunks.remove(&index);
                    known.let_go(&one(index));
                    known.heard = now;
                    // One that could not begin, or whose machine was lost, says nothing of how long items take.
                    if cause != Cause::Interruption {
                        self.pace.item_took(took);
                        if let Some(items) = chunk {
                            self.pace.chunk_ended(items);
                        }
                    }
                    self.next.bytes = self.next.bytes.saturating_add(bytes);
                    self.record(Record::Ended(ended), Some(body), now);
                    if !ended.is_final {
                        self.rest(index, pause, now);
                    }
                }
                // An end that is known is acknowledged with the next write, which comes after that of its record.
                self.next.since.get_or_insert(now);
                let known = self.next.acknowledge.entry((worker, session)).or_default();
                *known = position.max(*known);
                self.touch(worker);
            }
        }
    }

    fn record(&mut self, record: Record, body: Option<V>, now: Timestamp) {
        if !self.items.apply(&record) {
            return;
        }
        if let Record::Note(Note::Granted(worker, _) | Note::Released(worker, _) | Note::Cut(worker)) =
            &record
        {
            self.touch(*worker);
        }
        match &record {
            Record::Note(Note::Granted(worker, range)) => {
                self.next.grants.entry(*worker).or_default().insert(range.clone());
                self.next.urgent = true;
            }
            Record::Note(Note::Released(..) | Note::Cut(_) | Note::Reopened(_)) => self.next.urgent = true,
            // One that pauses may be given up meanwhile.
            Record::Ended(ended) => {
                self.resting.remove(one(ended.index));
            }
        }
        self.next.since.get_or_insert(now);
        self.next.entries.push(Entry { record, body });
    }

    /// Something about that worker waits to be stored.
    fn touch(&mut self, worker: Worker) {
        let batch = self.batch;
        if let Some(known) = self.workers.get_mut(&worker) {
            known.touched = batch;
        }
    }

    /// Writes what is due, and acknowledges what needs no write.
    fn write(&mut self, now: Timestamp) -> Vec<Command<V>> {
        let Some(since) = self.next.since.filter(|_| self.writing.is_none()) else {
            return Vec::new();
        };
        let age = now.duration_since(since).unsigned_abs();
        if age < self.next.patience() && self.next.bytes < MOST_BYTES {
            return Vec::new();
        }
        let mut batch = std::mem::take(&mut self.next);
        let entries = std::mem::take(&mut batch.entries);
        self.batch += 1;
        if entries.is_empty() {
            // No write is under way, so all before is stored.
            self.stored = self.batch - 1;
            return batch.acknowledgements();
        }
        self.writing = Some(batch);
        vec![Command::Write(entries)]
    }
}

impl<V> Batch<V> {
    /// How long it may wait for more records.
    const fn patience(&self) -> Duration {
        if self.urgent { SOON } else { LONGEST }
    }

    fn acknowledgements(&mut self) -> Vec<Command<V>> {
        std::mem::take(&mut self.acknowledge)
            .into_iter()
            .map(|((worker, session), position)| Command::Acknowledge(worker, session, position))
            .collect()
    }
}

impl Known {
    fn hears(&self, session: Session) -> bool {
        self.session == Some(session)
    }

    /// How long ago it last reported an end, or got its first items.
    fn since(&self, now: Timestamp) -> Duration {
        now.duration_since(self.heard).unsigned_abs()
    }

    fn disconnect(&mut self) {
        self.session = None;
        self.recalls = 0;
        self.chunks.clear();
        if self.view.state != State::Ended {
            self.view.state = State::Silent;
        }
    }

    /// It does not hold these any more.
    fn let_go(&mut self, range: &Range<Index>) {
        let held = std::mem::take(&mut self.view.held);
        for old in held {
            let mut left = Indices::of(old);
            left.remove(range.clone());
            self.view.held.extend(left.ranges());
        }
        self.chunks.retain(|last, _| !range.contains(last));
    }
}
