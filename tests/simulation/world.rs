//! The whole truth: objects, clouds, the rules that were broken; and chance.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use object_store::memory::InMemory;
use parking_lot::{Mutex, MutexGuard};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use skyward_apisim::ApiServer;

use crate::{
    cloud::{Cloud, Rented},
    kinds::Kind,
    maps::Maps,
    planted::Fault,
    restored::Restored,
    rules::{Settled, Watched},
    tasks::Tasks,
    time::{now, time_of_day},
};

/// The id of this installation.
pub(crate) const CLUSTER: &str = "00000000-0000-4000-8000-00000000c1c1";
/// The operator's namespace.
pub(crate) const OPERATOR: &str = "skyward-system";
/// The id of another installation.
pub(crate) const STRANGE: &str = "another-installation";
/// The namespace of all Pools.
pub(crate) const TEAM: &str = "team";

/// How often faults happen, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Odds {
    /// The process dies before or after a call, in one of ten thousand.
    pub(crate) crash: u32,
    /// The process stands still before a call, in one of ten thousand.
    pub(crate) halt: u32,
    /// A call to a cloud fails, or its answer is lost or late.
    pub(crate) clouds: u32,
    /// A call to the API server fails, or its answer is lost or late.
    pub(crate) api: u32,
    /// A cloud shows outdated state.
    pub(crate) lag: u32,
    /// A watch shows what happened seconds later.
    pub(crate) stale: u32,
    /// Something happens: to machines, to what users want, to accounts.
    pub(crate) happens: u32,
    /// A user makes a Task, or changes one.
    pub(crate) tasks: u32,
    /// A machine says what is not so.
    pub(crate) lies: u32,
    /// A call to an agent fails, or its answer is lost or late.
    pub(crate) agents: u32,
    /// A write of the log of a map fails, or its answer is lost or late.
    pub(crate) store: u32,
}

/// Everything outside of the processes.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) server: Arc<ApiServer>,
    /// What the result store keeps.
    pub(crate) store: Arc<InMemory>,
    truth: Mutex<Truth>,
}

/// The state of the world but for the API server's.
pub(crate) struct Truth {
    pub(crate) odds: Odds,
    /// Whether the world is calm: no faults, and no changes by users.
    pub(crate) calm: bool,
    /// By account.
    pub(crate) clouds: BTreeMap<String, Cloud>,
    /// Accounts whose credentials a Provider had and has lost at least once.
    pub(crate) former: BTreeSet<String>,
    /// The bug that the operator has on purpose.
    pub(crate) planted: Option<Fault>,
    /// The truth about a restore from a backup, in a history that has one.
    pub(crate) restored: Option<Restored>,
    /// Calls of all processes, to the API server and to clouds.
    pub(crate) calls: u64,
    /// How many processes there were.
    pub(crate) processes: u32,
    /// Machines whose agents lie, by the cloud's ids.
    pub(crate) liars: BTreeSet<String>,
    /// What the rules remember of runs.
    pub(crate) tasks: Tasks,
    /// What the rules remember of items of maps.
    pub(crate) maps: Maps,
    /// Tokens of host keys that came with orders.
    pub(crate) tokens: BTreeSet<String>,
    /// UIDs of records that somebody removed by force, or that a restore forgot.
    pub(crate) torn: BTreeSet<String>,
    /// Machines whose records are gone, with the costs in these.
    pub(crate) settled: Vec<Settled>,
    /// What the rules remember.
    pub(crate) watched: Watched,
    /// Rules that were broken.
    pub(crate) broken: Vec<String>,
    /// Every call, and what happened, in order.
    pub(crate) trace: Vec<String>,
}

impl World {
    /// A world with the operator's namespace and nothing in it.
    pub(crate) fn new(seed: u64, odds: Odds) -> Arc<Self> {
        let server = ApiServer::new(time_of_day);
        for name in [OPERATOR, TEAM] {
            let namespace =
                json!({ "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } } });
            server
                .put("namespaces", "", namespace)
                .expect("it is not there yet");
        }
        let definition = json!({ "metadata": { "name": "pools.skyward.dev" }, "spec": {} });
        server
            .put("customresourcedefinitions", "", definition)
            .expect("it is not there yet");
        let watched = Watched::since(server.version());
        Arc::new(Self {
            seed,
            server,
            store: Arc::default(),
            truth: Mutex::new(Truth {
                odds,
                calm: true,
                clouds: BTreeMap::new(),
                former: BTreeSet::new(),
                planted: None,
                restored: None,
                calls: 0,
                processes: 0,
                liars: BTreeSet::new(),
                tasks: Tasks::default(),
                maps: Maps::default(),
                tokens: BTreeSet::new(),
                torn: BTreeSet::new(),
                settled: Vec::new(),
                watched,
                broken: Vec::new(),
                trace: Vec::new(),
            }),
        })
    }

    /// The truth. The lock is never held over an await, or over a call of the API server.
    pub(crate) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock()
    }

    /// The chance of something that has this name: the same in each run of the seed, whatever else
    /// happens at the same moment.
    pub(crate) fn chance(&self, name: &str) -> StdRng {
        let mut hash = DefaultHasher::new();
        (self.seed, name).hash(&mut hash);
        StdRng::seed_from_u64(hash.finish())
    }

    /// A Provider of that kind, with its account and another one.
    pub(crate) fn add_provider(&self, name: &str, kind: &'static Kind) {
        for account in [format!("{name}-1"), format!("{name}-2")] {
            self.truth().clouds.insert(account, Cloud::new(kind));
        }
        self.server
            .put("secrets", OPERATOR, credentials(name, &format!("{name}-1")))
            .expect("it is not there yet");
        let provider = json!({
            "metadata": { "name": name },
            "spec": {
                kind.name(): { "regions": kind.regions },
                "allowedNamespaces": {},
                "credentialsSecretRef": { "name": format!("of-{name}") },
                // These histories ask for machines without work. Pools that sleep have histories of their own.
                "idleTimeout": "Never",
            },
        });
        self.server
            .put("providers", "", provider)
            .expect("it is not there yet");
    }

    /// The kind of a Provider's accounts.
    pub(crate) fn kind_of(&self, provider: &str) -> &'static Kind {
        self.truth().clouds[&format!("{provider}-1")].kind
    }

