//! What a Pool's plan may know. Gathering it makes no decision.
//!
//! Everything comes from caches, except references (looked up at most every some
//! seconds) and, while a Pool is deleted, the provider's own list of machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Api, Resource, ResourceExt,
    core::{Selector, SelectorExt},
    runtime::reflector::ObjectRef,
};
use rust_decimal::Decimal;
use skyward_api::{
    Machine, MachinePhase, Pool, Provider as ProviderObject,
    condition::{self, find, is_true},
    machine::{BootstrapFailure, MachineStatus, Market},
    offer::Architecture,
    pool::{Place, PoolSpec, PoolStatus},
};
use skyward_core::{Capabilities, MachineRef, Scope};
use tokio::time::timeout;

use super::{
    choice::{Catalogue, wish::template_hashes},
    plan,
    references::{ReferenceCheck, Unusable, all_references, unusable_references},
};
use crate::{
    accelerators::of_record,
    accounts::{
        cost::spent_this_month,
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        fleet::Reserved,
        limits::standing,
        unavailable::UnavailableOfferings,
    },
    base::key::{Key, key_of},
    context::Context,
    guard::Unread,
    hints::pool_load::PoolLoad,
    money::{self, Cost, Tariff},
    records::is_refused,
};

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
    /// Digest of what its machines are prepared with; `None` = not known now.
    pub tried_with: Option<String>,
    /// Whether it names any Secret or ConfigMap.
    pub has_references: bool,
    /// Offers of these Providers.
    pub offers: Catalogue,
    /// Offers and Providers that had no capacity lately.
    pub unavailable: Arc<UnavailableOfferings>,
    /// Architectures for whose machines there is an agent.
    pub architectures: Arc<[Architecture]>,
    /// While it is deleted and has no Machines: what the provider still lists.
    pub leftovers: Leftovers,
    /// The API server refused the record of a machine of this Pool, as it is now.
    pub refusal: Option<Refusal>,
    /// Machines of this Pool whose records cannot be read, and which none above stands for.
    pub unread: Vec<Unread>,
    /// A number that no other look has: makes tokens that are never given twice.
    pub nonce: u64,
}

/// What the API server refused: a quota of the namespace, a policy, or what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it said.
    pub why: String,
    /// Not tried again before.
    pub until: Timestamp,
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
    /// Whether it takes runs now.
    pub ready: bool,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Whether it is what the Pool's spec asks for now.
    pub current: bool,
    /// Whether it has an address.
    pub provisioned: bool,
    /// When it first took runs.
    pub ready_at: Option<Timestamp>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// Runs on it; `None` = not known.
    pub runs: Option<u32>,
    /// Address by which others of the Pool reach it.
    pub address: String,
    /// Price in USD per hour.
    pub hourly_price: String,
    /// Where it was ordered.
    pub place: Place,
    /// The cloud said that it will take it back.
    pub reclaimed: bool,
    /// How it is billed; `None` while it is not known to exist.
    pub bill: Option<Bill>,
    /// Its order was refused as it is: nothing of it exists, and it is tried again.
    pub refused: bool,
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

/// How a machine is billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    /// Price and steps.
    pub tariff: Tariff,
    /// Since when.
    pub since: Timestamp,
    /// Until when, once it is gone; where ending costs nothing that is before it was.
    pub gone_at: Option<Timestamp>,
}

impl Bill {
    /// What it has cost until now.
    pub fn cost(&self, now: Timestamp) -> Cost {
        self.tariff.cost(self.since, self.gone_at.unwrap_or(now))
    }
}

impl MachineFacts {
    /// Neither failed nor on its way out.
    pub fn is_live(&self) -> bool {
        !self.deleting && self.failure.is_none()
    }

    /// Whether it takes its slot: a failed machine does not, nor a machine that the cloud takes
    /// back, nor one that was given up before anything of it existed; a draining machine does
    /// until it is gone.
    pub fn occupies(&self) -> bool {
        self.failure.is_none() && !self.reclaimed && !(self.refused && self.deleting)
    }

    /// Certain to run nothing: it never took runs, or its dispatcher says so.
    pub fn is_idle(&self) -> bool {
        self.ready_at.is_none() || self.runs == Some(0)
    }
}

/// What the provider still lists of a Pool that is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// Nobody asked.
    NotAsked,
    /// There is no Provider to ask: the Machines' own finalizers have decided.
    NoProvider,
    /// The list failed; why.
    Unknown(String),
    /// The complete lists, with the Provider of each machine.
    Known(Vec<(String, MachineRef)>),
}

