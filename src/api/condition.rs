//! Every condition type with its closed list of reasons.
//!
//! `Ready`, `Reconciling` and `Stalled` follow kstatus, so that `kubectl wait`,
//! Argo CD and Flux understand them: `Stalled=True` means that somebody must act.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// The object does what its spec asks for.
pub const READY: &str = "Ready";
/// The controller works on the object (kstatus: only present while True).
pub const RECONCILING: &str = "Reconciling";
/// The object cannot go on until somebody acts (kstatus: only present while True).
pub const STALLED: &str = "Stalled";

/// Provider: this cluster remembers less than the machines of the account.
pub const RESTORE_DETECTED: &str = "RestoreDetected";

/// Machine: the provider accepted the order.
pub const ACCEPTED: &str = "Accepted";
/// Machine: SSH answers with the expected host key.
pub const REACHABLE: &str = "Reachable";
/// Machine: every bootstrap step is done.
pub const BOOTSTRAPPED: &str = "Bootstrapped";

/// Task: it has its machines.
pub const SCHEDULED: &str = "Scheduled";
/// Task: at least one run was started in this attempt.
pub const RUNNING: &str = "Running";
/// Task: it ended and every run succeeded.
pub const COMPLETE: &str = "Complete";
/// Task: it ended and did not succeed.
pub const FAILED: &str = "Failed";
/// Task: it ended, well or not: what a script waits for.
pub const FINISHED: &str = "Finished";
/// Task: `spec.suspend` holds it.
pub const SUSPENDED: &str = "Suspended";

/// Reasons of conditions; each is documented in `docs/reference/conditions.md`.
pub mod reason {
    /// Provider: a real call succeeded.
    pub const CONNECTED: &str = "Connected";
    /// Provider: a call failed in a way that passes by itself. Machine: its cloud takes no orders now.
    pub const PROVIDER_UNAVAILABLE: &str = "ProviderUnavailable";
    /// Provider: its Secret, or a key of it, is not there.
    pub const CREDENTIALS_MISSING: &str = "CredentialsMissing";
    /// Provider: the cloud refuses the credentials or permissions.
    pub const CREDENTIALS_REFUSED: &str = "CredentialsRefused";
    /// Provider: it demands verified host keys, and its kind has none. Machine: the proof of its host
    /// key is of another key, or comes too late.
    pub const HOST_KEY_NOT_VERIFIED: &str = "HostKeyNotVerified";
    /// Provider: being deleted, waits for its machines.
    pub const MACHINES_REMAIN: &str = "MachinesRemain";

    /// Provider: its machines prove that this cluster was restored from a backup, or is a copy.
    pub const RESTORE_PROVED: &str = "RestoreProved";
    /// Provider: machines have marks that this cluster cannot have made, but others can.
    pub const RESTORE_SUSPECTED: &str = "RestoreSuspected";
    /// Provider: too many machines are of Pools that are gone; a person decides about them.
    pub const TOO_MANY_ORPHANS: &str = "TooManyOrphans";
    /// Provider: after a restore its machines without a record are kept.
    pub const RESTORE_ADOPTED: &str = "Adopted";
    /// Provider: after a restore its machines without a record are ended.
    pub const RESTORE_ENDED: &str = "Ended";
    /// Provider: no machine waits for a decision about a restore any more.
    pub const NO_RESTORE: &str = "NoRestore";

