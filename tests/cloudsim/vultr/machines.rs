//! Instances and bare metal: lists, states, halts, ends. They differ in their paths and in the
//! fields of answers.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{catalogue, date, listed, missing, uuid};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::rest::has;

/// How long a machine is `pending`.
const PENDING: SignedDuration = SignedDuration::from_secs(5);
/// Until when after its order a machine that is being installed is locked.
const LOCKED: SignedDuration = SignedDuration::from_secs(10);

/// Whether a request is about bare metal.
pub(super) fn asks_for_metal(visit: &Visit<'_>) -> bool {
    visit.request.path.starts_with("/v2/bare-metals")
}

/// The field of answers that has one machine; lists have it with an `s`.
pub(super) fn member(metal: bool) -> &'static str {
    if metal { "bare_metal" } else { "instance" }
}

/// A machine of the account and of the kind that the request is about, by its id.
fn own<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Machine, Refusal> {
    let metal = asks_for_metal(visit);
    uuid(member(metal), id)?;
    let machine = visit.machine(id);
    let machine = machine.filter(|machine| catalogue::is_metal(&machine.instance_type) == metal);
    machine.ok_or_else(|| missing(member(metal)))
}

/// Status, power and server status in a phase.
fn states(metal: bool, phase: Phase, age: SignedDuration) -> [&'static str; 3] {
    match phase {
        Phase::Pending if metal || age < PENDING => ["pending", "running", "none"],
        Phase::Pending if age < LOCKED => ["active", "running", "locked"],
        Phase::Pending => ["active", "running", "installingbooting"],
        Phase::Running => ["active", "running", "ok"],
        Phase::Halted => ["active", "stopped", "ok"],
        Phase::Failed => ["suspended", "stopped", "none"],
        Phase::Ending | Phase::Ended => ["active", "stopped", "locked"],
    }
}

fn shown(visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
    let metal = catalogue::is_metal(&machine.instance_type);
    let age = visit.now().duration_since(machine.created());
    let [status, power, server] = states(metal, phase, age);
    let plan = visit.world.types.get(&machine.instance_type);
    let (vcpus, memory) = plan.map_or((0, 0), |plan| (plan.vcpus, plan.memory_gb * 1024));
    let disk = plan.map_or(&Value::Null, |plan| &plan.detail["disk"]);
    let detail = &machine.detail;
    let nowhere = if metal { "" } else { "0.0.0.0" };
    let endpoint = machine.endpoint.as_ref().filter(|_| status != "pending");
    let (address, netmask, gateway) = endpoint.map_or((nowhere, "", nowhere), |endpoint| {
        (&endpoint.address, "255.255.254.0", "198.18.0.1")
    });
    let mut value = json!({
        "id": machine.id, "label": machine.mark.name, "region": machine.region, "plan": machine.instance_type,
        "date_created": date(machine.created()), "status": status, "main_ip": address, "netmask_v4": netmask,
        "gateway_v4": gateway, "v6_network": "", "v6_main_ip": "", "v6_network_size": 0, "os": detail["os"],
        "os_id": detail["os_id"], "app_id": 0, "image_id": detail["image_id"], "tags": detail["tags"],
        "features": detail["features"],
    });
    let of_kind = if metal {
        json!({
            "ram": format!("{memory} MB"), "disk": format!("{disk}GB NVMe"), "cpu_count": vcpus,
            "mac_address": 2_199_756_823_533_u64,
        })
    } else {
        json!({
            "ram": memory, "disk": disk, "vcpu_count": vcpus, "power_status": power, "server_status": server,
            "allowed_bandwidth": 10_240, "kvm": "", "hostname": detail["hostname"],
            "internal_ip": detail["internal_ip"], "firewall_group_id": "",
        })
    };
    if let (Value::Object(all), Value::Object(more)) = (&mut value, of_kind) {
        all.extend(more);
    }
    value
}

/// A machine as it is now.
pub(super) fn shown_now(visit: &Visit<'_>, id: &str) -> Result<Value, Refusal> {
    let machine = own(visit, id)?;
    Ok(shown(visit, machine, machine.phase))
}

pub(super) fn list(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let metal = asks_for_metal(visit);
    let asked = visit.request.parameter("tag");
    let fits = |machine: &Value| {
        let tagged = asked.is_none_or(|tag| has(&machine["tags"], tag));
        visit.fits(machine, &["label", "region", "main_ip"]) && tagged
    };
    let found = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        let of_kind = catalogue::is_metal(&machine.instance_type) == metal;
        let value = (of_kind && phase != Phase::Ended).then(|| shown(visit, machine, phase))?;
        fits(&value).then(|| (machine.id.clone(), value))
    });
    listed(visit, &format!("{}s", member(metal)), found.collect())
}

pub(super) fn get(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let value = shown_now(visit, id)?;
    Ok(Answer::json(
        200,
        &json!({ member(asks_for_metal(visit)): value }),
    ))
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let machine = own(visit, id)?;
    let age = visit.now().duration_since(machine.created());
    let unlocked = age < PENDING && !asks_for_metal(visit);
    if machine.phase == Phase::Pending && age < LOCKED && !unlocked {
        let locked = "Unable to destroy server: the server is currently locked.";
        return Err(Refusal::Bad(locked.to_owned()));
    }
    let takes = visit.world.end_takes;
    visit.world.end(id, Cause::Asked, takes);
    Ok(Answer::empty(204))
}

pub(super) fn halt(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    own(visit, id)?;
    visit.world.halt(id, Cause::Asked);
    Ok(Answer::empty(204))
}

pub(super) fn start(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    own(visit, id)?;
    let plan = visit.world.boot.clone();
    visit.world.resume(id, plan);
    Ok(Answer::empty(204))
}
