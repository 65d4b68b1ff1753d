//! Google Cloud: Compute Engine v1, with operations for all that changes something, on demand and spot.
//!
//! Written from `providers/gcp.md` and the description `gcp-compute.json`. Google's own Python client judges it
//! in `tests/sdk.rs`. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | service accounts sign a JWT with RS256 for a token of an hour, or send it as their token; refresh tokens; workload identity federation; the metadata server of the operator's node (control `metadata`) | `tokens.rs` |
//! | addresses in answers are those of `www.googleapis.com`, times have an offset, numbers of 64 bits are texts, an empty list has no `items` | [`url`], [`date`], `lists.rs` |
//! | lists have a filter, at most 500 items a page, and a warning for each zone without one or that cannot be reached (control `zones`) | `filter.rs`, `lists.rs` |
//! | a call that changes something answers an operation, whose failure is in it and no status; the call to wait may return early, and here does so at once | `operations.rs` |
//! | a `requestId` that was seen in the last hour is answered with the operation of then, also of one that failed | `operations.rs` |
//! | no shelf has what was ordered: the operation fails and the instance that could be seen goes (googleapis/nodejs-compute#377, cloud-barista/cb-spider#1186); the control `answers` makes that a 503 at once | `orders.rs` |
//! | a quota of a region is refused at once, or by the operation as one of the project (control `answers`) | `orders.rs` |
//! | a 403 is a quota, a rate or a right; `errors[].reason` says which, and the message names the right (control `permissions`) | [`Gcp::refuse_by`], `rights.rs` |
//! | names are unique in a zone (409); calls take name or id; orders want URLs and no bare names | `orders.rs`, `instances.rs` |
//! | accelerators are attached to N1 alone; machines with GPUs cannot migrate, spot ones do not restart; small A3 are sold as spot alone; A3 Ultra, A4 and C4A want hyperdisks | `orders.rs` |
//! | OS Login is on in the project: the keys of an instance count where it turns that off | `orders.rs` |
//! | drivers are on images that have them; an image that was retired is no member of its family (control `images`) | `catalogue.rs` |
//! | TERMINATED is stopped: the disk costs on; disks without `autoDelete` stay | `instances.rs`, `disks.rs` |
//! | a spot instance that is taken back is STOPPING, then TERMINATED or gone, and `compute.instances.preempted` is among the operations of its zone; the guest finds it at its metadata service | [`Gcp::happened`], `metadata.rs` |
//!
//! Quotas of an account, whose id is its project: `instances`, `GPUS_ALL_REGIONS`, and the metrics of regions such as
//! `NVIDIA_L4_GPUS` and `PREEMPTIBLE_NVIDIA_L4_GPUS`, for all regions or as `us-central1 NVIDIA_L4_GPUS` for one.
//!
//! Not verified, since no fact says it: an instance costs while it is RUNNING, by the second and at least a minute,
//! disks from order to end, addresses while their instance runs (the control `instances` with `{"alone": true}` takes
//! disks and addresses off the bill); the rights beside the one of the call itself. Assumed: the times that states
//! and operations last; an address is there two seconds after RUNNING; a firewall that was just made is not ready; a
//! `requestId` of another request is refused; an instance whose host is lost is repaired where it has
//! `automaticRestart`, else TERMINATED; 1500 calls that read and 600 others in a minute. Prices, stock, images and the
//! network `research` are examples. Firewalls keep nobody out.

mod catalogue;
mod disks;
mod filter;
mod instances;
mod lists;
mod metadata;
mod networks;
mod operations;
mod orders;
mod rights;
mod tokens;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::tz::{TimeZone, offset};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use self::operations::Operations;
use self::tokens::Tokens;
pub use self::tokens::{account, key_file};
use crate::core::account::AccountId;
use crate::core::billing::{Billing, Halted};
use crate::core::cloud::Effect::{Change, Create, Delete, Read};
use crate::core::cloud::{Call, Refusal, Visit, holder};
use crate::core::http::{Answer, Request};
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route, bad};
use crate::core::world::{Happening, World};

