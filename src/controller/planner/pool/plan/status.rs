//! Conditions, phase and counts of a Pool: a function of the observation and of the decisions of
//! the steps before. Events about the Pool as a whole come from comparing the new status with the
//! old one.

use std::collections::BTreeSet;

use skyward_api::{
    condition::{self, NewCondition, READY, RECONCILING, STALLED, cut, find, reason},
    labels,
    machine::Market,
    pool::{MachineAttention, PoolPhase},
};
use skyward_core::Usd;

use super::{
    draft::{Draft, named},
    failures, rollout,
};
use crate::{
    accounts::facts::AccountFacts,
    events::{self, EventSpec},
    pool::{
        choice::ResolvedCandidate,
        facts::{MachineFacts, RemainingMachines},
    },
    records::without_output,
};

/// Most machines listed for attention.
const MAX_ATTENTION: usize = 32;
/// Longest list of names in a column, in bytes: the longest name of a Provider fits.
const MAX_NAMES: usize = 300;
/// End of a list that leaves names out.
const MORE: &str = ",…";

/// Counts of the Pool's machines.
#[derive(Default)]
struct Counts {
    wanted: u32,
    least: u32,
    exist: u32,
    ready: u32,
    provisioned: u32,
    outdated: u32,
    /// Machines whose runs find another environment than the image asks for.
    different: u32,
}

pub(crate) fn plan(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let wanted = draft.wanted();
    let number = |machines: usize| u32::try_from(machines).unwrap_or(u32::MAX);
    let counts = Counts {
        wanted,
        least: draft.least(),
        exist: number(seen.machines.len()),
        ready: number(draft.live().filter(|machine| machine.ready).count()),
        provisioned: number(draft.live().filter(|machine| machine.provisioned).count()),
        outdated: number(
            seen.machines
                .iter()
                .filter(|machine| machine.is_live() && !machine.current)
                .count(),
        ),
        different: number(rollout::different(draft)),
    };
    let conditions = settled(conditions(draft, &counts));
    write(draft, &counts, &conditions);
    announce(draft, &counts, &conditions);
}

pub(crate) fn plan_deleting(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let left = seen.machines.len();
    let message = match &seen.leftovers {
        _ if left > 0 => {
            let busy: u32 = seen.machines.iter().filter_map(|machine| machine.runs).sum();
            let runs = if busy > 0 {
                format!("; {busy} runs are being stopped")
            } else {
                String::new()
            };
            format!("Being deleted: {left} machines are not gone yet{runs}.")
        }
        RemainingMachines::Unknown(why) => format!(
            "Being deleted: it is not known whether machines of it are left: {}. Correct the Provider; the Pool goes as soon as it answers.",
            cut(why, 1024)
        ),
        RemainingMachines::Known(machines) if !machines.is_empty() => {
            format!(
                "Being deleted: the provider still has {} machines of it.",
                machines.len()
            )
        }
        RemainingMachines::NotAsked | RemainingMachines::NoProvider | RemainingMachines::Known(_) => {
            "Being deleted.".to_owned()
        }
    };
    let counts = Counts {
        exist: u32::try_from(left).unwrap_or(u32::MAX),
        ..Counts::default()
    };
    let conditions = [
        NewCondition::new(READY, false, reason::DELETING, message.clone()),
        NewCondition::new(RECONCILING, true, reason::DELETING, message),
    ];
    write(draft, &counts, &conditions);
    draft.status.phase = Some(PoolPhase::Deleting);
}

