//! Settings of a Massed Compute account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_core::CredentialKey;

/// Key of the API key.
pub const API_KEY: &str = "MASSED_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API token with full access (console of Massed Compute, Settings, API); a read-only one orders nothing",
}];

/// Machines of Massed Compute: virtual machines with NVIDIA GPUs in the United States, on demand and spot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Operating system image, as Massed Compute numbers it: `84` is Ubuntu 22.04 with drivers. Default `184`, which
    /// is Ubuntu 24.04.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub image_id: Option<u32>,
}

impl Settings {
    /// The image of machines.
    pub fn image_id(&self) -> u32 {
        self.image_id.unwrap_or(184)
    }
}
