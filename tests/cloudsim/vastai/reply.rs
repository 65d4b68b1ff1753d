//! Answers of this service: success and failure in its words.

use serde_json::{Value, json};

use crate::core::cloud::Refusal;
use crate::core::http::Answer;

/// A failure: status, code, text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    status: u16,
    code: &'static str,
    text: String,
    ask: Option<i64>,
}

/// What a call returns.
pub type Outcome = Result<Value, Failure>;

impl Failure {
    /// A failure.
    pub fn new(status: u16, code: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            code,
            text: text.into(),
            ask: None,
        }
    }

    /// The same about an offer.
    #[must_use]
    pub fn about(mut self, ask: i64) -> Self {
        self.ask = Some(ask);
        self
    }

    /// Arguments that the service does not take.
    pub fn arguments(text: impl Into<String>) -> Self {
        Self::new(400, "invalid_args", text)
    }

    /// No instance of this account has the id.
    pub fn no_instance(id: &str) -> Self {
        Self::new(404, "no_such_instance", format!("Instance {id} not found."))
    }

    /// Its body.
    pub fn body(&self) -> Value {
        let mut body = json!({"success": false, "error": self.code, "msg": self.text});
        if let Some(ask) = self.ask {
            body["ask_id"] = json!(ask);
        }
        body
    }

    /// As a refusal for the core.
    pub fn refusal(self) -> Refusal {
        Refusal::Answer(Answer::json(self.status, &self.body()))
    }
}

/// A refusal of the core in this service's words.
pub fn refused(refusal: &Refusal, call: &str) -> Answer {
    let failure = |status, code, text: &str| match Failure::new(status, code, text).refusal() {
        Refusal::Answer(answer) => answer,
        _ => Answer::empty(500),
    };
    match refusal {
        Refusal::Answer(answer) => answer.clone(),
        // No code, no JSON, no Retry-After.
        Refusal::TooMany { .. } => Answer::new(
            429,
            "text/plain",
            "API requests too frequent: endpoint threshold=4.5",
        ),
        Refusal::Server(status) => Answer::new(
            *status,
            "text/html",
            format!("<html><head><title>{status} Server Error</title></head></html>"),
        ),
        // Without capacity an offer is gone between the search and the order.
        Refusal::NoCapacity => failure(
            410,
            "no_such_ask",
            "error 410/3907: no_such_ask Instance type is no longer available.",
        ),
        Refusal::Quota(what) => failure(
            403,
            "limit_exceeded",
            &format!("The account's limit of {what} is reached."),
        ),
        Refusal::Funds => failure(
            400,
            "invalid_args",
            "Your account lacks credit; see the billing page.",
        ),
        // The search has no 401.
        Refusal::Unauthorized | Refusal::Expired if call == "offers.search" => {
            failure(404, "auth_error", "Invalid user key")
        }
        Refusal::Unauthorized | Refusal::Expired => failure(401, "auth_error", "Invalid user key"),
        Refusal::Forbidden => failure(
            403,
            "not_authorized",
            "This key does not have the permission for this endpoint.",
        ),
        Refusal::Invalid(problems) => failure(400, "invalid_args", &problems.join("; ")),
        Refusal::Bad(text) => failure(400, "invalid_args", text),
        Refusal::NotFound(text) => failure(404, "not_found", text),
        Refusal::UnknownCall => Answer::new(
            404,
            "text/html",
            "<html><head><title>404 Not Found</title></head></html>",
        ),
    }
}
