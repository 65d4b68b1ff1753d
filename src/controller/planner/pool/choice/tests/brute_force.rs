//! The choice against brute force: every candidate, Offer and market is looked at, without an index and without any of
//! the shortcuts, for catalogues, allocations, selections, places, limits and refusals of every shape.

use super::*;

/// An Offer of a catalogue.
#[derive(Clone, Debug)]
struct Made {
    provider: usize,
    region: usize,
    cpu: u32,
    card: Option<(usize, u32)>,
    on_demand: Option<u8>,
    spot: Option<u8>,
    availability: usize,
    connected: bool,
    arm: bool,
    /// Whether it was refused lately, on demand and on the spot market.
    refused: (bool, bool),
}

/// A candidate of a Pool.
#[derive(Clone, Debug)]
struct Wish {
    provider: usize,
    region: Option<usize>,
    cpu: u32,
    card: Option<(usize, u32)>,
    ceiling: Option<u8>,
}

/// What a Provider may be used for.
#[derive(Clone, Debug)]
enum Room {
    Any,
    Hourly(u8),
    Full,
    Away,
}

/// All that a choice depends on.
#[derive(Clone, Debug)]
struct Situation {
    offers: Vec<Made>,
    wishes: Vec<Wish>,
    rooms: Vec<Room>,
    allocation: usize,
    selection: usize,
    /// The market that `spotPercent` wants.
    market: Option<bool>,
    connected: bool,
    pinned: Option<(usize, usize)>,
    /// Which Providers sell what has no price.
    unpriced: [bool; PROVIDERS],
}

const PROVIDERS: usize = 3;
const REGIONS: [&str; 3] = ["eu", "us-1", "us-1a"];
const CARDS: [&str; 2] = ["H100", "L4"];
const ALLOCATIONS: [&str; 4] = ["Spot", "OnDemand", "SpotIfAvailable", "Cheapest"];
const SELECTIONS: [&str; 3] = ["Cheapest", "First", "Available"];
const AVAILABILITIES: [&str; 3] = ["Yes", "Unknown", "No"];

fn price() -> impl Strategy<Value = Option<u8>> {
    prop::option::weighted(0.7, 1_u8..7)
}

fn card() -> impl Strategy<Value = Option<(usize, u32)>> {
    prop::option::of((0..CARDS.len(), prop::sample::select(vec![1_u32, 2, 8])))
}

fn made() -> impl Strategy<Value = Made> {
    let place = (0..PROVIDERS, 0..REGIONS.len(), 1_u32..5, card());
    let sale = (price(), price(), 0..AVAILABILITIES.len());
    let flags = (any::<bool>(), prop::bool::weighted(0.2));
    let refused = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (place, sale, flags, refused).prop_map(|(place, sale, flags, refused)| Made {
        provider: place.0,
        region: place.1,
        cpu: place.2,
        card: place.3,
        on_demand: sale.0,
        spot: sale.1,
        availability: sale.2,
        connected: flags.0,
        arm: flags.1,
        refused,
    })
}

fn wish() -> impl Strategy<Value = Wish> {
    let hardware = (1_u32..5, card(), prop::option::weighted(0.4, 1_u8..7));
    (0..PROVIDERS, prop::option::weighted(0.3, 0..2_usize), hardware).prop_map(
        |(provider, region, (cpu, card, ceiling))| Wish {
            provider,
            region,
            cpu,
            card,
            ceiling,
        },
    )
}

fn room() -> impl Strategy<Value = Room> {
    prop_oneof![
        4 => Just(Room::Any),
        2 => (1_u8..7).prop_map(Room::Hourly),
        1 => Just(Room::Full),
        1 => Just(Room::Away),
    ]
}

fn situation() -> impl Strategy<Value = Situation> {
    let lists = (
        prop::collection::vec(made(), 0..20),
        prop::collection::vec(wish(), 1..4),
        prop::collection::vec(room(), PROVIDERS),
    );
    let rules = (
        0..ALLOCATIONS.len(),
        0..SELECTIONS.len(),
        prop::option::weighted(0.3, any::<bool>()),
        any::<bool>(),
        prop::option::of((0..PROVIDERS, 0..REGIONS.len())),
        any::<[bool; PROVIDERS]>(),
    );
    (lists, rules).prop_map(|(lists, rules)| Situation {
        offers: lists.0,
        wishes: lists.1,
        rooms: lists.2,
        allocation: rules.0,
        selection: rules.1,
        market: rules.2,
        connected: rules.3,
        pinned: rules.4,
        unpriced: rules.5,
    })
}

/// Key of what is better: refused, order of the selection, price, with accelerators, unsure, unusual architecture,
/// place of the candidate, name.
type Key = (bool, usize, u8, bool, bool, bool, usize, String);

impl Situation {
    fn name(at: usize) -> String {
        format!("o{at:02}")
    }

