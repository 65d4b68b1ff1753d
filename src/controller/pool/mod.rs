//! Which Machines a Pool should have.
//!
//! Begin reading at [`skyward_planner::pool::plan`]: what should happen next, as a pure function. [`observe`]
//! gathers its facts, [`act`] carries the plan out. This file only says when a Pool is looked at, and runs
//! the sweeps of [`crate::accounts::sweeps`].

pub mod act;
mod environment;
pub mod observe;
pub mod references;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{ResourceExt, runtime::reflector::Store as Cache};
use skyward_api::{
    Pool,
    condition::{RECONCILING, is_true},
};
use skyward_core::clock;
use skyward_planner::{
    base::{
        key::{Key, key_of},
        requeue::Next,
        time::after,
    },
    pool::{
        facts::{DOUBTFUL, Observed, Refusal},
        plan::{
            audit::audit,
            draft::{Action, Plan},
            plan,
        },
    },
};
use tokio::time::MissedTickBehavior;

use self::{environment::EnvironmentCheck, observe::observe, references::ReferenceCheck};
use crate::{
    accounts::sweeps::{key_sweep, log_sweep, machine_sweep, resource_sweep},
    base::{broadcast::Change, queue::WorkQueue},
    context::Context,
    hints::pool_loads::PoolLoads,
    newest::Record,
    reconcile::{Reconcile, drive},
};

/// A Pool that is deleted waits for its clouds, up to minutes where one does not answer: this many
/// such Pools for each that is reconciled, or deleted Pools would hold up the others.
const PER_SLOT: u16 = 4;
/// How often it is looked whether a Pool's status says outdated numbers of Tasks.
const LOOK: Duration = Duration::from_secs(1);
/// Work that came within this time is new: each is seen by two looks.
const JUST_NOW: Duration = Duration::from_secs(2);
/// Wait after the API server refused a Machine; it doubles up to this many times its value.
const REFUSED_WAIT: Duration = Duration::from_secs(5);
const MAX_REFUSED_FACTOR: u32 = 12;

/// Hints about one Pool; losing them costs a look or a refused write.
#[derive(Default)]
struct PoolMemory {
    references: Option<ReferenceCheck>,
    environment: Option<EnvironmentCheck>,
    refused: Option<Refused>,
}

/// The API server refused a Machine. The try has changed the Pool's status, which wakes the Pool
/// at once, so the plan must know that it has to wait.
struct Refused {
    /// Generation of the Pool: after a change the Machine may be tried at once.
    generation: Option<i64>,
    /// Refusals in a row.
    times: u32,
    refusal: Refusal,
}

impl Refused {
    /// The next refusal, after earlier ones.
    fn after(earlier: Option<Self>, generation: Option<i64>, why: String, now: Timestamp) -> Self {
        let times = earlier
            .filter(|earlier| earlier.generation == generation)
            .map_or(0, |earlier| earlier.times)
            .saturating_add(1);
        let wait = REFUSED_WAIT * 2_u32.saturating_pow(times - 1).min(MAX_REFUSED_FACTOR);
        Self {
            generation,
            times,
            refusal: Refusal {
                why,
                until: after(now, wait),
            },
        }
    }
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let work_queue = WorkQueue::new();
    let reconciles = drive(
        Pools(context.clone()),
        &context,
        context.caches.pools.clone(),
        work_queue.clone().stream(),
        context.config.concurrency.saturating_mul(PER_SLOT),
    );
    let panics = &context.panics;
    let background = async {
        tokio::join!(
            route(&context, &work_queue),
            panics.keep("sweep", || machine_sweep::run(context.clone())),
            panics.keep("leftover_sweep", || resource_sweep::run(context.clone())),
            panics.keep("key_sweep", || key_sweep::run(context.clone())),
            panics.keep("log_sweep", || log_sweep::run(context.clone())),
        );
    };
    tokio::select! {
        () = reconciles => {}
        () = background => {}
    }
}

fn wake_where(pools: &Cache<Pool>, work_queue: &WorkQueue<Key>, is_meant: impl Fn(&Pool) -> bool) {
    for pool in pools.state() {
        if is_meant(&pool) {
            work_queue.enqueue(key_of(pool.as_ref()));
        }
    }
}

