//! Rental of a pod, by any of the APIs.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde_json::Value;

use super::catalogue::{self, COMMUNITY, CUDA, at_least};
use super::pods::Extra;
use super::wire::Tier;
use super::{Runpod, args, volumes};
use crate::backend::{Boot, SshWay, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::machine::{Mark, NewMachine};
use crate::core::market::{InstanceType, Market, Shelf};

/// The order of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) args: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) ports: Vec<String>,
    pub(super) disk: u32,
    /// Size and path.
    pub(super) volume: Option<(u32, String)>,
    /// Id and path.
    pub(super) network_volume: Option<(String, String)>,
    pub(super) registry: Option<String>,
    /// A GPU or CPU type.
    pub(super) hardware: String,
    /// GPUs, or vCPUs.
    pub(super) count: u32,
    pub(super) is_cpu: bool,
    pub(super) tiers: Vec<Tier>,
    pub(super) places: Vec<String>,
    /// Country codes; empty for any country.
    pub(super) countries: Vec<String>,
    pub(super) exact_cuda: Vec<String>,
    pub(super) least_cuda: Option<String>,
    pub(super) start_ssh: bool,
    /// Without it a COMMUNITY pod has no direct SSH.
    pub(super) public_ip: bool,
    pub(super) global_networking: bool,
    /// The bid for one GPU; `None` for on demand.
    pub(super) bid: Option<Decimal>,
    /// The most that one GPU may cost.
    pub(super) ceiling: Option<Decimal>,
    pub(super) stop_after: Option<Timestamp>,
    pub(super) terminate_after: Option<Timestamp>,
    /// Cluster, rank and address.
    pub(super) member: Option<(String, u32, String)>,
    /// The template that the pod refers to. REST v2 takes its settings and keeps no reference.
    pub(super) template: Option<String>,
    /// A locked pod is neither stopped nor restarted.
    pub(super) locked: bool,
}

impl Order {
    /// What an hour of the disks costs while the pod is stopped.
    pub(super) fn disk_price(&self) -> Decimal {
        let gigabytes = self.disk + self.volume.as_ref().map_or(0, |(size, _)| *size);
        Decimal::from(gigabytes) * Decimal::new(3, 4)
    }
}

/// The characters of ids.
pub(super) const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz0123456789";

impl Runpod {
    /// Rents it, or refuses.
    pub(super) fn rent(&mut self, visit: &mut Visit<'_>, order: &Order) -> Result<String, Refusal> {
        let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
        let Some(hardware) = visit.world.types.get(&order.hardware).cloned() else {
            return bad("no such GPU or CPU type");
        };
        if order.is_cpu != (hardware.gpus == 0) {
            return bad("no such GPU or CPU type");
        }
        if let Some(registry) = &order.registry
            && self.registry_of(visit, registry).is_err()
        {
            return bad("no such registry credential");
        }
        if order.is_cpu && (order.volume.is_some() || !order.count.is_power_of_two() || order.count < 2) {
            return bad("CPU pods have a power of two of vCPUs and no persistent mount");
        }
        if order.global_networking && (order.is_cpu || hardware.name.starts_with("AMD")) {
            return bad("global networking requires an NVIDIA GPU");
        }
        let order = &at_volume(visit, order)?;
        visit.enough("pods")?;
        let (tier, place, price) = place(visit, order, &hardware).ok_or(Refusal::NoCapacity)?;
        let market = if order.bid.is_some() {
            Market::Spot
        } else {
            Market::OnDemand
        };
        if !visit.world.take_stock(&order.hardware, &place, market) {
            return Err(Refusal::NoCapacity);
        }
        let id = visit.world.chance.text(14, LETTERS);
        let key = format!("rpa_{}", visit.world.chance.text(40, LETTERS).to_uppercase());
        self.pod_keys
            .insert(key.clone(), (visit.account.clone(), id.clone()));

        let count = Decimal::from(order.count);
        let on_demand = if order.is_cpu {
            hardware.on_demand
        } else {
            catalogue::price(&hardware, tier, Market::OnDemand).unwrap_or(price)
        };
        visit.world.create(NewMachine {
            id: id.clone(),
            account: visit.account.clone(),
            mark: Mark {
                name: order.name.clone(),
                env: order.env.clone(),
                ..Mark::default()
            },
            instance_type: order.hardware.clone(),
            region: place.clone(),
            market,
            price: price * count,
            on_demand_price: on_demand * count,
            disk_price: order.disk_price(),
            plan: visit.boot.clone(),
            boot: self.boot(&visit.account, order, &id, &key),
            detail: Value::Null,
        });
        let now = visit.now();
        for (when, what) in [(order.stop_after, "stop"), (order.terminate_after, "terminate")] {
            if let Some(at) = when {
                visit.world.remind(at.duration_since(now), format!("{what} {id}"));
            }
        }
        let direct =
            order.ports.iter().any(|port| port == "22/tcp") && (tier == Tier::Secure || order.public_ip);
        let extra = Extra {
            order: order.clone(),
            tier,
            direct,
            bid: order.bid,
            takes: visit.boot.takes,
        };
        self.pods.insert(id.clone(), extra);
        visit.made.push(id.clone());
        visit.subject = Some(id.clone());
        Ok(id)
    }

