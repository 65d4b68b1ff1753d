//! Hosts, their slices on offer, and the order in which renters get them: on-demand before bids,
//! higher bids before lower ones.
//!
//! An offer is a real slice of one machine. It goes when it is taken, and comes
//! back under another id; ids change now and then by themselves as well.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;

/// Hours of the month that disk prices are given for.
const HOURS_OF_A_MONTH: i64 = 720;
/// How much more than the highest bid a new one has to be, in percent.
const OVERBID_PERCENT: i64 = 101;
/// After this time a slice that nobody took has a new id.
pub const ID_LIFETIME: SignedDuration = SignedDuration::from_mins(30);

/// One machine that its owner rents out.
#[derive(Debug, Clone)]
pub struct Host {
    /// The machine's id.
    pub machine_id: i64,
    /// Its owner's id.
    pub host_id: i64,
    /// Machines of one cluster can be joined by an overlay network.
    pub cluster_id: Option<i64>,
    /// Name of its GPUs, with a space as in "RTX 4090".
    pub gpu_name: &'static str,
    /// How many it has.
    pub gpus: u32,
    /// Memory of one of them in MB.
    pub gpu_ram: u32,
    /// Processors of the whole machine.
    pub cpu_cores: u32,
    /// Memory of the whole machine in MB.
    pub cpu_ram: u32,
    /// Disk of the whole machine in GB.
    pub disk_space: u32,
    /// "City, CC".
    pub geolocation: &'static str,
    /// Newest CUDA version that its driver takes.
    pub cuda: Decimal,
    /// Between 0 and 1.
    pub reliability: Decimal,
    /// Whether Vast.ai has verified it.
    pub verified: bool,
    /// Whether it comes from another marketplace.
    pub external: bool,
    /// Whether it is in a data centre.
    pub datacenter: bool,
    /// Ports that can be opened on its own address.
    pub direct_ports: u32,
    /// Dollars an hour for one GPU.
    pub price: Decimal,
    /// Least bid for one GPU.
    pub min_bid: Decimal,
    /// Dollars for a GB of disk and month.
    pub storage_cost: Decimal,
    /// Until when its owner offers it.
    pub listed_until: Timestamp,
    /// Its address.
    pub public_ip: &'static str,
    /// What some other customer bids for each of its GPUs.
    pub other_bid: Option<Decimal>,
    /// Whether other customers rent all of it on demand.
    pub taken_by_others: bool,
    /// Whether its owner has taken it off the market.
    pub delisted: bool,
}

/// A slice on offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// What the create call names.
    pub id: i64,
    /// The machine.
    pub machine_id: i64,
    /// First of its GPUs.
    pub first: u32,
    /// How many.
    pub gpus: u32,
    /// Since when it has this id.
    pub since: Timestamp,
}

/// A slice that one of the simulator's accounts has taken.
#[derive(Debug, Clone)]
pub struct Rental {
    /// The slice.
    pub ask: Ask,
    /// Dollars an hour for the whole slice, for bids.
    pub bid: Option<Decimal>,
    /// Whether its renter wants it to run.
    pub wanted: bool,
    /// Whether it has its GPUs.
    pub winning: bool,
}

/// The kind of price that a search asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offering {
    /// Fixed price.
    OnDemand,
    /// Least bid.
    Bid,
}

/// What happened to an ask id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// It is on offer.
    Offered(Ask),
    /// It was on offer, and is rented now.
    Taken(Ask),
    /// It never was on offer, or was replaced by a new id.
    Unknown,
}

/// The marketplace.
#[derive(Debug, Clone, Default)]
pub struct Market {
    hosts: BTreeMap<i64, Host>,
    pub(super) asks: BTreeMap<i64, Ask>,
    rentals: BTreeMap<String, Rental>,
    last_ask: i64,
}

