//! May machines be created at all? If not, the Pool says why and what would help.
//! Machines that run already are left alone.
//!
//! One Provider that can be used is enough; the others only narrow the choice.

use std::collections::BTreeMap;

use skyward_api::condition::{cut, reason};
use skyward_core::Usd;

use super::draft::{Block, Draft};
use crate::{
    accounts::{
        facts::{AccountFacts, NamespaceFacts, ProviderFacts},
        limits::binding,
        quota::Used,
    },
    base::time::elapsed,
    pool::{
        choice::{
            ResolvedCandidate, Usable,
            candidate::{contradiction, out_of_bounds},
        },
        facts::Observed,
    },
};

/// The label that each namespace has by itself, with its name.
const NAME_OF_NAMESPACE: &str = "kubernetes.io/metadata.name";

pub(crate) fn plan(draft: &mut Draft<'_>) {
    let block = namespace(draft.seen)
        .or_else(|| overrides(draft))
        .or_else(|| accelerators(draft))
        .or_else(|| providers(draft.seen))
        .or_else(|| references(draft.seen))
        .or_else(|| refusal_of_the_api(draft));
    match block {
        Some(block) => {
            if draft.seen.missing_references.is_err() {
                draft.requeue_after(std::time::Duration::from_secs(5));
            }
            draft.block(block);
        }
        None => draft.because("admitted: a Provider is ready, the namespace allowed, references exist"),
    }
}

fn namespace(seen: &Observed) -> Option<Block> {
    let namespace = &seen.pool.namespace;
    match seen.namespace {
        NamespaceFacts::Terminating => Some(Block::waiting(
            reason::DELETING,
            format!("Namespace \"{namespace}\" is being deleted."),
        )),
        NamespaceFacts::NotServed => Some(Block::stalled(
            reason::NAMESPACE_NOT_SERVED,
            format!(
                "Namespace \"{namespace}\" is not served: the operator was installed for other namespaces and has no rights in this one. Ask a platform engineer to add it to the chart's value namespaces, or create the Pool in a namespace that is served."
            ),
        )),
        NamespaceFacts::Unknown => Some(Block::waiting(
            reason::PROVISIONING,
            format!("Namespace \"{namespace}\" was not seen yet."),
        )),
        NamespaceFacts::Active => None,
    }
}

/// Settings that a candidate overrides although its Provider does not allow it.
fn overrides(draft: &Draft<'_>) -> Option<Block> {
    let refused = |candidate: &ResolvedCandidate| {
        let facts = draft.seen.providers.get(&candidate.provider)?;
        if matches!(facts.account, AccountFacts::NotFound(_)) {
            return None;
        }
        let names: Vec<&str> = candidate
            .settings
            .as_object()?
            .keys()
            .filter(|name| !facts.overridable.contains(*name))
            .map(String::as_str)
            .collect();
        (!names.is_empty()).then(|| {
            format!(
                "candidates[{}] overrides {}, which Provider \"{}\" does not list in overridable. Remove it, or ask a platform engineer to list it.",
                candidate.position,
                names.join(", "),
                candidate.provider
            )
        })
    };
    let message = draft.candidates.iter().find_map(refused)?;
    Some(Block::stalled(reason::INVALID_SPEC, message))
}

/// An accelerator whose name says something else than its fields, or what they would not take.
fn accelerators(draft: &Draft<'_>) -> Option<Block> {
    let mut wanted = draft
        .candidates
        .iter()
        .filter_map(|candidate| candidate.accelerator.as_ref());
    wanted
        .find_map(|wanted| contradiction(wanted).or_else(|| out_of_bounds(wanted)))
        .map(|message| Block::stalled(reason::INVALID_SPEC, message))
}

/// Blocks when no Provider can be used.
fn providers(seen: &Observed) -> Option<Block> {
    let refusals: Vec<Block> = seen
        .providers
        .iter()
        .filter_map(|(name, facts)| refusal(seen, name, facts))
        .collect();
    if refusals.len() < seen.providers.len() {
        return None;
    }
    let Some(first) = refusals.first() else {
        return Some(Block::stalled(
            reason::PROVIDER_NOT_FOUND,
            "The Pool names no Provider. Set provider, or candidates that each have one.".to_owned(),
        ));
    };
    // A cause that may pass by itself wins: then nobody has to act.
    let reason = refusals
        .iter()
        .find(|block| !block.stalled)
        .map_or(first.reason, |block| block.reason);
    let messages: Vec<&str> = refusals.iter().map(|block| block.message.as_str()).collect();
    Some(Block {
        reason,
        message: messages.join(" "),
        stalled: refusals.iter().all(|block| block.stalled),
    })
}

