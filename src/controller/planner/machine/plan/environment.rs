//! The environment of a machine's runs: which one is being made on it, and what became of that.
//!
//! A machine that is not Ready yet gets the newest environment of its Pool. One that took runs changes its environment
//! when its Pool's record names it and its dispatcher says that it gets no runs and has none. From then on
//! `changingTo` is on record, and nobody gives it runs: its session makes the new environment beside the old
//! one, and this record ends with what the machine says it has, whatever the Pool asks for meanwhile.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    MachineStatus,
    condition::cut,
    environment::{EnvironmentFailure, MAX_APT, MachineEnvironment, PoolEnvironment},
    machine::BootstrapFailure,
};
use skyward_core::session::{SessionFailure, SessionState, Stage};

use super::{
    bootstrap,
    draft::{Action, Plan},
};
use crate::{machine::facts::Observed, pool::environment::HASH};

/// Longest message of a failure.
const MESSAGE: usize = 1500;

/// The hash of the environment that this machine is to have from now on; `None`: it keeps the one that it has.
fn target(seen: &Observed) -> Option<&str> {
    let wanted = wanted(seen)?;
    let hash = wanted.hash.as_str();
    if seen.machine.status.ready_at.is_none() {
        return Some(hash);
    }
    let own = seen.machine.status.environment.as_ref()?;
    if own.is_changing() {
        return Some(hash);
    }
    let since = wanted.turn_since.as_ref();
    let is_of_this_turn = |failed: &EnvironmentFailure| since.is_none_or(|since| failed.at.0 >= since.0);
    let has_failed = own
        .failed
        .as_ref()
        .is_some_and(|failed| failed.hash == hash && is_of_this_turn(failed));
    let may_begin = wanted.turn == seen.machine.name
        && own.hash != hash
        && seen.current
        && seen.runs == Some(0)
        && seen.stage() == Some(&Stage::Ready);
    (may_begin && !has_failed).then_some(hash)
}

/// The Pool's record of the environment, once there is one.
fn wanted(seen: &Observed) -> Option<&PoolEnvironment> {
    let status = seen.pool.as_deref()?.status.as_ref()?;
    status
        .environment
        .as_ref()
        .filter(|wanted| !wanted.hash.is_empty())
}

/// Writes into the status which environment is being made, and what the session says of it.
pub(super) fn record(seen: &Observed, now: Timestamp, new: &mut MachineStatus) {
    let known = seen.machine.status.environment.clone();
    let Some(mut environment) = known.or_else(|| first(seen)) else {
        return;
    };
    let is_stale =
        |failed: &EnvironmentFailure| wanted(seen).is_some_and(|wanted| wanted.hash != failed.hash);
    if environment.failed.as_ref().is_some_and(is_stale) {
        // Its Pool asks for another one. If it asks for this one again, that is a new request and is tried.
        environment.failed = None;
    }
    if let Some(target) = target(seen) {
        target.clone_into(&mut environment.changing_to);
        note_apt(seen, &mut environment);
    }
    if let Some(session) = &seen.session {
        let was_ready = seen.machine.status.ready_at.is_some();
        hear(&seen.machine.name, session, was_ready, now, &mut environment);
    }
    new.environment = Some(environment);
}

/// The first record. A machine that an older release made Ready has what the image asked for then, and its Pool asks
/// for no other image: it is taken over with the hash that the Pool has now.
fn first(seen: &Observed) -> Option<MachineEnvironment> {
    let (wanted, asked) = (wanted(seen)?, seen.asked.as_ref()?);
    let mut first = MachineEnvironment::default();
    if seen.machine.spec.template_hash != asked.template {
        first.template_hash.clone_from(&asked.template);
    }
    if seen.machine.status.ready_at.is_some() {
        first.hash.clone_from(&wanted.hash);
        note_apt(seen, &mut first);
    }
    Some(first)
}

