//! Which Offer to order next, on which market: the heart of what users pay. Pure.
//!
//! Every candidate of a Pool ([`wish`]) is matched against the Offers of its Provider
//! ([`index`]). What fits is ranked by the Pool's `selection`; what was refused lately is
//! left out until its time is over. When nothing is left, [`explain`] says which wish
//! removed how many Offers, and what would help.
//!
//! Price is what decides on a market too: with `spot-if-available` an Offer is taken on
//! the spot market where it has one, with `cheapest` on whichever costs less.

pub mod explain;
pub mod index;
pub mod wish;

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use skyward_api::{
    offer::{Architecture, Availability},
    pool::{Allocation, Selection},
};
use skyward_core::offer::Market;

pub use index::{Index, Priced};
pub use wish::{Wish, wishes};

/// Where machines stand that must reach each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of the Provider.
    pub provider: String,
    /// Its region.
    pub region: String,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The Pool's candidates.
    pub wishes: &'a [Wish],
    /// How they are ranked.
    pub selection: Selection,
    /// Providers that may be used now.
    pub providers: &'a BTreeMap<String, Usable>,
    /// Machines must reach each other: all of them stand at one place.
    pub connected: bool,
    /// Where those stand that exist.
    pub pinned: Option<&'a Place>,
    /// The market that `spotPercent` wants for this machine; without it the candidates'
    /// allocation decides.
    pub market: Option<Market>,
}

/// Whether a Provider can be used by this Pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usable {
    /// It can.
    Yes,
    /// It cannot; why, as a sentence.
    No(String),
}

/// An Offer to order, on a market.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// The candidate it fulfils.
    pub wish: &'a Wish,
    /// The Offer.
    pub offer: &'a Priced,
    /// On which market.
    pub market: Market,
    /// USD per hour.
    pub price: Decimal,
}

/// Refusals that are remembered; see [`crate::provider::shortage`].
pub trait Shortages {
    /// Whether this Offer was refused on this market lately.
    fn refused(&self, offer: &Priced, market: Market) -> bool;
}

/// Nothing was refused.
pub struct NoShortages;

impl Shortages for NoShortages {
    fn refused(&self, _: &Priced, _: Market) -> bool {
        false
    }
}

/// A wish that an Offer does not fulfil, in the order in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Constraint {
    /// Another type of machine.
    Machine,
    /// Another region.
    Region,
    /// Another architecture.
    Architecture,
    /// Another accelerator, or none.
    Accelerator,
    /// Too few accelerators.
    AcceleratorCount,
    /// Accelerators with too little memory.
    AcceleratorMemory,
    /// Too few vCPUs.
    Vcpus,
    /// Too little memory.
    Memory,
    /// Too little disk.
    Disk,
    /// Machines that cannot reach each other.
    Connected,
    /// Not where the other machines of the Pool are.
    Place,
    /// Not sold on the market that is asked for.
    Market,
    /// Too expensive.
    Price,
    /// The provider says that it cannot be had.
    SoldOut,
    /// It was refused a short while ago.
    Refused,
}

/// The best Offer for one machine, or `None` when nothing fits.
pub fn choose<'a>(
    request: &Request<'a>,
    offers: &'a Index,
    shortages: &dyn Shortages,
) -> Option<Choice<'a>> {
    let mut best: Option<(Rank<'a>, Choice<'a>)> = None;
    for wish in request.wishes {
        if request.providers.get(&wish.provider) != Some(&Usable::Yes) {
            continue;
        }
        for offer in offers.of(&wish.provider) {
            // Sorted by the lowest price: nothing that follows can be better.
            if request.selection == Selection::Cheapest
                && let (Some((_, found)), Some(lowest)) = (&best, lowest(offer))
                && lowest > found.price
            {
                break;
            }
            if let Ok((market, price)) = fits(request, wish, offer, shortages) {
                let rank = rank(request.selection, wish, offer, price);
                if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                    let choice = Choice { wish, offer, market, price };
                    best = Some((rank, choice));
                }
            }
        }
    }
    best.map(|(_, choice)| choice)
}

fn lowest(offer: &Priced) -> Option<Decimal> {
    match (offer.on_demand, offer.spot) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Smaller is better. Among equals one without accelerators, which others may need; then
/// one that the provider says can be had; then the earlier candidate; then by name.
type Rank<'a> = (usize, Decimal, bool, bool, usize, &'a str);

fn rank<'a>(selection: Selection, wish: &Wish, offer: &'a Priced, price: Decimal) -> Rank<'a> {
    let unsure = offer.spec.availability != Availability::Yes;
    let order = match selection {
        Selection::Cheapest => 0,
        Selection::First => wish.candidate,
        // What surely can be had goes before what may be.
        Selection::Available => wish.candidate + if unsure { 1_000 } else { 0 },
    };
    (
        order,
        price,
        offer.spec.accelerator.is_some(),
        unsure,
        wish.candidate,
        offer.name.as_str(),
    )
}

