//! The controls under `/_sim/`, for tests in other processes: JSON in, JSON out.
//!
//! | call | what it does |
//! | --- | --- |
//! | `GET clock`, `POST clock {"advanceSeconds"}` | reads and moves the (manual) clock |
//! | `POST accounts {"id", "credentials": [{"id", "secret", "state"}], "quotas"}` | adds or replaces an account |
//! | `POST credentials {"id", "state"}` | revokes, expires, forbids or restores a credential |
//! | `POST stock {"type", "region", "market", "count"}` | fills a shelf; `count` null is plenty |
//! | `POST price {"type", "onDemand", "spot"}` | changes prices of new machines |
//! | `POST boot {"takesSeconds", "ends"}` | how boots go from now on |
//! | `POST intruder {"account", "answers"}` | an attacker in front of the account's new machines ([`Intruder`]); null is none |
//! | `POST lag {"createdSeconds", "endedSeconds"}` | how far lists are behind |
//! | `POST pages {"most"}` | items on a page of a list at clouds of `core::rest`; null is as asked |
//! | `POST faults {rule}`, `DELETE faults`, `GET faults` | scripts faults ([`crate::core::fault::Rule`]) |
//! | `POST reclaim {"machine", "noticeSeconds"}` | takes a machine back |
//! | `POST die {"machine"}`, `POST halt {"machine"}` | its host is lost; it halts itself |
//! | `GET machines`, `GET resources` | what there is and was |
//! | `GET billed` | machines that cost money now |
//! | `GET bill?account=` | amount, lines, what an hour costs now |
//! | `GET doubled?by=name` | billed machines with the same mark |
//! | `GET leftovers?account=` | resources that still exist |
//! | `GET violations`, `GET mistakes`, `GET requests`, `DELETE requests` | the record |
//! | `POST cloud/NAME {…}` | a control of this cloud's own |

