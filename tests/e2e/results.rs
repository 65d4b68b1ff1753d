//! Return values that are large or come one after the other, and how long logs and results are kept.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase};
use skyward_testkit::{PATIENCE, Result, Space};
use tokio::time::{Duration, Instant};

use crate::story;

/// What the result store holds of a Task; the store of a local cluster is a folder here.
fn stored(task: &Task) -> Result<PathBuf> {
    Ok(PathBuf::from(std::env::var("SKYWARD_STORE_DIR")?).join(task.uid().unwrap_or_default()))
}

async fn gone(folder: &Path) -> bool {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while folder.exists() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    !folder.exists()
}

async fn value_of(space: &Space, task: &str) -> Result<String> {
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/{task}/result",
        space.name
    );
    space.cluster.patiently(&["get", "--raw", &path]).await
}

#[tokio::test]
async fn a_result_of_50_mb_is_kept_and_one_above_the_limit_refused() -> Result {
    let space = story("results").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 2}})).await?;
    let source = "def main(n):\n    return ['x' * 1000] * n\n";
    let of = |n: u64| json!({"function": {"source": source, "args": [n]}});
    space.task("fifty", "p", of(50_000)).await?;
    space.task("too-large", "p", of(270_000)).await?;

    let fifty = space.task_ended("fifty").await?;
    let done = fifty.status.clone().unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let bytes = 50_000 * 1003 + 1;
    assert_eq!(
        (done.results[0].value.is_none(), done.results[0].value_bytes),
        (true, Some(bytes))
    );
    let value = value_of(&space, "fifty").await?;
    assert_eq!(value.trim().len() as i64, bytes);
    let value: Vec<String> = serde_json::from_str(&value)?;
    assert!(value.len() == 50_000 && value.iter().all(|item| item.len() == 1000));
    assert!(stored(&fifty)?.exists(), "it lies in the result store");

    let refused = space.task_ended("too-large").await?;
    let done = refused.status.clone().unwrap_or_default();
    assert_eq!(
        (done.phase, done.reason.as_str()),
        (Some(TaskPhase::Failed), "ResultTooLarge"),
        "{done:#?}"
    );
    let message = &done.results[0].message;
    assert!(
        message.contains(&(256 * 1024 * 1024).to_string()),
        "the limit: {message}"
    );
    assert!(message.contains("volume"), "the remedy: {message}");
    space.finish().await
}

#[tokio::test]
async fn an_expired_task_goes_with_its_logs_and_results() -> Result {
    let space = story("ttl").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    // A controller killed between the end of the Task and the end of its files leaves the files to
    // a later sweep.
    let turn = crate::crash::KILLING.read().await;
    let source = "def main():\n    print('x' * 1000)\n    return 'y' * 10_000\n";
    space
        .task(
            "brief",
            "p",
            json!({"ttlSecondsAfterFinished": 10, "function": {"source": source}}),
        )
        .await?;
    let brief = space.task_ended("brief").await?;
    let folder = stored(&brief)?;
    assert!(folder.exists(), "log and result are kept until then");
    space.wait_gone::<Task>("brief", PATIENCE).await?;
    assert!(gone(&folder).await, "{} stayed", folder.display());
    drop(turn);
    space.finish().await
}

/// As if the end of the Task had been recorded so many minutes ago.
pub(crate) async fn ended_before(space: &Space, name: &str, minutes: i64) -> Result {
    let tasks = space.api::<Task>();
    let at = Time(jiff::Timestamp::now() - jiff::SignedDuration::from_mins(minutes));
    let mut conditions = tasks.get(name).await?.status.unwrap_or_default().conditions;
    for condition in &mut conditions {
        condition.last_transition_time = at.clone();
    }
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    tasks.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test]
async fn logs_and_results_expire_each_in_its_time_and_readers_are_told_so() -> Result {
    let space = story("retention").await?;
    space.pool("p", 1, json!({})).await?;
    let source = "def main():\n    print('hello')\n    return 'y' * 10_000\n";
    let spec = json!({"retention": {"logs": "1h", "results": "2h"}, "function": {"source": source}});
    space.task("kept", "p", spec).await?;
    let kept = space.task_ended("kept").await?;
    assert!(stored(&kept)?.exists());
    let log = ["skyward", "logs", "kept", "-n", &space.name];
    assert!(space.cluster.kubectl(&log).await?.ok()?.contains("hello"));

    ended_before(&space, "kept", 90).await?;
    let refused = space.cluster.kubectl(&log).await?.refused()?;
    assert!(refused.contains("spec.retention.logs"), "{refused}");
    assert!(
        value_of(&space, "kept").await?.contains("yyyyyyyyyy"),
        "its result has half an hour"
    );

    ended_before(&space, "kept", 150).await?;
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/kept/result",
        space.name
    );
    let refused = space.kubectl(&["get", "--raw", &path]).await?.refused()?;
    assert!(
        refused.contains("ResultsExpired") && refused.contains("spec.retention.results"),
        "{refused}"
    );
    let table = space.plugin(&["results", "kept"]).await?;
    assert!(table.contains("Succeeded"), "how it ended stays: {table}");
    space.finish().await
}

