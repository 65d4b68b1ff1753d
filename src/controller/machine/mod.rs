//! One machine, from its order to Ready until it is gone.
//!
//! Begin reading at [`skyward_planner::machine::plan`]. [`observe`] gathers the plan's facts, [`act`] carries
//! the plan out, [`order`] makes orders and sessions from the record. This file says when a Machine is looked
//! at: when it, its Pool or its session changes, when its provider tells of a change, and when a dispatcher
//! says that it is idle.

pub mod act;
pub mod connector;
pub mod observe;
pub mod order;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt as _;
use skyward_api::{Machine, environment::PoolEnvironment};
use skyward_core::clock;
use skyward_planner::{
    base::{
        key::{Key, key_of},
        requeue::Next,
    },
    machine::{
        facts::{MachineMemory, Observed, Outcomes},
        plan::{draft::Plan, plan},
    },
    pool::environment::has_turn,
};
use skyward_remote::MachineKey;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use self::observe::observe;
use crate::{
    accounts::clients::Revision,
    base::broadcast::Change,
    context::Context,
    machine::act::MachineCache,
    newest::Record,
    reconcile::{Reconcile, drive},
};

/// A Machine waits for its cloud most of the time: this many for each Pool that is reconciled,
/// or Machines of a cloud that does not answer would hold up all others.
const PER_POOL: u16 = 16;

/// What its reconciles need besides what is remembered of each Machine.
struct Machines {
    context: Context,
    /// UIDs of the Machines that were there when this process began to lead.
    inherited: HashSet<String>,
    leads_since: Timestamp,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let known = context.caches.machines.state();
    let machines = Machines {
        context: context.clone(),
        inherited: known
            .iter()
            .filter_map(|machine| machine.metadata.uid.clone())
            .collect(),
        leads_since: clock::now(),
    };
    let reconciles = drive(
        machines,
        &context,
        context.caches.machines.clone(),
        context.machine_wakeups.clone().stream(),
        context.config.concurrency.saturating_mul(PER_POOL),
    );
    tokio::select! {
        () = reconciles => {}
        () = async { tokio::join!(route(&context), listen(&context)); } => {}
    }
}

impl Reconcile for Machines {
    const KIND: &'static str = "Machine";
    const CONTROLLER: &'static str = "machine";

    type Object = Machine;
    type Memory = MachineCache;
    type Seen = Observed;
    type Plan = Plan;
    type Outcomes = Outcomes;
    type Error = act::Error;

    async fn is_foreign(&self, machine: &Machine) -> Result<bool, act::Error> {
        let is_foreign = !self.context.is_ours(&machine.spec);
        if is_foreign {
            act::let_foreign_go(&self.context, machine).await?;
        }
        Ok(is_foreign)
    }

    fn first_memory(&self, uid: &str) -> MachineCache {
        if self.inherited.contains(uid) {
            MachineMemory::inherited(self.leads_since).into()
        } else {
            MachineCache::default()
        }
    }

    /// Treated as a predecessor's: it is not known what was ordered last.
    fn after_panic(&self, _: &Key) -> Option<MachineCache> {
        Some(MachineMemory::inherited(clock::now()).into())
    }

    async fn observe(
        &self,
        machine: &Arc<Machine>,
        cache: &mut MachineCache,
        outcomes: Outcomes,
    ) -> Observed {
        observe(&self.context, machine, &mut cache.memory, outcomes).await
    }

    fn plan(&self, seen: &Observed, _: &mut MachineCache, now: Timestamp) -> Plan {
        plan(seen, now)
    }

    fn last_plan(&self, _: &Key, plan: &Plan) -> Option<(Vec<String>, Vec<String>)> {
        let actions = plan.actions.iter().map(|action| format!("{action:?}"));
        Some((plan.reasons.clone(), actions.collect()))
    }

    fn next(plan: &Plan) -> Next {
        plan.next
    }

    async fn act(
        &self,
        record: &mut Record<'_, Machine>,
        cache: &mut MachineCache,
        seen: &Observed,
        plan: Plan,
    ) -> Result<Outcomes, act::Error> {
        act::act(&self.context, record, cache, seen, &plan).await
    }

