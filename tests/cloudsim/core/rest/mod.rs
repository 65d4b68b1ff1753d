//! A cloud whose API is REST with a key: a table of calls, limits and refusals, from which
//! [`Rest`] recognises, checks, authenticates, limits and answers requests.
//!
//! | module | what is in it |
//! | --- | --- |
//! | here | [`RestApi`], which a cloud implements, and [`Rest`], which the core runs |
//! | [`route`] | one row of the table: method, path, name, effect, handler |
//! | [`refusals`] | status, code and text of each refusal |
//! | [`pages`] | lists in pages, by cursor or by number |
//! | [`visit`] | helpers of handlers: bodies, resources such as SSH keys, machines on demand |

pub mod pages;
pub mod refusals;
pub mod route;
pub mod visit;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub use self::pages::{Page, by_cursor, by_number, by_token, numbered};
pub use self::refusals::{Problem, Refusals};
pub use self::route::Route;
pub use self::visit::{Rental, bad, body, has};
use crate::core::account::AccountId;
use crate::core::billing::Billing;
use crate::core::cloud::{Call, Cloud, Refusal, Visit, holder};
use crate::core::description::Description;
use crate::core::http::{Answer, Request};
use crate::core::limits::Windows;
use crate::core::machine::Cause;
use crate::core::world::{Happening, World};

/// A rate limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The calls that count: a call's name, an effect, or `*`, as in fault rules.
    pub calls: &'static str,
    /// The most calls in a window.
    pub most: usize,
    /// The length of the sliding window in seconds. One call in twelve seconds is a least time
    /// between two.
    pub seconds: i64,
    /// Which calls one counter counts.
    pub per: Per,
}

/// Which calls one counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// The calls of one account.
    Account,
    /// The calls of one source address. The simulator takes all of its clients for one address.
    Address,
}

/// How much of a rate limit a client has used.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// The most calls in a window.
    pub most: usize,
    /// How many calls are left.
    pub left: usize,
    /// When the oldest call counts no more.
    pub reset: Timestamp,
}

/// A cloud as tables, with handlers for what is its own.
pub trait RestApi: Send + Sized + 'static {
    /// Its name, which is the kind of its Provider.
    const NAME: &'static str;
    /// The file of its official description in the folder that `SKYWARD_SPECS` names.
    const DESCRIPTION: &'static str;
    /// The calls that are simulated. The first route that fits a request is taken.
    const ROUTES: &'static [Route<Self>];
    /// Features of the cloud that the simulator lacks, each with the beginnings of its paths. A
    /// request for such a path that fits no route is answered with 501 `not_simulated`. The table
    /// of README.md has all of these paths.
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] = &[];
    /// Fields of bodies on which the simulator does not act: the name, a value that asks for nothing
    /// (beside null, false, 0 and empty values), and the feature that any other value asks for. Such
    /// a value is answered with 501 `not_simulated`. The fields are removed before a request is
    /// checked.
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[];
    /// Whether null in a body means a field that is not given. Such fields are removed before a
    /// request is checked.
    const NULL_IS_ABSENT: bool = false;
    /// Whether answers have null where the description has a field that is not given. Such fields are
    /// removed before an answer is checked.
    const NULLS_IN_ANSWERS: bool = false;
    /// Rate limits.
    const LIMITS: &'static [Limit] = &[];
    /// Whether a 429 carries `Retry-After`.
    const RETRY_AFTER: bool = false;
    /// Status, code and text of the cloud's refusals.
    const REFUSALS: Refusals;
    /// Statuses of the cloud's answers that its description leaves out.
    const UNDESCRIBED: &'static [u16] = &[];
    /// Names of calls that the description leaves out.
    const UNDESCRIBED_CALLS: &'static [&'static str] = &[];

    /// Its billing rules.
    fn billing(&self) -> Billing;

    /// Fills the world with what can be rented there by default.
    fn furnish(&mut self, world: &mut World);

    /// A failure in the form that this cloud gives all of them.
    fn problem(status: u16, code: &str, text: &str) -> Answer;

    /// The key in a request: the bearer, or whatever header a cloud reads.
    fn key(&self, request: &Request) -> Option<String> {
        request.bearer().map(str::to_owned)
    }

    /// The account that asks. Clouds with tokens look theirs up.
    fn account(&mut self, world: &World, request: &Request) -> Result<AccountId, Refusal> {
        holder(world, self.key(request).as_deref())
    }

    /// A request as its description has it, where the cloud accepts more than is described. It is
    /// what is checked and what handlers see.
    fn as_described<'r>(&self, request: &'r Request) -> Cow<'r, Request> {
        Cow::Borrowed(request)
    }

    /// Whether answers to a call have the form of the description now. They are not checked while a control
    /// brings other forms that the cloud is known to give.
    fn answers_as_described(&self, call: &Call) -> bool {
        let _ = call;
        true
    }

    /// A refusal that differs by its call; `None` for what [`RestApi::REFUSALS`] says.
    fn refuse(&self, refusal: &Refusal, call: Option<&Call>) -> Option<Answer> {
        let _ = (refusal, call);
        None
    }

    /// A refusal that differs by its request as well. A cloud that accepts what fails later remembers here that it did.
    fn refuse_by(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Option<Answer> {
        let _ = request;
        self.refuse(refusal, call)
    }

    /// Adds the headers that an answer to a counted call has. `usage` is of the first of
    /// [`RestApi::LIMITS`] that counted it.
    fn finish(answer: &mut Answer, usage: &Usage) {
        let _ = (answer, usage);
    }

    /// Called when something happens without a request. By default a machine that is taken back
    /// ends, one that halted itself stays halted, and one whose host is lost has failed.
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

    /// A control of this cloud's own beside `rate-limits`.
    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        let _ = (world, name, body);
        None
    }

    /// The refusal for a part of a call that is not simulated.
    fn not_simulated(what: &str) -> Refusal {
        let text = format!("This is a simulator, without {what}");
        Refusal::Answer(Self::problem(501, "not_simulated", &text))
    }
}

