//! Output of the bootstraps of a Pool's failed machines. It is stored under the Pool, so that it
//! outlives the Machine and goes with the Pool:
//!
//! ```text
//! _pools/<pool uid>/namespace                    of which namespace the Pool is
//! _pools/<pool uid>/<machine>/bootstrap.log      what the bootstrap of that machine printed
//! ```
//!
//! The logs of the newest failures are kept, and take room as logs of Tasks do. No id of a Task
//! begins with `_`, so a search for Tasks never finds a Pool.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;

use crate::{Error, Store, bundles::BUNDLES, checked, ledger::Class};

/// The folder of all Pools.
const POOLS: &str = "_pools";
/// Logs that are kept of one Pool.
const KEPT: usize = 4;

/// The name of a Pool in the accounts.
fn owner(pool_uid: &str) -> Result<String, Error> {
    Ok(format!("{POOLS}/{}", checked(pool_uid)?))
}

/// Whether an account is that of a Task, and not of a Pool or of a namespace's bundles.
pub(crate) fn is_task(owner: &str) -> bool {
    !owner.contains('/')
}

/// The folder of a Task, of a Pool or of a namespace's bundles, by its name in the accounts.
pub(crate) fn folder(owner: &str) -> Result<Path, Error> {
    match owner.split_once('/') {
        Some((kind @ (POOLS | BUNDLES), uid)) => Ok(Path::from_iter([kind, checked(uid)?])),
        Some(_) | None => Ok(Path::from_iter([checked(owner)?])),
    }
}

fn log_path(pool_uid: &str, machine: &str) -> Result<Path, Error> {
    Ok(folder(&owner(pool_uid)?)?
        .join(checked(machine)?)
        .join("bootstrap.log"))
}

impl Store {
    /// Stores the output of a machine's bootstrap, unless it is stored, after deleting all but the newest few
    /// logs of the same Pool.
    pub async fn put_bootstrap_log(
        &self,
        namespace: &str,
        pool_uid: &str,
        machine: &str,
        text: Bytes,
    ) -> Result<(), Error> {
        let (owner, path) = (owner(pool_uid)?, log_path(pool_uid, machine)?);
        self.charge(&owner, namespace);
        let listed = self.objects.list(Some(&folder(&owner)?));
        let mut others: Vec<_> = listed
            .try_filter(|meta| {
                let is_log = meta.location.filename() == Some("bootstrap.log");
                std::future::ready(is_log && meta.location != path)
            })
            .try_collect()
            .await?;
        others.sort_by_key(|meta| (meta.last_modified, meta.location.clone()));
        let too_many = (others.len() + 1).saturating_sub(KEPT);
        for old in others.iter().take(too_many) {
            let of = old.location.parts().nth(2);
            self.free(
                &owner,
                of.as_ref().map_or("", AsRef::as_ref),
                &old.location,
                old.size,
            )
            .await?;
        }
        self.put_once((&owner, machine), path, text, Class::Bulk).await
    }

    /// The output of a machine's bootstrap, if it was stored.
    pub async fn bootstrap_log(&self, pool_uid: &str, machine: &str) -> Result<Option<Bytes>, Error> {
        self.read_small(&log_path(pool_uid, machine)?).await
    }

    /// Deletes all that is stored of a Pool. Done already is fine.
    pub async fn delete_pool(&self, pool_uid: &str) -> Result<(), Error> {
        self.delete_owned(&owner(pool_uid)?).await
    }

    /// UIDs of all Pools with stored data, sorted.
    pub async fn pool_uids(&self) -> Result<Vec<String>, Error> {
        self.ids_in(Some(&Path::from(POOLS))).await
    }

    /// How long nothing of this Pool has changed; `None` when nothing is stored of it.
    pub async fn pool_age(&self, pool_uid: &str) -> Result<Option<Duration>, Error> {
        self.age_of(&owner(pool_uid)?).await
    }

