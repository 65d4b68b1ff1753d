//! Tables over the choice, and a property: it is the best of all that fit.

use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use skyward_api::{
    pool::PoolSpec,
    shared::{Accelerator, Count},
};

mod brute_force;

use super::{explain::explain, *};
use crate::accounts::{
    offers::tests::offer,
    unavailable::{REMEMBERED, Unavailable},
};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A Pool before the market, and what it knows of it.
struct Exchange {
    pool: PoolSpec,
    offers: Offerings,
    unavailable: UnavailableOfferings,
    providers: BTreeMap<String, Usable>,
    connected: bool,
    pinned: Option<Place>,
    market: Option<Market>,
    /// Providers that sell what has no price.
    unpriced: Vec<String>,
}

impl Exchange {
    fn new(pool: Value, offers: Vec<(&str, &str, Value)>) -> Self {
        let mut by_provider: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (provider, name, mut spec) in offers {
            spec["provider"] = provider.into();
            by_provider
                .entry(provider.to_owned())
                .or_default()
                .push(offer(name, spec));
        }
        let offers: Offerings = by_provider
            .into_iter()
            .map(|(provider, offers)| (provider, Arc::new(OfferIndex::of(offers))))
            .collect();
        Self {
            providers: offers
                .keys()
                .map(|name| (name.clone(), Usable::Yes(None)))
                .collect(),
            pool: serde_json::from_value(pool).unwrap(),
            offers,
            unavailable: UnavailableOfferings::default(),
            connected: false,
            pinned: None,
            market: None,
            unpriced: Vec::new(),
        }
    }

    /// The Pool's candidates at these Providers.
    fn candidates(&self) -> Vec<ResolvedCandidate> {
        let mut candidates = candidates(&self.pool);
        for candidate in &mut candidates {
            candidate.unpriced = self.unpriced.contains(&candidate.provider);
        }
        candidates
    }

    fn request(&self) -> Request<'_> {
        Request {
            pool: "uid",
            selection: self.pool.selection.unwrap_or_default(),
            providers: &self.providers,
            connected: self.connected,
            pinned: self.pinned.as_ref(),
            unavailable: &self.unavailable,
            architectures: &[Architecture::Amd64, Architecture::Arm64],
            now: NOW,
            market: self.market,
        }
    }

    /// Name, market and price of the choice.
    fn chosen(&self) -> Option<(String, Market, String)> {
        let candidates = self.candidates();
        choose(&candidates, &self.offers, &self.request()).map(|choice| {
            (
                choice.offer.name().to_owned(),
                choice.market,
                choice.price.to_string(),
            )
        })
    }

    fn name(&self) -> Option<String> {
        self.chosen().map(|(name, ..)| name)
    }

    fn why(&self) -> String {
        explain(&self.candidates(), &self.offers, &self.request())
    }

    fn refuse(&mut self, offer: &str, spot: bool) {
        let what = Unavailable::Offer {
            offer: offer.into(),
            spot,
        };
        self.unavailable
            .remember(what, "sold out".into(), NOW, REMEMBERED);
    }
}

#[rstest]
#[case::without_a_ceiling(json!({}), true, None)]
#[case::with_one(json!({ "maxHourlyCost": "5" }), true, Some(("o", "5")))]
#[case::of_a_cloud_that_tells_its_prices(json!({ "maxHourlyCost": "5" }), false, None)]
#[case::on_the_spot_market(json!({ "maxHourlyCost": "5", "allocation": "Spot" }), true, None)]
fn what_has_no_price_is_ordered_for_what_its_pool_would_pay(
    #[case] mut pool: Value,
    #[case] unpriced: bool,
    #[case] expected: Option<(&str, &str)>,
) {
    pool["provider"] = "a".into();
    let mut exchange = Exchange::new(pool, vec![("a", "o", priced(None, None))]);
    if unpriced {
        exchange.unpriced.push("a".to_owned());
    }
    let expected = expected.map(|(name, price)| (name.to_owned(), Market::OnDemand, price.to_owned()));
    assert_eq!(exchange.chosen(), expected);
    let why = exchange.why();
    assert_eq!(
        why.contains("set maxHourlyCost"),
        unpriced && expected.is_none(),
        "{why}"
    );
}

