//! Massed Compute: REST with a token, virtual machines, on demand and as spot products.
//!
//! Written from `providers/massed_compute.md` and the description `massed_compute.derived.json`, which was
//! derived from documentation and is weaker than a description of the cloud's own. Massed Compute's own
//! Python program judges the simulator in `tests/sdk.rs`. Where what is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | the token as bearer; a token that is read-only reads and changes nothing: a credential in the state `forbidden` | [`MassedCompute::account`] |
//! | failures have a thin text and no code: a shortage, an unknown product and others are "Failed to launch instance" | [`MassedCompute::REFUSALS`] |
//! | 402 until a recharge amount and a threshold are set: an account without money | [`MassedCompute::REFUSALS`] |
//! | the inventory is a map by the name of a product; some names end with a blank; a spot offer is a product of its own | `catalogue.rs` |
//! | the price is of the whole instance, in cents an hour; the memory of a GPU is told nowhere | `catalogue.rs` |
//! | an image does not fit every product | `catalogue.rs` |
//! | one instance for each launch; the region is always `any`; keys by their names; a coupon that is unknown is ignored | `instances.rs` |
//! | no token, and no name is refused: a launch that is sent twice makes two instances | `instances.rs` |
//! | no tags: the name is the only mark | `instances.rs` |
//! | `runningInstances` holds all instances, or the one that is asked for; no pages | `instances.rs` |
//! | an unknown uuid is an empty list; it is a 404 by the control `answers` | [`instances::get`] |
//! | `Running` with `os_booted` 0 is not running yet | [`instances::status`] |
//! | the user `Ubuntu`, and a password in plain text | `instances.rs` |
//! | a termination is repeated while the instance is known; without any known uuid it is "No valid VMs found" | [`instances::terminate`] |
//! | no stop: only a termination ends the bill, which is by the minute | [`MassedCompute::billing`] |
//! | "Failed to create SSH key" is all that is said of a key that is not taken; a deletion of no key succeeds | `keys.rs` |
//!
//! Quotas of an account: `instances`, and `ssh-key`: with none left, no key is taken at all, as the vendor's
//! own test found.
//!
//! Where facts disagree, what was observed is done, and `POST /_sim/cloud/answers ["missing", …]` brings the
//! other forms: see [`Form`].
//!
//! Assumed, since no fact says it: the texts and statuses of failures beside the quoted ones; an unknown image
//! or key, and a quota, fail a launch with the same thin text; a region beside `any` is refused with 400; an
//! instance is billed from its launch on, and while it is `Stopped` or in `error`; it is `pending` for five
//! seconds; a guest that halts itself, and a spot instance that is taken back, is `Stopped`; an instance is
//! `terminated` until it is gone; a key is refused where its name or its text is known; the fields of the
//! account's billing. A launch command runs once, as root, with a shell. The lag of lists holds for a single
//! instance that is new, too: both answers have one envelope. That commands without a terminal misbehave on
//! the cloud's images is not simulated. Prices, stock and names of regions are examples.

mod catalogue;
mod instances;
mod keys;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use http::Method;
use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::core::account::AccountId;
use crate::core::billing::Billing;
use crate::core::cloud::Effect::{Change, Create, Delete, Read};
use crate::core::cloud::{Call, Refusal, Visit, holder};
use crate::core::http::{Answer, Request};
use crate::core::machine::Cause;
use crate::core::rest::{Problem, Refusals, RestApi, Route};
use crate::core::world::{Happening, World};

/// The simulated Massed Compute.
#[derive(Debug, Default)]
pub struct MassedCompute {
    forms: BTreeSet<Form>,
}

/// A form of answers that other sources have than the one that is followed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
enum Form {
    /// An unknown uuid is a 404, and not an empty list or a 400.
    Missing,
    /// A single instance is `runningInstance`, an object; its password is a number and its status `rented`;
    /// keys are listed without their texts.
    Official,
    /// Statuses of instances have no capital letters.
    Lower,
    /// Failures are plain texts.
    Plain,
    /// A shortage is told in words.
    Shortage,
    /// A spot instance that is taken back is gone, and not `Stopped`.
    Gone,
}

impl MassedCompute {
    fn has(&self, form: Form) -> bool {
        self.forms.contains(&form)
    }
}

/// What is said of most launches that fail.
const LAUNCH_FAILED: &str = "Failed to launch instance";

/// A launch that fails, whatever is wrong with it.
fn failed() -> Refusal {
    Refusal::Bad(LAUNCH_FAILED.to_owned())
}

/// A failure as plain text.
fn plain(mut answer: Answer) -> Answer {
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = said["message"].as_str().unwrap_or_default().to_owned();
    answer.headers.retain(|(name, _)| name != "content-type");
    answer.body = text.into();
    answer.with("content-type", "text/plain; charset=utf-8")
}

