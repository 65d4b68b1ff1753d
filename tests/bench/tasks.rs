//! How long one Task takes, and how many a Pool completes in a second.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use skyward_api::{Task, TaskPhase, TaskStatus};

use crate::{
    cpu::{Snapshot, Spent},
    measure::{Bench, figure, median, ms, percentile},
};

pub(crate) const POOL: &str = "warm";

pub(crate) async fn warm_pool(bench: &Bench) -> anyhow::Result<()> {
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

/// Create of an object no controller acts on: `create` returned → a watch shows it. The event may
/// even come before the answer; that counts as zero.
async fn raw_latency(bench: &Bench, i: usize) -> anyhow::Result<Duration> {
    use k8s_openapi::api::core::v1::ConfigMap;
    let maps: Api<ConfigMap> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let name = format!("raw-{i}");
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(60);
    let mut events = maps.watch(&params, "").await?.boxed();
    let seen = tokio::spawn(async move {
        while let Some(event) = events.try_next().await? {
            if matches!(event, WatchEvent::Added(_)) {
                break;
            }
        }
        anyhow::Ok(Instant::now())
    });
    let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    maps.create(&PostParams::default(), &map).await?;
    let created = Instant::now();
    Ok(seen.await??.saturating_duration_since(created))
}

/// One Task on all of four machines.
pub(crate) async fn broadcast(bench: &Bench) -> anyhow::Result<()> {
    warm_pool(bench).await?;
    let mut samples = Vec::new();
    for i in 0..30 {
        let task = Bench::task(
            &format!("broadcast-{i}"),
            POOL,
            json!({"command": ["true"], "placement": "All"}),
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

/// Tasks of one round, and rounds. The bare writes take turns with the real Tasks, so that
/// both meet the same machine.
const ROUND: u32 = 400;
const ROUNDS: u32 = 3;
/// Most requests of the load generator in flight.
const CLIENTS: usize = 16;

/// Tasks per second to Complete, beside the rate of the bare writes of the same objects.
pub(crate) async fn throughput(bench: &Bench) -> anyhow::Result<()> {
    warm_pool(bench).await?;
    let shapes = Shapes::of_a_real_task(bench).await?;
    let (mut real, mut bare) = (Vec::new(), Vec::new());
    let (mut real_cpu, mut bare_cpu) = (Spent::default(), Spent::default());
    let mut writes = 0;
    for round in 0..ROUNDS {
        let before = status_writes(bench).await?;
        real.push(one_round(bench, &format!("many-{round}-"), None, &mut real_cpu).await?);
        writes += status_writes(bench).await? - before;
        bare.push(one_round(bench, &format!("bare-{round}-"), Some(&shapes), &mut bare_cpu).await?);
    }
    let bare = median(&mut bare);
    figure(
        "tasks_per_second",
        median(&mut real),
        "1/s",
        &format!("{:.1}", bare * 0.6),
        &format!("bare writes of the same objects {bare:.1}/s"),
    );
    let all = ROUND * ROUNDS;
    figure(
        "status_writes_per_task",
        writes as f64 / f64::from(all),
        "writes",
        "2",
        "-",
    );
    for ((kind, words, ms), (_, _, bare)) in real_cpu.per(all).zip(bare_cpu.per(all)) {
        figure(
            &format!("cpu_per_task_{kind}"),
            ms,
            "ms",
            "-",
            &format!("{words}; with bare writes {bare:.1} ms"),
        );
    }
    Ok(())
}

/// Creates Tasks and waits until a watch shows all of them as succeeded; their rate. With shapes no
/// controller acts on them: the code that creates one also writes its two statuses.
async fn one_round(
    bench: &Bench,
    prefix: &str,
    shapes: Option<&Shapes>,
    cpu: &mut Spent,
) -> anyhow::Result<f64> {
    let succeeded = bench.when_succeeded(prefix.to_owned(), ROUND).await?;
    let before = Snapshot::take();
    let start = Instant::now();
    stream::iter(0..ROUND)
        .map(|i| {
            let tasks = bench.tasks();
            async move {
                let pool = if shapes.is_some() { "no-such-pool" } else { POOL };
                let task = Bench::task(&format!("{prefix}{i}"), pool, json!({"command": ["true"]}))?;
                let created = tasks.create(&PostParams::default(), &task).await?;
                match shapes {
                    Some(shapes) => shapes.write(&tasks, created).await,
                    None => Ok(()),
                }
            }
        })
        .buffer_unordered(CLIENTS)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    let took = succeeded.await??.saturating_duration_since(start);
    cpu.add(&before, &Snapshot::take());
    let all = ListParams::default();
    bench
        .tasks()
        .delete_collection(&DeleteParams::default(), &all)
        .await?;
    Ok(f64::from(ROUND) / took.as_secs_f64())
}

async fn status_writes(bench: &Bench) -> anyhow::Result<u64> {
    let counts = bench.writes().await?;
    let of_tasks = counts.iter().filter(|(key, _)| key.ends_with("tasks/status"));
    Ok(of_tasks.map(|(_, count)| count).sum())
}

/// The two statuses that the controller writes, as it wrote them for a real Task.
struct Shapes {
    placed: TaskStatus,
    ended: TaskStatus,
}

impl Shapes {
    async fn of_a_real_task(bench: &Bench) -> anyhow::Result<Self> {
        let task = Bench::task("shapes", POOL, json!({"command": ["true"]}))?;
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

    /// Writes both, as the controller does: whole, and only onto the version that was seen.
    async fn write(&self, tasks: &Api<Task>, mut task: Task) -> anyhow::Result<()> {
        let name = task.name_any();
        for status in [&self.placed, &self.ended] {
            let patch = serde_json::from_value(json!([
                {"op": "replace", "path": "/metadata/uid", "value": task.metadata.uid},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": task.metadata.resource_version},
                {"op": "add", "path": "/status", "value": status},
            ]))?;
            task = tasks
                .patch_status(&name, &PatchParams::default(), &Patch::Json::<()>(patch))
                .await?;
        }
        Ok(())
    }
}
