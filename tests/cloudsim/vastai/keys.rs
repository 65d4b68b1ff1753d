//! SSH keys of the account, which go to all its instances, and of single instances.

use serde_json::{Value, json};

use super::context::Context;
use super::reply::{Failure, Outcome};
use crate::core::machine::Phase;
use crate::core::resource::Resource;

/// The kind of keys among resources.
const KEY: &str = "ssh-key";
/// Keys that were only ever attached to an instance.
const LOOSE: &str = "instance-ssh-key";

fn keys<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = &'a Resource> {
    context.visit.world.resources_of(&context.visit.account, KEY)
}

fn text_of(key: &Resource) -> String {
    key.detail["key"].as_str().unwrap_or_default().to_owned()
}

/// The part of a key that says whether two are the same.
fn body_of(key: &str) -> &str {
    key.split_whitespace().nth(1).unwrap_or(key)
}

/// Numbers and texts of the account's keys.
pub fn of_account(context: &Context<'_, '_>) -> Vec<(i64, String)> {
    keys(context)
        .map(|key| (key.id.parse().unwrap_or_default(), text_of(key)))
        .collect()
}

fn given(context: &Context<'_, '_>) -> Result<String, Failure> {
    let body = context.body()?;
    let key = body
        .get("ssh_key")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .trim()
        .to_owned();
    let kind = key.split_whitespace().next().unwrap_or_default();
    if !kind.starts_with("ssh-") && !kind.starts_with("ecdsa-") {
        return Err(Failure::new(
            400,
            "no_ssh_key",
            "The SSH key is missing or not valid.",
        ));
    }
    Ok(key)
}

fn record(key: &Resource, account: &str) -> Value {
    json!({
        "id": key.id.parse::<i64>().unwrap_or_default(),
        "user_id": account.bytes().map(i64::from).sum::<i64>(),
        "public_key": text_of(key),
        "created_at": key.created.to_string(),
        "deleted_at": null,
    })
}

/// `GET /api/v0/ssh/`: an array, or 404 when there is no key.
pub fn list(context: &Context<'_, '_>) -> Outcome {
    let all: Vec<Value> = keys(context)
        .map(|key| {
            let mut record = record(key, &context.visit.account);
            // Here the member has another name.
            record["key"] = record["public_key"].take();
            record
        })
        .collect();
    if all.is_empty() {
        Err(Failure::new(404, "not_found", "No SSH keys."))
    } else {
        Ok(Value::Array(all))
    }
}

/// `POST /api/v0/ssh/`. A new key goes to all running instances as well.
pub fn create(context: &mut Context<'_, '_>) -> Outcome {
    let key = given(context)?;
    if keys(context).any(|old| body_of(&text_of(old)) == body_of(&key)) {
        return Ok(json!({"success": false, "error": "duplicate", "msg": "The SSH key already exists."}));
    }
    let id = context.number();
    let mut resource = context
        .visit
        .world
        .new_resource(&id.to_string(), KEY, &context.visit.account, "");
    resource.detail = json!({"key": key});
    let record = record(&resource, &context.visit.account);
    context
        .visit
        .world
        .add_resource(resource, rust_decimal::Decimal::ZERO);
    context.visit.subject = Some(id.to_string());
    let running: Vec<String> = context
        .visit
        .world
        .machines_of(&context.visit.account)
        .filter(|machine| machine.phase == Phase::Running)
        .map(|machine| machine.id.clone())
        .collect();
    for machine in running {
        put_on(context, &machine, id, &key);
    }
    Ok(json!({"success": true, "key": record}))
}

fn put_on(context: &mut Context<'_, '_>, machine: &str, id: i64, key: &str) {
    let Some(machine) = context.visit.world.machines.get_mut(machine) else {
        return;
    };
    if let Some(list) = machine.detail["keys"].as_array_mut() {
        list.push(json!(id));
    }
    let id = machine.id.clone();
    context.visit.world.authorize(&id, key);
}

