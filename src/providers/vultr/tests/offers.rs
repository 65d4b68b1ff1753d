use rstest::rstest;
use serde_json::Value;
use skyward_core::{
    accelerator::FormFactor,
    offer::{Architecture, Availability},
};

use super::*;
use crate::fixtures::check_memory;

/// The plans of both APIs.
fn plans() -> Vec<Plan> {
    let body: Value = serde_json::from_str(include_str!("../../tests/fixtures/vultr/plans.json")).unwrap();
    let of = |list: &str, mode: Mode| {
        let plans: Vec<Plan> = serde_json::from_value(body[list].clone()).unwrap();
        plans.into_iter().map(move |plan| Plan { mode, ..plan })
    };
    of("plans", Mode::Cloud)
        .chain(of("plans_metal", Mode::BareMetal))
        .collect()
}

fn cloud() -> Vec<Offer> {
    let stock = BTreeMap::from([(
        "ewr".to_owned(),
        BTreeSet::from(["vcg-a16-2c-8g-2vram".to_owned()]),
    )]);
    offers(&plans(), &stock, &Settings::default())
}

fn metal() -> Vec<Offer> {
    let settings = Settings {
        mode: Some(Mode::BareMetal),
        ..Settings::default()
    };
    offers(&plans(), &Stock::default(), &settings)
}

fn of<'a>(offers: &'a [Offer], kind: &str) -> &'a Offer {
    offers.iter().find(|offer| offer.instance_type == kind).unwrap()
}

#[test]
fn each_plan_is_an_offer_in_each_of_its_regions_and_stock_is_what_the_region_says() {
    let offers = cloud();
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "vcg-a16-2c-8g-2vram-ewr",
            "vcg-a16-2c-8g-2vram-ord",
            "vcg-a16-24c-256g-64vram-ewr",
            // Names decide between equal prices: this one sorts after the preferred region.
            "vcg-a100-12c-120g-80vram-zz-ams",
            "vcg-a100-12c-120g-80vram-ewr",
            "vcg-x1-12c-120g-31vram-ewr",
        ]
    );
    let in_stock = offers
        .iter()
        .filter(|offer| offer.availability == Availability::Yes);
    assert_eq!(
        in_stock.map(|offer| offer.id.as_str()).collect::<Vec<_>>(),
        [ids[0]]
    );
    assert!(offers.iter().all(|offer| offer.connected));
    assert!(metal().iter().all(|offer| !offer.connected));
}

#[rstest]
#[case::a_part("vcg-a16-2c-8g-2vram", "A16", 0.125, 2.0)]
#[case::several("vcg-a16-24c-256g-64vram", "A16", 4.0, 16.0)]
#[case::one("vcg-a100-12c-120g-80vram", "A100", 1.0, 80.0)]
#[case::unknown("vcg-x1-12c-120g-31vram", "NVIDIA X1", 1.0, 31.0)]
fn gpus_of_virtual_machines_are_counted_by_their_memory(
    #[case] plan: &str,
    #[case] name: &str,
    #[case] count: f64,
    #[case] memory_gb: f64,
) {
    let offers = cloud();
    let gpus = of(&offers, plan).accelerators.as_ref().unwrap();
    assert_eq!(
        (gpus.name.as_str(), gpus.count, gpus.memory_gb),
        (name, count, Some(memory_gb))
    );
}

#[test]
fn gpus_of_bare_metal_are_read_from_its_plan_or_from_the_id_of_that() {
    let offers = metal();
    let gpus = |plan: &str| {
        let gpus = of(&offers, plan).accelerators.clone();
        gpus.map(|gpus| (gpus.name, gpus.count, gpus.memory_gb))
    };
    assert_eq!(gpus("vbm-4c-32gb"), None);
    assert_eq!(gpus("vbm-24c-256gb-amd"), None);
    assert_eq!(
        gpus("vbm-112c-2048gb-8-h100-gpu"),
        Some(("H100".into(), 8.0, Some(80.0)))
    );
    assert_eq!(
        gpus("vbm-72c-480gb-gh200-gpu"),
        Some(("GH200".into(), 1.0, Some(96.0)))
    );
    assert_eq!(
        gpus("vbm-256c-2048gb-8-b200-gpu"),
        Some(("B200".into(), 8.0, Some(180.0)))
    );
    let b200 = of(&offers, "vbm-256c-2048gb-8-b200-gpu");
    assert_eq!(
        b200.accelerators.as_ref().unwrap().form_factor,
        Some(FormFactor::Sxm)
    );
    let arm = offers
        .iter()
        .filter(|offer| offer.architecture == Architecture::Arm64);
    assert_eq!(arm.count(), 1, "GH200 alone is an ARM machine");
}

#[test]
fn prices_are_those_of_an_hour_and_else_a_part_of_the_month() {
    let (cloud, metal) = (cloud(), metal());
    let price = |offers: &[Offer], plan| of(offers, plan).on_demand;
    assert_eq!(price(&cloud, "vcg-a16-2c-8g-2vram"), Some(Usd::new(59, 3)));
    assert_eq!(
        price(&cloud, "vcg-a16-24c-256g-64vram"),
        Some(Usd::new(18_849, 4))
    );
    assert_eq!(price(&cloud, "vcg-x1-12c-120g-31vram"), None);
    assert_eq!(price(&metal, "vbm-4c-32gb"), Some(Usd::cents(50)));
}

#[test]
fn sizes_are_those_of_the_plan() {
    let offers = metal();
    let small = of(&offers, "vbm-4c-32gb");
    assert_eq!((small.vcpus, small.disk_gb), (8.0, Some(240.0)));
    assert!((small.memory_gb - 34.36).abs() < 0.01, "{}", small.memory_gb);
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [
        ("A16", 2.0),
        ("A16", 16.0),
        ("A100", 80.0),
        ("NVIDIA X1", 31.0),
        ("H100", 80.0),
        ("GH200", 96.0),
        ("B200", 180.0),
    ];
    check_memory(&cloud(), &sold);
    check_memory(&metal(), &sold);
}
