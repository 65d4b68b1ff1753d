//! Benchmarks on a real cluster with the operator installed: `make bench`.
//!
//! Each line is `name value unit bar raw-limit`: the bar is what we hold ourselves to
//! (docs/benchmarks.md), the raw limit what the same API server, disk or processor gives
//! without Skyward in the same run.
//! Nothing here fails because a figure is bad; a benchmark prints, it does not gate.

#![expect(clippy::print_stdout, reason = "figures are the product of this program")]

mod agent;
mod attack;
mod bare;
mod clouds;
mod cold_start;
mod cpu;
mod items;
mod maps;
mod matching;
mod measure;
mod memory;
mod packages;
mod results;
mod sessions;
mod ssh_server;
mod tasks;
mod warm;

use anyhow::Context as _;
use measure::Bench;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    println!("# name value unit bar raw-limit");
    if ["agent", "gpu", "items", "sessions"].into_iter().any(wanted) {
        // What `hack/build.sh` built, and what is uploaded to machines.
        let agent =
            std::env::var_os("SKYWARD_AGENT").context("SKYWARD_AGENT names no agent: run `make bench`")?;
        let agent = std::path::PathBuf::from(agent);
        if wanted("agent") {
            agent::run(&agent).await.context("a run on its machine")?;
            warm::run(&agent).await.context("functions that are forked")?;
        }
        if wanted("gpu") {
            warm::gpu(&agent).await.context("functions that use a GPU")?;
        }
        if wanted("items") {
            items::run(&agent).await.context("a machine far away")?;
        }
        if wanted("sessions") {
            sessions::run(&agent).await.context("sessions")?;
        }
    }
    if wanted("matching") {
        matching::run().context("matching")?;
    }
    if wanted("market") {
        matching::market().context("the market of fifteen accounts")?;
    }
    if CLUSTER.iter().any(|name| wanted(name)) {
        on_a_cluster(wanted).await?;
    }
    Ok(())
}

/// Benchmarks that need a cluster.
const CLUSTER: [&str; 9] = [
    "cold", "packages", "tasks", "maps", "attack", "results", "rest", "clouds", "memory",
];

async fn on_a_cluster(wanted: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let clouds = if wanted("clouds") || wanted("memory") {
        clouds::CLOUDS
    } else {
        &[]
    };
    let bench = Bench::start(clouds)
        .await
        .context("the benchmarks need the cluster of `make bench`")?;
    let run = async {
        if wanted("cold") {
            cold_start::run(&bench).await.context("cold start")?;
        }
        if wanted("packages") {
            packages::run(&bench).await.context("a package more")?;
        }
        if wanted("tasks") {
            tasks::latency(&bench).await.context("latency of a Task")?;
            tasks::throughput(&bench).await.context("Tasks per second")?;
        }
        if wanted("maps") {
            maps::run(&bench).await.context("maps")?;
        }
        if wanted("attack") {
            attack::run(&bench).await.context("an attack")?;
        }
        if wanted("results") {
            results::run(&bench).await.context("results")?;
        }
        if wanted("rest") {
            memory::at_rest(&bench).await.context("writes at rest")?;
        }
        if wanted("clouds") {
            clouds::run(&bench).await.context("simulated clouds")?;
        }
        // Last, so that the controller has done all that work before its memory is measured.
        if wanted("memory") {
            memory::with_everything(&bench)
                .await
                .context("memory of the controller")?;
        }
        anyhow::Ok(())
    }
    .await;
    bench.finish().await?;
    run
}
