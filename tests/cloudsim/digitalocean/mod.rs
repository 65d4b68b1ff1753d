//! DigitalOcean: REST with a token, Droplets with GPUs and without, on demand only.
//!
//! Written from `providers/digitalocean.md` and the description `digitalocean.json`. DigitalOcean's
//! own Python client judges it in `tests/sdk.rs`. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the token as bearer; failures are `{"id", "message", "request_id"}`; shortage, quota and mistake are all 422 | [`DigitalOcean::REFUSALS`] |
//! | 5000 requests an hour and 250 a minute; `ratelimit-*` tell of the hour, 429 has `retry-after` | [`DigitalOcean::LIMITS`] |
//! | pages of 20, at most 200; links to the neighbours are whole addresses | [`listed`] |
//! | a size is listed with the regions that have some; one that needs a contract is, too, and cannot be ordered; `vram` is that of all GPUs | `catalogue.rs` |
//! | an order is accepted with 202 and an action; its keys are ids or fingerprints; `region` may be a prefix or absent | `orders.rs` |
//! | names are not unique, there is no token; tags are made by the way and stay | `orders.rs`, `things.rs` |
//! | lists have Droplets without GPUs unless `type=gpus`, which cannot be combined with `tag_name` | `droplets.rs` |
//! | addresses are there when the Droplet is `active`, the private one first | `droplets.rs` |
//! | a Droplet with a pending event is locked: its deletion is a 422; one that is gone is a 404 | `droplets.rs` |
//! | a creation that errs has the action `errored`, and its Droplet vanishes | [`DigitalOcean::happened`] |
//! | a Droplet that is `off` is billed in full (from 2026 on by the second, at least a minute) | [`DigitalOcean::billing`] |
//! | a key exists once in an account | `things.rs` |
//! | tags keep the case that they were made with, and exist once whatever their case | `things.rs` |
//! | a firewall names tags that exist | `things.rs` |
//!
//! Quotas of an account: `instances`.
//!
//! Assumed, since no fact says it: `tag_name` and `name` find no Droplets with GPUs, as any list without
//! `type=gpus`. A Droplet is locked for the first ten seconds of its boot and while it is destroyed; that
//! it boots for longer locks nothing. A Droplet whose creation erred is shown as `new` for a minute and
//! costs nothing. One whose host is lost is `off`. Without balance an order is a 403. A tag that exists is
//! returned. Tags are no leftovers of the meter, since they cost nothing and orders leave them behind.
//! Firewalls are set after five seconds and keep nobody out. The default VPC of a region is the same in
//! all accounts. The cap of a month's hours is left out. Prices and stock are examples. The control `tags` with
//! `{"seesNoDroplets": true}` counts what a tag is carried by as for a token without the scope `droplet:read`.

mod catalogue;
mod droplets;
mod orders;
mod things;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use self::things::{FIREWALL, KEY};
use crate::core::billing::Billing;
use crate::core::cloud::Effect::{Change, Create, Delete};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Cause;
use crate::core::rest::pages::PageSize;
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route, Usage, by_number};
use crate::core::world::{Happening, World};

/// The simulated DigitalOcean.
#[derive(Debug, Default)]
pub struct DigitalOcean {
    /// The names of tags, by account and name in lower case.
    tags: BTreeMap<(String, String), String>,
    /// Whether the tokens may see no Droplets behind tags.
    sees_no_droplets: bool,
}

const PAGE_SIZE: PageSize = PageSize {
    parameter: "per_page",
    usual: 20,
    most: 200,
};

/// The address at which the client reached the simulator.
fn base(visit: &Visit<'_>) -> String {
    let host = visit.request.header("host").unwrap_or("api.digitalocean.com");
    format!("http://{host}")
}

/// A page of a list.
fn listed(visit: &Visit<'_>, name: &str, items: impl Iterator<Item = Value>) -> Result<Answer, Refusal> {
    let page = by_number(visit, "page", PAGE_SIZE, items.collect())?;
    let link = |number: &str| {
        let others = visit.request.query.iter().filter(|(name, _)| name != "page");
        let others: Vec<_> = others.map(|(name, value)| format!("&{name}={value}")).collect();
        format!(
            "{}{}?page={number}{}",
            base(visit),
            visit.request.path,
            others.concat()
        )
    };
    let mut pages = json!({});
    if !page.next.is_empty() {
        pages["next"] = link(&page.next).into();
        pages["last"] = link(&page.last.to_string()).into();
    }
    if !page.previous.is_empty() {
        pages["prev"] = link(&page.previous).into();
        pages["first"] = link("1").into();
    }
    let links = Some(("pages", pages)).filter(|_| page.last > 1);
    let links: BTreeMap<_, _> = links.into_iter().collect();
    let body = json!({ name: page.items, "links": links, "meta": { "total": page.total } });
    Ok(Answer::json(200, &body))
}

/// One thing in a field of this name.
fn found(name: &str, thing: Option<Value>) -> Result<Answer, Refusal> {
    let thing = thing.ok_or_else(missing)?;
    Ok(Answer::json(200, &json!({ name: thing })))
}

fn missing() -> Refusal {
    Refusal::NotFound(String::new())
}

/// A time as DigitalOcean writes it.
fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

const UNPROCESSABLE: &str = "unprocessable_entity";
const WRONG_TOKEN: Problem = Problem(401, "unauthorized", "Unable to authenticate you.");
const MISSING: Problem = Problem(404, "not_found", "The resource you requested could not be found.");

