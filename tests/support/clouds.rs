//! Simulated clouds beside the cluster: they listen on the node, so that the operator's Pod
//! reaches them, and their machines are Pods with OpenSSH.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, Config,
    api::{ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use skyward_cloudsim::{
    Account, BootPlan, Builder, Sim, Simulator,
    backend::{
        Backend,
        memory::Memory,
        pods::{Pods, Settings, clear},
    },
    gcp,
};
use tokio::sync::oneshot;

use crate::{Cluster, NODE_IMAGE, Result};

/// The namespace of machines.
const NAMESPACE: &str = "cloudsim";

/// The back end of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machines {
    /// Pods that one can log in to.
    Pods,
    /// States in memory: enough for tests of orders alone.
    Memory,
}

/// Simulated clouds on the real clock, until the program ends.
pub struct Clouds {
    simulator: Simulator,
    host: String,
}

/// What the thread of the clouds needs.
struct Plan {
    clouds: Vec<(String, Machines)>,
    image: String,
    host: String,
    kubeconfig: PathBuf,
}

impl Clouds {
    /// Starts these clouds. What an earlier program left of their machines goes first.
    pub async fn start(cluster: &Cluster, clouds: &[(&str, Machines)]) -> Result<Self> {
        let host = node_address(cluster).await?;
        if clouds.iter().any(|(_, machines)| *machines == Machines::Pods) {
            prepare_namespace(cluster).await?;
        }
        let plan = Plan {
            clouds: clouds
                .iter()
                .map(|(name, machines)| ((*name).to_owned(), *machines))
                .collect(),
            image: std::env::var(NODE_IMAGE).context("SKYWARD_NODE_IMAGE is not set; run `make test`")?,
            host: host.clone(),
            kubeconfig: cluster.kubeconfig.clone(),
        };
        // Stories have a runtime each and share these clouds: they get one of their own.
        let (started_tx, started_rx) = oneshot::channel();
        std::thread::Builder::new()
            .name("clouds".to_owned())
            .spawn(move || {
                let runtime = match tokio::runtime::Runtime::new() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(started_tx.send(Err(error.into()))),
                };
                let started = runtime.block_on(plan.start());
                let works = started.is_ok();
                let asked_for = started_tx.send(started).is_ok();
                if works && asked_for {
                    runtime.block_on(std::future::pending::<()>());
                }
            })?;
        let simulator = started_rx.await.context("the thread of the clouds ended")??;
        Ok(Self { simulator, host })
    }

    /// A cloud.
    pub fn sim(&self, cloud: &str) -> &Arc<Sim> {
        self.simulator.cloud(cloud)
    }

    /// Opens an account at a cloud. What a Secret must hold to use it, in the name of that
    /// holder.
    pub fn open_account(&self, cloud: &str, account: &str, holder: &str) -> BTreeMap<String, String> {
        let (id, secret) = (format!("id-{holder}"), format!("secret-{holder}"));
        let pair = || Account::with_pair(account, &id, &secret);
        let key = || Account::with_key(account, &secret);
        let (opened, keys) = match cloud {
            "verda" => (
                pair(),
                vec![
                    ("VERDA_CLIENT_ID", id.clone()),
                    ("VERDA_CLIENT_SECRET", secret.clone()),
                ],
            ),
            "aws" => (
                pair(),
                vec![
                    ("AWS_ACCESS_KEY_ID", id.clone()),
                    ("AWS_SECRET_ACCESS_KEY", secret.clone()),
                ],
            ),
            "digitalocean" => (key(), vec![("DIGITALOCEAN_TOKEN", secret.clone())]),
            "scaleway" => (
                key(),
                vec![
                    ("SCW_SECRET_KEY", secret.clone()),
                    ("SCW_DEFAULT_PROJECT_ID", account.to_owned()),
                ],
            ),
            "gcp" => {
                let opened = gcp::account(account, &format!("{id}@{account}.example.com"));
                let file = gcp::key_file(&opened, "https://oauth2.example.com").to_string();
                (opened, vec![("GOOGLE_APPLICATION_CREDENTIALS", file)])
            }
            "hyperstack" => (key(), vec![("HYPERSTACK_API_KEY", secret.clone())]),
            "tensordock" => (key(), vec![("TENSORDOCK_API_TOKEN", secret.clone())]),
            "jarvislabs" => (key(), vec![("JL_API_KEY", secret.clone())]),
            "lambda" => (key(), vec![("LAMBDA_API_KEY", secret.clone())]),
            "massedcompute" => (key(), vec![("MASSED_API_KEY", secret.clone())]),
            "novita" => (key(), vec![("NOVITA_API_KEY", secret.clone())]),
            "vultr" => (key(), vec![("VULTR_API_KEY", secret.clone())]),
            "runpod" => (key(), vec![("RUNPOD_API_KEY", secret.clone())]),
            "vastai" => (key(), vec![("VAST_API_KEY", secret.clone())]),
            other => unreachable!("the keys of the Secret for {other} stand here"),
        };
        self.sim(cloud).world(|world| world.add_account(opened));
        keys.into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// `--set` values of the chart that send the operator to these clouds.
    pub fn operator_values(&self) -> Vec<String> {
        let mut values = Vec::new();
        for (sim, url) in self.simulator.clouds() {
            let url = url.replace("0.0.0.0", &self.host);
            for name in endpoints(sim.name()) {
                let number = values.len();
                values.push(format!("controller.extraArgs[{number}]=--endpoint={name}={url}"));
            }
        }
        values
    }
}

