//! Makes offers of asks. There are thousands of asks, and each can be rented once: asks that a Pool
//! cannot tell apart are one offer, at the price of the cheapest. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};
use skyward_core::{
    Usd, accelerator,
    offer::{Accelerators, Architecture, Availability, Market, Offer},
};
use skyward_provider_kit::dns_label;

use super::{
    config::Settings,
    wire::{Ask, Instance},
};

/// Most countries, and clusters, that are offered for one GPU and number, the cheapest first, to
/// bound the number of offers.
const PLACES: usize = 8;
/// Least time in seconds for which an ask must still be for rent: on a shorter rental too much of
/// the price pays for the start.
pub const LEAST_SECONDS: u32 = 6 * 3600;
/// Country of a host that tells none.
const NOWHERE: &str = "XX";

/// Beginning of the place of hosts that stand in one physical cluster.
const CLUSTER: &str = "cluster-";

/// Asks that a Pool cannot tell apart; its text is the offer's instance type, such as
/// `2x RTX 3090/US`, `1x A100 SXM4/80GB/US`, `1x GH200/US/arm64` or
/// `8x H100 SXM/80GB/cluster-9`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Name of the GPU, as Vast.ai writes it.
    pub gpu: String,
    /// How many.
    pub count: u32,
    /// Memory of each in GB, where its name does not say it. Texts of earlier Machines lack it, and
    /// any memory fits them.
    pub memory_gb: Option<u32>,
    /// Country of the hosts, or the physical cluster that they stand in.
    pub place: String,
    /// Whether their processors are ARM.
    pub arm: bool,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x {}/", self.count, self.gpu)?;
        if let Some(memory) = self.memory_gb {
            write!(f, "{memory}GB/")?;
        }
        f.write_str(&self.place)?;
        if self.arm { f.write_str("/arm64") } else { Ok(()) }
    }
}

impl Group {
    /// A group from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, arm) = text
            .strip_suffix("/arm64")
            .map_or((text, false), |text| (text, true));
        let (what, place) = text.rsplit_once('/')?;
        let (what, memory_gb) = what
            .rsplit_once('/')
            .and_then(|(what, memory)| Some((what, memory.strip_suffix("GB")?.parse().ok()?)))
            .map_or((what, None), |(what, memory)| (what, Some(memory)));
        let (count, gpu) = what.split_once("x ")?;
        Some(Self {
            gpu: gpu.to_owned(),
            count: count.parse().ok()?,
            memory_gb,
            place: place.to_owned(),
            arm,
        })
    }

    /// The group of an ask; machines without GPUs are not offered.
    pub fn of(ask: &Ask) -> Option<Self> {
        let count = ask.num_gpus.round();
        let gpu = ask.gpu_name.clone().filter(|name| !name.is_empty())?;
        Some(Self {
            memory_gb: variant(&gpu, ask.gpu_ram),
            gpu,
            count: (1.0..=64.0).contains(&count).then_some(count as u32)?,
            place: country(ask.geolocation.as_deref()),
            arm: ask
                .cpu_arch
                .as_deref()
                .is_some_and(|arch| arch.starts_with("arm") || arch == "aarch64"),
        })
    }

    /// The group of an ask among the asks of its physical cluster, if it stands in one.
    pub fn in_cluster(ask: &Ask) -> Option<Self> {
        let place = cluster(ask.cluster_id?);
        Self::of(ask).map(|group| Self { place, ..group })
    }

    /// Its physical cluster; `None` for a group of a country.
    pub fn cluster(&self) -> Option<u64> {
        self.place.strip_prefix(CLUSTER)?.parse().ok()
    }

    /// Whether an ask is of this group.
    pub fn has(&self, ask: &Ask) -> bool {
        let group = match self.cluster() {
            Some(_) => Self::in_cluster(ask),
            None => Self::of(ask),
        };
        let any = |group: Self| Self {
            memory_gb: group.memory_gb.filter(|_| self.memory_gb.is_some()),
            ..group
        };
        group.map(any).as_ref() == Some(self)
    }
}

