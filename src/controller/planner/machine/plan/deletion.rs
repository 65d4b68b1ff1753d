//! A machine is given up: it drains, its provider deletes it, its record goes.
//!
//! A machine that took runs waits until its dispatcher says that none is left: for ever
//! when the Pool shrinks (its runs finish), else at most `timeouts.shutdown` and a little
//! longer, for which the dispatcher stops them. The record goes only when the provider
//! says that the machine is gone: then, and only then, its runs are lost.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    Machine, MachinePhase,
    condition::{self, NewCondition, READY, cut, reason},
};
use skyward_core::{Deletion, ErrorKind, ProviderPhase, provider::BilledTime};

use super::{
    draft::{Action, Plan},
    liveness::trust_lost,
    progress, rental, status,
    trust::trust,
};
use crate::{
    base::{requeue::Next, time::after},
    events::{self, EventSpec},
    machine::facts::{AccountState, LookupOutcome, Observed},
    money::so_far,
};

/// Time that dispatchers have to collect results after `timeouts.shutdown`.
const COLLECT: Duration = Duration::from_secs(15);
/// Time for a Provider to come back, as when a GitOps tool replaces it.
const PROVIDER_GRACE: Duration = Duration::from_secs(20);
/// Between two looks at whether the Pool of a machine that finishes its runs has spent its
/// budget: that is in its status, which wakes no Machine.
const OFF_LOOK: Duration = Duration::from_secs(30);
/// Between two looks at whether the Pool has counted the cost.
const SETTLE_AGAIN: Duration = Duration::from_millis(300);
/// Between two looks at a machine whose end is ordered: as long as it may seem to be on the
/// bill when it is not.
const END_AGAIN: Duration = Duration::from_secs(5);
/// Between two tries of a deletion that met a failure.
const DELETE_AGAIN: Duration = Duration::from_secs(3);

pub(super) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let machine = &seen.machine;
    if !machine.finalizer {
        plan.reasons.push("nothing of ours holds the record".to_owned());
        return plan;
    }
    if machine.status.gone_at.is_some() {
        settle(seen, now, &mut plan);
        return plan;
    }
    let message = match &seen.deletion {
        Some(Ok(Deletion::Gone | Deletion::Foreign)) if may_show_up(seen, now) => {
            let until = seen.unseen_until.unwrap_or(now);
            plan.reasons
                .push("its provider does not show it, and may do so yet".to_owned());
            plan.requeue_at(now, until);
            format!(
                "It was ordered and Provider \"{}\" does not show it yet: it is gone only when it is not shown by {until:.0} either.",
                machine.spec.provider
            )
        }
        Some(Ok(answer @ (Deletion::Gone | Deletion::Foreign))) => {
            if *answer == Deletion::Foreign {
                plan.events.push(foreign(seen));
            }
            gone(seen, now, "the provider says that it is gone", &mut plan);
            return plan;
        }
        Some(Ok(Deletion::InProgress)) => {
            plan.reasons.push("its end is ordered".to_owned());
            plan.requeue_after(if seen.tells_changes {
                END_AGAIN
            } else {
                seen.poll_interval.min(END_AGAIN)
            });
            "Its deletion is ordered.".to_owned()
        }
        // A person who removed a Provider by force may have revoked its credentials before: no
        // object is left to give it others, so the account can no longer be asked.
        Some(Err(error))
            if seen.account == AccountState::Departed
                && matches!(
                    error.kind,
                    ErrorKind::CredentialsMissing | ErrorKind::Credentials | ErrorKind::Permission
                ) =>
        {
            plan.reasons.push(format!("its deletion met: {error}"));
            provider_gone(seen, now, &mut plan);
            return plan;
        }
        Some(Err(error)) => {
            plan.reasons.push(format!("its deletion met: {error}"));
            plan.requeue_after(DELETE_AGAIN);
            format!("{}; it is tried again.", cut(&error.to_string(), 1800))
        }
        None => {
            end(seen, now, &mut plan);
            return plan;
        }
    };
    mark(
        seen,
        now,
        MachinePhase::Deleting,
        reason::DELETING,
        message,
        &mut plan,
    );
    plan
}

/// Lets its runs end, then asks its provider to delete it.
fn end(seen: &Observed, now: Timestamp, plan: &mut Plan) {
    let until = match drains(seen, now) {
        Drains::No => None,
        Drains::UntilIdle => {
            plan.requeue_after(OFF_LOOK);
            Some(Timestamp::MAX)
        }
        Drains::UntilIdleOr(end) => {
            plan.requeue_at(now, end);
            Some(Timestamp::MAX)
        }
        Drains::Until(until) => Some(until),
    };
    if let Some(until) = until {
        drain(seen, now, until, plan);
        return;
    }
    if seen.session.is_some() {
        plan.actions.push(Action::Disconnect);
    }
    match &seen.account {
        AccountState::Ready { .. } | AccountState::Departed => {
            plan.reasons.push("its provider is asked to delete it".to_owned());
            remember(seen, now, plan);
            plan.actions.push(Action::Delete);
            plan.next = Next::Again;
        }
        AccountState::Waiting => {
            plan.reasons.push("its Provider cannot be used now".to_owned());
            plan.requeue_after(Duration::from_secs(5));
            let message = format!(
                "Provider \"{}\" cannot be used now, so it cannot be deleted there; it is as soon as the Provider is ready.",
                seen.machine.spec.provider
            );
            mark(
                seen,
                now,
                MachinePhase::Deleting,
                reason::PROVIDER_NOT_READY,
                message,
                plan,
            );
        }
        AccountState::Gone => provider_gone(seen, now, plan),
    }
}

