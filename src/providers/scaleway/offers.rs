//! Makes offers: each kind of server with GPUs in each zone. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use skyward_core::{
    Usd, accelerator,
    offer::{Accelerators, Offer},
};
use skyward_provider_kit::{currency::ExchangeRate, hardware};

use super::{config::Settings, wire::Kind};

/// Kinds of servers by zone and name.
pub type Kinds = BTreeMap<&'static str, BTreeMap<String, Kind>>;
/// Names of kinds that a zone lacks now.
pub type Shortages = BTreeMap<&'static str, BTreeSet<String>>;

/// The names of the kinds of which there are none now.
pub fn shortages(stock: Vec<(String, Value)>) -> BTreeSet<String> {
    let lacking = stock
        .into_iter()
        .filter(|(_, stock)| stock["availability"] == "shortage");
    lacking.map(|(name, _)| name).collect()
}

/// The offers.
pub fn offers(kinds: &Kinds, shortages: &Shortages, settings: &Settings) -> Vec<Offer> {
    let mut offers = Vec::new();
    for (zone, kinds) in kinds {
        if settings.zone.as_deref().is_some_and(|only| only != *zone) {
            continue;
        }
        for (name, kind) in kinds.iter().filter(|(_, kind)| kind.end_of_service != Some(true)) {
            let Some(gpus) = gpus(name, kind) else { continue };
            let lacks = shortages.get(zone).is_none_or(|names| names.contains(name));
            offers.push(Offer {
                id: hardware::offer_id(name, zone, None),
                instance_type: name.clone(),
                region: (*zone).to_owned(),
                vcpus: f64::from(kind.ncpus),
                memory_gb: kind.ram as f64 / 1e9,
                disk_gb: None,
                architecture: hardware::architecture([gpus.name.as_str()]),
                accelerators: Some(gpus),
                on_demand: price(kind, settings.exchange_rate.as_ref()),
                spot: None,
                availability: (!lacks).into(),
                // Their private network is nothing that an order joins.
                connected: false,
                rate_as_of: settings.exchange_rate.as_ref().map(|rate| rate.as_of),
            });
        }
    }
    offers
}

/// Price in USD per hour; none without a rate, and 0 means no price.
pub fn price(kind: &Kind, rate: Option<&ExchangeRate>) -> Option<Usd> {
    rate?.in_usd(kind.hourly_price?).filter(|price| !price.is_zero())
}

/// The GPUs of a kind that can be ordered, whose name, memory and form factor the name of a kind has too (`H100-SXM-8-80G`).
fn gpus(kind: &str, info: &Kind) -> Option<Accelerators> {
    // The image is one of this architecture.
    let count = f64::from(info.gpu.filter(|_| info.arch.as_deref() == Some("x86_64"))?);
    // The words before the count: `H100-SXM` of `H100-SXM-8-80G`.
    let words = kind.split('-').take_while(|word| word.parse::<u32>().is_err());
    let named = words.collect::<Vec<_>>().join(" ");
    let told = info.gpu_info["gpu_name"].as_str().unwrap_or(&named);
    let text = accelerator::model(&named).map_or(told, |_| named.as_str());
    let memory = info.gpu_info["gpu_memory"].as_f64();
    let listed = memory.map(|bytes| accelerator::nominal_memory_gb(text, bytes / 1_048_576.0));
    hardware::accelerators(text, count, listed)
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
