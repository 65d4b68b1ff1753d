//! Stories of Pools that choose among Providers and pay for what they choose.

mod costs;
mod orders;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};
use skyward_api::{
    Duration, MachinePhase,
    condition::{STALLED, find, reason},
    machine::{MachineSpec, Market},
    pool::{Place, PoolPhase},
    shared::Size,
};
use skyward_core::Usd;

use super::{at, provider, ready, world};
use crate::{
    accounts::{
        facts::AccountFacts,
        offers::{OfferIndex, tests::offer},
        quota::Quota,
        unavailable::{REMEMBERED, Unavailable, UnavailableOfferings},
    },
    base::requeue::Next,
    money::Tariff,
    pool::{
        facts::{Bill, Failure, MachineFacts, Observed},
        plan::{
            audit::audit,
            draft::{Action, Plan, Why},
        },
    },
};

const NOW: i64 = 100_000;

/// A Pool of that spec, and Providers with these Offers.
fn market(pool: Value, offers: &[(&str, &str, Value)]) -> Observed {
    let mut seen = world(1);
    seen.pool.spec = serde_json::from_value(pool).unwrap();
    let mut books: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (provider, name, spec) in offers {
        let mut spec = spec.clone();
        spec["provider"] = (*provider).into();
        books
            .entry((*provider).to_owned())
            .or_default()
            .push(offer(name, spec));
    }
    seen.providers = books.keys().map(|name| (name.clone(), provider())).collect();
    seen.offers = books
        .into_iter()
        .map(|(name, offers)| (name, Arc::new(OfferIndex::of(offers))))
        .collect();
    seen
}

fn decide(seen: &Observed) -> Plan {
    let plan = super::plan(seen, at(NOW));
    assert_eq!(
        audit(&super::resolved(seen), &plan),
        Vec::<String>::new(),
        "{plan:#?}"
    );
    plan
}

fn orders(plan: &Plan) -> Vec<&MachineSpec> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateMachine { spec, .. } => Some(spec.as_ref()),
            _ => None,
        })
        .collect()
}

fn given_up(plan: &Plan) -> Vec<(&str, Why)> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::DeleteMachine { name, why, .. } => Some((name.as_str(), *why)),
            _ => None,
        })
        .collect()
}

fn stalled(plan: &Plan) -> Option<(String, String)> {
    find(&plan.status.conditions, STALLED).map(|c| (c.reason.clone(), c.message.clone()))
}

fn price(on_demand: &str) -> Value {
    json!({ "onDemandPrice": on_demand })
}

fn standing(slot: u32, provider: &str, region: &str) -> MachineFacts {
    MachineFacts {
        place: Place {
            provider: provider.into(),
            region: region.into(),
        },
        ..ready(slot)
    }
}

fn billed(slot: u32, hourly: &str, since: i64, gone_at: Option<i64>) -> MachineFacts {
    let hourly: Usd = hourly.parse().unwrap();
    MachineFacts {
        deleting: gone_at.is_some(),
        ready: gone_at.is_none(),
        bill: Some(Bill {
            tariff: Tariff {
                hourly,
                on_demand: hourly * 2,
                market: Market::Spot,
                step: std::time::Duration::from_secs(1),
                minimum: std::time::Duration::ZERO,
            },
            since: at(since),
            gone_at: gone_at.map(at),
        }),
        ..ready(slot)
    }
}

