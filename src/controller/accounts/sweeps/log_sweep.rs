//! Deletes stored logs of Pools that are gone: a crash, a store that did not answer, or a finalizer
//! removed by hand leaves them behind.
//!
//! The store is listed first and the Pools afterwards, past the caches, so that a Pool whose first
//! machine just failed is known; young data stays. Nothing is deleted while this cluster may have
//! forgotten Pools.

use std::{collections::BTreeSet, time::Duration};

use kube::{Api, api::ListParams};
use skyward_api::Pool;
use skyward_store::Store;
use tokio::time::sleep;

use crate::context::Context;
use crate::deadline::words;

/// Time between two looks.
const EVERY: Duration = Duration::from_hours(1);
/// Time between two looks at whether proof of a restore would be known.
const LOOK: Duration = Duration::from_secs(1);
/// Younger data may be of a Pool that a list does not show yet.
const YOUNG: Duration = Duration::from_mins(10);

/// Sweeps until shutdown.
pub(crate) async fn run(context: Context) {
    let sweeps = async {
        loop {
            while !context.remembers_all() {
                sleep(LOOK).await;
            }
            if !context.holds.any()
                && let Err(problem) = sweep(&context).await
            {
                tracing::warn!(
                    problem,
                    "what is stored of Pools that are gone stays for now; it is looked at in an hour"
                );
            }
            sleep(EVERY).await;
        }
    };
    context.shutdown.run_until_cancelled(sweeps).await;
}

async fn sweep(context: &Context) -> Result<(), String> {
    let stored = context
        .store
        .pool_uids()
        .await
        .map_err(|error| error.to_string())?;
    if stored.is_empty() {
        return Ok(());
    }
    let pools: Api<Pool> = Api::all(context.client.clone());
    let listed = pools.list_metadata(&ListParams::default()).await;
    let listed = listed.map_err(|error| words(&error))?;
    let there: BTreeSet<String> = listed
        .items
        .into_iter()
        .filter_map(|pool| pool.metadata.uid)
        .collect();
    delete_gone(&context.store, &stored, &there, YOUNG).await
}

async fn delete_gone(
    store: &Store,
    stored: &[String],
    there: &BTreeSet<String>,
    young: Duration,
) -> Result<(), String> {
    for uid in stored.iter().filter(|uid| !there.contains(*uid)) {
        let age = store.pool_age(uid).await.map_err(|error| error.to_string())?;
        if age.is_some_and(|age| age >= young) {
            store.delete_pool(uid).await.map_err(|error| error.to_string())?;
            tracing::info!(uid, "what was stored of a Pool that is gone was deleted");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_stored_of_pools_that_are_gone_goes_unless_it_is_young() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::local(folder.path()).unwrap().unmeasured();
        for uid in ["gone", "there"] {
            let text = "log".into();
            store.put_bootstrap_log("team", uid, "m-0-1", text).await.unwrap();
        }
        // Stored data of a Task is not this sweep's.
        store.put_result("task", "task-1-0", "1".into()).await.unwrap();
        let (stored, there) = (
            store.pool_uids().await.unwrap(),
            BTreeSet::from(["there".to_owned()]),
        );
        delete_gone(&store, &stored, &there, YOUNG).await.unwrap();
        assert_eq!(
            store.pool_uids().await.unwrap(),
            ["gone", "there"],
            "they are young"
        );
        delete_gone(&store, &stored, &there, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(store.pool_uids().await.unwrap(), ["there"]);
        assert_eq!(store.task_uids().await.unwrap(), ["task"]);
    }
}
