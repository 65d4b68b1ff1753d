//! The matrix of a map with the nulls in it that `kubectl apply` has dropped. Its items are made anew by each leader, so all of
//! them need the same matrix, whatever has become of the annotation that has the nulls: a matrix that gets nulls back is kept in
//! the store, before the log of the map begins.

use std::sync::Arc;

use skyward_api::{Task, for_each::Matrix};
use skyward_store::{
    Store,
    maps::{MapError, MapItems},
};

use crate::base::written::restore_matrix;

/// The matrix as its user wrote it.
pub(super) async fn as_written(
    store: &Arc<Store>,
    uid: &str,
    task: &Task,
    received: &Matrix,
) -> Result<Matrix, MapError> {
    if let Some(kept) = store.map_items(uid).await? {
        return read(&kept, uid).await;
    }
    let mut written = received.clone();
    restore_matrix(task, "/spec/forEach/matrix", &mut written);
    // A map that has begun without the nulls, as before the annotation was there, goes on so.
    if written == *received || !store.map_records(uid, 0, &[]).await?.is_empty() {
        return Ok(received.clone());
    }
    let json = serde_json::to_vec(&written).map_err(|_| damaged(uid))?;
    store.put_map_items(uid, json.into()).await?;
    // What another leader has kept before counts.
    let kept = store.map_items(uid).await?.ok_or_else(|| damaged(uid))?;
    read(&kept, uid).await
}

async fn read(kept: &MapItems, uid: &str) -> Result<Matrix, MapError> {
    let (mut json, mut reading) = (Vec::new(), kept.reading());
    while let Some(piece) = reading.more().await? {
        json.extend_from_slice(&piece);
    }
    serde_json::from_slice(&json).map_err(|_| damaged(uid))
}

fn damaged(uid: &str) -> MapError {
    MapError::Damaged(format!("the matrix of {uid}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use skyward_store::maps::Writer;

    use super::*;
    use crate::base::written::WRITTEN;

    const UID: &str = "0b5c6f5e-0000-4000-8000-000000000004";

    fn store() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        store.charge(UID, "team");
        (folder, store)
    }

    fn sweep(exclude: &Value, include: &Value) -> Value {
        let axes = json!([{ "name": "lr", "values": [null, 1] }, { "name": "seed", "values": [3, 4] }]);
        json!({ "axes": axes, "exclude": [exclude], "include": [include] })
    }

    /// The matrix of a Task that received one and whose annotation has another one.
    async fn read_by_a_leader(store: &Arc<Store>, received: &Value, annotated: Option<&Value>) -> Value {
        let written =
            annotated.map(|matrix| json!({ "spec": { "forEach": { "matrix": matrix } } }).to_string());
        let task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "t", "annotations": written.map(|text| json!({ WRITTEN: text })) },
            "spec": { "pool": "p", "command": ["true"] },
        }))
        .unwrap();
        let received = serde_json::from_value(received.clone()).unwrap();
        let matrix = as_written(store, UID, &task, &received).await.unwrap();
        serde_json::to_value(matrix).unwrap()
    }

    #[tokio::test]
    async fn all_leaders_have_the_nulls_that_kubectl_apply_dropped_also_when_the_annotation_is_gone() {
        let (_folder, store) = store();
        let received = sweep(&json!({ "seed": 3 }), &json!({}));
        let written = sweep(&json!({ "lr": null, "seed": 3 }), &json!({ "lr": null }));
        for annotated in [Some(&written), None, Some(&received)] {
            assert_eq!(
                read_by_a_leader(&store, &received, annotated).await,
                written,
                "{annotated:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_map_that_has_begun_without_the_nulls_goes_on_without_them() {
        let (_folder, store) = store();
        let received = sweep(&json!({ "seed": 3 }), &json!({}));
        let written = sweep(&json!({ "lr": null, "seed": 3 }), &json!({ "lr": null }));
        store.lead_map(UID, Writer([1; 16]), 1).await.unwrap();
        let read = read_by_a_leader(&store, &received, Some(&written)).await;
        assert_eq!(read, received);
    }

    #[tokio::test]
    async fn a_matrix_without_such_nulls_takes_no_room_in_the_store() {
        let (_folder, store) = store();
        let matrix = sweep(&json!({ "lr": 1, "seed": 3 }), &json!({ "lr": 2 }));
        let other = sweep(&json!({ "lr": null, "seed": 4 }), &json!({ "lr": 3 }));
        for annotated in [None, Some(&matrix), Some(&other)] {
            let read = read_by_a_leader(&store, &matrix, annotated).await;
            assert_eq!(read, matrix, "{annotated:?}");
        }
        assert!(store.map_items(UID).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn items_that_are_only_included_have_their_nulls_too() {
        let (_folder, store) = store();
        let (received, written) = (json!({ "include": [{}] }), json!({ "include": [{ "a": null }] }));
        let read = read_by_a_leader(&store, &received, Some(&written)).await;
        assert_eq!(read, json!({ "axes": [], "include": [{ "a": null }] }));
    }
}