/// Somebody wrote another machine's id into the record, or the cloud gave the id to another
/// machine. The sweep ends a machine with our mark.
fn foreign(seen: &Observed) -> EventSpec {
    let note = format!(
        "{} at Provider \"{}\" is on record as the id of Machine \"{}\" and carries the mark of another machine: it was left as it is",
        seen.machine.status.id, seen.machine.spec.provider, seen.machine.name
    );
    EventSpec::warning(events::reason::FOREIGN_MACHINE, "Delete", note)
}

/// Records price and billed time before the machine ends: after a lost answer to its order nothing
/// was recorded before.
fn remember(seen: &Observed, now: Timestamp, plan: &mut Plan) {
    let LookupOutcome::There(there) = &seen.provider else {
        return;
    };
    let old = &seen.machine.status;
    let mut new = old.clone();
    if new.id.is_empty() {
        new.id = cut(&there.id, 256);
    }
    new.accepted_at.get_or_insert(Time(now));
    rental::record(seen, now, &mut new);
    if new != *old {
        plan.status = Some(Box::new(new));
    }
}

/// A new machine may not be shown, even if it was shown before: clouds answer from copies that lag.
/// Its absence is believed once every copy would show it.
fn may_show_up(seen: &Observed, now: Timestamp) -> bool {
    seen.unseen_until.is_some_and(|until| now < until)
}

/// The Provider was removed by force and cannot be asked; the record goes all the same. Pods go
/// with their Machine; an Event names any other machine.
fn provider_gone(seen: &Observed, now: Timestamp, plan: &mut Plan) {
    let since = seen.machine.deleting_since.unwrap_or(now);
    let due = after(since, PROVIDER_GRACE);
    let was_ordered = !seen.machine.status.id.is_empty();
    if was_ordered && now < due {
        plan.reasons
            .push("its Provider is gone; it may come back".to_owned());
        plan.requeue_at(now, due);
        return;
    }
    gone(seen, now, "its Provider does not exist any more", plan);
    if was_ordered {
        let note = format!(
            "Provider \"{}\" does not exist any more: whether machine {} is gone there could not be asked",
            seen.machine.spec.provider, seen.machine.status.id
        );
        plan.events.push(EventSpec::warning(
            events::reason::MACHINE_DESTROYED,
            "Delete",
            note,
        ));
    }
}

/// The machine is gone: its cost, if it has any, is recorded before the record goes.
fn gone(seen: &Observed, now: Timestamp, why: &str, plan: &mut Plan) {
    if seen.billed_so_far.is_zero() {
        let_go(seen, plan, why);
        return;
    }
    plan.reasons.push(format!("{why}; its cost comes on record"));
    let mut new = seen.machine.status.clone();
    // Where only running time is billed, a machine that was never seen running is billed since the
    // last look that found it booting.
    let booting = seen
        .starting_at
        .filter(|_| seen.billed_time == BilledTime::Running);
    if let Some(booting) = booting {
        new.billed_since.get_or_insert(Time(booting));
    }
    new.gone_at = Some(Time(now));
    let mut machine = Machine::new(&seen.machine.name, seen.machine.spec.clone());
    machine.status = Some(new.clone());
    new.cost = Some(so_far(&machine, now).total().to_string());
    plan.status = Some(Box::new(new));
    plan.next = Next::Again;
}

/// The record stays until the Pool has counted its cost, or is gone itself.
fn settle(seen: &Observed, now: Timestamp, plan: &mut Plan) {
    let counted = seen.pool.as_ref().is_none_or(|pool| {
        pool.status
            .as_ref()
            .and_then(|status| status.cost.as_ref())
            .is_some_and(|cost| cost.counted.contains(&seen.machine.uid))
    });
    if counted && seen.counted_by_provider {
        let_go(seen, plan, "it is gone and settled");
    } else {
        plan.reasons
            .push("it is gone; its cost is not counted yet".to_owned());
        plan.requeue_at(now, after(now, SETTLE_AGAIN));
    }
}

fn let_go(seen: &Observed, plan: &mut Plan, why: &str) {
    plan.reasons.push(why.to_owned());
    if seen.session.is_some() {
        plan.actions.push(Action::Disconnect);
    }
    plan.actions.push(Action::RemoveFinalizer);
    let cost = seen.machine.status.cost.as_ref();
    let cost = cost.map_or(String::new(), |cost| format!(" and cost {cost} USD"));
    let note = format!("Machine \"{}\" is gone{cost}", seen.machine.name);
    plan.events.push(EventSpec::normal(
        events::reason::MACHINE_DESTROYED,
        "Delete",
        note,
    ));
}

