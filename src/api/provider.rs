//! Provider: one account at one cloud, or, as `container`, this cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use skyward_core::provider::{HostKeys, SelfStop};

use crate::{
    duration::{Duration, DurationOrNever},
    machine::Market,
    shared::{Amount, Cpu, LocalRef, Size},
};

/// Where machines may come from: one account at one cloud, or the cluster itself
/// (`container`: each machine is a Pod). Written by the platform engineer. The page docs/providers/README.md compares
/// the kinds; `skyward check-provider -f FILE` looks at an account before it is used.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "skyward.dev",
    version = "v1alpha1",
    kind = "Provider",
    plural = "providers",
    shortname = "skprov",
    category = "skyward",
    status = "ProviderStatus",
    doc = "Where machines may come from: one account at one cloud, or this cluster (container).",
    printcolumn(name = "Type", type_ = "string", json_path = ".status.type"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(name = "Offers", type_ = "integer", json_path = ".status.offers"),
    printcolumn(name = "Machines", type_ = "integer", json_path = ".status.machines"),
    printcolumn(name = "$/h", type_ = "string", json_path = ".status.cost.hourly"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Refreshed",
        type_ = "date",
        json_path = ".status.refreshedAt",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.container) || !has(self.requestTimeout)").message("a Provider of kind container asks no cloud: leave requestTimeout out").field_path(".requestTimeout"))]
#[x_kube(validation = Rule::new("!has(self.container) || !has(self.overridable) || self.overridable.size() == 0").message("a Provider of kind container has no settings that a Pool may override; leave overridable out, and write another Provider with other settings").field_path(".overridable"))]
pub struct ProviderSpec {
    /// Machines are Pods of this cluster, in the namespace of their Pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSettings>,
    /// Settings of every other kind of account under its name, such as `aws`. Opaque here:
    /// the registry of providers knows their types and gives the CRD their schemas, so
    /// that a new cloud touches no other crate.
    #[serde(flatten)]
    #[schemars(skip)]
    pub clouds: BTreeMap<String, serde_json::Value>,
    /// Secret with the credentials of the account, such as `{name: verda-keys}`, always in the
    /// namespace of the operator.
    /// Its keys are the environment variables that the page of the provider names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,
    /// Settings that a Pool may override for its own machines in `candidates[].settings`,
    /// by their names. None by default. Kind `container` has no such settings: a user who writes
    /// Pools must not choose what Pods may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 64)))]
    pub overridable: Vec<String>,
    /// Namespaces whose Pools may use this Provider, by their labels, such as
    /// `{matchLabels: {team: research}}`. `{}` admits all; Kubernetes labels each namespace with its
    /// name, so `{matchLabels: {kubernetes.io/metadata.name: research}}` admits that one.
    pub allowed_namespaces: LabelSelector,
    /// Most that Pools may take from this Provider, such as
    /// `{machines: 20, hourlyCost: "50", monthlyCost: "5000"}`; checked before an order is recorded,
    /// and again before it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Which host keys are trusted. `TrustOnFirstUse` (default) prefers a key that the cloud
    /// reports and otherwise pins the first key that a machine shows. `Verified` demands a key that
    /// the cloud reports, or one that the machine proves with a token of its boot data;
    /// `status.hostKeys` says which of them this kind has, and where it has neither nothing is
    /// ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key_policy: Option<HostKeyPolicy>,
    /// How often offers are read again and the account is checked. Default `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("refreshInterval", "10s"))]
    pub refresh_interval: Option<Duration>,
    /// Longest wait for one answer of the cloud, from `1s` to `5m`; at AWS its retries are included.
    /// Default `30s`, at TensorDock `120s`. Not for `container`, which asks the API server alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("requestTimeout", "1s", "5m"))]
    pub request_timeout: Option<Duration>,
    /// A machine that runs nothing and whose controller is gone stops itself after this long; the
    /// page of the kind says whether that ends its bill. Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("instanceTimeout", "60s").message("instanceTimeout must be at least 60s, or a restart of the controller would cost machines"))]
    pub instance_timeout: Option<Duration>,
    /// How long a Pool with machines of this Provider may be idle before it sleeps, where the Pool does not set its own
    /// `idleTimeout`; at least `10s`, or `Never`. Default `10m`, and `Never` for `container`, whose machines
    /// cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("idleTimeout", "10s"))]
    pub idle_timeout: Option<DurationOrNever>,
}

impl ProviderSpec {
    /// Name of the kind of account and its settings as JSON; `None` when the object names
    /// none or more than one, which the CRD refuses.
    pub fn account(&self) -> Option<(&str, serde_json::Value)> {
        let container = self
            .container
            .as_ref()
            .and_then(|settings| serde_json::to_value(settings).ok())
            .map(|settings| (CONTAINER, settings));
        let mut kinds = container.into_iter().chain(
            self.clouds
                .iter()
                .filter(|(_, settings)| !settings.is_null())
                .map(|(name, settings)| (name.as_str(), settings.clone())),
        );
        kinds.next().filter(|_| kinds.next().is_none())
    }
}

/// Name of the kind of account whose machines are Pods.
pub const CONTAINER: &str = "container";

/// Which host keys of machines are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum HostKeyPolicy {
    /// Pin the first key that a machine shows when the cloud does not report it.
    TrustOnFirstUse,
    /// Refuse a machine whose key neither the cloud nor a proof of the machine vouches for.
    Verified,
}

