//! The operator's binary: reads flags, installs the TLS provider, wires the registry of
//! clouds to the controllers and runs. Everything else is in the crates under `src/`.
//!
//! `skyward controller` (default) is the controller, `skyward apiserver` the aggregated API
//! for logs and results, `skyward crds` prints or applies the custom resources, `skyward check-provider` looks at an
//! account.

mod check_provider;
mod crds;

use std::{
    io::IsTerminal as _, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, client::ClientBuilder};
use skyward_api::Duration as Lasting;
use skyward_controller::{
    config::{Config, PodNetwork},
    deadline::Deadline,
    leadership::fence::{Fence, Fencing},
    metrics::Metrics,
    runtime::{self, Parts},
};
use skyward_core::Endpoints;
use skyward_providers::{CallSink, container};
use skyward_remote::{AgentBinaries, Sessions};
use skyward_store::{Access, Bucket, Exclusion, Quota, Store};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{EnvFilter, filter::filter_fn, fmt, prelude::*};

/// Turns machines of many clouds, and Pods, into Pools that run Tasks.
#[derive(Parser)]
#[command(name = "skyward", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    controller: Controller,
    /// How log lines look. What is logged: RUST_LOG, by default `info`.
    #[arg(long, global = true, env = "SKYWARD_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the controller (the default).
    Controller(Box<Controller>),
    /// Runs the aggregated API subresources.skyward.dev: logs and results.
    Apiserver(Apiserver),
    /// Prints or applies the custom resource definitions.
    Crds {
        #[command(subcommand)]
        command: crds::Command,
    },
    /// Looks at the account of a Provider and reports what is there, what its credentials lack, and answers that are not
    /// as expected. Changes nothing.
    CheckProvider(check_provider::Flags),
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Pretty,
}

#[derive(Clone, Copy, ValueEnum)]
enum Network {
    /// `direct` inside the cluster, else `port-forward`.
    Auto,
    /// By the Pods' addresses.
    Direct,
    /// Through the API server.
    PortForward,
}

