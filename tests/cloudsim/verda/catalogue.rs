//! Instance types, locations and images.

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};

use super::list;
use super::wire::Kind;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::meter::Meter;
use crate::core::world::World;

type TypeRow = (
    &'static str,
    &'static str,
    &'static str,
    u32,
    u32,
    u32,
    u32,
    i64,
    i64,
);

/// Name, GPU, its model name, count, memory of one, vCPUs, memory, price and spot price in cents.
const TYPES: [TypeRow; 9] = [
    (
        "1H100.80S.22V",
        "H100 SXM5 80GB",
        "H100",
        1,
        80,
        22,
        120,
        317,
        111,
    ),
    (
        "2H100.80S.60V",
        "H100 SXM5 80GB",
        "H100",
        2,
        80,
        60,
        370,
        634,
        222,
    ),
    (
        "8H100.80S.176V",
        "H100 SXM5 80GB",
        "H100",
        8,
        80,
        176,
        1480,
        2536,
        888,
    ),
    (
        "1H200.141S.44V",
        "H200 SXM5 141GB",
        "H200",
        1,
        141,
        44,
        185,
        429,
        150,
    ),
    ("1A100.22V", "A100 SXM4 80GB", "A100", 1, 80, 22, 120, 179, 63),
    ("8A100.176V", "A100 SXM4 80GB", "A100", 8, 80, 176, 960, 1432, 501),
    ("1V100.6V", "Tesla V100 16GB", "V100", 1, 16, 6, 23, 39, 14),
    (
        "1A6000.10V",
        "RTX A6000 48GB",
        "RTX A6000",
        1,
        48,
        10,
        60,
        101,
        35,
    ),
    ("CPU.4V.16G", "", "", 0, 0, 4, 16, 4, 2),
];

/// Code, name and country.
const LOCATIONS: [(&str, &str, &str); 4] = [
    ("FIN-01", "Finland 1", "FI"),
    ("FIN-02", "Finland 2", "FI"),
    ("FIN-03", "Finland 3", "FI"),
    ("ICE-01", "Iceland 1", "IS"),
];

/// What can be installed.
struct Image {
    id: &'static str,
    of_type: &'static str,
    name: &'static str,
    fits: Fits,
}

/// The images. An image that dstack orders by its id has Verda's id.
static IMAGES: [Image; 7] = [
    Image {
        id: "f2a7c0de-2404-4000-8000-000000000001",
        of_type: "ubuntu-24.04",
        name: "Ubuntu 24.04",
        fits: Fits::Cpu,
    },
    Image {
        id: "f2a7c0de-2404-4000-8000-000000000002",
        of_type: "ubuntu-24.04-cuda-13.0-open",
        name: "Ubuntu 24.04 + CUDA 13.0 Open",
        fits: Fits::NewGpu,
    },
    Image {
        id: "2404f580-1300-1111-82b3-f199fb9b701b",
        of_type: "ubuntu-24.04-cuda-13.0-open-docker",
        name: "Ubuntu 24.04 + CUDA 13.0 Open + Docker",
        fits: Fits::NewGpu,
    },
    Image {
        id: "f2a7c0de-2404-4000-8000-000000000003",
        of_type: "ubuntu-24.04-cuda-12.8-open",
        name: "Ubuntu 24.04 + CUDA 12.8 Open",
        fits: Fits::NewGpu,
    },
    Image {
        id: "f2a7c0de-2404-4000-8000-000000000004",
        of_type: "ubuntu-24.04-cuda-12.8-open-docker",
        name: "Ubuntu 24.04 + CUDA 12.8 Open + Docker",
        fits: Fits::NewGpu,
    },
    Image {
        id: "f2a7c0de-2204-4000-8000-000000000001",
        of_type: "ubuntu-22.04-cuda-12.0",
        name: "Ubuntu 22.04 + CUDA 12.0",
        fits: Fits::OldGpu,
    },
    Image {
        id: "2088da25-bb0d-41cc-a191-dccae45d96fd",
        of_type: "ubuntu-22.04-cuda-12.0-docker",
        name: "Ubuntu 22.04 + CUDA 12.0 + Docker",
        fits: Fits::OldGpu,
    },
];

/// What images are for: CPU types (those run everywhere), new GPUs, old GPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fits {
    Cpu,
    NewGpu,
    OldGpu,
}

