use serde::Deserialize;
use skyward_core::{
    Usd,
    offer::{Architecture, Availability},
};

use super::*;

#[derive(Deserialize)]
struct Recorded {
    types: Vec<InstanceType>,
    locations: Vec<Location>,
    on_demand: Vec<Stock>,
    spot: Vec<Stock>,
}

fn all(preferred: &str) -> Vec<Offer> {
    let recorded: Recorded =
        serde_json::from_str(include_str!("../../tests/fixtures/verda/catalogue.json")).unwrap();
    let catalogue = Catalogue {
        types: &recorded.types,
        locations: &recorded.locations,
        on_demand: &recorded.on_demand,
        spot: &recorded.spot,
    };
    offers(&catalogue, preferred)
}

fn find(id: &str) -> Offer {
    all("FIN-01").into_iter().find(|offer| offer.id == id).unwrap()
}

#[test]
fn each_type_is_offered_at_each_location() {
    let offers = all("ICE-01");
    assert_eq!(offers.len(), 8);
    let there = |location: &str| offers.iter().filter(|offer| offer.region == location).count();
    assert_eq!((there("FIN-01"), there("ICE-01")), (4, 4));
    assert_eq!(all("NOWHERE").len(), 8);
}

/// The choice takes the first by name where prices are equal.
#[test]
fn the_preferred_location_comes_first_by_name_as_well() {
    for preferred in ["FIN-01", "ICE-01"] {
        let mut ids: Vec<(String, String)> = all(preferred)
            .into_iter()
            .filter(|offer| offer.instance_type == "8A100.22V")
            .map(|offer| (offer.id, offer.region))
            .collect();
        ids.sort();
        assert_eq!(ids.len(), 2, "{ids:?}");
        assert_eq!(ids[0].1, preferred, "{ids:?}");
    }
    // Without a need for it no name gets the prefix.
    assert!(all("FIN-01").iter().all(|offer| !offer.id.contains("-zz-")));
}

#[test]
fn prices_are_those_of_the_market_that_has_stock() {
    let h100 = find("1h100-80s-22v-fin-01");
    assert_eq!((h100.on_demand, h100.spot), (Some(Usd::cents(317)), None));
    assert_eq!(h100.availability, Availability::Yes);
    let a100 = find("8a100-22v-ice-01");
    assert_eq!((a100.on_demand, a100.spot), (None, Some(Usd::cents(516))));
    let cpu = find("cpu-4v-16g-fin-01");
    assert_eq!(
        (cpu.on_demand, cpu.spot),
        (Some(Usd::new(279, 4)), Some(Usd::new(112, 4)))
    );
    // Without stock both prices are shown, and a price of 0 is none.
    let gb200 = find("4gb200-180v-fin-01");
    assert_eq!((gb200.on_demand, gb200.spot), (Some(Usd::cents(1996)), None));
    assert_eq!(gb200.availability, Availability::No);
}

#[test]
fn accelerators_have_canonical_names_and_memory_of_one() {
    let a100 = find("8a100-22v-fin-01").accelerators.unwrap();
    assert_eq!(
        (a100.name.as_str(), a100.count, a100.memory_gb),
        ("A100", 8.0, Some(80.0))
    );
    assert!(find("cpu-4v-16g-fin-01").accelerators.is_none());
    assert_eq!(find("4gb200-180v-fin-01").architecture, Architecture::Arm64);
    assert_eq!(find("8a100-22v-fin-01").architecture, Architecture::Amd64);
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [
        ("H100", 80.0),
        ("A100", 40.0),
        ("A100", 80.0),
        ("GB200", 186.0),
        ("GB200", 192.0),
    ];
    crate::fixtures::check_memory(&all("FIN-01"), &sold);
}
