//! Droplets: lists, states, the action that creates one, ends.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{catalogue, date, listed, missing};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::rest::{bad, has};
use crate::core::world::World;

/// How long a boot locks a Droplet.
const LOCKED: SignedDuration = SignedDuration::from_secs(10);
/// What the id of a creation has above that of its Droplet.
const ACTION: u64 = 2_000_000_000;

fn first_run(machine: &Machine) -> Option<Timestamp> {
    let mut history = machine.history.iter();
    history
        .find(|(_, phase)| *phase == Phase::Running)
        .map(|(at, _)| *at)
}

/// Whether an action is going on.
fn is_locked(machine: &Machine, now: Timestamp) -> bool {
    let boots = machine.phase == Phase::Pending && now.duration_since(machine.created()) < LOCKED;
    boots || machine.phase == Phase::Ending
}

fn number(id: &str) -> u64 {
    id.parse().unwrap_or_default()
}

/// The networks of a Droplet that is or was active.
fn networks(machine: &Machine) -> Value {
    let endpoint = machine.endpoint.as_ref().filter(|_| first_run(machine).is_some());
    let Some(endpoint) = endpoint else {
        return json!([]);
    };
    json!([
        {
            "ip_address": machine.detail["private"], "netmask": "255.255.240.0", "gateway": "nil", "type": "private",
        },
        {
            "ip_address": endpoint.address, "netmask": "255.255.255.0", "gateway": "198.18.0.1", "type": "public",
        },
    ])
}

fn shown(world: &World, machine: &Machine, phase: Phase) -> Value {
    let status = match phase {
        Phase::Pending => "new",
        Phase::Running => "active",
        Phase::Halted | Phase::Failed => "off",
        Phase::Ending | Phase::Ended => first_run(machine).map_or("new", |_| "active"),
    };
    let (detail, region) = (&machine.detail, &machine.region);
    let mut value = json!({
        "id": number(&machine.id), "name": machine.mark.name, "locked": is_locked(machine, world.now()),
        "status": status, "kernel": null, "created_at": date(machine.created()), "features": ["droplet_agent"],
        "backup_ids": [], "next_backup_window": null, "snapshot_ids": [], "volume_ids": [],
        "image": detail["image"].as_str().and_then(catalogue::image), "size_slug": machine.instance_type,
        "networks": { "v4": networks(machine), "v6": [] }, "region": catalogue::region(world, region),
        "tags": detail["tags"], "vpc_uuid": catalogue::vpc(region),
    });
    if let Some(size) = world.types.get(&machine.instance_type) {
        let size = catalogue::size(world, size);
        let both = ["memory", "vcpus", "disk", "disk_info", "gpu_info"].iter();
        for field in both.filter(|field| !size[field].is_null()) {
            value[field] = size[field].clone();
        }
        value["size"] = size;
    }
    value
}

/// A Droplet as it is now.
pub(super) fn shown_now(visit: &Visit<'_>, id: &str) -> Option<Value> {
    let machine = visit.machine(id)?;
    Some(shown(visit.world, machine, machine.phase))
}

pub(super) fn list(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let asked = |name: &str| visit.request.parameter(name);
    let (tag, name, kind) = (asked("tag_name"), asked("name"), asked("type"));
    if tag.is_some() && name.or(kind).is_some() {
        return bad("tag_name cannot be combined with name or type.");
    }
    let found = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        let tagged = tag.is_none_or(|tag| has(&machine.detail["tags"], tag));
        let named = name.is_none_or(|name| machine.mark.name.eq_ignore_ascii_case(name));
        let of_kind = machine.instance_type.starts_with("gpu-") == (kind == Some("gpus"));
        let meant = phase != Phase::Ended && tagged && named && of_kind;
        meant.then(|| shown(visit.world, machine, phase))
    });
    listed(visit, "droplets", found)
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    if is_locked(visit.machine(id).ok_or_else(missing)?, visit.now()) {
        return bad("Droplet already has a pending event.");
    }
    let takes = visit.world.end_takes;
    visit.world.end(id, Cause::Asked, takes);
    Ok(Answer::empty(204))
}

/// The id of the action that creates a Droplet.
pub(super) fn action_of(droplet: &str) -> u64 {
    ACTION + number(droplet)
}

/// The creation of a Droplet by its own id. It is known when the Droplet is gone, too.
pub(super) fn action(visit: &Visit<'_>, id: &str) -> Option<Value> {
    let droplet = number(id).checked_sub(ACTION)?;
    let machine = visit.world.machines.get(&droplet.to_string())?;
    let completed = first_run(machine).map(date);
    let status = match (&completed, machine.phase) {
        (Some(_), _) => "completed",
        (None, Phase::Pending) => "in-progress",
        (None, _) => "errored",
    };
    let action = json!({
        "id": action_of(&machine.id), "status": status, "type": "create", "started_at": date(machine.created()),
        "completed_at": completed, "resource_id": droplet, "resource_type": "droplet",
        "region": catalogue::region(visit.world, &machine.region), "region_slug": machine.region,
    });
    (machine.account == visit.account).then_some(action)
}
