//! The dispatcher of one Pool: a state machine without I/O.
//!
//! It is told what happened ([`Event`]), answers with what is to be done ([`Effect`]),
//! and never waits. All that it holds can be found again from Task objects and agents:
//! dropped at any moment and built anew, it goes on where it was. What makes that true:
//!
//! - The placement of an attempt is on record (Task status) before any of its runs is
//!   started. Whoever finds it there starts those runs again: agents know them by id.
//! - A run is lost only when its Machine object is gone from a fresh list. Until then its
//!   Task waits, connected or not.
//! - Log and result are in the store before the end of the Task is on record, and that is
//!   on record before the agent may forget.
//! - Every write carries the version that it was decided on. A write whose answer is lost
//!   is neither done nor failed: the object is read again, and what it says counts.
//! - An attempt ends as one: a new one is placed only when each run of the old one has
//!   ended or its machine is gone.
//!
//! `state.rs` is what it holds. `tasks.rs` has what Tasks bring, `queue.rs` who is next,
//! `waits.rs` and `writes.rs` what users are told, `attempts.rs` how attempts begin and
//! end, `runs.rs` what agents bring, `collecting.rs` and `lost.rs` what is left of runs.

mod attempts;
mod collecting;
mod lost;
mod queue;
mod runs;
mod state;
mod tasks;
#[cfg(test)]
mod tests;
mod waits;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use skyward_api::TaskPhase;

pub(crate) use self::state::is_complete;
use self::state::{QueueKey, Run, RunStage, Stage, TaskState, Unclaimed};
use crate::{
    board::{Key, PoolLoad},
    task::{
        live::LiveRun,
        message::{Effect, Event},
        model::{MachineView, Place, PoolView, RunId, Uid},
    },
};

/// A wait of this length is worth a write.
const WORTH_TELLING: Duration = Duration::from_secs(5);
/// Pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause before a status is written again that the API server refused for now.
const WRITE_AGAIN: Duration = Duration::from_secs(30);
/// Longest pause before it is tried again to fetch what is left of a run.
const FETCH_AGAIN: Duration = Duration::from_secs(5);
/// Longest pause before the result store is tried again.
const STORE_AGAIN: Duration = Duration::from_secs(30);
/// A Pool is another one than that of an earlier leader's attempt when it is younger by
/// this much: clocks of two machines differ.
const SKEW: Duration = Duration::from_mins(1);
/// Pause before a Secret or ConfigMap that was missing is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// How long what was read from Secrets and ConfigMaps counts.
const FRESH: Duration = Duration::from_secs(5);
/// How long a run that no Task claims is left alone.
const UNCLAIMED: Duration = Duration::from_secs(10);
/// Pause between two copies of a running log.
const COPY_LOG: Duration = Duration::from_secs(2);
/// Secrets and ConfigMaps read for this many Tasks at once.
const RESOLVING: usize = 64;
/// Waits told in one tick while Tasks start, and while none does.
const TOLD_BUSY: usize = 20;
const TOLD_QUIET: usize = 200;

/// The dispatcher of one Pool.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    key: Key,
    pool: Option<Arc<PoolView>>,
    machines: BTreeMap<Place, MachineView>,
    /// Pool and machines were seen at least once.
    viewed: bool,
    /// All Tasks were seen at least once.
    synced: bool,
    /// A newer leader is at work: nothing is done any more.
    halted: bool,
    tasks: BTreeMap<Uid, TaskState>,
    queue: BTreeSet<QueueKey>,
    runs: BTreeMap<RunId, Run>,
    /// Runs that an agent told of and no Task claims yet.
    unclaimed: BTreeMap<RunId, Unclaimed>,
    /// Tasks that are gone, whose stored data goes once their runs are gone.
    deleted: BTreeSet<Uid>,
    /// Tasks that we let go before the watch did: what it still shows of them is old.
    departed: BTreeSet<Uid>,
    following: BTreeMap<Place, u64>,
    /// Connections over which the agent has told all that it had. Before that its machine has
    /// no room: it may run what nobody here knows, such as runs of deleted Tasks.
    replayed: BTreeMap<Place, u64>,
    listing: bool,
    last: Option<Place>,
    writes: u64,
    resolving: usize,
    started_since_tick: usize,
    /// Something changed that may let a Task start.
    dirty: bool,
    effects: Vec<Effect>,
}

