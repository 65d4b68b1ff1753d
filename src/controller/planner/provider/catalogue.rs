//! What an account offers becomes Offer objects; only what differs is written. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube_core::{ObjectMeta, Resource, ResourceExt};
use skyward_api::{
    Offer, OfferSpec, Provider,
    condition::cut,
    labels,
    offer::OfferedAccelerator,
    shared::{self, Count, Cpu},
};
use skyward_core::{Usd, offer};

use crate::base::digest::short_digest;

/// Most Offers of one Provider: enough for one region of AWS; marketplaces have tens of thousands.
const MOST: usize = 1000;
/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// The Offers that a Provider should have.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// As objects.
    pub objects: Vec<Offer>,
    /// How many these are.
    pub wanted: u32,
    /// How many more the account offers.
    pub left_out: usize,
}

/// Offers of one complete listing.
pub fn catalogue(provider: &Provider, offers: &[offer::Offer], existing: &[Arc<Offer>]) -> Catalogue {
    let (kept, left_out) = chosen(offers, MOST);
    let others = existing
        .iter()
        .filter(|other| other.spec.provider != provider.name_any())
        .filter_map(|other| other.metadata.name.as_deref())
        .collect();
    let objects: Vec<Offer> = kept
        .iter()
        .map(|offer| object(provider, offer, &others))
        .collect();
    Catalogue {
        wanted: objects.len() as u32,
        objects,
        left_out,
    }
}

/// At most so many of these offers, and how many are left out. The cheapest of all would be small
/// machines without accelerators, so groups take turns: first the cheapest of each accelerator and
/// count, then the cheapest of these on demand, then of each size without accelerators, then of
/// each of these at each place, and so on with the next of each.
fn chosen(offers: &[offer::Offer], most: usize) -> (Vec<&offer::Offer>, usize) {
    let mut sorted: Vec<&offer::Offer> = offers.iter().collect();
    sorted.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut seen = HashSet::new();
    sorted.retain(|offer| seen.insert(offer.id.as_str()));
    let left_out = sorted.len().saturating_sub(most);
    let mut sizes = HashSet::new();
    let mut places: HashMap<Place<'_>, usize> = HashMap::new();
    let mut turns: Vec<(usize, &offer::Offer)> = sorted
        .into_iter()
        .map(|offer| {
            let first = sizes.insert((Size::of(offer), false));
            let first_on_demand = offer.on_demand.is_some() && sizes.insert((Size::of(offer), true));
            let at_place = places.entry(Place::of(offer)).or_default();
            *at_place += 1;
            let turn = match offer.accelerators {
                Some(_) if first => 0,
                Some(_) if first_on_demand => 1,
                None if first => 2,
                _ => 2 + *at_place,
            };
            (turn, offer)
        })
        .collect();
    // Stable: within a turn the cheapest come first.
    turns.sort_by_key(|(turn, _)| *turn);
    turns.truncate(most);
    let mut kept: Vec<&offer::Offer> = turns.into_iter().map(|(_, offer)| offer).collect();
    kept.sort_by(|a, b| order(a).cmp(&order(b)));
    (kept, left_out)
}

/// Available offers come first, then cheap ones.
fn order(offer: &offer::Offer) -> (bool, bool, Option<Usd>, &str) {
    (
        offer.availability == offer::Availability::No,
        lowest(offer).is_none(),
        lowest(offer),
        &offer.id,
    )
}

fn lowest(offer: &offer::Offer) -> Option<Usd> {
    offer.on_demand.into_iter().chain(offer.spot).min()
}

/// The group of an offer: what Pools ask for first.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Size<'a> {
    /// Name and thousandths of the number.
    Accelerators(&'a str, u64),
    /// Powers of two: vCPUs, and GB of memory for each.
    Cpus(i32, i32),
}

impl<'a> Size<'a> {
    fn of(offer: &'a offer::Offer) -> Self {
        if let Some(some) = &offer.accelerators {
            return Self::Accelerators(&some.name, (some.count * 1000.0).round() as u64);
        }
        let power = |number: f64| number.max(0.001).log2().round() as i32;
        Self::Cpus(
            power(offer.vcpus),
            power(offer.memory_gb / offer.vcpus.max(0.001)),
        )
    }
}

