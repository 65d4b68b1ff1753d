//! What a dispatcher knows: slim forms of Tasks, the Pool and its Machines.
//!
//! Objects are kept only while they matter and without fields that nobody asks for again: a
//! Task's source is read back from the answer to the placement write.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube_core::{Resource, ResourceExt};
use skyward_api::{
    Machine, MachinePhase, Pool, Task, TaskPhase, TaskStatus,
    condition::{self, reason},
    environment::{MachineEnvironment, PoolEnvironment},
    for_each::ConfigMapKey,
    labels,
    offer::OfferedAccelerator,
    pool::Devices,
    shared::{EnvFrom, EnvVar},
    task::{Dependency, MAX_DEPENDENCIES, Placement, Retries, Source},
};
use skyward_core::Usd;

use crate::{
    accelerators::of_record,
    base::time::whole_seconds,
    money::hourly_price,
    pool::{
        resolved::ResolvedPool,
        suspension::{ready, why_suspended},
    },
    task::own_pool::{self, Owner},
};

/// Which machine of a Pool: slots and attempts are never used twice together.
pub use skyward_api::task::SlotAttempt;
/// UID of a Task.
pub type Uid = Arc<str>;

/// One run: one rank of one attempt of a Task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    /// UID of the Task.
    pub uid: Uid,
    /// Which attempt.
    pub attempt: u32,
    /// Which rank.
    pub rank: u32,
}

impl RunId {
    /// One rank of one attempt.
    pub fn new(uid: &Uid, attempt: u32, rank: u32) -> Self {
        Self {
            uid: uid.clone(),
            attempt,
            rank,
        }
    }

    /// From `<task uid>-<attempt>-<rank>`, as agents know it.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, rank) = text.rsplit_once('-')?;
        let (uid, attempt) = rest.rsplit_once('-')?;
        Some(Self {
            uid: uid.into(),
            attempt: attempt.parse().ok()?,
            rank: rank.parse().ok()?,
        })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.uid, self.attempt, self.rank)
    }
}

/// Time between SIGTERM and SIGKILL where a Task does not say.
pub const GRACE: Duration = Duration::from_secs(30);
/// Time for collecting the end of a run before its machine is taken away.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// The least grace of a run.
const LEAST_GRACE: Duration = Duration::from_secs(1);

/// How the items of a Task with `forEach` are to be run. Which items there are is read where they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Items that run at the same time, at most.
    pub parallelism: Option<u32>,
    /// Items that may fail before the others are given up.
    pub max_failed: Option<u32>,
    /// Whether a function runs for each item.
    pub has_function: bool,
    /// Whether its items are the lines of a file of the source.
    pub is_of_source: bool,
}

/// An active Task, slim.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Uid,
    /// Version of the object that this was read from.
    pub version: String,
    /// Generation of its spec.
    pub generation: Option<i64>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Name of its Pool.
    pub pool: String,
    /// Whether that Pool is to be made for it alone.
    pub has_own_pool: bool,
    /// A Task of a higher one comes first.
    pub priority: i32,
    /// Whether it is suspended.
    pub suspend: bool,
    /// `None`: none of the admitted values; such a Task waits for a person.
    pub placement: Option<Placement>,
    /// `status.mode`: what runs and where, in words.
    pub mode: String,
    /// Secrets and ConfigMaps that it names.
    pub env_from: Vec<EnvFrom>,
    /// Name of the CronTask that made it.
    pub cron: Option<Arc<str>>,
    /// Tasks that end before it starts.
    pub depends_on: Vec<Dependency>,
    /// Where its files come from.
    pub source: Option<Source>,
    /// Of a Task with `forEach`: how its items are to be run.
    pub map: Option<MapSpec>,
    /// The key of a ConfigMap that has its items.
    pub items_key: Option<Box<ConfigMapKey>>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// When it runs again, where it says; most Tasks do not.
    pub retries: Option<Box<Retries>>,
    /// Longest time from its first start on.
    pub active_deadline: Option<Duration>,
    /// Longest wait for a start.
    pub queue_timeout: Option<Duration>,
    /// Seconds after its end until it is deleted.
    pub ttl: Option<u32>,
    /// Without results: an active Task has none.
    pub status: TaskStatus,
}

