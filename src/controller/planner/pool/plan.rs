//! What a Pool should do next. Pure: everything known is in [`Observed`], the time is an
//! argument, and every choice is made here, so that acting on a [`Plan`] makes none.
//!
//! The steps run in this order, each in its own file, each leaves a reason even when it
//! does nothing:
//!
//! 1. [`cleanup`]: the Pool is being deleted; nothing else happens then.
//! 2. [`lifetime`] and [`autoscale`]: how many machines are wanted now; idle ones are given up.
//! 3. [`admission`]: may machines be created at all? If not, why, and what would help.
//! 4. [`failures`]: failed machines are given up and counted; how long to wait, and with
//!    [`bootstraps`] whether to stop, or with [`growth`] whether to grow no further for a while.
//! 5. [`cost`]: machines that are gone are settled; a spent budget ends the others.
//! 6. [`rollout`]: a changed image goes from machine to machine in place; where it fails, nothing is ordered.
//! 7. [`drift`]: machines of an older spec are replaced when idle.
//! 8. [`scale`]: too many or too few machines; [`super::choice`] says which to order.
//! 9. [`status`]: conditions, phase and counts, from what the steps found.
//!
//! What must hold for every plan stands in [`audit`].

pub mod admission;
pub mod audit;
pub mod autoscale;
pub mod bootstraps;
pub mod cleanup;
pub mod cost;
pub mod draft;
pub mod drift;
pub mod failures;
pub mod growth;
pub mod lifetime;
pub mod rollout;
pub mod scale;
pub mod status;

use jiff::Timestamp;
use skyward_api::condition::reason;

use super::facts::Observed;
use crate::{
    base::requeue::Next,
    events::{self, EventSpec},
    pool::{
        facts::DOUBTFUL,
        plan::draft::{Action, Draft, Plan, named},
    },
};

/// Decides.
pub fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let mut candidates = seen.pool.resolved.candidates.clone();
    for candidate in &mut candidates {
        let facts = seen.providers.get(&candidate.provider);
        candidate.own_nodes = facts.is_some_and(|facts| facts.own_nodes);
        candidate.unpriced = facts.is_some_and(|facts| facts.unpriced);
    }
    let mut draft = Draft::new(seen, &candidates, now);
    cost::settle(&mut draft);
    if seen.machines.iter().any(|machine| machine.uid.is_none()) {
        // Nobody tells of a record that was never made, or is gone before a watch showed it.
        draft.requeue_after(DOUBTFUL);
    }
    if seen.pool.deleting_since.is_some() {
        cleanup::plan(&mut draft);
        status::plan_deleting(&mut draft);
        cost::announce(&mut draft);
        return draft.finish();
    }
    if !seen.pool.finalizer {
        draft.because("the finalizer comes before anything else");
        draft.actions.push(Action::AddFinalizer);
        let what = format!(
            "{} machine(s) from {}",
            draft.wanted(),
            named(seen.pool.spec.providers())
        );
        draft
            .events
            .push(EventSpec::normal(events::reason::POOL_REQUESTED, "Request", what));
        draft.next = Next::Again;
        return draft.finish();
    }
    lifetime::plan(&mut draft);
    autoscale::plan(&mut draft);
    draft.elsewhere = scale::moves_on(&draft);
    admission::plan(&mut draft);
    failures::plan(&mut draft);
    cost::budget(&mut draft);
    lifetime::end(&mut draft);
    rollout::judge(&mut draft);
    scale::plan_reclaimed(&mut draft);
    scale::plan_duplicates(&mut draft);
    drift::plan(&mut draft);
    scale::plan(&mut draft);
    rollout::give_turn(&mut draft);
    if seen.has_references {
        draft.requeue_after(
            if draft.block.as_ref().is_some_and(|block| {
                [reason::REFERENCE_NOT_FOUND, reason::REFERENCE_TOO_LARGE].contains(&block.reason)
            }) {
                crate::pool::facts::MISSING_EVERY
            } else {
                crate::pool::facts::REFERENCES_EVERY
            },
        );
    }
    autoscale::record(&mut draft);
    status::plan(&mut draft);
    cost::announce(&mut draft);
    draft.finish()
}
