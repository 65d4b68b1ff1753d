//! Kubernetes Events as plans decide them: what happened, to what, what to do.
//!
//! `docs/events.md` lists every reason. The controller merges and publishes them.

use k8s_openapi::api::core::v1::ObjectReference;

/// Reasons of our Events; `docs/events.md` says when each is published.
pub mod reason {
    /// Pool: the controller took it up.
    pub const POOL_REQUESTED: &str = "PoolRequested";
    /// Pool: every wanted machine has an address.
    pub const POOL_PROVISIONED: &str = "PoolProvisioned";
    /// Pool: it takes Tasks.
    pub const POOL_READY: &str = "PoolReady";
    /// Pool: it cannot go on until somebody acts.
    pub const POOL_STALLED: &str = "PoolStalled";
    /// Pool: work waits that is worth more machines.
    pub const POOL_GROWS: &str = "PoolGrows";
    /// Pool: machines beyond `nodes.desired` failed, and it grows later.
    pub const GROWTH_FAILED: &str = "GrowthFailed";
    /// Pool: machines have been unneeded for a while.
    pub const POOL_SHRINKS: &str = "PoolShrinks";
    /// Pool: it is idle, and will sleep.
    pub const POOL_SLEEPS_SOON: &str = "PoolSleepsSoon";
    /// Pool: it has nothing to do, and returns its machines.
    pub const POOL_SLEEPS: &str = "PoolSleeps";
    /// Pool: work came while it slept.
    pub const POOL_WAKES: &str = "PoolWakes";
    /// Pool: a changed image goes from machine to machine.
    pub const ENVIRONMENT_CHANGING: &str = "EnvironmentChanging";
    /// Pool: every machine has the environment of the image. Machine: its runs find another environment.
    pub const ENVIRONMENT_CHANGED: &str = "EnvironmentChanged";
    /// Machine: a step of the changed image failed; the note has the line that tells the most.
    pub const ENVIRONMENT_FAILED: &str = "EnvironmentFailed";
    /// Pool: its last machine and its key are gone.
    pub const POOL_DESTROYED: &str = "PoolDestroyed";
    /// Pool: no machine of it is left and none is wanted; what it cost in all.
    pub const COST_FINAL: &str = "CostFinal";
    /// Pool: a Machine was recorded and is ordered.
    pub const MACHINE_ORDERED: &str = "MachineOrdered";
    /// Pool: a Machine takes the place of a failed or lost one.
    pub const MACHINE_REPLACED: &str = "MachineReplaced";
    /// Pool: a Machine is given up; the note says why.
    pub const MACHINE_REMOVED: &str = "MachineRemoved";
    /// Machine: the provider gave it an address.
    pub const MACHINE_PROVISIONED: &str = "MachineProvisioned";
    /// Machine: a bootstrap step began.
    pub const BOOTSTRAP_PROGRESS: &str = "BootstrapProgress";
    /// Machine: it takes runs.
    pub const MACHINE_READY: &str = "MachineReady";
    /// Machine: it vanished or was evicted.
    pub const MACHINE_LOST: &str = "MachineLost";
    /// Machine: the cloud takes it back, or has.
    pub const PREEMPTED: &str = "Preempted";
    /// Machine: it could not be brought up.
    pub const MACHINE_FAILED: &str = "MachineFailed";
    /// Machine: each function starts a fresh interpreter there; the note says why.
    pub const NOT_FORKED: &str = "NotForked";
    /// Machine: a step of its bootstrap failed; the note has the line that tells the most.
    pub const BOOTSTRAP_FAILED: &str = "BootstrapFailed";
    /// Machine: its terms hold no longer, so it is not ordered.
    pub const ORDER_WITHDRAWN: &str = "OrderWithdrawn";
    /// Machine: it is dearer than the most that was recorded, so it is ended.
    pub const PRICE_TOO_HIGH: &str = "PriceTooHigh";
    /// Machine: the provider's machine with its id carries another mark, and was left alone.
    pub const FOREIGN_MACHINE: &str = "ForeignMachine";
    /// Machine: the provider says that it is gone.
    pub const MACHINE_DESTROYED: &str = "MachineDestroyed";
    /// Provider: its account answers, and machines are ordered there.
    pub const PROVIDER_READY: &str = "ProviderReady";
    /// Provider: nothing is ordered there; the note says why, and what would help.
    pub const PROVIDER_NOT_READY: &str = "ProviderNotReady";
    /// Provider: a machine with our mark belonged to nothing and was deleted.
    pub const ORPHAN_DELETED: &str = "OrphanDeleted";
    /// Provider: it was deleted, and its account may still have something of ours; the note says
    /// what.
    pub const LEFT_BEHIND: &str = "LeftBehind";
    /// Provider, Pool, Machine: a panic ended the operator's work on it; the note says what now.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// Pod of the controller: it cannot lead; the note says why.
    pub const CANNOT_LEAD: &str = "CannotLead";
    /// Provider: this cluster was restored, or is a copy; the note says which machines wait.
    pub const RESTORE_DETECTED: &str = "RestoreDetected";
    /// Provider: a decision about machines without a record was taken, by a person or by time.
    pub const RESTORE_DECIDED: &str = "RestoreDecided";
    /// Lease: an agent refuses our epoch and the Lease is not ours, so this process ends.
    pub const SUPERSEDED: &str = "Superseded";
    /// CronTask: it made a Task.
    pub const TASK_MADE: &str = "TaskMade";
    /// CronTask: a time of its schedule was left out.
    pub const SCHEDULE_MISSED: &str = "ScheduleMissed";
    /// Task: a machine resolved the `ref` of its git source; the note has the commit.
    pub const SOURCE_RESOLVED: &str = "SourceResolved";
    /// Task: its runs were started.
    pub const TASK_STARTED: &str = "TaskStarted";
    /// Task: every run succeeded.
    pub const TASK_COMPLETED: &str = "TaskCompleted";
    /// Task: it failed.
    pub const TASK_FAILED: &str = "TaskFailed";
    /// Task: a run of it ended, or should start, and something holds it up; the note says what.
    pub const RUN_HELD_UP: &str = "RunHeldUp";
    /// Task: the API server does not take its status; the note says what it answers.
    pub const STATUS_REFUSED: &str = "StatusRefused";
    /// Task: its machine was lost, or a run failed, and it starts again.
    pub const TASK_RETRIED: &str = "TaskRetried";
}

