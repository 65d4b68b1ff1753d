//! Novita: REST with a key, containers behind Novita's own proxy, on demand and as spot.
//!
//! Written from `providers/novita.md`, the description `novita.derived.json` (itself derived from Novita's pages and
//! from clients), and Novita's pages where the table names one. Novita's own Python client judges it in
//! `tests/sdk.rs`. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the key is a bearer; failures are `{"code", "reason", "message", "metadata"}`; 429 has `Retry-After` | [`Novita::REFUSALS`] |
//! | a shortage is `INSUFFICIENT_RESOURCE`, also of GPUs at once, of a cluster, and of hosts with a CUDA version | `catalogue.rs` |
//! | prices are 1/100,000 USD for a GPU and hour: `price` a number, `spotPrice` a text or empty; a spot price alone sells nothing, nor does the method alone | `catalogue.rs` |
//! | `availableDeploy` tells whether `gpuNum` GPUs are deployed at once, `inventoryState` whether any are left | `catalogue.rs` |
//! | names of products carry the memory of a GPU, some of them a bracket behind it | `catalogue.rs` |
//! | an order names a product, GPUs, a disk between the limits of the product, an image, `kind`; `ports` is one text, without 2222 to 2224 | `orders.rs` |
//! | no token, and no name is refused: an order that is sent twice makes two instances | `orders.rs` |
//! | there are no tags: the name and the environment variables are the mark | `orders.rs` |
//! | no key is registered: SSH is at a port of the proxy with a password that Novita makes | `orders.rs`, `instances.rs` |
//! | `cpuNum`, `memory`, `gpuNum` are texts; `statusError` is there, and empty where nothing is wrong | `instances.rs` |
//! | an instance is `running` before it has an `sshCommand`, and has that before `isRunning` is true | `instances.rs` |
//! | pages begin at 0 and have 20 instances, `total` counts all of them | `instances.rs` |
//! | a spot instance is `notified`, then `reclaiming`, then `exited` with a `spotReclaimTime`, and stays | `instances.rs` |
//! | an instance that is gone is `removed` for a minute, then 404; ending one again is 404 | `instances.rs` |
//! | each second counts from the beginning until an instance is stopped; a GB above 60 costs 0.005 USD a day ("GPU Instance Pricing") | [`Novita::billing`], `catalogue.rs` |
//! | the balance is in 1/10,000 USD, as texts ("User Balance Info") | `instances.rs` |
//!
//! Where the facts name two forms, the control `answers {"forms": […]}` brings the other one: [`FORMS`]. The control
//! `freeze {"instance"}` stops an instance of an account that owes money. Quotas of an account: `instances`.
//!
//! Assumed, since no fact says it: the statuses of failures beside 401, 402, 403, 404 and 429; which pages are too
//! large (above 100); how long each state lasts; which status an instance has whose boot fails; an instance costs
//! from its order, some seconds before it is `pulling`; a failed one costs in full; a stopped one costs its whole
//! disk, since the facts say that storage is billed and not whether 60 GB of it are free then; a stopped one gives its
//! GPUs back; a spot instance that was taken back does not start again; the container goes on when its command ends;
//! an image whose name tells a later CUDA version than its host has does not start. Prices and stock are examples. No
//! fact has a rate limit, so that none is here.

mod catalogue;
mod instances;
mod orders;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::core::billing::{Billing, Halted};
use crate::core::cloud::Effect::{Change, Create, Delete};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Cause;
use crate::core::rest::{Problem, Refusals, RestApi, Route};
use crate::core::world::{Happening, World};

/// Prices on demand are texts.
const PRICES_ARE_TEXTS: &str = "prices-are-texts";
/// Regions of a product are objects.
const REGIONS_ARE_OBJECTS: &str = "regions-are-objects";
/// The pages 0 and 1 of a list are the same.
const PAGES_BEGIN_TWICE: &str = "pages-begin-twice";
/// An instance tells its password once, when it is read by its id, and no list has it.
const PASSWORD_ONCE: &str = "password-once";
/// The password is a field `sshPassword` of an instance.
const PASSWORD_ABOVE: &str = "password-above";

/// The other forms of answers, by the words of the control `answers`.
#[rustfmt::skip]
pub const FORMS: [&str; 5] = [PRICES_ARE_TEXTS, REGIONS_ARE_OBJECTS, PAGES_BEGIN_TWICE, PASSWORD_ONCE, PASSWORD_ABOVE];

/// The simulated Novita.
#[derive(Debug, Default)]
pub struct Novita {
    /// The forms that answers have now.
    forms: BTreeSet<&'static str>,
}

impl Novita {
    fn has(&self, form: &str) -> bool {
        self.forms.contains(form)
    }

    fn set_forms(&mut self, body: &Value) -> Result<Value, String> {
        let words = body["forms"].as_array().ok_or("give {\"forms\": […]}")?;
        let known = |word: &Value| {
            let form = FORMS.into_iter().find(|form| word.as_str() == Some(*form));
            form.ok_or_else(|| format!("{word} is none of {FORMS:?}"))
        };
        self.forms = words.iter().map(known).collect::<Result<_, _>>()?;
        Ok(body.clone())
    }
}

