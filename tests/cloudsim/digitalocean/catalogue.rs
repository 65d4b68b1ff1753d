//! Sizes and the regions that have some left; images; VPCs; the account.

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};

use super::listed;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

/// The hours that are charged of a month (docs.digitalocean.com, "Droplet Pricing").
const MONTH: i64 = 672;

/// Slug, GPU, numbers, regions. The numbers: GPUs, GB of all their memory, vCPUs, GB of memory, of disk
/// and of scratch disk, cents for an hour.
type SizeRow = (&'static str, &'static str, [u32; 7], &'static [&'static str]);

#[rustfmt::skip]
const SIZES: [SizeRow; 8] = [
    ("gpu-h100x1-80gb", "nvidia_h100", [1, 80, 20, 240, 720, 5_120, 339], &["tor1", "nyc2"]),
    ("gpu-h100x8-640gb", "nvidia_h100", [8, 640, 160, 1_920, 2_046, 40_960, 2_392], &["tor1"]),
    ("gpu-l40sx1-48gb", "nvidia_l40s", [1, 48, 8, 64, 500, 0, 157], &["tor1"]),
    ("gpu-4000adax1-20gb", "nvidia_rtx4000_ada", [1, 20, 8, 32, 500, 0, 76], &["tor1", "nyc2"]),
    ("gpu-6000adax1-48gb", "nvidia_rtx6000_ada", [1, 48, 8, 64, 500, 0, 157], &[]),
    ("gpu-mi300x1-192gb", "amd_mi300x", [1, 192, 20, 240, 720, 5_120, 199], &["ams3"]),
    ("gpu-mi300x8-1536gb-contracted", "amd_mi300x", [8, 1_536, 160, 1_920, 2_046, 40_960, 1_592], &["ams3"]),
    ("s-2vcpu-4gb", "", [0, 0, 2, 4, 80, 0, 4], &["ams3", "nyc2", "tor1"]),
];

/// Slug and name.
const REGIONS: [(&str, &str); 3] = [
    ("ams3", "Amsterdam 3"),
    ("nyc2", "New York 2"),
    ("tor1", "Toronto 1"),
];

/// Id, slug and name. No image is an application.
const IMAGES: [(u64, &str, &str); 4] = [
    (166_407_044, "gpu-h100x1-base", "AI/ML Ready H100x1"),
    (166_407_045, "gpu-h100x8-base", "AI/ML Ready H100x8"),
    (188_571_990, "gpu-amd-base", "AMD AI/ML Ready"),
    (195_932_981, "ubuntu-24-04-x64", "24.04 (LTS) x64"),
];

pub(super) fn furnish(world: &mut World) {
    world.regions = REGIONS.map(|(slug, _)| slug.to_owned()).to_vec();
    for (name, gpu, numbers, regions) in SIZES {
        let [gpus, vram, vcpus, memory_gb, disk, scratch, cents] = numbers;
        let numbers = [gpus, vram / gpus.max(1), vcpus, memory_gb];
        world.add_type(InstanceType {
            detail: json!({ "disk": disk, "scratch": scratch, "contract": name.ends_with("-contracted") }),
            ..InstanceType::on_demand(name, gpu, numbers, Decimal::new(cents.into(), 2))
        });
        for region in regions.iter().filter(|_| !name.ends_with("-contracted")) {
            let shelf = Shelf::new(name, region, Market::OnDemand);
            world.stock.set(shelf, Left::Plenty);
        }
    }
}

/// Whether a size is listed for a region. One that needs a contract is, and cannot be ordered.
fn is_listed(world: &World, size: &InstanceType, region: &str) -> bool {
    let shelf = Shelf::new(&size.name, region, Market::OnDemand);
    size.detail["contract"] == true || world.stock.has(&shelf)
}

