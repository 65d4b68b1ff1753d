//! Settings of a Lambda account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_core::CredentialKey;

/// Key of the API key.
pub const API_KEY: &str = "LAMBDA_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API key (console of Lambda, API keys); it may do everything in the account, there are no narrower rights",
}];

/// Machines of Lambda Cloud: virtual machines with NVIDIA GPUs, on demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Region that is preferred where prices are equal, as Lambda writes it (`us-west-1`).
    /// Others are offered too; a Pool chooses with `region`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub region: Option<String>,
    /// Family of operating system images, as Lambda writes it. Default: Lambda's own, which
    /// is Ubuntu with driver, CUDA and Docker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub image_family: Option<String>,
}
