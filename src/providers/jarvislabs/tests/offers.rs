use rstest::rstest;
use serde_json::json;
use skyward_core::offer::Availability;

use super::*;
use crate::{
    fixtures::check_memory,
    jarvislabs::{client::ENDPOINTS, wire::success},
};

fn catalogue() -> Catalogue {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/jarvislabs/servers.json")).unwrap();
    Catalogue {
        servers: serde_json::from_value(body["server_meta"].take()).unwrap(),
        in_rupees: false,
        rate: None,
    }
}

fn settings(settings: Value) -> Settings {
    serde_json::from_value(settings).unwrap()
}

/// An offer: its id, its prices on demand and spot, and whether it is available.
type Row = (String, Option<String>, Option<String>, bool);

fn row(id: &str, on_demand: Option<&str>, spot: Option<&str>, is_available: bool) -> Row {
    let text = |text: Option<&str>| text.map(str::to_owned);
    (id.to_owned(), text(on_demand), text(spot), is_available)
}

/// The offers of these settings.
fn all(written: Value) -> Vec<Row> {
    let exact = |usd: Option<Usd>| usd.map(Usd::exact);
    let offers = offers(&catalogue(), &settings(written));
    let row = |offer: Offer| {
        let is_available = offer.availability == Availability::Yes;
        (offer.id, exact(offer.on_demand), exact(offer.spot), is_available)
    };
    offers.into_iter().map(row).collect()
}

#[test]
fn as_many_gpus_as_one_group_has_free_are_offered_at_the_price_of_the_dearest_group() {
    assert_eq!(
        all(json!({ "region": "IN2" })),
        [
            row("1x-l4-in2", Some("0.46"), Some("0.2"), true),
            // Those of spot machines are free for machines on demand.
            row("2x-l4-in2", Some("0.92"), None, true),
            row("3x-l4-in2", Some("1.38"), None, true),
        ]
    );
}

#[test]
fn one_gpu_is_offered_also_while_none_is_free_and_what_has_no_price_has_none() {
    let offers = all(json!({ "region": "IN1" }));
    assert_eq!(offers[0], row("1x-a100-in1", Some("1.29"), None, false));
    assert_eq!(offers.len(), 1 + 8, "{offers:?}");
    assert!(offers[1..].iter().all(|(_, on_demand, ..)| on_demand.is_none()));
}

#[test]
fn machines_in_europe_have_one_gpu_of_two_models() {
    let offers = all(json!({ "region": "EU1" }));
    assert_eq!(offers, [row("1x-h200-eu1", Some("3.8"), None, true)]);
}

#[test]
fn virtual_machines_are_offered_where_servers_take_them_and_never_on_the_spot_market() {
    let ids: Vec<String> = all(json!({ "template": "vm" }))
        .into_iter()
        .map(|offer| offer.0)
        .collect();
    assert_eq!(
        ids,
        ["1x-a100-80gb-in2", "2x-a100-80gb-in2", "1x-h200-eu1", "1x-l4-in2"]
    );
    assert!(
        all(json!({ "template": "vm" }))
            .iter()
            .all(|(_, _, spot, _)| spot.is_none())
    );
}

#[test]
fn a_region_without_a_known_address_is_not_offered() {
    assert_eq!(REGIONS.len(), ENDPOINTS.len());
    assert!(all(json!({})).iter().all(|(id, ..)| !id.contains("h100")));
}

#[test]
fn cards_have_the_memory_that_is_told_beside_their_model() {
    let mut offers = offers(&catalogue(), &Settings::default());
    offers.extend(super::offers(
        &catalogue(),
        &settings(json!({ "template": "vm" })),
    ));
    let sold = [
        ("L4", 24.0),
        ("A100", 40.0),
        ("A100", 80.0),
        ("RTX 6000 Ada", 48.0),
        ("H200", 141.0),
    ];
    check_memory(&offers, &sold);
    let a100 = offers.iter().find(|offer| offer.id == "1x-a100-in1").unwrap();
    assert_eq!(a100.accelerators.as_ref().unwrap().memory_gb, Some(40.0));
    let l4 = offers.iter().find(|offer| offer.id == "2x-l4-in2").unwrap();
    assert_eq!((l4.vcpus, l4.memory_gb), (12.0, 64.0), "of the smallest group");
}

#[rstest]
#[case::without_a_rate(None, None)]
#[case::with_one(Some(json!({ "usd": "0.012", "asOf": "2026-11-01" })), Some("0.00552"))]
fn rupees_become_dollars_by_the_rate_of_the_settings_alone(
    #[case] rate: Option<Value>,
    #[case] expected: Option<&str>,
) {
    let settings = settings(json!({ "exchangeRate": rate, "region": "IN2" }));
    let catalogue = Catalogue {
        in_rupees: true,
        rate: settings.exchange_rate.clone(),
        ..catalogue()
    };
    let offers = offers(&catalogue, &settings);
    assert_eq!(offers[0].on_demand.map(Usd::exact).as_deref(), expected);
    assert_eq!(
        offers[0].rate_as_of,
        settings.exchange_rate.as_ref().map(|rate| rate.as_of)
    );
    // An account that is billed in dollars needs none.
    let dollars = Catalogue {
        in_rupees: false,
        ..catalogue
    };
    let offers = super::offers(&dollars, &settings);
    let price = offers[0].on_demand.map(Usd::exact);
    assert_eq!((price.as_deref(), offers[0].rate_as_of), (Some("0.46"), None));
}

#[rstest]
#[case(json!({ "success": true }), Some(true))]
#[case(json!({ "sucess": "True" }), Some(true))]
#[case(json!({ "success": false }), Some(false))]
#[case(json!({}), None)]
fn a_flag_of_success_is_read_in_each_of_its_forms(#[case] told: Value, #[case] expected: Option<bool>) {
    assert_eq!(success(&told), expected);
}

#[rstest]
#[case("2x L4", Some((2, "L4")))]
#[case("8x A100-80GB", Some((8, "A100-80GB")))]
#[case("0x L4", None)]
#[case("9x L4", None)]
#[case("L4", None)]
#[case("ax L4", None)]
fn a_type_has_up_to_eight_gpus(#[case] kind: &str, #[case] expected: Option<(u32, &str)>) {
    assert_eq!(gpus(kind), expected);
}