#[derive(Args, Clone)]
struct Controller {
    /// The operator's own namespace: keys, certificates and the Lease live there.
    #[arg(long, env = "SKYWARD_NAMESPACE")]
    namespace: Option<String>,
    /// The Pod's namespace, where --namespace is not given.
    #[arg(long, env = "POD_NAMESPACE", hide = true)]
    pod_namespace: Option<String>,
    /// Identity of this process in the leader election.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Address under which the aggregated API reaches this process.
    #[arg(long, env = "POD_IP")]
    pod_ip: Option<String>,
    /// Directory of the result store.
    #[arg(long, env = "SKYWARD_STORE_DIR", default_value = "/var/lib/skyward/store")]
    store_dir: PathBuf,
    /// Bucket of the result store, in the place of a directory: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or
    /// `az://ACCOUNT/CONTAINER/PREFIX`. Below it each installation has a folder of its own.
    #[arg(long, env = "SKYWARD_STORE_BUCKET")]
    store_bucket: Option<Bucket>,
    /// Region of a bucket of S3.
    #[arg(long, env = "SKYWARD_STORE_REGION", requires = "store_bucket")]
    store_region: Option<String>,
    /// Where the bucket's server is, if not at the cloud's own address, such as `https://minio.example`.
    #[arg(long, env = "SKYWARD_STORE_ENDPOINT", requires = "store_bucket", value_parser = address)]
    store_endpoint: Option<String>,
    /// Directory with a file for each key of the bucket, as a mounted Secret has them; without it the bucket is
    /// opened with the identity of the Pod.
    #[arg(long, env = "SKYWARD_STORE_CREDENTIALS_DIR", requires = "store_bucket")]
    store_credentials_dir: Option<PathBuf>,
    /// Most that is stored in the bucket, such as `10Gi`: a bucket has no size of its own.
    #[arg(long, env = "SKYWARD_STORE_SIZE", default_value = "10Gi", value_parser = store_size)]
    store_size: u64,
    /// Most that one namespace may hold of the result store: an amount such as `2Gi`, or a part of its
    /// volume.
    #[arg(long, env = "SKYWARD_STORE_QUOTA_PER_NAMESPACE", default_value = "20%")]
    store_quota_per_namespace: Quota,
    /// How long the log and value of a run wait on its machine for room in the result store before they
    /// are given up.
    #[arg(long, env = "SKYWARD_STORE_HOLD_FOR", default_value = "1h")]
    store_hold_for: Lasting,
    /// Directory with an agent for each architecture: `<dir>/<arch>/skyward-agent`.
    #[arg(
        long,
        env = "SKYWARD_AGENTS_DIR",
        default_value = "/usr/local/share/skyward/agent"
    )]
    agents_dir: PathBuf,
    /// Id of this installation, which machines are marked with; by default the UID of the
    /// namespace kube-system. A copy of a cluster needs another one: docs/disaster-recovery.md.
    #[arg(long, env = "SKYWARD_INSTALLATION_ID", value_parser = skyward_controller::config::installation_id)]
    installation_id: Option<String>,
    /// Image of Container machines where the Provider names none.
    #[arg(long, env = "SKYWARD_NODE_IMAGE", default_value = "skyward-node:latest")]
    node_image: String,
    /// Where the API of a cloud is, if not at the cloud's own address, as `NAME=URL`
    /// (names: docs/providers); for tests and proxies. May be given more than once.
    #[arg(long = "endpoint", env = "SKYWARD_ENDPOINTS", value_delimiter = ',', value_parser = endpoint)]
    endpoints: Vec<(String, String)>,
    /// How Pods are reached.
    #[arg(long, env = "SKYWARD_POD_NETWORK", value_enum, default_value_t = Network::Auto)]
    pod_network: Network,
    /// How long the Lease lasts without renewal, at least 3s.
    #[arg(long, env = "SKYWARD_LEASE_DURATION", default_value = "15s")]
    lease_duration: Lasting,
    /// UID of this process' Pod.
    #[arg(long, env = "POD_UID", hide = true)]
    pod_uid: Option<String>,
    /// Namespaces whose Pools and Tasks are served; without it all of them. May be given more
    /// than once, or with commas.
    #[arg(long = "namespaces", env = "SKYWARD_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Where probes are answered: by default at every address, of IPv4 and IPv6.
    #[arg(long, env = "SKYWARD_HEALTH_ADDRESS", default_value = "[::]:8080")]
    health_address: SocketAddr,
    /// Where metrics are served over TLS, to tokens of accounts that may `get /metrics`.
    #[arg(long, env = "SKYWARD_METRICS_ADDRESS", default_value = "[::]:8444")]
    metrics_address: SocketAddr,
    /// Where the last plans of all Pools and Machines are shown: a loopback address, for
    /// `kubectl port-forward`.
    #[arg(long, env = "SKYWARD_DEBUG_ADDRESS", default_value = "127.0.0.1:8090", value_parser = loopback)]
    debug_address: SocketAddr,
    /// Where the aggregated API asks for logs and results (mutual TLS).
    #[arg(long, env = "SKYWARD_DATA_ADDRESS", default_value = "[::]:8443")]
    data_address: SocketAddr,
    /// Orders and returns in flight at one account; four times as many Pools are reconciled at once.
    #[arg(long, env = "SKYWARD_CONCURRENCY", default_value_t = 32)]
    concurrency: u16,
}

#[derive(Args, Clone)]
struct Apiserver {
    /// The operator's own namespace: certificates and the controller's Lease live there.
    #[arg(long, env = "SKYWARD_NAMESPACE")]
    namespace: Option<String>,
    /// The Pod's namespace, where --namespace is not given.
    #[arg(long, env = "POD_NAMESPACE", hide = true)]
    pod_namespace: Option<String>,
    /// Where it listens.
    #[arg(long, env = "SKYWARD_APISERVER_ADDRESS", default_value = "[::]:6443")]
    address: SocketAddr,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    init_logs(cli.log_format);
    // Exactly one TLS provider in the process, installed before anything opens a connection.
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        tracing::error!("another TLS provider is installed already");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the process cannot start its threads");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let shutdown = shutdown_on_signals()?;
        match cli.command {
            None => controller(cli.controller, shutdown).await,
            Some(Command::Controller(flags)) => controller(*flags, shutdown).await,
            Some(Command::Apiserver(flags)) => apiserver(flags, shutdown).await,
            Some(Command::Crds { command }) => crds::run(command).await,
            Some(Command::CheckProvider(flags)) => check_provider::run(flags).await,
        }
    });
    // Threads that still block must not hold up the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn init_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,kube_client=warn,kube_runtime=warn,russh=warn,tower=warn"));
    let registry = tracing_subscriber::registry().with(filter);
    let layer = fmt::layer().with_writer(std::io::stderr);
    let may_be_seen = filter_fn(skyward_providers::is_logged);
    match format {
        LogFormat::Json => registry
            .with(layer.json().flatten_event(true).with_filter(may_be_seen))
            .init(),
        LogFormat::Pretty => registry
            .with(
                layer
                    .with_ansi(std::io::stderr().is_terminal())
                    .with_filter(may_be_seen),
            )
            .init(),
    }
}

