//! Which worker runs which items, and when a map is over. Called again whenever something was told or stored: it sees
//! everything anew, so a step that was lost comes again.
//!
//! A worker runs only what the log says that it was granted, and what it was sent. What a worker holds is believed
//! from it alone: before it has told that over the present connection it is [`State::Silent`], and nothing of its
//! grant goes anywhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use super::{
    indices::{Index, Indices},
    items::{Items, Retries},
    pace::Pace,
    record::{Cause, Ended, Note, Record, Worker},
};

/// Final outcomes that one plan writes for items that were interrupted too often.
const EXHAUSTED: usize = 4096;
/// Before a new grant can be used the log has stored it, which takes a second.
const STORED: Duration = Duration::from_secs(1);
/// A worker that has had nothing for so long, while nothing waits, gives its place back.
const IDLE: Duration = Duration::from_secs(30);

/// What a user asks of the items of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// How often an item may run again.
    pub retries: Retries,
    /// How many items may fail before the others are given up; `None`: all of them.
    pub max_failed: Option<u32>,
    /// Chunks that wait at each worker in any case.
    pub buffer: u32,
    /// Items that each worker runs at the same time; at least one.
    pub threads: u32,
    /// Whether items begin. Not while the Task is suspended, or is being deleted.
    pub runs: bool,
}

impl Spec {
    /// Whether more items have failed than may.
    pub fn gives_up(&self, failed: u32) -> bool {
        self.max_failed.is_some_and(|most| failed > most)
    }

    /// Whether items that wait begin, where so many have failed.
    pub fn begins(&self, failed: u32) -> bool {
        self.runs && !self.gives_up(failed)
    }
}

/// What is known of a worker now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not reported the items that it holds and the ends of items over the current connection.
    Silent,
    /// It has reported everything, and takes work.
    Working,
    /// It has reported everything, and must take no more work.
    Closing,
    /// Its run has ended, and it has reported everything before that: an item whose end it has not reported never began.
    Ended,
    /// Its machine is confirmed to be gone, or was restarted. Items whose end it has not reported may have begun.
    Lost,
}

/// A worker as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// What is known of it.
    pub state: State,
    /// From the end of a chunk there until the next one can be there.
    pub distance: Duration,
    /// What it was sent and has told no end of, in the order in which it begins them. The first
    /// ones run.
    pub held: Vec<Range<Index>>,
    /// For how long it has told of no end, while it held something.
    pub quiet: Duration,
    /// For how long it has held nothing.
    pub idle: Duration,
    /// Whether it was asked to let go of items and has not answered.
    pub recalling: bool,
}

/// All that a plan follows from.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// What a user asks.
    pub spec: Spec,
    /// Where each item is, with the records that are being stored.
    pub items: &'a Items,
    /// Waiting items that pause after a failure: they are not granted yet.
    pub resting: &'a Indices,
    /// Grants among the records that are being stored: they cannot be used yet.
    pub unstored: &'a BTreeMap<Worker, Indices>,
    /// The workers that are known.
    pub workers: &'a BTreeMap<Worker, WorkerView>,
    /// What was measured.
    pub pace: &'a Pace,
}

/// Consecutive items of one attempt, for one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The first item.
    pub first: Index,
    /// How many.
    pub count: u32,
    /// Which attempt of each it is.
    pub attempt: u32,
}

/// How a map ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All items succeeded.
    Complete,
    /// All items have an outcome, and some failed.
    SomeFailed,
    /// More items failed than may; items without an outcome were not run.
    TooManyFailed,
}

/// What is to be done. Steps are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write this to the log.
    Record(Record),
    /// Give a worker items to run. What they were granted with is stored.
    Send(Worker, Chunk),
    /// Ask a worker to let go of those of these items that it has not begun.
    Recall(Worker, Range<Index>),
    /// The worker has nothing and gets nothing more: end its run.
    Close(Worker),
    /// The map is over.
    Finish(Verdict),
}

