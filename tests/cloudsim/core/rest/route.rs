//! Routes: the call of a request, its body, and its handler.

use serde::de::DeserializeOwned;

use super::{RestApi, body};
use crate::core::cloud::{Call, Effect, Refusal, Visit};
use crate::core::http::{Answer, Request};

/// Answers a call. The text is the last parameter of the route's path, "" where it has
/// none; it is also the subject of the call unless the handler says otherwise.
pub type Handler<A> = fn(&mut A, &mut Visit<'_>, &str) -> Result<Answer, Refusal>;

/// Checks a request's body against our own type.
type CheckBody = fn(&Request) -> Result<(), Refusal>;

/// One call of a cloud.
pub struct Route<A> {
    method: &'static str,
    path: &'static str,
    call: Call,
    handler: Handler<A>,
    open: bool,
    asks: Option<(&'static str, &'static str)>,
    strict: Option<CheckBody>,
}

impl<A> Route<A> {
    /// A call of this method and path, which begins with `/` and has parameters such as `{id}`.
    pub const fn new(
        method: &'static str,
        path: &'static str,
        name: &'static str,
        effect: Effect,
        handler: Handler<A>,
    ) -> Self {
        Self {
            method,
            path,
            call: Call::new(name, effect),
            handler,
            open: false,
            asks: None,
            strict: None,
        }
    }

    /// A `GET`, which changes nothing.
    pub const fn get(path: &'static str, name: &'static str, handler: Handler<A>) -> Self {
        Self::new("GET", path, name, Effect::Read, handler)
    }

    /// The same call without credentials.
    #[must_use]
    pub const fn open(mut self) -> Self {
        self.open = true;
        self
    }

    /// The same call only where a field of the body has this text.
    #[must_use]
    pub const fn asks(mut self, field: &'static str, text: &'static str) -> Self {
        self.asks = Some((field, text));
        self
    }

    /// The same call with a body of this type. Bodies that are not of it are violations, so that
    /// the type says `deny_unknown_fields`.
    #[must_use]
    pub const fn takes<T: DeserializeOwned>(mut self) -> Self {
        self.strict = Some(parses::<T>);
        self
    }

    /// Which call it is.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Whether it needs no credentials.
    pub fn is_open(&self) -> bool {
        self.open
    }

    fn is_asked(&self, request: &Request) -> bool {
        self.asks
            .is_none_or(|(field, text)| request.json().is_ok_and(|body| body[field] == text))
    }

    /// What is wrong with a request by our own type of its body.
    pub(super) fn check(&self, request: &Request) -> Option<String> {
        match (self.strict?)(request) {
            Err(Refusal::Bad(what)) => Some(what),
            Ok(()) | Err(_) => None,
        }
    }

    /// A request that is this call, without a body.
    #[cfg(test)]
    pub(super) fn example(&self) -> Request {
        let method = http::Method::from_bytes(self.method.as_bytes()).expect("a method");
        Request::new(method, self.path, "")
    }

    pub(super) fn answer(&self, api: &mut A, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        (self.handler)(api, visit, id)
    }

    /// The last parameter of the path, "" without one; `None` where the request is
    /// another call.
    fn parameter(&self, request: &Request, segments: &[String]) -> Option<String> {
        let parts: Vec<&str> = self.path.split('/').filter(|part| !part.is_empty()).collect();
        if self.method != request.method.as_str() || parts.len() != segments.len() || !self.is_asked(request)
        {
            return None;
        }
        let mut last = "";
        for (part, segment) in parts.into_iter().zip(segments) {
            if part.starts_with('{') {
                last = segment;
            } else if part != segment {
                return None;
            }
        }
        Some(last.to_owned())
    }
}

fn parses<T: DeserializeOwned>(request: &Request) -> Result<(), Refusal> {
    body::<T>(request).map(drop)
}

/// The route of a request, with the last parameter of its path.
pub(super) fn of<A: RestApi>(request: &Request) -> Option<(&'static Route<A>, String)> {
    let segments = request.segments();
    A::ROUTES.iter().find_map(|route| {
        route
            .parameter(request, &segments)
            .map(|parameter| (route, parameter))
    })
}
