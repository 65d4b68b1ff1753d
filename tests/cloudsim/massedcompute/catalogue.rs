//! Products, what is left of them and their prices; images; regions.

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::{Map, Value, json};

use super::failed;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::rest::bad;
use crate::core::world::World;

/// Name, description, GPU as its driver names it, numbers, regions. The numbers: GPUs, GB of memory of each, vCPUs,
/// GiB of memory, GB of disk, cents for an hour of all.
type ProductRow = (
    &'static str,
    &'static str,
    &'static str,
    [u32; 6],
    &'static [&'static str],
);

#[rustfmt::skip]
const PRODUCTS: [ProductRow; 18] = [
    ("gpu_1x_a30", "1x A30", "A30", [1, 24, 16, 48, 256, 35], &["us-central-1"]),
    // The name ends with a blank.
    ("gpu_1x_a5000 ", "1x RTX A5000", "RTX A5000", [1, 24, 10, 48, 256, 44], &["us-central-1"]),
    ("gpu_1x_a6000", "1x RTX A6000", "RTX A6000", [1, 48, 6, 48, 256, 57], &["us-central-1", "us-central-3"]),
    ("gpu_1x_a6000_high_ram", "1x RTX A6000, more memory", "RTX A6000", [1, 48, 6, 96, 256, 62], &["us-central-3"]),
    ("gpu_1x_a6000_spot", "1x RTX A6000 spot", "RTX A6000", [1, 48, 6, 48, 256, 45], &["us-central-3"]),
    ("gpu_1x_6000_ada", "1x RTX 6000 Ada", "RTX 6000 Ada Generation", [1, 48, 12, 64, 512, 79], &["us-east-1"]),
    ("gpu_1x_l40", "1x L40", "L40", [1, 48, 26, 128, 625, 84], &["us-central-2"]),
    ("gpu_1x_l40_spot", "1x L40 spot", "L40", [1, 48, 26, 128, 625, 67], &["us-central-2"]),
    ("gpu_1x_l40s", "1x L40S", "L40S", [1, 48, 22, 128, 625, 88], &["us-central-2", "us-east-1"]),
    ("gpu_1x_a100_sxm4", "1x A100 SXM4", "A100-SXM4-80GB", [1, 80, 14, 120, 625, 128], &["us-central-4"]),
    ("gpu_8x_dgx_a100", "8x DGX A100", "A100-SXM4-80GB", [8, 80, 252, 1_900, 10_000, 1_024], &["us-central-4"]),
    ("gpu_1x_h100", "1x H100", "H100 PCIe", [1, 80, 20, 128, 1_250, 240], &["us-central-1", "us-central-2"]),
    ("gpu_1x_h100_spot", "1x H100 spot", "H100 PCIe", [1, 80, 20, 128, 1_250, 198], &["us-central-2"]),
    ("gpu_8x_h100_spot", "8x H100 spot", "H100 PCIe", [8, 80, 160, 1_024, 10_000, 1_584], &["us-central-2"]),
    ("gpu_2x_h100_nvl_nvlink", "2x H100 NVL with NVLink", "H100 NVL", [2, 94, 40, 256, 2_500, 622], &["us-east-1"]),
    // It is sold out.
    ("gpu_1x_h200_nvl", "1x H200 NVL", "H200 NVL", [1, 141, 28, 200, 1_250, 283], &[]),
    ("gpu_1x_pro_6000_blackwell", "1x RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Server Edition", [1, 96, 14, 128, 625, 174], &["us-east-1"]),
    ("cpu_8_core", "8 cores, no GPU", "", [0, 0, 8, 32, 128, 16], &["us-central-1"]),
];

/// Name and description.
const REGIONS: [(&str, &str); 5] = [
    ("us-central-1", "Kansas City, MO, USA"),
    ("us-central-2", "Des Moines, IA, USA"),
    ("us-central-3", "Wichita, KS, USA"),
    ("us-central-4", "Omaha, NE, USA"),
    ("us-east-1", "Beltsville, MD, USA"),
];

/// Id, name, and the product that it does not fit.
#[rustfmt::skip]
const IMAGES: [(i64, &str, &str); 3] = [
    (84, "Ubuntu Server 22.04 with drivers", "gpu_1x_pro_6000_blackwell"),
    (184, "Ubuntu Server 24.04", ""),
    (203, "Ubuntu Desktop 22.04", "cpu_8_core"),
];

