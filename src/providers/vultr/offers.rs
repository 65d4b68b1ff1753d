//! Makes offers: each plan in each of its regions. Pure.

use std::collections::{BTreeMap, BTreeSet};

use rust_decimal::prelude::ToPrimitive as _;
use skyward_core::{
    Usd, accelerator,
    offer::{Accelerators, Offer},
};
use skyward_provider_kit::{
    Amount,
    hardware::{self, GB_IN_GIB},
};

use super::{
    config::{Mode, Settings},
    wire::Plan,
};

/// Ids of the plans that each region has now.
pub type Stock = BTreeMap<String, BTreeSet<String>>;

/// The offers. Where prices are equal the first by name is taken: one of the preferred region.
pub fn offers(plans: &[Plan], stock: &Stock, settings: &Settings) -> Vec<Offer> {
    let of = |plan: &Plan, region: &String| offer(plan, region, stock, settings);
    plans
        .iter()
        .filter(|plan| plan.mode == settings.mode())
        .flat_map(|plan| plan.locations.iter().map(move |region| of(plan, region)))
        .collect()
}

fn offer(plan: &Plan, region: &str, stock: &Stock, settings: &Settings) -> Offer {
    let in_stock = stock.get(region).is_some_and(|plans| plans.contains(&plan.id));
    let texts = [plan.gpu_type.as_deref(), plan.cpu_model.as_deref()];
    Offer {
        id: hardware::offer_id(&plan.id, region, Some(settings.region())),
        instance_type: plan.id.clone(),
        region: region.to_owned(),
        accelerators: gpus(plan),
        vcpus: f64::from(plan.vcpu_count),
        memory_gb: f64::from(plan.ram) / 1024.0 * GB_IN_GIB,
        disk_gb: plan.disk.0.to_f64(),
        architecture: hardware::architecture(texts.into_iter().flatten().chain([plan.id.as_str()])),
        on_demand: price(plan),
        spot: None,
        availability: in_stock.into(),
        connected: plan.mode == Mode::Cloud,
        rate_as_of: None,
    }
}

/// Price in USD per hour. Where a plan has only that of a month: a month is billed as at most 730
/// hours of a machine with GPUs and 672 hours of any other server. 0 means no price.
pub fn price(plan: &Plan) -> Option<Usd> {
    let hours = if plan.mode == Mode::Cloud { 730 } else { 672 };
    let monthly = || (plan.monthly_cost.usd() / hours).round_dp(4);
    let price = plan.hourly_cost.map_or_else(monthly, Amount::usd);
    (!price.is_zero()).then_some(price)
}

/// The GPUs of a plan; parts of one have their part of its memory. Bare metal may name them in the
/// id of the plan alone (`vbm-112c-2048gb-8-h100-gpu`).
fn gpus(plan: &Plan) -> Option<Accelerators> {
    let Some(name) = &plan.gpu_type else {
        let named = plan.id.splitn(4, '-').nth(3)?;
        accelerator::model(named)?;
        return hardware::accelerators(named, accelerator::parse(named).count.unwrap_or(1.0), None);
    };
    let Some(total) = plan.gpu_vram_gb else {
        return hardware::accelerators(name, 1.0, None);
    };
    let sizes = accelerator::model(name).map_or(&[][..], |model| model.memory_gb);
    let whole = |size: &f64| total >= *size && total % size == 0.0;
    let count = match (sizes.iter().find(|size| whole(size)), sizes.first()) {
        (Some(size), _) => total / size,
        (None, Some(size)) if total < *size => total / size,
        (None, Some(size)) => (total / size).round(),
        (None, None) => 1.0,
    };
    hardware::accelerators(name, count, None).map(|gpus| Accelerators {
        memory_gb: Some(total / count.max(1.0)),
        ..gpus
    })
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
