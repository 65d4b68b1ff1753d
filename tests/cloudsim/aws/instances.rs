//! Instances: which are asked for, their status, and their end.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::context::Context;
use super::described::{describe_one, hostname, state, state_value};
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, flag, int, list, page, text, texts};
use super::instance_filters as filters;
use super::network::zone_id;
use super::parts;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::world::World;

/// How long a terminated instance can still be described.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);

/// An instance with the phase that is shown.
type Shown<'a> = (&'a Machine, Phase);

/// Whether an instance counts against quotas.
pub fn counts(machine: &Machine) -> bool {
    matches!(machine.phase, Phase::Pending | Phase::Running)
}

/// The security groups of an instance.
pub fn groups_of(machine: &Machine) -> Vec<String> {
    list(&machine.detail, "groups")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// The instances of an account in a region that can be seen, with the phase that
/// is shown.
pub fn visible<'a>(context: &'a Context<'_, '_>) -> Vec<(&'a Machine, Phase)> {
    let world = &context.visit.world;
    let now = world.now();
    world
        .machines_of(&context.visit.account)
        .filter(|machine| machine.detail["region"] == context.region.as_str())
        .filter_map(|machine| Some((machine, world.listed(machine)?)))
        .filter(|(machine, phase)| {
            *phase != Phase::Ended
                || machine
                    .since(Phase::Ended)
                    .is_none_or(|at| now.duration_since(at) < REMEMBERED)
        })
        .collect()
}

