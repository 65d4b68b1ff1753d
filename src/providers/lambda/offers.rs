//! Makes offers: each kind of machine in each region. Pure.

use std::collections::{BTreeMap, BTreeSet};

use skyward_core::offer::Offer;
use skyward_provider_kit::hardware::{self, GB_IN_GIB};

use super::wire::{InstanceType, Region, TypeItem};

/// The offers. Where prices are equal the first by name is chosen: the offer in the preferred region.
pub fn offers(types: &BTreeMap<String, TypeItem>, regions: &[Region], preferred: Option<&str>) -> Vec<Offer> {
    let having = |item: &TypeItem| -> BTreeSet<String> {
        let names = item.regions_with_capacity_available.iter();
        names.map(|region| region.name.clone()).collect()
    };
    let mut names: BTreeSet<String> = regions.iter().map(|region| region.name.clone()).collect();
    names.extend(types.values().flat_map(having));
    let mut offers = Vec::new();
    for region in &names {
        for item in types.values() {
            let id = hardware::offer_id(&item.instance_type.name, region, preferred);
            offers.push(offer(
                &item.instance_type,
                id,
                region,
                having(item).contains(region),
            ));
        }
    }
    offers
}

fn offer(kind: &InstanceType, id: String, region: &str, in_stock: bool) -> Offer {
    Offer {
        id,
        instance_type: kind.name.clone(),
        region: region.to_owned(),
        accelerators: hardware::accelerators(&kind.gpu_description, f64::from(kind.specs.gpus), None),
        vcpus: f64::from(kind.specs.vcpus),
        memory_gb: f64::from(kind.specs.memory_gib) * GB_IN_GIB,
        disk_gb: Some(f64::from(kind.specs.storage_gib) * GB_IN_GIB),
        architecture: hardware::architecture([kind.gpu_description.as_str()]),
        on_demand: Some(kind.price()),
        spot: None,
        availability: in_stock.into(),
        connected: false,
        rate_as_of: None,
    }
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
