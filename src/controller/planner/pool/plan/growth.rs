//! Growth that fails: machines beyond `nodes.desired`, while the Pool has those of `nodes.desired`.
//!
//! Such a failure is no failed try of the Pool, which goes on with the machines that it has. It is counted by itself,
//! told in a condition, and growth is tried again later: the wait doubles with each failed machine, as for other tries.
//! Once `maxProvisionAttempts` machines have failed in a row, or two in the same step of their bootstrap in the same way,
//! one machine is tried each hour, since each failed one is paid for. A machine that stays ready for a minute ends the
//! row, and so does a change of the spec.
//!
//! Machines of `nodes.desired` are ordered whatever becomes of growth.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::condition::{cut, reason};

use super::{
    draft::{Block, Draft, Growth},
    failures::{self, FORGIVEN_AFTER, MARKER, STEADY},
};
use crate::{
    base::time::{after, elapsed},
    pool::facts::Failure,
};

/// Longest text about the last failure, in bytes.
const LONGEST: usize = 1000;

/// When the last counted machine of its growth failed.
pub(super) fn last_failure(draft: &Draft<'_>) -> Option<Timestamp> {
    let record = draft.status.scaling.as_ref()?;
    record.growth_failed_at.as_ref().map(|at| at.0)
}

/// Ends the row of failures where growth works again, or is another one.
pub(super) fn forget(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let failed = failed_in_a_row(draft);
    let Some(last) = last_failure(draft).filter(|_| failed > 0) else {
        return;
    };
    let status = &seen.pool.status;
    let changed = status
        .observed_generation
        .is_some_and(|observed| observed != seen.pool.generation);
    let is_off = draft.is_suspended() || !seen.pool.spec.nodes.grows();
    let ready_at = draft
        .live()
        .filter(|machine| machine.ready && machine.ready_at > Some(last))
        .filter_map(|machine| machine.ready_at)
        .min();
    let is_steady = ready_at.is_some_and(|at| elapsed(at, draft.now) >= STEADY);
    if let Some(at) = ready_at.filter(|_| !is_steady) {
        draft.requeue_after(elapsed(draft.now, after(at, STEADY)));
    }
    if changed || is_off || is_steady {
        draft.because(format!("{failed} failed machines of its growth are forgotten"));
        draft.status.scaling.get_or_insert_default().growth_failures = None;
    }
}

/// Counts failures of machines that were not of `nodes.desired`, each once.
pub(super) fn count<'f>(draft: &mut Draft<'_>, news: impl IntoIterator<Item = &'f Failure>) {
    let elsewhere = draft.elsewhere;
    let (mut failed, mut last) = (failed_in_a_row(draft), last_failure(draft));
    for failure in news {
        last = last.max(Some(failure.at));
        // Where another Offer fits it is ordered at once.
        failed = failed.saturating_add(u32::from(!(elsewhere && failures::is_shortage(failure))));
    }
    let record = draft.status.scaling.get_or_insert_default();
    record.growth_failures = Some(failed).filter(|failed| *failed > 0);
    record.growth_failed_at = last.map(Time);
}

/// Further machines would fail in the same way.
pub(super) fn give_up(draft: &mut Draft<'_>) {
    let enough = failed_in_a_row(draft).max(allowed(draft));
    let record = draft.status.scaling.get_or_insert_default();
    record.growth_failures = Some(enough);
    record.growth_failed_at.get_or_insert(Time(draft.now));
}

/// Finds how far the Pool may grow now.
pub(super) fn judge(draft: &mut Draft<'_>) {
    let failed = failed_in_a_row(draft);
    let Some(last) = last_failure(draft).filter(|_| failed > 0) else {
        return;
    };
    let is_given_up = failed >= allowed(draft);
    let wait = if is_given_up {
        FORGIVEN_AFTER
    } else {
        failures::delay(draft, failed).min(FORGIVEN_AFTER)
    };
    let again = after(last, wait);
    if draft.now < again {
        draft.requeue_after(elapsed(draft.now, again).max(Duration::from_millis(1)));
        let one = if is_given_up { " with one machine" } else { "" };
        let message = format!(
            "{failed} machines beyond nodes.desired failed in a row, and the Pool goes on with the machines that it has. Growth is tried again{one} at {again:.0}; correct the cause, and a change of the Pool tries it at once. {MARKER}{}",
            what_failed(draft)
        );
        draft.growth = Growth::Waits(Block::waiting(reason::GROWTH_FAILED, message));
    } else if is_given_up {
        draft.growth = Growth::Trial;
    }
}

/// How many machines there may be, including the machines that exist.
pub(super) fn most(draft: &Draft<'_>) -> u32 {
    let floor = draft.seen.pool.spec.nodes.desired;
    match &draft.growth {
        Growth::Free => u32::MAX,
        Growth::Waits(_) => floor,
        Growth::Trial => {
            let proven = draft.holding().filter(|machine| machine.ready_at.is_some());
            let proven = u32::try_from(proven.count()).unwrap_or(u32::MAX);
            floor.max(proven.saturating_add(1))
        }
    }
}

/// Says that growth waits, where nothing else keeps machines from being ordered.
pub(super) fn tell(draft: &mut Draft<'_>) {
    if draft.block.is_none()
        && let Growth::Waits(block) = draft.growth.clone()
    {
        draft.block(block);
    }
}

fn failed_in_a_row(draft: &Draft<'_>) -> u32 {
    let record = draft.status.scaling.as_ref();
    record.and_then(|record| record.growth_failures).unwrap_or(0)
}

fn allowed(draft: &Draft<'_>) -> u32 {
    draft.seen.pool.resolved.max_provision_attempts
}

/// What the last machine said that failed, or an earlier plan where that machine is gone.
fn what_failed(draft: &Draft<'_>) -> String {
    let failed = draft.seen.machines.iter().filter_map(|machine| {
        let failure = machine.failure.as_ref()?;
        failures::counts(machine, failure).then_some((machine, failure))
    });
    failed
        .max_by_key(|(_, failure)| failure.at)
        .map(|(machine, failure)| cut(&failure.of_machine(&machine.name), LONGEST))
        .or_else(|| failures::remembered(&draft.seen.pool.status.conditions))
        .unwrap_or_else(|| "not known any more".to_owned())
}
