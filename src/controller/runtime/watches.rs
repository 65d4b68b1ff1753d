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
use skyward_api::{Machine, Offer, Pool, Provider as ProviderObject};
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
/// Offers are many, small and written by us.
const PAGE_OF_OFFERS: u32 = 500;

pub(super) fn watch_all(
    client: &Client,
    broadcast: &Broadcast,
    fleet: &Arc<Fleet>,
    shelves: &Arc<Offers>,
    namespaces: Cache<PartialObjectMeta<Namespace>>,
    metrics: &Arc<Metrics>,
    panics: &Arc<Panics>,
) -> (Caches, JoinSet<()>) {
    let mut watches = JoinSet::new();
    let unreadable = Arc::<Unreadable>::default();
    let (pools, pools_writer) = store::<Pool>();
    let (machines, machines_writer) = store::<Machine>();
    let (providers, providers_writer) = store::<ProviderObject>();
    let (offers, offers_writer) = store::<Offer>();
    let told = broadcast.clone();
    let pools_watch = watch(
        client,
        pools_writer,
        (metrics, panics),
        PAGE,
        Arc::default(),
        move |seen: Seen<'_, Pool>| {
            seen.each(|pool| told.publish(&Change::Pool(key_of(pool))));
        },
    );
    let (told, known) = (broadcast.clone(), fleet.clone());
    let machines_watch = watch(
        client,
        machines_writer,
        (metrics, panics),
        PAGE,
        unreadable.clone(),
        move |seen: Seen<'_, Machine>| {
            match &seen {
                Seen::Applied(machine) => known.apply(machine),
                Seen::Deleted(machine) => known.remove(machine),
                Seen::Listed { now, .. } => known.replace(now),
            }
            seen.each(|machine| {
                let machine_key = key_of(machine);
                let pool = Key::new(machine_key.namespace.clone(), machine.spec.pool.clone());
                told.publish(&Change::Machine {
                    machine: machine_key,
                    pool,
                });
            });
        },
    );
    let told = broadcast.clone();
    let providers_watch = watch(
        client,
        providers_writer,
        (metrics, panics),
        PAGE,
        Arc::default(),
        move |seen: Seen<'_, ProviderObject>| {
            seen.each(|provider| told.publish(&Change::Provider(provider.name_any())));
        },
    );
    let (told, known) = (broadcast.clone(), shelves.clone());
    let offers_watch = watch(
        client,
        offers_writer,
        (metrics, panics),
        PAGE_OF_OFFERS,
        Arc::default(),
        move |seen: Seen<'_, Offer>| {
            match &seen {
                Seen::Applied(offer) => known.apply(offer),
                Seen::Deleted(offer) => known.remove(offer),
                Seen::Listed { now, .. } => known.replace(now),
            }
            seen.each(|offer| told.publish(&Change::Offers(offer.spec.provider.clone())));
        },
    );
    watches.spawn(pools_watch);
    watches.spawn(machines_watch);
    watches.spawn(providers_watch);
    watches.spawn(offers_watch);
    (
        Caches {
            pools,
            machines,
            providers,
            offers,
            namespaces,
            unreadable,
        },
        watches,
    )
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
