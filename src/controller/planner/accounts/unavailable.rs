//! Offers and Providers that refused orders lately, so that no Pool asks for them again at once.
//! The controller shares them between Pools.
//!
//! A refusal says which offer to try first, never that none may be tried: where everything that
//! fits was refused, the cheapest is ordered again after the Pool's own wait. So forgetting all
//! refusals, as a restart does, costs one more. Only a machine dearer than its Offer's price bars
//! the Offer altogether. To forget that would cost money, so the Provider's status has it, and a
//! new leader reads it there.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    condition::cut,
    machine::{MachineSpec, Market},
    provider::BarredOffer,
};
use skyward_core::{ErrorKind, accelerator::canonical};

use crate::base::time::after;

/// How long a refusal is remembered.
pub const REMEMBERED: Duration = Duration::from_mins(5);
/// How long an outage counts: many are over in a moment, and the next order tells whether this one is.
pub const OUTAGE: Duration = Duration::from_mins(1);
/// How long the refusal of an order as it is counts: longer than a machine waits, so that a Pool
/// does not cycle for ever through offers that all refuse it, and its tries count.
pub const REFUSED: Duration = Duration::from_hours(1);
/// Most refusals that are remembered; the oldest go first.
const MOST: usize = 10_000;
/// Most barred offers in the status of a Provider.
const BARRED: usize = 100;
/// Longest message of a refusal, in bytes.
const LONGEST: usize = 1024;

/// What was refused, and is not worth a try now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unavailable {
    /// One offer in one market.
    Offer {
        /// Name of the Offer.
        offer: String,
        /// Whether it was the spot market.
        spot: bool,
    },
    /// One offer in one market whose machine was dearer than its price says. It is not ordered at
    /// all meanwhile.
    Dear {
        /// Name of the Provider.
        provider: String,
        /// Name of the Offer.
        offer: String,
        /// Whether it was the spot market.
        spot: bool,
    },
    /// The machines that an account's quota is for. Clouds count by region, by market and by family
    /// of machines; only the cloud knows which family a machine is of, but a machine with another
    /// accelerator is of another family.
    Quota {
        /// Name of the Provider.
        provider: String,
        /// Region, `""` where there is none.
        region: String,
        /// Whether offers are of zones of that region, which have the quota in common.
        zones: bool,
        /// Whether it was the spot market.
        spot: bool,
        /// Canonical name of the accelerator, `""` without one.
        accelerator: String,
    },
    /// Everything of an account: it cannot pay, or its credentials are refused.
    Account {
        /// Name of the Provider.
        provider: String,
    },
    /// Everything of an account whose cloud takes no orders or answers nothing now.
    Outage {
        /// Name of the Provider.
        provider: String,
    },
    /// Everything of an account in one region and market: its credentials lack a right.
    Right {
        /// Name of the Provider.
        provider: String,
        /// Region, `""` where there is none.
        region: String,
        /// Whether it was the spot market.
        spot: bool,
    },
    /// One offer in one market for what one Pool asks, whose order was refused as it is. Two of one
    /// region stand for the whole region: then the offer is not the cause, and a Pool does not try
    /// each of hundreds.
    Order {
        /// UID of the Pool.
        pool: String,
        /// Digest of the candidate: a corrected Pool has another.
        template: String,
        /// Name of the Provider.
        provider: String,
        /// Region, `""` where there is none.
        region: String,
        /// Whether it was the spot market.
        spot: bool,
        /// Name of the Offer.
        offer: String,
    },
}

impl Unavailable {
    /// The name by which it is looked up.
    fn name(&self) -> &str {
        match self {
            Self::Offer { offer, .. } | Self::Dear { offer, .. } => offer,
            Self::Quota { provider, .. }
            | Self::Account { provider }
            | Self::Outage { provider }
            | Self::Right { provider, .. }
            | Self::Order { provider, .. } => provider,
        }
    }

    /// The offer of a machine.
    pub fn offer(machine: &MachineSpec) -> Self {
        Self::Offer {
            offer: machine.offer.clone(),
            spot: machine.market == Market::Spot,
        }
    }

    /// The offer of a machine that was dearer than recorded.
    pub fn dear(machine: &MachineSpec) -> Self {
        Self::Dear {
            provider: machine.provider.clone(),
            offer: machine.offer.clone(),
            spot: machine.market == Market::Spot,
        }
    }

