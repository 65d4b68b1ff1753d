//! The status of a Machine, from what the steps found. It is written at once when its
//! phase, a condition or its reason changes; steps and messages wait for [`QUIET`], so
//! that a machine from order to Ready costs about three writes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    Duration as Lasting, MachinePhase, MachineStatus,
    condition::{self, ACCEPTED, BOOTSTRAPPED, NewCondition, REACHABLE, READY, STALLED, cut, find, reason},
    environment::EnvironmentFailure,
};
use skyward_core::machine::{Dial, Endpoint};
use skyward_core::session::Stage;

use super::{
    draft::{Found, Plan},
    environment, rental,
};
use crate::{
    base::time::{after, elapsed},
    events::{self, EventSpec},
    machine::facts::Observed,
    records::without_output,
};

/// Message about a machine whose agent refuses our epoch.
const EPOCH_AHEAD: &str = "Its agent refuses the epoch of this controller although this controller holds the Lease: it gets no command, and what runs there goes on. It is asked again, later each time. Were etcd or the Lease restored from a backup, see docs/disaster-recovery.md; else do not trust this machine: delete the Machine.";

/// Longest list of steps and their times in the note of an Event.
const STEPS: usize = 300;

/// Between two writes that only concern steps and messages.
const QUIET: Duration = Duration::from_secs(2);

pub(super) fn write(seen: &Observed, now: Timestamp, found: &Found, plan: &mut Plan) {
    let old = &seen.machine.status;
    let mut new = old.clone();
    new.observed_generation = Some(1);
    facts(seen, now, found, &mut new);
    environment::record(seen, now, &mut new);
    environment::aim(plan, &new);
    let conditions = conditions(seen, found, &mut new);
    new.conditions = condition::apply(&old.conditions, &conditions, Some(1), now);
    commit(seen, now, new, plan);
}

/// Whether to write at once, later or not at all.
pub(super) fn commit(seen: &Observed, now: Timestamp, new: MachineStatus, plan: &mut Plan) {
    let old = &seen.machine.status;
    if new == *old {
        return;
    }
    let due = seen.last_write.map_or(now, |last| after(last, QUIET));
    if is_major(old, &new) || now >= due {
        let has_failed = |status: &MachineStatus| status.phase == Some(MachinePhase::Failed);
        let newly_failed = has_failed(&new) && !has_failed(old) && new.ready_at.is_none();
        let change = failed_change(&new);
        plan.keep_log = newly_failed || change.is_some_and(|failed| failed_change(old) != Some(failed));
        plan.keep_lock = environment::lock(seen, old, &new);
        plan.events.extend(announce(seen, &new));
        plan.status = Some(Box::new(new));
    } else {
        plan.requeue_at(now, due);
    }
}

fn is_major(old: &MachineStatus, new: &MachineStatus) -> bool {
    let outline = |status: &MachineStatus| -> Vec<(String, String, String)> {
        status
            .conditions
            .iter()
            .map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone()))
            .collect()
    };
    old.phase != new.phase
        || old.id != new.id
        || old.reclaim_at != new.reclaim_at
        || old.billed_until != new.billed_until
        || old.environment != new.environment
        || outline(old) != outline(new)
}

/// The last change of its environment that failed.
fn failed_change(status: &MachineStatus) -> Option<&EnvironmentFailure> {
    status.environment.as_ref()?.failed.as_ref()
}

/// Everything but phase, step and conditions.
fn facts(seen: &Observed, now: Timestamp, found: &Found, new: &mut MachineStatus) {
    if let Some(id) = &found.id {
        new.id = cut(id, 256);
        new.accepted_at.get_or_insert(Time(now));
    }
    if let Some(endpoint) = &found.endpoint {
        let (address, port) = address(endpoint);
        new.address = cut(&address, 256);
        new.ssh_port = Some(port);
        new.ssh_user = cut(&endpoint.user, 64);
        new.running_at.get_or_insert(Time(now));
    }
    if new.ready_at.is_none() {
        let seconds = seen.waits.bootstrap.as_secs();
        new.bootstrap_timeout = Some(Lasting(format!("{seconds}s")));
    }
    rental::record(seen, now, new);
    if let Some(at) = reclaim_at(seen, found.rental.reclaim_at) {
        new.reclaim_at = Some(Time(at));
    }
    if let Some(private) = &found.private_address {
        new.private_address = cut(private, 256);
    }
    if found.bootstrap.is_some() {
        new.bootstrap_failure.clone_from(&found.bootstrap);
    }
    let Some(session) = &seen.session else { return };
    if let (true, Some(key)) = (new.host_key.is_empty(), &session.host_key) {
        new.host_key.clone_from(key);
    }
    if let Some(at) = session.reachable_at {
        new.reachable_at.get_or_insert(Time(at));
    }
    if let Some(why) = &session.not_forked {
        new.not_forked = cut(why, 512);
    }
    if session.stage == Stage::Ready {
        new.ready_at.get_or_insert(Time(session.ready_at.unwrap_or(now)));
    }
    if let Some(agent) = &session.agent {
        let own = found.private_interface.and_then(|name| agent.addresses.get(name));
        if let Some(private) = own {
            new.private_address = cut(private, 256);
        }
        new.agent_version = cut(&agent.version, 64);
        new.python_version = cut(&agent.python, 32);
    }
}

