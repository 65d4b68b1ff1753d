//! SSH keys: orders know them by name, deletions by id.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{data, list, problem};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::body;

/// The kind of an SSH key.
const KEY: &str = "ssh-key";

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Add {
    name: String,
    public_key: Option<String>,
}

/// The text of the key of this name.
pub(super) fn text(visit: &Visit<'_>, name: &str) -> Option<String> {
    let found = visit.resources(KEY).find(|key| key.name == name)?;
    found.detail.as_str().map(str::to_owned)
}

fn shown(key: &Resource) -> Value {
    json!({ "id": key.id, "name": key.name, "public_key": key.detail })
}

pub(super) fn list_all(visit: &mut Visit<'_>) -> Answer {
    list(visit, visit.resources(KEY).map(shown).collect())
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let Add { name, public_key } = body(visit.request)?;
    if name.is_empty() || name.len() > 64 {
        return Err(Refusal::Bad("name: 1 to 64 characters".to_owned()));
    }
    if text(visit, &name).is_some() {
        // There is a code `global/duplicate`, but not for this call.
        return Err(Refusal::Bad(
            "An SSH key with this name already exists.".to_owned(),
        ));
    }
    let id = visit.world.chance.hex(32);
    // Without a text Lambda makes a pair, and tells the private half once.
    let made = public_key
        .is_none()
        .then(|| format!("private-{}", visit.world.chance.hex(32)));
    let public = public_key.unwrap_or_else(|| format!("ssh-ed25519 {id} made-by-lambda"));
    let mut answer = shown(&visit.add(KEY, &id, &name, Value::from(public)));
    if let Some(private) = made {
        answer["private_key"] = private.into();
    }
    Ok(data(&answer))
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    if !visit.end(KEY, id) {
        // This call has a code of its own for it.
        let gone = problem(404, "global/not-found", "Specified SSH key does not exist.");
        return Err(Refusal::Answer(gone));
    }
    Ok(data(&json!({})))
}
