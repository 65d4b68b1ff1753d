//! Lambda Cloud: REST with one key, virtual machines, on demand only.
//!
//! Written from `providers/lambda.md` and the description `lambda.json`. The facts it simulates,
//! and where:
//!
//! | fact | where |
//! | --- | --- |
//! | the key as bearer, or as the user of basic authentication | [`key_of`] |
//! | answers in `{"data"}`, failures in `{"error": {"code", "message"}}` | [`data`], [`problem`] |
//! | types are a map; the price is in cents for the whole machine; an empty list of regions is sold out | `catalogue.rs` |
//! | images differ by region, their families do not | `catalogue.rs` |
//! | launch takes one machine, exactly one key by its name, and cloud-init data in plain text; no token | `instances.rs` |
//! | a shortage is a 400 with a code of its own; so is a quota | [`Lambda::REFUSALS`] |
//! | statuses; the address comes when it is active; unhealthy is still billed | `instances.rs` |
//! | terminate names what it ended; an unknown id is 404, and one bad id fails the call | `instances.rs` |
//! | no pages, no filters; no start and stop | `instances.rs` |
//! | a key of a name that is there is refused; without a text Lambda makes a pair | `keys.rs` |
//! | one call a second, one launch in twelve; 429 without a time | [`Lambda::LIMITS`] |
//!
//! Quotas of an account: `instances`. `POST /_sim/cloud/rate-limits {"on": false}` lifts the limits.
//!
//! Assumed, since no fact says it: a machine is billed by the minute from its order; one that
//! halted itself is `unhealthy`; a terminated one is asked for by its id for an hour more, and
//! not listed; the body of a 429; what one must not do is `global/forbidden` where the
//! description has it, else `global/account-inactive`; without money it is `global/invalid-address`.

mod catalogue;
mod instances;
mod keys;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::core::billing::Billing;
use crate::core::cloud::{Call, Effect, Refusal, Visit};
use crate::core::http::{Answer, Request};
use crate::core::rest::{Limit, Per, Problem, Refusals, RestApi, Route};
use crate::core::world::World;

/// The simulated Lambda.
#[derive(Clone, Copy, Debug)]
pub struct Lambda;

/// An answer of success.
fn data(data: &Value) -> Answer {
    Answer::json(200, &json!({ "data": data }))
}

/// A failure.
fn problem(status: u16, code: &str, message: &str) -> Answer {
    let suggestion = "See the documentation, or contact Support.";
    let error = json!({"code": code, "message": message, "suggestion": suggestion});
    Answer::json(status, &json!({ "error": error }))
}

/// The refusal for what does not exist, with the status of that call.
fn unknown(status: u16, what: &str) -> Refusal {
    let message = format!("Specified {what} does not exist.");
    Refusal::Answer(problem(status, "global/object-does-not-exist", &message))
}

/// A list in an answer.
fn list(visit: &Visit<'_>, items: Vec<Value>) -> Answer {
    data(&Value::Array(visit.truncate(items)))
}

/// The key of a request: a bearer, or the user of basic authentication without a password,
/// which may also be written as it is.
fn key_of(request: &Request) -> Option<String> {
    if let Some(key) = request.bearer() {
        return Some(key.to_owned());
    }
    let given = request.header("authorization")?.strip_prefix("Basic ")?.trim();
    let decoded = STANDARD
        .decode(given)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let user = decoded.as_deref().and_then(|pair| pair.strip_suffix(':'));
    Some(user.unwrap_or(given).to_owned())
}

/// A request in the words of the description: without the `quantity` of older ones, which clients
/// go on to send and Lambda takes as long as it is one, and with the type that some leave out.
fn as_described(request: &Request) -> Cow<'_, Request> {
    let mut described = Cow::Borrowed(request);
    if let Ok(Value::Object(mut fields)) = request.json()
        && fields.get("quantity") == Some(&Value::from(1))
    {
        fields.remove("quantity");
        described.to_mut().body = Value::Object(fields).to_string().into();
    }
    if !request.body.is_empty() && request.header("content-type").is_none() {
        let json = HeaderValue::from_static("application/json");
        described.to_mut().headers.insert(CONTENT_TYPE, json);
    }
    described
}