/// Fills the world: everything in FIN-01; on demand in FIN-03, H100 there as spot too; nothing
/// in FIN-02; H100 and A100 on demand in ICE-01.
pub(super) fn furnish(world: &mut World) {
    world.regions = LOCATIONS.iter().map(|(code, ..)| (*code).to_owned()).collect();
    for (name, gpu, model, gpus, gpu_memory, vcpus, memory, price, spot) in TYPES {
        world.add_type(InstanceType {
            name: name.to_owned(),
            vcpus,
            memory_gb: memory,
            gpus,
            gpu: gpu.to_owned(),
            gpu_memory_gb: gpu_memory,
            architecture: "x86_64".to_owned(),
            on_demand: Decimal::new(price, 2),
            spot: Some(Decimal::new(spot, 2)),
            detail: json!({ "model": model }),
        });
        let mut fill = |region, market| world.stock.set(Shelf::new(name, region, market), Left::Plenty);
        fill("FIN-01", Market::OnDemand);
        fill("FIN-01", Market::Spot);
        fill("FIN-03", Market::OnDemand);
        if model == "H100" {
            fill("FIN-03", Market::Spot);
        }
        if matches!(model, "H100" | "A100") {
            fill("ICE-01", Market::OnDemand);
        }
    }
}

fn needs(instance_type: &InstanceType) -> Fits {
    match (instance_type.gpus, instance_type.gpu.as_str()) {
        (0, _) => Fits::Cpu,
        (_, gpu) if gpu.contains("V100") || gpu.contains("A6000") => Fits::OldGpu,
        _ => Fits::NewGpu,
    }
}

/// The images that run on a type.
fn supported(instance_type: &InstanceType) -> impl Iterator<Item = &'static Image> {
    let wanted = needs(instance_type);
    IMAGES
        .iter()
        .filter(move |image| image.fits == wanted || image.fits == Fits::Cpu)
}

/// Whether an image, by its name or id, runs on a type.
pub(super) fn fits(instance_type: &InstanceType, wanted: &str) -> bool {
    supported(instance_type).any(|image| image.of_type == wanted || image.id == wanted)
}

/// A price as Verda writes it in types: text.
fn text(price: Decimal) -> String {
    price.normalize().to_string()
}

/// A decimal as a JSON number.
pub(super) fn number(decimal: Decimal) -> f64 {
    decimal.to_f64().unwrap_or_default()
}

/// What instances and types say about their hardware.
pub(super) fn hardware(instance_type: &InstanceType) -> Value {
    let count = instance_type.gpus;
    let gpu = if count == 0 {
        String::new()
    } else {
        format!("{count}x {}", instance_type.gpu)
    };
    json!({
        "cpu": {"description": format!("{} CPU", instance_type.vcpus), "number_of_cores": instance_type.vcpus},
        "gpu": {"description": gpu, "number_of_gpus": count},
        "gpu_memory": {
            "description": format!("{}GB GPU RAM", instance_type.gpu_memory_gb),
            "size_in_gigabytes": instance_type.gpu_memory_gb,
        },
        "memory": {
            "description": format!("{}GB RAM", instance_type.memory_gb),
            "size_in_gigabytes": instance_type.memory_gb,
        },
        "storage": {"description": "dynamic"},
    })
}

pub(super) fn types(visit: &mut Visit<'_>) -> Answer {
    let currency = visit.request.parameter("currency").unwrap_or("usd").to_owned();
    let types: Vec<Value> = visit
        .world
        .types
        .values()
        .map(|instance_type| {
            let model = instance_type
                .detail
                .get("model")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let mut value = hardware(instance_type);
            let about = json!({
                "id": format!("type-{}", instance_type.name),
                "instance_type": instance_type.name,
                "model": model,
                "name": if model.is_empty() { "CPU Node" } else { model },
                "display_name": if model.is_empty() { "CPU Node" } else { model },
                "description": if model.is_empty() { "Dedicated CPU instance" } else { "Dedicated GPU instance" },
                "best_for": ["Large model inference"],
                "p2p": if instance_type.gpus > 1 { "NVLink" } else { "" },
                "manufacturer": if model.is_empty() { "AMD" } else { "NVIDIA" },
                "price_per_hour": text(instance_type.on_demand),
                "spot_price": text(instance_type.spot.unwrap_or_default()),
                "currency": currency,
                "supported_os": supported(instance_type).map(|image| image.of_type).collect::<Vec<_>>(),
            });
            merge(&mut value, about);
            value
        })
        .collect();
    list(visit, types)
}

/// Adds the fields of one object to another.
pub(super) fn merge(value: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) = (value, more) {
        fields.extend(more);
    }
}

fn market(visit: &Visit<'_>) -> Market {
    let asked = visit.request.parameter("is_spot");
    // Its old name, which Verda's own client for Python has.
    match asked.or_else(|| visit.request.parameter("isSpot")) {
        Some("true" | "1") => Market::Spot,
        _ => Market::OnDemand,
    }
}

/// The location that is asked for, by its name or the old one.
fn place<'a>(visit: &Visit<'a>) -> Option<&'a str> {
    let asked = visit.request.parameter("location_code");
    asked.or_else(|| visit.request.parameter("locationCode"))
}