/// Wakes the Pools that a change is about.
async fn route(context: &Context, work_queue: &WorkQueue<Key>) {
    let changes = context.feed.subscribe();
    let idle = context.loads.subscribe_idle();
    let mut accounts = context.providers.subscribe();
    let mut rest = tokio::time::interval(LOOK);
    rest.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The Pools that existed before the subscription.
    wake_where(&context.caches.pools, work_queue, |_| true);
    loop {
        tokio::select! {
            change = changes.next() => match change {
                Change::Pool(pool) | Change::Machine { pool, .. } => work_queue.enqueue(pool),
                Change::Provider(name) | Change::Offers(name) => {
                    wake_where(&context.caches.pools, work_queue, |pool| pool.spec.providers().contains(name.as_str()));
                }
                Change::Namespace(name) => {
                    wake_where(&context.caches.pools, work_queue, |pool| pool.namespace().as_deref() == Some(&name));
                }
                Change::CronTask(_) => {}
            },
            pool = idle.next() => {
                // Machines become idle with every run; only a Pool with pending changes waits for
                // that.
                if context.caches.pool(&pool).is_none_or(|pool| waits_for_idle(&pool)) {
                    work_queue.enqueue(pool);
                }
            }
            _ = rest.tick() => {
                wake_where(&context.caches.pools, work_queue, |pool| {
                    is_stale(pool, &context.loads) || has_new_work(pool, &context.loads)
                });
            }
            changed = accounts.changed() => {
                if changed.is_err() {
                    return;
                }
                wake_where(&context.caches.pools, work_queue, |_| true);
            }
        }
    }
}

/// Whether the numbers of Tasks in its status have been outdated for a while.
fn is_stale(pool: &Pool, loads: &PoolLoads) -> bool {
    let told = pool.status.as_ref().map(act::numbers);
    told.is_some_and(|told| loads.outdates(&key_of(pool), told))
}

/// Whether work waits that wakes the Pool, or that came just now and may make it grow. Later looks at work that goes on
/// waiting are asked for by the plan.
fn has_new_work(pool: &Pool, loads: &PoolLoads) -> bool {
    let Some(since) = loads.waits_since(&key_of(pool)) else {
        return false;
    };
    let scaling = pool.status.as_ref().and_then(|status| status.scaling.as_ref());
    let is_asleep = scaling.is_some_and(|scaling| scaling.sleeping_since.is_some());
    is_asleep || (pool.spec.nodes.grows() && since.elapsed() <= JUST_NOW)
}

fn waits_for_idle(pool: &Pool) -> bool {
    pool.status.as_ref().is_none_or(|status| {
        is_true(&status.conditions, RECONCILING) || status.observed_generation != pool.metadata.generation
    })
}

struct Pools(Context);

impl Reconcile for Pools {
    const KIND: &'static str = "Pool";
    const CONTROLLER: &'static str = "pool";

    type Object = Pool;
    type Memory = PoolMemory;
    type Seen = Observed;
    type Plan = Plan;
    type Outcomes = ();
    type Error = act::Error;

    async fn observe(&self, pool: &Arc<Pool>, memory: &mut PoolMemory, (): ()) -> Observed {
        self.resolve_doubts(pool).await;
        let mut seen = observe(&self.0, &mut memory.references, &mut memory.environment, pool).await;
        let refused = memory.refused.as_ref();
        seen.refusal = refused
            .filter(|refused| refused.generation == pool.metadata.generation)
            .map(|refused| refused.refusal.clone());
        seen
    }

    fn plan(&self, seen: &Observed, _: &mut PoolMemory, now: Timestamp) -> Plan {
        plan(seen, now)
    }

    fn audit(&self, key: &Key, seen: &Observed, plan: &Plan) -> bool {
        let violations = audit(seen, plan);
        if !violations.is_empty() {
            tracing::error!(pool = %key, ?violations, "a plan breaks its own rules and is not carried out; please report this");
        }
        violations.is_empty()
    }

    fn last_plan(&self, key: &Key, plan: &Plan) -> Option<(Vec<String>, Vec<String>)> {
        let actions: Vec<String> = plan.actions.iter().map(|action| format!("{action:?}")).collect();
        if !actions.is_empty() {
            tracing::debug!(pool = %key, ?actions, reasons = ?plan.reasons, "plan");
        }
        Some((plan.reasons.clone(), actions))
    }

    fn next(plan: &Plan) -> Next {
        plan.next
    }