    /// The quota that a machine met: of its own place, or of a region whose zones have the quota in common.
    pub fn quota(machine: &MachineSpec, zones_of: Option<&str>) -> Self {
        Self::Quota {
            provider: machine.provider.clone(),
            region: zones_of.unwrap_or(&machine.region).to_owned(),
            zones: zones_of.is_some(),
            spot: machine.market == Market::Spot,
            accelerator: canonical(&machine.offer_accelerator),
        }
    }

    /// What is refused for now, by a failed order; `None` where the same order may succeed.
    pub fn of(machine: &MachineSpec, kind: &ErrorKind) -> Option<Self> {
        let (provider, region) = (machine.provider.clone(), machine.region.clone());
        let spot = machine.market == Market::Spot;
        // A right may be lacking for what the Pool put in the place of a setting, such as an image of another
        // project: that is no matter of other Pools.
        let is_as_set = machine.settings.as_ref().is_none_or(serde_json::Map::is_empty);
        Some(match kind {
            ErrorKind::NoCapacity => Self::offer(machine),
            ErrorKind::Quota(_) => Self::quota(machine, None),
            ErrorKind::NoCredit | ErrorKind::CredentialsMissing | ErrorKind::Credentials => {
                Self::Account { provider }
            }
            ErrorKind::Outage => Self::Outage { provider },
            ErrorKind::Permission if is_as_set => Self::Right {
                provider,
                region,
                spot,
            },
            ErrorKind::InvalidOrder | ErrorKind::Unsupported | ErrorKind::Permission => Self::Order {
                pool: machine.pool_uid.clone(),
                template: machine.template_hash.clone(),
                provider,
                region,
                spot,
                offer: machine.offer.clone(),
            },
            ErrorKind::Transient
            | ErrorKind::RateLimited(_)
            | ErrorKind::Indeterminate
            | ErrorKind::MachineFailed
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::NotLeading => return None,
        })
    }

    /// How long the refusal counts.
    pub const fn lasting(&self) -> Duration {
        match self {
            Self::Order { .. } | Self::Dear { .. } => REFUSED,
            Self::Outage { .. } => OUTAGE,
            Self::Offer { .. } | Self::Quota { .. } | Self::Account { .. } | Self::Right { .. } => REMEMBERED,
        }
    }

    /// Whether the order is tried again as it is: a person can mend the cause, or it passes.
    const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Account { .. } | Self::Outage { .. } | Self::Right { .. } | Self::Order { .. }
        )
    }
}

/// An order that a plan considers.
#[derive(Clone, Copy, Debug)]
pub struct OfferKey<'a> {
    /// UID of the Pool.
    pub pool: &'a str,
    /// Digest of what it asks for.
    pub template: &'a str,
    /// Name of the Offer.
    pub offer: &'a str,
    /// Name of the Provider.
    pub provider: &'a str,
    /// Region, `""` where there is none.
    pub region: &'a str,
    /// Whether it is on the spot market.
    pub spot: bool,
    /// Canonical name of the accelerator, `""` without one.
    pub accelerator: &'a str,
}

/// A refusal that still counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailability {
    /// Until when.
    pub until: Timestamp,
    /// What the provider said.
    pub why: String,
}

/// What had no capacity lately, by the name of the Offer or Provider: each of a hundred
/// thousand offers is looked up here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnavailableOfferings(BTreeMap<String, Vec<(Unavailable, Unavailability)>>);

impl UnavailableOfferings {
    /// Remembers a refusal, and forgets the ones that have passed.
    pub fn remember(&mut self, what: Unavailable, why: String, now: Timestamp, lasting: Duration) {
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
        known.push((what, Unavailability { until, why }));
    }

    /// Remembers a refusal for as long as it counts.
    pub fn note(&mut self, what: Unavailable, why: String, now: Timestamp) {
        let lasting = what.lasting();
        self.remember(what, why, now, lasting);
    }

    /// Forgets the refusals of a Provider whose settings or credentials changed: they may all be
    /// outdated.
    pub fn forget(&mut self, provider: &str) {
        self.0.remove(provider);
    }

    fn retain(&mut self, mut stays: impl FnMut(&Unavailable, &Unavailability) -> bool) {
        self.0.retain(|_, known| {
            known.retain(|(what, shortage)| stays(what, shortage));
            !known.is_empty()
        });
    }