/// A [`RestApi`] as the core runs it. `POST /_sim/cloud/rate-limits {"on": false}` lifts its limits.
pub struct Rest<A> {
    api: A,
    description: Option<Arc<Description>>,
    windows: Windows,
    rate_limits: bool,
    /// The usage that the call in hand was told.
    usage: Option<Usage>,
}

impl<A: RestApi> Rest<A> {
    /// A cloud with its rate limits.
    pub fn new(api: A) -> Self {
        Self {
            api,
            description: Description::load(A::DESCRIPTION),
            windows: Windows::default(),
            rate_limits: true,
            usage: None,
        }
    }

    /// The same for a customer whose limits were lifted.
    #[must_use]
    pub fn without_rate_limits(mut self) -> Self {
        self.rate_limits = false;
        self
    }

    /// The description, where it has this call.
    fn description_of(&self, call: &Call) -> Option<&Description> {
        let described = !A::UNDESCRIBED_CALLS.contains(&call.name);
        self.description.as_deref().filter(|_| described)
    }

    /// A request as it is checked and handled.
    fn normalized<'r>(&self, request: &'r Request) -> Cow<'r, Request> {
        let described = self.api.as_described(request);
        let Ok(Value::Object(mut fields)) = described.json() else {
            return described;
        };
        let given = fields.len();
        fields.retain(|field, value| {
            let ignored = A::NOT_SIMULATED_FIELDS.iter().any(|(name, ..)| name == field);
            let absent = A::NULL_IS_ABSENT && value.is_null();
            !ignored && !absent
        });
        if fields.len() == given {
            return described;
        }
        let mut normalized = described.into_owned();
        normalized.body = Value::Object(fields).to_string().into();
        Cow::Owned(normalized)
    }

    /// The feature that a body asks for and that is not simulated.
    fn unsupported_field(request: &Request) -> Option<&'static str> {
        let body = request.json().ok()?;
        let nothing = [
            json!(null),
            json!(false),
            json!(0),
            json!(""),
            json!([]),
            json!({}),
        ];
        let asks = |name: &str, neutral: &str| {
            let given = body.get(name);
            given.is_some_and(|given| !nothing.contains(given) && given != neutral)
        };
        let found = A::NOT_SIMULATED_FIELDS
            .iter()
            .find(|(name, neutral, _)| asks(name, neutral));
        found.map(|(.., what)| *what)
    }

    /// The feature that a path belongs to and that is not simulated.
    fn unsupported_path(request: &Request) -> Option<&'static str> {
        let segments = request.segments();
        let begins = |path: &str| {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            segments.iter().map(String::as_str).take(parts.len()).eq(parts)
        };
        let mut known = A::NOT_SIMULATED.iter();
        let found = known.find(|(_, paths)| paths.iter().any(|path| begins(path)));
        found.map(|(what, _)| *what)
    }
}