/// Longest wait for one answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Gathers.
pub async fn observe(context: &Context, references: &mut Option<ReferenceCheck>, pool: &Pool) -> Observed {
    let facts = pool_facts(pool);
    let key = Key::new(facts.namespace.clone(), facts.name.clone());
    let load = context.loads.load(&key);
    let hashes = template_hashes(&facts.spec);
    let (shown, reserved) = context.fleet.of_pool(&facts.uid);
    let mut machines: Vec<MachineFacts> = shown
        .iter()
        .map(|machine| machine_facts(machine, &hashes, load.as_ref()))
        .collect();
    machines.extend(
        reserved
            .into_iter()
            .map(|(key, reserved)| reserved_facts(key.name, reserved)),
    );
    machines.sort_by_key(|machine| (machine.slot, machine.attempt));
    let mut unread = context.caches.unreadable.of_pool(&facts.uid);
    unread.retain(|unread| !machines.iter().any(|machine| machine.name == unread.name));

    let providers = facts
        .spec
        .providers()
        .into_iter()
        .map(|name| (name.to_owned(), provider_facts(context, &facts.namespace, name)))
        .collect();
    let namespace = namespace_facts(context, &facts.namespace);
    let offers = facts
        .spec
        .providers()
        .into_iter()
        .map(|name| (name.to_owned(), context.offers.of(name)))
        .collect();
    let leftovers = if facts.deleting_since.is_some() && machines.is_empty() && facts.status.last_attempt > 0
    {
        leftovers(context, &facts).await
    } else {
        Leftovers::NotAsked
    };
    let has_references = !all_references(&facts.spec).is_empty();
    // Where nothing may be read, a look would only be refused.
    let may_look = facts.deleting_since.is_none() && namespace != NamespaceFacts::NotServed;
    let unusable = if !may_look || !has_references {
        Ok(Unusable::default())
    } else {
        unusable_references(context, &facts, references).await
    };
    let versions = unusable.as_ref().ok().map(|found| found.versions.as_str());
    let versions = versions.filter(|_| may_look || !has_references);
    let tried_with = plan::bootstraps::tried_with(&facts.spec, versions, &generations(context, &facts.spec));
    let (missing_references, too_large_references) = match unusable {
        Ok(Unusable {
            missing, too_large, ..
        }) => (Ok(missing), too_large),
        Err(why) => (Err(why), None),
    };
    Observed {
        cluster: context.cluster.clone(),
        pool: facts,
        machines,
        load,
        providers,
        namespace,
        missing_references,
        too_large_references,
        tried_with,
        has_references,
        offers,
        unavailable: context.unavailable.now(),
        architectures: context.architectures.clone(),
        leftovers,
        refusal: None,
        unread,
        nonce: rand::random(),
    }
}

/// Generations of the Providers that a Pool names; `None` of one that does not exist.
fn generations(context: &Context, spec: &PoolSpec) -> BTreeMap<String, Option<i64>> {
    let generation = |name: &str| {
        let provider = context.caches.providers.get(&ObjectRef::new(name))?;
        provider.metadata.generation
    };
    let names = spec.providers().into_iter();
    names.map(|name| (name.to_owned(), generation(name))).collect()
}

pub(crate) fn pool_facts(pool: &Pool) -> PoolFacts {
    let key = key_of(pool);
    PoolFacts {
        namespace: key.namespace,
        name: key.name,
        uid: pool.uid().unwrap_or_default(),
        generation: pool.metadata.generation.unwrap_or(0),
        created_at: pool
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        deleting_since: pool.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        finalizer: pool
            .finalizers()
            .iter()
            .any(|name| name == skyward_api::labels::FINALIZER),
        spec: pool.spec.clone(),
        status: pool.status.clone().unwrap_or_default(),
    }
}

/// A Machine that the watch has not shown yet.
pub(crate) fn reserved_facts(name: String, reserved: Reserved) -> MachineFacts {
    MachineFacts {
        name,
        uid: None,
        slot: reserved.slot,
        attempt: reserved.attempt,
        phase: MachinePhase::Ordered,
        ready: false,
        deleting: false,
        current: true,
        provisioned: false,
        ready_at: None,
        failure: None,
        runs: None,
        address: String::new(),
        hourly_price: String::new(),
        place: reserved.place,
        reclaimed: false,
        bill: None,
        refused: false,
        market: reserved.market,
        accelerator: reserved.accelerator,
        concern: None,
    }
}

