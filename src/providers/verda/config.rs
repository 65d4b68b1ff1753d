//! Settings of a Verda account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::shared::Disk;
use skyward_core::CredentialKey;

/// Key of the client id.
pub const CLIENT_ID: &str = "VERDA_CLIENT_ID";
/// Key of the client secret.
pub const CLIENT_SECRET: &str = "VERDA_CLIENT_SECRET";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[
    CredentialKey {
        name: CLIENT_ID,
        required: true,
        what: "client id of a Cloud API credential (console of Verda, Keys, Cloud API Credentials)",
    },
    CredentialKey {
        name: CLIENT_SECRET,
        required: true,
        what: "secret of the same credential; the console shows it once",
    },
];

/// Machines of Verda (formerly DataCrunch): virtual machines in Finland and elsewhere,
/// on demand and spot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Location that is preferred where prices are equal, as Verda writes it. Others are
    /// offered too; a Pool chooses with `region`. Default `FIN-01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub region: Option<String>,
    /// Operating system image, by `image_type` or id of Verda. Default: the newest Ubuntu
    /// that the machine type supports, with CUDA where it has GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub image: Option<String>,
    /// Size of the disk of machines whose Pool names none. Default `100G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

impl Settings {
    /// The preferred location.
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or("FIN-01")
    }

    /// Size in GB of the disk where the Pool names none.
    pub fn disk_gb(&self) -> u32 {
        self.disk.as_ref().map_or(100, Disk::gb)
    }
}
