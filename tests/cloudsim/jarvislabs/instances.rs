//! Instances: lists, states, names, ends.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};

use super::catalogue::{self, VM};
use super::{JarvisLabs, done, is_elsewhere, missing, not_done, number};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Endpoint, Machine, Phase};
use crate::core::market::Shelf;
use crate::core::rest::bad;
use crate::core::world::World;

/// How long a new instance is not known by its id, how long it runs without a command for SSH, and how long
/// pausing takes.
const TAKES: SignedDuration = SignedDuration::from_secs(3);
/// How long an instance that is gone is listed.
const LINGERS: SignedDuration = SignedDuration::from_secs(5);
/// The longest name, which the description has as well.
const LONGEST_NAME: usize = 40;

/// Whether a time is not over.
fn lasts(since: Option<Timestamp>, time: SignedDuration, now: Timestamp) -> bool {
    since.is_some_and(|at| now.duration_since(at) < time)
}

fn status(machine: &Machine, phase: Phase, now: Timestamp) -> &'static str {
    let pauses = lasts(machine.since(Phase::Halted), TAKES, now);
    match phase {
        Phase::Pending if lasts(Some(machine.created()), TAKES, now) => "Pending",
        Phase::Pending => "Creating",
        Phase::Running => "Running",
        Phase::Halted => ["Paused", "Pausing"][usize::from(pauses)],
        Phase::Failed => "Failed",
        Phase::Ending => "Destroying",
        Phase::Ended => "Destroyed",
    }
}

/// Where SSH answers, once the instance has run for a moment. It stays when the instance is paused or has failed.
fn endpoint(machine: &Machine, now: Timestamp) -> Option<&Endpoint> {
    let ran = machine.since(Phase::Running)?;
    let is_told = machine.phase != Phase::Running || !lasts(Some(ran), TAKES, now);
    machine.endpoint.as_ref().filter(|_| is_told)
}

fn shown(api: &JarvisLabs, visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
    let (detail, now) = (&machine.detail, visit.now());
    let (is_vm, at) = (detail["framework"] == VM, endpoint(machine, now));
    let ssh = at.map(|Endpoint { address, port }| {
        let options = match port {
            22 => "-o StrictHostKeyChecking=no".to_owned(),
            _ => format!("-o StrictHostKeyChecking=no -p {port}"),
        };
        format!("ssh {options} {}@{address}", machine.boot.user)
    });
    let has_other_names = api.mixed && number(&machine.id) % 2 == 1;
    let [name, command, disk] = if has_other_names {
        ["name", "ssh_command", "storage_gb"]
    } else {
        ["instance_name", "ssh_str", "hdd"]
    };
    let cost = machine.tab.until(now, visit.world.billing());
    json!({
        "machine_id": number(&machine.id), name: machine.mark.name, "status": status(machine, phase, now),
        "gpu_type": detail["gpu_type"], "num_gpus": detail["num_gpus"], disk: detail["hdd"],
        "ram": detail["ram"], "cores": detail["cores"], "framework": detail["framework"], command: ssh,
        "public_ip": at.filter(|_| is_vm).map(|at| &at.address), "private_ip": null, "vpc_id": null,
        "region": machine.region, "is_spot": detail["is_spot"], "is_reserved": false, "cost": cost.to_f64(),
        "duration": "0", "frequency": "hour", "url": null, "vs_url": null, "endpoints": null,
        "http_ports": detail["http_ports"], "disk_type": "ssd", "fs_id": null, "v_size": null,
        "user_id": machine.account, "deployment_id": null,
    })
}

pub(super) fn list(api: &JarvisLabs, visit: &Visit<'_>) -> Answer {
    let now = visit.now();
    let machines = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        let is_seen = phase != Phase::Ended || lasts(machine.since(Phase::Ended), LINGERS, now);
        is_seen.then(|| shown(api, visit, machine, phase))
    });
    let all = machines.collect();
    Answer::json(200, &json!({ "success": true, "instances": visit.truncate(all) }))
}

/// An instance that was not ordered just now.
fn known<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Machine, Refusal> {
    let machine = visit.machine(id);
    let known = machine.filter(|machine| !lasts(Some(machine.created()), TAKES, visit.now()));
    known.ok_or_else(|| missing("Instance"))
}

