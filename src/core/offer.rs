//! What can be rented, and for how much.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::{accelerator::FormFactor, usd::Usd};

/// A market of a cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
pub enum Market {
    /// Kept until we return it.
    #[default]
    OnDemand,
    /// May be reclaimed by the cloud.
    Spot,
}

/// Architecture of a machine's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
pub enum Architecture {
    /// AMD64.
    // The other word stands in records that are older than the settled names.
    #[serde(rename = "amd64", alias = "x86_64")]
    Amd64,
    /// AArch64.
    #[serde(rename = "arm64")]
    Arm64,
}

impl Architecture {
    /// As in the API, and as Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// Accelerators of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Accelerators {
    /// Canonical name, such as `H100`.
    pub name: String,
    /// How many; may be a fraction.
    pub count: f64,
    /// Memory of each in GB (10^9 bytes).
    pub memory_gb: Option<f64>,
    /// How each is built in, where the provider says it.
    pub form_factor: Option<FormFactor>,
}

/// Whether an Offer is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
pub enum Availability {
    /// It is available.
    Yes,
    /// It is not available.
    No,
    /// The provider does not say.
    Unknown,
}

impl From<bool> for Availability {
    fn from(in_stock: bool) -> Self {
        if in_stock { Self::Yes } else { Self::No }
    }
}

/// One thing that can be rented.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Stable id within the provider; becomes part of the Offer object's name, so it is
    /// a DNS label: lower case letters, digits and `-`, at most 63 characters.
    pub id: String,
    /// The provider's name for it.
    pub instance_type: String,
    /// Region or zone, `""` where there is none.
    pub region: String,
    /// Accelerators of one machine.
    pub accelerators: Option<Accelerators>,
    /// vCPUs of one machine.
    pub vcpus: f64,
    /// Memory of one machine in GB (10^9 bytes).
    pub memory_gb: f64,
    /// Disk in GB (10^9 bytes), where the offer fixes it; the most where it bounds it.
    pub disk_gb: Option<f64>,
    /// Architecture of the CPU.
    pub architecture: Architecture,
    /// Price in USD per hour on demand.
    pub on_demand: Option<Usd>,
    /// Price in USD per hour on the spot market.
    pub spot: Option<Usd>,
    /// Whether it is available now.
    pub availability: Availability,
    /// Whether its machines can reach each other.
    pub connected: bool,
    /// Day of the exchange rate by which its prices are in USD; `None` where the cloud bills in USD.
    pub rate_as_of: Option<Date>,
}

/// Days for which an exchange rate is current.
pub const RATE_DAYS: i32 = 30;

/// Whether an exchange rate of that day may be ordered by: it is of the last [`RATE_DAYS`] days. A
/// day that is still to come is no day of a rate; tomorrow's may be today's elsewhere.
pub fn is_current_rate(as_of: Date, today: Date) -> bool {
    let age = today.since(as_of);
    age.is_ok_and(|age| (-1..=RATE_DAYS).contains(&age.get_days()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_rate_is_current_for_thirty_days() {
        for (as_of, is_current) in [
            ("2026-11-23", true),
            ("2026-10-24", true),
            ("2026-10-23", false),
            ("2025-11-23", false),
            ("2026-11-24", true),
            ("2026-12-24", false),
        ] {
            let (day, today) = (as_of.parse().unwrap(), "2026-11-23".parse().unwrap());
            assert_eq!(is_current_rate(day, today), is_current, "{as_of}");
        }
    }
}
