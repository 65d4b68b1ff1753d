//! Writes of the controller while nothing happens, and its memory after much has happened.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use skyward_cloudsim::core::market::InstanceType;
use skyward_testkit::controller_memory;

use crate::{
    clouds::Customer,
    measure::{Bench, figure},
};

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

/// Providers, kinds of machines at each of their clouds, and Offers of each Provider: 10,000
/// in all.
const PROVIDERS: usize = 20;
const KINDS: usize = 125;
const OFFERS: u32 = 500;
const POOLS: usize = 1_000;
const TASKS: usize = 50_000;
/// Most requests in flight.
const CLIENTS: usize = 16;
/// A controller that has written nothing for so long has settled.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait for that.
const PATIENCE: Duration = Duration::from_secs(300);

/// Resident memory of the controller with 10,000 Offers, 1,000 Pools that are off, and 50,000
/// finished Tasks that it saw pass.
pub(crate) async fn with_everything(bench: &Bench) -> anyhow::Result<()> {
    let before = controller_memory(&bench.client).await?;
    let customers = catalogues(bench).await?;
    for_each(POOLS, |number| async move {
        let provider = provider_name(number % PROVIDERS);
        let gpu = json!({"name": "H100", "count": 1 + number % 8});
        let spec =
            json!({"provider": provider, "accelerator": gpu, "suspend": true, "nodes": {"desired": 1}});
        bench.create_pool_of(&pool_name(number), spec).await
    })
    .await?;
    settled(bench).await?;
    let without_tasks = controller_memory(&bench.client).await?;
    let tasks = &bench.tasks();
    for_each(TASKS, |number| async move {
        let name = format!("old-{number}");
        let task = Bench::task(&name, &pool_name(number % POOLS), json!({"command": ["true"]}))?;
        tasks.create(&PostParams::default(), &task).await?;
        let patch = json!({"status": {"phase": "Succeeded", "attempt": 1, "restarts": 0,
            "interruptions": 0, "mode": "command/One", "done": "1/1", "reason": "Succeeded"}});
        tasks
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    })
    .await?;
    settled(bench).await?;
    let after = controller_memory(&bench.client).await?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    figure(
        "controller_memory",
        mib(after.whole),
        "MiB",
        "-",
        &format!(
            "{:.1} MiB without Offers, Pools and Tasks, {:.1} MiB without the Tasks",
            mib(before.whole),
            mib(without_tasks.whole)
        ),
    );
    figure(
        "controller_memory_anonymous",
        mib(after.anonymous),
        "MiB",
        "64",
        &format!(
            "{:.1} MiB are pages of files, which other processes share",
            mib(after.file)
        ),
    );
    for customer in customers {
        // Their Pools go with the namespace, and need them no more: they have no machines.
        customer.close().await?;
    }
    Ok(())
}

fn provider_name(number: usize) -> String {
    format!("bench-catalogue-{number}")
}

fn pool_name(number: usize) -> String {
    format!("memory-{number}")
}

/// Accounts at a cloud that sells many kinds of machines.
async fn catalogues(bench: &Bench) -> anyhow::Result<Vec<Customer<'_>>> {
    let clouds = bench.clouds.as_ref().context("no clouds were started")?;
    clouds.sim("verda").world(|world| {
        let like = world
            .types
            .values()
            .find(|kind| kind.gpus > 0)
            .cloned()
            .unwrap_or_default();
        for number in world.types.len()..KINDS {
            world.add_type(InstanceType {
                name: format!("{}-{number}", like.name),
                ..like.clone()
            });
        }
    });
    let mut customers = Vec::new();
    for number in 0..PROVIDERS {
        customers.push(Customer::open(bench, "verda", &provider_name(number)).await?);
    }
    for customer in &customers {
        customer.offers(OFFERS).await?;
    }
    Ok(customers)
}

/// Calls `one` for each number below `count`, with a bounded number of calls in flight.
async fn for_each<F>(count: usize, one: impl Fn(usize) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let all = stream::iter(0..count).map(one).buffer_unordered(CLIENTS);
    all.try_for_each(|()| async { Ok(()) }).await
}

/// Waits until our objects have not been written for a while.
async fn settled(bench: &Bench) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let before = bench.writes().await?;
        tokio::time::sleep(QUIET).await;
        if bench.writes().await? == before {
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the controller does not come to rest");
    }
}
