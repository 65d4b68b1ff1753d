//! Settings of a Scaleway project and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::shared::Disk;
use skyward_core::CredentialKey;
use skyward_provider_kit::currency::ExchangeRate;

/// Key of the secret key.
pub const SECRET_KEY: &str = "SCW_SECRET_KEY";
/// Key of the project.
pub const PROJECT_ID: &str = "SCW_DEFAULT_PROJECT_ID";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[
    CredentialKey {
        name: SECRET_KEY,
        required: true,
        what: "secret key of an API key (console of Scaleway, IAM, API keys); the console shows it once",
    },
    CredentialKey {
        name: PROJECT_ID,
        required: false,
        what: "id of the project that machines belong to, where the Provider has no projectId",
    },
];

/// Machines of Scaleway: GPU Instances in France, the Netherlands and Poland, on demand, billed in euro.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Project that machines belong to, by its id. Default: `SCW_DEFAULT_PROJECT_ID` of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub project_id: Option<String>,
    /// The one zone whose machines are offered. Default: all that have GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ZONES))]
    pub zone: Option<String>,
    /// Image, by its id, which is of one zone. Default: the newest public Ubuntu for GPUs of the
    /// machine's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub image: Option<String>,
    /// Size of the disk of machines whose Pool names none. Default `125G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Security group, by its id, which is of one zone. Default: that of the project for the
    /// machine's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub security_group: Option<String>,
    /// What one euro costs, since Scaleway bills in euro: without it offers have no price. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_rate: Option<ExchangeRate>,
}

/// The zones that have Instances and block storage; the stock says which have GPUs. Machines are looked for in each,
/// whatever the settings say by now.
#[rustfmt::skip]
pub const ZONES: [&str; 9] = [
    "fr-par-1", "fr-par-2", "fr-par-3", "nl-ams-1", "nl-ams-2", "nl-ams-3", "pl-waw-1", "pl-waw-2", "pl-waw-3",
];
