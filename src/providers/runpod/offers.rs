//! Makes offers: each GPU in each number and cloud, and machines without GPUs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use skyward_core::{
    Usd, accelerator,
    offer::{Accelerators, Architecture, Availability, Offer},
};
use skyward_provider_kit::{Amount, dns_label};

use super::{
    config::Settings,
    kind::{Cloud, Kind},
    map::CPU_DISK_GB,
    wire::{Cpu, DataCenter, Gpu, GpuType},
};

/// Numbers of GPUs whose stock is asked for; for a number in between, a larger one that is in stock
/// is proof enough.
pub const COUNTS: [u32; 4] = [1, 2, 4, 8];

/// Region of machines in the global network. Machines outside do not reach them, so the network is
/// a place of its own.
const NETWORK: &str = "global-network";

/// The catalogue of one cloud.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Kinds of GPUs by how many were asked for.
    pub gpus: BTreeMap<u32, Vec<Gpu>>,
    /// What one costs on the spot market.
    pub spot: Vec<GpuType>,
}

/// Offers of the GPUs of one cloud.
pub fn gpus(cloud: Cloud, catalogue: &Catalogue, centers: &[DataCenter], settings: &Settings) -> Vec<Offer> {
    let spot: BTreeMap<&str, &GpuType> = catalogue.spot.iter().map(|gpu| (gpu.id.as_str(), gpu)).collect();
    let networked: BTreeSet<&str> = centers
        .iter()
        .filter(|center| center.global_network)
        .map(|center| center.id.as_str())
        .collect();
    let wanted: BTreeSet<&str> = settings.data_center_ids.iter().map(String::as_str).collect();
    let allowed = |id: &str| wanted.is_empty() || wanted.contains(id);
    let mut offers = Vec::new();
    for gpu in catalogue.gpus.get(&1).into_iter().flatten() {
        let Some(price) = price_of_one(gpu, cloud) else {
            continue;
        };
        let most = match cloud {
            Cloud::Community => gpu.max_count.community,
            Cloud::Secure | Cloud::Networked => gpu.max_count.secure,
        };
        let terms = Terms {
            gpu,
            price,
            spot: spot.get(gpu.id.as_str()).copied(),
        };
        for count in 1..=most.min(16) {
            let stock = |center: &dyn Fn(&str) -> bool| stock(catalogue, &gpu.id, count, center);
            let kind = Kind::Gpu {
                id: gpu.id.clone(),
                count,
                cloud,
            };
            offers.push(terms.offer(&kind, count, stock(&allowed), settings));
            let may_connect = cloud == Cloud::Secure
                && gpu.manufacturer == "NVIDIA"
                && settings.global_networking != Some(false)
                && networked.iter().any(|id| allowed(id));
            if may_connect {
                let kind = Kind::Gpu {
                    id: gpu.id.clone(),
                    count,
                    cloud: Cloud::Networked,
                };
                let reachable = |id: &str| allowed(id) && networked.contains(id);
                offers.push(terms.offer(&kind, count, stock(&reachable), settings));
            }
        }
    }
    offers
}

/// What one GPU costs by the hour in a cloud, where it is sold there.
fn price_of_one(gpu: &Gpu, cloud: Cloud) -> Option<Usd> {
    let (sold, price) = match cloud {
        Cloud::Community => (gpu.community, gpu.price.community.usd()),
        Cloud::Secure | Cloud::Networked => (gpu.secure, gpu.price.secure.usd()),
    };
    (sold && !price.is_zero()).then_some(price)
}

/// What so many GPUs of a kind cost by the hour in a cloud, where they are sold there.
pub fn price_of_gpus(gpus: &[Gpu], id: &str, count: u32, cloud: Cloud) -> Option<Usd> {
    let gpu = gpus.iter().find(|gpu| gpu.id == id)?;
    Some(price_of_one(gpu, cloud)? * count)
}

/// What so many vCPUs of a flavour cost by the hour, where it is sold.
pub fn price_of_cpus(flavours: &[Cpu], flavour: &str, vcpus: u32) -> Option<Usd> {
    let cpu = flavours.iter().find(|cpu| cpu.id == flavour)?;
    Some(cpu.price.secure_per_vcpu.usd() * vcpus)
}

