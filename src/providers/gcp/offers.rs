//! Makes offers: each type of machine with GPUs in each zone, at the prices that are known. Pure.

use std::collections::BTreeMap;

use serde_json::Value;
use skyward_core::{
    Market,
    offer::{Accelerators, Architecture, Availability, Offer},
};
use skyward_provider_kit::hardware::{self, GB_IN_GIB};

use super::{
    config::Settings,
    kind::Kind,
    prices,
    wire::{AcceleratorType, MachineType},
};

/// GPUs that belong to no machine type, and are added to general machines.
const ADDED: [&str; 4] = [
    "nvidia-tesla-t4",
    "nvidia-tesla-v100",
    "nvidia-tesla-p100",
    "nvidia-tesla-p4",
];
/// The general machines for so many of them: each has the most vCPUs that Google allows for its GPUs, or fewer.
static GENERAL: [(u32, &str); 4] = [
    (1, "n1-standard-8"),
    (2, "n1-standard-16"),
    (4, "n1-standard-32"),
    (8, "n1-standard-96"),
];

/// What a zone sells.
#[derive(Debug, Default)]
pub struct Sold {
    /// Types of machines.
    pub machines: Vec<MachineType>,
    /// Types of GPUs.
    pub accelerators: Vec<AcceleratorType>,
}

/// What the zones sell, by their names.
pub type Catalogue = BTreeMap<String, Sold>;

/// The offers.
pub fn offers(catalogue: &Catalogue, settings: &Settings) -> Vec<Offer> {
    let mut offers = Vec::new();
    for (zone, sold) in catalogue.iter().filter(|(zone, _)| settings.offers(zone)) {
        let all = built_in(sold).chain(general(sold));
        offers.extend(all.map(|(kind, machine, gpus)| offer(&kind, machine, gpus, zone, settings)));
    }
    offers
}

fn offer(kind: &Kind, machine: &MachineType, gpus: Accelerators, zone: &str, settings: &Settings) -> Offer {
    let instance_type = kind.to_string();
    let price = |market| prices::price(&settings.prices, &instance_type, zone, market);
    Offer {
        id: hardware::offer_id(&instance_type, zone, Some(settings.zone())),
        region: zone.to_owned(),
        accelerators: Some(gpus),
        vcpus: f64::from(machine.guest_cpus),
        memory_gb: f64::from(machine.memory_mb) / 1024.0 * GB_IN_GIB,
        // Disks are sold freely.
        disk_gb: None,
        architecture: Architecture::Amd64,
        on_demand: price(Market::OnDemand),
        spot: price(Market::Spot),
        // Only an order tells.
        availability: Availability::Unknown,
        connected: true,
        rate_as_of: None,
        instance_type,
    }
}

/// What an order of a machine names, where it can be ordered with the default image: that is of this architecture. An
/// order is refused whose type has another form.
fn ordered(machine: &MachineType) -> Option<Kind> {
    let is_sold = machine.architecture.as_deref() != Some("ARM64") && !is_over(&machine.deprecated);
    Kind::parse(&machine.name).filter(|kind| is_sold && kind.added.is_none())
}

/// Whether Google sells something no longer.
fn is_over(deprecated: &Value) -> bool {
    matches!(deprecated["state"].as_str(), Some("OBSOLETE" | "DELETED"))
}

/// Machines of a zone to which GPUs belong.
fn built_in(sold: &Sold) -> impl Iterator<Item = (Kind, &MachineType, Accelerators)> {
    sold.machines.iter().filter_map(|machine| {
        let own = machine.accelerators.first()?;
        let gpus = gpus(&own.guest_accelerator_type, own.guest_accelerator_count)?;
        Some((ordered(machine)?, machine, gpus))
    })
}

/// General machines of a zone with GPUs added.
fn general(sold: &Sold) -> impl Iterator<Item = (Kind, &MachineType, Accelerators)> {
    let can_be_added =
        |card: &&AcceleratorType| ADDED.contains(&card.name.as_str()) && !is_over(&card.deprecated);
    let cards = sold.accelerators.iter().filter(can_be_added);
    cards.flat_map(move |card| {
        let fits = move |(count, _): &&(u32, &str)| *count <= card.maximum_cards_per_instance;
        GENERAL.iter().filter(fits).filter_map(move |(count, name)| {
            let machine = sold.machines.iter().find(|machine| machine.name == *name)?;
            let mut kind = ordered(machine)?;
            kind.added = Some((card.name.clone(), *count));
            Some((kind, machine, gpus(&card.name, *count)?))
        })
    })
}

/// So many GPUs of a type; `None` where it is none of NVIDIA's, as TPUs are.
fn gpus(name: &str, count: u32) -> Option<Accelerators> {
    let model = name.strip_prefix("nvidia-")?;
    // What the names leave out.
    let more = match model {
        "tesla-a100" => " SXM 40GB",
        "b200" => " SXM 180GB",
        _ if ["a100-", "h100-", "h200-", "tesla-v100"]
            .iter()
            .any(|start| model.starts_with(start)) =>
        {
            " SXM"
        }
        _ => "",
    };
    let text = model.replace("-mega", "").replace('-', " ");
    hardware::accelerators(&format!("{text}{more}"), f64::from(count), None)
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
