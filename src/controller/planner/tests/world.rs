//! A small world that plans act on: a Pool, its Machines, and Providers whose clouds do as they
//! are told. Each look is planned by the real plans, written down, and carried out.

mod cloud;
mod machines;
mod pools;
mod providers;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt as _;
use serde_json::{Value, json};
use skyward_api::{
    Machine, Offer as OfferObject, Pool, Provider,
    condition::{READY, find},
    labels,
    offer::Architecture,
    pool::{PoolSpec, PoolStatus},
};
use skyward_core::{
    Capabilities, Deletion, ErrorKind, MachineRef, ProviderError, ProviderMachine, ProviderPhase, Usd,
    machine::{Endpoint, FailureKind, Rental},
    offer,
    session::{self, EnvironmentState, SessionFailure, SessionState, Stage},
};

use super::render;
use cloud::merge;

use crate::{
    accounts::{
        cost::{Pseudonyms, spent_this_month},
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        host_keys::are_proved,
        limits::standing,
        offers::OfferIndex,
        quota::{Used, beyond, counted},
        resolved::ResolvedProvider,
        unavailable::UnavailableOfferings,
    },
    base::{digest::short_digest, requeue::Next},
    machine::{
        facts::{self, Asked, Looked, LookupOutcome, MachineMemory, Outcomes, Terms},
        plan::draft::Action as MachineAction,
    },
    pool::{
        self,
        environment::{Contents, HASH, canonical},
        facts::{Observed, Refusal, RemainingMachines, Unread, machine_facts, pool_facts, providers_of},
        load::PoolLoad,
        plan::{audit::audit, bootstraps::tried_with, cost::of_budget, draft::Action as PoolAction},
        resolved::{ResolvedPool, Timeouts},
    },
    provider::{
        deletion::{self, Left, Owners},
        plan::{self as provider, ProviderMemory, Refresh},
    },
    restore::verdict::Verdict,
};
pub(super) use cloud::{Cloud, error, fails, sold, step_fails};

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
    /// The environment that it is asked to make.
    asked_for: Option<String>,
    /// The environment that its runs find.
    in_use: Option<String>,
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
    /// How each change of an environment fails.
    pub(super) environment_fails: Option<SessionFailure>,
    /// Machines that no SSH answers on.
    pub(super) unreachable: bool,
    /// Machines never prove their host keys.
    pub(super) unproved: bool,
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
            environment_fails: None,
            unreachable: false,
            unproved: false,
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
}

/// The time since the start of the story.
fn clock(now: Timestamp) -> String {
    let passed = now.duration_since(start()).as_secs();
    format!("{:02}:{:02}:{:02}", passed / 3600, passed / 60 % 60, passed % 60)
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}
