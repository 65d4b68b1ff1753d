//! Time of a choice among a hundred thousand offers: the same `choose` that a Pool's plan calls, in
//! this process. No cluster, no I/O.

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use skyward_api::{Offer, machine::Market, offer::Architecture, pool::PoolSpec};
use skyward_planner::{
    accounts::{
        offers::OfferIndex,
        unavailable::{REMEMBERED, Unavailable, UnavailableOfferings},
    },
    pool::choice::{Offerings, Request, Usable, candidates, choose},
};

use crate::measure::{figure, ms, percentile};

const OFFERS: usize = 100_000;
/// Number of measurements; the figure is their median.
const LOOKS: usize = 101;
/// Longest time of a choice, as a multiple of one pass that compares a price.
const BAR: f64 = 2.5;
const PROVIDER: &str = "market";

/// Names of accelerators as clouds write them; every fifth offer has none.
const ACCELERATORS: [(&str, f64); 12] = [
    ("H100", 80.0),
    ("H200", 141.0),
    ("A100", 80.0),
    ("L40S", 48.0),
    ("RTX 4090", 24.0),
    ("RTX 3090", 24.0),
    ("B200", 180.0),
    ("L4", 24.0),
    ("T4", 16.0),
    ("RTX A6000", 48.0),
    ("V100", 16.0),
    ("MI300X", 192.0),
];

/// Prints the time of one choice, for three Pools, and of one look-up of the prices.
pub(crate) fn run() -> anyhow::Result<()> {
    let offers = offers(|next| if next(3) == 0 { "Unknown" } else { "Yes" })?;
    let begun = Instant::now();
    let index = Arc::new(OfferIndex::of(offers));
    let sorting = begun.elapsed();
    anyhow::ensure!(index.entries().len() == OFFERS, "an offer is missing");
    let raw = middle(|| {
        index
            .entries()
            .iter()
            .filter_map(|entry| entry.price(Market::OnDemand))
            .min()
    });
    let offerings: Offerings = [(PROVIDER.to_owned(), index)].into();

    // Nothing ends the search early: each offer fits, and none is certainly available, so that a
    // later one might be better.
    let unsure = Arc::new(OfferIndex::of(self::offers(|_| "Unknown")?));
    let unsure: Offerings = [(PROVIDER.to_owned(), unsure)].into();
    let all = json!({"provider": PROVIDER, "selection": "Available", "allocation": "Cheapest"});
    one("matching_100000_offers", &unsure, all, true, raw)?;
    // As most Pools ask.
    let usual = json!({"provider": PROVIDER, "accelerator": {"name": "rtx-4090", "count": 2}, "cpu": 8,
        "memory": "64G", "region": "region-7", "maxHourlyCost": "20"});
    one(
        "matching_100000_offers_by_accelerator",
        &offerings,
        usual,
        true,
        raw,
    )?;
    // No offer fits, so that all are examined.
    let none = json!({"provider": PROVIDER, "cpu": 4000, "allocation": "Cheapest"});
    one("matching_100000_offers_in_vain", &offerings, none, false, raw)?;
    figure(
        "sorting_100000_offers",
        ms(sorting),
        "ms",
        "-",
        "once after a change, for all Pools",
    );
    Ok(())
}

fn one(name: &str, offerings: &Offerings, pool: Value, fits: bool, raw: Duration) -> anyhow::Result<()> {
    let pool: PoolSpec = serde_json::from_value(pool)?;
    let candidates = candidates(&pool);
    let providers = BTreeMap::from([(PROVIDER.to_owned(), Usable::Yes(None))]);
    let unavailable = refused(offerings);
    let request = Request {
        pool: "uid",
        selection: pool.selection.unwrap_or_default(),
        providers: &providers,
        connected: false,
        pinned: None,
        unavailable: &unavailable,
        architectures: &[Architecture::Amd64],
        now: Timestamp::UNIX_EPOCH,
        market: None,
    };
    let found = choose(&candidates, offerings, &request);
    anyhow::ensure!(found.is_some() == fits, "the choice of {name} is {found:?}");
    let took = middle(|| choose(&candidates, offerings, &request));
    let bar = format!("{:.1}", BAR * ms(raw));
    let raw = format!("one pass that compares a price {:.2} ms", ms(raw));
    figure(name, ms(took), "ms", &bar, &raw);
    Ok(())
}

/// The hundred cheapest were refused a moment ago.
fn refused(offerings: &Offerings) -> UnavailableOfferings {
    let mut unavailable = UnavailableOfferings::default();
    let cheapest = offerings.values().flat_map(|index| index.entries()).take(100);
    for entry in cheapest {
        for spot in [true, false] {
            let what = Unavailable::Offer {
                offer: entry.name().to_owned(),
                spot,
            };
            unavailable.remember(what, "sold out".to_owned(), Timestamp::UNIX_EPOCH, REMEMBERED);
        }
    }
    unavailable
}

/// The median time of a call.
fn middle<T>(mut look: impl FnMut() -> T) -> Duration {
    let mut samples: Vec<Duration> = (0..LOOKS)
        .map(|_| {
            let begun = Instant::now();
            black_box(look());
            begun.elapsed()
        })
        .collect();
    percentile(&mut samples, 0.5)
}

/// As many offers, the same in each run except for their availability.
fn offers(availability: fn(&mut dyn FnMut(u64) -> u64) -> &'static str) -> anyhow::Result<Vec<Arc<Offer>>> {
    let mut state = 1_u64;
    // A linear congruential generator: what it gives must only be spread.
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..OFFERS)
        .map(|number| {
            let count = 1 << next(4);
            let cents = 10 + next(4_000) * count;
            let accelerator = (next(5) > 0).then(|| {
                let (name, memory) = ACCELERATORS[next(ACCELERATORS.len() as u64) as usize];
                json!({"name": name, "count": count, "memory": format!("{memory}Gi")})
            });
            let money = |cents: u64| format!("{}.{:02}", cents / 100, cents % 100);
            let spec = serde_json::from_value(json!({
                "provider": PROVIDER,
                "id": format!("offer-{number}"),
                "instanceType": format!("type-{}", next(900)),
                "region": format!("region-{}", next(30)),
                "accelerator": accelerator,
                "cpu": 4 * count,
                "memory": format!("{}G", 32 * count),
                "architecture": "amd64",
                "onDemandPrice": money(cents),
                "spotPrice": (next(2) == 0).then(|| money(cents / 2 + 1)),
                "availability": availability(&mut next),
                "connected": next(2) == 0,
            }))
            .context("a made-up offer")?;
            Ok(Arc::new(Offer::new(&format!("{PROVIDER}-offer-{number}"), spec)))
        })
        .collect()
}
