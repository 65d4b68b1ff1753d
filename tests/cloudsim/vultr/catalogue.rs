//! Plans and the regions that have some left; systems; the account.

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};

use super::{listed, missing};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::meter::Meter;
use crate::core::world::World;

/// The most hours that Vultr charges of a month: 730 of an instance with GPUs, 672 of any other server
/// (docs.vultr.com, "How am I billed for my servers?", of September 2025).
fn month(plan: &str) -> Decimal {
    Decimal::from(if plan.starts_with("vcg-") { 730 } else { 672 })
}

/// Id, GPU, its memory in GB and how many, vCPUs, memory and disk in GB, dollars for a month, regions.
/// A part of a GPU counts as one.
type PlanRow = (
    &'static str,
    &'static str,
    u32,
    u32,
    u32,
    u32,
    u32,
    i64,
    &'static [&'static str],
);

// Each month's price is that of so many hours without a remainder.
#[rustfmt::skip]
const PLANS: [PlanRow; 9] = [
    ("vcg-a16-2c-8g-2vram", "NVIDIA_A16", 2, 1, 2, 8, 50, 73, &["ewr", "lhr"]),
    ("vcg-a16-6c-64g-16vram", "NVIDIA_A16", 16, 1, 6, 64, 350, 365, &["ewr"]),
    ("vcg-a40-24c-120g-48vram", "NVIDIA_A40", 48, 1, 24, 120, 1400, 1_095, &["ewr", "lhr"]),
    ("vcg-a100-12c-120g-80vram", "NVIDIA_A100", 80, 1, 12, 120, 1400, 1_825, &["ewr"]),
    ("vcg-a100-24c-240g-160vram", "NVIDIA_A100", 160, 2, 24, 240, 1600, 3_650, &[]),
    ("vcg-l40s-16c-180g-48vram", "NVIDIA_L40S", 48, 1, 16, 180, 1200, 1_168, &["ord"]),
    ("vc2-2c-4gb", "", 0, 0, 2, 4, 80, 21, &["ewr", "lhr", "ord"]),
    ("vbm-112c-2048gb-8-h100-gpu", "NVIDIA_H100", 640, 8, 112, 2048, 960, 16_128, &["ord"]),
    ("vbm-4c-32gb", "", 0, 0, 4, 32, 240, 84, &["ewr", "ord"]),
];

/// Id, city, country and continent.
const REGIONS: [(&str, &str, &str, &str); 3] = [
    ("ewr", "New Jersey", "US", "North America"),
    ("lhr", "London", "GB", "Europe"),
    ("ord", "Chicago", "US", "North America"),
];

/// Id, name and family.
const SYSTEMS: [(u64, &str, &str); 3] = [
    (1743, "Ubuntu 22.04 LTS x64", "ubuntu"),
    (2136, "Debian 12 x64 (bookworm)", "debian"),
    (2284, "Ubuntu 24.04 LTS x64", "ubuntu"),
];

/// The name of a system.
pub(super) fn system(id: u64) -> Option<&'static str> {
    let known = SYSTEMS.iter().find(|(number, ..)| *number == id);
    known.map(|(_, name, _)| *name)
}

/// Whether a plan is one of bare metal.
pub(super) fn is_metal(plan: &str) -> bool {
    plan.starts_with("vbm-")
}

pub(super) fn furnish(world: &mut World) {
    world.regions = REGIONS.iter().map(|(id, ..)| (*id).to_owned()).collect();
    for (name, gpu, vram, gpus, vcpus, memory, disk, cost, regions) in PLANS {
        world.add_type(InstanceType {
            name: name.to_owned(),
            vcpus,
            memory_gb: memory,
            gpus,
            gpu: gpu.to_owned(),
            gpu_memory_gb: vram,
            architecture: "x86_64".to_owned(),
            on_demand: (Decimal::from(cost) / month(name)).normalize(),
            spot: None,
            detail: json!({ "disk": disk }),
        });
        for region in regions {
            let shelf = Shelf::new(name, region, Market::OnDemand);
            world.stock.set(shelf, Left::Plenty);
        }
    }
}

/// What the id of a plan begins with.
fn family(plan: &InstanceType) -> &str {
    plan.name.split('-').next().unwrap_or_default()
}

