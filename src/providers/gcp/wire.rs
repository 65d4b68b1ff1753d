//! The parts of Compute Engine's JSON that we read. New fields are ignored, and fields that may be missing
//! are optional. Numbers of 64 bits are texts there.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use skyward_core::{Usd, machine::Failure};

/// What a zone has, in a list of all zones.
#[derive(Clone, Debug, Deserialize)]
pub struct Scope<T> {
    /// The entries of the zone; left out where there are none.
    #[serde(default = "Vec::new")]
    pub instances: Vec<T>,
    /// Why there are none: its `code`.
    #[serde(default)]
    pub warning: Value,
}

/// A machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Its id, which no other instance ever has.
    pub id: String,
    /// Its name, which no other instance of its zone has at the same time.
    pub name: String,
    /// Where it is in its life.
    #[serde(default)]
    pub status: String,
    /// Where it stands, as an address that ends in the name of the zone.
    #[serde(default)]
    pub zone: String,
    /// What was rented, likewise.
    #[serde(default)]
    pub machine_type: String,
    /// GPUs that were added to it; GPUs that belong to its machine type are not listed here.
    #[serde(default)]
    pub guest_accelerators: Vec<Attached>,
    /// Whose it is.
    pub labels: Option<BTreeMap<String, String>>,
    /// On which market it was rented: `provisioningModel`.
    #[serde(default)]
    pub scheduling: Value,
    /// Its addresses: `networkIP` of each, and `natIP` of each of its `accessConfigs`.
    #[serde(default)]
    pub network_interfaces: Value,
    /// Since when it exists.
    pub creation_timestamp: Option<String>,
    /// Price of what was rented in USD per hour, where that is known; no field of Compute Engine's.
    #[serde(skip)]
    pub price: Option<Usd>,
    /// Why it was not made although its order was accepted; no field of Compute Engine's.
    #[serde(skip)]
    pub failure: Option<Failure>,
}

/// GPUs of a machine that do not belong to its machine type.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    /// Which, as an address that ends in the name of their type.
    #[serde(default)]
    pub accelerator_type: String,
    /// How many.
    #[serde(default)]
    pub accelerator_count: u32,
}

/// What an accepted call does.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// `PENDING`, `RUNNING`, or `DONE` also where it failed.
    #[serde(default)]
    pub status: String,
    /// The id of what it makes or changes.
    pub target_id: Option<String>,
    /// Why it failed: `errors`, each with a `code` and a `message`.
    #[serde(default)]
    pub error: Value,
    /// The status that a failure would have as an answer.
    #[serde(default)]
    pub http_error_status_code: u16,
}

/// What has quotas: the project, or a region.
#[derive(Clone, Debug, Deserialize)]
pub struct Place {
    /// Its name, such as `us-central1`.
    #[serde(default)]
    pub name: String,
    /// Its quotas.
    #[serde(default)]
    pub quotas: Vec<Quota>,
}

/// How much there may be of something.
#[derive(Clone, Debug, Deserialize)]
pub struct Quota {
    /// Of what, such as `NVIDIA_L4_GPUS`.
    #[serde(default)]
    pub metric: String,
    /// How much there may be.
    pub limit: Option<f64>,
    /// How much of that there is.
    pub usage: Option<f64>,
}

/// A zone.
#[derive(Clone, Debug, Deserialize)]
pub struct Zone {
    /// Its name, such as `us-central1-a`.
    pub name: String,
    /// `UP` or `DOWN`.
    #[serde(default)]
    pub status: String,
}

/// A kind of machine of a zone.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineType {
    /// Its name, such as `g2-standard-4`.
    pub name: String,
    /// vCPUs.
    #[serde(default)]
    pub guest_cpus: u32,
    /// Memory in MiB.
    #[serde(default)]
    pub memory_mb: u32,
    /// `X86_64` or `ARM64`.
    pub architecture: Option<String>,
    /// The GPUs that belong to it.
    #[serde(default)]
    pub accelerators: Vec<BuiltIn>,
    /// Whether it is on its way out: its `state`.
    #[serde(default)]
    pub deprecated: Value,
}

/// GPUs that belong to a kind of machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuiltIn {
    /// Which, such as `nvidia-l4`.
    #[serde(default)]
    pub guest_accelerator_type: String,
    /// How many.
    #[serde(default)]
    pub guest_accelerator_count: u32,
}

/// A type of accelerator of a zone.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcceleratorType {
    /// Its name, such as `nvidia-tesla-t4`.
    pub name: String,
    /// Most of them that one machine can have.
    #[serde(default)]
    pub maximum_cards_per_instance: u32,
    /// Whether it is on its way out: its `state`.
    #[serde(default)]
    pub deprecated: Value,
}
