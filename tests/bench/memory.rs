//! What the controller costs when nothing happens, and after much has happened.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::measure::{Bench, figure};

/// Writes to our objects in a minute without work, a Pool of two machines being Ready.
pub(crate) async fn at_rest(bench: &Bench) -> anyhow::Result<()> {
    bench.create_pool("rest", 2, 1).await?;
    bench.wait_ready("rest", 2).await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = bench.writes().await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = bench.writes().await?;
    let changed: Vec<String> = after
        .iter()
        .filter_map(|(k, v)| {
            let delta = v - before.get(k).copied().unwrap_or(0);
            (delta > 0 && !k.ends_with("providers/status")).then(|| format!("{k}={delta}"))
        })
        .collect();
    let total: u64 = after
        .iter()
        .map(|(k, v)| v - before.get(k).copied().unwrap_or(0))
        .sum();
    figure(
        "writes_at_rest_per_minute",
        total as f64,
        "writes",
        "0",
        &format!("{changed:?}"),
    );
    bench.delete_pool("rest").await
}

/// Resident memory of the controller with 10,000 finished Tasks that it saw pass.
pub(crate) async fn finished_tasks(bench: &Bench) -> anyhow::Result<()> {
    let tasks = bench.tasks();
    let before = skyward_testkit::controller_memory(&bench.client).await?;
    stream::iter(0..10_000)
        .map(|i| {
            let tasks = tasks.clone();
            async move {
                let name = format!("old-{i}");
                let task = Bench::task(&name, "no-such-pool", json!({"command": ["true"]}))?;
                tasks.create(&PostParams::default(), &task).await?;
                let patch = json!({"status": {"phase": "Succeeded", "attempt": 1, "restarts": 0,
                    "interruptions": 0, "mode": "command/one", "done": "1/1", "reason": "Succeeded"}});
                tasks
                    .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = skyward_testkit::controller_memory(&bench.client).await?;
    figure(
        "controller_memory_10000_finished",
        after as f64 / f64::from(1 << 20),
        "MiB",
        "64",
        &format!("before {:.1} MiB", before as f64 / f64::from(1 << 20)),
    );
    tasks
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok(())
}