/// A dearer one is in between, at which the look at what has a price ends.
#[test]
fn what_has_a_price_below_the_ceiling_comes_before_what_has_none() {
    let offers = |cheap: &str| {
        let cheap = priced(Some(cheap), None);
        vec![("a", "none", priced(None, None)), ("a", "some", cheap)]
    };
    for (cost, expected) in [("4.9", "some"), ("5.1", "none")] {
        let mut exchange = Exchange::new(json!({ "provider": "a", "maxHourlyCost": "5" }), offers(cost));
        exchange.unpriced.push("a".to_owned());
        assert_eq!(exchange.name().as_deref(), Some(expected), "{cost}");
    }
}

fn priced(on_demand: Option<&str>, spot: Option<&str>) -> Value {
    json!({ "onDemandPrice": on_demand, "spotPrice": spot })
}

#[rstest]
#[case("1969-12-20", json!({}), true)]
#[case("1969-11-01", json!({}), false)]
#[case("1969-11-01", json!({ "maxHourlyCost": "5" }), true)]
#[case("soon", json!({}), false)]
fn a_price_by_an_old_exchange_rate_needs_a_ceiling(
    #[case] as_of: &str,
    #[case] mut pool: Value,
    #[case] is_ordered: bool,
) {
    pool["provider"] = "eu".into();
    let offer = json!({ "onDemandPrice": "2", "exchangeRateAsOf": as_of });
    let exchange = Exchange::new(pool, vec![("eu", "a", offer)]);
    assert_eq!(exchange.name().is_some(), is_ordered);
    if !is_ordered {
        assert!(
            exchange.why().contains(&format!(
                "an exchange rate of {as_of}, more than 30 days ago; set maxHourlyCost"
            )),
            "{}",
            exchange.why()
        );
    }
}

#[test]
fn offers_without_any_price_say_so_and_what_gives_them_one() {
    let exchange = Exchange::new(json!({ "provider": "eu" }), vec![("eu", "a", priced(None, None))]);
    assert_eq!(exchange.name(), None);
    let why = exchange.why();
    assert!(
        why.contains("no price in USD now") && why.contains("set exchangeRate in the Provider"),
        "{why}"
    );
}

#[rstest]
#[case("SpotIfAvailable", Some(("a", Market::Spot, "1")))]
#[case("Spot", Some(("a", Market::Spot, "1")))]
#[case("OnDemand", Some(("b", Market::OnDemand, "2")))]
#[case("Cheapest", Some(("a", Market::Spot, "1")))]
fn the_allocation_decides_on_the_market(
    #[case] allocation: &str,
    #[case] expected: Option<(&str, Market, &str)>,
) {
    let market = Exchange::new(
        json!({ "provider": "x", "allocation": allocation }),
        vec![
            ("x", "a", priced(Some("3"), Some("1"))),
            ("x", "b", priced(Some("2"), None)),
        ],
    );
    let expected = expected.map(|(name, market, price)| (name.to_owned(), market, price.to_owned()));
    assert_eq!(market.chosen(), expected);
}

#[test]
fn spot_if_available_takes_the_spot_market_even_where_it_costs_more_and_cheapest_does_not() {
    let offers = || vec![("x", "a", priced(Some("1"), Some("2")))];
    let chosen = |allocation| {
        Exchange::new(json!({ "provider": "x", "allocation": allocation }), offers())
            .chosen()
            .unwrap()
            .1
    };
    assert_eq!(chosen("SpotIfAvailable"), Market::Spot);
    assert_eq!(chosen("Cheapest"), Market::OnDemand);
}

