//! One object's reconcile, the same for all controllers: observe, plan, act, again.
//!
//! A controller says with [`Reconcile`] what it sees of an object, what it plans and how it carries
//! that out; its own file has only what wakes its objects. [`drive`] has the rest once: what we wrote
//! before the watch shows it, what is remembered of each object, rounds, waits after errors, metrics,
//! the last plan for people, and the guard against panics.

use std::{collections::HashMap, convert::Infallible, fmt::Debug, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, StreamExt};
use jiff::Timestamp;
use kube::{
    Resource, ResourceExt,
    runtime::{
        applier,
        controller::{Action, Config, Error as ControllerError},
        reflector::{ObjectRef, Store as Cache},
    },
};
use parking_lot::Mutex;
use skyward_core::clock;
use skyward_planner::base::{
    key::{Key, key_of},
    requeue::Next,
};
use tokio::time::Instant;

use crate::{
    api::ApiError,
    base::backoff::Backoff,
    context::Context,
    health::Health,
    metrics::Metrics,
    newest::{Newest, Record},
    panics::Panics,
};

#[cfg(test)]
mod tests;

/// Most plans in a row for one object before others get their turn.
const ROUNDS: usize = 6;
/// The next look after a plan that was made from an old view.
pub(crate) const AFTER_CONFLICT: Duration = Duration::from_millis(50);
/// The next look after a plan that no plan should be like.
const AFTER_VIOLATION: Duration = Duration::from_secs(10);

/// What one controller does with one of its objects.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// The kind, for metrics and for the last plans.
    const KIND: &'static str;
    /// The controller, as panics are counted.
    const CONTROLLER: &'static str;

    /// What is reconciled.
    type Object: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static;
    /// Hints about one object, from one reconcile to the next; losing them costs a look.
    type Memory: Default + Send + 'static;
    /// Everything that a plan may know.
    type Seen: Send + Sync;
    /// What is to be done.
    type Plan: Send + Sync;
    /// What effects met, for the next plan of the same reconcile to judge.
    type Outcomes: Default + Send;
    /// Why acting stopped.
    type Error: Failure;

    /// Whether the object is not ours to reconcile; lets it go if it has to.
    fn is_foreign(&self, _: &Self::Object) -> impl Future<Output = Result<bool, Self::Error>> + Send {
        async { Ok(false) }
    }

    /// What is remembered of an object that this process has not reconciled yet.
    fn first_memory(&self, _uid: &str) -> Self::Memory {
        Self::Memory::default()
    }

    /// What is remembered of an object whose turn panicked, instead of what was; `None`: it begins
    /// like one that was never reconciled.
    fn after_panic(&self, _: &Key) -> Option<Self::Memory> {
        None
    }

    /// Gathers; makes no decision.
    fn observe(
        &self,
        object: &Arc<Self::Object>,
        memory: &mut Self::Memory,
        outcomes: Self::Outcomes,
    ) -> impl Future<Output = Self::Seen> + Send;

    /// Decides.
    fn plan(&self, seen: &Self::Seen, memory: &mut Self::Memory, now: Timestamp) -> Self::Plan;

    /// Whether the plan keeps its own rules; one that does not is not carried out.
    fn audit(&self, _: &Key, _: &Self::Seen, _: &Self::Plan) -> bool {
        true
    }

    /// Reasons and actions of a plan, for people who ask why an object is as it is.
    fn last_plan(&self, _: &Key, _: &Self::Plan) -> Option<(Vec<String>, Vec<String>)> {
        None
    }

    /// When the object is looked at again after this plan.
    fn next(plan: &Self::Plan) -> Next;

    /// Carries out; makes no choices.
    fn act(
        &self,
        record: &mut Record<'_, Self::Object>,
        memory: &mut Self::Memory,
        seen: &Self::Seen,
        plan: Self::Plan,
    ) -> impl Future<Output = Result<Self::Outcomes, Self::Error>> + Send;

    /// Writes to the log that an object has failed so many times in a row.
    fn warn(key: &Key, error: &Self::Error, source: Option<String>, times: u32);

    /// The object is gone.
    fn forget(&self, _: &Key) {}
}

/// An error of a reconcile.
pub(crate) trait Failure: std::error::Error + Send + Sync {
    /// Stable name for metrics.
    fn category(&self) -> &'static str;

    /// When it is tried again.
    fn retry(&self) -> Retry;
}

/// When a failed reconcile is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// After this long: daily business, which is neither counted nor said.
    Unsaid(Duration),
    /// After this long, since the next plan waits by itself. It is said.
    Fixed(Duration),
    /// After this long, doubled with each failure in a row. It is said.
    Doubled(Duration),
}

impl Failure for ApiError {
    fn category(&self) -> &'static str {
        self.category()
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Stale(..) => Retry::Unsaid(AFTER_CONFLICT),
            Self::Late(_) => Retry::Doubled(Duration::from_secs(1)),
            Self::Api(..) => Retry::Doubled(Duration::from_secs(3)),
        }
    }
}

