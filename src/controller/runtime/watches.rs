//! The watches that fill the caches: one for each kind. Changes are published after the cache has
//! them; an unreadable object is skipped and counted, and never blinds a watch.

use std::{collections::HashSet, fmt::Debug, sync::Arc};

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, Store as Cache, store, store::Writer},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use skyward_api::{CronTask, Machine, Offer, Pool, Provider as ProviderObject};
use skyward_planner::base::key::{Key, key_of};
use tokio::task::JoinSet;

use crate::{
    accounts::{fleet::Fleet, offers::Offers},
    base::{
        broadcast::{Broadcast, Change},
        caught::caught,
    },
    caches::Caches,
    guard::{Guarded, Unreadable},
    metrics::Metrics,
    panics::Panics,
};

/// Objects of one page of a first list. Users write them or their content: one object may have
/// more than a MiB, and a page is in memory twice while it is read.
const PAGE: u32 = 50;
/// Offers are many, small and written by us; of namespaces only the metadata is kept.
const PAGE_OF_SMALL: u32 = 500;

/// Starts the watches.
pub(super) fn watch_all(
    client: &Client,
    broadcast: &Broadcast,
    fleet: &Arc<Fleet>,
    shelves: &Arc<Offers>,
    metrics: &Arc<Metrics>,
    panics: &Arc<Panics>,
) -> (Caches, JoinSet<()>) {
    let mut watches = Watches {
        client,
        broadcast,
        metrics,
        panics,
        running: JoinSet::new(),
    };
    let unreadable = Arc::<Unreadable>::default();
    let (fleet, shelves) = (fleet.clone(), shelves.clone());
    let caches = Caches {
        pools: watches.start(
            PAGE,
            Arc::default(),
            |_| {},
            |pool: &Pool| Change::Pool(key_of(pool)),
        ),
        machines: watches.start(
            PAGE,
            unreadable.clone(),
            move |seen| match seen {
                Seen::Applied(machine) => fleet.apply(machine),
                Seen::Deleted(machine) => fleet.remove(machine),
                Seen::Listed { now, .. } => fleet.replace(now),
            },
            |machine: &Machine| {
                let key = key_of(machine);
                let pool = Key::new(key.namespace.clone(), machine.spec.pool.clone());
                Change::Machine { machine: key, pool }
            },
        ),
        providers: watches.start(
            PAGE,
            Arc::default(),
            |_| {},
            |provider: &ProviderObject| Change::Provider(provider.name_any()),
        ),
        offers: watches.start(
            PAGE_OF_SMALL,
            Arc::default(),
            move |seen| match seen {
                Seen::Applied(offer) => shelves.apply(offer),
                Seen::Deleted(offer) => shelves.remove(offer),
                Seen::Listed { now, .. } => shelves.replace(now),
            },
            |offer: &Offer| Change::Offers(offer.spec.provider.clone()),
        ),
        cron_tasks: watches.start(
            PAGE,
            Arc::default(),
            |_| {},
            |cron: &CronTask| Change::CronTask(key_of(cron)),
        ),
        namespaces: watches.start(
            PAGE_OF_SMALL,
            Arc::default(),
            |_| {},
            |namespace: &PartialObjectMeta<Namespace>| Change::Namespace(namespace.name_any()),
        ),
        unreadable,
    };
    (caches, watches.running)
}

/// The watches that were started, and what they share.
struct Watches<'a> {
    client: &'a Client,
    broadcast: &'a Broadcast,
    metrics: &'a Arc<Metrics>,
    panics: &'a Arc<Panics>,
    running: JoinSet<()>,
}

impl Watches<'_> {
    /// Starts the watch of one kind, and gives the cache that it fills. What it saw goes to `index`
    /// first, then each change to the subscribers.
    fn start<K>(
        &mut self,
        page: u32,
        unreadable: Arc<Unreadable>,
        index: impl Fn(&Seen<'_, K>) + Send + Sync + 'static,
        change: impl Fn(&K) -> Change + Send + Sync + 'static,
    ) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (cache, writer) = store();
        let told = self.broadcast.clone();
        let tell = move |seen: Seen<'_, K>| {
            index(&seen);
            seen.each(|object| told.publish(&change(object)));
        };
        let shared = (self.metrics, self.panics);
        self.running
            .spawn(watch(self.client, writer, shared, page, unreadable, tell));
        cache
    }
}