fn conditions(draft: &Draft<'_>, counts: &Counts) -> Vec<NewCondition> {
    let Counts {
        wanted,
        least,
        exist,
        ready,
        provisioned,
        outdated,
        different,
    } = *counts;
    let mut conditions = Vec::with_capacity(3);
    if let Some(block) = draft.block.as_ref().filter(|_| draft.is_ended()) {
        let ready = NewCondition::new(READY, false, block.reason, block.message.clone());
        let stalled = NewCondition::new(STALLED, true, block.reason, block.message.clone());
        let mut conditions = vec![ready, stalled];
        if exist > 0 {
            let message = format!("{exist} machines are being returned.");
            conditions.push(NewCondition::new(RECONCILING, true, block.reason, message));
        }
        return conditions;
    }
    if wanted == 0 {
        let (why, what) = if draft.is_suspended() {
            (
                reason::SUSPENDED,
                "spec.suspend is true: Tasks wait until it is false again.",
            )
        } else if draft.asleep {
            (
                reason::SLEEPING,
                "The Pool is idle and sleeps: the next Task wakes it.",
            )
        } else {
            (reason::OFF, "nodes.desired is 0: Tasks wait until it is raised.")
        };
        let mut message = if exist == 0 {
            what.to_owned()
        } else {
            format!("{what} {exist} machines are being returned.")
        };
        // A Pool that wakes within the hour says what failed before, although the machine is gone.
        let last_failure = draft.last_failure.as_ref();
        if let Some(failure) = last_failure.filter(|_| draft.asleep && draft.status.failed_attempts > 0) {
            let failed = draft.status.failed_attempts;
            message = format!(
                "{message} Its last {failed} tries to get a machine failed. {}{failure}",
                failures::MARKER
            );
        }
        let is_ready = exist == 0 || draft.asleep;
        conditions.push(NewCondition::new(READY, is_ready, why, message.clone()));
        if exist > 0 {
            conditions.push(NewCondition::new(RECONCILING, true, why, message));
        }
        return conditions;
    }
    let summary = format!("{ready} of {wanted} machines take Tasks.");
    let is_ready = ready >= least && ready > 0;
    let blocked = draft.block.as_ref();
    let (is_ready, why, message) = match blocked {
        _ if ready >= wanted => (
            true,
            reason::ALL_MACHINES_READY,
            format!("{summary}{}", leaving(draft)),
        ),
        Some(block) if is_ready => (
            true,
            reason::PARTIALLY_READY,
            format!("{summary} {}", block.message),
        ),
        None if is_ready => (true, reason::PARTIALLY_READY, summary),
        // The output is long: only Stalled has it.
        Some(block) => (false, block.reason, without_output(&block.message).to_owned()),
        None => {
            let last = draft.last_failure.as_ref();
            let last = last.map_or(String::new(), |what| format!(" Last failure: {what}"));
            (false, reason::PROVISIONING, format!("{summary}{last}"))
        }
    };
    conditions.push(NewCondition::new(READY, is_ready, why, message));
    let settled = ready == wanted && exist == wanted && outdated == 0 && different == 0;
    let stalled = blocked.filter(|block| block.stalled);
    let environment = draft.status.environment.as_ref();
    let changes = environment.is_some_and(|record| different > 0 && record.failed.is_none());
    let on_their_way = exist > ready || !draft.ordered.is_empty() || changes;
    let refused = refused(draft);
    if !settled && (stalled.is_none() || on_their_way) {
        let (why, message) = if outdated > 0 || exist > wanted {
            let older = match outdated {
                0 => String::new(),
                _ => format!(" ({outdated} of an older spec)"),
            };
            (
                reason::REPLACING_MACHINES,
                format!("{exist} machines exist{older}, {wanted} wanted."),
            )
        } else if let Some(block) = blocked.filter(|block| !block.stalled) {
            (block.reason, block.message.clone())
        } else if let Some(message) = refused.clone().filter(|_| draft.has_floor()) {
            (reason::GROWTH_FAILED, message)
        } else if let lost @ 1.. = connections_lost(draft) {
            (
                reason::CONNECTION_LOST,
                format!(
                    "The connection to {lost} of {exist} machines is lost and dialled again; runs there go on."
                ),
            )
        } else if let Some(record) = environment.filter(|_| changes && ready >= wanted) {
            let turn = match record.turn.as_str() {
                "" => String::new(),
                name => format!("; it is the turn of Machine \"{name}\""),
            };
            (
                reason::CHANGING_ENVIRONMENT,
                format!(
                    "{different} of {exist} machines have another environment than {}, which the image asks for{turn}.",
                    record.hash
                ),
            )
        } else if provisioned >= wanted {
            (
                reason::BOOTSTRAPPING,
                format!("All {wanted} machines have an address and are being prepared."),
            )
        } else {
            (reason::PROVISIONING, format!("{wanted} machines are wanted."))
        };
        conditions.push(NewCondition::new(RECONCILING, true, why, message));
    }
    if let Some(block) = stalled {
        let message = block.message.clone();
        conditions.push(NewCondition::new(STALLED, true, block.reason, message));
    } else if let Some(message) = refused.filter(|_| !draft.has_floor()) {
        conditions.push(NewCondition::new(STALLED, true, reason::ORDER_REFUSED, message));
    }
    conditions
}

