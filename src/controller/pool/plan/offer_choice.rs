//! Which Offer to order: the cheapest that fits. If none does, which wish removed how
//! many of them, and what would help.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use skyward_api::{
    offer::{Architecture, Availability, OfferSpec},
    pool::PoolSpec,
};

/// A wish that an Offer does not fulfil, in the order in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Constraint {
    Architecture,
    Accelerator,
    AcceleratorCount,
    AcceleratorMemory,
    Vcpus,
    Memory,
    Disk,
    Connected,
    Price,
    Available,
}

/// The cheapest Offer that fits, or why there is none.
pub fn choose<'a>(
    pool: &PoolSpec,
    offers: &'a BTreeMap<String, OfferSpec>,
) -> Result<(&'a str, &'a OfferSpec), String> {
    offers
        .iter()
        .filter(|(_, offer)| misfit(pool, offer).is_none())
        // Among equals one without accelerators, which others may need; then by name.
        .min_by_key(|(name, offer)| (price(offer), offer.accelerator.is_some(), *name))
        .map(|(name, offer)| (name.as_str(), offer))
        .ok_or_else(|| explain(pool, offers))
}

fn price(offer: &OfferSpec) -> Option<Decimal> {
    offer
        .on_demand_price
        .as_ref()
        .and_then(|price| price.parse().ok())
}

/// The first wish that this Offer does not fulfil.
fn misfit(pool: &PoolSpec, offer: &OfferSpec) -> Option<Constraint> {
    let wanted = pool.accelerator.as_ref();
    let offered = offer.accelerator.as_ref();
    let less = |offered: Option<f64>, wanted: Option<f64>| match (offered, wanted) {
        (Some(offered), Some(wanted)) => offered < wanted,
        (None, Some(_)) => true,
        (_, None) => false,
    };
    let checks = [
        (
            Constraint::Architecture,
            offer.architecture != pool.architecture.unwrap_or(Architecture::X86_64),
        ),
        (
            Constraint::Accelerator,
            wanted.is_some_and(|w| offered.is_none_or(|o| canonical(&o.name) != canonical(&w.name))),
        ),
        (
            Constraint::AcceleratorCount,
            less(
                offered.map(|o| o.count),
                wanted.map(|w| f64::from(w.count.unwrap_or(1))),
            ),
        ),
        (
            Constraint::AcceleratorMemory,
            less(
                offered.and_then(|o| o.memory_gb),
                wanted.and_then(|w| w.memory_gb).map(f64::from),
            ),
        ),
        (Constraint::Vcpus, less(Some(offer.vcpus), pool.vcpus)),
        (Constraint::Memory, less(Some(offer.memory_gb), pool.memory_gb)),
        // Where the offer does not fix the disk, any size can be ordered.
        (
            Constraint::Disk,
            offer.disk_gb.is_some() && less(offer.disk_gb, pool.disk_gb.map(f64::from)),
        ),
        (Constraint::Connected, pool.nodes.desired > 1 && !offer.connected),
        (Constraint::Price, price(offer).is_none()),
        (Constraint::Available, offer.availability == Availability::No),
    ];
    checks
        .into_iter()
        .find(|(_, misses)| *misses)
        .map(|(constraint, _)| constraint)
}

fn canonical(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_uppercase())
        .collect()
}

fn explain(pool: &PoolSpec, offers: &BTreeMap<String, OfferSpec>) -> String {
    if offers.is_empty() {
        return format!(
            "Provider \"{}\" has no offers. See `kubectl describe provider {}`.",
            pool.provider, pool.provider
        );
    }
    let mut removed: BTreeMap<Constraint, Vec<&OfferSpec>> = BTreeMap::new();
    for offer in offers.values() {
        if let Some(constraint) = misfit(pool, offer) {
            removed.entry(constraint).or_default().push(offer);
        }
    }
    let parts: Vec<String> = removed
        .iter()
        .map(|(constraint, offers)| format!("{} {}", offers.len(), words(*constraint, pool, offers)))
        .collect();
    format!(
        "None of {} offers of Provider \"{}\" fits: {}.",
        offers.len(),
        pool.provider,
        parts.join("; ")
    )
}

