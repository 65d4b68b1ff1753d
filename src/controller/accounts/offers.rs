//! What can be rented, as every Pool looks at it: one index for each Provider, made once after a
//! change however many Pools ask.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use skyward_api::Offer;
use skyward_planner::accounts::offers::OfferIndex;

/// The offers of every Provider.
#[derive(Debug, Default)]
pub struct Offers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    shelves: BTreeMap<String, Shelf>,
    /// Grows with each change of an Offer.
    version: u64,
}

#[derive(Debug, Default)]
struct Shelf {
    offers: BTreeMap<String, Arc<Offer>>,
    /// When it changed last.
    version: u64,
    /// The index, with the version that it was made from.
    index: Option<(u64, Arc<OfferIndex>)>,
}

impl Inner {
    fn show(&mut self, offer: &Arc<Offer>) {
        let shelf = self.shelves.entry(offer.spec.provider.clone()).or_default();
        shelf.version = self.version;
        let name = offer.metadata.name.clone().unwrap_or_default();
        shelf.offers.insert(name, offer.clone());
    }
}

impl Offers {
    /// The watch shows an Offer.
    pub fn apply(&self, offer: &Arc<Offer>) {
        let mut inner = self.0.lock();
        inner.version += 1;
        inner.show(offer);
    }

    /// The watch shows that an Offer is gone.
    pub fn remove(&self, offer: &Offer) {
        let mut inner = self.0.lock();
        inner.version += 1;
        let version = inner.version;
        let Some(shelf) = inner.shelves.get_mut(&offer.spec.provider) else {
            return;
        };
        shelf.version = version;
        shelf
            .offers
            .remove(offer.metadata.name.as_deref().unwrap_or_default());
        if shelf.offers.is_empty() {
            inner.shelves.remove(&offer.spec.provider);
        }
    }

    /// The watch began anew with this complete list.
    pub fn replace(&self, offers: &[Arc<Offer>]) {
        let mut inner = self.0.lock();
        inner.version += 1;
        inner.shelves.clear();
        for offer in offers {
            inner.show(offer);
        }
    }

    /// The offers of one Provider, as they are now.
    pub fn of(&self, provider: &str) -> Arc<OfferIndex> {
        let (version, offers) = {
            let inner = self.0.lock();
            let Some(shelf) = inner.shelves.get(provider) else {
                return Arc::default();
            };
            if let Some((version, index)) = &shelf.index
                && *version == shelf.version
            {
                return index.clone();
            }
            (shelf.version, shelf.offers.values().cloned().collect::<Vec<_>>())
        };
        // Sorted outside the lock: a large catalogue must not hold up the watch.
        let index = Arc::new(OfferIndex::of(offers));
        let mut inner = self.0.lock();
        if let Some(shelf) = inner.shelves.get_mut(provider)
            && shelf.version == version
        {
            shelf.index = Some((version, index.clone()));
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use skyward_planner::accounts::offers::IndexedOffer;

    use super::*;

    fn offer(name: &str, price: &str) -> Arc<Offer> {
        let spec = serde_json::json!({
            "provider": "local", "instanceType": name, "cpu": 4, "memory": "8G", "architecture": "amd64",
            "onDemandPrice": price, "availability": "Yes", "connected": true
        });
        Arc::new(Offer::new(name, serde_json::from_value(spec).unwrap()))
    }

    #[test]
    fn an_index_is_made_once_after_a_change_and_shared() {
        let offers = Offers::default();
        offers.apply(&offer("b", "2"));
        offers.apply(&offer("a", "10"));
        let index = offers.of("local");
        let names: Vec<_> = index.entries().iter().map(IndexedOffer::name).collect();
        assert_eq!(names, ["b", "a"], "by price, not by its text");
        assert!(Arc::ptr_eq(&index, &offers.of("local")));
        offers.remove(&offer("b", "2"));
        assert_eq!(offers.of("local").entries().len(), 1);
        assert!(offers.of("other").entries().is_empty());
        offers.replace(&[]);
        assert!(offers.of("local").entries().is_empty());
    }
}
