//! Settings of a Hyperstack account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_core::CredentialKey;

/// Key of the API key.
pub const API_KEY: &str = "HYPERSTACK_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API key of a user of the organization (console of Hyperstack, API Keys)",
}];

/// Regions that are known to have a network with SR-IOV.
const OPTIMISED: [&str; 2] = ["CANADA-1", "US-1"];

/// Machines of Hyperstack: virtual machines with NVIDIA GPUs in Canada, Norway and the United States, on demand
/// and spot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// The regions whose machines are offered, as Hyperstack writes them, such as `[CANADA-1]`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32)))]
    pub regions: Vec<String>,
    /// Image, by its name in the machine's region. Default: the newest public Ubuntu with CUDA that the
    /// machine's flavor may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub image: Option<String>,
    /// Only machines with the fast network of Hyperstack between them (SR-IOV). Default `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_optimised: Option<bool>,
    /// The regions that `networkOptimised` offers machines of. Default: `CANADA-1` and `US-1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32)))]
    pub network_optimised_regions: Vec<String>,
}

impl Settings {
    /// Whether only machines with the fast network will do.
    pub fn network_optimised(&self) -> bool {
        self.network_optimised.unwrap_or(false)
    }

    /// Whether machines of a region are offered.
    pub fn offers(&self, region: &str) -> bool {
        let fast = &self.network_optimised_regions;
        let is_known = fast.is_empty() && OPTIMISED.contains(&region);
        let is_fast = is_known || fast.iter().any(|known| known == region);
        let is_chosen = self.regions.is_empty() || self.regions.iter().any(|chosen| chosen == region);
        is_chosen && (is_fast || !self.network_optimised())
    }
}
