//! SSH keys and startup scripts: texts with a name. Neither a name nor a text need be new.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{date, listed, missing, uuid};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::body;

/// The kind of an SSH key.
pub(super) const KEY: &str = "ssh-key";
/// The kind of a startup script.
pub(super) const SCRIPT: &str = "startup-script";

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    name: String,
    ssh_key: String,
}

/// A script to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewScript {
    name: String,
    script: String,
    r#type: Option<String>,
}

/// The field of answers that has things of a kind; lists have it with an `s`.
fn member(kind: &str) -> String {
    kind.replace('-', "_")
}

fn shown(thing: &Resource) -> Value {
    let mut value = thing.detail.clone();
    value["id"] = thing.id.clone().into();
    value["name"] = thing.name.clone().into();
    value["date_created"] = date(thing.created).into();
    value
}

pub(super) fn list(visit: &mut Visit<'_>, kind: &str) -> Result<Answer, Refusal> {
    let found = visit.resources(kind);
    let found = found.map(|thing| (thing.id.clone(), shown(thing)));
    listed(visit, &format!("{}s", member(kind)), found.collect())
}

/// One of the account's own, by its id.
pub(super) fn own<'a>(visit: &'a Visit<'_>, kind: &str, id: &str) -> Result<&'a Resource, Refusal> {
    uuid(kind, id)?;
    visit.resource(kind, id).ok_or_else(|| missing(kind))
}

pub(super) fn get(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    let thing = shown(own(visit, kind, id)?);
    Ok(Answer::json(200, &json!({ member(kind): thing })))
}

fn create(visit: &mut Visit<'_>, kind: &'static str, name: &str, detail: Value) -> Result<Answer, Refusal> {
    if name.is_empty() {
        return Err(Refusal::Bad("Invalid name.".to_owned()));
    }
    let id = visit.world.chance.uuid();
    let thing = shown(&visit.add(kind, &id, name, detail));
    Ok(Answer::json(201, &json!({ member(kind): thing })))
}

pub(super) fn create_key(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewKey { name, ssh_key } = body(visit.request)?;
    let mut parts = ssh_key.split_whitespace();
    let kind = parts.next().unwrap_or_default();
    let known = ["ssh-", "ecdsa-", "sk-"]
        .iter()
        .any(|start| kind.starts_with(start));
    if !known || parts.next().is_none() {
        return Err(Refusal::Bad("Invalid SSH key.".to_owned()));
    }
    create(visit, KEY, &name, json!({ "ssh_key": ssh_key }))
}

pub(super) fn create_script(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let new: NewScript = body(visit.request)?;
    let kind = new.r#type.unwrap_or_else(|| "boot".to_owned());
    if STANDARD.decode(&new.script).is_err() || !["boot", "pxe"].contains(&kind.as_str()) {
        return Err(Refusal::Bad(
            "Invalid script: base64 of the type boot or pxe.".to_owned(),
        ));
    }
    let modified = date(visit.now());
    let detail = json!({ "script": new.script, "type": kind, "date_modified": modified });
    create(visit, SCRIPT, &new.name, detail)
}

pub(super) fn delete(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    own(visit, kind, id)?;
    visit.end(kind, id);
    Ok(Answer::empty(204))
}
