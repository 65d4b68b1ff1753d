//! Lambda Cloud: REST with one key, virtual machines, on demand only.
//!
//! Written from `providers/lambda.md` and the description `lambda.json`. Where what is done
//! here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the key as bearer, or as the user of basic authentication | [`key_of`] |
//! | answers in `{"data"}`, failures in `{"error": {"code", "message"}}` | [`data`], [`problem`] |
//! | types are a map; the price is in cents for the whole machine; an empty list of regions is sold out | `catalogue.rs` |
//! | images differ by region, their families do not | `catalogue.rs` |
//! | launch takes one machine, exactly one key by its name, and cloud-init data in plain text; no token | `instances.rs` |
//! | a shortage is a 400 with a code of its own; so is a quota | [`Lambda::refuse`] |
//! | statuses; the address comes when it is active; unhealthy is still billed | `instances.rs` |
//! | terminate names what it ended; an unknown id is 404, and one bad id fails the call | `instances.rs` |
//! | no pages, no filters; no start and stop | `instances.rs` |
//! | a key of a name that is there is refused; without a text Lambda makes a pair | `keys.rs` |
//! | one call a second, one launch in twelve; 429 without a time | [`Lambda::limit`] |
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
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use jiff::SignedDuration;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::core::account::AccountId;
use crate::core::billing::Billing;
use crate::core::cloud::{Call, Cloud, Effect, Refusal, Visit, holder};
use crate::core::description::Description;
use crate::core::http::{Answer, Request};
use crate::core::limits::Intervals;
use crate::core::machine::Cause;
use crate::core::world::{Happening, World};

/// The simulated Lambda.
pub struct Lambda {
    description: Option<Arc<Description>>,
    intervals: Intervals,
    rate_limits: bool,
}

impl Lambda {
    /// Lambda with its rate limits.
    pub fn new() -> Self {
        Self {
            description: Description::load("lambda.json"),
            intervals: Intervals::default(),
            rate_limits: true,
        }
    }
}

impl Default for Lambda {
    fn default() -> Self {
        Self::new()
    }
}

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

/// A list in an answer, cut short when a fault says so.
fn list(visit: &Visit<'_>, mut items: Vec<Value>) -> Answer {
    if let Some(keep) = visit.keep {
        items.truncate(keep);
    }
    data(&Value::Array(items))
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

/// The body as one of our strict types.
fn given<T: DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    body(request).map_err(Refusal::Bad)
}

