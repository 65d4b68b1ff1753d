//! Which Offer to order next, on which market: the heart of what users pay. Pure.
//!
//! Every candidate of a Pool ([`candidate`]) is matched against the Offers of its Provider
//! ([`OfferIndex`]). What fits is ranked by the Pool's `selection`; what was refused lately is
//! left out until its time is over. When nothing is left, [`explain`] says which candidate
//! removed how many Offers, and what would help.
//!
//! With `SpotIfAvailable` an Offer is taken on the spot market where it has a spot price, with
//! `Cheapest` on the market that costs less.
//!
//! Where a cloud's API tells no prices, an Offer without one is ordered on demand as if it cost the candidate's
//! `maxHourlyCost`, and never without one: so it comes after everything that is known to cost less.

pub mod candidate;
pub mod explain;

use std::{collections::BTreeMap, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use skyward_api::{
    machine::Market,
    offer::{Architecture, Availability},
    pool::{Allocation, Place, Selection},
};
use skyward_core::{Usd, accelerator::has_memory, offer::is_current_rate};

pub use crate::pool::choice::candidate::{ResolvedCandidate, candidates};

use crate::accounts::{
    offers::{IndexedOffer, OfferIndex},
    unavailable::UnavailableOfferings,
};

/// Offers of the Providers that a Pool names.
pub type Offerings = BTreeMap<String, Arc<OfferIndex>>;

/// What a Pool asks of the choice.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// UID of the Pool.
    pub pool: &'a str,
    /// How candidates are ranked.
    pub selection: Selection,
    /// Providers that may be used now.
    pub providers: &'a BTreeMap<String, Usable>,
    /// Whether machines must reach each other: all of them stand at one place.
    pub connected: bool,
    /// The place of the existing machines.
    pub pinned: Option<&'a Place>,
    /// What was refused lately.
    pub unavailable: &'a UnavailableOfferings,
    /// Architectures for whose machines there is an agent.
    pub architectures: &'a [Architecture],
    /// The time.
    pub now: Timestamp,
    /// The market that `spotPercent` wants for this machine; without it the candidates'
    /// allocation decides.
    pub market: Option<Market>,
}

/// Whether a Provider can be used by this Pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usable {
    /// The Provider can be used, for at most so many USD per hour.
    Yes(Option<Usd>),
    /// The Provider cannot be used; why, as a sentence.
    No(String),
    /// Its limits leave no room for another machine.
    Full,
}

/// An Offer to order, on a market.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// The candidate it fulfils.
    pub candidate: &'a ResolvedCandidate,
    /// The Offer.
    pub offer: &'a IndexedOffer,
    /// On which market.
    pub market: Market,
    /// USD per hour.
    pub price: Usd,
    /// The refusal of a short while ago, where everything that fits was refused.
    pub shortage: Option<String>,
}

/// A constraint of a candidate that an Offer does not meet, in the order in which they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Constraint {
    /// Another type of machine.
    Machine,
    /// Another region.
    Region,
    /// Another architecture.
    Architecture,
    /// No agent for its architecture.
    Agent,
    /// Another accelerator, or none.
    Accelerator,
    /// No part of an accelerator.
    AcceleratorPart,
    /// Too few accelerators.
    AcceleratorCount,
    /// Accelerators with too little memory.
    AcceleratorMemory,
    /// Accelerators of another form factor, or whose form factor is not known.
    FormFactor,
    /// Too few CPUs.
    Cpu,
    /// Too little memory.
    Memory,
    /// Too little disk.
    Disk,
    /// Machines that cannot reach each other.
    Connected,
    /// Not where the other machines of the Pool are.
    Place,
    /// Its price is by an old exchange rate, and nobody said what a machine may cost.
    Rate,
    /// Its price is not known, and nobody said what a machine on demand may cost.
    Unpriced,
    /// Not sold on the market that is asked for.
    Market,
    /// Too expensive.
    Price,
    /// Dearer than the limits of its Provider leave room for.
    Limit,
    /// The provider says that it is not available.
    SoldOut,
    /// Its last machine was dearer than its price says.
    Dear,
}

