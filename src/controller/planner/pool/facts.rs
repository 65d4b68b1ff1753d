//! What a Pool's plan may know, and how it reads objects. Pure: `observe` gathers it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::{ObjectMeta, Resource, ResourceExt};
use skyward_api::{
    Machine, MachinePhase, Pool,
    condition::{self, cut, find, reason},
    environment::MachineEnvironment,
    labels,
    machine::{BootstrapFailure, MachineStatus, Market},
    offer::Architecture,
    pool::{Place, PoolSpec, PoolStatus},
};
use skyward_core::{MachineRef, Usd};

use super::choice::Offerings;
use crate::{
    accelerators::of_record,
    accounts::{
        facts::{NamespaceFacts, ProviderFacts},
        unavailable::UnavailableOfferings,
    },
    base::key::{created_at, is_held, key_of},
    money::{self, Cost, Tariff},
    pool::load::PoolLoad,
    pool::resolved::ResolvedPool,
    records::is_refused,
};

/// How long a look that found all references stays valid.
pub const REFERENCES_EVERY: Duration = Duration::from_secs(30);

/// How long a look that found a reference missing stays valid.
pub const MISSING_EVERY: Duration = Duration::from_secs(3);

/// A record of a Machine that no watch confirmed for this long is looked up by name.
pub const DOUBTFUL: Duration = Duration::from_secs(15);

/// Everything a Pool's plan may know.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The installation.
    pub cluster: String,
    /// The Pool.
    pub pool: PoolFacts,
    /// Its Machines, by slot and attempt, including Machines created just now.
    pub machines: Vec<MachineFacts>,
    /// What its dispatcher knows; `None` = nothing yet.
    pub load: Option<PoolLoad>,
    /// The Providers that its machines may come from, by name.
    pub providers: BTreeMap<String, ProviderFacts>,
    /// Its namespace.
    pub namespace: NamespaceFacts,
    /// Secrets and ConfigMaps that it names and that do not exist; `Err` = not known.
    pub missing_references: Result<Vec<String>, String>,
    /// Set when the existing Secrets and ConfigMaps that it names for its steps are too large: why.
    pub too_large_references: Option<String>,
    /// Digest of the spec and of the objects that prepare its machines; `None` = not known now.
    pub tried_with: Option<String>,
    /// Whether it names any Secret or ConfigMap.
    pub has_references: bool,
    /// Hash of the environment that its image asks for; `None` = not known now.
    pub environment: Option<String>,
    /// Offers of these Providers.
    pub offers: Offerings,
    /// Offers and Providers that had no capacity lately.
    pub unavailable: Arc<UnavailableOfferings>,
    /// Architectures for whose machines there is an agent.
    pub architectures: Arc<[Architecture]>,
    /// While the Pool is deleted and has no Machines: the machines that the provider still lists.
    pub leftovers: RemainingMachines,
    /// The API server refused the record of a machine of this Pool, as it is now.
    pub refusal: Option<Refusal>,
    /// Machines of this Pool whose records cannot be read, and which are not in `machines`.
    pub unread: Vec<Unread>,
    /// A number unique to this look, for tokens that are never given twice.
    pub nonce: u64,
}

impl Observed {
    /// How its machines are billed that are known to exist, or to have existed.
    pub fn bills(&self) -> impl Iterator<Item = &Bill> {
        self.machines.iter().filter_map(|machine| machine.bill.as_ref())
    }

    /// How its machines are billed that are not gone.
    pub fn running_bills(&self) -> impl Iterator<Item = &Bill> {
        self.bills().filter(|bill| bill.gone_at.is_none())
    }
}

/// A refusal of the API server, by a quota of the namespace or a policy, or of the object itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it said.
    pub why: String,
    /// Not tried again before.
    pub until: Timestamp,
}

/// A Machine whose record cannot be read: what its metadata says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Its name.
    pub name: String,
    /// UID of its Pool.
    pub pool_uid: String,
    /// Its slot, if that can be told.
    pub slot: Option<u32>,
    /// Why it cannot be understood.
    pub error: String,
}

impl Unread {
    /// A record with that metadata, which cannot be read for that reason.
    pub fn of(meta: &ObjectMeta, error: &str) -> Self {
        let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name));
        let name = meta.name.clone().unwrap_or_default();
        // The owner reference, which nobody edits by chance, names its Pool; so does its name.
        let owner = meta.owner_references.iter().flatten();
        let owner = owner
            .filter(|owner| owner.kind == Pool::kind(&()))
            .map(|owner| &owner.uid);
        let slot = label(labels::SLOT)
            .map(String::as_str)
            .or(name.rsplit('-').nth(1));
        Self {
            pool_uid: owner
                .chain(label(labels::POOL_UID))
                .next()
                .cloned()
                .unwrap_or_default(),
            slot: slot.and_then(|slot| slot.parse().ok()),
            error: cut(error, 256),
            name,
        }
    }
}

