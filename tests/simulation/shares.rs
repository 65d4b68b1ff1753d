//! The share of a worker on its simulated machine: the items of a map that it was given, the one that runs, and how the
//! others ended. It follows from the time alone: what happened until a moment is worked out when somebody
//! looks, and noted for the rules ([`crate::maps`]) with the moment at which it happened.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use rand::Rng;
use skyward_remote::protocol::{
    FromWorkers, ItemEnded,
    finished::Ending,
    from_workers::{Holds, Message, Range as ItemRange, Released, Told},
    to_workers::Chunk,
};

use crate::{
    calls::Way,
    journal::{End, Journal, Run},
    planted::Fault,
    time::{Moment, SECOND},
    world::one_of,
};

/// How an attempt of an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Its process exited with that code.
    Exits(i32),
    /// It was stopped with its worker.
    Stopped,
    /// Its watcher was killed.
    Interrupted,
    /// Its machine was restarted; the machine has no record of how it ended.
    Cut,
}

/// What happened to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Ended(How),
    Began,
}

/// What happened on a machine, for the rules.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) at: Moment,
    /// The worker.
    pub(crate) run: String,
    pub(crate) index: u32,
    pub(crate) attempt: u32,
    pub(crate) what: What,
}

/// One attempt of an item, with what its name chooses.
#[derive(Clone, Copy, Debug)]
struct Work {
    index: u32,
    attempt: u32,
    takes: Moment,
    code: i32,
}

/// An end. It is told over each new stream, also where it was acknowledged: agents delete only whole files.
#[derive(Clone, Copy, Debug)]
struct Ended {
    position: u64,
    index: u32,
    attempt: u32,
    took: Moment,
    how: How,
    is_acknowledged: bool,
}

/// The share of one worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share {
    waiting: VecDeque<Work>,
    running: Option<(Work, Moment)>,
    ended: Vec<Ended>,
    /// Of the last end.
    position: u64,
    /// The last position that was told over any stream.
    told: u64,
    /// Whether no further item begins.
    closing: bool,
    /// Whether its worker has ended.
    is_over: bool,
    /// Whether the machine was restarted while its worker ran.
    is_cut: bool,
}

/// What one stream has told of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    position: u64,
    is_over: bool,
}

impl Share {
    /// Whether an end is on the machine alone: no stream has told it.
    pub(crate) fn has_untold(&self) -> bool {
        self.ended.iter().any(|ended| ended.position > self.told)
    }

    /// No further item begins.
    pub(crate) const fn close(&mut self) {
        self.closing = true;
    }

    fn begin(&mut self, run: &str, at: Moment, happened: &mut Vec<Happened>) {
        if self.closing || self.is_over || self.running.is_some() {
            return;
        }
        if let Some(work) = self.waiting.pop_front() {
            self.running = Some((work, at));
            happened.push(note(run, at, work, What::Began));
        }
    }

    fn end(&mut self, run: &str, at: Moment, how: How, happened: &mut Vec<Happened>) {
        let Some((work, since)) = self.running.take() else {
            return;
        };
        happened.push(note(run, at, work, What::Ended(how)));
        // A machine that was restarted has no record of that end.
        if how != How::Cut {
            self.position += 1;
            self.ended.push(Ended {
                position: self.position,
                index: work.index,
                attempt: work.attempt,
                took: at - since,
                how,
                is_acknowledged: false,
            });
        }
    }

    /// All that happens until that moment.
    fn work(&mut self, run: &str, until: Moment, happened: &mut Vec<Happened>) {
        if self.is_over {
            return;
        }
        while let Some((work, since)) = self.running {
            let ends = since.saturating_add(work.takes);
            if ends > until {
                return;
            }
            self.end(run, ends, How::Exits(work.code), happened);
            self.begin(run, ends, happened);
        }
    }

    /// Its worker ends.
    fn finish(&mut self, run: &str, at: Moment, how: How, happened: &mut Vec<Happened>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if how == How::Cut {
            self.is_cut = true;
            // What the share holds is told as it was written.
            if let Some((work, _)) = self.running {
                happened.push(note(run, at, work, What::Ended(How::Cut)));
            }
            return;
        }
        self.end(run, at, how, happened);
        self.waiting.clear();
    }

    /// When it has something to tell by itself.
    fn next_end(&self) -> Option<Moment> {
        let (work, since) = self.running.filter(|_| !self.is_over)?;
        Some(since.saturating_add(work.takes))
    }

    fn holds(&self) -> Message {
        let range = |work: &Work| ItemRange {
            first: work.index,
            count: 1,
            attempt: work.attempt,
        };
        let running = self.running.iter().map(|(work, _)| range(work));
        Message::Holds(Holds {
            ranges: running.chain(self.waiting.iter().map(range)).collect(),
        })
    }

