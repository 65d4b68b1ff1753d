//! Which Machines a Pool should have.
//!
//! Begin reading at [`skyward_planner::pool::plan`]: what should happen next, as a pure function. [`observe`]
//! gathers its facts, [`act`] carries the plan out. This file only says when a Pool is looked at, and runs
//! the sweeps of [`crate::accounts::sweeps`].

pub mod act;
pub mod observe;
pub mod references;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt, applier,
        controller::{self, Action},
        reflector::{ObjectRef, Store as Cache, store::Writer},
        watcher::{self, watcher},
    },
};
use skyward_api::{
    Pool,
    condition::{RECONCILING, is_true},
};
use skyward_planner::{
    base::{
        key::{Key, key_of},
        requeue::Next,
        time::after,
    },
    pool::{
        facts::{DOUBTFUL, Refusal},
        plan::{audit::audit, draft, plan},
    },
};
use tokio::time::{Instant, MissedTickBehavior};

use self::{observe::observe, references::ReferenceCheck};
use crate::{
    accounts::sweeps::{key_sweep, log_sweep, machine_sweep, resource_sweep},
    base::{backoff::Backoff, broadcast::Change, queue::WorkQueue},
    context::Context,
    hints::pool_loads::PoolLoads,
    newest::Newest,
};

/// A Pool that is deleted waits for its clouds, up to minutes where one does not answer: this many
/// such Pools for each that is reconciled, or deleted Pools would hold up the others.
const PER_SLOT: u16 = 4;
/// Most plans in a row for one Pool before others get their turn.
const ROUNDS: usize = 6;
/// How often Pools are checked for outdated numbers of Tasks in their status.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a plan that breaks a rule of the audit.
const AFTER_VIOLATION: Duration = Duration::from_secs(10);
/// Pause after a plan that was made from an old view.
const AFTER_CONFLICT: Duration = Duration::from_millis(50);

/// Wait after the API server refused a Machine; it doubles up to this many times its value.
const REFUSED_WAIT: Duration = Duration::from_secs(5);
const MAX_REFUSED_FACTOR: u32 = 12;

struct Shared {
    context: Context,
    newest: Newest<Pool>,
    memory: Mutex<HashMap<Key, PoolMemory>>,
    failures: Backoff<Key>,
}

