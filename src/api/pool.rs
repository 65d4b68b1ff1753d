//! Pool: machines wanted, and what they are.

mod cost;
mod image;
mod scaling;
mod template;
mod worker;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    duration::{Duration, DurationOrNever},
    environment::PoolEnvironment,
    machine::BootstrapFailure,
    offer::Architecture,
    shared::{Accelerator, Amount, Cpu, Size},
    task::Retries,
};

pub use cost::PoolCost;
pub use image::{Image, PipIndex};
pub use scaling::{Autoscale, PoolLifetime, PoolScaling, ScalingReason};
pub use template::PoolTemplate;
pub use worker::{Devices, Executor, Worker};

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
    printcolumn(name = "Machines", type_ = "string", json_path = ".status.machinesSummary"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.readySummary"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "$/h", type_ = "string", json_path = ".status.hourlyCost"),
    printcolumn(name = "Spent", type_ = "string", json_path = ".status.cost.spent"),
    printcolumn(
        name = "Running",
        type_ = "integer",
        json_path = ".status.runningTasks",
        priority = 1
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waitingTasks",
        priority = 1
    ),
    printcolumn(
        name = "Spot",
        type_ = "integer",
        json_path = ".status.spotMachines",
        priority = 1
    ),
    printcolumn(
        name = "Environment",
        type_ = "string",
        json_path = ".status.environment.hash",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.provider) || (has(self.candidates) && self.candidates.all(candidate, has(candidate.provider)))").message("a Pool needs provider, the name of a Provider, or candidates that each have one; see `kubectl get providers.skyward.dev`"))]
#[x_kube(validation = Rule::new("!has(self.autoscale) || has(self.nodes.max)").message("autoscale needs nodes.max: how many machines the Pool may grow to, such as nodes: {desired: 1, max: 8}").field_path(".autoscale"))]
#[x_kube(validation = Rule::new("!has(self.spotPercent) || !has(self.allocation)").message("write either allocation or spotPercent, not both"))]
pub struct PoolSpec {
    /// Name of the Provider that machines come from, unless a candidate names another. A change
    /// replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub provider: Option<String>,
    /// Alternatives, of which the Pool takes the best that can be ordered. Each overrides the fields of
    /// the Pool that it sets, such as
    /// `[{provider: verda, region: FIN-01}, {provider: aws, instanceType: p5.48xlarge, maxHourlyCost: "60"}]`.
    /// Without any, the Pool itself is the only candidate. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub candidates: Vec<Candidate>,
    /// How candidates are ranked: `Cheapest` (default) takes the lowest price of all, `First`
    /// the first that can be ordered, `Available` the first whose provider says that machines are
    /// available. A refusal moves on to the next. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// On which market: `SpotIfAvailable` (default) takes an Offer on the spot market where it has
    /// a spot price, else on demand; `Spot`, `OnDemand`; `Cheapest` takes whichever costs less.
    /// Machines of the spot market may be taken back at any time. May be changed at any time;
    /// machines that exist stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// At least this share of the machines on the spot market, in percent, the others on
    /// demand. Instead of `allocation`. May be changed at any time; machines that exist stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub spot_percent: Option<u32>,
    /// Exactly this type of machine, as the provider names it (`kubectl get offers -o wide`), such
    /// as `p5.48xlarge`.
    /// A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub instance_type: Option<String>,
    /// Only machines of this region, such as `eu-central-1`, or of a zone of it. A change replaces
    /// machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub region: Option<String>,
    /// Most that one machine may cost in USD per hour, as a decimal such as `"2.50"`. May be
    /// changed at any time; machines that exist stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::amount("maxHourlyCost", "2.50"))]
    pub max_hourly_cost: Option<Amount>,
    /// Whether machines must reach each other. `Connected` (default): all of them come from one
    /// provider and region, and a refusal moves all of them. `Independent`: machines stand alone
    /// and may come from different clouds. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Most that the Pool may spend, such as `{maxTotalCost: "100", period: 24h}`; then it returns
    /// its machines. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// How many machines, such as `{desired: 4, min: 2}` or `{desired: 1, max: 8}`. May be changed at any time: the
    /// Pool grows, or gives up idle machines first.
    #[serde(default)]
    pub nodes: Nodes,
    /// How a Pool with `nodes.max` shrinks, such as `{scaleDownAfter: 5m}`. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<Autoscale>,
    /// The Pool sleeps after it has been idle, without a run and a Task that waits, for this long, at least `10s`: it
    /// returns all machines, and the next Task wakes it. `Never` keeps them. When left out, the `idleTimeout` of the Provider: by default `10m`, and
    /// `Never` for `container`. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("idleTimeout", "10s"))]
    pub idle_timeout: Option<DurationOrNever>,
    /// The Pool ends its runs and returns its machines after this long, even if Tasks run, and orders none until its spec
    /// changes. It counts from when the field is set, also while the Pool sleeps, is suspended or has `nodes.desired: 0`.
    /// May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("maxLifetime", "1m"))]
    pub max_lifetime: Option<Duration>,
    /// Accelerator of each machine, such as `{name: H100, count: 8}`; none when left out. A change
    /// replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Least CPUs of each machine, such as `64`, `500m` or `"0.5"`, in quotes. A change replaces machines when
    /// idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::cpu_between("cpu", "100m", "4096"))]
    pub cpu: Option<Cpu>,
    /// Least memory of each machine, such as `512Gi`. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("memory", "64Ti"))]
    pub memory: Option<Size>,
    /// Disk of each machine, such as `1Ti`. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("disk", "64Ti"))]
    pub disk: Option<Size>,
    /// Architecture of the CPU: `amd64` or `arm64`. When left out, whatever `instanceType` or
    /// `accelerator` has, or the nodes of a `container` Provider; else `amd64`. A change
    /// replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Software and environment of each machine. A change is applied in place: machines change one
    /// after the other, each when it is idle. An entry of `apt` that goes replaces them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// How Tasks run on a machine. `concurrency` takes effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Worker>,
    /// Size of `/dev/shm`, such as `16Gi`. Default `1Gi`, or half of the machine's memory if that is known
    /// and less. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("shmSize", "64Ti"))]
    pub shm_size: Option<Size>,
    /// What is kept of the output of runs. May be changed at any time, for runs that start
    /// afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Logs>,
    /// Longest waits, such as `{provision: 15m, bootstrap: 10m}`. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Machines that may fail in a row before they take Tasks; then the Pool is Stalled until
    /// its spec changes or an hour has passed. In a Pool of 4 nodes that all fail, 4 have failed.
    /// Where two machines failed in the same step of their bootstrap in the same way, the Pool is
    /// Stalled at once, until its spec, or a Secret, ConfigMap or Provider that it names, changes.
    /// A Pool that has the machines of `nodes.desired` is never Stalled for others that fail: it grows later.
    /// Default 10. May be changed at any time.
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
    /// When its Tasks start again, such as `{onInterruption: 3}`; a Task that sets a field of its own
    /// `retries` overrides that field. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,
    /// A machine whose controller is gone stops itself after this long although it still runs
    /// something or holds a result that is not collected. Default `24h`. May be changed at any
    /// time.
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
    pub instance_type: Option<String>,
    /// Least CPUs of each machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::cpu_between("cpu", "100m", "4096"))]
    pub cpu: Option<Cpu>,
    /// Least memory of each machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("memory", "64Ti"))]
    pub memory: Option<Size>,
    /// Disk of each machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("disk", "64Ti"))]
    pub disk: Option<Size>,
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
    #[x_kube(validation = crate::rule::amount("maxHourlyCost", "2.50"))]
    pub max_hourly_cost: Option<Amount>,
    /// Settings of the Provider that this candidate overrides; only settings that the Provider
    /// lists in `overridable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32, "x-kubernetes-preserve-unknown-fields" = true))]
    pub settings: Option<serde_json::Map<String, serde_json::Value>>,
}

/// How candidates are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum Selection {
    // The other words stand in Pools that are older than the settled names.
    /// The lowest price of all.
    #[default]
    #[serde(alias = "cheapest")]
    Cheapest,
    /// The first in their order that can be ordered.
    #[serde(alias = "first")]
    First,
    /// The first in their order whose provider says that machines are available.
    #[serde(alias = "available")]
    Available,
}