/// What a watch saw, after the cache has it.
enum Seen<'a, K> {
    Applied(&'a Arc<K>),
    Deleted(&'a K),
    /// A complete list, and the former objects that are not in it.
    Listed {
        now: &'a [Arc<K>],
        gone: &'a [Arc<K>],
    },
}

impl<K> Seen<'_, K> {
    fn each(&self, mut tell: impl FnMut(&K)) {
        match self {
            Self::Applied(object) => tell(object),
            Self::Deleted(object) => tell(object),
            Self::Listed { now, gone } => now.iter().chain(*gone).for_each(|object| tell(object)),
        }
    }
}

/// The watch of one kind: fills its cache and publishes the changes. After a panic it lists anew.
fn watch<K>(
    client: &Client,
    mut writer: Writer<K>,
    (metrics, panics): (&Arc<Metrics>, &Arc<Panics>),
    page: u32,
    unreadable: Arc<Unreadable>,
    tell: impl Fn(Seen<'_, K>) + Send + Sync + 'static,
) -> impl Future<Output = ()> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let api: Api<Guarded<K>> = Api::all(client.clone());
    let (metrics, panics) = (metrics.clone(), panics.clone());
    async move {
        let config = watcher::Config::default().page_size(page);
        loop {
            let once = async {
                let stream = watcher::watcher(api.clone(), config.clone()).default_backoff();
                pin_mut!(stream);
                while let Some(event) = stream.next().await {
                    show(event, &mut writer, &metrics, &unreadable, &tell);
                }
            };
            match caught(once).await {
                Ok(()) => return,
                Err(panicked) => panics.before_anew("watch", &panicked).await,
            }
        }
    }
}

/// Puts an event of the watch into its cache, and publishes it.
fn show<K>(
    event: watcher::Result<Event<Guarded<K>>>,
    writer: &mut Writer<K>,
    metrics: &Metrics,
    unreadable: &Unreadable,
    tell: &impl Fn(Seen<'_, K>),
) where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let kind = K::kind(&());
    let event = match event {
        Ok(event) => event,
        Err(error) => {
            tracing::warn!(%kind, %error, "a watch broke; it begins again");
            return;
        }
    };
    unreadable.note(&event);
    let Some(event) = readable(event, &kind, metrics) else {
        return;
    };
    let cache: Cache<K> = writer.as_reader();
    let before = if matches!(event, Event::InitDone) {
        cache.state()
    } else {
        Vec::new()
    };
    writer.apply_watcher_event(&event);
    match &event {
        Event::Apply(object) => {
            // The cache has an Arc of it: share that one.
            let reference = ObjectRef::from_obj(object);
            let shared = cache.get(&reference).unwrap_or_else(|| Arc::new(object.clone()));
            tell(Seen::Applied(&shared));
        }
        Event::Delete(object) => tell(Seen::Deleted(object)),
        Event::InitDone => {
            let now = cache.state();
            let present: HashSet<Key> = now.iter().map(|object| key_of(object.as_ref())).collect();
            let gone: Vec<_> = before
                .into_iter()
                .filter(|object| !present.contains(&key_of(object.as_ref())))
                .collect();
            tell(Seen::Listed {
                now: &now,
                gone: &gone,
            });
        }
        Event::Init | Event::InitApply(_) => {}
    }
}

/// Takes the guard off, and removes unused fields; a malformed object is skipped and counted.
fn readable<K: Resource<DynamicType = ()>>(
    event: Event<Guarded<K>>,
    kind: &str,
    metrics: &Metrics,
) -> Option<Event<K>> {
    let read = |guard: Guarded<K>| match guard.0 {
        Ok(mut object) => {
            let meta = object.meta_mut();
            meta.managed_fields = None;
            if let Some(annotations) = meta.annotations.as_mut() {
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
            Some(object)
        }
        Err(invalid) => {
            metrics.invalid_object(kind);
            tracing::warn!(
                kind,
                namespace = invalid.metadata.namespace,
                name = invalid.metadata.name,
                error = invalid.error,
                "an object cannot be understood and is left alone; correct or delete it"
            );
            None
        }
    };
    match event {
        Event::Apply(guard) => read(guard).map(Event::Apply),
        Event::Delete(guard) => read(guard).map(Event::Delete),
        Event::InitApply(guard) => read(guard).map(Event::InitApply),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }
}

#[cfg(test)]
mod tests;
