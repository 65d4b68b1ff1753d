//! What this AWS rents out: instance types with their sizes and prices, regions
//! with their zones. Written from public facts; figures of the price list are
//! those of Linux, shared tenancy, us-east-1.

use rust_decimal::Decimal;

/// A region: its name, the price level against us-east-1 in percent, its zones.
pub const REGIONS: [(&str, i64, &[&str]); 4] = [
    ("us-east-1", 100, &["a", "b", "c", "d", "f"]),
    ("us-west-2", 100, &["a", "b", "c", "d"]),
    ("eu-central-1", 125, &["a", "b", "c"]),
    ("ap-northeast-1", 137, &["a", "c", "d"]),
];

/// What makes a type more than a computer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Device {
    /// None.
    None,
    /// GPUs: maker, name, how many, memory of each in MiB.
    Gpus(&'static str, &'static str, u32, u32),
    /// A part of a GPU: eighths, memory in MiB, and whether the type's record
    /// has the fields of 2026 (`logicalGpuCount`, `gpuPartitionSize`).
    Fraction(u32, u32, bool),
    /// Neuron devices: name, how many, memory of each in MiB, cores, their version.
    Neuron(&'static str, u32, u32, u32, u32),
    /// Inferentia of the first generation: how many, memory of each in MiB.
    Inference(u32, u32),
}

/// An instance type.
#[derive(Debug, Clone, Copy)]
pub struct InstanceType {
    /// Its name.
    pub name: &'static str,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// `x86_64` or `arm64`.
    pub architecture: &'static str,
    /// Accelerators.
    pub device: Device,
    /// US dollars an hour in us-east-1, in hundred-thousandths.
    price: i64,
    /// Network, as the API words it.
    pub network: &'static str,
    /// Local disk in GB, 0 for none.
    pub storage: u64,
    /// Regions and zones that carry it: `*` all, else a list such as `us-east-1ab`.
    carried: &'static [&'static str],
    /// Quota that its vCPUs count against.
    pub quota: Quota,
    /// Whether it is sold on the spot market.
    pub spot: bool,
}

/// Service quotas of running instances, counted in vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quota {
    /// A, C, D, H, I, M, R, T, Z.
    Standard,
    /// G and VT.
    G,
    /// P.
    P,
    /// Inf.
    Inf,
    /// Trn.
    Trn,
}

const EVERYWHERE: &[&str] = &["*"];
const GIB: u64 = 1024;

#[expect(clippy::too_many_arguments, reason = "a row of the table below")]
const fn kind(
    name: &'static str,
    vcpus: u32,
    memory: u64,
    device: Device,
    price: i64,
    network: &'static str,
    storage: u64,
    quota: Quota,
) -> InstanceType {
    let architecture = "x86_64";
    InstanceType {
        name,
        vcpus,
        memory,
        architecture,
        device,
        price,
        network,
        storage,
        carried: EVERYWHERE,
        quota,
        spot: true,
    }
}

const fn on_arm(kind: InstanceType) -> InstanceType {
    InstanceType {
        architecture: "arm64",
        ..kind
    }
}

const fn only_in(kind: InstanceType, carried: &'static [&'static str]) -> InstanceType {
    InstanceType { carried, ..kind }
}

const fn nvidia(name: &'static str, count: u32, memory: u32) -> Device {
    Device::Gpus("NVIDIA", name, count, memory)
}

