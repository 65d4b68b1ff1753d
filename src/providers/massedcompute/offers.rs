//! Makes offers: each product of the inventory, on the one market that it is sold on. Pure.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use skyward_core::{
    Market, Usd,
    offer::{Accelerators, Availability, Offer},
};
use skyward_provider_kit::{
    dns_label,
    hardware::{self, GB_IN_GIB},
};

use super::wire::{Inventory, Product};

/// Part of the names of products that are sold on the spot market.
const SPOT: &str = "_spot";
/// Parts of a product's name that are not about its GPUs.
const OTHER: [&str; 3] = [SPOT, "_low_ram", "_high_ram"];

/// Whether a product is sold on the spot market.
pub fn is_spot(name: &str) -> bool {
    name.to_ascii_lowercase().contains(SPOT)
}

/// Products by their names without blanks around them, with the names as Massed Compute writes them. Of two with the
/// same name that in stock counts.
fn products(inventory: &Inventory) -> BTreeMap<&str, (&str, &Product)> {
    let mut products = BTreeMap::new();
    for (written, product) in inventory {
        let found = products
            .entry(written.trim())
            .or_insert((written.as_str(), product));
        if stock(found.1) != Availability::Yes {
            *found = (written.as_str(), product);
        }
    }
    products
}

/// The name of a product as an order must have it, with its price in USD per hour on this market; `None` where it is
/// not sold there now.
pub fn sold(inventory: &Inventory, name: &str, market: Market) -> Option<(String, Usd)> {
    let products = products(inventory);
    let (written, product) = products.get(name)?;
    let is_sold = stock(product) != Availability::No;
    let price = price_on(market, name, product).filter(|_| is_sold)?;
    Some(((*written).to_owned(), price))
}

fn price_on(market: Market, name: &str, product: &Product) -> Option<Usd> {
    let cents = product.instance_type.price_cents_per_hour;
    let price = Usd::from(cents.0 / Decimal::ONE_HUNDRED);
    let is_sold = is_spot(name) == (market == Market::Spot);
    Some(price).filter(|price| is_sold && *price > Usd::ZERO)
}

fn stock(product: &Product) -> Availability {
    let regions = product.regions_with_capacity_available.as_ref();
    if product.capacity_available <= 0.0 {
        Availability::No
    } else if regions.is_some_and(Vec::is_empty) {
        // There are some, and no region has any.
        Availability::Unknown
    } else {
        Availability::Yes
    }
}

/// The GPUs in a name such as `gpu_8x_h100_spot`.
fn gpus(name: &str) -> Option<Accelerators> {
    let name = name.to_ascii_lowercase();
    let (count, model) = name.strip_prefix("gpu_")?.split_once("x_")?;
    let count: u16 = count.parse().ok()?;
    let model = OTHER
        .iter()
        .fold(model.to_owned(), |model, part| model.replace(part, ""));
    // A DGX is built of modules.
    let model = model.replace("dgx", "sxm").replace('_', " ");
    hardware::accelerators(&model, count.into(), None).filter(|gpus| !gpus.name.is_empty())
}

/// The offers. What cannot be told from its name is left out.
pub fn offers(inventory: &Inventory) -> Vec<Offer> {
    let products = products(inventory);
    let offers = products.iter().map(|(name, (_, product))| offer(name, product));
    offers.flatten().collect()
}

fn offer(name: &str, product: &Product) -> Option<Offer> {
    let accelerators = gpus(name);
    if accelerators.is_none() && !name.to_ascii_lowercase().starts_with("cpu_") {
        return None;
    }
    let specs = &product.instance_type.specs;
    Some(Offer {
        id: dns_label(name),
        instance_type: name.to_owned(),
        // Massed Compute chooses the place of a machine.
        region: String::new(),
        architecture: hardware::architecture([name]),
        accelerators,
        vcpus: specs.vcpu_count,
        memory_gb: specs.memory_gib * GB_IN_GIB,
        disk_gb: Some(specs.storage_gb),
        on_demand: price_on(Market::OnDemand, name, product),
        spot: price_on(Market::Spot, name, product),
        availability: stock(product),
        connected: true,
        rate_as_of: None,
    })
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
