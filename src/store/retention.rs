//! Deletes logs or return values of a Task whose time has passed. The outcomes of its runs stay, and so does all that
//! a run left that is still going on: only an ended Task has anything that expires.

use std::sync::Arc;

use object_store::ObjectStoreExt;

use crate::{Error, Store, if_there, log_folder, run_path};

impl Store {
    /// Deletes the logs of all runs of a Task; answers whether there were any. Fine if they are gone already.
    pub async fn drop_logs(self: &Arc<Self>, task_uid: &str) -> Result<bool, Error> {
        let mut dropped = false;
        for run in self.runs(task_uid).await? {
            let folder = log_folder(task_uid, &run)?;
            let of = (task_uid.to_owned(), run.clone());
            dropped |= self
                .alone(&run, |store| async move {
                    store.remembered.take(&folder);
                    let listed = store.objects.list_with_delimiter(Some(&folder)).await?.objects;
                    for meta in &listed {
                        store.free(&of.0, &of.1, &meta.location, meta.size).await?;
                    }
                    Ok(!listed.is_empty())
                })
                .await?;
        }
        Ok(dropped)
    }

    /// Deletes the return values of all runs of a Task, and all that is kept of the items of a map; answers whether there
    /// was anything. Fine if that is gone already.
    pub async fn drop_results(self: &Arc<Self>, task_uid: &str) -> Result<bool, Error> {
        let mut dropped = false;
        for run in self.runs(task_uid).await? {
            let pieces = run_path(task_uid, &run, "result")?;
            // The size of a value in pieces goes first: nobody reads what is left of the value then.
            let whole = ["result.size", "result.json"].map(|name| run_path(task_uid, &run, name));
            let of = (task_uid.to_owned(), run.clone());
            dropped |= self
                .alone(&run, |store| async move {
                    store.remembered.take(&pieces);
                    let mut found = Vec::new();
                    for path in whole {
                        found.extend(if_there(store.objects.head(&path?).await)?);
                    }
                    found.extend(store.objects.list_with_delimiter(Some(&pieces)).await?.objects);
                    for meta in &found {
                        store.free(&of.0, &of.1, &meta.location, meta.size).await?;
                    }
                    Ok(!found.is_empty())
                })
                .await?;
        }
        dropped |= self.drop_map(task_uid).await?;
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const RUN: &str = "task-1-0";

    async fn filled() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        store.charge("task", "team");
        store
            .put_log_segment("task", RUN, 0, Bytes::from(vec![b'x'; 1000]))
            .await
            .unwrap();
        store.put_result("task", RUN, "42".into()).await.unwrap();
        let pieces = "task-1-1";
        store
            .put_result_piece("task", pieces, 0, Bytes::from(vec![b'1'; 500]), 500)
            .await
            .unwrap();
        store.seal_result("task", pieces, 500).await.unwrap();
        store.put_outcome("task", RUN, "{}".into()).await.unwrap();
        (folder, store)
    }

    async fn has_results(store: &Arc<Store>) -> [bool; 2] {
        let is_there = async |run: &str| store.get_result("task", run, 0).await.unwrap().is_some();
        [is_there(RUN).await, is_there("task-1-1").await]
    }

    #[tokio::test]
    async fn logs_go_and_values_stay() {
        let (_folder, store) = filled().await;
        let before = store.usage()["team"];
        assert!(store.drop_logs("task").await.unwrap());
        assert_eq!(store.log_end("task", RUN).await.unwrap(), 0);
        assert_eq!(has_results(&store).await, [true, true]);
        assert!(store.usage()["team"] + 1000 <= before, "their room is free");
        assert!(!store.drop_logs("task").await.unwrap(), "there is none any more");
    }

    #[tokio::test]
    async fn values_go_whole_or_in_pieces_and_logs_and_outcomes_stay() {
        let (_folder, store) = filled().await;
        let before = store.usage()["team"];
        assert!(store.drop_results("task").await.unwrap());
        assert_eq!(has_results(&store).await, [false, false]);
        assert_eq!(store.log_end("task", RUN).await.unwrap(), 1000);
        assert!(store.get_outcome("task", RUN).await.unwrap().is_some());
        assert!(store.usage()["team"] + 500 <= before, "their room is free");
        assert!(!store.drop_results("task").await.unwrap());
    }

    #[tokio::test]
    async fn a_task_of_which_nothing_is_stored_has_nothing_to_lose() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        assert!(!store.drop_logs("task").await.unwrap());
        assert!(!store.drop_results("task").await.unwrap());
    }
}
