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
//! `tasks.rs` has what Tasks and writes bring, `attempts.rs` how attempts begin and end,
//! `runs.rs` what agents bring.

mod attempts;
mod runs;
mod tasks;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use skyward_api::{Task, TaskPhase, TaskStatus, condition::reason, task::Placement};
use skyward_remote::protocol::Finished;

use crate::{
    board::{Key, PoolLoad},
    task::{
        live::LiveRun,
        message::{Collected, Effect, Event, Resolved},
        model::{Entry, MachineView, Place, PoolView, RunId, Uid},
        placement::{Planner, Room, Wait},
        status::{Counts, Why},
    },
};

/// A wait of this length is worth a write.
const WORTH_TELLING: Duration = Duration::from_secs(5);
/// Pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
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

/// Order of the queue: priority, then age, then name.
type QueueKey = (Reverse<i32>, Timestamp, Arc<str>, Uid);

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
    listing: bool,
    last: Option<Place>,
    writes: u64,
    resolving: usize,
    started_since_tick: usize,
    /// Something changed that may let a Task start.
    dirty: bool,
    effects: Vec<Effect>,
}

#[derive(Debug)]
struct TaskState {
    entry: Entry,
    counts: Counts,
    stage: Stage,
    write: Option<u64>,
    read: Read,
    /// Not written again before.
    write_at: Option<Timestamp>,
    /// The watch does not show it any more.
    left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Not,
    InFlight,
    /// What is under way may be answered already: once more after it.
    InFlightAndAgain,
    At(Timestamp),
}

#[derive(Debug)]
enum Stage {
    /// It waits for its machines.
    Waiting(Waiting),
    /// Its placement is being written.
    Placing(Attempt),
    /// Its placement is on record.
    Running(Attempt),
    /// Its end is being written.
    Ending(Box<TaskStatus>),
}

#[derive(Debug)]
struct Waiting {
    /// When the wait is worth a write.
    tell_at: Timestamp,
    /// A machine was lost, or it was stopped: it waits for another attempt.
    again: Option<Why>,
    references: References,
    /// It cannot be placed for now although there is room.
    obstacle: Option<Why>,
    not_before: Option<Timestamp>,
    told: Option<Why>,
}

#[derive(Debug)]
enum References {
    /// To be read when there is room for it.
    Unread,
    Reading,
    Read(Arc<Resolved>, Timestamp),
    Missing(Timestamp),
}

#[derive(Debug)]
struct Attempt {
    number: u32,
    places: Vec<Place>,
    started_at: Timestamp,
    resolved: Option<Arc<Resolved>>,
    /// The object as the placement write answered it, until every run is started.
    task: Option<Arc<Task>>,
    stop: Option<StopWhy>,
}

/// Why an attempt is stopped. The later ones win over the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StopWhy {
    /// A rank was lost: all start again together.
    Interrupted,
    /// The Pool is suspended or wants no machines.
    PoolOff,
    /// The Task is suspended.
    Suspended,
    /// The Pool is deleted.
    PoolDeleted,
}

impl StopWhy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Interrupted => reason::INTERRUPTED,
            Self::PoolOff => reason::POOL_OFF,
            Self::Suspended => reason::SUSPENDED,
            Self::PoolDeleted => reason::POOL_DELETED,
        }
    }
}

