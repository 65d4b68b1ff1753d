use rstest::rstest;
use serde_json::{Value, json};
use skyward_core::accelerator::FormFactor;

use super::*;
use crate::fixtures::check_memory;

fn inventory() -> Inventory {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/massedcompute/inventory.json")).unwrap();
    serde_json::from_value(body["gpu_inventory"].take()).unwrap()
}

/// The inventory of these products, each with its price in cents, its stock and its regions.
fn selling(products: &[(&str, Value, i64, Option<usize>)]) -> Inventory {
    let product = |(name, cents, stock, regions): &(&str, Value, i64, Option<usize>)| {
        let regions = regions.map(|count| vec![json!({ "name": "somewhere" }); count]);
        let product = json!({
            "instance_type": { "price_cents_per_hour": cents, "specs": {} }, "capacity_available": stock,
            "regions_with_capacity_available": regions,
        });
        ((*name).to_owned(), serde_json::from_value(product).unwrap())
    };
    products.iter().map(product).collect()
}

fn usd(text: Option<&str>) -> Option<Usd> {
    text.map(|text| text.parse().unwrap())
}

#[test]
fn each_product_is_an_offer_and_what_its_name_does_not_tell_is_left_out() {
    let offers = offers(&inventory());
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "cpu-16x-general",
            "gpu-1x-6000-ada",
            "gpu-1x-a100-sxm4",
            "gpu-1x-a6000",
            "gpu-1x-a6000-low-ram",
            "gpu-1x-a6000-spot",
            "gpu-1x-h200-nvl",
            "gpu-1x-pro-6000-blackwell",
            "gpu-2x-h100-nvl-nvlink",
            "gpu-4x-l40s",
            "gpu-8x-dgx-a100",
            "gpu-8x-h100-spot",
        ]
    );
    let a6000 = &offers[3];
    assert_eq!((a6000.vcpus, a6000.disk_gb), (6.0, Some(256.0)));
    assert!((a6000.memory_gb - 51.54).abs() < 0.01, "{}", a6000.memory_gb);
    assert!(
        offers
            .iter()
            .all(|offer| offer.region.is_empty() && offer.connected)
    );
}

#[rstest]
#[case("gpu_1x_a6000", "RTX A6000", 1.0, Some(48.0), None)]
#[case("gpu_1x_a6000_high_ram", "RTX A6000", 1.0, Some(48.0), None)]
#[case("gpu_8x_h100_spot", "H100", 8.0, Some(80.0), None)]
#[case("gpu_2x_h100_nvl_nvlink", "H100", 2.0, Some(94.0), Some(FormFactor::Nvl))]
#[case("gpu_1x_h200_nvl", "H200", 1.0, Some(141.0), Some(FormFactor::Nvl))]
#[case("gpu_1x_a100_sxm4", "A100", 1.0, Some(80.0), Some(FormFactor::Sxm))]
#[case("gpu_8x_dgx_a100", "A100", 8.0, Some(80.0), Some(FormFactor::Sxm))]
#[case("gpu_1x_6000_ada", "RTX 6000 Ada", 1.0, Some(48.0), None)]
#[case("gpu_1x_pro_6000_blackwell", "RTX PRO 6000", 1.0, Some(96.0), None)]
#[case("GPU_4X_L40S", "L40S", 4.0, Some(48.0), None)]
#[case("gpu_4x_a5000", "RTX A5000", 4.0, Some(24.0), None)]
#[case("gpu_1x_a30", "A30", 1.0, Some(24.0), None)]
fn gpus_are_named_as_everywhere(
    #[case] product: &str,
    #[case] name: &str,
    #[case] count: f64,
    #[case] memory_gb: Option<f64>,
    #[case] form: Option<FormFactor>,
) {
    let gpus = gpus(product).unwrap();
    assert_eq!((gpus.name.as_str(), gpus.count), (name, count));
    assert_eq!((gpus.memory_gb, gpus.form_factor), (memory_gb, form));
}

