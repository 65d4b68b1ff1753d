//! The one way to a cloud over HTTP: deadlines, limits of rate, repetition where that is
//! safe, authorisation, and errors that show nothing secret (P9).
//!
//! It knows no cloud. Each `errors.rs` says what a status or a body means; here are only failures of
//! the transport. [`limits`] decides when a call may go, [`auth`] adds its credentials, [`token`]
//! gets tokens, [`answer`] is the answer, [`rest`] reads it, [`pages`] walks through lists,
//! [`status`] is the default meaning of an HTTP status, [`batched`] lets many callers share one
//! look, [`shape`] compares answers with the types that read them.
//!
//! A call is repeated when it changes nothing (or the caller says that repeating is
//! harmless), or when the cloud surely did nothing: 429, 401, no connection. A call that may change
//! something goes only while the fence is open, which is asked last of all; a GET changes nothing, nor
//! does a call that says so ([`Call::reads`]). Any other call that was sent
//! and may have had an effect is `Indeterminate` (P3): the next look decides.

pub mod answer;
pub mod auth;
pub mod batched;
pub mod limits;
pub mod pages;
pub mod rest;
pub mod shape;
pub mod status;
mod tls;
pub mod token;

use std::{borrow::Cow, error::Error as _, future::Future, sync::Arc, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode, header::CONTENT_TYPE};
use skyward_core::{ErrorKind, Fence, ProviderError};
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument as _;

use crate::chain;

pub use answer::Answer;
pub use auth::Auth;
use auth::Shown;
pub use batched::Batched;
pub use limits::{Limits, Rate, Rule};
pub use pages::{List, Next};
pub use rest::Rest;
pub use status::{Remedies, is_maintenance, judge};
pub use token::ServiceAccount;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// First delay between two tries; it doubles each time.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Longest delay between two tries.
const LONGEST_DELAY: Duration = Duration::from_secs(20);
/// Tries of one call that fails in ways that pass by themselves.
const TRIES: u32 = 4;
/// Largest answer that is read.
const MAX_BODY: usize = 64 << 20;

tokio::task_local! {
    /// When the operation around the calls must have ended.
    static UNTIL: Instant;
}

/// Runs one operation of the contract: no call inside it begins, waits or repeats past
/// `limit`. The future itself is never dropped, so that a call that was sent ends with
/// an error that says so.
pub async fn operation<T>(limit: Duration, work: impl Future<Output = T>) -> T {
    UNTIL.scope(Instant::now() + limit, work).await
}

/// What a call does at the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only reads, or doing it twice is the same as doing it once.
    Repeatable,
    /// It makes something; doing it twice would make two.
    Creates,
}

impl Effect {
    /// The kind of error when the answer to a call is lost or cannot be understood.
    pub const fn lost(self) -> ErrorKind {
        match self {
            Self::Repeatable => ErrorKind::Transient,
            Self::Creates => ErrorKind::Indeterminate,
        }
    }

    /// The kind of error when the cloud answers that it is under maintenance.
    pub const fn unavailable(self) -> ErrorKind {
        match self {
            Self::Repeatable => ErrorKind::Transient,
            Self::Creates => ErrorKind::Outage,
        }
    }
}

