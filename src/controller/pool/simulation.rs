//! A Pool, its Machines and a provider over thousands of steps: lagging caches, lost
//! answers, crashes between any two effects, machines that fail, vanish or are deleted
//! by hand, a user who changes her mind. Plans are the real ones, effects are those of
//! `act.rs` in the same order. At the end the world must be what the spec asks for, and
//! after the Pool's deletion nothing may be left anywhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use rand::{Rng, SeedableRng, rngs::StdRng};
use skyward_api::{Machine, MachinePhase, Pool, machine::Market, pool::Place, provider::HostKeyPolicy};
use skyward_core::{
    Deletion, ErrorKind, ProviderError, ProviderMachine, ProviderPhase,
    machine::{Failure, FailureKind},
};
use skyward_remote::sessions::{SessionState, Stage};

use super::{
    observe::{self, Leftovers, MachineFacts, Observed},
    plan::{self, Action, audit::audit},
    template::template_hashes,
    tests::{at, world},
};
use crate::{
    board::PoolLoad,
    machine::{
        self,
        observe::{Account, Answer},
        plan::Action as MachineAction,
    },
    provider::{
        offers::{Book, tests::offer},
        shortage::{REMEMBERED, Shortages},
    },
};

/// What is true, and what a controller that may crash believes.
struct World {
    random: StdRng,
    now: i64,
    // The API server.
    pool: Observed,
    version: u64,
    machines: BTreeMap<String, Machine>,
    pool_gone: bool,
    // The provider.
    rented: BTreeMap<String, ProviderMachine>,
    // The dispatcher: runs, and machines that it knows to be given up.
    runs: BTreeMap<String, u32>,
    closed: BTreeSet<String>,
    // Memory of the controller: gone with a crash.
    seen_pool: Observed,
    seen_version: u64,
    seen_machines: BTreeMap<String, Machine>,
    reserved: BTreeMap<String, (u32, u32)>,
    sessions: BTreeMap<String, SessionState>,
    last_write: BTreeMap<String, Timestamp>,
    shortages: Shortages,
    // For the rules.
    attempts: BTreeSet<u32>,
    calm: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut pool = world(3);
        let price = |price: &str| serde_json::json!({ "onDemandPrice": price });
        let book = Book::of([offer("local-x", price("1")), offer("local-y", price("2"))]);
        pool.offers = BTreeMap::from([("local".to_owned(), Arc::new(book))]);
        pool.pool.status.last_attempt = 0;
        pool.pool.spec.max_provision_attempts = Some(1000);
        Self {
            random: StdRng::seed_from_u64(seed),
            now: 100_000,
            seen_pool: pool.clone(),
            pool,
            version: 1,
            seen_version: 1,
            machines: BTreeMap::new(),
            pool_gone: false,
            rented: BTreeMap::new(),
            runs: BTreeMap::new(),
            closed: BTreeSet::new(),
            seen_machines: BTreeMap::new(),
            reserved: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_write: BTreeMap::new(),
            shortages: Shortages::default(),
            attempts: BTreeSet::new(),
            calm: false,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        !self.calm && self.random.random_ratio(percent, 100)
    }

    /// The watches catch up.
    fn sync(&mut self) {
        self.seen_pool = self.pool.clone();
        self.seen_version = self.version;
        self.seen_machines = self.machines.clone();
        self.reserved.clear();
    }

    fn crash(&mut self) {
        self.sessions.clear();
        self.last_write.clear();
        self.shortages = Shortages::default();
        self.closed.clear();
        self.sync();
    }

    fn load(&self) -> PoolLoad {
        PoolLoad {
            runs: self.runs.clone(),
            ..PoolLoad::default()
        }
    }

    fn observe_pool(&mut self) -> Observed {
        let mut seen = self.seen_pool.clone();
        seen.shortages = Arc::new(self.shortages.clone());
        let known = self.calm || !self.random.random_ratio(1, 5);
        let load = known.then(|| self.load());
        let hash = template_hashes(&seen.pool.spec);
        seen.machines = self
            .seen_machines
            .values()
            .map(|m| observe::machine_facts(m, &hash, load.as_ref()))
            .collect();
        seen.machines
            .extend(self.reserved.iter().map(|(name, (slot, attempt))| MachineFacts {
                name: name.clone(),
                uid: None,
                slot: *slot,
                attempt: *attempt,
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
                place: Place::default(),
                market: Market::OnDemand,
                reclaimed: false,
                bill: None,
                concern: None,
            }));
        seen.machines
            .sort_by_key(|machine| (machine.slot, machine.attempt));
        seen.load = load;
        if seen.pool.deleting_since.is_some() && seen.machines.is_empty() && seen.pool.status.last_attempt > 0
        {
            seen.leftovers = if self.chance(30) {
                Leftovers::Unknown("the list failed".into())
            } else {
                let reference = |machine: &ProviderMachine| {
                    let reference = skyward_core::MachineRef {
                        id: Some(machine.id.clone()),
                        mark: machine.mark.clone(),
                        region: String::new(),
                    };
                    ("local".to_owned(), reference)
                };
                Leftovers::Known(self.rented.values().map(reference).collect())
            };
        }
        seen
    }