#[rstest]
#[case("Cheapest", "b-cheap")]
#[case("First", "a-dear")]
#[case("Available", "b-cheap")]
fn the_selection_ranks_candidates(#[case] selection: &str, #[case] expected: &str) {
    let unsure = |price| json!({ "onDemandPrice": price, "availability": "Unknown" });
    let sure = |price| json!({ "onDemandPrice": price, "availability": "Yes" });
    let market = Exchange::new(
        json!({ "selection": selection, "candidates": [{ "provider": "a" }, { "provider": "b" }] }),
        vec![("a", "a-dear", unsure("3")), ("b", "b-cheap", sure("2"))],
    );
    assert_eq!(market.name().as_deref(), Some(expected));
}

#[test]
fn a_refusal_moves_on_to_the_next_and_what_was_refused_comes_last() {
    let mut market = Exchange::new(
        json!({ "selection": "First", "candidates": [{ "provider": "a" }, { "provider": "b" }] }),
        vec![
            ("a", "a", priced(Some("1"), Some("0.5"))),
            ("b", "b", priced(Some("9"), None)),
        ],
    );
    assert_eq!(market.chosen().unwrap().1, Market::Spot);
    market.refuse("a", true);
    assert_eq!(
        market.chosen(),
        Some(("a".into(), Market::OnDemand, "1".into())),
        "the other market of the same offer was not asked yet"
    );
    market.refuse("a", false);
    assert_eq!(market.name().as_deref(), Some("b"));
    market.refuse("b", false);
    let candidates = candidates(&market.pool);
    let last = choose(&candidates, &market.offers, &market.request()).unwrap();
    assert_eq!(
        (last.offer.name(), last.shortage.as_deref()),
        ("a", Some("sold out"))
    );
}

#[test]
fn a_spot_quota_that_is_used_up_leaves_the_same_machine_on_demand_and_others_on_spot() {
    let gpu = |on_demand: &str, spot: &str| json!({ "onDemandPrice": on_demand, "spotPrice": spot, "accelerator": { "name": "A10G", "count": 1 } });
    let mut market = Exchange::new(
        json!({ "provider": "x", "accelerator": { "name": "A10G" } }),
        vec![
            ("x", "g5.xlarge", gpu("1", "0.4")),
            ("x", "g5.2xlarge", gpu("2", "0.8")),
        ],
    );
    let quota = Unavailable::Quota {
        provider: "x".into(),
        region: String::new(),
        zones: false,
        spot: true,
        accelerator: "A10G".into(),
    };
    market
        .unavailable
        .remember(quota, "vCPUs".into(), NOW, REMEMBERED);
    assert_eq!(
        market.chosen(),
        Some(("g5.xlarge".into(), Market::OnDemand, "1".into()))
    );
    market.pool = serde_json::from_value(json!({ "provider": "x" })).unwrap();
    market.offers = Exchange::new(json!({}), vec![("x", "m7.large", priced(Some("1"), Some("0.4")))]).offers;
    assert_eq!(market.chosen().unwrap().1, Market::Spot);
}

#[test]
fn candidates_override_what_the_pool_says() {
    let market = Exchange::new(
        json!({ "provider": "x", "cpu": 8, "maxHourlyCost": "1",
                "candidates": [{ "cpu": 2 }, { "maxHourlyCost": "10" }] }),
        vec![
            ("x", "small", json!({ "cpu": 2, "onDemandPrice": "1.5" })),
            ("x", "large", json!({ "cpu": 8, "onDemandPrice": "5" })),
        ],
    );
    assert_eq!(market.name().as_deref(), Some("large"));
}

#[test]
fn connected_machines_stand_where_the_first_one_does() {
    let at = |region: &str, price: &str| json!({ "region": region, "onDemandPrice": price });
    let mut market = Exchange::new(
        json!({ "provider": "x" }),
        vec![
            ("x", "a", at("eu", "1")),
            ("x", "b", at("us", "2")),
            (
                "x",
                "c",
                json!({ "region": "us", "onDemandPrice": "0.1", "connected": false }),
            ),
        ],
    );
    market.connected = true;
    assert_eq!(market.name().as_deref(), Some("a"));
    market.pinned = Some(Place {
        provider: "x".into(),
        region: "us".into(),
    });
    assert_eq!(market.name().as_deref(), Some("b"));
    market.connected = false;
    assert_eq!(market.name().as_deref(), Some("c"));
}

