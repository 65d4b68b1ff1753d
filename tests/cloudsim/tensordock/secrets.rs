//! Secrets, among them SSH keys that orders name.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Envelope, data, missing};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::body;

/// The kind of a secret.
pub(super) const SECRET: &str = "secret";
/// The type of a secret that is a public key.
pub(super) const KEY: &str = "SSHKEY";

/// A secret to be stored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSecret {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    value: String,
}

/// A secret without what it holds.
fn shown(secret: &Resource) -> Value {
    json!({ "id": secret.id, "name": secret.name, "type": secret.detail["type"] })
}

pub(super) fn list(visit: &mut Visit<'_>) -> Answer {
    let all = visit.resources(SECRET).map(shown).collect();
    data(json!({ "secrets": visit.truncate(all) }))
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let new = body::<Envelope<NewSecret>>(visit.request)?.data.attributes;
    let id = visit.world.chance.uuid();
    let detail = json!({ "type": new.kind, "value": new.value });
    let made = visit.add(SECRET, &id, &new.name, detail);
    Ok(data(shown(&made)))
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let ended = visit.end(SECRET, id).then(|| Answer::json(200, &json!({})));
    ended.ok_or_else(|| missing("Secret"))
}
