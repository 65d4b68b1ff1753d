//! Scaleway: Instances in zones, on demand only, with block volumes that outlive them.
//!
//! Written from `providers/scaleway.md` and the description `scaleway.derived.json`, which was made from
//! Scaleway's client for Go. Scaleway's own Python client judges it in `tests/sdk.rs`. Where what is done
//! here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the secret key in `X-Auth-Token`; failures are `{"type", "message"}` and what the type has beside them | [`Scaleway::REFUSALS`] |
//! | pages of Instances by `per_page`, with `X-Total-Count`; all others by `page_size` | [`listed`] |
//! | types are a map, in euros; gone ones have `end_of_service`; stock is `available`, `scarce` or `shortage` | `catalogue.rs` |
//! | images have an id in each zone, and labels, which orders take; no type takes a local volume; the size of a snapshot in block storage is told as 0 | `catalogue.rs`, `orders.rs` |
//! | an order leaves a server that is `stopped`, with its root volume; a quota is refused there, a shortage at `poweron` | `orders.rs`, `servers.rs` |
//! | every key of the project is on a server when it starts; user data before that is run | `servers.rs` |
//! | a dynamic address is there while the server runs | `servers.rs` |
//! | a guest that halts leaves `stopped in place`, which costs in full; `stopped` costs nothing but volumes | [`Scaleway::happened`] |
//! | `terminate` ends a server that runs, deletion one that is stopped; what is in between is refused | `servers.rs` |
//! | block volumes stay, are detached after the server is gone, and are not deleted before (412) | `things.rs` |
//! | the root volume has the image's name, whatever an order says, until it is given another (terraform-provider-scaleway#3041, #3456); a server tells its id alone | `orders.rs`, `things.rs` |
//! | the same key may be there twice; its fingerprint is a sentence | `things.rs` |
//! | GPUs are billed by minutes begun (scaleway/docs-content#5727) | [`Scaleway::billing`] |
//! | names find all that contain them, tags must all be there, at volumes one of them | `servers.rs`, `things.rs` |
//!
//! Quotas of an account: `instances`. A project is any text, and orders must name one.
//!
//! Assumed, since no fact says it: a shortage is a 503, money and locks are a 403. A server cannot be
//! terminated in the first ten seconds of its start; `stopping` lasts five seconds. A volume is detached three
//! seconds after its server is gone. A start that fails, or a host that is lost, leaves the server `stopped`
//! for nothing. Each image has a least size of a server's volume. Each project has a default security group that
//! lets everything in. A tag `AUTHORIZED_KEY=` is nothing but a tag. 100 calls a second. Prices and stock are
//! examples. The control `servers` with `{"alone": true}` takes volumes and addresses off the bill.

mod catalogue;
mod orders;
mod servers;
mod things;

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use self::things::{KEY, VOLUME};
use crate::core::billing::{Billing, Halted};
use crate::core::cloud::Effect::{Change, Create, Delete};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::{Answer, Request};
use crate::core::machine::Cause;
use crate::core::rest::pages::PageSize;
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route, by_number};
use crate::core::world::{Happening, World};

/// The simulated Scaleway.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scaleway {
    /// Whether the meter leaves volumes and addresses out.
    servers_alone: bool,
}

/// The zone of a call; "" where there are none.
fn zone(visit: &Visit<'_>) -> Result<String, Refusal> {
    let mut segments = visit.request.segments().into_iter().skip(2);
    if segments.next().as_deref() != Some("zones") {
        return Ok(String::new());
    }
    let known = segments.next().filter(|zone| visit.world.regions.contains(zone));
    known.ok_or_else(|| missing("zone"))
}

/// Pages of the API of Instances, and of all others.
#[rustfmt::skip]
const PAGE_SIZES: [PageSize; 2] = [
    PageSize { parameter: "per_page", usual: 50, most: 100 },
    PageSize { parameter: "page_size", usual: 20, most: 100 },
];

/// A page of a list.
fn listed(visit: &Visit<'_>, name: &str, items: impl Iterator<Item = Value>) -> Result<Answer, Refusal> {
    let of_instances = visit.request.path.starts_with("/instance");
    let size = PAGE_SIZES[usize::from(!of_instances)];
    let page = by_number(visit, "page", size, items.collect())?;
    let mut answer = Answer::json(200, &json!({ name: page.items, "total_count": page.total }));
    let count = of_instances.then(|| ("x-total-count".to_owned(), page.total.to_string()));
    answer.headers.extend(count);
    Ok(answer)
}

fn missing(what: &str) -> Refusal {
    Refusal::NotFound(what.to_owned())
}

fn refused<T>(status: u16, kind: &str, what: &str) -> Result<T, Refusal> {
    Err(Refusal::Answer(Scaleway::problem(status, kind, what)))
}

/// A time as Scaleway writes it.
fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.000000+00:00").to_string()
}

const DENIED: Problem = Problem(401, "denied_authentication", "authentication is denied");

