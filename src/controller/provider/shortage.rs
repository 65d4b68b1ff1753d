//! What could not be had lately, so that nobody asks for it again at once. Pure, but for
//! [`Remembered`], which shares it.
//!
//! A shortage says which offer to try first, never that none may be tried: where everything
//! that fits is short, the cheapest is asked for again after the Pool's own wait. So
//! forgetting it all, as a restart does, costs one refusal.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use skyward_api::machine::{MachineSpec, Market};

use crate::pool::plan::after;

/// How long a refusal is remembered.
pub const REMEMBERED: Duration = Duration::from_mins(5);
/// Most shortages that are remembered; the oldest go first.
const MOST: usize = 10_000;

/// What was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scarce {
    /// One offer in one market.
    Offer {
        /// Name of the Offer.
        offer: String,
        /// Whether it was the spot market.
        spot: bool,
    },
    /// Everything of an account in one region: its quota is used up.
    Quota {
        /// Name of the Provider.
        provider: String,
        /// Region, `""` where there is none.
        region: String,
    },
}

impl Scarce {
    /// The name by which it is looked up.
    fn name(&self) -> &str {
        match self {
            Self::Offer { offer, .. } => offer,
            Self::Quota { provider, .. } => provider,
        }
    }

    /// The offer of a machine.
    pub fn offer(machine: &MachineSpec) -> Self {
        Self::Offer {
            offer: machine.offer.clone(),
            spot: machine.market == Market::Spot,
        }
    }

    /// The quota that a machine would have used.
    pub fn quota(machine: &MachineSpec) -> Self {
        Self::Quota {
            provider: machine.provider.clone(),
            region: machine.region.clone(),
        }
    }
}

/// A refusal that still counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Until when.
    pub until: Timestamp,
    /// What the provider said.
    pub why: String,
}

/// What could not be had lately, by the name of the Offer or Provider: each of a hundred
/// thousand offers is looked up here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortages(BTreeMap<String, Vec<(Scarce, Shortage)>>);

impl Shortages {
    /// Remembers a refusal; what has passed is forgotten.
    pub fn remember(&mut self, what: Scarce, why: String, now: Timestamp, lasting: Duration) {
        self.retain(|known, shortage| shortage.until > now && *known != what);
        if self.len() >= MOST
            && let Some(oldest) = self.all().map(|(_, shortage)| shortage.until).min()
        {
            let mut gone = false;
            self.retain(|_, shortage| {
                let goes = !gone && shortage.until == oldest;
                gone |= goes;
                !goes
            });
        }
        let until = after(now, lasting);
        let known = self.0.entry(what.name().to_owned()).or_default();
        known.push((what, Shortage { until, why }));
    }

    fn retain(&mut self, mut stays: impl FnMut(&Scarce, &Shortage) -> bool) {
        self.0.retain(|_, known| {
            known.retain(|(what, shortage)| stays(what, shortage));
            !known.is_empty()
        });
    }

    fn all(&self) -> impl Iterator<Item = &(Scarce, Shortage)> {
        self.0.values().flatten()
    }

    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Why this offer is not worth a try now, if it is not.
    pub fn of(
        &self,
        offer: &str,
        provider: &str,
        region: &str,
        spot: bool,
        now: Timestamp,
    ) -> Option<&Shortage> {
        if self.0.is_empty() {
            return None;
        }
        let known = |name: &str, is_meant: &dyn Fn(&Scarce) -> bool| {
            let mut known = self.0.get(name)?.iter();
            known
                .find(|(what, shortage)| shortage.until > now && is_meant(what))
                .map(|(_, shortage)| shortage)
        };
        known(
            offer,
            &|what| matches!(what, Scarce::Offer { spot: market, .. } if *market == spot),
        )
        .or_else(|| {
            known(
                provider,
                &|what| matches!(what, Scarce::Quota { region: place, .. } if place == region),
            )
        })
    }
}

/// The shortages that this process knows of, shared.
#[derive(Debug, Default)]
pub struct Remembered(Mutex<Arc<Shortages>>);

impl Remembered {
    /// As they are now.
    pub fn now(&self) -> Arc<Shortages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers a refusal.
    pub fn remember(&self, what: Scarce, why: String, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut known).remember(what, why, now, REMEMBERED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn offer(name: &str, spot: bool) -> Scarce {
        Scarce::Offer {
            offer: name.into(),
            spot,
        }
    }

    #[test]
    fn a_refusal_counts_for_its_offer_and_market_until_its_time_has_passed() {
        let mut known = Shortages::default();
        known.remember(offer("a", true), "sold out".into(), at(0), REMEMBERED);
        let short = |known: &Shortages, name: &str, spot, second| {
            known.of(name, "aws", "eu", spot, at(second)).is_some()
        };
        assert!(short(&known, "a", true, 299));
        assert!(!short(&known, "a", true, 300));
        assert!(!short(&known, "a", false, 1), "the other market was not asked");
        assert!(!short(&known, "b", true, 1));
        known.remember(offer("a", true), "sold out".into(), at(200), REMEMBERED);
        assert!(short(&known, "a", true, 400), "refused again");
    }

    #[test]
    fn a_quota_counts_for_every_offer_of_that_account_and_region() {
        let mut known = Shortages::default();
        let quota = Scarce::Quota {
            provider: "aws".into(),
            region: "eu".into(),
        };
        known.remember(quota, "vCPU limit".into(), at(0), REMEMBERED);
        let why = |provider, region| {
            known
                .of("any", provider, region, false, at(1))
                .map(|short| short.why.as_str())
        };
        assert_eq!(why("aws", "eu"), Some("vCPU limit"));
        assert_eq!((why("aws", "us"), why("other", "eu")), (None, None));
    }

    #[test]
    fn what_has_passed_is_forgotten_and_the_rest_is_bounded() {
        let mut known = Shortages::default();
        known.remember(offer("old", false), String::new(), at(0), REMEMBERED);
        known.remember(offer("new", false), String::new(), at(1_000), REMEMBERED);
        assert_eq!(known.len(), 1);
        for n in 0..MOST {
            known.remember(offer(&n.to_string(), false), String::new(), at(1_001), REMEMBERED);
        }
        assert_eq!(known.len(), MOST);
        assert!(
            known.of("new", "", "", false, at(1_002)).is_none(),
            "the oldest went"
        );
    }
}
