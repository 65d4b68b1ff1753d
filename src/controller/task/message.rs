//! What a dispatcher is told ([`Event`]) and what it wants done ([`Effect`]).
//!
//! Effects are complete: whoever carries one out makes no choice, and tells the outcome
//! as an event. An outcome may never come (the process ends); every event may therefore
//! be the first one after a restart.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    Task, TaskStatus, condition::reason, offer::OfferedAccelerator, shared::EnvFrom, task::RunResult,
};
use skyward_remote::{
    AgentError,
    protocol::{Fact, Finished, RunState},
};

use crate::{
    events::EventSpec,
    task::{
        live::LiveRun,
        model::{Entry, MachineView, Peer, Place, PoolView, RunId, Uid},
        status::Why,
    },
};

/// Environment read from Secrets and ConfigMaps.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The variables, those of the Task over those of the Pool.
    pub(crate) env: BTreeMap<String, String>,
    /// Values that came from Secrets, to be masked where output is shown.
    pub(crate) secrets: Vec<String>,
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env, secrets } = self;
        f.debug_struct("Resolved")
            .field("env", &env.len())
            .field("secrets", &secrets.len())
            .finish()
    }
}

/// Why a write of a status did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// Somebody changed the object since it was read.
    Conflict,
    /// The object is gone.
    Gone,
    /// The API server will never take this.
    Invalid(String),
    /// It may have happened or not.
    Unknown(String),
}

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartError {
    /// What the agent, or the way to it, says.
    Agent(AgentError),
    /// The Task is gone.
    TaskGone,
    /// What it needs could not be read now.
    NotNow(String),
    /// A Secret or ConfigMap that it needs is not there; for the user.
    References(String),
}

/// Why a run was not collected; it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CollectError {
    /// Its machine does not give it now.
    Machine(String),
    /// The result store has no room.
    Full(String),
    /// The result store does not do its work.
    Store(String),
}

impl CollectError {
    /// For the user.
    pub(crate) fn why(&self) -> Why {
        let (reason, what) = match self {
            Self::Machine(what) => (reason::WAITING_FOR_MACHINE, what),
            Self::Full(what) => (reason::RESULT_STORE_FULL, what),
            Self::Store(what) => (reason::RESULT_STORE_UNAVAILABLE, what),
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
        let (Self::Machine(what) | Self::Full(what) | Self::Store(what)) = self;
        f.write_str(what)
    }
}

/// What is left of a run once its log and result are in the store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Collected {
    /// What the Task's status shows of it (rank, machine and attempt are filled in later).
    pub(crate) result: RunResult,
    /// One of the reasons of the condition Failed, or Succeeded.
    pub(crate) reason: &'static str,
}

/// Something happened. Each dispatcher has queues with room for some, so it is small.
#[derive(Debug)]
pub(crate) enum Event {
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
    },
    /// Answer to [`Effect::Resolve`]; the error is for the user.
    Resolved(Uid, Result<Arc<Resolved>, String>),
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
    /// Answer to [`Effect::ListMachines`].
    MachinesListed(Result<Vec<Place>, String>),
    /// Answer to [`Effect::Start`].
    Started {
        /// Which run.
        run: RunId,
        /// Over which connection.
        connection: u64,
        /// What the agent said.
        result: Result<Box<RunState>, StartError>,
    },
    /// Answer to [`Effect::Stop`].
    Stopped {
        /// Which run.
        run: RunId,
        /// Over which connection.
        connection: u64,
        /// What the agent said.
        result: Result<Box<RunState>, AgentError>,
    },
    /// Answer to [`Effect::Forget`].
    Forgotten {
        /// Which runs.
        runs: Vec<RunId>,
        /// What the agent said.
        result: Result<(), AgentError>,
    },
    /// An agent reports.
    Fact(Place, Box<Fact>),
    /// An agent has told every fact that it had when it was asked.
    Replayed {
        /// Of which machine.
        place: Place,
        /// Over which connection.
        connection: u64,
    },
    /// The stream of an agent's facts ended.
    FollowEnded {
        /// Of which machine.
        place: Place,
        /// Over which connection.
        connection: u64,
    },
    /// Answer to [`Effect::Collect`]; the error is why it must be tried again.
    Collected(RunId, Result<Box<Collected>, CollectError>),
    /// Answer to [`Effect::Recall`]: `None` = the store knows nothing of its end.
    Recalled(RunId, Result<Option<Box<Collected>>, CollectError>),
    /// Answer to [`Effect::CopyLog`].
    LogCopied(RunId),
    /// Time has passed.
    Tick,
}

/// Something to be done.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Read the Secrets and ConfigMaps that a Task and its Pool name.
    Resolve {
        /// For which Task.
        uid: Uid,
        /// Those of the Pool, then those of the Task.
        refs: Vec<EnvFrom>,
    },
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
    /// List the Machines of the Pool, past all caches.
    ListMachines,
    /// Read an agent's facts, from the first on.
    Follow {
        /// Of which machine.
        place: Place,
        /// Its name.
        machine: Arc<str>,
        /// Over which connection.
        connection: u64,
    },
    /// Start a run, or learn what became of it.
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
    /// Bring what is left of a run's log, and its result, into the store.
    Collect(Box<CollectOrder>),
    /// Ask the store what an earlier leader collected of a run.
    Recall(RunId),
    /// Copy what a run has printed so far.
    CopyLog {
        /// Which run.
        run: RunId,
        /// Where.
        machine: Arc<str>,
    },
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
    /// A Task entered a phase (for the metrics).
    Entered(skyward_api::TaskPhase),
    /// A run ended so (for the metrics).
    RunEnded(&'static str),
    /// A newer leader commands the agents: this process must not act any more.
    Abdicate,
}

/// All that starting a run needs.
#[derive(Clone, Debug)]
pub(crate) struct StartOrder {
    pub(crate) run: RunId,
    pub(crate) name: Arc<str>,
    pub(crate) machine: Arc<str>,
    pub(crate) connection: u64,
    pub(crate) pool: Arc<PoolView>,
    /// Slot of its machine.
    pub(crate) slot: u32,
    /// What its machine has.
    pub(crate) accelerator: Option<OfferedAccelerator>,
    /// The machines of all ranks.
    pub(crate) peers: Vec<Peer>,
    /// The object, if it was just written; else it is read.
    pub(crate) task: Option<Arc<Task>>,
    /// What was read from Secrets and ConfigMaps, if that was just done.
    pub(crate) resolved: Option<Arc<Resolved>>,
}

/// All that collecting a run needs.
#[derive(Clone, Debug)]
pub(crate) struct CollectOrder {
    pub(crate) run: RunId,
    pub(crate) machine: Arc<str>,
    pub(crate) finished: Arc<Finished>,
    /// Its machine is gone: what there is now is all there will be.
    pub(crate) gone: bool,
    /// Its end is stored as well: the Task cannot record it yet.
    pub(crate) keep: bool,
    /// What may hold Secrets to be masked.
    pub(crate) refs: Vec<EnvFrom>,
    /// Those Secrets, if they were read for this attempt.
    pub(crate) resolved: Option<Arc<Resolved>>,
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