/// How long a machine drains.
enum Drains {
    /// Not at all, or not any more.
    No,
    /// As long as its runs take.
    UntilIdle,
    /// As long as its runs take, but at most until then: its connection is lost.
    UntilIdleOr(Timestamp),
    /// At most until then.
    Until(Timestamp),
}

fn drains(seen: &Observed, now: Timestamp) -> Drains {
    let machine = &seen.machine;
    let lost = match &seen.provider {
        LookupOutcome::Absent => !may_show_up(seen, now),
        LookupOutcome::There(there) => {
            matches!(
                there.phase,
                ProviderPhase::Failed(_) | ProviderPhase::Stopped(_) | ProviderPhase::Stopping
            )
        }
        LookupOutcome::Unknown(_) => false,
    };
    // Nobody can hear of the runs of a machine that is trusted no more.
    let lost = lost || trust_lost(seen).is_some();
    let nothing_to_wait_for =
        machine.status.ready_at.is_none() || machine.has_failed() || lost || seen.runs == Some(0);
    let Some(pool) = seen.pool.as_ref().filter(|_| !nothing_to_wait_for) else {
        return Drains::No;
    };
    let pool_ends = pool.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    // When a Pool is turned off, or its budget is spent, runs are not paid for to their end.
    let ends = pool_ends.or(seen.off_since);
    let since = match (machine.finish_runs, ends) {
        (true, None) => {
            // The machine has been silent for so long that its agent has given up waiting for us.
            let silent = seen
                .disconnected_since
                .map(|since| after(since, seen.waits.orphan));
            return match silent {
                Some(end) if end <= now => Drains::No,
                Some(end) => Drains::UntilIdleOr(end),
                None => Drains::UntilIdle,
            };
        }
        (true, Some(ends)) => ends.max(machine.deleting_since.unwrap_or(ends)),
        (false, _) => machine.deleting_since.unwrap_or(now),
    };
    let until = after(since, seen.waits.shutdown + COLLECT);
    if now < until {
        Drains::Until(until)
    } else {
        Drains::No
    }
}

fn drain(seen: &Observed, now: Timestamp, until: Timestamp, plan: &mut Plan) {
    let runs = seen
        .runs
        .map_or_else(|| "an unknown number of".to_owned(), |runs| runs.to_string());
    plan.reasons.push(format!("drains, {runs} runs are left"));
    let has_deadline = until != Timestamp::MAX;
    if has_deadline {
        plan.requeue_at(now, until);
    }
    if let LookupOutcome::There(there) = &seen.provider
        && let Some(endpoint) = &there.endpoint
    {
        // Without a key that counts there is no connection, and the runs end with their machine.
        if let Ok(trust) = trust(seen, there, now) {
            plan.actions.push(Action::Connect {
                endpoint: endpoint.clone(),
                trust,
                environment: None,
            });
        }
    } else if matches!(seen.provider, LookupOutcome::Unknown(_)) {
        plan.actions.extend(progress::reconnect(seen));
    }
    let what = if has_deadline {
        "Its runs are being stopped."
    } else {
        "It takes no new runs and finishes those it has."
    };
    mark(
        seen,
        now,
        MachinePhase::Draining,
        reason::DRAINING,
        what.to_owned(),
        plan,
    );
}

/// Phase and condition Ready; a failed machine stays Failed, for its Pool to see.
fn mark(
    seen: &Observed,
    now: Timestamp,
    phase: MachinePhase,
    why: &'static str,
    message: String,
    plan: &mut Plan,
) {
    if seen.machine.has_failed() {
        // The reason of the failure stays for its Pool to see; the message adds why the record is
        // still here.
        if matches!(seen.deletion, Some(Err(_))) {
            let mut new = seen.machine.status.clone();
            if let Some(ready) = new.conditions.iter_mut().find(|c| c.type_ == READY) {
                ready.message = message;
            }
            status::commit(seen, now, new, plan);
        }
        return;
    }
    let mut new = seen.machine.status.clone();
    rental::record(seen, now, &mut new);
    new.phase = Some(phase);
    new.step.clear();
    let reported = match &seen.provider {
        LookupOutcome::There(there) => there.rental.reclaim_at,
        LookupOutcome::Absent | LookupOutcome::Unknown(_) => None,
    };
    if let Some(at) = status::reclaim_at(seen, reported) {
        new.reclaim_at = Some(Time(at));
    }
    match &seen.deletion {
        // If the machine stays away, its bill ended when it was first away.
        Some(Ok(Deletion::Gone | Deletion::Foreign)) => {
            new.billed_until.get_or_insert(Time(now));
        }
        Some(Ok(Deletion::InProgress)) => {
            // The provider found the machine, although the acceptance of its order was never
            // recorded.
            new.accepted_at.get_or_insert(Time(now));
            // Or the machine was missing for a moment only, on a copy that lagged.
            if seen.billed_time == BilledTime::Existing {
                new.billed_until = None;
            }
        }
        Some(Err(_)) | None => {}
    }
    let ready = NewCondition::new(READY, false, why, message);
    condition::set(&mut new.conditions, ready, Some(1), now);
    status::commit(seen, now, new, plan);
}