/// How the account pays; without amounts where that is not set.
fn payment(visit: &Visit<'_>) -> Answer {
    let is_set = visit.enough("").is_ok();
    let amount = |text: &str| is_set.then(|| text.to_owned());
    let set = json!({
        "method": "creditcard", "recharge_threshold": amount("1.00"), "recharge_amount": amount("25.00"),
    });
    Answer::json(200, &json!({ "billing": set }))
}

const WRONG_TOKEN: Problem = Problem(401, "", "Authentication not correct.");

impl RestApi for MassedCompute {
    const NAME: &'static str = "massedcompute";
    const DESCRIPTION: &'static str = "massed_compute.derived.json";
    // A row for each call.
    #[rustfmt::skip]
    const ROUTES: &'static [Route<Self>] = &[
        Route::new("POST", "/api/v1/account/token/validation", "account.validate", Read, |_, _, _| Ok(Answer::json(200, &json!({ "message": "Valid Token" })))),
        Route::get("/api/v1/account/billing", "account.billing", |_, visit, _| Ok(payment(visit))),
        Route::get("/api/v1/gpu-inventory", "types.list", |_, visit, _| Ok(catalogue::inventory(visit))),
        Route::get("/api/v1/images", "images.list", |_, visit, _| Ok(catalogue::images(visit))),
        Route::get("/api/v1/instance", "instances.list", |api, visit, _| Ok(instances::list(api, visit))),
        Route::get("/api/v1/instance/{uuid}", "instances.get", |api, visit, id| instances::get(api, visit, id)),
        Route::new("POST", "/api/v1/instance/launch", "instances.create", Create, |_, visit, _| instances::launch(visit)).takes::<instances::Launch>(),
        Route::new("POST", "/api/v1/instance/restart", "instances.restart", Change, |api, visit, _| instances::restart(api, visit)).takes::<instances::Uuids>(),
        Route::new("POST", "/api/v1/instance/terminate", "instances.delete", Delete, |api, visit, _| instances::terminate(api, visit)).takes::<instances::Uuids>(),
        Route::get("/api/v1/ssh-keys", "keys.list", |api, visit, _| Ok(keys::list(api, visit))),
        Route::new("POST", "/api/v1/ssh-keys", "keys.create", Change, |_, visit, _| keys::create(visit)).takes::<keys::NewKey>(),
        Route::new("DELETE", "/api/v1/ssh-keys/{id}", "keys.delete", Change, |_, visit, id| Ok(keys::delete(visit, id))),
    ];
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] =
        &[("coupons", &["/api/v1/coupon"])];
    // Every call can be told these; the description has them at a few.
    const UNDESCRIBED: &'static [u16] = &[403, 429];
    #[rustfmt::skip]
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "", "Too many requests"),
        server: Problem(500, "", "Internal server error"),
        no_capacity: Problem(400, "", LAUNCH_FAILED),
        quota: Problem(400, "", LAUNCH_FAILED),
        funds: Problem(402, "", "Billing is not configured: set a recharge amount and a recharge threshold"),
        unauthorized: WRONG_TOKEN,
        expired: WRONG_TOKEN,
        forbidden: Problem(403, "", "This token is read-only"),
        invalid: Problem(400, "", "{}"),
        not_found: Problem(404, "", "{} not found"),
        unknown_call: Problem(404, "", "Not found"),
    };

    fn account(&mut self, world: &World, request: &Request) -> Result<AccountId, Refusal> {
        let key = self.key(request);
        let reads = request.method == Method::GET || request.path.ends_with("/token/validation");
        match holder(world, key.as_deref()) {
            Err(Refusal::Forbidden) if reads => {
                let known = key.and_then(|key| world.credential(&key));
                known
                    .map(|(account, _)| account.id.clone())
                    .ok_or(Refusal::Unauthorized)
            }
            told => told,
        }
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

    fn problem(status: u16, _code: &str, text: &str) -> Answer {
        Answer::json(status, &json!({ "message": text }))
    }

    fn refuse(&self, refusal: &Refusal, _call: Option<&Call>) -> Option<Answer> {
        let is_told = *refusal == Refusal::NoCapacity && self.has(Form::Shortage);
        let answer = if is_told {
            Self::problem(400, "", "Not enough capacity available for this product")
        } else {
            Self::REFUSALS.answer::<Self>(refusal)
        };
        let answer = if self.has(Form::Plain) {
            plain(answer)
        } else {
            answer
        };
        // What is not simulated is told as that.
        (*refusal != Refusal::UnknownCall).then_some(answer)
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::Reclaimed(id) if self.has(Form::Gone) => {
                world.end(id, Cause::Reclaimed, SignedDuration::ZERO);
            }
            Happening::Reclaimed(id) => world.halt(id, Cause::Reclaimed),
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
        if name != "answers" {
            return None;
        }
        let forms = BTreeSet::<Form>::deserialize(body);
        Some(match forms {
            Ok(forms) => {
                self.forms = forms;
                Ok(body.clone())
            }
            Err(error) => Err(error.to_string()),
        })
    }
}
