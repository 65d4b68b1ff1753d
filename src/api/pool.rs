//! Pool: machines wanted, and what they are.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::Duration,
    offer::Architecture,
    shared::{Accelerator, EnvFrom, EnvVar, LocalRef, Size},
};

/// Machines wanted, and what they are. Tasks of the same namespace run on them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "skyward.dev",
    version = "v1alpha1",
    kind = "Pool",
    plural = "pools",
    namespaced,
    shortname = "skpool",
    category = "skyward",
    status = "PoolStatus",
    doc = "Machines wanted, and what they are. Tasks of the same namespace run on them.",
    scale(
        spec_replicas_path = ".spec.nodes.desired",
        status_replicas_path = ".status.machines",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Provider", type_ = "string", json_path = ".status.provider"),
    printcolumn(name = "Accelerator", type_ = "string", json_path = ".status.accelerator"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.readySummary"),
    printcolumn(name = "Spot", type_ = "integer", json_path = ".status.spotMachines"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "$/h", type_ = "string", json_path = ".status.hourlyCost"),
    printcolumn(name = "Spent", type_ = "string", json_path = ".status.cost.spent"),
    printcolumn(
        name = "Tasks",
        type_ = "integer",
        json_path = ".status.runningTasks",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.provider) || (has(self.candidates) && self.candidates.all(candidate, has(candidate.provider)))").message("a Pool needs provider, the name of a Provider, or candidates that each have one; see `kubectl get providers.skyward.dev`"))]
#[x_kube(validation = Rule::new("!has(self.spotPercent) || !has(self.allocation)").message("write either allocation or spotPercent, not both"))]
pub struct PoolSpec {
    /// Name of the Provider that machines come from, unless a candidate names another. A change
    /// replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub provider: Option<String>,
    /// Alternatives, of which the best that can be had is taken. Each overrides the fields of
    /// the Pool that it sets. Without any the Pool itself is the only one. A change replaces
    /// machines when idle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub candidates: Vec<Candidate>,
    /// How candidates are ranked: `cheapest` (default) takes the lowest price of all, `first`
    /// the first that can be had, `available` the first whose provider says that it has some.
    /// A refusal moves on to the next. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// On which market: `spot-if-available` (default) takes an offer on the spot market where
    /// it has one, else on demand; `spot`, `on-demand`; `cheapest` takes whichever costs
    /// less. Machines of the spot market may be taken back at any time. May be changed at
    /// any time; machines that exist stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// At least this share of the machines on the spot market, in percent, the others on
    /// demand. Instead of `allocation`. May be changed at any time; machines that exist stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub spot_percent: Option<u32>,
    /// Exactly this type of machine, as the provider names it (`kubectl get offers -o wide`).
    /// A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub machine: Option<String>,
    /// Only machines of this region, or of a zone of it. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub region: Option<String>,
    /// Most that one machine may cost in USD per hour, as a decimal such as `"2.50"`. May be
    /// changed at any time; machines that exist stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = crate::rule::amount("maxHourlyCost", "2.50"))]
    pub max_hourly_cost: Option<String>,
    /// Whether machines must reach each other: then all of them come from one provider and
    /// region, and a refusal moves all of them. Default true. False: machines stand alone
    /// and may come from different clouds. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<bool>,
    /// Most that the Pool may spend; then it returns its machines. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// How many machines. May be changed at any time: the Pool grows, or gives up idle
    /// machines first.
    #[serde(default)]
    pub nodes: Nodes,
    /// Accelerator of each machine; none when left out. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Least vCPUs of each machine. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1024.0))]
    #[x_kube(validation = Rule::new("self >= 0.1").message("vcpus must be at least 0.1"))]
    pub vcpus: Option<f64>,
    /// Least memory of each machine in GB (10^9 bytes). A change replaces machines when idle.
    #[serde(default, rename = "memoryGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32768.0))]
    #[x_kube(validation = Rule::new("self >= 0.1").message("memoryGB must be at least 0.1"))]
    pub memory_gb: Option<f64>,
    /// Disk of each machine in GB (10^9 bytes). A change replaces machines when idle.
    #[serde(default, rename = "diskGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub disk_gb: Option<u32>,
    /// Architecture of the CPU: `x86_64` or `arm64`. When left out, whatever `machine` or
    /// `accelerator` has, or the nodes of a `container` Provider; else `x86_64`. A change
    /// replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Software and environment of each machine. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// How Tasks run on a machine. `concurrency` takes effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Worker>,
    /// Size of `/dev/shm`. Default `1Gi`, or half of the machine's memory if that is known
    /// and less. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<Size>,
    /// Longest waits. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Failed tries in a row to get a machine, after which the Pool is Stalled until its
    /// spec changes or an hour has passed. Default 10. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_provision_attempts: Option<u32>,
    /// Wait between two tries to get a machine; it doubles with each failure up to
    /// 32 times its value. Default `10s`. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_most("provisionRetryDelay", "1h"))]
    pub provision_retry_delay: Option<Duration>,
    /// Wait between two tries to connect over SSH. Default `5s`; while a machine of the
    /// `container` provider boots it is tried more often. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("sshRetryInterval", "100ms", "10m"))]
    pub ssh_retry_interval: Option<Duration>,
    /// How often a Task may start again because its machine was lost, unless the Task says
    /// otherwise. Default 3. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub retry_on_interruption: Option<u32>,
    /// A machine whose controller is gone stops itself after this long although it still
    /// runs something or holds a result nobody fetched. Default `24h`. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("orphanTimeout", "5m"))]
    pub orphan_timeout: Option<Duration>,
    /// Return all machines and keep Tasks waiting until it is false again. Running Tasks
    /// are stopped after `timeouts.shutdown` and run again later. Default false. May be changed
    /// at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// One alternative of a Pool: the fields that it sets override those of the Pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Name of the Provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub provider: Option<String>,
    /// Accelerator of each machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Exactly this type of machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub machine: Option<String>,
    /// Least vCPUs of each machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1024.0))]
    #[x_kube(validation = Rule::new("self >= 0.1").message("vcpus must be at least 0.1"))]
    pub vcpus: Option<f64>,
    /// Least memory of each machine in GB (10^9 bytes).
    #[serde(default, rename = "memoryGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32768.0))]
    #[x_kube(validation = Rule::new("self >= 0.1").message("memoryGB must be at least 0.1"))]
    pub memory_gb: Option<f64>,
    /// Disk of each machine in GB (10^9 bytes).
    #[serde(default, rename = "diskGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub disk_gb: Option<u32>,
    /// Architecture of the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Only machines of this region, or of a zone of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub region: Option<String>,
    /// On which market. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Most that one machine may cost in USD per hour. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = crate::rule::amount("maxHourlyCost", "2.50"))]
    pub max_hourly_cost: Option<String>,
    /// Settings of the Provider that this candidate overrides; those that the Provider lists
    /// in `overridable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32, "x-kubernetes-preserve-unknown-fields" = true))]
    pub settings: Option<serde_json::Map<String, serde_json::Value>>,
}

/// How candidates are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = crate::crd::explain_variants)]
pub enum Selection {
    /// The lowest price of all.
    #[default]
    Cheapest,
    /// The first in their order that can be had.
    First,
    /// The first in their order whose provider says that it has some.
    Available,
}

/// On which market machines are rented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = crate::crd::explain_variants)]
pub enum Allocation {
    /// Only the spot market.
    Spot,
    /// Only on demand.
    OnDemand,
    /// The spot market where an offer has one, else on demand.
    #[default]
    SpotIfAvailable,
    /// Whichever costs less.
    Cheapest,
}

/// Most that a Pool may spend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// USD, as a decimal such as `"100"`. When it is spent, runs get `timeouts.shutdown` to
    /// end and all machines are returned.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = crate::rule::amount("maxTotalCost", "100"))]
    pub max_total_cost: String,
    /// Begin anew each period, counted from the creation of the Pool, such as `24h`. Once
    /// for all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("budget.period", "1h"))]
    pub period: Option<Duration>,
}

/// How many machines a Pool has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.min) || self.desired == 0 || self.min <= self.desired").message("nodes.min must not be above nodes.desired; lower it or raise nodes.desired"))]
#[x_kube(validation = Rule::new("self.desired <= 500").message("a Pool has at most 500 machines; use several Pools for more").field_path(".desired"))]
pub struct Nodes {
    /// Machines wanted. 0 turns the Pool off. At most 500. Default 1.
    #[serde(default = "one")]
    pub desired: u32,
    /// The Pool is Ready, and broadcasts start, with this many machines. Not above `desired`
    /// (unless that is 0). Default: `desired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 500))]
    pub min: Option<u32>,
}

const fn one() -> u32 {
    1
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            desired: 1,
            min: None,
        }
    }
}

