//! The only place that gives up a machine: by time, or because its session says that it
//! will not become ready by itself.

use std::time::Duration;

use jiff::Timestamp;
use skyward_api::condition::reason;
use skyward_core::session::{FailureKind, SessionFailure, Stage};

use super::{
    bootstrap,
    draft::{Found, Plan},
    progress,
};
use crate::{
    base::time::{after, elapsed},
    machine::facts::{AccountState, LookupOutcome, Observed},
};

/// Message about an agent that refuses our epoch.
const EPOCH_REFUSED: &str = "its agent refuses the epoch of this controller";

/// A connection that is lost for a shorter time is not reported.
pub(super) const BLINK: Duration = Duration::from_secs(10);

/// Time for a session to report its own timeout before this one.
const SESSION_FIRST: Duration = Duration::from_secs(5);

/// Longest time that an order may wait for its turn: the last of 500 machines at a cloud that takes
/// an order every 12.5 seconds waits for 104 minutes. An order that waits longer would wait for
/// ever.
pub(super) const QUEUE: Duration = Duration::from_hours(2);

pub(super) fn judge(seen: &Observed, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    if found.failure.is_some() {
        return;
    }
    let status = &seen.machine.status;
    if let Some(verdict) = trust_lost(seen) {
        found.failure = Some(verdict);
        return;
    }
    if status.ready_at.is_some() {
        judge_connection(seen, now, found, plan);
        return;
    }
    let stage = seen.stage();
    if let Some(Stage::Failed(failure)) = stage
        && let Some(verdict) = session_failed(failure)
    {
        found.failure = Some(verdict);
        found.bootstrap = bootstrap::record(failure);
        return;
    }
    let reachable = seen
        .session
        .as_ref()
        .and_then(|s| s.reachable_at)
        .or(status.reachable_at.as_ref().map(|t| t.0));
    let session = seen.session.as_ref();
    let waited = session.map_or(Duration::ZERO, |session| session.waited_until(now));
    let running = status.running_at.as_ref().map(|time| time.0);
    let missing = progress::missing(seen);
    let (since, wait, name, why) = match (stage, reachable, found.endpoint.is_some() || running.is_some()) {
        (Some(Stage::Ready), _, _) => return,
        (_, Some(reachable), _) => {
            let step = match stage {
                Some(Stage::Bootstrapping { step, index, total }) => {
                    format!("step {index} of {total}, \"{step}\", is not done")
                }
                Some(Stage::EpochAhead) => EPOCH_REFUSED.to_owned(),
                _ => "the agent does not answer".to_owned(),
            };
            let why = match missing {
                Some(missing) => (reason::REFERENCE_NOT_FOUND, missing.to_owned()),
                None => (reason::BOOTSTRAP_TIMEOUT, step),
            };
            // The session gives up its step first, and knows what the step printed last.
            (
                reachable,
                // The timeout does not run while the session waits for other machines.
                seen.waits.bootstrap + SESSION_FIRST + waited,
                "bootstrap",
                why,
            )
        }
        (_, None, true) => {
            let why = match (missing, stage) {
                (Some(missing), _) => (reason::REFERENCE_NOT_FOUND, missing.to_owned()),
                (
                    None,
                    Some(Stage::Dialing {
                        last_error: Some(error),
                    }),
                ) => (reason::SSH_TIMEOUT, format!("SSH does not answer: {error}")),
                (None, Some(Stage::Unproved { last_error })) => {
                    (reason::HOST_KEY_NOT_VERIFIED, unproved(last_error))
                }
                (None, _) => (reason::SSH_TIMEOUT, "SSH does not answer".to_owned()),
            };
            (running.unwrap_or(now), seen.waits.ssh, "ssh", why)
        }
        (_, None, false) => {
            let what = found
                .waits_for
                .as_ref()
                .map_or("it has no address", |(_, what)| what.as_str());
            let reason = match found.waits_for {
                Some((reason::ORDER_REFUSED, _)) => reason::ORDER_REFUSED,
                _ => reason::PROVISION_TIMEOUT,
            };
            (
                ordered_since(seen, now, found),
                seen.waits.provision,
                "provision",
                (reason, what.to_owned()),
            )
        }
    };
    let (reason, what) = why;
    if elapsed(since, now) >= wait {
        found.failure = Some((
            reason,
            format!("After {} s (timeouts.{name}): {what}", wait.as_secs()),
        ));
    } else {
        plan.requeue_at(now, after(since, wait));
    }
}

