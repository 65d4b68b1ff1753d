//! Latency of Tasks while machines of another namespace send false reports, and the memory of the
//! controller meanwhile.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::{Api, api::PostParams};
use serde_json::json;
use skyward_api::{Pool, Task};
use skyward_testkit::{PROVIDER, controller_memory, impostor};

use crate::{
    measure::{Bench, figure, ms, percentile},
    tasks,
};

/// Machines that send false reports.
const LIARS: u32 = 10;
/// Tasks before the attack, and during it.
const SAMPLES: usize = 300;
/// Highest allowed ratio of the 99th percentile of latency during the attack to the one before.
const BAR: f64 = 1.5;

async fn sample(bench: &Bench, name: &str) -> anyhow::Result<Duration> {
    let mut samples = Vec::with_capacity(SAMPLES);
    for i in 0..SAMPLES {
        let task = Bench::task(&format!("{name}-{i}"), tasks::POOL, json!({"command": ["true"]}))?;
        samples.push(bench.run_task(&task).await?.0);
    }
    Ok(percentile(&mut samples, 0.99))
}

/// A Pool whose machines are all taken over by impostors.
async fn begin(bench: &Bench, namespace: &str) -> anyhow::Result<()> {
    let pool: Pool = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": {"name": "liars"},
        "spec": {"provider": PROVIDER, "nodes": {"desired": LIARS}, "worker": {"user": "root"}},
    }))?;
    let pools: Api<Pool> = Api::namespaced(bench.client.clone(), namespace);
    pools.create(&PostParams::default(), &pool).await?;
    let script = json!({"interpreter": "python", "source": impostor::drips()});
    let task = Bench::task("liar", "liars", json!({"script": script, "placement": "All"}))?;
    let tasks: Api<Task> = Api::namespaced(bench.client.clone(), namespace);
    tasks.create(&PostParams::default(), &task).await?;
    let deadline = Instant::now() + Duration::from_mins(3);
    while Instant::now() < deadline {
        let status = tasks.get("liar").await?.status.unwrap_or_default();
        if status.phase == Some(skyward_api::TaskPhase::Running) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    anyhow::bail!("the machines that shall lie are not there within 3 minutes")
}

/// No-op Tasks of an honest namespace without the attack, and during it.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    tasks::warm_pool(bench).await?;
    let quiet = sample(bench, "quiet").await?;
    let before = controller_memory(&bench.client).await?.anonymous;
    let namespace = bench.tenant("liars").await?;
    let figures = async {
        begin(bench, &namespace).await.context("the attack")?;
        let attacked = sample(bench, "attacked").await?;
        let during = controller_memory(&bench.client).await?.anonymous;
        anyhow::Ok((attacked, during))
    };
    let figures = figures.await;
    bench.drop_tenant(&namespace).await?;
    let (attacked, during) = figures?;
    figure(
        "task_noop_latency_p99_under_attack",
        ms(attacked),
        "ms",
        &format!("{:.1}", BAR * ms(quiet)),
        &format!("without the attack {:.1} ms", ms(quiet)),
    );
    figure(
        "memory_of_an_attack",
        during.saturating_sub(before) as f64 / f64::from(1 << 20),
        "MiB",
        "32",
        &format!("{LIARS} machines of one namespace"),
    );
    Ok(())
}
