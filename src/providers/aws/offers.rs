//! Makes offers of AWS's types. Pure: types, zones and prices come as arguments.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::{
    ArchitectureType, GpuDeviceMemoryInfo, InferenceDeviceMemoryInfo, InstanceTypeInfo,
    NeuronDeviceMemoryInfo, UsageClassType,
};
use skyward_core::{
    Usd,
    accelerator::{self, FormFactor},
    offer::{Accelerators, Architecture, Availability, Offer},
};
use skyward_provider_kit::dns_label;

/// What its image must bring along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drivers {
    /// Nothing.
    None,
    /// NVIDIA's.
    Nvidia,
    /// The Neuron SDK's, for Trainium and Inferentia.
    Neuron,
}

/// An instance type, as far as we need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Name: `g6.xlarge`.
    pub name: String,
    /// vCPUs.
    pub vcpus: f64,
    /// Memory in GB (10^9 bytes).
    pub memory_gb: f64,
    /// Architecture.
    pub architecture: Architecture,
    /// Accelerators.
    pub accelerators: Option<Accelerators>,
    /// What its image must bring along.
    pub drivers: Drivers,
    /// Sold on demand.
    pub on_demand: bool,
    /// Sold on the spot market.
    pub spot: bool,
    /// Slows down when its credits are used up.
    pub burstable: bool,
    /// A whole host without a hypervisor.
    pub bare_metal: bool,
}

/// On-demand prices by type.
pub type Prices = BTreeMap<String, Usd>;
/// Spot prices by type and zone.
pub type SpotPrices = BTreeMap<String, BTreeMap<String, Usd>>;
/// Zones that carry a type.
pub type Zones = BTreeMap<String, BTreeSet<String>>;

/// Families that sell parts of a GPU, with the GPU that they are parts of: AWS does not
/// always name it.
const PARTS: &[(&str, &str)] = &[("g6f", "L4"), ("gr6f", "L4")];

/// An instance type; `None` when no machine of ours can be one.
pub fn kind(info: &InstanceTypeInfo) -> Option<Kind> {
    let name = info.instance_type()?.as_str().to_owned();
    let architecture = info
        .processor_info()?
        .supported_architectures()
        .iter()
        .find_map(|supported| match supported {
            ArchitectureType::X8664 => Some(Architecture::Amd64),
            ArchitectureType::Arm64 => Some(Architecture::Arm64),
            _ => None,
        })?;
    let sold = |class: &UsageClassType| info.supported_usage_classes().contains(class);
    let (accelerators, drivers) = accelerators(info, &name);
    Some(Kind {
        vcpus: f64::from(info.v_cpu_info()?.default_v_cpus()?),
        memory_gb: info.memory_info()?.size_in_mib()? as f64 * 1_048_576.0 / 1e9,
        architecture,
        accelerators,
        drivers,
        on_demand: sold(&UsageClassType::OnDemand),
        spot: sold(&UsageClassType::Spot),
        burstable: info.burstable_performance_supported().unwrap_or(false),
        bare_metal: info.bare_metal().unwrap_or(false),
        name,
    })
}

/// How GPUs are built into a family of instances, which EC2 does not say.
fn built_in(family: &str) -> Option<FormFactor> {
    match family {
        "p2" => Some(FormFactor::Pcie),
        _ if family.starts_with('p') => Some(FormFactor::Sxm),
        _ if family.starts_with('g') => Some(FormFactor::Pcie),
        _ => None,
    }
}

