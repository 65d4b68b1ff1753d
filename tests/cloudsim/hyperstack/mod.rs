//! Hyperstack: REST with a key, VMs in environments, on demand and as spot flavors.
//!
//! Written from `providers/hyperstack.md`, the description `hyperstack.json`, and Hyperstack's pages where the
//! table names one. Hyperstack's own Python client judges it in `tests/sdk.rs`. Where what is done here comes
//! from:
//!
//! | fact | where |
//! | --- | --- |
//! | the key in `api_key`; answers are `{"status", "message"}` and what was asked for; ids are numbers; a field without a value is null, which the description does not allow | [`Hyperstack::key`], [`Hyperstack::NULLS_IN_ANSWERS`] |
//! | failures are `{"status": false, "message", "error_reason"}`; shortage, quota, money and state are all 400 | [`Hyperstack::REFUSALS`] |
//! | 500 requests a minute from an address, without a header that says so ("Rate Limits") | [`Hyperstack::LIMITS`] |
//! | pages of ten by `page` and `pageSize`; all else comes whole | [`listed`] |
//! | flavors and images are grouped; a spot flavor has the suffix `-spot`, as its GPU in the price book has; an image may be for some flavors only | `catalogue.rs` |
//! | prices are of one GPU, numbers in the description and texts from the service: the control `answers` gives both | `catalogue.rs` |
//! | an environment belongs to a region; its name is taken once, and it is not deleted before its VMs and its keys (Hyperstack's page about environments) | `things.rs` |
//! | environment, flavor, image and key of an order are names, and 404 where there is none | `orders.rs` |
//! | SSH is not at port 22 unless `enable_port_randomization` is false | `orders.rs` |
//! | no token, and no name is refused: an order that is sent twice makes two VMs | `orders.rs` |
//! | a VM is ACTIVE before its floating address is attached | `machines.rs` |
//! | a VM that is being created is not deleted (400), nor one that is being deleted (409) | `machines.rs` |
//! | GET stops, starts, hibernates and restores | `machines.rs` |
//! | ACTIVE and SHUTOFF cost in full, HIBERNATED the root disk and a kept address, all else nothing ("Virtual Machine States and Billing Status"), by the minute ("Pricing") | [`Hyperstack::billing`] |
//! | hibernation gives the address back unless `retain_ip` is true ("Check floating-IP detachment exclusion") | `machines.rs` |
//! | a rule of a VM is there once (409) | `machines.rs` |
//!
//! Quotas of an account: `instances`.
//!
//! Assumed, since no fact says it: the texts of shortages; CREATING lasts ten seconds and BUILD can be deleted,
//! since a VM that never boots must be; an address takes three seconds until it is attached, and a VM until it has
//! stopped or hibernates; rules are taken once a VM is created, and keep nobody out; a VM whose host is lost is in
//! ERROR; a spot VM that is taken back is gone; a VM that is gone keeps its environment from being deleted for five
//! seconds (Hyperstack's Terraform provider waits so long); a flavor without GPUs has no price in the price book. Prices
//! and stock are examples. The networks of all environments have the same addresses.

mod catalogue;
mod machines;
mod orders;
mod things;

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use self::things::{ENVIRONMENT, KEY};
use crate::core::billing::{Billing, Halted};
use crate::core::cloud::Effect::{Change, Create, Delete};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::{Answer, Request};
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route, by_number, pages::PageSize};
use crate::core::world::World;

/// The simulated Hyperstack.
#[derive(Debug, Default)]
pub struct Hyperstack {
    /// The last id that was given out.
    last: u64,
    /// Whether every other price is a text.
    mixed: bool,
}

impl Hyperstack {
    /// The next id. All have the same number of digits, so that a later one comes later in lists.
    fn id(&mut self) -> String {
        self.last += 1;
        (1_000_000 + self.last).to_string()
    }
}

#[rustfmt::skip]
const PAGE_SIZE: PageSize = PageSize { parameter: "pageSize", usual: 10, most: 100 };

