//! AWS's types and prices, remembered for as long as they change rarely: types for a
//! week, prices for a day, spot prices for a quarter of an hour.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aws_sdk_ec2::{
    primitives::DateTime,
    types::{InstanceType, LocationType},
};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use skyward_core::{ErrorKind, Offer, ProviderError, Usd};
use skyward_provider_kit::Cache;

use crate::{
    cloud::{Cloud, Region, call, within},
    offers::{self, Kind, Prices, SpotPrices, Zones},
    prices,
};

const HOUR: Duration = Duration::from_secs(3600);
/// Regions that are remembered at once.
const REGIONS: usize = 32;
/// Regions that are asked at once.
const AT_ONCE: usize = 4;
/// Longest time that the list of all offers may take.
const REFRESH: Duration = Duration::from_secs(240);
/// Spot machines whose price at launch is remembered.
const LAUNCHES: usize = 4096;
/// The product description of spot prices.
const LINUX: &str = "Linux/UNIX";

/// What is sold, by region.
pub struct Catalogue {
    kinds: Cache<String, BTreeMap<String, Kind>>,
    single: Cache<(String, String), Kind>,
    zones: Cache<String, Zones>,
    prices: Cache<String, Prices>,
    spot: Cache<String, SpotPrices>,
    launches: Cache<String, Option<Usd>>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self {
            kinds: Cache::new(7 * 24 * HOUR, REGIONS),
            single: Cache::new(7 * 24 * HOUR, 1024),
            zones: Cache::new(24 * HOUR, REGIONS),
            prices: Cache::new(24 * HOUR, REGIONS),
            spot: Cache::new(HOUR / 4, REGIONS),
            launches: Cache::new(30 * 24 * HOUR, LAUNCHES),
        }
    }
}

impl Catalogue {
    /// Everything that these regions sell. A region that fails fails all: vanished offers would
    /// lead to refused orders.
    pub async fn offers(
        &self,
        cloud: &Cloud,
        regions: &[String],
        exclude_burstable: bool,
    ) -> Result<Vec<Offer>, ProviderError> {
        let all = stream::iter(regions.to_vec())
            .map(|name| async move {
                let region = cloud.region(&name).await?;
                let (kinds, zones, prices, spot) = futures::try_join!(
                    self.kinds(&region),
                    self.zones(&region),
                    self.prices(cloud, &name),
                    self.spot_prices(&region),
                )?;
                let kinds: Vec<Kind> = kinds.values().cloned().collect();
                Ok::<_, ProviderError>(offers::offers(
                    &name,
                    &kinds,
                    &zones,
                    &prices,
                    &spot,
                    exclude_burstable,
                ))
            })
            .buffered(AT_ONCE)
            .try_concat();
        within("list what AWS sells", REFRESH, all).await
    }

    /// One type: from the list of all where it is known, else by itself.
    pub async fn kind(&self, region: &Region, name: &str) -> Result<Kind, ProviderError> {
        if let Some(all) = self.kinds.known(&region.name.to_string())
            && let Some(kind) = all.get(name)
        {
            return Ok(kind.clone());
        }
        let key = (region.name.to_string(), name.to_owned());
        let kind = self
            .single
            .get(key, || async {
                let answer = call(
                    "look at the instance type",
                    region
                        .ec2
                        .describe_instance_types()
                        .instance_types(InstanceType::from(name))
                        .send(),
                )
                .await?;
                answer
                    .instance_types()
                    .first()
                    .and_then(offers::kind)
                    .ok_or_else(|| {
                        ProviderError::new(
                            ErrorKind::InvalidOrder,
                            "look at the instance type",
                            format!("{} has no instance type {name} that runs Linux", region.name),
                        )
                    })
            })
            .await?;
        Ok(Kind::clone(&kind))
    }

    async fn kinds(&self, region: &Region) -> Result<Arc<BTreeMap<String, Kind>>, ProviderError> {
        self.kinds
            .get(region.name.to_string(), || async {
                let types = call(
                    "list the instance types",
                    region
                        .ec2
                        .describe_instance_types()
                        .into_paginator()
                        .page_size(100)
                        .items()
                        .send()
                        .try_collect(),
                )
                .await?;
                Ok(types
                    .iter()
                    .filter_map(offers::kind)
                    .map(|kind| (kind.name.clone(), kind))
                    .collect())
            })
            .await
    }