/// The best Offer for one machine, or `None` when nothing fits. Offers that were refused lately
/// come after all others: where all that fit were refused, the best of them is the answer, with the
/// refusal.
pub fn choose<'a>(
    candidates: &'a [ResolvedCandidate],
    offers: &'a Offerings,
    request: &Request<'_>,
) -> Option<Choice<'a>> {
    let mut best: Option<(Rank, Choice<'a>)> = None;
    for candidate in candidates {
        let Some(Usable::Yes(room)) = request.providers.get(&candidate.provider) else {
            continue;
        };
        let Some(index) = offers.get(&candidate.provider) else {
            continue;
        };
        let wanted = Some(candidate.accelerator_name.as_str()).filter(|name| !name.is_empty());
        let most = candidate.max_hourly_cost;
        let assumed = most.filter(|_| candidate.unpriced);
        // Sorted by the lowest price; Offers without a price come last.
        let priced = index.with_accelerator(wanted).map_while(|offer| {
            let lowest = offer.lowest()?;
            most.is_none_or(|most| lowest <= most).then_some((offer, lowest))
        });
        let unpriced = assumed.into_iter().flat_map(|assumed| {
            let offers = index.without_price(wanted);
            offers.map(move |offer| (offer, assumed))
        });
        for (offer, lowest) in priced.chain(unpriced) {
            if let Some((found, _)) = &best {
                // No later Offer can be better.
                if *found < best_at(request.selection, candidate, lowest) {
                    break;
                }
                // This one cannot be better, which is cheaper to know than whether it fits.
                if *found < rank(request.selection, candidate, offer, lowest, false) {
                    continue;
                }
            }
            let Ok(terms) = terms(request, candidate, offer, *room) else {
                continue;
            };
            let Fit {
                market,
                price,
                shortage,
            } = soonest(request, candidate, offer, terms);
            let rank = rank(request.selection, candidate, offer, price, shortage.is_some());
            let wins = best.as_ref().is_none_or(|(other, choice)| {
                let by_name = || offer.name().cmp(choice.offer.name());
                rank.cmp(other).then_with(by_name).is_lt()
            });
            if wins {
                let shortage = shortage.map(str::to_owned);
                let choice = Choice {
                    candidate,
                    offer,
                    market,
                    price,
                    shortage,
                };
                best = Some((rank, choice));
            }
        }
    }
    best.map(|(_, choice)| choice)
}

/// Smaller is better. Among equals an Offer without accelerators comes first, since other Pools may
/// need those; then one that is surely available; then the usual architecture, for which images are
/// made; then the earlier candidate; then the name.
type Rank = (bool, usize, Usd, bool, bool, bool, usize);

fn rank(
    selection: Selection,
    candidate: &ResolvedCandidate,
    offer: &IndexedOffer,
    price: Usd,
    short: bool,
) -> Rank {
    let unsure = offer.facts.availability != Availability::Yes;
    let accelerated = !offer.accelerator.is_empty();
    let order = order(selection, candidate, unsure);
    let unusual = offer.facts.architecture != Architecture::Amd64;
    (
        short,
        order,
        price,
        accelerated,
        unsure,
        unusual,
        candidate.position,
    )
}

/// The best rank that an Offer of that price can have.
fn best_at(selection: Selection, candidate: &ResolvedCandidate, price: Usd) -> Rank {
    let order = order(selection, candidate, false);
    (false, order, price, false, false, false, candidate.position)
}

fn order(selection: Selection, candidate: &ResolvedCandidate, unsure: bool) -> usize {
    match selection {
        Selection::Cheapest => 0,
        Selection::First => candidate.position,
        // An Offer that is surely available goes before one that may be.
        Selection::Available => candidate.position + if unsure { 1_000 } else { 0 },
    }
}

/// How an Offer fulfils a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit<'a> {
    /// On which market.
    pub market: Market,
    /// USD per hour.
    pub price: Usd,
    /// The refusal of a short while ago.
    pub shortage: Option<&'a str>,
}

