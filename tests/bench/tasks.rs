//! How long one Task takes, and how many a Pool completes in a second.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use skyward_api::Task;

use crate::measure::{Bench, figure, ms, percentile};

const POOL: &str = "warm";

async fn warm_pool(bench: &Bench) -> anyhow::Result<()> {
    if bench.pools().get_opt(POOL).await?.is_none() {
        bench.create_pool(POOL, 4, 8).await?;
    }
    bench.wait_ready(POOL, 4).await
}

/// A no-op command on a warm Pool: `create` returned → watch shows Complete.
pub(crate) async fn latency(bench: &Bench) -> anyhow::Result<()> {
    warm_pool(bench).await?;
    let mut samples = Vec::new();
    let mut raw = Vec::new();
    for i in 0..100 {
        let task = Bench::task(&format!("latency-{i}"), POOL, json!({"command": ["true"]}))?;
        samples.push(bench.run_task(&task).await?.0);
        raw.push(raw_latency(bench, i).await?);
    }
    let raw_text = format!("create→watch p50 {:.1} ms", ms(percentile(&mut raw, 0.5)));
    figure(
        "task_noop_latency_p50",
        ms(percentile(&mut samples, 0.5)),
        "ms",
        "60",
        &raw_text,
    );
    let raw_text = format!("create→watch p99 {:.1} ms", ms(percentile(&mut raw, 0.99)));
    figure(
        "task_noop_latency_p99",
        ms(percentile(&mut samples, 0.99)),
        "ms",
        "250",
        &raw_text,
    );
    Ok(())
}

/// Create of an object no controller acts on → a watch shows it.
async fn raw_latency(bench: &Bench, i: usize) -> anyhow::Result<Duration> {
    use k8s_openapi::api::core::v1::ConfigMap;
    let maps: Api<ConfigMap> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let name = format!("raw-{i}");
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(60);
    let mut events = maps.watch(&params, "").await?.boxed();
    let start = Instant::now();
    let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    maps.create(&PostParams::default(), &map).await?;
    while let Some(event) = events.try_next().await? {
        if matches!(event, WatchEvent::Added(_)) {
            break;
        }
    }
    Ok(start.elapsed())
}

/// One Task on all of four machines.
pub(crate) async fn broadcast(bench: &Bench) -> anyhow::Result<()> {
    warm_pool(bench).await?;
    let mut samples = Vec::new();
    for i in 0..30 {
        let task = Bench::task(
            &format!("broadcast-{i}"),
            POOL,
            json!({"command": ["true"], "placement": "all"}),
        )?;
        samples.push(bench.run_task(&task).await?.0);
    }
    figure(
        "broadcast_4_p50",
        ms(percentile(&mut samples, 0.5)),
        "ms",
        "80",
        "-",
    );
    Ok(())
}

/// Tasks per second to Complete, beside the rate of the bare writes of the same objects.
pub(crate) async fn throughput(bench: &Bench) -> anyhow::Result<()> {
    warm_pool(bench).await?;
    let count = 600;
    let before = bench.writes().await?;
    let start = Instant::now();
    let tasks = bench.tasks();
    let creates = stream::iter(0..count)
        .map(|i| {
            let tasks = tasks.clone();
            async move {
                let task = Bench::task(&format!("many-{i}"), POOL, json!({"command": ["true"]}))?;
                tasks.create(&PostParams::default(), &task).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_for_each(|()| async { Ok(()) });
    creates.await?;
    loop {
        let open = tasks
            .list_metadata(
                &ListParams::default()
                    .fields("status.phase!=Succeeded,status.phase!=Failed")
                    .limit(1),
            )
            .await?;
        if open.items.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    let after = bench.writes().await?;
    let bare = bare_rate(bench, count).await?;
    figure(
        "tasks_per_second",
        rate,
        "1/s",
        &format!("{:.1}", bare * 0.6),
        &format!("bare writes {bare:.1}/s"),
    );
    let key = |counts: &std::collections::BTreeMap<String, u64>| {
        counts
            .iter()
            .filter(|(k, _)| k.ends_with("tasks/status"))
            .map(|(_, v)| v)
            .sum::<u64>()
    };
    let writes = (key(&after) - key(&before)) as f64 / f64::from(count);
    figure("status_writes_per_task", writes, "writes", "2", "-");
    let all = ListParams::default();
    tasks.delete_collection(&DeleteParams::default(), &all).await?;
    Ok(())
}

/// What a load generator reaches that only writes: create and two status patches.
async fn bare_rate(bench: &Bench, count: i32) -> anyhow::Result<f64> {
    let tasks: Api<Task> = bench.tasks();
    let start = Instant::now();
    stream::iter(0..count)
        .map(|i| {
            let tasks = tasks.clone();
            async move {
                let name = format!("bare-{i}");
                let task = Bench::task(&name, "no-such-pool", json!({"command": ["true"]}))?;
                tasks.create(&PostParams::default(), &task).await?;
                for phase in ["Running", "Succeeded"] {
                    let patch = json!({"status": {"phase": phase, "attempt": 1, "restarts": 0, "interruptions": 0,
                        "mode": "command/one", "done": "0/1", "reason": "Bare"}});
                    tasks.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
                }
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}
