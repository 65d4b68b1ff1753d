//! The aggregated API `subresources.skyward.dev`: logs and results of Tasks, and uploads of their
//! code, with Kubernetes' own authentication and RBAC.
//!
//! The Kubernetes API server authenticates a client and passes the request on to us; we
//! believe nobody else ([`frontproxy`]), ask whether that user may do that ([`authorize`]), and get
//! the bytes from the leading controller ([`data`]), or send them to it ([`uploads`]). This process mounts no store, holds no
//! connection to a machine and keeps no state: any number of replicas may run; with none, only
//! `kubectl skyward logs`, `results` and `upload` are missing.
//!
//! Begin reading at [`api`] (the routes), then `log.rs` (how no line is lost). Code that the
//! controller and the plugin share is here, too: [`data`] (the contract between the processes),
//! [`serve`], [`connections`], [`tls`], [`records`], [`text`], [`values`] and [`options`].

pub mod api;
pub mod authorize;
pub mod connections;
pub mod data;
mod discovery;
pub mod frontproxy;
pub mod items;
mod limits;
mod log;
pub mod options;
pub mod progress;
mod reading;
pub mod records;
pub mod reload;
pub mod remembered;
mod result;
pub mod serve;
pub mod status;
pub mod tasks;
#[cfg(test)]
mod tests;
pub mod text;
pub mod tls;
pub mod uploads;
pub mod values;

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{connections::Limits, serve::Transport};

/// Group of the aggregated API.
pub const GROUP: &str = skyward_api::SUBRESOURCES_GROUP;
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// Name of the Service in front of it, and of its Deployment.
pub const SERVICE: &str = "skyward-subresources";

/// Most connections at once; the API server needs few, since it speaks HTTP/2. Anonymous ones
/// are probes, and API servers in their handshake.
const CONNECTIONS: Limits = Limits {
    known: 448,
    anonymous: 64,
};

/// Settings of the aggregated API.
#[derive(Clone, Debug)]
pub struct Config {
    /// The operator's namespace: certificates and the leader Lease are there.
    pub namespace: String,
    /// Where to listen (HTTPS).
    pub address: SocketAddr,
}

/// Serves until shutdown.
pub async fn run(client: kube::Client, config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    let Config { namespace, address } = config;
    let listener = serve::listen(address)
        .await
        .with_context(|| format!("listening on {address}"))?;
    let (serving, serving_now) = watch::channel(tls::provisional()?);
    let (client_tls, client_tls_now) = watch::channel(None);
    let (front_proxy, front_proxy_now) = watch::channel(None);
    let (ready, ready_now) = watch::channel(false);
    let leader = Arc::new(data::Leader::new(client.clone(), &namespace, client_tls_now));
    let router = api::router(api::Parts {
        front_proxy: front_proxy_now,
        authorizer: authorize::Remembering::new(authorize::Reviews::new(client.clone())),
        tasks: Arc::new(tasks::Cluster(client.clone())),
        data: leader.clone(),
        uploads: leader,
        patience: reading::PATIENCE,
        ready: ready_now,
    });
    let outputs = reload::Outputs {
        serving,
        client: client_tls,
        front_proxy,
        ready,
    };
    tracing::info!(%address, "the aggregated API listens");
    tokio::join!(
        reload::keep(client, namespace, outputs, shutdown.clone()),
        serve::serve(
            listener,
            Transport::Tls(serving_now),
            router,
            CONNECTIONS,
            shutdown.clone()
        ),
    );
    Ok(())
}
