//! What a project has beside its servers: SSH keys, block volumes, addresses.

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::catalogue::GB;
use super::{date, listed, missing, refused, zone};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::Answer;
use crate::core::machine::{Machine, Phase};
use crate::core::resource::Resource;
use crate::core::rest::{bad, body, has};
use crate::core::world::World;

/// The kind of an SSH key.
pub(super) const KEY: &str = "ssh_key";
/// The kind of a block volume.
pub(super) const VOLUME: &str = "volume";
/// The kind of an address.
pub(super) const ADDRESS: &str = "ip";
/// The tag of our own that has the id of the server that a volume or an address is attached to.
pub(super) const SERVER: &str = "server";
/// What an address costs an hour, in thousandths of a euro.
pub(super) const PRICE_OF_ADDRESS: i64 = 4;
/// How long a volume or an address is attached to a server that is gone.
const DETACHES: SignedDuration = SignedDuration::from_secs(3);

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    name: String,
    public_key: String,
    project_id: String,
}

/// An address to be reserved.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewAddress {
    project: String,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(rename = "type")]
    _type: Option<String>,
}

pub(super) fn server_of(thing: &Resource) -> Option<&str> {
    thing.tags.get(SERVER).map(String::as_str)
}

/// The things of a kind that a server has.
pub(super) fn attached<'a>(
    world: &'a World,
    kind: &'a str,
    server: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    let things = world.resources.values();
    things.filter(move |thing| thing.kind == kind && thing.exists() && server_of(thing) == Some(server))
}

/// The address of a server that runs.
pub(super) fn endpoint(server: &Machine) -> Option<&str> {
    let endpoint = server
        .endpoint
        .as_ref()
        .filter(|_| server.phase == Phase::Running);
    endpoint.map(|endpoint| endpoint.address.as_str())
}

fn shown(visit: &Visit<'_>, thing: &Resource) -> Value {
    let (mut value, server) = (thing.detail.clone(), server_of(thing));
    if thing.kind == VOLUME {
        let reference = json!({
            "id": thing.id, "product_resource_type": "instance_server", "product_resource_id": server,
            "created_at": date(thing.created), "type": "exclusive", "status": "attached",
        });
        value["references"] = server.map(|_| reference).into_iter().collect();
        value["status"] = if server.is_some() { "in_use" } else { "available" }.into();
    }
    if thing.kind == ADDRESS {
        let machine = server.and_then(|server| visit.world.machines.get(server));
        value["address"] = machine.and_then(endpoint).unwrap_or("51.15.0.1").into();
        value["state"] = if server.is_some() { "attached" } else { "detached" }.into();
        value["server"] = server.map(|server| json!({ "id": server, "name": "" })).into();
    }
    value
}

/// Whether a list asks for something with this name and these tags: a name contains the one that is asked
/// for, and all tags must be there.
pub(super) fn is_meant(visit: &Visit<'_>, thing: &Value) -> bool {
    let asked = |name: &'static str| visit.request.parameters(name);
    let name = thing["name"].as_str().unwrap_or_default();
    let mut tags = asked("tags").flat_map(|tags| tags.split(','));
    asked("name").all(|asked| name.contains(asked)) && tags.all(|tag| has(&thing["tags"], tag))
}

pub(super) fn list(visit: &mut Visit<'_>, kind: &str) -> Result<Answer, Refusal> {
    let zone = zone(visit)?;
    let things = visit.resources(kind).filter(|thing| thing.region == zone);
    let fits = |thing: &Value| {
        let fields = ["project", "project_id", "organization_id"];
        visit.fits(thing, &fields) && is_meant(visit, thing)
    };
    let shown = things.map(|thing| shown(visit, thing));
    listed(visit, &format!("{kind}s"), shown.filter(fits))
}

