//! What can be rented, as every Pool looks at it: one snapshot for each Provider, sorted
//! by price and by accelerator, made once after a change however many Pools ask.

use std::{collections::BTreeMap, sync::Arc};

use jiff::civil::Date;
use skyward_api::{
    Offer,
    machine::Market,
    offer::{Architecture, Availability, OfferSpec},
    shared::{Cpu, FormFactor, Size},
};
use skyward_core::{Usd, accelerator::canonical};

use super::unavailable::OfferKey;

/// One offer of a [`OfferIndex`].
#[derive(Clone, Debug)]
pub struct IndexedOffer {
    /// The Offer object.
    pub offer: Arc<Offer>,
    /// Canonical name of its accelerator; `""` without one.
    pub accelerator: String,
    /// USD per hour on demand, where it is sold so.
    pub on_demand: Option<Usd>,
    /// USD per hour on the spot market, where it is sold so.
    pub spot: Option<Usd>,
    /// The facts that Pools compare it by, inline, so that a pass over a hundred thousand offers is
    /// fast.
    pub facts: Facts,
}

/// The facts that an offer is compared by.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Architecture of the CPU.
    pub architecture: Architecture,
    /// Whether it is available.
    pub availability: Availability,
    /// Whether its machines can reach each other.
    pub connected: bool,
    /// CPUs.
    pub cpu: Cpu,
    /// Memory in bytes.
    pub memory: u64,
    /// Disk in bytes, where the offer fixes it.
    pub disk: Option<u64>,
    /// How many accelerators; 0 where there is none.
    pub accelerators: f64,
    /// Memory of each in GB, as [`Size::card_gb`] reads it.
    pub accelerator_memory_gb: Option<f64>,
    /// How each is built in, where the provider says it.
    pub form_factor: Option<FormFactor>,
    /// Day of the exchange rate in its prices; one that cannot be read is long ago.
    pub rate_as_of: Option<Date>,
}

impl IndexedOffer {
    /// Reads an Offer. A price that is not a number counts as none.
    pub fn new(offer: Arc<Offer>) -> Self {
        let price = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        let spec = &offer.spec;
        let accelerator = spec.accelerator.as_ref();
        Self {
            facts: Facts {
                architecture: spec.architecture,
                availability: spec.availability,
                connected: spec.connected,
                cpu: spec.cpu,
                memory: spec.memory.bytes().unwrap_or_default(),
                disk: spec.disk.as_ref().and_then(Size::bytes),
                accelerators: accelerator.map_or(0.0, |some| some.count.number()),
                accelerator_memory_gb: accelerator.and_then(|some| some.memory.as_ref()?.card_gb()),
                form_factor: accelerator.and_then(|some| some.form_factor),
                rate_as_of: (spec.exchange_rate_as_of.as_ref()).map(|day| day.parse().unwrap_or(Date::MIN)),
            },
            accelerator: accelerator.map_or(String::new(), |some| canonical(&some.name)),
            on_demand: price(&spec.on_demand_price),
            spot: price(&spec.spot_price),
            offer,
        }
    }

    /// Its price on a market.
    pub const fn price(&self, market: Market) -> Option<Usd> {
        match market {
            Market::OnDemand => self.on_demand,
            Market::Spot => self.spot,
        }
    }

    /// Its lowest price on any market.
    pub fn lowest(&self) -> Option<Usd> {
        self.on_demand.into_iter().chain(self.spot).min()
    }

    /// The key of an order of this offer, for a Pool of that UID whose candidate has this digest.
    pub fn sought<'a>(&'a self, pool: &'a str, template: &'a str, market: Market) -> OfferKey<'a> {
        OfferKey {
            pool,
            template,
            offer: self.name(),
            provider: &self.spec().provider,
            region: &self.spec().region,
            spot: market == Market::Spot,
            accelerator: &self.accelerator,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.offer.metadata.name.as_deref().unwrap_or_default()
    }

    /// What it is.
    pub fn spec(&self) -> &OfferSpec {
        &self.offer.spec
    }
}