#[tokio::test]
async fn an_ended_task_whose_ttl_is_taken_back_stays() -> Result {
    let space = story("ttl-back").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    let of = |ttl: u32| json!({"command": ["echo", "hi"], "ttlSecondsAfterFinished": ttl});
    space.task("kept", "p", of(20)).await?;
    let kept = space.task_ended("kept").await?;
    let stay = r#"{"spec":{"ttlSecondsAfterFinished":null}}"#;
    space
        .kubectl(&["patch", "task", "kept", "--type=merge", "-p", stay])
        .await?
        .ok()?;
    // It ends later: when it goes, the other one's time has passed.
    space.task("brief", "p", of(20)).await?;
    space.task_ended("brief").await?;
    space.wait_gone::<Task>("brief", PATIENCE).await?;
    let there = space.api::<Task>().get("kept").await?;
    assert_eq!(there.uid(), kept.uid());
    assert!(stored(&kept)?.exists(), "its log is kept");
    space.finish().await
}

/// The values of `results -o jsonl`, in order, by their numbers.
fn values_of_lines(lines: &str) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    for (number, line) in lines.lines().enumerate() {
        let value: Value = serde_json::from_str(line)?;
        ensure!(value["index"] == json!(number) && value["attempt"] == 1, "{line}");
        values.push(value["value"].clone());
    }
    Ok(values)
}

#[tokio::test]
async fn what_a_function_yields_is_read_while_it_runs_and_is_no_output() -> Result {
    let space = story("yields").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    let source = "
import os, time
def main(n):
    print('begins')
    for step in range(n):
        yield {'step': step, 'bytes': b'x'} if step == 1 else step
    while not os.path.exists('/tmp/go'):
        time.sleep(0.1)
    yield 'last'
    return 'done'
";
    let task = json!({"function": {"source": source, "args": [3]}, "timeout": "600s"});
    space.task("steps", "p", task).await?;
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        // Until the Task has started this is an error.
        let now = space
            .plugin(&["results", "steps", "-o", "jsonl"])
            .await
            .unwrap_or_default();
        if values_of_lines(&now)?.len() == 3 {
            break;
        }
        ensure!(Instant::now() < deadline, "the values did not come: {now}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let running = space.api::<Task>().get("steps").await?.status.unwrap_or_default();
    ensure!(running.phase == Some(TaskPhase::Running), "{running:#?}");
    let go = json!({"command": ["touch", "/tmp/go"]});
    let (followed, went) = tokio::join!(
        space.plugin(&["results", "-f", "steps"]),
        space.task("go", "p", go)
    );
    went?;
    let values = values_of_lines(&followed?)?;
    ensure!(
        values.len() == 4 && values[0] == 0 && values[3] == "last",
        "{values:?}"
    );
    ensure!(
        values[1]["skyward.dev/value"]["codec"] == "pickle",
        "it is no JSON: {values:?}"
    );
    let done = space.task_ended("steps").await?.status.unwrap_or_default();
    ensure!(done.phase == Some(TaskPhase::Succeeded), "{done:#?}");
    ensure!(done.results[0].log_tail == "begins\n", "{done:#?}");
    let returned = done.results[0].value.clone().unwrap_or_default();
    ensure!(
        returned["skyward.dev/values"]["count"] == 4 && returned["skyward.dev/returned"] == "done",
        "{returned}"
    );
    let stored = space.plugin(&["results", "steps", "-o", "jsonl"]).await?;
    ensure!(values_of_lines(&stored)? == values, "{stored}");
    let raw = space.plugin(&["results", "-f", "steps", "-o", "raw"]).await?;
    ensure!(
        raw.lines().next() == Some("0") && raw.lines().last() == Some("\"last\""),
        "{raw}"
    );
    let log = space.plugin(&["logs", "steps"]).await?;
    ensure!(log == "begins\n", "{log}");
    space.finish().await
}