use http::Method;
use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::backend::Intruder;
use crate::core::account::{Account, CredentialState};
use crate::core::fault::Rule;
use crate::core::http::{Answer, Request};
use crate::core::machine::{BootEnd, BootPlan};
use crate::core::market::{Left, Market, Shelf};
use crate::core::sim::Sim;
use crate::core::world::{Happening, Lag};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Advance {
    advance_seconds: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetCredential {
    id: String,
    state: CredentialState,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetStock {
    r#type: String,
    region: String,
    #[serde(default)]
    market: Market,
    count: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetPrice {
    r#type: String,
    on_demand: Option<Decimal>,
    spot: Option<Decimal>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetBoot {
    takes_seconds: i64,
    #[serde(default = "runs")]
    ends: BootEnd,
}

fn runs() -> BootEnd {
    BootEnd::Runs
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetIntruder {
    account: String,
    answers: Option<Intruder>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetLag {
    #[serde(default)]
    created_seconds: i64,
    #[serde(default)]
    ended_seconds: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPages {
    most: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OfMachine {
    machine: String,
    #[serde(default)]
    notice_seconds: i64,
}

/// Carries out a control request.
pub fn answer(sim: &Sim, request: &Request) -> Answer {
    match control(sim, request) {
        Ok(Some(body)) => Answer::json(200, &body),
        Ok(None) => Answer::json(
            404,
            &json!({"error": format!("no such control: {} {}. The list is in core/control.rs.", request.method, request.path)}),
        ),
        Err(error) => Answer::json(400, &json!({ "error": error })),
    }
}

fn control(sim: &Sim, request: &Request) -> Result<Option<Value>, String> {
    let name = request.path.trim_start_matches("/_sim/").trim_end_matches('/');
    let body = match request.method {
        Method::GET => get(sim, name, request)?,
        Method::POST => post(sim, name, request)?,
        Method::DELETE => match name {
            "faults" => {
                sim.clear_faults();
                Some(done())
            }
            "requests" => {
                sim.forget();
                Some(done())
            }
            _ => None,
        },
        _ => None,
    };
    Ok(body)
}

fn get(sim: &Sim, name: &str, request: &Request) -> Result<Option<Value>, String> {
    let account = || {
        request
            .parameter("account")
            .ok_or_else(|| "add ?account=".to_owned())
    };
    Ok(Some(match name {
        "clock" => json!({"now": sim.clock().now(), "real": sim.clock().is_real()}),
        "faults" => value(&sim.pending_faults())?,
        "machines" => sim.world(|world| value(&world.machines.values().collect::<Vec<_>>()))?,
        "resources" => sim.world(|world| value(&world.resources.values().collect::<Vec<_>>()))?,
        "billed" => sim.meter(|meter| value(&meter.billed_now()))?,
        "bill" => {
            let account = account()?;
            sim.meter(|meter| {
                json!({"amount": meter.bill(account), "hourly": meter.hourly(account), "lines": meter.lines(account)})
            })
        }
        "doubled" => sim.meter(|meter| value(&meter.doubled(request.parameter("by").unwrap_or("name"))))?,
        "leftovers" => {
            let account = account()?;
            sim.meter(|meter| value(&meter.leftovers(account)))?
        }
        "violations" => value(&sim.violations())?,
        "mistakes" => value(&sim.mistakes())?,
        "requests" => value(&sim.requests())?,
        _ => return Ok(None),
    }))
}

fn post(sim: &Sim, name: &str, request: &Request) -> Result<Option<Value>, String> {
    match name {
        "clock" => {
            let Advance { advance_seconds } = body(request)?;
            let by = SignedDuration::try_from_secs_f64(advance_seconds).map_err(|error| error.to_string())?;
            let now = sim.clock().advance(by);
            sim.catch_up();
            return Ok(Some(json!({ "now": now })));
        }
        "accounts" => {
            let account: Account = body(request)?;
            sim.world(|world| world.add_account(account));
        }
        "credentials" => {
            let set: SetCredential = body(request)?;
            let found = sim.world(|world| {
                let credential = world
                    .accounts
                    .values_mut()
                    .flat_map(|account| &mut account.credentials)
                    .find(|credential| credential.id == set.id);
                credential
                    .map(|credential| credential.state = set.state)
                    .is_some()
            });
            if !found {
                return Err(format!("no credential has the id {:?}", set.id));
            }
        }
        "stock" => {
            let set: SetStock = body(request)?;
            let left = set.count.map_or(Left::Plenty, Left::Count);
            sim.world(|world| {
                world
                    .stock
                    .set(Shelf::new(&set.r#type, &set.region, set.market), left);
            });
        }
        "price" => {
            let set: SetPrice = body(request)?;
            sim.world(|world| {
                let instance_type = world
                    .types
                    .get_mut(&set.r#type)
                    .ok_or_else(|| format!("nothing is called {:?}", set.r#type))?;
                instance_type.on_demand = set.on_demand.unwrap_or(instance_type.on_demand);
                instance_type.spot = set.spot.or(instance_type.spot);
                Ok::<_, String>(())
            })?;
        }
        "boot" => {
            let set: SetBoot = body(request)?;
            let plan = BootPlan {
                takes: SignedDuration::from_secs(set.takes_seconds),
                ends: set.ends,
            };
            sim.world(|world| world.boot = plan);
        }
        "intruder" => {
            let SetIntruder { account, answers } = body(request)?;
            sim.world(|world| {
                if let Some(intruder) = answers {
                    world.intruders.insert(account, intruder);
                } else {
                    world.intruders.remove(&account);
                }
            });
        }
        "lag" => {
            let set: SetLag = body(request)?;
            sim.world(|world| {
                world.lag = Lag {
                    created: SignedDuration::from_secs(set.created_seconds),
                    ended: SignedDuration::from_secs(set.ended_seconds),
                };
            });
        }
        "pages" => {
            let SetPages { most } = body(request)?;
            sim.world(|world| world.page = most);
        }
        "faults" => sim.fault(body::<Rule>(request)?),
        "reclaim" => {
            let of = machine(sim, request)?;
            sim.world(|world| world.reclaim(&of.machine, SignedDuration::from_secs(of.notice_seconds)));
        }
        "die" => {
            let of = machine(sim, request)?;
            sim.world(|world| world.happen(Happening::Died(of.machine)));
        }
        "halt" => {
            let of = machine(sim, request)?;
            sim.world(|world| world.happen(Happening::HaltedItself(of.machine)));
        }
        other => {
            let Some(own) = other.strip_prefix("cloud/") else {
                return Ok(None);
            };
            let given: Value = if request.body.is_empty() {
                Value::Null
            } else {
                body(request)?
            };
            return sim.control(own, &given).transpose();
        }
    }
    Ok(Some(done()))
}

fn machine(sim: &Sim, request: &Request) -> Result<OfMachine, String> {
    let of: OfMachine = body(request)?;
    if sim.world(|world| world.machines.contains_key(&of.machine)) {
        Ok(of)
    } else {
        Err(format!("there is no machine {:?}", of.machine))
    }
}

fn done() -> Value {
    json!({"done": true})
}

fn body<T: DeserializeOwned>(request: &Request) -> Result<T, String> {
    serde_json::from_slice(&request.body).map_err(|error| format!("the body of {}: {error}", request.path))
}

fn value(of: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(of).map_err(|error| error.to_string())
}
