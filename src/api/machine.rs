//! Machine: one machine of a Pool; the durable record of intent, price and identity.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use skyward_core::{diagnosis::Cause as BootstrapCause, offer::Market};

use crate::{
    duration::Duration,
    environment::MachineEnvironment,
    offer::{Architecture, OfferedAccelerator},
    shared::{Accelerator, Cpu, Size},
};

/// One machine of a Pool. Written by the controller before the machine is ordered, so
/// that no crash can lose it. Deleting one by hand drains it and has it replaced.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "skyward.dev",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    namespaced,
    shortname = "skmach",
    category = "skyward",
    status = "MachineStatus",
    doc = "One machine of a Pool: the durable record of intent, price and identity. Written by the controller.",
    selectable = ".spec.pool",
    selectable = ".spec.provider",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Slot", type_ = "integer", json_path = ".spec.slot"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.step"),
    printcolumn(name = "Market", type_ = "string", json_path = ".spec.market"),
    printcolumn(name = "$/h", type_ = "string", json_path = ".spec.hourlyPrice"),
    printcolumn(
        name = "Paid $/h",
        type_ = "string",
        json_path = ".status.hourlyPrice",
        priority = 1
    ),
    printcolumn(name = "Offer", type_ = "string", json_path = ".spec.offer", priority = 1),
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".status.address",
        priority = 1
    ),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1),
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
#[x_kube(validation = Rule::new("self == oldSelf").message("a Machine's spec is a record and cannot be changed; change the Pool"))]
pub struct MachineSpec {
    /// The Pool it belongs to.
    #[schemars(length(max = 253))]
    pub pool: String,
    /// UID of that Pool.
    #[schemars(length(max = 64))]
    pub pool_uid: String,
    /// Number of its slot in the Pool.
    pub slot: u32,
    /// Which try to fill that slot, from 1.
    pub attempt: u32,
    /// The Provider it is ordered from.
    #[schemars(length(max = 253))]
    pub provider: String,
    /// The account that the Provider had then, as its cloud names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub account: String,
    /// Name of the Offer it was ordered by.
    #[schemars(length(max = 253))]
    pub offer: String,
    /// Id of the Offer within the Provider.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub offer_id: String,
    /// The Offer's instance type.
    #[schemars(length(max = 256))]
    pub instance_type: String,
    /// Name of the Offer's accelerator; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub offer_accelerator: String,
    /// The Offer's region.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub region: String,
    /// On which market it was ordered.
    pub market: Market,
    /// Price of the Offer in USD per hour, frozen when it was ordered, as a decimal.
    #[schemars(length(max = 32))]
    pub hourly_price: String,
    /// Most that the order may come to cost in USD per hour: on demand `hourlyPrice`, at
    /// Vast.ai `maxHourlyCost` of the Pool, else twice `hourlyPrice`; on the spot market
    /// `maxHourlyCost`, else the Offer's price on demand. Never less than `hourlyPrice`. It bounds
    /// bids and raises none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub max_hourly_cost: Option<String>,
    /// The Offer's price on demand when it was ordered; what the machine would have cost
    /// without the spot market.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub on_demand_price: Option<String>,
    /// Smallest unit of time that the provider bills, such as `60s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing_step: Option<Duration>,
    /// Least time that the provider bills, such as `3600s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing_minimum: Option<Duration>,
    /// What the Pool asked for: accelerator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Accelerators that the machine has: those of its Offer, which may be more than the Pool
    /// asked for; where the machine is a Pod, as many as the Pool asked for. None when left out;
    /// in a record of an older version that has no such field, those in `accelerator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_accelerator: Option<OfferedAccelerator>,
    /// What the Pool asked for: CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// What the Pool asked for: memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// What the Pool asked for: disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    /// Architecture of the Offer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Settings of the Provider that the Pool overrides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32, "x-kubernetes-preserve-unknown-fields" = true))]
    pub settings: Option<serde_json::Map<String, serde_json::Value>>,
    /// Id of the installation that recorded it. A record of an older version has no such field and
    /// belongs to an installation that sets no id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub installation: Option<String>,
    /// Whether its boot data carry a token by which it proves its host key: its Provider demanded
    /// verified host keys when it was recorded, and does not report them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proves_host_key: bool,
    /// Idempotency token of its order: ordering it twice with this token is one order. No credential:
    /// nothing can be done with it elsewhere. Its end is random: a cluster that was restored, and
    /// counts attempts anew, gives no token twice.
    #[schemars(length(max = 128))]
    pub token: String,
    /// Digest of what the Pool asked of its machines besides their environment, such as hardware and
    /// `worker.user`; another digest means that this machine is replaced when it is idle.
    #[schemars(length(max = 64))]
    pub template_hash: String,
}