/// The operator's names of the APIs of a cloud.
fn endpoints(cloud: &'static str) -> Vec<&'static str> {
    match cloud {
        "aws" => vec![
            "aws-ec2",
            "aws-ssm",
            "aws-sts",
            "aws-pricing",
            "aws-servicequotas",
        ],
        // One of each region.
        "jarvislabs" => vec!["jarvislabs", "jarvislabs-in1", "jarvislabs-eu1"],
        "gcp" => vec!["gcp", "gcp-token", "gcp-metadata"],
        other => vec![other],
    }
}

impl Plan {
    async fn start(self) -> Result<Simulator> {
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut builder = Builder::new();
        for (name, _) in &self.clouds {
            let cloud = skyward_cloudsim::cloud(name).with_context(|| {
                format!("there is no simulator of {name}, or SKYWARD_SPECS does not name its description")
            })?;
            builder = builder.cloud_at(cloud, everywhere);
        }
        let clouds = self.clouds.into_iter();
        let of_pods: Vec<String> = clouds
            .filter(|(_, machines)| *machines == Machines::Pods)
            .map(|(name, _)| name)
            .collect();
        if !of_pods.is_empty() {
            let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            let client = Client::try_from(config)?;
            clear(client.clone(), NAMESPACE).await?;
            let (image, host) = (self.image, self.host);
            builder = builder.backend(move |site| -> Arc<dyn Backend> {
                if !of_pods.iter().any(|name| name == site.cloud) {
                    return Arc::new(Memory::new(site.reports));
                }
                let settings = Settings {
                    cloud: site.cloud,
                    namespace: NAMESPACE.to_owned(),
                    image: image.clone(),
                    base: Some(format!("http://{host}:{}", site.address.port())),
                    env: Vec::new(),
                };
                Arc::new(Pods::new(client.clone(), settings, site.reports))
            });
        }
        let simulator = builder.start().await?;
        for (sim, _) in simulator.clouds() {
            sim.world(|world| world.boot = BootPlan::takes(1));
        }
        Ok(simulator)
    }
}

/// An address of the node that its Pods can reach: tests run on the node.
pub async fn node_address(cluster: &Cluster) -> Result<String> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = nodes.list(&ListParams::default()).await?.items.into_iter().next();
    node.and_then(|node| node.status?.addresses)
        .into_iter()
        .flatten()
        .find(|address| address.type_ == "InternalIP")
        .map(|address| address.address)
        .context("the cluster has no node with an InternalIP")
}

async fn prepare_namespace(cluster: &Cluster) -> Result {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    if namespaces.get_opt(NAMESPACE).await?.is_none() {
        let object = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        namespaces.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}