/// All types.
#[rustfmt::skip]
pub const TYPES: [InstanceType; 33] = [
    kind("t3.micro", 2, GIB, Device::None, 1_040, "Up to 5 Gigabit", 0, Quota::Standard),
    kind("t3.medium", 2, 4 * GIB, Device::None, 4_160, "Up to 5 Gigabit", 0, Quota::Standard),
    kind("t3.xlarge", 4, 16 * GIB, Device::None, 16_640, "Up to 5 Gigabit", 0, Quota::Standard),
    on_arm(kind("t4g.medium", 2, 4 * GIB, Device::None, 3_360, "Up to 5 Gigabit", 0, Quota::Standard)),
    kind("m7i.large", 2, 8 * GIB, Device::None, 10_080, "Up to 12.5 Gigabit", 0, Quota::Standard),
    kind("m7i.xlarge", 4, 16 * GIB, Device::None, 20_160, "Up to 12.5 Gigabit", 0, Quota::Standard),
    kind("m7i.4xlarge", 16, 64 * GIB, Device::None, 80_640, "Up to 12.5 Gigabit", 0, Quota::Standard),
    on_arm(kind("c7g.large", 2, 4 * GIB, Device::None, 7_250, "Up to 12.5 Gigabit", 0, Quota::Standard)),
    on_arm(kind("c7g.4xlarge", 16, 32 * GIB, Device::None, 58_000, "Up to 15 Gigabit", 0, Quota::Standard)),
    kind("g4dn.xlarge", 4, 16 * GIB, nvidia("T4", 1, 16_384), 52_600, "Up to 25 Gigabit", 125, Quota::G),
    kind("g4dn.12xlarge", 48, 192 * GIB, nvidia("T4", 4, 16_384), 391_200, "50 Gigabit", 900, Quota::G),
    kind("g4ad.xlarge", 4, 16 * GIB, Device::Gpus("AMD", "Radeon Pro V520", 1, 8_192), 37_853, "Up to 10 Gigabit", 150, Quota::G),
    on_arm(kind("g5g.xlarge", 4, 8 * GIB, nvidia("T4g", 1, 16_384), 42_000, "Up to 10 Gigabit", 0, Quota::G)),
    kind("g5.xlarge", 4, 16 * GIB, nvidia("A10G", 1, 24_576), 100_600, "Up to 10 Gigabit", 250, Quota::G),
    kind("g5.12xlarge", 48, 192 * GIB, nvidia("A10G", 4, 24_576), 567_200, "40 Gigabit", 3_800, Quota::G),
    kind("g5.48xlarge", 192, 768 * GIB, nvidia("A10G", 8, 24_576), 1_628_800, "100 Gigabit", 7_600, Quota::G),
    kind("g6.xlarge", 4, 16 * GIB, nvidia("L4", 1, 22_888), 80_480, "Up to 10 Gigabit", 250, Quota::G),
    kind("g6.12xlarge", 48, 192 * GIB, nvidia("L4", 4, 22_888), 460_160, "40 Gigabit", 3_760, Quota::G),
    kind("g6e.xlarge", 4, 32 * GIB, nvidia("L40S", 1, 45_776), 186_100, "Up to 20 Gigabit", 250, Quota::G),
    only_in(kind("g6f.large", 2, 8 * GIB, Device::Fraction(1, 2_861, true), 20_200, "Up to 10 Gigabit", 70, Quota::G), &["us-east-1", "us-west-2"]),
    only_in(kind("g6f.2xlarge", 8, 32 * GIB, Device::Fraction(2, 5_722, false), 47_600, "Up to 10 Gigabit", 280, Quota::G), &["us-east-1", "us-west-2"]),
    kind("p3.2xlarge", 8, 61 * GIB, nvidia("V100", 1, 16_384), 306_000, "Up to 10 Gigabit", 0, Quota::P),
    kind("p3.16xlarge", 64, 488 * GIB, nvidia("V100", 8, 16_384), 2_448_000, "25 Gigabit", 0, Quota::P),
    only_in(kind("p4d.24xlarge", 96, 1_152 * GIB, nvidia("A100", 8, 40_960), 2_195_764, "4x 100 Gigabit", 8_000, Quota::P), &["us-east-1a", "us-east-1b", "us-west-2b", "eu-central-1b"]),
    only_in(kind("p5.4xlarge", 16, 256 * GIB, nvidia("H100", 1, 81_920), 688_000, "100 Gigabit", 3_840, Quota::P), &["us-east-1b", "us-west-2c"]),
    only_in(kind("p5.48xlarge", 192, 2_048 * GIB, nvidia("H100", 8, 81_920), 5_504_000, "3200 Gigabit", 30_400, Quota::P), &["us-east-1b", "us-east-1f", "us-west-2c", "ap-northeast-1a"]),
    InstanceType { spot: false, ..only_in(kind("p6-b200.48xlarge", 192, 2_048 * GIB, nvidia("B200", 8, 183_359), 11_393_280, "3200 Gigabit", 30_400, Quota::P), &["us-west-2b"]) },
    kind("inf1.xlarge", 4, 8 * GIB, Device::Inference(1, 8_192), 22_800, "Up to 25 Gigabit", 0, Quota::Inf),
    kind("inf2.xlarge", 4, 16 * GIB, Device::Neuron("Inferentia2", 1, 32_768, 2, 2), 75_820, "Up to 15 Gigabit", 0, Quota::Inf),
    kind("inf2.48xlarge", 192, 768 * GIB, Device::Neuron("Inferentia2", 12, 32_768, 2, 2), 1_298_127, "100 Gigabit", 0, Quota::Inf),
    only_in(kind("trn1.2xlarge", 8, 32 * GIB, Device::Neuron("Trainium", 1, 32_768, 2, 2), 134_375, "Up to 12.5 Gigabit", 474, Quota::Trn), &["us-east-1", "us-west-2"]),
    only_in(kind("trn1.32xlarge", 128, 512 * GIB, Device::Neuron("Trainium", 16, 32_768, 2, 2), 2_150_000, "8x 100 Gigabit", 7_600, Quota::Trn), &["us-east-1", "us-west-2"]),
    InstanceType { spot: false, ..only_in(kind("trn2.48xlarge", 192, 2_048 * GIB, Device::Neuron("Trainium2", 16, 98_304, 8, 3), 4_453_060, "16x 200 Gigabit", 7_600, Quota::Trn), &["us-east-1b"]) },
];

