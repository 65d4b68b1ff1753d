//! Settings of a RunPod account and what its Secret holds.

use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::shared::Disk;
use skyward_core::CredentialKey;
use skyward_provider_kit::factor;

/// Key of the API key.
pub const API_KEY: &str = "RUNPOD_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API key (console of RunPod, Settings, API Keys) with the right to read and write pods, over REST and GraphQL",
}];

/// Name of the stored registry credential that is used when there is one of this name.
pub const DEFAULT_REGISTRY: &str = "docker hub";
/// CUDA version of the default images.
pub const CUDA: &str = "12.8";

/// Machines of RunPod: containers with GPUs in its own data centers (secure cloud) or
/// those of partners (community cloud), on demand and spot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// How machines of one Pool are put together. Default `individual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_mode: Option<ClusterMode>,
    /// Whether machines get an address in RunPod's global network, by which they reach each
    /// other: secure cloud, NVIDIA GPUs, on demand, some data centers. Default: those of
    /// Pools that need it (`topology: Connected` and more than one machine). `true`: all that can;
    /// `false`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_networking: Option<bool>,
    /// Which cloud is offered. Default `secure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_type: Option<CloudType>,
    /// Image of the containers: Debian or Ubuntu, better with openssh-server in it, which is
    /// installed at start otherwise and takes a minute. Its entrypoint must run its
    /// arguments, as those of `nvidia/cuda` and `runpod/*` do. Default: `nvidia/cuda` with CUDA 12.8 and the Ubuntu of
    /// `ubuntu`; plain `ubuntu` for machines without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Ubuntu of the default image. Default `newest`, which is 24.04.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ubuntu: Option<Ubuntu>,
    /// Lowest CUDA version that the host's driver must support, such as `12.8`. Default: that
    /// of the default image; none with an image of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), regex(pattern = r"^[0-9]+\.[0-9]+$"))]
    pub min_cuda_version: Option<String>,
    /// Size of the container's disk where the Pool names none. Default `50G`; at most `20G` on
    /// machines without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<Disk>,
    /// Size of the disk that is mounted at `volumeMountPath`, at least `10G`; `"0"` for none.
    /// Machines without GPUs have none. Default `20G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Disk<true>>,
    /// Where that disk is mounted. Default `/workspace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), regex(pattern = "^/[A-Za-z0-9._/-]+$"))]
    pub volume_mount_path: Option<String>,
    /// Data centers that machines may be in, as RunPod names them (`EU-RO-1`); spot orders go
    /// to the first. Default: all (`global` in the Python library).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 32)))]
    pub data_center_ids: Vec<String>,
    /// Ports that are published besides 22/tcp, as `8888/http` or `5000/tcp`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 10),
        inner(length(max = 16), regex(pattern = "^[0-9]+/(tcp|http)$"))
    )]
    pub ports: Vec<String>,
    /// Which CPUs machines without GPUs have. Default `3c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_clock: Option<CpuClock>,
    /// A spot machine is bid for at the lowest price that wins times this, but never above
    /// the `maxHourlyCost` of the Machine. Default 1. A machine with exactly the lowest is lost
    /// easily: 1.1 is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 10.0))]
    pub bid_multiplier: Option<f64>,
    /// Name of a registry credential stored at RunPod that pulls the image; `""` for none.
    /// Default `docker hub`, if there is one of this name: anonymous pulls are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub registry_auth: Option<String>,
}

/// How machines of one Pool are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, transform = skyward_core::schema::explain_variants)]
pub enum ClusterMode {
    /// Each machine is a Pod of its own.
    Individual,
}

/// Which cloud is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, transform = skyward_core::schema::explain_variants)]
pub enum CloudType {
    /// RunPod's own data centers.
    #[default]
    Secure,
    /// Machines of partners.
    Community,
    /// Both.
    All,
}

/// Ubuntu of the default image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline, transform = skyward_core::schema::explain_variants)]
pub enum Ubuntu {
    /// 20.04.
    #[serde(rename = "20.04")]
    Focal,
    /// 22.04.
    #[serde(rename = "22.04")]
    Jammy,
    /// 24.04.
    #[serde(rename = "24.04")]
    Noble,
    /// The newest there is.
    #[default]
    #[serde(rename = "newest")]
    Newest,
}

/// Which CPUs machines without GPUs have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline, transform = skyward_core::schema::explain_variants)]
pub enum CpuClock {
    /// Third generation.
    #[default]
    #[serde(rename = "3c")]
    Third,
    /// Fifth generation, faster.
    #[serde(rename = "5c")]
    Fifth,
}

impl CpuClock {
    /// Id of the flavour in the catalogue.
    pub const fn flavour(self) -> &'static str {
        match self {
            Self::Third => "cpu3c",
            Self::Fifth => "cpu5c",
        }
    }
}

impl Settings {
    /// Image of a machine.
    pub fn image(&self, gpus: bool) -> String {
        let ubuntu = match self.ubuntu.unwrap_or_default() {
            Ubuntu::Focal => "20.04",
            Ubuntu::Jammy => "22.04",
            Ubuntu::Noble | Ubuntu::Newest => "24.04",
        };
        match &self.image {
            Some(image) => image.clone(),
            None if gpus => format!("nvidia/cuda:{CUDA}.0-cudnn-runtime-ubuntu{ubuntu}"),
            None => format!("ubuntu:{ubuntu}"),
        }
    }

    /// CUDA version that the host must support.
    pub fn min_cuda(&self) -> Option<&str> {
        match (&self.min_cuda_version, &self.image) {
            (Some(version), _) => Some(version),
            (None, None) => Some(CUDA),
            (None, Some(_)) => None,
        }
    }

    /// Ports that are published: SSH first.
    pub fn ports(&self) -> Vec<String> {
        let mut ports = vec!["22/tcp".to_owned()];
        ports.extend(self.ports.iter().filter(|port| *port != "22/tcp").cloned());
        ports
    }

    /// What the lowest bid is multiplied by.
    pub fn bid_multiplier(&self) -> Decimal {
        factor(self.bid_multiplier).unwrap_or(Decimal::ONE)
    }

    /// The disk for what is kept: size and path.
    pub fn volume(&self) -> Option<(u32, &str)> {
        let path = self.volume_mount_path.as_deref().unwrap_or("/workspace");
        Some((self.volume.as_ref().map_or(20, Disk::gb), path))
            .filter(|(size, _)| *size > 0)
            // RunPod makes no smaller one.
            .map(|(size, path)| (size.max(10), path))
    }
}
