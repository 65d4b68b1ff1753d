use rstest::rstest;
use skyward_core::{accelerator::FormFactor, offer::Availability};

use super::*;
use crate::fixtures::check_memory;

fn rate() -> ExchangeRate {
    ExchangeRate {
        usd: "1.08".into(),
        as_of: "2026-11-01".parse().unwrap(),
    }
}

fn all(settings: &Settings) -> Vec<Offer> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/scaleway/kinds.json")).unwrap();
    let kinds: BTreeMap<String, Kind> = serde_json::from_value(body["servers"].take()).unwrap();
    let stock: BTreeMap<String, Value> =
        serde_json::from_value(body["availability"]["servers"].take()).unwrap();
    let kinds = Kinds::from([("fr-par-2", kinds.clone()), ("nl-ams-1", kinds)]);
    let shortages = Shortages::from([
        ("fr-par-2", shortages(stock.into_iter().collect())),
        ("nl-ams-1", BTreeSet::new()),
    ]);
    offers(&kinds, &shortages, settings)
}

fn priced() -> Vec<Offer> {
    all(&Settings {
        exchange_rate: Some(rate()),
        ..Settings::default()
    })
}

fn of<'a>(offers: &'a [Offer], kind: &str) -> &'a Offer {
    offers.iter().find(|offer| offer.instance_type == kind).unwrap()
}

#[test]
fn each_kind_with_gpus_is_an_offer_in_each_zone_and_a_shortage_is_one_of_its_zone() {
    let offers = priced();
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids[..5],
        [
            "b300-sxm-8-288g-fr-par-2",
            "h100-sxm-8-80g-fr-par-2",
            "l4-1-24g-fr-par-2",
            "render-s-fr-par-2",
            "x1-2-31g-fr-par-2",
        ]
    );
    assert_eq!(
        ids.len(),
        10,
        "what is no longer sold, or is of another architecture, is left out"
    );
    let lacking = offers
        .iter()
        .filter(|offer| offer.availability == Availability::No);
    assert_eq!(
        lacking.map(|offer| offer.id.as_str()).collect::<Vec<_>>(),
        ["h100-sxm-8-80g-fr-par-2", "render-s-fr-par-2"]
    );
    assert!(
        offers
            .iter()
            .all(|offer| !offer.connected && offer.spot.is_none())
    );
    let one = all(&Settings {
        zone: Some("nl-ams-1".into()),
        ..Settings::default()
    });
    assert!(one.iter().all(|offer| offer.region == "nl-ams-1"));
    assert_eq!(one.len(), 5);
}

#[rstest]
#[case("L4-1-24G", "L4", 1.0, 24.0)]
#[case("H100-SXM-8-80G", "H100", 8.0, 80.0)]
#[case("B300-SXM-8-288G", "B300", 8.0, 288.0)]
#[case::its_name_says_nothing("RENDER-S", "P100", 1.0, 16.0)]
#[case::unknown("X1-2-31G", "X1", 2.0, 31.0)]
fn gpus_are_named_by_their_kind_or_by_their_model(
    #[case] kind: &str,
    #[case] name: &str,
    #[case] count: f64,
    #[case] memory_gb: f64,
) {
    let offers = priced();
    let gpus = of(&offers, kind).accelerators.as_ref().unwrap();
    assert_eq!(
        (gpus.name.as_str(), gpus.count, gpus.memory_gb),
        (name, count, Some(memory_gb))
    );
}

#[test]
fn the_name_of_a_kind_tells_how_its_gpus_are_built_in() {
    let offers = priced();
    let form = |kind| of(&offers, kind).accelerators.as_ref().unwrap().form_factor;
    assert_eq!(form("H100-SXM-8-80G"), Some(FormFactor::Sxm));
    assert_eq!(form("L4-1-24G"), None);
}

#[test]
fn prices_are_in_usd_by_the_rate_of_a_day_and_there_are_none_without_it() {
    let offers = priced();
    let price = |kind| of(&offers, kind).on_demand;
    assert_eq!(price("L4-1-24G"), Some(Usd::cents(81)));
    assert_eq!(price("H100-SXM-8-80G"), Some(Usd::new(2_487_024, 5)));
    assert_eq!(price("X1-2-31G"), None);
    assert!(offers.iter().all(|offer| offer.rate_as_of == Some(rate().as_of)));
    let without = all(&Settings::default());
    assert!(without.iter().all(|offer| offer.on_demand.is_none()));
    assert!(without.iter().all(|offer| offer.rate_as_of.is_none()));
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [
        ("L4", 24.0),
        ("H100", 80.0),
        ("B300", 288.0),
        ("P100", 16.0),
        ("X1", 31.0),
    ];
    check_memory(&priced(), &sold);
}
