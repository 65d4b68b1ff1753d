//! The parts of Scaleway's JSON that we read. New fields are ignored, and fields that may be missing
//! or null are optional.

use serde::Deserialize;
use serde_json::Value;
use skyward_core::Usd;
use skyward_provider_kit::Amount;

/// What is billed for a machine: it, and a disk that is left of it.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are servers")]
pub enum Machine {
    /// A server.
    Server(Server),
    /// A disk whose server is gone.
    Disk(Disk),
}

/// A server.
#[derive(Clone, Debug, Deserialize)]
pub struct Server {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub zone: String,
    /// Where it is in its life.
    pub state: String,
    /// The same in words, which may be empty.
    pub state_detail: Option<String>,
    /// What was rented.
    pub commercial_type: String,
    /// Since when it exists.
    pub creation_date: Option<String>,
    /// Its disks by their place, each with its `id`; that of `0` was made with it.
    #[serde(default)]
    pub volumes: Value,
    /// Its addresses, each with its `address` and `family`; none until it starts.
    #[serde(default)]
    pub public_ips: Value,
    /// Whose it is.
    pub tags: Option<Vec<String>>,
    /// Price of what was rented in USD per hour, where that is known; no field of Scaleway's.
    #[serde(skip)]
    pub price: Option<Usd>,
}

/// A disk in block storage.
#[derive(Clone, Debug, Deserialize)]
pub struct Disk {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub tags: Option<Vec<String>>,
    /// Where it stands.
    pub zone: String,
    /// Where it is in its life.
    pub status: Option<String>,
}

/// A kind of server, as the map of them has it under its name.
#[derive(Clone, Debug, Deserialize)]
pub struct Kind {
    /// Euro for an hour.
    pub hourly_price: Option<Amount>,
    /// vCPUs.
    pub ncpus: u32,
    /// Memory in bytes.
    pub ram: u64,
    /// Number of GPUs.
    pub gpu: Option<u32>,
    /// The model of the GPUs: `gpu_name`, and `gpu_memory` of one in bytes.
    #[serde(default)]
    pub gpu_info: Value,
    /// Its architecture, such as `x86_64`.
    pub arch: Option<String>,
    /// Whether Scaleway sells it no longer.
    pub end_of_service: Option<bool>,
}

/// An image.
#[derive(Clone, Debug, Deserialize)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub creation_date: Option<String>,
    /// Whose it is.
    pub organization: Option<String>,
    /// Where it is in its life: `available` is one that can be started.
    pub state: Option<String>,
    /// What its machines start from: `volume_type` is `sbs_snapshot` for images of block storage, whose `size` is 0.
    #[serde(default)]
    pub root_volume: Value,
}
