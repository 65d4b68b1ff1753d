//! The items of a map that were read from elsewhere, as JSON lines: written once, when the map begins, so that all its
//! leaders have the same items whatever becomes of where they were read. And the end of all that is kept of a map.

use std::ops::Range;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path};

use super::{MAP, map_folder};
use crate::{Error, Store, if_there, ledger::Class};

impl Store {
    /// Keeps the items of a map. Those that are kept already stay.
    pub async fn put_map_items(&self, task_uid: &str, lines: Bytes) -> Result<(), Error> {
        let path = items_path(task_uid)?;
        self.put_once((task_uid, MAP), path, lines, Class::Bulk).await
    }

    /// Bytes of the items that are kept; `None`: none are.
    pub async fn map_items_size(&self, task_uid: &str) -> Result<Option<u64>, Error> {
        let found = if_there(self.objects.head(&items_path(task_uid)?).await)?;
        Ok(found.map(|meta| meta.size))
    }

    /// Some bytes of the items.
    pub async fn map_items(&self, task_uid: &str, range: Range<u64>) -> Result<Bytes, Error> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        Ok(self.objects.get_range(&items_path(task_uid)?, range).await?)
    }

    /// Deletes all that is kept of a map; answers whether there was anything. Fine if it is gone already.
    pub async fn drop_map(&self, task_uid: &str) -> Result<bool, Error> {
        let listed: Vec<_> = self
            .objects
            .list(Some(&map_folder(task_uid)?))
            .try_collect()
            .await?;
        for meta in &listed {
            self.free(task_uid, MAP, &meta.location, meta.size).await?;
        }
        Ok(!listed.is_empty())
    }
}

fn items_path(task_uid: &str) -> Result<Path, Error> {
    Ok(map_folder(task_uid)?.join("items"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::maps::{Record, Writer};

    const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000002";

    #[tokio::test]
    async fn items_stay_as_they_were_first_kept_and_go_with_the_results() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        store.charge(TASK, "team");
        assert_eq!(store.map_items_size(TASK).await.unwrap(), None);
        store.put_map_items(TASK, "1\n2\n".into()).await.unwrap();
        store.put_map_items(TASK, "other".into()).await.unwrap();
        assert_eq!(store.map_items_size(TASK).await.unwrap(), Some(4));
        assert_eq!(store.map_items(TASK, 2..3).await.unwrap(), "2");
        let (mut log, _) = store.lead_map(TASK, Writer([1; 16]), 1).await.unwrap();
        log.append(&[Record::Note("cut 1-0".into())]).await.unwrap();
        assert!(
            !store.drop_logs(TASK).await.unwrap(),
            "the log of a map is no log of a run"
        );
        assert_eq!(store.map_records(TASK).await.unwrap().len(), 2);
        assert!(store.drop_results(TASK).await.unwrap());
        assert_eq!(store.map_records(TASK).await.unwrap(), []);
        assert_eq!(store.map_items_size(TASK).await.unwrap(), None);
        assert!(!store.drop_results(TASK).await.unwrap());
    }
}
