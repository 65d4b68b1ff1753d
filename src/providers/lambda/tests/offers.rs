use serde_json::Value;
use skyward_core::{
    Usd,
    offer::{Architecture, Availability},
};

use super::*;

fn types() -> BTreeMap<String, TypeItem> {
    let body: Value = serde_json::from_str(include_str!("../../tests/fixtures/lambda/types.json")).unwrap();
    serde_json::from_value(body["data"].clone()).unwrap()
}

fn region(name: &str) -> Region {
    Region { name: name.into() }
}

#[test]
fn each_kind_is_an_offer_in_each_region_and_the_preferred_one_comes_first() {
    let offers = offers(
        &types(),
        &[region("us-west-1"), region("us-east-1")],
        Some("us-west-1"),
    );
    // us-south-2 is known only from what has stock there.
    assert_eq!(offers.len(), 3 * 3);
    let of_a10 = offers.iter().filter(|offer| offer.instance_type == "gpu_1x_a10");
    let first = of_a10.min_by(|one, other| one.id.cmp(&other.id)).unwrap();
    assert_eq!(
        first.region, "us-west-1",
        "of equal prices the first by name is chosen"
    );
    let a10 = offers
        .iter()
        .find(|offer| offer.id == "gpu-1x-a10-us-west-1")
        .unwrap();
    assert_eq!(a10.availability, Availability::Yes);
    assert_eq!((a10.on_demand, a10.spot), (Some(Usd::cents(75)), None));
    let gpus = a10.accelerators.as_ref().unwrap();
    assert_eq!(
        (gpus.name.as_str(), gpus.count, gpus.memory_gb),
        ("A10", 1.0, Some(24.0))
    );
    assert!((a10.memory_gb - 214.7).abs() < 0.1, "{}", a10.memory_gb);
    let elsewhere = offers
        .iter()
        .find(|offer| offer.id == "gpu-1x-a10-zz-us-east-1")
        .unwrap();
    assert_eq!(elsewhere.availability, Availability::No);
}

#[test]
fn grace_is_an_arm_processor_and_a_machine_without_gpus_has_none() {
    let offers = offers(&types(), &[], None);
    let of = |name: &str| offers.iter().find(|offer| offer.instance_type == name).unwrap();
    assert_eq!(of("gpu_1x_gh200").architecture, Architecture::Arm64);
    assert_eq!(of("gpu_1x_a10").architecture, Architecture::Amd64);
    assert_eq!(of("cpu_4x_general").accelerators, None);
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let offers = offers(&types(), &[region("us-west-1")], None);
    crate::fixtures::check_memory(
        &offers,
        &[("A10", 24.0), ("H100", 80.0), ("GH200", 96.0), ("A100", 40.0)],
    );
}