/// Cancelled at SIGTERM and SIGINT; a second signal ends the process at once.
fn shutdown_on_signals() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        };
        next().await;
        tracing::info!("asked to end; finishing");
        token.cancel();
        next().await;
        tracing::warn!("asked to end again; ending at once");
        std::process::exit(130);
    });
    Ok(shutdown)
}

async fn controller(flags: Controller, shutdown: CancellationToken) -> Result<()> {
    let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let config = config(&flags, in_cluster)?;
    let agents = AgentBinaries::from_directory(&config.agents)
        .context("the agent's executables cannot be read; name their directory with --agents-dir")?;
    let directory = match &flags.store_bucket {
        Some(_) => None,
        None => Some(Store::local(&config.store).with_context(|| {
            format!(
                "the result store \"{}\" cannot be opened; name a directory that can be written with --store-dir",
                config.store.display()
            )
        })?),
    };
    let cluster_config = cluster_config().await?;
    let lease_client = Client::try_from(cluster_config.clone()).context(UNUSABLE)?;
    let fence = Fence::default();
    let client = ClientBuilder::try_from(cluster_config)
        .context(UNUSABLE)?
        .with_layer(&Deadline)
        .with_layer(&Fencing(fence.clone()))
        .build();
    let unnamed_cluster = tokio::select! {
        found = cluster_uid(&client) => found?,
        () = shutdown.cancelled() => return Ok(()),
    };
    let cluster = flags
        .installation_id
        .clone()
        .unwrap_or_else(|| unnamed_cluster.clone());
    let store = match (directory, &flags.store_bucket) {
        (None, Some(bucket)) => {
            let access = Access {
                region: flags.store_region.clone(),
                endpoint: flags.store_endpoint.clone(),
                credentials: flags.store_credentials_dir.clone(),
            };
            Store::bucket(bucket, &access, &cluster, flags.store_size)?
        }
        (Some(directory), _) => directory,
        (None, None) => bail!("the result store has no place; name a directory with --store-dir"),
    };
    let store = Arc::new(store.with_quota(config.store_quota));
    let metrics = Arc::new(Metrics::default());
    let options = skyward_providers::Options {
        containers: container::Options {
            cluster: cluster.clone(),
            node_image: config.node_image.clone(),
            pod_network: match config.pod_network {
                PodNetwork::Direct => container::PodNetwork::Direct,
                PodNetwork::PortForward => container::PodNetwork::PortForward,
            },
            namespaces: config.namespaces.iter().cloned().collect(),
        },
        endpoints: Endpoints::new(flags.endpoints.clone()),
        sink: Some(Arc::new(Sink(metrics.clone()))),
        fence: fence.clone(),
    };
    let factory = Arc::new(skyward_providers::factory(client.clone(), options));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        namespace = config.namespace,
        identity = config.identity,
        pod_network = ?config.pod_network,
        "the controller starts"
    );
    let looking = tokio::spawn(look_at_creates(store.clone()));
    let ran = runtime::run(Parts {
        client,
        lease_client,
        fence,
        config: Arc::new(config),
        cluster,
        unnamed_cluster,
        factory,
        capabilities: skyward_providers::capabilities,
        credential_keys: skyward_providers::credential_keys,
        store,
        agents,
        connect: Box::new(|agents, pods, changed| Sessions::new(agents, pods, changed)),
        metrics,
        shutdown,
    })
    .await;
    looking.abort();
    ran?;
    tracing::info!("the controller ended");
    Ok(())
}

