//! Makes offers: so many GPUs of one model in each region. Pure.
//!
//! What is sold are groups of servers (`server_meta`), of which a region may have several with the same GPUs. Counts in
//! them are numbers, texts or nothing.

use std::collections::BTreeMap;

use serde_json::Value;
use skyward_core::{Market, Offer, Usd, offer::Accelerators};
use skyward_provider_kit::{Amount, currency::ExchangeRate, hardware, price, whole};

use super::{
    config::{EU1, REGIONS, Region, Settings},
    wire::VM,
};

/// Most bytes of the name of a model.
const MODEL: usize = 64;
/// Most GPUs of one machine.
const MOST: u32 = 8;
/// The GPUs that machines in EU1 have, one each.
const IN_EU1: [&str; 2] = ["H100", "H200"];

/// What is sold, and for how much.
pub struct Catalogue {
    /// The groups of servers.
    pub servers: Vec<Value>,
    /// Whether their prices are in rupees, else in dollars.
    pub in_rupees: bool,
    /// What one rupee costs.
    pub rate: Option<ExchangeRate>,
}

/// Number and model of the GPUs of a type of machines, such as `2x L4`.
pub fn gpus(kind: &str) -> Option<(u32, &str)> {
    let (count, gpu) = kind.split_once("x ")?;
    let count = count.parse().ok();
    Some((count.filter(|count| (1..=MOST).contains(count))?, gpu))
}

/// Whether an order can have so many GPUs of a group. One on demand can have those of spot machines too.
fn has(group: &Value, market: Market, count: u32) -> bool {
    // JarvisLabs' client takes one that is null for none.
    let all = group.get("effective_num_free_devices");
    let told = all.filter(|_| market == Market::OnDemand);
    let told = told.unwrap_or(&group["num_free_devices"]);
    whole(told).is_some_and(|free| free >= count.into())
}

impl Catalogue {
    /// The groups that take machines of this template, by their model of GPU and their region.
    fn groups(&self, template: &str) -> BTreeMap<(&str, &str), Vec<&Value>> {
        let workload = if template == VM { VM } else { "container" };
        let mut groups: BTreeMap<_, Vec<&Value>> = BTreeMap::new();
        for group in &self.servers {
            let only = group["workload_type"].as_str();
            let is_it = only.is_none_or(|only| only == workload);
            let gpu = group["gpu_type"].as_str();
            let gpu = gpu.filter(|gpu| is_it && gpu.len() <= MODEL);
            if let Some(of) = gpu.zip(group["region"].as_str()) {
                groups.entry(of).or_default().push(group);
            }
        }
        groups
    }

    /// Price of so many GPUs of these groups in USD per hour: that of the dearest, since an order cannot choose one.
    fn dearest(&self, groups: &[&Value], count: u32, market: Market) -> Option<Usd> {
        let field = match market {
            Market::OnDemand => "price_per_hour",
            Market::Spot => "spot_price",
        };
        let each = groups.iter().filter_map(|group| price(&group[field]));
        let whole = Amount(each.max()?.0.checked_mul(count.into())?);
        let in_dollars = Some(whole.usd()).filter(|_| !self.in_rupees);
        in_dollars.or_else(|| self.rate.as_ref()?.in_usd(whole))
    }

    /// Price of a machine with so many of these GPUs in a region.
    pub fn price(&self, of: ((u32, &str), &Region), market: Market, template: &str) -> Option<Usd> {
        let ((count, gpu), region) = of;
        self.dearest(self.groups(template).get(&(gpu, region.id))?, count, market)
    }
}

/// The offers.
pub fn offers(catalogue: &Catalogue, settings: &Settings) -> Vec<Offer> {
    let is_vm = settings.template() == VM;
    let only = settings.region.as_deref();
    let mut offers = Vec::new();
    for ((gpu, id), groups) in catalogue.groups(settings.template()) {
        let is_it = |region: &&Region| region.id == id && only.is_none_or(|only| only == region.code);
        for region in REGIONS.iter().filter(is_it) {
            let in_europe = u32::from(IN_EU1.contains(&gpu));
            let most = if region.code == EU1 { in_europe } else { MOST };
            let of = |count| offer(catalogue, ((count, gpu), region), &groups, is_vm);
            offers.extend((1..=most).filter_map(of));
        }
    }
    offers
}

/// The offer of so many GPUs of these groups. One GPU is offered also while none is free.
fn offer(catalogue: &Catalogue, of: ((u32, &str), &Region), groups: &[&Value], is_vm: bool) -> Option<Offer> {
    let ((count, gpu), region) = of;
    let is_free = |market| groups.iter().any(|group| has(group, market, count));
    let is_available = is_free(Market::OnDemand) || is_free(Market::Spot);
    let price = |market| {
        let price = catalogue.dearest(groups, count, market);
        price.filter(|_| !is_available || is_free(market))
    };
    // What the smallest has.
    let all = |field: &str| {
        let each = groups.iter().filter_map(|group| whole(&group[field]));
        let each = each.min().and_then(|each| u32::try_from(each).ok());
        f64::from(each.unwrap_or_default()) * f64::from(count)
    };
    let kind = format!("{count}x {gpu}");
    let rate = catalogue.rate.as_ref().filter(|_| catalogue.in_rupees);
    (is_available || count == 1).then(|| Offer {
        id: hardware::offer_id(&kind, region.code, None),
        region: region.code.to_owned(),
        architecture: hardware::architecture([gpu]),
        accelerators: accelerators(groups, gpu, count),
        vcpus: all("cpus_per_gpu"),
        memory_gb: all("ram_per_gpu"),
        disk_gb: None,
        on_demand: price(Market::OnDemand),
        // Virtual machines are not sold there.
        spot: price(Market::Spot).filter(|_| !is_vm),
        availability: is_available.into(),
        connected: false,
        rate_as_of: rate.map(|rate| rate.as_of),
        instance_type: kind,
    })
}

/// The GPUs, whose memory stands beside their model: that of the smallest, since there are A100 of 40 and of 80 GB.
fn accelerators(groups: &[&Value], gpu: &str, count: u32) -> Option<Accelerators> {
    let memory = |group: &&Value| {
        let told = group["vram"].to_string();
        let digits = told.trim_matches(|c: char| !c.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|memory| *memory > 0)
    };
    let memory = groups.iter().filter_map(memory).min();
    hardware::accelerators(gpu, count.into(), memory.map(f64::from))
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
