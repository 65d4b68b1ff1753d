//! GPUs and data centers with prices and stock.
//!
//! A GPU is a type of the world: `on_demand` is its price in SECURE and `spot` its floor for
//! bids, both for one GPU; those of COMMUNITY are in `detail`. Stock is by data center;
//! COMMUNITY is one more place that is no data center.

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};

use super::wire::Tier;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

/// Where COMMUNITY machines are, as a place of the stock.
pub(super) const COMMUNITY: &str = "COMMUNITY";

/// Id, name, pool, memory, prices (secure, community) and bids (secure, community) in cents,
/// highest counts (secure, community). A price of 0 is not sold there.
type GpuRow = (
    &'static str,
    &'static str,
    &'static str,
    u32,
    [i64; 2],
    [i64; 2],
    [u32; 2],
);

const GPUS: [GpuRow; 8] = [
    (
        "NVIDIA GeForce RTX 4090",
        "RTX 4090",
        "ADA_24",
        24,
        [69, 34],
        [35, 20],
        [8, 6],
    ),
    (
        "NVIDIA L40S",
        "L40S",
        "ADA_48_PRO",
        48,
        [86, 79],
        [43, 40],
        [8, 4],
    ),
    (
        "NVIDIA A100 80GB PCIe",
        "A100 PCIe",
        "AMPERE_80",
        80,
        [164, 119],
        [82, 60],
        [8, 8],
    ),
    (
        "NVIDIA H100 80GB HBM3",
        "H100 SXM",
        "ADA_80_PRO",
        80,
        [299, 269],
        [175, 150],
        [8, 8],
    ),
    (
        "NVIDIA H200",
        "H200 SXM",
        "HOPPER_141",
        141,
        [399, 359],
        [229, 200],
        [8, 8],
    ),
    (
        "NVIDIA B200",
        "B200",
        "BLACKWELL_180",
        180,
        [599, 0],
        [320, 0],
        [8, 0],
    ),
    (
        "AMD Instinct MI300X OAM",
        "MI300X",
        "",
        192,
        [299, 0],
        [150, 0],
        [8, 0],
    ),
    (
        "Tesla V100-FHHL-16GB",
        "V100 FHHL",
        "",
        16,
        [0, 19],
        [0, 10],
        [0, 4],
    ),
];

/// Id, name, region, country, and whether it has global networking.
pub(super) const DATA_CENTERS: [(&str, &str, &str, &str, bool); 4] = [
    ("US-TX-3", "US Texas 3", "NORTH_AMERICA", "US", true),
    ("US-KS-2", "US Kansas 2", "NORTH_AMERICA", "US", false),
    ("EU-RO-1", "Romania 1", "EUROPE", "RO", true),
    ("CA-MTL-1", "Montreal 1", "NORTH_AMERICA", "CA", false),
];

/// The newest CUDA that hosts have, and older ones they run.
pub(super) const CUDA: [&str; 4] = ["12.4", "12.6", "12.8", "13.0"];

/// Data centers that have fast network volumes too.
pub(super) const FAST_STORAGE: [&str; 1] = ["EU-RO-1"];

pub(super) fn furnish(world: &mut World) {
    world.regions = DATA_CENTERS.iter().map(|(id, ..)| (*id).to_owned()).collect();
    for (id, name, pool, memory, prices, bids, counts) in GPUS {
        world.add_type(InstanceType {
            name: id.to_owned(),
            vcpus: 16,
            memory_gb: memory.max(32) * 2,
            gpus: 1,
            gpu: name.to_owned(),
            gpu_memory_gb: memory,
            architecture: "x86_64".to_owned(),
            on_demand: Decimal::new(prices[0], 2),
            spot: (bids[0] > 0).then(|| Decimal::new(bids[0], 2)),
            detail: json!({
                "pool": pool, "community": Decimal::new(prices[1], 2), "communityBid": Decimal::new(bids[1], 2),
                "maxSecure": counts[0], "maxCommunity": counts[1],
            }),
        });
        for (place, ..) in DATA_CENTERS.iter().filter(|_| prices[0] > 0) {
            world
                .stock
                .set(Shelf::new(id, place, Market::OnDemand), Left::Plenty);
            world.stock.set(Shelf::new(id, place, Market::Spot), Left::Plenty);
        }
        if prices[1] > 0 {
            world
                .stock
                .set(Shelf::new(id, COMMUNITY, Market::OnDemand), Left::Plenty);
            world
                .stock
                .set(Shelf::new(id, COMMUNITY, Market::Spot), Left::Plenty);
        }
    }
}

