//! SSH keys: a launch knows them by their names, a deletion by their ids.

use serde::Deserialize;
use serde_json::json;

use super::{Form, MassedCompute, failed};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::{bad, body};

/// The kind of an SSH key, and the quota of them.
const KEY: &str = "ssh-key";

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NewKey {
    name: String,
    public_key: String,
}

/// The texts of the keys of these names.
pub(super) fn texts(visit: &Visit<'_>, names: &[String]) -> Result<Vec<String>, Refusal> {
    let text = |name: &String| {
        let found = visit.resources(KEY).find(|key| key.name == *name);
        let text = found.and_then(|key| key.detail.as_str());
        text.map(str::to_owned).ok_or_else(failed)
    };
    names.iter().map(text).collect()
}

pub(super) fn list(api: &MassedCompute, visit: &Visit<'_>) -> Answer {
    let shown = |key: &Resource| {
        let mut value = json!({ "id": key.id, "name": key.name });
        if !api.has(Form::Official) {
            value["public_key"] = key.detail.clone();
        }
        value
    };
    let keys = visit.resources(KEY).map(shown).collect();
    Answer::json(200, &json!({ "sshKeys": visit.truncate(keys) }))
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewKey { name, public_key } = body(visit.request)?;
    let is_named = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric());
    let is_known = |key: &Resource| key.name == name || key.detail == public_key;
    let is_taken = visit.resources(KEY).any(is_known);
    let account = visit.world.accounts.get(&visit.account);
    let most = account.and_then(|account| account.quotas.get(KEY));
    let is_full = most.is_some_and(|most| visit.resources(KEY).count() as u64 >= *most);
    if !is_named || is_taken || is_full || fingerprint::md5(&public_key).is_none() {
        return bad("Failed to create SSH key");
    }
    let id = visit.world.chance.uuid();
    visit.add(KEY, &id, &name, public_key.into());
    Ok(Answer::json(
        200,
        &json!({ "sshKey": { "id": id, "name": name } }),
    ))
}

/// Deletes a key. There need not be one.
pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Answer {
    visit.end(KEY, id);
    Answer::json(200, &json!({}))
}
