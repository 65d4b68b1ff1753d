//! The instance types, and the regions that have some left.

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Map, Value, json};

use super::{data, list};
use crate::core::cloud::Visit;
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

type TypeRow = (&'static str, &'static str, u32, u32, u32, u32, i64);

/// Name, GPU as Lambda writes it, count, vCPUs, memory and disk in GiB, cents for an hour.
const TYPES: [TypeRow; 6] = [
    ("gpu_1x_a10", "A10 (24 GB PCIe)", 1, 30, 200, 1400, 75),
    ("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", 1, 30, 200, 512, 129),
    ("gpu_1x_h100_pcie", "H100 (80 GB PCIe)", 1, 26, 200, 1024, 249),
    (
        "gpu_8x_h100_sxm5",
        "H100 (80 GB SXM5)",
        8,
        208,
        1800,
        22_528,
        2392,
    ),
    ("gpu_1x_gh200", "GH200 (96 GB)", 1, 64, 432, 4096, 149),
    ("cpu_4x_general", "N/A", 0, 4, 16, 512, 11),
];

/// Code and description.
const REGIONS: [(&str, &str); 3] = [
    ("us-east-1", "Virginia, USA"),
    ("us-south-2", "North Texas, USA"),
    ("us-west-1", "California, USA"),
];

/// Family, name, version and architecture.
const IMAGES: [(&str, &str, &str, &str); 3] = [
    ("lambda-stack-22-04", "Lambda Stack 22.04", "22.4.5", "x86_64"),
    ("lambda-stack-24-04", "Lambda Stack 24.04", "24.4.2", "x86_64"),
    ("lambda-stack-24-04-arm", "Lambda Stack 24.04", "24.4.2", "arm64"),
];

/// Fills the world: everything in us-west-1, A10 in us-east-1 too, eight H100 nowhere.
pub(super) fn furnish(world: &mut World) {
    world.regions = REGIONS.iter().map(|(code, _)| (*code).to_owned()).collect();
    for (name, gpu, gpus, vcpus, memory, disk, cents) in TYPES {
        world.add_type(InstanceType {
            name: name.to_owned(),
            vcpus,
            memory_gb: memory,
            gpus,
            gpu: gpu.to_owned(),
            gpu_memory_gb: 0,
            architecture: if gpu.starts_with("GH") { "arm64" } else { "x86_64" }.to_owned(),
            on_demand: Decimal::new(cents, 2),
            spot: None,
            detail: json!({ "storage_gib": disk }),
        });
        let mut fill = |region| {
            let shelf = Shelf::new(name, region, Market::OnDemand);
            world.stock.set(shelf, Left::Plenty);
        };
        if gpus < 8 {
            fill("us-west-1");
        }
        if name == "gpu_1x_a10" {
            fill("us-east-1");
        }
    }
}

/// A region as answers have it.
pub(super) fn region(code: &str) -> Value {
    let known = REGIONS.iter().find(|(name, _)| *name == code);
    json!({ "name": code, "description": known.map_or("", |(_, text)| text) })
}

/// A type as answers have it.
pub(super) fn shown(kind: &InstanceType) -> Value {
    let count = kind.gpus.max(1);
    json!({
        "name": kind.name,
        "description": format!("{count}x {}", kind.gpu),
        "gpu_description": kind.gpu,
        "price_cents_per_hour": (kind.on_demand * Decimal::ONE_HUNDRED).to_i64(),
        "specs": {
            "vcpus": kind.vcpus, "memory_gib": kind.memory_gb, "gpus": kind.gpus,
            "storage_gib": kind.detail["storage_gib"],
        },
    })
}

pub(super) fn types(visit: &mut Visit<'_>) -> Answer {
    let mut map = Map::new();
    for kind in visit.world.types.values().take(visit.keep.unwrap_or(usize::MAX)) {
        let having: Vec<Value> = visit
            .world
            .regions
            .iter()
            .filter(|code| {
                visit
                    .world
                    .stock
                    .has(&Shelf::new(&kind.name, code, Market::OnDemand))
            })
            .map(|code| region(code))
            .collect();
        map.insert(
            kind.name.clone(),
            json!({ "instance_type": shown(kind), "regions_with_capacity_available": having }),
        );
    }
    data(&Value::Object(map))
}

pub(super) fn regions(visit: &mut Visit<'_>) -> Answer {
    let found = visit.world.regions.iter().map(|code| region(code)).collect();
    list(visit, found)
}

/// Each image in each region, with an id of its own there.
pub(super) fn images(visit: &mut Visit<'_>) -> Answer {
    let mut found = Vec::new();
    for code in &visit.world.regions {
        for (family, name, version, architecture) in IMAGES {
            found.push(json!({
                "id": format!("{family}.{code}"), "family": family, "name": name, "version": version,
                "description": "With drivers and CUDA", "architecture": architecture, "region": region(code),
                "created_time": "2026-09-01T00:00:00Z", "updated_time": "2026-09-01T00:00:00Z",
            }));
        }
    }
    list(visit, found)
}