    async fn act(
        &self,
        record: &mut Record<'_, Pool>,
        memory: &mut PoolMemory,
        seen: &Observed,
        plan: Plan,
    ) -> Result<(), act::Error> {
        let generation = record.object().metadata.generation;
        let acted = act::act(&self.0, record, seen, &plan).await;
        match &acted {
            Ok(()) => {
                let is_order = |action: &Action| matches!(action, Action::CreateMachine { .. });
                if plan.actions.iter().any(is_order) {
                    memory.refused = None;
                }
            }
            Err(act::Error::Refused(why)) => {
                let earlier = memory.refused.take();
                memory.refused = Some(Refused::after(earlier, generation, why.clone(), clock::now()));
            }
            Err(_) => {}
        }
        acted
    }

    fn warn(key: &Key, error: &act::Error, source: Option<String>, times: u32) {
        tracing::warn!(pool = %key, %error, source, times, "a Pool could not be reconciled; trying again");
    }

    fn forget(&self, key: &Key) {
        self.0.resolved.forget(key);
    }
}

impl Pools {
    /// Machines that we created and the watch has not shown for long: look.
    async fn resolve_doubts(&self, pool: &Pool) {
        let Self(context) = self;
        let uid = pool.uid().unwrap_or_default();
        let (_, reserved) = context.fleet.of_pool(&uid);
        for (key, _) in reserved.into_iter().filter(|(_, r)| r.since.elapsed() > DOUBTFUL) {
            match observe::look_up(context, &key).await {
                Some(Some(machine)) if machine.spec.pool_uid == uid => context.fleet.apply(&machine),
                Some(_) => context.fleet.cancel(&key),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod refusals {
    use super::*;

    #[test]
    fn each_refusal_in_a_row_is_waited_for_longer_up_to_a_minute() {
        let now = Timestamp::UNIX_EPOCH;
        let next = |earlier, generation| Refused::after(earlier, Some(generation), "quota".into(), now);
        let wait = |refused: &Refused| refused.refusal.until.as_second();
        let mut refused = next(None, 1);
        let mut waits = vec![wait(&refused)];
        for _ in 0..5 {
            refused = next(Some(refused), 1);
            waits.push(wait(&refused));
        }
        assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
        assert_eq!(wait(&next(Some(refused), 2)), 5, "another spec");
    }
}

#[cfg(test)]
mod rest {
    use super::*;
    use crate::hints::pool_loads::NUMBERS;
    use skyward_planner::pool::load::PoolLoad;

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_sleeps_or_grows_is_looked_at_when_work_comes() {
        let pool = |nodes: serde_json::Value, status: serde_json::Value| -> Pool {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
                "metadata": { "name": "train", "namespace": "team" },
                "spec": { "provider": "a", "nodes": nodes }, "status": status
            }))
            .unwrap()
        };
        let fixed = pool(serde_json::json!({ "desired": 1 }), serde_json::json!({}));
        let grows = pool(
            serde_json::json!({ "desired": 1, "max": 4 }),
            serde_json::json!({}),
        );
        let asleep = serde_json::json!({ "scaling": { "sleepingSince": "2026-11-21T10:00:00Z" } });
        let sleeps = pool(serde_json::json!({ "desired": 1 }), asleep);
        let loads = PoolLoads::default();
        let mut load = PoolLoad::default();
        loads.publish(&Key::new("team", "train"), load.clone());
        let news = || [&fixed, &grows, &sleeps].map(|pool| has_new_work(pool, &loads));
        assert_eq!(news(), [false; 3]);
        load.demand.places = 1;
        loads.publish(&Key::new("team", "train"), load);
        assert_eq!(news(), [false, true, true]);
        tokio::time::advance(JUST_NOW + LOOK).await;
        assert_eq!(
            news(),
            [false, false, true],
            "the plan of a Pool that grows looks again itself"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_says_outdated_numbers_of_tasks_is_looked_at_again() {
        let pool = |running: u32, waiting: u32| -> Pool {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
                "metadata": { "name": "train", "namespace": "team" },
                "spec": { "provider": "a", "nodes": { "desired": 1 } },
                "status": { "runningTasks": running, "waitingTasks": waiting }
            }))
            .unwrap()
        };
        let loads = PoolLoads::default();
        assert!(!is_stale(&pool(4, 0), &loads), "nothing is known yet");
        loads.publish(&Key::new("team", "train"), PoolLoad::default());
        for outdated in [pool(4, 0), pool(0, 4)] {
            assert!(!is_stale(&outdated, &loads));
            tokio::time::advance(NUMBERS).await;
            assert!(is_stale(&outdated, &loads));
            assert!(!is_stale(&pool(0, 0), &loads));
        }
    }
}
