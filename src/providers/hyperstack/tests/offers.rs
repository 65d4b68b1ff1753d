use rstest::rstest;
use serde_json::{Value, json};
use skyward_core::accelerator::FormFactor;

use super::*;
use crate::fixtures::check_memory;

/// When the fixture's prices were read.
fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().unwrap()
}

fn catalogue() -> Catalogue {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/hyperstack/catalogue.json")).unwrap();
    Catalogue::new(
        serde_json::from_value(body["data"].take()).unwrap(),
        serde_json::from_value(body["prices"].take()).unwrap(),
        now(),
    )
}

fn all(settings: &Settings) -> Vec<Offer> {
    offers(&catalogue(), settings)
}

fn of<'a>(offers: &'a [Offer], kind: &str) -> &'a Offer {
    offers.iter().find(|offer| offer.instance_type == kind).unwrap()
}

#[test]
fn each_flavor_with_gpus_is_an_offer_in_its_region() {
    let offers = all(&Settings::default());
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "n3-h100x1-canada-1",
            "n3-h100x8-canada-1",
            "n3-h100-sxm5x8-us-1",
            "n3-a100x8-nvlink-norway-1",
            "n3-a100x1-spot-canada-1",
            "n3-rtx-a6000x1-spot-canada-1",
            "n9-x1x2-canada-1",
        ]
    );
    let stock = |kind| of(&offers, kind).availability;
    assert_eq!(stock("n3-H100x1"), Availability::Yes);
    assert_eq!(stock("n3-H100x8"), Availability::No);
    assert_eq!(stock("n3-A100x8-NVLink"), Availability::Unknown);
    let h100 = of(&offers, "n3-H100x1");
    assert_eq!(
        (h100.vcpus, h100.memory_gb, h100.disk_gb),
        (28.0, 180.0, Some(100.0))
    );
}

#[rstest]
#[case("n3-H100x1", "H100", 1.0, Some(80.0), Some(FormFactor::Pcie))]
#[case("n3-H100-SXM5x8", "H100", 8.0, Some(80.0), Some(FormFactor::Sxm))]
#[case("n3-A100x8-NVLink", "A100", 8.0, Some(80.0), Some(FormFactor::Pcie))]
#[case("n3-A100x1-spot", "A100", 1.0, Some(80.0), Some(FormFactor::Pcie))]
#[case("n3-RTX-A6000x1-spot", "RTX A6000", 1.0, Some(48.0), None)]
fn gpus_are_named_as_everywhere_also_those_of_the_spot_market(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] count: f64,
    #[case] memory_gb: Option<f64>,
    #[case] form: Option<FormFactor>,
) {
    let offers = all(&Settings::default());
    let gpus = of(&offers, kind).accelerators.as_ref().unwrap();
    assert_eq!((gpus.name.as_str(), gpus.count), (name, count));
    assert_eq!((gpus.memory_gb, gpus.form_factor), (memory_gb, form));
}

#[rstest]
#[case::on_demand("n3-H100x1", Some("1.90672"), None)]
#[case::each_of_eight("n3-H100-SXM5x8", Some("19.20672"), None)]
#[case::spot("n3-A100x1-spot", None, Some("1.08672"))]
#[case::spot_without_a_price_of_its_own("n3-RTX-A6000x1-spot", None, Some("0.50672"))]
#[case::without_a_price("n9-X1x2", None, None)]
fn a_flavor_is_sold_on_one_market_at_the_price_of_its_gpus_and_its_address(
    #[case] kind: &str,
    #[case] on_demand: Option<&str>,
    #[case] spot: Option<&str>,
) {
    let usd = |text: Option<&str>| text.map(|text| text.parse::<Usd>().unwrap());
    let offers = all(&Settings::default());
    let offer = of(&offers, kind);
    assert_eq!((offer.on_demand, offer.spot), (usd(on_demand), usd(spot)));
    let catalogue = catalogue();
    let sold = |market| catalogue.sold(kind, &offer.region, market);
    assert_eq!(
        (sold(Market::OnDemand), sold(Market::Spot)),
        (usd(on_demand), usd(spot))
    );
    assert_eq!(catalogue.sold(kind, "elsewhere", Market::OnDemand), None);
}

