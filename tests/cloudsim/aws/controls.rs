//! Controls of this cloud, at `POST /_sim/cloud/NAME`.
//!
//! | control | what it does |
//! | --- | --- |
//! | `spot-price {"type", "zone", "price"}` | a new price; instances that would not pay it are taken back in two minutes |
//! | `deny {"account", "actions"}`, `allow {"account"}` | takes permissions (`ec2:CreateFleet`), gives all back |
//! | `compare-templates {"on"}` | whether a client token is also of the launch template that a name led to |
//! | `profiles {"names"}` | the instance profiles that exist |
//! | `impair {"machine"}` | status checks of a running instance fail |
//! | `rebalance {"machine"}` | the guest is told that it may be taken back |

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::Value;

use super::context::State;
use super::{catalogue, input};
use crate::core::machine::Phase;
use crate::core::market::Market;
use crate::core::world::World;

/// Time between the notice of a reclaim and the reclaim.
const NOTICE: SignedDuration = SignedDuration::from_mins(2);

/// Carries a control out; `None` when there is none of that name.
pub fn control(
    state: &mut State,
    world: &mut World,
    name: &str,
    body: &Value,
) -> Option<Result<Value, String>> {
    let done = Ok(serde_json::json!({"done": true}));
    let machine = |world: &mut World, key: &str, value: Value| {
        let id = input::text(body, "machine").unwrap_or_default();
        match world.machines.get_mut(id) {
            Some(machine) => {
                machine.detail[key] = value;
                Ok(serde_json::json!({"done": true}))
            }
            None => Err(format!("there is no machine {id:?}")),
        }
    };
    let account = || input::text(body, "account").unwrap_or_default().to_owned();
    Some(match name {
        "spot-price" => set_spot_price(state, world, body),
        "deny" => {
            state
                .denied
                .entry(account())
                .or_default()
                .extend(input::texts(body, "actions"));
            done
        }
        "allow" => {
            state.denied.remove(&account());
            done
        }
        "compare-templates" => {
            state.compares_templates = input::flag(body, "on");
            done
        }
        "profiles" => {
            state.profiles = input::texts(body, "names").into_iter().collect();
            done
        }
        "impair" => machine(world, "impaired", Value::Bool(true)),
        "rebalance" => {
            let now = world.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            machine(world, "rebalance", Value::String(now))
        }
        _ => return None,
    })
}

fn set_spot_price(state: &mut State, world: &mut World, body: &Value) -> Result<Value, String> {
    let (kind, zone) = (
        input::text(body, "type").unwrap_or_default(),
        input::text(body, "zone").unwrap_or_default(),
    );
    let price: Decimal =
        serde_json::from_value(body["price"].clone()).map_err(|error| format!("price: {error}"))?;
    let known = catalogue::instance_type(kind).is_some_and(|kind| kind.carried_in(zone));
    if !known {
        return Err(format!("there is no {kind:?} in {zone:?}"));
    }
    let now = world.now();
    state.spot.set(kind, zone, price, now);
    let outbid: Vec<String> = world
        .machines
        .values()
        .filter(|machine| {
            machine.market == Market::Spot && machine.instance_type == kind && machine.region == zone
        })
        .filter(|machine| matches!(machine.phase, Phase::Pending | Phase::Running))
        .filter(|machine| {
            let most = serde_json::from_value::<Option<Decimal>>(machine.detail["maxPrice"].clone())
                .ok()
                .flatten();
            most.unwrap_or(machine.on_demand_price) < price
        })
        .map(|machine| machine.id.clone())
        .collect();
    for id in &outbid {
        world.reclaim(id, NOTICE);
    }
    Ok(serde_json::json!({"takenBack": outbid}))
}