/// A page of those items of a list whose names have what is searched for.
fn listed(visit: &Visit<'_>, name: &str, items: impl Iterator<Item = Value>) -> Result<Answer, Refusal> {
    let search = visit.request.parameter("search").unwrap_or_default();
    let items = items.filter(|item| is_named(item, search)).collect();
    let page = by_number(visit, "page", PAGE_SIZE, items)?;
    ok(json!({ name: page.items, "count": page.total, "page": page.number, "page_size": page.size }))
}

/// Whether a text is part of the name of something.
fn is_named(thing: &Value, part: &str) -> bool {
    thing["name"].as_str().unwrap_or_default().contains(part)
}

/// An answer with these fields and those of all answers.
#[expect(
    clippy::unnecessary_wraps,
    reason = "each call ends with it, and a call may be refused"
)]
fn ok(mut fields: Value) -> Result<Answer, Refusal> {
    fields["status"] = json!(true);
    fields["message"] = json!("Success");
    Ok(Answer::json(200, &fields))
}

fn missing(what: &str) -> Refusal {
    Refusal::NotFound(what.to_owned())
}

fn conflict<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Answer(Hyperstack::problem(409, "conflict", what)))
}

/// An id as answers have it.
fn number(id: &str) -> u64 {
    id.parse().unwrap_or_default()
}

/// A time as Hyperstack writes it.
fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

const WRONG_KEY: Problem = Problem(401, "unauthorized", "Invalid API key");

