use rstest::rstest;
use serde_json::{Value, json};
use skyward_core::{accelerator::FormFactor, offer::Architecture};

use super::*;
use crate::fixtures::check_memory;

fn products() -> Vec<Product> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/novita/products.json")).unwrap();
    serde_json::from_value(body["data"].take()).unwrap()
}

/// What is sold with one and with two GPUs; the rest cannot be had.
fn catalogue() -> Catalogue {
    Catalogue::new([products(), products(), Vec::new(), Vec::new()])
}

fn of<'a>(offers: &'a [Offer], kind: &str) -> &'a Offer {
    offers.iter().find(|offer| offer.instance_type == kind).unwrap()
}

#[test]
fn each_product_is_an_offer_in_each_number_of_gpus_that_was_told() {
    let offers = catalogue().offers();
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "1x-prod-4090",
            "1x-prod-h100",
            "1x-prod-a100",
            "1x-prod-l40s",
            "2x-prod-4090",
            "2x-prod-h100",
            "2x-prod-a100",
            "2x-prod-l40s",
        ]
    );
    let two = of(&offers, "2x prod-4090");
    assert_eq!(
        (two.vcpus, two.memory_gb, two.disk_gb),
        (32.0, 124.0, Some(500.0))
    );
    assert_eq!((two.region.as_str(), two.connected), ("", false));
    assert_eq!(two.architecture, Architecture::Amd64);
    let stock = |kind| of(&offers, kind).availability;
    assert_eq!(stock("1x prod-4090"), Availability::Yes);
    assert_eq!(stock("1x prod-a100"), Availability::No);
    assert_eq!(stock("1x prod-l40s"), Availability::No);
}

#[rstest]
#[case("1x prod-4090", "RTX 4090", Some(24.0), None)]
#[case("2x prod-h100", "H100", Some(80.0), Some(FormFactor::Sxm))]
#[case("1x prod-l40s", "L40S", Some(48.0), None)]
fn gpus_are_named_as_everywhere(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] memory_gb: Option<f64>,
    #[case] form: Option<FormFactor>,
) {
    let offers = catalogue().offers();
    let gpus = of(&offers, kind).accelerators.as_ref().unwrap();
    assert_eq!((gpus.name.as_str(), gpus.memory_gb), (name, memory_gb));
    if form.is_some() {
        assert_eq!(gpus.form_factor, form);
    }
}

#[rstest]
#[case::a_text("1x prod-4090", Some("0.35"), Some("0.18"))]
#[case::each_of_two("2x prod-4090", Some("0.7"), Some("0.36"))]
#[case::a_number("1x prod-h100", Some("3.5"), None)]
#[case::an_empty_spot_price("1x prod-a100", Some("1.6"), None)]
#[case::no_list_of_markets("1x prod-l40s", Some("0.55"), None)]
#[case::by_the_month_alone("1x prod-month", None, None)]
#[case::not_with_so_many("4x prod-4090", None, None)]
#[case::not_sold("1x prod-x", None, None)]
fn prices_are_in_parts_of_a_dollar_for_each_gpu(
    #[case] kind: &str,
    #[case] on_demand: Option<&str>,
    #[case] spot: Option<&str>,
) {
    let usd = |text: Option<&str>| text.map(|text| text.parse::<Usd>().unwrap());
    let catalogue = catalogue();
    let sold = |market| catalogue.sold(kind, market).map(|(_, price)| price);
    assert_eq!(
        (sold(Market::OnDemand), sold(Market::Spot)),
        (usd(on_demand), usd(spot))
    );
    let offers = catalogue.offers();
    let offer = offers.iter().find(|offer| offer.instance_type == kind);
    assert_eq!(offer.and_then(|offer| offer.on_demand), usd(on_demand));
    assert_eq!(offer.and_then(|offer| offer.spot), usd(spot));
}

#[test]
fn a_machine_with_a_number_of_gpus_that_cannot_be_had_any_more_has_its_price() {
    let price = |product, count| catalogue().price(product, count, Market::OnDemand);
    assert_eq!(price("prod-4090", 8), "2.8".parse().ok());
    assert_eq!(price("prod-4090", 3), "1.05".parse().ok());
    assert_eq!(price("prod-x", 1), None);
}

#[test]
fn a_price_that_is_no_price_is_none() {
    for none in [
        json!(0),
        json!(-5),
        json!("free"),
        json!(null),
        json!({}),
        json!("79228162514264337593543950335"),
    ] {
        let mut product = products().remove(0);
        product.price = none.clone();
        assert_eq!(price(&product, 8, Market::OnDemand), None, "{none}");
    }
}

#[test]
fn an_order_is_for_what_its_offer_is_for_and_a_text_of_another_cloud_is_for_nothing() {
    for offer in catalogue().offers() {
        let catalogue = catalogue();
        let ((count, product), _) = catalogue.sold(&offer.instance_type, Market::OnDemand).unwrap();
        assert_eq!(offer.instance_type, format!("{count}x {}", product.id));
    }
    assert_eq!(kind("2x a/b x c"), Some((2, "a/b x c")));
    for none in ["", "prod-4090", "x prod", "two x prod", "n3-H100x1"] {
        assert_eq!(kind(none), None, "{none}");
    }
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    check_memory(
        &catalogue().offers(),
        &[("RTX 4090", 24.0), ("H100", 80.0), ("A100", 80.0), ("L40S", 48.0)],
    );
}
