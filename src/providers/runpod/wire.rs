//! The parts of RunPod's JSON that we read: REST v2, and GraphQL for the spot market.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use skyward_provider_kit::Amount;

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    #[serde(default)]
    pub status: String,
    /// Its environment, which carries our mark.
    #[serde(default)]
    pub env: Option<BTreeMap<String, String>>,
    /// How SSH reaches it.
    #[serde(default)]
    pub ssh: Option<Ssh>,
    /// Where it stands.
    #[serde(default, rename = "dataCenterId")]
    pub data_center_id: Option<String>,
    /// Price per hour; 0 once it is stopped.
    #[serde(default)]
    pub cost: Option<Amount>,
    /// Its address among others of the account.
    #[serde(default, rename = "globalNetworking")]
    pub global_networking: Option<GlobalNetworking>,
    /// When it was ordered.
    #[serde(default, rename = "createdAt")]
    pub created_at: Option<String>,
    /// When it started.
    #[serde(default, rename = "startedAt")]
    pub started_at: Option<String>,
}

/// How SSH reaches a pod.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Ssh {
    /// By a public port of its own.
    #[serde(default)]
    pub direct: Option<Direct>,
}

/// A public port.
#[derive(Clone, Debug, Deserialize)]
pub struct Direct {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// User.
    #[serde(default)]
    pub username: Option<String>,
}

/// The address of a pod among others of the account.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct GlobalNetworking {
    /// Address.
    #[serde(default)]
    pub ip: Option<String>,
    /// Name.
    #[serde(default, rename = "internalDns")]
    pub internal_dns: Option<String>,
}

/// A kind of GPU.
#[derive(Clone, Debug, Deserialize)]
pub struct Gpu {
    /// Its long name, which orders use.
    pub id: String,
    /// Its short name.
    #[serde(default)]
    pub name: String,
    /// `NVIDIA`, `AMD`, ….
    #[serde(default)]
    pub manufacturer: String,
    /// Memory in GB.
    #[serde(default)]
    pub memory: f64,
    /// Whether the secure cloud has it.
    #[serde(default)]
    pub secure: bool,
    /// Whether the community cloud has it.
    #[serde(default)]
    pub community: bool,
    /// Price of one per hour.
    pub price: Prices,
    /// Most in one machine.
    #[serde(rename = "maxCount")]
    pub max_count: Counts,
    /// `NONE`, `LOW`, `MEDIUM`, `HIGH`; only a hint.
    #[serde(default)]
    pub availability: Option<String>,
    /// Data centers that have it.
    #[serde(default, rename = "dataCenters")]
    pub data_centers: Vec<Place>,
}

/// Prices by cloud.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Prices {
    /// Of the secure cloud.
    #[serde(default)]
    pub secure: Amount,
    /// Of the community cloud.
    #[serde(default)]
    pub community: Amount,
}

/// Counts by cloud.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Counts {
    /// Of the secure cloud.
    #[serde(default)]
    pub secure: u32,
    /// Of the community cloud.
    #[serde(default)]
    pub community: u32,
}

/// What a data center has of something.
#[derive(Clone, Debug, Deserialize)]
pub struct Place {
    /// Its id.
    pub id: String,
    /// As for the kind as a whole.
    #[serde(default)]
    pub availability: Option<String>,
}

/// A flavour of machines without GPUs.
#[derive(Clone, Debug, Deserialize)]
pub struct Cpu {
    /// Its id.
    pub id: String,
    /// How many vCPUs one may have.
    pub vcpu: Range,
    /// Memory in GB for each.
    #[serde(default, rename = "ramGbPerVcpu")]
    pub ram_gb_per_vcpu: f64,
    /// Price.
    pub price: CpuPrice,
    /// As for GPUs.
    #[serde(default)]
    pub availability: Option<String>,
}

/// A range.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Range {
    /// Least.
    pub min: u32,
    /// Most.
    pub max: u32,
}

/// Price of a flavour.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct CpuPrice {
    /// Per vCPU and hour.
    #[serde(rename = "securePerVcpu")]
    pub secure_per_vcpu: Amount,
}

/// Body of `GET /v2/catalog/datacenters`.
#[derive(Debug, Deserialize)]
pub struct DataCenters {
    /// Data centers.
    #[serde(alias = "datacenters", rename = "dataCenters")]
    pub data_centers: Vec<DataCenter>,
}

/// A data center.
#[derive(Clone, Debug, Deserialize)]
pub struct DataCenter {
    /// Its id.
    pub id: String,
    /// Whether it is part of the global network.
    #[serde(default, rename = "globalNetwork")]
    pub global_network: bool,
}

/// A stored registry credential.
#[derive(Clone, Debug, Deserialize)]
pub struct Registry {
    /// Its id.
    pub id: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// The one thing that we read of a new pod, or of the account.
#[derive(Debug, Deserialize)]
pub struct Id {
    /// Its id.
    pub id: String,
}

/// Body of a failure over REST (RFC 9457).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Problem {
    /// In short.
    #[serde(default)]
    pub title: String,
    /// In words.
    #[serde(default)]
    pub detail: String,
    /// Each fault of the request.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// Any answer of GraphQL.
#[derive(Debug, Deserialize)]
pub struct Graph {
    /// Null when it failed.
    #[serde(default)]
    pub data: Option<Value>,
    /// Why it failed.
    #[serde(default)]
    pub errors: Vec<GraphError>,
}

/// A failure of GraphQL.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct GraphError {
    /// In words.
    #[serde(default)]
    pub message: String,
    /// More.
    #[serde(default)]
    pub extensions: Option<Extensions>,
}

/// What GraphQL adds to a failure.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Extensions {
    /// Such as `SUPPLY_CONSTRAINT`.
    #[serde(default)]
    pub code: Option<String>,
}

/// A kind of GPU, as GraphQL has it.
#[derive(Clone, Debug, Deserialize)]
pub struct GpuType {
    /// As in the catalogue.
    pub id: String,
    /// What one costs.
    #[serde(default, rename = "lowestPrice")]
    pub lowest_price: Option<LowestPrice>,
}

/// What one GPU costs.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct LowestPrice {
    /// Lowest bid that wins.
    #[serde(default, rename = "minimumBidPrice")]
    pub minimum_bid: Option<Amount>,
    /// vCPUs that come with it.
    #[serde(default, rename = "minVcpu")]
    pub min_vcpu: Option<f64>,
    /// Memory in GB that comes with it.
    #[serde(default, rename = "minMemory")]
    pub min_memory: Option<f64>,
}