impl Dispatcher {
    /// A dispatcher that knows nothing yet.
    pub(crate) fn new(key: Key) -> Self {
        Self {
            key,
            pool: None,
            machines: BTreeMap::new(),
            viewed: false,
            synced: false,
            halted: false,
            tasks: BTreeMap::new(),
            queue: BTreeSet::new(),
            runs: BTreeMap::new(),
            unclaimed: BTreeMap::new(),
            deleted: BTreeSet::new(),
            departed: BTreeSet::new(),
            following: BTreeMap::new(),
            replayed: BTreeMap::new(),
            listing: false,
            last: None,
            writes: 0,
            resolving: 0,
            started_since_tick: 0,
            dirty: false,
            effects: Vec::new(),
        }
    }

    /// Takes an event in. What is to be done comes out of [`Dispatcher::settle`].
    pub(crate) fn on(&mut self, event: Event, now: Timestamp) {
        if self.halted {
            return;
        }
        match event {
            Event::Task(entry) => self.on_task(*entry, now),
            Event::Left(uid) => self.on_left(&uid),
            Event::Synced => {
                self.synced = true;
                self.dirty = true;
            }
            Event::Views { pool, machines } => self.on_views(pool, machines, now),
            Event::Resolved(uid, result) => self.on_resolved(&uid, result, now),
            Event::Written { uid, write, result } => self.on_written(&uid, write, result, now),
            Event::Reread(uid, result) => self.on_reread(&uid, result, now),
            Event::MachinesListed(result) => self.on_machines_listed(result, now),
            Event::Started {
                run,
                connection,
                result,
            } => self.on_started(&run, connection, result, now),
            Event::Stopped {
                run,
                connection,
                result,
            } => self.on_stopped(&run, connection, result, now),
            Event::Forgotten { runs, result } => self.on_forgotten(&runs, &result, now),
            Event::Fact(place, fact) => self.on_fact(place, *fact, now),
            Event::Replayed { place, connection } => {
                self.replayed.insert(place, connection);
                self.dirty = true;
            }
            Event::FollowEnded { place, connection } => {
                if self.following.get(&place) == Some(&connection) {
                    // Followed again with the next tick.
                    self.following.remove(&place);
                }
            }
            Event::Collected(run, result) => self.on_collected(&run, result, now),
            Event::Recalled(run, result) => self.on_recalled(&run, result, now),
            Event::LogCopied(run) => {
                if let Some(run) = self.runs.get_mut(&run) {
                    run.copying = false;
                    run.copy_at = Some(now + COPY_LOG);
                }
            }
            Event::Tick => self.on_tick(now),
        }
    }

    /// Lets Tasks start for which there is room, and answers all that is to be done.
    pub(crate) fn settle(&mut self, now: Timestamp) -> Vec<Effect> {
        if self.halted {
            return std::mem::take(&mut self.effects);
        }
        if self.dirty {
            self.dirty = false;
            self.place_tasks(now);
        }
        self.forget_runs(now);
        std::mem::take(&mut self.effects)
    }

    /// What the Pool and its Machines may know; `None` = nothing yet.
    pub(crate) fn load(&self) -> Option<PoolLoad> {
        if !self.synced || !self.viewed {
            return None;
        }
        let mut load = PoolLoad {
            closed: self
                .machines
                .values()
                .filter(|machine| machine.deleting)
                .map(|machine| machine.name.to_string())
                .collect(),
            ..PoolLoad::default()
        };
        for run in self.runs.values() {
            load.unstored += u32::from(run.trouble.is_some() && matches!(run.stage, RunStage::Finished(_)));
            let counts = run.is_active() || (!run.discard && !matches!(run.stage, RunStage::Lost));
            if counts {
                let name = self
                    .machines
                    .get(&run.place)
                    .map_or(&run.machine, |machine| &machine.name);
                match load.runs.get_mut(&**name) {
                    Some(runs) => *runs += 1,
                    None => drop(load.runs.insert(name.to_string(), 1)),
                }
            }
        }
        for (run, unclaimed) in &self.unclaimed {
            if !self.runs.contains_key(run)
                && let Some(machine) = self.machines.get(&unclaimed.place)
            {
                *load.runs.entry(machine.name.to_string()).or_default() += 1;
            }
        }
        (load.queued, load.running) = self.counts();
        Some(load)
    }

    /// How many Tasks wait and how many run. This is asked after each event, so it must not
    /// take longer for each Task that waits.
    fn counts(&self) -> (u32, u32) {
        let mut running = 0;
        let mut last = None;
        // Whatever is being placed or runs has at least one run, and those are sorted by Task.
        for uid in self.runs.keys().map(|id| &id.uid) {
            if last.replace(uid) != Some(uid) {
                let stage = self.tasks.get(uid).map(|task| &task.stage);
                running += u32::from(matches!(stage, Some(Stage::Placing(_) | Stage::Running(_))));
            }
        }
        (self.queue.len() as u32, running)
    }

