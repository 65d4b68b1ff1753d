//! The controller process: its caches, its memory and its due work. A crash loses all of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{Resource, ResourceExt};
use rand::{Rng, seq::SliceRandom};
use skyward_api::{Machine, Pool, Provider};
use skyward_planner::{
    accounts::{orphans::Sightings, unavailable::UnavailableOfferings},
    base::key::{Key, key_of},
    machine::facts::MachineMemory,
    pool::{load::PoolLoad, resolved::ResolvedPools},
    provider::plan::ProviderMemory,
};
use skyward_remote::sessions::{FailureKind, SessionFailure, SessionState, Stage};

use super::{client::Client, world::World};
use crate::{
    accounts::{
        fleet::Fleet,
        offers::Offers,
        sweeps::{key_sweep, resource_sweep},
    },
    hints::pool_loads::PoolLoads,
    newest::Newest,
    restore::Holds,
};

/// What can be due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    Provider(String),
    Pool(String),
    Machine(String),
    Sweep,
    LeftoverSweep,
    KeySweep,
}

impl Work {
    /// Whether it is due again and again.
    pub(super) const fn is_periodic(&self) -> bool {
        matches!(
            self,
            Self::Provider(_) | Self::Sweep | Self::LeftoverSweep | Self::KeySweep
        )
    }
}

/// A connection to a machine.
pub(super) struct Session {
    pub(super) state: SessionState,
    /// When it takes its next step.
    pub(super) next: i64,
}

/// The process.
#[derive(Default)]
pub(super) struct Process {
    pub(super) began: i64,
    pub(super) pools: BTreeMap<String, Arc<Pool>>,
    pub(super) machines: BTreeMap<String, Arc<Machine>>,
    pub(super) providers: BTreeMap<String, Arc<Provider>>,
    pub(super) newest_pools: Newest<Pool>,
    pub(super) newest_machines: Newest<Machine>,
    pub(super) newest_providers: Newest<Provider>,
    pub(super) fleet: Fleet,
    /// When the Machines were created that no watch has shown yet.
    pub(super) reserved: BTreeMap<String, i64>,
    /// The Machines that were found without a watch.
    pub(super) looked_up: BTreeMap<String, Arc<Machine>>,
    pub(super) offers: Offers,
    pub(super) loads: PoolLoads,
    pub(super) clients: BTreeMap<String, Client>,
    pub(super) taking_over: BTreeMap<String, (String, Client)>,
    /// By UID of the Machine.
    pub(super) memories: BTreeMap<String, MachineMemory>,
    pub(super) inherited: BTreeSet<String>,
    pub(super) looks: BTreeMap<String, (String, ProviderMemory)>,
    pub(super) sessions: BTreeMap<String, Session>,
    pub(super) unavailable: Arc<UnavailableOfferings>,
    pub(super) orphans: BTreeMap<String, Sightings>,
    pub(super) left: BTreeMap<String, resource_sweep::Sightings>,
    pub(super) lost_keys: key_sweep::Sightings,
    /// Machines that the dispatchers know are given up.
    pub(super) closed: BTreeSet<String>,
    /// Its evidence of old memory, in a history with a restore.
    pub(super) holds: Arc<Holds>,
    pub(super) due: BTreeMap<Work, i64>,
    pub(super) resolved: ResolvedPools,
}

impl Process {
    pub(super) fn wake(&mut self, work: Work, at: i64) {
        let due = self.due.entry(work).or_insert(at);
        *due = (*due).min(at);
    }

    /// Wakes the Pools that name a Provider.
    pub(super) fn wake_pools_of(&mut self, provider: &str, now: i64) {
        let named: Vec<String> = self
            .pools
            .values()
            .filter(|pool| pool.spec.providers().contains(provider))
            .map(|pool| pool.name_any())
            .collect();
        for pool in named {
            self.wake(Work::Pool(pool), now);
        }
    }

    pub(super) fn wake_machines(&mut self, are_meant: impl Fn(&Machine) -> bool, now: i64) {
        let meant: Vec<String> = self
            .machines
            .values()
            .filter(|machine| are_meant(machine))
            .map(|machine| machine.name_any())
            .collect();
        for machine in meant {
            self.wake(Work::Machine(machine), now);
        }
    }

    /// An account is used now, or is not any more.
    pub(super) fn accounts_changed(&mut self, now: i64) {
        for pool in self.pools.keys().cloned().collect::<Vec<_>>() {
            self.wake(Work::Pool(pool), now);
        }
        self.wake_machines(|_| true, now);
        self.wake(Work::Sweep, now);
    }

