//! The input of a dispatcher ([`Event`]) and its output ([`Effect`]).
//!
//! Effects are complete: the code that carries one out makes no choice, and tells the outcome
//! as an event. An outcome may never come (the process ends); every event may therefore
//! be the first one after a restart.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    Pool, Task, TaskStatus,
    condition::reason,
    for_each::ConfigMapKey,
    offer::OfferedAccelerator,
    shared::EnvFrom,
    task::{ItemsStatus, RunResult, Source, SourceStatus},
};
use skyward_core::session::{AgentError, MachineKey};

pub use crate::base::memory::ClusterMemory;
use crate::{
    events::EventSpec,
    map::{
        leader::Life,
        plan::{self, Verdict},
    },
    task::{
        dependencies::Found,
        model::{Entry, MachineView, Peer, PoolView, RunId, SlotAttempt, Uid},
        references::{Resolved, Unresolved},
        retries::Failure,
        run::{Fact, Finished, Progress, RunState, Told},
        status::Why,
    },
};

/// A run that its agent has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRun {
    /// Its id, as the agent and the store know it.
    pub run_id: String,
    /// Its rank.
    pub rank: u32,
    /// Its attempt.
    pub attempt: u32,
    /// Its machine.
    pub machine: MachineKey,
    /// How far it is, if its program has said so.
    pub progress: Option<Progress>,
}

/// Why a write of a status did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The object was changed since it was read.
    Conflict,
    /// The object is gone.
    Gone,
    /// The API server will never take this status.
    Invalid(String),
    /// The write may have happened or not.
    Unknown(String),
}

/// Why the Pool of a Task was not made; it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// The API server refuses it.
    Refused(String),
    /// It may have been made or not.
    Unknown(String),
}

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// What the agent, or the way to it, says.
    Agent(AgentError),
    /// The Task is gone.
    TaskGone,
    /// An object that the run needs could not be read now.
    NotNow(String),
    /// A Secret or ConfigMap that the run needs is missing, too large or not what it was, or its machine
    /// cannot take its files yet; for the user.
    References(Unresolved),
}

/// What a fetch from git found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedSource {
    /// The commit and its files.
    pub source: SourceStatus,
    /// Why the result store did not keep the files, where that passes. Machines then fetch them for themselves; only
    /// items that are read from a file of them cannot be had so.
    pub not_kept: Option<String>,
}

/// Why a run was not collected; it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectError {
    /// Its machine does not give log or result now.
    Machine(String),
    /// The result store has no room.
    Full(String),
    /// Its namespace holds as much of the result store as it may.
    Quota(String),
    /// It is larger than the store's limit.
    TooLarge(String),
    /// The result store fails.
    Store(String),
}

impl CollectError {
    /// For the user.
    pub fn why(&self) -> Why {
        let (reason, what) = match self {
            Self::Machine(what) => (reason::OUTPUT_NOT_READ, what),
            Self::Full(what) => (reason::RESULT_STORE_FULL, what),
            Self::Quota(what) => (reason::STORE_QUOTA_EXCEEDED, what),
            Self::Store(what) | Self::TooLarge(what) => (reason::RESULT_STORE_UNAVAILABLE, what),
        };
        Why::new(
            reason,
            format!(
                "a run has ended, and what it left cannot be stored yet: {what}. Nothing is lost, and it is tried again by itself"
            ),
        )
    }
}

impl fmt::Display for CollectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Machine(what)
        | Self::Full(what)
        | Self::Quota(what)
        | Self::TooLarge(what)
        | Self::Store(what)) = self;
        f.write_str(what)
    }
}

/// The summary of a run once its log and result are in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// What the Task's status shows of it (rank, machine and attempt are filled in later).
    pub result: RunResult,
    /// One of the reasons of the condition Failed, or Succeeded.
    pub reason: &'static str,
}

