//! The watch of active Tasks, and the receivers of its events: one dispatcher for each Pool,
//! also for Pools without Tasks, so that the table of loads knows that they have none. A dispatcher
//! that panicked is replaced after a pause; all Tasks are listed again then, and the new dispatcher
//! takes up those of its Pool from their records.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Resource as _,
    runtime::{WatchStreamExt, watcher},
};
use skyward_api::Task;
use skyward_planner::{
    base::key::Key,
    task::{
        dependencies::Circle,
        model::{Entry, Uid},
    },
};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, sleep_until},
};

use crate::{
    base::{broadcast::Change, queue::WorkQueue},
    guard::Guarded,
    task::{actor::Handle, effects::EffectRunner},
};

/// Whole Tasks of one page of a list. Any user may make a Task of more than a MiB, and a page is
/// in memory twice while it is read.
pub(crate) const PAGE: u32 = 50;
/// Tasks that have not ended.
const ACTIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// How often dispatchers of Pools that are gone are looked for.
const PRUNE: Duration = Duration::from_secs(30);

fn active() -> watcher::Config {
    watcher::Config::default().fields(ACTIVE).page_size(PAGE)
}

type Watch = BoxStream<'static, watcher::Result<watcher::Event<Guarded<Task>>>>;

/// Routes until shutdown.
pub(crate) async fn run(runner: Arc<EffectRunner>, changes: Arc<WorkQueue<Change>>) {
    let context = runner.context.clone();
    let api: Api<Guarded<Task>> = Api::all(context.client.clone());
    let begin = || -> Watch { watcher(api.clone(), active()).default_backoff().boxed() };
    let mut watch = begin();
    context.awaited.begin();
    let mut router = Router::new(runner);
    for pool in context.caches.pools.state() {
        if let (Some(namespace), Some(name)) = (&pool.metadata.namespace, &pool.metadata.name) {
            router.dispatcher(&Key::new(namespace, name));
        }
    }
    let mut prune = tokio::time::interval(PRUNE);
    prune.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (breaks, rested) = (router.breaks.clone(), router.rested());
        tokio::select! {
            () = context.shutdown.cancelled() => break,
            event = watch.next() => match event {
                Some(Ok(event)) => router.on_watch(event),
                Some(Err(error)) => tracing::warn!(%error, "the watch of Tasks is interrupted"),
                None => break,
            },
            change = changes.next() => match change {
                Change::Pool(key) | Change::Machine { pool: key, .. } => router.on_changed(&key),
                Change::Provider(_) | Change::Offers(_) | Change::Namespace(_) | Change::CronTask(_) => {}
            },
            pool = context.session_wakeups.next() => router.on_session(&pool),
            () = breaks.notified() => router.on_broken(),
            () = sleep_until(rested.unwrap_or_else(Instant::now)), if rested.is_some() => {
                router.on_rested();
                // Its predecessor's knowledge of the Tasks is gone.
                watch = begin();
            }
            _ = prune.tick() => router.prune().await,
        }
    }
    for (_, dispatcher) in router.dispatchers {
        dispatcher.ended().await;
    }
}

/// An active Task.
struct Routed {
    pool: Key,
    name: Arc<str>,
    /// Name of the CronTask that made it.
    cron: Option<Arc<str>>,
}

struct Router {
    runner: Arc<EffectRunner>,
    dispatchers: HashMap<Key, Handle>,
    /// Where each active Task went.
    index: HashMap<Uid, Routed>,
    /// Tasks of the list under way.
    listing: Option<HashSet<Uid>>,
    synced: bool,
    /// Notified when a dispatcher panics.
    breaks: Arc<Notify>,
    /// Pools whose dispatcher panicked, and when they get a new one.
    resting: HashMap<Key, Instant>,
    /// Pools whose new dispatcher has not been told of all its Tasks yet.
    unlisted: HashSet<Key>,
}

impl Router {
    fn new(runner: Arc<EffectRunner>) -> Self {
        Self {
            runner,
            dispatchers: HashMap::new(),
            index: HashMap::new(),
            listing: None,
            synced: false,
            breaks: Arc::default(),
            resting: HashMap::new(),
            unlisted: HashSet::new(),
        }
    }

    /// The Pool's dispatcher, made if it must be; none while it is left alone.
    fn dispatcher(&mut self, key: &Key) -> Option<&Handle> {
        if self.resting.contains_key(key) {
            return None;
        }
        if !self.dispatchers.contains_key(key) {
            let handle = Handle::start(key.clone(), self.runner.clone(), self.breaks.clone());
            if self.synced && !self.unlisted.contains(key) {
                handle.inbox.synced();
            }
            self.dispatchers.insert(key.clone(), handle);
        }
        self.dispatchers.get(key)
    }

    /// Removes dispatchers that panicked, and the loads that they published.
    fn on_broken(&mut self) {
        let context = &self.runner.context;
        self.dispatchers.retain(|key, handle| {
            let Some(panicked) = handle.broken() else {
                return true;
            };
            context.loads.forget(key);
            let about = context.caches.pool(key).map_or_else(
                || ObjectReference {
                    kind: Some("Pool".to_owned()),
                    namespace: Some(key.namespace.clone()),
                    name: Some(key.name.clone()),
                    ..ObjectReference::default()
                },
                |pool| pool.object_ref(&()),
            );
            let broken = context.panics.met("dispatcher", &about, panicked);
            self.resting.insert(key.clone(), Instant::now() + broken.rest);
            self.unlisted.remove(key);
            false
        });
    }

    /// When the next Pool gets a new dispatcher.
    fn rested(&self) -> Option<Instant> {
        self.resting.values().min().copied()
    }

