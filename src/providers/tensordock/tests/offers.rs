use rstest::rstest;
use serde_json::{Value, json};
use skyward_core::accelerator::FormFactor;

use super::*;
use crate::{fixtures::check_memory, tensordock::wire};

const DALLAS: &str = "united-states-dallas-ec5574";
const GERMANY: &str = "germany-frankfurt-c51e31";

fn locations() -> Vec<Location> {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/tensordock/locations.json")).unwrap();
    wire::locations(body["data"]["locations"].as_array().unwrap())
}

fn settings(written: Value) -> Settings {
    serde_json::from_value(written).unwrap()
}

fn all(written: Value) -> Vec<Offer> {
    offers(&locations(), &settings(written))
}

fn usd(text: &str) -> Usd {
    text.parse().unwrap()
}

/// An order of one of the recorded offers.
fn order(kind: &str, region: &str) -> Order {
    Order {
        instance_type: kind.to_owned(),
        region: region.to_owned(),
        ..Order::default()
    }
}

#[test]
fn each_number_of_gpus_that_a_host_has_free_is_an_offer_at_its_place() {
    let offers = all(json!({}));
    let found: Vec<(&str, &str)> = offers
        .iter()
        .map(|offer| (offer.instance_type.as_str(), offer.region.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("geforcertx4090-pcie-24gb-x1", DALLAS),
            ("geforcertx4090-pcie-24gb-x2", DALLAS),
            ("h100-sxm5-80gb-x1", DALLAS),
            ("h100-sxm5-80gb-x2", DALLAS),
            ("h100-sxm5-80gb-x3", DALLAS),
            ("h100-sxm5-80gb-x4", DALLAS),
            ("v100-sxm2-16gb-x1", "united-states-dallas-b28117"),
            ("chipoftomorrow-96gb-x1", GERMANY),
        ]
    );
    assert!(
        offers
            .iter()
            .all(|offer| offer.id.len() <= 63 && !offer.connected)
    );
}

#[rstest]
#[case("geforcertx4090-pcie-24gb-x1", "RTX 4090", 24.0, Some(FormFactor::Pcie), (4.0, 16.0, Some(2000.0)), "0.399")]
#[case("geforcertx4090-pcie-24gb-x2", "RTX 4090", 24.0, Some(FormFactor::Pcie), (8.0, 32.0, Some(2000.0)), "0.793")]
#[case::with_all_that_there_is("h100-sxm5-80gb-x4", "H100", 80.0, Some(FormFactor::Sxm), (12.0, 32.0, Some(1000.0)), "9.105")]
#[case::without_bounds("v100-sxm2-16gb-x1", "V100", 16.0, Some(FormFactor::Sxm), (4.0, 16.0, None), "0.245")]
#[case::unknown("chipoftomorrow-96gb-x1", "CHIPOFTOMORROW 96GB", 96.0, None, (4.0, 16.0, Some(1000.0)), "1.045")]
fn an_offer_has_hardware_around_its_gpus_and_the_price_of_all_of_it(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] memory_gb: f64,
    #[case] form: Option<FormFactor>,
    #[case] hardware: (f64, f64, Option<f64>),
    #[case] price: &str,
) {
    let offers = all(json!({}));
    let offer = offers.iter().find(|offer| offer.instance_type == kind).unwrap();
    let gpus = offer.accelerators.as_ref().unwrap();
    assert_eq!(
        (gpus.name.as_str(), gpus.memory_gb, gpus.form_factor),
        (name, Some(memory_gb), form)
    );
    assert_eq!((offer.vcpus, offer.memory_gb, offer.disk_gb), hardware);
    assert_eq!((offer.on_demand, offer.spot), (Some(usd(price)), None));
    let sold = sold(&locations(), &order(kind, &offer.region), &Settings::default());
    assert_eq!(sold.map(|shape| shape.price), Some(usd(price)));
}

#[rstest]
#[case::country(json!({ "location": "United States" }), 7)]
#[case::in_another_case(json!({ "location": "GERMANY" }), 1)]
#[case::shortened(json!({ "location": "us" }), 7)]
#[case::city(json!({ "location": "united-states-dallas" }), 7)]
#[case::one_of_two_places_in_a_city(json!({ "location": DALLAS }), 6)]
#[case::a_part_of_a_word(json!({ "location": "unit" }), 0)]
#[case::nowhere(json!({ "location": "Atlantis" }), 0)]
#[case::tier(json!({ "tier": 0 }), 1)]
#[case::both(json!({ "tier": 4, "location": "Germany" }), 1)]
#[case::neither(json!({ "tier": 4, "location": "us" }), 0)]
fn settings_choose_the_places(#[case] written: Value, #[case] expected: usize) {
    assert_eq!(all(written).len(), expected);
}

