use std::{convert::Infallible, future::pending};

use axum::http::{Request, Response};
use kube::client::Body;

use skyward_remote::MachineKey;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{base::queue::WorkQueue, events::Events, runtime::pump_sessions};

#[tokio::test]
async fn what_users_write_is_listed_in_small_pages() {
    let (asked_tx, mut asked_rx) = mpsc::channel(1);
    let server = tower::service_fn(move |request: Request<Body>| {
        let (asked_tx, address) = (asked_tx.clone(), request.uri().to_string());
        async move {
            let _ = asked_tx.send(address).await;
            pending::<Result<Response<Body>, Infallible>>().await
        }
    });
    let (client, metrics) = (Client::new(server, "n"), Arc::<Metrics>::default());
    let events = Events::silent(metrics.clone());
    let panics = Arc::new(Panics::new(metrics.clone(), events, CancellationToken::new()));
    let (_pools, writer) = store::<Pool>();
    let watched = watch(
        &client,
        writer,
        (&metrics, &panics),
        PAGE,
        Arc::default(),
        |_: Seen<'_, Pool>| {},
    );
    tokio::select! {
        () = watched => panic!("a watch does not end"),
        asked = asked_rx.recv() => {
            let asked = asked.unwrap();
            assert!(asked.contains("/pools?") && asked.ends_with("limit=50"), "{asked}");
        }
    }
}

#[test]
fn a_malformed_object_is_skipped_and_the_next_is_read() {
    let metrics = Metrics::default();
    let read = |json: serde_json::Value| {
        let guard: Guarded<Pool> = serde_json::from_str(&json.to_string()).unwrap();
        readable(Event::Apply(guard), "Pool", &metrics)
    };
    let meta = serde_json::json!({ "name": "a", "namespace": "b" });
    let bad = serde_json::json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": meta, "spec": { "provider": 7 }
    });
    let good = serde_json::json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": meta, "spec": { "provider": "local" }
    });
    assert!(read(bad).is_none());
    assert!(read(good).is_some());
    assert!(
        metrics
            .render()
            .contains(r#"skyward_invalid_objects_total{kind="Pool"} 1"#)
    );
}

#[tokio::test]
async fn a_session_that_changes_wakes_its_machine_and_the_dispatcher_of_its_pool_alone() {
    let (machines, mut writer) = store::<Machine>();
    for (name, pool) in [("a-0", "a"), ("b-0", "b")] {
        let machine = serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name, "namespace": "n" },
            "spec": { "pool": pool, "poolUid": "u", "slot": 0, "attempt": 1, "provider": "p", "offer": "o",
                "instanceType": "x", "market": "OnDemand", "hourlyPrice": "2", "token": "t", "templateHash": "h" },
        });
        writer.apply_watcher_event(&Event::Apply(serde_json::from_value(machine).unwrap()));
    }
    let (changed_tx, changed_rx) = mpsc::channel(8);
    for name in ["a-0", "a-0", "gone"] {
        changed_tx.send(MachineKey::new("n", name)).await.unwrap();
    }
    drop(changed_tx);
    let (machine_wakeups, session_wakeups) = (WorkQueue::new(), WorkQueue::new());
    pump_sessions(
        changed_rx,
        machines,
        machine_wakeups.clone(),
        session_wakeups.clone(),
    )
    .await;
    let woken = |work_queue: &WorkQueue<Key>| -> Vec<String> {
        std::iter::from_fn(|| work_queue.try_next())
            .map(|key| key.to_string())
            .collect()
    };
    assert_eq!(woken(&session_wakeups), ["n/a"]);
    assert_eq!(woken(&machine_wakeups), ["n/a-0", "n/gone"]);
}