/// The Pool itself.
#[derive(Clone, Debug)]
pub struct PoolFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its deletion was asked for.
    pub deleting_since: Option<Timestamp>,
    /// Whether our finalizer is on it.
    pub finalizer: bool,
    /// What is wanted.
    pub spec: PoolSpec,
    /// The same with all defaults.
    pub resolved: Arc<ResolvedPool>,
    /// What was last written.
    pub status: PoolStatus,
}

/// One Machine of the Pool.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFacts {
    /// Name.
    pub name: String,
    /// UID; `None` = just created, the watch has not shown it.
    pub uid: Option<String>,
    /// Slot.
    pub slot: u32,
    /// Attempt.
    pub attempt: u32,
    /// Phase.
    pub phase: MachinePhase,
    /// Whether it takes runs now, or will as soon as its environment has changed.
    pub ready: bool,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Whether it matches the Pool's current spec, or can be made to in place.
    pub current: bool,
    /// Whether it took runs and changes its environment: it takes no new ones meanwhile.
    pub changing: bool,
    /// The environment of its runs; `None` on the record of an older release that was not looked at yet.
    pub environment: Option<MachineEnvironment>,
    /// Whether it has an address.
    pub provisioned: bool,
    /// When its order was recorded; `None` = just now.
    pub ordered_at: Option<Timestamp>,
    /// When it first took runs.
    pub ready_at: Option<Timestamp>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// Runs on it; `None` = not known.
    pub runs: Option<u32>,
    /// Address by which others of the Pool reach it.
    pub address: String,
    /// Price in USD per hour.
    pub hourly_price: Usd,
    /// Where it was ordered.
    pub place: Place,
    /// The cloud said that it will take it back.
    pub reclaimed: bool,
    /// How it is billed; `None` while it is not known to exist.
    pub bill: Option<Bill>,
    /// Whether it was ordered with a token by which it proves its host key.
    pub proves_host_key: bool,
    /// Whether its order was refused as it is, or by a cloud that takes none now: no machine is known to exist, and the
    /// order is tried again.
    pub refused: bool,
    /// Whether its order was sent and has not been refused, or is not known not to have been sent.
    pub perhaps_ordered: bool,
    /// On which market.
    pub market: Market,
    /// Name of its accelerator; `""` without one.
    pub accelerator: String,
    /// Reason and message of its condition Ready, when that is not True.
    pub concern: Option<(String, String)>,
}

/// Why a machine failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// When.
    pub at: Timestamp,
    /// Reason, as in its conditions.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Which step of its bootstrap failed, if one did.
    pub bootstrap: Option<BootstrapFailure>,
}

impl Failure {
    /// In words, with the machine that failed.
    pub fn of_machine(&self, name: &str) -> String {
        format!("Machine \"{name}\", {}: {}", self.reason, self.message)
    }
}

/// How a machine is billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    /// Price and steps.
    pub tariff: Tariff,
    /// Since when.
    pub since: Timestamp,
    /// Until when, once it is gone; before that where its last phase is not billed.
    pub gone_at: Option<Timestamp>,
}

impl Bill {
    /// What it has cost until now.
    pub fn cost(&self, now: Timestamp) -> Cost {
        self.tariff.cost(self.since, self.gone_at.unwrap_or(now))
    }
}

impl MachineFacts {
    /// Whether it is neither failed nor being deleted.
    pub fn is_live(&self) -> bool {
        !self.deleting && self.failure.is_none()
    }

    /// Whether it occupies its slot: not when it failed, when the cloud takes it back, or when it
    /// was given up before it was ordered; a draining machine does until it is gone.
    pub fn occupies(&self) -> bool {
        self.failure.is_none() && !self.reclaimed && !(self.refused && self.deleting && !self.perhaps_ordered)
    }

    /// Whether it certainly runs nothing: it never took runs, or its dispatcher says so.
    pub fn is_idle(&self) -> bool {
        self.ready_at.is_none() || self.runs == Some(0)
    }
}

/// Machines of a deleted Pool that the provider still lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemainingMachines {
    /// The provider was not asked.
    NotAsked,
    /// There is no Provider to ask: the Machines' own finalizers have decided.
    NoProvider,
    /// The list failed; why.
    Unknown(String),
    /// The complete lists, with the Provider of each machine.
    Known(Vec<(String, MachineRef)>),
}

