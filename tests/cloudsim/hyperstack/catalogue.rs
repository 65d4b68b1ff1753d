//! Flavors, what is left of them, and their prices; images; regions.

use std::collections::BTreeMap;

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::{Value, json};

use super::{Hyperstack, is_named, missing, ok};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::rest::bad;
use crate::core::world::World;

/// What a floating address costs an hour.
pub(super) const ADDRESS: Decimal = Decimal::from_parts(672_043, 0, 0, false, 8);
/// What the root disk of a VM that hibernates costs an hour: 100 GB.
pub(super) const DISK: Decimal = Decimal::from_parts(96_774, 0, 0, false, 7);
/// The end of the names of spot flavors and of their GPUs.
pub(super) const SPOT: &str = "-spot";

/// Name, GPU, numbers, regions. The numbers: GPUs, GB of memory of each, vCPUs, GB of memory, GB of the
/// ephemeral disk, thousandths of a dollar for a GPU and hour.
type FlavorRow = (&'static str, &'static str, [u32; 6], &'static [&'static str]);

#[rustfmt::skip]
const FLAVORS: [FlavorRow; 8] = [
    ("n3-A100x1", "A100-80G-PCIe", [1, 80, 28, 120, 750, 1_350], &["CANADA-1"]),
    ("n3-H100x1", "H100-80G-PCIe", [1, 80, 28, 180, 750, 1_900], &["CANADA-1", "NORWAY-1"]),
    ("n3-H100x8", "H100-80G-PCIe", [8, 80, 252, 1_440, 6_500, 1_900], &["CANADA-1"]),
    ("n3-H100x1-spot", "H100-80G-PCIe-spot", [1, 80, 28, 180, 750, 1_520], &["CANADA-1"]),
    ("n3-H100-SXM5x8", "H100-80G-SXM5", [8, 80, 192, 1_800, 32_000, 2_400], &["CANADA-1", "US-1"]),
    ("n3-RTX-A6000x2", "RTX-A6000", [2, 48, 58, 116, 850, 500], &["CANADA-1"]),
    // It is sold out.
    ("n3-L40x1", "L40", [1, 48, 28, 58, 725, 1_000], &["NORWAY-1"]),
    ("n1-cpu-small", "", [0, 0, 4, 4, 0, 56], &["CANADA-1", "NORWAY-1"]),
];

const REGIONS: [&str; 3] = ["CANADA-1", "NORWAY-1", "US-1"];

/// Name, and the flavor that alone may have the image.
#[rustfmt::skip]
const IMAGES: [(&str, Option<&str>); 4] = [
    ("Debian 12 (Bookworm)", None),
    ("Ubuntu Server 22.04 LTS R535 CUDA 12.2 with Docker", None),
    ("Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker", None),
    ("Ubuntu Server 24.04 LTS R580 CUDA 13.0 with Docker", Some("n3-H100-SXM5x8")),
];

/// The market on which a flavor is sold.
pub(super) fn market(flavor: &str) -> Market {
    [Market::OnDemand, Market::Spot][usize::from(flavor.ends_with(SPOT))]
}

pub(super) fn furnish(world: &mut World) {
    world.regions = REGIONS.map(str::to_owned).to_vec();
    for (name, gpu, [gpus, vram, vcpus, memory_gb, ephemeral, price], regions) in FLAVORS {
        let price = Decimal::new((price * gpus.max(1)).into(), 3);
        world.add_type(InstanceType {
            spot: (market(name) == Market::Spot).then_some(price),
            detail: json!(ephemeral),
            ..InstanceType::on_demand(name, gpu, [gpus, vram, vcpus, memory_gb], price)
        });
        let left = [Left::Plenty, Left::Count(0)][usize::from(name == "n3-L40x1")];
        for region in regions {
            world.stock.set(Shelf::new(name, region, market(name)), left);
        }
    }
}

/// The flavors of a region, be some left or none.
fn sold<'a>(world: &'a World, region: &'a str) -> impl Iterator<Item = (&'a InstanceType, Left)> {
    let here = move |(shelf, _): &(&Shelf, Left)| shelf.region == region;
    let shelves = world.stock.shelves().filter(here);
    shelves.filter_map(|(shelf, left)| Some((world.types.get(&shelf.instance_type)?, left)))
}

/// A flavor that is sold in a region.
pub(super) fn find(world: &World, region: &str, name: &str) -> Result<InstanceType, Refusal> {
    let found = sold(world, region).find(|(flavor, _)| flavor.name == name);
    let (flavor, _) = found.ok_or_else(|| missing("flavor"))?;
    Ok(flavor.clone())
}

/// A number for the ids of what a region has: it is another one in each region.
fn place(region: &str) -> usize {
    1_000 * REGIONS.iter().take_while(|name| **name != region).count()
}

/// The features of a region and of its environments.
pub(super) fn features(region: &str) -> Value {
    json!({ "network_optimised": region != "NORWAY-1", "green_status": "GREEN" })
}

/// A flavor as it is shown in a region.
pub(super) fn shown(flavor: &InstanceType, region: &str, left: Left) -> Value {
    let number = FLAVORS.iter().position(|row| row.0 == flavor.name);
    let is_fast = features(region)["network_optimised"] == true;
    let labels = is_fast.then(|| json!({ "id": 1, "label": "network_optimised" }));
    json!({
        "id": number.map(|number| 100 + place(region) + number), "name": flavor.name, "display_name": flavor.name,
        "region_name": region, "cpu": flavor.vcpus, "ram": f64::from(flavor.memory_gb), "disk": 100,
        "ephemeral": flavor.detail, "gpu": flavor.gpu, "gpu_count": flavor.gpus, "features": {},
        "labels": labels.into_iter().collect::<Vec<_>>(), "stock_available": left != Left::Count(0),
        "created_at": "2026-01-15T12:00:00",
    })
}

