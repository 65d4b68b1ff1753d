//! Locations, their hosts, what is left there, and what an hour costs.

use std::array;
use std::ops::RangeInclusive;

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::{Value, json};

use super::data;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Machine;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::rest::bad;
use crate::core::world::World;

/// What a dedicated address costs an hour.
pub(super) const ADDRESS: Decimal = Decimal::from_parts(2, 0, 0, false, 3);
/// What an hour of a processor, of a GB of memory and of a GB of disk costs, in hundred-thousandths of a dollar, where
/// prices are the usual ones.
const RATES: [u32; 3] = [300, 200, 5];
/// The external ports of a host.
const PORTS: RangeInclusive<u16> = 20_000..=20_039;

/// Model, what people are shown, what its driver says, GB of memory, thousandths of a dollar for an hour.
#[rustfmt::skip]
const GPUS: [(&str, &str, &str, [u32; 2]); 6] = [
    ("geforcertx4090-pcie-24gb", "NVIDIA GeForce RTX 4090 PCIe 24GB", "NVIDIA GeForce RTX 4090", [24, 350]),
    ("a100-pcie-80gb", "NVIDIA A100 PCIe 80GB", "NVIDIA A100 80GB PCIe", [80, 900]),
    ("h100-sxm5-80gb", "NVIDIA H100 SXM5 80GB", "NVIDIA H100 80GB HBM3", [80, 2_000]),
    ("l40s-pcie-48gb", "NVIDIA L40S PCIe 48GB", "NVIDIA L40S", [48, 800]),
    ("rtxa6000-pcie-48gb", "NVIDIA RTX A6000 PCIe 48GB", "NVIDIA RTX A6000", [48, 400]),
    ("v100-sxm2-16gb", "NVIDIA V100 SXM2 16GB", "Tesla V100-SXM2-16GB", [16, 150]),
];

/// A place with hosts.
pub(super) struct Location {
    /// Its id.
    pub(super) id: &'static str,
    /// City, state or province, country.
    names: [&'static str; 3],
    tier: u32,
    /// Prices there, in hundredths of the usual ones.
    percent: u32,
}

/// It has RTX 4090 and A100.
#[rustfmt::skip]
pub(super) static CHICAGO: Location = Location { id: "3f6c0a52-0000-4000-8000-000000000001", names: ["Chicago", "Illinois", "United States"], tier: 3, percent: 100 };
#[rustfmt::skip]
static FRANKFURT: Location = Location { id: "3f6c0a52-0000-4000-8000-000000000002", names: ["Frankfurt", "Hesse", "Germany"], tier: 4, percent: 110 };
/// None of its hosts has addresses to give away.
#[rustfmt::skip]
pub(super) static WARSAW: Location = Location { id: "3f6c0a52-0000-4000-8000-000000000003", names: ["Warsaw", "Masovia", "Poland"], tier: 1, percent: 90 };
/// Its V100 are sold out, and its other host forwards no ports.
#[rustfmt::skip]
pub(super) static MANASSAS: Location = Location { id: "3f6c0a52-0000-4000-8000-000000000004", names: ["Manassas", "Virginia", "United States"], tier: 0, percent: 95 };

static LOCATIONS: [&Location; 4] = [&CHICAGO, &FRANKFURT, &WARSAW, &MANASSAS];

/// The one host of a location that has a GPU.
pub(super) struct Host {
    /// Its id.
    pub(super) id: &'static str,
    /// Its location.
    pub(super) location: &'static Location,
    /// The model of its GPUs.
    pub(super) gpu: &'static str,
    /// The most GPUs of one machine.
    pub(super) gpus: u32,
    /// The most processors, GB of memory and GB of disk of one machine.
    pub(super) most: [u32; 3],
    /// Whether it has dedicated addresses.
    pub(super) has_addresses: bool,
    /// Whether it forwards ports.
    pub(super) forwards_ports: bool,
}

#[rustfmt::skip]
static HOSTS: [Host; 8] = [
    Host { id: "7b1d0000-0000-4000-8000-000000000001", location: &CHICAGO, gpu: GPUS[0].0, gpus: 4, most: [64, 256, 2_000], has_addresses: true, forwards_ports: true },
    Host { id: "7b1d0000-0000-4000-8000-000000000002", location: &CHICAGO, gpu: GPUS[1].0, gpus: 2, most: [48, 480, 4_000], has_addresses: true, forwards_ports: true },
    Host { id: "7b1d0000-0000-4000-8000-000000000003", location: &FRANKFURT, gpu: GPUS[2].0, gpus: 8, most: [192, 1_536, 16_000], has_addresses: true, forwards_ports: true },
    Host { id: "7b1d0000-0000-4000-8000-000000000004", location: &FRANKFURT, gpu: GPUS[3].0, gpus: 4, most: [96, 512, 8_000], has_addresses: true, forwards_ports: true },
    Host { id: "7b1d0000-0000-4000-8000-000000000005", location: &WARSAW, gpu: GPUS[0].0, gpus: 2, most: [32, 128, 1_000], has_addresses: false, forwards_ports: true },
    // It has less left than most orders want.
    Host { id: "7b1d0000-0000-4000-8000-000000000006", location: &WARSAW, gpu: GPUS[4].0, gpus: 1, most: [2, 8, 500], has_addresses: false, forwards_ports: true },
    Host { id: "7b1d0000-0000-4000-8000-000000000007", location: &MANASSAS, gpu: GPUS[5].0, gpus: 4, most: [40, 256, 2_000], has_addresses: true, forwards_ports: true },
    Host { id: "7b1d0000-0000-4000-8000-000000000008", location: &MANASSAS, gpu: GPUS[1].0, gpus: 1, most: [24, 240, 2_000], has_addresses: true, forwards_ports: false },
];

impl Location {
    /// What an hour of a processor, of a GB of memory and of a GB of disk costs.
    fn rates(&self) -> [Decimal; 3] {
        RATES.map(|rate| Decimal::new((rate * self.percent).into(), 7))
    }