    /// All owners of accounts: Tasks, and Pools and namespaces with bundles by their names there.
    pub(crate) async fn owners(&self) -> Result<Vec<String>, Error> {
        let mut all = self.task_uids().await?;
        for uid in self.pool_uids().await? {
            all.push(owner(&uid)?);
        }
        let bundles = self.bundle_namespaces().await?;
        all.extend(bundles.iter().map(|uid| format!("{BUNDLES}/{uid}")));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Quota;

    const POOL: &str = "0b5c6f5e-0000-4000-8000-00000000000a";

    fn store(quota: Option<u64>) -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::local(folder.path()).unwrap().unmeasured();
        if let Some(bytes) = quota {
            store = store.with_quota(Quota::Bytes(bytes));
        }
        (folder, Arc::new(store))
    }

    async fn put(store: &Store, machine: &str, text: &str) -> Result<(), Error> {
        let text = Bytes::from(text.to_owned());
        store.put_bootstrap_log("team", POOL, machine, text).await
    }

    async fn read(store: &Store, machine: &str) -> Option<Bytes> {
        store.bootstrap_log(POOL, machine).await.unwrap()
    }

    #[tokio::test]
    async fn the_newest_logs_of_a_pool_are_kept_until_it_goes_and_no_task_is_taken_for_it() {
        let (_folder, store) = store(None);
        for n in 0..7 {
            put(&store, &format!("train-{n}"), &format!("log {n}"))
                .await
                .unwrap();
        }
        assert_eq!(read(&store, "train-6").await.unwrap(), "log 6");
        assert_eq!(read(&store, "train-2").await, None, "older ones make room");
        put(&store, "train-6", "again, as after a lost answer")
            .await
            .unwrap();
        assert_eq!(read(&store, "train-6").await.unwrap(), "log 6");
        assert_eq!(read(&store, "train-3").await.unwrap(), "log 3");
        assert_eq!(store.pool_uids().await.unwrap(), [POOL]);
        assert_eq!(store.task_uids().await.unwrap(), Vec::<String>::new());
        assert_eq!(store.tasks_of("team"), Vec::<String>::new());
        assert!(store.pool_age(POOL).await.unwrap().is_some());
        store.delete_pool(POOL).await.unwrap();
        assert_eq!(read(&store, "train-6").await, None);
        assert_eq!(store.pool_uids().await.unwrap(), Vec::<String>::new());
        assert_eq!(store.pool_age(POOL).await.unwrap(), None);
        assert!(store.usage().is_empty(), "{:?}", store.usage());
        store.delete_pool(POOL).await.unwrap();
    }

    #[tokio::test]
    async fn logs_of_machines_count_to_the_quota_of_their_namespace_also_after_a_restart() {
        let (folder, first) = store(Some(64 * 1024));
        put(&first, "train-0", &"x".repeat(20_000)).await.unwrap();
        let used = first.usage()["team"];
        assert!((20_000..60_000).contains(&used), "{used}");
        assert!(matches!(
            put(&first, "train-1", &"x".repeat(50_000)).await,
            Err(Error::QuotaExceeded { .. })
        ));
        let again = Store::local(folder.path()).unwrap().unmeasured();
        again.count().await.unwrap();
        assert_eq!(again.usage()["team"], used);
        put(&first, "train-0", &"x".repeat(20_000)).await.unwrap();
        assert_eq!(first.usage()["team"], used, "what is stored counts once");
    }

    #[tokio::test]
    async fn no_name_leads_out_of_the_folder_of_its_pool() {
        let (_folder, store) = store(None);
        for (pool, machine) in [
            ("..", "m"),
            ("_pools", "m"),
            (POOL, "../x"),
            (POOL, "a/b"),
            ("", "m"),
        ] {
            let put = store.put_bootstrap_log("team", pool, machine, Bytes::new()).await;
            assert!(matches!(put, Err(Error::BadId(_))), "{pool} {machine}");
            assert!(store.bootstrap_log(pool, machine).await.is_err());
        }
        for task in ["_pools", "_pools/x", "_pools/.."] {
            assert!(store.delete_task(task).await.is_err(), "{task}");
            assert!(store.age(task).await.is_err(), "{task}");
        }
    }
}
