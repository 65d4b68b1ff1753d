//! Makes offers: each flavor with GPUs, in its region, on the one market that it is sold on. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use skyward_core::{
    Market, Usd,
    offer::{Availability, Offer},
};
use skyward_provider_kit::{Amount, hardware, mentions, time};

use super::{
    config::Settings,
    wire::{Flavor, Group, Price},
};

/// End of the models of GPUs that are sold on the spot market.
const SPOT: &str = "-spot";
/// Words in the price book about the public address of a machine.
const ADDRESS: &[&str] = &["publicip", "public ip", "public-ip", "public_ip", "floating"];
/// The label of flavors with the fast network.
const OPTIMISED: &str = "network_optimised";

/// What is sold, and for how much.
#[derive(Debug)]
pub struct Catalogue {
    flavors: Vec<Flavor>,
    /// What an hour of each resource costs, by its name in lower case.
    prices: BTreeMap<String, Amount>,
}

impl Catalogue {
    /// From the groups of flavors and the entries of the price book that hold now, of each name the dearest.
    pub fn new(groups: Vec<Group<Flavor>>, mut book: Vec<Price>, now: Timestamp) -> Self {
        book.retain(|entry| holds(entry, now));
        // The last one of a name stays.
        book.sort_by_key(|entry| entry.value);
        let price = |entry: Price| Some((entry.name.to_lowercase(), entry.value?));
        Self {
            flavors: groups.into_iter().flat_map(|group| group.flavors).collect(),
            prices: book.into_iter().filter_map(price).collect(),
        }
    }

    /// Price of a flavor of a region in USD per hour on this market; `None` where it is not sold there.
    pub fn sold(&self, name: &str, region: &str, market: Market) -> Option<Usd> {
        let mut all = self.flavors.iter();
        let flavor = all.find(|flavor| flavor.name == name && flavor.region_name == region)?;
        self.price_on(market, flavor)
    }

    fn price_on(&self, market: Market, flavor: &Flavor) -> Option<Usd> {
        let gpu = flavor.gpu.as_deref()?;
        let is_sold = is_spot(gpu) == (market == Market::Spot);
        self.price(gpu, flavor.gpu_count?).filter(|_| is_sold)
    }

    /// Price of a machine with so many of these GPUs in USD per hour, with that of its public address.
    pub fn price(&self, gpu: &str, count: u32) -> Option<Usd> {
        let of = |name: &str| {
            let found = self.prices.get(&name.to_lowercase());
            found.filter(|amount| amount.usd() > Usd::ZERO)
        };
        // A spot machine costs no more than one on demand.
        let each = of(gpu).or_else(|| of(on_demand(gpu)))?;
        let mut all = self.prices.iter();
        let address = all.find(|(name, _)| mentions(name, ADDRESS));
        let address = address.map_or_else(Amount::default, |(_, amount)| *amount);
        let whole = each.0.checked_mul(count.into())?.checked_add(address.0)?;
        Some(Amount(whole).usd()).filter(|price| *price > Usd::ZERO)
    }
}

/// Whether a price holds at this time.
fn holds(entry: &Price, now: Timestamp) -> bool {
    let [start, end] = [&entry.start_time, &entry.end_time].map(|text| time(text.as_deref()));
    start.is_none_or(|at| at <= now) && end.is_none_or(|at| now < at)
}

/// Whether GPUs of this model are sold on the spot market.
pub fn is_spot(gpu: &str) -> bool {
    gpu.to_ascii_lowercase().ends_with(SPOT)
}

/// The same model on demand.
fn on_demand(gpu: &str) -> &str {
    let end = gpu.len().saturating_sub(SPOT.len());
    gpu.get(..end).filter(|_| is_spot(gpu)).unwrap_or(gpu)
}

/// Whether a flavor has the fast network.
fn is_optimised(flavor: &Flavor) -> bool {
    let mut labels = flavor.labels.as_array().into_iter().flatten();
    labels.any(|label| label["label"] == OPTIMISED || *label == OPTIMISED)
}

/// The offers.
pub fn offers(catalogue: &Catalogue, settings: &Settings) -> Vec<Offer> {
    let fast = settings.network_optimised();
    let is_offered =
        |flavor: &&Flavor| settings.offers(&flavor.region_name) && (!fast || is_optimised(flavor));
    let offered = catalogue.flavors.iter().filter(is_offered);
    offered.filter_map(|flavor| offer(flavor, catalogue)).collect()
}

/// The offer of a flavor; none for one without GPUs.
fn offer(flavor: &Flavor, catalogue: &Catalogue) -> Option<Offer> {
    let gpu = flavor.gpu.as_deref()?;
    let gpus = hardware::accelerators(on_demand(gpu), f64::from(flavor.gpu_count?), None)?;
    Some(Offer {
        id: hardware::offer_id(&flavor.name, &flavor.region_name, None),
        instance_type: flavor.name.clone(),
        region: flavor.region_name.clone(),
        architecture: hardware::architecture([gpu]),
        accelerators: Some(gpus),
        vcpus: flavor.cpu,
        memory_gb: flavor.ram,
        // The ephemeral disk beside it is not counted.
        disk_gb: Some(flavor.disk),
        on_demand: catalogue.price_on(Market::OnDemand, flavor),
        spot: catalogue.price_on(Market::Spot, flavor),
        availability: flavor.stock_available.map_or(Availability::Unknown, Into::into),
        connected: true,
        rate_as_of: None,
    })
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