/// On which market machines are rented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum Allocation {
    // The other words stand in Pools that are older than the settled names.
    /// Only the spot market.
    #[serde(alias = "spot")]
    Spot,
    /// Only on demand.
    #[serde(alias = "on-demand")]
    OnDemand,
    /// The spot market where an Offer has a spot price, else on demand.
    #[default]
    #[serde(alias = "spot-if-available")]
    SpotIfAvailable,
    /// Whichever costs less.
    #[serde(alias = "cheapest")]
    Cheapest,
}

/// Whether machines of a Pool must reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum Topology {
    /// Machines must reach each other.
    #[default]
    Connected,
    /// Each stands alone.
    Independent,
}

/// Most that a Pool may spend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// USD, as a decimal such as `"100"`. When it is spent, runs get `timeouts.shutdown` to
    /// end and all machines are returned.
    #[x_kube(validation = crate::rule::amount("maxTotalCost", "100"))]
    pub max_total_cost: Amount,
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
#[x_kube(validation = Rule::new("!has(self.max) || self.max >= self.desired").message("nodes.max must not be below nodes.desired; raise it or lower nodes.desired").field_path(".max"))]
#[x_kube(validation = Rule::new("self.desired <= 500").message("a Pool has at most 500 machines; use several Pools for more").field_path(".desired"))]
pub struct Nodes {
    /// Machines wanted. 0 turns the Pool off. With `max` the least of them. At most 500. Default 1.
    #[serde(default = "one")]
    pub desired: u32,
    /// The Pool is Ready, and broadcasts start, with this many machines. Not above `desired`
    /// (unless that is 0). Default: `desired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 500))]
    pub min: Option<u32>,
    /// Machines that the Pool may grow to while work waits. Not below `desired`, at most 500. When left out, the Pool
    /// has `desired` machines whatever waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 500))]
    pub max: Option<u32>,
}

