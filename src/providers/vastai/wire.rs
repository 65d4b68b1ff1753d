//! The parts of Vast.ai's JSON that we read. Its official description is wrong in places
//! (types of `env` and `ports`), so everything is read with tolerance.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use skyward_provider_kit::Amount;

/// A slice of one host that is for rent.
#[derive(Clone, Debug, Deserialize)]
pub struct Ask {
    /// Goes into the order; changes over time.
    pub id: u64,
    /// The host.
    #[serde(default)]
    pub machine_id: Option<u64>,
    /// Name of the GPUs, such as `RTX 4090`.
    #[serde(default)]
    pub gpu_name: Option<String>,
    /// How many.
    #[serde(default)]
    pub num_gpus: f64,
    /// Memory of each in MB.
    #[serde(default)]
    pub gpu_ram: f64,
    /// Part of the host's GPUs that this is.
    #[serde(default)]
    pub gpu_frac: Option<f64>,
    /// vCPUs that come with it.
    #[serde(default)]
    pub cpu_cores_effective: Option<f64>,
    /// Memory of the whole host in MB.
    #[serde(default)]
    pub cpu_ram: f64,
    /// `amd64` or `arm64`.
    #[serde(default)]
    pub cpu_arch: Option<String>,
    /// Most disk in GB.
    #[serde(default)]
    pub disk_space: f64,
    /// USD per hour without the disk.
    #[serde(default)]
    pub dph_base: Option<Amount>,
    /// USD per hour with the disk that was asked for.
    #[serde(default)]
    pub dph_total: Option<Amount>,
    /// Lowest bid that wins, for the whole machine.
    #[serde(default)]
    pub min_bid: Option<Amount>,
    /// Highest CUDA version of the driver.
    #[serde(default)]
    pub cuda_max_good: Option<f64>,
    /// Reliability of the host.
    #[serde(default)]
    pub reliability: Option<f64>,
    /// `City, CC`.
    #[serde(default)]
    pub geolocation: Option<String>,
    /// For how many seconds from now it is for rent.
    #[serde(default)]
    pub duration: Option<f64>,
    /// Ports that it can publish.
    #[serde(default)]
    pub direct_port_count: Option<f64>,
    /// The physical cluster that the host stands in, if any.
    #[serde(default)]
    pub cluster_id: Option<u64>,
}

/// Answer to an order.
#[derive(Debug, Deserialize)]
pub struct Ordered {
    /// Id of the machine.
    #[serde(default)]
    pub new_contract: Option<u64>,
}

/// One machine, or none.
#[derive(Debug, Deserialize)]
pub struct One {
    /// One machine, although the name is a plural.
    #[serde(default)]
    pub instances: Option<Instance>,
}

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Its id.
    pub id: u64,
    /// Whose it is.
    #[serde(default)]
    pub label: Option<String>,
    /// What it is.
    #[serde(default)]
    pub actual_status: Option<String>,
    /// What it should be.
    #[serde(default)]
    pub intended_status: Option<String>,
    /// What the contract is.
    #[serde(default)]
    pub cur_state: Option<String>,
    /// In words, such as what Docker says.
    #[serde(default)]
    pub status_msg: Option<String>,
    /// Address of the host.
    #[serde(default)]
    pub public_ipaddr: Option<String>,
    /// Relay.
    #[serde(default)]
    pub ssh_host: Option<String>,
    /// Port at the relay.
    #[serde(default)]
    pub ssh_port: Option<u16>,
    /// Published ports, while it runs.
    #[serde(default)]
    pub ports: Option<Value>,
    /// Whether it was bid for.
    #[serde(default)]
    pub is_bid: Option<bool>,
    /// The host.
    #[serde(default)]
    pub machine_id: Option<u64>,
    /// How many GPUs it has.
    #[serde(default)]
    pub num_gpus: Option<f64>,
    /// USD per hour with its disk.
    #[serde(default)]
    pub dph_total: Option<Amount>,
    /// Since when it is rented, in seconds.
    #[serde(default)]
    pub start_date: Option<f64>,
    /// When its contract ends, in seconds.
    #[serde(default)]
    pub end_date: Option<f64>,
    /// `City, CC`.
    #[serde(default)]
    pub geolocation: Option<String>,
    /// The physical cluster that the host stands in, if any.
    #[serde(default)]
    pub cluster_id: Option<u64>,
}

impl Instance {
    /// Port of the host that leads to this one of the container.
    pub fn published(&self, port: &str) -> Option<u16> {
        let ports: BTreeMap<String, Value> = serde_json::from_value(self.ports.clone()?).ok()?;
        let port = ports.get(port)?.get(0)?.get("HostPort")?;
        port.as_str()
            .and_then(|text| text.parse().ok())
            .or_else(|| port.as_u64().and_then(|n| n.try_into().ok()))
    }
}

/// A network between machines of one physical cluster.
#[derive(Clone, Debug, Deserialize)]
pub struct Overlay {
    /// Its name, which is its own in the account.
    pub name: String,
    /// The cluster that its machines stand in.
    #[serde(default)]
    pub cluster_id: Option<u64>,
    /// Ids of its machines.
    #[serde(default)]
    pub instances: Vec<u64>,
}

/// Body of a failure; any part may be missing, and 429 may be plain text.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Failure {
    /// Such as `no_such_ask`.
    #[serde(default)]
    pub error: Option<String>,
    /// In words.
    #[serde(default)]
    pub msg: Option<String>,
    /// In words, of another layer.
    #[serde(default)]
    pub detail: Option<String>,
}