impl RestApi for DigitalOcean {
    const NAME: &'static str = "digitalocean";
    const DESCRIPTION: &'static str = "digitalocean.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/v2/account", "account.get", |_, visit, _| Ok(catalogue::account(visit))),
        Route::get("/v2/sizes", "sizes.list", |_, visit, _| catalogue::sizes(visit)),
        Route::get("/v2/regions", "regions.list", |_, visit, _| catalogue::regions(visit)),
        Route::get("/v2/images", "images.list", |_, visit, _| catalogue::images(visit)),
        Route::get("/v2/images/{id}", "images.get", |_, _, id| found("image", catalogue::image(id))),
        Route::get("/v2/vpcs", "vpcs.list", |_, visit, _| catalogue::vpcs(visit)),
        Route::get("/v2/account/keys", "keys.list", |_, visit, _| things::list(visit, KEY)),
        Route::get("/v2/account/keys/{id}", "keys.get", |_, visit, id| things::get(visit, KEY, id)),
        Route::new("POST", "/v2/account/keys", "keys.create", Change, |_, visit, _| things::create_key(visit)).takes::<things::NewKey>(),
        Route::new("DELETE", "/v2/account/keys/{id}", "keys.delete", Change, |_, visit, id| things::delete(visit, KEY, id)),
        Route::get("/v2/droplets", "droplets.list", |_, visit, _| droplets::list(visit)),
        Route::get("/v2/droplets/{id}", "droplets.get", |_, visit, id| found("droplet", droplets::shown_now(visit, id))),
        Route::new("POST", "/v2/droplets", "droplets.create", Create, |api, visit, _| orders::create(api, visit)).takes::<orders::Order>(),
        Route::new("DELETE", "/v2/droplets/{id}", "droplets.delete", Delete, |_, visit, id| droplets::delete(visit, id)),
        Route::get("/v2/actions/{id}", "actions.get", |_, visit, id| found("action", droplets::action(visit, id))),
        Route::get("/v2/droplets/{droplet}/actions/{id}", "actions.get", |_, visit, id| found("action", droplets::action(visit, id))),
        Route::get("/v2/tags", "tags.list", |api, visit, _| things::tags(api, visit)),
        Route::get("/v2/tags/{id}", "tags.get", |api, visit, tag| found("tag", things::tag(api, visit, tag))),
        Route::new("POST", "/v2/tags", "tags.create", Change, |api, visit, _| things::create_tag(api, visit)),
        Route::new("DELETE", "/v2/tags/{id}", "tags.delete", Change, things::delete_tag),
        Route::get("/v2/firewalls", "firewalls.list", |_, visit, _| things::list(visit, FIREWALL)),
        Route::get("/v2/firewalls/{id}", "firewalls.get", |_, visit, id| things::get(visit, FIREWALL, id)),
        Route::new("POST", "/v2/firewalls", "firewalls.create", Change, |api, visit, _| things::create_firewall(api, visit)).takes::<things::Firewall>(),
        Route::new("DELETE", "/v2/firewalls/{id}", "firewalls.delete", Change, |_, visit, id| things::delete(visit, FIREWALL, id)),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("this call of Droplets", &["/v2/actions", "/v2/droplets"]),
        ("changes of keys", &["/v2/account/keys"]),
        ("images of customers", &["/v2/images"]),
        ("this call of firewalls and tags", &["/v2/firewalls", "/v2/tags"]),
        ("VPCs of customers", &["/v2/vpcs"]),
        ("bills and projects", &["/v2/customers", "/v2/projects"]),
    ];
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("backup_policy", "", "backups"),
        ("backups", "", "backups"),
        ("ipv6", "", "IPv6"),
        ("names", "", "several Droplets at once"),
        ("project_id", "", "projects"),
        ("volumes", "", "block storage"),
    ];
    #[rustfmt::skip]
    const LIMITS: &'static [Limit] = &[
        Limit { calls: "*", most: 5_000, seconds: 3_600, per: Per::Account },
        Limit { calls: "*", most: 250, seconds: 60, per: Per::Account },
    ];
    const RETRY_AFTER: bool = true;
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "too_many_requests", "API Rate limit exceeded."),
        server: Problem(500, "server_error", "Unexpected server-side error"),
        no_capacity: Problem(422, UNPROCESSABLE, "Size is not available in this region."),
        quota: Problem(422, UNPROCESSABLE, "creating this/these droplet(s) will exceed your droplet limit"),
        funds: Problem(403, "forbidden", "Your account is locked."),
        unauthorized: WRONG_TOKEN,
        expired: WRONG_TOKEN,
        forbidden: Problem(403, "forbidden", "You are not authorized to perform this operation"),
        invalid: Problem(422, UNPROCESSABLE, "{}"),
        not_found: MISSING,
        unknown_call: MISSING,
    };

    fn billing(&self) -> Billing {
        Billing {
            minimum: SignedDuration::from_mins(1),
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        self.sees_no_droplets = body["seesNoDroplets"].as_bool().filter(|_| name == "tags")?;
        Some(Ok(body.clone()))
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        let request = "4d9d8375-3c56-4925-a3e7-eb137fed17e9";
        Answer::json(
            status,
            &json!({ "id": code, "message": text, "request_id": request }),
        )
    }

    fn finish(answer: &mut Answer, usage: &Usage) {
        let mut add = |name: &str, number: String| answer.headers.push((format!("ratelimit-{name}"), number));
        add("limit", usage.most.to_string());
        add("remaining", usage.left.to_string());
        add("reset", usage.reset.as_second().to_string());
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::HaltedItself(id) => world.halt(id, Cause::Itself),
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::BootFailed(id) => {
                let cause = world.machines.get(id).and_then(|machine| machine.cause.clone());
                world.waive(id);
                world.end(id, cause.unwrap_or(Cause::Asked), SignedDuration::from_mins(1));
            }
            _ => {}
        }
    }
}
