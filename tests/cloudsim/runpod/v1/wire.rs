//! Bodies of REST v1, strict: a field that is not here is a violation.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::core::cloud::Call;
use crate::core::http::Request;
use crate::runpod::wire::{CreateRegistry, Tier, body};

/// In which order what is listed is tried: all the same to a simulator that takes the first.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Priority {
    Availability,
    Custom,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Compute {
    #[default]
    Gpu,
    Cpu,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreatePod {
    pub(super) name: Option<String>,
    pub(super) image_name: Option<String>,
    pub(super) template_id: Option<String>,
    #[serde(default)]
    pub(super) compute_type: Compute,
    #[serde(default)]
    pub(super) cloud_type: Tier,
    #[serde(default)]
    pub(super) gpu_type_ids: Vec<String>,
    pub(super) gpu_count: Option<u32>,
    #[serde(default)]
    pub(super) cpu_flavor_ids: Vec<String>,
    pub(super) vcpu_count: Option<u32>,
    #[serde(default)]
    pub(super) data_center_ids: Vec<String>,
    #[serde(default)]
    pub(super) country_codes: Vec<String>,
    #[serde(default)]
    pub(super) allowed_cuda_versions: Vec<String>,
    pub(super) container_disk_in_gb: Option<u32>,
    pub(super) volume_in_gb: Option<u32>,
    pub(super) volume_mount_path: Option<String>,
    pub(super) network_volume_id: Option<String>,
    pub(super) container_registry_auth_id: Option<String>,
    pub(super) docker_entrypoint: Option<Vec<String>>,
    pub(super) docker_start_cmd: Option<Vec<String>>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    pub(super) ports: Option<Vec<String>>,
    #[serde(default)]
    pub(super) interruptible: bool,
    #[serde(default)]
    pub(super) locked: bool,
    #[serde(default)]
    pub(super) global_networking: bool,
    #[serde(default)]
    pub(super) support_public_ip: bool,
    #[serde(rename = "gpuTypePriority")]
    _gpu_type_priority: Option<Priority>,
    #[serde(rename = "cpuFlavorPriority")]
    _cpu_flavor_priority: Option<Priority>,
    #[serde(rename = "dataCenterPriority")]
    _data_center_priority: Option<Priority>,
    #[serde(rename = "minRAMPerGPU")]
    _min_ram_per_gpu: Option<u32>,
    #[serde(rename = "minVCPUPerGPU")]
    _min_vcpu_per_gpu: Option<u32>,
    #[serde(rename = "minDiskBandwidthMBps")]
    _min_disk_bandwidth: Option<f64>,
    #[serde(rename = "minDownloadMbps")]
    _min_download: Option<f64>,
    #[serde(rename = "minUploadMbps")]
    _min_upload: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpdatePod {
    pub(super) name: Option<String>,
    pub(super) image_name: Option<String>,
    pub(super) container_disk_in_gb: Option<u32>,
    pub(super) volume_in_gb: Option<u32>,
    pub(super) volume_mount_path: Option<String>,
    pub(super) container_registry_auth_id: Option<String>,
    pub(super) docker_entrypoint: Option<Vec<String>>,
    pub(super) docker_start_cmd: Option<Vec<String>>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) ports: Option<Vec<String>>,
    pub(super) locked: Option<bool>,
    pub(super) global_networking: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateTemplate {
    pub(super) name: String,
    pub(super) image_name: String,
    pub(super) category: Option<String>,
    pub(super) container_disk_in_gb: Option<u32>,
    pub(super) volume_in_gb: Option<u32>,
    pub(super) volume_mount_path: Option<String>,
    pub(super) container_registry_auth_id: Option<String>,
    #[serde(default)]
    pub(super) docker_entrypoint: Vec<String>,
    #[serde(default)]
    pub(super) docker_start_cmd: Vec<String>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    pub(super) ports: Option<Vec<String>>,
    #[serde(default)]
    pub(super) readme: String,
    #[serde(default)]
    pub(super) is_public: bool,
    #[serde(default)]
    pub(super) is_serverless: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpdateTemplate {
    pub(super) name: Option<String>,
    pub(super) image_name: Option<String>,
    pub(super) container_disk_in_gb: Option<u32>,
    pub(super) volume_in_gb: Option<u32>,
    pub(super) volume_mount_path: Option<String>,
    pub(super) container_registry_auth_id: Option<String>,
    pub(super) docker_entrypoint: Option<Vec<String>>,
    pub(super) docker_start_cmd: Option<Vec<String>>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) ports: Option<Vec<String>>,
    pub(super) readme: Option<String>,
    pub(super) is_public: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateVolume {
    pub(super) name: String,
    pub(super) size: u32,
    pub(super) data_center_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateVolume {
    pub(super) name: Option<String>,
    pub(super) size: Option<u32>,
}

/// What is wrong with a request by our own strict types.
pub(super) fn check(request: &Request, call: &Call) -> Vec<String> {
    let result = match call.name {
        "v1.pods.create" => body::<CreatePod>(request).map(drop),
        "v1.pods.update" => body::<UpdatePod>(request).map(drop),
        "v1.templates.create" => body::<CreateTemplate>(request).map(drop),
        "v1.templates.update" => body::<UpdateTemplate>(request).map(drop),
        "v1.volumes.create" => body::<CreateVolume>(request).map(drop),
        "v1.volumes.update" => body::<UpdateVolume>(request).map(drop),
        "v1.registries.create" => body::<CreateRegistry>(request).map(drop),
        _ => return Vec::new(),
    };
    result.err().into_iter().collect()
}