impl Entry {
    /// The slim form; `None` when the API server left out a field that it never leaves out.
    pub fn of(task: &Task) -> Option<Self> {
        let metadata = &task.metadata;
        let spec = &task.spec;
        let mut status = task.status.clone().unwrap_or_default();
        status.results = Vec::new();
        let mut owners = metadata.owner_references.iter().flatten();
        let cron = owners.find(|owner| owner.kind == "CronTask" && owner.controller == Some(true));
        status.dependencies.truncate(MAX_DEPENDENCIES);
        Some(Self {
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
            version: metadata.resource_version.clone()?,
            generation: metadata.generation,
            created: metadata.creation_timestamp.as_ref()?.0,
            deleting: metadata.deletion_timestamp.is_some(),
            pool: task.pool().to_owned(),
            has_own_pool: spec.pool_template.is_some(),
            priority: spec.priority.unwrap_or_default(),
            suspend: spec.suspend.unwrap_or_default(),
            placement: spec.parsed_placement(),
            mode: spec.mode(),
            env_from: spec.env_from.clone(),
            cron: cron.map(|owner| owner.name.as_str().into()),
            depends_on: spec.depends_on.iter().take(MAX_DEPENDENCIES).cloned().collect(),
            source: spec.source.clone(),
            map: spec.for_each.as_deref().map(|for_each| MapSpec {
                parallelism: for_each.parallelism,
                max_failed: for_each.max_failed_items,
                has_function: spec.function.is_some(),
                is_of_source: for_each
                    .items_from
                    .as_ref()
                    .is_some_and(|from| from.source_file.is_some()),
            }),
            items_key: spec.for_each.as_deref().and_then(|for_each| {
                let key = for_each.items_from.as_ref()?.config_map_key_ref.clone();
                key.map(Box::new)
            }),
            grace: skyward_api::Duration::or(spec.termination_grace_period.as_ref(), GRACE),
            retries: spec.retries.clone().map(Box::new),
            active_deadline: lasting(spec.active_deadline.as_ref()),
            queue_timeout: lasting(spec.queue_timeout.as_ref()),
            ttl: spec.ttl_seconds_after_finished,
            status,
        })
    }

    /// Digest of the files that all its attempts run with, once the first one was placed.
    pub fn recorded_source(&self) -> Option<&str> {
        self.status.source.as_ref().map(|source| source.digest.as_str())
    }

    /// Its source, if that is a git repository.
    pub fn git(&self) -> Option<&Source> {
        self.source.as_ref().filter(|source| source.git.is_some())
    }

    /// Its phase.
    pub fn phase(&self) -> TaskPhase {
        self.status.phase.unwrap_or_default()
    }

    /// Whether this is older than another view of the same Task.
    pub fn is_older_than(&self, other: &Self) -> bool {
        match (self.version.parse::<u64>(), other.version.parse::<u64>()) {
            (Ok(mine), Ok(theirs)) => mine < theirs,
            // Versions are opaque in principle; then the later message wins.
            _ => false,
        }
    }
}

fn lasting(duration: Option<&skyward_api::Duration>) -> Option<Duration> {
    duration.and_then(skyward_api::Duration::parse).map(whole_seconds)
}

/// What a dispatcher needs of its Pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolView {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The Task that it was made for, if it was made for one.
    pub owner: Option<Owner>,
    /// When it was created.
    pub created: Timestamp,
    /// When its deletion was asked for.
    pub deleted_at: Option<Timestamp>,
    /// Why it has no machines by intention.
    pub why_suspended: Option<&'static str>,
    /// Machines wanted.
    pub desired: u32,
    /// The least number of machines that `All` runs on.
    pub min: u32,
    /// Runs of one machine at the same time.
    pub concurrency: u32,
    /// Where the items of a function share the process of one run: how many of them run at the same time.
    pub threads: Option<u32>,
    /// What each of them sees of the machine's accelerators.
    pub devices: Devices,
    /// The grace of its Tasks when it is deleted.
    pub shutdown: Duration,
    /// When a Task runs again, where it does not say.
    pub retries: Retries,
    /// Bytes of the log of one run that are kept.
    pub log_limit: u64,
    /// Reason and message of its condition Ready while that is not True.
    pub not_ready: Option<(String, String)>,
    /// Variables of every run.
    pub env: Vec<EnvVar>,
    /// Secrets and ConfigMaps that it names.
    pub env_from: Vec<EnvFrom>,
    /// User that runs are started as.
    pub user: Option<String>,
    /// Modules that functions find imported already.
    pub preload: Vec<String>,
    /// Whether one Python runs one item after the other.
    pub reuse_processes: bool,
    /// Chunks of items that wait at each place in any case.
    pub buffer: u32,
    /// The object, for Events.
    pub reference: ObjectReference,
}