#[rstest]
#[case("us-east-1", "us-east-1", true)]
#[case("us-east-1", "us-east-1a", true)]
#[case("us-east-1", "us-east-12", false)]
#[case("US", "US-CA", true)]
#[case("us", "USA", false)]
#[case("us-east-1a", "us-east-1", false)]
fn a_region_holds_its_zones(#[case] wanted: &str, #[case] offered: &str, #[case] expected: bool) {
    assert_eq!(in_region(wanted, offered), expected);
}

#[test]
fn the_refusal_says_which_wish_removed_how_many_and_what_there_is() {
    let market = Exchange::new(
        json!({ "provider": "x", "cpu": 8, "memory": "32G" }),
        vec![
            ("x", "a", json!({ "cpu": 4, "memory": "8G" })),
            ("x", "b", json!({ "cpu": 64, "memory": "16G" })),
        ],
    );
    assert_eq!(
        market.why(),
        "None of 2 offers of Provider \"x\" fits: 1 promise less than 8 CPUs (at most 4); lower cpu; 1 promise less than 32G of memory (at most 16G); lower memory."
    );
    let market = Exchange::new(
        json!({ "maxHourlyCost": "1", "candidates": [{ "provider": "x", "region": "eu" }, { "provider": "y" }, { "provider": "z" }] }),
        vec![
            ("x", "a", json!({ "region": "us" })),
            ("y", "b", json!({ "onDemandPrice": "2.50" })),
        ],
    );
    assert_eq!(
        market.why(),
        "None of 1 offers of Provider \"x\" fits: 1 are not in region \"eu\" (there are us). None of 1 offers of Provider \"y\" fits: 1 cost more than 1 USD per hour (the cheapest 2.5); raise maxHourlyCost. No Provider \"z\" exists."
    );
}

#[test]
fn a_region_where_there_are_none_is_refused_in_words_that_help() {
    let market = Exchange::new(
        json!({ "provider": "x", "region": "EU-RO-1" }),
        vec![("x", "a", json!({}))],
    );
    assert_eq!(
        market.why(),
        "None of 1 offers of Provider \"x\" fits: 1 are not in region \"EU-RO-1\" (they name none; leave region out, places are a setting of the Provider, such as runpod.dataCenterIds)."
    );
}

#[test]
fn names_of_accelerators_need_not_be_spelled_exactly() {
    let gpu = json!({ "accelerator": { "name": "RTX_4090", "count": 2 } });
    let wants = |name: &str, count: u32| {
        let pool = json!({ "provider": "x", "accelerator": { "name": name, "count": count } });
        let market = Exchange::new(pool, vec![("x", "a", gpu.clone())]);
        (market.name(), market.why())
    };
    assert_eq!(wants("rtx-4090", 2).0.as_deref(), Some("a"));
    assert!(
        wants("RTX 4090", 3)
            .1
            .contains("fewer than 3 accelerators (at most 2)")
    );
    assert!(
        wants("H100", 1)
            .1
            .contains("no accelerator \"H100\" (there are RTX_4090)")
    );
}