/// Records Debian packages before they are installed: they are not taken away again.
fn note_apt(seen: &Observed, environment: &mut MachineEnvironment) {
    for one in seen.asked.iter().flat_map(|asked| &asked.apt) {
        if environment.apt.len() < MAX_APT && !environment.apt.contains(one) {
            environment.apt.push(one.clone());
        }
    }
    environment.apt.sort();
}

/// What the session says of the environment in use, and of one that could not be made.
fn hear(
    name: &str,
    session: &SessionState,
    was_ready: bool,
    now: Timestamp,
    environment: &mut MachineEnvironment,
) {
    let known = &session.environment;
    let in_use = known.in_use.as_deref().filter(|hash| !hash.is_empty());
    if session.stage != Stage::Ready {
        return;
    }
    if !was_ready {
        // Its steps are done. A newer environment that its Pool asks for by now comes in its turn. While the session
        // does not say which one is in use it makes another one already: the machine takes no runs until that ends.
        if let Some(made) = in_use {
            environment.hash = cut(made, HASH);
            environment.changing_to.clear();
        }
        return;
    }
    match in_use {
        Some(hash) if hash == environment.changing_to || !environment.is_changing() => {
            if environment.hash != hash {
                environment.failed = None;
            }
            environment.hash = cut(hash, HASH);
            environment.changing_to.clear();
        }
        Some(_) | None => {}
    }
    if let Some((hash, failure)) = &known.failed
        && environment.is_changing()
        && *hash == environment.changing_to
    {
        // It may be in the midst of the way back from one that it had changed to.
        if let Some(hash) = in_use {
            environment.hash = cut(hash, HASH);
        }
        environment.failed = Some(failed(name, hash, failure, now));
        environment.changing_to.clear();
    }
}

fn failed(name: &str, hash: &str, failure: &SessionFailure, now: Timestamp) -> EnvironmentFailure {
    let record = bootstrap::record(failure).unwrap_or_else(|| BootstrapFailure {
        step: failure.step.clone().unwrap_or_default(),
        ended: cut(&failure.message, 300),
        ..BootstrapFailure::default()
    });
    EnvironmentFailure {
        hash: cut(hash, HASH),
        machine: name.to_owned(),
        failure: record,
        message: cut(&bootstrap::message(failure), MESSAGE),
        at: Time(now),
    }
}

/// Has the session make the environment that the new status names: it is on record before the session begins.
pub(super) fn aim(plan: &mut Plan, status: &MachineStatus) {
    let known = status.environment.as_ref().filter(|known| known.is_changing());
    let hash = known.map(|known| known.changing_to.clone());
    for action in &mut plan.actions {
        if let Action::Connect { environment, .. } = action {
            environment.clone_from(&hash);
        }
    }
}

/// The versions that the machine found for an environment are kept before its record says that it has the
/// environment: the next machine installs these.
pub(super) fn lock(seen: &Observed, old: &MachineStatus, new: &MachineStatus) -> Option<(String, String)> {
    let hash = |status: &MachineStatus| status.environment.as_ref().map(|known| known.hash.clone());
    let made = hash(new).filter(|made| !made.is_empty() && hash(old).as_ref() != Some(made))?;
    let (of, lock) = seen.session.as_ref()?.environment.lock.as_ref()?;
    (*of == made).then(|| (made, lock.to_string()))
}

/// The condition of a machine that changes its environment, in words.
pub(super) fn in_words(seen: &Observed, environment: &MachineEnvironment, step: &str) -> String {
    let hash = &environment.changing_to;
    match (&seen.missing, step) {
        (Some(missing), _) => format!("Its environment changes to {hash}, which waits: {missing}"),
        (None, "") => format!("Its environment changes to {hash}; it takes no new runs meanwhile."),
        (None, step) => {
            format!("Step {step} of the change of its environment to {hash}; it takes no new runs meanwhile.")
        }
    }
}