/// On which market and at which price an Offer fulfils a candidate, or the first constraint
/// that it does not meet.
pub fn fits<'a>(
    request: &Request<'a>,
    candidate: &ResolvedCandidate,
    offer: &IndexedOffer,
) -> Result<Fit<'a>, Constraint> {
    let room = match request.providers.get(&candidate.provider) {
        Some(Usable::Yes(room)) => *room,
        Some(Usable::No(_) | Usable::Full) | None => None,
    };
    Ok(soonest(
        request,
        candidate,
        offer,
        terms(request, candidate, offer, room)?,
    ))
}

/// A market, and the price there.
type Term = (Market, Usd);

/// The first of these terms that was not refused lately; else the first.
fn soonest<'a>(
    request: &Request<'a>,
    candidate: &ResolvedCandidate,
    offer: &IndexedOffer,
    (first, second): (Term, Option<Term>),
) -> Fit<'a> {
    let refused = |(market, _): Term| {
        let sought = offer.sought(request.pool, &candidate.template, market);
        let shortage = request.unavailable.of(&sought, request.now);
        shortage.map(|shortage| shortage.why.as_str())
    };
    let fit = |(market, price): Term, shortage| Fit {
        market,
        price,
        shortage,
    };
    let shortage = refused(first);
    match second.filter(|second| shortage.is_some() && refused(*second).is_none()) {
        Some(second) => fit(second, None),
        None => fit(first, shortage),
    }
}

/// On which markets and at which prices an Offer fulfils a candidate, in the order in which they
/// are tried and regardless of refusals, or the first constraint that it does not meet. `room` is
/// what the limits of its Provider leave per hour.
fn terms(
    request: &Request<'_>,
    candidate: &ResolvedCandidate,
    offer: &IndexedOffer,
    room: Option<Usd>,
) -> Result<(Term, Option<Term>), Constraint> {
    hardware(request.architectures, candidate, offer)?;
    if request.connected && !offer.facts.connected {
        return Err(Constraint::Connected);
    }
    if request.connected
        && let Some(place) = request.pinned
        && (place.provider != offer.spec().provider || place.region != offer.spec().region)
    {
        return Err(Constraint::Place);
    }
    if offer.facts.availability == Availability::No {
        return Err(Constraint::SoldOut);
    }
    let is_old = |day| !is_current_rate(day, request.now.to_zoned(TimeZone::UTC).date());
    if candidate.max_hourly_cost.is_none() && offer.facts.rate_as_of.is_some_and(is_old) {
        return Err(Constraint::Rate);
    }
    let is_unpriced = candidate.unpriced && offer.lowest().is_none();
    let assumed = candidate.max_hourly_cost.filter(|_| is_unpriced);
    let (mut sold, mut affordable, mut barred) = (false, false, false);
    let terms = markets(request, candidate, offer).map(|market| {
        let market = market?;
        let price = offer
            .price(market)
            .or(assumed.filter(|_| market == Market::OnDemand))?;
        sold = true;
        if candidate.max_hourly_cost.is_some_and(|most| price > most) {
            return None;
        }
        affordable = true;
        if request.unavailable.bars(offer.name(), market, request.now) {
            barred = true;
            return None;
        }
        (room.is_none_or(|room| price <= room)).then_some((market, price))
    });
    match terms {
        [Some(first), second] => Ok((first, second)),
        [None, Some(only)] => Ok((only, None)),
        [None, None] => Err(match (sold, affordable) {
            _ if barred => Constraint::Dear,
            (false, _) if is_unpriced => Constraint::Unpriced,
            (false, _) => Constraint::Market,
            (true, false) => Constraint::Price,
            (true, true) => Constraint::Limit,
        }),
    }
}

/// Markets in the order in which they are tried for one Offer.
fn markets(
    request: &Request<'_>,
    candidate: &ResolvedCandidate,
    offer: &IndexedOffer,
) -> [Option<Market>; 2] {
    use Market::{OnDemand, Spot};
    if request.market.is_some() {
        return [request.market, None];
    }
    match candidate.allocation {
        Allocation::OnDemand => [Some(OnDemand), None],
        Allocation::Spot => [Some(Spot), None],
        Allocation::Cheapest if matches!((offer.spot, offer.on_demand), (Some(spot), Some(on_demand)) if on_demand < spot) => {
            [Some(OnDemand), Some(Spot)]
        }
        Allocation::SpotIfAvailable | Allocation::Cheapest => [Some(Spot), Some(OnDemand)],
    }
}