/// Memory of a GPU in whole GB, unless all GPUs of its name have as much.
fn variant(gpu: &str, mebibytes: f64) -> Option<u32> {
    if mebibytes <= 0.0 {
        return None;
    }
    let nominal = accelerator::nominal_memory_gb(gpu, mebibytes);
    let named = accelerator::model(gpu).is_some_and(|model| model.memory_gb == [nominal]);
    (!named).then_some(nominal.round() as u32)
}

/// The place of hosts in a physical cluster.
pub fn cluster(id: u64) -> String {
    format!("{CLUSTER}{id}")
}

/// The country of `City, CC`.
pub fn country(geolocation: Option<&str>) -> String {
    geolocation
        .and_then(|text| text.rsplit(',').next())
        .map(|code| code.trim().to_ascii_uppercase())
        .filter(|code| code.len() == 2 && code.bytes().all(|b| b.is_ascii_uppercase()))
        .unwrap_or_else(|| NOWHERE.to_owned())
}

/// The query for what is for rent on one market, with a disk of this size.
pub fn query(market: Market, settings: &Settings, disk_gb: u32, limit: u32) -> Map<String, Value> {
    let mut query = json!({
        "type": match market { Market::OnDemand => "ondemand", Market::Spot => "bid" },
        "limit": limit,
        "allocated_storage": disk_gb,
        "external": { "eq": false },
        "rentable": { "eq": true },
        "rented": { "eq": false },
        "reliability": { "gte": settings.min_reliability() },
        "disk_space": { "gte": disk_gb },
        "duration": { "gte": LEAST_SECONDS },
        // Two pairs: the official description refuses a single one.
        "order": [["dph_total", "asc"], ["id", "asc"]],
    });
    let countries = settings.countries();
    // Left out it would mean the same as true.
    query["verified"] = if settings.verified_only() {
        json!({ "eq": true })
    } else {
        json!({ "in": [true, false] })
    };
    if !countries.is_empty() {
        query["geolocation"] = json!({ "in": countries });
    }
    if settings.direct_only() {
        query["direct_port_count"] = json!({ "gte": 1 });
    }
    match query {
        Value::Object(query) => query,
        _ => Map::new(),
    }
}

/// The query for the asks of one group.
pub fn query_of(group: &Group, market: Market, settings: &Settings, disk_gb: u32) -> Value {
    let mut query = query(market, settings, disk_gb, 64);
    query.insert("gpu_name".into(), json!({ "in": [group.gpu] }));
    query.insert("num_gpus".into(), json!({ "in": [group.count] }));
    if let Some(memory) = group.memory_gb {
        // A rough filter: the answer is checked again, but cheaper GPUs with less memory would fill
        // it.
        let mebibytes = f64::from(memory) * 1024.0;
        query.insert(
            "gpu_ram".into(),
            json!({ "gte": mebibytes * 0.8, "lte": mebibytes * 1.2 }),
        );
    }
    if let Some(cluster) = group.cluster() {
        query.insert("cluster_id".into(), json!({ "eq": cluster }));
    } else if group.place != NOWHERE {
        query.insert("geolocation".into(), json!({ "in": [group.place] }));
    }
    Value::Object(query)
}

/// Whether an ask fits. Vast.ai does not filter by CUDA version as documented, so all its filters
/// are checked again.
pub fn fits(ask: &Ask, settings: &Settings) -> bool {
    // A version is no decimal (12.10 is above 12.9), but Vast.ai writes decimals.
    let cuda = ask
        .cuda_max_good
        .is_none_or(|version| version + 1e-6 >= settings.min_cuda());
    let reliable = ask
        .reliability
        .is_none_or(|reliability| reliability + 1e-6 >= settings.min_reliability());
    let lasts = ask
        .duration
        .is_none_or(|seconds| seconds >= f64::from(LEAST_SECONDS));
    let ports = !settings.direct_only() || ask.direct_port_count.is_some_and(|ports| ports >= 1.0);
    cuda && reliable && lasts && ports
}