    /// How it boots: images of RunPod start sshd by themselves with `PUBLIC_KEY`; in others
    /// nothing does unless the command says so.
    pub(super) fn boot(&self, account: &str, order: &Order, id: &str, key: &str) -> Boot {
        let mut env = order.env.clone();
        if order.start_ssh && !env.contains_key("PUBLIC_KEY") {
            let keys = self.keys_of(account);
            if !keys.is_empty() {
                env.insert("PUBLIC_KEY".to_owned(), keys.join("\n"));
            }
        }
        env.insert("RUNPOD_POD_ID".to_owned(), id.to_owned());
        env.insert("RUNPOD_API_KEY".to_owned(), key.to_owned());
        if let Some((_, rank, _)) = &order.member {
            env.insert("NODE_RANK".to_owned(), rank.to_string());
            env.insert("PRIMARY_ADDR".to_owned(), "10.65.0.2".to_owned());
        }
        let own_sshd = order.image.starts_with("runpod/") && order.args.is_empty();
        let authorized_keys = match env.get("PUBLIC_KEY") {
            Some(keys) if own_sshd => keys.lines().map(str::to_owned).collect(),
            Some(_) | None => Vec::new(),
        };
        let start = if own_sshd {
            Start::OnStart(String::new())
        } else {
            Start::Command(args::command(&order.args))
        };
        let nvidia = !order.is_cpu && order.hardware.starts_with("NVIDIA");
        Boot {
            hostname: id.to_owned(),
            image: order.image.clone(),
            user: "root".to_owned(),
            authorized_keys,
            start,
            env,
            ssh: SshWay::Mapped,
            metadata: false,
            gpus: vec![order.hardware.clone(); if nvidia { order.count as usize } else { 0 }],
            ..Boot::default()
        }
    }

    /// The place as REST shows it.
    pub(super) fn center(place: &str) -> Option<&str> {
        (place != COMMUNITY).then_some(place)
    }
}

/// The order as its network volume allows it: where the volume is, which is in SECURE, and
/// without a disk of its own beside it.
fn at_volume(visit: &Visit<'_>, order: &Order) -> Result<Order, Refusal> {
    let mut order = order.clone();
    let Some((volume, _)) = &order.network_volume else {
        return Ok(order);
    };
    let found = volumes::find(visit.world, &visit.account, volume);
    let found = found.map_err(|_| Refusal::Bad("network volume not found".to_owned()))?;
    let place = found.region.clone();
    order.tiers.retain(|tier| *tier == Tier::Secure);
    let reachable = order.places.is_empty() || order.places.contains(&place);
    if order.tiers.is_empty() || !reachable {
        return Err(Refusal::Bad(format!(
            "the network volume is in {place} of the secure cloud"
        )));
    }
    order.places = vec![place];
    order.volume = None;
    Ok(order)
}

/// The tier, the place and the price of one GPU or vCPU.
fn place(visit: &Visit<'_>, order: &Order, hardware: &InstanceType) -> Option<(Tier, String, Decimal)> {
    let newest_fits = order
        .least_cuda
        .as_deref()
        .is_none_or(|least| CUDA.iter().any(|version| at_least(version, least)));
    let exact_fits = order.exact_cuda.is_empty()
        || CUDA
            .iter()
            .any(|version| order.exact_cuda.iter().any(|wanted| wanted == version));
    if !newest_fits || !exact_fits {
        return None;
    }
    let market = if order.bid.is_some() {
        Market::Spot
    } else {
        Market::OnDemand
    };
    let mut found = Vec::new();
    for tier in &order.tiers {
        if order.is_cpu && *tier == Tier::Community {
            continue;
        }
        let listed = if order.is_cpu {
            Some(hardware.on_demand)
        } else {
            catalogue::price(hardware, *tier, market)
        };
        let Some(listed) = listed else { continue };
        if !order.is_cpu && u64::from(order.count) > catalogue::most(hardware, *tier) {
            continue;
        }
        // A bidder pays the bid, if it reaches the floor.
        let price = match order.bid {
            Some(bid) if bid < listed => continue,
            Some(bid) => bid,
            None => listed,
        };
        if order.ceiling.is_some_and(|ceiling| price > ceiling) {
            continue;
        }
        for place in catalogue::places(visit.world, *tier) {
            let wanted = order.places.is_empty() || order.places.contains(&place);
            let country = catalogue::country(&place);
            let country = order.countries.is_empty() || order.countries.iter().any(|code| code == country);
            let networked = !order.global_networking || catalogue::has_global_networking(&place);
            let left = visit.world.stock.has(&Shelf::new(&hardware.name, &place, market));
            if wanted && country && networked && left {
                found.push((*tier, place, price));
            }
        }
    }
    found.into_iter().min_by(|a, b| a.2.cmp(&b.2))
}

/// How long after its boot a pod has its public port.
pub(super) fn has_port(since: Option<Timestamp>, now: Timestamp, after: SignedDuration) -> bool {
    since.is_some_and(|since| now.duration_since(since) >= after)
}
