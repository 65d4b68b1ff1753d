//! Bodies of REST v2, strict: a field that is not here is a violation.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::volumes::Storage;
use crate::core::cloud::{Call, Refusal};
use crate::core::http::Request;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Tier {
    #[default]
    Secure,
    Community,
}

impl Tier {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Secure => "SECURE",
            Self::Community => "COMMUNITY",
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Gpu {
    pub(super) id: String,
    pub(super) count: Option<u32>,
    pub(super) allowed_cuda_versions: Option<Vec<String>>,
    pub(super) min_cuda_version: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Cpu {
    pub(super) id: String,
    pub(super) vcpu_count: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Persistent {
    pub(super) size: u32,
    pub(super) path: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Network {
    pub(super) volume_id: String,
    pub(super) path: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mounts {
    pub(super) persistent: Option<Persistent>,
    pub(super) network: Option<Vec<Network>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreatePod {
    pub(super) name: String,
    pub(super) image: Option<String>,
    pub(super) args: Option<String>,
    pub(super) disk: Option<u32>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    pub(super) ports: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given_or_null")]
    pub(super) registry: Option<Value>,
    #[serde(default)]
    pub(super) cloud: Tier,
    pub(super) gpu: Option<Gpu>,
    pub(super) cpu: Option<Cpu>,
    #[serde(default)]
    pub(super) data_center_ids: Vec<String>,
    #[serde(default)]
    pub(super) global_networking: bool,
    #[serde(default)]
    pub(super) mounts: Mounts,
    pub(super) start_ssh: Option<bool>,
    #[serde(rename = "startJupyter")]
    _start_jupyter: Option<bool>,
    pub(super) template_id: Option<String>,
}

/// Changes of a pod: what is left out stays, and a registry may be taken away.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpdatePod {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) args: Option<String>,
    pub(super) disk: Option<u32>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) ports: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given_or_null")]
    pub(super) registry: Option<Value>,
    #[serde(default)]
    pub(super) mounts: Mounts,
    pub(super) locked: Option<bool>,
    pub(super) global_networking: Option<bool>,
    pub(super) template_id: Option<String>,
}

/// Where a template has a disk: never a network volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TemplateMounts {
    pub(super) persistent: Option<Persistent>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateTemplate {
    pub(super) name: String,
    pub(super) image: String,
    #[serde(default)]
    pub(super) args: String,
    pub(super) disk: Option<u32>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) ports: Vec<String>,
    pub(super) registry: Option<String>,
    #[serde(default)]
    pub(super) mounts: TemplateMounts,
    #[serde(default)]
    pub(super) allowed_cuda_versions: Vec<String>,
    pub(super) category: Option<String>,
    #[serde(default)]
    pub(super) public: bool,
    #[serde(default)]
    pub(super) serverless: bool,
    pub(super) start_ssh: Option<bool>,
    pub(super) start_jupyter: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpdateTemplate {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) args: Option<String>,
    pub(super) disk: Option<u32>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) ports: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given_or_null")]
    pub(super) registry: Option<Value>,
    pub(super) mounts: Option<TemplateMounts>,
    pub(super) allowed_cuda_versions: Option<Vec<String>>,
    pub(super) category: Option<String>,
    pub(super) public: Option<bool>,
    pub(super) serverless: Option<bool>,
    pub(super) start_ssh: Option<bool>,
    pub(super) start_jupyter: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateVolume {
    pub(super) name: String,
    pub(super) size: u32,
    pub(super) data_center: String,
    #[serde(default, rename = "type")]
    pub(super) storage: Storage,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateVolume {
    pub(super) name: Option<String>,
    pub(super) size: Option<u32>,
}

/// Name and password are ignored: the simulator pulls no images.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateRegistry {
    pub(super) name: String,
    #[serde(rename = "username")]
    _username: String,
    #[serde(rename = "password")]
    _password: String,
}

/// A field that is there, as `null` or not.
fn given_or_null<'de, D: serde::Deserializer<'de>>(given: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(given).map(Some)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Compute {
    pub(super) gpu_type_id: String,
    pub(super) gpu_count_per_pod: u32,
    pub(super) pod_count: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateCluster {
    pub(super) name: String,
    pub(super) r#type: String,
    pub(super) compute: Compute,
    pub(super) image: Option<String>,
    #[serde(default)]
    pub(super) args: String,
    pub(super) disk: Option<u32>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) ports: Vec<String>,
    #[serde(default)]
    pub(super) data_center_ids: Vec<String>,
    #[serde(default)]
    pub(super) mounts: Mounts,
    #[serde(default)]
    pub(super) start_ssh: bool,
    #[serde(rename = "startJupyter")]
    _start_jupyter: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Action {
    Start,
    Stop,
    Restart,
    Terminate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Act {
    pub(super) action: Action,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    pub(super) keys: Vec<String>,
}

/// What is wrong with a request by our own strict types.
pub(super) fn check(request: &Request, call: &Call) -> Vec<String> {
    let result = match call.name {
        "pods.create" => body::<CreatePod>(request).map(drop),
        "pods.update" => body::<UpdatePod>(request).map(drop),
        "pods.action" => body::<Act>(request).map(drop),
        "clusters.create" => body::<CreateCluster>(request).map(drop),
        "templates.create" => body::<CreateTemplate>(request).map(drop),
        "templates.update" => body::<UpdateTemplate>(request).map(drop),
        "volumes.create" => body::<CreateVolume>(request).map(drop),
        "volumes.update" => body::<UpdateVolume>(request).map(drop),
        "registries.create" => body::<CreateRegistry>(request).map(drop),
        "keys.replace" => body::<Keys>(request).map(drop),
        _ => return Vec::new(),
    };
    result.err().into_iter().collect()
}

/// The body as one of these types.
pub(super) fn body<T: DeserializeOwned>(request: &Request) -> Result<T, String> {
    serde_json::from_slice(&request.body).map_err(|error| format!("the body: {error}"))
}

/// The same where the check has been passed.
pub(super) fn given<T: DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    body(request).map_err(Refusal::Bad)
}
