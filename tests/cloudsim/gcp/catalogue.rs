//! What a project can rent and where: zones, machine types, accelerators, images, quotas.

use std::collections::BTreeSet;

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::lists::{Item, list, of_zones};
use super::{Gcp, enter, missing, path, target, url, with_usual};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Machine;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::World;

/// What every object of the cloud itself says of when it was made.
const LONG_AGO: &str = "1969-12-31T16:00:00.000-08:00";
/// What a quota is where no test says otherwise.
const QUOTA: u64 = 128;
/// The metric of the quota of the project.
const ALL_GPUS: &str = "GPUS_ALL_REGIONS";

#[rustfmt::skip]
const ZONES: [&str; 7] = [
    "asia-southeast1-c", "europe-west4-a", "europe-west4-b", "us-central1-a", "us-central1-b", "us-central1-c", "us-east5-b",
];
/// It is down.
const DOWN: &str = "asia-southeast1-c";

const IOWA: &[&str] = &["us-central1-a", "us-central1-b", "us-central1-c"];
#[rustfmt::skip]
const MOST: &[&str] =
    &["europe-west4-a", "europe-west4-b", "us-central1-a", "us-central1-b", "us-central1-c"];
const TWO: &[&str] = &["europe-west4-b", "us-central1-a"];
const OHIO: &[&str] = &["us-east5-b"];