fn named<'a>(context: &'a Context<'_, '_>, ids: &[String]) -> Result<Vec<(&'a Machine, Phase)>, Failure> {
    for id in ids {
        let well_formed = id.strip_prefix("i-").is_some_and(|digits| {
            (digits.len() == 17 || digits.len() == 8) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if !well_formed {
            return Err(Failure::client(
                "InvalidInstanceID.Malformed",
                format!("Invalid id: \"{id}\""),
            ));
        }
    }
    let all = visible(context);
    let unknown: Vec<&str> = ids
        .iter()
        .map(String::as_str)
        .filter(|id| !all.iter().any(|(machine, _)| machine.id == *id))
        .collect();
    match unknown.as_slice() {
        [] => Ok(all
            .into_iter()
            .filter(|(machine, _)| ids.contains(&machine.id))
            .collect()),
        [one] => Err(Failure::client(
            "InvalidInstanceID.NotFound",
            format!("The instance ID '{one}' does not exist"),
        )),
        many => Err(Failure::client(
            "InvalidInstanceID.NotFound",
            format!("The instance IDs '{}' do not exist", many.join(", ")),
        )),
    }
}

/// Instances that a request asks for by ids, filters and page.
fn asked<'a>(
    context: &'a Context<'_, '_>,
    input: &Value,
    ids_may_have_pages: bool,
) -> Result<(Vec<Shown<'a>>, Option<String>), Failure> {
    let ids = texts(input, "InstanceIds");
    if !ids.is_empty()
        && !ids_may_have_pages
        && (int(input, "MaxResults").is_some() || text(input, "NextToken").is_some())
    {
        return Err(Failure::combination(
            "The parameter instancesSet cannot be used with the parameter maxResults",
        ));
    }
    let all = if ids.is_empty() {
        visible(context)
    } else {
        named(context, &ids)?
    };
    let found = filtered(input, &filters::known(), true, all, |(machine, phase), filter| {
        filters::values(context, machine, *phase, filter)
    })?;
    page(
        input,
        Pages {
            least: 5,
            most: 1_000,
            usual: Some(1_000),
        },
        context.visit.keep,
        found,
    )
}

/// `DescribeInstances`.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let (found, next) = asked(context, input, false)?;
    let mut reservations: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (machine, phase) in found {
        let reservation = machine.detail["reservation"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        reservations
            .entry(reservation)
            .or_default()
            .push(describe_one(context, machine, phase));
    }
    let reservations: Vec<Value> = reservations
        .into_iter()
        .map(|(id, instances)| {
            json!({"ReservationId": id, "OwnerId": context.visit.account, "Groups": [], "Instances": instances})
        })
        .collect();
    Ok(json!({"Reservations": reservations, "NextToken": next}))
}

/// The status of an instance, and that of its reachability.
fn health(context: &Context<'_, '_>, machine: &Machine, phase: Phase) -> (&'static str, &'static str) {
    let ready = machine
        .since(Phase::Running)
        .is_some_and(|at| context.visit.now().duration_since(at) > SignedDuration::from_secs(60));
    match phase {
        Phase::Running if flag(&machine.detail, "impaired") => ("impaired", "failed"),
        Phase::Running if ready => ("ok", "passed"),
        Phase::Pending | Phase::Running => ("initializing", "initializing"),
        Phase::Halted | Phase::Failed | Phase::Ending | Phase::Ended => {
            ("not-applicable", "insufficient-data")
        }
    }
}

/// `DescribeInstanceStatus`: running ones only, unless all are asked for.
pub fn describe_status(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let everything = flag(input, "IncludeAllInstances");
    let ids = texts(input, "InstanceIds");
    let all = if ids.is_empty() {
        visible(context)
    } else {
        named(context, &ids)?
    };
    let all = all
        .into_iter()
        .filter(|(_, phase)| everything || *phase == Phase::Running)
        .collect();
    let known = [
        "availability-zone",
        "availability-zone-id",
        "instance-state-code",
        "instance-state-name",
        "instance-status.reachability",
        "instance-status.status",
        "system-status.reachability",
        "system-status.status",
    ];
    let found = filtered(
        input,
        &known,
        true,
        all,
        |(machine, phase), filter| match filter {
            "instance-status.reachability" | "system-status.reachability" => {
                vec![health(context, machine, *phase).1.to_owned()]
            }
            "instance-status.status" | "system-status.status" => {
                vec![health(context, machine, *phase).0.to_owned()]
            }
            other => filters::values(context, machine, *phase, other),
        },
    )?;
    let pages = Pages {
        least: 5,
        most: 1_000,
        usual: Some(100),
    };
    let (found, next) = page(input, pages, context.visit.keep, found)?;
    let statuses: Vec<Value> = found
        .into_iter()
        .map(|(machine, phase)| {
            let (status, passed) = health(context, machine, phase);
            let summary = json!({"Status": status, "Details": [{"Name": "reachability", "Status": passed}]});
            json!({
                "InstanceId": machine.id,
                "AvailabilityZone": machine.region,
                "AvailabilityZoneId": zone_id(&machine.region),
                "InstanceState": state_value(state(context.visit.world, machine, phase)),
                "InstanceStatus": summary,
                "SystemStatus": summary,
                "Events": [],
            })
        })
        .collect();
    Ok(json!({"InstanceStatuses": statuses, "NextToken": next}))
}

/// `TerminateInstances`: all of them or, with one that is not known, none.
pub fn terminate(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let ids = texts(input, "InstanceIds");
    if ids.is_empty() {
        return Err(Failure::missing("InstanceId"));
    }
    if ids.len() > 1_000 {
        return Err(Failure::value("At most 1000 instances in one call."));
    }
    let found: Vec<(String, (i64, &'static str), bool)> = named(context, &ids)?
        .into_iter()
        .map(|(machine, phase)| {
            (
                machine.id.clone(),
                state(context.visit.world, machine, phase),
                flag(&machine.detail, "protected"),
            )
        })
        .collect();
    if let Some((id, ..)) = found.iter().find(|(.., protected)| *protected) {
        return Err(Failure::client(
            "OperationNotPermitted",
            format!(
                "The instance '{id}' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again."
            ),
        ));
    }
    context.visit.subject = ids.first().cloned();
    let mut changes = Vec::new();
    for (id, before, _) in found {
        end(context.visit.world, &id, Cause::Asked);
        let after = context
            .visit
            .world
            .machines
            .get(&id)
            .map(|machine| state(context.visit.world, machine, machine.phase));
        changes.push(json!({
            "InstanceId": id,
            "PreviousState": state_value(before),
            "CurrentState": after.map(state_value),
        }));
    }
    Ok(json!({"TerminatingInstances": changes}))
}

/// Ends a machine. Volumes that are to be kept stay behind, and cost.
pub fn end(world: &mut World, id: &str, cause: Cause) {
    let takes = world.end_takes;
    let Some(machine) = world.machines.get(id) else {
        return;
    };
    if matches!(machine.phase, Phase::Ending | Phase::Ended) {
        return;
    }
    let kept: Vec<(String, i64, BTreeMap<String, String>)> = list(&machine.detail, "volumes")
        .iter()
        .filter(|volume| flag(volume, "keep"))
        .filter_map(|volume| {
            let id = text(volume, "id")?;
            Some((id.to_owned(), int(volume, "size")?, parts::tags_of(machine, id)))
        })
        .collect();
    let (account, region) = (
        machine.account.clone(),
        text(&machine.detail, "region").unwrap_or_default().to_owned(),
    );
    for (volume, gigabytes, tags) in kept {
        let mut resource = world.new_resource(&volume, "volume", &account, "");
        resource.region.clone_from(&region);
        resource.tags = tags;
        world.add_resource(resource, Decimal::new(gigabytes * 110, 6));
    }
    world.end(id, cause, takes);
}

/// `GetConsoleOutput`.
pub fn console_output(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let ids = vec![super::input::needed(input, "InstanceId")?.to_owned()];
    let (machine, _) = named(context, &ids)?
        .into_iter()
        .next()
        .ok_or_else(|| Failure::internal("no instance"))?;
    let text = format!("Ubuntu 24.04 LTS {} ttyS0\r\n", hostname(&machine.id));
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    Ok(json!({"InstanceId": machine.id, "Timestamp": context.moment(), "Output": encoded}))
}