/// Whether a machine with so many is in stock in a data center that will do.
fn stock(catalogue: &Catalogue, id: &str, count: u32, center: &dyn Fn(&str) -> bool) -> Availability {
    let of = |asked: u32| {
        let gpu = catalogue.gpus.get(&asked)?.iter().find(|gpu| gpu.id == id)?;
        let some = |level: Option<&str>| level.is_some_and(|level| level != "NONE");
        Some(if gpu.data_centers.is_empty() {
            some(gpu.availability.as_deref())
        } else {
            gpu.data_centers
                .iter()
                .any(|place| center(&place.id) && some(place.availability.as_deref()))
        })
    };
    let larger = COUNTS.into_iter().find(|asked| *asked >= count);
    let smaller = COUNTS.into_iter().rev().find(|asked| *asked <= count);
    match (larger.and_then(of), smaller.and_then(of)) {
        (Some(true), _) => Availability::Yes,
        (Some(false), _) if larger == Some(count) => Availability::No,
        (_, Some(false)) => Availability::No,
        _ => Availability::Unknown,
    }
}

/// The terms of one GPU, for all numbers of it.
struct Terms<'a> {
    gpu: &'a Gpu,
    price: Usd,
    spot: Option<&'a GpuType>,
}

impl Terms<'_> {
    fn offer(&self, kind: &Kind, count: u32, availability: Availability, settings: &Settings) -> Offer {
        let connected = matches!(
            kind,
            Kind::Gpu {
                cloud: Cloud::Networked,
                ..
            }
        );
        let lowest = self
            .spot
            .and_then(|spot| spot.lowest_price.clone())
            .unwrap_or_default();
        Offer {
            id: dns_label(&kind.to_string()),
            instance_type: kind.to_string(),
            region: if connected { NETWORK } else { "" }.to_owned(),
            accelerators: Some(Accelerators {
                name: accelerator::canonical(&self.gpu.id),
                count: f64::from(count),
                memory_gb: Some(self.gpu.memory).filter(|size| *size > 0.0),
                form_factor: accelerator::parse(&self.gpu.id).form_factor,
            }),
            // The least that comes with one GPU; RunPod tells no more before the order.
            vcpus: lowest.min_vcpu.unwrap_or_default() * f64::from(count),
            memory_gb: lowest.min_memory.unwrap_or_default() * f64::from(count),
            disk_gb: None,
            architecture: Architecture::Amd64,
            on_demand: Some(self.price * count),
            // The bid is the price. The global network is not for spot machines.
            spot: lowest
                .minimum_bid
                .map(Amount::usd)
                .filter(|bid| !connected && !bid.is_zero())
                .map(|bid| (bid * settings.bid_multiplier()).round_dp(4) * count),
            availability,
            connected,
            rate_as_of: None,
        }
    }
}

/// Offers of machines without GPUs.
pub fn cpus(flavours: &[Cpu], settings: &Settings) -> Vec<Offer> {
    let wanted = settings.cpu_clock.unwrap_or_default().flavour();
    let mut offers = Vec::new();
    for cpu in flavours.iter().filter(|cpu| cpu.id == wanted) {
        let sizes = (1..=9).map(|power| 1_u32 << power);
        for vcpus in sizes.filter(|n| (cpu.vcpu.min..=cpu.vcpu.max).contains(n)) {
            let kind = Kind::Cpu {
                flavour: cpu.id.clone(),
                vcpus,
            };
            offers.push(Offer {
                id: dns_label(&kind.to_string()),
                instance_type: kind.to_string(),
                region: String::new(),
                accelerators: None,
                vcpus: f64::from(vcpus),
                memory_gb: cpu.ram_gb_per_vcpu * f64::from(vcpus),
                // RunPod refuses larger disks.
                disk_gb: Some(f64::from(CPU_DISK_GB)),
                architecture: Architecture::Amd64,
                on_demand: Some(cpu.price.secure_per_vcpu.usd() * vcpus),
                spot: None,
                availability: match cpu.availability.as_deref() {
                    Some("NONE") => Availability::No,
                    Some(_) => Availability::Yes,
                    None => Availability::Unknown,
                },
                connected: false,
                rate_as_of: None,
            });
        }
    }
    offers
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
