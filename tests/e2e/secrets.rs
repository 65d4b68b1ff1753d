//! Secrets that are missing, or go while they are in use.

use serde_json::json;
use skyward_api::{Machine, Pool, Task, TaskPhase, TaskStatus};
use skyward_testkit::{PATIENCE, Result, Space};
use tokio::time::Duration;

use crate::story;

async fn secret(space: &Space, name: &str, value: &str) -> Result {
    space
        .create_json(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"TOKEN": value}}))
        .await
}

async fn delete_secret(space: &Space, name: &str) -> Result {
    space.kubectl(&["delete", "secret", name]).await?.ok().map(drop)
}

#[tokio::test]
async fn a_secret_deleted_while_in_use_is_kept_by_its_run_and_named_to_the_next() -> Result {
    let space = story("secrets").await?;
    secret(&space, "common", "pool-canary-11").await?;
    secret(&space, "own", "task-canary-22").await?;
    let image = json!({"envFrom": [{"secretRef": {"name": "common"}, "prefix": "POOL_"}]});
    space
        .pool("p", 1, json!({"image": image, "worker": {"concurrency": 4}}))
        .await?;
    space.pool_ready("p").await?;
    // A controller that starts anew cannot mask what it cannot read, and withholds the tail; nor
    // can it start again what was recorded and not started.
    let turn = crate::crash::KILLING.read().await;
    let uses = json!({"envFrom": [{"secretRef": {"name": "own"}}], "script": {"source":
        "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo \"$POOL_TOKEN $TOKEN\"; echo ${#POOL_TOKEN} ${#TOKEN}"}});
    space.task("holder", "p", uses.clone()).await?;
    space.task_phase("holder", TaskPhase::Running).await?;
    delete_secret(&space, "own").await?;
    delete_secret(&space, "common").await?;

    let machine = space.ready_machines("p").await?.remove(0);
    let machine = machine.metadata.name.unwrap_or_default();
    space
        .kubectl(&["exec", &machine, "--", "touch", "/tmp/go"])
        .await?
        .ok()?;
    let done = space.task_ended("holder").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let tail = &done.results[0].log_tail;
    assert!(
        tail.contains("14 14") && !tail.contains("canary"),
        "it keeps what it was given, and its tail is masked although the Secrets are gone: {tail}"
    );

    drop(turn);

    // What was read counts for some seconds; then the next Task says what is missing.
    let (name, message) = first_that_waits(&space, &uses).await?;
    assert!(message.contains("common") || message.contains("own"), "{message}");
    secret(&space, "common", "pool-canary-33").await?;
    secret(&space, "own", "task-canary-44").await?;
    let done = space.task_ended(&name).await?.status.unwrap_or_default();
    assert_eq!(
        (done.phase, done.attempt),
        (Some(TaskPhase::Succeeded), 1),
        "{done:#?}"
    );
    space.finish().await
}

/// Creates one Task after another until one has to wait; its name, and what it says.
async fn first_that_waits(space: &Space, spec: &serde_json::Value) -> Result<(String, String)> {
    for number in 0..40 {
        let name = format!("next-{number}");
        space.task(&name, "p", spec.clone()).await?;
        let seen = space
            .wait(&name, "ended or waits", PATIENCE, |task: &Task| {
                let status = task.status.clone().unwrap_or_default();
                status.phase.is_some_and(TaskPhase::is_finished) || missing(&status).is_some()
            })
            .await?;
        if let Some(message) = missing(&seen.status.unwrap_or_default()) {
            return Ok((name, message));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    anyhow::bail!("no Task ever said that a Secret is missing")
}

/// What a Task says about a reference that leads nowhere.
fn missing(status: &TaskStatus) -> Option<String> {
    let scheduled = status.conditions.iter().find(|c| c.type_ == "Scheduled")?;
    (scheduled.reason == "ReferenceNotFound").then(|| scheduled.message.clone())
}

#[tokio::test]
async fn a_missing_pull_secret_is_named_and_waited_for() -> Result {
    let space = story("pull-secret").await?;
    let provider = space
        .provider(
            "p",
            json!({"container": {"imagePullSecrets": [{"name": "registry"}]}}),
        )
        .await?;
    space
        .pool(
            "p",
            1,
            json!({"provider": provider, "nodes": {"desired": 1, "min": 1}}),
        )
        .await?;
    let message = space.condition::<Pool>("p", "Stalled", "OrderRefused").await?;
    assert!(
        message.contains("registry") && message.contains(&space.name),
        "{message}"
    );
    let registry = || {
        space.create_json(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry"},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{\"auths\":{}}"}}),
        )
    };
    registry().await?;
    space.pool_ready("p").await?;

    // Deleted while in use: what runs goes on, the next machine waits for it.
    delete_secret(&space, "registry").await?;
    let two = r#"{"spec":{"nodes":{"desired":2}}}"#;
    space
        .kubectl(&["patch", "pool", "p", "--type=merge", "-p", two])
        .await?
        .ok()?;
    let message = space.condition::<Pool>("p", "Stalled", "OrderRefused").await?;
    assert!(message.contains("registry"), "{message}");
    space.task("works", "p", json!({"command": ["true"]})).await?;
    let done = space.task_ended("works").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    registry().await?;
    space
        .wait("p", "2/2", PATIENCE, |p: &Pool| {
            p.status.as_ref().is_some_and(|s| s.ready_summary == "2/2")
        })
        .await?;
    assert_eq!(space.count::<Machine>().await?, 2);
    space.finish().await
}