/// Reconciles every object that the queue names, so many at the same time, until the queue ends or
/// the process shall end.
pub(crate) async fn drive<R: Reconcile>(
    reconcile: R,
    context: &Context,
    objects: Cache<R::Object>,
    queue: impl Stream<Item = Key> + Send,
    concurrency: u16,
) {
    let driver = Arc::new(Driver::new(
        reconcile,
        context.panics.clone(),
        context.metrics.clone(),
        context.health.clone(),
    ));
    let queue = queue
        .map(|key| {
            let object = ObjectRef::<R::Object>::new(&key.name);
            Ok::<_, Infallible>(if key.namespace.is_empty() {
                object
            } else {
                object.within(&key.namespace)
            })
        })
        .take_until(context.shutdown.clone().cancelled_owned());
    applier(
        |object, driver: Arc<Driver<R>>| {
            async move { Ok::<_, Infallible>(driver.reconcile(object).await) }.boxed()
        },
        |_, never: &Infallible, _| match *never {},
        driver.clone(),
        objects,
        queue,
        Config::default().concurrency(concurrency),
    )
    .for_each(|outcome| {
        if let Err(ControllerError::ObjectNotFound(object)) = outcome {
            driver.forget(&Key::new(object.namespace.unwrap_or_default(), object.name));
        }
        std::future::ready(())
    })
    .await;
}

struct Driver<R: Reconcile> {
    reconcile: R,
    panics: Arc<Panics>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    newest: Newest<R::Object>,
    /// With the UID: an object of the same name that was made anew is another one.
    memories: Mutex<HashMap<Key, (String, R::Memory)>>,
    failures: Backoff<Key>,
}

impl<R: Reconcile> Driver<R> {
    fn new(reconcile: R, panics: Arc<Panics>, metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        Self {
            reconcile,
            panics,
            metrics,
            health,
            newest: Newest::default(),
            memories: Mutex::default(),
            failures: Backoff::default(),
        }
    }

    async fn reconcile(&self, cached: Arc<R::Object>) -> Action {
        let (started, key) = (Instant::now(), key_of(cached.as_ref()));
        let (uid, about) = (cached.uid().unwrap_or_default(), cached.object_ref(&()));
        match self.reconcile.is_foreign(&cached).await {
            Ok(false) => {}
            Ok(true) => return Action::await_change(),
            Err(error) => return Action::requeue(self.failed(&key, &error)),
        }
        let turn = async {
            let mut memory = self.recall(&key, &uid);
            let result = self.rounds(&key, cached, &mut memory).await;
            self.remember(&key, &uid, memory);
            result
        };
        let result = match self.panics.turn(R::CONTROLLER, &about, turn).await {
            Ok(result) => result,
            Err(broken) => {
                if broken.panicked {
                    self.newest.forget(&key);
                    self.memories.lock().remove(&key);
                    if let Some(memory) = self.reconcile.after_panic(&key) {
                        self.remember(&key, &uid, memory);
                    }
                }
                return Action::requeue(broken.rest);
            }
        };
        let category = result.as_ref().err().map(Failure::category);
        self.metrics.reconciled(R::KIND, started.elapsed(), category);
        match result {
            Ok(action) => {
                self.failures.succeeded(&key);
                action
            }
            Err(error) => Action::requeue(self.failed(&key, &error)),
        }
    }

    async fn rounds(
        &self,
        key: &Key,
        cached: Arc<R::Object>,
        memory: &mut R::Memory,
    ) -> Result<Action, R::Error> {
        let mut record = self.newest.record(cached);
        let mut outcomes = R::Outcomes::default();
        for _ in 0..ROUNDS {
            let before = std::mem::take(&mut outcomes);
            let seen = self.reconcile.observe(record.object(), memory, before).await;
            let plan = self.reconcile.plan(&seen, memory, clock::now());
            if !self.reconcile.audit(key, &seen, &plan) {
                return Ok(Action::requeue(AFTER_VIOLATION));
            }
            if let Some((reasons, actions)) = self.reconcile.last_plan(key, &plan) {
                self.health
                    .planned(format!("{} {key}", R::KIND), reasons, actions);
            }
            let next = R::next(&plan);
            outcomes = self.reconcile.act(&mut record, memory, &seen, plan).await?;
            match next {
                Next::Again => {}
                Next::Wait => return Ok(Action::await_change()),
                Next::After(wait) => return Ok(Action::requeue(wait.max(Duration::from_millis(10)))),
            }
        }
        Ok(Action::requeue(AFTER_CONFLICT))
    }

    /// How long to wait after this error. What goes on failing is said, and not each time.
    fn failed(&self, key: &Key, error: &R::Error) -> Duration {
        let retry = error.retry();
        if let Retry::Unsaid(wait) = retry {
            return wait;
        }
        let times = self.failures.failed(key.clone());
        if times.is_power_of_two() {
            let source = std::error::Error::source(error).map(ToString::to_string);
            R::warn(key, error, source, times);
        }
        match retry {
            Retry::Unsaid(wait) | Retry::Fixed(wait) => wait,
            Retry::Doubled(first) => self.failures.delay(key, first),
        }
    }

    fn recall(&self, key: &Key, uid: &str) -> R::Memory {
        match self.memories.lock().remove(key) {
            Some((known, memory)) if known == uid => memory,
            _ => self.reconcile.first_memory(uid),
        }
    }

    fn remember(&self, key: &Key, uid: &str, memory: R::Memory) {
        self.memories.lock().insert(key.clone(), (uid.to_owned(), memory));
    }

    fn forget(&self, key: &Key) {
        self.newest.forget(key);
        self.memories.lock().remove(key);
        self.failures.succeeded(key);
        self.health.forget(&format!("{} {key}", R::KIND));
        self.reconcile.forget(key);
    }
}