    /// Pool: all wanted machines are ready.
    pub const ALL_MACHINES_READY: &str = "AllMachinesReady";
    /// Pool: `nodes.min` machines are ready, more are on their way.
    pub const PARTIALLY_READY: &str = "PartiallyReady";
    /// Pool: machines are being created.
    pub const PROVISIONING: &str = "Provisioning";
    /// Pool: `nodes.desired` is 0.
    pub const OFF: &str = "Off";
    /// Pool: it was idle for `idleTimeout`, and the next Task wakes it.
    pub const SLEEPING: &str = "Sleeping";
    /// Pool: it has lived for `maxLifetime`.
    pub const LIFETIME_EXCEEDED: &str = "LifetimeExceeded";
    /// Pool or Task: `spec.suspend` is true.
    pub const SUSPENDED: &str = "Suspended";
    /// Pool: being deleted.
    pub const DELETING: &str = "Deleting";
    /// Pool: more machines than wanted, or machines of an older spec.
    pub const REPLACING_MACHINES: &str = "ReplacingMachines";
    /// Pool: its machines take over a changed environment, one after the other.
    /// Machine: it does, and takes no new runs meanwhile.
    pub const CHANGING_ENVIRONMENT: &str = "ChangingEnvironment";
    /// Pool: a step of the changed image failed at the first machine; the machines keep the environment that
    /// they have.
    pub const IMAGE_FAILED: &str = "ImageFailed";
    /// Pool: no Provider of that name exists.
    pub const PROVIDER_NOT_FOUND: &str = "ProviderNotFound";
    /// Pool: the Provider is not ready.
    pub const PROVIDER_NOT_READY: &str = "ProviderNotReady";
    /// Pool: the Provider does not admit this namespace.
    pub const NAMESPACE_NOT_ALLOWED: &str = "NamespaceNotAllowed";
    /// Pool or Task: the operator was installed for other namespaces.
    pub const NAMESPACE_NOT_SERVED: &str = "NamespaceNotServed";
    /// Pool: a limit of the Provider is reached.
    pub const LIMIT_REACHED: &str = "LimitReached";
    /// Pool: no offer fits (the seeds' `NoAvailableProvider`). Task: none fits its `poolTemplate`.
    pub const NO_AVAILABLE_PROVIDER: &str = "NoAvailableProvider";
    /// Pool: `maxProvisionAttempts` in a row failed.
    pub const PROVISIONING_FAILED: &str = "ProvisioningFailed";
    /// Pool: machines beyond `nodes.desired` failed; it goes on with the others, and grows later.
    pub const GROWTH_FAILED: &str = "GrowthFailed";
    /// Pool or Task: a Secret or ConfigMap that it names does not exist.
    pub const REFERENCE_NOT_FOUND: &str = "ReferenceNotFound";
    /// Pool or Task: the Secrets and ConfigMaps that it names are larger than the limit.
    pub const REFERENCE_TOO_LARGE: &str = "ReferenceTooLarge";
    /// The object cannot be understood (written before a stricter rule).
    pub const INVALID_SPEC: &str = "InvalidSpec";

    /// Machine: the order is recorded, no answer of the provider yet.
    pub const ORDERED: &str = "Ordered";
    /// Machine: the provider accepted the order.
    pub const ACCEPTED: &str = "Accepted";
    /// Machine: waits for its address or for SSH.
    pub const BOOTING: &str = "Booting";
    /// Machine: SSH answers.
    pub const SSH_ANSWERS: &str = "SSHAnswers";
    /// Machine: bootstrap is under way; the message names the step.
    pub const BOOTSTRAPPING: &str = "Bootstrapping";
    /// Machine: all steps are done.
    pub const BOOTSTRAPPED: &str = "Bootstrapped";
    /// Machine: the agent answers.
    pub const AGENT_READY: &str = "AgentReady";
    /// Machine: the connection is lost and dialled again.
    pub const CONNECTION_LOST: &str = "ConnectionLost";
    /// Machine: its agent refuses the epoch of the leader, and the leader holds its Lease.
    pub const EPOCH_AHEAD: &str = "EpochAhead";
    /// Machine: no address within `timeouts.provision`.
    pub const PROVISION_TIMEOUT: &str = "ProvisionTimeout";
    /// Machine: no SSH within `timeouts.ssh`.
    pub const SSH_TIMEOUT: &str = "SSHTimeout";
    /// Machine: SSH refuses our key or shows another host key.
    pub const SSH_REFUSED: &str = "SSHRefused";
    /// Machine: not bootstrapped within `timeouts.bootstrap`.
    pub const BOOTSTRAP_TIMEOUT: &str = "BootstrapTimeout";
    /// Machine: a step failed; the message has its last output. Pool: two machines failed so in the
    /// same way.
    pub const BOOTSTRAP_FAILED: &str = "BootstrapFailed";
    /// Machine: it sent something that no agent of ours sends; it is ended.
    pub const PROTOCOL_VIOLATION: &str = "ProtocolViolation";
    /// Machine: the image cannot be pulled.
    pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
    /// Machine: its start failed at the provider.
    pub const MACHINE_FAILED: &str = "MachineFailed";
    /// Machine: it vanished or was evicted.
    pub const MACHINE_LOST: &str = "MachineLost";
    /// The credentials are another account's than the one where machines are.
    pub const ACCOUNT_CHANGED: &str = "AccountChanged";
    /// Everything that fits was refused, as often as `maxProvisionAttempts` allows (the seeds'
    /// `AllProvidersFailed`).
    pub const ALL_PROVIDERS_FAILED: &str = "AllProvidersFailed";
    /// The Pool has spent its budget.
    pub const BUDGET_SPENT: &str = "BudgetSpent";
    /// The cloud took the spot machine back; it is replaced.
    pub const PREEMPTED: &str = "Preempted";
    /// Machine: the order was refused.
    pub const ORDER_REFUSED: &str = "OrderRefused";
    /// Machine: no capacity or no room for it.
    pub const NO_CAPACITY: &str = "NoCapacity";
    /// Machine: a quota of the account is used up.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// Machine: the account cannot pay.
    pub const NO_CREDIT: &str = "NoCredit";
    /// The reasons of a machine that its account cannot get now, and another account perhaps can.
    pub const SHORTAGES: [&str; 3] = [NO_CAPACITY, QUOTA_EXCEEDED, NO_CREDIT];
    /// Machine: it was recorded under terms that hold no longer, and was not ordered.
    pub const ORDER_WITHDRAWN: &str = "OrderWithdrawn";
    /// Machine: its provider names a price above the most that was recorded; it is ended.
    pub const PRICE_TOO_HIGH: &str = "PriceTooHigh";
    /// Pool: the record of one of its machines cannot be read; its slot is kept for it.
    pub const MACHINE_UNREADABLE: &str = "MachineUnreadable";
    /// Machine: not wanted any more, finishes its runs.
    pub const DRAINING: &str = "Draining";

