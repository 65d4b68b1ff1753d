//! Products, what is left of them, and their prices; clusters.

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::{Value, json};

use super::{Novita, PRICES_ARE_TEXTS, REGIONS_ARE_OBJECTS, is_like, number};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::rest::bad;
use crate::core::world::World;

/// The least and the most GB of a disk.
pub(super) const DISK: [u32; 2] = [10, 500];
/// GB of a disk that cost nothing while an instance runs.
pub(super) const FREE_DISK: u32 = 60;
/// The words for how much is left.
const INVENTORY: [&str; 4] = ["none", "low", "normal", "high"];

/// Id, name, and the latest CUDA version of its hosts.
struct Cluster(&'static str, &'static str, [u32; 2]);

const CLUSTERS: [Cluster; 3] = [
    Cluster("5", "US-CA-06", [13, 0]),
    Cluster("12", "EU-RO-01", [12, 4]),
    Cluster("31", "AS-SGP-02", [12, 9]),
];

/// What is sold.
pub(super) struct Product {
    id: &'static str,
    name: &'static str,
    /// The GPU as its driver names it.
    pub(super) card: &'static str,
    /// CPUs, GB of memory and GB of its own memory of each GPU; the price of one; the most at once.
    numbers: [u32; 5],
    /// The spot price that it tells.
    spot: Option<u32>,
    /// Whether spot is one of its billing methods.
    sells_spot: bool,
    /// Names of its clusters, in the order in which an instance is put there.
    clusters: &'static [&'static str],
}

#[rustfmt::skip]
const PRODUCTS: [Product; 5] = [
    // Its first cluster has hosts that are too old for most images.
    Product { id: "prod-4090", name: "RTX 4090 24GB", card: "NVIDIA GeForce RTX 4090", numbers: [16, 62, 24, 35_000, 8], spot: Some(18_000), sells_spot: true, clusters: &["EU-RO-01", "US-CA-06"] },
    // It has a spot price, and is not sold as spot.
    Product { id: "prod-5090", name: "RTX 5090 32GB", card: "NVIDIA GeForce RTX 5090", numbers: [16, 90, 32, 63_000, 4], spot: Some(32_000), sells_spot: false, clusters: &["US-CA-06"] },
    // It is sold as spot, and has no price for that.
    Product { id: "prod-a100", name: "A100 SXM 80GB (NVLINK)", card: "NVIDIA A100-SXM4-80GB", numbers: [16, 120, 80, 160_000, 8], spot: Some(0), sells_spot: true, clusters: &["US-CA-06", "AS-SGP-02"] },
    Product { id: "prod-h100", name: "H100 SXM 80GB", card: "NVIDIA H100 80GB HBM3", numbers: [20, 220, 80, 256_000, 8], spot: Some(128_000), sells_spot: true, clusters: &["US-CA-06", "AS-SGP-02"] },
    // It is sold out.
    Product { id: "prod-l40s", name: "L40S 48GB", card: "NVIDIA L40S", numbers: [12, 90, 48, 55_000, 4], spot: None, sells_spot: false, clusters: &["EU-RO-01"] },
];

/// A price in dollars.
fn usd(price: u32) -> Decimal {
    Decimal::new(price.into(), 5)
}

/// A price as Novita tells it.
fn told(price: Decimal) -> u64 {
    (price * Decimal::from(100_000)).to_u64().unwrap_or_default()
}

/// What so many GB of a disk cost an hour: half a cent a day.
pub(super) fn disk_price(gb: u32) -> Decimal {
    Decimal::from(gb) * Decimal::new(5, 3) / Decimal::from(24)
}

pub(super) fn furnish(world: &mut World) {
    world.regions = CLUSTERS.map(|Cluster(_, name, _)| name.to_owned()).to_vec();
    for product in &PRODUCTS {
        let [cpus, memory, vram, price, _] = product.numbers;
        let spot = product.spot.filter(|price| product.sells_spot && *price > 0);
        world.add_type(InstanceType {
            spot: spot.map(usd),
            ..InstanceType::on_demand(product.id, product.name, [1, vram, cpus, memory], usd(price))
        });
        let left = [Left::Plenty, Left::Count(0)][usize::from(product.id == "prod-l40s")];
        let markets = [Some(Market::OnDemand), spot.map(|_| Market::Spot)];
        for market in markets.into_iter().flatten() {
            for cluster in product.clusters {
                world.stock.set(Shelf::new(product.id, cluster, market), left);
            }
        }
    }
}

/// A product with the price of one GPU.
pub(super) fn find(world: &World, id: &str) -> Result<(&'static Product, InstanceType), Refusal> {
    let product = PRODUCTS.iter().find(|product| product.id == id);
    match (product, world.types.get(id)) {
        (Some(product), Some(kind)) => Ok((product, kind.clone())),
        _ => bad("The product does not exist"),
    }
}

/// The id of a cluster by its name.
pub(super) fn cluster_id(name: &str) -> &'static str {
    let found = CLUSTERS.iter().find(|cluster| cluster.1 == name);
    found.map_or("", |cluster| cluster.0)
}

/// A CUDA version, which is written as `12.4`.
pub(super) fn version(text: &str) -> Option<[u32; 2]> {
    let (major, minor) = text.split_once('.')?;
    Some([major.parse().ok()?, minor.parse().ok()?])
}