    fn all(&self) -> impl Iterator<Item = &(Unavailable, Unavailability)> {
        self.0.values().flatten()
    }

    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    fn named(&self, name: &str, now: Timestamp) -> impl Iterator<Item = &(Unavailable, Unavailability)> {
        let known = self.0.get(name).into_iter().flatten();
        known.filter(move |(_, shortage)| shortage.until > now)
    }

    /// Why this order is not worth a try now, if it is not.
    pub fn of(&self, sought: &OfferKey<'_>, now: Timestamp) -> Option<&Unavailability> {
        if self.0.is_empty() {
            return None;
        }
        let is_offer = |what: &Unavailable| matches!(what, Unavailable::Offer { spot, .. } | Unavailable::Dear { spot, .. } if *spot == sought.spot);
        if let Some((_, shortage)) = self.named(sought.offer, now).find(|(what, _)| is_offer(what)) {
            return Some(shortage);
        }
        let is_there = |place: &str, market: bool| place == sought.region && market == sought.spot;
        let mut orders = 0;
        for (what, shortage) in self.named(sought.provider, now) {
            let is_meant = match what {
                Unavailable::Account { .. } | Unavailable::Outage { .. } => true,
                Unavailable::Right { region, spot, .. } => is_there(region, *spot),
                Unavailable::Quota {
                    region,
                    zones,
                    spot,
                    accelerator,
                    ..
                } => {
                    let is_zone = *zones && *spot == sought.spot && is_zone_of(sought.region, region);
                    (is_zone || is_there(region, *spot)) && accelerator == sought.accelerator
                }
                Unavailable::Order {
                    pool,
                    template,
                    region,
                    spot,
                    offer,
                    ..
                } if pool == sought.pool && template == sought.template && is_there(region, *spot) => {
                    orders += 1;
                    orders > 1 || offer == sought.offer
                }
                Unavailable::Offer { .. } | Unavailable::Dear { .. } | Unavailable::Order { .. } => false,
            };
            if is_meant {
                return Some(shortage);
            }
        }
        None
    }

    /// Whether an offer is not ordered now on a market, whatever else there is: its last machine
    /// was dearer than its price says.
    pub fn bars(&self, offer: &str, market: Market, now: Timestamp) -> bool {
        let is_spot = market == Market::Spot;
        let bars = |what: &Unavailable| matches!(what, Unavailable::Dear { spot, .. } if *spot == is_spot);
        !self.0.is_empty() && self.named(offer, now).any(|(what, _)| bars(what))
    }

    /// The offers of a Provider that are barred, for its status: at most [`BARRED`] offers, which are
    /// the offers that stay barred longest.
    pub fn barred(&self, provider: &str, now: Timestamp) -> Vec<BarredOffer> {
        let mut barred: Vec<(Reverse<i64>, &str, bool, &str)> = self
            .all()
            .filter(|(_, shortage)| shortage.until > now)
            .filter_map(|(what, Unavailability { until, why })| match what {
                Unavailable::Dear {
                    provider: of,
                    offer,
                    spot,
                } if of == provider => {
                    Some((Reverse(until.as_second()), offer.as_str(), *spot, why.as_str()))
                }
                _ => None,
            })
            .collect();
        barred.sort_unstable();
        let barred = barred.into_iter().take(BARRED);
        barred
            .filter_map(|(Reverse(until), offer, spot, why)| {
                Some(BarredOffer {
                    offer: offer.to_owned(),
                    market: if spot { Market::Spot } else { Market::OnDemand },
                    until: Time(Timestamp::from_second(until).ok()?),
                    message: cut(why, LONGEST),
                })
            })
            .collect()
    }

    /// Offers that an earlier leader barred.
    pub fn recall(&mut self, provider: &str, barred: &[BarredOffer], now: Timestamp) {
        for known in barred {
            let left = known.until.0.duration_since(now);
            if left.is_positive() && !self.bars(&known.offer, known.market, now) {
                let what = Unavailable::Dear {
                    provider: provider.to_owned(),
                    offer: known.offer.clone(),
                    spot: known.market == Market::Spot,
                };
                self.remember(what, known.message.clone(), now, left.unsigned_abs().min(REFUSED));
            }
        }
    }

