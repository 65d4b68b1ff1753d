//! Settings of a JarvisLabs account, its regions, and what its Secret holds.

use schemars::JsonSchema;
use serde::Deserialize;
use skyward_api::shared::Disk;
use skyward_core::CredentialKey;
use skyward_provider_kit::currency::ExchangeRate;

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: "JL_API_KEY",
    required: true,
    what: "API token of the account (jarvislabs.ai, Settings, API Keys)",
}];

/// Machines of JarvisLabs: containers and virtual machines with NVIDIA GPUs in India and Finland, on demand
/// and spot, paid from a wallet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// The one region whose machines are offered. Default: all.
    #[schemars(extend("enum" = CODES))]
    pub region: Option<String>,
    /// What machines are made from: a framework that JarvisLabs keeps a container of, such as `pytorch`,
    /// `tensorflow` or `jax`, or `vm` for virtual machines. Default `pytorch`.
    #[schemars(length(max = 64), regex(pattern = "^[a-z0-9][a-z0-9_-]*$"))]
    pub template: Option<String>,
    /// Size of the disk of machines whose Pool names none. At least `100G` are ordered in EU1 and for
    /// virtual machines, and `20G` elsewhere. Default `50G`.
    pub storage: Option<Disk>,
    /// The currency that JarvisLabs bills the account in. Default: what JarvisLabs says.
    pub currency: Option<Currency>,
    /// What one rupee costs, for an account that is billed in rupees: without it offers have no price
    /// then. Default: none.
    pub exchange_rate: Option<ExchangeRate>,
    /// A start-up script of the account, by its id, that machines run. Default: none.
    #[schemars(length(max = 32), regex(pattern = "^[A-Za-z0-9_-]+$"))]
    pub script_id: Option<String>,
    /// Arguments of that script. Default: none.
    #[schemars(length(max = 512))]
    pub script_args: Option<String>,
}

impl Settings {
    /// What machines are made from.
    pub fn template(&self) -> &str {
        self.template.as_deref().unwrap_or("pytorch")
    }
}

/// A currency that JarvisLabs bills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline, transform = skyward_core::schema::explain_variants)]
pub enum Currency {
    /// US dollars.
    Usd,
    /// Indian rupees.
    Inr,
}

/// A region.
pub struct Region {
    /// What people call it.
    pub code: &'static str,
    /// Its id in the API.
    pub id: &'static str,
    /// Name of the address of its API, and JarvisLabs' own.
    pub api: (&'static str, &'static str),
}

/// The regions whose addresses are known; the API lists no addresses. What stands in another region is not offered.
#[rustfmt::skip]
pub const REGIONS: &[Region] = &[
    Region { code: "IN2", id: "india-noida-01", api: ("jarvislabs", "https://backendn.jarvislabs.net") },
    Region { code: "IN1", id: "india-chennai-01", api: ("jarvislabs-in1", "https://backendc.jarvislabs.net") },
    Region { code: EU1, id: "europe-01", api: ("jarvislabs-eu1", "https://backendeu.jarvislabs.net") },
];
/// Their codes.
pub const CODES: [&str; 3] = [EU1, "IN1", "IN2"];
/// The region in Finland, which has rules of its own.
pub const EU1: &str = "EU1";