/// How an attempt of an item ended, as a worker tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Which item.
    pub index: Index,
    /// Which attempt.
    pub attempt: u32,
    /// How.
    pub cause: Cause,
    /// Whether a rule of the Task says that no other attempt follows such a failure.
    pub for_good: bool,
}

/// The record that follows from an end that a worker tells; `None`: it is known, or no end of an attempt that this
/// worker may run. In both cases the worker may forget it, once the log has what it should have.
pub fn outcome(items: &Items, retries: Retries, worker: Worker, end: End) -> Option<Ended> {
    let End {
        index,
        attempt,
        cause,
        for_good,
    } = end;
    items.counts_from(worker, index, attempt).then(|| Ended {
        index,
        attempt,
        cause,
        is_final: for_good || items.counts(index).is_final(cause, retries),
    })
}

/// What is to be done now.
pub fn plan(world: &World<'_>) -> Vec<Step> {
    // What is on record comes first: all else follows from it.
    let steps = world.settle();
    if !steps.is_empty() {
        return steps;
    }
    if let Some(verdict) = world.verdict() {
        return vec![Step::Finish(verdict)];
    }
    let mut unsent = world.unsent();
    let mut steps = world.wind_down(&unsent);
    if world.goes_on() {
        steps.extend(world.take_back(&mut unsent));
        steps.extend(world.grants());
        steps.extend(world.chunks(&unsent));
        steps.extend(world.dismiss());
    }
    steps
}

