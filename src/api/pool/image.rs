//! What runs on the machines of a Pool find there: Python, packages, variables.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{EnvFrom, EnvVar, LocalRef};

/// Software and environment of each machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Version of Python for functions and python scripts: `auto` (default: the machine's
    /// own if it is 3.10 or newer, else 3.12), or for example `3.12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = crate::rule::matches(r"^(auto|3\.[0-9]{1,2}(\.[0-9]{1,2})?)$", "python must be auto or a version such as 3.12 (in quotes, or YAML makes it a number)"))]
    pub python: Option<String>,
    /// Python packages, as pip takes them, such as `[torch, "numpy>=2"]`; no options of pip. In the place of a password
    /// in a URL stands a variable of `stepsEnvFrom`, such as `exp @ git+https://${TOKEN}@git.example/exp`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 1024)))]
    #[x_kube(validation = crate::rule::each_matches(r"^[ \t]*[^ \t\r\n-][^\r\n]*$", "pip takes requirements such as torch or \"numpy>=2\", each line of a requirements file as its own entry, and no options that begin with -: for --index-url and --extra-index-url write pipIndexes"))]
    #[x_kube(validation = crate::rule::none_matches(crate::rule::URL_WITH_PASSWORD, "everybody who may read the Pool would read the password in a URL of pip: write a variable in its place, as in exp @ git+https://${TOKEN}@git.example/exp, and put TOKEN into a Secret that stepsEnvFrom names; for a package of an index write pipIndexes with credentialsSecretRef"))]
    pub pip: Vec<String>,
    /// Indexes for some of the packages, such as `[{url: "https://pypi.example/simple",
    /// packages: [exp-core], credentialsSecretRef: {name: index}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub pip_indexes: Vec<PipIndex>,
    /// Debian or Ubuntu packages, such as `[git, libgl1]`. Needs root on the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 1024)))]
    #[x_kube(validation = crate::rule::each_matches("^[a-z0-9][a-z0-9+.:=~-]*$", "apt takes names of Debian packages such as git or libgl1, each as its own entry, and no options that begin with -"))]
    pub apt: Vec<String>,
    /// Environment of every Task, such as `[{name: HF_HOME, value: /data/hf}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Environment of every Task from Secrets and ConfigMaps of the Pool's namespace, such as
    /// `[{secretRef: {name: wandb}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvFrom>,
    /// Variables for the steps that prepare a machine alone, from Secrets and ConfigMaps of the
    /// Pool's namespace, such as those of a proxy (`https_proxy`) or of a default index
    /// (`UV_DEFAULT_INDEX`); `env` wins over them. No Task finds them, and what a step says is
    /// shown without the values of Secrets. A changed value changes the environment as a changed `image`
    /// does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub steps_env_from: Vec<EnvFrom>,
    /// Shell snippets, each by the name of a variable. Bootstrap runs each snippet once on each machine, and
    /// what the snippet prints is the value of its variable in every Task, such as
    /// `{CUDA_HOME: "dirname $(dirname $(command -v nvcc))"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 4096}))]
    #[x_kube(validation = crate::rule::each_matches("^[A-Za-z_][A-Za-z0-9_]*$", "the names in shellVars must be names of environment variables, such as CUDA_HOME"))]
    pub shell_vars: BTreeMap<String, String>,
    /// ConfigMap of the Pool's namespace whose key `ca.crt` holds certificates to trust
    /// besides the machine's own, for example those of a company proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<LocalRef>,
}

/// An index that only some packages come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipIndex {
    /// Its URL, without credentials.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = crate::rule::matches("^https?://", "url must begin with https:// or http://"))]
    #[x_kube(validation = crate::rule::matches("^([^@]*|[a-z]+://[^/@]*/.*)$", "everybody who may read the Pool would read the password in this url: write the url without it, make a Secret with the keys username and password, and name that in credentialsSecretRef"))]
    pub url: String,
    /// Secret of the Pool's namespace with the keys `username` and `password`, as Secrets of type
    /// `kubernetes.io/basic-auth` have them. Without `username` it is `__token__`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,
    /// The packages that come from it.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 256)))]
    pub packages: Vec<String>,
}