#[derive(Debug)]
struct Run {
    place: Place,
    /// Name of its Machine; empty while an adopted run's machine was not seen yet.
    machine: Arc<str>,
    stage: RunStage,
    /// Connection over which a Start is under way.
    start: Option<u64>,
    /// Whether an agent may know of it.
    sent: bool,
    /// Not tried again before: Start, Stop, Collect, Forget, CopyLog.
    not_before: Option<Timestamp>,
    stop: Option<(Duration, &'static str)>,
    /// Connection over which Stop was sent.
    stop_sent: Option<u64>,
    collect: Collect,
    /// No attempt needs it any more: stop, forget.
    discard: bool,
    forgetting: bool,
    /// It was stopped before any agent knew it: while its attempt is on record, another
    /// leader would start it.
    unstarted: bool,
    copying: bool,
    copy_at: Option<Timestamp>,
}

#[derive(Debug)]
enum RunStage {
    /// Its place is kept; nobody was told to start it.
    Reserved,
    /// It is to be started.
    Starting,
    /// Its agent has it.
    Running,
    /// It ended.
    Finished(Arc<Finished>),
    /// Its machine is gone.
    Lost,
}

#[derive(Debug)]
enum Collect {
    Not,
    InFlight,
    Done(Box<Collected>),
}

#[derive(Debug)]
struct Unclaimed {
    place: Place,
    since: Timestamp,
    finished: Option<Arc<Finished>>,
}

impl Run {
    fn new(place: Place, machine: Arc<str>, stage: RunStage) -> Self {
        Self {
            place,
            machine,
            stage,
            start: None,
            sent: false,
            not_before: None,
            stop: None,
            stop_sent: None,
            collect: Collect::Not,
            discard: false,
            forgetting: false,
            unstarted: false,
            copying: false,
            copy_at: None,
        }
    }

    /// Whether it takes a place of its machine.
    const fn is_active(&self) -> bool {
        matches!(
            self.stage,
            RunStage::Reserved | RunStage::Starting | RunStage::Running
        )
    }

