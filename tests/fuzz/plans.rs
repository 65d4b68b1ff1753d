//! Objects as the API server may hold them, with any value in any field, through the plans of Provider, Pool and
//! Machine: nothing panics, and what a plan writes can be read again.

mod known;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use skyward_api::{
    Machine, Offer as OfferObject, Pool, Provider, labels, offer::Architecture, provider::HostKeyPolicy,
};
use skyward_core::{
    Capabilities, Deletion, Mark, Offer, ProviderError, ProviderMachine, ProviderPhase, Usd,
    diagnosis::Diagnosis,
    machine::{Endpoint, FailureKind, Rental},
    offer::{Accelerators, Availability, Market},
    provider::HostKeys,
    session::{self, SessionFailure, SessionState, Stage},
};
use skyward_planner::{
    accounts::{
        cost::{Pseudonyms, spent_this_month},
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        limits::standing,
        offers::OfferIndex,
        orphans,
        quota::{Used, beyond, counted},
        resolved::ResolvedProvider,
        unavailable::UnavailableOfferings,
    },
    base::requeue::Next,
    machine::{
        facts::{self, Asked, Looked, LookupOutcome, MachineMemory, Outcomes, Terms},
        plan::draft::Action as MachineAction,
    },
    money,
    pool::{
        self,
        facts::{Observed, RemainingMachines, machine_facts, pool_facts, providers_of},
        load::PoolLoad,
        plan::{bootstraps::tried_with, cost::of_budget, draft::Action as PoolAction},
        resolved::{ResolvedPool, Timeouts},
    },
    provider::{
        deletion::{self, Left, Owners},
        plan::{self as provider, ProviderMemory, Refresh},
    },
    restore::verdict::Verdict,
};

use crate::{
    clouds::refusal,
    document::{clock, document},
};

const CLUSTER: &str = "cluster";
/// Most machines of a world.
const MACHINES: usize = 16;
/// Most looks at one machine without any time that passes.
const LOOKS: usize = 4;

#[derive(Debug)]
struct Unchanged;

impl Pseudonyms for Unchanged {
    fn pseudonym(&self, namespace: &str) -> String {
        format!("#{namespace}")
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![vec![0], vec![1], vec![2]]
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known::known);
    let Some(mut world) = World::of(document(data, &KNOWN)) else {
        return;
    };
    for seconds in std::mem::take(&mut world.pass) {
        let later = world.now.checked_add(SignedDuration::from_secs(seconds));
        world.now = clock(later.unwrap_or(Timestamp::MAX)).max(world.now);
        world.look_at_provider();
        world.look_at_pool();
        let names: Vec<String> = world.machines.keys().take(MACHINES).cloned().collect();
        for name in names {
            world.look_at_machine(&name);
        }
    }
}

/// What is written can be read again, and is the same.
fn readable<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(what: &T) {
    let mut written = serde_json::to_value(what).expect("a status is JSON");
    let is_changed = in_our_era(&mut written);
    let text = written.to_string();
    let read = serde_json::from_str::<T>(&text);
    let is_same = read.as_ref().is_ok_and(|read| {
        if is_changed {
            serde_json::to_value(read).is_ok_and(|again| again == written)
        } else {
            read == what
        }
    });
    assert!(is_same, "{text} is read as {read:?}");
}