impl PoolView {
    /// From the object; `None` when the API server left out a field that it never leaves out.
    pub fn of(pool: &Pool, resolved: &ResolvedPool) -> Option<Self> {
        let spec = &pool.spec;
        let image = spec.image.clone().unwrap_or_default();
        let ready = ready(pool);
        Some(Self {
            name: pool.name_any(),
            uid: pool.uid()?,
            owner: own_pool::owner(pool),
            created: pool.metadata.creation_timestamp.as_ref()?.0,
            deleted_at: pool.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            why_suspended: why_suspended(pool),
            desired: spec.nodes.desired,
            min: resolved.least(spec.nodes.desired).max(1),
            concurrency: resolved.concurrency,
            threads: resolved.threads,
            devices: resolved.devices,
            shutdown: resolved.timeouts.shutdown,
            retries: spec.retries.clone().unwrap_or_default(),
            log_limit: spec.log_limit(),
            not_ready: ready
                .filter(|condition| condition.status != "True")
                .map(|condition| (condition.reason.clone(), condition.message.clone())),
            env: image.env,
            env_from: image.env_from,
            user: spec.worker.as_ref().and_then(|worker| worker.user.clone()),
            preload: spec
                .worker
                .as_ref()
                .map(|worker| worker.preload.clone())
                .unwrap_or_default(),
            reuse_processes: spec
                .worker
                .as_ref()
                .and_then(|worker| worker.reuse_processes)
                .unwrap_or(true),
            buffer: spec
                .worker
                .as_ref()
                .and_then(|worker| worker.buffer)
                .unwrap_or_default(),
            reference: pool.object_ref(&()),
        })
    }

    /// Whether it is for that Task: a Pool that was made for a Task runs it alone, and the Task runs nowhere else.
    pub fn is_for(&self, task: &Entry) -> bool {
        match &self.owner {
            Some(owner) => task.has_own_pool && owner.uid == task.uid,
            None => !task.has_own_pool,
        }
    }
}

impl PoolView {
    /// How many items of a function run at the same time at one place, where so many may run in all.
    pub fn items_at_once(&self, parallelism: Option<u32>) -> u32 {
        self.threads
            .unwrap_or(1)
            .min(parallelism.unwrap_or(u32::MAX))
            .max(1)
    }

    /// Whether Tasks may start there, as far as the Pool itself is concerned.
    pub fn takes_work(&self) -> bool {
        self.why_suspended.is_none() && self.deleted_at.is_none()
    }
}

/// The machine of a rank, as the others are told of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peer {
    /// By which other machines of the Pool reach it.
    pub address: String,
    /// Its address on the internet, where it is known to have one.
    pub public_address: Option<String>,
    /// How many accelerators it has.
    pub accelerators: f64,
}

/// Whether this is an address of the internet, and neither one of a network of its own nor a
/// name, behind which another machine may stand.
fn is_public(address: &str) -> bool {
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            // Shared addresses behind a provider's own translation (RFC 6598).
            let shared = first == 100 && (64..128).contains(&second);
            !(v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || shared)
        }
        // The internet has 2000::/3.
        IpAddr::V6(v6) => v6.segments()[0] >> 13 == 1,
    }
}

/// What a dispatcher needs of a Machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineView {
    /// Slot and attempt.
    pub place: SlotAttempt,
    /// Name of the Machine.
    pub name: Arc<str>,
    /// Whether it is Ready and stays: a draining machine keeps its runs and gets no new ones, and a
    /// machine whose condition says that its connection is lost does not count.
    pub ready: bool,
    /// Whether it changes the environment of its runs, or is to begin with that: it keeps its rank and its
    /// runs, and gets no new ones.
    pub changing: bool,
    /// Hash of the environment that its runs find; empty while that has none.
    pub environment: Arc<str>,
    /// Whether it is being deleted: it never takes new runs again.
    pub deleting: bool,
    /// Whether its runs are asked to end now: the machine goes without waiting for them.
    pub ending: bool,
    /// When its cloud takes it back, once that is known.
    pub reclaim_at: Option<Timestamp>,
    /// By which other machines of the Pool reach it.
    pub address: String,
    /// Its address on the internet, where it is known to have one.
    pub public_address: Option<String>,
    /// Its accelerators: machines of one Pool may differ.
    pub accelerator: Option<OfferedAccelerator>,
    /// Why it was killed as a whole, if that was for want of memory: it does not come back, and its
    /// runs would end the same way elsewhere.
    pub out_of_memory: Option<Arc<str>>,
    /// What it costs in an hour.
    pub hourly_price: Usd,
    /// The connection to its agent.
    pub connection: Option<u64>,
}