/// Whether an order of a Pool may be for this Offer on this market, whatever is free or refused now. `shares` where the
/// Pool has a `spotPercent`, which chooses the market.
pub fn may_order(
    architectures: &[Architecture],
    shares: bool,
    candidate: &ResolvedCandidate,
    (offer, market): (&IndexedOffer, Market),
) -> bool {
    let other_market = match candidate.allocation {
        Allocation::OnDemand => Some(Market::Spot),
        Allocation::Spot => Some(Market::OnDemand),
        Allocation::SpotIfAvailable | Allocation::Cheapest => None,
    };
    let is_within = |price: Usd| candidate.max_hourly_cost.is_none_or(|most| price <= most);
    candidate.provider == offer.spec().provider
        && (shares || other_market != Some(market))
        && offer.price(market).is_none_or(is_within)
        && hardware(architectures, candidate, offer).is_ok()
}

/// Whether the hardware and its place meet the candidate's constraints, with agents for these architectures.
fn hardware(
    architectures: &[Architecture],
    candidate: &ResolvedCandidate,
    offer: &IndexedOffer,
) -> Result<(), Constraint> {
    let facts = &offer.facts;
    let lacks_memory = |asked: f64| {
        facts
            .accelerator_memory_gb
            .is_none_or(|offered| !has_memory(offered, asked))
    };
    let other_machine = || {
        candidate
            .instance_type
            .as_ref()
            .is_some_and(|wanted| *wanted != offer.spec().instance_type)
    };
    let other_region = || {
        candidate
            .region
            .as_ref()
            .is_some_and(|region| !in_region(region, &offer.spec().region))
    };
    let wanted = candidate.accelerator.as_ref();
    // In the order in which people think of them; the first counts.
    Err(if other_machine() {
        Constraint::Machine
    } else if other_region() {
        Constraint::Region
    } else if candidate
        .architecture()
        .is_some_and(|wanted| wanted != facts.architecture)
    {
        Constraint::Architecture
    } else if !architectures.contains(&facts.architecture) {
        Constraint::Agent
    } else if wanted.is_some() && offer.accelerator != candidate.accelerator_name {
        Constraint::Accelerator
    } else if candidate.own_nodes && wanted.is_some_and(|wanted| wanted.number().fract() > 0.0) {
        Constraint::AcceleratorPart
    } else if wanted.is_some_and(|wanted| facts.accelerators < wanted.number()) {
        Constraint::AcceleratorCount
    } else if candidate.accelerator_memory_gb.is_some_and(lacks_memory) {
        Constraint::AcceleratorMemory
    } else if wanted
        .and_then(|wanted| wanted.form_factor)
        .is_some_and(|built| facts.form_factor != Some(built))
    {
        Constraint::FormFactor
    } else if candidate.cpu.is_some_and(|wanted| facts.cpu < wanted) {
        Constraint::Cpu
    } else if candidate.memory.is_some_and(|wanted| facts.memory < wanted) {
        Constraint::Memory
    } else if facts
        .disk
        .zip(candidate.disk)
        .is_some_and(|(offered, wanted)| offered < wanted)
    {
        // Where the offer does not fix the disk, any size can be ordered.
        Constraint::Disk
    } else {
        return Ok(());
    })
}

/// `us-east-1` holds itself and its zones, such as `us-east-1a` and `us-east-1-b`; `US`
/// holds `US-CA`.
fn in_region(wanted: &str, offered: &str) -> bool {
    let Some(rest) = offered
        .get(..wanted.len())
        .filter(|start| start.eq_ignore_ascii_case(wanted))
        .and_then(|_| offered.get(wanted.len()..))
    else {
        return false;
    };
    let letter = rest.len() == 1
        && wanted.ends_with(|c: char| c.is_ascii_digit())
        && rest.chars().all(|c| c.is_ascii_alphabetic());
    rest.is_empty() || rest.starts_with('-') || letter
}

#[cfg(test)]
mod tests;