/// A number in the query; 0 where it is not given.
fn number(visit: &Visit<'_>, name: &str) -> Result<u32, Refusal> {
    let given = visit.request.parameter(name).unwrap_or("0");
    given
        .parse()
        .map_err(|_| Refusal::Bad(format!("{name} must be a number")))
}

/// Whether a text has a part of it, as the filters of lists mean it.
fn is_like(text: &str, part: Option<&str>) -> bool {
    let part = part.unwrap_or_default().to_lowercase();
    text.to_lowercase().contains(&part)
}

const WRONG_KEY: Problem = Problem(401, "UNAUTHORIZED", "The API key is not valid");

impl RestApi for Novita {
    const NAME: &'static str = "novita";
    const DESCRIPTION: &'static str = "novita.derived.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/gpu-instance/openapi/v1/clusters", "clusters.list", |_, visit, _| Ok(catalogue::clusters(visit))),
        Route::get("/gpu-instance/openapi/v1/products", "products.list", |api, visit, _| catalogue::products(api, visit)),
        Route::get("/gpu-instance/openapi/v1/gpu/instances", "instances.list", |api, visit, _| instances::list(api, visit)),
        Route::get("/gpu-instance/openapi/v1/gpu/instance", "instances.get", |api, visit, _| instances::get(api, visit)),
        Route::new("POST", "/gpu-instance/openapi/v1/gpu/instance/create", "instances.create", Create, |_, visit, _| orders::create(visit)).takes::<orders::Order>(),
        Route::new("POST", "/gpu-instance/openapi/v1/gpu/instance/delete", "instances.delete", Delete, |_, visit, _| instances::delete(visit)).takes::<instances::Named>(),
        Route::new("POST", "/gpu-instance/openapi/v1/gpu/instance/stop", "instances.stop", Delete, |_, visit, _| instances::stop(visit)).takes::<instances::Named>(),
        Route::new("POST", "/gpu-instance/openapi/v1/gpu/instance/start", "instances.start", Change, |_, visit, _| instances::start(visit)).takes::<instances::Named>(),
        Route::new("POST", "/gpu-instance/openapi/v1/gpu/instance/restart", "instances.restart", Change, |_, visit, _| instances::restart(visit)).takes::<instances::Named>(),
        Route::get("/openapi/v1/billing/balance/detail", "account.balance", |_, visit, _| Ok(instances::balance(visit))),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("this call of instances and images", &["/gpu-instance/openapi/v1/gpu", "/gpu-instance/openapi/v1/job"]),
        ("instances without GPUs", &["/gpu-instance/openapi/v1/cpu"]),
        ("templates, storage, networks and endpoints", &[
            "/gpu-instance/openapi/v1/template", "/gpu-instance/openapi/v1/templates", "/gpu-instance/openapi/v1/networkstorage",
            "/gpu-instance/openapi/v1/networkstorages", "/gpu-instance/openapi/v1/endpoint", "/gpu-instance/openapi/v1/endpoints",
        ]),
        ("version 2 of the API", &["/gpus/v2"]),
        ("this part of the account", &["/openapi/v1"]),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("autoRenew", "", "subscriptions"),
        ("autoRenewMonth", "", "subscriptions"),
        ("imageAuth", "", "private registries"),
        ("imageAuthId", "", "private registries"),
        ("month", "", "subscriptions"),
        ("networkId", "", "networks"),
        ("networkStorages", "", "storage"),
        ("tools", "", "tools"),
    ];
    const RETRY_AFTER: bool = true;
    // Every call can be told these; the description has them at a few.
    const UNDESCRIBED: &'static [u16] = &[400, 402, 403];
    const UNDESCRIBED_CALLS: &'static [&'static str] = &["account.balance"];
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "RATE_LIMIT_EXCEEDED", "Too many requests"),
        server: Problem(500, "INTERNAL_ERROR", "Internal error"),
        no_capacity: Problem(400, "INSUFFICIENT_RESOURCE", "There are not enough resources for the instance"),
        quota: Problem(400, "QUOTA_EXCEEDED", "The quota of {} is used up"),
        funds: Problem(402, "INSUFFICIENT_BALANCE", "The balance of the account is not sufficient"),
        unauthorized: WRONG_KEY,
        expired: WRONG_KEY,
        forbidden: Problem(403, "PERMISSION_DENIED", "The API key may not do this"),
        invalid: Problem(400, "INVALID_ARGUMENT", "{}"),
        not_found: Problem(404, "NOT_FOUND", "The {} does not exist"),
        unknown_call: Problem(404, "NOT_FOUND", "There is no such path"),
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
        let body = json!({ "code": status, "reason": code, "message": text, "metadata": {} });
        Answer::json(status, &body)
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::Reclaimed(id) => {
                world.halt(id, Cause::Reclaimed);
                world.release_stock(id);
            }
            Happening::HaltedItself(id) => world.halt(id, Cause::Itself),
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::Running(_)
            | Happening::BootFailed(_)
            | Happening::Noticed(_)
            | Happening::Ended(_)
            | Happening::Reminder(_) => {}
        }
    }

    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        match name {
            "answers" => Some(self.set_forms(body)),
            "freeze" => Some(instances::freeze(world, body)),
            _ => None,
        }
    }
}
