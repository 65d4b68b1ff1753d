//! The parts of Hyperstack's JSON that we read. New fields are ignored, and fields that may be missing
//! or null are optional.

use serde::Deserialize;
use serde_json::Value;
use skyward_core::Usd;
use skyward_provider_kit::Amount;

/// A virtual machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    /// Its id.
    pub id: u64,
    /// Where it is in its life.
    #[serde(default)]
    pub status: Value,
    /// Since when it exists.
    pub created_at: Option<String>,
    /// What it belongs to: `id`, `name`, `region`.
    #[serde(default)]
    pub environment: Value,
    /// What was rented: `gpu`, the model of its GPUs, and their number, `gpu_count`.
    #[serde(default)]
    pub flavor: Value,
    /// Its address in the network of its environment.
    pub fixed_ip: Option<String>,
    /// Its public address.
    pub floating_ip: Option<String>,
    /// Whether the public address leads to it already.
    pub floating_ip_status: Option<String>,
    /// Whose it is.
    pub labels: Option<Vec<String>>,
    /// Price of what was rented in USD per hour, where that is known; no field of Hyperstack's.
    #[serde(skip)]
    pub price: Option<Usd>,
}

/// A group of flavors or of images.
#[derive(Clone, Debug, Deserialize)]
pub struct Group<T> {
    /// Those in the group.
    #[serde(alias = "images")]
    pub flavors: Vec<T>,
}

/// A kind of machine in a region.
#[derive(Clone, Debug, Deserialize)]
pub struct Flavor {
    /// Its name, such as `n3-H100x1`.
    pub name: String,
    /// Its region.
    pub region_name: String,
    /// vCPUs.
    pub cpu: f64,
    /// Memory in GB.
    pub ram: f64,
    /// Root disk in GB.
    pub disk: f64,
    /// The model of its GPUs, such as `H100-80G-PCIe`; empty where it has none.
    pub gpu: Option<String>,
    /// How many.
    pub gpu_count: Option<u32>,
    /// Whether there are any now.
    pub stock_available: Option<bool>,
    /// What it can do and cannot: each with its `label`.
    #[serde(default)]
    pub labels: Value,
}

/// An entry of the price book.
#[derive(Clone, Debug, Deserialize)]
pub struct Price {
    /// The model of a GPU, or another resource.
    pub name: String,
    /// USD for an hour.
    pub value: Option<Amount>,
    /// From when it holds, where there is a beginning.
    pub start_time: Option<String>,
    /// Until when it holds, where there is an end.
    pub end_time: Option<String>,
}

/// An image.
#[derive(Clone, Debug, Deserialize)]
pub struct Image {
    /// Its name, such as `Ubuntu Server 22.04 LTS R535 CUDA 12.2`.
    pub name: String,
    /// Whether it is Hyperstack's own.
    pub is_public: Option<bool>,
    /// Where it has any: `has_flavor_restrictions`, then whether they bind (`restriction_type`), and the
    /// `flavor_name` of each of the `compatible_flavors`.
    #[serde(default)]
    pub flavor_restrictions: Value,
}