/// A size, with the fields that a Droplet has as well.
pub(super) fn size(world: &World, size: &InstanceType) -> Value {
    let disk =
        |kind: &str, amount: &Value| json!({ "type": kind, "size": { "amount": amount, "unit": "gib" } });
    let [boot, scratch] = [&size.detail["disk"], &size.detail["scratch"]];
    let mut disks = vec![disk("local", boot)];
    disks.extend((*scratch != 0).then(|| disk("scratch", scratch)));
    let month = size.on_demand * Decimal::from(MONTH);
    let regions = world.regions.iter();
    let regions: Vec<_> = regions.filter(|region| is_listed(world, size, region)).collect();
    let mut value = json!({
        "slug": size.name, "memory": size.memory_gb * 1024, "vcpus": size.vcpus, "disk": boot, "disk_info": disks,
        "transfer": 15.0, "price_monthly": month.to_f64(), "price_hourly": size.on_demand.to_f64(),
        "regions": regions, "available": true, "description": "Example",
    });
    if size.gpus > 0 {
        let vram = json!({ "amount": size.gpu_memory_gb * size.gpus, "unit": "gib" });
        value["gpu_info"] = json!({ "count": size.gpus, "model": size.gpu, "vram": vram });
    } else {
        // As in the description: a price that went through 32 bits.
        value["price_hourly"] = size.on_demand.to_f32().map(f64::from).into();
    }
    value
}

pub(super) fn sizes(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let sizes = visit.world.types.values();
    listed(visit, "sizes", sizes.map(|known| size(visit.world, known)))
}

pub(super) fn region(world: &World, slug: &str) -> Value {
    let mut names = REGIONS.iter().filter(|(known, _)| *known == slug);
    let sizes = world.types.values().filter(|size| is_listed(world, size, slug));
    json!({
        "slug": slug, "name": names.next().map(|(_, name)| name), "features": ["metadata", "install_agent"],
        "available": true, "sizes": sizes.map(|size| &size.name).collect::<Vec<_>>(),
    })
}

pub(super) fn regions(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let slugs = visit.world.regions.iter();
    listed(visit, "regions", slugs.map(|slug| region(visit.world, slug)))
}

/// An image by its id or slug.
pub(super) fn image(named: &str) -> Option<Value> {
    let is = |(id, slug, _): &&(u64, &str, &str)| named == *slug || named == id.to_string();
    let (id, slug, name) = IMAGES.iter().find(is)?;
    Some(json!({
        "id": id, "slug": slug, "name": name, "type": "base", "distribution": "Ubuntu", "public": true,
        "regions": REGIONS.map(|(region, _)| region), "created_at": "2026-01-15T12:00:00Z", "min_disk_size": 25,
        "size_gigabytes": 18.47, "description": name, "tags": [], "status": "available", "error_message": "",
    }))
}

pub(super) fn images(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let query = &visit.request.query;
    let none = query
        .iter()
        .any(|(name, value)| name == "tag_name" || ["application", "true"].contains(&value.as_str()));
    let slugs = IMAGES.iter().map(|(_, slug, _)| *slug).filter(|_| !none);
    listed(visit, "images", slugs.filter_map(image))
}

/// The id of the default VPC of a region.
pub(super) fn vpc(region: &str) -> String {
    let number = REGIONS.iter().take_while(|(slug, _)| *slug != region).count();
    format!("5a4981aa-9653-4bd1-bef5-d6bff520400{number}")
}

pub(super) fn vpcs(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let shown = |(slug, _): &(&str, &str)| {
        json!({
            "id": vpc(slug), "urn": format!("do:vpc:{}", vpc(slug)), "name": format!("default-{slug}"),
            "description": "", "region": slug, "ip_range": "10.100.0.0/20", "default": true,
            "created_at": "2026-01-15T12:00:00Z",
        })
    };
    listed(visit, "vpcs", REGIONS.iter().map(shown))
}

pub(super) fn account(visit: &mut Visit<'_>) -> Answer {
    let account = visit.world.accounts.get(&visit.account);
    let limit = account.and_then(|account| account.quotas.get("instances"));
    let account = json!({
        "droplet_limit": limit.unwrap_or(&25), "floating_ip_limit": 3, "name": visit.account, "uuid": vpc("ams3"),
        "email": format!("{}@example.com", visit.account), "email_verified": true, "status": "active",
        "status_message": "",
    });
    Answer::json(200, &json!({ "account": account }))
}
