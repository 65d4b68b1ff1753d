//! The operator's settings, as `main.rs` reads them from flags and environment.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// The operator's own namespace: keys, certificates and the leader Lease live there.
    pub namespace: String,
    /// Identity of this process in the leader election: the Pod's name, or host and process id.
    pub identity: String,
    /// Address of this process for the aggregated API, published with the Lease.
    pub advertise: Option<String>,
    /// UID of this process' Pod; `None` outside of the cluster.
    pub pod_uid: Option<String>,
    /// Where the probes are answered, over plain HTTP.
    pub health_address: SocketAddr,
    /// Where metrics are served, over TLS.
    pub metrics_address: SocketAddr,
    /// Where plans are shown: a loopback address.
    pub debug_address: SocketAddr,
    /// Where the aggregated API asks for logs and results (mutual TLS).
    pub data_address: SocketAddr,
    /// Directory of the result store.
    pub store: PathBuf,
    /// How much of the result store one namespace may hold.
    pub store_quota: skyward_store::Quota,
    /// How long the log and result of a run wait on its machine for room in the result store.
    pub hold_for: Duration,
    /// Directory with an agent for each architecture: `<dir>/<arch>/skyward-agent`.
    pub agents: PathBuf,
    /// Image of Container machines where the Provider names none.
    pub node_image: String,
    /// How Pods are reached.
    pub pod_network: PodNetwork,
    /// Namespaces that are served; none named = all.
    pub namespaces: BTreeSet<String>,
    /// How long the Lease lasts without renewal.
    pub lease_duration: Duration,
    /// Orders and returns in flight at one account. Four times as many Pools and sixteen times as many
    /// Machines are reconciled at once.
    pub concurrency: u16,
}

impl Config {
    /// Whether Pools and Tasks of that namespace are served.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }
}

/// How the controller reaches Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// By their addresses: the controller runs inside the cluster.
    Direct,
    /// Through the API server: it runs outside.
    PortForward,
}

/// Reads an id that every cloud's marks can carry: what a UID is made of, and as long as one.
pub fn installation_id(text: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = (8..=36).contains(&text.len())
        && text.bytes().all(is_plain)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("an installation's id is 8 to 36 of a-z, 0-9 and -, and begins and ends with a letter or digit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_may_have_the_id_of_a_uid_and_none_that_a_mark_cannot_carry() {
        for good in ["staging1", "0f9a3b1c-2222-4abc-8def-0123456789ab", "a-b-c-d-e"] {
            assert_eq!(installation_id(good).as_deref(), Ok(good));
        }
        let long = "a".repeat(37);
        for bad in [
            "",
            "short-7",
            long.as_str(),
            "-staging1",
            "staging1-",
            "Staging1",
            "staging_1",
            "staging 1",
            "staging.1",
            "stäging1",
        ] {
            assert!(installation_id(bad).is_err(), "{bad}");
        }
    }
}