    /// What a Provider last said of this Pool's orders that it refuses as they are; with `met`
    /// also of the account and its rights, where this Pool met such a refusal. Orders of other
    /// Pools are not shown to its users.
    pub fn refusal(&self, pool: &str, provider: &str, met: bool, now: Timestamp) -> Option<&Unavailability> {
        self.named(provider, now)
            .filter(|(what, _)| match what {
                Unavailable::Order { pool: whose, .. } => whose == pool,
                other => met && other.is_refusal(),
            })
            .map(|(_, shortage)| shortage)
            .max_by_key(|shortage| shortage.until)
    }
}

/// Whether a place is a zone of a region, such as `us-east1-b` of `us-east1`.
fn is_zone_of(place: &str, region: &str) -> bool {
    let rest = place.strip_prefix(region);
    rest.is_some_and(|rest| rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn offer(name: &str, spot: bool) -> Unavailable {
        Unavailable::Offer {
            offer: name.into(),
            spot,
        }
    }

    /// On demand in region "eu" at "aws".
    fn sought(offer: &str) -> OfferKey<'_> {
        OfferKey {
            pool: "pool",
            template: "h",
            offer,
            provider: "aws",
            region: "eu",
            spot: false,
            accelerator: "",
        }
    }

    #[test]
    fn a_refusal_counts_for_its_offer_and_market_until_its_time_has_passed() {
        let mut known = UnavailableOfferings::default();
        known.remember(offer("a", true), "sold out".into(), at(0), REMEMBERED);
        let short = |known: &UnavailableOfferings, name: &str, spot, second| {
            known.of(&OfferKey { spot, ..sought(name) }, at(second)).is_some()
        };
        assert!(short(&known, "a", true, 299));
        assert!(!short(&known, "a", true, 300));
        assert!(!short(&known, "a", false, 1), "the other market was not asked");
        assert!(!short(&known, "b", true, 1));
        known.remember(offer("a", true), "sold out".into(), at(200), REMEMBERED);
        assert!(short(&known, "a", true, 400), "refused again");
    }

    /// A machine of that market of Offer "g5", which has an A10G, in region "eu" at "aws".
    fn machine(market: Market) -> MachineSpec {
        let mut spec = crate::machine::tests::world().machine.spec;
        spec.provider = "aws".into();
        spec.region = "eu".into();
        spec.offer = "g5".into();
        spec.offer_accelerator = "A10G".into();
        spec.market = market;
        spec.pool_uid = "pool".into();
        spec
    }

    /// What is known after an order on demand met this.
    fn after_meeting(kind: &ErrorKind) -> UnavailableOfferings {
        let mut known = UnavailableOfferings::default();
        let what = Unavailable::of(&machine(Market::OnDemand), kind).unwrap();
        known.remember(what, "no".into(), at(0), REMEMBERED);
        known
    }

    #[test]
    fn a_quota_counts_for_its_region_market_and_accelerator() {
        let known = after_meeting(&ErrorKind::Quota("vCPU limit".into()));
        let gpu = OfferKey {
            accelerator: "A10G",
            ..sought("any")
        };
        let short = |sought: OfferKey<'_>| known.of(&sought, at(1)).is_some();
        assert!(short(gpu));
        assert!(
            !short(OfferKey { spot: true, ..gpu }),
            "spot has a quota of its own"
        );
        assert!(
            !short(OfferKey {
                accelerator: "",
                ..gpu
            }),
            "so has what has no GPU"
        );
        assert!(!short(OfferKey { region: "us", ..gpu }));
        assert!(!short(OfferKey {
            provider: "other",
            ..gpu
        }));
    }

    #[test]
    fn a_quota_that_zones_have_in_common_counts_for_each_zone_of_its_region_and_for_no_other() {
        let mut known = UnavailableOfferings::default();
        let mut spec = machine(Market::OnDemand);
        spec.region = "us-east1-b".into();
        known.note(Unavailable::quota(&spec, Some("us-east1")), "no".into(), at(0));
        let short = |region: &str, spot, accelerator: &str| {
            let sought = OfferKey {
                region,
                spot,
                accelerator,
                ..sought("any")
            };
            known.of(&sought, at(1)).is_some()
        };
        assert!(short("us-east1-b", false, "A10G"));
        assert!(short("us-east1-c", false, "A10G"));
        assert!(!short("us-east1-c", true, "A10G"));
        assert!(!short("us-east1-c", false, "L4"));
        assert!(!short("us-east10-a", false, "A10G"));
        assert!(!short("us-west1-b", false, "A10G"));
        // Without the cloud's word a place whose name begins so is another place.
        let mut known = UnavailableOfferings::default();
        spec.region = "us".into();
        known.note(Unavailable::quota(&spec, None), "no".into(), at(0));
        let elsewhere = OfferKey {
            region: "us-2",
            accelerator: "A10G",
            ..sought("any")
        };
        assert!(known.of(&elsewhere, at(1)).is_none());
    }

    #[test]
    fn an_account_that_cannot_pay_has_nothing_in_any_region_or_market() {
        let known = after_meeting(&ErrorKind::NoCredit);
        for spot in [false, true] {
            let elsewhere = OfferKey {
                region: "us",
                spot,
                ..sought("any")
            };
            assert!(known.of(&elsewhere, at(1)).is_some());
        }
        let other = OfferKey {
            provider: "other",
            ..sought("any")
        };
        assert!(known.of(&other, at(1)).is_none());
    }

    #[test]
    fn a_right_that_is_missing_counts_for_its_region_and_market() {
        let known = after_meeting(&ErrorKind::Permission);
        let short = |sought: OfferKey<'_>| known.of(&sought, at(1)).is_some();
        assert!(short(sought("any")));
        assert!(!short(OfferKey {
            region: "us",
            ..sought("any")
        }));
        assert!(
            !short(OfferKey {
                spot: true,
                ..sought("any")
            }),
            "it may need a role of its own"
        );
    }

    #[test]
    fn a_right_that_is_missing_for_a_setting_of_one_pool_keeps_no_other_pool_away() {
        let mut spec = machine(Market::OnDemand);
        let image = ("image".to_owned(), "projects/other/global/images/x".into());
        spec.settings = Some(serde_json::Map::from_iter([image]));
        let mut known = UnavailableOfferings::default();
        let what = Unavailable::of(&spec, &ErrorKind::Permission).unwrap();
        known.note(what, "no".into(), at(0));
        let other = OfferKey {
            pool: "other",
            ..sought("g5")
        };
        assert!(known.of(&sought("g5"), at(1)).is_some());
        assert!(known.of(&other, at(1)).is_none());
    }

    #[test]
    fn an_order_refused_as_it_is_counts_for_its_pool_and_two_of_them_for_the_region() {
        let mut known = after_meeting(&ErrorKind::InvalidOrder);
        let short = |known: &UnavailableOfferings, sought: OfferKey<'_>| known.of(&sought, at(1)).is_some();
        assert!(short(&known, sought("g5")));
        assert!(!short(&known, sought("g6")));
        let corrected = OfferKey {
            template: "other",
            ..sought("g5")
        };
        assert!(
            !short(&known, corrected),
            "a corrected Pool asks for something else"
        );
        let other = OfferKey {
            pool: "other",
            ..sought("g5")
        };
        assert!(!short(&known, other), "what one Pool asks is no fault of another");
        assert!(known.refusal("pool", "aws", false, at(1)).is_some());
        assert!(known.refusal("other", "aws", true, at(1)).is_none());
        let mut second = machine(Market::OnDemand);
        second.offer = "g6".into();
        let what = Unavailable::of(&second, &ErrorKind::InvalidOrder).unwrap();
        known.remember(what, "no".into(), at(0), REMEMBERED);
        assert!(short(&known, sought("any")));
        assert!(!short(
            &known,
            OfferKey {
                region: "us",
                ..sought("any")
            }
        ));
        assert!(!short(
            &known,
            OfferKey {
                pool: "other",
                ..sought("any")
            }
        ));
    }

    #[test]
    fn an_outage_counts_for_the_whole_account_and_for_a_minute() {
        let mut known = UnavailableOfferings::default();
        let what = Unavailable::of(&machine(Market::OnDemand), &ErrorKind::Outage).unwrap();
        known.note(what, "under maintenance".into(), at(0));
        assert!(known.of(&sought("any"), at(59)).is_some());
        assert!(known.of(&sought("any"), at(60)).is_none());
    }

    #[test]
    fn a_provider_with_other_settings_is_asked_again() {
        let mut known = UnavailableOfferings::default();
        let what = Unavailable::of(&machine(Market::OnDemand), &ErrorKind::InvalidOrder).unwrap();
        known.note(what, "no default VPC".into(), at(0));
        known.forget("other");
        assert!(known.of(&sought("g5"), at(1)).is_some());
        known.forget("aws");
        assert!(known.of(&sought("g5"), at(1)).is_none());
    }

    #[test]
    fn an_order_refused_as_it_is_counts_longer_than_its_machine_waits() {
        let mut known = UnavailableOfferings::default();
        let what = Unavailable::of(&machine(Market::OnDemand), &ErrorKind::InvalidOrder).unwrap();
        known.note(what, "no default VPC".into(), at(0));
        assert!(known.of(&sought("g5"), at(3_599)).is_some());
        assert!(known.of(&sought("g5"), at(3_600)).is_none());
    }

    #[test]
    fn an_offer_whose_machine_was_dearer_is_barred_for_an_hour_on_its_market() {
        let mut known = UnavailableOfferings::default();
        known.note(
            Unavailable::dear(&machine(Market::OnDemand)),
            "dear".into(),
            at(0),
        );
        assert!(known.bars("g5", Market::OnDemand, at(3_599)));
        assert!(known.of(&sought("g5"), at(3_599)).is_some());
        assert!(!known.bars("g5", Market::OnDemand, at(3_600)));
        assert!(!known.bars("g5", Market::Spot, at(1)));
        assert!(!known.bars("g6", Market::OnDemand, at(1)));
    }

    #[test]
    fn what_has_passed_is_forgotten_and_the_rest_is_bounded() {
        let mut known = UnavailableOfferings::default();
        known.remember(offer("old", false), String::new(), at(0), REMEMBERED);
        known.remember(offer("new", false), String::new(), at(1_000), REMEMBERED);
        assert_eq!(known.len(), 1);
        for n in 0..MOST {
            known.remember(offer(&n.to_string(), false), String::new(), at(1_001), REMEMBERED);
        }
        assert_eq!(known.len(), MOST);
        assert!(known.of(&sought("new"), at(1_002)).is_none(), "the oldest went");
    }

    #[test]
    fn a_new_leader_bars_the_offers_that_the_one_before_did_until_the_same_second() {
        let dear = |provider: &str, offer: &str, spot| Unavailable::Dear {
            provider: provider.into(),
            offer: offer.into(),
            spot,
        };
        let (mut first, now) = (UnavailableOfferings::default(), at(100));
        first.note(dear("a", "a-1", true), "2.01 USD".into(), now);
        first.note(dear("b", "b-1", true), "elsewhere".into(), now);
        first.note(
            Unavailable::Offer {
                offer: "a-2".into(),
                spot: true,
            },
            "sold out".into(),
            now,
        );
        let shown = first.barred("a", at(101));
        let [only] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!(
            (only.offer.as_str(), only.market, only.message.as_str()),
            ("a-1", Market::Spot, "2.01 USD")
        );
        assert_eq!(only.until.0, after(now, REFUSED));

        let mut second = UnavailableOfferings::default();
        for later in [200, 300] {
            second.recall("a", &shown, at(later));
            assert_eq!(second.barred("a", at(later)), shown, "as on record");
        }
        assert!(second.bars("a-1", Market::Spot, at(300)));
        assert!(!second.bars("a-1", Market::OnDemand, at(300)));
        let over = after(now, REFUSED);
        assert!(!second.bars("a-1", Market::Spot, over));
        assert_eq!(second.barred("a", over), []);
        let mut third = UnavailableOfferings::default();
        third.recall("a", &shown, over);
        assert!(third.0.is_empty(), "what is over is not recalled");
    }

    #[test]
    fn a_status_names_no_more_than_a_hundred_barred_offers_and_no_record_bars_for_longer_than_an_hour() {
        let mut known = UnavailableOfferings::default();
        for n in 0..150 {
            let what = Unavailable::Dear {
                provider: "a".into(),
                offer: format!("a-{n}"),
                spot: false,
            };
            known.note(what, "é".repeat(2000), at(n));
        }
        let shown = known.barred("a", at(150));
        assert_eq!((shown.len(), shown[0].offer.as_str()), (BARRED, "a-149"));
        assert!(shown.iter().all(|barred| barred.message.len() <= LONGEST));
        let mut altered = shown[0].clone();
        altered.until = Time(at(1_000_000));
        let mut next = UnavailableOfferings::default();
        next.recall("a", &[altered], at(150));
        assert_eq!(next.barred("a", at(150))[0].until.0, after(at(150), REFUSED));
    }
}
