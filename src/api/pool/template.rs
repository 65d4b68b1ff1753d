//! The Pool of one Task, as the Task's manifest has it. The controller decides when it is made and deleted.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::PoolSpec;
use crate::shared::TemplateMetadata;

/// A Pool that is made for one Task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.spec.suspend)").message("a suspended Pool would never run its Task: leave poolTemplate.spec.suspend out; suspend of the Task keeps it from making its Pool"))]
#[x_kube(validation = Rule::new("!has(self.spec.nodes) || self.spec.nodes.desired > 0").message("poolTemplate.spec.nodes.desired must be at least 1: a Pool of 0 machines never runs its Task"))]
pub struct PoolTemplate {
    /// Labels and annotations that the Pool gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// What the Pool is: the same fields as in `spec` of a Pool. `maxLifetime` is `24h` when left out.
    pub spec: PoolSpec,
}