/// Says what the place of the result store promises, as soon as it is known.
async fn look_at_creates(store: Arc<Store>) {
    loop {
        match store.exclusion().await {
            Ok(Exclusion::One) => return,
            Ok(Exclusion::Several) => {
                tracing::warn!(
                    "of several writes that create the same object in the result store's bucket not exactly one succeeds: never let two operators use this installation's id at once; only the Lease keeps them apart here"
                );
                return;
            }
            Ok(Exclusion::Unsupported) => {
                tracing::warn!(
                    "the place of the result store knows no writes that create an object only where there is none: never let two operators use it at once; only the Lease keeps them apart here"
                );
                return;
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the bucket of the result store cannot be used; logs and results wait on their machines, and the operator tries it again"
                );
            }
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
}

async fn apiserver(flags: Apiserver, shutdown: CancellationToken) -> Result<()> {
    let namespace = namespace(flags.namespace, flags.pod_namespace)?;
    let client = connect().await?;
    skyward_subresources::run(
        client,
        skyward_subresources::Config {
            namespace,
            address: flags.address,
        },
        shutdown,
    )
    .await
}

fn namespace(given: Option<String>, pod: Option<String>) -> Result<String> {
    given.or(pod).filter(|name| !name.is_empty()).ok_or_else(|| {
        anyhow!("the operator's own namespace is not known; name it with --namespace or SKYWARD_NAMESPACE")
    })
}

fn config(flags: &Controller, in_cluster: bool) -> Result<Config> {
    let lease_duration = flags.lease_duration.parse().unwrap_or(Duration::from_secs(15));
    if lease_duration < Duration::from_secs(3) {
        bail!(
            "--lease-duration is {}; it must be at least 3s",
            flags.lease_duration
        );
    }
    let identity = flags
        .identity
        .clone()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("{}-{}", host.trim(), std::process::id())
        });
    Ok(Config {
        namespace: namespace(flags.namespace.clone(), flags.pod_namespace.clone())?,
        identity,
        advertise: flags.pod_ip.as_deref().and_then(|ip| ip.parse().ok()).map(|ip| {
            let address = SocketAddr::new(ip, flags.data_address.port());
            address.to_string()
        }),
        pod_uid: flags.pod_uid.clone().filter(|uid| !uid.is_empty()),
        health_address: flags.health_address,
        metrics_address: flags.metrics_address,
        debug_address: flags.debug_address,
        namespaces: flags
            .namespaces
            .iter()
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect(),
        data_address: flags.data_address,
        store: flags.store_dir.clone(),
        store_quota: flags.store_quota_per_namespace,
        hold_for: flags.store_hold_for.parse().unwrap_or(Duration::from_hours(1)),
        agents: flags.agents_dir.clone(),
        node_image: flags.node_image.clone(),
        pod_network: match flags.pod_network {
            Network::Direct => PodNetwork::Direct,
            Network::Auto if in_cluster => PodNetwork::Direct,
            Network::Auto | Network::PortForward => PodNetwork::PortForward,
        },
        lease_duration,
        concurrency: flags.concurrency.max(1),
    })
}

/// An address that only this machine (in a cluster: this Pod) reaches.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "write an address and a port, such as 127.0.0.1:8090".to_owned())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("plans tell of every namespace: write a loopback address, such as 127.0.0.1:8090".to_owned())
    }
}

/// An address of a server.
fn address(text: &str) -> Result<String, String> {
    if text.starts_with("https://") || text.starts_with("http://") {
        Ok(text.to_owned())
    } else {
        Err("write it as a URL, such as https://minio.example".to_owned())
    }
}

/// An amount that holds at least something.
fn store_size(text: &str) -> Result<u64, String> {
    skyward_store::parse_amount(text)
        .filter(|bytes| *bytes >= 1 << 30)
        .ok_or_else(|| "write an amount of at least 1Gi, such as 10Gi".to_owned())
}

/// One `NAME=URL`.
fn endpoint(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, url))
            if !name.is_empty() && (url.starts_with("https://") || url.starts_with("http://")) =>
        {
            Ok((name.to_owned(), url.to_owned()))
        }
        _ => Err("write it as NAME=URL, such as verda=https://proxy.example".to_owned()),
    }
}

const UNUSABLE: &str = "the cluster's configuration cannot be used";