    fn show_pools(&mut self, now: i64, stored: &BTreeMap<String, Arc<Pool>>) {
        let news = |pool: &Arc<Pool>| {
            (
                pool.metadata.generation,
                pool.metadata.deletion_timestamp.is_some(),
            )
        };
        let before = std::mem::replace(&mut self.pools, stored.clone());
        for name in changed(&before, stored) {
            let (old, new) = (before.get(&name).map(news), stored.get(&name).map(news));
            if old != new {
                self.wake_machines(|machine| machine.spec.pool == name, now);
            }
            self.wake(Work::Pool(name), now);
        }
    }

    fn show_machines(&mut self, now: i64, stored: &BTreeMap<String, Arc<Machine>>) {
        let before = std::mem::replace(&mut self.machines, stored.clone());
        for name in changed(&before, stored) {
            match (before.get(&name), stored.get(&name)) {
                (_, Some(machine)) => self.fleet.apply(machine),
                (Some(machine), None) => self.fleet.remove(machine),
                (None, None) => {}
            }
            self.reserved.remove(&name);
            self.looked_up.remove(&name);
            if let Some(machine) = stored.get(&name).or(before.get(&name)) {
                self.wake(Work::Pool(machine.spec.pool.clone()), now);
                self.wake(Work::Provider(machine.spec.provider.clone()), now);
            }
            self.wake(Work::Machine(name), now);
        }
        // Machines that came and went are published as well.
        for (_, machine) in std::mem::take(&mut self.looked_up) {
            self.fleet.remove(&machine);
        }
    }

    fn show_providers(&mut self, now: i64, stored: &BTreeMap<String, Arc<Provider>>) {
        let before = std::mem::replace(&mut self.providers, stored.clone());
        for name in changed(&before, stored) {
            let generation = |provider: &Arc<Provider>| provider.metadata.generation;
            if before.get(&name).map(generation) != stored.get(&name).map(generation) {
                self.wake_machines(|machine| machine.spec.provider == name, now);
            }
            self.wake_pools_of(&name, now);
            self.wake(Work::Provider(name), now);
        }
    }
}

