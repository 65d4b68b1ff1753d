//! Contracts: their orders, changes and ends.

use std::str::FromStr as _;

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::market::{Ask, Lookup, Offering};
use super::orders::Order;
use super::reply::{Failure, Outcome};
use super::{keys, overlays, secrets, templates, volumes};
use crate::backend::{Boot, SshWay, Start};
use crate::core::machine::{BootPlan, Cause, Mark, NewMachine, Phase};
use crate::core::market::Market;

/// How long a contract is kept after its end.
const KEPT: jiff::SignedDuration = jiff::SignedDuration::from_hours(48);

/// A number of a body as decimal, without the noise of binary fractions.
pub fn decimal(value: &Value) -> Option<Decimal> {
    match value {
        Value::Number(number) => Decimal::from_str(&number.to_string())
            .or_else(|_| Decimal::from_scientific(&number.to_string()))
            .ok(),
        _ => None,
    }
}

/// `PUT /api/v0/asks/{id}/`.
pub fn create(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let body = context.body()?;
    order(context, id, body)
}

/// Takes an offer as a body says.
pub fn order(context: &mut Context<'_, '_>, id: &str, body: Map<String, Value>) -> Outcome {
    let body = templates::merged(context, body)?;
    let ask_id: i64 = id.parse().map_err(|_| {
        Failure::arguments("error 400/3467: Invalid args: 'id' is required and must be a valid offer ID")
    })?;
    let bid = body.get("price").filter(|price| !price.is_null()).map(|price| {
        decimal(price)
            .filter(|price| *price >= Decimal::new(1, 3) && *price <= Decimal::from(128))
            .ok_or_else(|| {
                Failure::new(
                    400,
                    "invalid_price",
                    format!("error 400/3490: invalid price {price}"),
                )
                .about(ask_id)
            })
    });
    let bid = bid.transpose()?;
    let offering = if bid.is_some() {
        Offering::Bid
    } else {
        Offering::OnDemand
    };
    let order = Order::read(&body)?;
    if order.vm {
        if keys::of_account(context).is_empty() {
            return Err(Failure::new(
                400,
                "no_ssh_key_for_vm",
                "Add an SSH key before you create a VM.",
            ));
        }
        return Err(Failure::arguments("This host has no virtual machines.").about(ask_id));
    }
    if let Some(balance) = context
        .visit
        .world
        .accounts
        .get(&context.visit.account)
        .and_then(|account| account.balance)
        && balance <= Decimal::ZERO
    {
        return Err(Failure::arguments("Your account lacks credit; see the billing page.").about(ask_id));
    }
    let wait = !order.cancel_unavailable.unwrap_or(bid.is_none() && order.runs);
    let ask = match context.state.market.look_up(ask_id, offering) {
        Lookup::Offered(ask) => ask,
        Lookup::Taken(ask) if wait => ask,
        Lookup::Taken(_) => {
            return Err(Failure::new(
                410,
                "no_such_ask",
                format!("error 410/3907: no_such_ask Instance type {ask_id} is no longer available."),
            )
            .about(ask_id));
        }
        Lookup::Unknown => {
            return Err(Failure::new(
                404,
                "invalid_args",
                format!("error 404/3603: no_such_ask Instance type by id {ask_id} is not available."),
            )
            .about(ask_id));
        }
    };
    let Some(host) = context.state.market.host(ask.machine_id).cloned() else {
        return Err(Failure::arguments("the host is gone").about(ask_id));
    };
    if let Some(price) = bid
        && price < context.state.market.min_bid(&ask)
        && !wait
    {
        return Err(Failure::new(
            400,
            "invalid_price",
            format!(
                "error 400/3491: bid {price} is below the minimum bid {}",
                context.state.market.min_bid(&ask)
            ),
        )
        .about(ask_id));
    }
    let most_disk = Decimal::from(host.disk_space) * Decimal::from(ask.gpus) / Decimal::from(host.gpus);
    if order.disk > most_disk {
        return Err(Failure::arguments(format!(
            "disk of {} GB exceeds the {most_disk} GB of the offer",
            order.disk
        ))
        .about(ask_id));
    }
    for network in &order.networks {
        overlays::may_join(context, network, host.cluster_id)?;
    }
    let volume = volumes::wanted(context, &body, ask.machine_id)?;
    if let Some(position) = context
        .state
        .refusing
        .iter()
        .position(|machine| *machine == ask.machine_id)
    {
        context.state.refusing.remove(position);
        return Ok(
            json!({"success": false, "error": "host_refused", "msg": "The host did not accept the contract."}),
        );
    }
    let contract = start(context, &ask, &order, bid);
    for network in &order.networks {
        overlays::add(context, network, &contract);
    }
    if let Some(volume) = volume {
        volumes::mount(context, volume, &contract);
    }
    let number: i64 = contract.parse().unwrap_or_default();
    Ok(json!({"success": true, "new_contract": number}))
}