    /// Task: waits for a free place on a machine.
    pub const WAITING_FOR_MACHINE: &str = "WaitingForMachine";
    /// Task: no Pool of that name exists yet.
    pub const POOL_NOT_FOUND: &str = "PoolNotFound";
    /// Task: the Pool of its `poolTemplate` is being made.
    pub const CREATING_POOL: &str = "CreatingPool";
    /// Task: the API server refuses the Pool of its `poolTemplate`.
    pub const POOL_REFUSED: &str = "PoolRefused";
    /// Task: the Pool of its `poolTemplate` has the name of another Pool that is there.
    pub const POOL_NAME_TAKEN: &str = "PoolNameTaken";
    /// Task: the Pool that it names was made for another Task alone.
    pub const POOL_NOT_SHARED: &str = "PoolNotShared";
    /// Task: the Pool cannot get machines; the message repeats why.
    pub const POOL_NOT_READY: &str = "PoolNotReady";
    /// Task: the Pool is off or suspended.
    pub const POOL_OFF: &str = "PoolOff";
    /// Task: the Pool never has a machine of that rank.
    pub const RANK_OUT_OF_RANGE: &str = "RankOutOfRange";
    /// Task: it has more processes on each machine than that has places, or more ranks than a Task may have.
    pub const TOO_MANY_PROCESSES: &str = "TooManyProcesses";
    /// Task: its source cannot be read as files.
    pub const SOURCE_REFUSED: &str = "SourceRefused";
    /// Task: the bundle that it names is not in its namespace.
    pub const BUNDLE_NOT_FOUND: &str = "BundleNotFound";
    /// Task: its source is not the one of its first attempt any more.
    pub const SOURCE_CHANGED: &str = "SourceChanged";
    /// Task: a machine fetches its source from git.
    pub const FETCHING_SOURCE: &str = "FetchingSource";
    /// Task: its source cannot be fetched now; that is tried again.
    pub const SOURCE_UNAVAILABLE: &str = "SourceUnavailable";
    /// Task: its repository has not what its source names, or more than a source may have.
    pub const SOURCE_INVALID: &str = "SourceInvalid";
    /// Task: the agent of its machine is of an earlier version, which lacks what the Task needs.
    pub const AGENT_OUTDATED: &str = "AgentOutdated";
    /// Task: its machines are chosen.
    pub const PLACED: &str = "Placed";
    /// Task: runs were started.
    pub const STARTED: &str = "Started";
    /// Task: every run succeeded.
    pub const SUCCEEDED: &str = "Succeeded";
    /// Task: a process exited with another code than 0.
    pub const NON_ZERO_EXIT: &str = "NonZeroExit";
    /// Task: a process was killed by a signal.
    pub const KILLED_BY_SIGNAL: &str = "KilledBySignal";
    /// Task: `timeout` passed.
    pub const TIMED_OUT: &str = "TimedOut";
    /// Task: it could not start: no such program, directory or user.
    pub const START_FAILED: &str = "StartFailed";
    /// Task: the function raised.
    pub const FUNCTION_RAISED: &str = "FunctionRaised";
    /// Task: syntax error, missing entrypoint, or arguments that do not fit.
    pub const BAD_SOURCE: &str = "BadSource";
    /// Task: the return value is not JSON and cannot be pickled.
    pub const RESULT_NOT_JSON: &str = "ResultNotJSON";
    /// Task: the return value is above the limit.
    pub const RESULT_TOO_LARGE: &str = "ResultTooLarge";
    /// Task: for as long as it may wait the return value found no room in the result store, or
    /// was not given by its machine.
    pub const RESULT_NOT_STORED: &str = "ResultNotStored";
    /// Task: the machine's disk is full.
    pub const DISK_FULL: &str = "DiskFull";
    /// Task: the kernel killed it for want of memory. Machine: its whole container was killed.
    pub const OUT_OF_MEMORY: &str = "OutOfMemory";
    /// Task: its watcher on the machine was killed, so its end is unknown.
    pub const WATCHER_KILLED: &str = "WatcherKilled";
    /// Task: its machine was lost more often than `retries.onInterruption` allows.
    pub const INTERRUPTED: &str = "Interrupted";
    /// Task: it ran longer than `activeDeadline`.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// Task: it waited longer than `queueTimeout` for a start.
    pub const QUEUE_TIMEOUT: &str = "QueueTimeout";
    /// Task: its machine was lost, or a run failed, and it waits for another attempt.
    pub const RETRYING: &str = "Retrying";
    /// Task: a run ended, and the result store has no room for its log and result.
    pub const RESULT_STORE_FULL: &str = "ResultStoreFull";
    /// Task: a run ended, and its namespace holds as much of the result store as it may.
    pub const STORE_QUOTA_EXCEEDED: &str = "StoreQuotaExceeded";
    /// Task: a run ended, and the result store does not take its log and result.
    pub const RESULT_STORE_UNAVAILABLE: &str = "ResultStoreUnavailable";
    /// Task: a run ended, and its machine, which is connected, does not give its log or result.
    pub const OUTPUT_NOT_READ: &str = "OutputNotRead";
    /// Task: it waits for Tasks that it depends on.
    pub const WAITING_FOR_TASK: &str = "WaitingForTask";
    /// Task: it and Tasks that it depends on wait for each other.
    pub const DEPENDENCY_CYCLE: &str = "DependencyCycle";
    /// Task: a Task that it depends on failed, or was deleted before it ended.
    pub const DEPENDENCY_FAILED: &str = "DependencyFailed";
    /// CronTask: the next Task is made at the time that the message names.
    pub const NEXT_SCHEDULED: &str = "NextScheduled";
    /// CronTask: a Task is due, and an earlier one has not ended.
    pub const EARLIER_TASK_RUNS: &str = "EarlierTaskRuns";
    /// CronTask: a Task is due, and as many have not ended as may be.
    pub const TOO_MANY_UNFINISHED: &str = "TooManyUnfinished";
    /// CronTask: its schedule or time zone cannot be read, or names a time that never comes.
    pub const INVALID_SCHEDULE: &str = "InvalidSchedule";
    /// CronTask: this cluster may have been restored, so that a Task that is due may have run.
    pub const RESTORE_PENDING: &str = "RestorePending";
    /// CronTask: the API server does not take the Task that is due.
    pub const TASK_REFUSED: &str = "TaskRefused";
    /// Task: its Pool was deleted.
    pub const POOL_DELETED: &str = "PoolDeleted";
    /// `Failed` (Task): items of `forEach` failed.
    pub const ITEMS_FAILED: &str = "ItemsFailed";
    /// `Failed` (Task): more items of `forEach` failed than `maxFailedItems` allows.
    pub const TOO_MANY_FAILED_ITEMS: &str = "TooManyFailedItems";
    /// `Failed` (Task): there are more items, or larger ones, than a Task may have.
    pub const TOO_MANY_ITEMS: &str = "TooManyItems";
    /// `Failed` (Task): what `forEach` names are no items.
    pub const INVALID_ITEMS: &str = "InvalidItems";
    /// `Running` (Task): the items of `forEach` cannot be read yet.
    pub const ITEMS_NOT_READ: &str = "ItemsNotRead";
    /// `Running` (Task): a machine cannot begin items of `forEach`, and gets none for now.
    pub const MACHINE_UNFIT: &str = "MachineUnfit";
    /// Task: stopped on request.
    pub const STOPPED: &str = "Stopped";
}

