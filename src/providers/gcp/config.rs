//! Settings of a project at Google Cloud and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::shared::Disk;
use skyward_core::CredentialKey;

/// Key of the service account's key.
pub const KEY: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// Key of the project.
pub const PROJECT: &str = "GOOGLE_CLOUD_PROJECT";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[
    CredentialKey {
        name: KEY,
        required: false,
        what: "content of the JSON file of a service account's key; without it the service account of the operator's Pod is used",
    },
    CredentialKey {
        name: PROJECT,
        required: false,
        what: "id of the project, where the Provider has no project; default: that of the key",
    },
];

/// Default zone of orders.
const ZONE: &str = "us-central1-a";
/// Default size of disks, in GB.
const DISK: u32 = 200;

/// Machines of Google Cloud: Compute Engine instances with NVIDIA GPUs, on demand and spot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Project that machines belong to, by its id. Default: `GOOGLE_CLOUD_PROJECT` of the Secret, else the
    /// project of its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        regex(pattern = r"^([-a-z0-9.]{1,40}:)?[a-z0-9][-a-z0-9]*$")
    )]
    pub project: Option<String>,
    /// Zone that is preferred where prices are equal. The other zones of its region are offered too; a Pool
    /// chooses with `region`. Default `us-central1-a`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = r"^[a-z]+-[a-z]+[0-9]+-[a-z]$"))]
    pub zone: Option<String>,
    /// More regions whose zones are offered, besides the region of `zone`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(max = 40), regex(pattern = r"^[a-z]+-[a-z]+[0-9]+$"))
    )]
    pub regions: Vec<String>,
    /// VPC network of the machines, by its name. Default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 200),
        regex(pattern = r"^(projects/[-a-z0-9.:]+/global/networks/)?[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub network: Option<String>,
    /// Subnet of the machines, by its name in the machine's region. Networks in custom mode need one. Default:
    /// that of the network for the machine's region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 200),
        regex(
            pattern = r"^(projects/[-a-z0-9.:]+/regions/[-a-z0-9]+/subnetworks/)?[a-z]([-a-z0-9]*[a-z0-9])?$"
        )
    )]
    pub subnet: Option<String>,
    /// Size of the disk of machines whose Pool names none. Default `200G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Type of the disk. Default: `pd-balanced`, or `hyperdisk-balanced` for machines that take no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z][-a-z0-9]*$"))]
    pub disk_type: Option<String>,
    /// Image, or family of images of which the newest is taken, such as
    /// `projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64`. It must have the drivers of the GPUs.
    /// Default: Google's Deep Learning image with Ubuntu 22.04, CUDA 12.8 and driver 570.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 250),
        regex(pattern = r"^projects/[-a-z0-9.:]+/global/images/(family/)?[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub image: Option<String>,
    /// Service account of the machines, by its email. Everything that runs there can use it. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 128), regex(pattern = r"^[-a-z0-9.]+@[-a-z0-9.]+$"))]
    pub service_account: Option<String>,
    /// Prices in USD per hour that are taken before those of the operator's table. A type of machine that neither has
    /// is shown without a price, and ordered only on demand and where its Pool has a maxHourlyCost, which counts as its
    /// price. The first entry that has one counts. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub prices: Vec<Price>,
}

/// What a type of machine costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Price {
    /// The type as Offers have it, such as `g2-standard-4` or `n1-standard-8+nvidia-tesla-t4x1`.
    #[schemars(length(min = 1, max = 100))]
    pub instance_type: String,
    /// The region whose price it is. Default: every region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40))]
    pub region: Option<String>,
    /// On demand, in USD per hour, as a decimal such as `"0.71"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,6}(\.[0-9]{1,8})?$"))]
    pub on_demand: Option<String>,
    /// On the spot market, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,6}(\.[0-9]{1,8})?$"))]
    pub spot: Option<String>,
}

impl Settings {
    /// The preferred zone.
    pub fn zone(&self) -> &str {
        self.zone.as_deref().unwrap_or(ZONE)
    }

    /// Whether machines of a zone are offered.
    pub fn offers(&self, zone: &str) -> bool {
        self.has(region_of(zone))
    }

    /// Whether machines of a region are offered.
    pub fn has(&self, region: &str) -> bool {
        region == region_of(self.zone()) || self.regions.iter().any(|chosen| chosen == region)
    }

    /// The network, as a request has it.
    pub fn network(&self) -> String {
        match self.network.as_deref() {
            Some(path) if path.contains('/') => path.to_owned(),
            name => format!("global/networks/{}", name.unwrap_or("default")),
        }
    }

    /// The subnet of a zone, as a request has it.
    pub fn subnet(&self, zone: &str) -> Option<String> {
        let subnet = self.subnet.as_deref()?;
        if subnet.contains('/') {
            return Some(subnet.to_owned());
        }
        Some(format!("regions/{}/subnetworks/{subnet}", region_of(zone)))
    }

    /// Size of a disk for which an order names none, in GB.
    pub fn disk_gb(&self) -> u32 {
        self.disk.as_ref().map_or(DISK, Disk::gb)
    }
}

/// The region of a zone: `us-central1` of `us-central1-a`.
pub fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}
