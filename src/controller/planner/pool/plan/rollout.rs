//! A changed image goes from machine to machine, in place. No machine is ordered, replaced or ended for it.
//!
//! The machine whose turn it is takes no new runs, and begins when it has none: it makes the new environment beside
//! the one in use, and switches when the last step is done. The first machine tries it for all: where a step fails
//! there, it keeps the environment that it has, and no other machine begins. The turn is on record in the status of
//! the Pool before the dispatcher and the Machine act on it; the Machine records that it begins.
//!
//! Only machines that took runs have a turn. A machine that is still being prepared goes on with the newest image.

use std::{cmp::Reverse, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    condition::{cut, reason},
    environment::{EnvironmentFailure, PoolEnvironment},
    machine::BootstrapCause,
};

use super::{
    draft::{Block, Draft},
    failures::FORGIVEN_AFTER,
};
use crate::{
    base::time::{after, elapsed},
    events::{self, EventSpec},
    pool::facts::MachineFacts,
};

/// Stands in front of what failed in the message of the condition.
const WHAT: &str = "What failed: ";

/// Records which environment is asked for, and stops the rollout where a machine could not make it.
pub(crate) fn judge(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let Some(hash) = seen.environment.clone() else {
        if draft.status.environment.is_some() {
            draft.because("which environment the image asks for is not known now");
        }
        return;
    };
    let old = seen.pool.status.environment.clone().unwrap_or_default();
    let is_news = old.hash != hash;
    let mut record = if is_news {
        PoolEnvironment {
            hash,
            turn: old.turn,
            turn_since: old.turn_since,
            ..PoolEnvironment::default()
        }
    } else {
        old.clone()
    };
    let live: Vec<_> = draft.live().collect();
    record.proven |= live
        .iter()
        .any(|machine| machine.ready && has(machine, &record.hash));
    let failed = live
        .iter()
        .filter_map(|machine| failed(machine, &record))
        .max_by_key(|failed| failed.at.0);
    if let Some(failed) = failed {
        record.failed = Some(failed.clone());
    }
    if let Some(failed) = &record.failed {
        let is_there = live.iter().any(|machine| machine.name == failed.machine);
        let is_over = may_pass(failed) && elapsed(failed.at.0, draft.now) >= FORGIVEN_AFTER;
        let why = if !is_there {
            "its machine is gone"
        } else if draft.wanted() == 0 {
            "no machine is wanted"
        } else if is_over {
            "an hour passed"
        } else {
            ""
        };
        if !why.is_empty() {
            draft.because(format!("the failed change of an environment is forgotten: {why}"));
            record.failed = None;
        }
    }
    if is_news && !old.hash.is_empty() && live.iter().any(|machine| differs(machine, &record.hash)) {
        let note = format!(
            "The image, or a Secret or ConfigMap that its steps read, changed: the machines take over the environment {}, one after the other",
            record.hash
        );
        let event = EventSpec::normal(events::reason::ENVIRONMENT_CHANGING, "Change", note);
        draft.events.push(event);
    }
    let failed = record.failed.clone();
    draft.status.environment = Some(record);
    if let Some(failed) = failed {
        stop(draft, &failed);
    }
}

/// Gives the turn to a machine. After all other steps, so that no machine has it that this plan gives up.
pub(crate) fn give_turn(draft: &mut Draft<'_>) {
    let Some(mut record) = draft.status.environment.clone() else {
        return;
    };
    let seen = draft.seen;
    let different: Vec<_> = draft
        .live()
        .filter(|machine| machine.current && differs(machine, &record.hash))
        .collect();
    let may_begin = seen.environment.is_some() && record.failed.is_none() && draft.wanted() > 0;
    let next = next(draft, &different, &record, may_begin);
    let name = next.map(|machine| machine.name.clone()).unwrap_or_default();
    if name != record.turn {
        if name.is_empty() && different.is_empty() && record.proven {
            let note = format!("Every machine has the environment {}", record.hash);
            let event = EventSpec::normal(events::reason::ENVIRONMENT_CHANGED, "Change", note);
            draft.events.push(event);
        }
        record.turn_since = (!name.is_empty()).then_some(Time(draft.now));
        record.turn = name;
    }
    match (different.len(), next) {
        (0, _) => draft.because("every machine has the environment of the image"),
        (many, None) => draft.because(format!("{many} machines have another environment and wait")),
        (many, Some(machine)) => draft.because(format!(
            "{many} machines have another environment; it is the turn of \"{}\"",
            machine.name
        )),
    }
    draft.status.environment = Some(record);
}