impl Market {
    /// A market of these hosts.
    pub fn new(hosts: Vec<Host>, now: Timestamp) -> Self {
        let mut market = Self {
            last_ask: 20_000_000,
            ..Self::default()
        };
        for host in hosts {
            market.add(host, now);
        }
        market
    }

    /// One more host.
    pub fn add(&mut self, host: Host, now: Timestamp) {
        let mut size = host.gpus;
        while size > 0 {
            for first in (0..host.gpus).step_by(size as usize) {
                if first + size <= host.gpus {
                    self.offer(host.machine_id, first, size, now);
                }
            }
            size /= 2;
        }
        self.hosts.insert(host.machine_id, host);
    }

    fn offer(&mut self, machine_id: i64, first: u32, gpus: u32, now: Timestamp) {
        // Ids grow, with gaps, as at a service with many customers.
        self.last_ask += 7 + i64::from(first) * 3;
        let ask = Ask {
            id: self.last_ask,
            machine_id,
            first,
            gpus,
            since: now,
        };
        self.asks.insert(ask.id, ask);
    }

    /// A host, to look at.
    pub fn host(&self, machine_id: i64) -> Option<&Host> {
        self.hosts.get(&machine_id)
    }

    /// A host, to change; [`Market::settle`] says what follows from it.
    pub fn host_mut(&mut self, machine_id: i64) -> Option<&mut Host> {
        self.hosts.get_mut(&machine_id)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hosts.values()
    }

    /// The rental of an instance.
    pub fn rental(&self, instance: &str) -> Option<&Rental> {
        self.rentals.get(instance)
    }

    /// The rental of an instance, to change its bid or whether it should run.
    pub fn rental_mut(&mut self, instance: &str) -> Option<&mut Rental> {
        self.rentals.get_mut(instance)
    }

    /// Gives slices that are long on offer new ids.
    pub fn renew_ids(&mut self, now: Timestamp) {
        let old: Vec<Ask> = self
            .asks
            .values()
            .filter(|ask| now.duration_since(ask.since) >= ID_LIFETIME)
            .copied()
            .collect();
        for ask in old {
            let rented = self.rentals.values().any(|rental| rental.ask.id == ask.id);
            if !rented {
                self.asks.remove(&ask.id);
                self.offer(ask.machine_id, ask.first, ask.gpus, now);
            }
        }
    }

    /// What an ask id stands for.
    pub fn look_up(&self, id: i64, offering: Offering) -> Lookup {
        match self.asks.get(&id) {
            None => Lookup::Unknown,
            Some(ask) if self.can_be_had(ask, offering) => Lookup::Offered(*ask),
            Some(ask) => Lookup::Taken(*ask),
        }
    }

    pub(super) fn can_be_had(&self, ask: &Ask, offering: Offering) -> bool {
        let Some(host) = self.hosts.get(&ask.machine_id) else {
            return false;
        };
        if host.delisted || host.taken_by_others {
            return false;
        }
        !self.overlapping(ask).any(|rental| match offering {
            // On demand displaces bids, a bid displaces only lower ones; a slice
            // that an instance of the account has is not offered again.
            Offering::OnDemand => rental.bid.is_none() && rental.winning,
            Offering::Bid => rental.winning && (rental.bid.is_none() || rental.ask.id == ask.id),
        })
    }

    fn overlapping(&self, ask: &Ask) -> impl Iterator<Item = &Rental> {
        self.rentals
            .values()
            .filter(move |rental| overlap(&rental.ask, ask))
    }

    /// The least bid for a slice.
    pub fn min_bid(&self, ask: &Ask) -> Decimal {
        let Some(host) = self.hosts.get(&ask.machine_id) else {
            return Decimal::ZERO;
        };
        let others = host.other_bid.into_iter();
        let ours = self
            .overlapping(ask)
            .filter(|rental| rental.winning)
            .filter_map(|rental| rental.bid.map(|bid| bid / Decimal::from(rental.ask.gpus)));
        let highest = others.chain(ours).max().unwrap_or_default();
        let needed = highest * Decimal::new(OVERBID_PERCENT, 2);
        (host.min_bid.max(needed) * Decimal::from(ask.gpus))
            .round_dp(4)
            .normalize()
    }

