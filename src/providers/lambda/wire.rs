//! The parts of Lambda's JSON that we read. New fields are ignored, and fields that may be missing
//! are optional.

use serde::Deserialize;
use skyward_core::Usd;
use skyward_provider_kit::marks::Tag;

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub status: String,
    /// Its public address, once it has one.
    #[serde(default)]
    pub ip: Option<String>,
    /// Where it stands.
    pub region: Region,
    /// What was rented.
    pub instance_type: InstanceType,
    /// Its tags, with the mark.
    #[serde(default)]
    pub tags: Vec<Tag>,
}

/// A region.
#[derive(Clone, Debug, Deserialize)]
pub struct Region {
    /// Such as `us-west-1`.
    pub name: String,
}

/// A kind of machine, and the regions that have it.
#[derive(Clone, Debug, Deserialize)]
pub struct TypeItem {
    /// The kind.
    pub instance_type: InstanceType,
    /// Regions that have some now.
    #[serde(default)]
    pub regions_with_capacity_available: Vec<Region>,
}

/// A kind of machine.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceType {
    /// Its name.
    pub name: String,
    /// Such as `H100 (80 GB SXM5)`; `N/A` without GPUs.
    #[serde(default)]
    pub gpu_description: String,
    /// For the whole machine.
    pub price_cents_per_hour: i64,
    /// What is in it.
    pub specs: Specs,
}

impl InstanceType {
    /// Price in USD per hour.
    pub fn price(&self) -> Usd {
        Usd::cents(self.price_cents_per_hour)
    }
}

/// What is in a kind of machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Specs {
    /// vCPUs.
    pub vcpus: u32,
    /// Memory in GiB.
    pub memory_gib: u32,
    /// Disk in GiB.
    pub storage_gib: u32,
    /// GPUs.
    pub gpus: u32,
}

/// The body of a failure.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Failure {
    /// What went wrong.
    #[serde(default)]
    pub error: Problem,
}

/// What went wrong.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Problem {
    /// Such as `global/quota-exceeded`.
    #[serde(default)]
    pub code: String,
    /// In words.
    #[serde(default)]
    pub message: String,
}