    /// The same as answers have it.
    fn pricing(&self) -> Value {
        let [vcpu, memory, storage] = self.rates().map(|rate| rate.to_f64());
        json!({ "per_vcpu_hr": vcpu, "per_gb_ram_hr": memory, "per_gb_storage_hr": storage })
    }
}

impl Host {
    /// The shelf of its machines.
    fn shelf(&self) -> Shelf {
        Shelf::new(self.gpu, self.location.id, Market::OnDemand)
    }

    /// What an hour of one of its GPUs costs; `None` where nobody sells that model any more.
    fn gpu_price(&self, world: &World) -> Option<Decimal> {
        let usual = world.types.get(self.gpu)?.on_demand;
        Some(usual * Decimal::new(self.location.percent.into(), 2))
    }

    /// What an hour of so many GPUs, processors, GB of memory and GB of disk costs.
    pub(super) fn prices(&self, world: &World, amounts: [u32; 4]) -> Option<[Decimal; 4]> {
        let ([vcpu, memory, disk], gpu) = (self.location.rates(), self.gpu_price(world)?);
        let rates = [gpu, vcpu, memory, disk];
        Some(array::from_fn(|part| rates[part] * Decimal::from(amounts[part])))
    }

    /// The external ports that no machine has.
    pub(super) fn free_ports(&self, world: &World) -> Vec<u16> {
        let is_here = |machine: &&Machine| machine.exists() && machine.detail["host"] == self.id;
        let machines = world.machines.values().filter(is_here);
        let forwards = machines.filter_map(|machine| machine.detail["forwards"].as_array());
        let taken: Vec<&Value> = forwards.flatten().map(|one| &one["external_port"]).collect();
        PORTS.filter(|port| !taken.contains(&&json!(port))).collect()
    }
}

pub(super) fn furnish(world: &mut World) {
    world.regions = LOCATIONS.iter().map(|location| location.id.to_owned()).collect();
    for (name, shown, driver, [memory, price]) in GPUS {
        let price = Decimal::new(price.into(), 3);
        world.add_type(InstanceType {
            detail: json!(shown),
            ..InstanceType::on_demand(name, driver, [1, memory, 0, 0], price)
        });
    }
    for host in &HOSTS {
        let left = [Left::Plenty, Left::Count(0)][usize::from(host.gpu == "v100-sxm2-16gb")];
        world.stock.set(host.shelf(), left);
    }
}

/// The host of a location that has a GPU.
pub(super) fn host_at(location: &str, gpu: &str) -> Result<&'static Host, Refusal> {
    if !LOCATIONS.iter().any(|known| known.id == location) {
        return bad("The location does not exist");
    }
    let mut hosts = HOSTS.iter();
    let found = hosts.find(|host| host.location.id == location && host.gpu == gpu);
    found.ok_or(Refusal::NoCapacity)
}

