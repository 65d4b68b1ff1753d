//! Settings of a Vultr account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_core::CredentialKey;

/// Key of the API key.
pub const API_KEY: &str = "VULTR_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API key (customer portal of Vultr, Account, API); its access control must admit the address that the operator calls from",
}];

/// Ubuntu 24.04, as Vultr numbers its images.
pub const UBUNTU: u32 = 2284;

/// Machines of Vultr: virtual machines with NVIDIA GPUs or parts of one, and bare metal, on demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// What is offered. Default `cloud`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Region that is preferred where prices are equal, as Vultr writes it. Others are offered
    /// too; a Pool chooses with `region`. Default `ewr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub region: Option<String>,
    /// Operating system image, as Vultr numbers it. Default `2284`, which is Ubuntu 24.04.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub os_id: Option<u32>,
    /// Marketplace image (`image_id`) instead of `osId`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub image_id: Option<String>,
    /// Snapshot of the account instead of `osId` and `imageId`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub snapshot_id: Option<String>,
}

/// The two things that Vultr rents, each with an API of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline, transform = skyward_core::schema::explain_variants)]
pub enum Mode {
    /// Cloud GPU: virtual machines with whole GPUs or parts of one.
    #[default]
    Cloud,
    /// Bare metal: whole servers, without virtualization.
    BareMetal,
}

impl Settings {
    /// What is offered.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// The preferred region.
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or("ewr")
    }
}
