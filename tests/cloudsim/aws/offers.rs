//! What can be rented: instance types, and where they are.

use serde_json::{Value, json};

use super::catalogue::{self, InstanceType, TYPES};
use super::context::Context;
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, page, text, texts};
use super::network::zone_id;

/// Filters of instance types, each with the field of the record that it is compared with.
const TYPE_FILTERS: [(&str, &str); 40] = [
    ("auto-recovery-supported", "/AutoRecoverySupported"),
    ("bare-metal", "/BareMetal"),
    (
        "burstable-performance-supported",
        "/BurstablePerformanceSupported",
    ),
    ("current-generation", "/CurrentGeneration"),
    ("dedicated-hosts-supported", "/DedicatedHostsSupported"),
    ("ebs-info.ebs-optimized-support", "/EbsInfo/EbsOptimizedSupport"),
    ("ebs-info.encryption-support", "/EbsInfo/EncryptionSupport"),
    ("ebs-info.nvme-support", "/EbsInfo/NvmeSupport"),
    ("free-tier-eligible", "/FreeTierEligible"),
    ("hibernation-supported", "/HibernationSupported"),
    ("hypervisor", "/Hypervisor"),
    (
        "instance-storage-info.disk.count",
        "/InstanceStorageInfo/Disks/0/Count",
    ),
    (
        "instance-storage-info.disk.size-in-gb",
        "/InstanceStorageInfo/Disks/0/SizeInGB",
    ),
    (
        "instance-storage-info.disk.type",
        "/InstanceStorageInfo/Disks/0/Type",
    ),
    (
        "instance-storage-info.encryption-support",
        "/InstanceStorageInfo/EncryptionSupport",
    ),
    (
        "instance-storage-info.nvme-support",
        "/InstanceStorageInfo/NvmeSupport",
    ),
    (
        "instance-storage-info.total-size-in-gb",
        "/InstanceStorageInfo/TotalSizeInGB",
    ),
    ("instance-storage-supported", "/InstanceStorageSupported"),
    ("instance-type", "/InstanceType"),
    ("memory-info.size-in-mib", "/MemoryInfo/SizeInMiB"),
    (
        "network-info.efa-info.maximum-efa-interfaces",
        "/NetworkInfo/EfaInfo/MaximumEfaInterfaces",
    ),
    ("network-info.efa-supported", "/NetworkInfo/EfaSupported"),
    ("network-info.ena-support", "/NetworkInfo/EnaSupport"),
    (
        "network-info.encryption-in-transit-supported",
        "/NetworkInfo/EncryptionInTransitSupported",
    ),
    (
        "network-info.ipv4-addresses-per-interface",
        "/NetworkInfo/Ipv4AddressesPerInterface",
    ),
    (
        "network-info.ipv6-addresses-per-interface",
        "/NetworkInfo/Ipv6AddressesPerInterface",
    ),
    ("network-info.ipv6-supported", "/NetworkInfo/Ipv6Supported"),
    (
        "network-info.maximum-network-cards",
        "/NetworkInfo/MaximumNetworkCards",
    ),
    (
        "network-info.maximum-network-interfaces",
        "/NetworkInfo/MaximumNetworkInterfaces",
    ),
    (
        "network-info.network-performance",
        "/NetworkInfo/NetworkPerformance",
    ),
    (
        "processor-info.supported-architecture",
        "/ProcessorInfo/SupportedArchitectures",
    ),
    (
        "processor-info.sustained-clock-speed-in-ghz",
        "/ProcessorInfo/SustainedClockSpeedInGhz",
    ),
    ("supported-boot-mode", "/SupportedBootModes"),
    ("supported-root-device-type", "/SupportedRootDeviceTypes"),
    ("supported-usage-class", "/SupportedUsageClasses"),
    ("supported-virtualization-type", "/SupportedVirtualizationTypes"),
    ("vcpu-info.default-cores", "/VCpuInfo/DefaultCores"),
    (
        "vcpu-info.default-threads-per-core",
        "/VCpuInfo/DefaultThreadsPerCore",
    ),
    ("vcpu-info.default-vcpus", "/VCpuInfo/DefaultVCpus"),
    // Nothing here has any.
    (
        "processor-info.supported-features",
        "/ProcessorInfo/SupportedFeatures",
    ),
];

/// A value as filters name it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `DescribeInstanceTypes`.
pub fn describe_types(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let named = texts(input, "InstanceTypes");
    if named.len() > 100 {
        return Err(Failure::client(
            "InvalidParameterValue",
            "At most 100 instance types in one call.",
        ));
    }
    let absent: Vec<&str> = named
        .iter()
        .map(String::as_str)
        .filter(|name| {
            !catalogue::instance_type(name).is_some_and(|kind| kind.carried_in_region(&context.region))
        })
        .collect();
    if !absent.is_empty() {
        return Err(Failure::client(
            "InvalidInstanceType",
            format!(
                "The following supplied instance types do not exist: [{}]",
                absent.join(", ")
            ),
        ));
    }
    let all: Vec<&InstanceType> = TYPES
        .iter()
        .filter(|kind| kind.carried_in_region(&context.region))
        .filter(|kind| named.is_empty() || named.iter().any(|name| name == kind.name))
        .collect();
    let known = TYPE_FILTERS.map(|(name, _)| name);
    let found = filtered(input, &known, false, all, |kind, filter| {
        let record = kind.describe();
        let place = TYPE_FILTERS.iter().find(|(name, _)| *name == filter);
        match place.and_then(|(_, place)| record.pointer(place)) {
            Some(Value::Array(items)) => items.iter().map(plain).collect(),
            Some(value) => vec![plain(value)],
            None => Vec::new(),
        }
    })?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 100,
            usual: Some(100),
        },
        context.visit.keep,
        found,
    )?;
    let types: Vec<Value> = found.into_iter().map(InstanceType::describe).collect();
    Ok(json!({"InstanceTypes": types, "NextToken": next}))
}

/// `DescribeInstanceTypeOfferings`: where types are carried, which says nothing of stock.
pub fn describe_offerings(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let location_type = text(input, "LocationType").unwrap_or("region");
    let mut all: Vec<(&InstanceType, String)> = Vec::new();
    for kind in &TYPES {
        let zones = catalogue::zones(&context.region)
            .into_iter()
            .filter(|zone| kind.carried_in(zone));
        match location_type {
            "availability-zone" => all.extend(zones.map(|zone| (kind, zone))),
            "availability-zone-id" => all.extend(zones.map(|zone| (kind, zone_id(&zone)))),
            "region" if kind.carried_in_region(&context.region) => all.push((kind, context.region.clone())),
            _ => {}
        }
    }
    let found = filtered(
        input,
        &["instance-type", "location"],
        false,
        all,
        |(kind, place), filter| {
            vec![if filter == "location" {
                place.clone()
            } else {
                kind.name.to_owned()
            }]
        },
    )?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 1_000,
            usual: Some(1_000),
        },
        context.visit.keep,
        found,
    )?;
    let offerings: Vec<Value> = found
        .into_iter()
        .map(|(kind, place)| json!({"InstanceType": kind.name, "LocationType": location_type, "Location": place}))
        .collect();
    Ok(json!({"InstanceTypeOfferings": offerings, "NextToken": next}))
}
