//! A Task with a Pool of its own: one file is a whole job.

use std::time::Duration;

use serde_json::{Value, json};
use skyward_api::{Machine, Pool, Task, TaskPhase};
use skyward_testkit::{PATIENCE, PROVIDER, Result, Space, kill_controller, wait_controller_replaced};

use crate::{
    crash::{KILLING, leader_answers},
    story,
    tasks::status,
};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/job/task.yaml");

/// A Task with a Pool of one machine of its own.
async fn job(space: &Space, name: &str, script: &str, pool: Value) -> Result {
    let mut template = json!({"provider": PROVIDER});
    if let (Some(template), Value::Object(pool)) = (template.as_object_mut(), pool) {
        template.extend(pool);
    }
    space
        .create_json(
            json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": {"name": name},
            "spec": {"poolTemplate": {"spec": template}, "script": {"source": script}}}),
        )
        .await
}

#[tokio::test]
async fn one_file_is_a_whole_job_whose_machines_are_gone_when_its_results_are_stored() -> Result {
    let space = story("job").await?;
    space.kubectl(&["apply", "-f", SAMPLE]).await?.ok()?;
    let pool = space.wait("job", "made", PATIENCE, |_: &Pool| true).await?;
    let lifetime = pool.spec.max_lifetime.map(|lifetime| lifetime.0);
    assert_eq!(lifetime.as_deref(), Some("2h"));
    let done = status(space.task_ended("job").await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    space.wait_gone::<Pool>("job", PATIENCE).await?;
    assert_eq!(space.count::<Machine>().await?, 0);
    for (rank, sum) in [(0, 20), (1, 25)] {
        let path = format!(
            "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/job/result?rank={rank}",
            space.name
        );
        let stored = space.cluster.patiently(&["get", "--raw", &path]).await?;
        let stored: Value = serde_json::from_str(&stored)?;
        assert_eq!(stored, json!({"rank": rank, "sum": sum}));
    }
    // The same file again, in the place of the old Task: the Pool of the old one is no obstacle for long.
    space.kubectl(&["replace", "--force", "-f", SAMPLE]).await?.ok()?;
    let done = status(space.task_ended("job").await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    space.wait_gone::<Pool>("job", PATIENCE).await?;
    space.finish().await
}

#[tokio::test]
async fn nothing_is_left_of_a_job_that_is_deleted_while_its_machine_comes() -> Result {
    let space = story("job-gone").await?;
    job(&space, "early", "sleep 600", json!({})).await?;
    space.wait("early", "made", PATIENCE, |_: &Pool| true).await?;
    let delete = ["delete", "tasks.skyward.dev", "early"];
    space.kubectl(&delete).await?.ok()?;
    space.wait_gone::<Pool>("early", PATIENCE).await?;
    assert_eq!(space.count::<Machine>().await?, 0);
    space.finish().await
}

#[tokio::test]
async fn a_job_that_no_offer_can_serve_says_what_would() -> Result {
    let space = story("job-offers").await?;
    job(&space, "t", "true", json!({"memory": "60Ti"})).await?;
    let why = space
        .condition::<Task>("t", "Scheduled", "NoAvailableProvider")
        .await?;
    for words in ["no offer fits spec.poolTemplate", "lower memory"] {
        assert!(why.contains(words), "{why}");
    }
    space.finish().await
}

#[tokio::test]
async fn a_controller_that_is_killed_runs_each_job_once_and_leaves_no_pool() -> Result {
    let space = story("job-kill").await?;
    let turn = KILLING.write().await;
    let names = ["a", "b", "c"];
    for name in names {
        job(&space, name, "sleep 2; echo $SKYWARD_ATTEMPT", json!({})).await?;
    }
    for wait in [150, 900, 2500] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let old = kill_controller(&space.cluster.client).await?;
        wait_controller_replaced(&space.cluster.client, old).await?;
    }
    leader_answers(&space).await?;
    drop(turn);
    for name in names {
        let done = status(space.task_ended(name).await?);
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{name}: {done:#?}");
        assert_eq!(done.restarts, 0, "{name}: {done:#?}");
        space.wait_gone::<Pool>(name, PATIENCE).await?;
    }
    assert_eq!(space.count::<Machine>().await?, 0);
    space.finish().await
}
