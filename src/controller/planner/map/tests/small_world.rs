//! Maps told by chance. In each step a seed chooses who does what: a leader plans, stores or dies, a second one begins
//! while the first goes on, a worker hears, tells, begins or ends an item, a connection breaks, a watcher is killed, a
//! machine goes or is restarted. Then all that is left works on, and the map must come to its end.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    time::Duration,
};

use jiff::Timestamp;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::super::{
    indices::{Index, one},
    items::{Items, Retries},
    leader::{Command, Event, Heard, Leader, Life},
    plan::{Chunk, Spec, Verdict},
    record::{Cause, Record, Worker},
};

/// A connection: the epoch of its leader, and a number. Of two connections the higher one was opened later.
type Session = (u64, u64);
/// One attempt of an item.
type Try = (Index, u32);

/// Steps of a history before everything that is left works on.
const ROUGH: usize = 500;
/// Rounds in which the rest must come to its end.
const CALM: usize = 4_000;

enum ToWorker {
    Open,
    Chunk(Chunk),
    Recall(Range<Index>),
    Ack(u64),
}

enum FromWorker {
    Holds(Vec<Range<Index>>),
    Ended(u64, Try, Cause),
    Released(Range<Index>),
    /// All was told; whether the worker's run has ended.
    Told(bool),
}

/// A worker on its machine.
#[derive(Default)]
struct Place {
    session: Session,
    received: BTreeMap<Session, VecDeque<ToWorker>>,
    sent: VecDeque<FromWorker>,
    queue: VecDeque<Try>,
    running: Option<Try>,
    ended: BTreeMap<u64, (Try, Cause)>,
    position: u64,
    /// Its watcher is gone.
    over: bool,
    /// Its machine is gone, or was restarted and lost what was not told.
    lost: bool,
}

impl Place {
    fn post(&mut self, session: Session, message: ToWorker) {
        if !self.lost {
            self.received.entry(session).or_default().push_back(message);
        }
    }

    /// Runs of items side by side, in the order in which they are run.
    fn holds(&self) -> Vec<Range<Index>> {
        let mut ranges: Vec<Range<Index>> = Vec::new();
        for (index, _) in self.running.iter().chain(&self.queue) {
            match ranges.last_mut() {
                Some(last) if last.end == *index => last.end += 1,
                _ => ranges.push(one(*index)),
            }
        }
        ranges
    }

    fn hear(&mut self, session: Session, message: ToWorker) {
        match message {
            ToWorker::Open if session > self.session => {
                self.session = session;
                // Older connections are closed before the answer.
                self.sent = VecDeque::from([FromWorker::Holds(self.holds())]);
                for (position, (item, cause)) in &self.ended {
                    self.sent.push_back(FromWorker::Ended(*position, *item, *cause));
                }
                self.sent.push_back(FromWorker::Told(self.over));
            }
            _ if session != self.session => {}
            ToWorker::Open => {}
            ToWorker::Chunk(_) if self.over => {}
            ToWorker::Chunk(chunk) => {
                let indices = chunk.first..chunk.first + chunk.count;
                self.queue.extend(indices.map(|index| (index, chunk.attempt)));
            }
            ToWorker::Recall(range) => {
                let found = self.queue.iter().find(|(index, _)| range.contains(index));
                let first = found.map(|(index, _)| *index);
                self.queue.retain(|(index, _)| !range.contains(index));
                self.sent
                    .push_back(FromWorker::Released(first.unwrap_or(range.end)..range.end));
            }
            ToWorker::Ack(position) => self.ended.retain(|known, _| *known > position),
        }
    }

    fn end(&mut self, cause: Cause) -> Option<Try> {
        let item = self.running.take()?;
        self.position += 1;
        self.ended.insert(self.position, (item, cause));
        self.sent.push_back(FromWorker::Ended(self.position, item, cause));
        Some(item)
    }
}

/// A process that believes that it leads.
struct Process {
    epoch: u64,
    /// The number of its next write.
    next: usize,
    leader: Leader<()>,
    sessions: BTreeMap<Worker, u64>,
    writing: Option<Vec<Record>>,
}

