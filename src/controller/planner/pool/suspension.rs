//! Whether a Pool has no machines by intention, and why.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use skyward_api::{
    Pool,
    condition::{self, reason},
};

/// The condition Ready of a Pool.
pub fn ready(pool: &Pool) -> Option<&Condition> {
    let status = pool.status.as_ref()?;
    condition::find(&status.conditions, condition::READY)
}

/// Why a Pool has no machines by intention.
pub fn why_suspended(pool: &Pool) -> Option<&'static str> {
    if pool.spec.suspend.unwrap_or_default() {
        Some("spec.suspend of the Pool is true")
    } else if pool.spec.nodes.desired == 0 {
        Some("nodes.desired of the Pool is 0")
    } else if ready(pool).is_some_and(|ready| ready.reason == reason::BUDGET_SPENT) {
        Some("its budget is spent")
    } else if ready(pool).is_some_and(|ready| ready.reason == reason::LIFETIME_EXCEEDED) {
        Some("its maxLifetime has passed; raise spec.maxLifetime of the Pool to go on")
    } else {
        None
    }
}