pub(super) fn get(api: &JarvisLabs, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    match known(visit, id) {
        Ok(machine) => {
            let instance = shown(api, visit, machine, machine.phase);
            Ok(Answer::json(
                200,
                &json!({ "success": true, "instance": instance }),
            ))
        }
        Err(_) if api.mixed && number(id) % 2 == 1 => Ok(not_done("Instance not found")),
        Err(refusal) => Err(refusal),
    }
}

/// The instance that the query names.
fn named<'a>(visit: &'a mut Visit<'_>) -> Result<&'a Machine, Refusal> {
    let id = visit.request.parameter("machine_id").unwrap_or_default();
    visit.subject = Some(id.to_owned());
    visit.machine(id).ok_or_else(|| missing("Instance"))
}

/// The same where the request came to the host of its region.
fn named_here<'a>(visit: &'a mut Visit<'_>) -> Result<&'a Machine, Refusal> {
    let request = visit.request;
    let machine = named(visit)?;
    if is_elsewhere(request, &machine.region) {
        return Err(missing("Instance"));
    }
    Ok(machine)
}

/// How the creation of an instance goes.
pub(super) fn told(api: &JarvisLabs, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = named_here(visit)?.id.clone();
    let machine = known(visit, &id)?;
    let error = match &machine.cause {
        Some(Cause::NoCapacity) => Some("No free GPUs".to_owned()),
        Some(Cause::Installation(text)) => Some(text.clone()),
        Some(Cause::Died) => Some("The server is lost".to_owned()),
        // JarvisLabs' own client takes this text for no error.
        _ => api.mixed.then(|| "None".to_owned()),
    };
    let status = status(machine, machine.phase, visit.now());
    Ok(Answer::json(
        200,
        &json!({ "status": status, "error": error, "code": null }),
    ))
}

/// The id of the instance that the query names, where the path is for its kind.
fn named_as(visit: &mut Visit<'_>, as_vm: bool) -> Result<String, Refusal> {
    let machine = named_here(visit)?;
    if (machine.detail["framework"] == VM) != as_vm {
        return Err(Refusal::Answer(not_done("This is no such instance")));
    }
    Ok(machine.id.clone())
}

pub(super) fn destroy(visit: &mut Visit<'_>, as_vm: bool) -> Result<Answer, Refusal> {
    let id = named_as(visit, as_vm)?;
    visit.world.end(&id, Cause::Asked, visit.world.end_takes);
    Ok(done("Instance destroyed"))
}

pub(super) fn pause(api: &JarvisLabs, visit: &mut Visit<'_>, as_vm: bool) -> Result<Answer, Refusal> {
    let id = named_as(visit, as_vm)?;
    let runs = visit
        .machine(&id)
        .is_some_and(|machine| machine.phase == Phase::Running);
    if !runs {
        return Err(Refusal::Answer(not_done("The instance does not run")));
    }
    stop(api, visit.world, &id, Cause::Asked);
    Ok(done("Instance paused"))
}

/// Pauses an instance: its devices are free, and it costs its disk alone.
pub(super) fn stop(api: &JarvisLabs, world: &mut World, id: &str, cause: Cause) {
    if let Some(machine) = world.machines.get_mut(id) {
        let gigabytes = machine.detail["hdd"].as_u64().unwrap_or_default();
        machine.disk_price = api.in_currency(catalogue::disk(gigabytes as u32));
    }
    world.halt(id, cause);
    let_go(world, id);
}

/// Gives all devices of an instance back, once.
pub(super) fn let_go(world: &mut World, id: &str) {
    world.release_stock(id);
    let Some(machine) = world.machines.get_mut(id) else {
        return;
    };
    let beside = machine.detail["beside"].take().as_u64().unwrap_or_default();
    let shelf = Shelf::new(&machine.instance_type, &machine.region, machine.market);
    for _ in 0..beside {
        world.stock.put_back(&shelf);
    }
}

pub(super) fn rename(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = named(visit)?.id.clone();
    let name = visit.request.parameter("machine_name").unwrap_or_default();
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || " _-".contains(letter);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        return bad("Invalid name");
    }
    if let Some(machine) = visit.world.machines.get_mut(&id) {
        name.clone_into(&mut machine.mark.name);
    }
    Ok(done("Name updated"))
}