/// When the cloud takes the machine back, as its provider or the machine itself says.
pub(super) fn reclaim_at(seen: &Observed, reported: Option<Timestamp>) -> Option<Timestamp> {
    let learnt = seen.session.as_ref().and_then(|session| session.reclaim_at);
    reported.or(learnt)
}

fn address(endpoint: &Endpoint) -> (String, u16) {
    match &endpoint.dial {
        Dial::Address(address) => (address.ip().to_string(), address.port()),
        Dial::Host(host, port) => (host.clone(), *port),
        Dial::PodPort { namespace, pod, port } => (format!("{namespace}/{pod}"), *port),
    }
}

fn conditions(seen: &Observed, found: &Found, new: &mut MachineStatus) -> Vec<NewCondition> {
    let accepted = !new.id.is_empty();
    let reachable = new.reachable_at.is_some();
    let was_ready = new.ready_at.is_some();
    let stage = seen.stage();
    let session = seen.session.as_ref();
    let bootstrapped = was_ready || session.is_some_and(|session| session.bootstrapped_at.is_some());
    let changing = new
        .environment
        .clone()
        .filter(|known| was_ready && known.is_changing());
    let changing = changing.as_ref();
    let bootstrapping = !was_ready && matches!(stage, Some(Stage::Bootstrapping { .. }));

    new.step = match stage {
        Some(Stage::Bootstrapping { step, index, total }) if !was_ready => {
            cut(&format!("{index}/{total} {step}"), 64)
        }
        _ => changing
            .and(session)
            .and_then(|session| session.environment.step.as_ref())
            .map_or_else(String::new, |step| cut(step, 64)),
    };
    new.phase = Some(match () {
        () if found.failure.is_some() => MachinePhase::Failed,
        () if was_ready => MachinePhase::Ready,
        () if bootstrapping || (reachable && bootstrapped) => MachinePhase::Bootstrapping,
        () if reachable => MachinePhase::Reachable,
        () if accepted => MachinePhase::Accepted,
        () => MachinePhase::Ordered,
    });

    let waits = |fallback: &'static str, text: &str| match &found.waits_for {
        Some((reason, what)) => (*reason, what.clone()),
        None => (fallback, text.to_owned()),
    };
    let mut conditions = Vec::with_capacity(5);
    let (why, what) = if accepted {
        (reason::ACCEPTED, "The provider accepted the order.".to_owned())
    } else {
        waits(reason::ORDERED, "It is being ordered.")
    };
    conditions.push(NewCondition::new(ACCEPTED, accepted, why, what));
    if reachable || accepted {
        let (why, what) = match stage {
            _ if reachable => (
                reason::SSH_ANSWERS,
                "SSH answers with the expected host key.".to_owned(),
            ),
            Some(Stage::Dialing {
                last_error: Some(error),
            }) => waits(reason::BOOTING, &format!("SSH does not answer yet: {error}")),
            Some(Stage::Unproved { last_error }) => waits(
                reason::BOOTING,
                &format!("SSH answers, and the host key is not proved yet: {last_error}"),
            ),
            _ => waits(reason::BOOTING, "SSH does not answer yet."),
        };
        conditions.push(NewCondition::new(REACHABLE, reachable, why, what));
    }
    if bootstrapped || reachable {
        let (why, what) = match &found.waits_for {
            _ if bootstrapped => (reason::BOOTSTRAPPED, "Every bootstrap step is done.".to_owned()),
            Some((reason::REFERENCE_NOT_FOUND, missing)) => (reason::REFERENCE_NOT_FOUND, missing.clone()),
            _ if new.step.is_empty() => (reason::BOOTSTRAPPING, "Bootstrap begins.".to_owned()),
            _ => (reason::BOOTSTRAPPING, format!("Step {}.", new.step)),
        };
        conditions.push(NewCondition::new(BOOTSTRAPPED, bootstrapped, why, what));
    }
    let unmet = |condition: &NewCondition| condition.status == Some(false);
    // The last condition is the one that failed; Ready and Stalled say why.
    if let (Some((why, message)), Some(last)) = (&found.failure, conditions.last_mut())
        && unmet(last)
    {
        last.reason = why;
        last.message.clone_from(message);
    }
    let (why, message) = if let Some((why, message)) = &found.failure {
        (*why, message.clone())
    } else if let Some(Time(at)) = &new.reclaim_at {
        let message = format!("The cloud takes it back at {at}; it is given up and replaced.");
        (reason::PREEMPTED, message)
    } else if found.epoch_ahead {
        (reason::EPOCH_AHEAD, EPOCH_AHEAD.to_owned())
    } else if let Some(error) = &found.lost_connection {
        let message = format!("The connection is lost and dialled again: {error}");
        (reason::CONNECTION_LOST, message)
    } else if let Some(known) = changing {
        let message = environment::in_words(seen, known, &new.step);
        (reason::CHANGING_ENVIRONMENT, message)
    } else if was_ready {
        (
            reason::AGENT_READY,
            "The agent answers; it takes runs.".to_owned(),
        )
    } else if let Some(first) = conditions.iter().find(|condition| unmet(condition)) {
        (first.reason, first.message.clone())
    } else {
        (reason::BOOTSTRAPPED, "The agent is being started.".to_owned())
    };
    conditions.push(NewCondition::new(READY, why == reason::AGENT_READY, why, message));
    if let Some((why, message)) = &found.failure {
        conditions.push(NewCondition::new(STALLED, true, why, message.clone()));
    }
    conditions
}

