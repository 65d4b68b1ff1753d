use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Recorded {
    ondemand: Vec<Ask>,
    bid: Vec<Ask>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../../tests/fixtures/vastai/asks.json")).unwrap()
}

fn all(settings: &Settings) -> Vec<Offer> {
    let recorded = recorded();
    offers(&recorded.ondemand, &recorded.bid, settings)
}

#[test]
fn asks_that_a_pool_cannot_tell_apart_are_one_offer_at_the_cheapest_price() {
    let offers = all(&Settings::default());
    let ids: Vec<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
    assert_eq!(ids, ["8x-h100-sxm-80gb-xx", "1x-rtx-4090-24gb-bg"]);
    let offer = &offers[1];
    // The cheaper ask has too old a driver.
    assert_eq!(offer.on_demand, Some(Usd::cents(35)));
    // 0.2 × 1.2 and the disk of 0.02.
    assert_eq!(offer.spot, Some(Usd::cents(26)));
    // The facts that hold for each ask.
    assert!((offer.vcpus - 8.0).abs() < 1e-9 && (offer.memory_gb - 32.0).abs() < 1e-9);
    assert_eq!(offer.region, "BG");
    assert!(!offer.connected);
}

#[test]
fn memory_is_that_of_one_gpu() {
    let offers = all(&Settings::default());
    let h100 = offers[0].accelerators.as_ref().unwrap();
    assert_eq!(
        (h100.name.as_str(), h100.count, h100.memory_gb),
        ("H100", 8.0, Some(80.0))
    );
}

#[test]
fn settings_leave_hosts_out() {
    let direct = Settings {
        require_direct_port: Some(true),
        ..Settings::default()
    };
    assert_eq!(
        all(&direct).iter().find(|o| o.region == "BG").unwrap().on_demand,
        Some(Usd::new(4012, 4))
    );
    let old = Settings {
        docker_image: Some("nvidia/cuda:13.1.0-base".into()),
        ..Settings::default()
    };
    assert!(all(&old).is_empty());
    let strict = Settings {
        min_reliability: Some(0.995),
        ..Settings::default()
    };
    assert_eq!(all(&strict).len(), 1);
}

#[test]
fn an_ask_that_ends_soon_is_left_out() {
    let mut ask = recorded().ondemand.remove(0);
    for (seconds, lasts) in [(None, true), (Some(21_600.0), true), (Some(1200.0), false)] {
        ask.duration = seconds;
        assert_eq!(fits(&ask, &Settings::default()), lasts, "{seconds:?}");
    }
    let asked = query(Market::OnDemand, &Settings::default(), 100, 1);
    assert_eq!(asked["duration"], json!({ "gte": 21_600 }));
}

#[test]
fn a_group_comes_back_from_its_text() {
    for (arm, memory_gb) in [(false, None), (true, None), (false, Some(80)), (true, Some(480))] {
        let group = Group {
            gpu: "RTX 6000Ada".into(),
            count: 4,
            memory_gb,
            place: "US".into(),
            arm,
        };
        assert_eq!(Group::parse(&group.to_string()), Some(group));
    }
    assert_eq!(Group::parse("RTX 4090"), None);
}

#[test]
fn gpus_of_one_name_with_less_memory_are_another_offer() {
    let a100 = |id: u64, mebibytes: f64, price: &str| {
        let mut ask = recorded().ondemand.remove(0);
        ask.id = id;
        ask.gpu_name = Some("A100 SXM4".into());
        ask.gpu_ram = mebibytes;
        ask.geolocation = Some("X, US".into());
        ask.dph_total = Some(skyward_provider_kit::Amount(price.parse().unwrap()));
        ask
    };
    let (small, large) = (a100(1, 40_960.0, "0.9"), a100(2, 81_920.0, "1.2"));
    let offers = offers(&[small.clone(), large.clone()], &[], &Settings::default());
    let seen: Vec<_> = offers
        .iter()
        .map(|offer| {
            let memory = offer.accelerators.as_ref().unwrap().memory_gb;
            (offer.instance_type.as_str(), memory, offer.on_demand.unwrap())
        })
        .collect();
    let count = small.num_gpus as u32;
    let (forty, eighty) = (
        format!("{count}x A100 SXM4/40GB/US"),
        format!("{count}x A100 SXM4/80GB/US"),
    );
    assert_eq!(
        seen,
        [
            (forty.as_str(), Some(40.0), Usd::cents(90)),
            (eighty.as_str(), Some(80.0), Usd::cents(120))
        ]
    );
    let group = Group::parse(&eighty).unwrap();
    assert!(group.has(&large) && !group.has(&small));
    let query = query_of(&group, Market::OnDemand, &Settings::default(), 50);
    let bound = |key: &str| query["gpu_ram"][key].as_f64().unwrap();
    assert!(small.gpu_ram < bound("gte") && bound("gte") < large.gpu_ram && large.gpu_ram < bound("lte"));
    // The text in earlier Machines.
    let earlier = Group::parse(&format!("{count}x A100 SXM4/US")).unwrap();
    assert!(earlier.has(&large) && earlier.has(&small));
}