    fn reconcile_pool(&mut self) {
        if self.pool_gone {
            return;
        }
        let seen = self.observe_pool();
        let plan = plan::plan(&seen, at(self.now));
        assert_eq!(audit(&seen, &plan), Vec::<String>::new());
        let orders: Vec<_> = plan
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::CreateMachine { name, spec } => Some((name.clone(), spec.clone())),
                _ => None,
            })
            .collect();
        for (name, spec) in &orders {
            self.reserved.insert(name.clone(), (spec.slot, spec.attempt));
        }
        if plan.status != seen.pool.status {
            if self.seen_version != self.version {
                for (name, _) in &orders {
                    self.reserved.remove(name);
                }
                return self.sync_pool();
            }
            self.pool.pool.status = plan.status.clone();
            self.version += 1;
            self.sync_pool();
        }
        if self.chance(5) {
            return self.crash();
        }
        for action in &plan.actions {
            match action {
                Action::AddFinalizer | Action::EnsureKey | Action::ReleaseKey | Action::Release { .. } => {}
                Action::CreateMachine { name, spec } => self.create_machine(name, spec),
                Action::DeleteMachine {
                    name,
                    uid,
                    finish_runs,
                    ..
                } => {
                    let now = Time(at(self.now));
                    if let Some(machine) = self
                        .machines
                        .get_mut(name)
                        .filter(|m| m.uid().as_ref() == Some(uid))
                    {
                        machine.metadata.deletion_timestamp.get_or_insert(now);
                        if *finish_runs {
                            machine
                                .annotations_mut()
                                .insert(machine::FINISH_RUNS.into(), String::new());
                        }
                    }
                }
                Action::DeleteLeftover(_, machine) => {
                    self.rented.remove(&machine.mark.machine);
                }
                Action::RemoveFinalizer => {
                    assert!(self.machines.is_empty(), "the Pool goes before its Machines");
                    assert!(self.rented.is_empty(), "the Pool goes while machines are rented");
                    self.pool_gone = true;
                }
            }
            if self.chance(3) {
                return self.crash();
            }
        }
    }

    fn sync_pool(&mut self) {
        self.seen_pool = self.pool.clone();
        self.seen_version = self.version;
    }

    fn create_machine(&mut self, name: &str, spec: &skyward_api::MachineSpec) {
        assert!(
            self.attempts.insert(spec.attempt),
            "attempt {} is used twice",
            spec.attempt
        );
        let holds =
            |machine: &&Machine| machine.status.as_ref().and_then(|s| s.phase) != Some(MachinePhase::Failed);
        let holding = self.machines.values().filter(holds);
        assert!(
            holding.clone().all(|m| m.spec.slot != spec.slot),
            "two live machines in slot {}",
            spec.slot
        );
        assert!(
            holding.count() < self.pool.pool.spec.nodes.desired as usize,
            "more machines than wanted"
        );
        let mut machine = Machine::new(name, spec.clone());
        machine.metadata.namespace = Some("team".into());
        machine.metadata.uid = Some(format!("uid-{name}"));
        machine.metadata.creation_timestamp = Some(Time(at(self.now)));
        machine.metadata.finalizers = Some(vec![skyward_api::labels::FINALIZER.into()]);
        self.machines.insert(name.to_owned(), machine);
    }

    fn reconcile_machine(&mut self, name: &str) {
        let Some(machine) = self.machines.get(name).cloned() else {
            return;
        };
        let mut order = None;
        let mut deletion = None;
        for _ in 0..4 {
            let machine_now = self
                .machines
                .get(name)
                .cloned()
                .unwrap_or_else(|| machine.clone());
            let seen = self.observe_machine(&machine_now, order.take(), deletion.take());
            let plan = machine::plan::plan(&seen, at(self.now));
            if let Some((what, why)) = plan.shortage {
                self.shortages.remember(what, why, at(self.now), REMEMBERED);
            }
            if let Some(status) = plan.status {
                if let Some(machine) = self.machines.get_mut(name) {
                    machine.status = Some(*status);
                }
                self.last_write.insert(name.to_owned(), at(self.now));
            }
            if self.chance(3) {
                return self.crash();
            }
            for action in plan.actions {
                match action {
                    MachineAction::Order => order = Some(self.order(&seen)),
                    MachineAction::Connect { .. } => {
                        self.sessions.entry(name.to_owned()).or_default();
                    }
                    MachineAction::Disconnect => {
                        self.sessions.remove(name);
                    }
                    MachineAction::Abdicate => panic!("nobody else leads"),
                    MachineAction::Delete => {
                        self.may_go(&machine_now);
                        deletion = Some(self.delete(name));
                    }
                    MachineAction::RemoveFinalizer => {
                        assert!(
                            !self.rented.contains_key(name),
                            "{name} is let go while it is rented"
                        );
                        self.machines.remove(name);
                        self.runs.remove(name);
                        return;
                    }
                }
            }
            if plan.next != plan::Next::Again {
                return;
            }
        }
    }

    fn observe_machine(
        &mut self,
        machine: &Machine,
        order: Option<Result<String, ProviderError>>,
        deletion: Option<Result<Deletion, ProviderError>>,
    ) -> machine::observe::Observed {
        let facts = machine::observe::machine_facts(machine);
        let provider = if self.chance(10) || facts.has_failed() {
            Answer::Unknown(None)
        } else {
            self.rented
                .get(&facts.name)
                .map_or(Answer::Absent, |there| Answer::There(Box::new(there.clone())))
        };
        let mut template = machine::tests::world();
        let pool: Arc<Pool> = {
            let mut pool = (*machine::tests::pool()).clone();
            pool.metadata.deletion_timestamp = self.pool.pool.deleting_since.map(Time);
            Arc::new(pool)
        };
        template.current = template_hashes(&self.pool.pool.spec).contains(&facts.spec.template_hash);
        template.pool = (!self.pool_gone).then_some(pool);
        // As the Board has it.
        let known = facts.deleting_since.is_none() || self.closed.contains(&facts.name);
        let runs = self.runs.get(&facts.name).copied().unwrap_or(0);
        template.runs = ((known || runs > 0) && !self.chance(20)).then_some(runs);
        template.session = self.sessions.get(&facts.name).cloned();
        template.last_write = self.last_write.get(&facts.name).copied();
        template.machine = facts;
        template.account = Account::Ready {
            policy: HostKeyPolicy::TrustOnFirstUse,
        };
        template.provider = provider;
        template.order = order;
        template.deletion = deletion;
        template.settle_time = Duration::ZERO;
        template
    }

    /// A machine whose runs may finish is not deleted under them.
    fn may_go(&self, machine: &Machine) {
        let name = machine.name_any();
        let status = machine.status.clone().unwrap_or_default();
        let works = status.ready_at.is_some() && status.phase != Some(MachinePhase::Failed);
        let runs_on = self
            .rented
            .get(&name)
            .is_some_and(|there| there.phase == ProviderPhase::Running);
        let may_finish = machine.annotations().contains_key(machine::FINISH_RUNS);
        if works && runs_on && may_finish && self.pool.pool.deleting_since.is_none() {
            let runs = self.runs.get(&name).copied().unwrap_or(0);
            assert_eq!(runs, 0, "{name} is deleted under its runs");
        }
    }

    fn order(&mut self, seen: &machine::observe::Observed) -> Result<String, ProviderError> {
        let name = seen.machine.name.clone();
        let lost = self.chance(10);
        if self.chance(10) {
            return Err(ProviderError::new(ErrorKind::NoCapacity, "order", "none"));
        }
        self.rented
            .entry(name.clone())
            .or_insert_with(|| ProviderMachine {
                id: format!("id-{name}"),
                mark: seen.machine.mark("cluster"),
                phase: ProviderPhase::Starting(None),
                endpoint: None,
                private_address: None,
                host_key: None,
                rental: skyward_core::machine::Rental::default(),
            });
        if lost {
            return Err(ProviderError::new(
                ErrorKind::Indeterminate,
                "order",
                "the answer was lost",
            ));
        }
        Ok(format!("id-{name}"))
    }

    fn delete(&mut self, name: &str) -> Result<Deletion, ProviderError> {
        if self.chance(10) {
            return Err(ProviderError::new(ErrorKind::Transient, "delete", "away"));
        }
        match self.rented.get_mut(name) {
            None => Ok(Deletion::Gone),
            Some(machine) => {
                machine.phase = ProviderPhase::Stopping;
                Ok(Deletion::InProgress)
            }
        }
    }

    /// Time passes at the provider, on machines and for users.
    fn happen(&mut self) {
        self.now += i64::from(self.random.random_range(1..4_u8));
        let names: Vec<String> = self.rented.keys().cloned().collect();
        for name in names {
            let fails = self.chance(2);
            let vanishes = self.chance(1);
            if vanishes {
                self.rented.remove(&name);
                continue;
            }
            let Some(machine) = self.rented.get_mut(&name) else {
                continue;
            };
            match machine.phase {
                ProviderPhase::Stopping => {
                    self.rented.remove(&name);
                }
                _ if fails => {
                    let failure = Failure {
                        kind: FailureKind::Lost,
                        message: "evicted".into(),
                    };
                    machine.phase = ProviderPhase::Failed(failure);
                }
                ProviderPhase::Starting(_) => {
                    machine.phase = ProviderPhase::Running;
                    machine.endpoint = Some(machine::tests::endpoint());
                    machine.private_address = Some("10.0.0.7".into());
                }
                _ => {}
            }
        }
        let now = at(self.now);
        for session in self.sessions.values_mut() {
            session.stage = match session.stage {
                Stage::Dialing { .. } => Stage::Bootstrapping {
                    step: "probe".into(),
                    index: 1,
                    total: 1,
                },
                _ => Stage::Ready,
            };
            session.reachable_at.get_or_insert(now);
            if session.stage == Stage::Ready {
                session.ready_at.get_or_insert(now);
            }
        }
        self.dispatch();
        if self.chance(3) {
            self.pool.pool.spec.nodes.desired = self.random.random_range(0..6);
            self.changed_spec();
        }
        if self.chance(1) {
            self.pool.pool.spec.vcpus = Some(f64::from(self.random.random_range(1..4_u8)));
            self.changed_spec();
        }
        if self.chance(1) {
            self.pool.pool.spec.suspend = Some(self.random.random_bool(0.5));
            self.changed_spec();
        }
        if self.chance(1) && !self.machines.is_empty() {
            let by_hand = self.random.random_range(0..self.machines.len());
            if let Some(machine) = self.machines.values_mut().nth(by_hand) {
                machine.metadata.deletion_timestamp.get_or_insert(Time(now));
            }
        }
    }

    fn changed_spec(&mut self) {
        self.pool.pool.generation += 1;
        self.version += 1;
    }

    /// Runs come to machines that take them, and end.
    fn dispatch(&mut self) {
        let names: Vec<(String, bool, bool)> = self
            .machines
            .iter()
            .map(|(name, machine)| {
                let ready = machine.status.as_ref().and_then(|s| s.phase) == Some(MachinePhase::Ready);
                (name.clone(), ready, machine.metadata.deletion_timestamp.is_some())
            })
            .collect();
        for (name, ready, given_up) in names {
            // What is given up is seen a moment later, and until then it may get a run.
            let takes = ready && !self.closed.contains(&name);
            if given_up && (self.calm || self.random.random_bool(0.5)) {
                self.closed.insert(name.clone());
            }
            let starts = takes && self.chance(10);
            let ends = self.calm || self.random.random_bool(0.2);
            let runs = self.runs.entry(name).or_default();
            *runs = if starts {
                *runs + 1
            } else if ends {
                runs.saturating_sub(1)
            } else {
                *runs
            };
        }
    }

    fn step(&mut self) {
        self.happen();
        if self.chance(70) || self.calm {
            self.sync();
        }
        self.reconcile_pool();
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            if self.calm || self.random.random_bool(0.7) {
                self.reconcile_machine(&name);
            }
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..300 {
        world.step();
    }
    world.calm = true;
    world.pool.pool.spec.suspend = None;
    world.pool.pool.spec.nodes.desired = 3;
    world.changed_spec();
    // Long enough for the longest wait between two tries.
    for _ in 0..400 {
        world.step();
    }
    let hash = template_hashes(&world.pool.pool.spec);
    assert_eq!(
        world.machines.len(),
        3,
        "seed {seed}: {:#?}",
        world.pool.pool.status.conditions
    );
    assert!(
        world
            .machines
            .values()
            .all(|machine| hash.contains(&machine.spec.template_hash)),
        "seed {seed}"
    );
    assert_eq!(world.rented.len(), 3, "seed {seed}");
    assert_eq!(world.pool.pool.status.ready_summary, "3/3", "seed {seed}");
    let seen = world.observe_pool();
    let rest = plan::plan(&seen, at(world.now));
    assert_eq!(
        (rest.actions, rest.events),
        (vec![], vec![]),
        "seed {seed}: it never rests"
    );

    world.calm = false;
    world.pool.pool.deleting_since = Some(at(world.now));
    world.version += 1;
    for _ in 0..40 {
        world.step();
    }
    world.calm = true;
    for _ in 0..200 {
        world.step();
    }
    assert!(
        world.pool_gone && world.machines.is_empty() && world.rented.is_empty(),
        "seed {seed}: something is left"
    );
}

#[test]
fn whatever_happens_the_world_becomes_what_the_spec_asks_for_and_nothing_leaks() {
    // `make soak` brings others, and more of them.
    let first: Option<u64> = std::env::var("SKYWARD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(0..60, |first| first * 600..(first + 1) * 600);
    for seed in seeds {
        run(seed);
    }
}
