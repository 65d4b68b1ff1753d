//! Verda: REST with OAuth2, virtual machines with root, a start-up script by id.
//!
//! Written from `providers/verda.md` and the description `verda.derived.json`, which is a
//! transcript of a part of what Verda publishes; what it leaves out of volumes is from the
//! published one and checked by our own types alone. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | token by client id and secret in JSON, an hour long, refresh token; 401 "Invalid client id or client secret" | `tokens.rs` |
//! | instance types without credentials, prices as text; stock by location, spot apart | `catalogue.rs` |
//! | create answers 202 with the id alone, quoted or bare; 503 "No capacity available"; no idempotency | `instances.rs` |
//! | an image by its name or id, or a detached OS volume in its place | `instances.rs` |
//! | statuses; `offline` still charged; accepted and then `no_capacity` | `instances.rs` |
//! | a provisioning instance cannot be deleted; 202, 204, 207; texts of what is gone | `actions.rs` |
//! | delete leaves volumes unless told; trash for 96 h; `delete_permanently` only with `volume_ids` | `actions.rs`, `volumes.rs` |
//! | `hibernate` discontinues what is shut down; there is no action `restore` | `actions.rs` |
//! | spot ends without a word as `discontinued`, its volume as `on_spot_discontinue` says | `instances.rs`, `volumes.rs` |
//! | volumes are made, attached to what is shut down, renamed, enlarged, cloned, deleted, restored; no more HDD | `storage.rs` |
//! | a month of a GB of NVMe is 0.2 USD of 730 hours | `catalogue.rs`, `volumes.rs` |
//! | ids of keys and scripts as text; scripts paged, newest first, at most 100; MD5 fingerprints | `keys.rs` |
//! | what Verda's own clients send and our transcript lacks; what Verda has and we do not | `calls.rs` |
//! | tags are lower-cased, ten at most, the same pair has one id; filter of the list; 409 for one that is there | `tags.rs` |
//! | 60 calls a minute for each method and path (instances and volumes lists 120), 500 in all; `Retry-After` | [`Verda::limit`] |
//!
//! Verda's own Python client judges it in `tests/sdk.rs`.
//!
//! Quotas of an account: `instances`; `volumes` and their gigabytes, `storage`, with what is in the
//! trash. `POST /_sim/cloud/rate-limits {"on": false}` lifts the limits.
//! Answers have the forms that Verda's own clients need: ids as bare text, one key or script as a
//! list of one, texts in the list of scripts, a list of the ids of clones. `POST /_sim/cloud/answers
//! {"mixed": true}` gives the others that the description allows too, by chance.
//!
//! Assumed, since no fact says it: a quota of instances answers 403 `forbidden_action`, one of
//! volumes 400; an instance costs from its order until it is discontinued; after ten minutes of
//! provisioning `delete` works; the trash is free. A volume costs from its order, and one that was
//! ordered with an instance from when that has left it; Verda's own command line counts those beside
//! the instance from the beginning, as `POST /_sim/cloud/storage {"apart": true}` makes it here.

mod actions;
mod calls;
mod catalogue;
mod instances;
mod keys;
mod storage;
mod tags;
mod tokens;
mod volumes;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Method;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::core::account::AccountId;
use crate::core::billing::Billing;
use crate::core::cloud::{Call, Cloud, Refusal, Visit};
use crate::core::description::Description;
use crate::core::http::{Answer, Request};
use crate::core::limits::Windows;
use crate::core::machine::Cause;
use crate::core::world::{Happening, World};

/// The simulated Verda.
pub struct Verda {
    description: Option<Arc<Description>>,
    tokens: tokens::Tokens,
    instances: BTreeMap<String, instances::Extra>,
    volumes: BTreeMap<String, volumes::Volume>,
    tags: tags::Known,
    /// Whether volumes that came with an instance cost beside it.
    storage_apart: bool,
    windows: Windows,
    rate_limits: bool,
    /// Whether answers come in any form that the description allows, by chance.
    mixed: bool,
    /// The limit of the path that was called, and what is left of it.
    room: Option<(usize, usize)>,
}

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// Calls of all paths in a minute.
const PROJECT: usize = 500;

impl Verda {
    /// Verda with its rate limits.
    pub fn new() -> Self {
        Self {
            description: Description::load("verda.derived.json"),
            tokens: tokens::Tokens::default(),
            instances: BTreeMap::new(),
            volumes: BTreeMap::new(),
            tags: tags::Known::new(),
            storage_apart: false,
            windows: Windows::default(),
            rate_limits: true,
            mixed: false,
            room: None,
        }
    }