/// The same at one place, for one kind of program.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Place<'a> {
    size: Size<'a>,
    /// Of each, in tenths of a GB.
    memory: u64,
    region: &'a str,
    arm: bool,
    connected: bool,
}

impl<'a> Place<'a> {
    fn of(offer: &'a offer::Offer) -> Self {
        let memory = offer.accelerators.as_ref().and_then(|some| some.memory_gb);
        Self {
            size: Size::of(offer),
            memory: (memory.unwrap_or_default() * 10.0).round() as u64,
            region: &offer.region,
            arm: offer.architecture == offer::Architecture::Arm64,
            connected: offer.connected,
        }
    }
}

/// `others`: names of the Offers of other Providers.
fn object(provider: &Provider, offer: &offer::Offer, others: &HashSet<&str>) -> Offer {
    let owner = provider.name_any();
    let plain = format!("{owner}-{}", offer.id);
    // `a-b` with `c` and `a` with `b-c` would get the same name.
    let name = if others.contains(plain.as_str()) || plain.len() > LONGEST_NAME {
        distinct(&plain, &format!("{owner}/{}", offer.id))
    } else {
        plain
    };
    let mut object = Offer::new(&name, spec(&owner, offer));
    object.metadata = ObjectMeta {
        name: Some(name),
        labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
        owner_references: provider.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    object
}

/// The name, cut, with a digest of what it stands for.
fn distinct(name: &str, what: &str) -> String {
    let mut short = short_digest(what.as_bytes());
    short.truncate(10);
    let start = name.get(..name.len().min(LONGEST_NAME - 11)).unwrap_or_default();
    format!(
        "{}-{short}",
        start.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
    )
}

/// The Provider owns its Offers: they go with it.
fn spec(provider: &str, offer: &offer::Offer) -> OfferSpec {
    let offer::Offer {
        id,
        instance_type,
        region,
        accelerators,
        vcpus,
        memory_gb,
        disk_gb,
        architecture,
        on_demand,
        spot,
        availability,
        connected,
        rate_as_of,
    } = offer;
    OfferSpec {
        provider: provider.to_owned(),
        id: cut(id, 64),
        instance_type: cut(instance_type, 256),
        region: cut(region, 128),
        accelerator: accelerators.as_ref().map(|accelerators| OfferedAccelerator {
            name: cut(&accelerators.name, 64),
            count: Count::of(accelerators.count),
            memory: accelerators.memory_gb.map(shared::Size::of_card_gb),
            form_factor: accelerators.form_factor,
        }),
        cpu: Cpu::of(*vcpus),
        memory: shared::Size::of_gb(*memory_gb),
        disk: disk_gb.map(shared::Size::of_gb),
        architecture: *architecture,
        on_demand_price: on_demand.map(Usd::exact),
        spot_price: spot.map(Usd::exact),
        lowest_price: lowest(offer).map(Usd::exact),
        availability: *availability,
        connected: *connected,
        exchange_rate_as_of: rate_as_of.map(|day| day.to_string()),
    }
}

/// Offers to write, and names of Offers to delete.
pub fn difference(
    provider: &Provider,
    catalogue: Catalogue,
    existing: &[Arc<Offer>],
) -> (Vec<Offer>, Vec<String>) {
    let name = provider.name_any();
    let wanted: BTreeSet<String> = catalogue.objects.iter().map(ResourceExt::name_any).collect();
    let delete = existing
        .iter()
        .filter(|offer| offer.spec.provider == name && !wanted.contains(&offer.name_any()))
        .map(|offer| offer.name_any())
        .collect::<BTreeSet<String>>();
    let by_name: HashMap<&str, &Arc<Offer>> = existing
        .iter()
        .filter_map(|there| Some((there.metadata.name.as_deref()?, there)))
        .collect();
    let same = |object: &Offer| {
        let there = object.metadata.name.as_deref().and_then(|name| by_name.get(name));
        there.is_some_and(|there| {
            there.spec == object.spec && there.metadata.owner_references == object.metadata.owner_references
        })
    };
    let apply = catalogue
        .objects
        .into_iter()
        .filter(|object| !same(object))
        .collect();
    (apply, delete.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skyward_core::offer::Accelerators;

    use super::*;

    fn offer(id: usize, price: u32, region: &str, gpus: Option<(&str, u32)>) -> offer::Offer {
        offer::Offer {
            id: format!("o{id}"),
            instance_type: format!("t{id}"),
            region: region.to_owned(),
            accelerators: gpus.map(|(name, count)| Accelerators {
                name: name.to_owned(),
                count: f64::from(count),
                memory_gb: None,
                form_factor: None,
            }),
            vcpus: 4.0,
            memory_gb: 8.0,
            disk_gb: None,
            architecture: offer::Architecture::Amd64,
            on_demand: Some(Usd::from(price)),
            spot: None,
            availability: offer::Availability::Unknown,
            connected: true,
            rate_as_of: None,
        }
    }

    #[test]
    fn the_dearest_accelerator_is_offered_beside_a_thousand_cheap_machines() {
        let mut all: Vec<_> = (0..3000).map(|id| offer(id, 1, "us", None)).collect();
        all.push(offer(3000, 98, "us", Some(("H100", 8))));
        all.push(offer(3001, 99, "eu", Some(("H100", 8))));
        let (kept, left_out) = chosen(&all, MOST);
        assert_eq!((kept.len(), left_out), (MOST, 2002));
        for id in ["o3000", "o3001"] {
            assert!(kept.iter().any(|offer| offer.id == id), "{id}");
        }
    }

    /// A field to sort by must stand in each Offer, or Offers without it come first.
    #[test]
    fn the_lowest_price_is_that_of_either_market() {
        let lowest = |on_demand: Option<u32>, spot: Option<u32>| {
            let offer = offer::Offer {
                on_demand: on_demand.map(Usd::from),
                spot: spot.map(Usd::from),
                ..offer(0, 0, "", None)
            };
            spec("x", &offer).lowest_price
        };
        assert_eq!(lowest(Some(3), Some(1)).as_deref(), Some("1"));
        assert_eq!(lowest(Some(3), None).as_deref(), Some("3"));
        assert_eq!(lowest(None, Some(2)).as_deref(), Some("2"));
        assert_eq!(lowest(None, None), None);
    }

    #[test]
    fn who_wants_no_spot_machine_finds_the_accelerator_too() {
        let mut spot = offer(0, 1, "us", Some(("H100", 1)));
        spot.spot = spot.on_demand.take();
        let cpus = (1..9).map(|id| offer(id, 2, "us", None));
        let all: Vec<_> = cpus.chain([spot, offer(9, 3, "eu", Some(("H100", 1)))]).collect();
        let kept: Vec<&str> = chosen(&all, 2).0.iter().map(|offer| offer.id.as_str()).collect();
        assert_eq!(kept, ["o0", "o9"]);
    }

    #[test]
    fn what_is_sold_out_takes_no_place_of_what_can_be_had() {
        let mut cheap = offer(0, 1, "us", Some(("H100", 1)));
        cheap.availability = offer::Availability::No;
        let all = [cheap, offer(1, 2, "eu", Some(("H100", 1)))];
        assert_eq!(chosen(&all, 1).0[0].id, "o1");
    }

    proptest! {
        /// The cheapest of each accelerator and count is an Offer as long as these fit, whatever
        /// else is sold and in whatever order.
        #[test]
        fn each_accelerator_and_number_keeps_its_cheapest(
            kinds in proptest::collection::vec((0..40_u32, 0..3_usize, proptest::option::of((0..4_usize, 1..4_u32))), 0..200),
            most in 12..60_usize,
        ) {
            let (regions, names) = (["", "a", "b"], ["A100", "H100", "L4", "T4"]);
            let all: Vec<_> = kinds
                .iter()
                .enumerate()
                .map(|(id, (price, region, gpus))| {
                    offer(id, *price, regions[*region], gpus.map(|(name, count)| (names[name], count)))
                })
                .collect();
            let (kept, left_out) = chosen(&all, most);
            prop_assert_eq!(kept.len() + left_out, all.len());
            prop_assert!(kept.len() == most || left_out == 0);
            for one in all.iter().filter(|one| one.accelerators.is_some()) {
                prop_assert!(kept.iter().any(|other| other.accelerators == one.accelerators
                    && other.on_demand <= one.on_demand));
            }
            let backwards: Vec<_> = all.iter().rev().cloned().collect();
            prop_assert_eq!(kept, chosen(&backwards, most).0);
        }
    }
}
