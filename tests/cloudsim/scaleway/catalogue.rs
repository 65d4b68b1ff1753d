//! Types with their prices and what is left of them; images; security groups.

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};

use super::{listed, things, zone};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

pub(super) const GB: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

/// Name, GPU, numbers, zones. The numbers: GPUs, GiB of memory of each, vCPUs, GiB of memory, thousandths of
/// a euro for an hour.
type TypeRow = (&'static str, &'static str, [u32; 5], &'static [&'static str]);

#[rustfmt::skip]
const TYPES: [TypeRow; 7] = [
    ("L4-1-24G", "L4", [1, 24, 8, 48, 750], &["fr-par-1", "fr-par-2", "pl-waw-2", "pl-waw-3"]),
    ("L4-2-24G", "L4", [2, 24, 16, 96, 1_500], &["fr-par-2"]),
    ("L40S-1-48G", "L40S", [1, 48, 8, 96, 1_400], &["fr-par-2"]),
    ("H100-1-80G", "H100-PCIe", [1, 80, 24, 240, 2_730], &["fr-par-2", "nl-ams-1"]),
    ("H100-SXM-8-80G", "H100-SXM", [8, 80, 128, 960, 23_028], &["fr-par-2"]),
    ("RENDER-S", "P100", [1, 16, 10, 42, 1_240], &["fr-par-1"]),
    ("POP2-2C-8G", "", [0, 0, 2, 8, 74], &["fr-par-1", "fr-par-2", "nl-ams-1", "pl-waw-3"]),
];

/// The type that is sold no more.
const GONE: &str = "RENDER-S";

#[rustfmt::skip]
const ZONES: [&str; 9] = [
    "fr-par-1", "fr-par-2", "fr-par-3", "nl-ams-1", "nl-ams-2", "nl-ams-3", "pl-waw-1", "pl-waw-2", "pl-waw-3",
];

/// The organization of Scaleway's own images.
const SCALEWAY: &str = "51b656e3-4865-41e8-adbc-0c45bdd780db";

/// Label, name, type of the root volume, the least GB of a server's. The last one is the local variant of the first.
#[rustfmt::skip]
const IMAGES: [(&str, &str, &str, u64); 3] = [
    ("ubuntu_noble", "Ubuntu 24.04 Noble Numbat", "sbs_snapshot", 10),
    ("ubuntu_noble_gpu_os_13_nvidia", "Ubuntu Noble GPU OS 13 (NVIDIA)", "sbs_snapshot", 20),
    ("ubuntu_noble", "Ubuntu 24.04 Noble Numbat", "l_ssd", 10),
];

pub(super) fn furnish(world: &mut World) {
    world.regions = ZONES.map(str::to_owned).to_vec();
    for (name, gpu, [gpus, vram, vcpus, memory_gb, price], zones) in TYPES {
        let price = Decimal::new(price.into(), 3);
        world.add_type(InstanceType::on_demand(
            name,
            gpu,
            [gpus, vram, vcpus, memory_gb],
            price,
        ));
        let left = [Left::Plenty, Left::Count(0)][usize::from(name == GONE)];
        for zone in zones {
            world.stock.set(Shelf::new(name, zone, Market::OnDemand), left);
        }
    }
}

/// The types of a zone, be some left or none.
fn sold<'a>(world: &'a World, zone: &'a str) -> impl Iterator<Item = (&'a InstanceType, Left)> {
    let here = move |(shelf, _): &(&Shelf, Left)| shelf.region == zone;
    let shelves = world.stock.shelves().filter(here);
    shelves.filter_map(|(shelf, left)| Some((world.types.get(&shelf.instance_type)?, left)))
}

/// A type that is sold in a zone.
pub(super) fn find(world: &World, zone: &str, name: &str) -> Option<InstanceType> {
    let (kind, _) = sold(world, zone).find(|(kind, _)| kind.name == name)?;
    Some(kind.clone())
}