#[test]
fn the_record_of_a_machine_says_what_was_chosen_and_what_it_costs() {
    let seen = market(
        json!({ "candidates": [{ "provider": "a" }, { "provider": "b", "disk": "77G", "settings": { "tier": "x" } }] }),
        &[
            ("a", "a-1", price("3")),
            (
                "b",
                "b-1",
                json!({ "onDemandPrice": "2", "spotPrice": "0.50", "region": "eu", "id": "one" }),
            ),
        ],
    );
    let mut seen = seen;
    seen.providers
        .get_mut("b")
        .unwrap()
        .overridable
        .insert("tier".into());
    seen.providers.get_mut("b").unwrap().billing_step_seconds = 60;
    let plan = decide(&seen);
    let [order] = orders(&plan)[..] else {
        panic!("{plan:#?}")
    };
    assert_eq!(
        (
            order.provider.as_str(),
            order.offer.as_str(),
            order.offer_id.as_str()
        ),
        ("b", "b-1", "one")
    );
    assert_eq!((order.market, order.hourly_price.as_str()), (Market::Spot, "0.5"));
    assert_eq!(order.on_demand_price.as_deref(), Some("2"));
    assert_eq!(order.max_hourly_cost.as_deref(), Some("2"));
    assert_eq!(
        (order.disk.clone(), order.billing_step.clone()),
        (Some(Size("77G".into())), Some(Duration::of_seconds(60)))
    );
    assert_eq!(order.settings.as_ref().unwrap()["tier"], "x");
    assert_eq!(
        plan.status.places,
        [Place {
            provider: "b".into(),
            region: "eu".into()
        }]
    );
}

#[test]
fn a_setting_that_the_provider_does_not_let_go_of_is_refused_by_name() {
    let seen = market(
        json!({ "candidates": [{ "provider": "a", "settings": { "tier": "x" } }] }),
        &[("a", "a-1", price("3"))],
    );
    let (why, message) = stalled(&decide(&seen)).unwrap();
    assert_eq!(why, reason::INVALID_SPEC);
    assert!(
        message.contains("candidates[0] overrides tier") && message.contains("overridable"),
        "{message}"
    );
}

#[test]
fn a_provider_that_cannot_be_used_narrows_the_choice_and_stops_nothing() {
    let mut seen = market(
        json!({ "candidates": [{ "provider": "a" }, { "provider": "b" }] }),
        &[("a", "a-1", price("1")), ("b", "b-1", price("2"))],
    );
    seen.providers.get_mut("a").unwrap().account = AccountFacts::NotReady("Provider \"a\" is away".into());
    assert_eq!(orders(&decide(&seen))[0].provider, "b");
    seen.providers.get_mut("b").unwrap().admits = Err("team=gpu".into());
    let plan = decide(&seen);
    assert!(orders(&plan).is_empty());
    assert!(stalled(&plan).is_none(), "the account may come back by itself");
    seen.providers.get_mut("a").unwrap().account = AccountFacts::NotFound(vec!["b".into()]);
    let (_, message) = stalled(&decide(&seen)).unwrap();
    assert!(
        message.contains("No Provider \"a\" exists") && message.contains("team=gpu"),
        "{message}"
    );
}