#[test]
fn hosts_of_one_cluster_are_an_offer_of_their_own_whose_machines_reach_each_other() {
    let in_cluster = |id: u64, cluster: u64| {
        let mut ask = recorded().ondemand.remove(0);
        ask.id = id;
        ask.cluster_id = Some(cluster);
        ask
    };
    let asks = [in_cluster(1, 9), in_cluster(2, 9), in_cluster(3, 12)];
    let connected = |settings: &Settings| -> Vec<String> {
        let offers = offers(&asks, &[], settings);
        let connected = offers.iter().filter(|offer| offer.connected);
        connected.map(|offer| offer.region.clone()).collect()
    };
    // One host alone connects nothing.
    assert_eq!(connected(&Settings::default()), ["cluster-9"]);
    let without = Settings {
        use_overlay: Some(false),
        ..Settings::default()
    };
    assert!(connected(&without).is_empty());
    let group = Group::in_cluster(&asks[0]).unwrap();
    assert_eq!(Group::parse(&group.to_string()), Some(group.clone()));
    assert!(group.has(&asks[1]) && !group.has(&asks[2]));
    assert!(Group::of(&asks[0]).unwrap().has(&asks[2]));
    let query = query_of(&group, Market::OnDemand, &Settings::default(), 50);
    assert_eq!(query["cluster_id"], json!({"eq": 9}));
}

#[test]
fn many_countries_are_cut_to_the_cheapest() {
    let mut asks = Vec::new();
    for n in 0..30_u8 {
        let mut ask = recorded().ondemand.remove(0);
        ask.geolocation = Some(format!(
            "X, {}{}",
            (b'A' + n / 10) as char,
            (b'A' + n % 10) as char
        ));
        ask.dph_total = Some(skyward_provider_kit::Amount(Decimal::from(100 - n)));
        asks.push(ask);
    }
    let offers = offers(&asks, &[], &Settings::default());
    assert_eq!(offers.len(), PLACES);
    assert!(offers.iter().all(|offer| offer.on_demand <= Some(78.into())));
}

#[test]
fn a_bid_stays_within_the_recorded_price_and_the_bounds_of_the_api() {
    let multiplier = Decimal::new(12, 1);
    assert_eq!(bid(Usd::cents(20), multiplier, None), Some(Usd::cents(24)));
    assert_eq!(
        bid(Usd::cents(20), multiplier, Some(Usd::cents(22))),
        Some(Usd::cents(22))
    );
    assert_eq!(bid(Usd::cents(20), multiplier, Some(Usd::cents(19))), None);
    assert_eq!(bid(Usd::new(1, 4), multiplier, None), Some(Usd::new(1, 3)));
    assert_eq!(bid(Usd::from(120), multiplier, None), Some(Usd::from(128)));
    let ask = recorded().bid.remove(0);
    // The disk is part of the price: 0.25 leaves 0.23 for the bid.
    assert_eq!(
        bid_for(&ask, multiplier, Some(Usd::cents(25))),
        Some(Usd::cents(23))
    );
}

#[test]
fn the_query_says_what_the_settings_say() {
    let settings = Settings {
        geolocation: Some("us".into()),
        verified_only: Some(false),
        ..Settings::default()
    };
    let all = query(Market::Spot, &settings, 50, 10);
    assert_eq!(
        (&all["type"], &all["allocated_storage"]),
        (&json!("bid"), &json!(50))
    );
    assert_eq!(all["geolocation"], json!({ "in": ["US"] }));
    assert_eq!(all["verified"], json!({ "in": [true, false] }));
    let group = Group::parse("2x RTX 4090/DE").unwrap();
    let one = query_of(&group, Market::OnDemand, &Settings::default(), 50);
    assert_eq!(one["gpu_name"], json!({ "in": ["RTX 4090"] }));
    assert_eq!(one["geolocation"], json!({ "in": ["DE"] }));
    assert_eq!(one["verified"], json!({ "eq": true }));
}

#[test]
fn what_is_held_on_the_spot_market_is_not_taken_from_oneself() {
    let instance = |bid: bool, gpus: u32| -> Instance {
        serde_json::from_value(json!({ "id": 1, "is_bid": bid, "machine_id": 7, "num_gpus": gpus })).unwrap()
    };
    let ask = |gpus: u32, part: f64| -> Ask {
        let ask = json!({ "id": 2, "machine_id": 7, "num_gpus": gpus, "gpu_frac": part });
        serde_json::from_value(ask).unwrap()
    };
    let held = bids(&[instance(true, 1), instance(true, 2)]);
    assert_eq!(own_bid(&ask(1, 1.0), &held), OwnBid::Ended);
    assert_eq!(own_bid(&ask(2, 0.5), &held), OwnBid::Ended);
    assert_eq!(own_bid(&ask(1, 0.25), &held), OwnBid::Beside);
    let elsewhere = Ask {
        machine_id: Some(8),
        ..ask(1, 1.0)
    };
    assert_eq!(own_bid(&elsewhere, &held), OwnBid::None);
    let on_demand = bids(&[instance(false, 1)]);
    assert_eq!(
        own_bid(&ask(1, 1.0), &on_demand),
        OwnBid::None,
        "nobody takes that"
    );
}

#[test]
fn recorded_cards_fit_the_size_that_they_are_sold_with() {
    let sold = [("RTX 4090", 24.0), ("H100", 80.0)];
    crate::fixtures::check_memory(&all(&Settings::default()), &sold);
}
