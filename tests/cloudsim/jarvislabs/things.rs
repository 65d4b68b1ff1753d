//! What an account has beside its instances: SSH keys, startup scripts, money.

use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{JarvisLabs, done, missing, number};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::{Answer, Request};
use crate::core::rest::{bad, body};

/// The kind of an SSH key.
pub(super) const KEY: &str = "ssh-key";
/// The kind of a startup script.
pub(super) const SCRIPT: &str = "script";

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    ssh_key: String,
    key_name: String,
}

/// All keys, a bare list.
pub(super) fn keys(visit: &Visit<'_>) -> Answer {
    let keys = visit.resources(KEY).map(
        |key| json!({ "ssh_key": key.detail, "key_name": key.name, "key_id": key.id, "user_id": key.account }),
    );
    let all = keys.collect();
    Answer::json(200, &visit.truncate(all).into())
}

pub(super) fn create_key(api: &mut JarvisLabs, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewKey { ssh_key, key_name } = body(visit.request)?;
    if fingerprint::md5(&ssh_key).is_none() {
        return bad("Invalid SSH key");
    }
    visit.add(KEY, &api.id(), &key_name, ssh_key.into());
    Ok(done("SSH key added"))
}

pub(super) fn delete(visit: &mut Visit<'_>, kind: &str, id: &str) -> Result<Answer, Refusal> {
    if !visit.end(kind, id) {
        return Err(missing(kind));
    }
    Ok(done("Deleted"))
}

pub(super) fn scripts(visit: &Visit<'_>) -> Answer {
    let scripts = visit
        .resources(SCRIPT)
        .map(|script| json!({ "script_id": number(&script.id), "script_name": script.name }));
    let all = scripts.collect();
    Answer::json(200, &json!({ "script_meta": visit.truncate(all) }))
}

/// The file `script` of a form.
fn file(request: &Request) -> Option<String> {
    let (_, boundary) = request.header("content-type")?.split_once("boundary=")?;
    let delimiter = format!("--{}", boundary.trim_matches('"'));
    let text = String::from_utf8(request.body.to_vec()).ok()?;
    let found = text.split(delimiter.as_str()).find_map(|part| {
        let (head, content) = part.split_once("\r\n\r\n")?;
        let is_meant = head.contains("name=\"script\"");
        is_meant.then(|| content.strip_suffix("\r\n").unwrap_or(content).to_owned())
    });
    found.filter(|script| !script.trim().is_empty())
}

pub(super) fn create_script(api: &mut JarvisLabs, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let Some(script) = file(visit.request) else {
        return bad("The form has no file named script, or an empty one");
    };
    let name = visit.request.parameter("name").unwrap_or_default();
    visit.add(SCRIPT, &api.id(), name, Value::from(script));
    Ok(done("Script added"))
}

pub(super) fn delete_script(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = visit.request.parameter("script_id").unwrap_or_default();
    visit.subject = Some(id.to_owned());
    delete(visit, SCRIPT, id)
}

/// What is left in the wallet; much where a test did not say.
pub(super) fn balance(visit: &Visit<'_>) -> Answer {
    let account = visit.world.accounts.get(&visit.account);
    let left = account.and_then(|account| account.balance);
    let left = left.unwrap_or(Decimal::from(100)).to_f64();
    Answer::json(200, &json!({ "balance": left, "grants": 0.0 }))
}
