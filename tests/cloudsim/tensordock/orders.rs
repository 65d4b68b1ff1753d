//! Orders of machines.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::catalogue::{self, Host};
use super::secrets::{KEY, SECRET};
use super::{Envelope, TensorDock, data};
use crate::backend::{Boot, SshWay, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::Answer;
use crate::core::machine::Mark;
use crate::core::rest::{Rental, RestApi, bad, body};

#[rustfmt::skip]
const IMAGES: [&str; 5] =
    ["ubuntu2404", "ubuntu2204", "ubuntu2404_ml_everything", "ubuntu2404_ml_pytorch", "ubuntu2404_ml_tensorflow"];

/// What an order has in `data.attributes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    name: String,
    /// The description judges it.
    #[serde(rename = "type")]
    _kind: String,
    image: String,
    resources: Resources,
    location_id: Option<String>,
    hostnode_id: Option<String>,
    ssh_key: Option<String>,
    ssh_key_id: Option<String>,
    #[serde(default)]
    port_forwards: Vec<Forward>,
    #[serde(default, rename = "useDedicatedIp")]
    use_dedicated_ip: bool,
    cloud_init: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    vcpu_count: u32,
    ram_gb: u32,
    storage_gb: u32,
    #[serde(default)]
    gpus: BTreeMap<String, Gpus>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Gpus {
    count: u32,
}

/// A port of a machine, and the port of its host that leads to it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Forward {
    internal_port: u16,
    external_port: u16,
}

/// The public key of an order.
fn public_key(visit: &Visit<'_>, order: &Order) -> Result<String, Refusal> {
    let key = match (&order.ssh_key, &order.ssh_key_id) {
        (Some(key), None) => key.clone(),
        (None, Some(id)) => {
            let secret = visit.resource(SECRET, id);
            let secret = secret.filter(|secret| secret.detail["type"] == KEY);
            let value = secret.and_then(|secret| secret.detail["value"].as_str());
            value.unwrap_or_default().to_owned()
        }
        (None, None) => return bad("An SSH key is required"),
        (Some(_), Some(_)) => return bad("Provide either ssh_key or ssh_key_id, not both"),
    };
    match fingerprint::md5(&key) {
        Some(_) => Ok(key),
        None => bad("The SSH key is not valid"),
    }
}

/// The host of an order, and how many of its GPUs the order wants.
fn placement(order: &Order) -> Result<(&'static Host, u32), Refusal> {
    let mut gpus = order.resources.gpus.iter();
    let (Some((gpu, Gpus { count })), None) = (gpus.next(), gpus.next()) else {
        return match order.location_id {
            Some(_) if order.resources.gpus.is_empty() => bad("A location needs at least one GPU"),
            _ => Err(TensorDock::not_simulated("no GPUs, or several models")),
        };
    };
    let host = match (&order.location_id, &order.hostnode_id) {
        (Some(location), None) => catalogue::host_at(location, gpu)?,
        (None, Some(id)) => catalogue::host_named(id).ok_or(Refusal::NoCapacity)?,
        _ => return bad("Provide exactly one of location_id and hostnode_id"),
    };
    if host.gpu != gpu || *count > host.gpus {
        return Err(Refusal::NoCapacity);
    }
    Ok((host, *count))
}

/// Whether sizes are in the steps in which TensorDock sells them.
fn is_in_steps([_, vcpus, memory, storage]: [u32; 4]) -> bool {
    let is_memory = memory.is_multiple_of(8) || (memory < 8 && memory.is_multiple_of(2));
    vcpus.is_multiple_of(2) && is_memory && storage.is_multiple_of(50)
}

