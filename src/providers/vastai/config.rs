//! Settings of a Vast.ai account and what its Secret holds.

use std::time::Duration;

use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::{Duration as Lasting, shared::Disk};
use skyward_core::CredentialKey;
use skyward_provider_kit::factor;

/// Key of the API key.
pub const API_KEY: &str = "VAST_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API key (console of Vast.ai, Keys) that may read the account, search offers, and read and write instances",
}];

/// Image where the Provider names none.
pub const IMAGE: &str = "nvcr.io/nvidia/cuda:12.9.1-runtime-ubuntu24.04";

/// Machines of Vast.ai: containers on hosts of independent owners, on demand and for bids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Least reliability of a host, from 0 to 1. Default 0.95.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_reliability: Option<f64>,
    /// Only hosts that Vast.ai verified. Default `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_only: Option<bool>,
    /// Lowest CUDA version that a host's driver must support. The version in the image's own name
    /// (`cuda:12.9.1-…`) counts too. Default 12.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 9.0, max = 99.0))]
    pub min_cuda: Option<f64>,
    /// Countries of the hosts: two-letter codes with commas between them (`US,CA`), or `EU`
    /// for the European Union. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128), regex(pattern = "^[A-Za-z]{2}(,[A-Za-z]{2})*$"))]
    pub geolocation: Option<String>,
    /// A machine for bids is bid for at the lowest price that wins times this, but never
    /// above the `maxHourlyCost` of the Machine. Default 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 10.0))]
    pub bid_multiplier: Option<f64>,
    /// Image of the containers. Vast.ai puts an SSH server into it and replaces its
    /// entrypoint. Default
    /// `nvcr.io/nvidia/cuda:12.9.1-runtime-ubuntu24.04`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub docker_image: Option<String>,
    /// Size of the disk of machines whose Pool names none; fixed for a machine's life, and part of
    /// its price. Default `100G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Only hosts with ports of their own, and SSH only through these: no relay. Default
    /// `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_direct_port: Option<bool>,
    /// Whether Pools of more than one machine may be put into an overlay network, which hosts of
    /// one physical cluster can form. Without it such Pools need `topology: Independent`. Default `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_overlay: Option<bool>,
    /// Longest wait for an overlay network to be made, and then for a machine to join it: both are
    /// tried again until then. A machine that is in no network by then is returned and replaced;
    /// where the network is not made, another Offer is tried. From `1s` to `10m`. Default `120s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = skyward_api::duration::between("vastai.overlayTimeout", "1s", "10m"))]
    pub overlay_timeout: Option<Lasting>,
}

/// Members of the European Union.
const EU: &[&str] = &[
    "AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IT", "LT",
    "LU", "LV", "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK",
];

impl Settings {
    /// Least reliability of a host.
    pub fn min_reliability(&self) -> f64 {
        self.min_reliability.unwrap_or(0.95)
    }

    /// Whether hosts must be verified.
    pub fn verified_only(&self) -> bool {
        self.verified_only.unwrap_or(true)
    }

    /// The image.
    pub fn image(&self) -> &str {
        self.docker_image.as_deref().unwrap_or(IMAGE)
    }

    /// CUDA version that a host must support: the higher of the setting and the image's.
    pub fn min_cuda(&self) -> f64 {
        let asked = self.min_cuda.unwrap_or(12.0);
        self.image()
            .rsplit_once("cuda:")
            .and_then(|(_, tag)| {
                let mut parts = tag.split(['.', '-']);
                let (major, minor) = (parts.next()?, parts.next()?);
                format!("{major}.{minor}").parse::<f64>().ok()
            })
            .map_or(asked, |needed| asked.max(needed))
    }

    /// Countries of the hosts; all when empty.
    pub fn countries(&self) -> Vec<String> {
        let mut codes: Vec<String> = Vec::new();
        for code in self.geolocation.as_deref().unwrap_or_default().split(',') {
            let code = code.trim().to_ascii_uppercase();
            match code.as_str() {
                "" => {}
                "EU" => codes.extend(EU.iter().map(|member| (*member).to_owned())),
                _ => codes.push(code),
            }
        }
        codes.sort();
        codes.dedup();
        codes
    }

    /// What the lowest bid is multiplied by.
    pub fn bid_multiplier(&self) -> Decimal {
        factor(self.bid_multiplier).unwrap_or_else(|| Decimal::new(12, 1))
    }

    /// Size in GB of the disk where the Pool names none.
    pub fn disk_gb(&self) -> u32 {
        self.disk.as_ref().map_or(100, Disk::gb)
    }

    /// Whether the relay may not be used.
    pub fn direct_only(&self) -> bool {
        self.require_direct_port.unwrap_or(false)
    }

    /// Whether machines may be put into overlay networks.
    pub fn use_overlay(&self) -> bool {
        self.use_overlay.unwrap_or(true)
    }

    /// Longest wait for one of these.
    pub fn overlay_timeout(&self) -> Duration {
        Lasting::or(self.overlay_timeout.as_ref(), Duration::from_mins(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn countries_are_codes_and_the_union_is_its_members() {
        let of = |text: &str| {
            Settings {
                geolocation: Some(text.into()),
                ..Settings::default()
            }
            .countries()
        };
        assert_eq!(of("us,CA"), ["CA", "US"]);
        assert!(of("EU").contains(&"DE".to_owned()) && !of("EU").contains(&"EU".to_owned()));
        assert!(Settings::default().countries().is_empty());
    }

    #[test]
    fn a_host_must_support_the_cuda_of_the_image() {
        let of = |image: &str, min: Option<f64>| {
            Settings {
                docker_image: Some(image.into()),
                min_cuda: min,
                ..Settings::default()
            }
            .min_cuda()
        };
        assert!((of("nvidia/cuda:12.4.1-base", None) - 12.4).abs() < 1e-9);
        assert!((of("nvidia/cuda:11.8.0-base", None) - 12.0).abs() < 1e-9);
        assert!((of("pytorch/pytorch", Some(12.6)) - 12.6).abs() < 1e-9);
    }
}
