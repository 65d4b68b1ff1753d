//! Offers and Providers that refused orders lately, shared by all Pools.
//! [`skyward_planner::accounts::unavailable`] decides which refusals count, and how long.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use skyward_api::provider::BarredOffer;
use skyward_planner::accounts::unavailable::{Unavailable, UnavailableOfferings};

/// The refusals that this process knows, shared.
#[derive(Debug, Default)]
pub struct UnavailableCache(Mutex<Arc<UnavailableOfferings>>);

impl UnavailableCache {
    /// As they are now.
    pub fn now(&self) -> Arc<UnavailableOfferings> {
        self.0.lock().clone()
    }

    /// Remembers a refusal.
    pub fn remember(&self, what: Unavailable, why: String, now: Timestamp) {
        let mut known = self.0.lock();
        Arc::make_mut(&mut known).note(what, why, now);
    }

    /// Offers that an earlier leader barred; the Provider's status has them.
    pub fn recall(&self, provider: &str, barred: &[BarredOffer], now: Timestamp) {
        if !barred.is_empty() {
            let mut known = self.0.lock();
            Arc::make_mut(&mut known).recall(provider, barred, now);
        }
    }

    /// Forgets the refusals of a Provider whose settings or credentials changed.
    pub fn forget(&self, provider: &str) {
        let mut known = self.0.lock();
        Arc::make_mut(&mut known).forget(provider);
    }
}
