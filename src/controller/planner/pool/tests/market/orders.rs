//! The orders of a Pool against brute force: shares of the spot market, limits, and where machines stand.

use proptest::prelude::*;

use super::*;

/// A Pool of so many machines at one Provider, which sells on these markets and admits so many machines.
fn one_provider(wanted: u32, percent: u32, markets: (bool, bool), limit: Option<u32>) -> Observed {
    let (on_demand, spot) = markets;
    let mut seen = market(
        json!({ "nodes": { "desired": wanted }, "topology": "Independent", "provider": "a", "spotPercent": percent }),
        &[(
            "a",
            "a-1",
            json!({ "onDemandPrice": on_demand.then_some("3"), "spotPrice": spot.then_some("1") }),
        )],
    );
    seen.providers.get_mut("a").unwrap().limits.total = limit;
    seen
}

/// How many of these orders are of each market: on demand, and spot.
fn by_market(plan: &Plan) -> (u32, u32) {
    let of = |wanted: Market| orders(plan).iter().filter(|order| order.market == wanted).count() as u32;
    (of(Market::OnDemand), of(Market::Spot))
}

/// A Provider with one Offer: its price, and how many machines it admits.
type Shop = (u8, u32);

/// Names of the Providers from which machines come, as often as machines do.
fn from(plan: &Plan) -> Vec<String> {
    let mut from: Vec<String> = orders(plan).iter().map(|order| order.provider.clone()).collect();
    from.sort();
    from
}

/// A Pool that may take machines of all these.
fn shops(wanted: u32, topology: &str, shops: &[Shop]) -> Observed {
    let names: Vec<(String, String)> = (0..shops.len())
        .map(|at| (format!("p{at}"), format!("o{at}")))
        .collect();
    let candidates: Vec<Value> = names
        .iter()
        .map(|(name, _)| json!({ "provider": name }))
        .collect();
    let offers: Vec<(&str, &str, Value)> = names
        .iter()
        .zip(shops)
        .map(|((provider, name), (cost, _))| (provider.as_str(), name.as_str(), price(&cost.to_string())))
        .collect();
    let mut seen = market(
        json!({ "nodes": { "desired": wanted }, "topology": topology, "candidates": candidates }),
        &offers,
    );
    for ((name, _), (_, most)) in names.iter().zip(shops) {
        seen.providers.get_mut(name).unwrap().limits.total = Some(*most);
    }
    seen
}

/// Where machines should come from: one by one from the cheapest that has room, or all of one place, which has room for
/// all of them if any place has.
fn expected(wanted: u32, connected: bool, shops: &[Shop]) -> Vec<String> {
    let mut by_price: Vec<(u8, String, u32)> = shops
        .iter()
        .enumerate()
        .map(|(at, (cost, most))| (*cost, format!("p{at}"), *most))
        .collect();
    by_price.sort();
    let mut taken = Vec::new();
    if connected && wanted > 1 {
        let place = by_price
            .iter()
            .find(|(.., most)| *most >= wanted)
            .or_else(|| by_price.iter().find(|(.., most)| *most > 0));
        if let Some((_, name, most)) = place {
            taken.extend((0..wanted.min(*most)).map(|_| name.clone()));
        }
    } else {
        for (_, name, most) in &by_price {
            let left = wanted - taken.len() as u32;
            taken.extend((0..left.min(*most)).map(|_| name.clone()));
        }
    }
    taken.sort();
    taken
}

proptest! {
    #[test]
    fn the_share_of_the_spot_market_is_kept_whatever_is_sold_and_admitted(
        wanted in 1_u32..9,
        percent in 0_u32..=100,
        markets in prop::sample::select(vec![(true, true), (true, false), (false, true)]),
        limit in prop::option::of(0_u32..9),
    ) {
        let plan = decide(&one_provider(wanted, percent, markets, limit));
        let least = (wanted * percent).div_ceil(100);
        let others = wanted - least;
        let mut room = limit.unwrap_or(u32::MAX);
        let mut take = |number: u32, is_sold: bool| {
            let taken = if is_sold { number.min(room) } else { 0 };
            room -= taken;
            taken
        };
        let spot = take(least, markets.1);
        let on_demand = take(others, markets.0);
        prop_assert_eq!(by_market(&plan), (on_demand, spot));
    }

    #[test]
    fn machines_come_from_where_the_topology_and_the_limits_let_them(
        wanted in 1_u32..6,
        connected in any::<bool>(),
        offered in prop::collection::vec((1_u8..5, 0_u32..6), 1..5),
    ) {
        let topology = if connected { "Connected" } else { "Independent" };
        let plan = decide(&shops(wanted, topology, &offered));
        prop_assert_eq!(from(&plan), expected(wanted, connected, &offered));
    }

    #[test]
    fn the_tightest_of_all_limits_counts(
        wanted in 1_u32..8,
        cost in 1_i64..5,
        machines in (prop::option::of(0_u32..9), prop::option::of(0_u32..9)),
        hourly in (prop::option::of(0_i64..30), prop::option::of(0_i64..30)),
    ) {
        let mut seen = market(
            json!({ "nodes": { "desired": wanted }, "topology": "Independent", "provider": "a" }),
            &[("a", "a-1", price(&cost.to_string()))],
        );
        let limits = &mut seen.providers.get_mut("a").unwrap().limits;
        (limits.total, limits.in_namespace) = machines;
        limits.hourly = hourly.0.map(Usd::from);
        limits.hourly_in_namespace = hourly.1.map(Usd::from);
        let by_number = [machines.0, machines.1].into_iter().flatten().map(i64::from);
        let by_money = [hourly.0, hourly.1].into_iter().flatten().map(|most| most / cost);
        let most = by_number.chain(by_money).min().unwrap_or(i64::MAX);
        let ordered = orders(&decide(&seen)).len() as i64;
        prop_assert_eq!(ordered, i64::from(wanted).min(most));
    }

    #[test]
    fn orders_never_pass_an_hourly_limit_and_leave_no_room_for_another_one(
        wanted in 1_u32..8,
        cost in 1_i64..5,
        limit in 0_i64..20,
    ) {
        let mut seen = market(
            json!({ "nodes": { "desired": wanted }, "topology": "Independent", "provider": "a" }),
            &[("a", "a-1", price(&cost.to_string()))],
        );
        seen.providers.get_mut("a").unwrap().limits.hourly = Some(Usd::from(limit));
        let ordered = orders(&decide(&seen)).len() as i64;
        prop_assert_eq!(ordered, i64::from(wanted).min(limit / cost));
    }
}
