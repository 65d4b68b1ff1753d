//! An agent's refusal of our epoch does not end a leader.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use serde_json::json;
use skyward_api::{Machine, Task, TaskPhase};
use skyward_testkit::{Cluster, OPERATOR_NAMESPACE, PATIENCE, Result, Space, controller_pid, impostor};
use tokio::time::Instant;

use crate::{TURN, one_machine, story};

/// How long the agent refuses: a leader renews its Lease and reads it some ten times meanwhile.
const REFUSES: Duration = Duration::from_mins(2);
const OTHERS: usize = 10;
/// gRPC's `FAILED_PRECONDITION`.
const FAILED_PRECONDITION: u32 = 9;

/// Containers of the controller that were started again.
async fn restarts(cluster: &Cluster) -> Result<i32> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    let ours = ListParams::default().labels("app.kubernetes.io/component=controller");
    let statuses = pods.list(&ours).await?.items.into_iter();
    let statuses = statuses.flat_map(|pod| pod.status.and_then(|s| s.container_statuses).unwrap_or_default());
    Ok(statuses.map(|status| status.restart_count).sum())
}

/// One Task after the other in each of the other Pools; none may take long. They are hundreds, so no `kubectl`
/// is started for each.
async fn work(space: &Space, until: Instant) -> Result<usize> {
    let tasks: Api<Task> = space.api();
    let each = (0..OTHERS).map(async |pool| {
        let pool = format!("p{pool}");
        let mut done = 0;
        while Instant::now() < until {
            let name = format!("{pool}-{done}");
            let task = json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": {"name": name},
                "spec": {"pool": pool, "command": ["true"]},
            });
            tasks
                .create(&PostParams::default(), &serde_json::from_value(task)?)
                .await?;
            let ended = space.task_ended_within(&name, 60).await?;
            let status = ended.status.unwrap_or_default();
            assert_eq!(status.phase, Some(TaskPhase::Succeeded), "{name}: {status:#?}");
            done += 1;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        anyhow::Ok(done)
    });
    Ok(try_join_all(each).await?.into_iter().sum())
}

#[tokio::test]
async fn an_agent_that_refuses_every_epoch_for_two_minutes_stops_nobody() -> Result {
    let turn = TURN.read().await;
    let space = story("epochs").await?;
    space
        .pool("liar", 1, json!({"worker": {"user": "root", "concurrency": 2}}))
        .await?;
    for pool in 0..OTHERS {
        space.pool(&format!("p{pool}"), 1, json!({})).await?;
    }
    let (machine, _) = one_machine(&space, "liar").await?;
    for pool in 0..OTHERS {
        space.pool_ready(&format!("p{pool}")).await?;
    }
    let client = space.cluster.client.clone();
    let (leader, restarted) = (controller_pid(&client).await?, restarts(&space.cluster).await?);
    let source = impostor::refuses(FAILED_PRECONDITION, "stale epoch");
    let liar = json!({
        "retries": {"onInterruption": 0},
        "script": {"interpreter": "python", "source": source},
    });
    space.task("liar", "liar", liar).await?;
    let began = Instant::now();
    let name = machine.name_any();
    let condition = space.condition::<Machine>(&name, "Ready", "EpochAhead");
    let (work, said) = futures::join!(work(&space, began + REFUSES), async {
        let said = condition.await?;
        // It takes no work.
        space.task("waits", "liar", json!({"command": ["true"]})).await?;
        anyhow::Ok(said)
    });
    let (done, said) = (work?, said?);
    assert!(said.contains("delete the Machine"), "{said}");
    assert!(done >= 8 * OTHERS, "{done} Tasks in {REFUSES:?}");
    assert_eq!(
        controller_pid(&client).await?,
        leader,
        "the leader is the same process"
    );
    assert_eq!(restarts(&space.cluster).await?, restarted);
    let waits: Task = space.api().get("waits").await?;
    assert_eq!(waits.status.unwrap_or_default().phase, Some(TaskPhase::Pending));
    // What its condition says: then there is another one.
    space.kubectl(&["delete", "machine", &name]).await?.ok()?;
    let waits = space.task_ended_within("waits", PATIENCE).await?;
    assert_eq!(waits.status.unwrap_or_default().phase, Some(TaskPhase::Succeeded));
    drop(turn);
    space.finish().await
}
