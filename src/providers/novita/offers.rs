//! Makes offers: each product in each number of GPUs, on the markets that it is sold on. Pure.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use skyward_core::{
    Market, Usd,
    offer::{Availability, Offer},
};
use skyward_provider_kit::{Amount, dns_label, hardware};

use super::wire::{Product, amount, number};

/// Numbers of GPUs in one machine that are offered: of each it is asked what can be had.
pub const COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Prices are in parts of a dollar, this many of them.
const PARTS: Decimal = Decimal::from_parts(100_000, 0, 0, false, 0);

/// Number of GPUs and id of the product in the text that offers and orders carry: `2x prod-4090`.
pub fn kind(text: &str) -> Option<(u32, &str)> {
    let (count, product) = text.split_once("x ")?;
    Some((count.parse().ok()?, product))
}

/// What is sold, by the number of GPUs that was asked for.
#[derive(Debug, Default)]
pub struct Catalogue(BTreeMap<u32, Vec<Product>>);

impl Catalogue {
    /// From what was told for each of [`COUNTS`].
    pub fn new(told: [Vec<Product>; 4]) -> Self {
        Self(COUNTS.into_iter().zip(told).collect())
    }

    /// What an order with this text is for, and its price in USD per hour, where it is sold on this market.
    pub fn sold(&self, text: &str, market: Market) -> Option<((u32, &Product), Usd)> {
        let (count, id) = kind(text)?;
        let product = self.0.get(&count)?.iter().find(|product| product.id == id)?;
        Some(((count, product), price(product, count, market)?))
    }

    /// Price of a machine with so many GPUs of this product. The price of a GPU is the same in each number, so a
    /// product that cannot be had any more in one number has its price in another.
    pub fn price(&self, product: &str, count: u32, market: Market) -> Option<Usd> {
        let mut products = self.0.values().flatten();
        let product = products.find(|one| one.id == product)?;
        price(product, count, market)
    }

    /// The offers.
    pub fn offers(&self) -> Vec<Offer> {
        let each = |(count, products): (&u32, &Vec<Product>)| -> Vec<Offer> {
            products.iter().filter_map(|one| offer(one, *count)).collect()
        };
        self.0.iter().flat_map(each).collect()
    }
}

/// Price of so many GPUs of a product in USD per hour, where it is sold on this market.
fn price(product: &Product, count: u32, market: Market) -> Option<Usd> {
    let methods = product.billing_methods.as_array();
    let sells = |market: &str| methods.is_some_and(|methods| methods.iter().any(|method| method == market));
    let told = match market {
        Market::OnDemand if methods.is_none() || sells("onDemand") => &product.price,
        Market::Spot if sells("spot") => &product.spot_price,
        Market::OnDemand | Market::Spot => return None,
    };
    let whole = amount(told)?.0.checked_mul(count.into())?.checked_div(PARTS)?;
    Some(Amount(whole).usd()).filter(|price| *price > Usd::ZERO)
}

/// The offer of a product with so many GPUs; none where it has no price.
fn offer(product: &Product, count: u32) -> Option<Offer> {
    let kind = format!("{count}x {}", product.id);
    // What stands in brackets is advertisement.
    let text = product.name.split('(').next().unwrap_or_default();
    let each = |value| number(value).map_or(0.0, |each| f64::from(each) * f64::from(count));
    let is_there = product.available_deploy != Some(false) && product.inventory_state != "none";
    let [on_demand, spot] = [Market::OnDemand, Market::Spot].map(|market| price(product, count, market));
    on_demand.or(spot)?;
    Some(Offer {
        id: dns_label(&kind),
        instance_type: kind,
        // Novita chooses the cluster, within the settings.
        region: String::new(),
        accelerators: hardware::accelerators(text, f64::from(count), None),
        vcpus: each(&product.cpu_per_gpu),
        memory_gb: each(&product.memory_per_gpu),
        disk_gb: number(&product.most_disk).filter(|most| *most > 0).map(f64::from),
        architecture: hardware::architecture([text]),
        on_demand,
        spot,
        availability: Availability::from(is_there),
        connected: false,
        rate_as_of: None,
    })
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
