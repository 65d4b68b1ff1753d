//! The rules that every plan must keep. Property tests and debug
//! builds check it.

use std::collections::{BTreeMap, BTreeSet};

use skyward_api::pool::Place;

use super::draft::{Action, Plan, Why};
use crate::{
    accounts::facts::{AccountFacts, NamespaceFacts},
    pool::facts::{Observed, RemainingMachines},
};

/// Rules that a plan breaks, in words.
pub fn audit(seen: &Observed, plan: &Plan) -> Vec<String> {
    let mut violations = Vec::new();
    let created: Vec<_> = plan
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateMachine { name, spec } => Some((name, spec)),
            _ => None,
        })
        .collect();
    let deleted: BTreeMap<&str, Why> = plan
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::DeleteMachine { name, why, .. } => Some((name.as_str(), *why)),
            _ => None,
        })
        .collect();

    let holding: Vec<_> = seen
        .machines
        .iter()
        .filter(|machine| machine.occupies())
        .filter(|machine| {
            !machine.refused || machine.perhaps_ordered || !deleted.contains_key(machine.name.as_str())
        })
        .collect();
    let mut slots: BTreeSet<u32> = holding.iter().map(|machine| machine.slot).collect();
    slots.extend(seen.unread.iter().filter_map(|unread| unread.slot));
    for (name, spec) in &created {
        if !slots.insert(spec.slot) {
            violations.push(format!("{name} is ordered although slot {} is held", spec.slot));
        }
        if spec.attempt <= seen.pool.status.last_attempt || spec.attempt > plan.status.last_attempt {
            violations.push(format!(
                "{name} has attempt {} that is not on record first",
                spec.attempt
            ));
        }
    }
    let nodes = &seen.pool.spec.nodes;
    let recorded = plan.status.desired_machines.unwrap_or(nodes.desired);
    let wanted = if seen.pool.spec.suspend == Some(true) {
        0
    } else {
        recorded.min(nodes.most())
    } as usize;
    if !created.is_empty() {
        let many = holding.len() + seen.unread.len() + created.len();
        if many > wanted {
            violations.push(format!("{many} machines for {wanted} wanted"));
        }
        let may = |provider: &str| {
            seen.providers
                .get(provider)
                .is_some_and(|facts| facts.account == AccountFacts::Ready && facts.admits.is_ok())
        };
        if seen.namespace != NamespaceFacts::Active || created.iter().any(|(_, spec)| !may(&spec.provider)) {
            violations.push("a machine is ordered although it is not certain that it may be".to_owned());
        }
        if !matches!(&seen.missing_references, Ok(missing) if missing.is_empty()) {
            violations.push("a machine is ordered although references are missing or not known".to_owned());
        }
        for (name, facts) in &seen.providers {
            let ordered = created.iter().filter(|(_, spec)| spec.provider == *name).count();
            let total = facts.used.total as usize + ordered;
            if ordered > 0 && facts.limits.total.is_some_and(|limit| total > limit as usize) {
                violations.push(format!("the limit of Provider \"{name}\" is passed"));
            }
        }
        for (name, spec) in &created {
            let place = Place {
                provider: spec.provider.clone(),
                region: spec.region.clone(),
            };
            if !plan.status.places.contains(&place) {
                violations.push(format!(
                    "{name} is ordered at a place that is not on record first"
                ));
            }
        }
        if seen.pool.deleting_since.is_some() || !seen.pool.finalizer {
            violations.push("a machine is ordered for a Pool that could vanish".to_owned());
        }
    }
    for machine in &seen.machines {
        match deleted.get(machine.name.as_str()) {
            Some(Why::NotWanted | Why::Asleep | Why::Idle | Why::Outdated)
                if machine.ready_at.is_some() && machine.runs.is_none() =>
            {
                violations.push(format!(
                    "{} is given up although it is not known whether it is busy",
                    machine.name
                ));
            }
            Some(Why::Outdated | Why::Duplicate | Why::Idle) if !machine.is_idle() => {
                violations.push(format!("{} is given up although it is busy", machine.name));
            }
            Some(_) if machine.deleting => violations.push(format!("{} is given up twice", machine.name)),
            _ => {}
        }
    }
    let image_failed = plan
        .status
        .environment
        .as_ref()
        .is_some_and(|record| record.failed.is_some());
    if image_failed && (!created.is_empty() || deleted.values().any(|why| *why == Why::Outdated)) {
        violations.push("a machine is ordered or replaced although the image failed".to_owned());
    }
    let is_kept = seen.pool.deleting_since.is_none() && seen.pool.finalizer;
    let record = plan.status.environment.as_ref().filter(|_| is_kept);
    if let Some(record) = record.filter(|record| !record.turn.is_empty()) {
        let named = seen.machines.iter().find(|machine| machine.name == record.turn);
        if named.is_none_or(|machine| !machine.is_live()) || deleted.contains_key(record.turn.as_str()) {
            violations.push(format!("{} has a turn and is not there", record.turn));
        }
    }
    let lets_go = plan.actions.contains(&Action::RemoveFinalizer);
    if lets_go && (!seen.machines.is_empty() || matches!(seen.leftovers, RemainingMachines::Unknown(_))) {
        violations.push("the Pool is let go although machines may be left".to_owned());
    }
    violations
}
