//! A Pool that grows with its Tasks, shrinks and sleeps, while the controller and a machine are killed.

use std::fs;

use anyhow::{Context as _, ensure};
use kube::ResourceExt as _;
use serde_json::json;
use skyward_api::{Machine, Pool, PoolPhase, Task, TaskPhase};
use skyward_testkit::{PATIENCE, PROVIDER, Result, Space, kill_controller, wait_controller_replaced};

use crate::{
    crash::{KILLING, leader_answers},
    story,
};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/elastic");
/// Tasks of the sample.
const TASKS: usize = 12;

async fn apply(space: &Space, file: &str) -> Result {
    let path = format!("{SAMPLES}/{file}");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let provider = format!("provider: {PROVIDER}");
    let text = text.replace("provider: local", &provider);
    space.apply(&text).await?.ok().map(drop)
}

async fn works_towards(space: &Space, wanted: u32) -> Result<Pool> {
    let what = format!("works towards {wanted} machines");
    space
        .wait("elastic", &what, PATIENCE, |pool: &Pool| {
            pool.status.as_ref().and_then(|status| status.desired_machines) == Some(wanted)
        })
        .await
}

async fn asleep(space: &Space) -> Result {
    space
        .wait(
            "elastic",
            "sleeps without a machine",
            3 * PATIENCE,
            |pool: &Pool| {
                pool.status
                    .as_ref()
                    .is_some_and(|status| status.phase == Some(PoolPhase::Sleeping) && status.machines == 0)
            },
        )
        .await
        .map(drop)
}

async fn row(space: &Space) -> Result<String> {
    let output = space
        .kubectl(&["get", "pool", "elastic", "--no-headers"])
        .await?
        .ok()?;
    Ok(output.split_whitespace().collect::<Vec<_>>().join(" "))
}

async fn ready(space: &Space, machines: u32) -> Result {
    let what = format!("has {machines} machines");
    space
        .wait("elastic", &what, PATIENCE, |pool: &Pool| {
            pool.status
                .as_ref()
                .is_some_and(|status| status.ready_machines == machines)
        })
        .await
        .map(drop)
}

/// After how long idle machines go, and the Pool sleeps.
async fn stay_idle_for(space: &Space, scale_down_after: &str, idle_timeout: &str) -> Result {
    let spec = json!({"autoscale": {"scaleDownAfter": scale_down_after}, "idleTimeout": idle_timeout});
    let patch = json!({"spec": spec}).to_string();
    let args = ["patch", "pool", "elastic", "--type=merge", "-p", &patch];
    space.kubectl(&args).await?.ok().map(drop)
}

/// The controller is killed: what was decided is on record, and another leader finishes it.
async fn kill(space: &Space) -> Result {
    let old = kill_controller(&space.cluster.client).await?;
    wait_controller_replaced(&space.cluster.client, old)
        .await
        .map(drop)
}

#[tokio::test]
async fn a_pool_that_sleeps_grows_to_six_machines_and_sleeps_again_while_processes_are_killed() -> Result {
    let space = story("elastic").await?;
    apply(&space, "pool.yaml").await?;
    space.pool_ready("elastic").await?;
    let shown = row(&space).await?;
    ensure!(shown.contains(" 1 (1-6) 1/1 Ready"), "{shown}");
    let says_when = |pool: &Pool| {
        let status = pool.status.as_ref();
        status.is_some_and(|status| status.reason.starts_with("sleeps at "))
    };
    space
        .wait("elastic", "says when it sleeps", PATIENCE, says_when)
        .await?;
    asleep(&space).await?;
    ensure!(space.count::<Machine>().await? == 0, "a Machine stayed");
    let shown = row(&space).await?;
    ensure!(shown.contains(" 0 (1-6) 0/0 Sleeping Sleeping"), "{shown}");
    let says = space.condition::<Pool>("elastic", "Ready", "Sleeping").await?;
    ensure!(says.contains("the next Task wakes it"), "{says}");
    let turn = KILLING.write().await;
    apply(&space, "tasks.yaml").await?;
    works_towards(&space, 6).await?;
    kill(&space).await?;
    ready(&space, 6).await?;
    let lost = space.ready_machines("elastic").await?.remove(3);
    let args = ["delete", "pod", &lost.name_any(), "--grace-period=0", "--force"];
    space.kubectl(&args).await?.ok()?;
    // An Event that is not written yet would die with the controller.
    space.told(&["PoolWakes"]).await?;
    // Other stories may kill the controller while the Tasks run. No machine goes meanwhile: its Event could be lost.
    stay_idle_for(&space, "1h", "1h").await?;
    drop(turn);
    for number in 1..=TASKS {
        let task: Task = space
            .task_ended_within(&format!("elastic-{number}"), 2 * PATIENCE)
            .await?;
        let status = task.status.unwrap_or_default();
        ensure!(status.phase == Some(TaskPhase::Succeeded), "{status:#?}");
        ensure!(
            status.attempt == status.interruptions + 1,
            "it ran twice: {status:#?}"
        );
    }
    let turn = KILLING.write().await;
    // As in the sample.
    stay_idle_for(&space, "20s", "1m").await?;
    works_towards(&space, 1).await?;
    space.told(&["PoolShrinks"]).await?;
    kill(&space).await?;
    leader_answers(&space).await?;
    drop(turn);
    asleep(&space).await?;
    ensure!(space.count::<Machine>().await? == 0, "a Machine stayed");
    space.told(&["PoolSleepsSoon", "PoolSleeps"]).await?;
    space.finish().await
}
