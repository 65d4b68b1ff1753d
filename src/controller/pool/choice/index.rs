//! All Offers, ready to be searched: prices read once, names of accelerators made
//! canonical once, each Provider's Offers sorted by their lowest price.
//!
//! One index is shared by all Pools; a change of Offers makes a new one.

use std::{collections::BTreeMap, sync::Arc};

use rust_decimal::Decimal;
use skyward_api::offer::{Availability, OfferSpec};
use skyward_core::{accelerator, offer::Market};

/// One Offer, ready to be compared.
#[derive(Clone, Debug)]
pub struct Priced {
    /// Name of the Offer object.
    pub name: String,
    /// What is offered.
    pub spec: Arc<OfferSpec>,
    /// Canonical name of its accelerator; `""` without one.
    pub accelerator: String,
    /// USD per hour on demand.
    pub on_demand: Option<Decimal>,
    /// USD per hour on the spot market.
    pub spot: Option<Decimal>,
}

impl Priced {
    /// Reads an Offer. A price that is not a number counts as none.
    pub fn new(name: impl Into<String>, spec: Arc<OfferSpec>) -> Self {
        let price = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        Self {
            name: name.into(),
            accelerator: spec
                .accelerator
                .as_ref()
                .map(|offered| accelerator::canonical(&offered.name))
                .unwrap_or_default(),
            on_demand: price(&spec.on_demand_price),
            spot: price(&spec.spot_price),
            spec,
        }
    }

    /// Its price on a market.
    pub const fn price(&self, market: Market) -> Option<Decimal> {
        match market {
            Market::OnDemand => self.on_demand,
            Market::Spot => self.spot,
        }
    }

    fn lowest(&self) -> Option<Decimal> {
        match (self.on_demand, self.spot) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Whether the provider says that it cannot be had.
    pub fn sold_out(&self) -> bool {
        self.spec.availability == Availability::No
    }
}

/// All Offers, by Provider.
#[derive(Clone, Debug, Default)]
pub struct Index {
    by_provider: BTreeMap<String, Vec<Priced>>,
}

impl Index {
    /// Sorts Offers.
    pub fn new(offers: impl IntoIterator<Item = Priced>) -> Self {
        let mut by_provider: BTreeMap<String, Vec<Priced>> = BTreeMap::new();
        for offer in offers {
            by_provider
                .entry(offer.spec.provider.clone())
                .or_default()
                .push(offer);
        }
        for offers in by_provider.values_mut() {
            offers.sort_by(|a, b| {
                let key = |offer: &Priced| (offer.lowest().unwrap_or(Decimal::MAX), offer.lowest().is_none());
                key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
            });
        }
        Self { by_provider }
    }

    /// Offers of a Provider, the cheapest first.
    pub fn of(&self, provider: &str) -> &[Priced] {
        self.by_provider.get(provider).map_or(&[], Vec::as_slice)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_provider.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_provider.is_empty()
    }
}
