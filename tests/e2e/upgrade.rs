//! An upgrade from the release before: what runs goes on, what waits runs once, and what is stored
//! is read. `make upgrade FROM=DIR` runs it, with the folder of that release.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde_json::{Value, json};
use skyward_api::{Machine, Pool, TaskPhase};
use skyward_testkit::{Cluster, Result, Space, install, install_chart, operator_values};

/// Variable that names the chart's package of the release before.
const BEFORE: &str = "SKYWARD_BEFORE_CHART";
/// Places of the Pool: so many Tasks run at once.
const PLACES: usize = 8;

/// A run prints once; a run that is repeated prints twice.
const SOURCE: &str = "import time\ndef main(i, seconds):\n    print('ran', i, flush=True)\n    time.sleep(seconds)\n    return {'i': i}\n";

async fn install_before(cluster: &Cluster) -> Result {
    let chart =
        std::env::var(BEFORE).with_context(|| format!("{BEFORE} is not set; run `make upgrade FROM=DIR`"))?;
    // The release names its own image.
    let mut values = operator_values()?;
    values.retain(|value| !value.starts_with("image.repository=") && !value.starts_with("image.tag="));
    install_chart(cluster, &chart, &values).await
}

async fn tasks(space: &Space, prefix: &str, count: usize, seconds: u32) -> Result<Vec<String>> {
    let names: Vec<String> = (0..count).map(|i| format!("{prefix}-{i}")).collect();
    for name in &names {
        let function = json!({"function": {"source": SOURCE, "args": [name, seconds]}});
        space.task(name, "p", function).await?;
    }
    Ok(names)
}

/// Result and log of a Task, as its user reads them.
async fn what_is_stored(space: &Space, name: &str) -> Result<(Value, String)> {
    let result = space
        .cluster
        .kubectl(&["skyward", "results", name, "-o", "raw", "-n", &space.name])
        .await?
        .ok()?;
    let log = space
        .cluster
        .kubectl(&["skyward", "logs", name, "-n", &space.name])
        .await?
        .ok()?;
    Ok((serde_json::from_str(&result)?, log))
}

async fn succeeded_once(space: &Space, name: &str) -> Result {
    let done = space.task_ended(name).await?.status.unwrap_or_default();
    assert_eq!(
        (done.phase, done.attempt),
        (Some(TaskPhase::Succeeded), 1),
        "{name}: {done:#?}"
    );
    assert_eq!(
        what_is_stored(space, name).await?,
        (json!({"i": name}), format!("ran {name}\n")),
        "{name}"
    );
    Ok(())
}

/// Names of the Machines of the Pool.
async fn names(space: &Space) -> Result<BTreeSet<String>> {
    space.pool_ready("p").await?;
    let machines = space.ready_machines("p").await?;
    Ok(machines
        .into_iter()
        .filter_map(|machine| machine.metadata.name)
        .collect())
}

#[tokio::test]
async fn an_upgrade_from_the_release_before_ends_repeats_and_forgets_nothing() -> Result {
    let cluster = Cluster::connect().await?;
    install_before(&cluster).await?;
    let space = cluster.namespace("upgrade").await?;
    space
        .pool(
            "p",
            2,
            json!({"worker": {"concurrency": PLACES / 2}, "image": {"shellVars": {"LEVEL": "echo one"}}}),
        )
        .await?;
    let machines = names(&space).await?;
    let done = tasks(&space, "done", PLACES, 0).await?;
    for name in &done {
        succeeded_once(&space, name).await?;
    }
    let running = tasks(&space, "running", PLACES, 45).await?;
    for name in &running {
        space.task_phase(name, TaskPhase::Running).await?;
    }
    let waiting = tasks(&space, "waiting", PLACES, 1).await?;

    install(&cluster).await.context("upgrade to this checkout")?;
    for name in done.iter().chain(&running).chain(&waiting) {
        succeeded_once(&space, name).await?;
    }
    let new = tasks(&space, "new", PLACES, 0).await?;
    for name in &new {
        succeeded_once(&space, name).await?;
    }
    space.pool_ready("p").await?;
    assert_eq!(
        space.count::<Machine>().await?,
        2,
        "no machine was doubled or left"
    );
    assert_eq!(names(&space).await?, machines, "none was replaced");
    // What the release before made ready is changed in place.
    let image = json!({"spec": {"image": {"shellVars": {"LEVEL": "echo two"}}}}).to_string();
    let args = ["patch", "pool", "p", "--type=merge", "-p", &image];
    space.kubectl(&args).await?.ok()?;
    let script = json!({"script": {"source": "test $LEVEL = two"}, "placement": "All"});
    space
        .wait(
            "p",
            "every machine has the new environment",
            120,
            |pool: &Pool| {
                let environment = pool
                    .status
                    .as_ref()
                    .and_then(|status| status.environment.as_ref());
                let is_seen = pool.status.as_ref().and_then(|status| status.observed_generation) == Some(2);
                is_seen && environment.is_some_and(|known| known.proven && known.turn.is_empty())
            },
        )
        .await?;
    space.task("changed", "p", script).await?;
    let changed = space.task_ended("changed").await?.status.unwrap_or_default();
    assert_eq!(changed.phase, Some(TaskPhase::Succeeded), "{changed:#?}");
    assert_eq!(names(&space).await?, machines, "none was replaced for the image");
    space.finish().await
}