/// The type of this name.
pub fn instance_type(name: &str) -> Option<&'static InstanceType> {
    TYPES.iter().find(|kind| kind.name == name)
}

/// The price level of a region against us-east-1, in percent.
pub fn price_level(region: &str) -> i64 {
    REGIONS
        .iter()
        .find(|(name, ..)| *name == region)
        .map_or(100, |(_, level, _)| *level)
}

/// Names of a region's zones.
pub fn zones(region: &str) -> Vec<String> {
    REGIONS
        .iter()
        .filter(|(name, ..)| *name == region)
        .flat_map(|(name, _, zones)| zones.iter().map(move |zone| format!("{name}{zone}")))
        .collect()
}

impl InstanceType {
    /// On-demand price an hour in a region.
    pub fn on_demand_price(&self, region: &str) -> Decimal {
        // The level is in percent, the price in hundred-thousandths.
        Decimal::new(self.price * price_level(region), 7).normalize()
    }

    /// How many of its virtual processors share a core.
    pub fn threads(&self) -> u32 {
        if self.architecture == "arm64" { 1 } else { 2 }
    }

    /// Its cores.
    pub fn cores(&self) -> u32 {
        self.vcpus.div_ceil(self.threads())
    }

    /// The spot price an hour in a zone when nobody has set another: a stable
    /// part of the on-demand price, different in each zone.
    pub fn usual_spot_price(&self, zone: &str) -> Decimal {
        let region = zone.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        let mixed = self
            .name
            .bytes()
            .chain(zone.bytes())
            .fold(7_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        let percent = 30 + i64::from(mixed % 31);
        (self.on_demand_price(region) * Decimal::new(percent, 2))
            .round_dp(6)
            .normalize()
    }

    /// Whether a zone carries it. That says nothing about stock.
    pub fn carried_in(&self, zone: &str) -> bool {
        self.carried
            .iter()
            .any(|place| *place == "*" || zone.starts_with(place))
    }

    /// Whether any zone of a region carries it.
    pub fn carried_in_region(&self, region: &str) -> bool {
        zones(region).iter().any(|zone| self.carried_in(zone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_follow_the_region() {
        let kind = instance_type("g5.xlarge").expect("in the catalogue");
        assert_eq!(kind.on_demand_price("us-east-1").to_string(), "1.006");
        assert_eq!(kind.on_demand_price("eu-central-1").to_string(), "1.2575");
    }

    #[test]
    fn a_spot_price_is_below_the_on_demand_price_and_differs_between_zones() {
        let kind = instance_type("g5.xlarge").expect("in the catalogue");
        let prices: Vec<_> = zones("us-east-1")
            .iter()
            .map(|zone| kind.usual_spot_price(zone))
            .collect();
        assert!(
            prices
                .iter()
                .all(|price| *price < kind.on_demand_price("us-east-1") && *price > Decimal::ZERO)
        );
        assert!(prices.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn rare_types_are_in_few_zones() {
        let kind = instance_type("p5.48xlarge").expect("in the catalogue");
        assert!(kind.carried_in("us-east-1b") && !kind.carried_in("us-east-1a"));
        assert!(!kind.carried_in_region("eu-central-1"));
    }
}
