//! VMs: lists, states, floating addresses, rules of traffic, ends.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::things::{self, ENVIRONMENT};
use super::{Hyperstack, catalogue, conflict, date, listed, missing, number, ok};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::market::Left;
use crate::core::rest::{bad, body};

/// How long a VM is CREATING.
const CREATES: SignedDuration = SignedDuration::from_secs(10);
/// How long it takes until an address is attached, and until a VM has stopped or hibernates.
const TAKES: SignedDuration = SignedDuration::from_secs(3);
/// What is said of a VM that is being created.
const CREATED_STILL: &str = "currently being created and cannot be deleted yet. Please wait until the creation \
                             process is finished before attempting deletion.";
/// A VM that is off.
pub(super) const SHUTOFF: &str = "SHUTOFF";
/// A VM that gave its hardware back and keeps its disk.
pub(super) const HIBERNATED: &str = "HIBERNATED";

/// A rule to be added. The description judges its words.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    direction: String,
    ethertype: String,
    protocol: String,
    remote_ip_prefix: String,
    port_range_min: Option<u16>,
    port_range_max: Option<u16>,
}

pub(super) fn own<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Machine, Refusal> {
    visit.machine(id).ok_or_else(|| missing("VM"))
}

/// The status of a VM. `kept` is what it was when it was halted or started last.
pub(super) fn status(machine: &Machine, phase: Phase, now: Timestamp) -> &'static str {
    let kept = machine.detail["kept"].as_str();
    let was_asked = machine.cause == Some(Cause::Asked);
    let lasts = |since: Option<Timestamp>, time| since.is_some_and(|at| now.duration_since(at) < time);
    let halts = was_asked && lasts(machine.since(Phase::Halted), TAKES);
    match phase {
        Phase::Pending if kept == Some(HIBERNATED) => "RESTORING",
        Phase::Pending if kept == Some(SHUTOFF) => "STARTING",
        Phase::Pending if lasts(Some(machine.created()), CREATES) => "CREATING",
        Phase::Pending => "BUILD",
        Phase::Running => "ACTIVE",
        Phase::Halted if was_asked && kept == Some(HIBERNATED) => {
            [HIBERNATED, "HIBERNATING"][usize::from(halts)]
        }
        Phase::Halted => [SHUTOFF, "STOPPING"][usize::from(halts)],
        Phase::Failed => "ERROR",
        Phase::Ending | Phase::Ended => "DELETING",
    }
}

/// The floating address of a VM that has or gets one, and its status. `address` is when it was asked for.
fn floating(machine: &Machine, now: Timestamp) -> [Value; 2] {
    let Some(asked) = machine.detail["address"].as_i64() else {
        return [Value::Null, Value::Null];
    };
    let ran = machine.history.iter().find(|(_, phase)| *phase == Phase::Running);
    let since = ran.map(|(at, _)| at.as_second().max(asked));
    let attached = since.is_some_and(|at| now.as_second() - at >= TAKES.as_secs());
    match machine.endpoint.as_ref().filter(|_| attached) {
        Some(endpoint) => [json!(endpoint.address), json!("ATTACHED")],
        None => [Value::Null, json!("ATTACHING")],
    }
}

fn shown(visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
    let (detail, now) = (&machine.detail, visit.now());
    let [address, address_status] = floating(machine, now);
    let (state, power) = match phase {
        Phase::Pending | Phase::Ending | Phase::Ended => (None, None),
        Phase::Running => (Some("active"), Some("RUNNING")),
        Phase::Halted => (Some("stopped"), Some("SHUTDOWN")),
        Phase::Failed => (Some("error"), Some("NOSTATE")),
    };
    let flavor = visit.world.types.get(&machine.instance_type);
    let flavor = flavor.map(|flavor| catalogue::shown(flavor, &machine.region, Left::Plenty));
    json!({
        "id": number(&machine.id), "name": machine.mark.name, "status": status(machine, phase, now),
        "environment": things::around(visit, detail), "flavor": flavor, "image": { "name": detail["image"] },
        "keypair": { "name": detail["key"] }, "labels": detail["tags"],
        "security_rules": detail["rules"], "volume_attachments": [], "features": {}, "locked": false,
        "fixed_ip": Some(&detail["fixed"]).filter(|_| phase != Phase::Pending), "floating_ip": address,
        "floating_ip_status": address_status, "requires_public_ip": !detail["address"].is_null(),
        "port_randomization": detail["randomized"], "port_randomization_status": null, "power_state": power,
        "vm_state": state, "created_at": date(machine.created()), "callback_url": null, "contract_id": null,
    })
}

/// A VM as it is now.
pub(super) fn shown_now(visit: &Visit<'_>, id: &str) -> Result<Value, Refusal> {
    own(visit, id).map(|machine| shown(visit, machine, machine.phase))
}

