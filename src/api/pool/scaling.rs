//! How many machines a Pool works towards when it grows, shrinks and sleeps: what its spec says, and what stands in its
//! status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Duration;

/// How a Pool with `nodes.max` grows and shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Autoscale {
    /// How long a machine must be unneeded before it is returned, from `0s` to `24h`. Default: as long as a machine of
    /// this Pool takes to start, and at least `60s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_most("autoscale.scaleDownAfter", "24h"))]
    pub scale_down_after: Option<Duration>,
}

/// Why a Pool works towards its number of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum ScalingReason {
    /// `nodes.desired` or `nodes.max` says so.
    Nodes,
    /// Work waits that is worth more machines.
    WorkWaits,
    /// Machines have been unneeded for `autoscale.scaleDownAfter`.
    MachinesIdle,
    /// The Pool has been idle for `idleTimeout`.
    Sleeping,
    /// Work came while the Pool slept, or `nodes.desired` was raised.
    Woken,
    /// The Pool is off, suspended, or has reached its budget or its `maxLifetime`.
    Stopped,
}

impl ScalingReason {
    /// The reason as in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "Nodes",
            Self::WorkWaits => "WorkWaits",
            Self::MachinesIdle => "MachinesIdle",
            Self::Sleeping => "Sleeping",
            Self::Woken => "Woken",
            Self::Stopped => "Stopped",
        }
    }
}

/// The last decision about the number of machines, and what the next ones need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolScaling {
    /// Why the Pool works towards `desiredMachines`.
    #[serde(
        default,
        deserialize_with = "crate::known::if_known",
        skip_serializing_if = "Option::is_none"
    )]
    pub reason: Option<ScalingReason>,
    /// The same in words, with the numbers that counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Time>,
    /// How long its machines took from their orders until they took Tasks, in the median, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_seconds: Option<u32>,
    /// How many machines beyond `nodes.desired` failed in a row: with each the wait until growth is tried again doubles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_failures: Option<u32>,
    /// When the last of them failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_failed_at: Option<Time>,
    /// Since when it has been idle, recorded some time before it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// When it will sleep, unless work comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeps_at: Option<Time>,
    /// Since when it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeping_since: Option<Time>,
    /// `nodes.desired` when it fell asleep: a higher one wakes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slept_with: Option<u32>,
    /// How often in a row it was woken soon after it had fallen asleep: it is idle twice as long each time before it
    /// sleeps again, up to eight times `idleTimeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_sleeps: Option<u32>,
    /// It was made by a release whose Pools did not sleep: it sleeps only where its spec sets `idleTimeout`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_sleeps_by_default: bool,
}

/// How long a Pool has lived, where its spec sets `maxLifetime`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolLifetime {
    /// Since when it counts.
    pub since: Time,
    /// Digest of the spec, without `nodes` and `suspend`, with which the Pool reached `maxLifetime`: another spec begins
    /// another life.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub ended_with: String,
}