fn refusal(seen: &Observed, name: &str, facts: &ProviderFacts) -> Option<Block> {
    let namespace = &seen.pool.namespace;
    match (&facts.account, &facts.admits) {
        (AccountFacts::NotFound(existing), _) => {
            let known = match existing.as_slice() {
                [] => "There is none yet; create one.".to_owned(),
                names => format!(
                    "There are: {}. Create it, or name one of these.",
                    names.iter().take(16).cloned().collect::<Vec<_>>().join(", ")
                ),
            };
            Some(Block::stalled(
                reason::PROVIDER_NOT_FOUND,
                format!("No Provider \"{name}\" exists. {known}"),
            ))
        }
        (AccountFacts::Deleting, _) => Some(Block::stalled(
            reason::PROVIDER_NOT_READY,
            format!(
                "Provider \"{name}\" is being deleted: no machine is ordered there, and the Provider goes with its last machine. Name another Provider in the Pool, or delete the Pool."
            ),
        )),
        (_, Err(selector)) => {
            // Kubernetes sets that label itself: nobody can label a namespace with another's name.
            let remedy = if selector.contains(NAME_OF_NAMESPACE) {
                "Ask a platform engineer to add the namespace to the selector, or name another Provider."
            } else {
                "Ask a platform engineer to label the namespace or to widen the selector."
            };
            Some(Block::stalled(
                reason::NAMESPACE_NOT_ALLOWED,
                format!(
                    "Provider \"{name}\" does not admit namespace \"{namespace}\": its allowedNamespaces asks for labels {selector}. {remedy}"
                ),
            ))
        }
        (AccountFacts::NotReady(why), _) => {
            Some(Block::waiting(reason::PROVIDER_NOT_READY, format!("{why}.")))
        }
        (AccountFacts::Ready, Ok(())) => None,
    }
}

/// The API server refuses Machines of this Pool: their creation is tried again, but not at once.
fn refusal_of_the_api(draft: &mut Draft<'_>) -> Option<Block> {
    let refusal = draft.seen.refusal.as_ref()?;
    let said = format!(
        "The API server refuses the record of a machine: {}",
        cut(&refusal.why, 1000)
    );
    if draft.now >= refusal.until {
        draft.because("the API server refused the last machine; it is tried again");
        return None;
    }
    draft.requeue_after(elapsed(draft.now, refusal.until));
    Some(Block::waiting(
        reason::PROVISIONING,
        format!(
            "{said}. Raise the quota of the namespace or change what it refuses; it is tried again within a minute."
        ),
    ))
}

fn references(seen: &Observed) -> Option<Block> {
    match &seen.missing_references {
        Err(why) => Some(Block::waiting(reason::PROVISIONING, format!("{why}."))),
        Ok(missing) if missing.is_empty() => seen
            .too_large_references
            .as_ref()
            .map(|why| Block::stalled(reason::REFERENCE_TOO_LARGE, format!("{why}."))),
        Ok(missing) => Some(Block::stalled(
            reason::REFERENCE_NOT_FOUND,
            format!(
                "{} of namespace \"{}\" {} not exist. Create {}, or mark the reference optional.",
                missing.join(", "),
                seen.pool.namespace,
                if missing.len() == 1 { "does" } else { "do" },
                if missing.len() == 1 { "it" } else { "them" },
            ),
        )),
    }
}

/// Which Providers an order may go to now: Providers that are ready, admit the namespace and
/// have room for one more machine. `taken` is what the plan in the making takes already:
/// machines, and USD per hour.
pub(crate) fn usable(seen: &Observed, taken: &BTreeMap<String, (u32, Usd)>) -> BTreeMap<String, Usable> {
    seen.providers
        .iter()
        .map(|(name, facts)| {
            let (machines, hourly) = taken.get(name).copied().unwrap_or_default();
            let used = facts.used.with(machines, hourly);
            let usable = match (refusal(seen, name, facts), binding(facts, used, 1, Usd::ZERO)) {
                (Some(block), _) => Usable::No(block.message),
                (None, Some(_)) => Usable::Full,
                (None, None) => Usable::Yes(hourly_room(facts, used)),
            };
            (name.clone(), usable)
        })
        .collect()
}

/// What one more machine may cost per hour.
pub(crate) fn hourly_room(facts: &ProviderFacts, used: Used) -> Option<Usd> {
    let limits = &facts.limits;
    let total = limits.hourly.map(|limit| limit - used.hourly);
    let here = limits
        .hourly_in_namespace
        .map(|limit| limit - used.hourly_in_namespace);
    total.into_iter().chain(here).min()
}
