//! Vultr: REST with one key, cloud instances and bare metal, on demand only.
//!
//! Written from `providers/vultr.md` and the description `vultr.json`, which is of about 2022. Vultr's
//! own Python client judges it in `tests/sdk.rs`. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the key as bearer; plans, regions, stock and systems without one | [`Vultr::ROUTES`] |
//! | failures are `{"error", "status"}` without a code; a shortage, a quota and a mistake are all 400 | [`Vultr::REFUSALS`] |
//! | 30 requests a second from one address, then 429 without a time | [`Vultr::LIMITS`] |
//! | pages of 100, at most 500; `meta.links.next` is the cursor, "" on the last page | [`listed`] |
//! | a plan tells a month's price, which is that of 730 hours with GPUs and of 672 without, and mostly an hour's; one of metal only the month's, and no GPU | `catalogue.rs` |
//! | fractions of a GPU by their memory; locations shrink when a plan is sold out there | `catalogue.rs` |
//! | one machine for each order, exactly one image, keys by id, user data in base64; no token | `orders.rs` |
//! | a plan of the other kind is a 400 "Invalid plan chosen." | `orders.rs` |
//! | `pending`, then `active` and `locked`, `installingbooting`, `ok`; metal has nothing but `status` | `machines.rs` |
//! | `main_ip` is 0.0.0.0 until there is one, at metal ""; the password is told once | `machines.rs` |
//! | a halted machine is `active` and `stopped`, and billed in full; only its deletion ends the bill | [`Vultr::billing`] |
//! | a machine that is being installed may be locked, and is not deleted then; one that is gone is a 404 | `machines.rs` |
//! | fields that the description lacks (`user_scheme`, `block_devices`, …) are no mistake | [`Vultr::NOT_SIMULATED_FIELDS`] |
//! | keys of the same name or text are two; they have no fingerprint | `texts.rs` |
//!
//! Quotas of an account: `instances`. Its balance is what it has paid ahead.
//!
//! Assumed, since no fact says it: a GPU is billed by hours begun, from the order on, and so is all
//! else; the cap of a month's hours is left out. For five seconds a machine is `pending` and for
//! five more locked; metal stays `pending` until it runs, and is locked for these ten seconds. One
//! whose host is lost, or that was never installed, is `suspended`. A machine that is being deleted
//! is `active`, `stopped` and `locked` until it is gone. Without money an order is a 403. An id that
//! is no UUID is a 400. Null in a body is what is not given, as Vultr's client for Go sends it. A list takes `per_page` from 1 to 500. A VPC that `enable_vpc` makes costs
//! nothing and stays out of sight. Prices and stock are examples.

mod catalogue;
mod machines;
mod orders;
mod texts;

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use self::texts::{KEY, SCRIPT};
use crate::core::billing::Billing;
use crate::core::cloud::Effect::{Change, Create, Delete};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::rest::pages::PageSize;
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route, by_cursor};
use crate::core::world::World;

/// The simulated Vultr.
#[derive(Clone, Copy, Debug)]
pub struct Vultr;

const PAGE_SIZE: PageSize = PageSize {
    parameter: "per_page",
    usual: 100,
    most: 500,
};

/// A page of a list whose items each have a key to remember in a cursor.
fn listed(visit: &Visit<'_>, name: &str, items: Vec<(String, Value)>) -> Result<Answer, Refusal> {
    let page = by_cursor(visit, PAGE_SIZE, items)?;
    let meta = json!({ "total": page.total, "links": { "next": page.next, "prev": page.previous } });
    Ok(Answer::json(200, &json!({ name: page.items, "meta": meta })))
}

/// An id of the path or the body.
fn uuid(what: &str, id: &str) -> Result<(), Refusal> {
    let groups: Vec<usize> = id.split('-').map(str::len).collect();
    let digits = id
        .chars()
        .all(|letter| letter == '-' || letter.is_ascii_hexdigit());
    if digits && groups == [8, 4, 4, 4, 12] {
        return Ok(());
    }
    Err(Refusal::Bad(format!("Invalid {what} ID format.")))
}

fn missing(what: &str) -> Refusal {
    Refusal::NotFound(what.to_owned())
}

/// A time as Vultr writes it.
fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}

const INVALID_KEY: Problem = Problem(401, "", "Invalid API token.");

