//! Volumes on the disk of a host: they outlive the instances there that have them, and cost by
//! their size from when they are rented.
//!
//! Assumed, since no fact says it: a host has one offer of its whole disk, which several volumes
//! share. Volumes of a network are not simulated.

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::contracts::decimal;
use super::filter;
use super::market::Host;
use super::offers::number;
use super::reply::{Failure, Outcome};
use crate::core::resource::Resource;

/// The kind of volumes among resources.
const VOLUME: &str = "volume";
/// Difference between the number of an offer and that of its host.
const OFFERS: i64 = 50_000_000;
/// Gigabytes where the order names none.
const USUAL_SIZE: i64 = 15;

fn volumes<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = &'a Resource> {
    context.visit.world.resources_of(&context.visit.account, VOLUME)
}

fn own<'a>(context: &'a Context<'_, '_>, id: i64) -> Option<&'a Resource> {
    volumes(context).find(|volume| volume.id == id.to_string())
}

/// The instances that have a volume and exist.
fn holders(context: &Context<'_, '_>, volume: &Resource) -> Vec<i64> {
    volume.detail["instances"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_i64)
        .filter(|id| context.instance(&id.to_string()).is_ok())
        .collect()
}

/// What offers and volumes say about the host.
fn host_fields(host: &Host) -> Value {
    json!({
        "machine_id": host.machine_id, "host_id": host.host_id, "cluster_id": host.cluster_id,
        "geolocation": host.geolocation, "public_ipaddr": host.public_ip, "cpu_arch": "amd64",
        "cpu_name": "AMD EPYC 7543", "disk_name": "nvme", "disk_bw": 2_000.0, "driver_version": "570.86.15",
        "cuda_max_good": number(host.cuda), "reliability2": number(host.reliability),
        "verification": if host.verified { "verified" } else { "unverified" },
        "inet_up": 700.0, "inet_down": 900.0, "static_ip": host.direct_ports > 0,
    })
}

fn joined(parts: [Value; 2]) -> Map<String, Value> {
    let mut all = Map::new();
    for part in parts {
        if let Value::Object(fields) = part {
            all.extend(fields);
        }
    }
    all
}

/// `POST /api/v0/volumes/search/`.
pub fn search(context: &Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let mut filters = body.clone();
    filters.retain(|name, _| !filter::PLAIN.contains(&name.as_str()));
    let storage = body
        .get("allocated_storage")
        .and_then(decimal)
        .unwrap_or_default();
    let market = &context.state.market;
    let now = context.visit.now().as_second();
    let mut found = Vec::new();
    for host in market.hosts().filter(|host| !host.delisted) {
        let end = host.listed_until.as_second();
        let own = json!({
            "id": OFFERS + host.machine_id, "ask_contract_id": OFFERS + host.machine_id, "bundle_id": host.machine_id,
            "disk_space": host.disk_space, "storage_cost": number(host.storage_cost),
            "storage_total_cost": number(market.disk_price(host.machine_id, storage)),
            "reliability": number(host.reliability), "verified": host.verified, "external": host.external,
            "end_date": end as f64, "duration": (end - now).max(0) as f64, "cpu_ghz": 3.0, "score": 100.0,
        });
        let offer = joined([host_fields(host), own]);
        if filter::matches(&offer, &filters).map_err(Failure::arguments)? {
            found.push(offer);
        }
    }
    let limit = body.get("limit").and_then(Value::as_u64).unwrap_or(64);
    found.truncate(limit as usize);
    Ok(json!({"offers": context.cut(found)}))
}

/// Rents gigabytes of an offer.
fn make(context: &mut Context<'_, '_>, offer: i64, size: Option<Decimal>, name: &str) -> Result<i64, String> {
    let size = size.unwrap_or_else(|| Decimal::from(USUAL_SIZE));
    let host = context.state.market.host(offer - OFFERS);
    let Some(host) = host.filter(|host| !host.delisted) else {
        return Err(format!("There is no volume offer {offer}."));
    };
    if size < Decimal::ONE || size > Decimal::from(host.disk_space) {
        return Err(format!("The offer has {} GB, not {size}.", host.disk_space));
    }
    let (machine, price) = (
        host.machine_id,
        context.state.market.disk_price(host.machine_id, size),
    );
    let id = context.number();
    let mut resource =
        context
            .visit
            .world
            .new_resource(&id.to_string(), VOLUME, &context.visit.account, name);
    resource.detail = json!({"machine": machine, "size": number(size), "instances": []});
    context.visit.world.add_resource(resource, price);
    context.visit.subject = Some(id.to_string());
    Ok(id)
}

/// As an answer, for which the description has no other status.
fn answer(made: Result<i64, String>) -> Value {
    match made {
        Ok(id) => json!({"success": true, "volume_name": format!("V.{id}")}),
        Err(text) => json!({"success": false, "error": "invalid_args", "msg": text}),
    }
}

/// `PUT /api/v0/volumes/`.
pub fn rent(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let offer = body.get("id").and_then(Value::as_i64).unwrap_or_default();
    let name = Context::text(&body, "name");
    let size = body.get("size").and_then(decimal);
    Ok(answer(make(context, offer, size, &name)))
}