#[test]
fn a_price_that_is_no_price_is_none() {
    let price = |value: &str| {
        let entry = format!(r#"[{{ "name": "L40", "value": "{value}" }}]"#);
        Catalogue::new(Vec::new(), serde_json::from_str(&entry).unwrap(), now()).price("L40", 4)
    };
    assert_eq!(price("1"), Some(Usd::from(4)));
    // No digit of it is lost: a sum of many hours would show that.
    assert_eq!(price("0.123456789"), "0.493827156".parse().ok());
    for none in ["0", "-1", "79228162514264337593543950335"] {
        assert_eq!(price(none), None, "{none}");
    }
}

#[rstest]
#[case::one(&[("1", None, None)], Some("1"))]
#[case::the_dearest_of_two(&[("1", None, None), ("2", None, None), ("1.5", None, None)], Some("2"))]
#[case::one_that_is_over(&[("1", None, None), ("2", None, Some("2026-06-01T00:00:00"))], Some("1"))]
#[case::one_that_has_not_begun(&[("1", None, None), ("2", Some("2026-06-01T00:00:01"), None)], Some("1"))]
#[case::one_that_holds_now(
    &[("1", None, None), ("2", Some("2026-06-01T00:00:00+00:00"), Some("2026-07-01T00:00:00+00:00"))],
    Some("2")
)]
#[case::none_that_holds(&[("1", Some("2027-01-01T00:00:00Z"), None)], None)]
#[case::times_that_are_none(&[("1", Some(""), Some("never"))], Some("1"))]
fn the_dearest_price_that_holds_now_is_taken(
    #[case] entries: &[(&str, Option<&str>, Option<&str>)],
    #[case] expected: Option<&str>,
) {
    let entry = |(value, start, end): &(&str, Option<&str>, Option<&str>)| -> Price {
        let entry = json!({ "name": "L40", "value": value, "start_time": start, "end_time": end });
        serde_json::from_value(entry).unwrap()
    };
    let catalogue = Catalogue::new(Vec::new(), entries.iter().map(entry).collect(), now());
    assert_eq!(
        catalogue.price("L40", 1),
        expected.map(|text| text.parse().unwrap())
    );
}

#[rstest]
#[case("PublicIP")]
#[case("Public IP")]
#[case("public-ip")]
#[case("Floating IP address")]
fn the_price_of_an_address_is_found_by_each_of_its_names(#[case] name: &str) {
    let entries = json!([{ "name": "L40", "value": 1 }, { "name": name, "value": "0.00672" }]);
    let catalogue = Catalogue::new(Vec::new(), serde_json::from_value(entries).unwrap(), now());
    assert_eq!(catalogue.price("L40", 2), "2.00672".parse().ok());
}

#[rstest]
#[case::all(&[], None, &[], &["CANADA-1", "NORWAY-1", "US-1"])]
#[case::some(&["US-1", "NORWAY-1"], None, &[], &["NORWAY-1", "US-1"])]
#[case::fast(&[], Some(true), &[], &["CANADA-1", "US-1"])]
#[case::fast_in_one_of_them(&["CANADA-1"], Some(true), &[], &["CANADA-1"])]
#[case::fast_elsewhere(&[], Some(true), &["US-1", "MOON-1"], &["US-1"])]
#[case::not_fast(&[], Some(false), &["US-1"], &["CANADA-1", "NORWAY-1", "US-1"])]
fn settings_choose_the_regions(
    #[case] regions: &[&str],
    #[case] optimised: Option<bool>,
    #[case] known: &[&str],
    #[case] expected: &[&str],
) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let settings = Settings {
        regions: owned(regions),
        network_optimised: optimised,
        network_optimised_regions: owned(known),
        ..Settings::default()
    };
    let offers = all(&settings);
    let mut found: Vec<&str> = offers.iter().map(|offer| offer.region.as_str()).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, expected);
    // Flavors without that network are left out.
    assert_eq!(
        offers.iter().any(|offer| offer.instance_type == "n3-H100x8"),
        optimised != Some(true) && found.contains(&"CANADA-1")
    );
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let mut offers = all(&Settings::default());
    // Nobody knows its memory but its name.
    offers.retain(|offer| offer.instance_type != "n9-X1x2");
    check_memory(&offers, &[("H100", 80.0), ("A100", 80.0), ("RTX A6000", 48.0)]);
}