/// Most that Pools may take from a Provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Machines at the same time, over all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub machines: Option<u32>,
    /// Machines at the same time in each namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub machines_per_namespace: Option<u32>,
    /// USD per hour of all machines together, as a decimal such as `"50"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("limits.hourlyCost", "50"))]
    pub hourly_cost: Option<Amount>,
    /// USD per hour of the machines of each namespace, such as `"10"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("limits.hourlyCostPerNamespace", "10"))]
    pub hourly_cost_per_namespace: Option<Amount>,
    /// USD that all machines together may cost in a calendar month (UTC), such as `"5000"`. When it is
    /// spent, no more machines are ordered; machines that run go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("limits.monthlyCost", "5000"))]
    pub monthly_cost: Option<Amount>,
    /// USD that the machines of each namespace may cost in a calendar month (UTC), such as `"1000"`.
    /// When it is spent, no more machines are ordered for that namespace; machines that run go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("limits.monthlyCostPerNamespace", "1000"))]
    pub monthly_cost_per_namespace: Option<Amount>,
    /// Namespaces with limits of their own: the first entry whose selector fits decides. Limits
    /// that it leaves out, and all limits where no entry fits, are those of `machinesPerNamespace`,
    /// `hourlyCostPerNamespace` and `monthlyCostPerNamespace`. The limits of the whole Provider
    /// stand for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub namespaces: Vec<NamespaceLimits>,
}

/// Most that each of the namespaces that a selector chooses may take from a Provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceLimits {
    /// The namespaces, by their labels, such as `{matchLabels: {team: research}}`; one of them
    /// by its name: `{matchLabels: {kubernetes.io/metadata.name: research}}`.
    pub selector: LabelSelector,
    /// Machines at the same time in each of these namespaces, in the place of `machinesPerNamespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub machines: Option<u32>,
    /// USD per hour of the machines of each of these namespaces, such as `"80"`, in the place of
    /// `hourlyCostPerNamespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("limits.namespaces[].hourlyCost", "80"))]
    pub hourly_cost: Option<Amount>,
    /// USD that the machines of each of these namespaces may cost in a calendar month (UTC), such as
    /// `"7000"`, in the place of `monthlyCostPerNamespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("limits.namespaces[].monthlyCost", "7000"))]
    pub monthly_cost: Option<Amount>,
}

/// How Pods of the Container provider look. `binary`, `network` and `container_prefix`
/// of the Python library are matters of a local Docker and have no counterpart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerSettings {
    /// Image of the Pods: any Linux with sshd, bash and, for functions, Python 3.10 or newer.
    /// Default: the operator's `--node-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// When the image is pulled. Default `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets with registry credentials, in the namespace of the Pool. A missing Secret that is
    /// not `optional` stops the order and is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<LocalRef>,
    /// User that SSH logs in as. Default `root`, which may install packages; with
    /// `securityProfile: Restricted` it is an ordinary user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = crate::rule::matches("^[a-z_][a-z0-9_-]{0,31}$", "sshUser must be the name of a Linux user, such as root or worker"))]
    pub ssh_user: Option<String>,
    /// What the Pod may do on its node. Default `Default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_profile: Option<SecurityProfile>,
    /// Run the Pods privileged, for example to mount file systems. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileged: Option<bool>,
    /// Service account of the Pods; its token is never mounted. Default: the namespace's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Nodes that Pods may run on, by their labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that Pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Runtime class of the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// What a Pod asks for where its Pool does not say (`cpu`, `memory`, `disk`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ContainerResources>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum PullPolicy {
    /// At each start.
    Always,
    /// When the node has none.
    IfNotPresent,
    /// Not at all: the node must have it.
    Never,
}

