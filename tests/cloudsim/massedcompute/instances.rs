//! Instances: launches, lists, statuses, restarts, terminations.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Form, LAUNCH_FAILED, MassedCompute, catalogue, keys};
use crate::backend::{Boot, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Mark, Phase};
use crate::core::rest::{Rental, RestApi, bad, body};

/// How long an instance is pending.
const PENDING: SignedDuration = SignedDuration::from_secs(5);
/// The user of all images.
const USER: &str = "Ubuntu";
/// The only region that a launch may name.
const ANY: &str = "any";

/// The body of a launch.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Launch {
    image_id: i64,
    product_name: String,
    region_name: String,
    #[serde(default)]
    instance_name: String,
    #[serde(default)]
    coupon: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    ssh_keys: Vec<String>,
}

/// The body of a restart and of a termination.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Uuids {
    instance_uuids: Vec<String>,
}

pub(super) fn launch(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Launch = body(visit.request)?;
    if order.region_name != ANY {
        return bad(&format!("{LAUNCH_FAILED}: the region must be {ANY}"));
    }
    let product = catalogue::product(visit.world, &order.product_name)?;
    catalogue::check_image(order.image_id, &product.name)?;
    let authorized_keys = keys::texts(visit, &order.ssh_keys)?;
    let id = visit.world.chance.uuid();
    let password = 10_000_000 + visit.world.chance.below(90_000_000);
    let start = if order.command.is_empty() {
        Start::Nothing
    } else {
        Start::UserData(format!("#!/bin/sh\n{}\n", order.command))
    };
    let rental = Rental {
        id: id.clone(),
        region: catalogue::place(visit.world, &product.name),
        mark: Mark {
            name: order.instance_name,
            ..Mark::default()
        },
        detail: json!({
            "image": order.image_id, "command": order.command, "coupon": order.coupon, "password": password,
        }),
        boot: Boot {
            hostname: format!("vm-{}", &id[..8]),
            image: order.image_id.to_string(),
            user: USER.to_owned(),
            authorized_keys,
            start,
            gpus: vec![format!("NVIDIA {}", product.gpu); product.gpus as usize],
            ..Boot::default()
        },
    };
    visit.rent_on(catalogue::market(&product.name), &product, rental)?;
    Ok(Answer::json(200, &json!({ "response": id })))
}

/// The status of an instance. `Running` alone does not mean that it has booted.
pub(super) fn status(api: &MassedCompute, machine: &Machine, phase: Phase, now: Timestamp) -> String {
    let told = match phase {
        Phase::Pending if now.duration_since(machine.created()) < PENDING => "pending",
        Phase::Pending | Phase::Running if api.has(Form::Official) => "rented",
        Phase::Pending | Phase::Running => "Running",
        Phase::Halted => "Stopped",
        Phase::Failed => "error",
        Phase::Ending | Phase::Ended => "terminated",
    };
    if api.has(Form::Lower) {
        told.to_lowercase()
    } else {
        told.to_owned()
    }
}

fn shown(api: &MassedCompute, visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
    let status = status(api, machine, phase, visit.now());
    let detail = &machine.detail;
    let password = if api.has(Form::Official) {
        detail["password"].clone()
    } else {
        detail["password"].to_string().into()
    };
    let product = visit.world.types.get(&machine.instance_type).map(|product| {
        json!({
            "name": product.name, "description": product.detail["description"], "gpu_count": product.gpus,
            "vcpu": product.vcpus, "ram": product.memory_gb, "storage": product.detail["storage"],
            "price_hr": machine.price.to_string(), "final_price_hr": machine.price.to_string(),
        })
    });
    let mut value = json!({
        "uuid": machine.id, "name": machine.mark.name, "username": USER, "password": password,
        "os_booted": u8::from(phase == Phase::Running), "command_startup": detail["command"],
        "created": machine.created().strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string(), "active": 1,
        "region": catalogue::region(&machine.region), "image": catalogue::image(&detail["image"]),
        "product": product,
    });
    // Absent at first, then empty until there is one, which may be before the system has booted.
    if status != "pending" {
        let endpoint = machine.endpoint.as_ref();
        value["ip"] = endpoint.map_or("", |endpoint| endpoint.address.as_str()).into();
    }
    value["status"] = status.into();
    value
}

pub(super) fn list(api: &MassedCompute, visit: &Visit<'_>) -> Answer {
    let found = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        (phase != Phase::Ended).then(|| shown(api, visit, machine, phase))
    });
    let found = found.collect();
    Answer::json(200, &json!({ "runningInstances": visit.truncate(found) }))
}

/// One instance, in the envelope of the list.
pub(super) fn get(api: &MassedCompute, visit: &Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let known = |machine: &&Machine| visit.world.listed(machine).is_some();
    let found = visit.machine(id).filter(known);
    let found = found.map(|machine| shown(api, visit, machine, machine.phase));
    let found = visit.truncate(found.into_iter().collect());
    if found.is_empty() && api.has(Form::Missing) {
        return Err(Refusal::NotFound("Instance".to_owned()));
    }
    let answer = match found.first().filter(|_| api.has(Form::Official)) {
        Some(only) => json!({ "runningInstance": only }),
        None => json!({ "runningInstances": found }),
    };
    Ok(Answer::json(200, &answer))
}

/// The existing instances that a body names: there must be one, and unknown ones are passed over.
fn named(api: &MassedCompute, visit: &mut Visit<'_>) -> Result<Vec<String>, Refusal> {
    let Uuids {
        instance_uuids: mut uuids,
    } = body(visit.request)?;
    uuids.retain(|id| visit.machine(id).is_some());
    visit.subject = uuids.first().cloned();
    if uuids.is_empty() {
        let status = if api.has(Form::Missing) { 404 } else { 400 };
        let unknown = MassedCompute::problem(status, "", "No valid VMs found");
        return Err(Refusal::Answer(unknown));
    }
    Ok(uuids)
}

pub(super) fn restart(api: &MassedCompute, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    for id in named(api, visit)? {
        visit.world.halt(&id, Cause::Asked);
        visit.world.resume(&id, visit.boot.clone());
    }
    Ok(Answer::json(200, &json!({ "message": "Restarting" })))
}

pub(super) fn terminate(api: &MassedCompute, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let takes = visit.world.end_takes;
    for id in named(api, visit)? {
        visit.world.end(&id, Cause::Asked, takes);
    }
    Ok(Answer::json(200, &json!({ "message": "Terminating" })))
}
