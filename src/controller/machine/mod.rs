//! One machine, from its order to Ready until it is gone.
//!
//! Begin reading at [`skyward_planner::machine::plan`]. [`observe`] gathers the plan's facts, [`act`] carries
//! the plan out, [`order`] makes orders and sessions from the record. This file says when a Machine is looked
//! at: when it, its Pool or its session changes, when its provider tells of a change, and when a dispatcher
//! says that it is idle.

pub mod act;
pub mod connector;
pub mod materials;
pub mod observe;
pub mod order;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use kube::{
    Resource as _,
    runtime::{
        applier,
        controller::{self, Action},
        reflector::ObjectRef,
    },
};
use skyward_api::Machine;
use skyward_planner::{
    base::{
        key::{Key, key_of},
        requeue::Next,
    },
    machine::{
        facts::{MachineMemory, Outcomes},
        plan::plan,
    },
};
use skyward_remote::MachineKey;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use self::observe::observe;
use crate::{
    accounts::clients::Revision,
    base::{backoff::Backoff, broadcast::Change},
    context::Context,
    machine::act::MachineCache,
    newest::Newest,
};

/// A Machine waits for its cloud most of the time: this many for each Pool that is reconciled,
/// or Machines of a cloud that does not answer would hold up all others.
const PER_POOL: u16 = 16;
/// Most plans in a row for one Machine before others get their turn.
const ROUNDS: usize = 6;
/// Pause after a plan that was made from an old view.
const AFTER_CONFLICT: Duration = Duration::from_millis(50);
/// Pause after an order or return whose turn did not come.
const AFTER_OTHERS: Duration = Duration::from_millis(250);

struct Shared {
    context: Context,
    newest: Newest<Machine>,
    caches: Mutex<HashMap<Key, (String, MachineCache)>>,
    failures: Backoff<Key>,
    /// UIDs of the Machines that were there when this process began to lead.
    inherited: HashSet<String>,
    leads_since: Timestamp,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let shared = Arc::new(Shared {
        context: context.clone(),
        newest: Newest::default(),
        caches: Mutex::default(),
        failures: Backoff::default(),
        inherited: context
            .caches
            .machines
            .state()
            .iter()
            .filter_map(|machine| machine.metadata.uid.clone())
            .collect(),
        leads_since: Timestamp::now(),
    });
    let queue = context
        .machine_wakeups
        .clone()
        .stream()
        .map(|key| Ok::<_, Infallible>(ObjectRef::<Machine>::new(&key.name).within(&key.namespace)))
        .take_until(context.shutdown.clone().cancelled_owned());
    let reconciles = applier(
        |machine, shared: Arc<Shared>| Box::pin(async move { shared.reconcile(machine).await }),
        |machine, error: &act::Error, shared| {
            Action::requeue(retry_after(error, &shared.failures, &key_of(machine.as_ref())))
        },
        shared.clone(),
        context.caches.machines.clone(),
        queue,
        controller::Config::default().concurrency(context.config.concurrency.saturating_mul(PER_POOL)),
    )
    .for_each(|outcome| {
        if let Err(kube::runtime::controller::Error::ObjectNotFound(object)) = outcome {
            shared.forget(&Key::new(
                object.namespace.clone().unwrap_or_default(),
                object.name.clone(),
            ));
        }
        futures::future::ready(())
    });
    tokio::select! {
        () = reconciles => {}
        () = async { tokio::join!(route(&context), listen(&context)); } => {}
    }
}

fn retry_after(error: &act::Error, failures: &Backoff<Key>, key: &Key) -> Duration {
    match error {
        act::Error::Stale => AFTER_CONFLICT,
        act::Error::NoTurn => AFTER_OTHERS,
        act::Error::Late(_) => failures.delay(key, Duration::from_secs(1)),
        act::Error::Api(..) | act::Error::Key(_) | act::Error::Missing(_) => {
            failures.delay(key, Duration::from_secs(3))
        }
    }
}

/// Wakes the Machines that a change is about.
async fn route(context: &Context) {
    let changes = context.feed.subscribe();
    let idle = context.loads.subscribe_idle();
    let work_queue = &context.machine_wakeups;
    let of_pool = |pool: &Key, only_deleting: bool| {
        for machine in context.fleet.named(pool) {
            if !only_deleting || machine.metadata.deletion_timestamp.is_some() {
                work_queue.enqueue(key_of(machine.as_ref()));
            }
        }
    };
    let of_provider = |name: &str| {
        for machine in context
            .caches
            .machines
            .state_filter(|machine| machine.spec.provider == name)
        {
            work_queue.enqueue(key_of(machine.as_ref()));
        }
    };
    for machine in context.caches.machines.state() {
        work_queue.enqueue(key_of(machine.as_ref()));
    }
    // The status of a Pool or Provider changes often and means nothing to its Machines.
    let mut generations: HashMap<Change, (Option<i64>, bool)> = HashMap::new();
    loop {
        tokio::select! {
            change = changes.next() => match &change {
                Change::Machine { machine, .. } => work_queue.enqueue(machine.clone()),
                Change::Pool(key) => {
                    let pool = context.caches.pools.get(&ObjectRef::new(&key.name).within(&key.namespace));
                    if is_news(&mut generations, &change, pool.as_deref()) {
                        of_pool(key, false);
                    }
                }
                Change::Provider(name) => {
                    let provider = context.caches.providers.get(&ObjectRef::new(name));
                    if is_news(&mut generations, &change, provider.as_deref()) {
                        of_provider(name);
                    }
                }
                Change::Offers(_) => {}
            },
            // Machines become idle with every run; only draining Machines wait for that.
            pool = idle.next() => of_pool(&pool, true),
        }
    }
}

