//! In which order Tasks start: the Tasks that one depends on, and the queue of a Pool.

use std::cmp::Reverse;

use k8s_openapi::jiff::Timestamp;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most Tasks that one depends on.
pub const MAX_DEPENDENCIES: usize = 16;

/// A Task that ends before another one starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = crate::rule::matches("^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "task must be the name of a Task of this namespace, such as prepare"))]
    pub task: String,
    /// How it must end: `Complete` (default) or `Finished`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DependencyCondition>,
}

/// The names of Tasks that one depends on and still waits for: those that are not on record as satisfied.
pub fn awaited<'a>(
    wanted: &'a [Dependency],
    records: &'a [DependencyStatus],
) -> impl Iterator<Item = &'a str> {
    let is_satisfied = |name: &str| {
        let mut records = records.iter();
        records.any(|record| record.task == name && record.satisfied)
    };
    let names = wanted.iter().map(|dependency| dependency.task.as_str());
    names.filter(move |name| !is_satisfied(name))
}

/// Where a Task stands in the queue of its Pool: priority, then age, then name. The least one starts first.
pub fn queue_order<N>(priority: Option<i32>, created: Timestamp, name: N) -> (Reverse<i32>, Timestamp, N) {
    (Reverse(priority.unwrap_or_default()), created, name)
}

/// How a Task must end for another one that depends on it to start: the condition that is true then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum DependencyCondition {
    /// Every run of it succeeded.
    #[default]
    Complete,
    /// It ended: it succeeded or failed.
    Finished,
}

/// A Task that another one depends on, as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependencyStatus {
    /// Its name.
    #[schemars(length(max = 253))]
    pub task: String,
    /// UID of the Task that was found first.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Whether it ended as `spec.dependsOn` asks for.
    #[serde(default)]
    pub satisfied: bool,
}
