//! JarvisLabs: REST with a key, containers and VMs with GPUs in three regions, on demand and spot.
//!
//! JarvisLabs publishes no description. Written from `providers/jarvislabs.md`, the description
//! `jarvislabs.derived.json`, which was made from the calls of JarvisLabs' own Python client, and the guide that
//! comes with that client. The client judges the simulator in `tests/sdk.rs`. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the key as bearer; failures are `message`, `error` or `detail`, which is text or a list | [`JarvisLabs::problem`] |
//! | each region has a host; orders, states and ends are answered at the host of the region | [`HOSTS`], [`is_elsewhere`] |
//! | a row of the offers is a group of servers, the same GPU is in several; counts are numbers, texts or nothing; some regions are unknown to clients | `catalogue.rs` |
//! | prices are of one GPU, in rupees for Indian accounts | `catalogue.rs`, the control `currency` |
//! | an order has every field that the client of JarvisLabs sends; EU1 has one H100 or H200; disks of VMs and of EU1 have 100 GB at least; spot is for containers | `orders.rs` |
//! | no token, and no name is refused: an order that is sent twice makes two instances | `orders.rs` |
//! | an order that is refused for lack of GPUs is a 200 without `machine_id` | [`JarvisLabs::refuse`] |
//! | every key of the account is on a new instance, and VMs are refused without one | `orders.rs` |
//! | a startup script is run by containers, and never by VMs (the client's guide) | `orders.rs` |
//! | a new instance is unknown for a moment: 404 | `instances.rs` |
//! | a container has `root` and a port of its own, a VM `cloud` and its own address; both are in a command for SSH, which comes after the instance runs and stays when it is paused | `instances.rs` |
//! | a container and a VM are paused and destroyed by paths of their own | `instances.rs` |
//! | a spot instance that is taken back is paused (the client's guide) | [`JarvisLabs::happened`] |
//! | a running instance costs its GPUs and its disk, a paused one its disk (the client's guide); by the minute | [`JarvisLabs::billing`], the control `servers` |
//! | success may be spelt `sucess`, and be a text | [`done`] |
//! | keys and scripts are added without an answer that has their id | `things.rs` |
//! | `cost` is what the session has cost so far | `instances.rs` |
//!
//! Quotas of an account: `instances`. The control `answers` with `{"mixed": true}` gives every other instance the
//! second names of its fields, and answers for every other instance that is gone that it was no success.
//!
//! Assumed, since no fact says it: the texts of refusals, and that a used-up quota is refused as a lack of GPUs is.
//! An instance costs from its order until its end is ordered, also one that failed. A guest that halts itself leaves
//! its instance paused at the full price. An instance whose host is lost has failed. It is unknown for three
//! seconds, its command for SSH comes three seconds after it runs, and pausing takes as long; one that is gone is
//! listed as destroyed for five seconds more. The wrong path for its kind does nothing, without success. Calls
//! for whole accounts are answered at all hosts. The same key may be there twice. A GB of disk costs 0.1 USD a month of
//! 730 hours. Every group of servers has devices apart for both markets, so that an order takes none from spot
//! instances. Prices, stock and templates are examples.

mod catalogue;
mod instances;
mod orders;
mod things;

#[cfg(test)]
mod tests;

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use crate::core::billing::{Billing, Halted};
use crate::core::cloud::Effect::{Change, Create, Delete};
use crate::core::cloud::{Call, Refusal};
use crate::core::http::{Answer, Request};
use crate::core::machine::Cause;
use crate::core::rest::{Problem, Refusals, RestApi, Route};
use crate::core::world::{Happening, World};

/// The simulated JarvisLabs.
#[derive(Debug, Default)]
pub struct JarvisLabs {
    /// The last id that was given out.
    last: u64,
    /// Whether answers take the other forms that clients must know, too.
    mixed: bool,
    /// Whether prices and bills are in rupees.
    rupees: bool,
    /// Whether the meter leaves the disks of running instances out.
    instances_alone: bool,
}

impl JarvisLabs {
    /// The next id. All have the same number of digits, so that a later one comes later in lists.
    fn id(&mut self) -> String {
        self.last += 1;
        (412_000 + self.last).to_string()
    }

    /// A price in dollars in the currency of the accounts.
    fn in_currency(&self, price: Decimal) -> Decimal {
        price * Decimal::from(if self.rupees { RUPEES } else { 1 })
    }
}

const NOIDA: &str = "india-noida-01";
const CHENNAI: &str = "india-chennai-01";
const EUROPE: &str = "europe-01";
/// How many rupees a dollar is.
const RUPEES: u32 = 88;

/// The host of each region. The simulator answers for all regions where a request names none of them.
const HOSTS: [(&str, &str); 3] = [
    ("backendn.jarvislabs.net", NOIDA),
    ("backendc.jarvislabs.net", CHENNAI),
    ("backendeu.jarvislabs.net", EUROPE),
];

/// Whether a request came to the host of another region than this.
fn is_elsewhere(request: &Request, region: &str) -> bool {
    let asked = request.header("host").unwrap_or_default();
    HOSTS.iter().any(|(host, own)| *host == asked && *own != region)
}

/// An id as answers have it.
fn number(id: &str) -> u64 {
    id.parse().unwrap_or_default()
}

fn missing(what: &str) -> Refusal {
    Refusal::NotFound(what.to_owned())
}

