//! Fleets after they were created.

use serde_json::{Value, json};

use super::context::Context;
use super::failure::{Failure, Outcome};
use super::input::{filtered, flag, tag_set, tag_values, texts};
use super::instances;

fn of_account<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = (&'a String, &'a Value)> {
    context.state.fleets.iter().filter(|(_, fleet)| {
        fleet["account"] == context.visit.account.as_str() && fleet["region"] == context.region.as_str()
    })
}

/// `DescribeFleets`. Instant fleets are shown only when they are named.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let named = texts(input, "FleetIds");
    if let Some(unknown) = named
        .iter()
        .find(|id| !of_account(context).any(|(fleet, _)| fleet == *id))
    {
        return Err(Failure::client(
            "InvalidFleetId.NotFound",
            format!("The fleet ID '{unknown}' does not exist"),
        ));
    }
    let found: Vec<(&String, &Value)> = of_account(context).filter(|(id, _)| named.contains(id)).collect();
    let found = filtered(
        input,
        &["type", "fleet-state", "activity-status"],
        true,
        found,
        |(_, fleet), filter| match filter {
            "type" => vec!["instant".to_owned()],
            "fleet-state" => vec!["active".to_owned()],
            "activity-status" => vec!["fulfilled".to_owned()],
            other => tag_values(
                &serde_json::from_value(fleet["tags"].clone()).unwrap_or_default(),
                other,
            ),
        },
    )?;
    let fleets: Vec<Value> = found
        .into_iter()
        .map(|(id, fleet)| {
            let tags = serde_json::from_value(fleet["tags"].clone()).unwrap_or_default();
            json!({
                "FleetId": id,
                "FleetState": "active",
                "Type": "instant",
                "CreateTime": fleet["created"],
                "ClientToken": fleet["token"],
                "TargetCapacitySpecification": {"TotalTargetCapacity": fleet["total"]},
                "Errors": fleet["answer"]["Errors"],
                "Instances": fleet["answer"]["Instances"],
                "Tags": tag_set(&tags),
            })
        })
        .collect();
    Ok(json!({"Fleets": fleets}))
}

/// `DeleteFleets`. An instant fleet can only go together with its instances.
pub fn delete(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let (mut gone, mut refused) = (Vec::new(), Vec::new());
    for id in texts(input, "FleetIds") {
        let known = of_account(context).any(|(fleet, _)| *fleet == id);
        if !known {
            refused.push(
                json!({"FleetId": id, "Error": {"Code": "fleetIdDoesNotExist", "Message": "does not exist"}}),
            );
        } else if flag(input, "TerminateInstances") {
            let members: Vec<String> = context
                .visit
                .world
                .machines_of(&context.visit.account)
                .filter(|machine| machine.mark.tags.get("aws:ec2:fleet-id") == Some(&id))
                .map(|machine| machine.id.clone())
                .collect();
            for member in members {
                instances::end(context.visit.world, &member, crate::core::machine::Cause::Asked);
            }
            context.state.fleets.remove(&id);
            gone.push(json!({"FleetId": id, "CurrentFleetState": "deleted_terminating", "PreviousFleetState": "active"}));
        } else {
            refused.push(json!({
                "FleetId": id,
                "Error": {"Code": "fleetNotInDeletableState", "Message": "NoTerminateInstances is not supported for instant fleets"},
            }));
        }
    }
    Ok(json!({"SuccessfulFleetDeletions": gone, "UnsuccessfulFleetDeletions": refused}))
}