pub(super) fn availability(visit: &mut Visit<'_>) -> Answer {
    let market = market(visit);
    let wanted = place(visit);
    let places: Vec<Value> = visit
        .world
        .regions
        .iter()
        .filter(|region| wanted.is_none_or(|wanted| wanted == region.as_str()))
        .map(|region| {
            let types: Vec<&String> = visit
                .world
                .types
                .keys()
                .filter(|name| visit.world.stock.has(&Shelf::new(name, region, market)))
                .collect();
            json!({"location_code": region, "availabilities": types})
        })
        .collect();
    list(visit, places)
}

pub(super) fn available(visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    if !visit.world.types.contains_key(name) {
        return Err(Refusal::NotFound("Invalid instance type".to_owned()));
    }
    let market = market(visit);
    let wanted = place(visit);
    let found = visit
        .world
        .regions
        .iter()
        .filter(|region| wanted.is_none_or(|wanted| wanted == region.as_str()))
        .any(|region| visit.world.stock.has(&Shelf::new(name, region, market)));
    Ok(Answer::json(200, &Value::Bool(found)))
}

pub(super) fn locations(visit: &mut Visit<'_>) -> Answer {
    let all = visit
        .world
        .regions
        .iter()
        .map(|code| {
            let known = LOCATIONS.iter().find(|(known, ..)| known == code);
            let (name, country) = known.map_or((code.as_str(), "FI"), |(_, name, country)| (*name, *country));
            json!({"code": code, "name": name, "country_code": country})
        })
        .collect();
    list(visit, all)
}

pub(super) fn images(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let wanted = match visit.request.parameter("instance_type") {
        Some(name) => match visit.world.types.get(name) {
            Some(found) => Some(needs(found)),
            None => return Err(Refusal::NotFound("Instance type not found".to_owned())),
        },
        None => None,
    };
    let images = IMAGES
        .iter()
        .filter(|image| wanted.is_none_or(|wanted| image.fits == wanted || image.fits == Fits::Cpu))
        .map(|image| {
            json!({
                "id": image.id, "image_type": image.of_type, "name": image.name,
                "is_default": image.fits == Fits::Cpu, "is_cluster": false, "details": ["Ubuntu"], "category": "ubuntu",
            })
        })
        .collect();
    Ok(list(visit, images))
}

/// What a GB of a kind costs a month. That of NVMe is the one of the description, the others
/// are assumed.
pub(super) fn month(kind: Kind) -> Decimal {
    match kind {
        Kind::Hdd | Kind::HddShared => Decimal::new(5, 2),
        Kind::Nvme
        | Kind::NvmeShared
        | Kind::NvmeLocalStorage
        | Kind::NvmeSharedCluster
        | Kind::NvmeOsCluster => Decimal::new(2, 1),
    }
}

/// `GET /v1/volume-types`: the types of which customers have volumes.
pub(super) fn volume_types(visit: &mut Visit<'_>) -> Answer {
    let currency = visit.request.parameter("currency").unwrap_or("usd").to_owned();
    let types = [Kind::Nvme, Kind::NvmeShared, Kind::Hdd]
        .into_iter()
        .map(|kind| {
            let fast = !kind.is_retired();
            let price = month(kind);
            let second = price / Decimal::from(730 * 3_600);
            json!({
                "type": kind.name(), "is_shared_fs": kind.is_shared(),
                "price": {
                    "price_per_month_per_gb": number(price), "cps_per_gb": number(second), "currency": currency,
                },
                "burst_bandwidth": if fast { 2_500 } else { 500 },
                "continuous_bandwidth": if fast { 2_000 } else { 250 },
                "internal_network_speed": if fast { 50 } else { 1 },
                "iops": if fast { "100k" } else { "200" },
                "throughput_gbps": if fast { 4 } else { 1 },
            })
        })
        .collect();
    list(visit, types)
}

/// `GET /v1/long-term/periods/instances`: for how long one can rent at once, which nobody can
/// here.
pub(super) fn periods(visit: &mut Visit<'_>) -> Answer {
    let all = [("1_MONTH", "1 month", 1, 5), ("3_MONTHS", "3 months", 3, 14)]
        .into_iter()
        .map(|(code, name, months, discount)| {
            json!({
                "code": code, "name": name, "is_enabled": false, "unit_name": "month", "unit_value": months,
                "discount_percentage": discount,
            })
        })
        .collect();
    list(visit, all)
}

pub(super) fn balance(visit: &mut Visit<'_>) -> Answer {
    let paid = visit
        .world
        .accounts
        .get(&visit.account)
        .and_then(|account| account.balance);
    let spent = Meter::new(visit.world).bill(&visit.account);
    let left = paid.unwrap_or(Decimal::from(1_000_000)) - spent;
    Answer::json(
        200,
        &json!({"amount": number(left.round_dp(2)), "currency": "usd"}),
    )
}