/// Name and accelerator, numbers, prices, zones. The numbers: GPUs, GB of memory of each, vCPUs, GB of memory. The prices: USD
/// an hour on demand and as spot. No price is a market on which the type is not sold.
type TypeRow = (Two, [u32; 4], Two, &'static [&'static str]);
type Two = [&'static str; 2];

const A100: &str = "nvidia-tesla-a100";
const A100_80: &str = "nvidia-a100-80gb";
const H100: &str = "nvidia-h100-80gb";
const L4: &str = "nvidia-l4";
const T4: &str = "nvidia-tesla-t4";
const V100: &str = "nvidia-tesla-v100";

// Prices are those that Google publishes for Iowa, as far as it does; all zones have them here.
#[rustfmt::skip]
const TYPES: [TypeRow; 22] = [
    (["a2-highgpu-1g", A100], [1, 40, 12, 85], ["3.673385", "2.12081"], MOST),
    (["a2-highgpu-2g", A100], [2, 40, 24, 170], ["7.34677", "4.24162"], MOST),
    (["a2-highgpu-8g", A100], [8, 40, 96, 680], ["29.38708", "16.96648"], MOST),
    (["a2-ultragpu-1g", A100_80], [1, 80, 12, 170], ["5.06879789", "2.759546302"], TWO),
    (["a2-ultragpu-8g", A100_80], [8, 80, 96, 1_360], ["40.550383123", "22.076370411"], TWO),
    (["a3-highgpu-1g", H100], [1, 80, 26, 234], ["", "6.326192603"], TWO),
    (["a3-highgpu-2g", H100], [2, 80, 52, 468], ["", "12.652385206"], TWO),
    (["a3-highgpu-4g", H100], [4, 80, 104, 936], ["", "25.304770411"], TWO),
    (["a3-highgpu-8g", H100], [8, 80, 208, 1_872], ["88.490000119", "50.609540822"], TWO),
    (["a3-megagpu-8g", "nvidia-h100-mega-80gb"], [8, 80, 208, 1_872], ["93.400712807", "53.35"], TWO),
    // It is sold out.
    (["a3-ultragpu-8g", "nvidia-h200-141gb"], [8, 141, 224, 2_952], ["84.806908493", "29.7"], OHIO),
    (["a4-highgpu-8g", "nvidia-b200"], [8, 180, 224, 3_968], ["128.88", "39.6336"], OHIO),
    (["c4a-standard-4", ""], [0, 0, 4, 16], ["0.18", "0.072"], TWO),
    (["e2-standard-4", ""], [0, 0, 4, 16], ["0.134", "0.054"], MOST),
    (["g2-standard-4", L4], [1, 24, 4, 16], ["0.706832276", "0.423956"], MOST),
    (["g2-standard-8", L4], [1, 24, 8, 32], ["0.853624312", "0.479872"], MOST),
    (["g2-standard-48", L4], [4, 24, 48, 192], ["4.001665392", "2.249632"], MOST),
    (["g2-standard-96", L4], [8, 24, 96, 384], ["8.003330784", "4.499264"], MOST),
    (["n1-standard-8", ""], [0, 0, 8, 30], ["0.38", "0.08"], MOST),
    (["n1-standard-16", ""], [0, 0, 16, 60], ["0.76", "0.16"], MOST),
    (["n1-standard-32", ""], [0, 0, 32, 120], ["1.52", "0.32"], MOST),
    (["n1-standard-96", ""], [0, 0, 96, 360], ["4.56", "0.96"], MOST),
];

/// An accelerator that is attached to N1: GB of memory, USD an hour on demand and as spot, and how many vCPUs an
/// instance with so many has at most.
type AttachedRow = (&'static str, u32, Two, &'static [(u32, u32)]);

#[rustfmt::skip]
const ATTACHED: [AttachedRow; 2] = [
    (T4, 16, ["0.35", "0.14"], &[(1, 48), (2, 48), (4, 96)]),
    (V100, 16, ["2.48", "0.992"], &[(1, 12), (2, 24), (4, 48), (8, 96)]),
];

/// Name, most cards of an instance, zones. Workstations and TPUs are among them.
#[rustfmt::skip]
const ACCELERATORS: [(&str, u32, &[&str]); 11] = [
    ("ct5lp", 8, IOWA),
    (A100_80, 8, TWO),
    ("nvidia-b200", 8, OHIO),
    (H100, 8, TWO),
    ("nvidia-h100-mega-80gb", 8, TWO),
    ("nvidia-h200-141gb", 8, OHIO),
    (L4, 8, MOST),
    ("nvidia-l4-vws", 8, MOST),
    (A100, 16, MOST),
    (T4, 4, MOST),
    (V100, 8, MOST),
];

/// An image.
#[derive(Debug)]
pub(super) struct Image {
    project: &'static str,
    family: &'static str,
    version: &'static str,
    /// `X86_64` or `ARM64`.
    pub(super) architecture: &'static str,
    /// The least size of its disk in GB.
    pub(super) size: u32,
    /// Whether the drivers of GPUs are on it.
    pub(super) has_drivers: bool,
}

const DEEP: &str = "deeplearning-platform-release";
const UBUNTU: &str = "ubuntu-os-cloud";

// A row for each image.
#[rustfmt::skip]
static IMAGES: [Image; 3] = [
    Image { project: DEEP, family: "common-cu128-ubuntu-2204-nvidia-570", version: "common-cu128-ubuntu-2204-nvidia-570-v20261020", architecture: "X86_64", size: 50, has_drivers: true },
    Image { project: UBUNTU, family: "ubuntu-2404-lts-amd64", version: "ubuntu-2404-noble-amd64-v20261112", architecture: "X86_64", size: 10, has_drivers: false },
    Image { project: UBUNTU, family: "ubuntu-2404-lts-arm64", version: "ubuntu-2404-noble-arm64-v20261112", architecture: "ARM64", size: 10, has_drivers: false },
];

/// Prices on demand and as spot; 0 where there is none.
fn dollars(prices: [&str; 2]) -> [Decimal; 2] {
    prices.map(|price| price.parse().unwrap_or_default())
}

/// The name of an N1 type with accelerators: Google sells both together, and has no name for it.
pub(super) fn with(name: &str, accelerator: &str, count: u32) -> String {
    format!("{name}+{accelerator}x{count}")
}

/// Puts a type with its accelerator on the shelves of zones.
fn put(world: &mut World, [name, gpu]: [&str; 2], numbers: [u32; 4], prices: [Decimal; 2], zones: &[&str]) {
    let [price, spot] = prices;
    let mut kind = InstanceType::on_demand(name, gpu, numbers, price);
    kind.spot = Some(spot).filter(|spot| !spot.is_zero());
    if name.starts_with("c4a") {
        "arm64".clone_into(&mut kind.architecture);
    }
    world.add_type(kind);
    let left = [Left::Plenty, Left::Count(0)][usize::from(name == "a3-ultragpu-8g")];
    let markets = [(Market::OnDemand, price), (Market::Spot, spot)];
    for (market, _) in markets.into_iter().filter(|(_, price)| !price.is_zero()) {
        for zone in zones {
            world.stock.set(Shelf::new(name, zone, market), left);
        }
    }
}

pub(super) fn furnish(world: &mut World) {
    world.regions = ZONES.map(str::to_owned).to_vec();
    for ([name, gpu], numbers, prices, zones) in TYPES {
        let [price, spot] = dollars(prices);
        put(world, [name, gpu], numbers, [price, spot], zones);
        let [_, _, vcpus, memory] = numbers;
        for (card, vram, each, counts) in ATTACHED {
            let can_have = |most: u32| name.starts_with("n1-") && vcpus <= most;
            for (count, _) in counts.iter().filter(|(_, most)| can_have(*most)) {
                let [each, each_spot] = dollars(each).map(|each| each * Decimal::from(*count));
                let numbers = [*count, vram, vcpus, memory];
                let prices = [price + each, spot + each_spot];
                put(world, [&with(name, card, *count), card], numbers, prices, zones);
            }
        }
    }
}

/// The region of a zone.
pub(super) fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

/// A type that a zone has.
pub(super) fn find<'a>(world: &'a World, zone: &str, name: &str) -> Option<&'a InstanceType> {
    let mut shelves = world.stock.shelves();
    let is_sold = shelves.any(|(shelf, _)| shelf.region == zone && shelf.instance_type == name);
    world.types.get(name).filter(|_| is_sold)
}