/// Whether the spec changed, or the object went, or its deletion began.
fn is_news<K: kube::Resource>(
    generations: &mut HashMap<Change, (Option<i64>, bool)>,
    change: &Change,
    object: Option<&K>,
) -> bool {
    match object {
        None => {
            generations.remove(change);
            true
        }
        Some(object) => {
            let now = (
                object.meta().generation,
                object.meta().deletion_timestamp.is_some(),
            );
            generations.insert(change.clone(), now) != Some(now)
        }
    }
}

/// Listens to each account that tells of changes of its machines.
async fn listen(context: &Context) {
    let mut changed = context.providers.subscribe();
    let mut listeners: BTreeMap<String, (Revision, Listener)> = BTreeMap::new();
    loop {
        let accounts = context.providers.all();
        listeners.retain(|name, (revision, listener)| {
            accounts
                .get(name)
                .is_some_and(|account| account.revision == *revision)
                && !listener.0.is_finished()
        });
        for (name, account) in accounts {
            if listeners.contains_key(&name) {
                continue;
            }
            // Changes that happened before this loop listened.
            for machine in context
                .caches
                .machines
                .state_filter(|machine| machine.spec.provider == name)
            {
                context.machine_wakeups.enqueue(key_of(machine.as_ref()));
            }
            if let Some(mut changes) = account.provider.changes() {
                let work_queue = context.machine_wakeups.clone();
                let listener = tokio::spawn(async move {
                    while let Some((namespace, machine)) = changes.next().await {
                        work_queue.enqueue(Key::new(namespace, machine));
                    }
                });
                listeners.insert(name, (account.revision, Listener(listener)));
            }
        }
        tokio::select! {
            result = changed.changed() => {
                if result.is_err() {
                    return;
                }
            }
            // A stream that ended is opened again.
            () = sleep(Duration::from_secs(5)), if !listeners.is_empty() => {}
        }
    }
}

/// A task that ends with its owner.
struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    async fn reconcile(&self, cached: Arc<Machine>) -> Result<Action, act::Error> {
        let started = Instant::now();
        let key = key_of(cached.as_ref());
        if !self.context.is_ours(&cached.spec) {
            return act::let_foreign_go(&self.context, &cached).await;
        }
        let uid = cached.metadata.uid.clone().unwrap_or_default();
        let about = cached.object_ref(&());
        let turn = async {
            let mut cache = self.recall(&key, &uid);
            let result = self.rounds(&key, cached, &mut cache).await;
            self.remember(&key, &uid, cache);
            result
        };
        let result = match self.context.panics.turn("machine", &about, turn).await {
            Ok(result) => result,
            Err(broken) => {
                if broken.panicked {
                    self.newest.forget(&key);
                    // Treated like a Machine of a former leader: the last order is not known.
                    self.remember(&key, &uid, MachineMemory::inherited(Timestamp::now()).into());
                }
                return Ok(Action::requeue(broken.rest));
            }
        };
        let error = result.as_ref().err();
        self.context
            .metrics
            .reconciled("Machine", started.elapsed(), error.map(act::Error::category));
        self.report(&key, error);
        result
    }

    async fn rounds(
        &self,
        key: &Key,
        cached: Arc<Machine>,
        cache: &mut MachineCache,
    ) -> Result<Action, act::Error> {
        let mut machine = self.newest.of(cached);
        let mut outcomes = Outcomes::default();
        for _ in 0..ROUNDS {
            let seen = observe(
                &self.context,
                &machine,
                &mut cache.memory,
                std::mem::take(&mut outcomes),
            )
            .await;
            let plan = plan(&seen, Timestamp::now());
            let actions = plan.actions.iter().map(|action| format!("{action:?}")).collect();
            self.context
                .health
                .planned(format!("Machine {key}"), plan.reasons.clone(), actions);
            let acted = act::act(&self.context, &machine, cache, &seen, &plan).await?;
            if let Some(fresh) = acted.written {
                self.newest.wrote(&machine, fresh.clone());
                machine = fresh;
            }
            outcomes = acted.outcomes;
            match plan.next {
                Next::Again => {}
                Next::Wait => return Ok(Action::await_change()),
                Next::After(wait) => return Ok(Action::requeue(wait.max(Duration::from_millis(10)))),
            }
        }
        Ok(Action::requeue(AFTER_CONFLICT))
    }

    fn remember(&self, key: &Key, uid: &str, cache: MachineCache) {
        self.caches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.clone(), (uid.to_owned(), cache));
    }

    fn recall(&self, key: &Key, uid: &str) -> MachineCache {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        match caches.remove(key) {
            Some((known, cache)) if known == uid => cache,
            _ if self.inherited.contains(uid) => MachineMemory::inherited(self.leads_since).into(),
            _ => MachineCache::default(),
        }
    }

    /// Logs failures that go on, and not each time; a conflict is daily business.
    fn report(&self, key: &Key, error: Option<&act::Error>) {
        match error {
            None => self.failures.succeeded(key),
            Some(act::Error::Stale | act::Error::NoTurn) => {}
            Some(error) => {
                let times = self.failures.failed(key.clone());
                if times.is_power_of_two() {
                    let source = std::error::Error::source(error).map(ToString::to_string);
                    tracing::warn!(machine = %key, %error, source, times, "a Machine could not be brought further; trying again");
                }
            }
        }
    }

    fn forget(&self, key: &Key) {
        self.newest.forget(key);
        self.caches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
        self.failures.succeeded(key);
        self.context.health.forget(&format!("Machine {key}"));
        self.context
            .sessions
            .remove(&MachineKey::new(&key.namespace, &key.name));
    }
}
