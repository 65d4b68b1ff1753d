//! Instances: launch, list, get, terminate, and their statuses.

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{catalogue, data, keys, list, unknown};
use crate::backend::{Boot, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Mark, Phase};
use crate::core::rest::{Rental, body};

/// How long an instance that is gone can still be asked for by its id.
const KNOWN: SignedDuration = SignedDuration::from_mins(60);
/// Most characters of user data.
const USER_DATA: usize = 1 << 20;

/// A tag.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tag {
    key: String,
    value: String,
}

/// The body of a launch. There are no filesystems and no rulesets, so that none can be named.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Launch {
    region_name: String,
    instance_type_name: String,
    ssh_key_names: Vec<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    file_system_names: Vec<String>,
    #[serde(default)]
    file_system_mounts: Vec<Value>,
    #[serde(default)]
    firewall_rulesets: Vec<Value>,
    hostname: Option<String>,
    image: Option<Image>,
    user_data: Option<String>,
    #[serde(default)]
    tags: Vec<Tag>,
}

/// An image, by its id or by its family: exactly one of them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Image {
    Id(String),
    Family(String),
}

/// The body of a termination.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Terminate {
    instance_ids: Vec<String>,
}

fn status(machine: &Machine, phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "booting",
        Phase::Running => "active",
        Phase::Halted | Phase::Failed => "unhealthy",
        Phase::Ending => "terminating",
        Phase::Ended if machine.cause == Some(Cause::Reclaimed) => "preempted",
        Phase::Ended => "terminated",
    }
}

pub(super) fn launch(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let order: Launch = body(visit.request)?;
    let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
    let Some(kind) = visit.world.types.get(&order.instance_type_name).cloned() else {
        return bad("Invalid instance type.");
    };
    if !visit.world.regions.contains(&order.region_name) {
        return bad("Invalid region.");
    }
    let [key] = order.ssh_key_names.as_slice() else {
        return bad("Exactly one SSH key must be specified.");
    };
    let key_text = keys::text(visit, key).ok_or_else(|| unknown(400, "SSH key"))?;
    if !order.file_system_names.is_empty() || !order.file_system_mounts.is_empty() {
        return Err(unknown(400, "filesystem"));
    }
    if !order.firewall_rulesets.is_empty() {
        return Err(unknown(400, "firewall ruleset"));
    }
    if order
        .user_data
        .as_ref()
        .is_some_and(|text| text.len() > USER_DATA)
    {
        return bad("User data is too large.");
    }
    let id = visit.world.chance.hex(32);
    let hostname = order.hostname.unwrap_or_else(|| format!("ip-{}", &id[..8]));
    let image = match order.image {
        Some(Image::Id(image) | Image::Family(image)) => image,
        None => "lambda-stack".to_owned(),
    };
    let mark = Mark {
        name: order.name,
        tags: order.tags.into_iter().map(|tag| (tag.key, tag.value)).collect(),
        ..Mark::default()
    };
    // `A10 (24 GB PCIe)` is an `NVIDIA A10` to its driver.
    let gpu = format!("NVIDIA {}", kind.gpu.split(" (").next().unwrap_or_default());
    let boot = Boot {
        hostname: hostname.clone(),
        image,
        user: "ubuntu".to_owned(),
        authorized_keys: vec![key_text],
        start: order.user_data.map_or(Start::Nothing, Start::UserData),
        gpus: vec![gpu; kind.gpus as usize],
        ..Boot::default()
    };
    let rental = Rental {
        id: id.clone(),
        region: order.region_name,
        mark,
        boot,
        detail: json!({ "key": key, "hostname": hostname }),
    };
    visit.rent(&kind, rental)?;
    Ok(data(&json!({ "instance_ids": [id] })))
}

fn shown(visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
    let status = status(machine, phase);
    let may_end = matches!(
        phase,
        Phase::Pending | Phase::Running | Phase::Halted | Phase::Failed
    );
    let action = if may_end {
        json!({ "available": true })
    } else {
        json!({ "available": false, "reason_code": "vm-is-terminating", "reason_description": "It is terminating." })
    };
    let tags: Vec<Value> = machine
        .mark
        .tags
        .iter()
        .map(|(key, value)| json!({ "key": key, "value": value }))
        .collect();
    let kind = visit.world.types.get(&machine.instance_type);
    let mut value = json!({
        "id": machine.id,
        "name": machine.mark.name,
        "status": status,
        "ssh_key_names": [machine.detail["key"]],
        "file_system_names": [],
        "region": catalogue::region(&machine.region),
        "instance_type": kind.map(catalogue::shown),
        "hostname": machine.detail["hostname"],
        "actions": {
            "migrate": action, "rebuild": action, "restart": action, "cold_reboot": action, "terminate": action,
        },
        "tags": tags,
    });
    // Absent until it is there.
    if let Some(endpoint) = machine.endpoint.as_ref().filter(|_| status != "booting") {
        value["ip"] = endpoint.address.clone().into();
    }
    value
}

pub(super) fn list_all(visit: &mut Visit<'_>) -> Answer {
    let found = visit
        .world
        .machines_of(&visit.account)
        .filter_map(|machine| {
            let phase = visit.world.listed(machine)?;
            (phase != Phase::Ended).then(|| shown(visit, machine, phase))
        })
        .collect();
    list(visit, found)
}

pub(super) fn get(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let now = visit.now();
    let known = |machine: &&Machine| {
        machine.account == visit.account
            && machine
                .since(Phase::Ended)
                .is_none_or(|since| now.duration_since(since) <= KNOWN)
    };
    let machine = visit.world.machines.get(id).filter(known);
    let machine = machine.ok_or_else(|| unknown(404, "instance"))?;
    Ok(data(&shown(visit, machine, machine.phase)))
}

pub(super) fn terminate(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let Terminate { instance_ids } = body(visit.request)?;
    visit.subject = instance_ids.first().cloned();
    // One that is unknown fails the call for all.
    if !instance_ids.iter().all(|id| visit.machine(id).is_some()) {
        return Err(unknown(404, "instance"));
    }
    let takes = visit.world.end_takes;
    for id in &instance_ids {
        visit.world.end(id, Cause::Asked, takes);
    }
    let ended: Vec<Value> = instance_ids
        .iter()
        .filter_map(|id| visit.world.machines.get(id))
        .map(|machine| shown(visit, machine, machine.phase))
        .collect();
    Ok(data(&json!({ "terminated_instances": ended })))
}
