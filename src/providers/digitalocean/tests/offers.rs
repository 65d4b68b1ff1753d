use rstest::rstest;
use serde_json::Value;
use skyward_core::offer::Availability;

use super::*;
use crate::fixtures::check_memory;

fn all() -> Vec<Offer> {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/digitalocean/sizes.json")).unwrap();
    let sizes: Vec<Size> = serde_json::from_value(body["sizes"].clone()).unwrap();
    offers(&sizes, &Settings::default())
}

fn of<'a>(offers: &'a [Offer], kind: &str) -> &'a Offer {
    offers.iter().find(|offer| offer.instance_type == kind).unwrap()
}

#[test]
fn each_size_with_gpus_is_an_offer_in_each_region_that_has_it_now() {
    let offers = all();
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            // Names decide between equal prices: this one sorts after the preferred region.
            "gpu-4000adax1-20gb-zz-ams3",
            "gpu-4000adax1-20gb-nyc1",
            "gpu-4000adax1-20gb-tor1",
            // What is sold out everywhere, as the L40S is, has no region.
            "gpu-6000adax1-48gb-tor1",
            "gpu-h100x1-80gb-tor1",
            "gpu-h100x8-640gb-tor1",
            "gpu-mi300x1-192gb-nyc2",
            // Sizes for customers with a contract are left out.
            "gpu-x1x4-124gb-tor1",
        ]
    );
    let not_sold = offers
        .iter()
        .filter(|offer| offer.availability == Availability::No);
    assert_eq!(
        not_sold
            .map(|offer| offer.instance_type.as_str())
            .collect::<Vec<_>>(),
        ["gpu-6000adax1-48gb"]
    );
    assert!(offers.iter().all(|offer| offer.connected && offer.spot.is_none()));
}

#[rstest]
#[case("gpu-4000adax1-20gb", "RTX 4000 Ada", 1.0, 20.0)]
#[case("gpu-6000adax1-48gb", "RTX 6000 Ada", 1.0, 48.0)]
#[case("gpu-h100x1-80gb", "H100", 1.0, 80.0)]
#[case("gpu-h100x8-640gb", "H100", 8.0, 80.0)]
#[case("gpu-mi300x1-192gb", "MI300X", 1.0, 192.0)]
#[case::unknown("gpu-x1x4-124gb", "NVIDIA X1", 4.0, 31.0)]
fn gpus_are_counted_and_each_has_its_part_of_the_memory(
    #[case] size: &str,
    #[case] name: &str,
    #[case] count: f64,
    #[case] memory_gb: f64,
) {
    let offers = all();
    let gpus = of(&offers, size).accelerators.as_ref().unwrap();
    assert_eq!(
        (gpus.name.as_str(), gpus.count, gpus.memory_gb),
        (name, count, Some(memory_gb))
    );
}

#[test]
fn prices_are_read_to_a_millionth_and_nothing_is_no_price() {
    let offers = all();
    let price = |size| of(&offers, size).on_demand;
    assert_eq!(price("gpu-4000adax1-20gb"), Some(Usd::cents(76)));
    assert_eq!(price("gpu-h100x8-640gb"), Some(Usd::cents(2392)));
    assert_eq!(price("gpu-x1x4-124gb"), None);
}

#[test]
fn sizes_are_those_of_the_machine() {
    let offers = all();
    let h100 = of(&offers, "gpu-h100x1-80gb");
    assert_eq!((h100.vcpus, h100.disk_gb), (20.0, Some(720.0)));
    assert!((h100.memory_gb - 257.7).abs() < 0.01, "{}", h100.memory_gb);
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [
        ("RTX 4000 Ada", 20.0),
        ("RTX 6000 Ada", 48.0),
        ("H100", 80.0),
        ("MI300X", 192.0),
        ("NVIDIA X1", 31.0),
    ];
    check_memory(&all(), &sold);
}