    /// Dollars an hour for a disk on a machine.
    pub fn disk_price(&self, machine_id: i64, gigabytes: Decimal) -> Decimal {
        self.hosts.get(&machine_id).map_or(Decimal::ZERO, |host| {
            (host.storage_cost * gigabytes / Decimal::from(HOURS_OF_A_MONTH))
                .round_dp(6)
                .normalize()
        })
    }

    /// Dollars an hour for a slice without its disk, on demand.
    pub fn price(&self, ask: &Ask) -> Decimal {
        self.hosts
            .get(&ask.machine_id)
            .map_or(Decimal::ZERO, |host| host.price * Decimal::from(ask.gpus))
    }

    /// An instance takes a slice.
    pub fn take(&mut self, instance: &str, ask: Ask, bid: Option<Decimal>, wanted: bool) {
        self.rentals.insert(
            instance.to_owned(),
            Rental {
                ask,
                bid,
                wanted,
                winning: false,
            },
        );
    }

    /// An instance gives its slice back: it is on offer again, under another id.
    pub fn release(&mut self, instance: &str, now: Timestamp) {
        if let Some(rental) = self.rentals.remove(instance)
            && self.asks.remove(&rental.ask.id).is_some()
        {
            self.offer(rental.ask.machine_id, rental.ask.first, rental.ask.gpus, now);
        }
    }

    /// Decides who has which GPUs, and returns the instances for which that
    /// changed, with whether they have them now.
    pub fn settle(&mut self) -> Vec<(String, bool)> {
        let mut order: Vec<String> = self.rentals.keys().cloned().collect();
        order.sort_by_key(|id| {
            let rental = &self.rentals[id];
            let per_gpu = rental.bid.map(|bid| bid / Decimal::from(rental.ask.gpus));
            // On demand first, then the highest bids, then the rental that has it already.
            (
                per_gpu.is_some(),
                std::cmp::Reverse(per_gpu),
                !rental.winning,
                id.clone(),
            )
        });
        let mut used: BTreeSet<(i64, u32)> = BTreeSet::new();
        let mut changes = Vec::new();
        for id in order {
            let Some(rental) = self.rentals.get(&id) else {
                continue;
            };
            let gpus: Vec<(i64, u32)> = (rental.ask.first..rental.ask.first + rental.ask.gpus)
                .map(|gpu| (rental.ask.machine_id, gpu))
                .collect();
            let affordable = self
                .hosts
                .get(&rental.ask.machine_id)
                .is_some_and(|host| match rental.bid {
                    // A renter on demand keeps the machine until the contract ends.
                    None => rental.winning || !host.taken_by_others,
                    Some(bid) => {
                        let per_gpu = bid / Decimal::from(rental.ask.gpus);
                        !host.taken_by_others
                            && per_gpu >= host.min_bid
                            && host.other_bid.is_none_or(|other| per_gpu >= other)
                    }
                });
            let wins = rental.wanted && affordable && gpus.iter().all(|gpu| !used.contains(gpu));
            if wins {
                used.extend(gpus);
            }
            if let Some(rental) = self.rentals.get_mut(&id)
                && rental.winning != wins
            {
                rental.winning = wins;
                changes.push((id, wins));
            }
        }
        changes
    }
}

fn overlap(left: &Ask, right: &Ask) -> bool {
    left.machine_id == right.machine_id
        && left.first < right.first + right.gpus
        && right.first < left.first + left.gpus
}

