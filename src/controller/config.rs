//! The operator's settings, as `main.rs` reads them from flags and environment.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// The operator's own namespace: keys, certificates and the leader Lease live there.
    pub namespace: String,
    /// Who this process is in the leader election: the Pod's name, or host and process id.
    pub identity: String,
    /// Address of this process for the aggregated API, published with the Lease.
    pub advertise: Option<String>,
    /// Where metrics, health and readiness are served.
    pub metrics_address: SocketAddr,
    /// Where the aggregated API asks for logs and results (mutual TLS).
    pub data_address: SocketAddr,
    /// Directory of the result store.
    pub store: PathBuf,
    /// Directory with an agent for each architecture: `<dir>/<arch>/skyward-agent`.
    pub agents: PathBuf,
    /// Image of Container machines where the Provider names none.
    pub node_image: String,
    /// How Pods are reached.
    pub pod_network: PodNetwork,
    /// How long the Lease lasts without renewal.
    pub lease_duration: Duration,
    /// A quarter of the Pools reconciled at the same time, and orders and returns under way at one account;
    /// Machines are reconciled sixteen times as many.
    pub concurrency: u16,
}

/// How the controller reaches Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// By their addresses: the controller runs inside the cluster.
    Direct,
    /// Through the API server: it runs outside.
    PortForward,
}
