//! Makes offers: each kind of machine at each location. Pure.

use std::collections::{BTreeMap, BTreeSet};

use skyward_core::offer::Offer;
use skyward_provider_kit::{Amount, hardware};

use super::wire::{Availability as Stock, InstanceType, Location};

/// The parts of the catalogue.
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

/// The offers. Where prices are equal the first by name is chosen: the offer at the preferred location.
pub fn offers(catalogue: &Catalogue<'_>, preferred: &str) -> Vec<Offer> {
    let on_demand = by_location(catalogue.on_demand);
    let spot = by_location(catalogue.spot);
    let mut locations: BTreeSet<&str> = catalogue.locations.iter().map(|l| l.code.as_str()).collect();
    locations.extend(on_demand.keys().chain(spot.keys()));
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
            let id = hardware::offer_id(&kind.instance_type, location, Some(preferred));
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

fn offer(kind: &InstanceType, id: String, location: &str, on_demand: bool, spot: bool) -> Offer {
    // While one market has stock the other is not offered: there is one availability for
    // both. With no stock at all both prices are still worth knowing.
    let none = !on_demand && !spot;
    let gpus = kind.gpu.description.as_deref().unwrap_or_default();
    // Verda's own size is per GPU for some types and in total for others: the last resort.
    let listed_gb = Some(kind.gpu_memory.size_in_gigabytes);
    let processor = [kind.cpu.description.as_deref(), kind.cpu.model.as_deref()];
    Offer {
        id,
        instance_type: kind.instance_type.clone(),
        region: location.to_owned(),
        architecture: hardware::architecture(processor.into_iter().flatten().chain([gpus])),
        accelerators: hardware::accelerators(gpus, kind.gpu.number_of_gpus, listed_gb),
        vcpus: kind.cpu.number_of_cores,
        memory_gb: kind.memory.size_in_gigabytes,
        disk_gb: None,
        on_demand: (on_demand || none).then_some(kind.price_per_hour.usd()),
        spot: kind
            .spot_price
            .map(Amount::usd)
            .filter(|price| (spot || none) && !price.is_zero()),
        availability: (!none).into(),
        connected: true,
        rate_as_of: None,
    }
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