#[cfg(test)]
mod tests {
    use super::super::hosts;
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("a moment")
    }

    fn market() -> Market {
        Market::new(hosts::usual(now()), now())
    }

    fn slice(market: &Market, gpus: u32, offering: Offering) -> Ask {
        *market
            .asks
            .values()
            .find(|ask| {
                market.hosts[&ask.machine_id].gpus == 8
                    && ask.gpus == gpus
                    && market.can_be_had(ask, offering)
            })
            .expect("a slice")
    }

    #[test]
    fn a_taken_slice_and_those_that_overlap_it_are_off_the_market_and_come_back_under_another_id() {
        let mut market = market();
        let whole = slice(&market, 8, Offering::OnDemand);
        let half = slice(&market, 4, Offering::OnDemand);
        assert_eq!(whole.machine_id, half.machine_id);
        market.take("1", half, None, true);
        assert_eq!(market.settle(), [("1".to_owned(), true)]);
        assert_eq!(market.look_up(half.id, Offering::OnDemand), Lookup::Taken(half));
        assert_eq!(market.look_up(whole.id, Offering::OnDemand), Lookup::Taken(whole));
        market.release("1", now());
        assert_eq!(market.look_up(half.id, Offering::OnDemand), Lookup::Unknown);
        assert_eq!(
            market.look_up(whole.id, Offering::OnDemand),
            Lookup::Offered(whole)
        );
    }

    #[test]
    fn ids_of_slices_that_nobody_takes_change_after_a_while() {
        let mut market = market();
        let ask = slice(&market, 1, Offering::OnDemand);
        market.renew_ids(now() + SignedDuration::from_mins(29));
        assert_eq!(market.look_up(ask.id, Offering::OnDemand), Lookup::Offered(ask));
        market.renew_ids(now() + SignedDuration::from_mins(30));
        assert_eq!(market.look_up(ask.id, Offering::OnDemand), Lookup::Unknown);
    }

    #[test]
    fn on_demand_displaces_a_bid_which_returns_when_it_is_over() {
        let mut market = market();
        let ask = slice(&market, 8, Offering::Bid);
        let bid = market.min_bid(&ask);
        market.take("bid", ask, Some(bid), true);
        assert_eq!(market.settle(), [("bid".to_owned(), true)]);
        assert_eq!(market.look_up(ask.id, Offering::OnDemand), Lookup::Offered(ask));
        market.take("fixed", ask, None, true);
        assert_eq!(
            market.settle(),
            [("fixed".to_owned(), true), ("bid".to_owned(), false)]
        );
        market.release("fixed", now());
        assert_eq!(market.settle(), [("bid".to_owned(), true)]);
    }

    #[test]
    fn a_higher_bid_pauses_a_lower_one_until_it_is_raised() {
        let mut market = market();
        let ask = slice(&market, 1, Offering::Bid);
        let bid = market.min_bid(&ask);
        market.take("mine", ask, Some(bid), true);
        market.settle();
        assert!(market.min_bid(&ask) > bid);
        market.host_mut(ask.machine_id).expect("a host").other_bid = Some(bid * Decimal::TWO);
        assert_eq!(market.settle(), [("mine".to_owned(), false)]);
        market.rental_mut("mine").expect("a rental").bid = Some(bid * Decimal::from(3));
        assert_eq!(market.settle(), [("mine".to_owned(), true)]);
    }

    #[test]
    fn memory_is_per_gpu_and_processors_are_those_of_the_whole_machine() {
        let market = market();
        let ask = slice(&market, 4, Offering::OnDemand);
        let offer = market
            .describe(&ask, Offering::OnDemand, Decimal::from(100), now())
            .expect("an offer");
        assert_eq!(
            offer["gpu_total_ram"].as_u64(),
            offer["gpu_ram"].as_u64().map(|ram| ram * 4)
        );
        assert_eq!(
            offer["cpu_cores_effective"].as_f64(),
            offer["cpu_cores"].as_f64().map(|cores| cores / 2.0)
        );
        assert!(offer["dph_total"].as_f64() > offer["dph_base"].as_f64());
    }
}