impl RestApi for Scaleway {
    const NAME: &'static str = "scaleway";
    const DESCRIPTION: &'static str = "scaleway.derived.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/instance/v1/zones/{zone}/products/servers", "types.list", |_, visit, _| catalogue::types(visit)),
        Route::get("/instance/v1/zones/{zone}/products/servers/availability", "availability.list", |_, visit, _| catalogue::stock(visit)),
        Route::get("/instance/v1/zones/{zone}/images", "images.list", |_, visit, _| catalogue::images(visit)),
        Route::get("/instance/v1/zones/{zone}/security_groups", "groups.list", |_, visit, _| catalogue::groups(visit)),
        Route::get("/instance/v1/zones/{zone}/servers", "servers.list", |_, visit, _| servers::list(visit)),
        Route::get("/instance/v1/zones/{zone}/servers/{id}", "servers.get", |_, visit, id| servers::shown_now(visit, 200, id)),
        Route::new("POST", "/instance/v1/zones/{zone}/servers", "servers.create", Create, orders::create).takes::<orders::Order>(),
        Route::new("DELETE", "/instance/v1/zones/{zone}/servers/{id}", "servers.delete", Delete, |_, visit, id| servers::delete(visit, id)),
        Route::new("POST", "/instance/v1/zones/{zone}/servers/{server}/action", "servers.poweron", Change, |_, visit, _| servers::power_on(visit)).asks("action", "poweron"),
        Route::new("POST", "/instance/v1/zones/{zone}/servers/{server}/action", "servers.terminate", Delete, |_, visit, _| servers::terminate(visit)).asks("action", "terminate"),
        Route::new("PATCH", "/instance/v1/zones/{zone}/servers/{server}/user_data/{key}", "user-data.set", Change, |_, visit, key| servers::set_user_data(visit, key)),
        Route::get("/iam/v1alpha1/ssh-keys", "keys.list", |_, visit, _| things::list(visit, KEY)),
        Route::get("/iam/v1alpha1/ssh-keys/{id}", "keys.get", |_, visit, id| things::get(visit, KEY, id)),
        Route::new("POST", "/iam/v1alpha1/ssh-keys", "keys.create", Change, |_, visit, _| things::create_key(visit)).takes::<things::NewKey>(),
        Route::new("DELETE", "/iam/v1alpha1/ssh-keys/{id}", "keys.delete", Change, |_, visit, id| things::delete(visit, KEY, id)),
        Route::get("/block/v1alpha1/zones/{zone}/volumes", "volumes.list", |_, visit, _| things::list(visit, VOLUME)),
        Route::get("/block/v1alpha1/zones/{zone}/volumes/{id}", "volumes.get", |_, visit, id| things::get(visit, VOLUME, id)),
        Route::new("PATCH", "/block/v1alpha1/zones/{zone}/volumes/{id}", "volumes.update", Change, |_, visit, id| things::name_volume(visit, id)).takes::<things::Names>(),
        Route::new("DELETE", "/block/v1alpha1/zones/{zone}/volumes/{id}", "volumes.delete", Change, |_, visit, id| things::delete(visit, VOLUME, id)),
    ];
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] =
        &[("this call", &["/instance/v1", "/block/v1alpha1", "/iam/v1alpha1"])];
    #[rustfmt::skip]
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("admin_password_encryption_ssh_key_id", "", "passwords"),
        ("boot_type", "local", "other ways to boot"),
        ("enable_ipv6", "", "IPv6"),
        ("organization", "", "organizations in the place of projects"),
        ("placement_group", "", "placement groups"),
        ("protected", "", "protection"),
        ("public_ip", "", "addresses of their own"),
        ("public_ips", "", "addresses of their own"),
    ];
    const NULL_IS_ABSENT: bool = true;
    // As Scaleway's own clients send it.
    const UNDESCRIBED_CALLS: &'static [&'static str] = &["volumes.update"];
    #[rustfmt::skip]
    const LIMITS: &'static [Limit] = &[Limit { calls: "*", most: 100, seconds: 1, per: Per::Account }];
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "too_many_requests", "too many requests"),
        server: Problem(500, "internal_error", "internal error"),
        no_capacity: Problem(503, "out_of_stock", "resource is out of stock"),
        quota: Problem(403, "quotas_exceeded", "quota exceeded: {}"),
        funds: Problem(403, "locked", "the account is locked"),
        unauthorized: DENIED,
        expired: DENIED,
        forbidden: Problem(403, "permissions_denied", "insufficient permissions"),
        invalid: Problem(400, "invalid_arguments", "{}"),
        not_found: Problem(404, "not_found", "{}"),
        unknown_call: Problem(404, "unknown_resource", "no such path"),
    };

    fn key(&self, request: &Request) -> Option<String> {
        request.header("x-auth-token").map(str::to_owned)
    }

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_mins(1),
            halted: Halted::Disk,
            failed: false,
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    /// A failure names the resource that is missing, or tells its details.
    fn problem(status: u16, code: &str, text: &str) -> Answer {
        let mut body = json!({ "type": code, "message": text });
        match code {
            "not_found" => body["resource"] = text.into(),
            "invalid_arguments" => {
                body["details"] = json!([{ "argument_name": text, "reason": "constraint" }]);
            }
            "quotas_exceeded" => {
                body["details"] = json!([{ "resource": "instances", "quota": 0, "current": 0 }]);
            }
            _ => {}
        }
        Answer::json(status, &body)
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        self.servers_alone = body["alone"].as_bool().filter(|_| name == "servers")?;
        Some(Ok(body.clone()))
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::HaltedItself(id) => {
                if let Some(server) = world.machines.get_mut(id) {
                    server.disk_price = server.price;
                }
                world.halt(id, Cause::Itself);
            }
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::Ended(id) => things::let_go(world, id),
            Happening::Reminder(volume) => things::detach(world, volume),
            _ => {}
        }
    }
}
