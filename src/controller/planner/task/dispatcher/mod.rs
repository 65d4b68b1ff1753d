//! The dispatcher of one Pool: a state machine without I/O.
//!
//! It takes events ([`Event`]), answers with effects ([`Effect`]), and never waits. Its whole state
//! can be rebuilt from Task objects and agents: dropped at any moment and built anew, the
//! dispatcher goes on where it was. These rules make that true:
//!
//! - The placement of an attempt is on record (Task status) before any of its runs is
//!   started. A leader that finds it there starts those runs again: agents know them by id.
//! - A run is lost only when its Machine object is gone from a fresh list. Until then its
//!   Task waits, connected or not.
//! - Log and result are in the store before the end of the Task is on record, and that is
//!   on record before the agent may forget.
//! - Every write carries the version that it was decided on. A write whose answer is lost is
//!   neither done nor failed: the object is read again and decides.
//! - An attempt ends as one: a new one is placed only when each run of the old one has
//!   ended or its machine is gone.
//!
//! `state.rs` is the state. `tasks.rs` handles changes of Tasks, `queue.rs` the order in which they
//! start, `waits.rs`, `standing.rs` and `writes.rs` statuses, `attempts.rs` how attempts begin and
//! end, `runs.rs` the answers of agents, `collecting.rs`, `holding.rs` and `lost.rs` ended and lost
//! runs, `deadlines.rs` the times that Tasks set themselves, `demand.rs` the work that waits for machines,
//! `depending.rs` Tasks that wait for others, `own_pool.rs` the Pool that is made for one Task, `fetching.rs` files
//! that come from git, `progress.rs` how far Tasks are, `recall.rs` outcomes that only the result store has,
//! `keeping.rs` ranks that do not run again, `maps.rs` Tasks with `forEach`.

mod attempts;
mod collecting;
mod deadlines;
mod demand;
mod depending;
mod durations;
mod fetching;
mod holding;
mod keeping;
mod known;
mod lost;
mod maps;
mod own_pool;
mod progress;
mod queue;
mod recall;
mod runs;
mod standing;
mod state;
mod steps;
mod tasks;
#[cfg(test)]
mod tests;
mod waits;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use skyward_api::TaskPhase;
use skyward_core::Usd;

pub use self::state::is_complete;
use self::state::{QueueKey, Run, RunStage, Stage, TaskState, Unclaimed};
use self::{depending::Depending, durations::Durations, fetching::Fetching, steps::OwnPool};
use crate::{
    base::key::Key,
    events::EventSpec,
    pool::load::PoolLoad,
    task::{
        cost,
        message::{ClusterMemory, Effect, Event, LiveRun},
        model::{MachineView, PoolView, RunId, SlotAttempt, Uid},
    },
};

/// A wait of this length is worth a write, unless it is about to end.
const WORTH_TELLING: Duration = Duration::from_millis(500);
/// A trouble that holds up a run for this long is worth a write.
const TROUBLE: Duration = Duration::from_secs(5);
/// Least time between two writes of how many Tasks come before a waiting one.
const RECOUNT: Duration = Duration::from_secs(30);
/// Pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause before a status is written again that the API server refused for now.
const WRITE_AGAIN: Duration = Duration::from_secs(30);
/// Pause before a status is written again that the API server will never take as it was; it
/// doubles, up to the longest one.
const REFUSED_AGAIN: Duration = Duration::from_secs(30);
const REFUSED_LONGEST: Duration = Duration::from_mins(10);
/// Failed writes in a row before an Event says so, and between two such Events.
const LASTING: u32 = 5;
const SAID_EACH: u32 = 20;
/// Longest pause before the log and result of a run are fetched again.
const FETCH_AGAIN: Duration = Duration::from_secs(5);
/// Longest pause before the result store is tried again.
const STORE_AGAIN: Duration = Duration::from_secs(30);
/// A Pool that is younger by this much than an attempt whose Pool is not on record is another Pool: clocks
/// of two machines differ.
const SKEW: Duration = Duration::from_mins(1);
/// Pause before a Secret or ConfigMap that was missing is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// How long values read from Secrets and ConfigMaps stay valid.
const FRESH: Duration = Duration::from_secs(5);
/// How long a run that no Task claims is left alone.
const UNCLAIMED: Duration = Duration::from_secs(10);
/// Most discarded runs of one machine that it has not forgotten yet.
const MOST_DISCARDED: usize = 1024;
/// How long further unclaimed runs of a machine wait to be discarded.
const NEVER_CLAIMED: Duration = Duration::from_mins(5);
/// Pause between two copies of a running log.
const COPY_LOG: Duration = Duration::from_secs(2);
/// How long the log and result of a run wait for room in the result store, by default.
const HOLD: Duration = Duration::from_hours(1);
/// How long a connected machine may fail to give a log or result before that is reported.
const UNREAD: Duration = Duration::from_mins(3);
/// Most time that one failed try counts for, with the pause before it.
const ONE_TRY: Duration = Duration::from_secs(30);
/// Pause between two Events about a hold.
const TELL_HOLD: Duration = Duration::from_mins(10);
/// Secrets and ConfigMaps read for this many Tasks at once.
const RESOLVING: usize = 64;