/// `PUT /api/v0/ssh/{id}/`.
pub fn change(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let key = given(context)?;
    let account = context.visit.account.clone();
    let Some(resource) = context
        .visit
        .world
        .resources
        .get_mut(id)
        .filter(|key| key.kind == KEY && key.account == account && key.exists())
    else {
        return Err(Failure::arguments("No such SSH key."));
    };
    resource.detail["key"] = json!(key);
    let record = record(resource, &account);
    Ok(json!({"success": true, "key": record}))
}

/// `DELETE /api/v0/ssh/{id}/`.
pub fn delete(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    if !keys(context).any(|key| key.id == id) {
        return Err(Failure::arguments("No such SSH key."));
    }
    context.visit.world.end_resource(id);
    context.visit.subject = Some(id.to_owned());
    Ok(json!({"success": true}))
}

/// `GET /api/v0/instances/{id}/ssh/`: the list is a text with JSON in it.
pub fn of_instance(context: &Context<'_, '_>, id: &str) -> Outcome {
    let machine = context.instance(id)?;
    let all: Vec<Value> = machine.detail["keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|number| {
            let number = number.as_i64()?;
            let key = context.visit.world.resources.get(&number.to_string())?;
            Some(json!({"id": number, "name": "", "public_key": text_of(key)}))
        })
        .collect();
    Ok(json!({"success": true, "ssh_keys": Value::Array(all).to_string()}))
}

/// `POST /api/v0/instances/{id}/ssh/`.
pub fn attach(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let key = given(context).map_err(|_| Failure::arguments("ssh_key is missing or not valid"))?;
    let machine = context.instance(id)?;
    let age = context.visit.now().duration_since(machine.created());
    if machine.phase == Phase::Pending && age < jiff::SignedDuration::from_secs(5) {
        return Err(Failure::arguments("The instance is not ready for SSH keys yet."));
    }
    let has = |number: &Value| {
        number
            .as_i64()
            .and_then(|number| context.visit.world.resources.get(&number.to_string()))
            .is_some_and(|old| body_of(&text_of(old)) == body_of(&key))
    };
    if machine.detail["keys"]
        .as_array()
        .is_some_and(|keys| keys.iter().any(has))
    {
        return Err(Failure::arguments(
            "The SSH key is already associated with the instance.",
        ));
    }
    let known = keys(context)
        .find(|old| body_of(&text_of(old)) == body_of(&key))
        .and_then(|old| old.id.parse().ok());
    let number = if let Some(number) = known {
        number
    } else {
        let number = context.number();
        let mut resource =
            context
                .visit
                .world
                .new_resource(&number.to_string(), LOOSE, &context.visit.account, "");
        resource.detail = json!({"key": key});
        // It goes with the instance and is no leftover of the account.
        resource.ended = Some(context.visit.now());
        context
            .visit
            .world
            .add_resource(resource, rust_decimal::Decimal::ZERO);
        number
    };
    put_on(context, id, number, &key);
    context.visit.subject = Some(id.to_owned());
    Ok(json!({"success": true, "msg": "SSH key attached successfully"}))
}

/// `DELETE /api/v0/instances/{id}/ssh/{key}/`.
pub fn detach(context: &mut Context<'_, '_>, id: &str, key: &str) -> Outcome {
    context.instance(id)?;
    let number: i64 = key
        .parse()
        .map_err(|_| Failure::new(400, "invalid_request", "invalid ssh_key_id"))?;
    let absent = || {
        Failure::new(
            404,
            "no_such_ssh_key",
            format!("SSH key {key} is not on instance {id}."),
        )
    };
    let machine = context.visit.world.machines.get_mut(id).ok_or_else(absent)?;
    let list = machine.detail["keys"].as_array_mut().ok_or_else(absent)?;
    let before = list.len();
    list.retain(|one| one.as_i64() != Some(number));
    if list.len() == before {
        return Err(absent());
    }
    Ok(json!({"success": true, "msg": "SSH key removed"}))
}
