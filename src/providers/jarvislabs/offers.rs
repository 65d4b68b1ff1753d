//! Makes offers: so many GPUs of one model in each region. Pure.
//!
//! What is sold are groups of servers (`server_meta`), of which a region may have several with the same GPUs. Counts in
//! them are numbers, texts or nothing.

use std::collections::BTreeMap;

use serde_json::Value;
use skyward_core::{
    Market, Usd, accelerator,
    offer::{Accelerators, Offer},
};
use skyward_provider_kit::{Amount, currency::ExchangeRate, hardware, price, whole};

use super::{
    config::{Currency, EU1, REGIONS, Region, Settings},
    wire::VM,
};

/// Most bytes of the name of a model.
const MODEL: usize = 64;
/// Most GPUs of one machine.
const MOST: u32 = 8;
/// The GPUs that machines in EU1 have, one each.
const IN_EU1: [&str; 2] = ["H100", "H200"];

/// What is sold, and for how much.
#[derive(Debug)]
pub struct Catalogue {
    /// The groups of servers.
    pub servers: Vec<Value>,
    /// The currency of their prices.
    pub currency: Currency,
    /// What one rupee costs.
    pub rate: Option<ExchangeRate>,
}

/// Number and model of the GPUs of a type of machines, such as `2x L4`.
pub fn gpus(kind: &str) -> Option<(u32, &str)> {
    let (count, gpu) = kind.split_once("x ")?;
    let count = count
        .parse::<u32>()
        .ok()
        .filter(|count| (1..=MOST).contains(count))?;
    Some((count, gpu))
}

/// Whether a group takes machines of this template.
fn takes(group: &Value, template: &str) -> bool {
    let only = group["workload_type"].as_str();
    only.is_none_or(|only| only == if template == VM { VM } else { "container" })
}

/// What an hour of one GPU costs.
fn each(group: &Value, market: Market, template: &str) -> Option<Amount> {
    match market {
        Market::OnDemand => price(&group["price_per_hour"]),
        // Virtual machines are not sold there.
        Market::Spot => price(&group["spot_price"]).filter(|_| template != VM),
    }
}

/// Whether an order can have so many GPUs of a group. One on demand can have those of spot machines too.
fn has(group: &Value, market: Market, count: u32) -> bool {
    let free = whole(&group["num_free_devices"]);
    let free = match market {
        Market::OnDemand => whole(&group["effective_num_free_devices"]).or(free),
        Market::Spot => free,
    };
    free.is_some_and(|free| free >= count.into())
}

impl Catalogue {
    /// Price of so many of these GPUs in USD per hour: that of the dearest group, since an order cannot choose one.
    pub fn price(
        &self,
        (count, gpu): (u32, &str),
        region: &Region,
        market: Market,
        template: &str,
    ) -> Option<Usd> {
        let is_it = |group: &&Value| {
            group["gpu_type"] == *gpu && group["region"] == *region.id && takes(group, template)
        };
        let groups = self.servers.iter().filter(is_it);
        let each = groups.filter_map(|group| each(group, market, template)).max()?;
        let whole = Amount(each.0.checked_mul(count.into())?);
        let usd = match self.currency {
            Currency::Usd => whole.usd(),
            Currency::Inr => self.rate.as_ref()?.in_usd(whole)?,
        };
        Some(usd).filter(|usd| *usd > Usd::ZERO)
    }
}

/// The offers.
pub fn offers(catalogue: &Catalogue, settings: &Settings) -> Vec<Offer> {
    let mut models: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    let taking = catalogue.servers.iter();
    for group in taking.filter(|group| takes(group, settings.template())) {
        let gpu = group["gpu_type"].as_str().filter(|gpu| gpu.len() <= MODEL);
        if let (Some(gpu), Some(region)) = (gpu, group["region"].as_str()) {
            models.entry((gpu, region)).or_default().push(group);
        }
    }
    let mut offers = Vec::new();
    for ((gpu, id), groups) in &models {
        let mut known = REGIONS.iter();
        let Some(region) = known.find(|region| region.id == *id && settings.offers(region)) else {
            continue;
        };
        let most = match region.code {
            EU1 if IN_EU1.contains(gpu) => 1,
            EU1 => 0,
            _ => MOST,
        };
        let template = settings.template();
        offers
            .extend((1..=most).filter_map(|count| offer(catalogue, (count, *gpu), region, groups, template)));
    }
    offers
}

/// The offer of so many GPUs of these groups. One GPU is offered also while none is free.
fn offer(
    catalogue: &Catalogue,
    (count, gpu): (u32, &str),
    region: &Region,
    groups: &[&Value],
    template: &str,
) -> Option<Offer> {
    let is_free = |market| groups.iter().any(|group| has(group, market, count));
    let is_available = is_free(Market::OnDemand) || is_free(Market::Spot);
    if !is_available && count > 1 {
        return None;
    }
    let price = |market| {
        let price = catalogue.price((count, gpu), region, market, template);
        price.filter(|_| !is_available || is_free(market))
    };
    // What the smallest has.
    let all = |field: &str| {
        let each = groups.iter().filter_map(|group| whole(&group[field])).min();
        let each = u32::try_from(each.unwrap_or_default()).unwrap_or_default();
        f64::from(each) * f64::from(count)
    };
    let kind = format!("{count}x {gpu}");
    let rate = catalogue
        .rate
        .as_ref()
        .filter(|_| catalogue.currency == Currency::Inr);
    Some(Offer {
        id: hardware::offer_id(&kind, region.code, None),
        instance_type: kind,
        region: region.code.to_owned(),
        architecture: hardware::architecture([gpu]),
        accelerators: accelerators(groups, gpu, count),
        vcpus: all("cpus_per_gpu"),
        memory_gb: all("ram_per_gpu"),
        disk_gb: None,
        on_demand: price(Market::OnDemand),
        spot: price(Market::Spot),
        availability: is_available.into(),
        connected: false,
        rate_as_of: rate.map(|rate| rate.as_of),
    })
}

/// The GPUs, whose memory stands beside their model: there are A100 of 40 and of 80 GB.
fn accelerators(groups: &[&Value], gpu: &str, count: u32) -> Option<Accelerators> {
    let digits = |group: &&Value| {
        let told = group["vram"].to_string();
        let told = told.trim_matches(|c: char| !c.is_ascii_digit());
        let told = told.parse::<f64>().ok();
        told.filter(|memory| (1.0..10_000.0).contains(memory))
    };
    let memory = groups.iter().filter_map(digits).reduce(f64::min);
    let text = match (accelerator::model(gpu), memory) {
        (Some(_), Some(memory)) => format!("{gpu} {memory}GB"),
        _ => gpu.to_owned(),
    };
    hardware::accelerators(&text, count.into(), memory)
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
