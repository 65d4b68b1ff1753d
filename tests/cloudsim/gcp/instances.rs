//! Instances: lists, states, labels, ends, and what happens to them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::lists::of_zones;
use super::operations::{About, End, Failure};
use super::{Gcp, date, disks, enter, missing, refused, target, url};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::world::{Happening, World};

/// How long an instance is PROVISIONING before it is STAGING.
const PROVISIONS: SignedDuration = SignedDuration::from_secs(3);
/// How long it is STOPPING.
const STOPS: SignedDuration = SignedDuration::from_secs(5);
/// How long it runs before its address is told.
const ADDRESS: SignedDuration = SignedDuration::from_secs(2);
/// How long one that is taken back is there still.
const LINGERS: SignedDuration = SignedDuration::from_secs(30);
/// What an instance that is repaired has among its details.
const REPAIRED: &str = "repaired";

/// An instance of a zone by its name or its id.
pub(super) fn own<'a>(visit: &'a Visit<'_>, zone: &str, name: &str) -> Option<&'a Machine> {
    let mut machines = visit.world.machines_of(&visit.account);
    machines.find(|machine| {
        machine.exists() && machine.region == zone && (machine.mark.name == name || machine.id == name)
    })
}

fn status(machine: &Machine, phase: Phase, now: Timestamp) -> &'static str {
    let is_within = |phase: Phase, time: SignedDuration| {
        let since = machine.since(phase);
        since.is_some_and(|at| now.duration_since(at) < time)
    };
    match phase {
        Phase::Pending if machine.detail[REPAIRED] == true => "REPAIRING",
        Phase::Pending if is_within(Phase::Pending, PROVISIONS) => "PROVISIONING",
        Phase::Pending => "STAGING",
        Phase::Running => "RUNNING",
        Phase::Halted if is_within(Phase::Halted, STOPS) => "STOPPING",
        Phase::Halted => "TERMINATED",
        Phase::Failed => "STOPPING",
        Phase::Ending | Phase::Ended if is_within(Phase::Ending, STOPS) => "STOPPING",
        Phase::Ending | Phase::Ended if machine.cause == Some(Cause::Reclaimed) => "TERMINATED",
        Phase::Ending | Phase::Ended => "DEPROVISIONING",
    }
}

/// The fingerprint of what may change.
pub(super) fn fingerprint(value: &Value) -> String {
    STANDARD.encode(&md5::compute(value.to_string()).0[..8])
}

fn shown(visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
    let now = visit.now();
    let mut shown = machine.detail["shown"].clone();
    shown["status"] = status(machine, phase, now).into();
    shown["labels"] = json!(machine.mark.tags);
    shown["labelFingerprint"] = fingerprint(&shown["labels"]).into();
    let since = machine.since(Phase::Running).filter(|_| phase == Phase::Running);
    let has_address = since.is_some_and(|at| now.duration_since(at) >= ADDRESS);
    let endpoint = machine.endpoint.as_ref().filter(|_| has_address);
    let config = shown.pointer_mut("/networkInterfaces/0/accessConfigs/0");
    if let (Some(endpoint), Some(config)) = (endpoint, config) {
        config["natIP"] = endpoint.address.clone().into();
    }
    shown
}

pub(super) fn list(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let machines = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        let shown = shown(visit, machine, phase);
        let item = (machine.region.clone(), machine.mark.name.clone(), shown);
        (phase != Phase::Ended).then_some(item)
    });
    of_zones(api, visit, &zone, ["instance", "instances"], machines.collect())
}

pub(super) fn get(api: &mut Gcp, visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let machine = own(visit, &zone, name).ok_or_else(|| missing(&target(visit.request)))?;
    let (id, shown) = (machine.id.clone(), shown(visit, machine, machine.phase));
    visit.subject = Some(id);
    Ok(Answer::json(200, &shown))
}

/// What an operation of an instance is about.
fn about<'a>(machine: &'a Machine, kind: &'a str) -> About<'a> {
    let (account, zone) = (&machine.account, &machine.region);
    [account, zone, kind, "instances", &machine.mark.name, &machine.id]
}

