//! Bootstraps that fail in the same way: the second such machine stops the Pool, for a third would
//! fail too, and each is paid for.
//!
//! The Pool's status records the failures before their machines go, so that another leader knows
//! them, with the names of the machines, so that none counts twice. They are forgotten when the
//! spec or an object that it names (Secret, ConfigMap, Provider) changes, when the Pool is off or
//! suspended, when a machine becomes ready afterwards, and after an hour where a server was not
//! reached, which may pass by itself. From then on only machines of later attempts count: earlier
//! ones were prepared from the old spec. A Pool that has the machines of `nodes.desired` is not stopped: it
//! stops growing for a while ([`growth`]).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    condition::{STALLED, cut, find, reason},
    machine::{BootstrapCause, BootstrapFailure},
    pool::{BootstrapRecord, PoolSpec, RepeatedFailure},
};

use super::{
    draft::{Block, Draft},
    failures::FORGIVEN_AFTER,
    growth,
};
use crate::{
    base::{
        digest::short_digest,
        time::{after, elapsed},
    },
    pool::facts::MachineFacts,
};

/// Machines that fail in the same way before the Pool stops.
const ENOUGH: usize = 2;
/// Most different failures that are remembered.
const WAYS: usize = 6;
/// Most machines that are named for one failure.
const NAMED: usize = 4;

/// Digest of what machines are prepared from: the spec without the number of machines, and the
/// versions of the objects that it names. `None`: a version is not known now.
pub fn tried_with(
    spec: &PoolSpec,
    references: Option<&str>,
    providers: &BTreeMap<String, Option<i64>>,
) -> Option<String> {
    let mut spec = serde_json::to_value(spec).ok()?;
    let fields = spec.as_object_mut()?;
    for how_many in ["nodes", "suspend"] {
        fields.remove(how_many);
    }
    let all = serde_json::json!({ "spec": spec, "references": references?, "providers": providers });
    Some(short_digest(all.to_string().as_bytes()))
}

/// Forgets failures that no longer count, and answers whether the remaining ones stop the Pool.
pub(crate) fn forget(draft: &mut Draft<'_>) -> bool {
    let seen = draft.seen;
    let Some(record) = draft.status.bootstrap.as_mut() else {
        return false;
    };
    let known = seen.tried_with.as_deref();
    if record.tried_with.is_empty() {
        known.unwrap_or_default().clone_into(&mut record.tried_with);
    }
    let last = record.failures.iter().map(|way| way.last_at.0).max();
    let is_off = seen.pool.spec.nodes.desired == 0 || seen.pool.resolved.suspended;
    let has_changed = known.is_some_and(|known| known != record.tried_with);
    let is_refuted = |machine: &MachineFacts| machine.is_live() && machine.ready && machine.ready_at > last;
    let why = if has_changed {
        "the spec changed, or what it names"
    } else if is_off {
        "no machine is wanted"
    } else if last.is_some() && seen.machines.iter().any(is_refuted) {
        "a machine became ready"
    } else if last.is_some_and(|last| elapsed(last, draft.now) >= FORGIVEN_AFTER)
        && record.failures.iter().all(may_pass)
    {
        "an hour passed"
    } else {
        return record.failures.iter().any(is_enough);
    };
    if has_changed || !record.failures.is_empty() {
        let known = known.unwrap_or(&record.tried_with).to_owned();
        let had_some = !record.failures.is_empty();
        *record = BootstrapRecord {
            tried_with: known,
            after_attempt: draft.status.last_attempt,
            failures: Vec::new(),
        };
        if had_some {
            draft.because(format!("how bootstraps failed is forgotten: {why}"));
        }
    }
    false
}

