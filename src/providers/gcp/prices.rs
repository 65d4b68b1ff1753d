//! Prices of types of machines, which Compute Engine's API does not tell: those of the settings, else those of the
//! table in `prices.csv`. Pure.

use std::{collections::BTreeMap, sync::LazyLock};

use skyward_core::{Market, Usd};

use super::config::{Price, region_of};

/// The regions of the table.
const REGIONS: [&str; 3] = ["us-central1", "us-east1", "us-west1"];

/// On demand and on the spot market.
type Both = (Option<Usd>, Option<Usd>);

static TABLE: LazyLock<BTreeMap<&str, Both>> = LazyLock::new(|| {
    let rows = include_str!("prices.csv").lines();
    let row = |row: &'static str| {
        let mut parts = row.split(',');
        let name = parts.next()?;
        let mut price = || parts.next().and_then(read);
        Some((name, (price(), price())))
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
    let fits = |price: &&Price| {
        price.instance_type == instance_type && price.region.as_deref().is_none_or(|only| only == region)
    };
    let own = own.iter().filter(fits).find_map(|price| {
        let (on_demand, spot) = (price.on_demand.as_deref(), price.spot.as_deref());
        on((on_demand.and_then(read), spot.and_then(read)))
    });
    let listed = || {
        let both = TABLE.get(instance_type).filter(|_| REGIONS.contains(&region))?;
        on(*both)
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