impl Collected {
    /// How the run failed, unless it succeeded, was stopped or was interrupted.
    pub fn failure(&self) -> Option<Failure<'_>> {
        let is_none = [reason::SUCCEEDED, reason::STOPPED, reason::INTERRUPTED].contains(&self.reason);
        (!is_none).then_some(Failure {
            reason: self.reason,
            exit_code: self.result.exit_code,
            exception: &self.result.exception,
        })
    }
}

/// Something happened. Dispatchers queue events, so the type is small.
#[derive(Debug)]
pub enum Event {
    /// A Task was added or changed, as the watch shows it.
    Task(Box<Entry>),
    /// A Task left the watch: it ended, or is gone.
    Left(Uid),
    /// The watch has shown every Task that there is.
    Synced,
    /// The Pool, its machines or connections may have changed.
    Views {
        /// The Pool, if it exists.
        pool: Option<Arc<PoolView>>,
        /// Its machines, deleting ones too.
        machines: Vec<MachineView>,
        /// Some Pools of its namespace, where it does not exist.
        others: Vec<String>,
    },
    /// What is known of this cluster's own memory.
    Memory(ClusterMemory),
    /// Answer to [`Effect::Resolve`]; the error is for the user.
    Resolved(Uid, Result<Arc<Resolved>, Unresolved>),
    /// Answer to [`Effect::Fetch`].
    Fetched {
        /// Which fetch.
        number: u64,
        /// The commit and its files; the error says why there are none.
        result: Result<FetchedSource, StartError>,
    },
    /// Answer to [`Effect::Write`].
    Written {
        /// Of which Task.
        uid: Uid,
        /// Number of the write.
        write: u64,
        /// The object as written.
        result: Result<Arc<Task>, WriteError>,
    },
    /// Answer to [`Effect::Reread`]: `None` is gone, an error is not known.
    Reread(Uid, Result<Option<Arc<Task>>, String>),
    /// Answer to [`Effect::MakePool`]: a Pool of that name is there, or an error.
    PoolMade(Result<(), PoolError>),
    /// Answer to [`Effect::DeletePool`]: that Pool is gone or goes, or it is not known.
    PoolDeleted(Result<(), String>),
    /// Answer to [`Effect::ListMachines`].
    MachinesListed(Result<Vec<SlotAttempt>, String>),
    /// Answer to [`Effect::Start`].
    Started {
        /// Which run.
        run: RunId,
        /// Over which connection.
        connection: u64,
        /// What the agent said.
        result: Result<Box<Told<RunState>>, StartError>,
    },
    /// Answer to [`Effect::Stop`].
    Stopped {
        /// Which run.
        run: RunId,
        /// Over which connection.
        connection: u64,
        /// What the agent said.
        result: Result<Box<Told<RunState>>, AgentError>,
    },
    /// Answer to [`Effect::Forget`].
    Forgotten {
        /// Which runs.
        runs: Vec<RunId>,
        /// What the agent said.
        result: Result<(), AgentError>,
    },
    /// An agent reports.
    Fact(SlotAttempt, Box<Told<Fact>>),
    /// An agent reports how far a run is.
    Progress(SlotAttempt, RunId, Progress),
    /// Once [`Dispatcher::has_progress`](super::dispatcher::Dispatcher::has_progress): how far one Task is may be written.
    TellProgress,
    /// An agent has told every fact that it had when it was asked.
    Replayed {
        /// Of which machine.
        place: SlotAttempt,
        /// Over which connection.
        connection: u64,
    },
    /// The stream of an agent's facts ended.
    FollowEnded {
        /// Of which machine.
        place: SlotAttempt,
        /// Over which connection.
        connection: u64,
    },
    /// Answer to [`Effect::Collect`]; the error is why it must be tried again.
    Collected(RunId, Result<Box<Collected>, CollectError>),
    /// The log and result of a run have waited for room in the store since then; told before the
    /// answer to [`Effect::Collect`] that says why.
    Held(RunId, Timestamp),
    /// Answer to [`Effect::Recall`]: `None` = the store knows nothing of its end.
    Recalled(RunId, Result<Option<Box<Collected>>, CollectError>),
    /// Answer to [`Effect::RecallTask`].
    TaskRecalled(Uid, Result<Remembered, CollectError>),
    /// Answer to [`Effect::KeepRanks`]: the outcomes of the ranks of which an earlier attempt has one.
    RanksKept {
        /// Of which Task.
        uid: Uid,
        /// Under the number of which attempt they are stored now.
        attempt: u32,
        /// By rank.
        result: Result<Vec<(u32, Box<Collected>)>, CollectError>,
    },
    /// Answer to [`Effect::ReadDependency`]: `None`: there is no Task of that name.
    Dependency(Arc<str>, Result<Option<Found>, String>),
    /// The Task of that name, which Tasks wait for, came, ended or was deleted.
    DependencyChanged(Arc<str>),
    /// The names of the Tasks that wait for each other, this Task among them; none: it is in no circle any more.
    Circle(Uid, Arc<[Arc<str>]>),
    /// How a map stands, of the attempt with that number.
    MapTold(Uid, u32, Box<MapTold>),
    /// Answer to [`Effect::CopyLog`].
    LogCopied(RunId),
    /// A moment has passed since a Task came.
    Newcomers,
    /// Time has passed.
    Tick,
}