/// Records how bootstraps failed, and stops the Pool where two failed in the same way.
pub(crate) fn note(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let mut record = draft.status.bootstrap.clone().unwrap_or_default();
    let mut news: Vec<_> = seen
        .machines
        .iter()
        .filter(|machine| machine.ready_at.is_none() && machine.current)
        .filter(|machine| machine.attempt > record.after_attempt)
        .filter_map(|machine| {
            let failure = machine.failure.as_ref()?;
            Some((failure.at, machine, failure.bootstrap.as_ref()?))
        })
        .collect();
    news.sort_by_key(|(at, machine, _)| (*at, machine.attempt));
    for (at, machine, failure) in news {
        add(&mut record, at, &machine.name, failure);
    }
    if record.failures.is_empty() && draft.status.bootstrap.is_none() {
        return;
    }
    if record.tried_with.is_empty() {
        record.tried_with = seen.tried_with.clone().unwrap_or_default();
    }
    if let Some(way) = record.failures.iter().rev().find(|way| is_enough(way)) {
        if draft.has_floor() {
            // A machine of `nodes.desired` that is lost later has tries of its own.
            growth::give_up(draft);
            record.after_attempt = draft.status.last_attempt;
            record.failures.clear();
        } else {
            stop(draft, way);
        }
    }
    draft.status.bootstrap = Some(record);
}

fn add(record: &mut BootstrapRecord, at: jiff::Timestamp, machine: &str, failure: &BootstrapFailure) {
    let ways = &mut record.failures;
    match ways.iter_mut().find(|way| way.failure.is_same(failure)) {
        Some(way) if way.machines.iter().any(|known| known == machine) => {}
        Some(way) => {
            if way.machines.len() < NAMED {
                way.machines.push(machine.to_owned());
            }
            way.failure = failure.clone();
            way.last_at = Time(way.last_at.0.max(at));
        }
        None => {
            // A failure that has stopped the Pool never makes room.
            if ways.len() == WAYS {
                let oldest = ways.iter().position(|way| !is_enough(way)).unwrap_or_default();
                ways.remove(oldest);
            }
            ways.push(RepeatedFailure {
                failure: failure.clone(),
                machines: vec![machine.to_owned()],
                last_at: Time(at),
            });
        }
    }
}

fn is_enough(way: &RepeatedFailure) -> bool {
    way.machines.len() >= ENOUGH
}

/// Whether the cause may pass by itself.
fn may_pass(way: &RepeatedFailure) -> bool {
    way.failure.cause == Some(BootstrapCause::Unreachable)
}

fn stop(draft: &mut Draft<'_>, way: &RepeatedFailure) {
    let names: Vec<String> = way.machines.iter().map(|name| format!("\"{name}\"")).collect();
    let mut until = "the Pool, or a Secret, ConfigMap or Provider that it names, changes".to_owned();
    if may_pass(way) {
        until.push_str(", or an hour has passed");
        draft.requeue_after(
            elapsed(draft.now, after(way.last_at.0, FORGIVEN_AFTER)).max(Duration::from_secs(1)),
        );
    }
    let last = way.machines.last().map_or("", String::as_str);
    let what = cut(&in_words(draft, way), 1500);
    let message = format!(
        "The bootstraps of the Machines {} failed in the same way: no other machine is ordered until {until}. `kubectl skyward logs machine/{last}` shows all that it printed. {}{what}",
        names.join(", "),
        super::failures::MARKER
    );
    draft.block(Block::stalled(reason::BOOTSTRAP_FAILED, message));
}

/// The message of the last machine that failed so; that of an earlier plan, when the machine is
/// gone.
fn in_words(draft: &Draft<'_>, way: &RepeatedFailure) -> String {
    let failures = draft.seen.machines.iter().filter_map(|machine| {
        let failure = machine.failure.as_ref()?;
        let is_such = failure.bootstrap.as_ref()?.is_same(&way.failure);
        is_such.then_some((failure.at, machine, failure))
    });
    if let Some((_, machine, failure)) = failures.max_by_key(|(at, ..)| *at) {
        return failure.of_machine(&machine.name);
    }
    let written = find(&draft.seen.pool.status.conditions, STALLED)
        .filter(|stalled| stalled.reason == reason::BOOTSTRAP_FAILED)
        .and_then(|stalled| stalled.message.split_once(super::failures::MARKER));
    if let Some((_, what)) = written {
        return what.to_owned();
    }
    let BootstrapFailure {
        step, ended, line, ..
    } = &way.failure;
    format!("Step \"{step}\": {ended}: {line}")
}