/// Hints about one Pool; losing them costs a look or a refused write.
#[derive(Default)]
struct PoolMemory {
    references: Option<ReferenceCheck>,
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
pub async fn run(context: Context, namespaces: Arc<Mutex<Writer<PartialObjectMeta<Namespace>>>>) {
    let work_queue = WorkQueue::new();
    let watch_namespaces = {
        let (work_queue, pools) = (work_queue.clone(), context.caches.pools.clone());
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(context.client.clone());
        async move {
            let events = watcher(api, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        namespaces
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .apply_watcher_event(&event);
                        if let watcher::Event::Apply(object) | watcher::Event::Delete(object) = &event {
                            let name = object.name_any();
                            wake_where(&pools, &work_queue, |pool| {
                                pool.namespace().as_deref() == Some(&name)
                            });
                        }
                        if matches!(event, watcher::Event::InitDone) {
                            wake_where(&pools, &work_queue, |_| true);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "the watch of namespaces broke; it begins again"),
                }
            }
        }
    };
    let concurrency = context.config.concurrency;
    let shutdown = context.shutdown.clone();
    let shared = Arc::new(Shared {
        context: context.clone(),
        newest: Newest::default(),
        memory: Mutex::default(),
        failures: Backoff::default(),
    });
    let queue = work_queue
        .clone()
        .stream()
        .map(|key| Ok::<_, Infallible>(ObjectRef::<Pool>::new(&key.name).within(&key.namespace)))
        .take_until(shutdown.clone().cancelled_owned());
    let reconciles = applier(
        |pool, shared: Arc<Shared>| Box::pin(async move { shared.reconcile(pool).await }),
        |pool, error: &act::Error, shared| {
            Action::requeue(retry_after(error, &shared.failures, &key_of(pool.as_ref())))
        },
        shared.clone(),
        context.caches.pools.clone(),
        queue,
        controller::Config::default().concurrency(concurrency.saturating_mul(PER_SLOT)),
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
    let panics = &context.panics;
    let background = async {
        tokio::join!(
            watch_namespaces,
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

fn retry_after(error: &act::Error, failures: &Backoff<Key>, key: &Key) -> Duration {
    match error {
        // After a refusal the next plan waits.
        act::Error::Stale | act::Error::LimitRace | act::Error::Refused(_) => AFTER_CONFLICT,
        act::Error::Late(_) => failures.delay(key, Duration::from_secs(1)),
        act::Error::Api(..) | act::Error::Key(_) | act::Error::Provider(_) => {
            failures.delay(key, Duration::from_secs(3))
        }
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
            },
            pool = idle.next() => {
                // Machines become idle with every run; only a Pool with pending changes waits for
                // that.
                let known = context.caches.pools.get(&ObjectRef::new(&pool.name).within(&pool.namespace));
                if known.is_none_or(|pool| waits_for_idle(&pool)) {
                    work_queue.enqueue(pool);
                }
            }
            _ = rest.tick() => {
                wake_where(&context.caches.pools, work_queue, |pool| is_stale(pool, &context.loads));
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

fn waits_for_idle(pool: &Pool) -> bool {
    pool.status.as_ref().is_none_or(|status| {
        is_true(&status.conditions, RECONCILING) || status.observed_generation != pool.metadata.generation
    })
}

impl Shared {
    async fn reconcile(&self, cached: Arc<Pool>) -> Result<Action, act::Error> {
        let started = Instant::now();
        let (key, about) = (key_of(cached.as_ref()), cached.object_ref(&()));
        let result = match self
            .context
            .panics
            .turn("pool", &about, self.rounds(cached))
            .await
        {
            Ok(result) => result,
            Err(broken) => {
                if broken.panicked {
                    self.forget(&key);
                }
                return Ok(Action::requeue(broken.rest));
            }
        };
        let error = result.as_ref().err().map(act::Error::category);
        self.context.metrics.reconciled("Pool", started.elapsed(), error);
        result
    }

    async fn rounds(&self, cached: Arc<Pool>) -> Result<Action, act::Error> {
        let key = key_of(cached.as_ref());
        let mut pool = self.newest.of(cached);
        for _ in 0..ROUNDS {
            self.resolve_doubts(&pool).await;
            let mut references = self.with_memory(&key, |memory| memory.references.take());
            let mut seen = observe(&self.context, &mut references, &pool).await;
            let generation = pool.metadata.generation;
            seen.refusal = self.with_memory(&key, |memory| {
                memory.references = references;
                let refused = memory.refused.as_ref();
                refused
                    .filter(|refused| refused.generation == generation)
                    .map(|refused| refused.refusal.clone())
            });
            let now = Timestamp::now();
            let plan = plan(&seen, now);
            let violations = audit(&seen, &plan);
            if !violations.is_empty() {
                tracing::error!(pool = %key, ?violations, "a plan breaks its own rules and is not carried out; please report this");
                return Ok(Action::requeue(AFTER_VIOLATION));
            }
            let actions: Vec<String> = plan.actions.iter().map(|action| format!("{action:?}")).collect();
            if !actions.is_empty() {
                tracing::debug!(pool = %key, ?actions, reasons = ?plan.reasons, "plan");
            }
            self.context
                .health
                .planned(format!("Pool {key}"), plan.reasons.clone(), actions);
            let written = match act::act(&self.context, &pool, &seen, &plan).await {
                Ok(written) => written,
                Err(error) => {
                    self.report(&key, &error);
                    if let act::Error::Refused(why) = &error {
                        self.with_memory(&key, |memory| {
                            let earlier = memory.refused.take();
                            memory.refused = Some(Refused::after(earlier, generation, why.clone(), now));
                        });
                    }
                    return Err(error);
                }
            };
            self.failures.succeeded(&key);
            let is_order = |action: &draft::Action| matches!(action, draft::Action::CreateMachine { .. });
            if plan.actions.iter().any(is_order) {
                self.with_memory(&key, |memory| memory.refused = None);
            }
            if let Some(fresh) = written {
                self.newest.wrote(&pool, fresh.clone());
                pool = fresh;
            }
            match plan.next {
                Next::Again => {}
                Next::Wait => return Ok(Action::await_change()),
                Next::After(wait) => return Ok(Action::requeue(wait.max(Duration::from_millis(10)))),
            }
        }
        Ok(Action::requeue(AFTER_CONFLICT))
    }

    /// Logs failures that go on, and not each time; a conflict is daily business.
    fn report(&self, key: &Key, error: &act::Error) {
        if matches!(error, act::Error::Stale | act::Error::LimitRace) {
            return;
        }
        let times = self.failures.failed(key.clone());
        if times.is_power_of_two() {
            let source = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(pool = %key, %error, source, times, "a Pool could not be brought further; trying again");
        }
    }

    /// Looks up Machines that we created and the watch has not shown for long.
    async fn resolve_doubts(&self, pool: &Pool) {
        let uid = pool.uid().unwrap_or_default();
        let (_, reserved) = self.context.fleet.of_pool(&uid);
        for (key, _) in reserved.into_iter().filter(|(_, r)| r.since.elapsed() > DOUBTFUL) {
            match observe::look_up(&self.context, &key).await {
                Some(Some(machine)) if machine.spec.pool_uid == uid => self.context.fleet.apply(&machine),
                Some(_) => self.context.fleet.cancel(&key),
                None => {}
            }
        }
    }

    fn with_memory<T>(&self, key: &Key, change: impl FnOnce(&mut PoolMemory) -> T) -> T {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        change(memory.entry(key.clone()).or_default())
    }

    fn forget(&self, key: &Key) {
        self.newest.forget(key);
        self.memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
        self.failures.succeeded(key);
        self.context.health.forget(&format!("Pool {key}"));
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