/// GPUs that the account has on the spot market, by host.
pub fn bids<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> BTreeMap<u64, f64> {
    let mut held = BTreeMap::new();
    for instance in instances {
        if let (Some(true), Some(host)) = (instance.is_bid, instance.machine_id) {
            *held.entry(host).or_default() += instance.num_gpus.unwrap_or(1.0);
        }
    }
    held
}

/// Whether renting an ask would end a bid of the account itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnBid {
    /// The account has no bid on that host.
    None,
    /// The account has a bid, and the host has enough GPUs for both; which ones the ask is for is
    /// not told.
    Beside,
    /// The host has too few GPUs for both.
    Ended,
}

/// Whether renting an ask ends the account's own bids: a renter who pays more, or rents
/// on demand, takes the GPUs of lower bids, even of the same account.
pub fn own_bid(ask: &Ask, held: &BTreeMap<u64, f64>) -> OwnBid {
    let Some(ours) = ask.machine_id.and_then(|host| held.get(&host)) else {
        return OwnBid::None;
    };
    let part = ask.gpu_frac.filter(|part| *part > 0.0).unwrap_or(1.0);
    if ours + ask.num_gpus > ask.num_gpus / part + 0.01 {
        OwnBid::Ended
    } else {
        OwnBid::Beside
    }
}

/// vCPUs of an ask.
pub fn vcpus(ask: &Ask) -> f64 {
    ask.cpu_cores_effective.unwrap_or_default()
}

/// Memory of an ask in GB: its part of the host's.
pub fn memory_gb(ask: &Ask) -> f64 {
    (ask.cpu_ram * ask.gpu_frac.unwrap_or(1.0).clamp(0.0, 1.0) / 1000.0).floor()
}

/// Price of the disk in the query.
fn storage(ask: &Ask) -> Usd {
    match (ask.dph_total, ask.dph_base) {
        (Some(total), Some(base)) => (total.usd() - base.usd()).max(Usd::ZERO),
        _ => Usd::ZERO,
    }
}

/// Price of an ask per hour, with its disk.
pub fn price(ask: &Ask, market: Market, multiplier: Decimal) -> Option<Usd> {
    let price = match market {
        Market::OnDemand => ask.dph_total?.usd(),
        Market::Spot => bid(ask.min_bid?.usd(), multiplier, None)? + storage(ask),
    };
    (price > Usd::ZERO).then(|| price.round_dp(6))
}

/// The bid for a machine: the lowest that wins times the multiplier, but not above the
/// ceiling, from which the disk is already taken. `None` when even the lowest is.
pub fn bid(lowest: Usd, multiplier: Decimal, most: Option<Usd>) -> Option<Usd> {
    // The API's own bounds.
    let (least, highest) = (Usd::new(1, 3), Usd::from(128));
    let wanted = (lowest * multiplier).round_dp(4).clamp(least, highest);
    let most = most.unwrap_or(highest);
    (most >= lowest && lowest <= highest).then(|| wanted.min(most))
}

/// The bid for an ask whose whole price may not be above the recorded one.
pub fn bid_for(ask: &Ask, multiplier: Decimal, ceiling: Option<Usd>) -> Option<Usd> {
    bid(
        ask.min_bid?.usd(),
        multiplier,
        ceiling.map(|ceiling| ceiling - storage(ask)),
    )
}

/// Facts about a group: the least of all its asks, which holds for each.
#[derive(Default)]
struct Seen {
    on_demand: Option<Usd>,
    spot: Option<Usd>,
    vcpus: Option<f64>,
    memory_gb: Option<f64>,
    gpu_mib: Option<f64>,
    asks: BTreeSet<u64>,
}

