//! Tasks that a CronTask makes by the clock. Not in the program of the clouds, where a cluster is restored from a backup:
//! meanwhile no CronTask makes any.

use std::fs;

use anyhow::Context as _;
use kube::api::ListParams;
use serde_json::json;
use skyward_api::{CronTask, CronTaskStatus, Task, labels};
use skyward_testkit::{PATIENCE, Result, Space};

use crate::story;

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../config/samples/cron/crontask.yaml"
);

fn status(cron: &CronTask) -> CronTaskStatus {
    cron.status.clone().unwrap_or_default()
}

/// Names of the Tasks that there are of a CronTask.
async fn made(space: &Space, uid: &str) -> Result<Vec<String>> {
    let params = ListParams::default().labels(&format!("{}={uid}", labels::CRON_TASK_UID));
    let tasks = space.api::<Task>().list(&params).await?;
    Ok(tasks
        .items
        .into_iter()
        .filter_map(|task| task.metadata.name)
        .collect())
}

/// Waits until it has made a Task after that time; gives its name.
async fn next(space: &Space, after: Option<jiff::Timestamp>) -> Result<(jiff::Timestamp, String)> {
    let cron = space
        .wait("minutely", "has made a Task", PATIENCE, |cron: &CronTask| {
            let last = status(cron).last_schedule_time.map(|time| time.0);
            last.is_some() && last > after
        })
        .await?;
    let at = status(&cron)
        .last_schedule_time
        .map(|time| time.0)
        .unwrap_or_default();
    Ok((at, format!("minutely-{}", at.as_second() / 60)))
}

#[tokio::test]
async fn a_cron_task_makes_a_task_each_minute_keeps_its_newest_ones_and_takes_them_away_with_itself() -> Result
{
    let space = story("cron").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    space
        .create_json(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask", "metadata": {"name": "minutely"},
            "spec": {"schedule": "* * * * *", "successfulTasksHistoryLimit": 1,
                     "taskTemplate": {"spec": {"pool": "p", "command": ["true"]}}},
        }))
        .await?;
    let cron = space.wait("minutely", "was looked at", PATIENCE, |cron: &CronTask| {
        cron.status.is_some()
    });
    let uid = cron.await?.metadata.uid.unwrap_or_default();
    let (first, name) = next(&space, None).await?;
    space.task_ended(&name).await?;
    let (_, later) = next(&space, Some(first)).await?;
    space.task_ended(&later).await?;
    space.wait_gone::<Task>(&name, PATIENCE).await?;

    let suspend = r#"{"spec":{"suspend":true}}"#;
    let patch = [
        "patch",
        "crontasks.skyward.dev",
        "minutely",
        "--type=merge",
        "-p",
        suspend,
    ];
    space.kubectl(&patch).await?.ok()?;
    space
        .condition::<CronTask>("minutely", "Ready", "Suspended")
        .await?;
    let left = made(&space, &uid).await?;
    let newest = left.iter().max().context("its newest Task is gone")?;
    // A Task of that name is made once, however many processes try.
    let mine = json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": {"name": newest},
                      "spec": {"pool": "p", "command": ["true"]}});
    let text = serde_json::to_string(&mine)?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), text)?;
    let path = file.path().to_string_lossy();
    let refused = space.kubectl(&["create", "-f", path.as_ref()]).await?.refused()?;
    assert!(refused.contains("already exists"), "{refused}");

    space
        .kubectl(&["delete", "crontasks.skyward.dev", "minutely"])
        .await?
        .ok()?;
    for name in &left {
        space.wait_gone::<Task>(name, PATIENCE).await?;
    }

    let wrong = json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask", "metadata": {"name": "wrong"},
        "spec": {"schedule": "0 3 * * *", "timeZone": "Europe/Atlantis",
                 "taskTemplate": {"spec": {"pool": "p", "command": ["true"]}}}});
    space.create_json(wrong).await?;
    let why = space
        .condition::<CronTask>("wrong", "Stalled", "InvalidSchedule")
        .await?;
    assert!(why.contains("Europe/Atlantis"), "{why}");
    space.apply(&fs::read_to_string(SAMPLE)?).await?.ok()?;
    let next = space
        .condition::<CronTask>("nightly", "Ready", "NextScheduled")
        .await?;
    assert!(next.starts_with("the next Task is made at "), "{next}");
    space.finish().await
}