impl Nodes {
    /// Most machines that the Pool may have.
    pub fn most(&self) -> u32 {
        self.max.unwrap_or_default().max(self.desired)
    }

    /// Whether the Pool grows with its work. A Pool that is off does not.
    pub fn grows(&self) -> bool {
        self.desired > 0 && self.max.is_some_and(|most| most > self.desired)
    }
}

const fn one() -> u32 {
    1
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            desired: 1,
            min: None,
            max: None,
        }
    }
}

/// What is kept of the output of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Logs {
    /// Room for the log of one run, from `1Mi` to `2Gi`. Of a run that prints more the first
    /// quarter and the newest rest are kept, and its log says how much is missing between them.
    /// Default `256Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::with_unit("logs.limit", "256Mi"))]
    #[x_kube(validation = crate::rule::size_between("logs.limit", "1Mi", "2Gi"))]
    pub limit: Option<Size>,
}

/// `logs.limit` of a Pool that does not say it, in bytes.
const LOG_LIMIT: u64 = 256 * 1024 * 1024;

/// Longest waits in a machine's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// From the acceptance of its order to an address. An order that the cloud does not accept is
    /// given up after as long; up to two hours in which it waits for its turn at the cloud do not
    /// count. Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeouts.provision", "1s"))]
    pub provision: Option<Duration>,
    /// From the address to SSH. Default `300s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeouts.ssh", "1s"))]
    pub ssh: Option<Duration>,
    /// From SSH to Ready. Default `300s`, at RunPod `600s`; `status.bootstrapTimeout` of each
    /// Machine has the value that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeouts.bootstrap", "1s"))]
    pub bootstrap: Option<Duration>,
    /// What Tasks have between SIGTERM and SIGKILL when the Pool is deleted, suspended or
    /// turned off. A Pool that only shrinks lets Tasks finish. Default `120s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_most("timeouts.shutdown", "24h"))]
    pub shutdown: Option<Duration>,
}