/// A host by its id.
pub(super) fn host_named(id: &str) -> Option<&'static Host> {
    HOSTS.iter().find(|host| host.id == id)
}

/// The GPU of a host as its location shows it, while some are left.
fn shown_gpu(world: &World, host: &Host) -> Option<Value> {
    let is_left = world.stock.has(&host.shelf());
    let kind = world.types.get(host.gpu).filter(|_| is_left)?;
    let [vcpus, memory, storage] = host.most;
    Some(json!({
        "v0Name": host.gpu, "displayName": kind.detail, "max_count": host.gpus,
        "price_per_hr": host.gpu_price(world)?.to_f64(), "pricing": host.location.pricing(),
        "resources": { "max_vcpus": vcpus, "max_ram_gb": memory, "max_storage_gb": storage },
        "network_features": {
            "dedicated_ip_available": host.has_addresses, "port_forwarding_available": host.forwards_ports,
            "network_storage_available": false,
        },
    }))
}

pub(super) fn locations(visit: &mut Visit<'_>) -> Answer {
    let shown = |location: &&Location| {
        let hosts = HOSTS.iter().filter(|host| host.location.id == location.id);
        let gpus: Vec<Value> = hosts.filter_map(|host| shown_gpu(visit.world, host)).collect();
        let [city, state, country] = location.names;
        json!({
            "id": location.id, "city": city, "stateprovince": state, "country": country, "gpus": gpus,
            "tier": location.tier,
        })
    };
    let all = LOCATIONS.iter().map(shown).collect();
    data(json!({ "locations": visit.truncate(all) }))
}

fn shown_host(world: &World, host: &Host) -> Value {
    let [vcpus, memory, storage] = host.most;
    let left = host.gpus * u32::from(world.stock.has(&host.shelf()));
    let price = host.gpu_price(world).map(|price| price.to_f64());
    let around = host.location;
    let [city, state, country] = around.names;
    json!({
        "id": host.id, "location_id": around.id, "engine": "kvm", "uptime_percentage": 99.5,
        "available_resources": {
            "gpus": [{ "v0Name": host.gpu, "availableCount": left, "price_per_hr": price }],
            "vcpu_count": vcpus, "ram_gb": memory, "storage_gb": storage,
            "max_vcpus_per_gpu": vcpus / host.gpus, "max_ram_per_gpu": memory / host.gpus,
            "available_ports": if host.forwards_ports { host.free_ports(world) } else { Vec::new() },
            "has_public_ip_available": host.has_addresses,
        },
        "pricing": host.location.pricing(),
        "location": {
            "uuid": around.id, "city": city, "stateprovince": state, "country": country,
            "has_network_storage": false, "network_speed_gbps": 10, "network_speed_upload_gbps": 10,
            "organization": "example", "organizationName": "Example", "tier": around.tier,
        },
    })
}

pub(super) fn hosts(visit: &mut Visit<'_>) -> Answer {
    let all = HOSTS.iter().map(|host| shown_host(visit.world, host)).collect();
    data(json!({ "hostnodes": visit.truncate(all) }))
}
