//! Which Task is next: the order of the queue decides who gets free places.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use skyward_api::{MAX_RANKS, condition::reason, for_each::ConfigMapKey, task::Source};

use super::{
    Dispatcher, FRESH, RESOLVING,
    fetching::{self, Files},
    keeping,
    state::{Read, References, Run, Stage, Stored, TaskState},
};
use crate::task::{
    message::Effect,
    model::{Entry, PoolView, RunId, SlotAttempt},
    placement::{Planner, Room, Size, Wait},
    status::Why,
};

impl Dispatcher {
    /// Gives out the free places in the order of the queue.
    pub(super) fn place_tasks(&mut self, now: Timestamp) {
        let is_idle = self.queue.is_empty() && self.maps.is_empty();
        if !self.served || !self.synced || !self.viewed || is_idle {
            return;
        }
        let Some(pool) = self.pool.clone() else { return };
        if !pool.takes_work() {
            return;
        }
        let used = self.used();
        let environments: BTreeSet<&str> = self.machines.values().map(|m| &*m.environment).collect();
        let rooms = self
            .machines
            .values()
            // A machine that is Ready and not connected (this controller has just started, say)
            // counts for ranks and has no room: the head must not depend on which machine connected
            // first.
            .filter(|machine| machine.ready)
            .map(|machine| {
                let used = used.get(&machine.place).copied().unwrap_or_default();
                // The same is true of a machine that changes its environment.
                let takes = self.has_told(machine) && !machine.changing;
                let room = if takes { pool.concurrency } else { 0 };
                Room {
                    place: machine.place,
                    environment: environments
                        .iter()
                        .position(|known| **known == *machine.environment)
                        .unwrap_or_default(),
                    free: room.saturating_sub(used),
                    used,
                }
            });
        let size = Size {
            desired: pool.desired,
            min: pool.min,
            concurrency: pool.concurrency,
        };
        let mut planner = Planner::new(rooms.collect(), size, self.last);
        // A later attempt with something in the store may go on at a machine that has not told its
        // runs yet.
        let mut machines = self.machines.values();
        let all_told = machines.all(|machine| !machine.ready || self.has_told(machine));
        let mut placed = Vec::new();
        let mut hungry = self.hungry().into_iter().peekable();
        let mut grown = Vec::new();
        for key in &self.queue {
            if planner.is_exhausted() {
                break;
            }
            while let Some((_, uid, wanted, resting)) = hungry.next_if(|(map, ..)| map < key) {
                grown.push((uid, planner.some(wanted, &resting)));
            }
            let uid = &key.3;
            let Some(task) = self.tasks.get_mut(uid) else {
                continue;
            };
            let Stage::Waiting(waiting) = &mut task.stage else {
                continue;
            };
            let is_early = |at: Option<Timestamp>| at.is_some_and(|at| at > now);
            if task.write.is_some()
                || task.read != Read::Not
                || is_early(waiting.not_before)
                || is_early(waiting.retry_at)
            {
                continue;
            }
            let Some(placement) = task.entry.placement else {
                waiting.obstacle = Some(Why::new(
                    reason::INVALID_SPEC,
                    "spec.placement is none of one, all, head and a rank; delete the Task and create it anew",
                ));
                continue;
            };
            match read_references(task, &pool, &mut self.resolving, &mut self.effects, now) {
                Readiness::Ready => {}
                // Else Tasks without references would take every place before this one.
                Readiness::Soon => {
                    planner.hold(placement);
                    continue;
                }
                Readiness::Blocked => continue,
            }
            match task.stored {
                Stored::Known(newest) if newest <= task.counts.attempt || all_told => {
                    task.counts.attempt = task.counts.attempt.max(newest);
                }
                Stored::Unasked if self.recalling < RESOLVING => {
                    planner.hold(placement);
                    self.recalling += 1;
                    task.stored = Stored::Asking;
                    let (uid, after) = (uid.clone(), task.counts.attempt);
                    self.effects.push(Effect::RecallTask { uid, after });
                    continue;
                }
                Stored::Known(_) | Stored::Asking | Stored::Unasked => {
                    planner.hold(placement);
                    continue;
                }
            }
            if !keeping::is_ready(task, &mut self.recalling, &mut self.effects) {
                planner.hold(placement);
                continue;
            }
            let Stage::Waiting(waiting) = &mut task.stage else {
                continue;
            };
            match fetching::files(&task.entry, waiting, &self.fetching, now) {
                Files::Known => {}
                // Others have its place meanwhile: a slow host must not hold them up.
                Files::Awaited(why) => {
                    waiting.obstacle = Some(why);
                    continue;
                }
                Files::Wanted(source) => {
                    waiting.obstacle = match planner.first(placement) {
                        Ok(place) => {
                            let order = self.fetching.begin(source, self.machines.get(&place), now);
                            self.effects.extend(order.map(Box::new).map(Effect::Fetch));
                            Some(self.fetching.why(source, waiting))
                        }
                        Err(wait) => why_no_room(wait, &pool),
                    };
                    continue;
                }
            }
            match planner.place(placement) {
                Ok(places) => placed.push((uid.clone(), places)),
                Err(wait) => waiting.obstacle = why_no_room(wait, &pool),
            }
        }
        for (_, uid, wanted, resting) in hungry {
            grown.push((uid, planner.some(wanted, &resting)));
        }
        self.last = planner.last();
        for (uid, places) in grown {
            self.grow(&uid, places, now);
        }
        for (uid, places) in placed {
            self.begin_attempt(&uid, places, now);
        }
    }