/// Which of the Providers that have its machines are being deleted: they wait for these machines.
fn leaving(draft: &Draft<'_>) -> String {
    let seen = draft.seen;
    let is_leaving = |name: &&str| {
        seen.providers
            .get(*name)
            .is_some_and(|facts| facts.account == AccountFacts::Deleting)
    };
    let all: BTreeSet<&str> = seen.machines.iter().map(|m| m.place.provider.as_str()).collect();
    let leaving: Vec<&str> = all.into_iter().filter(is_leaving).collect();
    if leaving.is_empty() {
        return String::new();
    }
    let (is, waits) = if leaving.len() == 1 {
        ("is", "goes")
    } else {
        ("are", "go")
    };
    format!(
        " {} {is} being deleted and {waits} with the last machine: name another Provider in the Pool, or delete the Pool.",
        named(leaving)
    )
}

/// The conditions, with Reconciling=False where nothing is under way: Ready says whether the Pool
/// works, and `kubectl wait` has one condition for both ends.
fn settled(mut conditions: Vec<NewCondition>) -> Vec<NewCondition> {
    let ready = conditions.iter().find(|c| c.type_ == READY);
    if let (Some(ready), true) = (ready, conditions.iter().all(|c| c.type_ != RECONCILING)) {
        let message = "No machine is on its way, and none is being returned.";
        conditions.push(NewCondition::new(RECONCILING, false, ready.reason, message));
    }
    conditions
}

/// How many machines took runs and cannot be reached now.
fn connections_lost(draft: &Draft<'_>) -> usize {
    let is_lost = |machine: &&MachineFacts| {
        let concern = machine.concern.as_ref();
        concern.is_some_and(|(why, _)| why == reason::CONNECTION_LOST)
    };
    draft.live().filter(is_lost).count()
}

/// What is said of a machine whose order is refused as it is: the order is tried again, but somebody must act.
fn refused(draft: &Draft<'_>) -> Option<String> {
    let (machine, message) = draft.live().find_map(|machine| match &machine.concern {
        Some((why, message)) if why == reason::ORDER_REFUSED => Some((&machine.name, message)),
        _ => None,
    })?;
    let mut message = format!("Machine \"{machine}\": {message}");
    let each = failures::refused_as_they_are(draft);
    if each.len() > 1 {
        message = format!("{message}. What each provider says: {}", each.join("; "));
    }
    Some(message)
}

fn write(draft: &mut Draft<'_>, counts: &Counts, conditions: &[NewCondition]) {
    let seen = draft.seen;
    let old_phase = seen.pool.status.phase;
    let status = &mut draft.status;
    status.phase = Some(phase(
        counts,
        conditions,
        old_phase,
        seen.pool.resolved.suspended,
        draft.asleep,
    ));
    (status.provider, status.accelerator) = sources(&seen.machines, draft.candidates);
    let nodes = &seen.pool.spec.nodes;
    let wanted = if draft.asleep || nodes.grows() {
        counts.wanted
    } else {
        nodes.desired
    };
    status.ready_summary = format!("{}/{wanted}", counts.ready);
    status.reason = reason_in_words(
        conditions,
        status.failed_attempts,
        seen.pool.resolved.max_provision_attempts,
    );
    let sleeps_at = status
        .scaling
        .as_ref()
        .and_then(|scaling| scaling.sleeps_at.as_ref());
    if let Some(at) = sleeps_at.filter(|_| status.reason.is_empty()) {
        status.reason = format!("sleeps at {:.0}", at.0);
    }
    status.machines = counts.exist;
    let of_spot = |machine: &&MachineFacts| machine.market == Market::Spot;
    let spot = seen.machines.iter().filter(of_spot).count();
    status.spot_machines = u32::try_from(spot).unwrap_or(u32::MAX);
    status.ready_machines = counts.ready;
    if let Some(load) = &seen.load {
        (status.running_tasks, status.waiting_tasks) = (load.running, load.queued);
    }
    status.hourly_cost = seen
        .machines
        .iter()
        .filter(|machine| machine.bill.as_ref().is_none_or(|bill| bill.gone_at.is_none()))
        .map(|machine| machine.hourly_price)
        .sum::<Usd>()
        .exact();
    status.selector = format!("{}={}", labels::POOL_UID, seen.pool.uid);
    status.head_address = seen
        .machines
        .iter()
        .find(|machine| machine.is_live() && !machine.address.is_empty())
        .map(|machine| machine.address.clone())
        .unwrap_or_default();
    status.attention = attention(&seen.machines);
    status.observed_generation = Some(seen.pool.generation);
    status.conditions = condition::apply(
        &seen.pool.status.conditions,
        conditions,
        Some(seen.pool.generation),
        draft.now,
    );
}