/// Software and environment of each machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Version of Python for functions and python scripts: `auto` (default: the machine's
    /// own if it is 3.10 or newer, else 3.12), or for example `3.12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = crate::rule::matches(r"^(auto|3\.[0-9]{1,2}(\.[0-9]{1,2})?)$", "python must be auto or a version such as 3.12 (in quotes, or YAML makes it a number)"))]
    pub python: Option<String>,
    /// Python packages, as pip takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 256)))]
    pub pip: Vec<String>,
    /// Indexes for some of the packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub pip_indexes: Vec<PipIndex>,
    /// Debian or Ubuntu packages. Needs root on the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 128)))]
    #[x_kube(validation = crate::rule::each_matches("^[a-z0-9][a-z0-9+.:=~-]*$", "apt takes names of Debian packages such as git or libgl1, each as its own entry"))]
    pub apt: Vec<String>,
    /// Environment of every Task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Environment of every Task from Secrets and ConfigMaps of the Pool's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvFrom>,
    /// Shell snippets run once on each machine; what they print becomes the variable of
    /// that name for every Task.
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
    /// Its URL.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = crate::rule::matches("^https?://", "url must begin with https:// or http://"))]
    pub url: String,
    /// The packages that come from it.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 256)))]
    pub packages: Vec<String>,
}