fn is_of_type(plan: &InstanceType, asked: Option<&str>) -> bool {
    asked.is_none_or(|kind| kind == "all" || kind == family(plan))
}

/// An amount as Vultr writes it: without a point where none is needed.
fn amount(money: Decimal) -> Value {
    if money.is_integer() {
        money.to_i64().into()
    } else {
        money.to_f64().into()
    }
}

/// Where some of a plan is left.
fn locations(world: &World, plan: &str) -> Vec<String> {
    let has = |region: &&String| world.stock.has(&Shelf::new(plan, region, Market::OnDemand));
    world.regions.iter().filter(has).cloned().collect()
}

fn shown(world: &World, plan: &InstanceType) -> Value {
    let mut value = json!({
        "id": plan.name, "ram": plan.memory_gb * 1024, "disk": plan.detail["disk"], "disk_count": 1,
        "bandwidth": 10_240, "monthly_cost": amount(plan.on_demand * month(&plan.name)), "type": family(plan),
        "locations": locations(world, &plan.name),
    });
    if is_metal(&plan.name) {
        value["cpu_count"] = plan.vcpus.into();
        value["cpu_threads"] = (plan.vcpus * 2).into();
        value["cpu_model"] = "Platinum 8480+".into();
        // A number to the client for Go, a text in the description.
        value["disk"] = plan.detail["disk"].to_string().into();
        value["type"] = "NVMe".into();
        return value;
    }
    value["vcpu_count"] = plan.vcpus.into();
    if plan.gpus > 0 {
        value["gpu_vram_gb"] = plan.gpu_memory_gb.into();
        value["gpu_type"] = plan.gpu.clone().into();
    }
    // Not every plan tells the price of an hour.
    if !plan.name.starts_with("vcg-a40-") {
        value["hourly_cost"] = amount(plan.on_demand);
    }
    value
}

/// Plans, in a field of this name.
pub(super) fn plans(visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    let asked = visit.request.parameter("type");
    let metal = name == "plans_metal";
    let meant = |plan: &&InstanceType| is_metal(&plan.name) == metal && is_of_type(plan, asked);
    let found = visit.world.types.values().filter(meant);
    let found = found.map(|plan| (plan.name.clone(), shown(visit.world, plan)));
    listed(visit, name, found.collect())
}

pub(super) fn regions(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let shown = |(id, city, country, continent): (&str, &str, &str, &str)| {
        let place =
            json!({ "id": id, "city": city, "country": country, "continent": continent, "options": [] });
        (id.to_owned(), place)
    };
    listed(visit, "regions", REGIONS.into_iter().map(shown).collect())
}

pub(super) fn systems(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let shown = |(id, name, family): (u64, &str, &str)| {
        let system = json!({ "id": id, "name": name, "arch": "x64", "family": family });
        (format!("{id:05}"), system)
    };
    listed(visit, "os", SYSTEMS.into_iter().map(shown).collect())
}

/// The plans that are left in a region. There are no pages.
pub(super) fn stock(visit: &mut Visit<'_>, region: &str) -> Result<Answer, Refusal> {
    if !visit.world.regions.iter().any(|known| known == region) {
        return Err(missing("region"));
    }
    let asked = visit.request.parameter("type");
    let has = |plan: &&InstanceType| {
        let shelf = Shelf::new(&plan.name, region, Market::OnDemand);
        visit.world.stock.has(&shelf) && is_of_type(plan, asked)
    };
    let left = visit.world.types.values().filter(has);
    let left = visit.truncate(left.map(|plan| Value::from(plan.name.clone())).collect());
    Ok(Answer::json(200, &json!({ "available_plans": left })))
}

/// Money paid ahead is a negative balance.
pub(super) fn account(visit: &mut Visit<'_>) -> Answer {
    let charges = Meter::new(visit.world).bill(&visit.account);
    let account = visit.world.accounts.get(&visit.account);
    let balance = account.and_then(|account| account.balance).unwrap_or_default();
    let account = json!({
        "name": visit.account, "email": format!("{}@example.com", visit.account), "acls": ["provisioning"],
        "balance": amount(-balance), "pending_charges": amount(charges),
    });
    Answer::json(200, &json!({ "account": account }))
}