impl RestApi for Vultr {
    const NAME: &'static str = "vultr";
    const DESCRIPTION: &'static str = "vultr.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/v2/account", "account.get", |_, visit, _| Ok(catalogue::account(visit))),
        Route::get("/v2/regions", "regions.list", |_, visit, _| catalogue::regions(visit)).open(),
        Route::get("/v2/regions/{id}/availability", "availability.get", |_, visit, id| catalogue::stock(visit, id)).open(),
        Route::get("/v2/plans", "plans.list", |_, visit, _| catalogue::plans(visit, "plans")).open(),
        Route::get("/v2/plans-metal", "metal-plans.list", |_, visit, _| catalogue::plans(visit, "plans_metal")).open(),
        Route::get("/v2/os", "os.list", |_, visit, _| catalogue::systems(visit)).open(),
        Route::get("/v2/ssh-keys", "keys.list", |_, visit, _| texts::list(visit, KEY)),
        Route::get("/v2/ssh-keys/{id}", "keys.get", |_, visit, id| texts::get(visit, KEY, id)),
        Route::new("POST", "/v2/ssh-keys", "keys.create", Change, |_, visit, _| texts::create_key(visit)).takes::<texts::NewKey>(),
        Route::new("DELETE", "/v2/ssh-keys/{id}", "keys.delete", Change, |_, visit, id| texts::delete(visit, KEY, id)),
        Route::get("/v2/startup-scripts", "scripts.list", |_, visit, _| texts::list(visit, SCRIPT)),
        Route::get("/v2/startup-scripts/{id}", "scripts.get", |_, visit, id| texts::get(visit, SCRIPT, id)),
        Route::new("POST", "/v2/startup-scripts", "scripts.create", Change, |_, visit, _| texts::create_script(visit)).takes::<texts::NewScript>(),
        Route::new("DELETE", "/v2/startup-scripts/{id}", "scripts.delete", Change, |_, visit, id| texts::delete(visit, SCRIPT, id)),
        Route::get("/v2/instances", "instances.list", |_, visit, _| machines::list(visit)),
        Route::get("/v2/instances/{id}", "instances.get", |_, visit, id| machines::get(visit, id)),
        Route::new("POST", "/v2/instances", "instances.create", Create, |_, visit, _| orders::create(visit)).takes::<orders::Order>(),
        Route::new("DELETE", "/v2/instances/{id}", "instances.delete", Delete, |_, visit, id| machines::delete(visit, id)),
        Route::new("POST", "/v2/instances/{id}/halt", "instances.halt", Delete, |_, visit, id| machines::halt(visit, id)),
        Route::new("POST", "/v2/instances/{id}/start", "instances.start", Change, |_, visit, id| machines::start(visit, id)),
        Route::get("/v2/bare-metals", "metals.list", |_, visit, _| machines::list(visit)),
        Route::get("/v2/bare-metals/{id}", "metals.get", |_, visit, id| machines::get(visit, id)),
        Route::new("POST", "/v2/bare-metals", "metals.create", Create, |_, visit, _| orders::create(visit)).takes::<orders::Order>(),
        Route::new("DELETE", "/v2/bare-metals/{id}", "metals.delete", Delete, |_, visit, id| machines::delete(visit, id)),
        Route::new("POST", "/v2/bare-metals/{id}/halt", "metals.halt", Delete, |_, visit, id| machines::halt(visit, id)),
        Route::new("POST", "/v2/bare-metals/{id}/start", "metals.start", Change, |_, visit, id| machines::start(visit, id)),
    ];
    #[rustfmt::skip]
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("this call of machines", &["/v2/instances", "/v2/bare-metals"]),
        ("changes of keys and scripts", &["/v2/ssh-keys", "/v2/startup-scripts"]),
        ("applications", &["/v2/applications"]),
        ("storage", &["/v2/backups", "/v2/blocks", "/v2/iso", "/v2/object-storage", "/v2/snapshots"]),
        ("firewalls", &["/v2/firewalls"]),
        ("networks", &["/v2/domains", "/v2/load-balancers", "/v2/private-networks", "/v2/reserved-ips", "/v2/vpcs"]),
        ("Kubernetes clusters", &["/v2/kubernetes"]),
        ("bills and users", &["/v2/billing", "/v2/users"]),
    ];
    const NULL_IS_ABSENT: bool = true;
    #[rustfmt::skip]
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("app_id", "", "applications by number"),
        ("app_variables", "", "applications by number"),
        ("attach_private_network", "", "private networks by their id"),
        ("attach_vpc", "", "VPCs by their id"),
        ("backups", "disabled", "backups"),
        ("block_devices", "", "block storage"),
        ("ddos_protection", "", "DDoS protection"),
        ("disable_public_ipv4", "", "machines without an address"),
        ("firewall_group_id", "", "firewall groups"),
        ("ipxe_chain_url", "", "iPXE"),
        ("iso_id", "", "ISO images"),
        ("mdisk_mode", "", "modes of disks"),
        ("persistent_pxe", "", "iPXE"),
        ("reserved_ipv4", "", "reserved addresses"),
        ("snapshot_id", "", "snapshots"),
        ("user_scheme", "root", "users other than root"),
        ("vpc_only", "", "machines without an address"),
    ];
    const LIMITS: &'static [Limit] = &[Limit {
        calls: "*",
        most: 30,
        seconds: 1,
        per: Per::Address,
    }];
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "", "Rate limit exceeded."),
        server: Problem(500, "", "Internal server error."),
        no_capacity: Problem(400, "", "Plan is not available in the selected region."),
        quota: Problem(
            400,
            "",
            "You have reached the maximum number of {} for this account.",
        ),
        funds: Problem(
            403,
            "",
            "Your account has insufficient funds; please add to your balance.",
        ),
        unauthorized: INVALID_KEY,
        expired: INVALID_KEY,
        forbidden: Problem(403, "", "This IP address is not allowed to use this API key."),
        invalid: Problem(400, "", "{}"),
        not_found: Problem(404, "", "Invalid {} ID."),
        unknown_call: Problem(404, "", "Invalid API path."),
    };
    const UNDESCRIBED: &'static [u16] = &[400, 401, 403, 404, 429];

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_hours(1),
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    /// Vultr has no codes but that of what is not simulated.
    fn problem(status: u16, code: &str, text: &str) -> Answer {
        let mut body = json!({ "error": text, "status": status });
        if !code.is_empty() {
            body["code"] = code.into();
        }
        Answer::json(status, &body)
    }
}
