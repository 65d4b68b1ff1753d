//! Offer: one thing that can be rented at a Provider. Written by the controller.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use skyward_core::offer::{Architecture, Availability};

use crate::shared::{Count, Cpu, FormFactor, Size};

/// One kind of machine that a Provider offers. Written by the controller; the Provider's status
/// says when Offers were last read.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "skyward.dev",
    version = "v1alpha1",
    kind = "Offer",
    plural = "offers",
    shortname = "skoffer",
    category = "skyward",
    doc = "One kind of machine that a Provider offers. Written by the controller.",
    selectable = ".spec.provider",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Accelerator", type_ = "string", json_path = ".spec.accelerator.name"),
    printcolumn(name = "Count", type_ = "string", json_path = ".spec.accelerator.count"),
    printcolumn(name = "GPU-Memory", type_ = "string", json_path = ".spec.accelerator.memory"),
    printcolumn(name = "CPU", type_ = "string", json_path = ".spec.cpu"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.memory"),
    printcolumn(name = "On-Demand", type_ = "string", json_path = ".spec.onDemandPrice"),
    printcolumn(name = "Spot", type_ = "string", json_path = ".spec.spotPrice"),
    printcolumn(name = "Available", type_ = "string", json_path = ".spec.availability"),
    printcolumn(name = "Connected", type_ = "boolean", json_path = ".spec.connected"),
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".spec.instanceType",
        priority = 1
    ),
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.region", priority = 1),
    printcolumn(
        name = "Arch",
        type_ = "string",
        json_path = ".spec.architecture",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct OfferSpec {
    /// The Provider that offers it.
    #[schemars(length(max = 253))]
    pub provider: String,
    /// Its id within the Provider.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub id: String,
    /// Its name at the provider; for `container` the group of nodes it stands for.
    #[schemars(length(max = 256))]
    pub instance_type: String,
    /// Region or zone, where the provider has such.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub region: String,
    /// Accelerators of one machine; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<OfferedAccelerator>,
    /// CPUs of one machine. For `container`: the most one Pod can get.
    // The API server shows Offers of an older version without it: they must be read to be deleted.
    #[serde(default)]
    pub cpu: Cpu,
    /// Memory of one machine. For `container`: the most one Pod can get.
    #[serde(default)]
    pub memory: Size,
    /// Disk of one machine, where the offer fixes it; the most that it can have where the offer
    /// bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    /// `amd64` or `arm64`.
    pub architecture: Architecture,
    /// Price of one machine in USD per hour, on demand, as a decimal. `0` for `container`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub on_demand_price: Option<String>,
    /// Price of one machine in USD per hour on the spot market, as a decimal; absent where
    /// it is not sold there now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub spot_price: Option<String>,
    /// The lower of both prices, which `kubectl get offers --sort-by .spec.lowestPrice` sorts
    /// by; absent where it is sold on neither market.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub lowest_price: Option<String>,
    /// Whether the provider says that it is available now.
    pub availability: Availability,
    /// Whether its machines can reach each other.
    pub connected: bool,
    /// Day of the Provider's exchange rate by which the prices are in USD, such as `2026-11-01`;
    /// absent where the provider bills in USD. Once it is more than 30 days ago, only Pools with
    /// `maxHourlyCost` order this Offer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub exchange_rate_as_of: Option<String>,
}

/// Accelerators of an Offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferedAccelerator {
    /// Canonical name, such as `H100`.
    #[schemars(length(max = 64))]
    pub name: String,
    /// How many one machine has; a part of one as text.
    pub count: Count,
    /// Memory of each: `80Gi` of one that is sold as 80 GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// How each is built in, where the provider says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form_factor: Option<FormFactor>,
}
