//! What a project has beside its servers: SSH keys and block volumes.

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

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
/// The tag of our own that has the id of the server that a volume is attached to.
const SERVER: &str = "server";
/// How long a volume is attached to a server that is gone.
const DETACHES: SignedDuration = SignedDuration::from_secs(3);

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    name: String,
    public_key: String,
    project_id: String,
}

fn server_of(thing: &Resource) -> Option<&str> {
    thing.tags.get(SERVER).map(String::as_str)
}

/// The volume that a server has.
pub(super) fn volume_of<'a>(world: &'a World, server: &str) -> Option<&'a Resource> {
    let mut things = world.resources.values();
    things.find(|thing| thing.exists() && server_of(thing) == Some(server))
}

/// The address of a server that runs.
pub(super) fn endpoint(server: &Machine) -> Option<&str> {
    let endpoint = server
        .endpoint
        .as_ref()
        .filter(|_| server.phase == Phase::Running);
    endpoint.map(|endpoint| endpoint.address.as_str())
}

fn shown(thing: &Resource) -> Value {
    let (mut value, server) = (thing.detail.clone(), server_of(thing));
    if thing.kind == VOLUME {
        let reference = json!({
            "id": thing.id, "product_resource_type": "instance_server", "product_resource_id": server,
            "created_at": date(thing.created), "type": "exclusive", "status": "attached",
        });
        value["references"] = server.map(|_| reference).into_iter().collect();
        value["status"] = if server.is_some() { "in_use" } else { "available" }.into();
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
        let fields = ["project_id", "organization_id"];
        visit.fits(thing, &fields) && is_meant(visit, thing)
    };
    listed(visit, &format!("{kind}s"), things.map(shown).filter(fits))
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
    Ok(Answer::json(200, &shown(thing)))
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
    Ok(Answer::json(200, &shown(&key)))
}

/// The root volume of a server, of this size in this project. The price is in thousandths of a euro.
pub(super) fn add_volume(
    visit: &mut Visit<'_>,
    server: &str,
    name: &str,
    [size, project]: [Value; 2],
    price: Decimal,
) {
    let detail = json!({
        "name": name, "size": size, "project_id": project, "type": "sbs_5k", "tags": [], "parent_snapshot_id": null,
        "specs": { "perf_iops": 5_000, "class": "sbs" }, "last_detached_at": null,
    });
    let volume = add(visit, VOLUME, detail, price.normalize());
    if let Some(volume) = visit.world.resources.get_mut(&volume.id) {
        volume.tags.insert(SERVER.to_owned(), server.to_owned());
    }
}

/// New names of a volume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Names {
    name: Option<String>,
    tags: Option<Vec<String>>,
}

pub(super) fn name_volume(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let new: Names = body(visit.request)?;
    own(visit, VOLUME, id)?;
    if let Some(volume) = visit.world.resources.get_mut(id) {
        let name = new.name.map(Value::from);
        volume.detail["name"] = name.unwrap_or_else(|| volume.detail["name"].take());
        let tags = new.tags.map(Value::from);
        volume.detail["tags"] = tags.unwrap_or_else(|| volume.detail["tags"].take());
    }
    get(visit, VOLUME, id)
}

/// A server is gone: after a while its volume is free.
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
