//! Machines: the forms in which they are shown, statuses, stops, starts, ends.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::{Decimal, prelude::ToPrimitive};
use serde_json::{Value, json};

use super::{Form, TensorDock, data, missing};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Endpoint, Machine, Phase};
use crate::core::rest::bad;
use crate::core::world::World;

/// How long a new machine is `creating`.
const CREATES: SignedDuration = SignedDuration::from_secs(5);
/// How long a machine runs without an address, and how long it stops.
const TAKES: SignedDuration = SignedDuration::from_secs(3);

fn own<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Machine, Refusal> {
    visit.machine(id).ok_or_else(|| missing("Instance"))
}

/// The status of a machine, as it is written with capitals.
fn status(machine: &Machine, phase: Phase, now: Timestamp) -> &'static str {
    let lasts = |since: Option<Timestamp>, time| since.is_some_and(|at| now.duration_since(at) < time);
    let is_asked = machine.cause == Some(Cause::Asked);
    match phase {
        Phase::Pending if lasts(Some(machine.created()), CREATES) => "Creating",
        Phase::Pending => "Starting",
        Phase::Running => "Running",
        Phase::Halted if machine.detail["freed"] == true => "StoppedDisassociated",
        Phase::Halted if is_asked && lasts(machine.since(Phase::Halted), TAKES) => "Stopping",
        Phase::Halted => "Stopped",
        Phase::Failed => "Error",
        Phase::Ending | Phase::Ended => "Deleting",
    }
}

/// A status in the letters of a form.
fn written(status: &str, form: Form) -> String {
    match form {
        Form::Documented => status.to_lowercase(),
        Form::Flat => status.to_owned(),
        Form::Nested => status.replace("dD", "d_d").to_lowercase(),
    }
}

/// Where a machine that runs is reached.
fn endpoint(machine: &Machine, phase: Phase, now: Timestamp) -> Option<&Endpoint> {
    let runs_since = machine
        .since(Phase::Running)
        .filter(|_| phase == Phase::Running)?;
    let has_address = now.duration_since(runs_since) >= TAKES && machine.detail["lost"] != true;
    machine.endpoint.as_ref().filter(|_| has_address)
}

/// A port that is forwarded. Where TensorDock chooses the one to SSH, `0` stands for it.
fn forwarded(forward: &Value, endpoint: &Endpoint) -> Value {
    let mut shown = forward.clone();
    if shown["external_port"] == 0 {
        shown["external_port"] = endpoint.port.into();
    }
    shown
}

/// A machine with all its fields.
fn shown(machine: &Machine, phase: Phase, now: Timestamp, form: Form) -> Value {
    let detail = &machine.detail;
    let mut value = json!({
        "type": "instance", "id": machine.id, "name": machine.mark.name,
        "status": written(status(machine, phase, now), form), "portForwards": [],
        "resources": detail["resources"], "rateHourly": machine.price.to_f64(),
    });
    if let Some(endpoint) = endpoint(machine, phase, now) {
        let forwards = detail["forwards"].as_array().into_iter().flatten();
        let forwards: Vec<Value> = forwards.map(|forward| forwarded(forward, endpoint)).collect();
        value["portForwards"] = forwards.into();
        value["ipAddress"] = endpoint.address.clone().into();
    } else if form == Form::Flat {
        value["ipAddress"] = "".into();
    }
    value
}

/// A machine as an item of a list.
fn item(machine: &Machine, phase: Phase, now: Timestamp, form: Form) -> Value {
    if form == Form::Flat {
        return shown(machine, phase, now, form);
    }
    let status = written(status(machine, phase, now), form);
    let attributes = json!({ "name": machine.mark.name, "status": status });
    json!({ "type": "VM", "id": machine.id, "attributes": attributes })
}

pub(super) fn list(api: &mut TensorDock, visit: &mut Visit<'_>) -> Answer {
    let (form, now) = (api.form(), visit.now());
    let machines = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        (phase != Phase::Ended).then(|| item(machine, phase, now, form))
    });
    let list = json!({ "instances": visit.truncate(machines.collect()) });
    data(match form {
        Form::Documented | Form::Flat => list,
        Form::Nested => json!({ "type": "instances", "attributes": list }),
    })
}

pub(super) fn get(api: &mut TensorDock, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let (form, now) = (api.form(), visit.now());
    let machine = own(visit, id)?;
    let shown = shown(machine, machine.phase, now, form);
    match form {
        Form::Documented | Form::Nested => Ok(Answer::json(200, &shown)),
        Form::Flat => Ok(data(shown)),
    }
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    if own(visit, id)?.phase == Phase::Ending {
        return Err(missing("Instance"));
    }
    visit.world.end(id, Cause::Asked, visit.world.end_takes);
    let message = json!({ "message": "Instance deleted successfully" });
    Ok(data(json!({ "type": "success", "attributes": message })))
}

/// What a start or a stop answers.
fn becomes(id: &str, status: &str) -> Answer {
    data(json!({ "type": "instance", "id": id, "attributes": { "status": status } }))
}

pub(super) fn stop(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    if own(visit, id)?.phase != Phase::Running {
        return bad("The instance must be running");
    }
    halt(visit.world, id, Cause::Asked);
    Ok(becomes(id, "stopping"))
}

pub(super) fn start(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let machine = own(visit, id)?;
    let found = status(machine, machine.phase, visit.now());
    if !["Stopped", "StoppedDisassociated"].contains(&found) {
        return bad("The instance must be stopped");
    }
    if !visit.world.hold_stock(id) {
        return Err(Refusal::NoCapacity);
    }
    if let Some(machine) = visit.world.machines.get_mut(id) {
        machine.detail["freed"] = json!(false);
    }
    visit.world.resume(id, visit.boot.clone());
    Ok(becomes(id, "starting"))
}

/// A price that its order wrote down.
fn noted(machine: &Machine, name: &str) -> Decimal {
    let text = machine.detail[name].as_str().unwrap_or_default();
    text.parse().unwrap_or_default()
}

/// Halts a machine that keeps its GPUs: they and its disk cost on.
pub(super) fn halt(world: &mut World, id: &str, cause: Cause) {
    if let Some(machine) = world.machines.get_mut(id) {
        machine.disk_price = noted(machine, "halted_price");
    }
    world.halt(id, cause);
}

/// The host takes the GPUs of a machine, which is halted then and costs its disk alone.
pub(super) fn free(world: &mut World, id: &str) {
    let Some(machine) = world.machines.get_mut(id) else {
        return;
    };
    machine.detail["freed"] = json!(true);
    machine.disk_price = noted(machine, "disk_price");
    let price = machine.price;
    world.halt(id, Cause::Reclaimed);
    // Where it was halted before, its price changes nevertheless.
    world.reprice(id, price);
    world.release_stock(id);
}