fn shown(kind: &InstanceType) -> Value {
    let none = json!({ "min_size": 0, "max_size": 0 });
    let gpu = json!({
        "gpu_manufacturer": "NVIDIA", "gpu_name": kind.gpu, "gpu_memory": u64::from(kind.gpu_memory_gb) * GIB,
    });
    json!({
        "hourly_price": kind.on_demand.to_f64(), "monthly_price": null, "alt_names": [], "ncpus": kind.vcpus,
        "ram": u64::from(kind.memory_gb) * GIB, "gpu": kind.gpus, "gpu_info": (kind.gpus > 0).then_some(gpu),
        "arch": kind.architecture, "volumes_constraint": none, "per_volume_constraint": { "l_ssd": none },
        "capabilities": { "block_storage": true, "boot_types": ["local", "rescue"], "max_file_systems": 0 },
        "network": { "interfaces": [], "ipv6_support": true }, "scratch_storage_max_size": null,
        "scratch_storage_max_volumes_count": 0, "end_of_service": kind.name == GONE,
    })
}

/// A page of what each type of a zone has, as a map by their names.
fn map(visit: &Visit<'_>, show: fn(&InstanceType, Left) -> Value) -> Result<Answer, Refusal> {
    let zone = zone(visit)?;
    let pairs = sold(visit.world, &zone).map(|(kind, left)| json!([kind.name, show(kind, left)]));
    let mut answer = listed(visit, "servers", pairs)?;
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let pairs: Vec<(String, Value)> = serde_json::from_value(body["servers"].take()).unwrap_or_default();
    body["servers"] = Value::Object(pairs.into_iter().collect());
    answer.body = body.to_string().into();
    Ok(answer)
}

pub(super) fn types(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    map(visit, |kind, _| shown(kind))
}

pub(super) fn stock(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    map(visit, |_, left| match left {
        Left::Plenty => json!({ "availability": "available" }),
        Left::Count(0) => json!({ "availability": "shortage" }),
        Left::Count(_) => json!({ "availability": "scarce" }),
    })
}

/// The images of a zone with their labels.
fn images_of(zone: &str) -> impl Iterator<Item = (&'static str, Value)> {
    let place = ZONES.iter().take_while(|known| **known != zone).count();
    IMAGES.iter().enumerate().map(move |(number, (label, name, volume, size))| {
        let id = format!("7c1e0000-0000-4000-8000-0000000{place:02}{number:03}");
        let told = if *volume == "l_ssd" { size * GB } else { 0 };
        let root = json!({ "id": id.replace("7c1e", "70ce"), "name": name, "size": told, "volume_type": volume });
        let created = "2026-01-15T12:00:00.000000+00:00";
        let image = json!({
            "id": id, "name": name, "arch": "x86_64", "creation_date": created, "modification_date": created,
            "default_bootscript": null, "extra_volumes": {}, "from_server": "", "organization": SCALEWAY,
            "project": SCALEWAY, "public": true, "root_volume": root, "state": "available", "tags": [], "zone": zone,
        });
        (*label, image)
    })
}

/// An image by its id in a zone, or by its label.
pub(super) fn image(zone: &str, named: &str) -> Option<Value> {
    let mut images = images_of(zone);
    let found = images.find(|(label, image)| *label == named || image["id"] == named);
    found.map(|(_, image)| image)
}

/// The least bytes of the root volume of a server of this image.
pub(super) fn least(image: &Value) -> u64 {
    let known = IMAGES.iter().find(|(_, name, _, _)| image["name"] == *name);
    known.map_or(GB, |(_, _, _, size)| size * GB)
}

pub(super) fn images(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = zone(visit)?;
    let images = images_of(&zone).map(|(_, image)| image);
    let fits = |image: &Value| visit.fits(image, &["arch"]) && things::is_meant(visit, image);
    let public = visit.request.parameter("public") != Some("false");
    listed(visit, "images", images.filter(|image| public && fits(image)))
}

/// The id of the default security group of a zone.
pub(super) fn group(zone: &str) -> String {
    let place = ZONES.iter().take_while(|known| **known != zone).count();
    format!("5ec00000-0000-4000-8000-0000000000{place:02}")
}

pub(super) fn groups(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = zone(visit)?;
    let group = json!({
        "id": group(&zone), "name": "Default security group", "description": "", "enable_default_security": true,
        "inbound_default_policy": "accept", "outbound_default_policy": "accept", "organization": visit.account,
        "project": visit.request.parameter("project"), "tags": [], "project_default": true, "servers": [],
        "stateful": true, "state": "available", "zone": zone,
    });
    let meant = things::is_meant(visit, &group);
    listed(visit, "security_groups", meant.then_some(group).into_iter())
}