/// How many instances are told to be left where there are plenty.
const MANY: u64 = 10;

/// The market on which a product is sold.
pub(super) fn market(product: &str) -> Market {
    [Market::OnDemand, Market::Spot][usize::from(product.contains("_spot"))]
}

pub(super) fn furnish(world: &mut World) {
    world.regions = REGIONS.map(|(name, _)| name.to_owned()).to_vec();
    for (name, description, gpu, [gpus, vram, vcpus, memory, disk, cents], regions) in PRODUCTS {
        let price = Decimal::new(cents.into(), 2);
        world.add_type(InstanceType {
            spot: (market(name) == Market::Spot).then_some(price),
            detail: json!({ "description": description, "storage": disk }),
            ..InstanceType::on_demand(name, gpu, [gpus, vram, vcpus, memory], price)
        });
        for region in regions {
            world
                .stock
                .set(Shelf::new(name, region, market(name)), Left::Plenty);
        }
    }
}

/// A product by its name.
pub(super) fn product(world: &World, name: &str) -> Result<InstanceType, Refusal> {
    world.types.get(name).cloned().ok_or_else(failed)
}

/// How much is left of a product in a region.
fn left(world: &World, product: &str, region: &str) -> u64 {
    match world.stock.left(&Shelf::new(product, region, market(product))) {
        Left::Plenty => MANY,
        Left::Count(count) => count,
    }
}

/// The region in which a product is rented: the first one that has some left, "" where none has.
pub(super) fn place(world: &World, product: &str) -> String {
    let mut regions = world.regions.iter();
    let found = regions.find(|region| left(world, product, region) > 0);
    found.cloned().unwrap_or_default()
}

/// A region as answers have it.
pub(super) fn region(name: &str) -> Value {
    let known = REGIONS.iter().find(|(known, _)| *known == name);
    json!({ "name": name, "description": known.map_or("", |(_, text)| text) })
}

/// A product as the inventory has it.
fn shown(world: &World, product: &InstanceType) -> Value {
    let price = product.price(market(&product.name)).unwrap_or(product.on_demand);
    let lefts = world
        .regions
        .iter()
        .map(|name| (name, left(world, &product.name, name)));
    let having = lefts.clone().filter(|(_, left)| *left > 0);
    json!({
        "instance_type": {
            "name": product.name, "description": product.detail["description"],
            "price_cents_per_hour": (price * Decimal::ONE_HUNDRED).to_i64(),
            "specs": {
                "vcpu_count": product.vcpus, "memory_gib": product.memory_gb,
                "storage_gb": product.detail["storage"],
            },
        },
        "regions_with_capacity_available": having.map(|(name, _)| region(name)).collect::<Vec<_>>(),
        "capacity_available": lefts.map(|(_, left)| left).sum::<u64>(),
    })
}

pub(super) fn inventory(visit: &Visit<'_>) -> Answer {
    let products = visit.world.types.values().take(visit.keep.unwrap_or(usize::MAX));
    let products: Map<String, Value> = products
        .map(|product| (product.name.clone(), shown(visit.world, product)))
        .collect();
    Answer::json(200, &json!({ "gpu_inventory": products }))
}

/// An image must be there, and fit a product.
pub(super) fn check_image(id: i64, product: &str) -> Result<(), Refusal> {
    match IMAGES.iter().find(|(known, ..)| *known == id) {
        Some((_, _, except)) if *except == product => bad("Product does not support the VM Image"),
        Some(_) => Ok(()),
        None => Err(failed()),
    }
}

fn shown_image(id: i64, name: &str) -> Value {
    json!({ "vm_image_id": id, "vm_image_name": name, "vm_image_description": name })
}

/// The image of this id as answers have it.
pub(super) fn image(id: &Value) -> Value {
    let known = IMAGES.iter().find(|(known, ..)| id == known);
    known.map_or(Value::Null, |(id, name, _)| shown_image(*id, name))
}

pub(super) fn images(visit: &Visit<'_>) -> Answer {
    let images = IMAGES.map(|(id, name, _)| shown_image(id, name)).to_vec();
    Answer::json(200, &json!({ "images": visit.truncate(images) }))
}