/// A call that did what it should.
fn done(text: &str) -> Answer {
    Answer::json(200, &json!({ "sucess": "True", "message": text }))
}

/// A call that did nothing, and is answered like one that did.
fn not_done(text: &str) -> Answer {
    Answer::json(200, &json!({ "success": false, "message": text }))
}

const WRONG_KEY: Problem = Problem(401, "detail", "Invalid token");

impl RestApi for JarvisLabs {
    const NAME: &'static str = "jarvislabs";
    const DESCRIPTION: &'static str = "jarvislabs.derived.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/misc/server_meta", "offers.list", |api, visit, _| Ok(catalogue::offers(api, visit))),
        Route::get("/misc/frameworks", "templates.list", |_, visit, _| Ok(catalogue::templates(visit))),
        Route::get("/misc/", "account.currency", |api, _, _| Ok(Answer::json(200, &json!({ "success": api.rupees })))),
        Route::get("/users/balance", "account.balance", |_, visit, _| Ok(things::balance(visit))),
        Route::get("/users/fetch", "instances.list", |api, visit, _| Ok(instances::list(api, visit))),
        Route::get("/users/fetch/{id}", "instances.get", |api, visit, id| instances::get(api, visit, id)),
        Route::get("/misc/status", "instances.status", |api, visit, _| instances::told(api, visit)),
        Route::new("POST", "/templates/{template}/create", "instances.create", Create, orders::create).takes::<orders::Order>(),
        Route::new("POST", "/misc/destroy", "instances.destroy", Delete, |_, visit, _| instances::destroy(visit, false)),
        Route::new("POST", "/templates/vm/destroy", "instances.destroy", Delete, |_, visit, _| instances::destroy(visit, true)),
        Route::new("POST", "/misc/pause", "instances.pause", Delete, |api, visit, _| instances::pause(api, visit, false)),
        Route::new("POST", "/templates/vm/pause", "instances.pause", Delete, |api, visit, _| instances::pause(api, visit, true)),
        Route::new("PUT", "/machines/machine_name", "instances.rename", Change, |_, visit, _| instances::rename(visit)),
        Route::get("/ssh/", "keys.list", |_, visit, _| Ok(things::keys(visit))),
        Route::new("POST", "/ssh/", "keys.create", Change, |api, visit, _| things::create_key(api, visit)).takes::<things::NewKey>(),
        Route::new("DELETE", "/ssh/{id}", "keys.delete", Change, |_, visit, id| things::delete(visit, things::KEY, id)),
        Route::get("/scripts/", "scripts.list", |_, visit, _| Ok(things::scripts(visit))),
        Route::new("POST", "/scripts/add", "scripts.create", Change, |api, visit, _| things::create_script(api, visit)),
        Route::new("DELETE", "/scripts/", "scripts.delete", Change, |_, visit, _| things::delete_script(visit)),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("CPU VMs and resumed instances", &["/templates"]),
        ("changes of scripts", &["/scripts/update"]),
        ("filesystems and private networks", &["/filesystem", "/vpc"]),
        ("this part of the account", &["/users/user_info", "/misc/resource_metrics"]),
    ];
    // As JarvisLabs' own client sends them.
    #[rustfmt::skip]
    const UNDESCRIBED_CALLS: &'static [&'static str] = &[
        "account.currency", "instances.rename", "scripts.create", "scripts.delete", "scripts.list", "templates.list",
    ];
    // Every call can be told these; the description has them at a few.
    const UNDESCRIBED: &'static [u16] = &[400, 403, 422, 429];
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "message", "Too many requests"),
        server: Problem(500, "detail", "Internal Server Error"),
        no_capacity: Problem(400, "error", "No free GPUs right now"),
        quota: Problem(403, "error", "You have reached the limit of {}"),
        funds: Problem(403, "detail", "Insufficient balance. Please recharge your wallet"),
        unauthorized: WRONG_KEY,
        expired: WRONG_KEY,
        forbidden: Problem(403, "detail", "You may not do this"),
        invalid: Problem(422, "validation", "{}"),
        not_found: Problem(404, "detail", "{} not found"),
        unknown_call: Problem(404, "detail", "Not Found"),
    };

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_mins(1),
            halted: Halted::Disk,
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        let body = match code {
            "detail" | "message" => json!({ code: text }),
            "validation" => json!({ "detail": [{ "loc": ["body"], "msg": text, "type": "value_error" }] }),
            _ => json!({ "error": text }),
        };
        Answer::json(status, &body)
    }

    fn refuse(&self, refusal: &Refusal, call: Option<&Call>) -> Option<Answer> {
        let creates = call.is_some_and(|call| call.effect == Create);
        match refusal {
            Refusal::NoCapacity if creates => Some(not_done("No free GPUs of this type right now")),
            Refusal::Quota(what) if creates => {
                Some(not_done(&format!("You have reached the limit of {what}")))
            }
            Refusal::Bad(what) => Some(Self::problem(400, "message", what)),
            _ => None,
        }
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::Reclaimed(id) => instances::stop(self, world, id, Cause::Reclaimed),
            Happening::HaltedItself(id) => world.halt(id, Cause::Itself),
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::Ended(id) => instances::let_go(world, id),
            _ => {}
        }
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        match name {
            "answers" => self.mixed = body["mixed"] == true,
            "currency" => self.rupees = body["inr"] == true,
            "servers" => self.instances_alone = body["alone"] == true,
            _ => return None,
        }
        Some(Ok(body.clone()))
    }
}
