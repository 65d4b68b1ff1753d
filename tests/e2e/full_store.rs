//! A namespace that fills its part of the result store, with logs, values and what items of a map returned.

use serde_json::json;
use skyward_api::{Task, TaskPhase};
use skyward_testkit::{Result, Space};

use crate::{TURN, story};

/// Items whose values take about 3 MB of the 4 MiB that the namespace has.
const MAPPED: u32 = 3000;

/// The log of a Task, as `kubectl` alone gets it.
async fn log_of(space: &Space, task: &str) -> Result<String> {
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/{task}/log",
        space.name
    );
    space.kubectl(&["get", "--raw", &path]).await?.ok()
}

#[tokio::test]
async fn a_namespace_that_prints_too_much_fills_its_own_part_of_the_store_and_nobody_elses() -> Result {
    let turn = TURN.read().await;
    let loud = story("loud").await?;
    let quiet = loud.cluster.namespace("quiet").await?;
    for space in [&loud, &quiet] {
        space.pool("p", 1, json!({"worker": {"concurrency": 2}})).await?;
        space.pool_ready("p").await?;
    }
    let prints = |bytes: u32| json!({"script": {"source": format!("yes 0123456789 | head -c {bytes}; echo; echo the-end")}});
    let returns = json!({"function": {"source": "def main():\n    return 'x' * 3_000_000\n"}});

    loud.task("prints", "p", prints(12_000_000)).await?;
    let done = loud.task_ended("prints").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert!(done.results[0].log_tail.contains("the-end"), "{done:#?}");
    let log = log_of(&loud, "prints").await?;
    assert!(log.len() < 5_000_000, "{} bytes", log.len());
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.contains("[skyward] the log ends here") && last.contains(&loud.name),
        "{last}"
    );

    loud.task("held", "p", returns.clone()).await?;
    let message = loud
        .condition::<Task>("held", "Running", "StoreQuotaExceeded")
        .await?;
    assert!(
        message.contains("store.quotaPerNamespace") && message.contains("delete Tasks"),
        "{message}"
    );
    // Meanwhile the other namespace has all of its own.
    quiet.task("prints", "p", prints(200_000)).await?;
    quiet.task("returns", "p", returns.clone()).await?;
    for task in ["prints", "returns"] {
        let done = quiet.task_ended(task).await?.status.unwrap_or_default();
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{task}: {done:#?}");
    }
    assert!(log_of(&quiet, "prints").await?.ends_with("the-end\n"));
    let held = loud
        .task_ended_within("held", 240)
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(
        (held.phase, held.reason.as_str()),
        (Some(TaskPhase::Failed), "ResultNotStored"),
        "{held:#?}"
    );
    loud.told(&["RunHeldUp", "TaskFailed"]).await?;

    // Room appears before the hold is over: the value is stored.
    loud.task("waits", "p", returns).await?;
    loud.condition::<Task>("waits", "Running", "StoreQuotaExceeded")
        .await?;
    loud.kubectl(&["delete", "task", "prints"]).await?.ok()?;
    let done = loud.task_ended("waits").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");

    // A map has no room for all its values beside that one: it waits, and goes on once it is gone.
    let source = "def main(item):\n    return 'x' * 1000 + str(item)\n";
    let map = json!({"forEach": {"count": MAPPED}, "function": {"source": source}});
    loud.task("map", "p", map).await?;
    let message = loud
        .condition::<Task>("map", "Running", "StoreQuotaExceeded")
        .await?;
    assert!(message.contains("Nothing is lost"), "{message}");
    let held = loud.api::<Task>().get("map").await?.status.unwrap_or_default();
    assert_eq!(held.phase, Some(TaskPhase::Running), "{held:#?}");
    loud.kubectl(&["delete", "task", "waits"]).await?.ok()?;
    let done = loud.task_ended("map").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let outcomes = loud.cluster.items(&loud.name, "map").await?;
    let values = outcomes.iter().filter_map(|item| {
        assert_eq!(item.attempt, 1, "{item:?}");
        item.value.as_str()?.trim_start_matches('x').parse::<u32>().ok()
    });
    assert!(values.eq(0..MAPPED), "each item has its value, and ran once");

    drop(turn);
    tokio::try_join!(quiet.finish(), loud.finish())?;
    Ok(())
}
