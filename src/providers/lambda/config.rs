//! Settings of a Lambda account and what its Secret holds.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::Duration as Lasting;
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
    /// How long a machine whose controller is gone and that runs nothing waits before it
    /// shuts down. Lambda bills it on: the sweep is what ends that. Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_timeout: Option<Lasting>,
    /// Longest wait for one answer of Lambda's API. Default `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_timeout: Option<Lasting>,
}

impl Settings {
    /// Longest wait for one answer.
    pub fn request_timeout(&self) -> Duration {
        Lasting::or(self.request_timeout.as_ref(), Duration::from_secs(30))
    }
}
