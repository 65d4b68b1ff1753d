//! Settings of a DigitalOcean account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_core::CredentialKey;

/// Key of the token.
pub const TOKEN: &str = "DIGITALOCEAN_TOKEN";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: TOKEN,
    required: true,
    what: "personal access token of the team (control panel of DigitalOcean, API, Tokens)",
}];

/// Machines of DigitalOcean: Droplets with NVIDIA or AMD GPUs, on demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Region that is preferred where prices are equal, as DigitalOcean writes it. Others are
    /// offered too; a Pool chooses with `region`. Default `nyc1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub region: Option<String>,
    /// Image of the account or of DigitalOcean, by its slug or its number. Default: DigitalOcean's own for
    /// the GPUs of the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub image: Option<String>,
    /// VPC of the machines, by its UUID; its region is the only one that machines can come from
    /// then. Default: that of the account for the machine's region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub vpc_uuid: Option<String>,
}

impl Settings {
    /// The preferred region.
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or("nyc1")
    }
}