#[rstest]
#[case("")]
#[case("gpu_")]
#[case("gpu_0x_a6000")]
#[case("gpu_1x_")]
#[case("gpu_-1x_a6000")]
#[case("gpu_99999999x_a6000")]
#[case("a6000")]
fn a_name_of_another_form_has_no_gpus_and_is_not_offered_as_a_machine_without_any(#[case] product: &str) {
    assert_eq!(gpus(product), None);
    let inventory = selling(&[(product, json!(10), 1, Some(1))]);
    assert_eq!(offers(&inventory), []);
}

#[rstest]
#[case::on_demand("gpu_1x_a6000", Some("0.57"), None)]
#[case::spot("gpu_1x_a6000_spot", None, Some("0.45"))]
#[case::for_the_whole_machine("gpu_2x_h100_nvl_nvlink", Some("6.22"), None)]
fn a_product_is_sold_on_one_market(
    #[case] name: &str,
    #[case] on_demand: Option<&str>,
    #[case] spot: Option<&str>,
) {
    let inventory = inventory();
    let offers = offers(&inventory);
    let offer = offers.iter().find(|offer| offer.instance_type == name).unwrap();
    assert_eq!((offer.on_demand, offer.spot), (usd(on_demand), usd(spot)));
    let price = |market| sold(&inventory, name, market).map(|(_, price)| price);
    assert_eq!(
        (price(Market::OnDemand), price(Market::Spot)),
        (usd(on_demand), usd(spot))
    );
}

#[rstest]
#[case(json!(57), Some("0.57"))]
#[case(json!("57"), Some("0.57"))]
#[case(json!(0.5), Some("0.005"))]
#[case(json!(0), None)]
#[case(json!(-1), None)]
fn a_price_is_read_from_its_cents(#[case] cents: Value, #[case] expected: Option<&str>) {
    let inventory = selling(&[("gpu_1x_l40", cents, 1, Some(1))]);
    assert_eq!(offers(&inventory)[0].on_demand, usd(expected));
}

#[rstest]
#[case::in_a_region(4, Some(1), Availability::Yes)]
#[case::without_a_word_about_regions(4, None, Availability::Yes)]
#[case::in_no_region(4, Some(0), Availability::Unknown)]
#[case::none(0, Some(1), Availability::No)]
#[case::less_than_none(-1, None, Availability::No)]
fn stock_is_what_is_left_in_some_region(
    #[case] stock: i64,
    #[case] regions: Option<usize>,
    #[case] expected: Availability,
) {
    let inventory = selling(&[("gpu_1x_l40", json!(84), stock, regions)]);
    assert_eq!(offers(&inventory)[0].availability, expected);
    let is_sold = sold(&inventory, "gpu_1x_l40", Market::OnDemand).is_some();
    assert_eq!(is_sold, expected != Availability::No);
}

#[test]
fn a_product_is_ordered_by_its_name_with_the_blanks_that_it_has() {
    let inventory = inventory();
    let (written, _) = sold(&inventory, "gpu_4x_l40s", Market::OnDemand).unwrap();
    assert_eq!(written, "gpu_4x_l40s ");
    assert_eq!(sold(&inventory, "gpu_9x_nothing", Market::OnDemand), None);
}

#[rstest]
#[case(1, 0, "gpu_1x_l40")]
#[case(0, 1, "gpu_1x_l40 ")]
fn of_two_products_of_one_name_that_in_stock_is_offered(
    #[case] plain: i64,
    #[case] blank: i64,
    #[case] expected: &str,
) {
    let inventory = selling(&[
        ("gpu_1x_l40", json!(84), plain, Some(1)),
        ("gpu_1x_l40 ", json!(84), blank, Some(1)),
    ]);
    assert_eq!(offers(&inventory).len(), 1);
    let (written, _) = sold(&inventory, "gpu_1x_l40", Market::OnDemand).unwrap();
    assert_eq!(written, expected);
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [
        ("RTX A6000", 48.0),
        ("H100", 80.0),
        ("H100", 94.0),
        ("H200", 141.0),
        ("A100", 80.0),
        ("RTX 6000 Ada", 48.0),
        ("RTX PRO 6000", 96.0),
        ("L40S", 48.0),
    ];
    check_memory(&offers(&inventory()), &sold);
}