/// The dispatcher of one Pool.
#[derive(Debug, Default)]
pub struct Dispatcher {
    key: Key,
    /// Whether the operator was installed for this namespace, too.
    served: bool,
    pool: Option<Arc<PoolView>>,
    /// Some Pools of its namespace, for the message of a Pool that does not exist.
    others: Vec<String>,
    machines: BTreeMap<SlotAttempt, MachineView>,
    /// Pool and machines were seen at least once.
    viewed: bool,
    /// All Tasks were seen at least once.
    synced: bool,
    /// Whether this cluster's memory may be older than its machines.
    memory: ClusterMemory,
    tasks: BTreeMap<Uid, TaskState>,
    queue: BTreeSet<QueueKey>,
    runs: BTreeMap<RunId, Run>,
    /// Runs that an agent told of and no Task claims yet, each with the machine that told: what one machine
    /// tells says nothing about what another one has.
    unclaimed: BTreeMap<(RunId, SlotAttempt), Unclaimed>,
    /// Tasks that are gone, whose stored data goes once their runs are gone.
    deleted: BTreeSet<Uid>,
    /// Tasks that we dropped before the watch did: what it still shows of them is old.
    departed: BTreeSet<Uid>,
    following: BTreeMap<SlotAttempt, u64>,
    /// Connections over which the agent has told all that it had. Before that its machine counts as
    /// full: it may have runs that are not known here, such as those of deleted Tasks.
    replayed: BTreeMap<SlotAttempt, u64>,
    listing: bool,
    last: Option<SlotAttempt>,
    writes: u64,
    resolving: usize,
    /// The Pool that is made for one Task, on its way and on its way out.
    own_pool: OwnPool,
    /// Fetches from git, for Tasks that are not placed yet.
    fetching: Fetching,
    /// Tasks of the namespace that Tasks of this Pool wait for.
    depending: Depending,
    /// How long work lasts, and how much of it waits.
    durations: Durations,
    /// Tasks with `forEach` that run.
    maps: BTreeSet<Uid>,
    /// Tasks about which the store is being asked.
    recalling: usize,
    /// Tasks that ended since the tick before, and in the second before that.
    ended: [usize; 2],
    /// Waits written since the tick before.
    told: usize,
    /// Tasks that came since and may have to wait.
    newcomers: VecDeque<Uid>,
    /// Tasks that are further than their statuses say, the one that waits longest first.
    progressed: VecDeque<Uid>,
    /// How long the log and result of a run wait for room in the result store.
    hold_for: Duration,
    /// Whether something changed that may let a Task start.
    dirty: bool,
    effects: Vec<Effect>,
}