    /// Lets go of those of these items that have not begun: the last one, and its neighbours before it.
    fn recall(&mut self, range: &Range<u32>) -> Released {
        let Some(last) = self.waiting.iter().rposition(|work| range.contains(&work.index)) else {
            return Released {
                first: range.end,
                count: 0,
            };
        };
        let (mut first, mut count) = (self.waiting[last].index, 1);
        self.waiting.remove(last);
        let before = |waiting: &VecDeque<Work>, first: u32| {
            waiting
                .iter()
                .position(|work| work.index + 1 == first && range.contains(&work.index))
        };
        while let Some(at) = before(&self.waiting, first) {
            self.waiting.remove(at);
            (first, count) = (first - 1, count + 1);
        }
        Released { first, count }
    }

    /// The controller has the ends up to this position; answers with those of which it had not said so.
    pub(crate) fn acknowledge(&mut self, position: u64) -> Vec<(u32, u32)> {
        let open = |ended: &&mut Ended| ended.position <= position && !ended.is_acknowledged;
        let new = self.ended.iter_mut().filter(open).map(|ended| {
            ended.is_acknowledged = true;
            (ended.index, ended.attempt)
        });
        new.collect()
    }
}

fn note(run: &str, at: Moment, work: Work, what: What) -> Happened {
    Happened {
        at,
        run: run.to_owned(),
        index: work.index,
        attempt: work.attempt,
        what,
    }
}

impl Ended {
    fn message(self) -> Message {
        let (ending, exit_code, message) = match self.how {
            How::Exits(code) => (Ending::Exited, code, ""),
            How::Stopped => (Ending::Stopped, 0, "it was stopped"),
            How::Interrupted | How::Cut => (Ending::Interrupted, 0, "its watcher was killed"),
        };
        let value = match self.how {
            How::Exits(0) => self.index.to_string().into_bytes(),
            _ => Vec::new(),
        };
        Message::Ended(ItemEnded {
            position: self.position,
            index: self.index,
            attempt: self.attempt,
            ending: ending.into(),
            exit_code,
            message: message.to_owned(),
            microseconds: u64::try_from(self.took).unwrap_or(0) * 1000,
            value: value.into(),
            ..ItemEnded::default()
        })
    }
}

impl Journal {
    /// All that happens to items until that moment.
    pub(crate) fn work(&mut self, until: Moment) {
        for (id, run) in &mut self.runs {
            let (ends, how) = run.ends;
            let Some(share) = &mut run.share else { continue };
            share.work(id, until.min(ends), &mut self.happened);
            if ends <= until {
                let how = match how {
                    End::Interrupted => How::Interrupted,
                    End::Restarted => How::Cut,
                    End::Exits(_) | End::TimedOut | End::Stopped => How::Stopped,
                };
                share.finish(id, ends, how, &mut self.happened);
            }
        }
    }

    /// When a worker of that map has something to tell by itself.
    pub(crate) fn next_item(&self, prefix: &str) -> Option<Moment> {
        let workers = self.runs.iter().filter(|(id, _)| id.starts_with(prefix));
        let next = workers.filter_map(|(_, run)| {
            let share = run.share.as_ref().filter(|share| !share.is_over)?;
            Some(share.next_end().unwrap_or(Moment::MAX).min(run.ends.0))
        });
        next.min()
    }

    /// A worker is given items; answers with their indices, where it takes them.
    pub(crate) fn give(&mut self, way: &Way, chunk: &Chunk, at: Moment) -> Vec<u32> {
        let Some(run) = self.runs.get_mut(&chunk.run_id) else {
            return Vec::new();
        };
        let Some(share) = run
            .share
            .as_mut()
            .filter(|share| !share.closing && !share.is_over)
        else {
            return Vec::new();
        };
        let map = map_of(&chunk.run_id);
        let indices: Vec<u32> = (chunk.first..chunk.first.saturating_add(chunk.count)).collect();
        for &index in &indices {
            let attempt = chunk.attempt;
            let mut random = way.world.chance(&format!("item {index} of {map}, {attempt}"));
            let takes = one_of(&mut random, &[SECOND / 4, SECOND, 2 * SECOND, 8 * SECOND]);
            let code = i32::from(random.random_ratio(1, 8));
            share.waiting.push_back(Work {
                index,
                attempt,
                takes,
                code,
            });
        }
        share.begin(&chunk.run_id, at, &mut self.happened);
        self.tell();
        indices
    }

    /// A worker lets go of items; the answer, as the operator with that bug hears it. `None`: the worker has ended.
    pub(crate) fn recall(
        &mut self,
        run_id: &str,
        range: &Range<u32>,
        planted: Option<Fault>,
    ) -> Option<Released> {
        let share = self.runs.get_mut(run_id)?.share.as_mut()?;
        if share.is_over {
            return None;
        }
        if planted == Some(Fault::RecallIsRelease) {
            return Some(Released {
                first: range.start,
                count: range.end - range.start,
            });
        }
        Some(share.recall(range))
    }