/// The condition of that type, if it is True.
fn holds<'a>(conditions: &'a [NewCondition], type_: &str) -> Option<&'a NewCondition> {
    let is_it = |c: &&NewCondition| c.type_ == type_ && c.status == Some(true);
    conditions.iter().find(is_it)
}

/// For a column: why not all machines are ready, with the failed tries and how many are allowed.
fn reason_in_words(conditions: &[NewCondition], failed: u32, allowed: u32) -> String {
    let ready = conditions.iter().find(|c| c.type_ == READY);
    let stalled = holds(conditions, STALLED).is_some();
    let is_image = holds(conditions, STALLED).is_some_and(|c| c.reason == reason::IMAGE_FAILED);
    let grows_later = holds(conditions, RECONCILING).is_some_and(|c| c.reason == reason::GROWTH_FAILED);
    match ready.map(|ready| ready.reason) {
        Some(reason::ALL_MACHINES_READY) if is_image => reason::IMAGE_FAILED.to_owned(),
        None | Some(reason::ALL_MACHINES_READY) => String::new(),
        Some(_) if grows_later => reason::GROWTH_FAILED.to_owned(),
        Some(why @ (reason::OFF | reason::SLEEPING | reason::SUSPENDED | reason::DELETING)) => why.to_owned(),
        // Fewer tries may have been enough: two machines that fail in the same way stop the Pool.
        Some(why) if failed > 0 && stalled => format!("{why}: given up after {failed} tries"),
        Some(why) if failed > 0 => format!("{why}: {failed}/{allowed} tries failed"),
        Some(why) => why.to_owned(),
    }
}

/// Providers and accelerators of the machines, by their names; while there are no machines, those
/// of the candidates.
fn sources(machines: &[MachineFacts], candidates: &[ResolvedCandidate]) -> (String, String) {
    if machines.is_empty() {
        let providers = candidates.iter().map(|candidate| candidate.provider.as_str());
        let accelerators = candidates
            .iter()
            .map(|candidate| candidate.accelerator_name.as_str());
        return (listed(providers), listed(accelerators));
    }
    // Sorted by name: the order of slots changes with each replaced machine.
    let providers: BTreeSet<&str> = machines.iter().map(|m| m.place.provider.as_str()).collect();
    let accelerators: BTreeSet<&str> = machines.iter().map(|m| m.accelerator.as_str()).collect();
    (listed(providers), listed(accelerators))
}

/// Names for a column, each once; as many whole names as fit.
fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut known = BTreeSet::new();
    let mut text = String::new();
    for name in names {
        if name.is_empty() || !known.insert(name) {
            continue;
        }
        if text.is_empty() {
            text = cut(name, MAX_NAMES - MORE.len());
        } else if text.len() + ",".len() + name.len() + MORE.len() > MAX_NAMES {
            text.push_str(MORE);
            break;
        } else {
            text.push(',');
            text.push_str(name);
        }
    }
    text
}

fn phase(
    counts: &Counts,
    conditions: &[NewCondition],
    old: Option<PoolPhase>,
    suspended: bool,
    asleep: bool,
) -> PoolPhase {
    let is = |type_| holds(conditions, type_).is_some();
    let was_up = matches!(old, Some(PoolPhase::Ready | PoolPhase::Degraded));
    if suspended {
        PoolPhase::Suspended
    } else if asleep && !is(STALLED) {
        PoolPhase::Sleeping
    } else if counts.wanted == 0 && !is(STALLED) {
        PoolPhase::Off
    } else if is(READY) {
        PoolPhase::Ready
    } else if is(STALLED) {
        PoolPhase::Stalled
    } else if was_up {
        PoolPhase::Degraded
    } else {
        PoolPhase::Provisioning
    }
}

/// Machines that are not as they should be; machines that simply boot are not listed.
fn attention(machines: &[MachineFacts]) -> Vec<MachineAttention> {
    let concern = |machine: &MachineFacts| {
        if let Some(failure) = &machine.failure {
            return Some((failure.reason.clone(), failure.message.clone()));
        }
        let (why, message) = machine.concern.as_ref().filter(|_| !machine.deleting)?;
        if *why == reason::CHANGING_ENVIRONMENT {
            return None;
        }
        let notable = machine.ready_at.is_some()
            || *why == reason::ORDER_REFUSED
            || *why == reason::PROVIDER_UNAVAILABLE
            || reason::SHORTAGES.contains(&why.as_str());
        notable.then(|| (why.clone(), message.clone()))
    };
    machines
        .iter()
        .filter_map(|machine| {
            let (why, message) = concern(machine)?;
            Some(MachineAttention {
                name: machine.name.clone(),
                reason: cut(&why, 64),
                message: cut(&message, 512),
            })
        })
        .take(MAX_ATTENTION)
        .collect()
}

