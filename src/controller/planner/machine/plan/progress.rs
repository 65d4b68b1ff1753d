//! How far a machine is: what its provider and its session say, and which step is next.

use std::{net::SocketAddr, time::Duration};

use jiff::Timestamp;
use skyward_api::condition::reason;
use skyward_core::{
    ErrorKind, ProviderError, ProviderMachine, ProviderPhase, Usd,
    error::ErrorClass,
    machine::{Dial, Endpoint, Failure, FailureKind},
};

use super::{
    draft::{Action, Found, Plan, Trust},
    liveness, terms,
    trust::{trust, without_token},
};
use crate::{
    accounts::{facts::NamespaceFacts, host_keys::unverifiable, unavailable::Unavailable},
    base::{
        requeue::Next,
        time::{after, elapsed},
    },
    machine::facts::{AccountState, LookupOutcome, Observed},
};

/// Between two tries of an order that is refused as it is: somebody may mend the cause.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);
/// Between two tries of an order that met a passing failure.
const ORDER_AGAIN: Duration = Duration::from_secs(2);
/// Between two tries of an order whose answer was lost, where its token makes both one order.
const TOKEN_AGAIN: Duration = Duration::from_secs(5);
/// A machine on its way is looked at this often even where its provider tells of changes.
const SAFETY_NET: Duration = Duration::from_secs(20);

pub(super) fn find(seen: &Observed, now: Timestamp, plan: &mut Plan) -> Found {
    let mut found = Found::default();
    let on_its_way = seen.machine.status.ready_at.is_none();
    match &seen.provider {
        LookupOutcome::Unknown(why) => {
            plan.reasons.push(match (why, &seen.account) {
                (Some(why), _) => format!("the provider does not say: {why}"),
                (None, AccountState::Departed | AccountState::Gone) => {
                    "its Provider does not exist any more".to_owned()
                }
                (None, _) => "its Provider was not checked yet".to_owned(),
            });
            accept(seen, &mut found);
            if let Some(why) = why
                && on_its_way
                && !seen.machine.status.id.is_empty()
            {
                let what = format!("its provider does not say how far it is: {why}");
                found.waits_for = Some((reason::BOOTING, what));
            }
            unavailable(seen, why.as_deref(), now, &mut found, plan);
            plan.actions.extend(reconnect(seen));
            plan.requeue_after(seen.poll_interval.max(Duration::from_secs(1)));
        }
        LookupOutcome::Absent => absent(seen, now, &mut found, plan),
        LookupOutcome::There(machine) => there(seen, machine, now, &mut found, plan),
    }
    // The provider may show only later why a machine that ran is not connected.
    let is_unreached = seen.disconnected_since.is_some();
    if (on_its_way || is_unreached) && found.failure.is_none() {
        plan.requeue_after(if seen.tells_changes {
            SAFETY_NET
        } else {
            seen.poll_interval
        });
    }
    found
}

/// A cloud that can be asked nothing now, as while it is under maintenance: the Pool of a machine that is not known to be
/// there may move on. A machine that was never ordered is certainly not there; the record of one whose order met an outage
/// stays until the cloud can be asked. Nodes of the cluster are asked about by namespaces, one of which says nothing of the
/// others.
fn unavailable(seen: &Observed, why: Option<&str>, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    if let Some(Err(error)) = seen.order.as_ref().filter(|order| is_outage(order)) {
        refused(seen, now, error, found, plan);
        return;
    }
    let is_new = seen.machine.may_be_ordered() && found.id.is_none() && seen.unseen_until.is_none();
    let of_a_cloud = seen.terms.as_ref().is_some_and(|terms| !terms.provider.own_nodes);
    // A cloud that asks for fewer calls answers.
    let Some(why) = why.filter(|_| is_new && of_a_cloud && seen.queued.is_none()) else {
        return;
    };
    let outage = Unavailable::Outage {
        provider: seen.machine.spec.provider.clone(),
    };
    plan.shortage = Some((outage, why.to_owned()));
    found.waits_for = Some((reason::PROVIDER_UNAVAILABLE, format!("{why}; it is tried again.")));
}

fn is_outage(order: &Result<String, ProviderError>) -> bool {
    matches!(order, Err(error) if error.kind == ErrorKind::Outage)
}

/// An order that was just accepted.
fn accept(seen: &Observed, found: &mut Found) {
    if let Some(Ok(id)) = &seen.order {
        found.id = Some(id.clone());
    }
}

