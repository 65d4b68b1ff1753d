//! The watch of active Tasks, and who gets what it shows: one dispatcher for each Pool,
//! also for Pools without Tasks, so that the Board knows that they have none.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api,
    runtime::{WatchStreamExt, reflector::ObjectRef, watcher},
};
use skyward_api::Task;
use tokio::time::MissedTickBehavior;

use crate::{
    board::Key,
    guard::Guarded,
    task::{
        actor::Handle,
        hands::Hands,
        message::Event,
        model::{Entry, Uid},
    },
    wake::{Changed, Wakeups},
};

/// Whole Tasks of one page of a list. Each may have more than a MiB, whoever made it, and a
/// page is in memory twice while it is read.
pub(crate) const PAGE: u32 = 50;
/// Tasks that have not ended.
const ACTIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// How often dispatchers of Pools that are gone are looked for.
const PRUNE: Duration = Duration::from_secs(30);

fn active() -> watcher::Config {
    watcher::Config::default().fields(ACTIVE).page_size(PAGE)
}

/// Routes until shutdown.
pub(crate) async fn run(hands: Arc<Hands>, changes: Arc<Wakeups<Changed>>) {
    let context = hands.context.clone();
    let api: Api<Guarded<Task>> = Api::all(context.client.clone());
    let mut watch = watcher(api, active()).default_backoff().boxed();
    let mut router = Router {
        hands,
        dispatchers: HashMap::new(),
        index: HashMap::new(),
        listing: None,
        synced: false,
    };
    for pool in context.caches.pools.state() {
        if let (Some(namespace), Some(name)) = (&pool.metadata.namespace, &pool.metadata.name) {
            router.dispatcher(&Key::new(namespace, name)).await;
        }
    }
    let mut prune = tokio::time::interval(PRUNE);
    prune.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.shutdown.cancelled() => break,
            event = watch.next() => match event {
                Some(Ok(event)) => router.on_watch(event).await,
                Some(Err(error)) => tracing::warn!(%error, "the watch of Tasks is interrupted"),
                None => break,
            },
            change = changes.next() => match change {
                Changed::Pool(key) | Changed::Machine { pool: key, .. } => router.on_changed(&key).await,
                Changed::Provider(_) | Changed::Offers(_) => {}
            },
            _ = prune.tick() => {
                if let Some((pool, _)) = router.dispatchers.iter().find(|(_, handle)| handle.has_died()) {
                    // Its Tasks would wait for ever; a new process finds all that it knew.
                    tracing::error!(%pool, "a dispatcher broke; the process ends and starts again");
                    break;
                }
                router.prune().await;
            }
        }
    }
    for (_, dispatcher) in router.dispatchers {
        dispatcher.ended().await;
    }
}

struct Router {
    hands: Arc<Hands>,
    dispatchers: HashMap<Key, Handle>,
    /// Where each active Task went.
    index: HashMap<Uid, Key>,
    /// Tasks of the list under way.
    listing: Option<HashSet<Uid>>,
    synced: bool,
}

impl Router {
    async fn dispatcher(&mut self, key: &Key) -> &Handle {
        if !self.dispatchers.contains_key(key) {
            let handle = Handle::start(key.clone(), self.hands.clone());
            if self.synced {
                // A dispatcher that ended already is being shut down.
                let _ = handle.task_tx.send(Event::Synced).await;
            }
            self.dispatchers.insert(key.clone(), handle);
        }
        &self.dispatchers[key]
    }

    async fn on_watch(&mut self, event: watcher::Event<Guarded<Task>>) {
        match event {
            watcher::Event::Init => self.listing = Some(HashSet::new()),
            watcher::Event::InitApply(task) | watcher::Event::Apply(task) => self.on_task(task).await,
            watcher::Event::InitDone => self.on_listed().await,
            watcher::Event::Delete(task) => {
                if let Some(uid) = uid_of(&task) {
                    self.on_left(&uid).await;
                }
            }
        }
    }

    async fn on_task(&mut self, task: Guarded<Task>) {
        let entry = match &task.0 {
            Ok(task) => Entry::of(task),
            Err(invalid) => {
                // Admission refuses such an object; it can only be older than a stricter rule.
                self.hands.context.metrics.invalid_object("Task");
                tracing::warn!(task = ?invalid.metadata.name, namespace = ?invalid.metadata.namespace,
                    error = %invalid.error, "a Task cannot be understood and is left alone");
                None
            }
        };
        let namespace = match &task.0 {
            Ok(task) => task.metadata.namespace.clone(),
            Err(_) => None,
        };
        let (Some(entry), Some(namespace)) = (entry, namespace) else {
            return;
        };
        let key = Key::new(namespace, entry.pool.clone());
        if let Some(listing) = &mut self.listing {
            listing.insert(entry.uid.clone());
        }
        self.index.insert(entry.uid.clone(), key.clone());
        let _ = self
            .dispatcher(&key)
            .await
            .task_tx
            .send(Event::Task(Box::new(entry)))
            .await;
    }

    async fn on_left(&mut self, uid: &Uid) {
        if let Some(key) = self.index.remove(uid)
            && let Some(dispatcher) = self.dispatchers.get(&key)
        {
            let _ = dispatcher.task_tx.send(Event::Left(uid.clone())).await;
        }
    }

    /// The list is complete: what it does not show left while nobody watched.
    async fn on_listed(&mut self) {
        if let Some(listed) = self.listing.take() {
            let left: Vec<Uid> = self
                .index
                .keys()
                .filter(|uid| !listed.contains(*uid))
                .cloned()
                .collect();
            for uid in left {
                self.on_left(&uid).await;
            }
        }
        if !self.synced {
            self.synced = true;
            let pools = self.dispatchers.keys().cloned();
            self.hands.context.live.listed(pools);
            for dispatcher in self.dispatchers.values() {
                let _ = dispatcher.task_tx.send(Event::Synced).await;
            }
        }
    }

    async fn on_changed(&mut self, key: &Key) {
        if self.exists(key) {
            self.dispatcher(key).await;
        }
        if let Some(dispatcher) = self.dispatchers.get(key) {
            dispatcher.changed.notify_one();
        }
    }

    fn exists(&self, key: &Key) -> bool {
        let reference = ObjectRef::new(&key.name).within(&key.namespace);
        self.hands.context.caches.pools.get(&reference).is_some()
    }

    /// Ends dispatchers of Pools that are gone and have no Tasks.
    async fn prune(&mut self) {
        let used: HashSet<&Key> = self.index.values().collect();
        let idle: Vec<Key> = self
            .dispatchers
            .iter()
            .filter(|(key, handle)| handle.is_empty() && !used.contains(key) && !self.exists(key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in idle {
            if let Some(handle) = self.dispatchers.remove(&key) {
                handle.ended().await;
                self.hands.context.board.forget(&key);
            }
        }
    }
}

fn uid_of(task: &Guarded<Task>) -> Option<Uid> {
    let uid = match &task.0 {
        Ok(task) => task.metadata.uid.as_deref(),
        Err(invalid) => invalid.metadata.uid.as_deref(),
    };
    uid.map(Uid::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_list_of_tasks_comes_in_small_pages() {
        assert_eq!(active().page_size, Some(50));
    }
}
