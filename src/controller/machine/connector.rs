//! Reaches Pods through the API server's port-forward, for a controller that runs
//! outside the cluster (`--pod-network port-forward`).

use std::io;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use skyward_remote::{PodDialer, Stream};

/// Opens streams to Pods by port-forward.
pub struct PortForward {
    client: Client,
}

impl PortForward {
    /// Uses this client's rights.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl PodDialer for PortForward {
    async fn dial(&self, namespace: &str, pod: &str, port: u16) -> io::Result<Box<dyn Stream>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut forward = pods.portforward(pod, &[port]).await.map_err(io::Error::other)?;
        let stream = forward
            .take_stream(port)
            .ok_or_else(|| io::Error::other(format!("the API server opened no stream to port {port}")))?;
        // The forwarding task lives as long as the stream: it ends when either side closes.
        tokio::spawn(async move {
            if let Err(error) = forward.join().await {
                tracing::debug!(%error, "a port-forward ended");
            }
        });
        Ok(Box::new(stream))
    }
}
