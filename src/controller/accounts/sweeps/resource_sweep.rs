//! Returns resources that machines of a Pool shared at a cloud (keys, security groups, scripts,
//! volumes, networks) when the Pool went without returning them: its finalizer was removed by hand,
//! or it was deleted while no operator was installed.
//!
//! The cloud is listed first and the Pools afterwards, so that a new Pool is known. Resources are
//! returned when they were seen twice, a settle time apart, without a Pool or a Machine of that
//! UID. A failed list says nothing. Resources of a Pool without any trace in this cluster stay for
//! a day: the cluster may have forgotten the Pool ([`crate::restore`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use skyward_core::{Leftover, PoolScope, clock};
use skyward_planner::base::time::elapsed;

use super::{each_until_shutdown, pause};
use crate::{accounts::clients::Account, context::Context, keys};

/// Time between two looks; an account's lists of keys and groups change rarely.
const EVERY: Duration = Duration::from_mins(10);
/// Shortest time between two sightings.
const LEAST_SETTLE: Duration = Duration::from_secs(30);
/// How long resources of a Pool without a trace stay; they cost little.
const STRANGE: Duration = Duration::from_hours(24);

/// When resources of each missing Pool were first seen, by the Pool's UID.
pub(crate) type Sightings = BTreeMap<String, Timestamp>;

/// Pools whose shared resources are returned now, with their regions, and Pools to look at again.
pub(crate) fn plan(
    found: &[Leftover],
    wanted: &BTreeSet<String>,
    sightings: &Sightings,
    settle: impl Fn(&str) -> Duration,
    now: Timestamp,
) -> (BTreeMap<String, BTreeSet<String>>, BTreeSet<String>) {
    let mut regions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for leftover in found
        .iter()
        .filter(|leftover| !wanted.contains(&leftover.pool_uid))
    {
        let of_pool = regions.entry(leftover.pool_uid.clone()).or_default();
        if !leftover.region.is_empty() {
            of_pool.insert(leftover.region.clone());
        }
    }
    let is_due = |uid: &String| {
        sightings
            .get(uid)
            .is_some_and(|first| elapsed(*first, now) >= settle(uid))
    };
    let (due, watch): (BTreeMap<_, _>, BTreeMap<_, _>) =
        regions.into_iter().partition(|(uid, _)| is_due(uid));
    (due, watch.into_keys().collect())
}

/// Sweeps until shutdown.
pub(crate) async fn run(context: Context) {
    each_until_shutdown(&context, "leftover_sweep", |name| keep_swept(&context, name)).await;
}

/// Sweeps one account until it is gone.
async fn keep_swept(context: &Context, name: String) -> String {
    let mut sightings = Sightings::new();
    // An account that was just connected lists its machines first.
    let mut again = EVERY;
    while let Some(account) = context.providers.get(&name) {
        pause(&context.providers, &name, &account.revision, again).await;
        again = match context.providers.get(&name) {
            Some(account) => sweep(context, &name, &account, &mut sightings).await,
            None => break,
        };
    }
    name
}

/// Whether this cluster had that Pool: it is remembered, or its key is there.
async fn was_here(context: &Context, pool_uid: &str) -> bool {
    if context.holds.remembers(pool_uid) {
        return true;
    }
    let key = keys::get(&context.client, &context.config.namespace, pool_uid).await;
    let there = matches!(key, Ok(Some(_)) | Err(keys::Error::Damaged(..)));
    if there {
        context.holds.had(pool_uid);
    }
    there
}

/// Regions of a Provider in which Pools that exist have ordered.
pub(crate) fn regions(context: &Context, provider: &str) -> BTreeSet<String> {
    context
        .caches
        .pools
        .state()
        .iter()
        .flat_map(|pool| pool.status.clone().unwrap_or_default().places)
        .filter(|place| place.provider == provider && !place.region.is_empty())
        .map(|place| place.region)
        .collect()
}

async fn sweep(context: &Context, name: &str, account: &Account, sightings: &mut Sightings) -> Duration {
    let scope = context.scope(regions(context, name));
    let found = match account.provider.leftovers(&scope).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(provider = name, %error, "what Pools left behind could not be listed; the next look tries again");
            return EVERY;
        }
    };
    // Read after the list, so that Pools made meanwhile are known too.
    let pools = context.caches.pools.state();
    let machines = context.caches.machines.state();
    let wanted: BTreeSet<String> = pools
        .iter()
        .filter_map(|pool| pool.uid())
        .chain(machines.iter().map(|machine| machine.spec.pool_uid.clone()))
        .collect();
    let settle = account.provider.capabilities().settle_time.max(LEAST_SETTLE);
    let now = clock::now();
    let mut had = BTreeSet::new();
    for leftover in found
        .iter()
        .filter(|leftover| !wanted.contains(&leftover.pool_uid))
    {
        let uid = &leftover.pool_uid;
        if !had.contains(uid) && was_here(context, uid).await {
            had.insert(uid.clone());
        }
    }
    let wait = |uid: &str| if had.contains(uid) { settle } else { STRANGE };
    let (due, watch) = plan(&found, &wanted, sightings, wait, now);
    sightings.retain(|uid, _| watch.contains(uid));
    for uid in &watch {
        sightings.entry(uid.clone()).or_insert(now);
    }
    for (pool_uid, regions) in due {
        let scope = PoolScope {
            cluster: context.cluster.clone(),
            pool_uid: pool_uid.clone(),
            regions: regions.into_iter().collect(),
        };
        match account.provider.release(&scope).await {
            Ok(_) => {
                tracing::warn!(
                    provider = name,
                    pool_uid,
                    "what a Pool that is gone left behind was returned"
                );
            }
            Err(error) => {
                tracing::warn!(provider = name, pool_uid, %error, "what a Pool left behind could not be returned; the next look tries again");
            }
        }
    }
    if watch.iter().all(|uid| !had.contains(uid)) {
        EVERY
    } else {
        settle + Duration::from_secs(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn group(pool_uid: &str, region: &str) -> Leftover {
        Leftover {
            kind: "security group",
            id: format!("sg-{pool_uid}-{region}"),
            region: region.into(),
            pool_uid: pool_uid.into(),
        }
    }

    #[test]
    fn what_a_pool_left_behind_is_returned_after_a_second_look_in_all_its_regions() {
        let found = [group("gone", "eu"), group("gone", "us"), group("there", "eu")];
        let wanted = BTreeSet::from(["there".to_owned()]);
        let settle = |_: &str| Duration::from_secs(30);
        let (due, watch) = plan(&found, &wanted, &Sightings::new(), settle, at(0));
        assert!(due.is_empty() && watch.contains("gone") && !watch.contains("there"));
        let seen = Sightings::from([("gone".to_owned(), at(0))]);
        assert!(plan(&found, &wanted, &seen, settle, at(29)).0.is_empty());
        let (due, watch) = plan(&found, &wanted, &seen, settle, at(30));
        assert_eq!(
            due["gone"].iter().map(String::as_str).collect::<Vec<_>>(),
            ["eu", "us"]
        );
        assert!(watch.is_empty());
    }
}
