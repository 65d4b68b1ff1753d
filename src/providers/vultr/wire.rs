//! The parts of Vultr's JSON that we read. New fields are ignored, and fields that may be missing
//! are optional. Virtual machines and bare metal have nearly the same fields.

use serde::Deserialize;
use skyward_core::Usd;
use skyward_provider_kit::Amount;

use super::config::Mode;

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Which of the two lists it is in; no field of Vultr's.
    #[serde(skip)]
    pub mode: Mode,
    /// Price of its plan in USD per hour, where that is known; no field of Vultr's.
    #[serde(skip)]
    pub price: Option<Usd>,
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub status: String,
    /// Whether it is switched on; bare metal does not say.
    pub power_status: Option<String>,
    /// How far its installation is; bare metal does not say.
    pub server_status: Option<String>,
    /// Its public address, `0.0.0.0` or `""` until it has one.
    pub main_ip: Option<String>,
    /// Its address in a VPC, `""` where it is in none.
    pub internal_ip: Option<String>,
    /// What was rented.
    pub plan: String,
    /// Where it stands.
    pub region: String,
    /// Since when it exists, and is billed.
    pub date_created: Option<String>,
    /// Whose it is.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A kind of machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Plan {
    /// Which of the two lists it is in; no field of Vultr's.
    #[serde(skip)]
    pub mode: Mode,
    /// Its name, such as `vcg-a16-2c-8g-2vram`.
    pub id: String,
    /// vCPUs; threads, of bare metal.
    #[serde(alias = "cpu_threads")]
    pub vcpu_count: u32,
    /// Model of the processor, of bare metal.
    pub cpu_model: Option<String>,
    /// Memory in MiB.
    pub ram: u32,
    /// Size of one disk in GB; a text, of bare metal.
    pub disk: Amount,
    /// Memory of all GPUs in GB.
    pub gpu_vram_gb: Option<f64>,
    /// Such as `NVIDIA_A16`; bare metal may leave it out.
    pub gpu_type: Option<String>,
    /// USD for an hour, which may be missing.
    pub hourly_cost: Option<Amount>,
    /// Most USD for a month.
    pub monthly_cost: Amount,
    /// Regions where it is sold.
    #[serde(default)]
    pub locations: Vec<String>,
}
