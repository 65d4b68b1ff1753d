//! What Lambda sells becomes offers: each kind of machine in each region. Pure.

use std::collections::{BTreeMap, BTreeSet};

use skyward_core::{
    accelerator,
    offer::{Accelerators, Architecture, Availability, Offer},
};

use super::wire::{InstanceType, Region, TypeItem};
use skyward_provider_kit::dns_label;

/// GB in a GiB.
const GIB: f64 = 1.073_741_824;

/// The offers, those of the preferred region first.
pub fn offers(types: &BTreeMap<String, TypeItem>, regions: &[Region], preferred: Option<&str>) -> Vec<Offer> {
    let having = |item: &TypeItem| -> BTreeSet<String> {
        let names = item.regions_with_capacity_available.iter();
        names.map(|region| region.name.clone()).collect()
    };
    let mut names: BTreeSet<String> = regions.iter().map(|region| region.name.clone()).collect();
    names.extend(types.values().flat_map(having));
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_by_key(|name| (Some(name.as_str()) != preferred, name.clone()));
    let mut offers = Vec::new();
    for region in &names {
        for item in types.values() {
            offers.push(offer(&item.instance_type, region, having(item).contains(region)));
        }
    }
    offers
}

fn offer(kind: &InstanceType, region: &str, in_stock: bool) -> Offer {
    let accelerators = (kind.specs.gpus > 0).then(|| {
        let parsed = accelerator::parse(&kind.gpu_description);
        Accelerators {
            memory_gb: parsed
                .memory_gb
                .or_else(|| accelerator::memory_gb(&kind.gpu_description)),
            form_factor: parsed.form_factor,
            name: parsed.name,
            count: f64::from(kind.specs.gpus),
        }
    });
    // NVIDIA's Grace is an ARM processor; Lambda says so nowhere else.
    let grace = ["GH200", "GB200", "GB300"]
        .iter()
        .any(|name| kind.gpu_description.contains(name));
    Offer {
        id: dns_label(&format!("{}-{region}", kind.name)),
        instance_type: kind.name.clone(),
        region: region.to_owned(),
        accelerators,
        vcpus: f64::from(kind.specs.vcpus),
        memory_gb: f64::from(kind.specs.memory_gib) * GIB,
        disk_gb: Some(f64::from(kind.specs.storage_gib) * GIB),
        architecture: if grace {
            Architecture::Arm64
        } else {
            Architecture::X86_64
        },
        on_demand: Some(kind.price()),
        spot: None,
        availability: if in_stock {
            Availability::Yes
        } else {
            Availability::No
        },
        connected: false,
    }
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