/// Where a Pool is in its life; derived from its conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
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
    /// It was idle for `idleTimeout` and returned its machines; the next Task wakes it.
    Sleeping,
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
    #[serde(
        default,
        deserialize_with = "crate::known::if_known",
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<PoolPhase>,
    /// The Providers that it has machines of, by their names with commas between them; while it
    /// has no machines, the Providers of its candidates, in their order. `…` at the end: and
    /// others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 300))]
    pub provider: String,
    /// The accelerators that its machines have, by their names with commas between them; while
    /// it has no machines, the accelerators that its candidates ask for, in their order. Empty
    /// where there are none. `…` at the end: and others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 300))]
    pub accelerator: String,
    /// Machines that the Pool works towards now: between `nodes.desired` and `nodes.max`, or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_machines: Option<u32>,
    /// The same, with the bounds of a Pool that grows, as `3 (1-8)`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub machines_summary: String,
    /// Why it works towards this number, and when it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<PoolScaling>,
    /// How long it has lived, where its spec sets `maxLifetime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<PoolLifetime>,
    /// Ready machines and wanted machines, as `3/4`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub ready_summary: String,
    /// Machines that exist or are ordered.
    #[serde(default)]
    pub machines: u32,
    /// How many of these machines are of the spot market.
    #[serde(default)]
    pub spot_machines: u32,
    /// Machines that take Tasks.
    #[serde(default)]
    pub ready_machines: u32,
    /// Tasks that run, as of at most some seconds ago: a change that lasts five seconds is written.
    #[serde(default)]
    pub running_tasks: u32,
    /// Tasks that wait for a machine, as of at most some seconds ago.
    #[serde(default)]
    pub waiting_tasks: u32,
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
    /// Highest attempt that the Pool has counted, over all slots; an attempt is never used twice.
    #[serde(default)]
    pub last_attempt: u32,
    /// Where the Pool ordered machines: what they shared there is returned with the Pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub places: Vec<Place>,
    /// Machines in a row that failed before they took Tasks.
    #[serde(default)]
    pub failed_attempts: u32,
    /// When the last of them failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_at: Option<Time>,
    /// The environment of its Tasks, and how far its machines are with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<PoolEnvironment>,
    /// How bootstraps of its machines failed since its spec, or an object that the spec names,
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapRecord>,
    /// Reason of the condition `Ready`, followed by the number of failed tries and how many are
    /// allowed, such as `Provisioning: 2/10 tries failed`. When all machines are ready: when the Pool sleeps unless work
    /// comes, as `sleeps at 2026-01-31T12:00:00Z`, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub reason: String,
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

/// How bootstraps failed. Where two machines failed in the same way no other is ordered before the
/// spec, or an object that it names, changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapRecord {
    /// Digest of the spec without `nodes` and `suspend`, and of the versions of the objects that it
    /// names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub tried_with: String,
    /// Only machines of later attempts count.
    #[serde(default)]
    pub after_attempt: u32,
    /// The different ways, at most 6, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6))]
    pub failures: Vec<RepeatedFailure>,
}

/// One way in which bootstraps failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepeatedFailure {
    /// Which step, and how.
    pub failure: BootstrapFailure,
    /// The Machines that failed so, at most 4.
    #[schemars(length(max = 4), inner(length(max = 253)))]
    pub machines: Vec<String>,
    /// When the last of them did.
    pub last_at: Time,
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
    /// Whether its machines must reach each other.
    pub fn is_connected(&self) -> bool {
        self.topology.unwrap_or_default() == Topology::Connected
    }

    /// Room for the log of one run, in bytes.
    pub fn log_limit(&self) -> u64 {
        let limit = self.logs.as_ref().and_then(|logs| logs.limit.as_ref());
        limit.and_then(Size::bytes).unwrap_or(LOG_LIMIT)
    }

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
