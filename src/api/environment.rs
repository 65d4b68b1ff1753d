//! Environments: what a Pool's `image` makes of a machine for its Tasks, and how a changed one goes from machine to
//! machine. Records of the controller only; what users write is `Image` in `pool`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::BootstrapFailure;

/// Most Debian packages of one machine: as many as `image.apt` has at most.
pub const MAX_APT: usize = 256;

/// The environment of the runs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineEnvironment {
    /// Hash of the environment that runs find; empty before the machine is Ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub hash: String,
    /// Hash of the environment that is being made beside it. A machine that took runs takes no new
    /// ones meanwhile.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub changing_to: String,
    /// Digests of the entries of `image.apt` that were or may have been installed. Debian packages are
    /// not taken away again: a machine that has one that the Pool does not ask for is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 8)))]
    pub apt: Vec<String>,
    /// Takes the place of `spec.templateHash` where the record is older than environments that change
    /// in place: that digest contains the image.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub template_hash: String,
    /// The last change that failed; the machine has its former environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<EnvironmentFailure>,
}

impl MachineEnvironment {
    /// Whether its environment is being made or changed.
    pub fn is_changing(&self) -> bool {
        !self.changing_to.is_empty()
    }
}

/// The environment that a Pool asks for, and how far its machines are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolEnvironment {
    /// Keyed hash of `image` without `env` and `envFrom`, and of the content of the Secrets and
    /// ConfigMaps that the steps read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub hash: String,
    /// Name of the Machine whose turn it is to change its environment: it takes no new runs, and
    /// begins when it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub turn: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_since: Option<Time>,
    /// Whether a machine has this environment. Until one has, the machine whose turn it is tries it for
    /// all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proven: bool,
    /// Why no other machine changes its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<EnvironmentFailure>,
}

/// A change of an environment that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentFailure {
    /// Hash of the environment that could not be made.
    #[schemars(length(max = 16))]
    pub hash: String,
    /// Name of the Machine.
    #[schemars(length(max = 253))]
    pub machine: String,
    /// Which step, and how.
    pub failure: BootstrapFailure,
    /// In words, with the end of its output.
    #[schemars(length(max = 1500))]
    pub message: String,
    /// When.
    pub at: Time,
}
