//! Orders of instances.

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::catalogue::{self, VM, Wanted};
use super::things::{KEY, SCRIPT};
use super::{EUROPE, JarvisLabs, is_elsewhere, number};
use crate::backend::{Boot, SshWay, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::market::{Market, Shelf};
use crate::core::rest::{Rental, RestApi, bad, body};

/// The least disk of VMs and of EU1, in GB.
const LEAST_DISK: u32 = 100;

/// The body of an order. What of it the service needs is unknown: here all that JarvisLabs' own client sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    gpu_type: String,
    num_gpus: u32,
    hdd: u32,
    region: String,
    name: String,
    is_spot: bool,
    duration: String,
    disk_type: String,
    http_ports: String,
    // Null, and nevertheless there.
    script_id: Value,
    script_args: String,
    fs_id: Value,
    arguments: String,
    #[serde(default)]
    vpc_id: Option<String>,
}

impl Order {
    /// What is refused whatever is free.
    fn check(&self, is_vm: bool) -> Result<(), Refusal> {
        let in_europe = self.region == EUROPE;
        if self.vpc_id.is_some() && !is_vm {
            return bad("Containers cannot join a VPC");
        }
        if self.is_spot && is_vm {
            return bad("Spot is for containers alone");
        }
        if (is_vm || in_europe) && self.hdd < LEAST_DISK {
            return bad("The storage must have 100 GB at least");
        }
        if self.num_gpus == 0 || (in_europe && self.num_gpus != 1) {
            return bad("Invalid number of GPUs for this region");
        }
        if self.disk_type != "ssd" {
            return bad("Invalid disk_type");
        }
        let lacking = [
            (!self.fs_id.is_null(), "filesystems"),
            (self.vpc_id.is_some(), "private networks"),
            (!self.arguments.is_empty(), "arguments of templates"),
            (!self.script_args.is_empty(), "arguments of scripts"),
            (self.duration != "hour", "weeks and months"),
        ];
        let asked = lacking.into_iter().find(|(is_asked, _)| *is_asked);
        asked.map_or(Ok(()), |(_, what)| Err(JarvisLabs::not_simulated(what)))
    }

    /// What the instance runs at its start.
    fn start(&self, visit: &Visit<'_>, is_vm: bool) -> Result<Start, Refusal> {
        let Some(id) = self.script_id.as_str() else {
            return Ok(Start::Nothing);
        };
        let Some(script) = visit.resource(SCRIPT, id) else {
            return bad("Script not found");
        };
        let text = script.detail.as_str().unwrap_or_default().to_owned();
        Ok(if is_vm {
            Start::Nothing
        } else {
            Start::OnStart(text)
        })
    }
}

pub(super) fn create(api: &mut JarvisLabs, visit: &mut Visit<'_>, template: &str) -> Result<Answer, Refusal> {
    let order: Order = body(visit.request)?;
    if !catalogue::has_template(template) {
        return bad("There is no such template");
    }
    if is_elsewhere(visit.request, &order.region) {
        return bad("The region is another one than that of this host");
    }
    let is_vm = template == VM;
    order.check(is_vm)?;
    let start = order.start(visit, is_vm)?;
    let keys = visit.resources(KEY).filter_map(|key| key.detail.as_str());
    let keys: Vec<String> = keys.map(str::to_owned).collect();
    if is_vm && keys.is_empty() {
        return bad("Add an SSH key before you create a VM");
    }
    let market = [Market::OnDemand, Market::Spot][usize::from(order.is_spot)];
    let wanted = Wanted {
        gpu: &order.gpu_type,
        count: order.num_gpus.into(),
        region: &order.region,
        is_vm,
        market,
    };
    let mut group = catalogue::find(visit.world, &wanted).ok_or(Refusal::NoCapacity)?;
    let disk = catalogue::disk(order.hdd * u32::from(!api.instances_alone));
    let whole = |price: Decimal| api.in_currency(price * Decimal::from(order.num_gpus) + disk);
    group.spot = group.spot.map(&whole);
    group.on_demand = whole(group.on_demand);
    let beside = order.num_gpus.saturating_sub(1);
    let shelf = Shelf::new(&group.name, &order.region, market);
    let id = api.id();
    let rental = Rental {
        id: id.clone(),
        mark: Mark {
            name: order.name.clone(),
            ..Mark::default()
        },
        detail: json!({
            "framework": template, "gpu_type": order.gpu_type, "num_gpus": order.num_gpus, "hdd": order.hdd,
            "is_spot": order.is_spot, "http_ports": order.http_ports, "beside": beside,
            "ram": group.memory_gb * order.num_gpus, "cores": group.vcpus * order.num_gpus,
        }),
        boot: Boot {
            hostname: order.name,
            image: template.to_owned(),
            user: ["root", "cloud"][usize::from(is_vm)].to_owned(),
            authorized_keys: keys,
            start,
            ssh: [SshWay::Mapped, SshWay::Direct][usize::from(is_vm)],
            gpus: vec![format!("NVIDIA {}", group.gpu); order.num_gpus as usize],
            ..Boot::default()
        },
        region: order.region,
    };
    visit.rent_on(market, &group, rental)?;
    for _ in 0..beside {
        visit.world.stock.take(&shelf);
    }
    Ok(Answer::json(
        200,
        &json!({ "success": true, "machine_id": number(&id) }),
    ))
}
