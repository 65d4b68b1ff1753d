use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Recorded {
    gpus: Vec<Gpu>,
    centers: Vec<DataCenter>,
    spot: Vec<GpuType>,
    cpus: Vec<Cpu>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../../tests/fixtures/runpod/catalogue.json")).unwrap()
}

fn all(cloud: Cloud, settings: &Settings) -> BTreeMap<String, Offer> {
    let recorded = recorded();
    let gpus_by_count = COUNTS
        .into_iter()
        .map(|count| (count, recorded.gpus.clone()))
        .collect();
    let catalogue = Catalogue {
        gpus: gpus_by_count,
        spot: recorded.spot,
    };
    gpus(cloud, &catalogue, &recorded.centers, settings)
        .into_iter()
        .map(|offer| (offer.id.clone(), offer))
        .collect()
}

#[test]
fn each_gpu_in_each_number_with_and_without_network() {
    let offers = all(Cloud::Secure, &Settings::default());
    let plain = &offers["2x-nvidia-geforce-rtx-4090-secure"];
    assert_eq!(
        (plain.on_demand, plain.spot),
        (Some(Usd::cents(138)), Some(Usd::cents(58)))
    );
    assert_eq!(plain.accelerators.as_ref().unwrap().name, "RTX 4090");
    assert!((plain.vcpus - 12.0).abs() < f64::EPSILON && (plain.memory_gb - 70.0).abs() < f64::EPSILON);
    assert!(!plain.connected);
    let networked = &offers["2x-nvidia-geforce-rtx-4090-secure-networked"];
    assert!(networked.connected && networked.spot.is_none());
    // Machines of the one do not reach those of the other.
    assert_eq!((plain.region.as_str(), networked.region.as_str()), ("", NETWORK));
    // 3 4090s plain and networked, one MI300X, which has no network.
    assert_eq!(offers.len(), 7);
}

#[test]
fn an_order_is_compared_with_the_price_that_its_offer_would_have_now() {
    let recorded = recorded();
    for cloud in [Cloud::Secure, Cloud::Networked, Cloud::Community] {
        for offer in all(cloud, &Settings::default()).into_values() {
            let Some(Kind::Gpu { id, count, cloud }) = Kind::parse(&offer.instance_type) else {
                panic!("{offer:?}")
            };
            let price = price_of_gpus(&recorded.gpus, &id, count, cloud);
            assert!(price.is_some() && price == offer.on_demand, "{offer:?}");
        }
    }
    for offer in cpus(&recorded.cpus, &Settings::default()) {
        let Some(Kind::Cpu { flavour, vcpus }) = Kind::parse(&offer.instance_type) else {
            panic!("{offer:?}")
        };
        assert_eq!(price_of_cpus(&recorded.cpus, &flavour, vcpus), offer.on_demand);
    }
    assert_eq!(price_of_gpus(&recorded.gpus, "no such", 1, Cloud::Secure), None);
}

#[test]
fn stock_is_that_of_the_data_centers_that_will_do() {
    let offers = all(Cloud::Secure, &Settings::default());
    assert_eq!(
        offers["1x-nvidia-geforce-rtx-4090-secure"].availability,
        Availability::Yes
    );
    // The one with the global network has none.
    assert_eq!(
        offers["1x-nvidia-geforce-rtx-4090-secure-networked"].availability,
        Availability::No
    );
    assert_eq!(
        offers["1x-amd-instinct-mi300x-oam-secure"].availability,
        Availability::No
    );
    let elsewhere = Settings {
        data_center_ids: vec!["EU-RO-1".into()],
        ..Settings::default()
    };
    let offers = all(Cloud::Secure, &elsewhere);
    assert!(!offers.contains_key("1x-nvidia-geforce-rtx-4090-secure-networked"));
}

#[test]
fn the_price_of_spot_is_what_will_be_bid() {
    let settings = Settings {
        bid_multiplier: Some(1.1),
        ..Settings::default()
    };
    let offers = all(Cloud::Secure, &settings);
    assert_eq!(
        offers["1x-nvidia-geforce-rtx-4090-secure"].spot,
        Some(Usd::new(319, 3))
    );
    let community = all(Cloud::Community, &settings);
    assert_eq!(community.len(), 1);
    assert_eq!(
        community["1x-nvidia-geforce-rtx-4090-community"].on_demand,
        Some(Usd::cents(34))
    );
}

#[test]
fn machines_without_gpus_come_in_powers_of_two_of_the_chosen_flavour() {
    let offers = cpus(&recorded().cpus, &Settings::default());
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "cpu3c-2vcpu",
            "cpu3c-4vcpu",
            "cpu3c-8vcpu",
            "cpu3c-16vcpu",
            "cpu3c-32vcpu"
        ]
    );
    assert_eq!(offers[1].on_demand, Some(Usd::cents(12)));
    // An order for more would be refused, so a Pool that asks for more looks elsewhere.
    assert!(offers.iter().all(|offer| offer.disk_gb == Some(20.0)));
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let offers: Vec<Offer> = all(Cloud::Secure, &Settings::default()).into_values().collect();
    crate::fixtures::check_memory(&offers, &[("RTX 4090", 24.0), ("MI300X", 192.0)]);
}
