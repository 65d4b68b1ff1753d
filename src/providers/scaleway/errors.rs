//! Maps failures of Scaleway to kinds of the contract. Pure. The type of a failure counts before its
//! status; older failures have no type of their own, and words tell them apart.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said, says,
};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the scaleway settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid secret key as SCW_SECRET_KEY into the Provider's Secret (console of Scaleway, IAM, API keys)",
    permission: "Give the API key the permission sets InstancesFullAccess and BlockStorageFullAccess on the project",
    credit: "Put the billing of the Scaleway organization in order, or ask Scaleway's support what is wrong",
};

/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["payment", "billing", "unpaid", "credit card"];
/// Words about a quota, where the type does not say it.
const QUOTAS: &[&str] = &["quota", "quotas"];
/// Words about a shortage, where the type does not say it.
const SHORTAGES: &[&str] = &["out of stock", "no stock", "shortage", "capacity"];
/// Words about a server or a disk that is in the middle of something.
const BUSY: &[&str] = &["should be running", "should be stopped", "in use"];

/// What to do about a quota.
const RAISE: &str =
    "Return what is not needed, or ask Scaleway's support to raise the quotas of the organization";

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let code: String = answer.json_at("/type").unwrap_or_default();
    // Which quota, right, argument or type it is about, too: names are no words about what went wrong.
    let words = answer.told(&["/message", "/help_message", "/resource", "/fields", "/details"]);
    let about = answer.told(&["/message", "/fields", "/details/0/help_message"]);
    let refuses = matches!(answer.status.as_u16(), 400 | 402 | 403 | 409 | 412);
    let says = |phrases| refuses && says(&about, phrases);
    let (kind, remedy) = match code.as_str() {
        "out_of_stock" => (ErrorKind::NoCapacity, None),
        // Nothing was done.
        "transient_state" | "precondition_failed" => (ErrorKind::Transient, None),
        // Abuse, or a debt; what is locked cannot be acted on.
        "locked" if answer.effect() == Effect::Creates => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        "locked" => (ErrorKind::Permission, Some("Ask Scaleway's support why")),
        code if code == "quotas_exceeded" || says(QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        _ if says(UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        _ if says(SHORTAGES) => (ErrorKind::NoCapacity, None),
        _ if answer.effect() == Effect::Repeatable && says(BUSY) => (ErrorKind::Transient, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &code, &words, remedy)
}

/// Whether what was to be ended is in the middle of something.
pub fn is_busy(error: &ProviderError) -> bool {
    let code = error.code.as_deref();
    matches!(code, Some("transient_state" | "precondition_failed"))
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
