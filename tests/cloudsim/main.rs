//! `cloudsim`: simulated clouds as a program. Prints `NAME URL` for each and serves until it
//! is told to end.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use clap::Parser;
use skyward_cloudsim::core::cloud::Cloud;
use skyward_cloudsim::{Account, Builder, Clock};

/// Simulated clouds.
#[derive(Parser)]
struct Arguments {
    /// Where clouds listen that say nothing themselves; port 0 is a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A cloud to simulate, as NAME or NAME=ADDRESS:PORT. May be repeated.
    #[arg(long = "cloud", required = true)]
    clouds: Vec<String>,
    /// An account, as CLOUD:ACCOUNT:KEY or CLOUD:ACCOUNT:ID:SECRET. May be repeated.
    #[arg(long = "account")]
    accounts: Vec<String>,
    /// The clock stands still until `POST /_sim/clock`.
    #[arg(long)]
    manual_clock: bool,
    /// What ids and chances come from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .init();
    let arguments = Arguments::parse();
    let mut builder = if arguments.manual_clock {
        Builder::manual()
    } else {
        Builder::new().clock(Clock::real())
    };
    builder = builder.seed(arguments.seed);
    for given in &arguments.clouds {
        let (name, address) = match given.split_once('=') {
            Some((name, address)) => (name, address.parse().with_context(|| format!("--cloud {given}"))?),
            None => (given.as_str(), arguments.listen),
        };
        builder = builder.cloud_at(cloud(name)?, address);
    }
    let simulator = builder.start().await?;
    for account in &arguments.accounts {
        let parts: Vec<&str> = account.split(':').collect();
        let (cloud, account) = match parts.as_slice() {
            [cloud, id, key] => (*cloud, Account::with_key(id, key)),
            [cloud, id, key_id, secret] => (*cloud, Account::with_pair(id, key_id, secret)),
            _ => bail!("--account takes CLOUD:ACCOUNT:KEY or CLOUD:ACCOUNT:ID:SECRET, not {account:?}"),
        };
        let (sim, _) = simulator
            .clouds()
            .find(|(sim, _)| sim.name() == cloud)
            .with_context(|| format!("--account names the cloud {cloud:?}, which no --cloud starts"))?;
        sim.world(|world| world.add_account(account));
    }
    for (sim, url) in simulator.clouds() {
        #[expect(clippy::print_stdout, reason = "a program tells its addresses")]
        {
            println!("{} {url}", sim.name());
        }
    }
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = end.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    drop(simulator);
    Ok(())
}

fn cloud(name: &str) -> anyhow::Result<Box<dyn Cloud>> {
    match skyward_cloudsim::cloud(name) {
        Some(cloud) => Ok(cloud),
        None => bail!(
            "no cloud is called {name:?}; there are {}",
            skyward_cloudsim::CLOUDS.join(", ")
        ),
    }
}
