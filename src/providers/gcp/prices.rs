//! Prices of types of machines, which Compute Engine's API does not tell: those of the settings, else those of the
//! table in `prices.csv`. Pure.

use std::{collections::BTreeMap, sync::LazyLock};

use skyward_core::{Market, Usd};

use super::config::{Price, region_of};

/// The regions of the table, for rows that name none.
const REGIONS: [&str; 3] = ["us-central1", "us-east1", "us-west1"];

/// On demand and on the spot market.
type Both = (Option<Usd>, Option<Usd>);

/// A row of the table: its prices, and the only region that it holds for, if it names one.
type Row = (Both, Option<&'static str>);

static TABLE: LazyLock<BTreeMap<&str, Row>> = LazyLock::new(|| {
    let rows = include_str!("prices.csv").lines();
    let row = |row: &'static str| {
        let mut parts = row.split(',');
        let name = parts.next()?;
        let mut price = || parts.next().and_then(read);
        let both = (price(), price());
        Some((name, (both, parts.next())))
    };
    rows.filter(|row| !row.starts_with('#')).filter_map(row).collect()
});

/// Price of a type of machine in a zone on this market in USD per hour; `None` where nobody knows one.
pub fn price(own: &[Price], instance_type: &str, zone: &str, market: Market) -> Option<Usd> {
    let region = region_of(zone);
    let on = |(on_demand, spot): Both| match market {
        Market::OnDemand => on_demand,
        Market::Spot => spot,
    };
    // The region of an Offer is its zone, so a zone may be written where a region is meant.
    let is_there = |only: &str| only == region || only == zone;
    let fits =
        |price: &&Price| price.instance_type == instance_type && price.region.as_deref().is_none_or(is_there);
    let own = own.iter().filter(fits).find_map(|price| {
        let (on_demand, spot) = (price.on_demand.as_deref(), price.spot.as_deref());
        on((on_demand.and_then(read), spot.and_then(read)))
    });
    let listed = || {
        let (both, only) = TABLE.get(instance_type)?;
        let holds = only.map_or_else(|| REGIONS.contains(&region), |only| only == region);
        holds.then(|| on(*both))?
    };
    own.or_else(listed)
}

/// A price; 0 is none.
fn read(text: &str) -> Option<Usd> {
    text.parse().ok().filter(|price| *price > Usd::ZERO)
}

#[cfg(test)]
#[path = "tests/prices.rs"]
mod tests;
