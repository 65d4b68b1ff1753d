//! What Verda sells becomes offers: each kind of machine at each location. Pure.

use std::collections::{BTreeMap, BTreeSet};

use skyward_core::{
    accelerator,
    offer::{Accelerators, Architecture, Availability, Offer},
};

use super::wire::{Availability as Stock, InstanceType, Location};
use skyward_provider_kit::dns_label;

/// Part of the ids of locations whose names come before that of the preferred one.
const LATER: &str = "zz-";

/// What is known of the catalogue.
pub struct Catalogue<'a> {
    /// Kinds of machines.
    pub types: &'a [InstanceType],
    /// Locations.
    pub locations: &'a [Location],
    /// Stock for orders on demand.
    pub on_demand: &'a [Stock],
    /// Stock for spot orders.
    pub spot: &'a [Stock],
}

/// The offers, those of the preferred location first: where prices are equal the first by
/// name is taken.
pub fn offers(catalogue: &Catalogue<'_>, preferred: &str) -> Vec<Offer> {
    let on_demand = by_location(catalogue.on_demand);
    let spot = by_location(catalogue.spot);
    let mut locations: BTreeSet<&str> = catalogue.locations.iter().map(|l| l.code.as_str()).collect();
    locations.extend(on_demand.keys().chain(spot.keys()));
    let mut locations: Vec<&str> = locations.into_iter().collect();
    locations.sort_by_key(|code| (*code != preferred, *code));
    let mut offers = Vec::new();
    for location in locations {
        for kind in catalogue.types {
            // All our prices are in USD.
            if kind
                .currency
                .as_deref()
                .is_some_and(|c| !c.eq_ignore_ascii_case("usd"))
            {
                continue;
            }
            let has = |stock: &BTreeMap<&str, BTreeSet<&str>>| {
                stock
                    .get(location)
                    .is_some_and(|kinds| kinds.contains(kind.instance_type.as_str()))
            };
            let id = id(&kind.instance_type, location, preferred);
            offers.push(offer(kind, id, location, has(&on_demand), has(&spot)));
        }
    }
    offers
}

fn by_location(stock: &[Stock]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut by: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for place in stock {
        let kinds = place.availabilities.iter().map(String::as_str);
        by.entry(place.location_code.as_str()).or_default().extend(kinds);
    }
    by
}

/// Type and location; between, where the preferred location would come later by name, what
/// comes later still.
fn id(kind: &str, location: &str, preferred: &str) -> String {
    let earlier = location.to_ascii_lowercase() < preferred.to_ascii_lowercase();
    let between = if earlier { LATER } else { "" };
    dns_label(&format!("{kind}-{between}{location}"))
}

fn offer(kind: &InstanceType, id: String, location: &str, on_demand: bool, spot: bool) -> Offer {
    // While one market has stock the other is not offered: there is one availability for
    // both. With no stock at all both prices are still worth knowing.
    let none = !on_demand && !spot;
    let description = kind.gpu.description.as_deref().unwrap_or_default();
    let accelerators = (kind.gpu.number_of_gpus > 0.0).then(|| {
        let parsed = accelerator::parse(description);
        Accelerators {
            // Verda's own size is per GPU for some and in total for others: the last resort.
            memory_gb: parsed
                .memory_gb
                .or_else(|| accelerator::memory_gb(description))
                .or(Some(kind.gpu_memory.size_in_gigabytes))
                .filter(|size| *size > 0.0),
            form_factor: parsed.form_factor,
            name: parsed.name,
            count: kind.gpu.number_of_gpus,
        }
    });
    Offer {
        id,
        instance_type: kind.instance_type.clone(),
        region: location.to_owned(),
        architecture: architecture(kind, description),
        accelerators,
        vcpus: kind.cpu.number_of_cores,
        memory_gb: kind.memory.size_in_gigabytes,
        disk_gb: None,
        on_demand: (on_demand || none).then_some(kind.price_per_hour.0),
        spot: kind
            .spot_price
            .map(|price| price.0)
            .filter(|price| (spot || none) && !price.is_zero()),
        availability: if none { Availability::No } else { Availability::Yes },
        connected: true,
    }
}

/// NVIDIA's Grace is an ARM processor; Verda says so nowhere else.
fn architecture(kind: &InstanceType, gpus: &str) -> Architecture {
    let cpu = [kind.cpu.description.as_deref(), kind.cpu.model.as_deref()];
    let grace = cpu
        .into_iter()
        .flatten()
        .any(|text| text.to_lowercase().contains("grace"));
    let superchip = ["GB200", "GB300", "GH200"].iter().any(|name| gpus.contains(name));
    if grace || superchip {
        Architecture::Arm64
    } else {
        Architecture::X86_64
    }
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
