use kube::runtime::{reflector::store, watcher::Event};

use super::*;

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
    let (machine_wakeups, session_wakeups) = (Wakeups::new(), Wakeups::new());
    pump_sessions(
        changed_rx,
        machines,
        machine_wakeups.clone(),
        session_wakeups.clone(),
    )
    .await;
    let woken = |wakeups: &Wakeups<Key>| -> Vec<String> {
        std::iter::from_fn(|| wakeups.try_next())
            .map(|key| key.to_string())
            .collect()
    };
    assert_eq!(woken(&session_wakeups), ["n/a"]);
    assert_eq!(woken(&machine_wakeups), ["n/a-0", "n/gone"]);
}