    /// Whether it wants to be told that time passes.
    pub(crate) fn wants_ticks(&self) -> bool {
        !self.tasks.is_empty() || !self.runs.is_empty() || !self.unclaimed.is_empty() || self.lost_follower()
    }

    /// Whether nothing would be lost with it.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.runs.is_empty() && self.unclaimed.is_empty()
    }

    fn lost_follower(&self) -> bool {
        self.machines.values().any(|machine| {
            machine.connection.is_some() && self.following.get(&machine.place).copied() != machine.connection
        })
    }

    fn on_views(&mut self, pool: Option<Arc<PoolView>>, machines: Vec<MachineView>, now: Timestamp) {
        self.viewed = true;
        self.dirty = true;
        self.pool = pool;
        self.machines = machines
            .into_iter()
            .map(|machine| (machine.place, machine))
            .collect();
        let Self {
            following,
            replayed,
            machines,
            ..
        } = self;
        following.retain(|place, _| machines.contains_key(place));
        replayed.retain(|place, _| machines.contains_key(place));
        for run in self.runs.values_mut() {
            if let Some(machine) = self.machines.get(&run.place) {
                run.machine = machine.name.clone();
            }
        }
        self.follow();
        for uid in self.uids() {
            self.steer(&uid, now);
        }
        self.drive_all(now);
        self.look_for_lost();
    }

    fn on_tick(&mut self, now: Timestamp) {
        self.follow();
        self.drive_all(now);
        self.look_for_lost();
        self.drop_unclaimed(now);
        let mut told = 0;
        let limit = if self.started_since_tick > 0 {
            TOLD_BUSY
        } else {
            TOLD_QUIET
        };
        self.started_since_tick = 0;
        for uid in self.uids() {
            self.retry_task(&uid, now);
            if told < limit && (self.tell_wait(&uid, now) || self.tell_trouble(&uid, now)) {
                told += 1;
            }
        }
        for run in self.run_ids(|run| matches!(run.stage, RunStage::Running) && !run.discard) {
            self.copy_log(&run, now);
        }
    }

    fn uids(&self) -> Vec<Uid> {
        self.tasks.keys().cloned().collect()
    }

    fn run_ids(&self, wanted: impl Fn(&Run) -> bool) -> Vec<RunId> {
        self.runs
            .iter()
            .filter(|(_, run)| wanted(run))
            .map(|(id, _)| id.clone())
            .collect()
    }

    fn runs_of(&self, uid: &Uid) -> Vec<RunId> {
        let first = RunId {
            uid: uid.clone(),
            attempt: 0,
            rank: 0,
        };
        self.runs
            .range(first..)
            .map(|(id, _)| id)
            .take_while(|id| id.uid == *uid)
            .cloned()
            .collect()
    }

    /// The runs of one attempt, by rank.
    fn attempt_runs<'a>(
        &'a self,
        uid: &Uid,
        attempt: u32,
    ) -> impl Iterator<Item = (&'a RunId, &'a Run)> + use<'a> {
        let of = |rank| RunId {
            uid: uid.clone(),
            attempt,
            rank,
        };
        self.runs.range(of(0)..=of(u32::MAX))
    }

    /// Whether the status on record names the attempt of this run as running.
    fn is_recorded(&self, id: &RunId) -> bool {
        self.tasks.get(&id.uid).is_some_and(|task| {
            task.entry.phase() == TaskPhase::Running && task.entry.status.attempt == id.attempt
        })
    }

    fn live(&mut self, uid: &Uid) {
        let live = match self.tasks.get(uid).map(|task| &task.stage) {
            Some(Stage::Running(attempt)) => (0..attempt.places.len() as u32)
                .filter_map(|rank| {
                    let id = RunId {
                        uid: uid.clone(),
                        attempt: attempt.number,
                        rank,
                    };
                    let run = self.runs.get(&id)?;
                    Some(LiveRun {
                        run_id: id.to_string(),
                        rank,
                        attempt: attempt.number,
                        machine: skyward_remote::MachineKey::new(self.key.namespace.as_str(), &*run.machine),
                    })
                })
                .collect(),
            Some(Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_)) | None => Vec::new(),
        };
        self.effects.push(Effect::Live(uid.clone(), live));
    }
}