impl Seen {
    /// A Pool that wants one machine takes the cheapest; a Pool that wants a `whole` network must
    /// be able to pay for each.
    fn count(&mut self, ask: &Ask, market: Market, price: Usd, whole: bool) {
        let slot = match market {
            Market::OnDemand => &mut self.on_demand,
            Market::Spot => &mut self.spot,
        };
        *slot = Some(slot.map_or(
            price,
            |other| if whole { other.max(price) } else { other.min(price) },
        ));
        let least = |slot: &mut Option<f64>, value: f64| *slot = Some(slot.map_or(value, |v| v.min(value)));
        least(&mut self.vcpus, vcpus(ask));
        least(&mut self.memory_gb, memory_gb(ask));
        least(&mut self.gpu_mib, ask.gpu_ram);
        self.asks.insert(ask.id);
    }
}

/// The offers of all asks of both markets.
pub fn offers(on_demand: &[Ask], bids: &[Ask], settings: &Settings) -> Vec<Offer> {
    let multiplier = settings.bid_multiplier();
    let mut groups: BTreeMap<Group, Seen> = BTreeMap::new();
    for (market, asks) in [(Market::OnDemand, on_demand), (Market::Spot, bids)] {
        for ask in asks.iter().filter(|ask| fits(ask, settings)) {
            let Some(price) = price(ask, market, multiplier) else {
                continue;
            };
            let in_cluster = Group::in_cluster(ask).filter(|_| settings.use_overlay());
            for group in Group::of(ask).into_iter().chain(in_cluster) {
                let whole = group.cluster().is_some();
                groups.entry(group).or_default().count(ask, market, price, whole);
            }
        }
    }
    // One machine needs no network, and a cluster is one of at least two.
    groups.retain(|group, seen| group.cluster().is_none() || seen.asks.len() > 1);
    bounded(groups)
        .into_iter()
        .map(|(group, seen)| Offer {
            id: dns_label(&group.to_string()),
            instance_type: group.to_string(),
            region: group.place.clone(),
            accelerators: Some(Accelerators {
                name: accelerator::canonical(&group.gpu),
                count: f64::from(group.count),
                memory_gb: Some(accelerator::nominal_memory_gb(
                    &group.gpu,
                    seen.gpu_mib.unwrap_or_default(),
                ))
                .filter(|size| *size > 0.0),
                form_factor: accelerator::parse(&group.gpu).form_factor,
            }),
            vcpus: (seen.vcpus.unwrap_or_default() * 10.0).floor() / 10.0,
            memory_gb: seen.memory_gb.unwrap_or_default(),
            disk_gb: None,
            architecture: if group.arm {
                Architecture::Arm64
            } else {
                Architecture::Amd64
            },
            on_demand: seen.on_demand,
            spot: seen.spot,
            availability: Availability::Yes,
            // Only in an overlay network.
            connected: group.cluster().is_some(),
            rate_as_of: None,
        })
        .collect()
}

/// The cheapest countries, and clusters, of each GPU and number.
fn bounded(groups: BTreeMap<Group, Seen>) -> Vec<(Group, Seen)> {
    let mut by: BTreeMap<Group, Vec<(Group, Seen)>> = BTreeMap::new();
    for (group, seen) in groups {
        // The countries are bounded together, and the clusters together.
        let place = group.cluster().map_or("", |_| CLUSTER).to_owned();
        let kind = Group {
            place,
            ..group.clone()
        };
        by.entry(kind).or_default().push((group, seen));
    }
    let mut kept = Vec::new();
    for mut places in by.into_values() {
        let cheapest = |seen: &Seen| seen.on_demand.into_iter().chain(seen.spot).min();
        places.sort_by(|a, b| cheapest(&a.1).cmp(&cheapest(&b.1)).then_with(|| a.0.cmp(&b.0)));
        places.truncate(PLACES);
        kept.extend(places);
    }
    kept
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