/// Deletes an instance. One that is being deleted may be deleted again.
pub(super) fn delete(api: &mut Gcp, visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let machine = own(visit, &zone, name).ok_or_else(|| missing(&target(visit.request)))?;
    if machine.phase == Phase::Ending && api.busy {
        return refused(400, "resourceNotReady", "The resource is not ready");
    }
    let id = machine.id.clone();
    let end = End::Gone(id.clone());
    let about = about(machine, "delete");
    let answer = api.operations.begin(visit.request, about, visit.now(), end);
    visit.world.end(&id, Cause::Asked, visit.world.end_takes);
    visit.subject = Some(id);
    Ok(answer)
}

fn scheduling(machine: &Machine) -> &Value {
    &machine.detail["shown"]["scheduling"]
}

/// What an instance becomes at its reclaim, or when its time is over: gone, or TERMINATED.
fn ends(world: &mut World, id: &str, cause: Cause) {
    let machine = world.machines.get(id);
    let action = machine.and_then(|machine| scheduling(machine)["instanceTerminationAction"].as_str());
    if action == Some("DELETE") {
        world.end(id, cause, LINGERS);
    } else {
        world.halt(id, cause);
        world.release_stock(id);
    }
}

/// Records an operation of the service itself.
fn record(api: &mut Gcp, world: &World, id: &str, kind: &str) {
    if let Some(machine) = world.machines.get(id) {
        let about = about(machine, kind);
        api.operations.happens(about, world.now(), End::At(world.now()));
    }
}

/// The seconds that an order lets its instance run.
fn most_seconds(machine: &Machine) -> Option<i64> {
    let most = &scheduling(machine)["maxRunDuration"]["seconds"];
    most.as_str()?.parse().ok()
}

pub(super) fn happened(api: &mut Gcp, world: &mut World, happening: &Happening) {
    match happening {
        Happening::Reclaimed(id) => {
            record(api, world, id, "compute.instances.preempted");
            ends(world, id, Cause::Reclaimed);
        }
        Happening::HaltedItself(id) => {
            record(api, world, id, "compute.instances.guestTerminate");
            world.halt(id, Cause::Itself);
            world.release_stock(id);
        }
        Happening::Died(id) => {
            record(api, world, id, "compute.instances.hostError");
            world.halt(id, Cause::Died);
            let restarts = |machine: &&mut Machine| {
                machine.phase == Phase::Halted && scheduling(machine)["automaticRestart"] == true
            };
            let plan = world.boot.clone();
            match world.machines.get_mut(id).filter(restarts) {
                Some(machine) => {
                    machine.detail[REPAIRED] = true.into();
                    world.resume(id, plan);
                }
                None => world.release_stock(id),
            }
        }
        Happening::BootFailed(id) => {
            if let Some(machine) = world.machines.get(id) {
                let failure = match machine.cause {
                    Some(Cause::NoCapacity) => Failure::short(&machine.account, &machine.region),
                    _ => Failure::internal(),
                };
                api.operations.fail(id, world.now(), &failure);
            }
            world.end(id, Cause::NoCapacity, SignedDuration::ZERO);
        }
        Happening::Running(id) => {
            let most = world.machines.get(id).and_then(most_seconds);
            if let Some(seconds) = most {
                world.remind(SignedDuration::from_secs(seconds), id.clone());
            }
        }
        Happening::Reminder(id) => {
            let is_over = |machine: &Machine| {
                let since = machine.since(Phase::Running).zip(most_seconds(machine));
                let is_over =
                    since.is_some_and(|(at, most)| world.now().duration_since(at).as_secs() >= most);
                machine.phase == Phase::Running && is_over
            };
            if world.machines.get(id).is_some_and(is_over) {
                record(api, world, id, "stop");
                ends(world, id, Cause::Asked);
            }
        }
        Happening::Ended(id) => disks::let_go(world, id),
        Happening::Noticed(_) => {}
    }
}

/// The part of an instance that stays as it was ordered. `place` is its project and zone.
pub(super) fn base(visit: &Visit<'_>, place: &str, id: &str, name: &str) -> Value {
    json!({
        "kind": "compute#instance", "id": id, "name": name, "zone": url(place),
        "selfLink": url(&format!("{place}/instances/{name}")), "creationTimestamp": date(visit.now()),
        "cpuPlatform": "Intel Cascade Lake", "canIpForward": false, "deletionProtection": false,
        "startRestricted": false,
    })
}