#[test]
fn when_every_provider_refuses_the_pool_says_what_each_of_them_said() {
    let mut seen = market(
        json!({ "candidates": [{ "provider": "a" }, { "provider": "b" }], "maxProvisionAttempts": 1 }),
        &[("a", "a-1", price("1")), ("b", "b-1", price("2"))],
    );
    let mut unavailable = UnavailableOfferings::default();
    for (offer, why) in [("a-1", "sold out in FIN-01"), ("b-1", "no resources left")] {
        let what = Unavailable::Offer {
            offer: offer.into(),
            spot: false,
        };
        unavailable.remember(what, why.into(), at(NOW - 2), REMEMBERED);
    }
    seen.unavailable = Arc::new(unavailable);
    let failure = Failure {
        at: at(NOW - 1),
        reason: reason::NO_CAPACITY.into(),
        message: "no resources left".into(),
        bootstrap: None,
    };
    seen.machines = vec![MachineFacts {
        ready: false,
        ready_at: None,
        phase: MachinePhase::Failed,
        failure: Some(failure),
        ..standing(0, "b", "")
    }];
    let (why, message) = stalled(&decide(&seen)).unwrap();
    assert_eq!(why, reason::ALL_PROVIDERS_FAILED);
    for said in [
        "Provider \"a\": sold out in FIN-01",
        "Provider \"b\": no resources left",
    ] {
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn machines_that_stand_alone_come_from_several_clouds_when_a_limit_is_reached() {
    let pool = |topology| json!({ "nodes": { "desired": 3 }, "topology": topology, "candidates": [{ "provider": "a" }, { "provider": "b" }] });
    let offers = [("a", "a-1", price("1")), ("b", "b-1", price("2"))];
    let mut alone = market(pool("Independent"), &offers);
    alone.providers.get_mut("a").unwrap().limits = Quota {
        total: Some(2),
        ..Quota::default()
    };
    let plan = decide(&alone);
    let from: Vec<&str> = orders(&plan)
        .iter()
        .map(|order| order.provider.as_str())
        .collect();
    assert_eq!(from, ["a", "a", "b"]);

    let mut together = market(pool("Connected"), &offers);
    together.providers.get_mut("a").unwrap().limits = Quota {
        total: Some(2),
        ..Quota::default()
    };
    let from = |seen: &Observed| -> Vec<String> {
        let plan = decide(seen);
        orders(&plan).iter().map(|order| order.provider.clone()).collect()
    };
    assert_eq!(from(&together), ["b", "b", "b"], "they must reach each other");
    together.providers.get_mut("b").unwrap().limits = Quota {
        total: Some(1),
        ..Quota::default()
    };
    assert_eq!(from(&together), ["a", "a"], "nowhere is room for all");
}

#[test]
fn an_hourly_limit_lets_in_what_it_pays_for_and_a_cheaper_offer_instead_of_a_dear_one() {
    let mut seen = market(
        json!({ "nodes": { "desired": 3 }, "topology": "Independent", "provider": "a", "cpu": 4 }),
        &[("a", "a-1", price("4"))],
    );
    seen.providers.get_mut("a").unwrap().limits = Quota {
        hourly: Some(Usd::from(9)),
        ..Quota::default()
    };
    let plan = decide(&seen);
    assert_eq!(orders(&plan).len(), 2);
    let (why, message) = stalled(&plan).unwrap();
    assert_eq!(why, reason::LIMIT_REACHED, "{message}");
    assert!(
        message.starts_with(
            r#"limits.hourlyCost of Provider "a" is 9 USD per hour, 8 USD are in use, and what fits costs 4 USD or more: 1 machine(s)"#
        ),
        "{message}"
    );
}

#[test]
fn a_limit_is_named_only_where_something_would_fit_without_it() {
    let mut seen = market(
        json!({ "candidates": [{ "provider": "a" }, { "provider": "b" }], "cpu": 4 }),
        &[("a", "a-1", price("4")), ("b", "b-1", price("5"))],
    );
    let full = Quota {
        total: Some(0),
        ..Quota::default()
    };
    for provider in ["a", "b"] {
        seen.providers.get_mut(provider).unwrap().limits = full;
    }
    let (why, message) = stalled(&decide(&seen)).unwrap();
    assert_eq!(why, reason::LIMIT_REACHED);
    assert!(
        message.starts_with(
            "limits.machines of Provider \"a\" is 0, and 0 are in use; limits.machines of Provider \"b\""
        ),
        "{message}"
    );
    // One Provider's Offers do not fit, with or without its limit: the other's limit binds.
    seen.pool.spec.candidates[0].region = Some("moon".into());
    let (why, message) = stalled(&decide(&seen)).unwrap();
    assert_eq!(why, reason::LIMIT_REACHED);
    assert!(
        message.starts_with("limits.machines of Provider \"b\"") && !message.contains("Provider \"a\""),
        "{message}"
    );
    seen.pool.spec.candidates[1].region = Some("moon".into());
    let (why, message) = stalled(&decide(&seen)).unwrap();
    assert_eq!(why, reason::NO_AVAILABLE_PROVIDER);
    assert!(
        message.contains("are not in region \"moon\"") && !message.contains("limits."),
        "{message}"
    );
}

#[test]
fn the_share_of_the_spot_market_is_kept() {
    let seen = market(
        json!({ "nodes": { "desired": 5 }, "provider": "a", "spotPercent": 50 }),
        &[("a", "a-1", json!({ "onDemandPrice": "3", "spotPrice": "1" }))],
    );
    let plan = decide(&seen);
    let spot = orders(&plan)
        .iter()
        .filter(|order| order.market == Market::Spot)
        .count();
    assert_eq!((spot, orders(&plan).len()), (3, 5), "at least half of five");
}

#[test]
fn the_share_on_demand_does_not_wait_for_a_spot_market_that_has_none() {
    let seen = market(
        json!({ "nodes": { "desired": 4 }, "provider": "a", "spotPercent": 50 }),
        &[("a", "a-1", price("3"))],
    );
    let plan = decide(&seen);
    let markets: Vec<_> = orders(&plan).iter().map(|order| order.market).collect();
    assert_eq!(
        markets,
        [Market::OnDemand, Market::OnDemand],
        "no more than their share"
    );
    let (why, message) = stalled(&plan).unwrap();
    assert_eq!(why, reason::NO_AVAILABLE_PROVIDER);
    assert!(message.contains("lower spotPercent"), "{message}");
    assert!(!message.contains("allocation"), "the API refuses both: {message}");
}

#[test]
fn a_set_that_cannot_be_completed_moves_as_a_whole_unless_it_works() {
    let at_eu = |price: &str| json!({ "onDemandPrice": price, "region": "eu" });
    let at_us = |price: &str| json!({ "onDemandPrice": price, "region": "us" });
    let mut seen = market(
        json!({ "nodes": { "desired": 2 }, "provider": "a" }),
        &[("a", "a-eu", at_eu("1")), ("a", "a-us", at_us("2"))],
    );
    seen.machines = vec![standing(0, "a", "eu")];
    let plan = decide(&seen);
    assert_eq!(orders(&plan)[0].region, "eu", "where the other one is");
    // The cheap Offer at the first machine's place is refused.
    let mut short = UnavailableOfferings::default();
    let what = Unavailable::Offer {
        offer: "a-eu".into(),
        spot: false,
    };
    short.remember(what, "no capacity".into(), at(NOW), REMEMBERED);
    seen.unavailable = Arc::new(short);
    assert_eq!(given_up(&decide(&seen)), [("m-0", Why::Moved)]);
    seen.offers = BTreeMap::from([(
        "a".to_owned(),
        Arc::new(OfferIndex::of([
            offer(
                "a-eu",
                json!({ "provider": "a", "onDemandPrice": "1", "region": "eu", "availability": "No" }),
            ),
            offer(
                "a-us",
                json!({ "provider": "a", "onDemandPrice": "2", "region": "us" }),
            ),
        ])),
    )]);
    assert_eq!(given_up(&decide(&seen)), [("m-0", Why::Moved)]);
    seen.machines[0].runs = Some(1);
    let plan = decide(&seen);
    assert!(given_up(&plan).is_empty(), "it works");
    let said = stalled(&plan).unwrap().1;
    assert!(
        said.contains("not where the other machines of the Pool are"),
        "{said}"
    );
    assert!(
        said.contains("or set topology to Independent"),
        "it says what would help: {said}"
    );
    assert!(
        said.contains("; wait, or add candidates"),
        "what is sold out, too: {said}"
    );
    seen.machines[0].runs = Some(0);
    seen.pool.spec.nodes.min = Some(1);
    assert!(
        given_up(&decide(&seen)).is_empty(),
        "as many as nodes.min are there"
    );
}

#[test]
fn a_machine_that_others_will_not_reach_moves_to_where_they_do() {
    let mut seen = market(
        json!({ "nodes": { "desired": 2 }, "provider": "a" }),
        &[
            ("a", "a-solo", json!({ "onDemandPrice": "1", "connected": false })),
            ("a", "a-net", json!({ "onDemandPrice": "2", "region": "net" })),
        ],
    );
    seen.machines = vec![standing(0, "a", "")];
    assert_eq!(given_up(&decide(&seen)), [("m-0", Why::Moved)]);
    seen.machines = vec![standing(0, "a", "net")];
    assert_eq!(orders(&decide(&seen))[0].offer, "a-net");
}

#[test]
fn what_the_cloud_takes_back_is_replaced_before_it_is_gone() {
    let mut seen = market(json!({ "provider": "a" }), &[("a", "a-1", price("1"))]);
    seen.machines = vec![MachineFacts {
        reclaimed: true,
        runs: Some(3),
        ..standing(0, "a", "")
    }];
    let plan = decide(&seen);
    assert_eq!(given_up(&plan), [("m-0", Why::Reclaimed)]);
    assert_eq!(orders(&plan).len(), 1);
}

#[test]
fn machines_of_the_spot_market_are_counted() {
    let mut seen = market(json!({ "provider": "a", "nodes": { "desired": 2 } }), &[]);
    let mut spot = ready(0);
    spot.market = Market::Spot;
    seen.machines = vec![spot, ready(1)];
    assert_eq!(decide(&seen).status.spot_machines, 1);
}

#[test]
fn amounts_that_nobody_can_spend_are_no_obstacle() {
    let most = "99999999999999999999999999999";
    let spec = json!({ "provider": "a", "nodes": { "desired": 1 }, "budget": { "maxTotalCost": most } });
    let mut rich = market(spec, &[("a", "a-1", price("3.6"))]);
    rich.machines = vec![billed(0, "0.0000000001", NOW - 1000, None)];
    // A status as somebody may edit it by hand.
    rich.pool.status.cost = serde_json::from_value(json!({
        "spent": most, "settled": most, "spot": most, "onDemand": most, "savingsVsOnDemand": most,
    }))
    .unwrap();
    assert!(orders(&decide(&rich)).is_empty());
}

#[rstest]
#[case::on_demand_it_is_the_price(json!({ "allocation": "OnDemand", "maxHourlyCost": "9" }), false, "3", "1", "3")]
#[case::at_a_marketplace_what_the_pool_is_willing_to_pay(json!({ "allocation": "OnDemand", "maxHourlyCost": "9" }), true, "3", "1", "9")]
#[case::or_twice_the_price_of_the_cheapest_there(json!({ "allocation": "OnDemand" }), true, "3", "1", "6")]
#[case::on_the_spot_market_what_it_costs_on_demand(json!({ "allocation": "Spot" }), false, "3", "1", "3")]
#[case::or_what_the_pool_is_willing_to_pay(json!({ "allocation": "Spot", "maxHourlyCost": "2.50" }), true, "3", "1", "2.5")]
#[case::even_above_the_price_on_demand(json!({ "allocation": "Spot", "maxHourlyCost": "4" }), false, "3", "1", "4")]
#[case::but_never_below_the_price_itself(json!({ "allocation": "Spot" }), false, "1", "2", "2")]
fn the_ceiling_of_an_order_is_what_the_user_is_willing_to_pay(
    #[case] mut pool: Value,
    #[case] marketplace: bool,
    #[case] on_demand: &str,
    #[case] spot: &str,
    #[case] ceiling: &str,
) {
    pool["provider"] = "a".into();
    let offer = json!({ "onDemandPrice": on_demand, "spotPrice": spot });
    let mut seen = market(pool, &[("a", "a-1", offer)]);
    seen.providers.get_mut("a").unwrap().marketplace = marketplace;
    let plan = decide(&seen);
    assert_eq!(orders(&plan)[0].max_hourly_cost.as_deref(), Some(ceiling));
}

#[test]
fn a_month_that_is_spent_stops_orders_of_its_provider_and_of_its_namespace() {
    let spent = |limit: i64, spent: i64| Some((Usd::from(limit), Usd::from(spent)));
    for (total, here, limit) in [
        (
            spent(100, 100),
            spent(50, 10),
            "limits.monthlyCost of Provider \"a\" is 100 USD",
        ),
        (
            spent(100, 60),
            spent(50, 50),
            "limits.monthlyCostPerNamespace of Provider \"a\" is 50 USD",
        ),
    ] {
        let mut seen = market(json!({ "provider": "a" }), &[("a", "a-1", price("1"))]);
        let facts = seen.providers.get_mut("a").unwrap();
        (facts.month, facts.month_in_namespace) = (total, here);
        let plan = decide(&seen);
        assert!(orders(&plan).is_empty());
        let (why, message) = stalled(&plan).unwrap();
        assert_eq!(why, reason::LIMIT_REACHED);
        assert!(message.contains(limit), "{message}");
        let facts = seen.providers.get_mut("a").unwrap();
        (facts.month, facts.month_in_namespace) = (spent(100, 60), spent(50, 10));
        assert_eq!(orders(&decide(&seen)).len(), 1);
    }
}

#[test]
fn what_is_refused_where_the_others_work_is_a_failed_try_whatever_can_be_had_elsewhere() {
    let at_region = |region: &str| json!({ "onDemandPrice": "1", "region": region });
    let mut seen = market(
        json!({ "nodes": { "desired": 2 }, "provider": "a" }),
        &[("a", "a-eu", at_region("eu")), ("a", "a-us", at_region("us"))],
    );
    let works = MachineFacts {
        runs: Some(1),
        ..standing(0, "a", "eu")
    };
    let refused = MachineFacts {
        ready_at: None,
        failure: Some(Failure {
            at: at(NOW),
            reason: reason::NO_CAPACITY.into(),
            message: "sold out".into(),
            bootstrap: None,
        }),
        ..standing(1, "a", "eu")
    };
    seen.machines = vec![works, refused];
    let mut short = UnavailableOfferings::default();
    let what = Unavailable::Offer {
        offer: "a-eu".into(),
        spot: false,
    };
    short.remember(what, "sold out".into(), at(NOW), REMEMBERED);
    seen.unavailable = Arc::new(short);
    let plan = decide(&seen);
    assert!(orders(&plan).is_empty(), "it would be refused again at once");
    assert_eq!(plan.status.failed_attempts, 1);
    assert!(matches!(plan.next, Next::After(_)));
}

#[test]
fn no_order_may_cost_more_than_the_limits_of_its_provider_leave() {
    let pool =
        json!({ "provider": "a", "allocation": "OnDemand", "maxHourlyCost": "9", "nodes": { "desired": 2 } });
    let mut seen = market(pool, &[("a", "a-1", price("3"))]);
    let facts = seen.providers.get_mut("a").unwrap();
    facts.marketplace = true;
    facts.limits.hourly = Some(Usd::from(7));
    let ceilings: Vec<_> = orders(&decide(&seen))
        .into_iter()
        .map(|order| order.max_hourly_cost.clone().unwrap())
        .collect();
    assert_eq!(ceilings, ["3.5", "3.5"]);
}

#[test]
fn a_set_does_not_move_to_and_fro_between_places_that_sell_one_market_each() {
    let mut seen = market(
        json!({ "nodes": { "desired": 4 }, "provider": "a", "spotPercent": 50 }),
        &[
            ("a", "a-eu", json!({ "onDemandPrice": "3", "region": "eu" })),
            (
                "a",
                "a-us",
                json!({ "onDemandPrice": null, "spotPrice": "1", "region": "us" }),
            ),
        ],
    );
    let stand = |market: Market, region: &str| {
        [0, 1]
            .map(|slot| MachineFacts {
                market,
                ..standing(slot, "a", region)
            })
            .to_vec()
    };
    seen.machines = stand(Market::Spot, "us");
    assert_eq!(given_up(&decide(&seen)), []);
    seen.machines = stand(Market::OnDemand, "eu");
    assert_eq!(given_up(&decide(&seen)), []);
}