/// On which market and at which price an Offer fulfils a wish, or the first constraint
/// that it does not meet.
pub fn fits(
    request: &Request<'_>,
    wish: &Wish,
    offer: &Priced,
    shortages: &dyn Shortages,
) -> Result<(Market, Decimal), Constraint> {
    hardware(wish, offer)?;
    if request.connected && !offer.spec.connected {
        return Err(Constraint::Connected);
    }
    if request.connected
        && let Some(place) = request.pinned
        && (place.provider != offer.spec.provider || place.region != offer.spec.region)
    {
        return Err(Constraint::Place);
    }
    if offer.sold_out() {
        return Err(Constraint::SoldOut);
    }
    let mut sold = false;
    let mut affordable = false;
    for market in markets(request, wish, offer) {
        let Some(price) = offer.price(market) else { continue };
        sold = true;
        if wish.max_hourly_cost.is_some_and(|most| price > most) {
            continue;
        }
        affordable = true;
        if !shortages.refused(offer, market) {
            return Ok((market, price));
        }
    }
    Err(match (sold, affordable) {
        (false, _) => Constraint::Market,
        (true, false) => Constraint::Price,
        (true, true) => Constraint::Refused,
    })
}

/// Markets in the order in which they are tried for one Offer.
fn markets(request: &Request<'_>, wish: &Wish, offer: &Priced) -> Vec<Market> {
    if let Some(market) = request.market {
        return vec![market];
    }
    match wish.allocation {
        Allocation::OnDemand => vec![Market::OnDemand],
        Allocation::Spot => vec![Market::Spot],
        Allocation::SpotIfAvailable => vec![Market::Spot, Market::OnDemand],
        Allocation::Cheapest => match (offer.spot, offer.on_demand) {
            (Some(spot), Some(on_demand)) if on_demand < spot => vec![Market::OnDemand, Market::Spot],
            _ => vec![Market::Spot, Market::OnDemand],
        },
    }
}

/// Whether the machine itself is what is asked for.
fn hardware(wish: &Wish, offer: &Priced) -> Result<(), Constraint> {
    let spec = &offer.spec;
    let less = |offered: Option<f64>, wanted: Option<f64>| match (offered, wanted) {
        (Some(offered), Some(wanted)) => offered < wanted,
        (None, Some(_)) => true,
        (_, None) => false,
    };
    let refuse = |constraint, misses: bool| if misses { Err(constraint) } else { Ok(()) };
    refuse(
        Constraint::Machine,
        wish.machine
            .as_ref()
            .is_some_and(|machine| *machine != spec.instance_type),
    )?;
    refuse(
        Constraint::Region,
        wish.region
            .as_ref()
            .is_some_and(|region| !in_region(region, &spec.region)),
    )?;
    // A type of machine that is named has the architecture it has.
    let architecture = match (wish.architecture, &wish.machine) {
        (Some(architecture), _) => Some(architecture),
        (None, Some(_)) => None,
        (None, None) => Some(Architecture::X86_64),
    };
    refuse(
        Constraint::Architecture,
        architecture.is_some_and(|wanted| wanted != spec.architecture),
    )?;
    if let Some(wanted) = &wish.accelerator {
        let offered = spec.accelerator.as_ref();
        refuse(
            Constraint::Accelerator,
            offered.is_none() || offer.accelerator != wish.accelerator_name,
        )?;
        refuse(
            Constraint::AcceleratorCount,
            less(
                offered.map(|o| o.count),
                Some(f64::from(wanted.count.unwrap_or(1))),
            ),
        )?;
        refuse(
            Constraint::AcceleratorMemory,
            less(
                offered.and_then(|o| o.memory_gb),
                wanted.memory_gb.map(f64::from),
            ),
        )?;
    }
    refuse(Constraint::Vcpus, less(Some(spec.vcpus), wish.vcpus))?;
    refuse(Constraint::Memory, less(Some(spec.memory_gb), wish.memory_gb))?;
    // Where the offer does not fix the disk, any size can be ordered.
    refuse(
        Constraint::Disk,
        spec.disk_gb.is_some() && less(spec.disk_gb, wish.disk_gb.map(f64::from)),
    )
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
    let letter = rest.len() == 1 && wanted.ends_with(|c: char| c.is_ascii_digit()) && rest.chars().all(|c| c.is_ascii_alphabetic());
    rest.is_empty() || rest.starts_with('-') || letter
}

#[cfg(test)]
mod tests;