pub(super) fn list(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let exact = visit.request.parameter("exact_environment_match") == Some("true");
    let around = visit.request.parameter(ENVIRONMENT).unwrap_or_default();
    let meant = |machine: &Value| {
        let name = machine[ENVIRONMENT]["name"].as_str().unwrap_or_default();
        name == around || (!exact && name.contains(around))
    };
    let machines = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        (phase != Phase::Ended).then(|| shown(visit, machine, phase))
    });
    listed(visit, "instances", machines.filter(meant))
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let machine = own(visit, id)?;
    match status(machine, machine.phase, visit.now()) {
        "CREATING" => bad(&format!("{} is {CREATED_STILL}", machine.mark.name)),
        "DELETING" => conflict("The VM is being deleted"),
        _ => {
            visit.world.end(id, Cause::Asked, visit.world.end_takes);
            ok(json!({}))
        }
    }
}

/// A VM, which must have this status.
fn in_status<'a>(visit: &'a mut Visit<'_>, id: &str, wanted: &str) -> Result<&'a mut Machine, Refusal> {
    let machine = own(visit, id)?;
    let found = status(machine, machine.phase, visit.now());
    if found != wanted {
        return bad(&format!("The VM is {found}. It must be {wanted}"));
    }
    visit.world.machines.get_mut(id).ok_or_else(|| missing("VM"))
}

pub(super) fn stop(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    in_status(visit, id, "ACTIVE")?.detail["kept"] = json!(SHUTOFF);
    visit.world.halt(id, Cause::Asked);
    ok(json!({}))
}

/// Starts a VM that is off, or restores one that hibernates.
pub(super) fn start(visit: &mut Visit<'_>, id: &str, from: &str) -> Result<Answer, Refusal> {
    in_status(visit, id, from)?;
    if !visit.world.hold_stock(id) {
        return Err(Refusal::NoCapacity);
    }
    let machine = in_status(visit, id, from)?;
    machine.detail["kept"] = json!(from);
    machine.disk_price = machine.price;
    let plan = visit.boot.clone();
    visit.world.resume(id, plan);
    ok(json!({}))
}

pub(super) fn hibernate(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let has_address = !in_status(visit, id, "ACTIVE")?.detail["address"].is_null();
    let keeps_address = has_address && visit.request.parameter("retain_ip") == Some("true");
    if has_address && !keeps_address {
        set_ip(visit, id, false)?;
    }
    let address = catalogue::ADDRESS * Decimal::from(u8::from(keeps_address));
    let machine = in_status(visit, id, "ACTIVE")?;
    machine.disk_price = catalogue::DISK + address;
    machine.detail["kept"] = json!(HIBERNATED);
    visit.world.halt(id, Cause::Asked);
    visit.world.release_stock(id);
    ok(json!({}))
}

/// Gives a VM a floating address, or takes it back.
pub(super) fn set_ip(visit: &mut Visit<'_>, id: &str, on: bool) -> Result<Answer, Refusal> {
    let machine = own(visit, id)?;
    if machine.detail["address"].is_null() != on {
        return bad("The VM has a public IP address already, or has none");
    }
    let change = catalogue::ADDRESS * Decimal::from(if on { 1 } else { -1 });
    let (price, asked) = (machine.price + change, on.then_some(visit.now().as_second()));
    if let Some(machine) = visit.world.machines.get_mut(id) {
        machine.detail["address"] = json!(asked);
        machine.disk_price += change;
    }
    visit.world.reprice(id, price);
    ok(json!({}))
}

/// A rule as answers have it.
pub(super) fn made_rule(api: &mut Hyperstack, visit: &Visit<'_>, rule: &Rule) -> Value {
    let mut value = json!(rule);
    value["id"] = json!(number(&api.id()));
    value["status"] = json!("SUCCESS");
    value["created_at"] = json!(date(visit.now()));
    value
}

/// The rules of a VM.
fn rules<'a>(visit: &'a mut Visit<'_>, id: &str) -> Result<&'a mut Vec<Value>, Refusal> {
    own(visit, id)?;
    let machine = visit.world.machines.get_mut(id);
    let rules = machine.and_then(|machine| machine.detail["rules"].as_array_mut());
    rules.ok_or_else(|| missing("VM"))
}

pub(super) fn add_rule(api: &mut Hyperstack, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let new: Rule = body(visit.request)?;
    let machine = own(visit, id)?;
    if ["CREATING", "BUILD"].contains(&status(machine, machine.phase, visit.now())) {
        return bad("The VM is currently being created");
    }
    let rule = made_rule(api, visit, &new);
    let rules = rules(visit, id)?;
    // A prefix tells its ethertype.
    let fields = "direction protocol remote_ip_prefix port_range_min port_range_max".split(' ');
    let is_same = |known: &Value| fields.clone().all(|field| known[field] == rule[field]);
    if rules.iter().any(is_same) {
        return conflict("The firewall rule already exists");
    }
    rules.push(rule.clone());
    ok(json!({ "security_rule": rule }))
}

pub(super) fn delete_rule(visit: &mut Visit<'_>, rule: &str) -> Result<Answer, Refusal> {
    let id = visit.request.segments().into_iter().nth(3).unwrap_or_default();
    visit.subject = Some(id.clone());
    let rules = rules(visit, &id)?;
    let place = rules.iter().position(|known| known["id"] == number(rule));
    rules.remove(place.ok_or_else(|| missing("firewall rule"))?);
    ok(json!({}))
}
