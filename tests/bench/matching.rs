//! Time of a choice among a hundred thousand offers: the same `choose` that a Pool's plan calls, in
//! this process, with one account and with fifteen, whose catalogues are weighed, too. No cluster, no I/O.

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
/// Accounts at clouds: one of each kind of Provider.
const ACCOUNTS: usize = 15;
/// Offers of all accounts that are weighed: those of the bar for the controller's memory.
const WEIGHED: usize = 10_000;

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
    let offers = offers(PROVIDER, OFFERS, usually)?;
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
    let unsure = Arc::new(OfferIndex::of(self::offers(PROVIDER, OFFERS, |_| "Unknown")?));
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

/// Prints what the catalogues of fifteen accounts weigh, and the time of a choice among all of them.
pub(crate) fn market() -> anyhow::Result<()> {
    let before = anonymous()?;
    let weighed = accounts(WEIGHED, usually)?;
    let grown = anonymous()?.saturating_sub(before);
    figure(
        "memory_of_15_catalogues",
        grown as f64 / f64::from(1 << 20),
        "MiB",
        "-",
        &format!(
            "{WEIGHED} Offers, as watches and Pools have them; the bar of the whole controller is 64 MiB"
        ),
    );
    drop(weighed);

    let offerings = accounts(OFFERS, |_| "Unknown")?;
    let raw = middle(|| {
        let entries = offerings.values().flat_map(|index| index.entries());
        entries.filter_map(|entry| entry.price(Market::OnDemand)).min()
    });
    let candidates: Vec<Value> = offerings.keys().map(|name| json!({ "provider": name })).collect();
    let pool = |more: Value| {
        let mut pool = json!({ "candidates": candidates });
        if let (Some(all), Value::Object(more)) = (pool.as_object_mut(), more) {
            all.extend(more);
        }
        pool
    };
    let all = pool(json!({"selection": "Available", "allocation": "Cheapest"}));
    one(
        "matching_100000_offers_of_15_accounts",
        &offerings,
        all,
        true,
        raw,
    )?;
    let usual = pool(
        json!({"accelerator": {"name": "rtx-4090", "count": 2}, "cpu": 8, "memory": "64G",
        "region": "region-7", "maxHourlyCost": "20"}),
    );
    one(
        "matching_100000_offers_of_15_accounts_by_accelerator",
        &offerings,
        usual,
        true,
        raw,
    )?;
    let none = pool(json!({"cpu": 4000, "allocation": "Cheapest"}));
    one(
        "matching_100000_offers_of_15_accounts_in_vain",
        &offerings,
        none,
        false,
        raw,
    )
}

/// Fifteen accounts that have so many offers together.
fn accounts(
    offers: usize,
    availability: fn(&mut dyn FnMut(u64) -> u64) -> &'static str,
) -> anyhow::Result<Offerings> {
    (0..ACCOUNTS)
        .map(|number| {
            let name = format!("account-{number:02}");
            // The first ones have one more, where the number cannot be divided.
            let count = offers / ACCOUNTS + usize::from(number < offers % ACCOUNTS);
            let index = OfferIndex::of(self::offers(&name, count, availability)?);
            Ok((name, Arc::new(index)))
        })
        .collect()
}

/// Memory of this process that is no page of a file.
fn anonymous() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.context("RssAnon is missing")?.parse::<u64>()? * 1024)
}

/// As most clouds say it.
fn usually(next: &mut dyn FnMut(u64) -> u64) -> &'static str {
    if next(3) == 0 { "Unknown" } else { "Yes" }
}

fn one(name: &str, offerings: &Offerings, pool: Value, fits: bool, raw: Duration) -> anyhow::Result<()> {
    let pool: PoolSpec = serde_json::from_value(pool)?;
    let candidates = candidates(&pool);
    let usable = |name: &String| (name.clone(), Usable::Yes(None));
    let providers: BTreeMap<String, Usable> = offerings.keys().map(usable).collect();
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

/// So many offers of a Provider, the same in each run except for their availability.
fn offers(
    provider: &str,
    count: usize,
    availability: fn(&mut dyn FnMut(u64) -> u64) -> &'static str,
) -> anyhow::Result<Vec<Arc<Offer>>> {
    // Another number for each Provider.
    let mut state = provider
        .bytes()
        .fold(1_u64, |state, byte| state * 31 + u64::from(byte) % 31);
    // A linear congruential generator: what it gives must only be spread.
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..count)
        .map(|number| {
            let count = 1 << next(4);
            let cents = 10 + next(4_000) * count;
            let accelerator = (next(5) > 0).then(|| {
                let (name, memory) = ACCELERATORS[next(ACCELERATORS.len() as u64) as usize];
                json!({"name": name, "count": count, "memory": format!("{memory}Gi")})
            });
            let money = |cents: u64| format!("{}.{:02}", cents / 100, cents % 100);
            let spec = serde_json::from_value(json!({
                "provider": provider,
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
            Ok(Arc::new(Offer::new(&format!("{provider}-offer-{number}"), spec)))
        })
        .collect()
}
