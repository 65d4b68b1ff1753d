//! `cloudsim`: simulated clouds as a program. Prints `NAME URL` for each and serves until it
//! is told to end.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Parser;
use skyward_cloudsim::backend::pods::{Pods, Settings, clear};
use skyward_cloudsim::core::cloud::Cloud;
use skyward_cloudsim::{Account, Builder, Clock};

/// Simulated clouds.
#[derive(Parser)]
struct Arguments {
    /// Address for clouds without one of their own; port 0 is any free port.
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
    /// Machines are Pods of this namespace of the current cluster, not states in memory.
    #[arg(long, value_name = "NAMESPACE", requires = "image")]
    pods: Option<String>,
    /// The image of these Pods, with sshd, Python and a shell.
    #[arg(long)]
    image: Option<String>,
    /// The host name or address at which Pods reach this program, for metadata services.
    #[arg(long)]
    advertise: Option<String>,
    /// An environment variable of each machine that is a Pod, as NAME=VALUE. May be repeated.
    #[arg(long = "machine-env")]
    machine_env: Vec<String>,
    /// The seed of ids and random choices.
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
    let pods = match (&arguments.pods, &arguments.image) {
        (Some(namespace), Some(image)) => Some((pods_client().await?, namespace.clone(), image.clone())),
        (Some(_), None) | (None, _) => None,
    };
    if let Some((client, namespace, image)) = pods.clone() {
        // What an earlier run left would be taken for machines of this one.
        clear(client.clone(), &namespace).await?;
        let advertise = arguments.advertise.clone();
        let env = machine_env(&arguments.machine_env)?;
        builder = builder.backend(move |site| {
            let settings = Settings {
                cloud: site.cloud,
                namespace: namespace.clone(),
                image: image.clone(),
                base: advertise
                    .as_ref()
                    .map(|host| format!("http://{host}:{}", site.address.port())),
                env: env.clone(),
            };
            Arc::new(Pods::new(client.clone(), settings, site.reports))
        });
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
    if let Some((client, namespace, _)) = pods {
        clear(client, &namespace).await?;
    }
    Ok(())
}

async fn pods_client() -> anyhow::Result<kube::Client> {
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        bail!("another TLS library is installed already");
    }
    kube::Client::try_default()
        .await
        .context("--pods needs a cluster: set KUBECONFIG")
}

fn machine_env(given: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let pairs = given.iter().map(|pair| {
        let (name, value) = pair
            .split_once('=')
            .with_context(|| format!("--machine-env {pair}: write NAME=VALUE"))?;
        Ok((name.to_owned(), value.to_owned()))
    });
    pairs.collect()
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
