//! Makes offers: each model of GPU at each place, in each number that one host has free, with the vCPUs, the memory and
//! the disk around it, which TensorDock sells freely. Pure.

use skyward_api::shared::whole_gb;
use skyward_core::{Offer, Order, Usd, offer::Availability};
use skyward_provider_kit::{digest, dns_label, hardware};

use super::{
    config::Settings,
    wire::{Gpu, Location},
};

/// Most GPUs of one machine that are offered.
const MOST_GPUS: u32 = 16;
/// vCPUs for each GPU, where the settings name none, and the step in which they are sold.
const VCPUS: (u32, u32) = (4, 2);
/// GB of memory for each GPU, where the settings name none, and the step in which they are sold.
const RAM: (u32, u32) = (16, 16);
/// The smallest disk in GB, and the step in which disks are sold.
const STORAGE: (u32, u32) = (100, 50);

/// The hardware of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Id of its place.
    pub location: String,
    /// Name of its GPUs.
    pub gpu: String,
    /// How many.
    pub count: u32,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory in GB.
    pub ram_gb: u32,
    /// Disk in GB.
    pub storage_gb: u32,
    /// USD for an hour of all of it.
    pub price: Usd,
}

/// The name of a place: its country, its city, and some digits, since a city may have two.
pub fn region(location: &Location) -> String {
    let (country, city) = (&location.country, &location.city);
    dns_label(&format!("{country} {city} {}", digest(&location.id, 6)))
}

/// Whether the settings choose a place.
fn is_chosen(location: &Location, settings: &Settings) -> bool {
    let is_at = |wanted: &String| {
        let label = dns_label(wanted);
        let wanted = if label == "us" { "united-states" } else { &label };
        let region = region(location);
        let rest = region.strip_prefix(wanted);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    settings.location.as_ref().is_none_or(is_at)
        && settings.tier.is_none_or(|tier| location.tier == Some(tier))
}

/// Whether machines with such GPUs can be reached: only ports of an address that others share are ordered.
fn is_sold(gpu: &Gpu) -> bool {
    gpu.network_features["port_forwarding_available"].as_bool() != Some(false)
        && (1..=64).contains(&gpu.name.len())
        && gpu.price_per_hr.usd() > Usd::ZERO
}

/// So much as is set, else for each of the GPUs or what there is of it, and at least so much as is asked for, in whole
/// steps; `None` where there is less.
fn size(set: Option<u32>, asked: u32, sold: (u32, u32), count: u32, most: Option<f64>) -> Option<u32> {
    let (each, step) = sold;
    let most = most.map_or(u32::MAX, |most| most as u32) / step * step;
    let wanted = set.unwrap_or_else(|| each.saturating_mul(count).min(most).max(each));
    let amount = wanted.max(asked).max(1).checked_next_multiple_of(step)?;
    Some(amount).filter(|amount| *amount <= most)
}

/// The hardware of a machine with so many of these GPUs, with all that the order asks for; `None` where the place has
/// too little, or a part has no price.
fn shape(location: &Location, gpu: &Gpu, count: u32, settings: &Settings, order: &Order) -> Option<Shape> {
    let most = |name: &str| gpu.resources.get(name).copied();
    let rate = |name: &str| gpu.pricing.get(name).filter(|rate| rate.usd() >= Usd::ZERO);
    let asked = order.vcpus.map_or(0, |vcpus| vcpus.ceil() as u32);
    let vcpus = size(settings.min_vcpus, asked, VCPUS, count, most("max_vcpus"))?;
    let asked = order.memory_bytes.map_or(0, whole_gb);
    let ram_gb = size(settings.min_ram_gb(), asked, RAM, count, most("max_ram_gb"))?;
    let disk = order.disk_bytes.map_or_else(|| settings.storage_gb(), whole_gb);
    let storage_gb = size(Some(disk), STORAGE.0, STORAGE, 1, most("max_storage_gb"))?;
    let around = [
        rate("per_vcpu_hr")?.usd() * vcpus,
        rate("per_gb_ram_hr")?.usd() * ram_gb,
        rate("per_gb_storage_hr")?.usd() * storage_gb,
    ];
    Some(Shape {
        location: location.id.clone(),
        gpu: gpu.name.clone(),
        count,
        vcpus,
        ram_gb,
        storage_gb,
        price: gpu.price_per_hr.usd() * count + around.iter().sum::<Usd>(),
    })
}

/// The hardware that an order is for, with its price now; `None` where it is not sold any more.
pub fn sold(locations: &[Location], order: &Order, settings: &Settings) -> Option<Shape> {
    let (name, count) = order.instance_type.rsplit_once("-x")?;
    let count: u32 = count.parse().ok()?;
    let mut all = locations.iter();
    let location = all.find(|location| region(location) == order.region)?;
    let mut gpus = location.gpus().filter(is_sold);
    let gpu = gpus.find(|gpu| gpu.name == name && (1..=gpu.max_count).contains(&count))?;
    shape(location, &gpu, count, settings, order)
}

/// The offers.
pub fn offers(locations: &[Location], settings: &Settings) -> Vec<Offer> {
    let mut offers = Vec::new();
    for location in locations.iter().filter(|location| is_chosen(location, settings)) {
        for gpu in location.gpus().filter(is_sold) {
            let counts = 1..=gpu.max_count.min(MOST_GPUS);
            let shapes = counts.filter_map(|count| shape(location, &gpu, count, settings, &Order::default()));
            offers.extend(shapes.map(|shape| offer(location, &gpu, &shape)));
        }
    }
    offers
}

fn offer(location: &Location, gpu: &Gpu, shape: &Shape) -> Offer {
    let (kind, region) = (format!("{}-x{}", gpu.name, shape.count), region(location));
    // The end of a name is the memory of one: `-24gb`.
    let memory = gpu.name.rsplit('-').next().and_then(|end| end.strip_suffix("gb"));
    let memory = memory.and_then(|memory| memory.parse().ok());
    Offer {
        id: hardware::offer_id(&kind, &region, None),
        instance_type: kind,
        region,
        architecture: hardware::architecture([gpu.name.as_str()]),
        accelerators: hardware::accelerators(&gpu.name, f64::from(shape.count), memory),
        vcpus: f64::from(shape.vcpus),
        memory_gb: f64::from(shape.ram_gb),
        // The largest that can be ordered.
        disk_gb: gpu.resources.get("max_storage_gb").copied(),
        on_demand: Some(shape.price),
        spot: None,
        availability: Availability::Yes,
        connected: false,
        rate_as_of: None,
    }
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