    /// Starts new dispatchers where their time has come. The list that begins now shows them all
    /// their Tasks; until its end they know that some may be missing.
    fn on_rested(&mut self) {
        let now = Instant::now();
        let due: Vec<Key> = self
            .resting
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.resting.remove(&key);
            self.unlisted.insert(key.clone());
            self.dispatcher(&key);
        }
    }

    fn on_watch(&mut self, event: watcher::Event<Guarded<Task>>) {
        match event {
            watcher::Event::Init => self.listing = Some(HashSet::new()),
            watcher::Event::InitApply(task) | watcher::Event::Apply(task) => self.on_task(task),
            watcher::Event::InitDone => self.on_listed(),
            watcher::Event::Delete(task) => {
                if let Some(uid) = &task.meta().uid {
                    self.on_left(&Uid::from(uid.as_str()));
                }
            }
        }
    }

    fn on_task(&mut self, task: Guarded<Task>) {
        let task = match task.0 {
            Ok(task) => task,
            Err(invalid) => {
                // Admission refuses such an object, so it is older than a stricter rule.
                self.runner.context.metrics.invalid_object("Task");
                tracing::warn!(task = ?invalid.metadata.name, namespace = ?invalid.metadata.namespace,
                    error = %invalid.error, "a Task cannot be understood and is left alone");
                return;
            }
        };
        let (Some(entry), Some(namespace)) = (Entry::of(&task), task.metadata.namespace) else {
            return;
        };
        let key = Key::new(namespace, entry.pool.clone());
        if let Some(listing) = &mut self.listing {
            listing.insert(entry.uid.clone());
        }
        let routed = Routed {
            pool: key.clone(),
            name: entry.name.clone(),
            cron: entry.cron.clone(),
        };
        let is_new = self.index.insert(entry.uid.clone(), routed).is_none();
        // Before its dispatcher reads the Tasks that it depends on: what changes afterwards is told.
        let circles = self.runner.context.awaited.note(&key.namespace, &entry);
        let name = entry.name.clone();
        if let Some(dispatcher) = self.dispatcher(&key) {
            dispatcher.inbox.task(entry);
        }
        self.tell_circles(&key.namespace, circles);
        if is_new {
            self.tell_dependents(&key.namespace, &name);
        }
    }

    /// Tasks wait for each other, or do so no more.
    fn tell_circles(&self, namespace: &str, circles: Vec<Circle>) {
        for Circle { pool, uid, names } in circles {
            if let Some(dispatcher) = self.dispatchers.get(&Key::new(namespace, pool)) {
                dispatcher.inbox.circle(&uid, names);
            }
        }
    }

    /// The Task of that name came or left: the dispatchers of the Tasks that wait for it read it.
    fn tell_dependents(&self, namespace: &str, name: &Arc<str>) {
        for pool in self.runner.context.awaited.pools_waiting_for(namespace, name) {
            if let Some(dispatcher) = self.dispatchers.get(&pool) {
                dispatcher.inbox.dependency(name);
            }
        }
    }

    fn on_left(&mut self, uid: &Uid) {
        let Some(Routed { pool, name, cron }) = self.index.remove(uid) else {
            return;
        };
        if let Some(cron) = cron {
            // It looks at what its Tasks came to, and may be waiting for this one.
            let cron = Key::new(pool.namespace.as_str(), &*cron);
            self.runner.context.cron_wakeups.enqueue(cron);
        }
        match self.dispatchers.get(&pool) {
            Some(dispatcher) => dispatcher.inbox.left(uid),
            None => self.runner.context.live.set(uid, Vec::new()),
        }
        let circles = self.runner.context.awaited.left(&pool.namespace, &name, uid);
        self.tell_circles(&pool.namespace, circles);
        self.tell_dependents(&pool.namespace, &name);
    }

    /// The list is complete: missing Tasks left while the watch was down.
    fn on_listed(&mut self) {
        if let Some(listed) = self.listing.take() {
            let left: Vec<Uid> = self
                .index
                .keys()
                .filter(|uid| !listed.contains(*uid))
                .cloned()
                .collect();
            for uid in left {
                self.on_left(&uid);
            }
        }
        if !self.synced {
            self.synced = true;
            self.runner.context.awaited.listed();
            let pools = self.dispatchers.keys().cloned();
            self.runner.context.live.listed(pools);
            self.unlisted = self.dispatchers.keys().cloned().collect();
        }
        for key in std::mem::take(&mut self.unlisted) {
            if let Some(dispatcher) = self.dispatchers.get(&key) {
                dispatcher.inbox.synced();
            }
        }
    }

    fn on_changed(&mut self, key: &Key) {
        if self.exists(key) {
            self.dispatcher(key);
        }
        self.on_session(key);
    }

    /// The session of one of its machines changed.
    fn on_session(&self, key: &Key) {
        if let Some(dispatcher) = self.dispatchers.get(key) {
            dispatcher.changed.notify_one();
        }
    }

    fn exists(&self, key: &Key) -> bool {
        self.runner.context.caches.pool(key).is_some()
    }

    /// Ends dispatchers of Pools that are gone and have no Tasks.
    async fn prune(&mut self) {
        let used: HashSet<&Key> = self.index.values().map(|routed| &routed.pool).collect();
        let idle: Vec<Key> = self
            .dispatchers
            .iter()
            .filter(|(key, handle)| handle.is_empty() && !used.contains(key) && !self.exists(key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in idle {
            if let Some(handle) = self.dispatchers.remove(&key) {
                handle.ended().await;
                self.runner.context.loads.forget(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_list_of_tasks_comes_in_small_pages() {
        assert_eq!(active().page_size, Some(50));
    }
}