    /// Places of each machine that are taken.
    fn used(&self) -> BTreeMap<SlotAttempt, u32> {
        let mut used: BTreeMap<SlotAttempt, u32> = BTreeMap::new();
        let occupies =
            |(id, run): &(&RunId, &Run)| run.is_active() || (run.unstarted && self.is_recorded(id));
        for (_, run) in self.runs.iter().filter(occupies) {
            *used.entry(run.place).or_default() += 1;
        }
        for (place, unclaimed) in self.unknown() {
            if unclaimed.finished.is_none() {
                *used.entry(place).or_default() += 1;
            }
        }
        used
    }

    /// How many places are taken, of how many.
    pub(super) fn places(&self) -> (u32, u32) {
        let each = self.pool.as_ref().map_or(0, |pool| pool.concurrency);
        let used = self.used();
        let machines = self.machines.values().filter(|machine| machine.takes_runs());
        machines.fold((0, 0), |(taken, places), machine| {
            let here = used.get(&machine.place).copied().unwrap_or_default();
            (taken.saturating_add(here.min(each)), places.saturating_add(each))
        })
    }
}

/// Whether a Task could start if there were room for it.
pub(super) enum Readiness {
    Ready,
    /// Once its references are read, which is under way.
    Soon,
    Blocked,
}

/// The source of a Task that is read before it starts: what comes from git is fetched later, by a machine.
fn stored_source(task: &Entry) -> Option<&Source> {
    task.source.as_ref().filter(|source| source.git.is_none())
}

/// The ConfigMap with the items of a Task: once it is known how many items there are, they are stored.
fn unread_items(task: &Entry) -> Option<&ConfigMapKey> {
    let is_unread = task.status.items.is_none();
    task.items_key.as_deref().filter(|_| is_unread)
}

/// Whether the Task needs Secrets, ConfigMaps or a bundle.
pub(super) fn names_references(task: &TaskState, pool: &PoolView) -> bool {
    let entry = &task.entry;
    !pool.env_from.is_empty()
        || !entry.env_from.is_empty()
        || stored_source(entry).is_some()
        || unread_items(entry).is_some()
}

