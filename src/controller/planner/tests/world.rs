//! A small world that plans act on: a Pool, its Machines, and Providers whose clouds do as they
//! are told. Each look is planned by the real plans, written down, and carried out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt as _;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use skyward_api::{
    Machine, Offer as OfferObject, Pool, Provider,
    condition::{READY, find},
    labels,
    offer::Architecture,
    pool::PoolStatus,
};
use skyward_core::{
    Capabilities, Deletion, ErrorKind, MachineRef, ProviderError, ProviderMachine, ProviderPhase,
    machine::{Endpoint, Failure, FailureKind, Rental},
    offer,
    session::{self, SessionFailure, SessionState, Stage},
};

use super::render;
use crate::{
    accounts::{
        cost::{Pseudonyms, spent_this_month},
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        limits::standing,
        offers::OfferIndex,
        quota::{Used, beyond, counted},
        unavailable::UnavailableOfferings,
    },
    base::requeue::Next,
    machine::{
        facts::{self, Looked, LookupOutcome, MachineMemory, Outcomes, Terms},
        plan::draft::Action as MachineAction,
    },
    pool::{
        self,
        choice::candidate::template_hashes,
        facts::{Observed, Refusal, RemainingMachines, Unread, machine_facts, pool_facts, providers_of},
        load::PoolLoad,
        plan::{audit::audit, bootstraps::tried_with, cost::of_budget, draft::Action as PoolAction},
    },
    provider::{
        deletion::{self, Left, Owners},
        plan::{self as provider, ProviderMemory, Refresh},
    },
    restore::verdict::Verdict,
};

/// What installation this is.
const CLUSTER: &str = "cluster";
/// Most looks without any time that passes.
const MOST: usize = 50;

/// Pseudonyms that tell everything.
#[derive(Debug)]
struct Unchanged;

impl Pseudonyms for Unchanged {
    fn pseudonym(&self, namespace: &str) -> String {
        format!("#{namespace}")
    }
}

/// What a session met, and when it began.
struct Session {
    began: Timestamp,
    lost: Option<Timestamp>,
}

/// A Provider, and the cloud behind it.
pub(super) struct Cloud {
    /// The Provider; none once it is deleted.
    pub(super) object: Option<Provider>,
    pub(super) capabilities: Capabilities,
    /// What its account answers; `Err` = why it does not.
    pub(super) account: Result<String, ProviderError>,
    /// Version of its Secret.
    secret: u32,
    /// What it offers.
    pub(super) offers: Vec<offer::Offer>,
    /// What the next orders meet, one after another.
    pub(super) next_orders: VecDeque<ProviderError>,
    /// What every order meets after those.
    pub(super) every_order: Option<ProviderError>,
    /// Whether it takes the namespace; if not, what it asks for.
    pub(super) admits: Result<(), String>,
    /// Its machines turn out to be somebody else's.
    pub(super) foreign: bool,
    /// Price that it bills, where that is not the recorded one.
    pub(super) bills: Option<Decimal>,
    /// Seconds from the order until the machine runs, and from the deletion until it is gone.
    pub(super) takes: (i64, i64),
    /// Its machines, with the time of their next step.
    pub(super) machines: BTreeMap<String, (ProviderMachine, Timestamp)>,
    memory: ProviderMemory,
    written: BTreeMap<String, Arc<OfferObject>>,
}

pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) pool: Option<Pool>,
    pub(super) machines: BTreeMap<String, Machine>,
    pub(super) clouds: BTreeMap<String, Cloud>,
    pub(super) namespace: NamespaceFacts,
    pub(super) missing: Result<Vec<String>, String>,
    pub(super) too_large: Option<String>,
    /// Version of all Secrets and ConfigMaps that the Pool names.
    pub(super) references: &'static str,
    pub(super) refusal: Option<Refusal>,
    pub(super) unread: Vec<Unread>,
    pub(super) load: PoolLoad,
    /// How each session fails once its machine is reached.
    pub(super) bootstrap: Option<SessionFailure>,
    /// Machines that no SSH answers on.
    pub(super) unreachable: bool,
    /// Providers are written down too.
    pub(super) tells_providers: bool,
    unavailable: UnavailableOfferings,
    memories: BTreeMap<String, MachineMemory>,
    sessions: BTreeMap<String, Session>,
    /// When the end of each machine was last asked for: a moment has one such question.
    asked: BTreeMap<String, Timestamp>,
    due: BTreeMap<String, Timestamp>,
    ordered: u32,
    recorded: u32,
    /// The reasons of the Pool's last look that was told.
    reasons: Vec<String>,
    /// What was told last of each object; how often and until when it was the same since.
    told: BTreeMap<String, (String, Option<(u32, Timestamp)>)>,
    text: String,
}