#[test]
fn an_accelerator_brings_its_architecture_and_nodes_have_theirs() {
    let arm = |more: Value| {
        let mut spec = json!({ "architecture": "arm64", "onDemandPrice": "1" });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        vec![("x", "arm", spec), ("x", "x86", json!({ "onDemandPrice": "2" }))]
    };
    let grace = json!({ "accelerator": { "name": "GH200", "count": 1 } });
    let mut market = Exchange::new(
        json!({ "provider": "x", "accelerator": { "name": "GH200" } }),
        arm(grace),
    );
    assert_eq!(market.name().as_deref(), Some("arm"));
    market.pool.architecture = Some(Architecture::Amd64);
    assert_eq!(market.name(), None, "who asks for one gets it");
    let mut market = Exchange::new(json!({ "provider": "x" }), arm(json!({})));
    assert_eq!(market.name().as_deref(), Some("x86"), "images are made for it");
    market.offers = Exchange::new(json!({}), arm(json!({})).into_iter().take(1).collect()).offers;
    let mut candidates = candidates(&market.pool);
    assert!(choose(&candidates, &market.offers, &market.request()).is_none());
    candidates[0].own_nodes = true;
    assert!(choose(&candidates, &market.offers, &market.request()).is_some());
    let request = Request {
        architectures: &[Architecture::Amd64],
        ..market.request()
    };
    assert!(
        choose(&candidates, &market.offers, &request).is_none(),
        "no agent could be put there"
    );
    let why = explain(&candidates, &market.offers, &request);
    assert!(why.contains("no agent"), "{why}");
}

#[test]
fn a_part_of_an_accelerator_is_had_where_one_is_sold_and_nodes_give_whole_ones() {
    let l4 = |count: &str, price: &str| json!({ "accelerator": { "name": "L4", "count": count }, "onDemandPrice": price });
    let mut market = Exchange::new(
        json!({ "provider": "x", "accelerator": { "name": "L4", "count": "0.125" } }),
        vec![("x", "g6f", l4("0.125", "0.2")), ("x", "g6", l4("1", "0.8"))],
    );
    assert_eq!(market.name().as_deref(), Some("g6f"));
    let mut candidates = candidates(&market.pool);
    candidates[0].own_nodes = true;
    assert!(choose(&candidates, &market.offers, &market.request()).is_none());
    let why = explain(&candidates, &market.offers, &market.request());
    assert!(why.contains("set accelerator.count to a whole number"), "{why}");
    market.pool.accelerator.as_mut().unwrap().count = Some(Count::of(0.25));
    assert_eq!(market.name().as_deref(), Some("g6"));
    market.pool.accelerator.as_mut().unwrap().count = None;
    assert_eq!(market.name().as_deref(), Some("g6"), "one by default");
}

#[test]
fn the_name_of_an_accelerator_may_say_its_memory_form_factor_and_count() {
    let gpu = |name: &str, count: u32, memory: u32, built: Option<&str>, price: &str| {
        let mut accelerator = json!({ "name": name, "count": count, "memory": format!("{memory}Gi") });
        if let Some(built) = built {
            accelerator["formFactor"] = built.into();
        }
        json!({ "accelerator": accelerator, "onDemandPrice": price })
    };
    let chosen = |accelerator: Value| {
        let pool = json!({ "provider": "x", "accelerator": accelerator });
        let market = Exchange::new(
            pool,
            vec![
                ("x", "p4d", gpu("A100", 1, 40, Some("SXM"), "1")),
                ("x", "p4de", gpu("A100", 1, 80, Some("SXM"), "2")),
                ("x", "unsaid", gpu("H100", 1, 80, None, "1")),
                ("x", "nvl", gpu("H100", 1, 94, Some("NVL"), "3")),
                ("x", "sxm-8", gpu("H100", 8, 80, Some("SXM"), "9")),
            ],
        );
        (market.name(), market.why())
    };
    let named = |name: &str| chosen(json!({ "name": name })).0;
    assert_eq!(named("A100").as_deref(), Some("p4d"));
    assert_eq!(named("A100-80GB").as_deref(), Some("p4de"));
    assert_eq!(named("H100").as_deref(), Some("unsaid"));
    assert_eq!(named("H100-NVL").as_deref(), Some("nvl"));
    assert_eq!(named("H100:8").as_deref(), Some("sxm-8"));
    let (name, why) = chosen(json!({ "name": "H100", "formFactor": "PCIe" }));
    assert_eq!(name, None);
    assert!(why.contains("not PCIe") && why.contains("NVL, SXM"), "{why}");
}