fn words(constraint: Constraint, pool: &PoolSpec, offers: &[&OfferSpec]) -> String {
    let most = |value: fn(&OfferSpec) -> f64| offers.iter().map(|offer| value(offer)).fold(0.0, f64::max);
    let accelerator = pool.accelerator.clone().unwrap_or_default();
    match constraint {
        Constraint::Architecture => "have another architecture; set architecture to the other one".to_owned(),
        Constraint::Accelerator => {
            let mut names: Vec<_> = offers
                .iter()
                .filter_map(|offer| offer.accelerator.as_ref().map(|a| a.name.clone()))
                .collect();
            names.sort();
            names.dedup();
            names.truncate(8);
            let there = if names.is_empty() {
                "none has any".to_owned()
            } else {
                format!("there are {}", names.join(", "))
            };
            format!("have no accelerator \"{}\" ({there})", accelerator.name)
        }
        Constraint::AcceleratorCount => format!(
            "have fewer than {} accelerators (at most {})",
            accelerator.count.unwrap_or(1),
            most(|o| o.accelerator.as_ref().map_or(0.0, |a| a.count))
        ),
        Constraint::AcceleratorMemory => format!(
            "have accelerators with less than {} GB (at most {})",
            accelerator.memory_gb.unwrap_or(0),
            most(|o| o.accelerator.as_ref().and_then(|a| a.memory_gb).unwrap_or(0.0))
        ),
        Constraint::Vcpus => {
            format!(
                "have less than {} vCPUs (at most {}); lower vcpus",
                pool.vcpus.unwrap_or(0.0),
                most(|o| o.vcpus)
            )
        }
        Constraint::Memory => format!(
            "have less than {} GB of memory (at most {:.1}); lower memoryGB",
            pool.memory_gb.unwrap_or(0.0),
            most(|o| o.memory_gb)
        ),
        Constraint::Disk => format!(
            "have less than {} GB of disk (at most {:.0}); lower diskGB",
            pool.disk_gb.unwrap_or(0),
            most(|o| o.disk_gb.unwrap_or(0.0))
        ),
        Constraint::Connected => {
            "give machines that cannot reach each other; set nodes.desired to 1".to_owned()
        }
        Constraint::Price => "have no price".to_owned(),
        Constraint::Available => "cannot be had now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(json: serde_json::Value) -> PoolSpec {
        serde_json::from_value(json).unwrap()
    }

    fn offer(vcpus: f64, memory_gb: f64, price: &str) -> OfferSpec {
        OfferSpec {
            provider: "local".into(),
            instance_type: "x".into(),
            region: String::new(),
            accelerator: None,
            vcpus,
            memory_gb,
            disk_gb: None,
            architecture: Architecture::X86_64,
            on_demand_price: Some(price.into()),
            availability: Availability::Yes,
            connected: true,
        }
    }

    #[test]
    fn the_refusal_says_which_wish_removed_how_many_and_what_there_is() {
        let offers = BTreeMap::from([
            ("a".into(), offer(4.0, 8.0, "0")),
            ("b".into(), offer(64.0, 16.0, "0")),
        ]);
        let text = choose(
            &pool(serde_json::json!({ "provider": "local", "vcpus": 8, "memoryGB": 32 })),
            &offers,
        )
        .unwrap_err();
        assert_eq!(
            text,
            "None of 2 offers of Provider \"local\" fits: 1 have less than 8 vCPUs (at most 4); lower vcpus; 1 have less than 32 GB of memory (at most 16.0); lower memoryGB."
        );
    }

    #[test]
    fn names_of_accelerators_need_not_be_spelled_exactly() {
        let mut gpu = offer(8.0, 64.0, "0");
        gpu.accelerator =
            serde_json::from_value(serde_json::json!({ "name": "RTX_4090", "count": 2.0 })).ok();
        let offers = BTreeMap::from([("a".into(), gpu)]);
        let wants = |name: &str, count: u32| {
            let spec = pool(
                serde_json::json!({ "provider": "local", "accelerator": { "name": name, "count": count } }),
            );
            choose(&spec, &offers).map(|(name, _)| name.to_owned())
        };
        assert_eq!(wants("rtx-4090", 2), Ok("a".into()));
        assert!(
            wants("RTX_4090", 3)
                .unwrap_err()
                .contains("fewer than 3 accelerators (at most 2)")
        );
        assert!(
            wants("H100", 1)
                .unwrap_err()
                .contains("no accelerator \"H100\" (there are RTX_4090)")
        );
    }

    proptest! {
        #[test]
        fn the_choice_is_the_cheapest_of_all_that_fit(
            offers in prop::collection::vec((1_u32..16, 1_u32..64, 0_u32..5), 0..12),
            vcpus in 1_u32..16,
            memory in 1_u32..64,
        ) {
            let offers: BTreeMap<String, OfferSpec> = offers
                .into_iter()
                .enumerate()
                .map(|(i, (v, m, p))| (format!("o{i}"), offer(f64::from(v), f64::from(m), &p.to_string())))
                .collect();
            let spec = pool(serde_json::json!({ "provider": "local", "vcpus": vcpus, "memoryGB": memory }));
            let cheapest = offers
                .values()
                .filter(|o| o.vcpus >= f64::from(vcpus) && o.memory_gb >= f64::from(memory))
                .map(|o| o.on_demand_price.clone().unwrap().parse::<u32>().unwrap())
                .min();
            let chosen = choose(&spec, &offers).ok().map(|(_, o)| o.on_demand_price.clone().unwrap().parse::<u32>().unwrap());
            prop_assert_eq!(chosen, cheapest);
        }
    }
}