impl PullPolicy {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Rights of a Pod of the Container provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum SecurityProfile {
    /// Root inside the Pod, with the container runtime's ordinary capabilities.
    Default,
    /// All that the restricted Pod Security Standard asks for; then `apt` packages cannot be
    /// installed.
    Restricted,
}

/// What a Pod asks for by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerResources {
    /// Requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,
    /// Limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of what a node can give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// CPUs, such as `500m` or `4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory, such as `512Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("memory", "64Ti"))]
    pub memory: Option<Size>,
    /// Disk for the Pod's own files, such as `10Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("ephemeralStorage", "64Ti"))]
    pub ephemeral_storage: Option<Size>,
}

/// What the controller knows of the account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// Which kind of account it is, such as `container`.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub type_: String,
    /// The account as the cloud names it; for `container` the UID of this cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub account: String,
    /// Number of Offer objects.
    #[serde(default)]
    pub offers: u32,
    /// Number of Machine objects that use it.
    #[serde(default)]
    pub machines: u32,
    /// What its machines cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<ProviderCost>,
    /// Offers that are not ordered for now, because a machine was dearer than its offer said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub barred_offers: Vec<BarredOffer>,
    /// When offers were last read in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refreshed_at: Option<Time>,
    /// Whether a machine that stops itself ends its bill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_stop: Option<SelfStop>,
    /// What vouches for the host key of a machine, for `hostKeyPolicy: Verified`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_keys: Option<HostKeys>,
    /// The decision about machines without a record after this cluster was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_restore: Option<RestoreDecision>,
    /// `Ready`, `Stalled`, `RestoreDetected`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// An offer that is not ordered for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BarredOffer {
    /// Name of the Offer.
    #[schemars(length(max = 253))]
    pub offer: String,
    /// The market on which it is not ordered.
    pub market: Market,
    /// Until when it is not ordered.
    pub until: Time,
    /// Why it is not ordered.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// The decision about machines without a record after this cluster was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreDecision {
    /// What happens to the machines in `machines`.
    pub decision: AfterRestore,
    /// Digest of the ids of these machines, as the condition `RestoreDetected` named it.
    #[schemars(length(max = 64))]
    pub digest: String,
    /// When the decision was taken.
    pub decided_at: Time,
    /// Highest epoch that machines proved; the next leader's is above it.
    #[serde(default)]
    #[schemars(with = "i64", range(min = 0))]
    pub epoch: u64,
    /// Highest attempt of such machines of existing Pools, by the Pools' UIDs; the next attempt of
    /// each of these Pools is above it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 1000))]
    pub attempts: BTreeMap<String, u32>,
    /// Ids of the machines at the provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 256)))]
    pub machines: Vec<String>,
    /// Ids of machines for which the opposite was decided earlier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 256)))]
    pub earlier: Vec<String>,
}

impl RestoreDecision {
    /// The decision about the machine of that id.
    pub fn about(&self, id: &str) -> Option<AfterRestore> {
        let names = |ids: &[String]| ids.iter().any(|known| known == id);
        if names(&self.machines) {
            Some(self.decision)
        } else if names(&self.earlier) {
            Some(match self.decision {
                AfterRestore::Adopt => AfterRestore::End,
                AfterRestore::End => AfterRestore::Adopt,
            })
        } else {
            None
        }
    }
}

/// What happens to machines that a restored cluster does not remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum AfterRestore {
    /// The machines are kept: they stop themselves when their work is over.
    Adopt,
    /// The machines are ended.
    End,
}

/// What the machines of a Provider cost, in USD as decimals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderCost {
    /// Per hour, of the machines that exist.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub hourly: String,
    /// Of machines that are gone.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub settled: String,
    /// The part of `settled` that was spent on the spot market.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub spot: String,
    /// The part of `settled` that was spent on demand.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub on_demand: String,
    /// How much more the settled part would have cost on demand.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub savings_vs_on_demand: String,
    /// The month (UTC) that `settledThisMonth` is about, as `2026-11`.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub month: String,
    /// The part of `settled` that was spent in this month.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub settled_this_month: String,
    /// `settledThisMonth` by namespace, for at most 1000 namespaces. Each stands under a pseudonym
    /// that only the operator can make, since tenants may read this object; the metrics
    /// `skyward_pool_*` have namespaces by name. A namespace that was left out in favour of another
    /// begins with `settledThisMonthElsewhere` when it spends again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 1000, "additionalProperties" = {"type": "string", "maxLength": 40}))]
    pub settled_this_month_by_namespace: BTreeMap<String, String>,
    /// Most that a namespace that is not listed there may have spent in this month; empty while
    /// all namespaces are listed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 40))]
    pub settled_this_month_elsewhere: String,
    /// UIDs of machines that are settled and whose records still exist, so that none counts
    /// twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000), inner(length(max = 64)))]
    pub counted: Vec<String>,
}