/// One call.
#[derive(Clone)]
pub struct Call {
    operation: &'static str,
    method: Method,
    pattern: &'static str,
    path: String,
    /// The address of another API, where the path is not one of the account's.
    elsewhere: Option<String>,
    query: Vec<(Cow<'static, str>, String)>,
    header: Option<(&'static str, &'static str)>,
    body: Option<Body>,
    effect: Effect,
    /// Whether it changes nothing at the cloud.
    reads: bool,
    unauthorised: bool,
    /// JSON pointer to the part of the answer that is read.
    wanted: &'static str,
    /// A value that cannot be a part of a path: such a call is never sent.
    misfit: Option<String>,
}

#[derive(Clone)]
enum Body {
    Json(serde_json::Value),
    Form(Vec<(&'static str, String)>),
    Text(String),
}

impl Call {
    /// A call that only reads. `operation` in words, for errors: `list the instances`;
    /// `pattern` is the path with names instead of values, for limits and spans.
    pub fn get(operation: &'static str, pattern: &'static str) -> Self {
        Self::new(operation, Method::GET, pattern, Effect::Repeatable)
    }

    /// A call that makes an object; a second one would make another.
    pub fn create(operation: &'static str, pattern: &'static str) -> Self {
        Self::new(operation, Method::POST, pattern, Effect::Creates)
    }

    /// A POST that may be repeated.
    pub fn post(operation: &'static str, pattern: &'static str) -> Self {
        Self::new(operation, Method::POST, pattern, Effect::Repeatable)
    }

    /// A call that deletes the thing of this id.
    pub fn delete(operation: &'static str, pattern: &'static str, id: impl AsRef<str>) -> Self {
        Self::new(operation, Method::DELETE, pattern, Effect::Repeatable).with(id)
    }

    /// Any other call.
    pub fn new(operation: &'static str, method: Method, pattern: &'static str, effect: Effect) -> Self {
        Self {
            operation,
            reads: method == Method::GET,
            method,
            pattern,
            path: pattern.to_owned(),
            elsewhere: None,
            query: Vec::new(),
            header: None,
            body: None,
            effect,
            unauthorised: false,
            wanted: "",
            misfit: None,
        }
    }

    /// Fills the one `{…}` of the pattern in. With a value that would lead to another path, the
    /// call is refused when it is sent.
    #[must_use]
    pub fn with(mut self, value: impl AsRef<str>) -> Self {
        let value = value.as_ref();
        if let (Some(from), Some(to)) = (self.path.find('{'), self.path.find('}')) {
            self.path.replace_range(from..=to, &escaped(value));
        }
        if !is_part(value) {
            self.misfit = Some(value.to_owned());
        }
        self
    }

    /// One more parameter of the query.
    #[must_use]
    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Sets this parameter of the query, in the place of a former value.
    #[must_use]
    fn with_query(mut self, name: Cow<'static, str>, value: String) -> Self {
        self.query.retain(|(there, _)| *there != name);
        self.query.push((name, value));
        self
    }

    /// A header with nothing secret in it.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }

    /// The body.
    #[must_use]
    pub fn json(mut self, body: serde_json::Value) -> Self {
        self.body = Some(Body::Json(body));
        self
    }

    /// The body, as a form.
    #[must_use]
    pub fn form(mut self, fields: Vec<(&'static str, String)>) -> Self {
        self.body = Some(Body::Form(fields));
        self
    }

    /// The body, as plain text.
    #[must_use]
    pub fn text(mut self, body: String) -> Self {
        self.body = Some(Body::Text(body));
        self
    }

    /// At this address instead of the API's own: without the path, which is the pattern.
    #[must_use]
    pub fn at(mut self, address: impl Into<String>) -> Self {
        self.elsewhere = Some(address.into());
        self
    }

    /// Reads only the part of the answer at this JSON pointer (RFC 6901).
    #[must_use]
    pub fn wanting(mut self, pointer: &'static str) -> Self {
        self.wanted = pointer;
        self
    }

    /// Changes nothing at the cloud, whatever its method is: a search, or a query of GraphQL.
    #[must_use]
    pub fn reads(mut self) -> Self {
        self.reads = true;
        self
    }

    /// Without credentials.
    #[must_use]
    pub fn unauthorised(mut self) -> Self {
        self.unauthorised = true;
        self
    }

    fn error(&self, kind: ErrorKind, message: impl Into<String>) -> ProviderError {
        ProviderError::new(kind, self.operation, message)
    }

    /// A failed try after which the call may have had its effect.
    fn lost(&self, message: String, safe: bool) -> Failure {
        let error = self.error(self.effect.lost(), message);
        Failure { error, safe }
    }
}

/// Whether a value can be one part of a path. Dots mean the path itself or its parent, escaped or
/// not, and an empty value means the whole collection.
fn is_part(value: &str) -> bool {
    !matches!(value, "" | "." | "..")
}

/// One part of a path, with everything escaped that is not plain.
fn escaped(text: &str) -> String {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The parts of a client.
pub struct Setup {
    /// The cloud's name, for people.
    pub cloud: &'static str,
    /// Where its API is.
    pub base: String,
    /// How calls authenticate.
    pub auth: Auth,
    /// How often calls may go.
    pub limits: Limits,
    /// Longest wait for one answer.
    pub request_timeout: Duration,
    /// Closed when nothing may be changed any more.
    pub fence: Fence,
}

/// The way to one account of one cloud. Clones share limits and tokens.
#[derive(Clone)]
pub struct Http {
    inner: Arc<Inner>,
}

struct Inner {
    client: reqwest::Client,
    setup: Setup,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http")
            .field("cloud", &self.inner.setup.cloud)
            .finish_non_exhaustive()
    }
}

impl Http {
    /// Makes the client; nothing is sent yet.
    pub fn new(setup: Setup) -> Result<Self, ProviderError> {
        let failed = |what: String| ProviderError::new(ErrorKind::Unsupported, "make the HTTP client", what);
        let base = reqwest::Url::parse(&setup.base).map_err(|_| {
            failed(format!(
                "the address for {} is not a URL; correct the operator's --endpoint flag",
                setup.cloud
            ))
        })?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("skyward/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT.min(setup.request_timeout))
            .pool_idle_timeout(Duration::from_secs(30))
            // A redirect could carry the credentials elsewhere, and loses the body of a PUT.
            .redirect(reqwest::redirect::Policy::none());
        // A server on this machine is never behind a proxy.
        if matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            builder = builder.no_proxy();
        }
        let tls = tls::settings().map_err(|error| {
            failed(format!(
                "{error}. The image of the operator needs the certificates of the public authorities (package ca-certificates)"
            ))
        })?;
        let client = builder
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| failed(chain(&error.without_url())))?;
        Ok(Self {
            inner: Arc::new(Inner { client, setup }),
        })
    }

    /// The cloud's name, for people.
    pub fn cloud(&self) -> &'static str {
        self.inner.setup.cloud
    }

    /// Sends a call and repeats it while that is safe and there is time. Any status is an
    /// answer, also one of failure: what it means is up to the caller.
    pub async fn send(&self, call: Call) -> Result<Answer, ProviderError> {
        let span = tracing::debug_span!(
            "cloud",
            cloud = self.inner.setup.cloud,
            operation = call.operation,
            method = call.method.as_str(),
            pattern = call.pattern,
        );
        self.sent(&call).instrument(span).await
    }

    async fn sent(&self, call: &Call) -> Result<Answer, ProviderError> {
        if let Some(value) = &call.misfit {
            let what = format!(
                "{} named \"{value}\" as an id, which leads to another address; look at the account in its console",
                self.inner.setup.cloud
            );
            return Err(call.error(ErrorKind::Unsupported, what));
        }
        let until = UNTIL
            .try_with(|until| *until)
            .unwrap_or_else(|_| Instant::now() + self.inner.setup.request_timeout * 2);
        let mut tries = 0;
        let mut slowed = 0;
        let mut renewed = false;
        loop {
            self.turn(call, until).await?;
            let token = self.token(call, until).await?;
            let outcome = self.once(call, token.as_ref(), until).await;
            let (wait, last) = match outcome {
                Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                    slowed += 1;
                    let wait = answer
                        .retry_after
                        .unwrap_or_else(|| delay(slowed + 1))
                        .max(FIRST_DELAY / 2);
                    self.inner
                        .setup
                        .limits
                        .block(&call.method, call.pattern, Instant::now() + wait);
                    if Instant::now() + wait >= until {
                        return Err(call.error(
                            ErrorKind::RateLimited(Some(wait)),
                            format!("{} wants fewer calls (HTTP 429)", self.inner.setup.cloud),
                        ));
                    }
                    continue;
                }
                // The cloud did nothing, so even an order may go again with a new token.
                Ok(answer) if answer.status == StatusCode::UNAUTHORIZED && !renewed && !call.unauthorised => {
                    renewed = true;
                    if self.inner.setup.auth.renew(token.as_ref()) {
                        continue;
                    }
                    return Ok(answer);
                }
                Ok(answer) if call.effect == Effect::Repeatable && passes(answer.status) => {
                    (answer.retry_after, Ok(answer))
                }
                Ok(answer) => return Ok(answer),
                Err(Failure { error, safe: true }) => (None, Err(error)),
                Err(Failure { error, safe: false }) => return Err(error),
            };
            tries += 1;
            let wait = wait.unwrap_or_else(|| delay(tries));
            if tries >= TRIES || Instant::now() + wait >= until {
                return last;
            }
            sleep(wait).await;
        }
    }