fn absent(seen: &Observed, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    accept(seen, found);
    let status = &seen.machine.status;
    if found.id.is_some() {
        plan.reasons.push("accepted, not listed yet".to_owned());
        return;
    }
    if !status.id.is_empty() {
        let accepted = status
            .accepted_at
            .as_ref()
            .map_or(seen.machine.created_at, |time| time.0);
        if elapsed(accepted, now) < seen.settle_time {
            plan.reasons.push("accepted, not listed yet".to_owned());
            plan.requeue_at(now, after(accepted, seen.settle_time));
        } else {
            let message = format!(
                "Provider \"{}\" has no such machine any more; it is replaced.",
                seen.machine.spec.provider
            );
            found.failure = Some((reason::MACHINE_LOST, message));
        }
        return;
    }
    match &seen.order {
        Some(Err(error)) => refused(seen, now, error, found, plan),
        Some(Ok(_)) | None => order(seen, now, found, plan),
    }
}

/// Why a machine is not ordered now.
enum Hold {
    /// Something else wakes it.
    Until(&'static str),
    /// Looked at again then; the condition shows reason and message meanwhile.
    Waits(&'static str, Timestamp, Option<(&'static str, String)>),
    /// Its turn did not come in time.
    Vain(&'static str),
    /// Never ordered: the terms of its record hold no longer.
    Withdrawn(String),
}

fn order(seen: &Observed, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    match hold(seen, now) {
        None => {
            plan.reasons.push("not ordered yet".to_owned());
            plan.actions.push(Action::Order);
            plan.next = Next::Again;
        }
        Some(Hold::Until(why)) => plan.reasons.push(why.to_owned()),
        Some(Hold::Waits(why, until, waits_for)) => {
            plan.reasons.push(why.to_owned());
            plan.requeue_at(now, until);
            plan.order_not_before = seen.order_not_before.filter(|at| now < *at);
            found.waits_for = waits_for;
        }
        Some(Hold::Vain(why)) => {
            plan.reasons.push(why.to_owned());
            found.waits_for = Some((reason::ORDERED, why.to_owned()));
        }
        Some(Hold::Withdrawn(why)) => {
            plan.reasons.push(format!("it is not ordered: {why}"));
            let message = format!("It is not ordered, and its Pool gives it up. {why}");
            found.failure = Some((reason::ORDER_WITHDRAWN, message));
        }
    }
}

/// The gates before an order, in this order; a new gate goes here.
fn hold(seen: &Observed, now: Timestamp) -> Option<Hold> {
    absence(seen)
        .or_else(|| withdrawal(seen, now))
        .or_else(|| too_early(seen, now))
        .or_else(|| doubt(seen, now))
        .or_else(|| {
            let is_vain = liveness::has_waited_in_vain(seen, now);
            is_vain.then_some(Hold::Vain("its turn at its provider did not come"))
        })
}

/// The Pool or account that an order is made from is missing.
fn absence(seen: &Observed) -> Option<Hold> {
    if seen.account == AccountState::Departed {
        return Some(Hold::Until("its Provider does not exist any more"));
    }
    if seen.pool.is_none() {
        return Some(Hold::Until("its Pool does not exist any more"));
    }
    (!seen.current).then_some(Hold::Until(
        "its Pool asks for another kind of machine now and gives it up",
    ))
}

/// The terms of the record are read again before each order.
fn withdrawal(seen: &Observed, now: Timestamp) -> Option<Hold> {
    let known = seen.terms.as_ref();
    let Some(terms) = known.filter(|terms| terms.namespace != NamespaceFacts::Unknown) else {
        let why = "it is not known yet whether it may be ordered";
        return Some(Hold::Waits(why, after(now, ORDER_AGAIN), None));
    };
    let why = match seen.account {
        AccountState::Ready { policy } => unverifiable(&seen.machine.spec.provider, policy, seen.host_keys),
        AccountState::Waiting | AccountState::Departed | AccountState::Gone => None,
    };
    let why = why.or_else(|| terms::broken(terms, &seen.machine.namespace, &seen.machine.spec))?;
    // If the machine was ordered, it is on the bill: its slot stays taken until that is known.
    match seen.unseen_until.filter(|until| now < *until) {
        Some(until) => Some(Hold::Waits(
            "its terms hold no longer; it may have been ordered and not be listed yet",
            until,
            Some((reason::ORDERED, why)),
        )),
        None => Some(Hold::Withdrawn(why)),
    }
}

/// The last try was a moment ago. Its answer stays in the status.
fn too_early(seen: &Observed, now: Timestamp) -> Option<Hold> {
    let at = seen.order_not_before.filter(|at| now < *at)?;
    let mut conditions = seen.machine.status.conditions.iter();
    let ready = conditions.find(|c| c.type_ == skyward_api::condition::READY);
    let said = ready.and_then(|ready| {
        let mut reasons = [
            reason::ORDER_REFUSED,
            reason::PROVIDER_UNAVAILABLE,
            reason::ORDERED,
        ]
        .into_iter();
        Some((
            reasons.find(|known| ready.reason == *known)?,
            ready.message.clone(),
        ))
    });
    Some(Hold::Waits("it is too early to order it again", at, said))
}

/// Without a token a second order may make a second machine: the first is found in a list only, and
/// lists lag.
fn doubt(seen: &Observed, now: Timestamp) -> Option<Hold> {
    let may_show_up = |until: &Timestamp| now < *until && !seen.knows_token;
    let until = seen.unseen_until.filter(may_show_up)?;
    let what = "It may have been ordered already; whether it was, its provider tells after a while.";
    Some(Hold::Waits(
        "it may have been ordered and not be listed yet",
        until,
        Some((reason::ORDERED, what.to_owned())),
    ))
}

fn refused(seen: &Observed, now: Timestamp, error: &ProviderError, found: &mut Found, plan: &mut Plan) {
    plan.reasons.push(format!("the order met: {error}"));
    let spec = &seen.machine.spec;
    let scarce = match error.quota_region.as_deref() {
        Some(region) => Some(Unavailable::quota(spec, Some(region))),
        None => Unavailable::of(spec, &error.kind),
    };
    let shortage = scarce.map(|scarce| (scarce, error.to_string()));
    let again = match error.kind.class() {
        ErrorClass::Retryable | ErrorClass::Signal => {
            let mut why = reason::ORDERED;
            if error.kind == ErrorKind::Outage {
                // No look since that answer shows the machine: the Pool gives it up where another
                // Offer fits. Its record stays until no list lags any more, and ends what shows up late.
                plan.shortage = shortage;
                why = reason::PROVIDER_UNAVAILABLE;
            }
            found.waits_for = Some((why, format!("{error}; it is tried again.")));
            match &error.kind {
                ErrorKind::RateLimited(Some(wait)) => *wait,
                // With the token it is the same order whatever lists show.
                kind if kind.leaves_doubt() && seen.knows_token => TOKEN_AGAIN,
                kind if kind.leaves_doubt() => seen.settle_time.max(ORDER_AGAIN),
                _ => ORDER_AGAIN,
            }
        }
        ErrorClass::Config => {
            // The Pool gives the machine up where another Offer fits. Where none does, the order
            // waits here for somebody to mend the cause.
            plan.shortage = shortage;
            found.waits_for = Some((reason::ORDER_REFUSED, error.to_string()));
            REFUSED_AGAIN
        }
        ErrorClass::Capacity => {
            plan.shortage = shortage;
            let why = match error.kind {
                ErrorKind::Quota(_) => reason::QUOTA_EXCEEDED,
                ErrorKind::NoCredit => reason::NO_CREDIT,
                _ => reason::NO_CAPACITY,
            };
            found.failure = Some((why, error.to_string()));
            return;
        }
        ErrorClass::Terminal => {
            found.failure = Some((reason::MACHINE_FAILED, error.to_string()));
            return;
        }
    };
    let at = after(now, again);
    plan.order_not_before = Some(at);
    plan.requeue_at(now, at);
}

fn there(seen: &Observed, machine: &ProviderMachine, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    found.id = Some(machine.id.clone());
    found.private_address.clone_from(&machine.private_address);
    found.private_interface = machine.private_interface;
    found.rental.clone_from(&machine.rental);
    if let Some(message) = too_dear(seen, machine) {
        plan.reasons.push(message.clone());
        plan.shortage = Some((Unavailable::dear(&seen.machine.spec), message.clone()));
        found.failure = Some((reason::PRICE_TOO_HIGH, message));
        return;
    }
    let is_there = matches!(machine.phase, ProviderPhase::Starting(_) | ProviderPhase::Running);
    if let Some(failure) = without_token(seen, machine).filter(|_| is_there) {
        plan.reasons.push(failure.1.clone());
        found.failure = Some(failure);
        return;
    }
    match &machine.phase {
        ProviderPhase::Starting(what) => {
            let what = what.clone().unwrap_or_else(|| "it boots".to_owned());
            plan.reasons.push(format!("starting: {what}"));
            found.waits_for = Some((reason::BOOTING, what));
        }
        ProviderPhase::Running => match &machine.endpoint {
            Some(endpoint) => {
                found.endpoint = Some(endpoint.clone());
                connect(seen, machine, now, found, plan);
            }
            None => found.waits_for = Some((reason::BOOTING, "it has no address yet".to_owned())),
        },
        ProviderPhase::Failed(failure) => {
            if matches!(failure.kind, FailureKind::NoRoom | FailureKind::NoCapacity) {
                let spec = &seen.machine.spec;
                let scarce = match failure.quota_region.as_deref() {
                    Some(region) => Unavailable::quota(spec, Some(region)),
                    None => Unavailable::offer(spec),
                };
                plan.shortage = Some((scarce, failure.message.clone()));
            }
            found.failure = Some(failed(failure));
        }
        ProviderPhase::Stopping => {
            found.failure = Some((
                reason::MACHINE_LOST,
                "Its end was ordered from outside: by hand, by a drained node, or by the end of its namespace.".to_owned(),
            ));
        }
        ProviderPhase::Stopped(why) => {
            found.failure = Some((
                reason::MACHINE_LOST,
                format!("The machine halted: {why}. It is replaced."),
            ));
        }
    }
}

/// Decimal places of USD per hour that are compared: clouds count with floating points.
const PLACES: u32 = 6;

/// The message about a machine whose provider names a price above the recorded maximum. The first
/// price counts and is recorded, so a machine is judged once.
fn too_dear(seen: &Observed, machine: &ProviderMachine) -> Option<String> {
    let spec = &seen.machine.spec;
    let is_there = matches!(machine.phase, ProviderPhase::Starting(_) | ProviderPhase::Running);
    if seen.machine.status.hourly_price.is_some() || !is_there {
        return None;
    }
    let most = spec.max_hourly_cost.as_ref().unwrap_or(&spec.hourly_price);
    let most: Usd = most.parse().ok()?;
    let price = machine.rental.hourly_price?;
    (price.round_dp(PLACES) > most.round_dp(PLACES)).then(|| {
        format!(
            "Provider \"{}\" bills {} USD per hour for it, and at most {} were recorded when it was ordered. It is ended, and Offer \"{}\" is not ordered for an hour. Wait, add candidates to the Pool, or ask the cloud why it is dearer than it says.",
            spec.provider,
            price.exact(),
            most.exact(),
            spec.offer
        )
    })
}

fn failed(failure: &Failure) -> (&'static str, String) {
    let reason = match failure.kind {
        FailureKind::ImagePull => reason::IMAGE_PULL_FAILED,
        FailureKind::UnusableImage | FailureKind::Other => reason::MACHINE_FAILED,
        FailureKind::Lost => reason::MACHINE_LOST,
        FailureKind::Reclaimed => reason::PREEMPTED,
        FailureKind::OutOfMemory => reason::OUT_OF_MEMORY,
        FailureKind::NoRoom | FailureKind::NoCapacity => reason::NO_CAPACITY,
    };
    (reason, failure.message.clone())
}

/// Dials a working machine at its last address: it can be used, and its results collected, while
/// its provider cannot be asked. Only the host key on record counts, since the address may be
/// another machine's by now.
pub(super) fn reconnect(seen: &Observed) -> Option<Action> {
    let status = &seen.machine.status;
    let ready = status.ready_at.is_some() && !status.host_key.is_empty();
    if seen.session.is_some() || seen.pool.is_none() || !ready {
        return None;
    }
    let port = status.ssh_port?;
    let dial = match status.address.split_once('/') {
        Some((namespace, pod)) => Dial::PodPort {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            port,
        },
        None => match status.address.parse() {
            Ok(ip) => Dial::Address(SocketAddr::new(ip, port)),
            Err(_) => Dial::Host(status.address.clone(), port),
        },
    };
    let user = status.ssh_user.clone();
    Some(Action::Connect {
        // Its machine was Ready, and knows the Pool's key.
        endpoint: Endpoint {
            dial,
            user,
            password: None,
        },
        trust: Trust::Key(status.host_key.clone()),
        environment: None,
    })
}

fn connect(seen: &Observed, machine: &ProviderMachine, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    let Some(endpoint) = &machine.endpoint else { return };
    let trust = match trust(seen, machine, now) {
        Ok(trust) => trust,
        Err(failure) => {
            found.failure = Some(failure);
            return;
        }
    };
    if seen.pool.is_none() {
        plan.reasons.push("its Pool does not exist any more".to_owned());
        return;
    }
    // The connection is tried again with each look; the machine waits for the missing object alone.
    if let Some(missing) = missing(seen) {
        plan.reasons.push(missing.to_owned());
        found.waits_for = Some((reason::REFERENCE_NOT_FOUND, missing.to_owned()));
    }
    plan.actions.push(Action::Connect {
        endpoint: endpoint.clone(),
        trust,
        environment: None,
    });
}

/// The missing object that keeps a machine from being prepared, for its user. A machine that was
/// ready is connected as it is.
pub(super) fn missing(seen: &Observed) -> Option<&str> {
    let waits = seen.session.is_none() && seen.machine.status.ready_at.is_none();
    seen.missing.as_deref().filter(|_| waits)
}
