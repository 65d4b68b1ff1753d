//! Maps failures of Compute Engine to kinds of the contract: of answers, and of operations, which fail after their
//! call was answered with success. Pure. A quota, a limit of rate and a missing right are all HTTP 403, and the
//! reason tells them apart.

use serde_json::Value;
use skyward_core::{
    ErrorKind, ProviderError,
    machine::{Failure, FailureKind},
};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    mentions, said, says,
    text::message,
};

use super::{client::FIREWALLS, config::region_of, wire::Operation};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the gcp settings of the Provider, or what its Pool overrides",
    credentials: CREDENTIALS,
    permission: "Give the service account the permissions that docs/providers/gcp.md lists, on the project",
    credit: "Put the billing of the project in order (console of Google Cloud, Billing)",
};
/// What to do where no token is given, or none is taken.
pub const CREDENTIALS: &str = "Write the JSON file of a service account's key as GOOGLE_APPLICATION_CREDENTIALS into the Provider's Secret, or give the operator's service account a Workload Identity";
/// What to do about a quota.
const RAISE: &str = "Return what is not needed, choose another region or market, or ask Google to raise the quota (console of Google Cloud, Quotas)";
/// What to do about a project that has not switched the API on.
const ENABLE: &str =
    "Enable the Compute Engine API of the project (gcloud services enable compute.googleapis.com)";

/// What to do about a policy of the organization.
const POLICY: &str = "Ask the administrators of the organization for an exception for the project, or choose settings that the policy allows (docs/providers/gcp.md)";

/// Reasons and codes about what a zone does not have now.
const SHORTAGES: &[&str] = &[
    "resource_pool_exhausted",
    "stockout",
    "resourcesunavailable",
    "does not have enough resources available",
];
/// The same about quotas.
const QUOTAS: &[&str] = &["quotaexceeded", "quota_exceeded"];
/// The same about limits of rate.
const RATES: &[&str] = &["ratelimitexceeded", "rate_limit_exceeded"];
/// The same about a project that cannot pay.
const UNPAID: &[&str] = &["billingnotenabled", "billing_disabled", "billing to be enabled"];
/// The same about an API that is switched off.
const DISABLED: &[&str] = &["accessnotconfigured", "service_disabled"];
/// The same about what is in the middle of something.
const BUSY: &[&str] = &[
    "resourcenotready",
    "resource_not_ready",
    "resourceinusebyanotherresource",
    "conditionnotmet",
];
/// Names of policies of an organization, whose violation has the status and the reason of a conflict that passes.
const POLICIES: &[&str] = &["constraints/"];
/// Names of collections, in words about a machine that a zone does not sell.
const SOLD: &[&str] = &["machinetypes/", "acceleratortypes/", "disktypes/"];

/// The error of a failed answer.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let text = |pointer: &str| answer.json_at::<String>(pointer).unwrap_or_default();
    let (words, reason) = (text("/error/message"), text("/error/errors/0/reason"));
    let code = if reason.is_empty() {
        text("/error/status")
    } else {
        reason
    };
    let about = format!("{code} {} {words}", answer.told(&["/error/details"]));
    let creates = answer.effect() == Effect::Creates;
    let status = answer.status.as_u16();
    let (kind, remedy) = match status {
        403 | 429 if mentions(&about, RATES) => (ErrorKind::RateLimited(answer.retry_after), None),
        403 if mentions(&about, DISABLED) => (ErrorKind::Permission, Some(ENABLE)),
        400 | 403 if mentions(&about, UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        400 | 403 | 409 | 429 if mentions(&code, QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        // Nothing was made.
        400..600 if creates && mentions(&about, SHORTAGES) => (ErrorKind::NoCapacity, None),
        404 if creates && mentions(&words, SOLD) => (ErrorKind::NoCapacity, None),
        400 | 412 if mentions(&words, POLICIES) => (ErrorKind::InvalidOrder, Some(POLICY)),
        400 | 409 | 412 if mentions(&code, BUSY) => (ErrorKind::Transient, None),
        // A rule for a network that does not exist, say: the order that needs the rule is refused as it is.
        400 | 404 if answer.operation() == FIREWALLS.add => {
            (ErrorKind::InvalidOrder, Some(REMEDIES.settings))
        }
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &code, &words, remedy)
}

/// The error of an operation that failed: then there is nothing of what it was to make.
pub fn of_operation(operation: &Operation, what: &'static str) -> Option<ProviderError> {
    let errors = operation.error["errors"]
        .as_array()
        .filter(|_| operation.is_done())?;
    let text = |error: &Value, field: &str| error[field].as_str().unwrap_or_default().to_owned();
    let first = errors.first()?;
    let (code, words) = (text(first, "code"), text(first, "message"));
    let about = format!("{code} {words}");
    let (kind, remedy) = match operation.http_error_status_code {
        _ if mentions(&about, SHORTAGES) => (ErrorKind::NoCapacity, None),
        _ if mentions(&code, QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        429 => (ErrorKind::RateLimited(None), None),
        _ if mentions(&about, RATES) => (ErrorKind::RateLimited(None), None),
        _ if mentions(&code, &["already_exists"]) => (ErrorKind::AlreadyExists, None),
        _ if mentions(&words, POLICIES) => (ErrorKind::InvalidOrder, Some(POLICY)),
        _ if mentions(&code, BUSY) => (ErrorKind::Transient, None),
        403 => (ErrorKind::Permission, Some(REMEDIES.permission)),
        404 if mentions(&words, SOLD) => (ErrorKind::NoCapacity, None),
        400..500 => (ErrorKind::InvalidOrder, Some(REMEDIES.settings)),
        _ => (ErrorKind::Transient, None),
    };
    let mut error = ProviderError::new(kind, what, message(&words, "Google says no more", remedy));
    error.code = Some(said(&code)).filter(|code| !code.is_empty());
    Some(error)
}

/// The same error of an order in this zone: of a quota of the zone's region, which all its zones have in common, it
/// tells the region.
pub fn in_zone(mut error: ProviderError, zone: &str) -> ProviderError {
    let region = region_of(zone);
    if let ErrorKind::Quota(words) = &error.kind
        && says(words, &[&format!("in region {region}")])
    {
        error.quota_region = Some(region.to_owned());
    }
    error
}

/// Whether what was to be ended is in the middle of something.
pub fn is_busy(error: &ProviderError) -> bool {
    let code = error.code.as_deref().unwrap_or_default();
    error.kind == ErrorKind::Transient && mentions(code, BUSY)
}

/// Why a machine whose order was accepted was not made after all.
pub fn failure(error: ProviderError) -> Failure {
    let kind = match error.kind {
        ErrorKind::NoCapacity | ErrorKind::Quota(_) => FailureKind::NoCapacity,
        _ => FailureKind::Other,
    };
    let message = format!(
        "Google accepted the order and could not make the machine: {}",
        error.message
    );
    Failure {
        kind,
        message,
        quota_region: error.quota_region,
    }
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
