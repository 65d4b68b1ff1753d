//! `RunInstances`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::context::Context;
use super::described::describe_one;
use super::failure::{Failure, Outcome};
use super::input::{client_token, int, list, text};
use super::launch::{self, Launch, Order};
use super::network::{self, Subnet};
use super::{room, templates};

/// Most instances of one call.
const MOST: i64 = 1_000;

/// `RunInstances`.
pub fn run(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let token = client_token(input)?;
    if let Some(remembered) = context.remembered("RunInstances", token.as_deref(), input)? {
        return Ok(reservation_now(context, &remembered));
    }
    let (least, most) = (
        int(input, "MinCount").unwrap_or(1),
        int(input, "MaxCount").unwrap_or(1),
    );
    if least < 1 || most < least || most > MOST {
        return Err(Failure::value(format!(
            "Invalid value for MinCount {least} and MaxCount {most}"
        )));
    }
    let spec = match input.get("LaunchTemplate") {
        Some(specification) => launch::overlay(&templates::named(context, specification)?.detail, input),
        None => input.clone(),
    };
    let top_level = ["SubnetId", "PrivateIpAddress"]
        .iter()
        .any(|name| text(&spec, name).is_some());
    if top_level && !list(&spec, "NetworkInterfaces").is_empty() {
        return Err(Failure::combination(
            "Network interfaces and an instance-level subnet ID may not be specified on the same request",
        ));
    }
    let launch = launch::check(context, &spec)?;
    let quota = room::quota_left(context, launch.kind, launch.market)?;
    let (subnet, stock) = choose_subnet(context, &launch, least as u64)?;
    let count = quota.min(stock).min(most as u64);
    if count < least as u64 {
        return Err(if quota < stock {
            Failure::client(
                "VcpuLimitExceeded",
                format!(
                    "You have requested more vCPU capacity than your current vCPU limit allows: {quota} instances are left."
                ),
            )
        } else {
            room::no_capacity(launch.kind, &subnet.zone, launch.market)
        });
    }
    let order = Order {
        reservation: context.id("r"),
        // The service makes a token of its own where the client gives none.
        client_token: token.clone().unwrap_or_else(|| context.visit.world.chance.uuid()),
        service_tags: BTreeMap::new(),
    };
    for index in 0..count as usize {
        launch::start(context, &launch, &subnet, &order, index);
    }
    let reservation = json!({"ReservationId": order.reservation});
    context.remember("RunInstances", token.as_deref(), input, &reservation);
    Ok(reservation_now(context, &reservation))
}

/// A subnet with enough stock: the one that is named, else any of the default VPC.
fn choose_subnet(context: &Context<'_, '_>, launch: &Launch, least: u64) -> Result<(Subnet, u64), Failure> {
    let candidates: Vec<Subnet> = match (&launch.subnet, &launch.zone) {
        (Some(subnet), Some(zone)) if subnet.zone != *zone => {
            return Err(Failure::value(format!(
                "The subnet {} is not in the zone {zone}",
                subnet.id
            )));
        }
        (Some(subnet), _) => vec![subnet.clone()],
        (None, zone) => network::subnets(&context.region)
            .into_iter()
            .filter(|subnet| subnet.default && zone.as_ref().is_none_or(|zone| subnet.zone == *zone))
            .collect(),
    };
    let mut refused = None;
    let mut best: Option<(Subnet, u64)> = None;
    for subnet in candidates {
        match room::sold(context, launch, &subnet.zone) {
            Ok(()) => {
                let left = room::stock_left(context, launch.kind, &subnet.zone, launch.market);
                if left >= least {
                    return Ok((subnet, left));
                }
                if best.as_ref().is_none_or(|(_, most)| left > *most) {
                    best = Some((subnet, left));
                }
            }
            Err(failure) => refused = Some(failure),
        }
    }
    best.ok_or_else(|| {
        refused.unwrap_or_else(|| Failure::client("InvalidSubnet", "No default subnet in the zone."))
    })
}

/// A reservation with its instances as they are now.
fn reservation_now(context: &Context<'_, '_>, remembered: &Value) -> Value {
    let id = remembered["ReservationId"].as_str().unwrap_or_default();
    let instances: Vec<Value> = context
        .visit
        .world
        .machines_of(&context.visit.account)
        .filter(|machine| machine.detail["reservation"] == id)
        .map(|machine| describe_one(context, machine, machine.phase))
        .collect();
    json!({
        "ReservationId": id,
        "OwnerId": context.visit.account,
        "Groups": [],
        "Instances": instances,
    })
}
