//! Orphaned machines and objects are found and deleted, and those of others are not.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use skyward_testkit::{OPERATOR_NAMESPACE, PATIENCE, Result, Space};

use crate::story;

/// A Pod like another one, of a Machine that nobody has a record of.
fn stray(pod: &Pod, name: &str, cluster: Option<&str>) -> Pod {
    let mut stray = Pod {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.namespace(),
            labels: pod.metadata.labels.clone(),
            annotations: pod.metadata.annotations.clone(),
            ..Default::default()
        },
        spec: pod.spec.clone(),
        status: None,
    };
    let labels = stray.metadata.labels.get_or_insert_default();
    labels.insert("skyward.dev/machine".to_owned(), name.to_owned());
    labels.insert("skyward.dev/machine-uid".to_owned(), format!("uid-of-{name}"));
    if let Some(cluster) = cluster {
        labels.insert("skyward.dev/cluster".to_owned(), cluster.to_owned());
    }
    if let Some(spec) = stray.spec.as_mut() {
        spec.node_name = None;
    }
    stray
}

/// Whether there is an Event for the deletion of this machine; it may come a moment later.
async fn told(space: &Space, machine: &str) -> Result<bool> {
    let selector = "--field-selector=reason=OrphanDeleted";
    for _ in 0..50 {
        let events = ["get", "events", "-A", selector, "-o", "yaml"];
        if space.kubectl(&events).await?.ok()?.contains(machine) {
            return Ok(true);
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    Ok(false)
}

#[tokio::test]
async fn a_pod_with_our_mark_and_no_machine_is_deleted_and_that_of_another_cluster_never() -> Result {
    let space = story("sweep").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    let machine = space.ready_machines("p").await?.remove(0);
    let pods: Api<Pod> = space.api();
    let pod = pods.get(&machine.name_any()).await?;
    let params = PostParams::default();
    pods.create(&params, &stray(&pod, "elsewhere", Some("another-cluster")))
        .await?;
    let mut is_told = false;
    for number in 0..3 {
        let name = format!("nobodys-{number}");
        pods.create(&params, &stray(&pod, &name, None)).await?;
        // A sweep each minute, and a second sighting some seconds later.
        space.wait_gone::<Pod>(&name, PATIENCE).await?;
        is_told = told(&space, &name).await?;
        if is_told {
            break;
        }
        // The controller that deleted it was killed by another story before it could say so.
    }
    let foreign = pods.get("elsewhere").await?;
    assert!(
        foreign.metadata.deletion_timestamp.is_none(),
        "it is another cluster's"
    );
    let ours = pods.get(&machine.name_any()).await?;
    assert!(
        ours.metadata.deletion_timestamp.is_none(),
        "a machine with its record stays"
    );
    assert!(is_told, "people are told");
    pods.delete("elsewhere", &DeleteParams::default().grace_period(0))
        .await?;
    space.finish().await
}

#[tokio::test]
async fn the_key_of_a_pool_that_was_torn_out_by_hand_is_deleted_and_others_stay() -> Result {
    let space = story("keys").await?;
    space.pool("p", 1, json!({})).await?;
    let pool = space.pool_ready("p").await?;
    let secrets: Api<Secret> = Api::namespaced(space.cluster.client.clone(), OPERATOR_NAMESPACE);
    let key = format!("pool-{}", pool.uid().unwrap_or_default());
    let there = secrets.get(&key).await?;
    assert!(there.labels().contains_key("skyward.dev/pool-uid"));
    // As it is left by a Pool whose finalizer somebody removed, long ago.
    let gone = "00000000-0000-4000-8000-00000000dead";
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {
            "name": format!("pool-{gone}"),
            "labels": { "app.kubernetes.io/managed-by": "skyward", "skyward.dev/pool-uid": gone },
        },
        "stringData": { "id_ed25519": "x", "id_ed25519.pub": "y" },
    }))?;
    secrets.create(&PostParams::default(), &secret).await?;
    let turn = crate::crash::KILLING.write().await;
    // The leader looks when it starts, and half a minute after its first sighting.
    let old = skyward_testkit::kill_controller(&space.cluster.client).await?;
    skyward_testkit::wait_controller_replaced(&space.cluster.client, old).await?;
    let name = format!("pool-{gone}");
    for _ in 0..3000 {
        if secrets.get_opt(&name).await?.is_none() {
            assert!(
                secrets.get_opt(&key).await?.is_some(),
                "the key of a Pool that is there"
            );
            crate::crash::leader_answers(&space).await?;
            drop(turn);
            return space.finish().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    anyhow::bail!("Secret \"{name}\" still exists")
}