/// Whether an Event is news or trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// News.
    Normal,
    /// Trouble.
    Warning,
}

/// An Event as a plan decides it.
#[derive(Clone, Debug, PartialEq)]
pub struct EventSpec {
    /// One of [`reason`].
    pub reason: &'static str,
    /// What happened, to what, what to do.
    pub note: String,
    /// News or trouble.
    pub kind: EventKind,
    /// What the controller did, in one word: `Create`, `Replace`.
    pub action: &'static str,
    /// Another object it is about.
    pub related: Option<ObjectReference>,
    /// The Pool whose Event takes its place when there are more than one per second.
    pub merge_into: Option<ObjectReference>,
}

impl EventSpec {
    /// News.
    pub fn normal(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            reason,
            note: note.into(),
            kind: EventKind::Normal,
            action,
            related: None,
            merge_into: None,
        }
    }

    /// Trouble.
    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Warning,
            ..Self::normal(reason, action, note)
        }
    }

    /// Names another object it is about.
    #[must_use]
    pub fn about(mut self, related: ObjectReference) -> Self {
        self.related = Some(related);
        self
    }

    /// Lets it be merged with others of its Pool when there are more than one per second.
    #[must_use]
    pub fn merged_into(mut self, pool: ObjectReference) -> Self {
        self.merge_into = Some(pool);
        self
    }
}