/// Puts the year 0 into the place of each year before it, which no API server takes and no reader reads: whether
/// there was one.
fn in_our_era(value: &mut Value) -> bool {
    let mut is_changed = false;
    match value {
        Value::String(text) => {
            let rest = text.strip_prefix('-').unwrap_or_default();
            let is_year =
                |(year, _): (&str, &str)| year.len() == 6 && year.bytes().all(|digit| digit.is_ascii_digit());
            is_changed = rest.split_once('-').is_some_and(is_year);
            if is_changed {
                "0000-01-01T00:00:00Z".clone_into(text);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| is_changed |= in_our_era(one)),
        Value::Object(all) => all.values_mut().for_each(|one| is_changed |= in_our_era(one)),
        _ => {}
    }
    is_changed
}

fn read<T: DeserializeOwned>(value: &Value, name: &str) -> Option<T> {
    serde_json::from_value(value[name].clone()).ok()
}

/// Those of a list that can be read.
fn each<T: DeserializeOwned>(value: &Value, name: &str) -> Vec<T> {
    let all = value[name].as_array().into_iter().flatten();
    all.filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect()
}

fn usd(value: &Value) -> Option<Usd> {
    value.as_str()?.parse().ok()
}

fn sold(value: &Value) -> Offer {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| value[name].as_f64().unwrap_or_default();
    Offer {
        id: text("id"),
        instance_type: text("id"),
        region: text("region"),
        accelerators: value["gpu"].as_str().map(|name| Accelerators {
            name: name.to_owned(),
            count: number("count"),
            memory_gb: value["gb"].as_f64(),
            form_factor: None,
        }),
        vcpus: number("vcpus"),
        memory_gb: number("memory"),
        disk_gb: value["disk"].as_f64(),
        architecture: Architecture::Amd64,
        on_demand: usd(&value["onDemand"]),
        spot: usd(&value["spot"]),
        availability: Availability::Yes,
        connected: value["connected"] != json!(false),
        rate_as_of: None,
    }
}

struct World {
    now: Timestamp,
    pass: Vec<i64>,
    raw: Value,
    pool: Option<Pool>,
    provider: Option<Provider>,
    machines: BTreeMap<String, Machine>,
    offers: Vec<Arc<OfferObject>>,
    labels: BTreeMap<String, String>,
    load: PoolLoad,
    memory: ProviderMemory,
    memories: BTreeMap<String, MachineMemory>,
    unavailable: UnavailableOfferings,
    /// How many questions the cloud has answered.
    asked: usize,
}

impl World {
    fn of(raw: Value) -> Option<Self> {
        let machines = each::<Machine>(&raw, "machines");
        let mut world = Self {
            now: clock(read(&raw, "now")?),
            pass: each::<i64>(&raw, "pass").into_iter().take(4).collect(),
            pool: read(&raw, "pool"),
            provider: read(&raw, "provider"),
            machines: machines
                .into_iter()
                .map(|machine| (machine.name_any(), machine))
                .collect(),
            offers: each(&raw, "offers").into_iter().map(Arc::new).collect(),
            labels: read(&raw, "labels").unwrap_or_default(),
            load: PoolLoad {
                queued: read(&raw["load"], "queued").unwrap_or_default(),
                running: read(&raw["load"], "running").unwrap_or_default(),
                unstored: read(&raw["load"], "unstored").unwrap_or_default(),
                runs: read(&raw["load"], "runs").unwrap_or_default(),
                ..PoolLoad::default()
            },
            memory: ProviderMemory::default(),
            memories: BTreeMap::new(),
            unavailable: UnavailableOfferings::default(),
            asked: 0,
            raw,
        };
        if let Some(provider) = &world.provider {
            let barred = provider.status.clone().unwrap_or_default().barred_offers;
            world.unavailable.recall(&provider.name_any(), &barred, world.now);
        }
        Some(world)
    }

    /// The next answer of the cloud.
    fn answer(&mut self) -> Option<ProviderError> {
        let answers = self.raw["answers"].as_array().map_or(&[][..], Vec::as_slice);
        let answer = answers
            .get(self.asked % answers.len().max(1))
            .and_then(Value::as_u64);
        self.asked += 1;
        refusal(answer.unwrap_or_default())
    }

    fn name(&self) -> String {
        self.provider
            .as_ref()
            .map(ResourceExt::name_any)
            .unwrap_or_default()
    }

    fn capabilities() -> Capabilities {
        Capabilities {
            markets: &[Market::OnDemand, Market::Spot],
            connected: true,
            host_keys: HostKeys::Proved,
            ..Capabilities::of("verda")
        }
    }

    fn shown(&self) -> Vec<Arc<Machine>> {
        self.machines.values().cloned().map(Arc::new).collect()
    }

    fn look_at_provider(&mut self) {
        let answer = self.answer();
        let Some(object) = self.provider.clone() else {
            return;
        };
        let sold: Vec<Offer> = self.raw["sold"]
            .as_array()
            .into_iter()
            .flatten()
            .map(sold)
            .collect();
        let shown = self.shown();
        let machines = u32::try_from(shown.len()).unwrap_or(u32::MAX);
        let refresh = match answer {
            _ if !provider::is_due(&object, &self.memory, Some("1"), self.now) => Refresh::NotAsked,
            Some(error) => Refresh::Failed(error),
            None => provider::other_account(&object, machines, &shown, "acme").map_or(
                Refresh::Complete {
                    account: "acme".into(),
                    offers: sold,
                },
                Refresh::Failed,
            ),
        };
        let rented: Vec<ProviderMachine> = shown.iter().filter_map(|machine| self.rented(machine)).collect();
        let owners = Owners::of(&object, [&object], shown.iter().map(AsRef::as_ref), &self.pool);
        let left = deletion::left(CLUSTER, &rented, &[], &owners);
        let observed = provider::Observed {
            verdict: Verdict::default(),
            machines,
            barred: self.unavailable.barred(&object.name_any(), self.now),
            offers: self.offers.clone(),
            answer: refresh,
            left: if self.asked.is_multiple_of(3) {
                Left::NotAsked
            } else {
                left
            },
            capabilities: Some(Self::capabilities()),
            shown,
            provider: Arc::new(object),
        };
        let plan = provider::plan(&observed, &mut self.memory, &Unchanged, self.now);
        for machine in &observed.shown {
            let _ = orphans::is_news(machine, &rented);
        }
        for offer in &plan.apply {
            readable(&offer.spec);
        }
        if let Some(status) = plan.status {
            readable(&status);
            if let Some(provider) = &mut self.provider {
                provider.status = Some(status);
            }
        }
        let gone: BTreeSet<String> = plan.delete.into_iter().collect();
        self.offers.retain(|offer| !gone.contains(&offer.name_any()));
        for offer in plan.apply {
            self.offers.retain(|other| other.name_any() != offer.name_any());
            self.offers.push(Arc::new(offer));
        }
        if plan.remove_finalizer {
            self.provider = None;
        }
    }

    fn provider_facts(&self) -> ProviderFacts {
        let object = self.provider.as_ref();
        let standing = standing(
            object.and_then(|object| object.spec.limits.as_ref()),
            Some(&self.labels),
        );
        let shown = self.shown();
        let cost = object.and_then(|object| object.status.as_ref()?.cost.as_ref());
        let month = |limit: Option<Usd>, namespace: Option<&str>| {
            let namespace = namespace.map(|namespace| (namespace, &Unchanged as &dyn Pseudonyms));
            Some((limit?, spent_this_month(cost, &shown, namespace, self.now)))
        };
        let mut used = Used::default();
        for machine in self.machines.values() {
            used.add(counted(machine), true);
        }
        ProviderFacts {
            account: match object {
                None => AccountFacts::NotFound(Vec::new()),
                Some(object) if object.metadata.deletion_timestamp.is_some() => AccountFacts::Deleting,
                Some(_) => AccountFacts::Ready,
            },
            account_id: "acme".into(),
            admits: Ok(()),
            own_nodes: false,
            overridable: object
                .map(|object| object.spec.overridable.iter().cloned().collect())
                .unwrap_or_default(),
            limits: standing.limits,
            used,
            month: month(standing.monthly, None),
            month_in_namespace: month(standing.monthly_in_namespace, Some("team")),
            billing_step_seconds: 60,
            billing_minimum_seconds: 3600,
            proves_host_keys: object
                .is_some_and(|object| object.spec.host_key_policy == Some(HostKeyPolicy::Verified)),
            idle_timeout: object.and_then(|object| ResolvedProvider::of(&object.spec).idle_timeout),
            marketplace: self.asked.is_multiple_of(2),
            unpriced: self.asked.is_multiple_of(3),
        }
    }

    fn look_at_pool(&mut self) {
        let Some(pool) = self.pool.clone() else { return };
        let facts = pool_facts(&pool, Arc::new(ResolvedPool::of(&pool.spec)));
        let of = |machine| machine_facts(machine, &facts.resolved, Some(&self.load));
        let mut machines: Vec<_> = self.machines.values().map(of).collect();
        machines.sort_by_key(|machine| (machine.slot, machine.attempt));
        let named: BTreeSet<String> = facts.spec.providers().into_iter().map(str::to_owned).collect();
        let generations = named.iter().map(|name| (name.clone(), Some(1))).collect();
        let offers = Arc::new(OfferIndex::of(self.offers.iter().cloned()));
        let seen = Observed {
            cluster: CLUSTER.into(),
            load: Some(self.load.clone()),
            providers: named
                .iter()
                .map(|name| (name.clone(), self.provider_facts()))
                .collect(),
            namespace: NamespaceFacts::Active,
            missing_references: Ok(Vec::new()),
            too_large_references: None,
            tried_with: tried_with(&facts.spec, Some("1"), &generations),
            has_references: false,
            environment: Some(format!("{:012x}", self.now.as_second() % 3)),
            offers: named.iter().map(|name| (name.clone(), offers.clone())).collect(),
            unavailable: Arc::new(self.unavailable.clone()),
            architectures: [Architecture::Amd64].into(),
            leftovers: if machines.is_empty() && !providers_of(&facts).is_empty() {
                RemainingMachines::Known(Vec::new())
            } else {
                RemainingMachines::NotAsked
            },
            refusal: None,
            unread: Vec::new(),
            nonce: 7,
            machines,
            pool: facts,
        };
        let plan = pool::plan::plan(&seen, self.now);
        readable(&plan.status);
        assert!(plan.actions.len() <= 10_000, "{} effects", plan.actions.len());
        if let Some(pool) = &mut self.pool {
            pool.status = Some(plan.status);
        }
        for action in plan.actions {
            match action {
                PoolAction::AddFinalizer => {
                    if let Some(pool) = &mut self.pool {
                        pool.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
                    }
                }
                PoolAction::RemoveFinalizer => self.pool = None,
                PoolAction::CreateMachine { name, spec } if self.machines.len() < MACHINES => {
                    readable(&*spec);
                    let mut machine = Machine::new(&name, *spec);
                    machine.metadata.namespace = Some("team".into());
                    machine.metadata.uid = Some(format!("uid-{name}"));
                    machine.metadata.creation_timestamp = Some(Time(self.now));
                    machine.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
                    self.machines.insert(name, machine);
                }
                PoolAction::DeleteMachine { name, .. } => {
                    if let Some(machine) = self.machines.get_mut(&name) {
                        machine.metadata.deletion_timestamp.get_or_insert(Time(self.now));
                    }
                }
                _ => {}
            }
        }
    }

    /// The machine of a record, as its cloud shows it.
    fn rented(&self, machine: &Machine) -> Option<ProviderMachine> {
        let rented = &self.raw["rented"];
        let failed = |kind| ProviderPhase::failed(kind, "it failed");
        let phase = match rented["phase"].as_u64()? % 8 {
            0 => ProviderPhase::starting("it boots"),
            1 => ProviderPhase::Running,
            2 => ProviderPhase::Stopping,
            3 => ProviderPhase::Stopped("it stopped".into()),
            4 => failed(FailureKind::Reclaimed),
            5 => failed(FailureKind::OutOfMemory),
            6 => failed(FailureKind::ImagePull),
            _ => return None,
        };
        let time = |name: &str| read::<Timestamp>(rented, name);
        Some(ProviderMachine {
            id: machine
                .status
                .as_ref()
                .map(|status| status.id.clone())
                .unwrap_or_default(),
            mark: Mark {
                cluster: CLUSTER.into(),
                namespace: "team".into(),
                pool: machine.spec.pool.clone(),
                pool_uid: machine.spec.pool_uid.clone(),
                machine: machine.name_any(),
                machine_uid: machine.uid().unwrap_or_default(),
                slot: machine.spec.slot,
                attempt: machine.spec.attempt,
            },
            phase,
            endpoint: Endpoint::ssh("root", rented["address"].as_str()),
            private_address: read(rented, "private"),
            private_interface: None,
            host_key: read(rented, "hostKey"),
            rental: Rental {
                region: read(rented, "region"),
                hourly_price: usd(&rented["price"]),
                billed_since: time("billedSince"),
                reclaim_at: time("reclaimAt"),
            },
        })
    }

    fn session(&self) -> Option<SessionState> {
        let text = |name: &str| read::<String>(&self.raw, name).unwrap_or_default();
        let stage = match self.raw["session"].as_u64()? % 9 {
            0 => Stage::Dialing { last_error: None },
            1 => Stage::Dialing {
                last_error: Some(text("output")),
            },
            2 => Stage::Bootstrapping {
                step: text("step"),
                index: u32::MAX,
                total: 0,
            },
            3 => Stage::Ready,
            4 => Stage::EpochAhead,
            5 => Stage::Reconnecting {
                last_error: text("output"),
                since: self.now,
            },
            6 => Stage::Failed(SessionFailure {
                kind: session::FailureKind::StepFailed,
                step: Some(text("step")),
                message: text("output"),
                diagnosis: Some(Box::new(Diagnosis::of("failed (exit code 1)", &text("output")))),
            }),
            7 => Stage::Unproved {
                last_error: text("output"),
            },
            _ => return None,
        };
        let is_trusted = !matches!(stage, Stage::Unproved { .. });
        Some(SessionState {
            host_key: is_trusted.then(|| "ssh-ed25519 AAAA".into()),
            reachable_at: is_trusted.then_some(self.now),
            bootstrapped_at: Some(self.now),
            ready_at: (stage == Stage::Ready).then_some(self.now),
            stage,
            ..SessionState::default()
        })
    }

    fn look_at_machine(&mut self, name: &str) {
        let mut memory = self.memories.remove(name).unwrap_or_default();
        let mut outcomes = Outcomes::default();
        for _ in 0..LOOKS {
            let Some(machine) = self.machines.get(name).cloned() else {
                return;
            };
            let answer = self.answer();
            let plan = self.plan_machine(&machine, std::mem::take(&mut outcomes), &mut memory, answer);
            memory.order_not_before = plan.order_not_before;
            if let Some((what, why)) = &plan.shortage {
                self.unavailable.note(what.clone(), why.clone(), self.now);
            }
            if let Some(status) = plan.status {
                readable(&*status);
                memory.last_write = Some(self.now);
                if let Some(machine) = self.machines.get_mut(name) {
                    machine.status = Some(*status);
                }
            }
            for action in plan.actions {
                let refused = self.answer();
                match action {
                    MachineAction::Order => {
                        let answer = refused.map_or_else(|| Ok(format!("i-{}", self.asked)), Err);
                        memory.ordered(&answer, self.now);
                        outcomes.order = Some(answer);
                    }
                    MachineAction::Delete => {
                        outcomes.deletion = Some(refused.map_or(Ok(Deletion::InProgress), Err));
                    }
                    MachineAction::RemoveFinalizer => drop(self.machines.remove(name)),
                    _ => {}
                }
            }
            if plan.next != Next::Again {
                break;
            }
        }
        self.memories.insert(name.to_owned(), memory);
    }

    fn plan_machine(
        &self,
        machine: &Machine,
        outcomes: Outcomes,
        memory: &mut MachineMemory,
        refused: Option<ProviderError>,
    ) -> skyward_planner::machine::plan::draft::Plan {
        let facts = facts::machine_facts(machine);
        let resolved = self.pool.as_ref().map(|pool| ResolvedPool::of(&pool.spec));
        let capabilities = Self::capabilities();
        let answer = refused.map_or_else(|| Ok(self.rented(machine)), Err);
        let shown = self.shown();
        let looked = Looked {
            timeouts: resolved
                .as_ref()
                .map_or_else(Timeouts::default, |pool| pool.timeouts),
            current: resolved
                .as_ref()
                .is_some_and(|resolved| resolved.asks_for(machine)),
            asked: resolved
                .as_ref()
                .and_then(|resolved| Asked::of(resolved, machine)),
            pool: self.pool.clone().map(Arc::new),
            provider: self
                .provider
                .as_ref()
                .filter(|_| facts.spec.provider == self.name()),
            capabilities: Some(&capabilities),
            kind: Some(&capabilities),
            terms: facts.may_be_ordered().then(|| Terms {
                namespace: NamespaceFacts::Active,
                provider: self.provider_facts(),
                provider_goes: false,
                beyond: beyond(machine),
                budget: self
                    .pool
                    .as_ref()
                    .and_then(|pool| of_budget(pool, &shown, self.now)),
            }),
            tells_changes: false,
            answer: LookupOutcome::of(answer),
            asked_at: self.now,
            session: self.session(),
            runs: self.load.runs.get(&facts.name).copied(),
            outcomes,
            machine,
            facts,
        };
        let _ = money::so_far(machine, self.now).total().exact();
        let seen = looked.observed(memory, self.now);
        skyward_planner::machine::plan::plan(&seen, self.now)
    }
}