/// The machine whose turn it is now. A machine that has begun ends it. Among the others an idle one goes first, and
/// the head, on which others of the Pool may depend, last; of machines that all are busy the one with the fewest runs
/// takes no new ones, and gives the turn away if another is idle sooner.
fn next<'a>(
    draft: &Draft<'a>,
    different: &[&'a MachineFacts],
    record: &PoolEnvironment,
    may_begin: bool,
) -> Option<&'a MachineFacts> {
    let begun = different.iter().find(|machine| machine.changing).copied();
    if begun.is_some() || !may_begin {
        return begun;
    }
    let head = draft.live().map(|machine| machine.slot).min();
    let able: Vec<_> = different
        .iter()
        // A machine whose load is not known is not touched.
        .filter(|machine| machine.ready && !machine.reclaimed && machine.runs.is_some())
        .copied()
        .collect();
    let best = able
        .iter()
        .min_by_key(|machine| (machine.runs, Some(machine.slot) == head, Reverse(machine.slot)))
        .copied();
    let holder = able.iter().find(|machine| machine.name == record.turn).copied();
    match (holder, best) {
        (Some(holder), Some(best)) if holder.runs != Some(0) && best.runs == Some(0) => Some(best),
        (Some(holder), _) => Some(holder),
        (None, best) => best,
    }
}

/// How many machines have another environment than the image asks for.
pub(crate) fn different(draft: &Draft<'_>) -> usize {
    let Some(record) = &draft.status.environment else {
        return 0;
    };
    draft
        .live()
        .filter(|machine| machine.current && differs(machine, &record.hash))
        .count()
}

/// Whether a machine took runs and they find another environment.
fn differs(machine: &MachineFacts, hash: &str) -> bool {
    let environment = machine.environment.as_ref();
    machine.ready_at.is_some() && environment.is_some_and(|known| known.is_changing() || known.hash != hash)
}

/// Whether its runs find this environment.
fn has(machine: &MachineFacts, hash: &str) -> bool {
    let environment = machine.environment.as_ref();
    environment.is_some_and(|known| !known.is_changing() && known.hash == hash)
}

/// Why a machine could not make the environment that is asked for, in the turn that it had.
fn failed<'a>(machine: &'a MachineFacts, record: &PoolEnvironment) -> Option<&'a EnvironmentFailure> {
    let environment = machine
        .environment
        .as_ref()
        .filter(|known| !known.is_changing())?;
    let failed = environment.failed.as_ref()?;
    let since = record.turn_since.as_ref();
    let is_of_now = since.is_none_or(|since| failed.at.0 >= since.0);
    (failed.hash == record.hash && environment.hash != record.hash && is_of_now).then_some(failed)
}

/// Whether the cause may pass by itself.
fn may_pass(failed: &EnvironmentFailure) -> bool {
    failed.failure.cause == Some(BootstrapCause::Unreachable)
}

fn stop(draft: &mut Draft<'_>, failed: &EnvironmentFailure) {
    let mut until = "the image, or a Secret or ConfigMap that its steps read, changes".to_owned();
    if may_pass(failed) {
        until.push_str(", or an hour has passed");
        let left = elapsed(draft.now, after(failed.at.0, FORGIVEN_AFTER));
        draft.requeue_after(left.max(Duration::from_secs(1)));
    }
    let name = &failed.machine;
    let message = format!(
        "The changed image could not be applied to Machine \"{name}\". Every machine keeps the environment that it has and takes Tasks; none is changed, ordered or replaced until {until}, or that Machine is deleted. {WHAT}{}",
        cut(&failed.message, 1500)
    );
    if draft.block.is_none() {
        draft.block(Block::stalled(reason::IMAGE_FAILED, message));
    } else {
        draft.because(format!("the changed image failed at \"{name}\""));
    }
}