impl MachineView {
    /// From the object, its Pool's record of the environment, and the connection that there is.
    pub fn of(machine: &Machine, wanted: Option<&PoolEnvironment>, connection: Option<u64>) -> Option<Self> {
        let status = machine.status.as_ref();
        let environment = status.and_then(|status| status.environment.as_ref());
        let hash = environment.map_or("", |known| known.hash.as_str());
        let has_begun = environment.is_some_and(MachineEnvironment::is_changing);
        let has_turn = wanted.is_some_and(|wanted| {
            Some(&wanted.turn) == machine.metadata.name.as_ref() && wanted.hash != hash
        });
        let deleting = machine.metadata.deletion_timestamp.is_some();
        let finish_runs = machine.annotations().contains_key(labels::FINISH_RUNS);
        let reclaim_at = status
            .and_then(|status| status.reclaim_at.as_ref())
            .map(|at| at.0);
        let phase = status.and_then(|status| status.phase).unwrap_or_default();
        // The address that SSH dials, the only one where a cloud has no private addresses.
        let dialled = status.map_or("", |status| &status.address);
        let stalled = status.and_then(|status| condition::find(&status.conditions, condition::STALLED));
        let private = status.map_or("", |status| &status.private_address);
        let address = if private.is_empty() { dialled } else { private };
        Some(Self {
            place: SlotAttempt {
                slot: machine.spec.slot,
                attempt: machine.spec.attempt,
            },
            name: machine.metadata.name.as_deref()?.into(),
            ready: phase == MachinePhase::Ready
                && !deleting
                && status
                    .and_then(|status| condition::find(&status.conditions, condition::READY))
                    .is_none_or(|ready| {
                        ready.status != "False" || ready.reason == reason::CHANGING_ENVIRONMENT
                    }),
            changing: has_begun || has_turn,
            environment: hash.into(),
            deleting,
            ending: deleting && (reclaim_at.is_some() || !finish_runs),
            reclaim_at,
            address: address.to_owned(),
            public_address: is_public(dialled).then(|| dialled.to_owned()),
            accelerator: of_record(&machine.spec),
            out_of_memory: stalled
                .filter(|stalled| stalled.reason == reason::OUT_OF_MEMORY)
                .map(|stalled| stalled.message.as_str().into()),
            hourly_price: hourly_price(machine),
            connection,
        })
    }

    /// What the other machines of a Task are told about this one.
    pub fn peer(&self) -> Peer {
        Peer {
            address: self.address.clone(),
            public_address: self.public_address.clone(),
            accelerators: self.accelerator.as_ref().map_or(0.0, |some| some.count.number()),
        }
    }

    /// The grace of a run that is asked to end, at most `allowed`: its last output must be
    /// collected before the machine is taken away.
    pub fn grace(&self, allowed: Duration, now: Timestamp) -> Duration {
        let Some(at) = self.reclaim_at else {
            return allowed;
        };
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        allowed.min(left.saturating_sub(LAST_WORDS).max(LEAST_GRACE))
    }

    /// Whether it takes new runs.
    pub fn takes_runs(&self) -> bool {
        self.ready && !self.changing && self.connection.is_some()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};
    use skyward_api::shared::Size;

    use super::*;
    use crate::task::retries::Policy;

    fn pool_view(pool: &Pool) -> PoolView {
        PoolView::of(pool, &ResolvedPool::of(&pool.spec)).unwrap()
    }

    #[test]
    fn a_run_id_is_read_back() {
        let run = RunId {
            uid: "0b5c6f5e-0000-4000-8000-000000000001".into(),
            attempt: 3,
            rank: 12,
        };
        assert_eq!(RunId::parse(&run.to_string()), Some(run));
        for bad in ["", "a", "a-b", "uid-1-x", "uid--1"] {
            assert_eq!(RunId::parse(bad).filter(|run| !run.uid.is_empty()), None, "{bad}");
        }
    }

