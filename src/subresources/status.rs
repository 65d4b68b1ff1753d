//! Errors as the Kubernetes API writes them, so that kubectl and clients understand them.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{GROUP, authorize::Access, frontproxy::User};

/// An error for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status.
    pub code: StatusCode,
    /// Kubernetes' reason, such as `NotFound`.
    pub reason: &'static str,
    /// What happened, to what, what to do.
    pub message: String,
    /// When to try again, in seconds.
    pub retry_after: Option<u32>,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            retry_after: None,
        }
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(user: &User, access: &Access, why: &str) -> Self {
        let Access {
            verb,
            namespace,
            resource,
            name,
            subresource,
        } = access;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(": {why}")
        };
        Self::new(
            StatusCode::FORBIDDEN,
            "Forbidden",
            format!(
                "{resource}.{GROUP} {name:?} is forbidden: User {:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {GROUP:?} in the namespace {namespace:?}{why}",
                user.name
            ),
        )
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// What was asked for was kept for as long as its Task says.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "ResultsExpired", message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "this can only be read: use GET",
        )
    }

    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        let failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        Self {
            retry_after: Some(5),
            ..failure
        }
    }

    /// What the controller refused, in its words.
    pub(crate) fn refused(code: StatusCode, message: impl Into<String>) -> Self {
        let reason = match code {
            StatusCode::NOT_FOUND => "NotFound",
            StatusCode::CONFLICT => "Conflict",
            StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
            StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
            StatusCode::REQUEST_TIMEOUT => "Timeout",
            StatusCode::INSUFFICIENT_STORAGE => "InsufficientStorage",
            _ => "BadRequest",
        };
        Self::new(code, reason, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let failure = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        Self {
            retry_after: Some(2),
            ..failure
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.retry_after.map(|seconds| json!({ "retryAfterSeconds": seconds })),
            "code": self.code.as_u16(),
        });
        let mut response = (self.code, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