/// The way to SSH and the ports that are forwarded, as answers have them.
fn network(
    api: &mut TensorDock,
    visit: &Visit<'_>,
    order: &Order,
    host: &Host,
) -> Result<(SshWay, Vec<Value>), Refusal> {
    if order.use_dedicated_ip {
        if !host.has_addresses {
            return bad("No dedicated IP is available");
        }
        return Ok((SshWay::Direct, Vec::new()));
    }
    let forwards = &order.port_forwards;
    if !forwards.is_empty() && !host.forwards_ports {
        return bad("Port forwarding is not available");
    }
    let free = host.free_ports(visit.world);
    let is_bad = |forward: &Forward| order.hostnode_id.is_some() && !free.contains(&forward.external_port);
    if let Some(forward) = forwards.iter().find(|forward| is_bad(forward)) {
        return bad(&format!("Port {} is not available", forward.external_port));
    }
    let mut way = SshWay::Mapped;
    let mut shown = Vec::new();
    for forward in forwards {
        let mut external = forward.external_port;
        let is_ssh = forward.internal_port == 22;
        // The port to SSH that TensorDock chooses is known once the machine is there.
        if is_ssh && external > 0 {
            way = SshWay::At(external);
        } else if !is_ssh && external == 0 {
            external = api.port();
        }
        shown.push(json!({ "internal_port": forward.internal_port, "external_port": external }));
    }
    Ok((way, shown))
}

/// What cloud-init gets. An empty list asks for nothing.
fn user_data(config: &Map<String, Value>) -> Start {
    let mut config = config.clone();
    config.retain(|_, value| *value != json!([]));
    Start::UserData(format!("#cloud-config\n{}\n", Value::Object(config)))
}

pub(super) fn create(api: &mut TensorDock, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order = body::<Envelope<Order>>(visit.request)?.data.attributes;
    if order.image.starts_with("windows") {
        return Err(TensorDock::not_simulated("Windows"));
    }
    if !IMAGES.contains(&order.image.as_str()) {
        return bad("The image does not exist");
    }
    let key = public_key(visit, &order)?;
    let (host, gpus) = placement(&order)?;
    let sizes = &order.resources;
    let amounts = [gpus, sizes.vcpu_count, sizes.ram_gb, sizes.storage_gb];
    if !is_in_steps(amounts) {
        return bad("vCPUs come in steps of 2, memory in steps of 8 GB, storage in steps of 50 GB");
    }
    let (way, forwards) = network(api, visit, &order, host)?;
    let balance = visit.world.accounts.get(&visit.account);
    let balance = balance.and_then(|account| account.balance);
    if balance.is_some_and(|balance| balance < Decimal::ONE) {
        return Err(Refusal::Funds);
    }
    if amounts[1..]
        .iter()
        .zip(host.most)
        .any(|(amount, most)| *amount > most)
    {
        return Err(Refusal::NoCapacity);
    }
    let found = visit.world.types.get(host.gpu).cloned();
    let prices = host.prices(visit.world, amounts);
    let (mut kind, [cards, vcpus, memory, disk]) = found.zip(prices).ok_or(Refusal::NoCapacity)?;
    let address = catalogue::ADDRESS * Decimal::from(u8::from(order.use_dedicated_ip));
    let halted = cards + disk + address;
    kind.on_demand = halted + vcpus + memory;
    let with_driver = gpus as usize * usize::from(order.image.contains("_ml_"));
    let id = visit.world.chance.uuid();
    let rental = Rental {
        id: id.clone(),
        region: host.location.id.to_owned(),
        mark: Mark::of_texts(&order.name, &[]),
        detail: json!({
            "host": host.id, "image": order.image, "resources": order.resources, "forwards": forwards,
            "freed": false, "lost": false, "halted_price": halted.to_string(), "disk_price": disk.to_string(),
        }),
        boot: Boot {
            hostname: order.name.clone(),
            image: order.image,
            user: "user".to_owned(),
            authorized_keys: vec![key],
            start: order.cloud_init.as_ref().map_or(Start::Nothing, user_data),
            ssh: way,
            gpus: vec![kind.gpu.clone(); with_driver],
            ..Boot::default()
        },
    };
    visit.rent(&kind, rental)?;
    Ok(data(
        json!({ "type": "virtualmachine", "id": id, "name": order.name, "status": "running" }),
    ))
}