fn cents(gpu: &InstanceType, field: &str) -> Decimal {
    gpu.detail
        .get(field)
        .and_then(Value::as_str)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// The price of one GPU for an hour; `None` when it is not sold there.
pub(super) fn price(gpu: &InstanceType, tier: Tier, market: Market) -> Option<Decimal> {
    let price = match (tier, market) {
        (Tier::Secure, Market::OnDemand) => gpu.on_demand,
        (Tier::Secure, Market::Spot) => gpu.spot.unwrap_or_default(),
        (Tier::Community, Market::OnDemand) => cents(gpu, "community"),
        (Tier::Community, Market::Spot) => cents(gpu, "communityBid"),
    };
    (!price.is_zero()).then_some(price)
}

/// How many of a GPU one pod may have.
pub(super) fn most(gpu: &InstanceType, tier: Tier) -> u64 {
    let field = match tier {
        Tier::Secure => "maxSecure",
        Tier::Community => "maxCommunity",
    };
    gpu.detail.get(field).and_then(Value::as_u64).unwrap_or_default()
}

/// Whether a data center has global networking.
pub(super) fn has_global_networking(place: &str) -> bool {
    DATA_CENTERS
        .iter()
        .any(|(id, .., global)| *id == place && *global)
}

/// The types of network volumes that a data center has.
fn volume_types(place: &str) -> &'static [&'static str] {
    if FAST_STORAGE.contains(&place) {
        &["STANDARD", "HIGH_PERFORMANCE"]
    } else {
        &["STANDARD"]
    }
}

/// The country of a data center.
pub(super) fn country(place: &str) -> &'static str {
    DATA_CENTERS
        .iter()
        .find(|(id, ..)| *id == place)
        .map_or("US", |(_, _, _, country, _)| country)
}

/// The places of a tier.
pub(super) fn places(world: &World, tier: Tier) -> Vec<String> {
    match tier {
        Tier::Secure => world.regions.clone(),
        Tier::Community => vec![COMMUNITY.to_owned()],
    }
}

/// Whether a number like `12.11` is at least another like `12.2`.
pub(super) fn at_least(version: &str, floor: &str) -> bool {
    let parts = |text: &str| {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        (
            major.parse::<u32>().unwrap_or(0),
            minor.parse::<u32>().unwrap_or(0),
        )
    };
    parts(version) >= parts(floor)
}

/// The level of what is left in the best of some places.
pub(super) fn level(world: &World, gpu: &str, places: &[String], market: Market) -> &'static str {
    let best = places
        .iter()
        .map(|place| match world.stock.left(&Shelf::new(gpu, place, market)) {
            Left::Plenty => u64::MAX,
            Left::Count(count) => count,
        });
    match best.max().unwrap_or(0) {
        0 => "NONE",
        1..=2 => "LOW",
        3..=9 => "MEDIUM",
        _ => "HIGH",
    }
}

/// A level in the words of GraphQL.
pub(super) fn stock_status(level: &str) -> Option<&'static str> {
    match level {
        "LOW" => Some("Low"),
        "MEDIUM" => Some("Medium"),
        "HIGH" => Some("High"),
        _ => None,
    }
}

/// A price as a JSON number.
pub(super) fn number(decimal: Decimal) -> f64 {
    decimal.to_f64().unwrap_or_default()
}

struct Wanted {
    availability: bool,
    tier: Tier,
    count: u64,
    countries: Vec<String>,
    cuda: Vec<String>,
}

fn wanted(visit: &Visit<'_>) -> Result<Wanted, Refusal> {
    let parameter = |name: &str| visit.request.parameter(name);
    let list = |name: &str| {
        parameter(name)
            .map(|text| text.split(',').map(str::to_owned).collect::<Vec<_>>())
            .unwrap_or_default()
    };
    let availability = parameter("include") == Some("AVAILABILITY");
    if availability != parameter("product").is_some() {
        return Err(Refusal::Bad(
            "include=AVAILABILITY and product go together".to_owned(),
        ));
    }
    let filters = ["count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion"];
    if !availability && filters.iter().any(|name| parameter(name).is_some()) {
        return Err(Refusal::Bad(
            "filters are valid only with include=AVAILABILITY".to_owned(),
        ));
    }
    let (exact, floor) = (list("cudaVersions"), parameter("minCudaVersion"));
    if !exact.is_empty() && floor.is_some() {
        return Err(Refusal::Bad(
            "cudaVersions and minCudaVersion are mutually exclusive".to_owned(),
        ));
    }
    let cuda = CUDA
        .iter()
        .filter(|version| exact.is_empty() || exact.iter().any(|wanted| wanted == *version))
        .filter(|version| floor.is_none_or(|floor| at_least(version, floor)))
        .map(|version| (*version).to_owned())
        .collect();
    Ok(Wanted {
        availability,
        tier: if parameter("cloud") == Some("COMMUNITY") {
            Tier::Community
        } else {
            Tier::Secure
        },
        count: parameter("count")
            .and_then(|count| count.parse().ok())
            .unwrap_or(1),
        countries: list("countryCodes"),
        cuda,
    })
}

