//! TensorDock: REST with a token, virtual machines of any size on the hosts of a market place, on demand only.
//!
//! Written from `providers/tensordock.md` and the description `tensordock.derived.json`, which is no description of
//! TensorDock's own: it was made from its pages and from two clients of others. TensorDock publishes no client for
//! Python (the package `tensordock` calls itself unofficial and speaks the legacy interface), so that none judges this
//! simulator. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the token is a bearer; locations need none; `auth/test` tells the organization | [`TensorDock::ROUTES`] |
//! | failures are `{"error"}` or `{"status", "message"}`; an order that is refused may be a 200 with one of these | [`TensorDock::REFUSALS`], [`TensorDock::refuse`] |
//! | 100 requests a minute of an organization, and headers that say so | [`TensorDock::LIMITS`] |
//! | a price is of one GPU; processors, memory and disk are added to it; the same GPU has other prices elsewhere | `catalogue.rs` |
//! | `max_count` is of one host; a location may have no addresses or no forwarded ports | `catalogue.rs` |
//! | an order is for a location with a GPU, or for a host with ports that the host has; port 0 lets TensorDock choose | `orders.rs` |
//! | `cloud_init` is an object; the user is `user`; one of `ssh_key` and `ssh_key_id`, never both | `orders.rs` |
//! | an image without `_ml_` in its name has no driver for certain | `orders.rs` |
//! | no token, and no name is refused: an order that is sent twice makes two machines | `orders.rs` |
//! | the answer of an order says `running` long before that is so; a machine runs before it has an address | `orders.rs`, `machines.rs` |
//! | one machine is flat, a list has `attributes` without an address, and `type` differs by call | `machines.rs` |
//! | a stopped machine costs its disk and, while it keeps them, its GPUs; `stoppeddisassociated` gave them back | `machines.rs` |
//! | the second deletion is a 404 at once, while the machine is still shown as `deleting` | `machines.rs` |
//! | billed by the second ("Per-second" in the seeds' table) | [`TensorDock::billing`] |
//!
//! The control `answers` with `{"mixed": true}` brings every other form that the facts name, by turns: one machine in
//! `data`, items of a list flat, the list in `data.attributes`, statuses in capitals or with underscores, an address that
//! is `""`, and refused orders inside a 200. The control `address` with `{"machine": ID, "lost": true}` takes the address
//! of a machine that runs away, as where a host fails. A machine that is reclaimed (`world.reclaim`) loses its GPUs to
//! their host and is `stoppeddisassociated`.
//!
//! Quotas of an account: `instances`. A balance below 1 USD orders nothing.
//!
//! Assumed, since no fact says it: all texts of refusals; names of the headers of the rate limit; a machine costs from
//! the order until its deletion is asked for, also while it is in `error`; it is `creating` for five seconds, gets its
//! address three seconds after it runs, and stops in three; one that stopped by itself keeps its GPUs. Odd numbers of
//! processors, more than 8 GB of memory that are no multiple of 8, and disks that are no multiple of 50 GB are refused in
//! orders as they are in changes. A dedicated address costs 0.002 USD an hour. An order for a location may choose any port.
//! Names of secrets need not differ. Prices, hosts and stock are examples; stock is counted in machines of a GPU and location.

mod catalogue;
mod machines;
mod orders;
mod secrets;

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::core::billing::{Billing, Halted};
use crate::core::cloud::Effect::{Change, Create, Delete, Read};
use crate::core::cloud::{Call, Refusal};
use crate::core::http::Answer;
use crate::core::machine::Cause;
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route, Usage};
use crate::core::world::{Happening, World};

/// The simulated TensorDock.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorDock {
    /// Whether answers come in all forms that the facts name.
    mixed: bool,
    /// How many answers came in one of these forms.
    turn: usize,
    /// How many external ports were given out.
    ports: u16,
}

/// The form of an answer about machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The one of TensorDock's pages and of the description.
    Documented,
    /// A machine in `data`, items of a list without `attributes`, an address that is "".
    Flat,
    /// The list in `data.attributes`.
    Nested,
}

impl TensorDock {
    /// The form of the answer in hand.
    fn form(&mut self) -> Form {
        if !self.mixed {
            return Form::Documented;
        }
        self.turn += 1;
        [Form::Documented, Form::Flat, Form::Nested][self.turn % 3]
    }

    /// An external port that TensorDock chooses.
    fn port(&mut self) -> u16 {
        self.ports = (self.ports + 1) % 10_000;
        40_000 + self.ports
    }
}

/// A body as all calls have it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    data: Data<T>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data<T> {
    /// The description judges it.
    #[serde(rename = "type")]
    _kind: String,
    attributes: T,
}

/// An answer as all calls but one have it.
fn data(value: Value) -> Answer {
    Answer::json(200, &json!({ "data": value }))
}

fn missing(what: &str) -> Refusal {
    Refusal::NotFound(what.to_owned())
}

/// The code of failures that are `{"error": TEXT}`; those without a code tell their status.
const ERROR: &str = "error";