/// The offers of one Provider at one moment.
#[derive(Clone, Debug, Default)]
pub struct OfferIndex {
    /// The cheapest first; among equals offers without accelerators, which other Pools may need;
    /// then by name.
    entries: Vec<IndexedOffer>,
    /// Positions in `entries`, by canonical name.
    by_accelerator: BTreeMap<String, Vec<usize>>,
}

impl OfferIndex {
    /// An index of these offers.
    pub fn of(offers: impl IntoIterator<Item = Arc<Offer>>) -> Self {
        let mut entries: Vec<IndexedOffer> = offers.into_iter().map(IndexedOffer::new).collect();
        entries.sort_by(|a, b| {
            let key = |entry: &IndexedOffer| {
                (
                    entry.lowest().is_none(),
                    entry.lowest(),
                    entry.spec().accelerator.is_some(),
                )
            };
            key(a).cmp(&key(b)).then_with(|| a.name().cmp(b.name()))
        });
        let mut by_accelerator: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (position, entry) in entries.iter().enumerate() {
            if !entry.accelerator.is_empty() {
                by_accelerator
                    .entry(entry.accelerator.clone())
                    .or_default()
                    .push(position);
            }
        }
        Self {
            entries,
            by_accelerator,
        }
    }

    /// Every offer, the cheapest first.
    pub fn entries(&self) -> &[IndexedOffer] {
        &self.entries
    }

    /// The same offers as [`OfferIndex::with_accelerator`] gives last: those without a price.
    pub fn without_price<'a>(
        &'a self,
        accelerator: Option<&str>,
    ) -> Box<dyn Iterator<Item = &'a IndexedOffer> + 'a> {
        let first = self.entries.partition_point(|entry| entry.lowest().is_some());
        let Some(name) = accelerator else {
            return Box::new(self.entries.iter().skip(first));
        };
        let positions = self.by_accelerator.get(&canonical(name));
        let positions = positions.map_or(&[][..], Vec::as_slice);
        let known = positions.partition_point(|position| *position < first);
        let positions = positions.iter().skip(known);
        Box::new(positions.filter_map(|position| self.entries.get(*position)))
    }

    /// The offers with that accelerator, the cheapest first; all where none is asked for.
    pub fn with_accelerator<'a>(
        &'a self,
        accelerator: Option<&str>,
    ) -> Box<dyn Iterator<Item = &'a IndexedOffer> + 'a> {
        match accelerator {
            None => Box::new(self.entries.iter()),
            Some(name) => Box::new(
                self.by_accelerator
                    .get(&canonical(name))
                    .into_iter()
                    .flatten()
                    .filter_map(|position| self.entries.get(*position)),
            ),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An Offer of the Provider "local".
    pub(crate) fn offer(name: &str, spec: serde_json::Value) -> Arc<Offer> {
        let mut json = serde_json::json!({
            "provider": "local", "instanceType": name, "cpu": 4, "memory": "8G",
            "architecture": "amd64", "onDemandPrice": "0", "availability": "Yes", "connected": true
        });
        if let (Some(all), serde_json::Value::Object(given)) = (json.as_object_mut(), spec) {
            all.extend(given);
        }
        Arc::new(Offer::new(name, serde_json::from_value(json).unwrap()))
    }

    #[test]
    fn offers_are_found_by_accelerator_however_it_is_spelled() {
        let gpu = |name: &str, price: &str| {
            offer(
                name,
                serde_json::json!({ "onDemandPrice": price, "accelerator": { "name": "RTX_4090", "count": 1 } }),
            )
        };
        let index = OfferIndex::of([
            gpu("dear", "3"),
            gpu("cheap", "1"),
            offer("cpu", serde_json::json!({})),
        ]);
        let names = |wanted| {
            index
                .with_accelerator(wanted)
                .map(IndexedOffer::name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(Some("rtx-4090")), ["cheap", "dear"]);
        assert_eq!(names(Some("H100")), Vec::<&str>::new());
        assert_eq!(names(None), ["cpu", "cheap", "dear"]);
    }
}
