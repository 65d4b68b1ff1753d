//! What an organization has beside its VMs: environments and key pairs.

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Hyperstack, catalogue, conflict, date, listed, missing, number, ok};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::Answer;
use crate::core::machine::{Machine, Phase};
use crate::core::resource::Resource;
use crate::core::rest::{bad, body};

/// The kind of an environment.
pub(super) const ENVIRONMENT: &str = "environment";
/// The kind of a key pair.
pub(super) const KEY: &str = "keypair";

/// How many VMs the network of an environment has addresses for.
const ADDRESSES: usize = 250;
/// How long a VM that is gone keeps its environment from being deleted.
const LETS_GO: SignedDuration = SignedDuration::from_secs(5);

/// An environment to be made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEnvironment {
    name: String,
    region: String,
}

/// A key to be imported.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    name: String,
    environment_name: String,
    public_key: String,
}

/// An environment by its name.
pub(super) fn environment<'a>(visit: &'a Visit<'_>, name: &str) -> Result<&'a Resource, Refusal> {
    let found = visit.resources(ENVIRONMENT).find(|thing| thing.name == name);
    found.ok_or_else(|| missing(ENVIRONMENT))
}

/// The key of this name in an environment.
pub(super) fn key<'a>(visit: &'a Visit<'_>, environment: &str, name: &str) -> Option<&'a Resource> {
    let mut keys = visit.resources(KEY);
    keys.find(|key| key.detail[ENVIRONMENT] == environment && key.name == name)
}

/// A thing as answers have it, with the environment around a key.
fn shown(visit: &Visit<'_>, thing: &Resource) -> Value {
    let mut value = thing.detail.clone();
    value["id"] = json!(number(&thing.id));
    value["name"] = json!(thing.name);
    value["created_at"] = json!(date(thing.created));
    if thing.kind == KEY {
        value[ENVIRONMENT] = around(visit, &thing.detail);
    }
    value
}

/// The environment whose id these details have.
pub(super) fn around(visit: &Visit<'_>, detail: &Value) -> Value {
    let id = detail[ENVIRONMENT].as_str().unwrap_or_default();
    let found = visit.resource(ENVIRONMENT, id);
    found.map_or(Value::Null, |found| shown(visit, found))
}

pub(super) fn list(visit: &mut Visit<'_>, kind: &str) -> Result<Answer, Refusal> {
    let things = visit.resources(kind).map(|thing| shown(visit, thing));
    listed(visit, &format!("{kind}s"), things)
}

pub(super) fn get(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    let thing = visit.resource(kind, id).ok_or_else(|| missing(kind))?;
    ok(json!({ kind: shown(visit, thing) }))
}

pub(super) fn delete(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    if !visit.end(kind, id) {
        return Err(missing(kind));
    }
    ok(json!({}))
}

pub(super) fn create_environment(api: &mut Hyperstack, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewEnvironment { name, region } = body(visit.request)?;
    if !visit.world.regions.contains(&region) {
        return Err(missing("region"));
    }
    if environment(visit, &name).is_ok() {
        return conflict("An environment with this name already exists");
    }
    let detail = json!({ "region": region, "features": catalogue::features(&region) });
    let made = visit.add(ENVIRONMENT, &api.id(), &name, detail);
    ok(json!({ ENVIRONMENT: shown(visit, &made) }))
}

pub(super) fn delete_environment(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let is_gone = |at| visit.now().duration_since(at) >= LETS_GO;
    let is_inside = |machine: &Machine| {
        machine.detail[ENVIRONMENT] == id && !machine.since(Phase::Ended).is_some_and(is_gone)
    };
    if visit.world.machines_of(&visit.account).any(is_inside) {
        return bad("The environment still has virtual machines. Delete them first");
    }
    if visit.resources(KEY).any(|key| key.detail[ENVIRONMENT] == id) {
        return bad("The environment still has key pairs. Delete them first");
    }
    delete(visit, ENVIRONMENT, id)
}

/// The network of an environment, and how many VMs are in it.
pub(super) fn quota(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    get(visit, ENVIRONMENT, id)?;
    let is_inside = |machine: &&Machine| machine.exists() && machine.detail[ENVIRONMENT] == id;
    let there = visit.world.machines_of(&visit.account).filter(is_inside).count();
    ok(json!({
        "cidr": "10.0.0.0/24", "max_vms": ADDRESSES, "current_vms": there, "percentage_used": there * 100 / ADDRESSES,
        "available_vms": ADDRESSES.saturating_sub(there),
    }))
}

pub(super) fn create_key(api: &mut Hyperstack, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let new: NewKey = body(visit.request)?;
    let environment = environment(visit, &new.environment_name)?.id.clone();
    let Some(print) = fingerprint::md5(&new.public_key) else {
        return bad("The public key is not valid");
    };
    if key(visit, &environment, &new.name).is_some() {
        return conflict("A key pair with this name already exists in the environment");
    }
    let detail = json!({ "public_key": new.public_key, "fingerprint": print, ENVIRONMENT: environment });
    let made = visit.add(KEY, &api.id(), &new.name, detail);
    ok(json!({ KEY: shown(visit, &made) }))
}

/// The user whose key it is.
pub(super) fn account(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    ok(json!({ "user": { "name": visit.account, "username": visit.account } }))
}