fn body<T: DeserializeOwned>(request: &Request) -> Result<T, String> {
    let described = as_described(request);
    serde_json::from_slice(&described.body).map_err(|error| format!("the body: {error}"))
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

/// All calls.
const CALLS: [Call; 10] = [
    Call::new("types.list", Effect::Read),
    Call::new("regions.list", Effect::Read),
    Call::new("images.list", Effect::Read),
    Call::new("instances.list", Effect::Read),
    Call::new("instances.get", Effect::Read),
    Call::new("instances.create", Effect::Create),
    Call::new("instances.delete", Effect::Delete),
    Call::new("keys.list", Effect::Read),
    Call::new("keys.create", Effect::Change),
    Call::new("keys.delete", Effect::Change),
];

impl Cloud for Lambda {
    fn name(&self) -> &'static str {
        "lambda"
    }

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_mins(1),
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn calls(&self) -> Vec<Call> {
        CALLS.to_vec()
    }

    fn recognise(&self, request: &Request) -> Option<Call> {
        let segments = request.segments();
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let ["api", "v1", rest @ ..] = parts.as_slice() else {
            return None;
        };
        let name = match (request.method.as_str(), rest) {
            ("GET", ["instance-types"]) => "types.list",
            ("GET", ["regions"]) => "regions.list",
            ("GET", ["images"]) => "images.list",
            ("GET", ["instances"]) => "instances.list",
            ("GET", ["instances", _]) => "instances.get",
            ("POST", ["instance-operations", "launch"]) => "instances.create",
            ("POST", ["instance-operations", "terminate"]) => "instances.delete",
            ("GET", ["ssh-keys"]) => "keys.list",
            ("POST", ["ssh-keys"]) => "keys.create",
            ("DELETE", ["ssh-keys", _]) => "keys.delete",
            _ => return None,
        };
        CALLS.into_iter().find(|call| call.name == name)
    }

    fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        let strict = match call.name {
            "instances.create" => body::<instances::Launch>(request).map(drop),
            "instances.delete" => body::<instances::Terminate>(request).map(drop),
            "keys.create" => body::<keys::Add>(request).map(drop),
            _ => Ok(()),
        };
        let mut wrong: Vec<String> = strict.err().into_iter().collect();
        if let Some(description) = &self.description {
            wrong.extend(description.check(&as_described(request)));
        }
        wrong
    }

    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        _call: &Call,
    ) -> Result<Option<AccountId>, Refusal> {
        holder(world, key_of(request).as_deref()).map(Some)
    }

    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        if !self.rate_limits {
            return Ok(());
        }
        let (now, account) = (visit.now(), &visit.account);
        let mut least = |key: String, seconds| {
            let least = SignedDuration::from_secs(seconds);
            let called = self.intervals.call(&key, least, now);
            called.map_err(|_| Refusal::TooMany { retry_after: None })
        };
        if visit.call.name == "instances.create" {
            least(format!("{account} launch"), 12)?;
        }
        least(account.clone(), 1)
    }

    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let id = visit.request.segments().get(3).cloned().unwrap_or_default();
        match visit.call.name {
            "types.list" => Ok(catalogue::types(visit)),
            "regions.list" => Ok(catalogue::regions(visit)),
            "images.list" => Ok(catalogue::images(visit)),
            "instances.list" => Ok(instances::list_all(visit)),
            "instances.get" => instances::get(visit, &id),
            "instances.create" => instances::launch(visit),
            "instances.delete" => instances::terminate(visit),
            "keys.list" => Ok(keys::list_all(visit)),
            "keys.create" => keys::create(visit),
            "keys.delete" => keys::delete(visit, &id),
            _ => Err(Refusal::UnknownCall),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, _request: &Request, call: Option<&Call>) -> Answer {
        let invalid = "global/invalid-parameters";
        // Only looking at instances knows a right that is missing.
        let rights = call.is_some_and(|call| matches!(call.name, "instances.list" | "instances.get"));
        match refusal {
            Refusal::TooMany { retry_after } => {
                let answer = problem(429, "global/too-many-requests", "Too many requests.");
                match retry_after {
                    Some(seconds) => answer.with("retry-after", seconds.to_string()),
                    None => answer,
                }
            }
            Refusal::Server(status) => {
                problem(*status, "global/internal-error", "An internal error occurred.")
            }
            Refusal::NoCapacity => problem(
                400,
                "instance-operations/launch/insufficient-capacity",
                "Not enough capacity to fulfill launch request.",
            ),
            Refusal::Quota(what) => {
                problem(400, "global/quota-exceeded", &format!("Quota exceeded: {what}."))
            }
            Refusal::Funds => problem(403, "global/invalid-address", "Your billing address is invalid."),
            Refusal::Unauthorized | Refusal::Expired => problem(
                401,
                "global/invalid-api-key",
                "API key was invalid, expired, or deleted.",
            ),
            Refusal::Forbidden if rights => problem(403, "global/forbidden", "You do not have access."),
            Refusal::Forbidden => problem(403, "global/account-inactive", "Your account is inactive."),
            Refusal::Invalid(what) => problem(400, invalid, &what.join("; ")),
            Refusal::Bad(what) => problem(400, invalid, what),
            Refusal::NotFound(what) => problem(404, "global/object-does-not-exist", what),
            Refusal::UnknownCall => problem(404, "global/not-found", "Unknown path."),
            Refusal::Answer(answer) => answer.clone(),
        }
    }

    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        // The description has no 429, though Lambda answers it.
        self.description
            .as_ref()
            .filter(|_| answer.status != 429)
            .map(|description| description.check_answer(request, answer))
            .unwrap_or_default()
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::Reclaimed(id) => world.end(id, Cause::Reclaimed, SignedDuration::ZERO),
            Happening::HaltedItself(id) => world.halt(id, Cause::Itself),
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::Running(_)
            | Happening::BootFailed(_)
            | Happening::Noticed(_)
            | Happening::Ended(_)
            | Happening::Reminder(_) => {}
        }
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        (name == "rate-limits").then(|| {
            self.rate_limits = body
                .get("on")
                .and_then(Value::as_bool)
                .ok_or("give {\"on\": true|false}")?;
            Ok(json!({"on": self.rate_limits}))
        })
    }
}
