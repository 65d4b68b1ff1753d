//! What a Machine should do next: pure, as the Pool's plan.
//!
//! Ordered → Accepted → Reachable → Bootstrapping → Ready, and Draining → Deleting when it
//! is given up. [`liveness`] alone gives up a machine by time; [`status`] alone makes
//! conditions. A missing answer of the provider changes nothing.

pub mod bootstrap;
pub mod deletion;
pub mod draft;
mod environment;
pub mod liveness;
pub mod progress;
pub mod rental;
pub mod status;
pub mod terms;
mod trust;

use crate::machine::plan::draft::{Action, Plan};
use jiff::Timestamp;
use skyward_core::session::Stage;

use super::facts::Observed;
pub use crate::base::requeue::Next;

/// Decides.
pub fn plan(seen: &Observed, now: Timestamp) -> Plan {
    if seen.machine.deleting_since.is_some() {
        return deletion::plan(seen, now);
    }
    let mut plan = Plan::default();
    if seen.machine.has_failed() {
        plan.reasons.push("it failed; its Pool gives it up".to_owned());
        if seen.session.is_some() {
            plan.actions.push(Action::Disconnect);
        }
        return plan;
    }
    let mut found = progress::find(seen, now, &mut plan);
    if plan.next == Next::Again {
        // A try comes before any verdict, and its answer is part of the first write.
        return plan;
    }
    if seen.stage() == Some(&Stage::EpochAhead) {
        plan.reasons.push("its agent refuses our epoch".to_owned());
        found.epoch_ahead = true;
    }
    liveness::judge(seen, now, &mut found, &mut plan);
    if found.failure.is_some() {
        plan.actions = vec![Action::Disconnect];
    }
    if found.epoch_ahead {
        plan.actions.push(Action::DoubtLeadership);
    }
    status::write(seen, now, &found, &mut plan);
    plan
}