impl RestApi for TensorDock {
    const NAME: &'static str = "tensordock";
    const DESCRIPTION: &'static str = "tensordock.derived.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::new("POST", "/api/v2/auth/test", "auth.test", Read, |_, visit, _| Ok(Answer::json(200, &json!({ "success": true, "organizationId": visit.account })))),
        Route::get("/api/v2/locations", "locations.list", |_, visit, _| Ok(catalogue::locations(visit))).open(),
        Route::get("/api/v2/hostnodes", "hostnodes.list", |_, visit, _| Ok(catalogue::hosts(visit))),
        Route::get("/api/v2/instances", "instances.list", |api, visit, _| Ok(machines::list(api, visit))),
        Route::get("/api/v2/instances/{id}", "instances.get", machines::get),
        Route::new("POST", "/api/v2/instances", "instances.create", Create, |api, visit, _| orders::create(api, visit)).takes::<Envelope<orders::Order>>(),
        Route::new("DELETE", "/api/v2/instances/{id}", "instances.delete", Delete, |_, visit, id| machines::delete(visit, id)),
        Route::new("POST", "/api/v2/instances/{id}/start", "instances.start", Change, |_, visit, id| machines::start(visit, id)),
        Route::new("POST", "/api/v2/instances/{id}/stop", "instances.stop", Delete, |_, visit, id| machines::stop(visit, id)),
        Route::get("/api/v2/secrets", "secrets.list", |_, visit, _| Ok(secrets::list(visit))),
        Route::new("POST", "/api/v2/secrets", "secrets.create", Change, |_, visit, _| secrets::create(visit)).takes::<Envelope<secrets::NewSecret>>(),
        Route::new("DELETE", "/api/v2/secrets/{id}", "secrets.delete", Change, |_, visit, id| secrets::delete(visit, id)),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("changes of machines", &["/api/v2/instances"]),
        ("one host or secret by its id", &["/api/v2/hostnodes", "/api/v2/secrets"]),
        ("the legacy interface", &["/api/v0"]),
    ];
    #[rustfmt::skip]
    const LIMITS: &'static [Limit] = &[Limit { calls: "*", most: 100, seconds: 60, per: Per::Account }];
    const RETRY_AFTER: bool = true;
    // Every call can be told these; the description has them at some.
    const UNDESCRIBED: &'static [u16] = &[400, 401, 402, 403, 404, 429];
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, ERROR, "Too many requests"),
        server: Problem(500, ERROR, "Internal server error"),
        no_capacity: Problem(400, "", "No available hostnode has the requested resources"),
        quota: Problem(400, ERROR, "The organization has reached its limit of {}"),
        funds: Problem(402, "", "Insufficient balance: you need at least $1 to deploy"),
        unauthorized: Problem(401, ERROR, "Unauthorized"),
        expired: Problem(401, ERROR, "Unauthorized"),
        forbidden: Problem(403, ERROR, "Forbidden"),
        invalid: Problem(400, "", "{}"),
        not_found: Problem(404, ERROR, "{} not found"),
        unknown_call: Problem(404, ERROR, "Not found"),
    };

    fn billing(&self) -> Billing {
        Billing {
            halted: Halted::Disk,
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        let body = match code {
            ERROR => json!({ "error": text }),
            "" => json!({ "status": status, "message": text }),
            other => json!({ "status": status, "message": text, "error": other }),
        };
        Answer::json(status, &body)
    }

    fn refuse(&self, refusal: &Refusal, call: Option<&Call>) -> Option<Answer> {
        let is_order = call.is_some_and(|call| call.name == "instances.create");
        let may_be_inside = matches!(refusal, Refusal::NoCapacity | Refusal::Quota(_) | Refusal::Funds);
        (self.mixed && is_order && may_be_inside).then(|| Answer {
            status: 200,
            ..Self::REFUSALS.answer::<Self>(refusal)
        })
    }

    fn answers_as_described(&self, call: &Call) -> bool {
        !self.mixed || !matches!(call.name, "instances.list" | "instances.get")
    }

    fn finish(answer: &mut Answer, usage: &Usage) {
        let mut add = |name: &str, text: String| answer.headers.push((format!("x-ratelimit-{name}"), text));
        add("limit", usage.most.to_string());
        add("remaining", usage.left.to_string());
        add("reset", usage.reset.as_second().to_string());
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::HaltedItself(id) => machines::halt(world, id, Cause::Itself),
            Happening::Reclaimed(id) => machines::free(world, id),
            Happening::Died(id) => world.fail(id, Cause::Died),
            _ => {}
        }
    }

    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        match name {
            "answers" => self.mixed = body["mixed"] == true,
            "address" => {
                let id = body["machine"].as_str().unwrap_or_default();
                let Some(machine) = world.machines.get_mut(id) else {
                    return Some(Err(format!("there is no machine {id:?}")));
                };
                machine.detail["lost"] = body["lost"].clone();
            }
            _ => return None,
        }
        Some(Ok(body.clone()))
    }
}