/// `POST /api/v0/volumes/copy/`: rents another of at least that size.
pub fn copy(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let number = |name: &str| body.get(name).and_then(Value::as_i64).unwrap_or_default();
    let Some(source) = own(context, number("src_id")) else {
        return Err(missing());
    };
    let (least, name) = (decimal(&source.detail["size"]), source.name.clone());
    let size = body.get("size").and_then(decimal).or(least);
    if size < least {
        let text = "A copy cannot be smaller than what is copied.";
        return Ok(answer(Err(text.to_owned())));
    }
    Ok(answer(make(context, number("dst_id"), size, &name)))
}

fn missing() -> Failure {
    Failure::new(404, "no_such_volume", "Volume with that ID does not exist.")
}

/// `GET /api/v0/volumes/`.
pub fn list(context: &Context<'_, '_>) -> Outcome {
    let network = context.visit.request.parameter("type") == Some("network_volume");
    let found = volumes(context).filter(|_| !network).filter_map(|volume| {
        let host = context.state.market.host(volume.detail["machine"].as_i64()?)?;
        let holders = holders(context, volume).into_iter().map(|id| json!({ "id": id }));
        let own = json!({
            "id": volume.id.parse::<i64>().unwrap_or_default(), "label": volume.name, "status": "active",
            "disk_space": volume.detail["size"], "instances": holders.collect::<Vec<_>>(),
            "storage_total_cost": number(volume.tab.rate()), "start_date": volume.created.as_second() as f64,
        });
        Some(joined([host_fields(host), own]))
    });
    let found: Vec<Map<String, Value>> = found.collect();
    Ok(json!({"success": true, "volumes": context.cut(found)}))
}

/// `DELETE /api/v0/volumes/`: by the body, or as the service's own client does by the query.
pub fn delete(context: &mut Context<'_, '_>) -> Outcome {
    let named = context.visit.request.parameter("id");
    let named = named.and_then(|text| text.parse::<i64>().ok());
    let body = context.body().unwrap_or_default();
    let id = named.or_else(|| body.get("id").and_then(Value::as_i64));
    let id = id.ok_or_else(|| Failure::arguments("Please provide a valid volume ID."))?;
    let volume = own(context, id).ok_or_else(missing)?;
    if !holders(context, volume).is_empty() {
        return Err(Failure::arguments(
            "All instances that use the volume have to be destroyed first.",
        ));
    }
    context.visit.world.end_resource(&id.to_string());
    context.visit.subject = Some(id.to_string());
    Ok(json!({"success": true}))
}

/// The volume that an order names.
pub enum Wanted {
    /// A new one of an offer, with gigabytes and a name.
    New(i64, Option<Decimal>, String),
    /// One of the account.
    Linked(i64),
}

/// The volume that an order on this host names; fails when it is on another.
pub fn wanted(
    context: &Context<'_, '_>,
    body: &Map<String, Value>,
    machine: i64,
) -> Result<Option<Wanted>, Failure> {
    let Some(info) = body.get("volume_info").and_then(Value::as_object) else {
        return Ok(None);
    };
    let id = info.get("volume_id").and_then(Value::as_i64).unwrap_or_default();
    if Context::text(info, "mount_path").is_empty() {
        return Err(Failure::arguments("volume_info: 'mount_path' is required"));
    }
    let elsewhere = || Failure::arguments(format!("volume_info: {id} is not on this machine"));
    if info.get("create_new") == Some(&Value::Bool(true)) {
        if id != OFFERS + machine {
            return Err(elsewhere());
        }
        let size = info.get("size").and_then(decimal);
        let most = context
            .state
            .market
            .host(machine)
            .map(|host| Decimal::from(host.disk_space));
        if size.is_some_and(|size| size < Decimal::ONE) || size > most {
            return Err(Failure::arguments("volume_info: 'size' is not on offer"));
        }
        return Ok(Some(Wanted::New(id, size, Context::text(info, "name"))));
    }
    let volume = own(context, id).ok_or_else(elsewhere)?;
    if volume.detail["machine"].as_i64() == Some(machine) {
        Ok(Some(Wanted::Linked(id)))
    } else {
        Err(elsewhere())
    }
}

/// Gives an instance its volume.
pub fn mount(context: &mut Context<'_, '_>, wanted: Wanted, instance: &str) {
    let made = match wanted {
        Wanted::New(offer, size, name) => make(context, offer, size, &name).ok(),
        Wanted::Linked(id) => Some(id),
    };
    // The call is about the instance.
    context.visit.subject = Some(instance.to_owned());
    let Some(id) = made else {
        return;
    };
    let number: i64 = instance.parse().unwrap_or_default();
    let world = &mut *context.visit.world;
    if let Some(volume) = world.resources.get_mut(&id.to_string())
        && let Some(list) = volume.detail["instances"].as_array_mut()
    {
        list.push(json!(number));
    }
    if let Some(machine) = world.machines.get_mut(instance)
        && let Some(list) = machine.detail["volumes"].as_array_mut()
    {
        list.push(json!({ "id": id }));
    }
}
