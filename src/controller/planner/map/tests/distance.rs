//! A worker that is far away is as busy as one that is near: a leader and two workers on a clock of their own, with the
//! way between them, the pauses after which a machine looks for ends, and the time that a store takes for a write. Nothing
//! is left to chance.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    super::{
        indices::Index,
        items::Items,
        leader::{Command, Event, Heard, Leader, Life, Session},
        plan::Chunk,
        record::Cause,
    },
    SPEC, worker,
};

/// A message takes so long to the near worker and to the far one.
const WAYS: [Duration; 2] = [Duration::from_micros(250), Duration::from_millis(100)];
/// What the store takes to keep a write.
const STORE: Duration = Duration::from_millis(100);
/// After a look that found ends, a machine looks again after so long; each look in vain doubles that.
const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_millis(160);
/// What is measured begins when both have had their first chunks.
const BEGIN: Duration = Duration::from_secs(3);
/// The least part of the time that a worker is busy.
const BUSY: f64 = 0.95;

const SESSION: Session = 1;

enum What {
    /// A stream to the worker is open.
    Opened(usize),
    /// The worker is given items.
    Given(usize, Chunk),
    /// The worker is to let go of items.
    Recalled(usize, Range<Index>),
    /// The worker learns that its ends are stored.
    Acknowledged(usize),
    /// The item that runs there ends.
    Ends(usize),
    /// Its machine looks for ends.
    Looks(usize),
    /// The leader hears of the worker.
    Hears(usize, Vec<Heard<()>>),
    /// The write under way is stored.
    Stored,
    /// The leader has something to do.
    Wakes,
}

/// A worker on its machine.
#[derive(Default)]
struct Place {
    queue: VecDeque<(Index, u32)>,
    running: Option<(Index, u32, Timestamp)>,
    ended: Vec<Heard<()>>,
    position: u64,
    pause: Duration,
    looks_at: Timestamp,
    /// For how long it ran items since [`BEGIN`].
    busy: Duration,
}

struct World {
    now: Timestamp,
    leader: Leader<()>,
    places: [Place; 2],
    /// What happens, by its time; the number keeps what happens at once in its order.
    events: BTreeMap<(Timestamp, u64), What>,
    number: u64,
    wakes_at: Option<Timestamp>,
    /// How long the item with an index runs.
    length: fn(Index) -> Duration,
}

impl World {
    fn new(total: u32, length: fn(Index) -> Duration) -> Self {
        let mut world = Self {
            now: Timestamp::UNIX_EPOCH,
            leader: Leader::new(SPEC, Items::new(total)),
            places: Default::default(),
            events: BTreeMap::new(),
            number: 0,
            wakes_at: None,
            length,
        };
        for (place, way) in WAYS.into_iter().enumerate() {
            world.leader.on(
                Event::Worker(worker(place as u32), Life::Runs),
                Timestamp::UNIX_EPOCH,
            );
            world.after(way * 2, What::Opened(place));
        }
        world
    }

    fn after(&mut self, wait: Duration, what: What) {
        self.number += 1;
        self.events.insert((self.now + wait, self.number), what);
    }

