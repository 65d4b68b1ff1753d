//! Groups of servers with GPUs, what is left of them, and their prices; templates.

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::{Value, json};

use super::{CHENNAI, EUROPE, HOSTS, JarvisLabs, NOIDA};
use crate::core::cloud::Visit;
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

/// The most GPUs of an instance, and of what is told to be free.
const MOST: u64 = 8;
/// A GPU that is sold out.
const SOLD_OUT: &str = "A6000";
/// The template of VMs.
pub(super) const VM: &str = "vm";
const CONTAINER: &str = "container";

/// GPU, region, workload ("" for all), numbers. The numbers are of one GPU: GB of its memory, vCPUs, GB of memory,
/// thousandths of a dollar an hour on demand (0 where the price is not told) and as spot (0 where there is none).
type Group = (&'static str, &'static str, &'static str, [u32; 5]);

#[rustfmt::skip]
const GROUPS: [Group; 11] = [
    ("L4", NOIDA, CONTAINER, [24, 8, 32, 440, 200]),
    ("A100", NOIDA, CONTAINER, [40, 7, 112, 1_290, 640]),
    ("A100-80GB", CHENNAI, CONTAINER, [80, 8, 120, 1_490, 0]),
    ("H100", NOIDA, CONTAINER, [80, 16, 200, 2_690, 1_340]),
    ("H100", NOIDA, CONTAINER, [80, 16, 200, 2_690, 0]),
    ("H100", NOIDA, VM, [80, 16, 200, 2_690, 0]),
    ("H100", EUROPE, "", [80, 16, 200, 2_990, 0]),
    ("H200", EUROPE, "", [141, 16, 200, 3_800, 0]),
    (SOLD_OUT, CHENNAI, CONTAINER, [48, 7, 32, 790, 0]),
    ("RTX6000Ada", NOIDA, CONTAINER, [48, 32, 128, 0, 0]),
    // A region that JarvisLabs' own client does not know any more.
    ("L4", "india-01", CONTAINER, [24, 8, 32, 100, 50]),
];

/// The templates that orders may name.
const TEMPLATES: [&str; 4] = ["pytorch", "tensorflow", "jax", VM];

pub(super) fn furnish(world: &mut World) {
    world.regions = HOSTS.map(|(_, region)| region.to_owned()).to_vec();
    for (place, (gpu, region, workload, [vram, vcpus, memory_gb, price, spot])) in
        GROUPS.into_iter().enumerate()
    {
        let name = format!("{place:02}-{gpu}");
        let shelf = |market| Shelf::new(&name, region, market);
        let left = [Left::Plenty, Left::Count(0)][usize::from(gpu == SOLD_OUT)];
        world.stock.set(shelf(Market::OnDemand), left);
        if spot > 0 {
            world.stock.set(shelf(Market::Spot), left);
        }
        world.add_type(InstanceType {
            spot: (spot > 0).then(|| Decimal::new(spot.into(), 3)),
            detail: json!({ "region": region, "workload": workload }),
            ..InstanceType::on_demand(
                &name,
                gpu,
                [1, vram, vcpus, memory_gb],
                Decimal::new(price.into(), 3),
            )
        });
    }
}

/// How many devices of a group are free on a market.
fn free(world: &World, group: &InstanceType, market: Market) -> u64 {
    let region = group.detail["region"].as_str().unwrap_or_default();
    match world.stock.left(&Shelf::new(&group.name, region, market)) {
        Left::Plenty => MOST,
        Left::Count(count) => count,
    }
}

/// A count as the service tells it in this row.
fn count(place: usize, count: u64) -> Value {
    match place % 3 {
        0 if count == 0 => json!(""),
        2 if count == 0 => Value::Null,
        1 => json!(count.to_string()),
        _ => json!(count),
    }
}

/// The groups, and sizes of VMs without GPUs.
pub(super) fn offers(api: &JarvisLabs, visit: &Visit<'_>) -> Answer {
    let price = |price: Decimal| {
        let told = Some(price).filter(|price| !price.is_zero())?;
        api.in_currency(told).to_f64()
    };
    let row = |(place, group): (usize, &InstanceType)| {
        let on_demand = free(visit.world, group, Market::OnDemand);
        let spot = group.spot.map(|_| free(visit.world, group, Market::Spot));
        let workload = group.detail["workload"].as_str().unwrap_or_default();
        let mut row = json!({
            "gpu_type": group.gpu, "region": group.detail["region"],
            "num_free_devices": count(place, spot.unwrap_or(on_demand)),
            "price_per_hour": price(group.on_demand), "spot_price": group.spot.and_then(price),
            "vram": group.gpu_memory_gb.to_string(), "arc": null, "cpus_per_gpu": group.vcpus,
            "ram_per_gpu": group.memory_gb, "workload_type": Some(workload).filter(|workload| !workload.is_empty()),
        });
        // What spot instances hold is free for orders on demand alone.
        if let Some(spot) = spot {
            row["effective_num_free_devices"] = count(place, on_demand);
            row["spot_num_free_devices"] = json!(spot);
        }
        row
    };
    let rows = visit.world.types.values().enumerate().map(row).collect();
    let size = json!({ "vcpus": 4, "ram_gb": 16, "available": true, "regions": { NOIDA: true } });
    let sizes = json!({ "combinations": [size] });
    Answer::json(
        200,
        &json!({ "server_meta": visit.truncate(rows), "cpu_meta": sizes }),
    )
}

/// What an order asks for.
pub(super) struct Wanted<'a> {
    /// The name of the GPU.
    pub(super) gpu: &'a str,
    /// How many of it.
    pub(super) count: u64,
    /// Where.
    pub(super) region: &'a str,
    /// Whether for a VM.
    pub(super) is_vm: bool,
    /// The market.
    pub(super) market: Market,
}

/// The first group that has what an order asks for.
pub(super) fn find(world: &World, wanted: &Wanted<'_>) -> Option<InstanceType> {
    let workload = if wanted.is_vm { VM } else { CONTAINER };
    let has_it = |group: &&InstanceType| {
        let is_for = group.detail["workload"].as_str().unwrap_or_default();
        group.gpu == wanted.gpu
            && group.detail["region"] == wanted.region
            && ["", workload].contains(&is_for)
            && group.price(wanted.market).is_some_and(|price| !price.is_zero())
            && free(world, group, wanted.market) >= wanted.count
    };
    world.types.values().find(has_it).cloned()
}

/// What a disk costs an hour, in dollars.
pub(super) fn disk(gigabytes: u32) -> Decimal {
    Decimal::new(i64::from(gigabytes) * 137, 6)
}

/// Whether orders may name a template.
pub(super) fn has_template(name: &str) -> bool {
    TEMPLATES.contains(&name)
}

pub(super) fn templates(visit: &Visit<'_>) -> Answer {
    let shown = |name: &str| json!({ "id": name, "title": name });
    let all = TEMPLATES.map(shown).to_vec();
    Answer::json(200, &json!({ "frameworks": visit.truncate(all) }))
}
