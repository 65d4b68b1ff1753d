//! Settings of a TensorDock account and what its Secret holds.

use schemars::JsonSchema;
use serde::Deserialize;
use skyward_api::shared::{Disk, Size, whole_gb};
use skyward_core::CredentialKey;

/// Key of the API token.
pub const API_TOKEN: &str = "TENSORDOCK_API_TOKEN";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_TOKEN,
    required: true,
    what: "API token of the organization (dashboard of TensorDock, Developer Settings); it may do everything in the organization, there are no narrower rights",
}];

/// Ubuntu with the driver of the GPUs and CUDA: that without `_ml_everything` may have no driver.
const SYSTEM: &str = "ubuntu2404_ml_everything";
/// Size in GB of the disk where neither the Provider nor the Pool says another, and the least there is.
const STORAGE_GB: u32 = 100;

/// Machines of TensorDock: virtual machines with NVIDIA GPUs on hosts of independent owners, on demand.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Country of the hosts by its whole name, such as `Germany`, or the beginning of a region of Offers, such as
    /// `united-states-dallas`; `us` is understood. Default: all.
    #[schemars(length(min = 1, max = 64))]
    pub location: Option<String>,
    /// Tier of the hosts, from 0 (homes) to 4 (data centers). Default: all.
    #[schemars(range(min = 0, max = 4))]
    pub tier: Option<u32>,
    /// Size of the disk of machines whose Pool names none, at least `100G`, in steps of 50 GB; part of the price.
    /// Default `100G`.
    pub storage: Option<Disk>,
    /// Image, by its id at TensorDock, such as `ubuntu2204`. Default `ubuntu2404_ml_everything`: Ubuntu with the
    /// driver and CUDA.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Za-z0-9._-]+$"))]
    pub operating_system: Option<String>,
    /// Memory of each machine, such as `64G`, in steps of 16 GB. Default: 16 GB for each GPU.
    pub min_ram: Option<Size>,
    /// vCPUs of each machine, in steps of 2. Default: 4 for each GPU.
    #[schemars(range(min = 1, max = 512))]
    pub min_vcpus: Option<u32>,
}

impl Settings {
    /// Size in GB of the disk where the Pool names none.
    pub fn storage_gb(&self) -> u32 {
        self.storage.as_ref().map_or(STORAGE_GB, Disk::gb)
    }

    /// The image.
    pub fn system(&self) -> &str {
        self.operating_system.as_deref().unwrap_or(SYSTEM)
    }

    /// Memory of each machine in GB, where it is set.
    pub fn min_ram_gb(&self) -> Option<u32> {
        self.min_ram.as_ref().and_then(Size::bytes).map(whole_gb)
    }
}