impl Process {
    fn disconnect(&mut self, worker: Worker, now: Timestamp) {
        if let Some(session) = self.sessions.remove(&worker) {
            self.leader.on(Event::Closed(worker, session), now);
        }
    }
}

struct SmallWorld {
    random: StdRng,
    total: u32,
    spec: Spec,
    /// Each object of the log; that of a new leader has no records.
    log: Vec<Vec<Record>>,
    leaders: Vec<Process>,
    places: BTreeMap<Worker, Place>,
    /// The ledger: how each attempt that began ended, if it did.
    began: BTreeMap<Try, Option<Cause>>,
    sessions: u64,
    epoch: u64,
    now: Timestamp,
    verdict: Option<Verdict>,
}

impl SmallWorld {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let spec = Spec {
            retries: Retries {
                on_interruption: random.random_range(0..6),
                on_failure: random.random_range(0..3),
            },
            max_failed: random.random_bool(0.2).then(|| random.random_range(0..5)),
            buffer: random.random_range(0..3),
            threads: 1,
            runs: true,
        };
        let total = random.random_range(0..60);
        let mut world = Self {
            random,
            total,
            spec,
            log: Vec::new(),
            leaders: Vec::new(),
            places: BTreeMap::new(),
            began: BTreeMap::new(),
            sessions: 0,
            epoch: 0,
            now: Timestamp::UNIX_EPOCH,
            verdict: None,
        };
        for _ in 0..3 {
            world.add_place();
        }
        world.lead();
        world
    }

    fn add_place(&mut self) {
        let rank = self.places.len() as u32;
        self.places.insert(Worker { attempt: 1, rank }, Place::default());
    }

    /// A new leader reads the log and marks it.
    fn lead(&mut self) {
        self.epoch += 1;
        let mut items = Items::new(self.total);
        for record in self.log.iter().flatten() {
            assert!(
                items.apply(record),
                "a record of the log does not count: {record:?}"
            );
        }
        self.log.push(Vec::new());
        self.leaders.push(Process {
            epoch: self.epoch,
            next: self.log.len(),
            leader: Leader::new(self.spec, items),
            sessions: BTreeMap::new(),
            writing: None,
        });
    }

    /// Something happens.
    fn step(&mut self) {
        let rank = self.random.random_range(0..self.places.len()) as u32;
        let worker = Worker { attempt: 1, rank };
        let leader = self.random.random_range(0..self.leaders.len());
        self.now += Duration::from_millis(self.random.random_range(0..60));
        match self.random.random_range(0..120_u32) {
            0..20 => self.plan(leader),
            20..30 => self.store(leader),
            30..50 => self.hear(worker),
            50..70 => self.tell(worker),
            70..82 => self.begin(worker),
            82..94 => self.end(worker),
            94..101 => self.connect(leader, worker),
            101..103 => self.lead(),
            103..105 => drop(self.leaders.remove(leader)),
            105..110 => self.leaders[leader].disconnect(worker, self.now),
            110..112 => self.kill_watcher(worker),
            112 => self.lose(worker),
            _ => self.now += Duration::from_secs(1),
        }
        if self.leaders.is_empty() {
            self.lead();
        }
    }

    fn plan(&mut self, leader: usize) {
        let Self {
            leaders,
            places,
            log,
            verdict,
            ..
        } = self;
        let process = &mut leaders[leader];
        // What the cluster knows of machines, each leader knows.
        for (worker, _) in places.iter().filter(|(_, place)| place.lost) {
            process.leader.on(Event::Worker(*worker, Life::Lost), self.now);
        }
        for command in process.leader.settle(self.now) {
            let (worker, session, message) = match command {
                Command::Write(entries) => {
                    assert!(process.writing.is_none(), "one write at a time");
                    assert!(!entries.is_empty());
                    process.writing = Some(entries.into_iter().map(|entry| entry.record).collect());
                    continue;
                }
                Command::Close(_) => continue,
                Command::Finish(how) => {
                    assert!(process.writing.is_none(), "all is stored before the end");
                    if process.next == log.len() {
                        *verdict = Some(how);
                    }
                    continue;
                }
                Command::Send(worker, session, chunk) => {
                    let range = chunk.first..chunk.first + chunk.count;
                    let is_granted = |items: &Items| {
                        items.grant(worker).map(|grant| grant.within(range.clone()).len())
                            == Some(chunk.count)
                    };
                    assert!(is_granted(process.leader.items()), "{chunk:?} is not granted");
                    // The log says so too, as far as this process has written it.
                    let mut stored = Items::new(self.total);
                    for record in log[..process.next].iter().flatten() {
                        stored.apply(record);
                    }
                    assert!(is_granted(&stored), "the grant of {chunk:?} is not stored");
                    (worker, session, ToWorker::Chunk(chunk))
                }
                Command::Recall(worker, session, range) => (worker, session, ToWorker::Recall(range)),
                Command::Acknowledge(worker, session, position) => {
                    let ended = places[&worker].ended.range(..=position);
                    for (_, ((index, attempt), _)) in ended.filter(|_| process.next == log.len()) {
                        let is_it = |record: &Record| matches!(record, Record::Ended(ended) if (ended.index, ended.attempt) == (*index, *attempt));
                        let is_stored = log.iter().flatten().any(is_it);
                        assert!(is_stored, "attempt {attempt} of item {index} would be lost");
                    }
                    (worker, session, ToWorker::Ack(position))
                }
            };
            if let Some(place) = places.get_mut(&worker) {
                place.post((process.epoch, session), message);
            }
        }
    }

    /// The records of a leader become an object of the log, if nobody else has made that.
    fn store(&mut self, leader: usize) {
        let process = &mut self.leaders[leader];
        let Some(records) = process.writing.take() else {
            return;
        };
        if process.next != self.log.len() {
            self.leaders.remove(leader);
            return;
        }
        self.log.push(records);
        process.next = self.log.len();
        process.leader.on(Event::Stored, self.now);
    }

    fn connect(&mut self, leader: usize, worker: Worker) {
        self.sessions += 1;
        let process = &mut self.leaders[leader];
        process.disconnect(worker, self.now);
        process.sessions.insert(worker, self.sessions);
        let opened = Event::Opened(worker, self.sessions, Duration::from_millis(5));
        process.leader.on(opened, self.now);
        let session = (process.epoch, self.sessions);
        if let Some(place) = self.places.get_mut(&worker) {
            place.post(session, ToWorker::Open);
        }
    }

    /// The worker takes in a message of any connection: messages of one that was closed may still arrive.
    fn hear(&mut self, worker: Worker) {
        let Some(place) = self.places.get_mut(&worker) else {
            return;
        };
        let sessions: Vec<Session> = place
            .received
            .iter()
            .filter(|(_, messages)| !messages.is_empty())
            .map(|(session, _)| *session)
            .collect();
        if sessions.is_empty() {
            return;
        }
        let session = sessions[self.random.random_range(0..sessions.len())];
        let message = place.received.get_mut(&session).and_then(VecDeque::pop_front);
        if let Some(message) = message {
            place.hear(session, message);
        }
    }

    /// A message of the worker arrives, if its connection is still that of a leader.
    fn tell(&mut self, worker: Worker) {
        let Some(place) = self.places.get_mut(&worker) else {
            return;
        };
        let (epoch, session) = place.session;
        let Some(message) = place.sent.pop_front() else {
            return;
        };
        let listens = |process: &&mut Process| {
            process.epoch == epoch && process.sessions.get(&worker) == Some(&session)
        };
        let heard = match message {
            FromWorker::Holds(held) => Heard::Holds(held),
            FromWorker::Released(range) => Heard::Released(range),
            FromWorker::Told(over) => Heard::Told { over, cut: false },
            FromWorker::Ended(position, (index, attempt), cause) => Heard::Ended {
                position,
                index,
                attempt,
                cause,
                for_good: false,
                pause: Duration::ZERO,
                took: Duration::from_millis(u64::from(index % 7) * 100),
                body: (),
                bytes: 1,
            },
        };
        if let Some(process) = self.leaders.iter_mut().find(listens) {
            process.leader.on(Event::Heard(worker, session, heard), self.now);
        }
    }

    fn begin(&mut self, worker: Worker) {
        let Some(place) = self.places.get_mut(&worker) else {
            return;
        };
        if place.running.is_some() || place.over {
            return;
        }
        let Some(item) = place.queue.pop_front() else {
            return;
        };
        place.running = Some(item);
        let before = self.began.insert(item, None);
        assert_eq!(before, None, "attempt {} of item {} began twice", item.1, item.0);
        let same = self.places.values().filter_map(|place| place.running);
        assert_eq!(
            same.filter(|(index, _)| *index == item.0).count(),
            1,
            "item {} runs at two places",
            item.0
        );
        let has_ended = |record: &Record| matches!(record, Record::Ended(ended) if ended.index == item.0 && ended.is_final);
        assert!(
            !self.log.iter().flatten().any(has_ended),
            "item {} had its outcome",
            item.0
        );
    }

    fn end(&mut self, worker: Worker) {
        let cause = if self.random.random_bool(0.85) {
            Cause::Success
        } else {
            Cause::Failure
        };
        let item = self.places.get_mut(&worker).and_then(|place| place.end(cause));
        if let Some(item) = item {
            self.began.insert(item, Some(cause));
        }
    }

    fn kill_watcher(&mut self, worker: Worker) {
        let Some(place) = self.places.get_mut(&worker) else {
            return;
        };
        if place.over || place.lost {
            return;
        }
        place.over = true;
        place.queue.clear();
        if let Some(item) = place.end(Cause::Interruption) {
            self.began.insert(item, Some(Cause::Interruption));
        }
        place.sent.push_back(FromWorker::Told(true));
        self.add_place();
    }

    fn lose(&mut self, worker: Worker) {
        let Some(place) = self.places.get_mut(&worker) else {
            return;
        };
        if !place.lost {
            *place = Place {
                lost: true,
                over: true,
                ..Place::default()
            };
            self.add_place();
        }
    }

    /// The newest leader and all workers that are left work on.
    fn calm(&mut self) {
        let newest = self.leaders.iter().map(|process| process.epoch).max();
        self.leaders.retain(|process| Some(process.epoch) == newest);
        if self.leaders.is_empty() || self.leaders[0].next != self.log.len() {
            self.leaders.clear();
            self.lead();
        }
        let workers: Vec<Worker> = self.places.keys().copied().collect();
        for worker in &workers {
            self.connect(0, *worker);
        }
        for _ in 0..CALM {
            if self.verdict.is_some() {
                return;
            }
            self.plan(0);
            self.store(0);
            for worker in &workers {
                for _ in 0..8 {
                    self.hear(*worker);
                    self.tell(*worker);
                }
                self.begin(*worker);
                if self.random.random_bool(0.7) {
                    self.end(*worker);
                }
            }
            self.now += Duration::from_millis(300);
        }
    }

    /// What the log says agrees with the ledger.
    fn check(&self) {
        let mut final_ones = BTreeSet::new();
        let mut failed = 0;
        for record in self.log.iter().flatten() {
            let Record::Ended(ended) = record else { continue };
            let told = self.began.get(&(ended.index, ended.attempt)).copied();
            // An end that a lost machine has not told is an interruption.
            if ended.cause != Cause::Interruption {
                assert_eq!(told, Some(Some(ended.cause)), "{ended:?}");
            }
            if ended.is_final {
                assert!(
                    final_ones.insert(ended.index),
                    "item {} has two outcomes",
                    ended.index
                );
                failed += u32::from(ended.cause != Cause::Success);
            }
        }
        let all = final_ones.len() as u32 == self.total;
        match self.verdict.expect("the map comes to its end") {
            Verdict::Complete => assert!(all && failed == 0),
            Verdict::SomeFailed => assert!(all && failed > 0),
            Verdict::TooManyFailed => assert!(self.spec.max_failed.is_some_and(|most| failed > most)),
        }
    }
}

proptest! {
    #[test]
    fn each_attempt_begins_once_and_each_item_has_one_outcome_whatever_is_lost(seed: u64) {
        let mut world = SmallWorld::new(seed);
        for _ in 0..ROUGH {
            if world.verdict.is_some() {
                break;
            }
            world.step();
        }
        world.calm();
        world.check();
    }
}