    /// Verda for a customer whose limits were lifted.
    #[must_use]
    pub fn without_rate_limits(mut self) -> Self {
        self.rate_limits = false;
        self
    }
}

impl Default for Verda {
    fn default() -> Self {
        Self::new()
    }
}

/// The error body of every call.
fn error(status: u16, code: &str, message: impl Into<String>) -> Answer {
    Answer::json(status, &json!({"code": code, "message": message.into()}))
}

/// A list in an answer, cut short when a fault says so.
fn list(visit: &Visit<'_>, items: Vec<Value>) -> Answer {
    Answer::json(200, &Value::Array(visit.truncate(items)))
}

/// An id as an answer: the bare characters; or JSON text, where answers are mixed.
fn id_alone(visit: &mut Visit<'_>, mixed: bool, status: u16, id: &str) -> Answer {
    if mixed && visit.world.chance.hits(0.5) {
        Answer::json(status, &Value::from(id))
    } else {
        Answer::new(status, "text/plain; charset=utf-8", id.to_owned())
    }
}

impl Cloud for Verda {
    fn name(&self) -> &'static str {
        "verda"
    }

    fn billing(&self) -> Billing {
        Billing::per_second()
    }

    fn furnish(&mut self, world: &mut World) {
        catalogue::furnish(world);
    }

    fn calls(&self) -> Vec<Call> {
        calls::ALL.to_vec()
    }

    fn recognise(&self, request: &Request) -> Option<Call> {
        calls::of(request)
    }

    fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        let mut wrong = wire::check(request, call);
        if let Some(description) = &self.description {
            let found = description.check(&calls::as_described(request));
            wrong.extend(
                found
                    .into_iter()
                    .filter(|what| !calls::is_untranscribed(call, what)),
            );
        }
        wrong
    }

    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        call: &Call,
    ) -> Result<Option<AccountId>, Refusal> {
        match call.name {
            "token" | "types.list" | "volume-types.list" | "periods.list" => Ok(None),
            _ => self.tokens.account(world, request.bearer()).map(Some),
        }
    }

    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        if !self.rate_limits {
            return Ok(());
        }
        let (account, path, method) = (&visit.account, &visit.request.path, &visit.request.method);
        let wide = method == Method::GET && matches!(visit.call.name, "instances.list" | "volumes.list");
        let limit = if wide { 120 } else { 60 };
        let now = visit.world.now();
        let too_many = |wait: SignedDuration| Refusal::TooMany {
            retry_after: Some(u32::try_from(wait.as_secs() + 1).unwrap_or(60)),
        };
        let key = format!("{account} {method} {path}");
        let left = self.windows.call(&key, limit, MINUTE, now).map_err(too_many)?;
        self.windows
            .call(&format!("{account} project"), PROJECT, MINUTE, now)
            .map_err(too_many)?;
        self.room = Some((limit, left));
        Ok(())
    }

    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let segments = visit.request.segments();
        let id = segments.get(2).cloned().unwrap_or_default();
        match visit.call.name {
            "token" => self.tokens.issue(visit),
            "types.list" => Ok(catalogue::types(visit)),
            "availability.list" => Ok(catalogue::availability(visit)),
            "availability.get" => catalogue::available(visit, &id),
            "locations.list" => Ok(catalogue::locations(visit)),
            "images.list" => catalogue::images(visit),
            "balance.get" => Ok(catalogue::balance(visit)),
            "periods.list" => Ok(catalogue::periods(visit)),
            "instances.list" => Ok(self.list_instances(visit)),
            "instances.get" => self.get_instance(visit, &id),
            "instances.create" => self.create_instance(visit),
            "instances.delete" | "instances.action" => self.act(visit),
            "tags.add" => self.add_tag(visit, &id),
            "tags.remove" => {
                let tag = segments.get(4).cloned().unwrap_or_default();
                self.remove_tag(visit, &id, &tag)
            }
            "keys.list" => Ok(keys::list(visit, keys::KEY)),
            "keys.get" => keys::get(visit, self.mixed, keys::KEY, &id),
            "keys.create" => keys::create_key(visit, self.mixed),
            "keys.delete" => keys::delete(visit, keys::KEY, &id),
            "scripts.list" => Ok(keys::list_scripts(visit, self.mixed)),
            "scripts.get" => keys::get(visit, self.mixed, keys::SCRIPT, &id),
            "scripts.create" => keys::create_script(visit, self.mixed),
            "scripts.delete" => keys::delete(visit, keys::SCRIPT, &id),
            "volume-types.list" => Ok(catalogue::volume_types(visit)),
            "volumes.list" => Ok(self.list_volumes(visit)),
            "volumes.create" => self.create_volume(visit),
            "volumes.action" => self.act_on_volumes(visit),
            "volumes.trash" => Ok(self.list_trash(visit)),
            "volumes.get" => self.get_volume(visit, &id),
            "volumes.delete" => self.delete_volume(visit, &id),
            "volume-tags.add" => self.add_volume_tag(visit, &id),
            "volume-tags.remove" => {
                let tag = segments.get(4).cloned().unwrap_or_default();
                self.remove_volume_tag(visit, &id, &tag)
            }
            _ => Err(Refusal::UnknownCall),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, request: &Request, _call: Option<&Call>) -> Answer {
        match refusal {
            Refusal::TooMany { retry_after } => {
                let answer = error(429, "rate_limit_exceeded", "Too many requests, try again later");
                answer.with("retry-after", retry_after.unwrap_or(1).to_string())
            }
            Refusal::Server(503) => error(503, "service_unavailable", "Service temporarily unavailable"),
            Refusal::Server(status) => error(*status, "server_error", "An internal error occurred"),
            Refusal::NoCapacity => error(503, "service_unavailable", "No capacity available"),
            Refusal::Quota(what) => error(403, "forbidden_action", format!("Quota exceeded: {what}")),
            Refusal::Funds => error(402, "insufficient_funds", "Insufficient funds"),
            Refusal::Unauthorized => error(401, "unauthorized_request", "Access token is missing or invalid"),
            Refusal::Expired => error(401, "unauthorized_request", "Access token expired"),
            Refusal::Forbidden => error(403, "forbidden_action", "Insufficient scope"),
            Refusal::Invalid(what) => error(400, "invalid_request", what.join("; ")),
            Refusal::Bad(what) => error(400, "invalid_request", what.clone()),
            Refusal::NotFound(what) => error(404, "not_found", what.clone()),
            Refusal::UnknownCall => match calls::outside(request) {
                Some(what) => error(
                    501,
                    "not_simulated",
                    format!("This is a simulator, without {what}"),
                ),
                None => error(404, "not_found", "Cannot find this path"),
            },
            Refusal::Answer(answer) => answer.clone(),
        }
    }

    fn finish(&mut self, _world: &World, _request: &Request, answer: &mut Answer) {
        if let Some((limit, left)) = self.room.take() {
            let policy = format!("\"path\";q={limit};w=60, \"project\";q={PROJECT};w=60");
            answer.headers.push(("ratelimit-policy".to_owned(), policy));
            answer
                .headers
                .push(("ratelimit".to_owned(), format!("\"path\";r={left};t=60")));
        }
    }

    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        self.description
            .as_ref()
            .map(|description| description.check_answer(&calls::as_described(request), answer))
            .unwrap_or_default()
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::Reclaimed(id) => {
                world.end(id, Cause::Reclaimed, SignedDuration::ZERO);
                self.after_discontinue(world, id);
            }
            Happening::HaltedItself(id) => world.halt(id, Cause::Itself),
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::BootFailed(id) => {
                if world
                    .machines
                    .get(id)
                    .is_some_and(|machine| machine.cause == Some(Cause::NoCapacity))
                {
                    // It never had a machine under it.
                    world.waive(id);
                }
            }
            Happening::Reminder(what) => {
                if let Some(volume) = what.strip_prefix("trash ") {
                    self.empty_trash(world, volume);
                }
            }
            Happening::Running(_) | Happening::Noticed(_) | Happening::Ended(_) => {}
        }
    }

    fn control(&mut self, _world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        let (setting, word) = match name {
            "rate-limits" => (&mut self.rate_limits, "on"),
            "answers" => (&mut self.mixed, "mixed"),
            "storage" => (&mut self.storage_apart, "apart"),
            _ => return None,
        };
        let Some(given) = body.get(word).and_then(Value::as_bool) else {
            return Some(Err(format!("give {{\"{word}\": true|false}}")));
        };
        *setting = given;
        Some(Ok(json!({ word: given })))
    }
}