/// Events about the Pool as a whole.
fn announce(draft: &mut Draft<'_>, counts: &Counts, conditions: &[NewCondition]) {
    let old = &draft.seen.pool.status.conditions;
    let new = |type_: &'static str| holds(conditions, type_);
    let became = |type_: &'static str| new(type_).filter(|_| !condition::is_true(old, type_));
    let summary = format!("{} of {} machines take Tasks", counts.ready, counts.wanted);
    let events = &mut draft.events;
    let was_provisioning = find(old, RECONCILING).is_some_and(|c| c.reason == reason::PROVISIONING);
    let provisioned = counts.wanted > 0 && counts.provisioned >= counts.wanted;
    if was_provisioning && provisioned && new(RECONCILING).is_none_or(|c| c.reason != reason::PROVISIONING) {
        let note = format!("All {} machines have an address", counts.wanted);
        events.push(EventSpec::normal(
            events::reason::POOL_PROVISIONED,
            "Provision",
            note,
        ));
    }
    if counts.wanted > 0 && became(READY).is_some() {
        events.push(EventSpec::normal(events::reason::POOL_READY, "Ready", summary));
    }
    let grows_later = |c: &&NewCondition| c.reason == reason::GROWTH_FAILED;
    if let Some(later) = new(RECONCILING).filter(grows_later) {
        let same = find(old, RECONCILING).is_some_and(|c| c.reason == later.reason);
        let note = without_output(&later.message);
        events.extend((!same).then(|| EventSpec::warning(events::reason::GROWTH_FAILED, "Wait", note)));
    }
    if let Some(stalled) = new(STALLED) {
        let same = find(old, STALLED).is_some_and(|c| c.reason == stalled.reason);
        let note = without_output(&stalled.message);
        events.extend((!same).then(|| EventSpec::warning(events::reason::POOL_STALLED, "Wait", note)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_counts_failed_tries_while_machines_are_missing() {
        let of = |status: bool, why: &'static str, failed| {
            reason_in_words(&[NewCondition::new(READY, status, why, "")], failed, 10)
        };
        assert_eq!(
            of(false, reason::PROVISIONING, 2),
            "Provisioning: 2/10 tries failed"
        );
        let stalled = [
            NewCondition::new(READY, false, reason::BOOTSTRAP_FAILED, ""),
            NewCondition::new(STALLED, true, reason::BOOTSTRAP_FAILED, ""),
        ];
        assert_eq!(
            reason_in_words(&stalled, 2, 10),
            "BootstrapFailed: given up after 2 tries"
        );
        assert_eq!(
            of(true, reason::PARTIALLY_READY, 1),
            "PartiallyReady: 1/10 tries failed"
        );
        assert_eq!(of(false, reason::PROVISIONING, 0), "Provisioning");
        assert_eq!(of(true, reason::ALL_MACHINES_READY, 3), "");
        assert_eq!(of(true, reason::OFF, 3), "Off");
        let longest = of(false, reason::NO_AVAILABLE_PROVIDER, u32::MAX);
        assert!(longest.len() <= 128);
    }

    #[test]
    fn a_column_has_each_name_once_and_as_many_as_there_is_room_for() {
        assert_eq!(listed([]), "");
        assert_eq!(listed(["", "aws", "", "verda", "aws"]), "aws,verda");
        let longest = "p".repeat(253);
        assert_eq!(listed([longest.as_str()]), longest);
        let many: Vec<String> = (10..26).map(|n| format!("{}{n}", "p".repeat(30))).collect();
        let text = listed(many.iter().map(String::as_str));
        assert!(text.len() <= MAX_NAMES && text.ends_with(MORE), "{text}");
        let shown: Vec<&str> = text.trim_end_matches(MORE).split(',').collect();
        assert!(
            shown.len() > 5 && shown.iter().zip(&many).all(|(a, b)| a == b),
            "{text}"
        );
        let unknown = listed(["é".repeat(200).as_str(), "L4"]);
        assert!(unknown.len() <= MAX_NAMES && unknown.ends_with(MORE), "{unknown}");
    }
}