/// One condition as a plan computes it; [`apply`] gives it its times. Named for what Kubernetes hands
/// to `meta.SetStatusCondition`, the `newCondition`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCondition {
    /// One of the constants above.
    pub type_: &'static str,
    /// True, False or (None) Unknown.
    pub status: Option<bool>,
    /// One of [`reason`].
    pub reason: &'static str,
    /// What happened, to what, what to do.
    pub message: String,
}

impl NewCondition {
    /// A condition that is true or false.
    pub fn new(type_: &'static str, status: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_,
            status: Some(status),
            reason,
            message: message.into(),
        }
    }
}

/// New conditions with their times: a transition time is kept where the status did not
/// change, messages are cut to what the CRD admits, the order stays.
pub fn apply(
    old: &[Condition],
    new: &[NewCondition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    new.iter()
        .map(|condition| {
            let status = match condition.status {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            let since = old
                .iter()
                .find(|c| c.type_ == condition.type_ && c.status == status)
                .map_or(Time(now), |c| c.last_transition_time.clone());
            Condition {
                type_: condition.type_.to_owned(),
                status: status.to_owned(),
                reason: condition.reason.to_owned(),
                message: cut(&condition.message, MAX_MESSAGE),
                observed_generation: generation,
                last_transition_time: since,
            }
        })
        .collect()
}

/// Puts one condition into a list, in the place of the condition of its type.
pub fn set(conditions: &mut Vec<Condition>, new: NewCondition, generation: Option<i64>, now: Timestamp) {
    for new in apply(conditions, &[new], generation, now) {
        match conditions.iter_mut().find(|c| c.type_ == new.type_) {
            Some(old) => *old = new,
            None => conditions.push(new),
        }
    }
}

/// The condition of that type, if present.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of that type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == "True")
}

/// Longest message of a condition, in bytes.
pub const MAX_MESSAGE: usize = 2048;

/// The text, shortened to at most `max` bytes at a character boundary.
pub fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_stays_while_the_status_does() {
        let first = Timestamp::from_second(1_000).unwrap();
        let later = Timestamp::from_second(2_000).unwrap();
        let a = apply(
            &[],
            &[NewCondition::new(READY, false, reason::PROVISIONING, "1 of 2")],
            Some(1),
            first,
        );
        let b = apply(
            &a,
            &[NewCondition::new(READY, false, reason::PARTIALLY_READY, "1 of 2")],
            Some(2),
            later,
        );
        assert_eq!(b[0].last_transition_time, Time(first));
        let c = apply(
            &b,
            &[NewCondition::new(
                READY,
                true,
                reason::ALL_MACHINES_READY,
                "2 of 2",
            )],
            Some(2),
            later,
        );
        assert_eq!(c[0].last_transition_time, Time(later));
    }

    #[test]
    fn every_reason_is_documented() {
        let code = include_str!("condition.rs");
        let document = include_str!("../../docs/reference/conditions.md");
        let (_, reasons) = code.split_once("pub mod reason {").unwrap();
        let (reasons, _) = reasons.split_once("\n}").unwrap();
        let names: Vec<_> = reasons
            .lines()
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(names.len() > 50, "{names:?}");
        for name in &names {
            assert!(
                document.contains(&format!("| `{name}` |")),
                "{name} is missing in docs/reference/conditions.md"
            );
        }
        for line in document
            .lines()
            .filter(|line| line.starts_with("| ") && line.contains("| `"))
        {
            let name = line.split('`').nth(1).unwrap();
            assert!(
                names.contains(&name),
                "docs/reference/conditions.md knows {name}, the code does not"
            );
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let text = "é".repeat(2000);
        let short = cut(&text, MAX_MESSAGE);
        assert!(short.len() <= MAX_MESSAGE && short.ends_with('…'));
    }
}