/// The name that the driver of a GPU gives it.
pub(super) fn card(accelerator: &str) -> &'static str {
    match accelerator {
        A100 => "NVIDIA A100-SXM4-40GB",
        A100_80 => "NVIDIA A100-SXM4-80GB",
        H100 | "nvidia-h100-mega-80gb" => "NVIDIA H100 80GB HBM3",
        "nvidia-h200-141gb" => "NVIDIA H200",
        "nvidia-b200" => "NVIDIA B200",
        L4 => "NVIDIA L4",
        T4 => "Tesla T4",
        _ => "Tesla V100-SXM2-16GB",
    }
}

/// A number for the id of something that the cloud has itself.
fn number(text: &str) -> String {
    let add = |sum: u64, byte: u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    let sum = text.bytes().fold(7, add);
    (1_000_000_000_000_000_000 + sum % 1_000_000_000_000_000_000).to_string()
}

/// Something that the cloud has itself, with these fields and those of all such things. `own` is its path.
pub(super) fn head(kind: &str, name: &str, own: &str, fields: Value) -> Value {
    let usual = [
        ("kind", json!(format!("compute#{kind}"))),
        ("id", json!(number(own))),
        ("name", json!(name)),
        ("selfLink", json!(url(own))),
        ("creationTimestamp", json!(LONG_AGO)),
        ("description", json!(name)),
    ];
    with_usual(fields, usual)
}

fn shown_type(visit: &Visit<'_>, kind: &InstanceType, zone: &str) -> Value {
    let place = format!("projects/{}/zones/{zone}", visit.account);
    let own = format!("{place}/machineTypes/{}", kind.name);
    let mut fields = json!({
        "zone": zone, "guestCpus": kind.vcpus, "memoryMb": kind.memory_gb * 1024, "isSharedCpu": false,
        "maximumPersistentDisks": 128, "maximumPersistentDisksSizeGb": "263168",
        "architecture": kind.architecture.to_uppercase(),
    });
    if kind.gpus > 0 {
        let cards = json!({ "guestAcceleratorType": kind.gpu, "guestAcceleratorCount": kind.gpus });
        fields["accelerators"] = json!([cards]);
    }
    head("machineType", &kind.name, &own, fields)
}

fn all_types(visit: &Visit<'_>) -> Vec<Item> {
    let types = &visit.world.types;
    let shelves = visit.world.stock.shelves();
    // A type that is sold on both markets is there once, and one with attached accelerators has no name.
    let sold = shelves.map(|(shelf, _)| (&shelf.region, &shelf.instance_type));
    let sold: BTreeSet<_> = sold.collect();
    let named = sold.into_iter().filter(|(_, name)| !name.contains('+'));
    let shown = |(zone, name): (&String, &String)| {
        let shown = shown_type(visit, types.get(name)?, zone);
        Some((zone.clone(), name.clone(), shown))
    };
    named.filter_map(shown).collect()
}