impl World<'_> {
    fn goes_on(&self) -> bool {
        self.spec.begins(self.items.new_failures())
    }

    fn working(&self) -> impl Iterator<Item = (Worker, &WorkerView)> {
        let all = self.workers.iter().map(|(worker, view)| (*worker, view));
        all.filter(|(_, view)| view.state == State::Working)
    }

    /// Whether a worker ends with what it runs.
    fn closes(&self, view: &WorkerView) -> bool {
        match view.state {
            State::Closing => true,
            State::Working => !self.goes_on(),
            State::Silent | State::Ended | State::Lost => false,
        }
    }

    /// What has become of workers that are no more, and of items that were lost too often.
    fn settle(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (worker, grant) in self.items.grants() {
            match self.workers.get(worker).map(|view| view.state) {
                Some(State::Lost) => steps.push(note(Note::Cut(*worker))),
                Some(State::Ended) => steps.extend(released(*worker, grant)),
                // A worker that is not known may still run.
                Some(State::Silent | State::Working | State::Closing) | None => {}
            }
        }
        let exhausted = self.items.exhausted(self.spec.retries).take(EXHAUSTED);
        steps.extend(exhausted.map(|(index, _)| {
            Step::Record(Record::Ended(Ended {
                index,
                attempt: self.items.attempt(index),
                cause: Cause::Interruption,
                is_final: true,
            }))
        }));
        steps
    }

    fn verdict(&self) -> Option<Verdict> {
        if self.items.done().len() == self.items.total() {
            let is_complete = self.items.failed().is_empty();
            return Some(if is_complete {
                Verdict::Complete
            } else {
                Verdict::SomeFailed
            });
        }
        let is_over = self.spec.gives_up(self.items.new_failures()) && self.items.grants().is_empty();
        is_over.then_some(Verdict::TooManyFailed)
    }

    /// What each worker was granted, and neither holds nor has ended.
    fn unsent(&self) -> BTreeMap<Worker, Indices> {
        let mut unsent = BTreeMap::new();
        for (worker, view) in self.workers {
            let is_told = matches!(view.state, State::Working | State::Closing);
            if let Some(grant) = self.items.grant(*worker).filter(|_| is_told) {
                let mut left = grant.clone();
                for held in &view.held {
                    left.remove(held.clone());
                }
                if let Some(unstored) = self.unstored.get(worker) {
                    left.remove_all(unstored);
                }
                if !left.is_empty() {
                    unsent.insert(*worker, left);
                }
            }
        }
        unsent
    }

    /// Workers that shall take no more end with the items that they run.
    fn wind_down(&self, unsent: &BTreeMap<Worker, Indices>) -> Vec<Step> {
        let mut steps = Vec::new();
        for (worker, view) in self.workers {
            if !self.closes(view) {
                continue;
            }
            if let Some(unsent) = unsent.get(worker) {
                steps.extend(released(*worker, unsent));
            }
            if !view.recalling {
                let recalled = back(&view.held, u32::MAX, self.spec.threads);
                steps.extend(recalled.into_iter().map(|range| Step::Recall(*worker, range)));
            }
            if view.held.is_empty() && self.items.grant(*worker).is_none() {
                steps.push(Step::Close(*worker));
            }
        }
        steps
    }

    /// Near the end, idle workers get a part of what the others have not begun.
    fn take_back(&self, unsent: &mut BTreeMap<Worker, Indices>) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.ready() > 0 {
            return steps;
        }
        let has_nothing = |(worker, view): &(Worker, &WorkerView)| {
            view.held.is_empty() && self.items.grant(*worker).is_none()
        };
        let idle = self.working().filter(has_nothing).count();
        let mut asked = BTreeSet::new();
        for _ in 0..idle {
            let givers = self.working().filter(|(worker, _)| !asked.contains(worker));
            let richest = givers
                .map(|(worker, view)| (self.not_begun(worker, view, unsent), worker, view))
                .max_by_key(|(count, worker, _)| (*count, std::cmp::Reverse(*worker)));
            let Some((1.., worker, view)) = richest else { break };
            asked.insert(worker);
            if let Some(left) = unsent.get_mut(&worker) {
                // No worker was sent these items, so they are free at once. A worker that has no other keeps one.
                let spare = left.len() - u32::from(view.held.is_empty());
                let given = left.back(spare.div_ceil(2));
                left.remove_all(&given);
                steps.extend(released(worker, &given));
                if !given.is_empty() {
                    continue;
                }
            }
            steps.extend(self.recall(worker, view));
        }
        steps
    }

    /// Near the end, workers that can get nothing any more: one item that takes an hour must not keep the places, and
    /// the machines, of all others. As many stay as there are items that pause.
    fn dismiss(&self) -> Vec<Step> {
        if self.ready() > 0 {
            return Vec::new();
        }
        let is_idle = |(worker, view): &(Worker, &WorkerView)| {
            view.idle >= IDLE && view.held.is_empty() && self.items.grant(*worker).is_none()
        };
        self.working()
            .filter(is_idle)
            .skip(self.items.waiting().len() as usize)
            .map(|(worker, _)| Step::Close(worker))
            .collect()
    }

    /// How many items a worker has besides the items that it runs or is about to run.
    fn not_begun(&self, worker: Worker, view: &WorkerView, unsent: &BTreeMap<Worker, Indices>) -> u32 {
        let unsent = unsent.get(&worker).map_or(0, Indices::len);
        let held: u32 = view.held.iter().map(|range| range.end - range.start).sum();
        (unsent + held).saturating_sub(self.spec.threads)
    }

    /// Asks a worker for a part of what it holds, if that is worth the way.
    fn recall(&self, worker: Worker, view: &WorkerView) -> Vec<Step> {
        let spare = self.not_begun(worker, view, &BTreeMap::new());
        if view.recalling || spare == 0 {
            return Vec::new();
        }
        let way = (STORED + view.distance * 2).as_secs_f64();
        // Behind an item that takes long, how long the others take does not matter.
        let is_stuck = view.quiet.as_secs_f64() > way;
        let wanted = if is_stuck {
            spare
        } else if self.pace.mean().is_some_and(|mean| f64::from(spare) * mean > way) {
            spare.div_ceil(2)
        } else {
            0
        };
        back(&view.held, wanted, self.spec.threads)
            .into_iter()
            .map(|range| Step::Recall(worker, range))
            .collect()
    }

    /// How many items may be granted now.
    fn ready(&self) -> u32 {
        self.items.waiting().len().saturating_sub(self.resting.len())
    }

    /// New grants, the poorest worker first.
    fn grants(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let ready = self.ready();
        if ready == 0 {
            return steps;
        }
        let mut next = 0;
        let mut poorest: Vec<(u32, Worker, &WorkerView)> = self
            .working()
            .map(|(worker, view)| (self.items.grant(worker).map_or(0, Indices::len), worker, view))
            .collect();
        poorest.sort_unstable_by_key(|(has, worker, _)| (*has, *worker));
        let share = ready.div_ceil(u32::try_from(poorest.len()).unwrap_or(u32::MAX).max(1));
        for (has, worker, view) in poorest {
            let (chunk, under_way) = self.sizes(view);
            let threads = self.spec.threads;
            let wanted = self
                .pace
                .grant(chunk, under_way, view.distance, threads)
                .min(share);
            // Not for each item that ended: the log would have a record more for each.
            if has >= wanted || has > wanted / 2 {
                continue;
            }
            let waiting = self.items.waiting();
            let given = waiting.front_without(next, self.resting, wanted - has);
            next = given.ranges().next_back().map_or(next, |last| last.end);
            steps.extend(given.ranges().map(|range| note(Note::Granted(worker, range))));
        }
        steps
    }

    /// Chunks for workers that hold too few.
    fn chunks(&self, unsent: &BTreeMap<Worker, Indices>) -> Vec<Step> {
        let mut steps = Vec::new();
        for (worker, view) in self.working() {
            let Some(unsent) = unsent.get(&worker) else {
                continue;
            };
            let (size, under_way) = self.sizes(view);
            let held = u32::try_from(view.held.len()).unwrap_or(u32::MAX);
            let mut room = under_way.saturating_add(1).saturating_sub(held);
            let mut left = unsent.clone();
            while room > 0
                && let Some(range) = left.front(size).ranges().next()
            {
                let range = self.items.same_attempt(range);
                left.remove(range.clone());
                let chunk = Chunk {
                    first: range.start,
                    count: range.end - range.start,
                    attempt: self.items.attempt(range.start),
                };
                steps.push(Step::Send(worker, chunk));
                room -= 1;
            }
        }
        steps
    }

    /// How many items a chunk for that worker has, and how many chunks wait there.
    fn sizes(&self, view: &WorkerView) -> (u32, u32) {
        let remaining = self.items.total() - self.items.done().len();
        let workers = u32::try_from(self.working().count()).unwrap_or(u32::MAX);
        let chunk = self.pace.chunk(remaining, workers);
        // In the time that a chunk needs for its way, threads begin as many times more items.
        let threads = self.spec.threads;
        let distance = view.distance.saturating_mul(threads);
        let waiting = self.pace.waiting(chunk, distance, self.spec.buffer);
        // Items that the other threads run wait for none.
        let others = (threads - 1).div_ceil(chunk);
        (chunk, waiting.saturating_add(others))
    }
}

fn note(note: Note) -> Step {
    Step::Record(Record::Note(note))
}

fn released(worker: Worker, items: &Indices) -> Vec<Step> {
    items
        .ranges()
        .map(|range| note(Note::Released(worker, range)))
        .collect()
}

/// The last items that a worker holds, so many at most, but for the first ones, of which it runs so many.
fn back(held: &[Range<Index>], most: u32, threads: u32) -> Vec<Range<Index>> {
    let mut run = threads;
    let free: Vec<Range<Index>> = held
        .iter()
        .map(|range| {
            let kept = run.min(range.end - range.start);
            run -= kept;
            range.start + kept..range.end
        })
        .collect();
    let mut found = Vec::new();
    let mut left = most;
    for range in free.into_iter().rev() {
        let start = range.start.max(range.end.saturating_sub(left));
        if left > 0 && start < range.end {
            left -= range.end - start;
            found.push(start..range.end);
        }
    }
    found
}