/// The Pool as its plan sees it.
pub fn pool_facts(pool: &Pool, resolved: Arc<ResolvedPool>) -> PoolFacts {
    let key = key_of(pool);
    PoolFacts {
        namespace: key.namespace,
        name: key.name,
        uid: pool.uid().unwrap_or_default(),
        generation: pool.metadata.generation.unwrap_or(0),
        created_at: created_at(pool),
        deleting_since: pool.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        finalizer: is_held(pool),
        spec: pool.spec.clone(),
        resolved,
        status: pool.status.clone().unwrap_or_default(),
    }
}

/// Whether that condition Ready counts the machine among the ready ones. The change of its environment does not
/// make a Pool unready, which would stop what waits for the Pool.
fn is_ready(ready: &Condition) -> bool {
    ready.status == "True" || ready.reason == reason::CHANGING_ENVIRONMENT
}

/// A Machine as the plan sees it.
pub fn machine_facts(machine: &Machine, pool: &ResolvedPool, load: Option<&PoolLoad>) -> MachineFacts {
    let name = machine.name_any();
    let empty = MachineStatus::default();
    let status = machine.status.as_ref().unwrap_or(&empty);
    let phase = status.phase.unwrap_or_default();
    let ready_condition = find(&status.conditions, condition::READY);
    let failure = (phase == MachinePhase::Failed).then(|| {
        let stalled = find(&status.conditions, condition::STALLED).or(ready_condition);
        Failure {
            at: stalled.map_or(Timestamp::UNIX_EPOCH, |c| c.last_transition_time.0),
            reason: stalled.map_or_else(|| reason::MACHINE_FAILED.to_owned(), |c| c.reason.clone()),
            message: stalled.map(|c| c.message.clone()).unwrap_or_default(),
            bootstrap: status.bootstrap_failure.clone(),
        }
    });
    MachineFacts {
        runs: load.map(|load| load.runs.get(&name).copied().unwrap_or(0)),
        name,
        uid: machine.uid(),
        slot: machine.spec.slot,
        attempt: machine.spec.attempt,
        phase,
        ready: phase == MachinePhase::Ready && ready_condition.is_some_and(is_ready),
        deleting: machine.meta().deletion_timestamp.is_some(),
        current: pool.asks_for(machine),
        changing: status.ready_at.is_some()
            && status
                .environment
                .as_ref()
                .is_some_and(MachineEnvironment::is_changing),
        environment: status.environment.clone(),
        provisioned: !status.address.is_empty(),
        ordered_at: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
        ready_at: status.ready_at.as_ref().map(|time| time.0),
        failure,
        address: status.private_address.clone(),
        hourly_price: money::hourly_price(machine),
        reclaimed: status.reclaim_at.is_some(),
        bill: bill(machine),
        place: Place {
            provider: machine.spec.provider.clone(),
            region: machine.spec.region.clone(),
        },
        proves_host_key: machine.spec.proves_host_key,
        refused: is_refused(status),
        perhaps_ordered: false,
        market: machine.spec.market,
        accelerator: of_record(&machine.spec).map(|some| some.name).unwrap_or_default(),
        concern: ready_condition
            .filter(|c| c.status != "True")
            .map(|c| (c.reason.clone(), c.message.clone())),
    }
}

/// What a machine costs; `None` while it costs nothing yet.
pub fn bill(machine: &Machine) -> Option<Bill> {
    let gone = machine.status.as_ref().and_then(|status| status.gone_at.as_ref());
    Some(Bill {
        tariff: Tariff::of(machine),
        since: money::billed_since(machine)?,
        gone_at: gone.and_then(|_| money::billed_until(machine)),
    })
}

/// Providers that the Pool may have machines at: Providers it names, and Providers it ordered from.
pub fn providers_of(pool: &PoolFacts) -> BTreeSet<String> {
    let named = pool.spec.providers().into_iter().map(str::to_owned);
    let used = pool.status.places.iter().map(|place| place.provider.clone());
    named.chain(used).collect()
}

/// Whether the Pool ordered from this Provider, which is recorded before an order. A Provider that
/// is only named is asked as well, for a status can be edited, but it must not hold up the deletion
/// of the Pool.
pub fn ordered_from(pool: &PoolFacts, provider: &str) -> bool {
    let mut places = pool.status.places.iter();
    places.any(|place| place.provider == provider)
}

/// Regions of a Provider in which the Pool ordered.
pub fn regions_at(pool: &PoolFacts, provider: &str) -> Vec<String> {
    let regions: BTreeSet<String> = pool
        .status
        .places
        .iter()
        .filter(|place| place.provider == provider && !place.region.is_empty())
        .map(|place| place.region.clone())
        .collect();
    regions.into_iter().collect()
}
