//! SSH keys and start-up scripts: texts with an id.

use serde_json::{Value, json};

use super::wire::{AddKey, AddScript, DeleteMany, given};
use super::{id_alone, list as answer_list};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::Answer;
use crate::core::resource::Resource;

/// The kind of an SSH key.
pub(super) const KEY: &str = "ssh-key";
/// The kind of a start-up script.
pub(super) const SCRIPT: &str = "script";
/// The most scripts that a project may have.
const SCRIPTS: usize = 100;

/// The text of a key or script of this account.
pub(super) fn text(visit: &Visit<'_>, kind: &str, id: &str) -> Option<String> {
    let found = visit.resource(kind, id)?;
    found.detail.as_str().map(str::to_owned)
}

fn shown(resource: &Resource, with_script: bool) -> Value {
    if resource.kind == KEY {
        let key = resource.detail.as_str().unwrap_or_default();
        json!({
            "id": resource.id, "name": resource.name, "key": key, "fingerprint": fingerprint::md5(key),
            "created_by_user_id": "user-1",
        })
    } else {
        let mut value =
            json!({"id": resource.id, "name": resource.name, "created_at": resource.created.to_string()});
        if let (true, Value::Object(fields)) = (with_script, &mut value) {
            fields.insert("script".to_owned(), resource.detail.clone());
        }
        value
    }
}

pub(super) fn list(visit: &mut Visit<'_>, kind: &'static str) -> Answer {
    let found = visit.resources(kind);
    answer_list(visit, found.map(|resource| shown(resource, false)).collect())
}

/// Scripts come in pages of ten unless asked otherwise, newest first. Their texts may be absent
/// where answers are mixed.
pub(super) fn list_scripts(visit: &mut Visit<'_>, mixed: bool) -> Answer {
    let with_text = !mixed || visit.world.chance.hits(0.5);
    let parameter = |name: &str, default: usize| {
        visit
            .request
            .parameter(name)
            .and_then(|text| text.parse().ok())
            .filter(|number| *number > 0)
            .unwrap_or(default)
    };
    let (page, size) = (parameter("page", 1), parameter("pageSize", 10).min(100));
    let part = visit.request.parameter("name").unwrap_or_default();
    let mut all: Vec<&Resource> = visit
        .resources(SCRIPT)
        .filter(|script| script.name.contains(part))
        .collect();
    all.sort_by(|a, b| b.created.cmp(&a.created).then(b.id.cmp(&a.id)));
    if visit.request.parameter("orderDirection") == Some("asc") {
        all.reverse();
    }
    let total = all.len();
    let found = all
        .into_iter()
        .skip((page - 1) * size)
        .take(size)
        .map(|script| shown(script, with_text))
        .collect();
    answer_list(visit, found)
        .with("x-page", page.to_string())
        .with("x-page-size", size.to_string())
        .with("x-total-count", total.to_string())
}

/// One of them: a list of one; or an object, where answers are mixed.
pub(super) fn get(
    visit: &mut Visit<'_>,
    mixed: bool,
    kind: &'static str,
    id: &str,
) -> Result<Answer, Refusal> {
    let found = visit.resource(kind, id);
    let value = shown(
        found.ok_or_else(|| Refusal::NotFound(format!("Cannot find {kind}")))?,
        true,
    );
    let value = if mixed && visit.world.chance.hits(0.5) {
        value
    } else {
        json!([value])
    };
    Ok(Answer::json(200, &value))
}

pub(super) fn create_key(visit: &mut Visit<'_>, mixed: bool) -> Result<Answer, Refusal> {
    let AddKey { name, key } = given(visit.request)?;
    Ok(create(visit, mixed, KEY, &name, key))
}

pub(super) fn create_script(visit: &mut Visit<'_>, mixed: bool) -> Result<Answer, Refusal> {
    let AddScript { name, script } = given(visit.request)?;
    if visit.resources(SCRIPT).count() >= SCRIPTS {
        return Err(Refusal::Quota(format!("{SCRIPTS} startup scripts")));
    }
    Ok(create(visit, mixed, SCRIPT, &name, script))
}

fn create(visit: &mut Visit<'_>, mixed: bool, kind: &'static str, name: &str, text: String) -> Answer {
    let id = visit.world.chance.uuid();
    visit.add(kind, &id, name, Value::from(text));
    id_alone(visit, mixed, 201, &id)
}

/// Deletes the key in the path, or the keys that the body names.
pub(super) fn delete(visit: &mut Visit<'_>, kind: &'static str, id: &str) -> Result<Answer, Refusal> {
    let ids = if id.is_empty() {
        given::<DeleteMany>(visit.request)?.ids
    } else {
        vec![id.to_owned()]
    };
    visit.subject = ids.first().cloned();
    for id in ids {
        if !visit.end(kind, &id) {
            return Err(Refusal::NotFound(format!("Cannot find {kind}")));
        }
    }
    Ok(Answer::empty(200))
}