impl RestApi for Lambda {
    const NAME: &'static str = "lambda";
    const DESCRIPTION: &'static str = "lambda.json";
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/api/v1/instance-types", "types.list", |_, visit, _| {
            Ok(catalogue::types(visit))
        }),
        Route::get("/api/v1/regions", "regions.list", |_, visit, _| {
            Ok(catalogue::regions(visit))
        }),
        Route::get("/api/v1/images", "images.list", |_, visit, _| {
            Ok(catalogue::images(visit))
        }),
        Route::get("/api/v1/instances", "instances.list", |_, visit, _| {
            Ok(instances::list_all(visit))
        }),
        Route::get("/api/v1/instances/{id}", "instances.get", |_, visit, id| {
            instances::get(visit, id)
        }),
        Route::new(
            "POST",
            "/api/v1/instance-operations/launch",
            "instances.create",
            Effect::Create,
            |_, visit, _| instances::launch(visit),
        )
        .takes::<instances::Launch>(),
        Route::new(
            "POST",
            "/api/v1/instance-operations/terminate",
            "instances.delete",
            Effect::Delete,
            |_, visit, _| instances::terminate(visit),
        )
        .takes::<instances::Terminate>(),
        Route::get("/api/v1/ssh-keys", "keys.list", |_, visit, _| {
            Ok(keys::list_all(visit))
        }),
        Route::new(
            "POST",
            "/api/v1/ssh-keys",
            "keys.create",
            Effect::Change,
            |_, visit, _| keys::create(visit),
        )
        .takes::<keys::Add>(),
        Route::new(
            "DELETE",
            "/api/v1/ssh-keys/{id}",
            "keys.delete",
            Effect::Change,
            |_, visit, id| keys::delete(visit, id),
        ),
    ];
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[
        ("audit events", &["/api/v1/audit-events"]),
        ("fabrics", &["/api/v1/fabric"]),
        ("filesystems", &["/api/v1/file-systems", "/api/v1/filesystems"]),
        (
            "firewalls",
            &["/api/v1/firewall-rules", "/api/v1/firewall-rulesets"],
        ),
        ("restarts", &["/api/v1/instance-operations/restart"]),
        ("changes of instances", &["/api/v1/instances"]),
        ("tickets", &["/api/v1/tickets"]),
    ];
    const LIMITS: &'static [Limit] = &[
        Limit {
            calls: "instances.create",
            most: 1,
            seconds: 12,
            per: Per::Account,
        },
        Limit {
            calls: "*",
            most: 1,
            seconds: 1,
            per: Per::Account,
        },
    ];
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "global/too-many-requests", "Too many requests."),
        server: Problem(500, "global/internal-error", "An internal error occurred."),
        no_capacity: Problem(
            400,
            "instance-operations/launch/insufficient-capacity",
            "Not enough capacity to fulfill launch request.",
        ),
        quota: Problem(400, "global/quota-exceeded", "Quota exceeded: {}."),
        funds: Problem(403, "global/invalid-address", "Your billing address is invalid."),
        unauthorized: INVALID_KEY,
        expired: INVALID_KEY,
        forbidden: Problem(403, "global/account-inactive", "Your account is inactive."),
        invalid: Problem(400, "global/invalid-parameters", "{}"),
        not_found: Problem(404, "global/object-does-not-exist", "{}"),
        unknown_call: Problem(404, "global/not-found", "Unknown path."),
    };
    const UNDESCRIBED: &'static [u16] = &[429];

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_mins(1),
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        problem(status, code, text)
    }

    fn key(&self, request: &Request) -> Option<String> {
        key_of(request)
    }

    fn as_described<'r>(&self, request: &'r Request) -> Cow<'r, Request> {
        as_described(request)
    }

    fn refuse(&mut self, refusal: &Refusal, _request: &Request, call: Option<&Call>) -> Option<Answer> {
        // Only looking at instances knows a right that is missing.
        let rights = call.is_some_and(|call| matches!(call.name, "instances.list" | "instances.get"));
        (rights && *refusal == Refusal::Forbidden)
            .then(|| problem(403, "global/forbidden", "You do not have access."))
    }
}

const INVALID_KEY: Problem = Problem(
    401,
    "global/invalid-api-key",
    "API key was invalid, expired, or deleted.",
);