    fn view(metadata: Value, more: Value, status: Value) -> MachineView {
        let mut spec = json!({
            "pool": "p", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "a", "offer": "o", "instanceType": "x",
            "market": "Spot", "hourlyPrice": "1", "token": "t", "templateHash": "h"
        });
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        let machine: Machine = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine",
            "metadata": metadata, "spec": spec, "status": status,
        }))
        .unwrap();
        MachineView::of(&machine, None, None).unwrap()
    }

    #[test]
    fn a_machine_takes_no_new_runs_from_its_turn_until_its_environment_has_changed() {
        let of = |status: Value, turn: &str| {
            let spec = json!({
                "pool": "p", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "a", "offer": "o",
                "instanceType": "x", "market": "Spot", "hourlyPrice": "1", "token": "t", "templateHash": "h"
            });
            let machine: Machine = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "m" },
                "spec": spec, "status": status,
            }))
            .unwrap();
            let wanted = PoolEnvironment {
                hash: "b".into(),
                turn: turn.into(),
                ..PoolEnvironment::default()
            };
            MachineView::of(&machine, Some(&wanted), Some(1)).unwrap()
        };
        let status = |hash: &str, to: &str, why: &str| {
            json!({
                "phase": "Ready", "environment": { "hash": hash, "changingTo": to },
                "conditions": [{
                    "type": "Ready", "status": if why == "AgentReady" { "True" } else { "False" }, "reason": why,
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"
                }]
            })
        };
        let taken = |view: &MachineView| (view.ready, view.takes_runs());
        let before = of(status("a", "", "AgentReady"), "other");
        assert_eq!((taken(&before), &*before.environment), ((true, true), "a"));
        assert_eq!(
            taken(&of(status("a", "", "AgentReady"), "m")),
            (true, false),
            "its turn"
        );
        let midst = of(status("a", "b", "ChangingEnvironment"), "other");
        assert_eq!(taken(&midst), (true, false), "it keeps its rank");
        assert_eq!(
            taken(&of(status("a", "b", "ConnectionLost"), "m")),
            (false, false)
        );
        assert_eq!(
            taken(&of(status("b", "", "AgentReady"), "m")),
            (true, true),
            "it is done"
        );
    }

    fn going(finishes: bool, reclaimed: bool) -> MachineView {
        let annotations = if finishes {
            json!({ labels::FINISH_RUNS: "true" })
        } else {
            json!({})
        };
        view(
            json!({ "name": "m", "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations }),
            json!({}),
            json!({ "reclaimAt": reclaimed.then_some("2026-01-01T00:02:00Z") }),
        )
    }

    #[test]
    fn a_machine_has_what_it_was_granted_and_what_was_asked_for_where_the_record_is_old() {
        let has = |spec: Value| view(json!({ "name": "m" }), spec, json!({}));
        let granted = has(json!({
            "accelerator": { "name": "L4", "count": 1 },
            "grantedAccelerator": { "name": "L4", "count": 4, "memory": "24Gi" },
        }));
        assert!((granted.peer().accelerators - 4.0).abs() < 1e-9, "{granted:?}");
        assert_eq!(granted.accelerator.unwrap().memory, Some(Size("24Gi".into())));
        let part = has(json!({ "grantedAccelerator": { "name": "L4", "count": "0.125", "memory": "3Gi" } }));
        assert!((part.peer().accelerators - 0.125).abs() < 1e-9, "{part:?}");
        let old = has(json!({ "accelerator": { "name": "H100:8", "memory": "80G" } }));
        let old = old.accelerator.unwrap();
        assert_eq!(
            (old.name.as_str(), old.memory.clone()),
            ("H100", Some(Size("80Gi".into())))
        );
        assert!((old.count.number() - 8.0).abs() < 1e-9, "{old:?}");
        let none = has(json!({}));
        assert_eq!((none.peer(), none.accelerator), (Peer::default(), None));
    }

    #[rstest]
    #[case::at_a_cloud("203.0.113.7", "10.0.0.7", "10.0.0.7", Some("203.0.113.7"))]
    #[case::the_only_one("203.0.113.7", "", "203.0.113.7", Some("203.0.113.7"))]
    #[case::twice_the_same("203.0.113.7", "203.0.113.7", "203.0.113.7", Some("203.0.113.7"))]
    #[case::a_pod("10.244.1.7", "10.244.1.7", "10.244.1.7", None)]
    #[case::behind_its_provider("100.64.0.7", "", "100.64.0.7", None)]
    #[case::a_proxy("ssh5.vast.ai", "172.17.0.2", "172.17.0.2", None)]
    #[case::version_6("2a01:db8::7", "fd00::7", "fd00::7", Some("2a01:db8::7"))]
    #[case::not_known_yet("", "", "", None)]
    fn the_address_on_the_internet_is_told_beside_that_of_the_neighbours(
        #[case] dialled: &str,
        #[case] private: &str,
        #[case] address: &str,
        #[case] public: Option<&str>,
    ) {
        let status = json!({ "address": dialled, "privateAddress": private });
        let peer = view(json!({ "name": "m" }), json!({}), status).peer();
        assert_eq!(
            (peer.address.as_str(), peer.public_address.as_deref()),
            (address, public)
        );
    }

    #[test]
    fn a_machine_that_was_killed_for_want_of_memory_says_so() {
        let stalled = |reason: &str| {
            let condition = json!({
                "type": "Stalled", "status": "True", "reason": reason, "message": "more memory",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            });
            let status = json!({ "phase": "Failed", "conditions": [condition] });
            view(json!({ "name": "m" }), json!({}), status).out_of_memory
        };
        assert_eq!(stalled(reason::OUT_OF_MEMORY).as_deref(), Some("more memory"));
        assert_eq!(stalled(reason::MACHINE_LOST), None);
    }

    #[test]
    fn a_machine_that_goes_waits_for_its_runs_only_if_it_may() {
        assert!(going(false, false).ending && going(false, true).ending);
        assert!(!going(true, false).ending, "fewer are wanted");
        assert!(going(true, true).ending, "the cloud does not wait");
    }

    #[test]
    fn a_run_has_no_longer_than_its_machine_but_for_what_collecting_its_end_takes() {
        let machine = going(false, true);
        let grace = |allowed, now: &str| {
            let grace = machine.grace(Duration::from_secs(allowed), now.parse().unwrap());
            grace.as_secs()
        };
        assert_eq!(grace(30, "2026-01-01T00:00:00Z"), 30);
        assert_eq!(grace(600, "2026-01-01T00:00:00Z"), 117);
        assert_eq!(grace(30, "2026-01-01T00:01:59Z"), 1);
        assert_eq!(grace(30, "2026-01-01T00:03:00Z"), 1);
        let stays = going(false, false);
        let day = Duration::from_hours(24);
        assert_eq!(stays.grace(day, Timestamp::UNIX_EPOCH), day);
    }

    #[test]
    fn a_pool_that_has_spent_its_budget_is_off_and_its_runs_were_not_interrupted() {
        let pool = |reason: &str| -> Pool {
            serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
                "metadata": { "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "provider": "a", "nodes": { "desired": 1 } },
                "status": { "conditions": [{
                    "type": "Ready", "status": "False", "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"
                }] }
            }))
            .unwrap()
        };
        let why_suspended = |reason| pool_view(&pool(reason)).why_suspended;
        assert!(why_suspended(reason::BUDGET_SPENT).is_some());
        assert!(why_suspended(reason::PROVISIONING).is_none());
    }

    #[test]
    fn tasks_run_again_as_often_as_their_pool_says_and_three_times_where_it_does_not() {
        let on_interruption = |retries: Value| {
            let pool: Pool = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
                "metadata": { "name": "p", "uid": "pu", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "provider": "c", "retries": retries },
            }))
            .unwrap();
            let view = pool_view(&pool);
            let policy = Policy {
                task: None,
                pool: Some(&view.retries),
            };
            policy.on_interruption()
        };
        assert_eq!(on_interruption(json!({ "onInterruption": 7 })), 7);
        assert_eq!(on_interruption(json!({})), 3);
        assert_eq!(on_interruption(Value::Null), 3);
    }

    #[test]
    fn a_place_is_read_back() {
        let place = SlotAttempt { slot: 7, attempt: 41 };
        let recorded = serde_json::to_value(place).unwrap();
        assert_eq!(recorded, json!({ "slot": 7, "attempt": 41 }));
        assert_eq!(serde_json::from_value::<SlotAttempt>(recorded).unwrap(), place);
    }
}