fn start(context: &mut Context<'_, '_>, ask: &Ask, order: &Order, bid: Option<Decimal>) -> String {
    let id = context.number().to_string();
    let fixed = context.state.market.price(ask);
    let disk = context.state.market.disk_price(ask.machine_id, order.disk);
    let Some(host) = context.state.market.host(ask.machine_id).cloned() else {
        return id;
    };
    context.state.market.take(&id, *ask, bid, order.runs);
    let now = context.visit.now();
    let container_key = context.visit.world.chance.hex(64);
    context
        .state
        .container_keys
        .insert(container_key.clone(), (context.visit.account.clone(), id.clone()));
    let direct = order.runtype.contains("direc") && host.direct_ports > 0;
    let keys = keys::of_account(context);
    let authorized = keys.iter().map(|(_, key)| key.clone()).collect();
    // What begins with a dash is an option of docker (`-p`, `--shm-size`), and no variable.
    let mut own = order.env.clone();
    own.retain(|name, _| !name.starts_with('-'));
    let mut env = secrets::of_account(context);
    env.extend(own);
    env.insert("CONTAINER_ID".to_owned(), id.clone());
    env.insert("CONTAINER_API_KEY".to_owned(), container_key);
    let detail = json!({
        "machine": host.machine_id,
        "host": host.host_id,
        "cluster": host.cluster_id,
        "gpuName": host.gpu_name,
        "gpus": ask.gpus,
        "gpuRam": host.gpu_ram,
        "cpuCores": host.cpu_cores,
        "cpuCoresEffective": f64::from(host.cpu_cores) * f64::from(ask.gpus) / f64::from(host.gpus),
        "cpuRam": host.cpu_ram,
        "geolocation": host.geolocation,
        "hostAddress": host.public_ip,
        "reliability": super::offers::number(host.reliability),
        "image": order.image,
        "runtype": order.runtype,
        "disk": super::offers::number(order.disk),
        "onstart": order.onstart,
        "ports": order.ports,
        "direct": direct,
        "ssh": order.runtype != "args",
        "bid": bid,
        "keys": keys.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        "jupyterToken": context.visit.world.chance.hex(64),
        "endDate": host.listed_until.as_second(),
        "template": order.template,
        "volumes": [],
    });
    let plan = context.visit.boot.clone();
    let new = NewMachine {
        id: id.clone(),
        account: context.visit.account.clone(),
        mark: Mark {
            name: order.label.clone(),
            env: order.env.clone(),
            ..Mark::default()
        },
        instance_type: format!("{}x {}", ask.gpus, host.gpu_name),
        region: host.geolocation.to_owned(),
        market: if bid.is_some() {
            Market::Spot
        } else {
            Market::OnDemand
        },
        price: bid.unwrap_or(fixed) + disk,
        on_demand_price: fixed + disk,
        disk_price: disk,
        plan: plan.clone(),
        boot: Boot {
            hostname: format!("C.{id}"),
            image: order.image.clone(),
            user: "root".to_owned(),
            authorized_keys: authorized,
            start: if order.runtype == "args" {
                Start::Command(order.args.clone())
            } else {
                Start::OnStart(order.onstart.clone())
            },
            env,
            ssh: SshWay::Mapped,
            metadata: false,
            gpus: vec![format!("NVIDIA {}", host.gpu_name); usize::try_from(ask.gpus).unwrap_or_default()],
            ..Boot::default()
        },
        detail,
    };
    context.visit.world.create(new);
    context.visit.made.push(id.clone());
    context.visit.subject = Some(id.clone());
    if bid.is_none() {
        context.visit.world.remind(
            host.listed_until.duration_since(now),
            format!("{CONTRACT_ENDS}{id}"),
        );
    }
    super::context::settle(context.state, context.visit.world, &plan);
    let wins = context
        .state
        .market
        .rental(&id)
        .is_some_and(|rental| rental.winning);
    if !wins {
        // It waits in the queue, with its disk on the bill.
        context.visit.world.halt(
            &id,
            if order.runs {
                Cause::NoCapacity
            } else {
                Cause::Asked
            },
        );
    }
    id
}

