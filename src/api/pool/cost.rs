//! What a Pool costs, in its status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the machines of a Pool cost, in USD as decimals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolCost {
    /// Of machines that are gone and of machines that exist, together.
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