/// What the store has of attempts that a Task's status does not know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    /// The newest attempt of which something is stored; 0 = none.
    pub newest: u32,
    /// The outcome of the newest attempt that was not interrupted or stopped, with its number.
    pub outcome: Option<(u32, Box<Collected>)>,
}

/// An effect to carry out.
#[derive(Debug)]
pub enum Effect {
    /// Read the Secrets and ConfigMaps that a Task and its Pool name.
    Resolve {
        /// For which Task.
        uid: Uid,
        /// The references of the Pool, then the references of the Task.
        refs: Vec<EnvFrom>,
        /// Where its files come from.
        source: Option<Source>,
        /// The key of a ConfigMap that has its items, while these are not known to be stored.
        items: Option<Box<ConfigMapKey>>,
    },
    /// Have a machine fetch the files of Tasks from git.
    Fetch(Box<FetchOrder>),
    /// Nobody needs this fetch any more; its answer does not matter.
    CancelFetch(FetchKey),
    /// Write a Task's status, if nobody changed the object meanwhile.
    Write {
        /// Of which Task.
        uid: Uid,
        /// Its name.
        name: Arc<str>,
        /// Number of the write.
        write: u64,
        /// The version that it was decided on.
        version: String,
        /// The whole status.
        status: Box<TaskStatus>,
    },
    /// Read a Task.
    Reread {
        /// Which.
        uid: Uid,
        /// Its name.
        name: Arc<str>,
    },
    /// Read the Task of that name, which others depend on.
    ReadDependency(Arc<str>),
    /// Make the Pool that a Task asks for, unless one of its name is there.
    MakePool(Box<Pool>),
    /// Delete the Pool that has this UID.
    DeletePool(String),
    /// List the Machines of the Pool, past all caches.
    ListMachines,
    /// Read an agent's facts, from the first on.
    Follow {
        /// Of which machine.
        place: SlotAttempt,
        /// Its name.
        machine: Arc<str>,
        /// Over which connection.
        connection: u64,
    },
    /// Start a run, or learn its state.
    Start(Box<StartOrder>),
    /// Stop a run.
    Stop {
        /// Which.
        run: RunId,
        /// Where.
        machine: Arc<str>,
        /// Over which connection.
        connection: u64,
        /// Between SIGTERM and SIGKILL.
        grace: Duration,
        /// For the record.
        why: &'static str,
    },
    /// Bring the rest of a run's log, and its result, into the store.
    Collect(Box<CollectOrder>),
    /// Ask the store what an earlier leader collected of a run.
    Recall(RunId),
    /// Ask the store what it has of attempts of a Task that its status does not know.
    RecallTask {
        /// Which Task.
        uid: Uid,
        /// The last attempt that its status knows.
        after: u32,
    },
    /// Have the outcomes of these ranks, which have succeeded and do not run again, stored under that attempt, too.
    KeepRanks {
        /// Of which Task.
        uid: Uid,
        /// Which, sorted.
        ranks: Vec<u32>,
        /// The next attempt.
        attempt: u32,
    },
    /// Copy what a run has printed so far.
    CopyLog {
        /// Which run.
        run: RunId,
        /// Where.
        machine: Arc<str>,
        /// Bytes of it that are stored while it runs.
        limit: u64,
    },
    /// Run the items of a Task, until [`Effect::EndMap`]: read them, take up their log, and talk to its workers.
    BeginMap(Box<MapOrder>),
    /// Tell a map that runs what has changed.
    TellMap(Uid, Box<MapNews>),
    /// A map needs nothing more.
    EndMap(Uid),
    /// Let the agent delete these runs.
    Forget {
        /// Where.
        machine: Arc<str>,
        /// Which.
        runs: Vec<RunId>,
    },
    /// Delete all that the store has of a Task.
    DeleteStored(Uid),
    /// Delete a Task at that time, or soon if it has passed.
    Expire {
        /// Which.
        uid: Uid,
        /// Its name.
        name: Arc<str>,
        /// When.
        at: Timestamp,
    },
    /// Publish an Event about a Task.
    Publish {
        /// Which.
        uid: Uid,
        /// Its name.
        name: Arc<str>,
        /// The Event.
        event: Box<EventSpec>,
    },
    /// Where a Task runs now; nowhere when empty.
    Live(Uid, Vec<LiveRun>),
    /// A run that is told of as [`LiveRun`] has come that far.
    Progress(RunId, Progress),
    /// A Task entered a phase (for the metrics).
    Entered(skyward_api::TaskPhase),
    /// A Task failed, for that reason of its condition `Failed` (for the metrics).
    Failed(String),
    /// Another attempt of a Task follows, for that cause (for the metrics).
    Retried(Cause),
    /// A run ended so; whether it was a function that was forked from a warm parent (for the metrics).
    RunEnded(&'static str, Option<bool>),
    /// Log this: a lasting failure that no status can tell.
    Warn(String),
    /// The agent of this machine refuses our epoch: check whether we still lead.
    DoubtLeadership(Arc<str>),
}

/// Why another attempt of a Task follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A machine was lost.
    Interruption,
    /// A run failed by itself.
    Failure,
    /// A run failed by itself in a way that a rule of `retries` ignores.
    IgnoredFailure,
}