pub(super) fn types(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let names = ["machineType", "machineTypes"];
    of_zones(api, visit, &zone, names, all_types(visit))
}

/// One of these items, by the zone and the name that a call has.
pub(super) fn one(visit: &Visit<'_>, items: Vec<Item>, zone: &str, name: &str) -> Result<Answer, Refusal> {
    let mut items = items.into_iter();
    let found = items.find(|(of, key, _)| (of.as_str(), key.as_str()) == (zone, name));
    let (.., item) = found.ok_or_else(|| missing(&target(visit.request)))?;
    Ok(Answer::json(200, &item))
}

fn all_accelerators(visit: &Visit<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    for (name, most, zones) in ACCELERATORS {
        for zone in zones {
            let place = format!("projects/{}/zones/{zone}", visit.account);
            let fields = json!({ "zone": url(&place), "maximumCardsPerInstance": most });
            let own = format!("{place}/acceleratorTypes/{name}");
            let shown = head("acceleratorType", name, &own, fields);
            items.push(((*zone).to_owned(), name.to_owned(), shown));
        }
    }
    items
}

pub(super) fn accelerators(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let names = ["acceleratorType", "acceleratorTypes"];
    of_zones(api, visit, &zone, names, all_accelerators(visit))
}

pub(super) fn status(zone: &str) -> &'static str {
    if zone == DOWN { "DOWN" } else { "UP" }
}

fn all_zones(visit: &Visit<'_>) -> Vec<Item> {
    let project = format!("projects/{}", visit.account);
    let shown = |zone: &str| {
        let region = url(&format!("{project}/regions/{}", region_of(zone)));
        let fields = json!({ "status": status(zone), "region": region });
        let shown = head("zone", zone, &format!("{project}/zones/{zone}"), fields);
        (String::new(), zone.to_owned(), shown)
    };
    ZONES.map(shown).to_vec()
}

pub(super) fn zones(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    list(visit, "zone", all_zones(visit))
}

/// The metrics of the quotas of accelerators, without those that the service keeps elsewhere.
#[rustfmt::skip]
const METRICS: [(&str, &str); 5] = [
    (A100, "NVIDIA_A100_GPUS"), (A100_80, "NVIDIA_A100_80GB_GPUS"), (L4, "NVIDIA_L4_GPUS"),
    (T4, "NVIDIA_T4_GPUS"), (V100, "NVIDIA_V100_GPUS"),
];

/// The metric of the quota that an accelerator counts in, on a market.
fn metric_of(accelerator: &str, market: Market) -> Option<String> {
    let (_, metric) = METRICS.iter().find(|(known, _)| *known == accelerator)?;
    Some(match market {
        Market::OnDemand => (*metric).to_owned(),
        Market::Spot => format!("PREEMPTIBLE_{metric}"),
    })
}

/// How many GPUs the instances of an account have, of those that count.
fn used(visit: &Visit<'_>, counts: impl Fn(&Machine, &InstanceType) -> bool) -> u64 {
    let machines = visit.world.machines_of(&visit.account);
    let of = |machine: &Machine| {
        let kind = visit.world.types.get(&machine.instance_type)?;
        (machine.exists() && counts(machine, kind)).then_some(u64::from(kind.gpus))
    };
    machines.filter_map(of).sum()
}

fn limit(visit: &Visit<'_>, metric: &str) -> u64 {
    let account = visit.world.accounts.get(&visit.account);
    let known = account.and_then(|account| account.quotas.get(metric));
    known.copied().unwrap_or(QUOTA)
}

/// The limit of a metric in a region: the region's own, which a test sets as `REGION METRIC`, or else that of all regions.
fn limit_in(visit: &Visit<'_>, region: &str, metric: &str) -> u64 {
    let account = visit.world.accounts.get(&visit.account);
    let own = account.and_then(|account| account.quotas.get(&format!("{region} {metric}")));
    own.copied().unwrap_or_else(|| limit(visit, metric))
}

fn used_in(visit: &Visit<'_>, region: &str, metric: &str) -> u64 {
    used(visit, |machine, kind| {
        region_of(&machine.region) == region
            && metric_of(&kind.gpu, machine.market).as_deref() == Some(metric)
    })
}