    /// The account whose credentials a Provider has.
    pub(crate) fn account_of(&self, provider: &str) -> String {
        let secret = self.server.get("secrets", OPERATOR, &format!("of-{provider}"));
        let account = secret.and_then(|secret| secret["stringData"]["account"].as_str().map(str::to_owned));
        account.unwrap_or_default()
    }
}

/// The Secret with the credentials of an account. The API server keeps `stringData` too, where rules read
/// it.
pub(crate) fn credentials(provider: &str, account: &str) -> serde_json::Value {
    use k8s_openapi::ByteString;
    json!({
        "metadata": { "name": format!("of-{provider}") },
        "stringData": { "account": account },
        "data": { "account": ByteString(account.as_bytes().to_vec()) },
    })
}

impl Truth {
    /// Notes a broken rule.
    pub(crate) fn rule(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let what = what();
            self.tell(format!("BROKEN: {what}"));
            self.broken.push(what);
        }
    }

    /// Adds to the story.
    pub(crate) fn tell(&mut self, what: String) {
        let line = format!("{:>9} {what}", now());
        self.trace.push(line);
    }

    /// Machines of a record that exist or are being made, anywhere.
    pub(crate) fn alive_of(&self, machine_uid: &str) -> usize {
        let alive = self.clouds.values().flat_map(|cloud| cloud.alive(now()));
        alive
            .filter(|machine| machine.mark.machine_uid == machine_uid)
            .count()
    }

    /// Whether an order of that machine, by UID of its record, was ever carried out.
    pub(crate) fn was_ordered(&self, machine_uid: &str) -> bool {
        let mut made = self.clouds.values().flat_map(|cloud| &cloud.rented);
        made.any(|machine| machine.mark.machine_uid == machine_uid)
    }

    /// The machine of that id of its cloud.
    pub(crate) fn machine(&self, id: &str) -> Option<&Rented> {
        let mut machines = self.clouds.values().flat_map(|cloud| &cloud.rented);
        machines.find(|machine| machine.id == id)
    }

    /// The same, to be changed.
    pub(crate) fn rented(&mut self, id: &str) -> Option<&mut Rented> {
        let mut machines = self.clouds.values_mut().flat_map(|cloud| &mut cloud.rented);
        machines.find(|machine| machine.id == id)
    }

    /// The machine of that name that answers, wherever it is.
    pub(crate) fn answering(&mut self, name: &str) -> Option<&mut Rented> {
        let machines = self.clouds.values_mut().flat_map(|cloud| &mut cloud.rented);
        let mut named =
            machines.filter(|machine| machine.mark.cluster == CLUSTER && machine.mark.machine == name);
        named.find(|machine| machine.answers(now()))
    }

    /// A machine of another installation at an account, which must stay as it is.
    pub(crate) fn add_stranger(&mut self, account: &str) {
        let Some(cloud) = self.clouds.get_mut(account) else {
            return;
        };
        let mut order = skyward_core::Order::default();
        order.mark.cluster = STRANGE.into();
        order.mark.pool_uid = "another-pool".into();
        order.mark.machine = format!("stranger-at-{account}");
        order.mark.machine_uid = format!("stranger-at-{account}");
        order.region = cloud.kind.regions[0].to_owned();
        cloud.make(&order, now(), 0, 0);
    }
}

/// One of them.
pub(crate) fn one_of<T: Copy>(random: &mut StdRng, all: &[T]) -> T {
    all[random.random_range(0..all.len())]
}

/// True with that chance in percent.
pub(crate) fn percent(random: &mut StdRng, percent: u32) -> bool {
    percent > 0 && random.random_ratio(percent.min(100), 100)
}
