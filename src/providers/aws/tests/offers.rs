use aws_sdk_ec2::types::{
    GpuDeviceInfo, GpuDeviceMemoryInfo, GpuInfo, MemoryInfo, NeuronDeviceInfo, NeuronDeviceMemoryInfo,
    NeuronInfo, ProcessorInfo, VCpuInfo,
};
use rstest::rstest;

use super::*;

fn info(name: &str, vcpus: i32, mebibytes: i64) -> aws_sdk_ec2::types::builders::InstanceTypeInfoBuilder {
    InstanceTypeInfo::builder()
        .instance_type(name.into())
        .processor_info(
            ProcessorInfo::builder()
                .supported_architectures(ArchitectureType::X8664)
                .build(),
        )
        .v_cpu_info(VCpuInfo::builder().default_v_cpus(vcpus).build())
        .memory_info(MemoryInfo::builder().size_in_mib(mebibytes).build())
        .supported_usage_classes(UsageClassType::OnDemand)
        .supported_usage_classes(UsageClassType::Spot)
}

fn gpus(name: Option<&str>, count: i32, mebibytes: i32) -> GpuInfo {
    GpuInfo::builder()
        .gpus(
            GpuDeviceInfo::builder()
                .set_name(name.map(str::to_owned))
                .manufacturer("NVIDIA")
                .count(count)
                .memory_info(GpuDeviceMemoryInfo::builder().size_in_mib(mebibytes).build())
                .build(),
        )
        .build()
}

fn accelerator_of(name: &str, gpus: GpuInfo) -> (String, f64, Option<f64>) {
    let kind = kind(&info(name, 4, 16_384).gpu_info(gpus).build()).unwrap();
    assert_eq!(kind.drivers, Drivers::Nvidia);
    let found = kind.accelerators.unwrap();
    (found.name, found.count, found.memory_gb)
}

#[test]
fn accelerators_are_named_as_everywhere() {
    assert_eq!(
        accelerator_of("p5.48xlarge", gpus(Some("H100"), 8, 81_920)),
        ("H100".into(), 8.0, Some(80.0))
    );
    assert_eq!(
        accelerator_of("g6e.xlarge", gpus(Some("L40S"), 1, 45_776)),
        ("L40S".into(), 1.0, Some(48.0))
    );
    assert_eq!(
        accelerator_of("g5g.xlarge", gpus(Some("T4g"), 1, 16_384)),
        ("T4G".into(), 1.0, Some(16.0))
    );
    assert_eq!(
        accelerator_of("p4d.24xlarge", gpus(Some("A100"), 8, 40_960)),
        ("A100".into(), 8.0, Some(40.0))
    );
    assert_eq!(
        accelerator_of("g7e.2xlarge", gpus(Some("RTX PRO Server 6000"), 1, 98_304)),
        ("RTX PRO 6000".into(), 1.0, Some(96.0))
    );
}

/// The fixtures of AWS have no accelerators; these are the names that EC2 tells of its GPUs by NVIDIA.
#[rstest]
fn a_rule_knows_each_gpu_of_ec2_by_its_canonical_name(
    #[values(
        "M60",
        "V100",
        "T4",
        "T4g",
        "A10G",
        "A100",
        "L4",
        "L40S",
        "H100",
        "H200",
        "B200",
        "B300",
        "RTX PRO Server 6000"
    )]
    written: &str,
) {
    let (name, ..) = accelerator_of("p5.48xlarge", gpus(Some(written), 8, 24_576));
    let known = accelerator::model(&name).map(|model| model.name);
    assert_eq!(known, Some(name.as_str()), "no rule knows {written}");
}

#[rstest]
#[case("g6f.large", 3_072, 0.125)]
#[case("g6f.2xlarge", 6_144, 0.25)]
#[case("gr6f.4xlarge", 12_288, 0.5)]
fn parts_of_a_gpu_are_fractions_though_aws_neither_names_nor_counts_them(
    #[case] name: &str,
    #[case] mebibytes: i32,
    #[case] expected: f64,
) {
    let (gpu, count, memory) = accelerator_of(name, gpus(None, 0, mebibytes));
    assert_eq!((gpu.as_str(), count), ("L4", expected));
    assert_eq!(memory, Some(f64::from(mebibytes) / 1024.0));
}

#[test]
fn parts_of_a_gpu_are_what_aws_says_where_it_does() {
    let part = GpuInfo::builder()
        .gpus(
            GpuDeviceInfo::builder()
                .name("L4")
                .manufacturer("NVIDIA")
                .count(0)
                .logical_gpu_count(1)
                .gpu_partition_size(0.25)
                .memory_info(GpuDeviceMemoryInfo::builder().size_in_mib(5722).build())
                .build(),
        )
        .build();
    assert_eq!(
        accelerator_of("g6f.2xlarge", part),
        ("L4".into(), 0.25, Some(5.6))
    );
}