#[rstest]
#[case::in_steps(json!({ "minVcpus": 5, "minRam": "40G", "storage": "101G" }), Some((6, 48, 150)))]
#[case::the_least(json!({ "minVcpus": 1, "minRam": "0", "storage": "1G" }), Some((2, 16, 100)))]
#[case::all_that_there_is(json!({ "minVcpus": 64, "minRam": "256G", "storage": "2T" }), Some((64, 256, 2000)))]
#[case::too_many_vcpus(json!({ "minVcpus": 65 }), None)]
#[case::too_much_memory(json!({ "minRam": "257G" }), None)]
#[case::too_large_a_disk(json!({ "storage": "2001G" }), None)]
fn settings_choose_the_hardware_and_what_no_place_has_is_not_offered(
    #[case] written: Value,
    #[case] expected: Option<(u32, u32, u32)>,
) {
    let kind = "geforcertx4090-pcie-24gb-x1";
    let sold = sold(&locations(), &order(kind, DALLAS), &settings(written.clone()));
    let found = sold
        .as_ref()
        .map(|shape| (shape.vcpus, shape.ram_gb, shape.storage_gb));
    assert_eq!(found, expected);
    let mut offers = all(written).into_iter();
    let offer = offers.find(|offer| offer.instance_type == kind && offer.region == DALLAS);
    assert_eq!(
        offer.and_then(|offer| offer.on_demand),
        sold.map(|shape| shape.price)
    );
}

#[test]
fn an_order_has_what_its_pool_asks_for_at_the_price_of_that() {
    let asked = Order {
        vcpus: Some(6.5),
        memory_bytes: Some(20 << 30),
        disk_bytes: Some(300 << 30),
        ..order("geforcertx4090-pcie-24gb-x2", DALLAS)
    };
    let shape = sold(&locations(), &asked, &settings(json!({ "storage": "1T" }))).unwrap();
    // The usual vCPUs and memory of two GPUs are more.
    assert_eq!((shape.vcpus, shape.ram_gb, shape.storage_gb), (8, 32, 350));
    assert_eq!(shape.price, usd("0.8055"));
    let more = Order {
        vcpus: Some(9.0),
        memory_bytes: Some(33_000_000_000),
        ..asked
    };
    let shape = sold(&locations(), &more, &Settings::default()).unwrap();
    assert_eq!((shape.vcpus, shape.ram_gb), (10, 48));
    assert_eq!((shape.gpu.as_str(), shape.count), ("geforcertx4090-pcie-24gb", 2));
    assert_eq!(shape.location, "3f6c0a52-0000-4000-8000-000000000001");
}

#[rstest]
#[case::more_than_a_host_has("geforcertx4090-pcie-24gb-x3", DALLAS)]
#[case::none("geforcertx4090-pcie-24gb-x0", DALLAS)]
#[case::elsewhere("geforcertx4090-pcie-24gb-x1", GERMANY)]
#[case::at_a_place_that_is_gone("geforcertx4090-pcie-24gb-x1", "united-states-dallas-000000")]
#[case::without_a_port("l40s-pcie-48gb-x1", DALLAS)]
#[case::without_a_number("geforcertx4090-pcie-24gb", DALLAS)]
fn what_is_not_offered_is_not_sold(#[case] kind: &str, #[case] region: &str) {
    assert_eq!(
        sold(&locations(), &order(kind, region), &Settings::default()),
        None
    );
}

#[rstest]
#[case::of_nothing("price_per_hr", json!(0))]
#[case::below_nothing("price_per_hr", json!(-1))]
#[case::with_a_part_below_nothing("pricing", json!({ "per_vcpu_hr": -1, "per_gb_ram_hr": 1, "per_gb_storage_hr": 1 }))]
#[case::with_a_part_that_is_not_told("pricing", json!({ "per_vcpu_hr": 1, "per_gb_storage_hr": 1 }))]
fn a_price_that_is_none_is_no_offer(#[case] field: &str, #[case] value: Value) {
    let mut gpu = json!({
        "v0Name": "l4-pcie-24gb", "max_count": 1, "price_per_hr": 1,
        "pricing": { "per_vcpu_hr": 1, "per_gb_ram_hr": 1, "per_gb_storage_hr": 0 },
    });
    let made = |gpu: &Value| {
        let told = [json!({ "id": "a", "gpus": [gpu] })];
        offers(&wire::locations(&told), &Settings::default()).len()
    };
    assert_eq!(made(&gpu), 1);
    gpu[field] = value;
    assert_eq!(made(&gpu), 0);
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [
        ("RTX 4090", 24.0),
        ("H100", 80.0),
        ("V100", 16.0),
        ("CHIPOFTOMORROW 96GB", 96.0),
    ];
    check_memory(&all(json!({})), &sold);
}
