//! Fleets after they were created.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::context::Context;
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, flag, list, needed, page, tag_set, tag_values, text, texts};
use super::instances;
use crate::core::machine::{Cause, Machine, Phase};

/// The size of pages.
const PAGES: Pages = Pages {
    least: 1,
    most: 1_000,
    usual: Some(1_000),
};

fn of_account<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = (&'a String, &'a Value)> {
    context.state.fleets.iter().filter(|(_, fleet)| {
        fleet["account"] == context.visit.account.as_str() && fleet["region"] == context.region.as_str()
    })
}

fn absent(id: &str) -> Failure {
    Failure::client(
        "InvalidFleetId.NotFound",
        format!("The fleet ID '{id}' does not exist"),
    )
}

/// The machines of a fleet, ended ones too.
fn members<'a>(context: &'a Context<'_, '_>, fleet: &str) -> Vec<&'a Machine> {
    context
        .visit
        .world
        .machines_of(&context.visit.account)
        .filter(|machine| machine.mark.tags.get("aws:ec2:fleet-id").map(String::as_str) == Some(fleet))
        .collect()
}

/// The fleets of the account in the region.
pub fn ids(context: &Context<'_, '_>) -> Vec<String> {
    of_account(context).map(|(id, _)| id.clone()).collect()
}

/// The tags of a fleet, if it exists.
pub fn tags_of(context: &Context<'_, '_>, id: &str) -> Option<BTreeMap<String, String>> {
    let (_, fleet) = of_account(context).find(|(fleet, _)| fleet.as_str() == id)?;
    Some(serde_json::from_value(fleet["tags"].clone()).unwrap_or_default())
}

fn is_instant(fleet: &Value) -> bool {
    fleet["type"] == "instant"
}

/// Whether it has all the capacity that was ordered.
fn activity(fleet: &Value) -> &'static str {
    if list(fleet, "errors").is_empty() {
        "fulfilled"
    } else {
        "pending_fulfillment"
    }
}

/// `DescribeFleets`. Instant fleets are shown only when they are named.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let named = texts(input, "FleetIds");
    if let Some(unknown) = named
        .iter()
        .find(|id| !of_account(context).any(|(fleet, _)| fleet == *id))
    {
        return Err(absent(unknown));
    }
    let found: Vec<(&String, &Value)> = of_account(context)
        .filter(|(id, fleet)| named.contains(id) || (named.is_empty() && !is_instant(fleet)))
        .collect();
    let known = [
        "activity-status",
        "excess-capacity-termination-policy",
        "fleet-state",
        "replace-unhealthy-instances",
        "type",
    ];
    let found = filtered(input, &known, true, found, |(_, fleet), filter| match filter {
        "activity-status" => vec![activity(fleet).to_owned()],
        "excess-capacity-termination-policy" => vec!["termination".to_owned()],
        "fleet-state" => vec!["active".to_owned()],
        "replace-unhealthy-instances" => vec!["false".to_owned()],
        "type" => vec![text(fleet, "type").unwrap_or_default().to_owned()],
        other => tag_values(
            &serde_json::from_value(fleet["tags"].clone()).unwrap_or_default(),
            other,
        ),
    })?;
    let (found, next) = page(input, PAGES, context.visit.keep, found)?;
    let fleets: Vec<Value> = found
        .into_iter()
        .map(|(id, fleet)| {
            let tags = serde_json::from_value(fleet["tags"].clone()).unwrap_or_default();
            let mut described = json!({
                "FleetId": id,
                "FleetState": "active",
                "ActivityStatus": activity(fleet),
                "Type": fleet["type"],
                "CreateTime": fleet["created"],
                "ClientToken": fleet["token"],
                "ExcessCapacityTerminationPolicy": "termination",
                "TargetCapacitySpecification": {
                    "TotalTargetCapacity": fleet["total"],
                    "OnDemandTargetCapacity": fleet["onDemand"],
                    "SpotTargetCapacity": fleet["spot"],
                    "DefaultTargetCapacityType": fleet["usual"],
                },
                "TerminateInstancesWithExpiration": false,
                "ReplaceUnhealthyInstances": false,
                "Tags": tag_set(&tags),
            });
            // Of others only `DescribeFleetInstances` tells.
            if is_instant(fleet) {
                described["Errors"] = fleet["errors"].clone();
                described["Instances"] = fleet["instances"].clone();
            }
            described
        })
        .collect();
    Ok(json!({"Fleets": fleets, "NextToken": next}))
}

/// `DescribeFleetInstances`, which AWS does not offer for instant fleets.
pub fn describe_instances(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let id = needed(input, "FleetId")?;
    let (_, fleet) = of_account(context)
        .find(|(fleet, _)| fleet.as_str() == id)
        .ok_or_else(|| absent(id))?;
    if is_instant(fleet) {
        return Err(Failure::client(
            "Unsupported",
            format!(
                "Fleet {id} is instant fleet. Describe fleet instances is not supported by this type of fleet"
            ),
        ));
    }
    let running = members(context, id)
        .into_iter()
        .filter(|machine| matches!(machine.phase, Phase::Pending | Phase::Running))
        .collect();
    let found = filtered(
        input,
        &["instance-type"],
        false,
        running,
        |machine: &&Machine, _| vec![machine.instance_type.clone()],
    )?;
    let (found, next) = page(input, PAGES, context.visit.keep, found)?;
    let active: Vec<Value> = found
        .into_iter()
        .map(|machine| {
            let impaired = flag(&machine.detail, "impaired");
            json!({
                "InstanceId": machine.id,
                "InstanceType": machine.instance_type,
                "SpotInstanceRequestId": machine.detail["spotRequest"],
                "InstanceHealth": if impaired { "unhealthy" } else { "healthy" },
            })
        })
        .collect();
    Ok(json!({"FleetId": id, "ActiveInstances": active, "NextToken": next}))
}

/// `DeleteFleets`. An instant fleet can only go together with its instances.
pub fn delete(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let (mut gone, mut refused) = (Vec::new(), Vec::new());
    let terminate = flag(input, "TerminateInstances");
    for id in texts(input, "FleetIds") {
        let instant = of_account(context)
            .find(|(fleet, _)| **fleet == id)
            .map(|(_, fleet)| is_instant(fleet));
        match instant {
            None => refused.push(
                json!({"FleetId": id, "Error": {"Code": "fleetIdDoesNotExist", "Message": "does not exist"}}),
            ),
            Some(true) if !terminate => refused.push(json!({
                "FleetId": id,
                "Error": {"Code": "fleetNotInDeletableState", "Message": "NoTerminateInstances is not supported for instant fleets"},
            })),
            Some(_) => {
                let ending: Vec<String> = members(context, &id)
                    .into_iter()
                    .filter(|_| terminate)
                    .map(|machine| machine.id.clone())
                    .collect();
                for member in ending {
                    instances::end(context.visit.world, &member, Cause::Asked);
                }
                context.state.fleets.remove(&id);
                let state = if terminate { "deleted_terminating" } else { "deleted_running" };
                gone.push(json!({"FleetId": id, "CurrentFleetState": state, "PreviousFleetState": "active"}));
            }
        }
    }
    Ok(json!({"SuccessfulFleetDeletions": gone, "UnsuccessfulFleetDeletions": refused}))
}