#[rstest]
#[case(json!({ "name": "A100-80GB", "memory": "40G" }), Some("says memory 80Gi, and accelerator.memory is 40Gi"))]
#[case(json!({ "name": "H100:8", "count": 4 }), Some("says count 8, and accelerator.count is 4"))]
#[case(json!({ "name": "H100-SXM", "formFactor": "NVL" }), Some("says formFactor SXM"))]
#[case(json!({ "name": "A100-80GB", "memory": "80G", "count": 2, "formFactor": "SXM" }), None)]
fn a_name_that_says_something_else_than_a_field_is_told(
    #[case] asked: Value,
    #[case] expected: Option<&str>,
) {
    let accelerator: Accelerator = serde_json::from_value(asked).unwrap();
    let said = candidate::contradiction(&accelerator);
    assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
    let said = said.unwrap_or_default();
    assert!(said.contains(expected.unwrap_or_default()), "{said}");
}

type Made = (u8, u8, u8, Option<u8>, Option<u8>, bool);

fn offers_of() -> impl Strategy<Value = Vec<Made>> {
    let one = (
        0_u8..3,
        1_u8..6,
        0_u8..3,
        prop::option::of(1_u8..9),
        prop::option::of(1_u8..9),
        any::<bool>(),
    );
    prop::collection::vec(one, 0..24)
}

proptest! {
    /// Brute force over all offers, markets and candidates, without any of the shortcuts.
    #[test]
    fn the_choice_is_the_cheapest_of_all_that_fit(
        offers in offers_of(),
        vcpus in 1_u8..6,
        allocation in 0_usize..4,
        ceiling in prop::option::of(1_u8..9),
        refused in prop::collection::btree_set(0_usize..24, 0..8),
    ) {
        let allocation = ["Spot", "OnDemand", "SpotIfAvailable", "Cheapest"][allocation];
        let pool = json!({
            "allocation": allocation, "maxHourlyCost": ceiling.map(|c| c.to_string()), "cpu": vcpus,
            "candidates": [{ "provider": "p0" }, { "provider": "p1", "cpu": 1 }],
        });
        let made: Vec<(String, String, Value)> = offers.iter().enumerate().map(|(i, (provider, cpus, _, on_demand, spot, sold_out))| {
            (format!("p{provider}"), format!("o{i:02}"), json!({
                "cpu": cpus,
                "onDemandPrice": on_demand.map(|p| p.to_string()), "spotPrice": spot.map(|p| p.to_string()),
                "availability": if *sold_out { "No" } else { "Yes" },
            }))
        }).collect();
        let mut market = Exchange::new(pool, made.iter().map(|(p, n, v)| (p.as_str(), n.as_str(), v.clone())).collect());
        for i in &refused {
            market.refuse(&format!("o{i:02}"), true);
            market.refuse(&format!("o{i:02}"), false);
        }
        let mut best: Option<(bool, u8)> = None;
        for (i, (provider, cpus, _, on_demand, spot, sold_out)) in offers.iter().enumerate() {
            let least = match provider { 0 => vcpus, 1 => 1, _ => continue };
            if *cpus < least || *sold_out { continue }
            let within = |price: &Option<u8>| price.filter(|p| ceiling.is_none_or(|c| *p <= c));
            let price = match allocation {
                "Spot" => within(spot),
                "OnDemand" => within(on_demand),
                "SpotIfAvailable" => within(spot).or(within(on_demand)),
                _ => [within(spot), within(on_demand)].into_iter().flatten().min(),
            };
            if let Some(price) = price {
                let key = (refused.contains(&i), price);
                best = Some(best.map_or(key, |b| b.min(key)));
            }
        }
        let chosen = market.chosen().map(|(_, _, price)| price.parse::<u8>().unwrap());
        prop_assert_eq!(chosen, best.map(|(_, price)| price));
    }
}