/// What a reminder that a contract ends begins with.
pub const CONTRACT_ENDS: &str = "contract ends: ";
/// What a reminder that an ended contract is removed begins with.
pub const CONTRACT_REMOVED: &str = "contract removed: ";

/// On-demand contracts stop at their end, and are removed two days later.
pub fn end_contract(
    state: &mut super::context::State,
    world: &mut crate::core::world::World,
    id: &str,
    plan: &BootPlan,
) {
    if let Some(rental) = state.market.rental_mut(id) {
        rental.wanted = false;
    }
    super::context::settle(state, world, plan);
    world.remind(KEPT, format!("{CONTRACT_REMOVED}{id}"));
}

/// `PUT /api/v0/instances/{id}/`: state and label.
pub fn change(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let body = context.body()?;
    context.instance(id)?;
    context.visit.subject = Some(id.to_owned());
    if let Some(label) = body.get("label").and_then(Value::as_str)
        && let Some(machine) = context.visit.world.machines.get_mut(id)
    {
        label.clone_into(&mut machine.mark.name);
    }
    if let Some(state) = body.get("state").and_then(Value::as_str) {
        if let Some(rental) = context.state.market.rental_mut(id) {
            rental.wanted = state == "running";
        }
        context.settle();
    }
    Ok(json!({"success": true}))
}

/// `PUT /api/v0/instances/bid_price/{id}/`.
pub fn bid(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let body = context.body()?;
    let machine = context.instance(id)?;
    if machine.market != Market::Spot {
        return Err(Failure::arguments("The instance is not interruptible."));
    }
    let disk = machine.disk_price;
    let price = body
        .get("price")
        .and_then(decimal)
        .filter(|price| *price >= Decimal::new(1, 3) && *price <= Decimal::from(32))
        .ok_or_else(|| Failure::arguments("price has to be between 0.001 and 32"))?;
    if let Some(rental) = context.state.market.rental_mut(id) {
        rental.bid = Some(price);
    }
    if let Some(machine) = context.visit.world.machines.get_mut(id) {
        machine.detail["bid"] = json!(price);
    }
    context.visit.world.reprice(id, price + disk);
    context.visit.subject = Some(id.to_owned());
    context.settle();
    Ok(json!({"success": true}))
}

/// `PUT /api/v0/instances/reboot/{id}/` and `recycle`: stops and starts without losing the GPUs.
pub fn reboot(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let running = context.instance(id)?.phase == Phase::Running;
    if running {
        context.visit.world.halt(id, Cause::Asked);
        let plan = context.visit.boot.clone();
        context.visit.world.resume(id, plan);
    }
    context.visit.subject = Some(id.to_owned());
    Ok(json!({"success": true}))
}

/// `DELETE /api/v0/instances/{id}/`.
pub fn delete(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    context.instance(id)?;
    context.visit.subject = Some(id.to_owned());
    remove(context, id);
    Ok(json!({"success": true}))
}

/// Ends an instance; its slice is on offer again.
pub fn remove(context: &mut Context<'_, '_>, id: &str) {
    let plan = context.visit.boot.clone();
    remove_from(context.state, context.visit.world, id, &plan);
}

/// The same without a call.
pub fn remove_from(
    state: &mut super::context::State,
    world: &mut crate::core::world::World,
    id: &str,
    plan: &BootPlan,
) {
    let now = world.now();
    let takes = world.end_takes;
    world.end(id, Cause::Asked, takes);
    state.market.release(id, now);
    state.container_keys.retain(|_, (_, instance)| instance != id);
    super::context::settle(state, world, plan);
}