#[test]
fn trainium_is_an_accelerator_with_drivers_of_its_own() {
    let neuron = NeuronInfo::builder()
        .neuron_devices(
            NeuronDeviceInfo::builder()
                .name("Trainium2")
                .count(16)
                .memory_info(NeuronDeviceMemoryInfo::builder().size_in_mib(98_304).build())
                .build(),
        )
        .build();
    let kind = kind(&info("trn2.48xlarge", 192, 2_097_152).neuron_info(neuron).build()).unwrap();
    assert_eq!(kind.drivers, Drivers::Neuron);
    let found = kind.accelerators.unwrap();
    assert_eq!(
        (found.name.as_str(), found.count, found.memory_gb),
        ("Trainium2", 16.0, Some(96.0))
    );
}

fn world() -> (Vec<Kind>, Zones, Prices, SpotPrices) {
    let kinds = vec![
        kind(
            &info("g6.xlarge", 4, 16_384)
                .gpu_info(gpus(Some("L4"), 1, 22_888))
                .build(),
        )
        .unwrap(),
        kind(&info("c7i.large", 2, 4096).build()).unwrap(),
        kind(
            &info("t3.large", 2, 8192)
                .burstable_performance_supported(true)
                .build(),
        )
        .unwrap(),
        kind(&info("t3.nano", 1, 512).build()).unwrap(),
        kind(&info("c7i.metal", 96, 196_608).bare_metal(true).build()).unwrap(),
    ];
    let zones = kinds
        .iter()
        .map(|kind| {
            (
                kind.name.clone(),
                BTreeSet::from(["a".to_owned(), "b".to_owned()]),
            )
        })
        .collect();
    let prices = kinds
        .iter()
        .map(|kind| (kind.name.clone(), Usd::new(8048, 4)))
        .collect();
    let spot = SpotPrices::from([(
        "g6.xlarge".to_owned(),
        BTreeMap::from([
            ("a".to_owned(), Usd::cents(31)),
            ("b".to_owned(), Usd::cents(29)),
            // A zone that does not carry the type any more.
            ("c".to_owned(), Usd::cents(1)),
        ]),
    )]);
    (kinds, zones, prices, spot)
}

fn names(offers: &[Offer]) -> Vec<&str> {
    offers.iter().map(|offer| offer.instance_type.as_str()).collect()
}

#[test]
fn machines_that_a_pool_can_have_are_offered_at_the_lowest_spot_price() {
    let (kinds, zones, prices, spot) = world();
    let all = offers("us-east-1", &kinds, &zones, &prices, &spot, false);
    assert_eq!(names(&all), ["c7i.large", "g6.xlarge", "t3.large"]);
    let gpu = &all[1];
    assert_eq!(gpu.id, "us-east-1-g6-xlarge");
    assert_eq!(
        (gpu.on_demand, gpu.spot),
        (Some(Usd::new(8048, 4)), Some(Usd::cents(29)))
    );
    assert_eq!(gpu.availability, Availability::Unknown);
    assert!(gpu.connected);
    assert_eq!(all[0].spot, None);
}

#[test]
fn burstable_types_are_left_out_when_asked() {
    let (kinds, zones, prices, spot) = world();
    let all = offers("us-east-1", &kinds, &zones, &prices, &spot, true);
    assert_eq!(names(&all), ["c7i.large", "g6.xlarge"]);
}

#[test]
fn what_no_zone_carries_or_nobody_prices_is_not_offered() {
    let (kinds, mut zones, mut prices, spot) = world();
    zones.remove("c7i.large");
    prices.remove("t3.large");
    assert_eq!(
        names(&offers("us-east-1", &kinds, &zones, &prices, &spot, false)),
        ["g6.xlarge"]
    );
}

#[test]
fn what_only_capacity_blocks_give_is_not_offered() {
    let (_, zones, prices, spot) = world();
    let blocks = InstanceTypeInfo::builder()
        .instance_type("g6.xlarge".into())
        .processor_info(
            ProcessorInfo::builder()
                .supported_architectures(ArchitectureType::X8664)
                .build(),
        )
        .v_cpu_info(VCpuInfo::builder().default_v_cpus(4).build())
        .memory_info(MemoryInfo::builder().size_in_mib(1024).build())
        .supported_usage_classes(UsageClassType::CapacityBlock)
        .build();
    let kinds = [kind(&blocks).unwrap()];
    assert_eq!(offers("us-east-1", &kinds, &zones, &prices, &spot, false), []);
}