/// A value without the fields that are null.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let given = fields.into_iter().filter(|(_, value)| !value.is_null());
            given.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

impl<A: RestApi> Cloud for Rest<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn billing(&self) -> Billing {
        self.api.billing()
    }

    fn furnish(&mut self, world: &mut World) {
        self.api.furnish(world);
    }

    fn calls(&self) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        for route in A::ROUTES {
            if !calls.contains(route.call()) {
                calls.push(route.call().clone());
            }
        }
        calls
    }

    fn recognise(&self, request: &Request) -> Option<Call> {
        route::of::<A>(request).map(|(route, _)| route.call().clone())
    }

    fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        let normalized = self.normalized(request);
        let strict = route::of::<A>(request).and_then(|(route, _)| route.check(&normalized));
        let mut wrong: Vec<String> = strict.into_iter().collect();
        if let Some(description) = self.description_of(call) {
            wrong.extend(description.check(&normalized));
        }
        wrong
    }

    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        _call: &Call,
    ) -> Result<Option<AccountId>, Refusal> {
        match route::of::<A>(request) {
            Some((route, _)) if route.is_open() => Ok(None),
            _ => self.api.account(world, request).map(Some),
        }
    }

    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        // A connection that was cut had no answer to put it into.
        self.usage = None;
        if !self.rate_limits {
            return Ok(());
        }
        for limit in A::LIMITS
            .iter()
            .filter(|limit| visit.call.is_meant_by(limit.calls))
        {
            let whose = match limit.per {
                Per::Account => visit.account.as_str(),
                Per::Address => "",
            };
            let window = SignedDuration::from_secs(limit.seconds);
            let key = format!("{whose} {} {}", limit.calls, limit.seconds);
            let counted = self.windows.call(&key, limit.most, window, visit.now());
            let oldest = self.windows.oldest(&key).unwrap_or(visit.now());
            self.usage.get_or_insert(Usage {
                most: limit.most,
                left: counted.unwrap_or(0),
                reset: oldest.saturating_add(window).unwrap_or(oldest),
            });
            counted.map_err(|wait| Refusal::TooMany {
                retry_after: A::RETRY_AFTER.then(|| u32::try_from(wait.as_secs() + 1).unwrap_or(u32::MAX)),
            })?;
        }
        Ok(())
    }

    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let (route, id) = route::of::<A>(visit.request).ok_or(Refusal::UnknownCall)?;
        if !id.is_empty() {
            visit.subject = Some(id.clone());
        }
        if let Some(what) = Self::unsupported_field(visit.request) {
            return Err(A::not_simulated(what));
        }
        let normalized = self.normalized(visit.request);
        let api = &mut self.api;
        visit.with_request(&normalized, |visit| route.answer(api, visit, &id))
    }

    fn refuse(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Answer {
        if let Some(answer) = self.api.refuse_by(refusal, request, call) {
            return answer;
        }
        let unsupported = Self::unsupported_path(request).filter(|_| *refusal == Refusal::UnknownCall);
        let refusal = match unsupported {
            Some(what) => &A::not_simulated(what),
            None => refusal,
        };
        A::REFUSALS.answer::<A>(refusal)
    }

    fn finish(&mut self, _world: &World, _request: &Request, answer: &mut Answer) {
        if let Some(usage) = self.usage.take() {
            A::finish(answer, &usage);
        }
    }

    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        self.recognise(request)
            .map_or(self.description.as_deref(), |call| {
                self.description_of(&call)
                    .filter(|_| self.api.answers_as_described(&call))
            })
            .filter(|_| !A::UNDESCRIBED.contains(&answer.status))
            .map(|description| {
                let request = self.api.as_described(request);
                match serde_json::from_slice(&answer.body) {
                    Ok(body) if A::NULLS_IN_ANSWERS => {
                        let body = without_nulls(body).to_string().into();
                        let headers = answer.headers.clone();
                        description.check_answer(
                            &request,
                            &Answer {
                                headers,
                                body,
                                ..*answer
                            },
                        )
                    }
                    _ => description.check_answer(&request, answer),
                }
            })
            .unwrap_or_default()
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        self.api.happened(world, happening);
    }

    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        if name != "rate-limits" {
            return self.api.control(world, name, body);
        }
        let Some(on) = body.get("on").and_then(Value::as_bool) else {
            return Some(Err("give {\"on\": true|false}".to_owned()));
        };
        self.rate_limits = on;
        Some(Ok(json!({ "on": on })))
    }
}