/// A Machine as the plan sees it.
pub fn machine_facts(machine: &Machine, hashes: &[String], load: Option<&PoolLoad>) -> MachineFacts {
    let name = machine.name_any();
    let empty = MachineStatus::default();
    let status = machine.status.as_ref().unwrap_or(&empty);
    let phase = status.phase.unwrap_or_default();
    let ready_condition = find(&status.conditions, condition::READY);
    let failure = (phase == MachinePhase::Failed).then(|| {
        let stalled = find(&status.conditions, condition::STALLED).or(ready_condition);
        Failure {
            at: stalled.map_or(Timestamp::UNIX_EPOCH, |c| c.last_transition_time.0),
            reason: stalled.map_or_else(
                || condition::reason::MACHINE_FAILED.to_owned(),
                |c| c.reason.clone(),
            ),
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
        ready: phase == MachinePhase::Ready && is_true(&status.conditions, condition::READY),
        deleting: machine.meta().deletion_timestamp.is_some(),
        current: hashes.contains(&machine.spec.template_hash),
        provisioned: !status.address.is_empty(),
        ready_at: status.ready_at.as_ref().map(|time| time.0),
        failure,
        address: status.private_address.clone(),
        hourly_price: money::hourly_price(machine).to_owned(),
        reclaimed: status.reclaim_at.is_some(),
        bill: money::billed_since(machine).map(|since| Bill {
            tariff: Tariff::of(machine),
            since,
            gone_at: status.gone_at.as_ref().and_then(|_| money::billed_until(machine)),
        }),
        place: Place {
            provider: machine.spec.provider.clone(),
            region: machine.spec.region.clone(),
        },
        refused: is_refused(status),
        market: machine.spec.market,
        accelerator: of_record(&machine.spec).map(|some| some.name).unwrap_or_default(),
        concern: ready_condition
            .filter(|c| c.status != "True")
            .map(|c| (c.reason.clone(), c.message.clone())),
    }
}

fn account_facts(context: &Context, name: &str, provider: Option<&ProviderObject>) -> AccountFacts {
    let Some(provider) = provider else {
        let mut existing: Vec<String> = context
            .caches
            .providers
            .state()
            .iter()
            .map(|provider| provider.name_any())
            .collect();
        existing.sort();
        return AccountFacts::NotFound(existing);
    };
    if provider.metadata.deletion_timestamp.is_some() {
        return AccountFacts::NotReady(format!("Provider \"{name}\" is being deleted"));
    }
    if context.holds.is_held(name) {
        return AccountFacts::NotReady(format!(
            "Provider \"{name}\" is held: this cluster remembers less than its machines (condition RestoreDetected)"
        ));
    }
    let conditions = provider
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let is_known = context.holds.is_settled(std::iter::once(&name.to_owned()));
    match find(conditions, condition::READY) {
        // Before that, a restored Pool could count attempts that it has forgotten.
        Some(ready) if ready.status == "True" && !is_known => AccountFacts::NotReady(format!(
            "Provider \"{name}\" has not listed its machines yet since the controller started"
        )),
        Some(ready) if ready.status == "True" && context.providers.get(name).is_some() => AccountFacts::Ready,
        Some(ready) if ready.status == "True" => AccountFacts::NotReady(format!(
            "Provider \"{name}\" was not checked yet since the controller started"
        )),
        Some(ready) => AccountFacts::NotReady(format!("Provider \"{name}\" is not ready: {}", ready.message)),
        None => AccountFacts::NotReady(format!("Provider \"{name}\" was not checked yet")),
    }
}

pub(crate) fn provider_facts(context: &Context, namespace: &str, name: &str) -> ProviderFacts {
    let provider = context.caches.providers.get(&ObjectRef::new(name));
    let spec = provider.as_ref().map(|provider| &provider.spec);
    let labels = context.caches.namespaces.get(&ObjectRef::new(namespace));
    let client = context.providers.get(name);
    let limits = spec.and_then(|spec| spec.limits.as_ref());
    let standing = standing(limits, labels.as_ref().map(|namespace| namespace.labels()));
    let month = |limit: Option<Decimal>, namespace: Option<&str>| {
        Some((limit?, spent(context, provider.as_deref()?, namespace)))
    };
    let seconds = |time: fn(&Capabilities) -> Duration| {
        client.as_ref().map_or(0, |client| {
            u32::try_from(time(client.provider.capabilities()).as_secs()).unwrap_or(u32::MAX)
        })
    };
    ProviderFacts {
        billing_step_seconds: seconds(|capabilities| capabilities.billing_step),
        billing_minimum_seconds: seconds(|capabilities| capabilities.billing_minimum),
        marketplace: client
            .as_ref()
            .is_some_and(|client| client.provider.capabilities().marketplace),
        account: account_facts(context, name, provider.as_deref()),
        account_id: provider
            .as_ref()
            .and_then(|provider| provider.status.as_ref())
            .map(|status| status.account.clone())
            .unwrap_or_default(),
        admits: match (spec, &labels) {
            (Some(spec), Some(namespace)) => match Selector::try_from(spec.allowed_namespaces.clone()) {
                Ok(selector) if selector.matches(namespace.labels()) => Ok(()),
                Ok(_) | Err(_) => Err(describe_selector(&spec.allowed_namespaces)),
            },
            (None, _) | (_, None) => Ok(()),
        },
        own_nodes: spec.is_some_and(|spec| spec.container.is_some()),
        overridable: spec
            .map(|spec| spec.overridable.iter().cloned().collect())
            .unwrap_or_default(),
        limits: standing.limits,
        used: context.fleet.used(name, namespace),
        month: month(standing.monthly, None),
        month_in_namespace: month(standing.monthly_in_namespace, Some(namespace)),
    }
}

/// What is spent in this month at a Provider, or for one namespace at it.
fn spent(context: &Context, provider: &ProviderObject, namespace: Option<&str>) -> Decimal {
    let cost = provider.status.as_ref().and_then(|status| status.cost.as_ref());
    let machines = context.fleet.of_provider(&provider.name_any());
    let namespace = namespace.map(|namespace| (namespace, &context.seal));
    spent_this_month(cost, &machines, namespace, Timestamp::now())
}

pub(crate) fn namespace_facts(context: &Context, name: &str) -> NamespaceFacts {
    match context.caches.namespaces.get(&ObjectRef::new(name)) {
        _ if !context.config.serves(name) => NamespaceFacts::NotServed,
        None => NamespaceFacts::Unknown,
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => NamespaceFacts::Terminating,
        Some(_) => NamespaceFacts::Active,
    }
}

/// A selector as `kubectl -l` takes it.
fn describe_selector(selector: &LabelSelector) -> String {
    Selector::try_from(selector.clone())
        .map_or_else(|error| format!("(not a selector: {error})"), |s| s.to_string())
}

/// Providers that the Pool may have machines at: Providers it names, and Providers it ordered from.
pub fn providers_of(pool: &PoolFacts) -> BTreeSet<String> {
    let named = pool.spec.providers().into_iter().map(str::to_owned);
    let used = pool.status.places.iter().map(|place| place.provider.clone());
    named.chain(used).collect()
}

/// Providers it ordered from: that is on record before an order is made. A Provider that is only
/// named is asked as well, for a status can be edited, but it may not hold a Pool that goes.
pub fn ordered_from(pool: &PoolFacts, provider: &str) -> bool {
    let mut places = pool.status.places.iter();
    places.any(|place| place.provider == provider)
}

/// Longest wait for the list of a Provider that the Pool ordered from.
const ORDERED: Duration = Duration::from_secs(30);
/// Longest wait for a Provider that is asked only to be sure: the Pool's other clouds wait behind
/// it, in each look.
const NAMED: Duration = Duration::from_secs(5);

async fn leftovers(context: &Context, pool: &PoolFacts) -> Leftovers {
    let mut machines = Vec::new();
    let mut asked = false;
    for name in providers_of(pool) {
        if context.caches.providers.get(&ObjectRef::new(&name)).is_none() {
            continue;
        }
        asked = true;
        match listed(context, pool, &name).await {
            Ok(listed) => machines.extend(listed),
            Err(why) if ordered_from(pool, &name) => return Leftovers::Unknown(why),
            Err(_) => {}
        }
    }
    if asked {
        Leftovers::Known(machines)
    } else {
        Leftovers::NoProvider
    }
}

/// What is left of a Pool at one Provider.
async fn listed(
    context: &Context,
    pool: &PoolFacts,
    name: &str,
) -> Result<Vec<(String, MachineRef)>, String> {
    let account = context
        .providers
        .get(name)
        .ok_or_else(|| format!("Provider \"{name}\" is not ready"))?;
    let scope = Scope {
        cluster: context.cluster.clone(),
        pool_uid: Some(pool.uid.clone()),
        namespace: Some(pool.namespace.clone()),
        regions: regions_at(pool, name),
    };
    let deadline = if ordered_from(pool, name) { ORDERED } else { NAMED };
    let listed = timeout(deadline, account.provider.list(&scope))
        .await
        .map_err(|_| format!("Provider \"{name}\" did not list its machines in time"))?
        .map_err(|error| format!("Provider \"{name}\": {error}"))?;
    Ok(listed
        .into_iter()
        .map(|machine| {
            let reference = MachineRef {
                id: Some(machine.id),
                mark: machine.mark,
                region: machine.rental.region.unwrap_or_default(),
                started: false,
            };
            (name.to_owned(), reference)
        })
        .collect())
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

/// A Machine that the watch has not shown for long: does it exist? `None` = not known.
pub async fn look_up(context: &Context, key: &Key) -> Option<Option<Arc<Machine>>> {
    let api: Api<Machine> = Api::namespaced(context.client.clone(), &key.namespace);
    match timeout(DEADLINE, api.get_opt(&key.name)).await {
        Ok(Ok(found)) => Some(found.map(Arc::new)),
        Ok(Err(_)) | Err(_) => None,
    }
}