/// Names of objects that changed.
fn changed<K>(before: &BTreeMap<String, Arc<K>>, after: &BTreeMap<String, Arc<K>>) -> Vec<String> {
    let is_news = |name: &&String| match (before.get(*name), after.get(*name)) {
        (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
        (None, None) => false,
        _ => true,
    };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names.into_iter().filter(is_news).cloned().collect()
}

impl World {
    /// The process dies; another one leads a moment later.
    pub(super) fn crash(&mut self) {
        self.tell(|| "the process dies".to_owned());
        self.now += i64::from(self.random.random_range(1..15_u8));
        self.begin();
    }

    /// A process begins to lead: it lists everything, and looks at everything.
    pub(super) fn begin(&mut self) {
        let now = self.now;
        self.change();
        self.process = Process {
            began: now,
            ..Process::default()
        };
        let offers: Vec<_> = self.published.values().cloned().collect();
        self.process.offers.replace(&offers);
        self.catch_up();
        self.process.holds.begin(
            self.server.providers.0.values().map(AsRef::as_ref),
            self.server.pools.0.values().map(AsRef::as_ref),
        );
        self.process.inherited = self.server.machines.0.values().filter_map(|m| m.uid()).collect();
        for sweep in [Work::Sweep, Work::LeftoverSweep, Work::KeySweep] {
            self.process.wake(sweep, now);
        }
    }

    /// The watches show what is stored.
    pub(super) fn catch_up(&mut self) {
        let (now, server) = (self.now, &self.server);
        // Machines first: code that wakes others knows them.
        self.process.show_machines(now, &server.machines.0);
        self.process.show_pools(now, &server.pools.0);
        self.process.show_providers(now, &server.providers.0);
    }

    /// Each watch for itself may have caught up.
    pub(super) fn perhaps_catch_up(&mut self) {
        let now = self.now;
        if !self.chance(self.odds.stale) {
            self.process.show_machines(now, &self.server.machines.0);
        }
        if !self.chance(self.odds.stale) {
            self.process.show_pools(now, &self.server.pools.0);
        }
        if !self.chance(self.odds.stale) {
            self.process.show_providers(now, &self.server.providers.0);
        }
    }

    /// Everything that is due is done, in any order.
    pub(super) fn work(&mut self) {
        let now = self.now;
        let mut due: Vec<Work> = self
            .process
            .due
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(work, _)| work.clone())
            .collect();
        if !self.calm {
            due.shuffle(&mut self.random);
        }
        for work in due {
            self.process.due.remove(&work);
            let done = match &work {
                Work::Provider(name) => self.reconcile_provider(name),
                Work::Pool(name) => self.reconcile_pool(name),
                Work::Machine(name) => self.reconcile_machine(name),
                Work::Sweep => self.sweep(),
                Work::LeftoverSweep => self.sweep_leftovers(),
                Work::KeySweep => self.sweep_keys(),
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Connections get further, or break.
    pub(super) fn connect(&mut self) {
        let now = self.now;
        for name in self.process.sessions.keys().cloned().collect::<Vec<_>>() {
            let answers = self.clouds.values().any(|cloud| {
                cloud
                    .rented
                    .iter()
                    .any(|machine| machine.mark.machine == name && machine.answers(now))
            });
            let fails = self.chance(2);
            let time = self.time();
            let Some(session) = self.process.sessions.get_mut(&name) else {
                continue;
            };
            let was = session.state.stage.clone();
            let lost = || "connection refused".to_owned();
            session.state.stage = match &was {
                Stage::Failed(_) | Stage::EpochAhead => was.clone(),
                Stage::Ready if !answers => Stage::Reconnecting {
                    last_error: lost(),
                    since: time,
                },
                Stage::Ready => Stage::Ready,
                _ if session.next > now => was.clone(),
                Stage::Dialing { .. } if !answers => Stage::Dialing {
                    last_error: Some(lost()),
                },
                Stage::Dialing { .. } | Stage::Unproved { .. } => Stage::Bootstrapping {
                    step: "probe".into(),
                    index: 1,
                    total: 1,
                },
                Stage::Bootstrapping { .. } if fails => Stage::Failed(SessionFailure {
                    kind: FailureKind::StepFailed,
                    step: Some("probe".into()),
                    message: "it did not work".into(),
                    diagnosis: None,
                }),
                Stage::Bootstrapping { .. } | Stage::Reconnecting { .. } if answers => Stage::Ready,
                Stage::Bootstrapping { .. } | Stage::Reconnecting { .. } => was.clone(),
            };
            if session.state.stage == was {
                continue;
            }
            session.next = now + 3;
            if answers {
                session.state.reachable_at.get_or_insert(time);
            }
            if session.state.stage == Stage::Ready {
                session.state.bootstrapped_at.get_or_insert(time);
                session.state.ready_at.get_or_insert(time);
            }
            self.process.wake(Work::Machine(name), now);
        }
    }

    /// Dispatchers place runs on machines that take them, and tell what they know.
    pub(super) fn dispatch(&mut self) {
        // A dispatcher knows nothing until it has seen its Tasks.
        if self.now < self.process.began + 3 && !self.calm {
            return;
        }
        let machines: Vec<Arc<Machine>> = self.process.machines.values().cloned().collect();
        let mut loads: BTreeMap<Key, PoolLoad> = self
            .process
            .pools
            .values()
            .map(|pool| (key_of(pool.as_ref()), PoolLoad::default()))
            .collect();
        for machine in machines {
            let name = machine.name_any();
            let takes = machine.status.as_ref().and_then(|status| status.phase)
                == Some(skyward_api::MachinePhase::Ready)
                && !self.process.closed.contains(&name);
            // A deletion is seen a moment later, and until then the machine may get a run.
            if machine.meta().deletion_timestamp.is_some() && !self.chance(50) {
                self.process.closed.insert(name.clone());
            }
            let starts = takes && self.chance(10);
            let ends = self.calm || self.chance(30);
            let runs = self.runs.entry(name.clone()).or_default();
            *runs = match (starts, ends) {
                (true, _) => *runs + 1,
                (false, true) => 0,
                (false, false) => *runs,
            };
            let runs = *runs;
            if let Some(load) = loads.get_mut(&Key::new(
                machine.namespace().unwrap_or_default(),
                machine.spec.pool.clone(),
            )) {
                if self.process.closed.contains(&name) {
                    load.closed.insert(name.clone());
                }
                load.runs.insert(name, runs);
            }
        }
        for (pool, load) in loads {
            if self.process.loads.load(&pool).as_ref() != Some(&load) {
                self.process.loads.publish(&pool, load);
                let now = self.now;
                self.process.wake(Work::Pool(pool.name.clone()), now);
                let going = |machine: &Machine| {
                    machine.spec.pool == pool.name && machine.metadata.deletion_timestamp.is_some()
                };
                self.process.wake_machines(going, now);
            }
        }
    }
}
