//! Makes offers: each size with GPUs in each region that has it. Pure.

use skyward_core::{
    Usd,
    offer::{Accelerators, Offer},
};
use skyward_provider_kit::{
    Amount,
    hardware::{self, GB_IN_GIB},
};

use super::{config::Settings, wire::Size};

/// The offers. A region where a size is sold out is not among the regions of the size, so it has no
/// offer until it is back. Where prices are equal the first by name is taken: one of the preferred
/// region.
pub fn offers(sizes: &[Size], settings: &Settings) -> Vec<Offer> {
    sizes
        .iter()
        .filter_map(|size| Some((size, gpus(size)?)))
        .flat_map(|(size, gpus)| {
            (size.regions.iter()).map(move |region| offer(size, &gpus, region, settings))
        })
        .collect()
}

fn offer(size: &Size, gpus: &Accelerators, region: &str, settings: &Settings) -> Offer {
    Offer {
        id: hardware::offer_id(&size.slug, region, Some(settings.region())),
        instance_type: size.slug.clone(),
        region: region.to_owned(),
        accelerators: Some(gpus.clone()),
        vcpus: f64::from(size.vcpus),
        memory_gb: f64::from(size.memory) / 1024.0 * GB_IN_GIB,
        disk_gb: Some(f64::from(size.disk)),
        architecture: hardware::architecture([gpus.name.as_str()]),
        on_demand: price(Some(size.price_hourly)),
        spot: None,
        availability: size.available.into(),
        connected: true,
        rate_as_of: None,
    }
}

/// Price in USD per hour; 0 means no price. It is written as the nearest float, of which the digits after a
/// millionth say nothing.
pub fn price(hourly: Option<Amount>) -> Option<Usd> {
    let price = hourly?.usd().round_dp(6);
    (!price.is_zero()).then_some(price)
}

/// The GPUs of a size that anybody may order: some sizes are for customers with a contract. Where
/// nobody knows the model, each GPU has its part of the memory.
fn gpus(size: &Size) -> Option<Accelerators> {
    let gpus = size.gpu_info.as_ref()?;
    if size.slug.contains("contract") {
        return None;
    }
    let count = f64::from(gpus.count);
    let each = gpus.vram["amount"].as_f64().map(|all| all / count);
    hardware::accelerators(&gpus.model, count, each)
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