impl Cause {
    /// As in the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interruption => "Interruption",
            Self::Failure => "Failure",
            Self::IgnoredFailure => "IgnoredFailure",
        }
    }
}

/// A fetch under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FetchKey {
    /// Of this number in its dispatcher, before a Task is placed.
    Number(u64),
    /// For this run, whose machine has not the files that are on record.
    Run(RunId),
}

/// All that a fetch from git needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOrder {
    /// Number of the fetch.
    pub number: u64,
    /// Name of the machine that fetches.
    pub machine: Arc<str>,
    /// Over which connection.
    pub connection: u64,
    /// What to fetch: a git repository, and which files of it.
    pub source: Source,
}

/// All that starting a run needs.
#[derive(Clone, Debug)]
pub struct StartOrder {
    /// Which run.
    pub run: RunId,
    /// Name of its Task.
    pub name: Arc<str>,
    /// Name of its machine.
    pub machine: Arc<str>,
    /// Over which connection.
    pub connection: u64,
    /// Its Pool.
    pub pool: Arc<PoolView>,
    /// Slot of its machine.
    pub slot: u32,
    /// What its machine has.
    pub accelerator: Option<OfferedAccelerator>,
    /// The machines of all ranks: each once, in order of its ranks.
    pub peers: Vec<Peer>,
    /// Ranks on each of them.
    pub processes: u32,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The object, if it was just written; else it is read.
    pub task: Option<Arc<Task>>,
    /// What was read from Secrets and ConfigMaps, if that was just done.
    pub resolved: Option<Arc<Resolved>>,
    /// Digest of its files, as the Task's status has it.
    pub source: Option<String>,
    /// The commit that they come from, or empty.
    pub commit: String,
    /// Of a worker of a map: how many items that has.
    pub items: Option<u32>,
}