/// A client of the cluster.
pub(crate) async fn connect() -> Result<Client> {
    Client::try_from(cluster_config().await?).context(UNUSABLE)
}

/// How to reach the cluster: that of the Pod's service account, or of KUBECONFIG.
async fn cluster_config() -> Result<kube::Config> {
    let mut config = kube::Config::infer()
        .await
        .context("no cluster is configured: run inside one, or name a kubeconfig with KUBECONFIG")?;
    config.read_timeout = None;
    config.connect_timeout = Some(Duration::from_secs(10));
    Ok(config)
}

/// The installation's id where none is set: UID of the kube-system namespace. Waits for the API server.
async fn cluster_uid(client: &Client) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut tries = 0_u32;
    loop {
        match tokio::time::timeout(Duration::from_secs(10), namespaces.get("kube-system")).await {
            Ok(Ok(namespace)) => {
                return namespace
                    .metadata
                    .uid
                    .ok_or_else(|| anyhow!("the namespace kube-system has no UID"));
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 401 || status.code == 403 => {
                bail!(
                    "the API server refuses to show the namespace kube-system: {}; apply the operator's ClusterRole and binding",
                    status.message
                );
            }
            Ok(Err(error)) if tries >= 30 => {
                return Err(error).context("the API server does not answer; check that the cluster runs");
            }
            Ok(Err(error)) if tries == 0 => {
                tracing::warn!(%error, "the API server does not answer; trying again for a minute");
            }
            Err(_) if tries >= 6 => bail!("the API server does not answer; check that the cluster runs"),
            Ok(Err(_)) | Err(_) => {}
        }
        tries += 1;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Tells the metrics of each call to a provider.
struct Sink(Arc<Metrics>);

impl CallSink for Sink {
    fn record(&self, provider: &str, operation: &'static str, outcome: &str, seconds: f64) {
        self.0.provider_call(
            provider,
            operation,
            outcome,
            Duration::from_secs_f64(seconds.max(0.0)),
        );
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_subcommand_it_is_the_controller() {
        let cli = Cli::parse_from(["skyward", "--namespace", "skyward-system", "--pod-ip", "10.0.0.7"]);
        assert!(cli.command.is_none());
        let config = config(&cli.controller, true).unwrap();
        assert_eq!(config.advertise.as_deref(), Some("10.0.0.7:8443"));
        assert_eq!(config.pod_network, PodNetwork::Direct);
    }

    #[test]
    fn plans_are_shown_to_this_machine_only() {
        assert!(loopback("[::1]:8090").is_ok() && loopback("127.0.0.1:0").is_ok());
        for address in ["0.0.0.0:8090", "[::]:8090", "10.0.0.7:8090"] {
            assert!(loopback(address).unwrap_err().contains("loopback"), "{address}");
        }
    }

    #[test]
    fn namespaces_that_are_served_are_named_or_all_are() {
        let config = |flags: &[&str]| {
            let cli = Cli::parse_from([&["skyward", "--namespace", "n"], flags].concat());
            config(&cli.controller, true).unwrap()
        };
        assert!(config(&[]).serves("any"));
        let some = config(&["--namespaces", "a, b", "--namespaces=c"]);
        assert!(["a", "b", "c"].iter().all(|name| some.serves(name)));
        assert!(!some.serves("any"));
    }

    #[test]
    fn a_bucket_is_named_by_its_address_and_its_settings_mean_nothing_without_one() {
        let parse = |flags: &[&str]| Cli::try_parse_from([&["skyward", "--namespace", "n"], flags].concat());
        let cli = parse(&["--store-bucket", "s3://logs/here", "--store-size=2Ti"]).unwrap();
        let bucket = cli.controller.store_bucket.unwrap();
        assert_eq!(
            (bucket.to_string().as_str(), cli.controller.store_size),
            ("s3://logs/here", 2 << 40)
        );
        for wrong in [
            ["--store-bucket", "logs"],
            ["--store-region", "eu-central-1"],
            ["--store-endpoint", "https://minio.example"],
            ["--store-size", "10"],
        ] {
            assert!(parse(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_missing_namespace_says_how_to_give_it() {
        let error = namespace(None, Some(String::new())).unwrap_err();
        assert!(error.to_string().contains("--namespace"), "{error}");
    }

    #[test]
    fn one_tls_provider_serves_a_client() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
