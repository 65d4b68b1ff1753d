//! The parts of DigitalOcean's JSON that we read. New fields are ignored, and fields that may be
//! missing are optional.

use serde::Deserialize;
use serde_json::Value;
use skyward_provider_kit::Amount;

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Droplet {
    /// Its id.
    pub id: u64,
    /// Where it is in its life.
    pub status: String,
    /// Since when it exists, and is billed.
    pub created_at: Option<String>,
    /// What was rented.
    pub size: Rented,
    /// Its addresses; none at first.
    pub networks: Networks,
    /// Where it stands: `slug`, such as `tor1`.
    pub region: Value,
    /// Whose it is.
    pub tags: Option<Vec<String>>,
}

/// The kind of a machine, which may say nothing of itself at first.
#[derive(Clone, Debug, Deserialize)]
pub struct Rented {
    /// USD for an hour.
    pub price_hourly: Option<Amount>,
}

/// The addresses of a machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Networks {
    /// Those of IPv4, each with its `ip_address`, and its `type`: `public` or `private`.
    #[serde(default)]
    pub v4: Vec<Value>,
}

/// A kind of machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Size {
    /// Its name, such as `gpu-h100x1-80gb`.
    pub slug: String,
    /// Memory in MiB.
    pub memory: u32,
    /// vCPUs.
    pub vcpus: u32,
    /// Size of the disk in GB.
    pub disk: u32,
    /// USD for an hour.
    pub price_hourly: Amount,
    /// Regions that have it now.
    pub regions: Vec<String>,
    /// Whether it is sold at all.
    pub available: bool,
    /// Its GPUs; none of most sizes.
    pub gpu_info: Option<Gpus>,
}

/// GPUs of a kind of machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Gpus {
    /// How many.
    #[serde(default)]
    pub count: u32,
    /// Such as `nvidia_h100`.
    #[serde(default)]
    pub model: String,
    /// Memory of all of them: `amount` in GiB.
    #[serde(default)]
    pub vram: Value,
}

/// A tag of the account.
#[derive(Clone, Debug, Deserialize)]
pub struct Tag {
    /// The tag.
    pub name: String,
    /// What carries it: `count` resources.
    #[serde(default)]
    pub resources: Value,
}

impl Tag {
    /// Whether nothing carries it.
    pub fn is_unused(&self) -> bool {
        self.resources["count"] == 0
    }
}