/// All that running the items of a Task needs.
#[derive(Clone, Debug)]
pub struct MapOrder {
    /// Which Task.
    pub uid: Uid,
    /// Its name.
    pub name: Arc<str>,
    /// Which attempt its workers belong to.
    pub attempt: u32,
    /// Its Pool.
    pub pool: Arc<PoolView>,
    /// References that may name Secrets, whose values are masked.
    pub refs: Vec<EnvFrom>,
    /// Digest of its files, as the Task's status has it.
    pub source: Option<String>,
    /// Tasks that it depends on, with the UIDs that were found.
    pub dependencies: Vec<(String, String)>,
}

/// What a map is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapNews {
    /// What is asked of the items.
    pub spec: plan::Spec,
    /// The workers of the attempt that may have been started.
    pub workers: Vec<MapWorker>,
    /// Whether no machine has a worker of another attempt any more: what such a worker was granted is interrupted.
    pub others_are_gone: bool,
}

/// A worker, as the dispatcher knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapWorker {
    /// Its rank.
    pub rank: u32,
    /// Name of its machine.
    pub machine: Arc<str>,
    /// Over which connection.
    pub connection: Option<u64>,
    /// Whether it goes on.
    pub life: Life,
}

/// How a map stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapTold {
    /// How many items there are; `None`: they are being read.
    pub total: Option<u32>,
    /// Workers that would have something to do, including the workers that exist.
    pub useful: u32,
    /// How long one worker would take for all items without an outcome, as far as is known.
    pub work: Duration,
    /// What became of the items.
    pub items: ItemsStatus,
    /// Failed items that do not count for `maxFailedItems`: they had failed when a user had others run again.
    pub old_failures: u32,
    /// Attempts of items that have ended, including interrupted ones, without those that their machine could not
    /// begin.
    pub ends: u64,
    /// Ranks of workers whose machine cannot begin items, and how the last attempt ended there.
    pub unfit: BTreeMap<u32, Why>,
    /// Ranks of workers that have nothing and get nothing more.
    pub close: Vec<u32>,
    /// Ranks of workers of which everything is stored.
    pub done_with: Vec<u32>,
    /// How it ended; all outcomes are stored.
    pub verdict: Option<Verdict>,
    /// Why it will never run.
    pub fault: Option<Why>,
    /// What keeps it from going on now.
    pub trouble: Option<Why>,
}

/// All that collecting a run needs.
#[derive(Clone, Debug)]
pub struct CollectOrder {
    /// Which run.
    pub run: RunId,
    /// Name of its machine.
    pub machine: Arc<str>,
    /// How it ended.
    pub finished: Arc<Finished>,
    /// Its machine is gone: no more of its log and result will come.
    pub gone: bool,
    /// Its end is stored as well: the Task cannot record it yet.
    pub keep: bool,
    /// It has waited for room long enough: parts that do not fit are given up.
    pub give_up: bool,
    /// Its machine, which is connected, has not given it for long enough: parts that cannot be
    /// read now are given up.
    pub unreadable: bool,
    /// References that may name Secrets, whose values are masked.
    pub refs: Vec<EnvFrom>,
    /// Their environment, if it was read for this attempt.
    pub resolved: Option<Arc<Resolved>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_pools_without_work_cost_little() {
        // A queue takes memory for 32 events as soon as it exists, and each Pool has two.
        let queues = 2 * 32 * size_of::<Event>();
        assert!(queues <= 8 * 1024, "{queues} bytes for each Pool");
    }
}
