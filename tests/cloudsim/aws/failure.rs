//! Errors as AWS words them: a status, a code that clients act on, a message.

use serde_json::json;

use super::query::{Dialect, Problem, ProblemKind};
use super::service::{Service, Wire};
use super::xml;
use crate::core::cloud::Refusal;
use crate::core::http::Answer;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status.
    pub status: u16,
    /// Error code.
    pub code: String,
    /// Message.
    pub message: String,
}

/// What an operation returns.
pub type Outcome = Result<serde_json::Value, Failure>;

impl Failure {
    /// A failure with its status.
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// A mistake of the client, status 400.
    pub fn client(code: &str, message: impl Into<String>) -> Self {
        Self::new(400, code, message)
    }

    /// A parameter with an invalid value.
    pub fn value(message: impl Into<String>) -> Self {
        Self::client("InvalidParameterValue", message)
    }

    /// Parameters that exclude each other.
    pub fn combination(message: impl Into<String>) -> Self {
        Self::client("InvalidParameterCombination", message)
    }

    /// A required parameter that is missing.
    pub fn missing(parameter: &str) -> Self {
        Self::client(
            "MissingParameter",
            format!("The request must contain the parameter {parameter}"),
        )
    }

    /// A mistake of the simulator itself.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// The failure for deviations from the description.
    pub fn of_problems(service: Service, problems: &[Problem]) -> Self {
        let text = problems
            .iter()
            .map(|problem| problem.text.as_str())
            .collect::<Vec<_>>()
            .join("; ");
        match (service.wire(), problems.first().map(|problem| problem.kind)) {
            (Wire::Json, _) if service == Service::Pricing => Self::client("InvalidParameterException", text),
            (Wire::Json, _) if service == Service::Quotas => Self::client("IllegalArgumentException", text),
            (Wire::Json, _) => Self::client("ValidationException", text),
            (Wire::Form(Dialect::Query), _) => Self::client("ValidationError", text),
            (_, Some(ProblemKind::Unknown)) => Self::client("UnknownParameter", text),
            (_, Some(ProblemKind::Missing)) => Self::client("MissingParameter", text),
            (_, Some(ProblemKind::Malformed) | None) => Self::client("InvalidParameterValue", text),
        }
    }

    /// The failure for a refusal of the core, in the words of a service.
    pub fn of_refusal(service: Service, refusal: &Refusal) -> Self {
        let json = service.wire() == Wire::Json;
        match refusal {
            Refusal::TooMany { .. } => match service {
                Service::Ec2 => Self::new(503, "RequestLimitExceeded", "Request limit exceeded."),
                Service::Sts => Self::client("Throttling", "Rate exceeded"),
                Service::Ssm | Service::Pricing => Self::client("ThrottlingException", "Rate exceeded"),
                Service::Quotas => Self::client("TooManyRequestsException", "Rate exceeded"),
            },
            Refusal::Server(status) if json => Self::new(
                *status,
                if *status == 503 {
                    "ServiceUnavailable"
                } else {
                    "InternalServerError"
                },
                "An error occurred on the server side.",
            ),
            Refusal::Server(status) => match status {
                503 => Self::new(
                    503,
                    "Unavailable",
                    "The server is overloaded and can't handle the request.",
                ),
                other => Self::new(*other, "InternalError", "An internal error has occurred"),
            },
            Refusal::NoCapacity => Self::new(
                500,
                "InsufficientInstanceCapacity",
                "We currently do not have sufficient capacity in the Availability Zone you requested.",
            ),
            Refusal::Quota(what) => Self::client(
                "VcpuLimitExceeded",
                format!(
                    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that the specified instance type belongs to ({what})."
                ),
            ),
            Refusal::Funds => Self::client(
                "PendingVerification",
                "Your account is currently being verified. Verification normally takes less than 2 hours.",
            ),
            Refusal::Unauthorized => Self::bad_credentials(service),
            Refusal::Expired => match service {
                Service::Ec2 => Self::client("RequestExpired", "Request has expired."),
                Service::Sts => Self::new(
                    403,
                    "ExpiredToken",
                    "The security token included in the request is expired",
                ),
                Service::Ssm | Service::Pricing | Service::Quotas => Self::client(
                    "ExpiredTokenException",
                    "The security token included in the request is expired",
                ),
            },
            Refusal::Forbidden => Self::forbidden(service),
            Refusal::Invalid(problems) => Self::client(
                if json {
                    "ValidationException"
                } else {
                    "InvalidParameterValue"
                },
                problems.join("; "),
            ),
            Refusal::Bad(text) => Self::value(text.clone()),
            Refusal::NotFound(text) => Self::client("InvalidParameterValue", text.clone()),
            Refusal::UnknownCall => match service {
                Service::Ec2 | Service::Sts => {
                    Self::client("InvalidAction", "The action is not valid for this web service.")
                }
                Service::Ssm | Service::Pricing | Service::Quotas => {
                    Self::client("UnknownOperationException", "")
                }
            },
            Refusal::Answer(_) => Self::internal("an answer is not a failure"),
        }
    }

    /// Credentials of no account.
    pub fn bad_credentials(service: Service) -> Self {
        match service {
            Service::Ec2 => Self::new(
                401,
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            ),
            Service::Sts => Self::new(
                403,
                "InvalidClientTokenId",
                "The security token included in the request is invalid.",
            ),
            Service::Ssm | Service::Pricing | Service::Quotas => Self::client(
                "UnrecognizedClientException",
                "The security token included in the request is invalid.",
            ),
        }
    }

    /// Credentials that may not do this.
    pub fn forbidden(service: Service) -> Self {
        match service {
            Service::Ec2 => Self::new(
                403,
                "UnauthorizedOperation",
                "You are not authorized to perform this operation. Encoded authorization failure message: c2ltdWxhdGVk",
            ),
            Service::Sts => Self::new(
                403,
                "AccessDenied",
                "User is not authorized to perform this operation",
            ),
            Service::Ssm | Service::Pricing | Service::Quotas => Self::client(
                "AccessDeniedException",
                "User is not authorized to perform this operation",
            ),
        }
    }

    /// An action that is not allowed to the caller of EC2.
    pub fn not_allowed(caller: &str, action: &str) -> Self {
        Self::new(
            403,
            "UnauthorizedOperation",
            format!(
                "You are not authorized to perform this operation. User: {caller} is not authorized to perform: {action} on resource: * because no identity-based policy allows the {action} action. Encoded authorization failure message: c2ltdWxhdGVk"
            ),
        )
    }

    /// The answer that says so.
    pub fn answer(&self, service: Service, namespace: &str, request_id: &str) -> Answer {
        match service.wire() {
            Wire::Form(dialect) => {
                let body = xml::error(dialect, namespace, &self.code, &self.message, request_id);
                let content_type = match dialect {
                    Dialect::Ec2 => "text/xml;charset=UTF-8",
                    Dialect::Query => "text/xml",
                };
                Answer::new(self.status, content_type, body)
            }
            Wire::Json => Answer::new(
                self.status,
                "application/x-amz-json-1.1",
                json!({"__type": self.code, "message": self.message}).to_string(),
            )
            .with("x-amzn-errortype", self.code.clone()),
        }
    }
}