/// Whether the Secrets and ConfigMaps that the Task needs are read; if not, has them read. A ConfigMap with items is looked
/// for, too: a machine would wait for it, and cost money, as long as nobody creates it.
pub(super) fn read_references(
    task: &mut TaskState,
    pool: &PoolView,
    resolving: &mut usize,
    effects: &mut Vec<Effect>,
    now: Timestamp,
) -> Readiness {
    let Stage::Waiting(waiting) = &mut task.stage else {
        return Readiness::Blocked;
    };
    let (source, items) = (stored_source(&task.entry), unread_items(&task.entry));
    if pool.env_from.is_empty() && task.entry.env_from.is_empty() && source.is_none() && items.is_none() {
        return Readiness::Ready;
    }
    let (read, holds) = match waiting.references {
        References::Read(_, at) if now.duration_since(at).unsigned_abs() <= FRESH => {
            return Readiness::Ready;
        }
        References::Read(..) | References::Unread => (true, true),
        // Another look may find nothing again, and must not hold up other Tasks.
        References::Missing(until) => (until <= now, false),
        References::Reading { holds } => (false, holds),
    };
    if read && *resolving < RESOLVING {
        *resolving += 1;
        waiting.references = References::Reading { holds };
        let refs = pool
            .env_from
            .iter()
            .chain(&task.entry.env_from)
            .cloned()
            .collect();
        effects.push(Effect::Resolve {
            uid: task.entry.uid.clone(),
            refs,
            source: source.cloned(),
            items: items.cloned().map(Box::new),
        });
    }
    if holds {
        Readiness::Soon
    } else {
        Readiness::Blocked
    }
}

/// Why a Task gets no places, other than that they are taken.
fn why_no_room(wait: Wait, pool: &PoolView) -> Option<Why> {
    let name = &pool.name;
    match wait {
        Wait::NoPlace => None,
        Wait::FewMachines { ready, wanted } => Some(Why::new(
            reason::WAITING_FOR_MACHINE,
            format!("needs {wanted} machines of Pool \"{name}\" that take Tasks; {ready} do"),
        )),
        Wait::Environments { newest, ready } => Some(Why::new(
            reason::WAITING_FOR_MACHINE,
            format!(
                "needs the same environment on all machines of Pool \"{name}\", whose image changed: at most {newest} \
                 of {ready} have the same; the others change when they are idle, or `kubectl describe pool {name}` says \
                 why they do not"
            ),
        )),
        Wait::FewPlaces { processes } if pool.threads.is_some() => Some(Why::new(
            reason::TOO_MANY_PROCESSES,
            format!(
                "needs {processes} places on each machine, one for each of its processes; a machine of Pool \"{name}\", whose \
                 worker.executor is Thread, has 1: set it to Process, which takes effect at once, or create the Task without \
                 processesPerMachine"
            ),
        )),
        Wait::FewPlaces { processes } => Some(Why::new(
            reason::TOO_MANY_PROCESSES,
            format!(
                "needs {processes} places on each machine, one for each of its processes; a machine of Pool \"{name}\" has \
                 {}: set worker.concurrency of the Pool to {processes}, which takes effect at once, or create the Task \
                 with a smaller processesPerMachine",
                pool.concurrency
            ),
        )),
        Wait::ManyRanks { ready, processes } => Some(Why::new(
            reason::TOO_MANY_PROCESSES,
            format!(
                "would have {} ranks on the {ready} machines of Pool \"{name}\" that take Tasks, and a Task has at most \
                 {MAX_RANKS}: create it with a smaller processesPerMachine, or for a smaller Pool",
                ready.saturating_mul(processes)
            ),
        )),
        Wait::OutOfRange => Some(Why::new(
            reason::RANK_OUT_OF_RANGE,
            format!(
                "Pool \"{name}\" wants {} machines, so its highest rank is {}; raise nodes.desired or create the \
                 Task with another placement",
                pool.desired,
                pool.desired.saturating_sub(1)
            ),
        )),
    }
}
