//! What a client without a controller needs for the same Tasks: the raw limits of a Task's latency and rate.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use skyward_api::{Task, TaskPhase, TaskStatus};
use tokio::process::Command;

use crate::{
    measure::{Bench, PATIENCE},
    tasks::POOL,
};

/// A Pool that there is not: no controller starts its Tasks.
const NO_POOL: &str = "no-such-pool";

/// The two statuses that the controller writes, as it wrote them for a real Task.
pub(crate) struct Shapes {
    placed: TaskStatus,
    ended: TaskStatus,
}

impl Shapes {
    /// Runs a real Task called `name`, and keeps the two statuses that the watch showed.
    pub(crate) async fn of_a_real_task(bench: &Bench, name: &str) -> anyhow::Result<Self> {
        let task = Bench::task(name, POOL, json!({"command": ["true"]}))?;
        let (_, history) = bench.run_task_with_history(&task).await?;
        let mut statuses = history.into_iter().filter_map(|task| task.status);
        let mut placed = statuses
            .find(|status| status.phase == Some(TaskPhase::Running))
            .context("the watch showed the Task while it ran")?;
        // As long as the word that it stands for, and nothing that the controller acts on: it
        // would find no Pool, and write as well.
        placed.phase = Some(TaskPhase::Pending);
        let ended = statuses
            .next_back()
            .context("the watch showed the Task at its end")?;
        Ok(Self { placed, ended })
    }

    /// Writes both for a Task of [`task`].
    pub(crate) async fn write(&self, tasks: &Api<Task>, task: Task) -> anyhow::Result<()> {
        let task = write(tasks, &task, &self.placed).await?;
        write(tasks, &task, &self.ended).await?;
        Ok(())
    }
}

/// A no-op Task that no controller acts on.
pub(crate) fn task(name: &str) -> anyhow::Result<Task> {
    Bench::task(name, NO_POOL, json!({"command": ["true"]}))
}

/// Writes a status as the controller does: whole, and only onto the version that was seen.
async fn write(tasks: &Api<Task>, task: &Task, status: &TaskStatus) -> anyhow::Result<Task> {
    let patch = serde_json::from_value(json!([
        {"op": "replace", "path": "/metadata/uid", "value": task.metadata.uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": task.metadata.resource_version},
        {"op": "add", "path": "/status", "value": status},
    ]))?;
    let patch = Patch::Json::<()>(patch);
    let written = tasks
        .patch_status(&task.name_any(), &PatchParams::default(), &patch)
        .await?;
    Ok(written)
}

/// The shortest chain that makes a Task durable: `create` returned → a watch shows the Task → one
/// status → `true` is started and waited for on this machine → the other status → a second watch
/// shows it. Both watches are open before.
pub(crate) async fn chain(bench: &Bench, shapes: &Shapes, name: &str) -> anyhow::Result<Duration> {
    let tasks = bench.tasks();
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(290);
    let mut news = tasks.watch(&params, "").await?.boxed();
    let mut events = tasks.watch(&params, "").await?.boxed();
    let ended = tokio::spawn(async move {
        while let Some(event) = tokio::time::timeout(PATIENCE, events.try_next()).await?? {
            if let WatchEvent::Added(task) | WatchEvent::Modified(task) = event
                && task.status.and_then(|status| status.phase) == Some(TaskPhase::Succeeded)
            {
                return Ok(Instant::now());
            }
        }
        anyhow::bail!("the watch ended before the bare Task did")
    });
    let act = async {
        let task = loop {
            match tokio::time::timeout(PATIENCE, news.try_next()).await?? {
                Some(WatchEvent::Added(task)) => break task,
                Some(WatchEvent::Bookmark(_)) => {}
                other => anyhow::bail!("instead of the bare Task the watch showed {other:?}"),
            }
        };
        let task = write(&tasks, &task, &shapes.placed).await?;
        anyhow::ensure!(Command::new("true").status().await?.success(), "`true` failed");
        write(&tasks, &task, &shapes.ended).await
    };
    let create = async {
        tasks.create(&PostParams::default(), &task(name)?).await?;
        Ok(Instant::now())
    };
    let (created, _) = tokio::try_join!(create, act)?;
    let at = ended.await??;
    Ok(at.saturating_duration_since(created))
}