fn accelerators(info: &InstanceTypeInfo, name: &str) -> (Option<Accelerators>, Drivers) {
    if let Some(gpus) = info.gpu_info()
        && let Some(gpu) = gpus.gpus().first()
    {
        let family = name.split('.').next().unwrap_or_default();
        let part_of = PARTS
            .iter()
            .find(|(part, _)| *part == family)
            .map(|(_, gpu)| *gpu);
        let written = gpu
            .name()
            .filter(|name| !name.is_empty())
            .or(part_of)
            .unwrap_or("GPU");
        let canonical = accelerator::canonical(written);
        let mebibytes = gpu
            .memory_info()
            .and_then(GpuDeviceMemoryInfo::size_in_mib)
            .or_else(|| gpus.total_gpu_memory_in_mib())
            .filter(|mebibytes| *mebibytes > 0)
            .map(f64::from);
        let whole = f64::from(gpu.count().unwrap_or(0));
        let partition = gpu
            .gpu_partition_size()
            .filter(|size| *size > 0.0 && *size < 1.0)
            .map(|size| size * f64::from(gpu.logical_gpu_count().unwrap_or(1).max(1)));
        let count = match partition {
            Some(part) => part,
            None if whole > 0.0 => whole,
            // Memory tells which part it is; parts are eighths.
            None => mebibytes
                .zip(accelerator::memory_gb(&canonical))
                .map_or(1.0, |(part, whole)| {
                    (part / 1024.0 / whole * 8.0).round().clamp(1.0, 8.0) / 8.0
                }),
        };
        let memory = mebibytes.map(|mebibytes| accelerator::nominal_memory_gb(&canonical, mebibytes));
        let nvidia = gpu
            .manufacturer()
            .is_none_or(|maker| maker.eq_ignore_ascii_case("nvidia"));
        return (
            Some(Accelerators {
                name: canonical,
                count,
                memory_gb: memory,
                form_factor: accelerator::parse(written).form_factor.or(built_in(family)),
            }),
            if nvidia { Drivers::Nvidia } else { Drivers::None },
        );
    }
    let neuron = info
        .neuron_info()
        .and_then(|neuron| neuron.neuron_devices().first());
    let device = neuron
        .map(|device| {
            let memory = device.memory_info().and_then(NeuronDeviceMemoryInfo::size_in_mib);
            (device.name(), device.count(), memory)
        })
        .or_else(|| {
            let device = info.inference_accelerator_info()?.accelerators().first()?;
            let memory = device
                .memory_info()
                .and_then(InferenceDeviceMemoryInfo::size_in_mib);
            Some((device.name(), device.count(), memory))
        });
    let Some((written, count, memory)) = device else {
        return (None, Drivers::None);
    };
    let name = accelerator::canonical(written.unwrap_or("Neuron"));
    let memory_gb = memory
        .map(|mebibytes| accelerator::nominal_memory_gb(&name, f64::from(mebibytes)))
        .or_else(|| accelerator::memory_gb(&name));
    (
        Some(Accelerators {
            name,
            count: f64::from(count.unwrap_or(1)),
            memory_gb,
            form_factor: None,
        }),
        Drivers::Neuron,
    )
}

/// Whether machines of a Pool can be of this type at all.
fn offered(kind: &Kind, exclude_burstable: bool) -> bool {
    let large_enough = kind.accelerators.is_some() || kind.vcpus >= 2.0;
    // A whole host boots for a quarter of an hour; a type that only capacity blocks give
    // cannot be ordered.
    large_enough
        && !kind.bare_metal
        && (kind.on_demand || kind.spot)
        && !(exclude_burstable && kind.burstable)
}

/// The offers of one region, in a fixed order.
pub fn offers(
    region: &str,
    kinds: &[Kind],
    zones: &Zones,
    prices: &Prices,
    spot_prices: &SpotPrices,
    exclude_burstable: bool,
) -> Vec<Offer> {
    let mut all: Vec<Offer> = kinds
        .iter()
        .filter(|kind| offered(kind, exclude_burstable))
        .filter_map(|kind| {
            let carried = zones.get(&kind.name).filter(|zones| !zones.is_empty())?;
            let on_demand = prices.get(&kind.name).copied().filter(|_| kind.on_demand);
            let spot = spot_prices
                .get(&kind.name)
                .into_iter()
                .flatten()
                .filter(|(zone, _)| carried.contains(*zone))
                .map(|(_, price)| *price)
                .min()
                .filter(|_| kind.spot);
            (on_demand.is_some() || spot.is_some()).then(|| Offer {
                id: dns_label(&format!("{region}-{}", kind.name)),
                instance_type: kind.name.clone(),
                region: region.to_owned(),
                accelerators: kind.accelerators.clone(),
                vcpus: kind.vcpus,
                memory_gb: kind.memory_gb,
                disk_gb: None,
                architecture: kind.architecture,
                on_demand,
                spot,
                // AWS publishes no stock: only trying tells.
                availability: Availability::Unknown,
                connected: true,
                rate_as_of: None,
            })
        })
        .collect();
    all.sort_by(|a, b| a.id.cmp(&b.id));
    all
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