/// Whether the hosts of a cluster have at least this CUDA version.
pub(super) fn has_cuda(cluster: &str, least: Option<[u32; 2]>) -> bool {
    let of_it = |known: &&Cluster| known.1 == cluster;
    let latest = CLUSTERS.iter().find(of_it).map(|found| found.2);
    least <= latest
}

/// The first cluster that has room for so many GPUs of a product, has this CUDA version, and is the one that an
/// order names.
pub(super) fn place(
    world: &World,
    product: &Product,
    (count, market): (u32, Market),
    (wanted, cuda): (&str, Option<[u32; 2]>),
) -> Result<String, Refusal> {
    if !wanted.is_empty() && CLUSTERS.iter().all(|cluster| cluster.0 != wanted) {
        return bad("The cluster does not exist");
    }
    let is_meant = |cluster: &&&str| wanted.is_empty() || cluster_id(cluster) == wanted;
    let has_room = |cluster: &&&str| {
        count <= product.numbers[4]
            && has_cuda(cluster, cuda)
            && world.stock.has(&Shelf::new(product.id, cluster, market))
    };
    let found = product.clusters.iter().filter(is_meant).find(has_room);
    found.map(|name| (*name).to_owned()).ok_or(Refusal::NoCapacity)
}

/// How much of a product is left where it is most.
fn inventory(world: &World, product: &Product, cluster: &str, market: Market) -> &'static str {
    let clusters = product.clusters.iter();
    let asked = clusters.filter(|name| cluster.is_empty() || cluster_id(name) == cluster);
    let left = asked.map(|name| world.stock.left(&Shelf::new(product.id, name, market)));
    let left = left.map(|left| match left {
        Left::Count(0) => 0,
        Left::Count(1) => 1,
        Left::Count(_) => 2,
        Left::Plenty => 3,
    });
    INVENTORY[left.max().unwrap_or_default()]
}

pub(super) fn products(api: &Novita, visit: &Visit<'_>) -> Result<Answer, Refusal> {
    let asked = |name: &str| visit.request.parameter(name).unwrap_or_default();
    let (cluster, method) = (asked("clusterId"), asked("billingMethod"));
    let market = [Market::OnDemand, Market::Spot][usize::from(method == "spot")];
    let gpus = number(visit, "gpuNum")?.max(1);
    let least = [number(visit, "minCpuPerGpu")?, number(visit, "minMemoryPerGpu")?];
    let disk = number(visit, "minRootFSSize")?;
    let shown = PRODUCTS.iter().filter_map(|product| {
        let kind = visit.world.types.get(product.id)?;
        let [cpus, memory, .., most] = product.numbers;
        let methods: &[&str] = if product.sells_spot {
            &["onDemand", "spot", "monthly"]
        } else {
            &["onDemand", "monthly"]
        };
        let is_there = cluster.is_empty() || product.clusters.iter().any(|name| cluster_id(name) == cluster);
        let is_meant = is_like(product.name, visit.request.parameter("productName"))
            && (method.is_empty() || methods.contains(&method));
        if !is_there || !is_meant || cpus < least[0] || memory < least[1] || disk > DISK[1] {
            return None;
        }
        let price = told(kind.on_demand);
        let in_text = api.has(PRICES_ARE_TEXTS).then(|| price.to_string());
        let spot = kind.spot.map(told).or(product.spot.map(u64::from));
        Some(json!({
            "id": product.id, "name": product.name, "cpuPerGpu": cpus, "memoryPerGpu": memory,
            "diskPerGpu": FREE_DISK, "availableDeploy": gpus <= most,
            "inventoryState": inventory(visit.world, product, cluster, market), "minRootFS": DISK[0],
            "maxRootFS": DISK[1], "minLocalStorage": 0, "maxLocalStorage": 0, "regions": regions(api, product),
            "price": in_text.map_or_else(|| json!(price), Value::from),
            "monthlyPrice": [{ "price": price * 650, "month": 1 }], "billingMethods": methods,
            "spotPrice": spot.map_or_else(String::new, |price| price.to_string()),
        }))
    });
    let shown = shown.collect();
    Ok(Answer::json(200, &json!({ "data": visit.truncate(shown) })))
}

fn regions(api: &Novita, product: &Product) -> Value {
    let shown = |name: &&str| {
        let object = api.has(REGIONS_ARE_OBJECTS);
        let object = object.then(|| json!({ "id": cluster_id(name), "name": name }));
        object.unwrap_or_else(|| json!(name))
    };
    product.clusters.iter().map(shown).collect()
}

pub(super) fn clusters(visit: &Visit<'_>) -> Answer {
    let shown = |Cluster(id, name, _): Cluster| {
        let there = PRODUCTS.iter().filter(|product| product.clusters.contains(&name));
        json!({
            "id": id, "name": name, "availableGpuType": there.map(|product| product.name).collect::<Vec<_>>(),
            "supportNetworkStorage": true, "supportInstanceNetwork": true,
        })
    };
    let shown = CLUSTERS.map(shown).to_vec();
    Answer::json(200, &json!({ "data": visit.truncate(shown) }))
}