/// About a machine that lets us in and never proved its host key.
fn unproved(error: &str) -> String {
    format!(
        "SSH answers, and the machine has not proved its host key: {error}. Its boot data did not run, or somebody is in between. Nothing was sent to it"
    )
}

/// Since when a machine without an address could have one. The time in which its order waits for
/// its turn at the cloud does not count: the last of many machines would be rented only to be
/// returned before it has booted, and count as a failed try.
fn ordered_since(seen: &Observed, now: Timestamp, found: &Found) -> Timestamp {
    let accepted = seen.machine.status.accepted_at.as_ref().map(|time| time.0);
    if let Some(at) = accepted.or_else(|| found.id.is_some().then_some(now)) {
        return at;
    }
    let created = seen.machine.created_at;
    seen.queued.map_or(created, |queued| {
        queued.until.max(created).min(after(queued.since, QUEUE))
    })
}

/// Whether the order has waited for its turn for longer than [`QUEUE`].
pub(super) fn has_waited_in_vain(seen: &Observed, now: Timestamp) -> bool {
    seen.queued
        .is_some_and(|queued| elapsed(queued.since, now) >= QUEUE + seen.waits.provision)
}

/// A machine that took runs and is not connected: the provider says that it runs, so its runs may
/// go on. An idle machine is given up after `timeouts.ssh`; a machine with runs, or whose runs are
/// not known, only when its agent has given up waiting for us too.
fn judge_connection(seen: &Observed, now: Timestamp, found: &mut Found, plan: &mut Plan) {
    let Some(since) = seen.disconnected_since else {
        return;
    };
    let error = match seen.stage() {
        Some(Stage::Ready) => return,
        Some(
            Stage::Dialing {
                last_error: Some(error),
            }
            | Stage::Unproved { last_error: error }
            | Stage::Reconnecting {
                last_error: error, ..
            },
        ) => error.clone(),
        Some(Stage::EpochAhead) => EPOCH_REFUSED.to_owned(),
        Some(Stage::Failed(failure)) => failure.message.clone(),
        Some(Stage::Dialing { last_error: None } | Stage::Bootstrapping { .. }) | None => {
            "it is being dialled".to_owned()
        }
    };
    let lost = elapsed(since, now);
    // Runs on a machine that takes no command are not known.
    let patience = if seen.runs == Some(0) && !found.epoch_ahead {
        seen.waits.ssh
    } else {
        seen.waits.orphan
    };
    // A silent provider is no verdict: the machine may be all right and on the bill, and another
    // one would be ordered beside it. A removed Provider may never answer.
    let removed = matches!(seen.account, AccountState::Departed | AccountState::Gone);
    let unknown = matches!(seen.provider, LookupOutcome::Unknown(_)) && !removed;
    if lost >= patience && !unknown {
        let message = format!(
            "The connection has been lost for {} s: {error}. The machine is replaced.",
            lost.as_secs()
        );
        found.failure = Some((reason::MACHINE_LOST, message));
    } else if lost >= BLINK {
        found.lost_connection = Some(error);
        if !unknown {
            plan.requeue_at(now, after(since, patience));
        }
    } else {
        plan.requeue_at(now, after(since, BLINK));
    }
}

/// A machine that breaks the protocol or shows another host key than before is given up, whatever
/// runs on it.
pub(super) fn trust_lost(seen: &Observed) -> Option<(&'static str, String)> {
    match seen.stage() {
        Some(Stage::Failed(failure))
            if matches!(
                failure.kind,
                FailureKind::ProtocolViolation | FailureKind::HostKeyChanged
            ) =>
        {
            session_failed(failure)
        }
        _ => None,
    }
}

fn session_failed(failure: &SessionFailure) -> Option<(&'static str, String)> {
    let reason = match failure.kind {
        FailureKind::HostKeyChanged | FailureKind::AuthRefused => reason::SSH_REFUSED,
        FailureKind::HostKeyNotProved => reason::HOST_KEY_NOT_VERIFIED,
        FailureKind::StepFailed | FailureKind::Unsupported => reason::BOOTSTRAP_FAILED,
        FailureKind::StepTimedOut => reason::BOOTSTRAP_TIMEOUT,
        FailureKind::ProtocolViolation => reason::PROTOCOL_VIOLATION,
        // Another machine's agent, or a protocol that is too old: the timeout decides.
        FailureKind::AgentRefused => return None,
    };
    Some((reason, bootstrap::message(failure)))
}