    /// Waits until the limits let the call go.
    async fn turn(&self, call: &Call, until: Instant) -> Result<(), ProviderError> {
        let limits = &self.inner.setup.limits;
        loop {
            let now = Instant::now();
            match limits.reserve(&call.method, call.pattern, now, until) {
                limits::Turn::Now => return Ok(()),
                limits::Turn::At(at) => {
                    sleep(at.saturating_duration_since(now)).await;
                    // A 429 for another call may have closed the way meanwhile.
                    if limits
                        .blocked(&call.method, call.pattern, Instant::now())
                        .is_none()
                    {
                        return Ok(());
                    }
                }
                limits::Turn::TooLate(after) => {
                    return Err(call.error(
                        ErrorKind::RateLimited(Some(after)),
                        format!("too many calls to {} wait for their turn", self.inner.setup.cloud),
                    ));
                }
            }
        }
    }

    async fn token(&self, call: &Call, until: Instant) -> Result<Option<Shown>, ProviderError> {
        if call.unauthorised {
            return Ok(None);
        }
        let left = until.saturating_duration_since(Instant::now());
        let limit = self.inner.setup.request_timeout.min(left);
        self.inner
            .setup
            .auth
            .header(self, call.operation, limit)
            .await
            .map(Some)
    }

    /// One try.
    async fn once(&self, call: &Call, token: Option<&Shown>, until: Instant) -> Result<Answer, Failure> {
        let setup = &self.inner.setup;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let error = call.error(ErrorKind::Transient, "there was no time left to ask");
            return Err(Failure { error, safe: false });
        }
        let limit = setup.request_timeout.min(left);
        let base = call.elsewhere.as_ref().unwrap_or(&setup.base);
        let mut request = self
            .inner
            .client
            .request(call.method.clone(), format!("{base}{}", call.path));
        if !call.query.is_empty() {
            request = request.query(&call.query);
        }
        request = match &call.body {
            Some(Body::Json(body)) => request.json(body),
            Some(Body::Form(fields)) => request.form(fields),
            Some(Body::Text(text)) => request.header(CONTENT_TYPE, "text/plain").body(text.clone()),
            None => request,
        };
        if let Some((name, value)) = call.header {
            request = request.header(name, value);
        }
        if let Some(token) = token {
            request = request.header(token.name.clone(), token.value.clone());
        }
        // Asked last of all: this process may have stood still during any wait.
        if !call.reads {
            setup.fence.admit().map_err(|refused| Failure {
                error: refused.of(call.operation),
                safe: false,
            })?;
        }
        match timeout(
            limit,
            answer::read(request, call.operation, call.effect, setup.cloud, MAX_BODY),
        )
        .await
        {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(answer::Broken::Way(error))) => Err(self.broken(call, &error.without_url())),
            Ok(Err(answer::Broken::TooLong)) => {
                let most = MAX_BODY >> 20;
                let what = format!("the answer of {} was longer than {most} MiB", setup.cloud);
                Err(call.lost(what, false))
            }
            Err(_) => {
                let seconds = limit.as_secs_f32().ceil();
                let what = format!("{} did not answer within {seconds} s", setup.cloud);
                Err(call.lost(what, call.effect == Effect::Repeatable))
            }
        }
    }

    /// The failure of a broken connection.
    fn broken(&self, call: &Call, error: &reqwest::Error) -> Failure {
        let cloud = self.inner.setup.cloud;
        if error.is_builder() {
            let error = call.error(ErrorKind::InvalidOrder, "the call could not be written");
            return Failure { error, safe: false };
        }
        // Nothing was sent yet.
        if error.is_connect() {
            let what = format!(
                "{cloud} cannot be reached ({}). Check that the operator may connect to the internet",
                root(error)
            );
            let error = call.error(ErrorKind::Transient, what);
            return Failure { error, safe: true };
        }
        let what = format!(
            "the connection to {cloud} broke before its answer ({})",
            root(error)
        );
        call.lost(what, call.effect == Effect::Repeatable)
    }
}

struct Failure {
    error: ProviderError,
    /// Whether another try is harmless.
    safe: bool,
}

/// Statuses that pass by themselves.
fn passes(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 500 | 502 | 503 | 504)
}

/// Delay before the next try: doubled each time, with jitter so that many do not come
/// together.
fn delay(tries: u32) -> Duration {
    let longest = FIRST_DELAY
        .saturating_mul(1 << tries.saturating_sub(1).min(10))
        .min(LONGEST_DELAY);
    longest.mul_f64(rand::random_range(0.5..1.0))
}

/// The innermost cause: `connection refused`. The outer ones name addresses.
fn root(error: &reqwest::Error) -> String {
    let mut text = "no cause given".to_owned();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
