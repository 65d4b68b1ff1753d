//! Servers: lists, states, actions, user data, ends.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::things::KEY;
use super::{catalogue, date, listed, missing, refused, things, zone};
use crate::backend::Start;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{BootPlan, Cause, Machine, Phase};

/// How long a start cannot be broken off.
const STARTS: SignedDuration = SignedDuration::from_secs(10);

/// A server of the zone of the call, by its id.
fn own<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Machine, Refusal> {
    let zone = zone(visit)?;
    let server = visit.machine(id).filter(|server| server.region == zone);
    server.ok_or_else(|| missing("instance_server"))
}

/// The id of the server in the middle of the path, which is the subject of the call.
fn subject(visit: &mut Visit<'_>) -> Result<String, Refusal> {
    let id = visit.request.segments().into_iter().nth(5).unwrap_or_default();
    visit.subject = Some(id.clone());
    own(visit, &id).map(|_| id)
}

/// State, and what may be done in it. A server that is halted after a start halted itself.
fn state(server: &Machine, phase: Phase) -> (&'static str, &'static [&'static str]) {
    match phase {
        Phase::Pending => ("starting", &[]),
        Phase::Running => ("running", &["poweroff", "terminate", "reboot", "stop_in_place"]),
        Phase::Halted if server.since(Phase::Pending).is_some() => {
            ("stopped in place", &["poweron", "poweroff", "terminate"])
        }
        Phase::Halted | Phase::Failed => ("stopped", &["poweron"]),
        Phase::Ending | Phase::Ended => ("stopping", &[]),
    }
}

/// The dynamic address of a server that runs.
fn address(server: &Machine) -> Option<Value> {
    let endpoint = things::endpoint(server).filter(|_| server.detail["dynamic"] == true)?;
    Some(json!({
        "id": server.id, "address": endpoint, "gateway": "62.210.0.1", "netmask": "32", "family": "inet",
        "dynamic": true, "provisioning_mode": "dhcp", "tags": [], "ipam_id": server.id, "state": "attached",
    }))
}

fn shown(visit: &Visit<'_>, server: &Machine, phase: Phase) -> Value {
    let (state, actions) = state(server, phase);
    let (detail, zone, created) = (&server.detail, &server.region, date(server.created()));
    let root = things::volume_of(visit.world, &server.id).map(|volume| {
        let volume = json!({ "id": volume.id, "volume_type": "sbs_volume", "boot": false, "zone": zone });
        ("0", volume)
    });
    let root: BTreeMap<_, _> = root.into_iter().collect();
    let addresses: Vec<_> = address(server).into_iter().collect();
    json!({
        "id": server.id, "name": server.mark.name, "organization": server.account, "project": detail["project"],
        "allowed_actions": actions, "tags": detail["tags"], "commercial_type": server.instance_type,
        "creation_date": created, "modification_date": created, "dynamic_ip_required": detail["dynamic"],
        "routed_ip_enabled": true, "enable_ipv6": false, "hostname": server.boot.hostname, "image": detail["image"],
        "protected": false, "private_ip": null, "public_ip": addresses.first(), "public_ips": addresses,
        "mac_address": "de:00:00:00:00:01", "state": state, "state_detail": "", "location": null, "ipv6": null,
        "boot_type": "local", "volumes": root, "maintenances": [], "arch": "x86_64",
        "security_group": { "id": catalogue::group(zone), "name": "Default security group" },
        "placement_group": null, "private_nics": [], "zone": zone, "filesystems": [], "end_of_service": false,
    })
}

/// A server as it is now.
pub(super) fn shown_now(visit: &Visit<'_>, status: u16, id: &str) -> Result<Answer, Refusal> {
    let server = own(visit, id)?;
    let server = shown(visit, server, server.phase);
    Ok(Answer::json(status, &json!({ "server": server })))
}

pub(super) fn list(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = zone(visit)?;
    let fits = |server: &Value| {
        let fields = ["project", "organization", "commercial_type", "state"];
        visit.fits(server, &fields) && things::is_meant(visit, server)
    };
    let servers = visit.world.machines_of(&visit.account).filter_map(|server| {
        let phase = visit.world.listed(server)?;
        let there = server.region == zone && phase != Phase::Ended;
        there.then(|| shown(visit, server, phase)).filter(fits)
    });
    listed(visit, "servers", servers)
}

/// The server of an action, where its state allows the action.
fn allowed(visit: &mut Visit<'_>, action: &str) -> Result<String, Refusal> {
    let id = subject(visit)?;
    let server = own(visit, &id)?;
    let since = server.since(Phase::Pending).unwrap_or(Timestamp::MIN);
    let breaks_off = action == "terminate" && visit.now().duration_since(since) >= STARTS;
    match state(server, server.phase) {
        (_, actions) if actions.contains(&action) => Ok(id),
        ("starting", _) if breaks_off => Ok(id),
        ("starting" | "stopping", _) => transient(),
        ("stopped", _) => refused(400, "invalid_request_error", "server should be running"),
        _ => refused(400, "invalid_request_error", "server should be stopped"),
    }
}

fn transient<T>() -> Result<T, Refusal> {
    refused(409, "transient_state", "the server is in a transient state")
}

/// The answer to an action.
fn task(visit: &mut Visit<'_>, id: &str, action: &str) -> Answer {
    let task = json!({
        "id": visit.world.chance.uuid(), "description": format!("server_{action}"), "progress": 0,
        "started_at": date(visit.now()), "terminated_at": null, "status": "pending",
        "href_from": format!("/servers/{id}/action"), "href_result": format!("/servers/{id}"),
    });
    Answer::json(202, &json!({ "task": task }))
}

pub(super) fn power_on(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = allowed(visit, "poweron")?;
    let project = own(visit, &id)?.detail["project"].clone();
    if own(visit, &id)?.phase == Phase::Failed || !visit.world.hold_stock(&id) {
        return Err(Refusal::NoCapacity);
    }
    let keys = visit.resources(KEY).map(|key| &key.detail);
    let keys = keys
        .filter(|key| key["project_id"] == project)
        .map(|key| &key["public_key"]);
    let keys = keys.filter_map(|key| key.as_str().map(str::to_owned)).collect();
    let mut plan = visit.boot.clone();
    if let Some(server) = visit.world.machines.get_mut(&id) {
        server.boot.authorized_keys = keys;
        let scripted = serde_json::from_value::<Option<BootPlan>>(server.detail["plan"].take());
        plan = scripted.ok().flatten().unwrap_or(plan);
    }
    visit.world.resume(&id, plan);
    Ok(task(visit, &id, "poweron"))
}

pub(super) fn terminate(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = allowed(visit, "terminate")?;
    let takes = visit.world.end_takes;
    visit.world.end(&id, Cause::Asked, takes);
    Ok(task(visit, &id, "terminate"))
}

/// Deletes a server that is stopped.
pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let server = own(visit, id)?;
    match state(server, server.phase).0 {
        "stopped" => visit.world.end(id, Cause::Asked, SignedDuration::ZERO),
        "starting" | "stopping" => return transient(),
        _ => return refused(400, "invalid_request_error", "instance should be powered off"),
    }
    Ok(Answer::empty(204))
}

/// Sets user data. That of the key `cloud-init` runs when the server is started next.
pub(super) fn set_user_data(visit: &mut Visit<'_>, key: &str) -> Result<Answer, Refusal> {
    let id = subject(visit)?;
    let text = String::from_utf8_lossy(&visit.request.body).into_owned();
    let server = visit.world.machines.get_mut(&id).filter(|_| key == "cloud-init");
    if let Some(server) = server {
        server.boot.start = Start::UserData(text);
    }
    Ok(Answer::empty(204))
}
