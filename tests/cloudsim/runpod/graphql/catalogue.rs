//! GPUs and data centers as GraphQL shows them.

use std::collections::BTreeSet;

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use crate::core::cloud::Visit;
use crate::core::market::Market;
use crate::runpod::catalogue::{self, CUDA, at_least, number, stock_status};
use crate::runpod::wire::Tier;

/// The catalogue.
pub(super) fn gpu_types(visit: &Visit<'_>, input: &Value) -> Value {
    let wanted = input.get("id").and_then(Value::as_str);
    visit
        .world
        .types
        .values()
        .filter(|gpu| gpu.gpus > 0 && wanted.is_none_or(|wanted| wanted == gpu.name))
        .map(|gpu| {
            let (secure, community) = (catalogue::most(gpu, Tier::Secure), catalogue::most(gpu, Tier::Community));
            let price = |tier, market| catalogue::price(gpu, tier, market).map(number);
            json!({
                "id": gpu.name, "displayName": gpu.gpu, "memoryInGb": gpu.gpu_memory_gb,
                "secureCloud": secure > 0, "communityCloud": community > 0, "maxGpuCount": secure.max(community),
                "maxGpuCountSecureCloud": secure, "maxGpuCountCommunityCloud": community,
                "manufacturer": if gpu.name.starts_with("AMD") { "AMD" } else { "Nvidia" }, "cudaCores": 0,
                "securePrice": price(Tier::Secure, Market::OnDemand),
                "communityPrice": price(Tier::Community, Market::OnDemand),
                "secureSpotPrice": price(Tier::Secure, Market::Spot),
                "communitySpotPrice": price(Tier::Community, Market::Spot),
                "minPodGpuCount": 1, "nodeGroupDatacenters": [], "lowestPrice": null,
            })
        })
        .collect()
}

/// The data centers, with the stock of each GPU there.
pub(super) fn data_centers(visit: &Visit<'_>) -> Value {
    let gpus = |center: &str| -> Vec<Value> {
        let here = [center.to_owned()];
        let gpus = visit.world.types.values().filter(|gpu| gpu.gpus > 0);
        gpus.map(|gpu| {
            let level = catalogue::level(visit.world, &gpu.name, &here, Market::OnDemand);
            json!({"gpuTypeId": gpu.name, "displayName": gpu.gpu, "stockStatus": stock_status(level)})
        })
        .collect()
    };
    catalogue::DATA_CENTERS
        .iter()
        .map(|(id, name, _, country, _)| {
            json!({
                "id": id, "name": name, "location": country, "listed": true, "gpuAvailability": gpus(id),
            })
        })
        .collect()
}

/// The countries of the data centers.
pub(super) fn country_codes() -> Value {
    let centers = catalogue::DATA_CENTERS.iter();
    let codes: BTreeSet<&str> = centers.map(|(_, _, _, country, _)| *country).collect();
    json!(codes)
}

/// `lowestPrice` of a GPU type: for one GPU, over the clouds that are asked for.
pub(super) fn lowest_price(visit: &Visit<'_>, gpu: &Map<String, Value>, input: &Value) -> Value {
    let found = gpu
        .get("id")
        .and_then(Value::as_str)
        .and_then(|id| visit.world.types.get(id));
    let Some(gpu) = found else { return Value::Null };
    let count = input.get("gpuCount").and_then(Value::as_u64).unwrap_or(1);
    let cuda = input.get("minCudaVersion").and_then(Value::as_str);
    let tiers: &[Tier] = match input.get("secureCloud").and_then(Value::as_bool) {
        Some(true) => &[Tier::Secure],
        Some(false) => &[Tier::Community],
        None => &[Tier::Secure, Tier::Community],
    };
    let center = input.get("dataCenterId").and_then(Value::as_str);
    let country = input.get("countryCode").and_then(Value::as_str);
    let here = |tier: Tier| -> Vec<String> {
        let mut places = catalogue::places(visit.world, tier);
        places.retain(|place| {
            center.is_none_or(|center| place == center)
                && country.is_none_or(|country| catalogue::country(place) == country)
        });
        places
    };
    let possible = cuda.is_none_or(|least| CUDA.iter().any(|version| at_least(version, least)));
    let cheapest = |market: Market| -> Option<Decimal> {
        tiers
            .iter()
            .filter(|tier| possible && count <= catalogue::most(gpu, **tier))
            .filter(|tier| {
                let places = here(**tier);
                catalogue::level(visit.world, &gpu.name, &places, market) != "NONE"
            })
            .filter_map(|tier| catalogue::price(gpu, *tier, market))
            .min()
    };
    let places: Vec<String> = tiers.iter().flat_map(|tier| here(*tier)).collect();
    let stock = stock_status(catalogue::level(
        visit.world,
        &gpu.name,
        &places,
        Market::OnDemand,
    ));
    json!({
        "minimumBidPrice": cheapest(Market::Spot).map(number),
        "uninterruptablePrice": cheapest(Market::OnDemand).map(number),
        "stockStatus": stock.filter(|_| possible), "totalCount": 100, "rentedCount": 50,
        "minVcpu": gpu.vcpus, "minMemory": gpu.memory_gb, "gpuName": gpu.gpu, "gpuTypeId": gpu.name,
        "compliance": null, "countryCode": country,
    })
}