    /// Part of the time from [`BEGIN`] to the end for which each worker was busy.
    fn busy(mut self, end: Duration) -> [f64; 2] {
        let until = Timestamp::UNIX_EPOCH + end;
        while let Some(next) = self.events.first_entry().filter(|next| next.key().0 <= until) {
            let ((at, _), what) = next.remove_entry();
            self.now = at;
            self.happens(what);
        }
        self.now = until;
        for place in 0..WAYS.len() {
            self.stop(place);
        }
        let whole = end.checked_sub(BEGIN).unwrap();
        self.places
            .map(|place| place.busy.as_secs_f64() / whole.as_secs_f64())
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Opened(place) => {
                let opened = Event::Opened(worker(place as u32), SESSION, WAYS[place] * 2);
                self.leader.on(opened, self.now);
                let told = Heard::Told {
                    over: false,
                    cut: false,
                };
                self.hears(place, vec![Heard::Holds(Vec::new()), told]);
                self.looks_after(place, SHORT);
            }
            What::Given(place, chunk) => {
                let items = chunk.first..chunk.first + chunk.count;
                self.places[place]
                    .queue
                    .extend(items.map(|index| (index, chunk.attempt)));
                self.begin(place);
            }
            What::Recalled(place, range) => {
                let queue = &mut self.places[place].queue;
                let first = queue.iter().map(|(index, _)| *index).find(|i| range.contains(i));
                queue.retain(|(index, _)| !range.contains(index));
                let released = Heard::Released(first.unwrap_or(range.end)..range.end);
                self.after(WAYS[place], What::Hears(place, vec![released]));
            }
            What::Acknowledged(place) => self.looks_after(place, SHORT),
            What::Ends(place) => {
                self.stop(place);
                self.begin(place);
            }
            What::Looks(place) if self.places[place].looks_at == self.now => {
                let ended = std::mem::take(&mut self.places[place].ended);
                if ended.is_empty() {
                    let pause = self.places[place].pause * 2;
                    self.looks_after(place, pause.min(LONG));
                } else {
                    self.after(WAYS[place], What::Hears(place, ended));
                    self.looks_after(place, SHORT);
                }
            }
            // It has looked meanwhile, for another reason.
            What::Looks(_) => {}
            What::Hears(place, heard) => self.hears(place, heard),
            What::Stored => {
                self.leader.on(Event::Stored, self.now);
                self.settle();
            }
            What::Wakes => {
                self.wakes_at = None;
                self.settle();
            }
        }
    }

    fn looks_after(&mut self, place: usize, pause: Duration) {
        self.places[place].pause = pause;
        self.places[place].looks_at = self.now + pause;
        self.after(pause, What::Looks(place));
    }

    fn hears(&mut self, place: usize, heard: Vec<Heard<()>>) {
        for heard in heard {
            self.leader
                .on(Event::Heard(worker(place as u32), SESSION, heard), self.now);
        }
        self.settle();
    }

    fn settle(&mut self) {
        for command in self.leader.settle(self.now) {
            match command {
                Command::Write(_) => self.after(STORE, What::Stored),
                Command::Send(to, _, chunk) => self.tell(to.rank, |place| What::Given(place, chunk)),
                Command::Recall(to, _, range) => self.tell(to.rank, |place| What::Recalled(place, range)),
                Command::Acknowledge(to, ..) => self.tell(to.rank, What::Acknowledged),
                Command::Close(_) | Command::Finish(_) => panic!("the map has items for the whole time"),
            }
        }
        let wakes_at = self.leader.wakes_at();
        if let Some(at) = wakes_at.filter(|_| wakes_at != self.wakes_at) {
            self.wakes_at = wakes_at;
            self.number += 1;
            self.events.insert((at.max(self.now), self.number), What::Wakes);
        }
    }

    fn tell(&mut self, rank: u32, what: impl FnOnce(usize) -> What) {
        let place = rank as usize;
        self.after(WAYS[place], what(place));
    }

    fn begin(&mut self, place: usize) {
        let (now, length) = (self.now, self.length);
        let at = &mut self.places[place];
        if at.running.is_none()
            && let Some((index, attempt)) = at.queue.pop_front()
        {
            at.running = Some((index, attempt, now));
            self.after(length(index), What::Ends(place));
        }
    }

    /// The item that runs there is over.
    fn stop(&mut self, place: usize) {
        let now = self.now;
        let at = &mut self.places[place];
        let Some((index, attempt, since)) = at.running.take() else {
            return;
        };
        let counts_from = since.max(Timestamp::UNIX_EPOCH + BEGIN);
        at.busy += Duration::try_from(now.duration_since(counts_from)).unwrap_or_default();
        at.position += 1;
        at.ended.push(Heard::Ended {
            position: at.position,
            index,
            attempt,
            cause: Cause::Success,
            for_good: false,
            pause: Duration::ZERO,
            took: now.duration_since(since).unsigned_abs(),
            body: (),
            bytes: 1,
        });
    }
}

#[test]
fn a_worker_that_is_200_ms_away_is_as_busy_as_a_near_one_whatever_items_take() {
    /// How long each item takes, seconds that are looked at, and items.
    type Case = (fn(Index) -> Duration, u64, u32);
    let lengths: [Case; 7] = [
        (|_| Duration::from_millis(2), 8, 12_000),
        (|_| Duration::from_millis(20), 8, 2_000),
        (|_| Duration::from_millis(50), 8, 1_000),
        (|_| Duration::from_millis(200), 12, 500),
        (|_| Duration::from_millis(500), 12, 500),
        (|_| Duration::from_secs(2), 40, 500),
        // A tenth of them takes ten times as long.
        (
            |index| Duration::from_millis(if index % 10 == 0 { 200 } else { 20 }),
            12,
            2_000,
        ),
    ];
    for (number, (length, seconds, total)) in lengths.into_iter().enumerate() {
        let [near, far] = World::new(total, length).busy(Duration::from_secs(seconds));
        assert!(
            near >= BUSY && far >= BUSY * near,
            "case {number}: near {near:.3}, far {far:.3}"
        );
    }
}
