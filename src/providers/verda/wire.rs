//! The parts of Verda's JSON that we read. New fields are ignored, and fields that may be missing
//! are optional.

use serde::Deserialize;
use skyward_provider_kit::{Amount, marks::Tag};

/// A machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Its id.
    pub id: String,
    /// Its public address, once it has one.
    #[serde(default)]
    pub ip: Option<String>,
    /// Where it is in its life.
    pub status: String,
    /// When it was ordered.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Location.
    #[serde(default)]
    pub location: Option<String>,
    /// Whether it may be evicted.
    #[serde(default)]
    pub is_spot: bool,
    /// Price per hour.
    #[serde(default)]
    pub price_per_hour: Option<Amount>,
    /// Whose it is.
    #[serde(default)]
    pub tags: Vec<Tag>,
    /// Its system disk.
    #[serde(default)]
    pub os_volume_id: Option<String>,
    /// All its disks.
    #[serde(default)]
    pub volume_ids: Vec<String>,
}

/// One result of an action on machines.
#[derive(Clone, Debug, Deserialize)]
pub struct ActionResult {
    /// `success` or `error`.
    pub status: String,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
    /// As HTTP has them.
    #[serde(default, rename = "statusCode")]
    pub status_code: Option<f64>,
}

/// A kind of machine.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceType {
    /// Its name.
    pub instance_type: String,
    /// Processor.
    #[serde(default)]
    pub cpu: Cpu,
    /// Accelerators.
    #[serde(default)]
    pub gpu: Gpu,
    /// Memory of the accelerators.
    #[serde(default)]
    pub gpu_memory: Size,
    /// Memory.
    #[serde(default)]
    pub memory: Size,
    /// Price on demand.
    pub price_per_hour: Amount,
    /// Price on the spot market.
    #[serde(default)]
    pub spot_price: Option<Amount>,
    /// Currency of the prices.
    #[serde(default)]
    pub currency: Option<String>,
    /// Images that it can start.
    #[serde(default)]
    pub supported_os: Vec<String>,
}

/// Processor of a kind of machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Cpu {
    /// Such as `AMD EPYC 22V`.
    #[serde(default)]
    pub description: Option<String>,
    /// Model.
    #[serde(default)]
    pub model: Option<String>,
    /// How many.
    #[serde(default)]
    pub number_of_cores: f64,
}

/// Accelerators of a kind of machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Gpu {
    /// Such as `1x H100 SXM5 80GB`.
    #[serde(default)]
    pub description: Option<String>,
    /// How many.
    #[serde(default)]
    pub number_of_gpus: f64,
}

/// An amount of memory.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Size {
    /// In GB.
    #[serde(default)]
    pub size_in_gigabytes: f64,
}

/// What a location has in stock.
#[derive(Clone, Debug, Deserialize)]
pub struct Availability {
    /// The location.
    pub location_code: String,
    /// Names of kinds of machines.
    pub availabilities: Vec<String>,
}

/// A location.
#[derive(Clone, Debug, Deserialize)]
pub struct Location {
    /// Such as `FIN-01`.
    pub code: String,
}

/// A disk.
#[derive(Clone, Debug, Deserialize)]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub status: String,
    /// The machine that it belongs to.
    #[serde(default)]
    pub instance_id: Option<String>,
    /// Location.
    #[serde(default)]
    pub location: Option<String>,
    /// Whose it is.
    #[serde(default)]
    pub tags: Vec<Tag>,
}

/// The body of a failure.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Failure {
    /// Such as `invalid_request`.
    #[serde(default)]
    pub code: String,
    /// In words.
    #[serde(default)]
    pub message: String,
}