/// The simulated Google Cloud.
#[derive(Debug, Default)]
pub struct Gcp {
    tokens: Tokens,
    operations: Operations,
    /// The rights that accounts lack.
    lacking: BTreeSet<(AccountId, String)>,
    /// The zones that aggregated lists cannot reach.
    unreachable: BTreeSet<String>,
    /// The families whose images were retired.
    retired: BTreeSet<String>,
    /// The account of the operator's node, where the node has a metadata server.
    node: Option<AccountId>,
    /// Whether a shortage is told at once, with a status.
    short_at_once: bool,
    /// Whether a quota of a region is told by the operation, as one of the project is.
    quota_late: bool,
    /// Whether an instance that is being deleted is not ready for another deletion.
    busy: bool,
    /// Whether the meter leaves disks and addresses out.
    instances_alone: bool,
    /// The time of the request in hand, for refusals.
    now: Timestamp,
}

/// An address as answers have it.
fn url(path: &str) -> String {
    format!("https://www.googleapis.com/compute/v1/{path}")
}

/// A path as requests may give it: with the address before it or without.
fn path(given: &str) -> &str {
    let parts = given.split_once("/compute/v1/");
    parts.map_or(given, |(_, path)| path)
}

/// A time as Google writes it.
fn date(time: Timestamp) -> String {
    let pacific = time.to_zoned(TimeZone::fixed(offset(-8)));
    pacific.strftime("%Y-%m-%dT%H:%M:%S.%3f%:z").to_string()
}

fn missing(what: &str) -> Refusal {
    Refusal::NotFound(what.to_owned())
}

/// A refusal with a reason of its own.
fn refused<T>(status: u16, reason: &str, text: &str) -> Result<T, Refusal> {
    Err(Refusal::Answer(Gcp::problem(status, reason, text)))
}

/// A field of a body that is not as it should be.
fn invalid<T>(field: &str, why: &str) -> Result<T, Refusal> {
    let text = format!("Invalid value for field 'resource.{field}': {why}");
    Err(Refusal::Bad(text))
}

/// The path of what a request names, from its project on.
fn target(request: &Request) -> String {
    request.segments().get(2..).unwrap_or_default().join("/")
}

/// A moment so long after another one.
fn after(moment: Timestamp, time: SignedDuration) -> Timestamp {
    moment.saturating_add(time).unwrap_or(moment)
}

/// Refuses what breaks one of these rules: whether it is broken, the field, and the text.
fn check(rules: &[(bool, &str, &str)]) -> Result<(), Refusal> {
    match rules.iter().find(|(is_broken, ..)| *is_broken) {
        Some((_, "", why)) => bad(why),
        Some((_, field, why)) => invalid(field, why),
        None => Ok(()),
    }
}

/// Fields, with the usual values of those that are not given.
fn with_usual<'a>(mut given: Value, usual: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    for (name, value) in usual {
        if given[name].is_null() {
            given[name] = value;
        }
    }
    given
}

/// The zone of a call, if it has one. Its project, the rights to the call and the zone are checked, and whether it
/// is a call that was answered already. Calls about images, which are those of other projects, need none of this.
fn enter(api: &Gcp, visit: &Visit<'_>) -> Result<String, Refusal> {
    operations::is_new(api, visit)?;
    let segments = visit.request.segments();
    let rights = rights::of(visit.call.name);
    if segments.get(3) != Some(&visit.account) {
        return Err(rights::lacks(rights, &target(visit.request)));
    }
    for right in rights {
        api.may(visit, right)?;
    }
    let place = segments.get(5).cloned().unwrap_or_default();
    let is_zone = segments.get(4).is_some_and(|part| part == "zones") && !place.is_empty();
    if is_zone && !visit.world.regions.contains(&place) {
        return Err(missing(&format!("projects/{}/zones/{place}", visit.account)));
    }
    Ok(place)
}

impl Gcp {
    /// Whether the account has a right.
    fn may(&self, visit: &Visit<'_>, right: &str) -> Result<(), Refusal> {
        if self.lacking.contains(&(visit.account.clone(), right.to_owned())) {
            return Err(rights::lacks(&[right], &target(visit.request)));
        }
        Ok(())
    }
}

/// The texts of a list in the body of a control.
fn texts(list: &Value) -> BTreeSet<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

const WRONG_KEY: Problem = Problem(401, "authError", "Invalid Credentials");