impl Dispatcher {
    /// A dispatcher that knows nothing yet.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            served: true,
            memory: ClusterMemory::Whole,
            hold_for: HOLD,
            ..Self::default()
        }
    }

    /// Whether its namespace is one that the operator was installed for. If not, runs go on and no
    /// new ones start.
    #[must_use]
    pub fn serving(self, served: bool) -> Self {
        Self { served, ..self }
    }

    /// Sets how long log and result wait for room in the result store.
    #[must_use]
    pub fn holding_for(mut self, hold_for: Duration) -> Self {
        self.hold_for = hold_for;
        self
    }

    /// Takes an event in. [`Dispatcher::settle`] answers with the effects.
    pub fn on(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Task(entry) => self.on_task(*entry, now),
            Event::Left(uid) => self.on_left(&uid),
            Event::Memory(memory) => {
                self.memory = memory;
                self.dirty = true;
            }
            Event::Synced => {
                self.synced = true;
                self.dirty = true;
                // From now on the load is told.
                self.count_waiting(now);
            }
            Event::Views {
                pool,
                machines,
                others,
            } => {
                self.others = others;
                self.on_views(pool, machines, now);
            }
            Event::Resolved(uid, result) => self.on_resolved(&uid, result, now),
            Event::Fetched { number, result } => self.on_fetched(number, result, now),
            Event::Written { uid, write, result } => self.on_written(&uid, write, result, now),
            Event::Reread(uid, result) => {
                if let Some(result) = self.on_owner_read(&uid, result, now) {
                    self.on_reread(&uid, result, now);
                }
            }
            Event::PoolMade(result) => self.on_pool_made(result, now),
            Event::PoolDeleted(result) => self.on_pool_deleted(&result, now),
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
            Event::Progress(place, run, progress) => self.on_progress(place, &run, progress),
            Event::TellProgress => self.tell_progress(now),
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
            Event::Held(run, since) => self.on_held(&run, since),
            Event::Recalled(run, result) => self.on_recalled(&run, result, now),
            Event::TaskRecalled(uid, result) => self.on_task_recalled(&uid, result, now),
            Event::RanksKept { uid, attempt, result } => self.on_ranks_kept(&uid, attempt, result, now),
            Event::Dependency(name, result) => self.on_dependency(&name, result, now),
            Event::DependencyChanged(name) => self.on_dependency_changed(&name),
            Event::Circle(uid, names) => self.on_circle(&uid, names),
            Event::MapTold(uid, attempt, told) => self.on_map_told(&uid, attempt, *told, now),
            Event::LogCopied(run) => {
                if let Some(run) = self.runs.get_mut(&run) {
                    run.copying = false;
                    run.copy_at = Some(now + COPY_LOG);
                }
            }
            Event::Newcomers => self.tell_newcomers(now),
            Event::Tick => self.on_tick(now),
        }
    }

    /// Places Tasks that have room, and answers with all effects.
    pub fn settle(&mut self, now: Timestamp) -> Vec<Effect> {
        if self.is_held() {
            return std::mem::take(&mut self.effects);
        }
        self.place_if_dirty(now);
        self.forget_runs(now);
        std::mem::take(&mut self.effects)
    }

    /// Lets Tasks start, if something changed that may let them.
    fn place_if_dirty(&mut self, now: Timestamp) {
        if !self.is_held() && std::mem::take(&mut self.dirty) {
            self.take_up_forgotten(now);
            self.place_tasks(now);
            self.look_without_machine(now);
            self.tend_own_pool(now);
        }
    }

    /// Whether nothing may be started, stopped, forgotten or given up.
    fn is_held(&self) -> bool {
        self.memory == ClusterMemory::Held
    }

    /// The load, for the Pool and its Machines; `None` = not known yet.
    pub fn load(&self) -> Option<PoolLoad> {
        if !self.synced || !self.viewed {
            return None;
        }
        let mut load = PoolLoad {
            closed: self
                .machines
                .values()
                .filter(|machine| machine.deleting || (machine.ready && machine.changing))
                .map(|machine| machine.name.to_string())
                .collect(),
            ..PoolLoad::default()
        };
        for (id, run) in &self.runs {
            load.unstored += u32::from(run.trouble.is_some() && matches!(run.stage, RunStage::Finished(_)));
            let is_there = !run.discard && !run.kept && !matches!(run.stage, RunStage::Lost);
            // Of such a worker nothing is left on its machine, however long its map goes on.
            let is_done_with = run.is_settled() && !run.holds_items && self.maps.contains(&id.uid);
            let counts = run.is_active() || (is_there && !is_done_with);
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
        for (place, _) in self.unknown() {
            if let Some(machine) = self.machines.get(&place) {
                *load.runs.entry(machine.name.to_string()).or_default() += 1;
            }
        }
        let running_since;
        (load.queued, load.running, running_since, load.widest) = self.counts();
        load.places_each = self.pool.as_ref().map_or(0, |pool| pool.concurrency);
        load.oldest = self.oldest();
        load.queued_items = self.queued_items();
        load.demand = self.demand(running_since);
        Some(load)
    }

    /// How many Tasks wait and how many run, when the ones that take one place began, in the median, and how many
    /// machines the widest one has. Called after each event, so its time must not grow with the Tasks that wait.
    fn counts(&self) -> (u32, u32, Option<Timestamp>, u32) {
        let (mut running, mut widest) = (0, 0);
        let mut began = Vec::new();
        let mut last = None;
        // Each Task that is being placed or runs has at least one run, and runs are sorted by Task.
        for uid in self.runs.keys().map(|id| &id.uid) {
            if last.replace(uid) != Some(uid) {
                let task = self.tasks.get(uid);
                let stage = task.map(|task| &task.stage);
                running += u32::from(matches!(stage, Some(Stage::Placing(_) | Stage::Running(_))));
                if let Some(Stage::Running(attempt)) = stage
                    // How long a worker of a map lives does not say how long its items take, and it may move.
                    && task.is_some_and(|task| task.entry.map.is_none())
                {
                    // Processes that share a machine stand side by side.
                    widest = widest.max(attempt.places.chunk_by(|a, b| a == b).count());
                    if attempt.places.len() == 1 {
                        began.push(attempt.started_at);
                    }
                }
            }
        }
        let middle = began.len() / 2;
        let since = (!began.is_empty()).then(|| *began.select_nth_unstable(middle).1);
        let widest = widest.min(self.machines.len());
        (self.queue.len() as u32, running, since, widest as u32)
    }

    /// Whether it needs [`Event::Tick`].
    pub fn wants_ticks(&self) -> bool {
        !self.tasks.is_empty()
            || !self.runs.is_empty()
            || !self.unclaimed.is_empty()
            || self.lost_follower()
            || self.outlives_its_task()
    }

    /// Whether it needs [`Event::Newcomers`] in a moment.
    pub fn has_newcomers(&self) -> bool {
        !self.newcomers.is_empty()
    }

    /// Whether the dispatcher holds nothing and can be dropped.
    pub fn is_empty(&self) -> bool {
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
        self.sort_by_pool();
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
        let places = self.pool.as_ref().map(|pool| pool.concurrency);
        for run in self.runs.values_mut().filter(|run| !run.kept) {
            if let Some(machine) = self.machines.get(&run.place) {
                run.machine = machine.name.clone();
                // That of its placement stays.
                let price = places.map(|places| cost::of_place(machine.hourly_price, places));
                run.price = run.price.or(price);
                run.out_of_memory.clone_from(&machine.out_of_memory);
            }
        }
        self.follow();
        for uid in self.uids() {
            self.steer(&uid, now);
        }
        self.drive_all(now);
        self.look_for_lost(now);
    }

    fn on_tick(&mut self, now: Timestamp) {
        self.follow();
        self.drive_all(now);
        self.look_for_lost(now);
        self.drop_unclaimed(now);
        self.cancel_unwanted();
        self.look_for_dependencies(now);
        self.count_waiting(now);
        for uid in self.uids() {
            self.retry_task(&uid, now);
        }
        self.tell_items(now);
        self.told = 0;
        self.tell_waits(None, now);
        for uid in self.uids() {
            if !self.has_told_enough() && self.tell_trouble(&uid, now) {
                self.told += 1;
            }
        }
        self.tend_own_pool(now);
        self.ended = [0, self.ended[0]];
        for run in self.run_ids(|run| matches!(run.stage, RunStage::Running) && !run.discard) {
            self.copy_log(&run, now);
        }
        for run in self.run_ids(|run| run.hold.is_some() && !run.discard) {
            self.tell_hold(&run, now);
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
        let all = RunId::new(uid, 0, 0)..=RunId::new(uid, u32::MAX, u32::MAX);
        self.runs.range(all).map(|(id, _)| id.clone()).collect()
    }

    /// The runs of one attempt, by rank.
    fn attempt_runs<'a>(
        &'a self,
        uid: &Uid,
        attempt: u32,
    ) -> impl Iterator<Item = (&'a RunId, &'a Run)> + use<'a> {
        let all = RunId::new(uid, attempt, 0)..=RunId::new(uid, attempt, u32::MAX);
        self.runs.range(all)
    }

    /// Name of the Machine at a place; empty while it was not seen yet.
    fn machine_name(&self, place: SlotAttempt) -> Arc<str> {
        let machine = self.machines.get(&place);
        machine.map_or_else(|| Arc::from(""), |machine| machine.name.clone())
    }

    /// What a place of a machine costs in an hour; `None` while the machine was not seen.
    fn price_of(&self, place: SlotAttempt) -> Option<Usd> {
        let (machine, pool) = (self.machines.get(&place)?, self.pool.as_ref()?);
        Some(cost::of_place(machine.hourly_price, pool.concurrency))
    }

    /// Whether the agent of a machine has told all its runs over the connection that there is now.
    fn has_told(&self, machine: &MachineView) -> bool {
        machine.connection.is_some() && self.replayed.get(&machine.place) == machine.connection.as_ref()
    }

    /// Publishes an Event about a Task that is known.
    fn publish(&mut self, uid: &Uid, event: EventSpec) {
        if let Some(task) = self.tasks.get(uid) {
            self.effects.push(Effect::Publish {
                uid: uid.clone(),
                name: task.entry.name.clone(),
                event: Box::new(event),
            });
        }
    }

    /// Publishes an Event that every Task of the Pool may have at the same time.
    fn publish_merged(&mut self, uid: &Uid, event: EventSpec) {
        let event = match &self.pool {
            Some(pool) => event.merged_into(pool.reference.clone()),
            None => event,
        };
        self.publish(uid, event);
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
                    let id = RunId::new(uid, attempt.number, rank);
                    // No machine has that of a rank that does not run again.
                    let run = self.runs.get(&id).filter(|run| !run.kept)?;
                    Some(LiveRun {
                        run_id: id.to_string(),
                        rank,
                        attempt: attempt.number,
                        machine: Key::new(self.key.namespace.as_str(), &*run.machine),
                        progress: self.tasks.get(uid).and_then(|task| task.progress.of(rank)),
                    })
                })
                .collect(),
            Some(Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_)) | None => Vec::new(),
        };
        self.effects.push(Effect::Live(uid.clone(), live));
    }
}
