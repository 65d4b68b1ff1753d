//! Why no Offer fits: which candidate removed how many, and what would help.

use std::collections::{BTreeMap, BTreeSet};

use skyward_api::{
    machine::Market,
    shared::{FormFactor, Size},
};
use skyward_core::{Usd, offer::RATE_DAYS};

use super::{Constraint, Offerings, Request, ResolvedCandidate, Usable, fits};
use crate::accounts::offers::IndexedOffer;

/// A text for the Pool's condition, one sentence for each Provider that was looked at.
pub fn explain(candidates: &[ResolvedCandidate], offers: &Offerings, request: &Request<'_>) -> String {
    let mut sentences: Vec<String> = Vec::new();
    for candidate in candidates {
        let sentence = match request.providers.get(&candidate.provider) {
            Some(Usable::No(why)) => why.clone(),
            None => format!("No Provider \"{}\" exists.", candidate.provider),
            Some(Usable::Yes(_) | Usable::Full) => of_candidate(
                request,
                candidate,
                offers
                    .get(&candidate.provider)
                    .map_or(&[], |index| index.entries()),
            ),
        };
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    sentences.join(" ")
}

fn of_candidate(request: &Request<'_>, candidate: &ResolvedCandidate, offers: &[IndexedOffer]) -> String {
    if offers.is_empty() {
        return format!(
            "Provider \"{0}\" has no offers. See `kubectl describe providers.skyward.dev {0}`.",
            candidate.provider
        );
    }
    let mut removed: BTreeMap<Constraint, Vec<&IndexedOffer>> = BTreeMap::new();
    for offer in offers {
        if let Err(constraint) = fits(request, candidate, offer) {
            removed.entry(constraint).or_default().push(offer);
        }
    }
    let parts: Vec<String> = removed
        .iter()
        .map(|(constraint, offers)| {
            format!(
                "{} {}",
                offers.len(),
                words(*constraint, request, candidate, offers)
            )
        })
        .collect();
    format!(
        "None of {} offers of Provider \"{}\" fits: {}.",
        offers.len(),
        candidate.provider,
        parts.join("; ")
    )
}

fn words(
    constraint: Constraint,
    request: &Request<'_>,
    candidate: &ResolvedCandidate,
    offers: &[&IndexedOffer],
) -> String {
    let most = |value: fn(&IndexedOffer) -> f64| offers.iter().map(|offer| value(offer)).fold(0.0, f64::max);
    let largest = |value: fn(&IndexedOffer) -> u64| {
        Size::of(offers.iter().map(|offer| value(offer)).max().unwrap_or_default())
    };
    let size = |bytes: Option<u64>| Size::of(bytes.unwrap_or_default());
    let accelerator = candidate.accelerator.clone().unwrap_or_default();
    match constraint {
        Constraint::Machine => format!(
            "are another type than \"{}\"; see `kubectl get offers -o wide` for the types there are",
            candidate.instance_type.as_deref().unwrap_or_default()
        ),
        Constraint::Region => {
            let there = some(offers.iter().map(|offer| offer.spec().region.clone()));
            let there = if there.is_empty() {
                "they name none; leave region out, places are a setting of the Provider, such as runpod.dataCenterIds"
                    .to_owned()
            } else if offers.iter().any(|offer| offer.spec().region.is_empty()) {
                format!(
                    "there are {there}; others name none: places are a setting of the Provider, such as runpod.dataCenterIds"
                )
            } else {
                format!("there are {there}")
            };
            let wanted = candidate.region.as_deref().unwrap_or_default();
            format!("are not in region \"{wanted}\" ({there})")
        }
        Constraint::Architecture => "have another architecture; set architecture to the other one".to_owned(),
        Constraint::Agent => {
            "have an architecture for which this operator has no agent; ask a platform engineer to install one (--agents-dir)".to_owned()
        }
        Constraint::Accelerator => {
            let there = some(
                offers
                    .iter()
                    .filter_map(|offer| offer.spec().accelerator.as_ref().map(|a| a.name.clone())),
            );
            let there = if there.is_empty() {
                "none has any".to_owned()
            } else {
                format!("there are {there}")
            };
            format!("have no accelerator \"{}\" ({there})", accelerator.name)
        }
        Constraint::AcceleratorPart => {
            "give whole accelerators only, as Kubernetes counts them; set accelerator.count to a whole number".to_owned()
        }
        Constraint::AcceleratorCount => format!(
            "have fewer than {} accelerators (at most {})",
            accelerator.number(),
            most(|offer| offer.facts.accelerators)
        ),
        Constraint::AcceleratorMemory => format!(
            "have accelerators with less than {} (at most {})",
            Size::of_card_gb(candidate.accelerator_memory_gb.unwrap_or_default()),
            Size::of_card_gb(most(|offer| offer.facts.accelerator_memory_gb.unwrap_or_default()))
        ),
        Constraint::FormFactor => format!(
            "have accelerators that are not {}, or do not say how they are built in (there are {})",
            accelerator.form_factor.map_or("", FormFactor::as_str),
            some(offers.iter().filter_map(|offer| {
                let built = offer.facts.form_factor?;
                Some(built.as_str().to_owned())
            }))
        ),
        Constraint::Cpu => format!(
            "promise less than {} CPUs (at most {}); lower cpu",
            candidate.cpu.unwrap_or_default(),
            offers.iter().map(|offer| offer.facts.cpu).max().unwrap_or_default()
        ),
        Constraint::Memory => format!(
            "promise less than {} of memory (at most {}); lower memory",
            size(candidate.memory),
            largest(|offer| offer.facts.memory)
        ),
        Constraint::Disk => format!(
            "have less than {} of disk (at most {}); lower disk",
            size(candidate.disk),
            largest(|offer| offer.facts.disk.unwrap_or_default())
        ),
        Constraint::Connected => {
            "give machines that cannot reach each other; set topology to Independent or nodes.desired to 1".to_owned()
        }
        Constraint::Place => {
            let place = request.pinned.map_or_else(String::new, |place| {
                format!(" ({} {})", place.provider, place.region).trim_end().to_owned()
            });
            format!(
                "are not where the other machines of the Pool are{place}; wait until nothing runs on those, so that all of them move (they stay while nodes.min are there), or set topology to Independent"
            )
        }
        Constraint::Rate => format!(
            "have prices by an exchange rate of {}, more than {RATE_DAYS} days ago; set maxHourlyCost, or ask a platform engineer for a current exchangeRate in the Provider",
            some(offers.iter().filter_map(|offer| offer.spec().exchange_rate_as_of.clone()))
        ),
        Constraint::Unpriced => {
            "have no price that the operator knows, so they are ordered on demand alone, and count as if they cost maxHourlyCost; set maxHourlyCost with an allocation other than Spot, or ask a platform engineer to write their prices into the Provider".to_owned()
        }
        Constraint::Market if offers.iter().all(|offer| offer.lowest().is_none()) => {
            "have no price in USD now; wait, or, where the cloud bills in another currency, ask a platform engineer to set exchangeRate in the Provider".to_owned()
        }
        Constraint::Market => match request.market {
            None => "are not sold on this market now; set allocation to OnDemand, SpotIfAvailable or Cheapest",
            Some(Market::Spot) => "are not sold on the spot market now; lower spotPercent, or wait for more of it",
            Some(Market::OnDemand) => "are not sold on demand now; raise spotPercent",
        }
        .to_owned(),
        Constraint::Price => format!(
            "cost more than {} USD per hour (the cheapest {}); raise maxHourlyCost",
            candidate.max_hourly_cost.unwrap_or_default().exact(),
            cheapest(offers)
        ),
        Constraint::Limit => {
            "cost more per hour than the limits of the Provider leave room for; ask a platform engineer to raise limits.hourlyCost".to_owned()
        }
        Constraint::Dear => {
            "were dearer than their price says when they were last ordered, and are left alone for an hour; add candidates, or ask the cloud why".to_owned()
        }
        Constraint::SoldOut => {
            "are not available now, as the provider says; wait, or add candidates of another region, type or Provider".to_owned()
        }
    }
}

fn cheapest(offers: &[&IndexedOffer]) -> String {
    offers
        .iter()
        .filter_map(|offer| offer.lowest())
        .min()
        .map_or_else(|| "has no price".to_owned(), Usd::exact)
}

/// At most eight names, each once, in order.
fn some(names: impl Iterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
    names.into_iter().take(8).collect::<Vec<_>>().join(", ")
}
