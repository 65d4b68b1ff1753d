//! Overlay networks between machines of one cluster.

use serde_json::{Value, json};

use super::context::Context;
use super::contracts;
use super::reply::{Failure, Outcome};
use crate::core::resource::Resource;

/// The kind of overlays among resources.
const OVERLAY: &str = "overlay";

fn overlays<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = &'a Resource> {
    context.visit.world.resources_of(&context.visit.account, OVERLAY)
}

fn named<'a>(context: &'a Context<'_, '_>, name: &str) -> Result<&'a Resource, Failure> {
    overlays(context)
        .find(|overlay| overlay.name == name)
        .ok_or_else(|| Failure::arguments(format!("no overlay {name}")))
}

fn members(overlay: &Resource) -> Vec<i64> {
    overlay.detail["instances"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_i64)
        .collect()
}

/// The overlay's members that exist.
fn present(context: &Context<'_, '_>, overlay: &Resource) -> Vec<i64> {
    let mut ids = members(overlay);
    ids.retain(|id| context.instance(&id.to_string()).is_ok());
    ids
}

/// Fails when an instance of a cluster cannot be part of an overlay.
pub fn may_join(context: &Context<'_, '_>, name: &str, cluster: Option<i64>) -> Result<(), Failure> {
    let overlay = named(context, name)?;
    if cluster.is_none() || overlay.detail["cluster"].as_i64() != cluster {
        return Err(Failure::arguments(format!(
            "the overlay {name} is in another cluster"
        )));
    }
    Ok(())
}

/// Makes an instance part of an overlay.
pub fn add(context: &mut Context<'_, '_>, name: &str, instance: &str) {
    let Some(id) = named(context, name).ok().map(|overlay| overlay.id.clone()) else {
        return;
    };
    let number: i64 = instance.parse().unwrap_or_default();
    if let Some(overlay) = context.visit.world.resources.get_mut(&id)
        && !members(overlay).contains(&number)
        && let Some(list) = overlay.detail["instances"].as_array_mut()
    {
        list.push(json!(number));
    }
}

/// `POST /api/v0/overlay/`.
pub fn create(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let name = body
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let cluster = body.get("cluster_id").and_then(Value::as_i64);
    let exists = context
        .state
        .market
        .hosts()
        .any(|host| host.cluster_id.is_some() && host.cluster_id == cluster);
    if !exists || name.is_empty() {
        return Ok(json!({"success": false, "msg": "no such cluster, or no name"}));
    }
    if named(context, &name).is_ok() {
        return Ok(json!({"success": false, "msg": format!("an overlay {name} already exists")}));
    }
    let id = context.number();
    let mut overlay =
        context
            .visit
            .world
            .new_resource(&id.to_string(), OVERLAY, &context.visit.account, &name);
    overlay.detail =
        json!({"cluster": cluster, "instances": [], "subnet": format!("10.{}.0.0/24", 100 + id % 100)});
    context
        .visit
        .world
        .add_resource(overlay, rust_decimal::Decimal::ZERO);
    context.visit.subject = Some(id.to_string());
    Ok(json!({"success": true, "msg": "overlay created"}))
}

/// `PUT /api/v0/overlay/`.
pub fn join(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let name = body
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let instance = body
        .get("instance_id")
        .and_then(Value::as_i64)
        .unwrap_or_default()
        .to_string();
    let cluster = context
        .instance(&instance)
        .map(|machine| machine.detail["cluster"].as_i64());
    match cluster.and_then(|cluster| may_join(context, &name, cluster)) {
        Ok(()) => {
            add(context, &name, &instance);
            Ok(json!({"success": true, "msg": "joined"}))
        }
        Err(_) => {
            Ok(json!({"success": false, "msg": format!("instance {instance} cannot join overlay {name}")}))
        }
    }
}

/// `GET /api/v0/overlay/`.
pub fn list(context: &Context<'_, '_>) -> Outcome {
    Ok(overlays(context)
        .map(|overlay| {
            json!({
                "overlay_id": overlay.id.parse::<i64>().unwrap_or_default(),
                "name": overlay.name,
                "internal_subnet": overlay.detail["subnet"],
                "cluster_id": overlay.detail["cluster"],
                "instances": present(context, overlay),
            })
        })
        .collect())
}

/// `DELETE /api/v0/overlay/`: the overlay, and all its instances.
pub fn delete(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let found = match (
        body.get("overlay_id").and_then(Value::as_i64),
        body.get("overlay_name").and_then(Value::as_str),
    ) {
        (Some(id), _) => overlays(context).find(|overlay| overlay.id == id.to_string()),
        (None, Some(name)) => overlays(context).find(|overlay| overlay.name == name),
        (None, None) => None,
    };
    let Some((id, instances)) = found.map(|overlay| (overlay.id.clone(), members(overlay))) else {
        return Ok(json!({"success": false, "msg": "no such overlay"}));
    };
    for instance in instances {
        contracts::remove(context, &instance.to_string());
    }
    context.visit.world.end_resource(&id);
    context.visit.subject = Some(id);
    Ok(json!({"success": true, "msg": "overlay and its instances deleted"}))
}
