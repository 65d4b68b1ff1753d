//! How long one Task takes, and how many a Pool completes in a second.

use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::{
    bare::{self, Shapes},
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

/// Longest time of a no-op Task, as a multiple of the bare chain's median: the median, and the 99th
/// of a hundred.
const LATENCY: (f64, f64) = (1.5, 4.0);
/// Longest time of a broadcast, as a multiple of a no-op Task's.
const BROADCAST: f64 = 1.7;
/// Most processor time of ours for a Task, in milliseconds.
const OWN_CPU: f64 = 5.0;
/// Whose processor time that is, by [`Spent`]'s kinds.
pub(crate) const OWN: [&str; 4] = ["controller", "agent", "runs", "sshd"];

/// A no-op command on a warm Pool, and then one on all of its machines: `create` returned → watch
/// shows Complete. The bare chain takes turns with it.
pub(crate) async fn latency(bench: &Bench) -> anyhow::Result<()> {
    warm_pool(bench).await?;
    let shapes = Shapes::of_a_real_task(bench, "shapes-latency").await?;
    let (mut samples, mut raw, mut broadcast) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..100 {
        let task = Bench::task(&format!("latency-{i}"), POOL, json!({"command": ["true"]}))?;
        samples.push(bench.run_task(&task).await?.0);
        raw.push(bare::chain(bench, &shapes, &format!("chain-{i}")).await?);
    }
    for i in 0..30 {
        let work = json!({"command": ["true"], "placement": "All"});
        let task = Bench::task(&format!("broadcast-{i}"), POOL, work)?;
        broadcast.push(bench.run_task(&task).await?.0);
    }
    let half = ms(percentile(&mut raw, 0.5));
    let most = ms(percentile(&mut raw, 0.99));
    let middle = ms(percentile(&mut samples, 0.5));
    let slowest = ms(percentile(&mut samples, 0.99));
    let chain = format!("bare chain p50 {half:.1} ms, p99 {most:.1} ms");
    let bar = |times: f64, of: f64| format!("{:.1}", times * of);
    figure(
        "task_noop_latency_p50",
        middle,
        "ms",
        &bar(LATENCY.0, half),
        &chain,
    );
    figure(
        "task_noop_latency_p99",
        slowest,
        "ms",
        &bar(LATENCY.1, half),
        &chain,
    );
    let all = ms(percentile(&mut broadcast, 0.5));
    let one = format!("no-op Task p50 {middle:.1} ms");
    figure("broadcast_4_p50", all, "ms", &bar(BROADCAST, middle), &one);
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
    let shapes = Shapes::of_a_real_task(bench, "shapes-rate").await?;
    let (mut real, mut bare) = (Vec::new(), Vec::new());
    let (mut real_cpu, mut bare_cpu) = (Spent::default(), Spent::default());
    let mut writes = 0;
    for round in 0..ROUNDS {
        let before = status_writes(bench).await?;
        real.push(one_round(bench, &format!("many-{round}-"), None, &mut real_cpu).await?);
        writes += status_writes(bench).await? - before;
        bare.push(one_round(bench, &format!("bare-{round}-"), Some(&shapes), &mut bare_cpu).await?);
    }
    let (real, bare) = (median(&mut real), median(&mut bare));
    let ratio = format!(
        "bare writes of the same objects {bare:.1}/s, of which this is {:.2}",
        real / bare
    );
    figure("tasks_per_second", real, "1/s", "-", &ratio);
    let all = ROUND * ROUNDS;
    figure(
        "status_writes_per_task",
        writes as f64 / f64::from(all),
        "writes",
        "2",
        "-",
    );
    let own: f64 = OWN.iter().map(|kind| real_cpu.of(kind)).sum();
    figure(
        "cpu_per_task",
        own / f64::from(all),
        "ms",
        &format!("{OWN_CPU:.1}"),
        "controller, agents, runs and SSH servers together",
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
                let name = format!("{prefix}{i}");
                let task = match shapes {
                    Some(_) => bare::task(&name)?,
                    None => Bench::task(&name, POOL, json!({"command": ["true"]}))?,
                };
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
