use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::Value;
use skyward_core::{Usd, accelerator::FormFactor};

use super::*;
use crate::fixtures::check_memory;

fn catalogue() -> Catalogue {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/gcp/catalogue.json")).unwrap();
    let sold = Sold {
        machines: serde_json::from_value(body["machineTypes"].take()).unwrap(),
        accelerators: serde_json::from_value(body["acceleratorTypes"].take()).unwrap(),
    };
    Catalogue::from([
        ("us-central1-a".to_owned(), sold),
        ("us-central1-f".to_owned(), Sold::default()),
    ])
}

fn all(settings: &Settings) -> Vec<Offer> {
    offers(&catalogue(), settings)
}

fn of<'a>(offers: &'a [Offer], kind: &str) -> &'a Offer {
    offers.iter().find(|offer| offer.instance_type == kind).unwrap()
}

#[test]
fn each_machine_with_gpus_is_an_offer_of_its_zone_and_gpus_are_added_to_general_machines() {
    let offers = all(&Settings::default());
    let kinds: Vec<&str> = offers.iter().map(|offer| offer.instance_type.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "g2-standard-4",
            "g2-standard-48",
            "a2-highgpu-1g",
            "a2-ultragpu-8g",
            "a3-highgpu-8g",
            "a3-highgpu-1g",
            "a3-megagpu-8g",
            "a3-ultragpu-8g",
            "a4-highgpu-8g",
            "g4-standard-48",
            "n1-standard-8+nvidia-tesla-t4x1",
            "n1-standard-16+nvidia-tesla-t4x2",
            "n1-standard-32+nvidia-tesla-t4x4",
            "n1-standard-8+nvidia-tesla-v100x1",
            "n1-standard-16+nvidia-tesla-v100x2",
            "n1-standard-32+nvidia-tesla-v100x4",
            "n1-standard-96+nvidia-tesla-v100x8",
        ]
    );
    let one = of(&offers, "g2-standard-4");
    assert_eq!(one.id, "g2-standard-4-us-central1-a");
    assert_eq!(one.region, "us-central1-a");
    assert_eq!((one.vcpus, one.availability), (4.0, Availability::Unknown));
    assert!((one.memory_gb - 17.18).abs() < 0.01, "{}", one.memory_gb);
}

#[rstest]
#[case("g2-standard-48", "L4", 4.0, 24.0, None)]
#[case("a2-highgpu-1g", "A100", 1.0, 40.0, Some(FormFactor::Sxm))]
#[case("a2-ultragpu-8g", "A100", 8.0, 80.0, Some(FormFactor::Sxm))]
#[case("a3-highgpu-1g", "H100", 1.0, 80.0, Some(FormFactor::Sxm))]
#[case("a3-megagpu-8g", "H100", 8.0, 80.0, Some(FormFactor::Sxm))]
#[case("a3-ultragpu-8g", "H200", 8.0, 141.0, Some(FormFactor::Sxm))]
#[case("a4-highgpu-8g", "B200", 8.0, 180.0, Some(FormFactor::Sxm))]
#[case("g4-standard-48", "RTX PRO 6000", 1.0, 96.0, None)]
#[case("n1-standard-16+nvidia-tesla-t4x2", "T4", 2.0, 16.0, None)]
#[case("n1-standard-8+nvidia-tesla-v100x1", "V100", 1.0, 16.0, Some(FormFactor::Sxm))]
fn gpus_are_named_as_everywhere_and_counted_as_google_says(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] count: f64,
    #[case] memory_gb: f64,
    #[case] form: Option<FormFactor>,
) {
    let offers = all(&Settings::default());
    let gpus = of(&offers, kind).accelerators.as_ref().unwrap();
    assert_eq!((gpus.name.as_str(), gpus.count), (name, count));
    assert_eq!((gpus.memory_gb, gpus.form_factor), (Some(memory_gb), form));
}

#[test]
fn an_offer_has_the_prices_that_are_known_and_none_that_is_guessed() {
    let offers = all(&Settings::default());
    let prices = |kind| (of(&offers, kind).on_demand, of(&offers, kind).spot);
    let usd = |text: &str| text.parse::<Usd>().ok();
    assert_eq!(prices("a2-highgpu-1g"), (usd("3.673385"), usd("2.12081")));
    assert_eq!(prices("a3-highgpu-1g"), (None, usd("6.326192603")));
    assert_eq!(prices("g4-standard-48"), (None, None));
}

#[rstest]
#[case::of_the_default_zone(None, &[], true)]
#[case::of_its_region(Some("us-central1-f"), &[], true)]
#[case::of_another_region(Some("europe-west4-a"), &[], false)]
#[case::of_more_regions(Some("europe-west4-a"), &["us-central1"], true)]
fn settings_choose_the_regions(
    #[case] zone: Option<&str>,
    #[case] regions: &[&str],
    #[case] is_offered: bool,
) {
    let settings = Settings {
        zone: zone.map(str::to_owned),
        regions: regions.iter().map(|region| (*region).to_owned()).collect(),
        ..Settings::default()
    };
    assert_eq!(!all(&settings).is_empty(), is_offered);
}

#[test]
fn the_preferred_zone_comes_first_by_name_among_the_zones_of_its_region() {
    let mut catalogue = catalogue();
    let sold = catalogue.remove("us-central1-a").unwrap();
    let other = Sold {
        machines: sold.machines.clone(),
        accelerators: sold.accelerators.clone(),
    };
    catalogue.insert("us-central1-a".to_owned(), other);
    catalogue.insert("us-central1-f".to_owned(), sold);
    let settings = Settings {
        zone: Some("us-central1-f".to_owned()),
        ..Settings::default()
    };
    let offers = offers(&catalogue, &settings);
    let ids: BTreeSet<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(ids.len(), offers.len());
    let first = ids.iter().find(|id| id.starts_with("g2-standard-4-")).unwrap();
    assert_eq!(*first, "g2-standard-4-us-central1-f");
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    check_memory(
        &all(&Settings::default()),
        &[
            ("L4", 24.0),
            ("A100", 40.0),
            ("A100", 80.0),
            ("H100", 80.0),
            ("H200", 141.0),
            ("B200", 180.0),
            ("RTX PRO 6000", 96.0),
            ("T4", 16.0),
            ("V100", 16.0),
        ],
    );
}

#[test]
fn a_type_that_no_order_could_name_is_no_offer() {
    let named = |name: &str| {
        let mut catalogue = catalogue();
        let sold = catalogue.get_mut("us-central1-a").unwrap();
        sold.machines.retain(|machine| machine.name == "g2-standard-4");
        sold.accelerators.clear();
        name.clone_into(&mut sold.machines[0].name);
        offers(&catalogue, &Settings::default()).len()
    };
    assert_eq!(named("g2-standard-4"), 1);
    for name in ["", "g2/standard", "g2-standard-4+nvidia-l4x1", &"g".repeat(64)] {
        assert_eq!(named(name), 0, "{name}");
    }
}