    /// The market and the price at which an Offer fulfils a wish, and whether it was refused there lately.
    fn terms(&self, wish: &Wish, offer: &Made) -> Option<(bool, u8, bool)> {
        let most = match self.rooms[wish.provider] {
            Room::Any => u8::MAX,
            Room::Hourly(most) => most,
            Room::Full | Room::Away => return None,
        };
        // `us-1` holds its zone `us-1a`, too.
        let is_in = |wanted: usize| REGIONS[offer.region].starts_with(REGIONS[wanted]);
        let has_cards = |(model, count): (usize, u32)| {
            offer
                .card
                .is_some_and(|(offered, number)| offered == model && number >= count)
        };
        let is_there =
            |(provider, region): (usize, usize)| provider == offer.provider && region == offer.region;
        let fits = offer.provider == wish.provider
            && wish.region.is_none_or(is_in)
            && offer.cpu >= wish.cpu
            && wish.card.is_none_or(has_cards)
            // Without an accelerator a Pool is of the architecture for which images are made.
            && (wish.card.is_some() || !offer.arm)
            && AVAILABILITIES[offer.availability] != "No"
            && (!self.connected || offer.connected && self.pinned.is_none_or(is_there));
        if !fits {
            return None;
        }
        let is_dearer = offer
            .on_demand
            .zip(offer.spot)
            .is_some_and(|(on_demand, spot)| on_demand < spot);
        let order = match (self.market, ALLOCATIONS[self.allocation]) {
            (Some(spot), _) => vec![spot],
            (None, "Spot") => vec![true],
            (None, "OnDemand") => vec![false],
            (None, "Cheapest") if is_dearer => vec![false, true],
            (None, _) => vec![true, false],
        };
        // What has no price is sold on demand, as if it cost the most that the wish names.
        let has_none = offer.on_demand.is_none() && offer.spot.is_none();
        let assumed = wish.ceiling.filter(|_| self.unpriced[wish.provider] && has_none);
        let terms: Vec<(bool, u8, bool)> = order
            .iter()
            .filter_map(|spot| {
                let (price, refused) = if *spot {
                    (offer.spot, offer.refused.1)
                } else {
                    (offer.on_demand.or(assumed), offer.refused.0)
                };
                let price =
                    price.filter(|price| *price <= most && wish.ceiling.is_none_or(|c| *price <= c))?;
                Some((*spot, price, refused))
            })
            .collect();
        let fresh = terms.iter().find(|(.., refused)| !refused);
        fresh.or(terms.first()).copied()
    }

    /// The best Offer with its market and price, of all that fit.
    fn best(&self) -> Option<(String, Market, u8)> {
        let mut best: Option<(Key, bool)> = None;
        for (position, wish) in self.wishes.iter().enumerate() {
            for (at, offer) in self.offers.iter().enumerate() {
                let Some((spot, price, refused)) = self.terms(wish, offer) else {
                    continue;
                };
                let unsure = AVAILABILITIES[offer.availability] != "Yes";
                let order = match SELECTIONS[self.selection] {
                    "Cheapest" => 0,
                    "First" => position,
                    _ => position + usize::from(unsure) * 1_000,
                };
                let with_card = offer.card.is_some();
                let key = (
                    refused,
                    order,
                    price,
                    with_card,
                    unsure,
                    offer.arm,
                    position,
                    Self::name(at),
                );
                if best.as_ref().is_none_or(|(known, _)| key < *known) {
                    best = Some((key, spot));
                }
            }
        }
        let (key, spot) = best?;
        let market = if spot { Market::Spot } else { Market::OnDemand };
        Some((key.7, market, key.2))
    }

    /// The same for the choice.
    fn exchange(&self) -> Exchange {
        let accelerator = |(model, count): (usize, u32)| json!({ "name": CARDS[model], "count": count });
        let candidates: Vec<Value> = self
            .wishes
            .iter()
            .map(|wish| {
                json!({
                    "provider": format!("p{}", wish.provider), "cpu": wish.cpu,
                    "region": wish.region.map(|at| REGIONS[at]),
                    "accelerator": wish.card.map(accelerator),
                    "maxHourlyCost": wish.ceiling.map(|most| most.to_string()),
                })
            })
            .collect();
        let mut pool = json!({ "selection": SELECTIONS[self.selection], "candidates": candidates });
        if self.market.is_none() {
            pool["allocation"] = ALLOCATIONS[self.allocation].into();
        }
        let made: Vec<(String, String, Value)> = self
            .offers
            .iter()
            .enumerate()
            .map(|(at, offer)| {
                let spec = json!({
                    "region": REGIONS[offer.region], "cpu": offer.cpu,
                    "accelerator": offer.card.map(accelerator),
                    "onDemandPrice": offer.on_demand.map(|price| price.to_string()),
                    "spotPrice": offer.spot.map(|price| price.to_string()),
                    "availability": AVAILABILITIES[offer.availability], "connected": offer.connected,
                    "architecture": if offer.arm { "arm64" } else { "amd64" },
                });
                (format!("p{}", offer.provider), Self::name(at), spec)
            })
            .collect();
        let made = made
            .iter()
            .map(|(provider, name, spec)| (provider.as_str(), name.as_str(), spec.clone()));
        let mut exchange = Exchange::new(pool, made.collect());
        for (at, room) in self.rooms.iter().enumerate() {
            let usable = match room {
                Room::Any => Usable::Yes(None),
                Room::Hourly(most) => Usable::Yes(Some(Usd::from(i64::from(*most)))),
                Room::Full => Usable::Full,
                Room::Away => Usable::No("it is away".into()),
            };
            exchange.providers.insert(format!("p{at}"), usable);
        }
        for (at, offer) in self.offers.iter().enumerate() {
            for (is_refused, spot) in [(offer.refused.0, false), (offer.refused.1, true)] {
                if is_refused {
                    exchange.refuse(&Self::name(at), spot);
                }
            }
        }
        exchange.unpriced = (0..PROVIDERS)
            .filter(|at| self.unpriced[*at])
            .map(|at| format!("p{at}"))
            .collect();
        exchange.connected = self.connected;
        exchange.pinned = self.pinned.map(|(provider, region)| Place {
            provider: format!("p{provider}"),
            region: REGIONS[region].into(),
        });
        exchange.market = self
            .market
            .map(|spot| if spot { Market::Spot } else { Market::OnDemand });
        exchange
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_choice_is_the_best_of_all_that_fit_whatever_the_catalogue_and_the_rules(situation in situation()) {
        let chosen = situation.exchange().chosen();
        let best = situation.best().map(|(name, market, price)| (name, market, price.to_string()));
        prop_assert_eq!(chosen, best);
    }
}