/// How Tasks run on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Tasks that one machine runs at the same time. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub concurrency: Option<u32>,
    /// User that Tasks run as. Default `skyward`, an unprivileged user that bootstrap
    /// makes; `root` gives Tasks the whole machine. Ignored where SSH logs in as an
    /// ordinary user. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = crate::rule::matches("^[a-z_][a-z0-9_-]*$", "worker.user must be the name of a Linux user, such as skyward or root"))]
    pub user: Option<String>,
}

/// Longest waits in a machine's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// From the acceptance of its order to an address. An order that nobody accepts is given up
    /// after as long, without the time, up to two hours, that it waits for its turn at the cloud.
    /// Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeouts.provision", "1s"))]
    pub provision: Option<Duration>,
    /// From the address to SSH. Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeouts.ssh", "1s"))]
    pub ssh: Option<Duration>,
    /// From SSH to Ready. Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeouts.bootstrap", "1s"))]
    pub bootstrap: Option<Duration>,
    /// What Tasks have between SIGTERM and SIGKILL when the Pool is deleted, suspended or
    /// turned off. One that only shrinks lets them finish. Default `120s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_most("timeouts.shutdown", "24h"))]
    pub shutdown: Option<Duration>,
}

/// Where a Pool is in its life; derived from its conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = crate::crd::explain_variants)]
pub enum PoolPhase {
    /// Not looked at yet.
    #[default]
    Pending,
    /// Machines are created and bootstrapped.
    Provisioning,
    /// As many machines as wanted (or `nodes.min`) take Tasks.
    Ready,
    /// Machines are being replaced or are fewer than `nodes.min`.
    Degraded,
    /// Somebody must act; see the condition `Stalled`.
    Stalled,
    /// `nodes.desired` is 0.
    Off,
    /// `spec.suspend` is true.
    Suspended,
    /// Being deleted.
    Deleting,
}

/// What is true of the Pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Where it is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PoolPhase>,
    /// The Providers that it has machines of, by their names with commas between them; while it
    /// has no machines those of its candidates, in their order. `…` at the end: and others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 300))]
    pub provider: String,
    /// The accelerators that its machines have, by their names with commas between them; while
    /// it has no machines those that its candidates ask for, in their order. Empty where there
    /// are none. `…` at the end: and others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 300))]
    pub accelerator: String,
    /// Ready machines of those wanted, as `3/4`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub ready_summary: String,
    /// Machines that exist or are ordered.
    #[serde(default)]
    pub machines: u32,
    /// Those of them that are of the spot market.
    #[serde(default)]
    pub spot_machines: u32,
    /// Machines that take Tasks.
    #[serde(default)]
    pub ready_machines: u32,
    /// Tasks that run, as of the last transition.
    #[serde(default)]
    pub running_tasks: u32,
    /// Price of its machines in USD per hour, as a decimal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub hourly_cost: String,
    /// What its machines cost, as of the last transition; live totals are metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<PoolCost>,
    /// Selects its Machines and Pods; for `kubectl scale` and autoscalers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub selector: String,
    /// Address of the machine in the lowest slot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub head_address: String,
    /// Highest attempt used in each slot that ever had a machine; slot numbers and
    /// attempts are never used twice.
    #[serde(default)]
    pub last_attempt: u32,
    /// Where it ordered machines: what they shared there is returned with the Pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub places: Vec<Place>,
    /// Failed tries in a row to get a machine.
    #[serde(default)]
    pub failed_attempts: u32,
    /// When the last of them failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_at: Option<Time>,
    /// Machines that need attention, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub attention: Vec<MachineAttention>,
    /// `Ready`, `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A machine that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineAttention {
    /// Name of the Machine.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Reason of its first condition that is not True.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Message of that condition, shortened.
    #[schemars(length(max = 512))]
    pub message: String,
}

/// What the machines of a Pool cost, in USD as decimals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolCost {
    /// Of machines that are gone and of those that exist, together.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub spent: String,
    /// Of machines that are gone.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub settled: String,
    /// Its part on the spot market.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub spot: String,
    /// Its part on demand.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub on_demand: String,
    /// How much more the settled part would have cost on demand.
    #[serde(default)]
    #[schemars(length(max = 40))]
    pub savings_vs_on_demand: String,
    /// Since when it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Beginning of the period of the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_start: Option<Time>,
    /// What was spent before that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 40))]
    pub spent_before_period: String,
    /// UIDs of machines that are settled and whose records still exist, so that none counts
    /// twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 64)))]
    pub counted: Vec<String>,
}

/// Where a Pool ordered machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Name of the Provider.
    #[schemars(length(max = 253))]
    pub provider: String,
    /// Its region.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub region: String,
}

impl PoolSpec {
    /// Names of the Providers that its machines may come from, each once.
    pub fn providers(&self) -> std::collections::BTreeSet<&str> {
        let own = self.provider.as_deref();
        if self.candidates.is_empty() {
            return own.into_iter().collect();
        }
        self.candidates
            .iter()
            .filter_map(|candidate| candidate.provider.as_deref().or(own))
            .collect()
    }
}