    /// Whether it needs nothing more before its attempt can end.
    const fn is_settled(&self) -> bool {
        match self.stage {
            RunStage::Finished(_) => matches!(self.collect, Collect::Done(_)),
            RunStage::Lost => true,
            RunStage::Reserved | RunStage::Starting | RunStage::Running => false,
        }
    }
}

/// Whether the fact itself holds all that is to be collected.
pub(crate) fn is_complete(finished: &Finished) -> bool {
    finished.log.len() as u64 == finished.log_bytes
        && (!finished.has_result || finished.result.len() as u64 == finished.result_bytes)
}

fn queue_key(entry: &Entry) -> QueueKey {
    (
        Reverse(entry.priority),
        entry.created,
        entry.name.clone(),
        entry.uid.clone(),
    )
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
            Event::FollowEnded { place, connection } => {
                if self.following.get(&place) == Some(&connection) {
                    // Followed again with the next tick.
                    self.following.remove(&place);
                }
            }
            Event::Collected(run, result) => self.on_collected(&run, result, now),
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
        let mut load = PoolLoad::default();
        for run in self.runs.values() {
            let counts = run.is_active() || (!run.discard && !matches!(run.stage, RunStage::Lost));
            if counts {
                let name = self
                    .machines
                    .get(&run.place)
                    .map_or(&run.machine, |machine| &machine.name);
                *load.runs.entry(name.to_string()).or_default() += 1;
            }
        }
        for (run, unclaimed) in &self.unclaimed {
            if !self.runs.contains_key(run)
                && let Some(machine) = self.machines.get(&unclaimed.place)
            {
                *load.runs.entry(machine.name.to_string()).or_default() += 1;
            }
        }
        for task in self.tasks.values() {
            match &task.stage {
                Stage::Waiting(_) => load.queued += u32::from(!task.entry.suspend),
                Stage::Placing(_) | Stage::Running(_) => load.running += 1,
                Stage::Ending(_) => {}
            }
        }
        Some(load)
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
            following, machines, ..
        } = self;
        following.retain(|place, _| machines.contains_key(place));
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
            if told < limit && self.tell_wait(&uid, now) {
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

    /// Gives out the free places in the order of the queue.
    fn place_tasks(&mut self, now: Timestamp) {
        if !self.synced || !self.viewed || self.queue.is_empty() {
            return;
        }
        let Some(pool) = self.pool.clone() else { return };
        if pool.off.is_some() || pool.deleted_at.is_some() {
            return;
        }
        let mut used: BTreeMap<Place, u32> = BTreeMap::new();
        let occupies =
            |(id, run): &(&RunId, &Run)| run.is_active() || (run.unstarted && self.is_recorded(id));
        for (_, run) in self.runs.iter().filter(occupies) {
            *used.entry(run.place).or_default() += 1;
        }
        for (run, unclaimed) in &self.unclaimed {
            if unclaimed.finished.is_none() && !self.runs.contains_key(run) {
                *used.entry(unclaimed.place).or_default() += 1;
            }
        }
        let rooms = self
            .machines
            .values()
            // One that is Ready and not connected (this controller has just started, say) counts
            // for ranks and has no room: who is head must not depend on who connected first.
            .filter(|machine| machine.ready)
            .map(|machine| {
                let used = used.get(&machine.place).copied().unwrap_or_default();
                let room = if machine.takes_runs() { pool.concurrency } else { 0 };
                Room {
                    place: machine.place,
                    free: room.saturating_sub(used),
                    used,
                }
            });
        let mut planner = Planner::new(rooms.collect(), pool.desired, pool.min, self.last);
        let mut placed = Vec::new();
        for key in &self.queue {
            if planner.is_exhausted() {
                break;
            }
            let uid = &key.3;
            let Some(task) = self.tasks.get_mut(uid) else {
                continue;
            };
            let Stage::Waiting(waiting) = &mut task.stage else {
                continue;
            };
            if task.write.is_some() || task.read != Read::Not || waiting.not_before.is_some_and(|at| at > now)
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
            if !read_references(task, &pool, &mut self.resolving, &mut self.effects, now) {
                continue;
            }
            let Stage::Waiting(waiting) = &mut task.stage else {
                continue;
            };
            match planner.place(placement) {
                Ok(places) => placed.push((uid.clone(), places)),
                Err(wait) => waiting.obstacle = Some(why_no_room(wait, placement, &pool)),
            }
        }
        self.last = planner.last();
        for (uid, places) in placed {
            self.begin_attempt(&uid, places, now);
        }
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

/// Whether what the Task needs from Secrets and ConfigMaps is at hand; else sees to it.
fn read_references(
    task: &mut TaskState,
    pool: &PoolView,
    resolving: &mut usize,
    effects: &mut Vec<Effect>,
    now: Timestamp,
) -> bool {
    let Stage::Waiting(waiting) = &mut task.stage else {
        return false;
    };
    if pool.env_from.is_empty() && task.entry.env_from.is_empty() {
        return true;
    }
    let read = match &waiting.references {
        References::Read(_, at) if now.duration_since(*at).unsigned_abs() <= FRESH => return true,
        References::Read(..) | References::Unread => true,
        References::Missing(until) => *until <= now,
        References::Reading => false,
    };
    if read && *resolving < RESOLVING {
        *resolving += 1;
        waiting.references = References::Reading;
        let refs = pool
            .env_from
            .iter()
            .chain(&task.entry.env_from)
            .cloned()
            .collect();
        effects.push(Effect::Resolve {
            uid: task.entry.uid.clone(),
            refs,
        });
    }
    false
}

fn why_no_room(wait: Wait, placement: Placement, pool: &PoolView) -> Why {
    let name = &pool.name;
    match wait {
        Wait::NoPlace => Why::new(
            reason::WAITING_FOR_MACHINE,
            match placement {
                Placement::One => format!("every place of Pool \"{name}\" is taken"),
                Placement::All => format!("waits for a free place on each machine of Pool \"{name}\""),
                Placement::Rank(rank) => format!("waits for a free place on rank {rank} of Pool \"{name}\""),
            },
        ),
        Wait::FewMachines { ready, wanted } => Why::new(
            reason::WAITING_FOR_MACHINE,
            format!("needs {wanted} machines of Pool \"{name}\" that take Tasks; {ready} do"),
        ),
        Wait::OutOfRange => Why::new(
            reason::RANK_OUT_OF_RANGE,
            format!(
                "Pool \"{name}\" wants {} machines, so its highest rank is {}; raise nodes.desired or create the \
                 Task with another placement",
                pool.desired,
                pool.desired.saturating_sub(1)
            ),
        ),
    }
}