/// The GPU catalogue, or one of it.
pub(super) fn gpus(visit: &mut Visit<'_>, one: Option<&str>) -> Result<Answer, Refusal> {
    let wanted = wanted(visit)?;
    let mut gpus: Vec<Value> = visit
        .world
        .types
        .values()
        .filter(|gpu| gpu.gpus > 0 && one.is_none_or(|one| one == gpu.name))
        .map(|gpu| shown(visit.world, gpu, &wanted))
        .collect();
    if one.is_some() {
        let gpu = gpus
            .pop()
            .ok_or_else(|| Refusal::NotFound("GPU type not found".to_owned()))?;
        return Ok(Answer::json(200, &gpu));
    }
    if let Some(keep) = visit.keep {
        gpus.truncate(keep);
    }
    Ok(Answer::json(200, &json!({ "gpus": gpus })))
}

fn shown(world: &World, gpu: &InstanceType, wanted: &Wanted) -> Value {
    let secure = price(gpu, Tier::Secure, Market::OnDemand);
    let community = price(gpu, Tier::Community, Market::OnDemand);
    let pool = gpu
        .detail
        .get("pool")
        .and_then(Value::as_str)
        .filter(|pool| !pool.is_empty());
    let manufacturer = if gpu.name.starts_with("AMD") {
        "AMD"
    } else {
        "NVIDIA"
    };
    let mut value = json!({
        "id": gpu.name, "name": gpu.gpu, "pool": pool, "manufacturer": manufacturer, "memory": gpu.gpu_memory_gb,
        "secure": secure.is_some(), "community": community.is_some(),
        "price": {"secure": number(secure.unwrap_or_default()), "community": number(community.unwrap_or_default())},
        "maxCount": {"secure": most(gpu, Tier::Secure), "community": most(gpu, Tier::Community)},
    });
    if !wanted.availability {
        return value;
    }
    let mut places = places(world, wanted.tier);
    places.retain(|place| {
        wanted.countries.is_empty() || wanted.countries.iter().any(|code| code == country(place))
    });
    let possible = wanted.count <= most(gpu, wanted.tier) && !wanted.cuda.is_empty();
    let here = if possible { places.as_slice() } else { &[] };
    let centers: Vec<Value> = here
        .iter()
        .filter(|place| place.as_str() != COMMUNITY)
        .map(|place| {
            let level = level(world, &gpu.name, std::slice::from_ref(place), Market::OnDemand);
            json!({"id": place, "name": center_name(place), "availability": level})
        })
        .collect();
    let versions: Vec<Value> = wanted
        .cuda
        .iter()
        .map(|version| json!({"version": version, "available": true}))
        .collect();
    if let Value::Object(fields) = &mut value {
        fields.insert(
            "availability".to_owned(),
            level(world, &gpu.name, here, Market::OnDemand).into(),
        );
        fields.insert("dataCenters".to_owned(), centers.into());
        fields.insert("cudaVersions".to_owned(), versions.into());
    }
    value
}

fn center_name(place: &str) -> &str {
    DATA_CENTERS
        .iter()
        .find(|(id, ..)| *id == place)
        .map_or(place, |(_, name, ..)| name)
}

/// The data centers, or one of them.
pub(super) fn data_centers(visit: &mut Visit<'_>, one: Option<&str>) -> Result<Answer, Refusal> {
    let with_gpus = visit
        .request
        .parameter("include")
        .is_some_and(|include| include.contains("GPU_AVAILABILITY"));
    let global = visit.request.parameter("globalNetwork");
    let list = |name: &str| {
        let given = visit.request.parameter(name);
        given
            .map(|text| text.split(',').collect::<Vec<_>>())
            .unwrap_or_default()
    };
    let (regions, storage) = (list("regions"), list("networkVolumeTypes"));
    let mut centers: Vec<Value> = DATA_CENTERS
        .iter()
        .filter(|(id, ..)| one.is_none_or(|one| one == *id))
        .filter(|(.., has)| global.is_none_or(|wanted| wanted == has.to_string()))
        .filter(|(_, _, region, ..)| regions.is_empty() || regions.contains(region))
        .filter(|(id, ..)| storage.iter().all(|wanted| volume_types(id).contains(wanted)))
        .map(|(id, name, region, _, global)| {
            let mut value = json!({
                "id": id, "name": name, "region": region, "networkVolumeTypes": volume_types(id), "compliance": [],
                "globalNetwork": global,
            });
            if let (true, Value::Object(fields)) = (with_gpus, &mut value) {
                let here = [(*id).to_owned()];
                let gpus: Vec<Value> = visit
                    .world
                    .types
                    .values()
                    .filter(|gpu| gpu.gpus > 0)
                    .map(|gpu| {
                        let level = level(visit.world, &gpu.name, &here, Market::OnDemand);
                        json!({"id": gpu.name, "name": gpu.gpu, "availability": level})
                    })
                    .collect();
                fields.insert("gpuAvailability".to_owned(), gpus.into());
            }
            value
        })
        .collect();
    if one.is_some() {
        let center = centers
            .pop()
            .ok_or_else(|| Refusal::NotFound("data center not found".to_owned()))?;
        return Ok(Answer::json(200, &center));
    }
    Ok(Answer::json(200, &json!({ "dataCenters": centers })))
}
