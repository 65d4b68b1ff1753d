//! Where the files of a Task come from.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::LocalRef;

/// Where the files of a Task come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.configMap), has(self.git), has(self.bundle)].filter(x, x).size() == 1").message("source needs exactly one of configMap, git and bundle, such as source: {configMap: {name: code}}"))]
pub struct Source {
    /// A ConfigMap of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSource>,
    /// A git repository, which a machine of the Pool fetches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// Files that were uploaded into this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleSource>,
    /// Of these files only files that one of these patterns matches, as in a `.gitignore` (`src/**`, `*.py`): a
    /// pattern without a `/` in it means that name at any depth. All files when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = crate::rule::no_exceptions("include"))]
    pub include: Vec<String>,
    /// Files that are left out, as patterns like those of `include`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = crate::rule::no_exceptions("exclude"))]
    pub exclude: Vec<String>,
}

/// Files that `kubectl skyward upload FOLDER` brought into this namespace. They may be uploaded later, and are
/// kept for 24 hours, and then for as long as a Task or a CronTask names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleSource {
    /// Digest of their names and contents, as the upload prints it.
    #[schemars(length(max = 71))]
    #[x_kube(validation = crate::rule::matches("^sha256:[0-9a-f]{64}$", "digest must be the digest that kubectl skyward upload prints: sha256: and 64 digits and letters"))]
    pub digest: String,
}

/// A git repository. Its `ref` is resolved once, before anything starts: every attempt and rank runs the commit
/// in `status.source.commit`. Submodules, Git LFS, hooks and filters are not used; a link to a file of the
/// repository becomes a copy, any other link is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.url.startsWith('ssh://') || has(self.knownHosts)").message("a url with ssh:// needs knownHosts, which lists the keys of the host: write there what ssh-keyscan HOST prints, once you have compared it with the keys that the host publishes"))]
pub struct GitSource {
    /// `https://host/path` or `ssh://user@host/path`. Redirects to another place are refused.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = crate::rule::matches("^(https://[^/@]*/.*|ssh://([^/@:]*@)?[^/@]*/.*)$", "url must begin with https://HOST/ or ssh://USER@HOST/ and hold no password: put user and password into a Secret and name that in credentialsSecretRef"))]
    #[x_kube(validation = crate::rule::matches(r"^[a-z]+://([A-Za-z0-9][A-Za-z0-9._-]*@)?([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?/[A-Za-z0-9._~/+%=@,-]+$", "url has a host or path with characters that are not taken; in the path, write them as %20"))]
    pub url: String,
    /// Branch, tag or id of a commit. Default `HEAD`: the branch that the host names as its first.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = Rule::new("self.matches(r'^[A-Za-z0-9_][A-Za-z0-9._/+@#=-]*$') && !self.matches(r'([.][.]|//|/$|[.]$|[.]lock$)')").message("ref must be the name of a branch or tag, or the whole id of a commit"))]
    pub reference: Option<String>,
    /// Folder of the repository that becomes the working directory. Default: all of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches(r'(^|/)[.]{0,2}(/|$)')").message("path must be a folder of the repository, such as exp/train"))]
    pub path: Option<String>,
    /// A Secret of this namespace. Its key `host` names the host that it may be sent to: that of `url`, with the
    /// port if `url` has one. For https it has the keys `username` (default `git`) and `password`, a password
    /// or token; for ssh the key `ssh-privatekey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,
    /// Keys of the host of `url`, as lines of a `known_hosts` file: over ssh a host with another key is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub known_hosts: Option<String>,
}

impl GitSource {
    /// What is fetched: branch, tag or id of a commit.
    pub fn reference(&self) -> &str {
        self.reference.as_deref().unwrap_or("HEAD")
    }

    /// The host of its URL, with its port if it has one.
    pub fn host(&self) -> &str {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
        authority.rsplit_once('@').map_or(authority, |(_, host)| host)
    }

    /// Whether it is reached over ssh.
    pub fn is_ssh(&self) -> bool {
        self.url.starts_with("ssh://")
    }
}

/// A ConfigMap whose keys are files, at most 1 MiB together, as `kubectl create configmap NAME
/// --from-file=FOLDER` makes it. It may be created later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapSource {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The files that a Task runs with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Digest of their names and contents, such as `sha256:9f86…`.
    #[schemars(length(max = 80))]
    pub digest: String,
    /// Id of the commit that they were fetched from, where the source is git.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub commit: String,
}
