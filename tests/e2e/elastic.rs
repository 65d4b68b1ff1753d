//! A Pool that grows with its Tasks, shrinks and sleeps, while the controller and a machine are killed.

use std::fs;

use anyhow::{Context as _, ensure};
use kube::ResourceExt as _;
use serde_json::json;
use skyward_api::{Machine, Pool, PoolPhase, Task, TaskPhase};
use skyward_testkit::{PATIENCE, PROVIDER, Result, Space, kill_controller, wait_controller_replaced};

use crate::{crash::KILLING, story};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/elastic");
/// Tasks of the sample.
const TASKS: usize = 8;

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

#[tokio::test]
async fn a_pool_goes_from_one_machine_to_four_to_none_and_wakes_while_processes_are_killed() -> Result {
    let space = story("elastic").await?;
    let _turn = KILLING.write().await;
    apply(&space, "pool.yaml").await?;
    space.pool_ready("elastic").await?;
    ensure!(
        row(&space).await?.contains(" 1 (1-4) 1/1 Ready"),
        "{}",
        row(&space).await?
    );
    apply(&space, "tasks.yaml").await?;
    works_towards(&space, 4).await?;
    // What was decided is on record: another leader finishes it.
    let old = kill_controller(&space.cluster.client).await?;
    wait_controller_replaced(&space.cluster.client, old).await?;
    space
        .wait("elastic", "has four machines", PATIENCE, |pool: &Pool| {
            pool.status
                .as_ref()
                .is_some_and(|status| status.ready_machines == 4)
        })
        .await?;
    let lost = space.ready_machines("elastic").await?.remove(3);
    let args = ["delete", "pod", &lost.name_any(), "--grace-period=0", "--force"];
    space.kubectl(&args).await?.ok()?;
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
    works_towards(&space, 1).await?;
    asleep(&space).await?;
    ensure!(space.count::<Machine>().await? == 0, "a Machine stayed");
    ensure!(
        row(&space).await?.contains(" 0 (1-4) 0/0 Sleeping Sleeping"),
        "{}",
        row(&space).await?
    );
    let ready = space.condition::<Pool>("elastic", "Ready", "Sleeping").await?;
    ensure!(ready.contains("the next Task wakes it"), "{ready}");
    space
        .task("wakes", "elastic", json!({"command": ["true"]}))
        .await?;
    let task = space.task_ended("wakes").await?;
    ensure!(
        task.status.unwrap_or_default().phase == Some(TaskPhase::Succeeded),
        "a Pool that sleeps did not run its Task"
    );
    space
        .told(&["PoolShrinks", "PoolSleepsSoon", "PoolSleeps", "PoolWakes"])
        .await?;
    space.finish().await
}
