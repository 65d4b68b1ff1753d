//! Deletes keys of Pools that are gone: a finalizer removed by hand, or a Pool deleted while
//! no operator was installed, leaves the Secret `pool-<uid>` in the operator's namespace.
//!
//! The Secrets are listed first and the Pools afterwards, so that a Pool whose key was just
//! made is known. A Secret is deleted when it was seen twice, a settle time apart, without
//! a Pool or a Machine of that UID; never while the list of Pools is not known. A key is the
//! trace that this cluster had its Pool: it stays until each account was listed since and shows
//! no machine of it, for which an account that does not answer has two minutes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use skyward_api::{Machine, Pool, labels};
use skyward_core::clock;
use skyward_planner::base::time::elapsed;
use tokio::time::sleep;

use crate::{context::Context, deadline::words, keys, versions};

/// Time between two looks.
const EVERY: Duration = Duration::from_mins(10);
/// Shortest time between two sightings of an orphan.
const SETTLE: Duration = Duration::from_secs(30);

/// A Secret with a Pool's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredKey {
    pub(crate) pool_uid: String,
    /// UID of the Secret: the sweep deletes this Secret, and no later one with the same name.
    pub(crate) uid: String,
}

/// How long an account may not answer.
const PATIENCE: Duration = Duration::from_mins(2);

/// When each key without Pool was first seen.
pub(crate) type Sightings = BTreeMap<StoredKey, Timestamp>;

/// Keys to delete now, and keys to look at again.
pub(crate) fn plan(
    found: &[StoredKey],
    wanted: &BTreeSet<String>,
    sightings: &Sightings,
    now: Timestamp,
) -> (Vec<StoredKey>, BTreeSet<StoredKey>) {
    let orphans = found
        .iter()
        .filter(|key| !wanted.contains(&key.pool_uid))
        .cloned();
    let (delete, watch): (Vec<StoredKey>, Vec<StoredKey>) = orphans.partition(|key| {
        sightings
            .get(key)
            .is_some_and(|first| elapsed(*first, now) >= SETTLE)
    });
    (delete, watch.into_iter().collect())
}

/// Sweeps until shutdown.
pub(crate) async fn run(context: Context) {
    let mut sightings = Sightings::new();
    let sweeps = async {
        loop {
            if let Err(problem) = sweep(&context, &mut sightings).await {
                tracing::warn!(
                    problem,
                    "keys of Pools that are gone could not be looked for; it is tried again in some minutes"
                );
            }
            let again = if sightings.is_empty() { EVERY } else { SETTLE };
            sleep(again + Duration::from_secs(1)).await;
        }
    };
    context.shutdown.run_until_cancelled(sweeps).await;
}

async fn sweep(context: &Context, sightings: &mut Sightings) -> Result<(), String> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.config.namespace);
    let ours = ListParams::default().labels(&format!(
        "{}={},{}",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::POOL_UID
    ));
    let listed = call(secrets.list_metadata(&ours)).await?;
    let found: Vec<StoredKey> = listed
        .items
        .iter()
        .filter_map(|secret| {
            let pool_uid = secret.labels().get(labels::POOL_UID)?.clone();
            let is_named_so = secret.name_any() == keys::secret_name(&pool_uid);
            is_named_so.then_some(StoredKey {
                pool_uid,
                uid: secret.metadata.uid.clone()?,
            })
        })
        .collect();
    let mut wanted: BTreeSet<String> = context
        .caches
        .pools
        .state()
        .iter()
        .filter_map(|pool| pool.uid())
        .collect();
    if found.iter().any(|key| !wanted.contains(&key.pool_uid)) {
        // Pools are listed after the keys, and past the caches: nothing is deleted because a watch
        // lags.
        let pools: Api<Pool> = Api::all(context.client.clone());
        let pools = call(pools.list_metadata(&ListParams::default())).await?;
        wanted.extend(pools.items.iter().filter_map(|pool| pool.metadata.uid.clone()));
        let machines: Api<Machine> = Api::all(context.client.clone());
        let machines = call(machines.list(&ListParams::default())).await?;
        wanted.extend(machines.items.into_iter().map(|machine| machine.spec.pool_uid));
    }
    let now = clock::now();
    let (delete, watch) = plan(&found, &wanted, sightings, now);
    sightings.retain(|key, _| watch.contains(key) || delete.contains(key));
    for key in watch {
        sightings.entry(key).or_insert(now);
    }
    for key in delete {
        if is_needed(context, &key, sightings, now) {
            continue;
        }
        let name = keys::secret_name(&key.pool_uid);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(key.uid.clone()),
            resource_version: None,
        });
        // The key is the trace of its Pool: it goes last.
        let namespace = &context.config.namespace;
        if let Err(problem) = versions::delete(&context.client, namespace, &key.pool_uid).await {
            tracing::warn!(secret = name, %problem, "the versions of a Pool that is gone could not be deleted");
            continue;
        }
        context.metrics.api_write("Secret");
        match call(secrets.delete(&name, &params)).await {
            Ok(_) => {
                context.holds.had(&key.pool_uid);
                sightings.remove(&key);
                tracing::info!(secret = name, "the key of a Pool that is gone was deleted");
            }
            Err(problem) => {
                tracing::warn!(
                    secret = name,
                    problem,
                    "the key of a Pool that is gone could not be deleted"
                );
            }
        }
    }
    Ok(())
}

/// Whether a machine of its Pool may still be there, so that the key is its only trace.
fn is_needed(context: &Context, key: &StoredKey, sightings: &Sightings, now: Timestamp) -> bool {
    if context.holds.any() {
        return true;
    }
    let Some(first) = sightings.get(key) else {
        return false;
    };
    let seen_for = elapsed(*first, now);
    let since = tokio::time::Instant::now().checked_sub(seen_for);
    let accounts = context.provider_names();
    let is_free = since.is_none_or(|since| context.holds.is_free_of(&key.pool_uid, since, accounts.iter()));
    !is_free && (seen_for < PATIENCE || context.holds.shows(&key.pool_uid))
}

async fn call<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    answer.await.map_err(|error| words(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pool_uid: &str) -> StoredKey {
        StoredKey {
            pool_uid: pool_uid.into(),
            uid: format!("secret-of-{pool_uid}"),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_key_without_its_pool_is_deleted_at_its_second_sighting() {
        let found = [key("there"), key("gone")];
        let wanted = BTreeSet::from(["there".to_owned()]);
        let (delete, watch) = plan(&found, &wanted, &Sightings::new(), at(0));
        assert_eq!((delete, watch), (vec![], BTreeSet::from([key("gone")])));
        let seen = Sightings::from([(key("gone"), at(0)), (key("there"), at(0))]);
        assert!(plan(&found, &wanted, &seen, at(29)).0.is_empty());
        assert_eq!(plan(&found, &wanted, &seen, at(30)).0, [key("gone")]);
    }

    #[test]
    fn a_secret_made_anew_is_another_one() {
        let seen = Sightings::from([(
            StoredKey {
                uid: "older".into(),
                ..key("gone")
            },
            at(0),
        )]);
        assert!(
            plan(&[key("gone")], &BTreeSet::new(), &seen, at(100))
                .0
                .is_empty()
        );
    }
}