    fn warn(key: &Key, error: &act::Error, source: Option<String>, times: u32) {
        tracing::warn!(machine = %key, %error, source, times, "a Machine could not be reconciled; trying again");
    }

    fn forget(&self, key: &Key) {
        self.context
            .sessions
            .remove(&MachineKey::new(&key.namespace, &key.name));
    }
}

/// Wakes the Machines that a change is about.
async fn route(context: &Context) {
    let changes = context.feed.subscribe();
    let idle = context.loads.subscribe_idle();
    let work_queue = &context.machine_wakeups;
    let of_pool = |pool: &Key, only_waiting: bool| {
        let object = context.caches.pool(pool);
        for machine in context.fleet.named(pool) {
            let waits = machine.metadata.deletion_timestamp.is_some()
                || has_turn(object.as_deref(), &machine.name_any());
            if !only_waiting || waits {
                work_queue.enqueue(key_of(machine.as_ref()));
            }
        }
    };
    let of_provider = |name: &str| {
        for machine in context.caches.machines_at(name) {
            work_queue.enqueue(key_of(machine.as_ref()));
        }
    };
    for machine in context.caches.machines.state() {
        work_queue.enqueue(key_of(machine.as_ref()));
    }
    // The status of a Pool or Provider changes often, and means nothing to its Machines but for the environment.
    let mut generations: HashMap<Change, News> = HashMap::new();
    loop {
        tokio::select! {
            change = changes.next() => match &change {
                Change::Machine { machine, .. } => work_queue.enqueue(machine.clone()),
                Change::Pool(key) => {
                    let pool = context.caches.pool(key);
                    let environment = pool.as_deref().and_then(|pool| pool.status.as_ref()?.environment.clone());
                    if is_news(&mut generations, &change, pool.as_deref(), environment) {
                        of_pool(key, false);
                    }
                }
                Change::Provider(name) => {
                    let provider = context.caches.provider(name);
                    if is_news(&mut generations, &change, provider.as_deref(), None) {
                        of_provider(name);
                    }
                }
                Change::Offers(_) | Change::Namespace(_) | Change::CronTask(_) => {}
            },
            // Machines become idle with every run; only draining Machines wait for that, and the one whose turn it is
            // to change its environment.
            pool = idle.next() => of_pool(&pool, true),
        }
    }
}

/// What of an object its Machines are looked at again for.
#[derive(PartialEq)]
struct News {
    generation: Option<i64>,
    is_deleted: bool,
    environment: Option<PoolEnvironment>,
}

/// Whether the spec changed, or the record of the environment, or the object went, or its deletion began.
fn is_news<K: kube::Resource>(
    generations: &mut HashMap<Change, News>,
    change: &Change,
    object: Option<&K>,
    environment: Option<PoolEnvironment>,
) -> bool {
    match object {
        None => {
            generations.remove(change);
            true
        }
        Some(object) => {
            let now = News {
                generation: object.meta().generation,
                is_deleted: object.meta().deletion_timestamp.is_some(),
                environment,
            };
            let is_known = generations.get(change) == Some(&now);
            generations.insert(change.clone(), now);
            !is_known
        }
    }
}

/// Listens to each account that tells of changes of its machines.
async fn listen(context: &Context) {
    let mut changed = context.providers.subscribe();
    let mut listeners: BTreeMap<String, (Revision, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let accounts = context.providers.all();
        listeners.retain(|name, (revision, listener)| {
            accounts
                .get(name)
                .is_some_and(|account| account.revision == *revision)
                && !listener.is_finished()
        });
        for (name, account) in accounts {
            if listeners.contains_key(&name) {
                continue;
            }
            // Changes that happened before this loop listened.
            for machine in context.caches.machines_at(&name) {
                context.machine_wakeups.enqueue(key_of(machine.as_ref()));
            }
            if let Some(mut changes) = account.provider.changes() {
                let work_queue = context.machine_wakeups.clone();
                let listener = tokio::spawn(async move {
                    while let Some((namespace, machine)) = changes.next().await {
                        work_queue.enqueue(Key::new(namespace, machine));
                    }
                });
                listeners.insert(name, (account.revision, AbortOnDropHandle::new(listener)));
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