/// A thing by its id, in the zone of the call where it has one.
pub(super) fn own<'a>(visit: &'a Visit<'_>, kind: &str, id: &str) -> Result<&'a Resource, Refusal> {
    let zone = zone(visit)?;
    let thing = visit.resource(kind, id).filter(|thing| thing.region == zone);
    thing.ok_or_else(|| missing(kind))
}

/// Keys and volumes are told without a field around them.
pub(super) fn get(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    let thing = own(visit, kind, id)?;
    Ok(Answer::json(200, &shown(visit, thing)))
}

pub(super) fn delete(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    let thing = own(visit, kind, id)?;
    if kind == VOLUME && server_of(thing).is_some() {
        return refused(412, "precondition_failed", "the volume is in use");
    }
    visit.end(kind, id);
    Ok(Answer::empty(204))
}

/// Adds something at the price of an hour in thousandths of a euro.
fn add(visit: &mut Visit<'_>, kind: &'static str, detail: Value, price: Decimal) -> Resource {
    let id = visit.world.chance.uuid();
    let name = detail["name"].as_str().unwrap_or_default();
    let mut thing = visit.world.new_resource(&id, kind, &visit.account, name);
    thing.region = zone(visit).unwrap_or_default();
    thing.detail = detail;
    thing.detail["id"] = id.into();
    thing.detail["zone"] = thing.region.clone().into();
    thing.detail["created_at"] = date(visit.now()).into();
    let price = price / Decimal::ONE_THOUSAND;
    visit.world.add_resource(thing.clone(), price);
    thing
}

pub(super) fn create_key(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let new: NewKey = body(visit.request)?;
    let Some(print) = fingerprint::md5(&new.public_key) else {
        return bad("public_key: wrongly formatted");
    };
    let words: Vec<&str> = new.public_key.split_whitespace().collect();
    let print = format!("256 MD5:{print} {} ({})", words.get(2).unwrap_or(&""), words[0]);
    let detail = json!({
        "name": new.name, "public_key": new.public_key, "project_id": new.project_id, "fingerprint": print,
        "organization_id": visit.account, "disabled": false,
    });
    let key = add(visit, KEY, detail, Decimal::ZERO);
    Ok(Answer::json(200, &shown(visit, &key)))
}

/// The root volume of a server. A GB costs a ten thousandth of a euro in an hour.
pub(super) fn add_volume(visit: &mut Visit<'_>, server: &str, name: &Value, size: u64, project: &str) {
    let price = Decimal::from(size) / Decimal::from(10 * GB);
    let detail = json!({
        "name": name, "size": size, "project_id": project, "type": "sbs_5k", "tags": [], "parent_snapshot_id": null,
        "specs": { "perf_iops": 5_000, "class": "sbs" }, "last_detached_at": null,
    });
    let volume = add(visit, VOLUME, detail, price.normalize());
    attach(visit.world, &volume.id, server);
}

pub(super) fn create_address(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let new: NewAddress = body(visit.request)?;
    let detail = json!({
        "project": new.project, "tags": new.tags, "organization": visit.account, "type": "routed_ipv4",
        "reverse": null, "ipam_id": "",
    });
    let thing = add(visit, ADDRESS, detail, Decimal::from(PRICE_OF_ADDRESS));
    Ok(Answer::json(201, &json!({ "ip": shown(visit, &thing) })))
}

pub(super) fn attach(world: &mut World, thing: &str, server: &str) {
    if let Some(thing) = world.resources.get_mut(thing) {
        thing.tags.insert(SERVER.to_owned(), server.to_owned());
    }
}

/// A server is gone: after a while its volume and its address are free.
pub(super) fn let_go(world: &mut World, server: &str) {
    let things = world.resources.values();
    let its = things.filter(|thing| server_of(thing) == Some(server));
    let ids: Vec<String> = its.map(|thing| thing.id.clone()).collect();
    for id in ids {
        world.remind(DETACHES, id);
    }
}

pub(super) fn detach(world: &mut World, thing: &str) {
    if let Some(thing) = world.resources.get_mut(thing) {
        thing.tags.remove(SERVER);
    }
}