/// Items of the region that a call asks for, or of all, in groups that have the same region and value.
fn grouped(visit: &Visit<'_>, items: Vec<Value>, [by, name]: [&str; 2]) -> Result<Vec<Value>, Refusal> {
    let asked = visit.request.parameter("region");
    if asked.is_some_and(|asked| !REGIONS.contains(&asked)) {
        return Err(missing("region"));
    }
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for item in items {
        let group = format!("{} {}", item["region_name"], item[by]);
        groups.entry(group).or_default().push(item);
    }
    let group = |all: Vec<Value>| json!({ "region_name": all[0]["region_name"], by: all[0][by], name: all });
    let mut groups: Vec<Value> = groups.into_values().map(group).collect();
    groups.retain(|group| asked.is_none_or(|asked| group["region_name"] == asked));
    Ok(visit.truncate(groups))
}

pub(super) fn flavors(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let all = REGIONS.iter().flat_map(|region| {
        let sold = sold(visit.world, region);
        sold.map(move |(flavor, left)| shown(flavor, region, left))
    });
    ok(json!({ "data": grouped(visit, all.collect(), ["gpu", "flavors"])? }))
}

/// How many VMs of each size are left of each GPU of each region.
pub(super) fn stocks(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let stock = |region: &String| {
        let mut models: BTreeMap<&str, Value> = BTreeMap::new();
        for (flavor, left) in sold(visit.world, region).filter(|(flavor, _)| flavor.gpus > 0) {
            let (count, told) = match left {
                Left::Plenty => (10, "5+".to_owned()),
                Left::Count(count) => (count, count.to_string()),
            };
            let new = || json!({ "model": flavor.gpu, "available": told });
            let model = models.entry(&flavor.gpu).or_insert_with(new);
            if count > 0 {
                model["available"] = json!(told);
            }
            model["configurations"][format!("{}x", flavor.gpus)] = json!(count);
        }
        json!({ "region": region, "stock-type": "GPU", "models": models.into_values().collect::<Vec<_>>() })
    };
    let stocks = visit.world.regions.iter().map(stock).collect();
    ok(json!({ "stocks": visit.truncate(stocks) }))
}

/// The price book, a bare list: of one GPU, and of what VMs have beside it.
pub(super) fn prices(api: &Hyperstack, visit: &mut Visit<'_>) -> Answer {
    let mut prices = BTreeMap::from([("PublicIP", ADDRESS), ("vCPU", Decimal::ZERO)]);
    for flavor in visit.world.types.values().filter(|flavor| flavor.gpus > 0) {
        let (price, count) = (flavor.price(market(&flavor.name)), Decimal::from(flavor.gpus));
        prices.extend(price.map(|price| (flavor.gpu.as_str(), price / count)));
    }
    let row = |(number, (name, price)): (usize, (&str, Decimal))| {
        let text = Some(price.to_string()).filter(|_| api.mixed && number % 2 == 0);
        let value = text.map_or_else(|| json!(price.to_f64()), Value::from);
        json!({
            "id": number + 1, "name": name, "value": value, "original_value": value, "discount_applied": false,
        })
    };
    let rows = prices.into_iter().enumerate().map(row).collect();
    Answer::json(200, &visit.truncate(rows).into())
}

pub(super) fn regions(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let shown = |name: &str| json!({ "id": 1 + place(name), "name": name, "features": features(name) });
    ok(json!({ "regions": visit.truncate(REGIONS.map(shown).to_vec()) }))
}

/// An image must be there, and be one for a flavor.
pub(super) fn check_image(name: &str, flavor: &str) -> Result<(), Refusal> {
    match IMAGES.iter().find(|(known, _)| *known == name) {
        Some((_, Some(only))) if *only != flavor => bad("The image cannot be used with the flavor"),
        Some(_) => Ok(()),
        None => Err(missing("image")),
    }
}

/// An image as it is shown in a region. Its name is its type and its version.
fn shown_image(region: &str, number: usize) -> Value {
    let (name, only) = IMAGES[number];
    let (kind, version) = name.split_once(' ').unwrap_or_default();
    let links = only.map(|flavor| json!({ "flavor_name": flavor, "link_type": "hard" }));
    json!({
        "id": 10_000 + place(region) + number, "name": name, "region_name": region, "type": kind, "version": version,
        "size": 20_000_000_000_u64, "display_size": "20.0 GB", "description": name, "is_public": true, "labels": [],
        "flavor_restrictions": {
            "has_flavor_restrictions": only.is_some(), "restriction_type": only.map(|_| "hard"),
            "compatible_flavors": links.into_iter().collect::<Vec<_>>(),
        },
    })
}

pub(super) fn images(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let search = visit.request.parameter("search").unwrap_or_default();
    let of = |region: &'static str| (0..IMAGES.len()).map(move |number| shown_image(region, number));
    let all = REGIONS.into_iter().flat_map(of);
    let all = all.filter(|image| is_named(image, search)).collect();
    ok(json!({ "images": grouped(visit, all, ["type", "images"])? }))
}