/// A kind of machine of a cloud, with its price on demand and on the spot market.
pub(super) fn sold(
    id: &str,
    gpu: Option<&str>,
    region: &str,
    prices: (Option<&str>, Option<&str>),
) -> offer::Offer {
    let usd = |price: &str| price.parse().unwrap();
    offer::Offer {
        id: id.into(),
        instance_type: id.into(),
        region: region.into(),
        accelerators: gpu.map(|name| offer::Accelerators {
            name: name.into(),
            count: 1.0,
            memory_gb: Some(80.0),
            form_factor: None,
        }),
        vcpus: 16.0,
        memory_gb: 64.0,
        disk_gb: None,
        architecture: offer::Architecture::X86_64,
        on_demand: prices.0.map(usd),
        spot: prices.1.map(usd),
        availability: offer::Availability::Yes,
        connected: true,
        rate_as_of: None,
    }
}

impl Cloud {
    /// A cloud that sells the machine `h100`, on demand for 2 USD and spot for 0.5, and `cpu`.
    fn new(name: &str) -> Self {
        let mut object: Provider = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
            "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": 1, "finalizers": [labels::FINALIZER] },
            "spec": { "verda": {}, "allowedNamespaces": {} }
        }))
        .unwrap();
        object.metadata.resource_version = Some("1".into());
        Self {
            object: Some(object),
            capabilities: Capabilities {
                settle_time: Duration::from_secs(5),
                connected: true,
                markets: &[offer::Market::OnDemand, offer::Market::Spot],
                ..Capabilities::of("verda")
            },
            account: Ok("acme".into()),
            secret: 1,
            offers: vec![
                sold("cpu", None, "eu", (Some("0.1"), None)),
                sold("h100", Some("H100"), "eu", (Some("2"), Some("0.5"))),
            ],
            next_orders: VecDeque::new(),
            every_order: None,
            admits: Ok(()),
            foreign: false,
            bills: None,
            takes: (30, 10),
            machines: BTreeMap::new(),
            memory: ProviderMemory::default(),
            written: BTreeMap::new(),
        }
    }

    /// It has another spec from now on.
    pub(super) fn edit(&mut self, spec: Value) {
        let object = self.object.as_mut().unwrap();
        let mut all = serde_json::to_value(&object.spec).unwrap();
        merge(&mut all, spec);
        object.spec = serde_json::from_value(all).unwrap();
        object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
    }

    /// A person writes other credentials into its Secret, which are answered so.
    pub(super) fn write_secret(&mut self, account: Result<String, ProviderError>) {
        self.account = account;
        self.secret += 1;
    }

    /// Whether that is its name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| object.name_any() == name)
    }

    fn find(&self, machine: &MachineRef) -> Option<String> {
        let is_meant = |(_, (found, _)): &(&String, &(ProviderMachine, Timestamp))| {
            found.mark.machine_uid == machine.mark.machine_uid
        };
        self.machines.iter().find(is_meant).map(|(id, _)| id.clone())
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// What a cloud answers instead.
pub(super) fn error(kind: ErrorKind, operation: &'static str, message: &str) -> ProviderError {
    ProviderError::new(kind, operation, message)
}

impl World {
    /// A Pool of that spec that a person has just applied, and a Provider "acme" that is ready.
    pub(super) fn new(spec: Value) -> Self {
        Self::of(&["acme"], spec, |_| {})
    }

    /// The same, of a cloud that is another one.
    pub(super) fn with(spec: Value, change: impl Fn(&mut Cloud)) -> Self {
        Self::of(&["acme"], spec, change)
    }

    /// The same, of a Provider that was not asked yet either.
    pub(super) fn unasked(spec: Value) -> Self {
        let mut world = Self::new(spec);
        let cloud = world.acme();
        let (account, offers) = (cloud.account.clone(), std::mem::take(&mut cloud.offers));
        *cloud = Cloud {
            account,
            offers,
            ..Cloud::new("acme")
        };
        world
    }

    /// The same with other Providers.
    pub(super) fn of(clouds: &[&str], spec: Value, change: impl Fn(&mut Cloud)) -> Self {
        let now = start();
        let mut pool = Pool::new("train", serde_json::from_value(spec).unwrap());
        pool.metadata.namespace = Some("team".into());
        pool.metadata.uid = Some("0a1b2c3d-0000".into());
        pool.metadata.generation = Some(1);
        pool.metadata.creation_timestamp = Some(Time(now));
        let mut world = Self {
            now,
            pool: None,
            machines: BTreeMap::new(),
            clouds: clouds
                .iter()
                .map(|name| ((*name).to_owned(), Cloud::new(name)))
                .collect(),
            namespace: NamespaceFacts::Active,
            missing: Ok(Vec::new()),
            too_large: None,
            references: "1",
            refusal: None,
            unread: Vec::new(),
            load: PoolLoad::default(),
            bootstrap: None,
            unreachable: false,
            tells_providers: false,
            unavailable: UnavailableOfferings::default(),
            memories: BTreeMap::new(),
            sessions: BTreeMap::new(),
            asked: BTreeMap::new(),
            due: BTreeMap::new(),
            ordered: 0,
            recorded: 0,
            reasons: Vec::new(),
            told: BTreeMap::new(),
            text: String::new(),
        };
        world.clouds.values_mut().for_each(change);
        world.settle();
        world.forget();
        world.pool = Some(pool);
        world
    }

    /// Its story until now.
    pub(super) fn text(&mut self) -> &str {
        self.tell_all_repeated();
        &self.text
    }

    /// What comes is told, and nothing before.
    pub(super) fn forget(&mut self) {
        self.text.clear();
        self.told.clear();
        self.reasons.clear();
    }

    pub(super) fn cloud(&mut self, name: &str) -> &mut Cloud {
        self.clouds.get_mut(name).unwrap()
    }

    pub(super) fn acme(&mut self) -> &mut Cloud {
        self.cloud("acme")
    }

    /// Something happens that no plan did.
    pub(super) fn happens(&mut self, what: &str) {
        self.tell_all_repeated();
        write!(self.text, "\n{} -- {what}\n", clock(self.now)).unwrap();
    }

    /// A person changes the Pool.
    pub(super) fn edit(&mut self, spec: Value) {
        let pool = self.pool.as_mut().unwrap();
        let mut all = serde_json::to_value(&pool.spec).unwrap();
        merge(&mut all, spec);
        pool.spec = serde_json::from_value(all).unwrap();
        pool.metadata.generation = pool.metadata.generation.map(|generation| generation + 1);
    }

    /// A person deletes the Pool.
    pub(super) fn delete_pool(&mut self) {
        self.pool.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(self.now));
    }

    /// The machine of the cloud that belongs to that slot and is the newest.
    pub(super) fn rented(&mut self, slot: u32) -> &mut ProviderMachine {
        let all = self
            .clouds
            .values_mut()
            .flat_map(|cloud| cloud.machines.values_mut());
        let of_slot = all.filter(|(machine, _)| machine.mark.slot == slot);
        &mut of_slot.max_by_key(|(machine, _)| machine.mark.attempt).unwrap().0
    }

    /// The oldest machine of the cloud that belongs to that slot.
    pub(super) fn rented_before(&mut self, slot: u32) -> &mut ProviderMachine {
        let all = self
            .clouds
            .values_mut()
            .flat_map(|cloud| cloud.machines.values_mut());
        let of_slot = all.filter(|(machine, _)| machine.mark.slot == slot);
        &mut of_slot.min_by_key(|(machine, _)| machine.mark.attempt).unwrap().0
    }

    /// A machine of the cloud is no more.
    pub(super) fn vanishes(&mut self, slot: u32) {
        let id = self.rented(slot).id.clone();
        for cloud in self.clouds.values_mut() {
            cloud.machines.remove(&id);
        }
    }

    /// Its connection is lost.
    pub(super) fn disconnects(&mut self, machine: &str) {
        self.sessions.get_mut(machine).unwrap().lost = Some(self.now);
    }

    /// Its connection is back.
    pub(super) fn reconnects(&mut self, machine: &str) {
        self.sessions.get_mut(machine).unwrap().lost = None;
    }

    /// Writes a look down; what repeats the look before it at the same object is counted.
    fn tell(&mut self, what: &str, block: &render::Block) {
        let body = block.text();
        if self.told.get(what).is_some_and(|(told, _)| *told == body) {
            let now = self.now;
            let (_, repeated) = self.told.get_mut(what).unwrap();
            let times = repeated.map_or(0, |(times, _)| times);
            *repeated = Some((times + 1, now));
            return;
        }
        self.tell_repeated(what);
        let clock = clock(self.now);
        write!(self.text, "\n{clock} {what}\n{body}").unwrap();
        self.told.insert(what.to_owned(), (body, None));
    }

    fn tell_repeated(&mut self, what: &str) {
        if let Some((times, at)) = self.told.get_mut(what).and_then(|(_, repeated)| repeated.take()) {
            let clock = clock(at);
            write!(
                self.text,
                "\n{clock} {what}\n  the same {times} more times until then\n"
            )
            .unwrap();
        }
    }

    fn tell_all_repeated(&mut self) {
        for what in self.told.keys().cloned().collect::<Vec<_>>() {
            self.tell_repeated(&what);
        }
    }

    /// Looks at everything until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..MOST {
            self.advance_clouds();
            let clouds: Vec<String> = self.clouds.keys().cloned().collect();
            let mut changed = false;
            for name in clouds {
                changed |= self.look_at_provider(&name);
            }
            changed |= self.look_at_pool(false);
            let machines: Vec<String> = self.machines.keys().cloned().collect();
            for name in machines {
                changed |= self.look_at_machine(&name);
            }
            if !changed {
                return;
            }
        }
        panic!("it does not come to rest:\n{}", self.text);
    }

    /// Looks at the Pool once, and tells it even if nothing comes of it.
    pub(super) fn look(&mut self) {
        self.look_at_pool(true);
    }

    /// Time passes, and with it all that is due.
    pub(super) fn pass(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        self.settle();
        while let Some(next) = self.next_due().filter(|next| *next <= end) {
            self.now = next;
            self.settle();
        }
        self.now = self.now.max(end);
        self.settle();
    }

    fn next_due(&self) -> Option<Timestamp> {
        let clouds = self.clouds.values().flat_map(|cloud| cloud.machines.values());
        let steps = clouds.map(|(_, at)| *at);
        let sessions = self.sessions.values();
        let stages = sessions
            .flat_map(|session| [3, 20].map(|after| session.began + SignedDuration::from_secs(after)));
        let all = self.due.values().copied().chain(steps).chain(stages);
        all.filter(|at| *at > self.now).min()
    }

    fn advance_clouds(&mut self) {
        let now = self.now;
        for cloud in self.clouds.values_mut() {
            cloud
                .machines
                .retain(|_, (machine, at)| machine.phase != ProviderPhase::Stopping || *at > now);
            for (number, (machine, at)) in cloud.machines.values_mut().enumerate() {
                if matches!(machine.phase, ProviderPhase::Starting(_)) && *at <= now {
                    machine.phase = ProviderPhase::Running;
                    machine.endpoint = Endpoint::ssh("root", Some(&format!("192.0.2.{}", number + 1)));
                    machine.private_address = Some(format!("10.0.0.{}", machine.mark.slot + 1));
                }
            }
        }
    }

    fn schedule(&mut self, what: &str, next: Next) {
        match next {
            Next::Wait => drop(self.due.remove(what)),
            Next::After(time) => {
                let time = SignedDuration::try_from(time)
                    .unwrap()
                    .max(SignedDuration::from_secs(1));
                // Whole seconds, so that the text is readable.
                let time = SignedDuration::from_secs(time.as_secs() + i64::from(time.subsec_nanos() > 0));
                self.due.insert(what.to_owned(), self.now + time);
            }
            Next::Again => drop(self.due.insert(what.to_owned(), self.now)),
        }
    }

    // Providers

    fn used(&self, name: &str) -> Used {
        let mut used = Used::default();
        for machine in self
            .machines
            .values()
            .filter(|machine| machine.spec.provider == name)
        {
            used.add(counted(machine), true);
        }
        used
    }

    fn shown(&self, name: &str) -> Vec<Arc<Machine>> {
        let of = self
            .machines
            .values()
            .filter(|machine| machine.spec.provider == name);
        of.cloned().map(Arc::new).collect()
    }

    fn look_at_provider(&mut self, name: &str) -> bool {
        let shown = self.shown(name);
        let Some(object) = self.clouds[name].object.clone() else {
            return false;
        };
        let machines = shown.len() as u32;
        let cloud = self.clouds.get_mut(name).unwrap();
        let (memory, secret) = (std::mem::take(&mut cloud.memory), cloud.secret.to_string());
        let answer = if provider::is_due(&object, &memory, Some(&secret), self.now) {
            let other = |account: &String| provider::other_account(&object, machines, &shown, account);
            match &cloud.account {
                Ok(account) => match other(account) {
                    Some(problem) => Refresh::Failed(problem),
                    None => Refresh::Complete {
                        account: account.clone(),
                        offers: cloud.offers.clone(),
                    },
                },
                Err(problem) => Refresh::Failed(problem.clone()),
            }
        } else {
            Refresh::NotAsked
        };
        let listed: Vec<ProviderMachine> = cloud
            .machines
            .values()
            .map(|(machine, _)| machine.clone())
            .collect();
        let left = match &cloud.account {
            Ok(_) => {
                let recorded = shown.iter().map(AsRef::as_ref);
                let owners = Owners::of(&object, [&object], recorded, &self.pool);
                deletion::left(CLUSTER, &listed, &[], &owners)
            }
            Err(problem) => Left::Unknown(problem.to_string()),
        };
        let written: Vec<Arc<OfferObject>> = cloud.written.values().cloned().collect();
        let observed = provider::Observed {
            verdict: &Verdict::default(),
            provider: &object,
            machines,
            shown: &shown,
            barred: self.unavailable.barred(name, self.now),
            pseudonyms: &Unchanged,
            offers: &written,
            answer,
            left,
            capabilities: Some(cloud.capabilities.clone()),
        };
        let (plan, memory) = provider::plan(&observed, memory, self.now);
        cloud.memory = ProviderMemory { secret, ..memory };
        for gone in &plan.delete {
            cloud.written.remove(gone);
        }
        for offer in &plan.apply {
            cloud.written.insert(offer.name_any(), Arc::new(offer.clone()));
        }
        let old = object.status.clone().unwrap_or_default();
        if let Some(object) = &mut cloud.object
            && let Some(status) = &plan.status
        {
            object.status = Some(status.clone());
        }
        if plan.remove_finalizer {
            cloud.object = None;
        }
        let timeless = |status: &skyward_api::ProviderStatus| skyward_api::ProviderStatus {
            refreshed_at: None,
            cost: None,
            machines: 0,
            ..status.clone()
        };
        let is_news = plan
            .status
            .as_ref()
            .is_some_and(|new| timeless(new) != timeless(&old));
        let acts = plan.add_finalizer
            || plan.remove_finalizer
            || plan.event.is_some()
            || !plan.apply.is_empty()
            || !plan.delete.is_empty()
            || !plan.release.is_empty();
        if is_news || acts || (self.tells_providers && plan.status.is_some()) {
            self.tell(&format!("Provider {name}"), &render::provider(&old, &plan));
        }
        self.schedule(&format!("Provider {name}"), Next::After(plan.again));
        acts || plan.status.is_some()
    }

    fn provider_facts(&self, name: &str) -> ProviderFacts {
        let cloud = self.clouds.get(name);
        let object = cloud.and_then(|cloud| cloud.object.as_ref());
        let conditions = object.and_then(|object| object.status.as_ref());
        let ready = conditions.and_then(|status| find(&status.conditions, READY));
        let account = match (object, ready) {
            (None, _) => {
                let there = self.clouds.iter().filter(|(_, cloud)| cloud.object.is_some());
                AccountFacts::NotFound(there.map(|(name, _)| name.clone()).collect())
            }
            (Some(object), _) if object.metadata.deletion_timestamp.is_some() => AccountFacts::Deleting,
            (_, Some(ready)) if ready.status == "True" => AccountFacts::Ready,
            (_, Some(ready)) => {
                AccountFacts::NotReady(format!("Provider \"{name}\" is not ready: {}", ready.message))
            }
            (_, None) => AccountFacts::NotReady(format!("Provider \"{name}\" was not checked yet")),
        };
        let standing = standing(
            object.and_then(|object| object.spec.limits.as_ref()),
            Some(&BTreeMap::new()),
        );
        let shown = self.shown(name);
        let cost = object.and_then(|object| object.status.as_ref()?.cost.as_ref());
        let month = |limit: Option<Decimal>, namespace: Option<&str>| {
            let namespace = namespace.map(|namespace| (namespace, &Unchanged as &dyn Pseudonyms));
            Some((limit?, spent_this_month(cost, &shown, namespace, self.now)))
        };
        let seconds = |time: fn(&Capabilities) -> Duration| {
            cloud.map_or(0, |cloud| time(&cloud.capabilities).as_secs() as u32)
        };
        ProviderFacts {
            account,
            account_id: "acme".into(),
            admits: cloud.map_or(Ok(()), |cloud| cloud.admits.clone()),
            own_nodes: false,
            overridable: object
                .map(|object| object.spec.overridable.iter().cloned().collect())
                .unwrap_or_default(),
            limits: standing.limits,
            used: self.used(name),
            month: month(standing.monthly, None),
            month_in_namespace: month(standing.monthly_in_namespace, Some("team")),
            billing_step_seconds: seconds(|capabilities| capabilities.billing_step),
            billing_minimum_seconds: seconds(|capabilities| capabilities.billing_minimum),
            marketplace: cloud.is_some_and(|cloud| cloud.capabilities.marketplace),
        }
    }

    // The Pool

    fn observe_pool(&self, pool: &Pool) -> Observed {
        let facts = pool_facts(pool);
        let hashes = template_hashes(&facts.spec);
        let of = |machine| machine_facts(machine, &hashes, Some(&self.load));
        let mut machines: Vec<_> = self.machines.values().map(of).collect();
        machines.sort_by_key(|machine| (machine.slot, machine.attempt));
        let named: BTreeSet<String> = facts.spec.providers().into_iter().map(str::to_owned).collect();
        let generations = named.iter().map(|name| {
            let object = self.clouds.get(name).and_then(|cloud| cloud.object.as_ref());
            (name.clone(), object.and_then(|object| object.metadata.generation))
        });
        let leftovers =
            if facts.deleting_since.is_some() && machines.is_empty() && facts.status.last_attempt > 0 {
                self.leftovers(&providers_of(&facts))
            } else {
                RemainingMachines::NotAsked
            };
        let offers = |name: &String| {
            let written = self
                .clouds
                .get(name)
                .map(|cloud| cloud.written.values().cloned().collect::<Vec<_>>());
            (
                name.clone(),
                Arc::new(OfferIndex::of(written.unwrap_or_default())),
            )
        };
        let is_tried = self.missing.is_ok();
        Observed {
            cluster: CLUSTER.into(),
            machines,
            load: Some(self.load.clone()),
            providers: named
                .iter()
                .map(|name| (name.clone(), self.provider_facts(name)))
                .collect(),
            namespace: self.namespace.clone(),
            missing_references: self.missing.clone(),
            too_large_references: self.too_large.clone(),
            tried_with: tried_with(
                &facts.spec,
                is_tried.then_some(self.references),
                &generations.collect(),
            ),
            has_references: !matches!(self.missing.as_deref(), Ok([])) || self.too_large.is_some(),
            offers: named.iter().map(offers).collect(),
            unavailable: Arc::new(self.unavailable.clone()),
            architectures: [Architecture::Amd64].into(),
            leftovers,
            refusal: self.refusal.clone(),
            unread: self.unread.clone(),
            nonce: 7,
            pool: facts,
        }
    }

    fn leftovers(&self, names: &BTreeSet<String>) -> RemainingMachines {
        let mut found = Vec::new();
        let mut asked = false;
        for name in names {
            let Some(cloud) = self.clouds.get(name).filter(|cloud| cloud.object.is_some()) else {
                continue;
            };
            asked = true;
            if let Err(problem) = &cloud.account {
                return RemainingMachines::Unknown(format!("Provider \"{name}\": {problem}"));
            }
            found.extend(cloud.machines.values().map(|(machine, _)| {
                let reference = MachineRef {
                    id: Some(machine.id.clone()),
                    mark: machine.mark.clone(),
                    region: String::new(),
                    started: false,
                };
                (name.clone(), reference)
            }));
        }
        if asked {
            RemainingMachines::Known(found)
        } else {
            RemainingMachines::NoProvider
        }
    }

    fn look_at_pool(&mut self, always: bool) -> bool {
        let Some(pool) = self.pool.clone() else {
            return false;
        };
        let seen = self.observe_pool(&pool);
        let plan = pool::plan::plan(&seen, self.now);
        assert_eq!(audit(&seen, &plan), Vec::<String>::new(), "{plan:#?}");
        let old = pool.status.clone().unwrap_or_default();
        let is_news = uncounted(&plan.status) != uncounted(&old);
        let acts = !plan.actions.is_empty() || !plan.events.is_empty();
        if is_news || acts || always {
            let told = std::mem::replace(&mut self.reasons, plan.reasons.clone());
            self.tell("Pool team/train", &render::pool(&old, &plan, &told));
        }
        self.schedule("Pool", plan.next);
        let object = self.pool.as_mut().unwrap();
        if is_news && !plan.actions.contains(&PoolAction::AddFinalizer) {
            object.status = Some(plan.status.clone());
        }
        for action in plan.actions {
            self.act_on_pool(action);
        }
        is_news || acts
    }

    fn act_on_pool(&mut self, action: PoolAction) {
        let now = Time(self.now);
        match action {
            PoolAction::AddFinalizer => {
                self.pool.as_mut().unwrap().metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
            }
            PoolAction::RemoveFinalizer => self.pool = None,
            PoolAction::CreateMachine { name, spec } => {
                self.refusal = None;
                self.recorded += 1;
                let mut machine = Machine::new(&name, *spec);
                machine.metadata.namespace = Some("team".into());
                machine.metadata.uid = Some(format!("uid-{}", self.recorded));
                machine.metadata.creation_timestamp = Some(now);
                machine.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
                self.machines.insert(name, machine);
            }
            PoolAction::DeleteMachine {
                name, finish_runs, ..
            } => self.delete_machine(&name, finish_runs),
            PoolAction::DeleteUnrecorded(provider, machine) => {
                drop(
                    self.cloud(&provider)
                        .machines
                        .remove(&machine.id.unwrap_or_default()),
                );
            }
            PoolAction::EnsureKey
            | PoolAction::Release { .. }
            | PoolAction::DeleteLogs
            | PoolAction::ReleaseKey => {}
        }
    }

    /// A Machine is deleted, by its Pool or by a person.
    pub(super) fn delete_machine(&mut self, name: &str, finish_runs: bool) {
        let now = self.now;
        let machine = self.machines.get_mut(name).unwrap();
        machine.metadata.deletion_timestamp.get_or_insert(Time(now));
        if finish_runs {
            machine
                .annotations_mut()
                .insert(labels::FINISH_RUNS.into(), String::new());
        }
    }

    // Machines

    fn look_at_machine(&mut self, name: &str) -> bool {
        if self.asked.get(name) == Some(&self.now) {
            return false;
        }
        let mut memory = self.memories.remove(name).unwrap_or_default();
        let mut outcomes = Outcomes::default();
        let mut changed = false;
        loop {
            let machine = self.machines[name].clone();
            let plan = {
                let looked = self.looked(&machine, std::mem::take(&mut outcomes));
                let seen = looked.observed(&mut memory, self.now);
                crate::machine::plan::plan(&seen, self.now)
            };
            memory.order_not_before = plan.order_not_before;
            if let Some((what, why)) = &plan.shortage {
                self.unavailable.note(what.clone(), why.clone(), self.now);
            }
            // That it stays connected is no news.
            let is_connected = self.sessions.contains_key(name);
            let changes = |action: &&MachineAction| match action {
                MachineAction::Connect { .. } => !is_connected,
                MachineAction::Disconnect => is_connected,
                _ => true,
            };
            let actions: Vec<_> = plan.actions.iter().filter(changes).collect();
            if !actions.is_empty() || plan.status.is_some() || !plan.events.is_empty() {
                let old = machine.status.clone().unwrap_or_default();
                let block = render::machine(&old, &plan, &actions, self.now);
                self.tell(&format!("Machine {name}"), &block);
                changed = true;
            }
            if let Some(status) = plan.status {
                memory.last_write = Some(self.now);
                self.machines.get_mut(name).unwrap().status = Some(*status);
            }
            for action in plan.actions {
                self.act_on_machine(name, &machine, &action, &mut outcomes, &mut memory);
            }
            if !self.machines.contains_key(name) {
                self.due.remove(name);
                return true;
            }
            self.schedule(name, plan.next);
            if plan.next != Next::Again {
                self.memories.insert(name.to_owned(), memory);
                return changed;
            }
        }
    }

    fn looked<'a>(&'a self, machine: &'a Machine, outcomes: Outcomes) -> Looked<'a> {
        let facts = facts::machine_facts(machine);
        let cloud = &self.clouds[&facts.spec.provider];
        let answer = match &cloud.account {
            _ if !facts.is_asked_about() || cloud.object.is_none() => LookupOutcome::Unknown(None),
            Err(problem) => LookupOutcome::of(Err(problem.clone())),
            Ok(_) => {
                let found = cloud.find(&facts.reference(CLUSTER));
                LookupOutcome::of(Ok(found.map(|id| cloud.machines[&id].0.clone())))
            }
        };
        let hashes = self.pool.as_ref().map(|pool| template_hashes(&pool.spec));
        let terms = || Terms {
            namespace: self.namespace.clone(),
            provider: self.provider_facts(&facts.spec.provider),
            provider_goes: cloud
                .object
                .as_ref()
                .is_some_and(|object| object.metadata.deletion_timestamp.is_some()),
            beyond: beyond(machine),
            budget: self.pool.as_ref().and_then(|pool| {
                let machines: Vec<_> = self.machines.values().cloned().map(Arc::new).collect();
                of_budget(pool, &machines, self.now)
            }),
        };
        Looked {
            current: hashes.is_some_and(|hashes| hashes.contains(&facts.spec.template_hash)),
            pool: self.pool.clone().map(Arc::new),
            provider: cloud.object.as_ref(),
            capabilities: cloud.object.as_ref().map(|_| &cloud.capabilities),
            kind: Some(&cloud.capabilities),
            terms: facts.may_be_ordered().then(terms),
            tells_changes: false,
            answer,
            asked_at: self.now,
            session: self.sessions.get(&facts.name).map(|session| self.state(session)),
            runs: Some(self.load.runs.get(&facts.name).copied().unwrap_or(0)),
            outcomes,
            machine,
            facts,
        }
    }

    /// A session reaches its machine after 3 s, and its agent after 20 s.
    fn state(&self, session: &Session) -> SessionState {
        let after = |seconds| session.began + SignedDuration::from_secs(seconds);
        let by = |seconds| Some(after(seconds)).filter(|at| *at <= self.now && !self.unreachable);
        let stage = match (session.lost, by(3), by(20)) {
            (Some(since), ..) => Stage::Reconnecting {
                last_error: "the connection timed out".into(),
                since,
            },
            (None, None, _) => Stage::Dialing {
                last_error: self.unreachable.then(|| "connection refused".into()),
            },
            (None, Some(_), None) => Stage::Bootstrapping {
                step: "packages".into(),
                index: 3,
                total: 6,
            },
            (None, Some(_), Some(_)) => self.bootstrap.clone().map_or(Stage::Ready, Stage::Failed),
        };
        let ready = by(20).filter(|_| self.bootstrap.is_none());
        SessionState {
            stage,
            host_key: by(3).map(|_| "ssh-ed25519 AAAA".into()),
            reachable_at: by(3),
            bootstrapped_at: ready,
            ready_at: ready,
            ..SessionState::default()
        }
    }

    fn act_on_machine(
        &mut self,
        name: &str,
        machine: &Machine,
        action: &MachineAction,
        outcomes: &mut Outcomes,
        memory: &mut MachineMemory,
    ) {
        let facts = facts::machine_facts(machine);
        let now = self.now;
        match action {
            MachineAction::Order => {
                let answer = self.order(&facts);
                memory.ordered(&answer, self.now);
                outcomes.order = Some(answer);
            }
            MachineAction::Connect { .. } => {
                self.sessions.entry(name.to_owned()).or_insert(Session {
                    began: now,
                    lost: None,
                });
            }
            MachineAction::Disconnect => drop(self.sessions.remove(name)),
            MachineAction::Delete => {
                self.asked.insert(name.to_owned(), now);
                let cloud = self.clouds.get_mut(&facts.spec.provider).unwrap();
                outcomes.deletion = Some(match (&cloud.account, cloud.find(&facts.reference(CLUSTER))) {
                    (Err(problem), _) => Err(problem.clone()),
                    (Ok(_), _) if cloud.foreign => Ok(Deletion::Foreign),
                    (Ok(_), None) => Ok(Deletion::Gone),
                    (Ok(_), Some(id)) => {
                        let (machine, at) = cloud.machines.get_mut(&id).unwrap();
                        if machine.phase != ProviderPhase::Stopping {
                            machine.phase = ProviderPhase::Stopping;
                            *at = now + SignedDuration::from_secs(cloud.takes.1);
                        }
                        Ok(Deletion::InProgress)
                    }
                });
            }
            MachineAction::RemoveFinalizer => {
                self.machines.remove(name);
                self.sessions.remove(name);
            }
            MachineAction::DoubtLeadership => panic!("nobody else leads"),
        }
    }

    /// Orders a machine, which takes a second.
    fn order(&mut self, facts: &facts::MachineFacts) -> Result<String, ProviderError> {
        self.now += SignedDuration::from_secs(1);
        let now = self.now;
        let cloud = self.clouds.get_mut(&facts.spec.provider).unwrap();
        if let Some(problem) = cloud
            .next_orders
            .pop_front()
            .or_else(|| cloud.every_order.clone())
        {
            return Err(problem);
        }
        self.ordered += 1;
        let id = format!("i-{}", self.ordered);
        let machine = ProviderMachine {
            id: id.clone(),
            mark: facts.mark(CLUSTER),
            phase: ProviderPhase::starting("it boots"),
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: Rental {
                hourly_price: cloud.bills,
                ..Rental::default()
            },
        };
        let starts = now + SignedDuration::from_secs(cloud.takes.0);
        cloud.machines.insert(id.clone(), (machine, starts));
        Ok(id)
    }
}

/// The time since the start of the story.
fn clock(now: Timestamp) -> String {
    let passed = now.duration_since(start()).as_secs();
    format!("{:02}:{:02}:{:02}", passed / 3600, passed / 60 % 60, passed % 60)
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A status without what is written only together with something else.
fn uncounted(status: &PoolStatus) -> PoolStatus {
    let mut status = status.clone();
    (status.running_tasks, status.waiting_tasks) = (0, 0);
    if let Some(cost) = &mut status.cost {
        cost.spent.clear();
    }
    status
}

/// How a step of a bootstrap fails.
pub(super) fn step_fails(message: &str, output: &str) -> SessionFailure {
    SessionFailure {
        kind: session::FailureKind::StepFailed,
        step: Some("packages".into()),
        message: message.to_owned(),
        diagnosis: Some(Box::new(skyward_core::diagnosis::Diagnosis::of(message, output))),
    }
}

/// How a machine of a cloud ends by itself.
pub(super) fn fails(kind: FailureKind, message: &str) -> ProviderPhase {
    ProviderPhase::Failed(Failure {
        kind,
        message: message.into(),
    })
}