    /// What a stream tells next of the workers of a map, as the operator with that bug hears it.
    pub(crate) fn items_told(
        &mut self,
        prefix: &str,
        heard: &mut BTreeMap<String, Heard>,
        planted: Option<Fault>,
    ) -> Vec<FromWorkers> {
        let mut told = Vec::new();
        for (id, run) in self.runs.iter_mut().filter(|(id, _)| id.starts_with(prefix)) {
            let Some(share) = &mut run.share else { continue };
            let is_new = !heard.contains_key(id);
            let known = heard.entry(id.clone()).or_default();
            let mut say = |message| {
                told.push(FromWorkers {
                    run_id: id.clone(),
                    message: Some(message),
                });
            };
            if is_new {
                say(if planted == Some(Fault::HoldsLost) {
                    Message::Holds(Holds::default())
                } else {
                    share.holds()
                });
            }
            let mut last = known.position;
            for mut ended in share.ended.iter().copied() {
                if ended.position <= known.position {
                    continue;
                }
                last = ended.position;
                if let (How::Exits(code), true) = (&mut ended.how, planted == Some(Fault::ItemFailureLost)) {
                    *code = 0;
                }
                if is_new || planted != Some(Fault::ItemEndsUnheard) {
                    say(ended.message());
                }
            }
            known.position = last;
            let is_taken_for_cut = is_new && planted == Some(Fault::LinkLossIsMachineLoss);
            let is_cut = share.is_cut || (is_taken_for_cut && share.running.is_some());
            if is_new || (share.is_over && !known.is_over) {
                say(Message::Told(Told {
                    over: share.is_over || is_cut,
                    cut: is_cut,
                }));
            }
            known.is_over = share.is_over;
            share.told = share.told.max(last);
            if planted == Some(Fault::ForgottenUnstored) {
                share.ended.retain(|ended| ended.position > last);
            }
        }
        told
    }

    /// A lie about the items of that map: one that runs here has succeeded. `None`: none runs.
    pub(crate) fn early_end(&self, prefix: &str) -> Option<FromWorkers> {
        let mut workers = self.runs.iter().filter(|(id, _)| id.starts_with(prefix));
        workers.find_map(|(id, run)| {
            let share = run.share.as_ref()?;
            let (work, _) = share.running?;
            Some(false_end(id, share.position, (work.index, work.attempt)))
        })
    }

    /// Another one: an item that runs elsewhere has succeeded here. `None`: the map has no worker here.
    pub(crate) fn others_end(&self, prefix: &str, item: (u32, u32)) -> Option<FromWorkers> {
        let mut workers = self.runs.iter().filter(|(id, _)| id.starts_with(prefix));
        workers.find_map(|(id, run)| Some(false_end(id, run.share.as_ref()?.position, item)))
    }

    /// A worker's watcher is killed; answers whether there was one.
    pub(crate) fn kill_a_watcher(&mut self, which: usize, now: Moment) -> bool {
        let alive = |run: &&mut Run| run.share.is_some() && run.ends.0 > now;
        let mut watchers: Vec<_> = self.runs.values_mut().filter(alive).collect();
        if watchers.is_empty() {
            return false;
        }
        let which = which % watchers.len();
        watchers[which].ends = (now, End::Interrupted);
        self.tell();
        true
    }
}

/// A worker tells that an attempt of an item has succeeded. No end that it has counts as acknowledged with it.
fn false_end(run: &str, position: u64, (index, attempt): (u32, u32)) -> FromWorkers {
    let ended = Ended {
        position: position.saturating_sub(1),
        index,
        attempt,
        took: SECOND,
        how: How::Exits(0),
        is_acknowledged: false,
    };
    FromWorkers {
        run_id: run.to_owned(),
        message: Some(ended.message()),
    }
}

/// The UID of the Task in the id of a worker.
pub(crate) fn map_of(run: &str) -> &str {
    run.rsplitn(3, '-').nth(2).unwrap_or(run)
}

#[test]
fn a_share_lets_go_of_what_has_not_begun_and_tells_how_all_else_ended() {
    let work = |index| Work {
        index,
        attempt: 1,
        takes: SECOND,
        code: 0,
    };
    let mut happened = Vec::new();
    let mut share = Share {
        waiting: (0..4).map(work).collect(),
        ..Share::default()
    };
    share.begin("run", 0, &mut happened);
    // The first one has ended, and the second one runs.
    share.work("run", SECOND, &mut happened);
    let released = share.recall(&(0..4));
    assert_eq!((released.first, released.count), (2, 2));
    assert_eq!(share.recall(&(0..4)).count, 0);
    share.finish("run", SECOND + 1, How::Interrupted, &mut happened);
    let ends: Vec<(u32, How)> = happened
        .iter()
        .filter_map(|happened| match happened.what {
            What::Ended(how) => Some((happened.index, how)),
            What::Began => None,
        })
        .collect();
    assert_eq!(ends, [(0, How::Exits(0)), (1, How::Interrupted)]);
    assert!(share.has_untold());
    assert_eq!(share.acknowledge(1), [(0, 1)]);
    assert!(share.acknowledge(1).is_empty());
}