    /// Zones of a region that carry each type: not that they have one left.
    pub async fn zones(&self, region: &Region) -> Result<Arc<Zones>, ProviderError> {
        self.zones
            .get(region.name.to_string(), || async {
                let offerings = call(
                    "list the zones of the instance types",
                    region
                        .ec2
                        .describe_instance_type_offerings()
                        .location_type(LocationType::AvailabilityZone)
                        .into_paginator()
                        .page_size(1000)
                        .items()
                        .send()
                        .try_collect(),
                )
                .await?;
                let mut zones = Zones::new();
                for offering in &offerings {
                    if let (Some(kind), Some(zone)) = (offering.instance_type(), offering.location()) {
                        zones
                            .entry(kind.as_str().to_owned())
                            .or_default()
                            .insert(zone.to_owned());
                    }
                }
                Ok(zones)
            })
            .await
    }

    /// All on-demand prices of a region: a dozen pages, where type by type would be a
    /// thousand calls.
    async fn prices(&self, cloud: &Cloud, region: &str) -> Result<Arc<Prices>, ProviderError> {
        self.prices
            .get(region.to_owned(), || async {
                let list = cloud.prices().await?;
                let mut found = Prices::new();
                let mut next = None;
                loop {
                    let asked = prices::question(region, next.as_deref());
                    let page = prices::page(call(prices::OPERATION, list.ask(asked)).await?)?;
                    for (kind, price) in page.entries.iter().filter_map(|entry| prices::price(entry)) {
                        let least = found.entry(kind).or_insert(price);
                        *least = price.min(*least);
                    }
                    if page.next.is_none() {
                        return Ok(found);
                    }
                    if page.next == next {
                        return Err(prices::endless());
                    }
                    next = page.next;
                }
            })
            .await
    }

    /// The newest spot price of each type in each zone.
    async fn spot_prices(&self, region: &Region) -> Result<Arc<SpotPrices>, ProviderError> {
        self.spot
            .get(region.name.to_string(), || async {
                let history = call(
                    "list the spot prices",
                    region
                        .ec2
                        .describe_spot_price_history()
                        .product_descriptions(LINUX)
                        // From now on: the newest price of each, instead of three months of prices.
                        .start_time(DateTime::from_secs(Timestamp::now().as_second()))
                        .into_paginator()
                        .page_size(1000)
                        .items()
                        .send()
                        .try_collect(),
                )
                .await?;
                let mut newest: BTreeMap<(String, String), (DateTime, Usd)> = BTreeMap::new();
                for entry in &history {
                    let (Some(kind), Some(zone), Some(price), Some(since)) = (
                        entry.instance_type(),
                        entry.availability_zone(),
                        entry.spot_price().and_then(|price| price.parse().ok()),
                        entry.timestamp(),
                    ) else {
                        continue;
                    };
                    let key = (kind.as_str().to_owned(), zone.to_owned());
                    let known = newest.entry(key).or_insert((*since, price));
                    if *since > known.0 {
                        *known = (*since, price);
                    }
                }
                let mut prices = SpotPrices::new();
                for ((kind, zone), (_, price)) in newest {
                    prices.entry(kind).or_default().insert(zone, price);
                }
                Ok(prices)
            })
            .await
    }

    /// What a machine on demand costs, if it is known already.
    pub fn known_price(&self, region: &str, kind: &str) -> Option<Usd> {
        self.prices.known(&region.to_owned())?.get(kind).copied()
    }

    /// What a spot machine cost when it was launched, if it is known already.
    pub fn known_launch(&self, id: &str) -> Option<Usd> {
        self.launches.known(&id.to_owned()).and_then(|price| *price)
    }

    /// What a spot machine cost when it was launched.
    pub async fn launch_price(
        &self,
        region: &Region,
        id: &str,
        kind: &str,
        zone: &str,
        launched: Timestamp,
    ) -> Result<Option<Usd>, ProviderError> {
        let price = self
            .launches
            .get(id.to_owned(), || async {
                let at = DateTime::from_secs(launched.as_second());
                let answer = call(
                    "look at the spot price",
                    region
                        .ec2
                        .describe_spot_price_history()
                        .instance_types(InstanceType::from(kind))
                        .availability_zone(zone)
                        .product_descriptions(LINUX)
                        .start_time(at)
                        .end_time(at)
                        .send(),
                )
                .await?;
                Ok::<_, ProviderError>(
                    answer
                        .spot_price_history()
                        .iter()
                        // The price in force then, not a later one.
                        .filter(|entry| {
                            entry
                                .timestamp()
                                .is_none_or(|since| since.secs() <= launched.as_second())
                        })
                        .max_by_key(|entry| entry.timestamp().map(DateTime::secs))
                        .and_then(|entry| entry.spot_price()?.parse().ok()),
                )
            })
            .await?;
        Ok(*price)
    }
}