/// Events from comparing the new status with the old one.
fn announce(seen: &Observed, new: &MachineStatus) -> Vec<EventSpec> {
    let old = &seen.machine.status;
    let name = &seen.machine.name;
    let mut events = Vec::new();
    let mut tell = |reason, action, note: String| events.push(EventSpec::normal(reason, action, note));
    if old.address.is_empty() && !new.address.is_empty() {
        let note = format!("Machine \"{name}\" has the address {}", new.address);
        tell(events::reason::MACHINE_PROVISIONED, "Provision", note);
    }
    if old.step != new.step && !new.step.is_empty() {
        let note = format!("Machine \"{name}\": step {}", new.step);
        tell(events::reason::BOOTSTRAP_PROGRESS, "Bootstrap", note);
    }
    let times = seen
        .session
        .as_ref()
        .map_or("", |session| session.environment.times.as_str());
    let steps = match times {
        "" => String::new(),
        times => format!("; its steps: {}", cut(times, STEPS)),
    };
    if let (None, Some(ready)) = (&old.ready_at, &new.ready_at) {
        let took = elapsed(seen.machine.created_at, ready.0).as_secs();
        let note = format!("Machine \"{name}\" takes runs, {took} s after it was ordered{steps}");
        tell(events::reason::MACHINE_READY, "Ready", note);
    }
    let hash = |status: &MachineStatus| {
        let known = status.environment.as_ref();
        known.map_or_else(String::new, |known| known.hash.clone())
    };
    if old.ready_at.is_some() && !hash(old).is_empty() && hash(old) != hash(new) {
        let note = format!("Machine \"{name}\" has the environment {}{steps}", hash(new));
        tell(events::reason::ENVIRONMENT_CHANGED, "Change", note);
    }
    if old.not_forked != new.not_forked && !new.not_forked.is_empty() {
        let note = format!(
            "Functions start fresh interpreters on Machine \"{name}\": {}; see the Pool's worker.preload",
            new.not_forked
        );
        tell(events::reason::NOT_FORKED, "Fork", note);
    }
    if let Some(failed) = failed_change(new).filter(|failed| failed_change(old) != Some(failed)) {
        let why = without_output(&failed.message);
        let note = format!("Machine \"{name}\" keeps its environment: {why}");
        events.push(EventSpec::warning(
            events::reason::ENVIRONMENT_FAILED,
            "Change",
            note,
        ));
    }
    if let (None, Some(Time(at))) = (&old.reclaim_at, &new.reclaim_at) {
        let note = format!("Machine \"{name}\" is taken back by the cloud at {at}");
        events.push(EventSpec::warning(events::reason::PREEMPTED, "Reclaim", note));
    }
    if old.phase != Some(MachinePhase::Failed) && new.phase == Some(MachinePhase::Failed) {
        let stalled = find(&new.conditions, STALLED);
        let message = stalled.map(|c| c.message.clone()).unwrap_or_default();
        let (why, what) = match stalled.map(|c| c.reason.as_str()) {
            Some(reason::MACHINE_LOST) => (events::reason::MACHINE_LOST, "was lost"),
            Some(reason::PREEMPTED) => (events::reason::PREEMPTED, "was taken back"),
            Some(reason::OUT_OF_MEMORY) => (events::reason::MACHINE_LOST, "ran out of memory"),
            Some(reason::ORDER_WITHDRAWN) => (events::reason::ORDER_WITHDRAWN, "was withdrawn"),
            Some(reason::PRICE_TOO_HIGH) => (events::reason::PRICE_TOO_HIGH, "is too dear"),
            _ if new.bootstrap_failure.is_some() => {
                (events::reason::BOOTSTRAP_FAILED, "could not be prepared")
            }
            Some(_) | None => (events::reason::MACHINE_FAILED, "failed"),
        };
        let note = format!("Machine \"{name}\" {what}: {}", without_output(&message));
        events.push(EventSpec::warning(why, "Fail", note));
    }
    events
}