/// A quota that an order would break: its metric, its limit, and whether it is one of the region.
pub(super) fn broken(
    visit: &Visit<'_>,
    zone: &str,
    (kind, market): (&InstanceType, Market),
) -> Option<(String, u64, bool)> {
    let (region, gpus) = (region_of(zone), u64::from(kind.gpus));
    if let Some(metric) = metric_of(&kind.gpu, market) {
        let most = limit_in(visit, region, &metric);
        if used_in(visit, region, &metric) + gpus > most {
            return Some((metric, most, true));
        }
    }
    let most = limit(visit, ALL_GPUS);
    let is_broken = gpus > 0 && used(visit, |_, kind| kind.gpus > 0) + gpus > most;
    is_broken.then(|| (ALL_GPUS.to_owned(), most, false))
}

fn quota(metric: &str, limit: u64, usage: u64) -> Value {
    json!({ "metric": metric, "limit": limit as f64, "usage": usage as f64 })
}

fn all_regions(visit: &Visit<'_>) -> Vec<Item> {
    let project = format!("projects/{}", visit.account);
    let mut names = ZONES.map(region_of).to_vec();
    names.dedup();
    let shown = |name: &str| {
        let zones: Vec<&str> = ZONES.into_iter().filter(|zone| region_of(zone) == name).collect();
        let both = |(card, _)| [Market::OnDemand, Market::Spot].map(|market| metric_of(card, market));
        let metrics = METRICS.into_iter().flat_map(both).flatten();
        let quotas = metrics.map(|metric| {
            let (limit, used) = (limit_in(visit, name, &metric), used_in(visit, name, &metric));
            quota(&metric, limit, used)
        });
        let (status, quotas) = (status(zones[0]), quotas.collect::<Vec<_>>());
        let links = zones.iter().map(|zone| url(&format!("{project}/zones/{zone}")));
        let fields = json!({ "quotas": quotas, "status": status, "zones": links.collect::<Vec<_>>() });
        let shown = head("region", name, &format!("{project}/regions/{name}"), fields);
        (String::new(), name.to_owned(), shown)
    };
    names.into_iter().map(shown).collect()
}

pub(super) fn regions(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    list(visit, "region", all_regions(visit))
}

pub(super) fn region(api: &mut Gcp, visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    one(visit, all_regions(visit), "", name)
}

/// The project, in which OS Login is on.
pub(super) fn project(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    let gpus = used(visit, |_, kind| kind.gpus > 0);
    let quota = quota(ALL_GPUS, limit(visit, ALL_GPUS), gpus);
    let os_login = json!({ "key": "enable-oslogin", "value": "TRUE" });
    let fields = json!({
        "quotas": [quota], "defaultNetworkTier": "PREMIUM",
        "commonInstanceMetadata": { "kind": "compute#metadata", "items": [os_login] },
    });
    let own = format!("projects/{}", visit.account);
    Ok(Answer::json(200, &head("project", &visit.account, &own, fields)))
}

impl Image {
    /// Whether its family has it still.
    fn is_current(&self, api: &Gcp) -> bool {
        !api.retired.contains(self.family)
    }

    /// Its path.
    pub(super) fn path(&self) -> String {
        format!("projects/{}/global/images/{}", self.project, self.version)
    }

    fn shown(&self, api: &Gcp) -> Value {
        let mut fields = json!({
            "family": self.family, "architecture": self.architecture, "diskSizeGb": self.size.to_string(),
            "status": "READY", "sourceType": "RAW",
        });
        if !self.is_current(api) {
            fields["deprecated"] = json!({ "state": "DEPRECATED" });
        }
        head("image", self.version, &self.path(), fields)
    }
}

/// The image that an order names, by its family or itself.
pub(super) fn find_image(api: &Gcp, given: &str) -> Option<&'static Image> {
    let known = |image: &&Image| {
        let family = format!("projects/{}/global/images/family/{}", image.project, image.family);
        (path(given) == family && image.is_current(api)) || path(given) == image.path()
    };
    IMAGES.iter().find(known)
}

/// An image by what a call names: the newest of a family that is not deprecated, or itself.
pub(super) fn one_image(api: &mut Gcp, visit: &mut Visit<'_>, _: &str) -> Result<Answer, Refusal> {
    let named = target(visit.request);
    let found = find_image(api, &named).ok_or_else(|| missing(&named))?;
    Ok(Answer::json(200, &found.shown(api)))
}
