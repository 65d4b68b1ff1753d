//! Frees the room of deleted Tasks in the result store, for a namespace whose runs wait for room.
//!
//! Ended Tasks are not watched, so logs and results of a deleted Task stay until the hourly sweep.
//! A run that waits for room, and a map whose log does, tell their users to delete Tasks: the room must
//! then be free at their next try.

use std::collections::HashMap;

use kube::{Api, Client, api::ListParams};
use skyward_api::Task;
use skyward_store::Store;
use tokio::time::Instant;

use crate::{context::Context, deadline::words};

/// Tasks of one page of a list that has only their metadata. Annotations may have 256 KiB.
const PAGE: u32 = 100;

/// Deletes the logs and results of this namespace's Tasks that are gone; returns whether there
/// were any.
async fn of(client: &Client, store: &Store, namespace: &str) -> bool {
    match reclaim(client, store, namespace).await {
        Ok(deleted) => {
            if deleted > 0 {
                tracing::info!(namespace, deleted, "logs and results of deleted Tasks made room");
            }
            deleted > 0
        }
        Err(error) => {
            tracing::warn!(
                namespace,
                error,
                "logs and results of deleted Tasks stay in the store for now"
            );
            false
        }
    }
}

/// Makes room for a namespace; returns whether there is more now. While any Provider is held nothing is deleted: Tasks that
/// this cluster has forgotten may come back.
pub(crate) async fn make_room(context: &Context, namespace: &str) -> bool {
    let Context { client, store, .. } = context;
    !context.holds.any()
        && context.looked.is_due(namespace, Instant::now())
        && of(client, store, namespace).await
}

async fn reclaim(client: &Client, store: &Store, namespace: &str) -> Result<usize, String> {
    // The store first: a Task is always older than its logs and results.
    let stored = store.tasks_of(namespace);
    let there = uids(&Api::namespaced(client.clone(), namespace)).await?;
    let mut deleted = 0;
    for uid in stored.iter().filter(|uid| !there.contains_key(*uid)) {
        store.delete_task(uid).await.map_err(|error| error.to_string())?;
        deleted += 1;
    }
    Ok(deleted)
}

/// All Tasks as they are now, by UID, with their namespaces.
pub(crate) async fn uids(api: &Api<Task>) -> Result<HashMap<String, String>, String> {
    let mut params = ListParams::default().limit(PAGE);
    let mut there = HashMap::new();
    loop {
        let page = api.list_metadata(&params).await.map_err(|error| words(&error))?;
        let metadata = page.items.into_iter().map(|task| task.metadata);
        there.extend(metadata.filter_map(|metadata| Some((metadata.uid?, metadata.namespace?))));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(there),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// An API server with the Task `there`.
    fn server() -> Client {
        let service = service_fn(|request: Request<Body>| async move {
            assert!(
                request.uri().path().ends_with("/namespaces/team/tasks"),
                "{}",
                request.uri()
            );
            let list = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
                "items": [{"metadata": {"name": "t", "namespace": "team", "uid": "there"}}],
            });
            Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
        });
        Client::new(service, "team")
    }

    #[tokio::test]
    async fn what_deleted_tasks_left_makes_room_at_once_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        for (uid, namespace) in [("there", "team"), ("gone", "team"), ("theirs", "other")] {
            store.charge(uid, namespace);
            store
                .put_log_segment(uid, "run", 0, vec![b'x'; 100].into())
                .await
                .unwrap();
        }
        assert!(of(&server(), &store, "team").await);
        assert_eq!(store.task_uids().await.unwrap(), ["theirs", "there"]);
        assert!(!of(&server(), &store, "team").await, "nothing is left to delete");
    }
}