impl RestApi for Gcp {
    const NAME: &'static str = "gcp";
    const DESCRIPTION: &'static str = "gcp-compute.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::new("POST", "/token", "tokens.create", Read, |api, visit, _| tokens::grant(api, visit)).open(),
        Route::new("POST", "/v1/token", "tokens.create", Read, |api, visit, _| tokens::grant(api, visit)).open(),
        Route::get("/computeMetadata/v1/instance/service-accounts/default/token", "tokens.create", |api, visit, _| metadata::token(api, visit)).open(),
        Route::get("/computeMetadata/v1/project/project-id", "metadata.get", |api, visit, _| metadata::project(api, visit)).open(),
        Route::get("/_imds/{machine}/computeMetadata/v1/instance/{key}", "metadata.get", |_, visit, key| metadata::of_guest(visit, key)).open(),
        Route::get("/compute/v1/projects/{project}", "project.get", |api, visit, _| catalogue::project(api, visit)),
        Route::get("/compute/v1/projects/{project}/zones", "zones.list", |api, visit, _| catalogue::zones(api, visit)),
        Route::get("/compute/v1/projects/{project}/regions", "regions.list", |api, visit, _| catalogue::regions(api, visit)),
        Route::get("/compute/v1/projects/{project}/regions/{region}", "regions.get", catalogue::region),
        Route::get("/compute/v1/projects/{project}/zones/{zone}/machineTypes", "types.list", |api, visit, _| catalogue::types(api, visit)),
        Route::get("/compute/v1/projects/{project}/aggregated/machineTypes", "types.list", |api, visit, _| catalogue::types(api, visit)),
        Route::get("/compute/v1/projects/{project}/zones/{zone}/acceleratorTypes", "accelerators.list", |api, visit, _| catalogue::accelerators(api, visit)),
        Route::get("/compute/v1/projects/{project}/aggregated/acceleratorTypes", "accelerators.list", |api, visit, _| catalogue::accelerators(api, visit)),
        Route::get("/compute/v1/projects/{project}/global/images/family/{family}", "images.family", catalogue::one_image),
        Route::get("/compute/v1/projects/{project}/global/images/{image}", "images.get", catalogue::one_image),
        Route::get("/compute/v1/projects/{project}/global/networks/{network}", "networks.get", networks::network),
        Route::get("/compute/v1/projects/{project}/global/firewalls", "firewalls.list", |api, visit, _| networks::firewalls(api, visit)),
        Route::get("/compute/v1/projects/{project}/global/firewalls/{firewall}", "firewalls.get", networks::firewall),
        Route::new("POST", "/compute/v1/projects/{project}/global/firewalls", "firewalls.create", Change, |api, visit, _| networks::create(api, visit)).takes::<networks::Rule>(),
        Route::new("DELETE", "/compute/v1/projects/{project}/global/firewalls/{firewall}", "firewalls.delete", Change, networks::delete),
        Route::get("/compute/v1/projects/{project}/zones/{zone}/operations", "operations.list", |api, visit, _| operations::list_all(api, visit)),
        Route::get("/compute/v1/projects/{project}/zones/{zone}/operations/{operation}", "operations.get", operations::get),
        Route::new("POST", "/compute/v1/projects/{project}/zones/{zone}/operations/{operation}/wait", "operations.wait", Read, operations::get),
        Route::get("/compute/v1/projects/{project}/global/operations/{operation}", "global-operations.get", operations::get),
        Route::new("POST", "/compute/v1/projects/{project}/global/operations/{operation}/wait", "global-operations.wait", Read, operations::get),
        Route::get("/compute/v1/projects/{project}/aggregated/instances", "instances.list", |api, visit, _| instances::list(api, visit)),
        Route::get("/compute/v1/projects/{project}/zones/{zone}/instances", "instances.list", |api, visit, _| instances::list(api, visit)),
        Route::get("/compute/v1/projects/{project}/zones/{zone}/instances/{instance}", "instances.get", instances::get),
        Route::new("POST", "/compute/v1/projects/{project}/zones/{zone}/instances", "instances.create", Create, |api, visit, _| orders::create(api, visit)).takes::<orders::Order>(),
        Route::new("DELETE", "/compute/v1/projects/{project}/zones/{zone}/instances/{instance}", "instances.delete", Delete, instances::delete),
    ];
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] =
        &[("this call of Compute Engine", &["/compute/v1/projects"])];
    #[rustfmt::skip]
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("canIpForward", "", "forwarding"),
        ("confidentialInstanceConfig", "", "confidential instances"),
        ("deletionProtection", "", "protection from deletion"),
        ("denied", "", "rules that deny"),
        ("disabled", "", "rules that are off"),
        ("hostname", "", "names of hosts"),
        ("minCpuPlatform", "", "platforms of processors"),
        ("reservationAffinity", "", "reservations"),
        ("resourcePolicies", "", "resource policies"),
        ("shieldedInstanceConfig", "", "shielded instances"),
    ];
    #[rustfmt::skip]
    const LIMITS: &'static [Limit] = &[
        Limit { calls: "read", most: 1_500, seconds: 60, per: Per::Account },
        Limit { calls: "create", most: 600, seconds: 60, per: Per::Account },
        Limit { calls: "delete", most: 600, seconds: 60, per: Per::Account },
        Limit { calls: "change", most: 600, seconds: 60, per: Per::Account },
    ];
    const UNDESCRIBED_CALLS: &'static [&'static str] = &["tokens.create", "metadata.get"];
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(403, "rateLimitExceeded", "Rate Limit Exceeded"),
        server: Problem(500, "backendError", "Internal error. Please try again or contact Google Support."),
        no_capacity: Problem(503, "resourcesUnavailable", "The zone does not have enough resources available to fulfill the request. Try a different zone, or try again later."),
        quota: Problem(403, "quotaExceeded", "Quota '{}' exceeded. Limit: 0.0 in region us-central1."),
        funds: Problem(403, "billingNotEnabled", "This API method requires billing to be enabled. Please enable billing on the project."),
        unauthorized: WRONG_KEY,
        expired: WRONG_KEY,
        forbidden: Problem(403, "forbidden", "The caller does not have permission"),
        invalid: Problem(400, "invalid", "{}"),
        not_found: Problem(404, "notFound", "The resource '{}' was not found"),
        unknown_call: Problem(404, "notFound", "The requested URL was not found on this server."),
    };

    fn account(&mut self, world: &World, request: &Request) -> Result<AccountId, Refusal> {
        self.now = world.now();
        let credential = self.tokens.credential(world, request.bearer())?;
        holder(world, Some(&credential))
    }

    fn refuse_by(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Option<Answer> {
        let call = call?;
        if call.name == "tokens.create" {
            return Some(tokens::refusal(refusal));
        }
        match refusal {
            Refusal::Forbidden => Some(rights::denied(rights::of(call.name), &target(request))),
            Refusal::NoCapacity if call.effect == Create && !self.short_at_once => {
                Some(orders::short(self, request))
            }
            _ => None,
        }
    }

    fn billing(&self) -> Billing {
        Billing {
            minimum: SignedDuration::from_mins(1),
            pending: false,
            halted: Halted::Nothing,
            failed: false,
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        #[rustfmt::skip]
        let words = [
            (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"),
            (409, "ALREADY_EXISTS"), (503, "UNAVAILABLE"),
        ];
        let word = words.iter().find(|(known, _)| *known == status);
        let word = word.map_or("INTERNAL", |(_, word)| *word);
        let of_usage = ["quotaExceeded", "rateLimitExceeded", "accessNotConfigured"].contains(&code);
        let domain = if of_usage { "usageLimits" } else { "global" };
        let errors = json!([{ "message": text, "domain": domain, "reason": code }]);
        let error = json!({ "code": status, "message": text, "status": word, "errors": errors });
        Answer::json(status, &json!({ "error": error }))
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        instances::happened(self, world, happening);
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        match name {
            "permissions" => {
                let account = body["account"].as_str().unwrap_or_default().to_owned();
                self.lacking.retain(|(known, _)| *known != account);
                let lacking = texts(&body["lacks"]).into_iter();
                self.lacking.extend(lacking.map(|right| (account.clone(), right)));
            }
            "zones" => self.unreachable = texts(&body["unreachable"]),
            "images" => self.retired = texts(&body["retired"]),
            "metadata" => self.node = body["account"].as_str().map(str::to_owned),
            "answers" => {
                self.short_at_once = body["shortAtOnce"] == true;
                self.quota_late = body["quotaLate"] == true;
                self.busy = body["busy"] == true;
            }
            "instances" => self.instances_alone = body["alone"] == true,
            _ => return None,
        }
        Some(Ok(body.clone()))
    }
}
