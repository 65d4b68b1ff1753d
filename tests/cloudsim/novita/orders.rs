//! Orders of instances.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::json;

use super::Novita;
use super::catalogue::{self, DISK, FREE_DISK, disk_price};
use crate::backend::{Boot, SshWay, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{BootEnd, Cause, Mark};
use crate::core::market::Market;
use crate::core::rest::{Rental, RestApi, bad, body};

/// The letters of ids, and of passwords.
const LETTERS: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Ports that an order cannot have.
const RESERVED: RangeInclusive<u16> = 2222..=2224;
/// The most ports of an order.
const PORTS: usize = 15;

/// An environment variable.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    key: String,
    value: String,
}

/// The body of an order, without what `NOT_SIMULATED_FIELDS` names.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Order {
    product_id: String,
    gpu_num: u32,
    rootfs_size: u32,
    image_url: String,
    kind: String,
    name: String,
    ports: String,
    envs: Vec<Variable>,
    command: String,
    entrypoint: String,
    cluster_id: String,
    billing_mode: String,
    min_cuda_version: String,
}

impl Order {
    /// What can be said of an order without looking at what is sold.
    fn check(&self) -> Result<(), Refusal> {
        if self.kind != "gpu" {
            return Err(Novita::not_simulated("instances without GPUs"));
        }
        if self.gpu_num == 0 || !(DISK[0]..=DISK[1]).contains(&self.rootfs_size) {
            return bad(&format!("gpuNum must be at least 1, rootfsSize in {DISK:?}"));
        }
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        if !self.name.chars().all(is_plain) {
            return bad("name can have letters, digits and hyphens");
        }
        Ok(())
    }

    fn market(&self) -> Result<Market, Refusal> {
        match self.billing_mode.as_str() {
            "" | "onDemand" => Ok(Market::OnDemand),
            "spot" => Ok(Market::Spot),
            "monthly" => Err(Novita::not_simulated("subscriptions")),
            _ => bad("billingMode is not known"),
        }
    }

    /// Its ports with their types, which it writes as `22/tcp,8888/http`.
    fn ports(&self) -> Result<Vec<(u16, &str)>, Refusal> {
        let listed = self.ports.split(',').filter(|port| !port.is_empty());
        let ports = listed.map(|text| {
            let (port, kind) = text.split_once('/')?;
            let port: u16 = port.trim().parse().ok()?;
            let is_free = port > 0 && !RESERVED.contains(&port);
            (is_free && ["tcp", "http"].contains(&kind)).then_some((port, kind))
        });
        match ports.collect::<Option<Vec<_>>>() {
            Some(ports) if ports.len() <= PORTS => Ok(ports),
            _ => bad("ports must be at most 15 such as 8888/http, without 2222 to 2224"),
        }
    }

    fn least_cuda(&self) -> Result<Option<[u32; 2]>, Refusal> {
        let given = Some(self.min_cuda_version.as_str()).filter(|text| !text.is_empty());
        let version = given.and_then(catalogue::version);
        if given.is_some() && version.is_none() {
            return bad("minCudaVersion must be such as 12.4");
        }
        Ok(version)
    }

    /// The CUDA version that its image tells in its name, as NVIDIA's own do (`cuda:12.9.1-…`).
    fn cuda_of_image(&self) -> Option<[u32; 2]> {
        let (_, tag) = self.image_url.split_once("cuda:")?;
        let mut parts = tag.split(['.', '-']);
        catalogue::version(&format!("{}.{}", parts.next()?, parts.next()?))
    }

    /// What its container runs beside the SSH that Novita puts into it.
    fn start(&self) -> Start {
        let words = format!("{} {}", self.entrypoint, self.command);
        match words.trim() {
            "" => Start::Nothing,
            words => Start::OnStart(words.to_owned()),
        }
    }
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Order = body(visit.request)?;
    order.check()?;
    let (market, ports) = (order.market()?, order.ports()?);
    let (product, mut kind) = catalogue::find(visit.world, &order.product_id)?;
    if kind.price(market).is_none() {
        return bad("The product is not sold as spot");
    }
    let wanted = (order.cluster_id.as_str(), order.least_cuda()?);
    let region = catalogue::place(visit.world, product, (order.gpu_num, market), wanted)?;
    if !catalogue::has_cuda(&region, order.cuda_of_image()) {
        let text = "the host has an older CUDA version than the image";
        visit.boot.ends = BootEnd::Fails(Cause::Installation(text.to_owned()));
    }
    let (count, disk) = (Decimal::from(order.gpu_num), order.rootfs_size);
    let excess = disk_price(disk.saturating_sub(FREE_DISK));
    kind.on_demand = kind.on_demand * count + excess;
    kind.spot = kind.spot.map(|price| price * count + excess);
    let id = visit.world.chance.text(12, &LETTERS[..36]);
    let name = if order.name.is_empty() { &id } else { &order.name };
    let variables = order.envs.iter();
    let env = variables.map(|variable| (variable.key.clone(), variable.value.clone()));
    let env: BTreeMap<_, _> = env.collect();
    let rental = Rental {
        id: id.clone(),
        region,
        mark: Mark {
            name: name.clone(),
            env: env.clone(),
            ..Mark::default()
        },
        detail: json!({
            "image": order.image_url, "command": order.command, "ports": ports, "disk": disk,
            "gpus": order.gpu_num, "again": null, "frozen": false, "told": false,
        }),
        boot: Boot {
            hostname: name.clone(),
            image: order.image_url.clone(),
            user: "root".to_owned(),
            password: Some(visit.world.chance.text(16, LETTERS)),
            start: order.start(),
            env,
            ssh: SshWay::Mapped,
            gpus: vec![product.card.to_owned(); order.gpu_num as usize],
            ..Boot::default()
        },
    };
    visit.rent_on(market, &kind, rental)?;
    if let Some(machine) = visit.world.machines.get_mut(&id) {
        machine.disk_price = disk_price(disk);
    }
    Ok(Answer::json(200, &json!({ "id": id })))
}