impl RestApi for Hyperstack {
    const NAME: &'static str = "hyperstack";
    const DESCRIPTION: &'static str = "hyperstack.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/v1/auth/me", "account.get", |_, visit, _| things::account(visit)),
        Route::get("/v1/pricebook", "prices.list", |api, visit, _| Ok(catalogue::prices(api, visit))),
        Route::get("/v1/core/regions", "regions.list", |_, visit, _| catalogue::regions(visit)),
        Route::get("/v1/core/flavors", "flavors.list", |_, visit, _| catalogue::flavors(visit)),
        Route::get("/v1/core/stocks", "stocks.list", |_, visit, _| catalogue::stocks(visit)),
        Route::get("/v1/core/images", "images.list", |_, visit, _| catalogue::images(visit)),
        Route::get("/v1/core/environments", "environments.list", |_, visit, _| things::list(visit, ENVIRONMENT)),
        Route::get("/v1/core/environments/{id}", "environments.get", |_, visit, id| things::get(visit, ENVIRONMENT, id)),
        Route::get("/v1/core/environments/{id}/vm-quota", "environments.quota", |_, visit, id| things::quota(visit, id)),
        Route::new("POST", "/v1/core/environments", "environments.create", Change, |api, visit, _| things::create_environment(api, visit)).takes::<things::NewEnvironment>(),
        Route::new("DELETE", "/v1/core/environments/{id}", "environments.delete", Change, |_, visit, id| things::delete_environment(visit, id)),
        Route::get("/v1/core/keypairs", "keys.list", |_, visit, _| things::list(visit, KEY)),
        Route::new("POST", "/v1/core/keypairs", "keys.create", Change, |api, visit, _| things::create_key(api, visit)).takes::<things::NewKey>(),
        Route::new("DELETE", "/v1/core/keypair/{id}", "keys.delete", Change, |_, visit, id| things::delete(visit, KEY, id)),
        Route::get("/v1/core/virtual-machines", "vms.list", |_, visit, _| machines::list(visit)),
        Route::get("/v1/core/virtual-machines/{id}", "vms.get", |_, visit, id| ok(json!({ "instance": machines::shown_now(visit, id)? }))),
        Route::new("POST", "/v1/core/virtual-machines", "vms.create", Create, |api, visit, _| orders::create(api, visit)).takes::<orders::Order>(),
        Route::new("DELETE", "/v1/core/virtual-machines/{id}", "vms.delete", Delete, |_, visit, id| machines::delete(visit, id)),
        Route::new("GET", "/v1/core/virtual-machines/{id}/stop", "vms.stop", Delete, |_, visit, id| machines::stop(visit, id)),
        Route::new("GET", "/v1/core/virtual-machines/{id}/start", "vms.start", Change, |_, visit, id| machines::start(visit, id, machines::SHUTOFF)),
        Route::new("GET", "/v1/core/virtual-machines/{id}/hibernate", "vms.hibernate", Delete, |_, visit, id| machines::hibernate(visit, id)),
        Route::new("GET", "/v1/core/virtual-machines/{id}/hibernate-restore", "vms.restore", Change, |_, visit, id| machines::start(visit, id, machines::HIBERNATED)),
        Route::new("POST", "/v1/core/virtual-machines/{id}/attach-floatingip", "addresses.attach", Change, |_, visit, id| machines::set_ip(visit, id, true)),
        Route::new("POST", "/v1/core/virtual-machines/{id}/detach-floatingip", "addresses.detach", Change, |_, visit, id| machines::set_ip(visit, id, false)),
        Route::new("POST", "/v1/core/virtual-machines/{id}/sg-rules", "rules.create", Change, machines::add_rule).takes::<machines::Rule>(),
        Route::new("DELETE", "/v1/core/virtual-machines/{vm}/sg-rules/{id}", "rules.delete", Change, |_, visit, id| machines::delete_rule(visit, id)),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("this call of VMs", &["/v1/core/virtual-machines"]),
        ("this call of environments, keys and images", &["/v1/core/environments", "/v1/core/keypair", "/v1/core/images"]),
        ("this part of the cloud", &["/v1/core/firewalls", "/v1/core/gpus", "/v1/core/sg-rules-protocols", "/v1/billing"]),
        ("volumes, snapshots and clusters", &["/v1/core/volumes", "/v1/core/snapshots", "/v1/core/clusters"]),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("callback_url", "", "callbacks"),
        ("create_bootable_volume", "", "volumes to boot from"),
        // Not in the description; Hyperstack's own client sends it.
        ("enhanced_monitoring_enabled", "", "the agent of Hyperstack"),
        ("flavor", "", "flavors of customers"),
        ("profile", "", "profiles"),
        ("volume_name", "", "volumes"),
    ];
    const NULL_IS_ABSENT: bool = true;
    const NULLS_IN_ANSWERS: bool = true;
    // Its prices may be texts.
    const UNDESCRIBED_CALLS: &'static [&'static str] = &["prices.list"];
    #[rustfmt::skip]
    const LIMITS: &'static [Limit] = &[Limit { calls: "*", most: 500, seconds: 60, per: Per::Address }];
    // Every call can be told these; the description has them at a few.
    const UNDESCRIBED: &'static [u16] = &[403, 429];
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "too_many_requests", "Too Many Requests"),
        server: Problem(500, "internal_error", "Internal Server Error"),
        no_capacity: Problem(400, "bad_request", "Not enough stock available for the requested flavor"),
        quota: Problem(400, "bad_request", "Quota exceeded for {}"),
        funds: Problem(400, "bad_request", "Insufficient balance to create the resource"),
        unauthorized: WRONG_KEY,
        expired: WRONG_KEY,
        forbidden: Problem(403, "forbidden", "The key may not do this"),
        invalid: Problem(400, "bad_request", "{}"),
        not_found: Problem(404, "not_found", "The {} does not exist"),
        unknown_call: Problem(404, "not_found", "The requested URL was not found on the server"),
    };

    fn key(&self, request: &Request) -> Option<String> {
        request.header("api_key").map(str::to_owned)
    }

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_mins(1),
            pending: false,
            halted: Halted::Disk,
            failed: false,
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        Answer::json(
            status,
            &json!({ "status": false, "message": text, "error_reason": code }),
        )
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        self.mixed = (name == "answers").then(|| body["mixed"] == true)?;
        Some(Ok(body.clone()))
    }
}