/// Where a machine is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum MachinePhase {
    /// Recorded, and ordered.
    #[default]
    Ordered,
    /// The provider accepted the order; the machine boots.
    Accepted,
    /// SSH answers.
    Reachable,
    /// Bootstrap steps run.
    Bootstrapping,
    /// The machine takes runs.
    Ready,
    /// The machine takes no new runs and finishes the runs that it has.
    Draining,
    /// Its deletion is ordered, until the provider says it is gone.
    Deleting,
    /// The machine failed or vanished; it will be deleted and replaced.
    Failed,
}

impl MachinePhase {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ordered => "Ordered",
            Self::Accepted => "Accepted",
            Self::Reachable => "Reachable",
            Self::Bootstrapping => "Bootstrapping",
            Self::Ready => "Ready",
            Self::Draining => "Draining",
            Self::Deleting => "Deleting",
            Self::Failed => "Failed",
        }
    }
}

/// What is known of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Where it is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MachinePhase>,
    /// The step under way of its bootstrap or of a change of its environment, as `3/6 packages`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub step: String,
    /// Its id at the provider; for `container` the UID of its Pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub id: String,
    /// Address that SSH dials.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub address: String,
    /// Port that SSH dials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_port: Option<u16>,
    /// User that SSH logs in as.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub ssh_user: String,
    /// Address by which machines of the Pool reach each other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub private_address: String,
    /// Host key that it must show, in OpenSSH's form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub host_key: String,
    /// Version of the agent that runs on it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub agent_version: String,
    /// Version of the Python that runs functions there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub python_version: String,
    /// Why each function starts a fresh interpreter there, such as a module of `worker.preload` of the Pool that starts
    /// threads; empty where functions are forked from a Python that is there already.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub not_forked: String,
    /// When the provider accepted the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Time>,
    /// Price in USD per hour that its provider named at launch; it is billed at this, and at
    /// `spec.hourlyPrice` where the provider names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub hourly_price: Option<String>,
    /// Since when it is billed, as the provider says; else since `acceptedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_since: Option<Time>,
    /// Until when it is billed: until its end is ordered, where its provider bills no more
    /// then, or until it was first seen to be away; where this is empty, until `goneAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_until: Option<Time>,
    /// When the cloud will take it back, once it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_at: Option<Time>,
    /// When the provider said that it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_at: Option<Time>,
    /// What it cost in all, in USD; written when it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub cost: Option<String>,
    /// When its address was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Time>,
    /// What it has from SSH to Ready: `timeouts.bootstrap` of its Pool, else the default of its
    /// kind of Provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_timeout: Option<Duration>,
    /// When SSH first answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable_at: Option<Time>,
    /// When it first took runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
    /// The environment of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<MachineEnvironment>,
    /// Which step of its bootstrap failed, and how, when one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_failure: Option<BootstrapFailure>,
    /// `Accepted`, `Reachable`, `Bootstrapped`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How a step of a bootstrap failed. Two failures are the same when `step`, `ended` and `pattern`
/// are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapFailure {
    /// The step, such as `packages`; empty where the machine is of a kind that cannot be prepared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub step: String,
    /// How it ended, such as `failed (exit code 1)`.
    #[schemars(length(max = 300))]
    pub ended: String,
    /// The line of its output that tells the most.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 300))]
    pub line: String,
    /// That line without numbers, times, addresses, temporary paths and digests.
    #[schemars(length(max = 200))]
    pub pattern: String,
    /// What it failed for, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<BootstrapCause>,
}

impl BootstrapFailure {
    /// Whether the other one is the same failure.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.step, &self.ended, &self.pattern) == (&other.step, &other.ended, &other.pattern)
    }
}
