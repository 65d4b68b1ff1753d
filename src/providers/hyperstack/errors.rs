//! Maps failures of Hyperstack to kinds of the contract. Pure. A shortage, a quota, a lack of credit, a
//! machine in the middle of something and a mistake are all HTTP 400, and words tell them apart.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    mentions, said, says,
    shared::SSH_KEYS,
};

use super::client::ENVIRONMENTS;

const REMEDIES: Remedies = Remedies {
    settings: "Correct the hyperstack settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid API key as HYPERSTACK_API_KEY into the Provider's Secret (console of Hyperstack, API Keys)",
    permission: "Give the user of the API key a role with the permissions that docs/providers/hyperstack.md lists",
    credit: "Add credit to the Hyperstack organization",
};

/// What to do about a quota.
const RAISE: &str = "Return what is not needed, or ask Hyperstack's support to raise the quota";

/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["credit", "credits", "balance", "billing", "payment", "funds"];
/// Words about a limit of the organization or of an environment.
const QUOTAS: &[&str] = &["quota", "quotas", "limit", "exceed", "exceeds", "exceeded"];
/// Words about a flavor that a region does not have now.
const SHORTAGES: &[&str] = &["stock", "capacity", "available", "enough", "resources"];
/// Words about a machine in the middle of something.
const BUSY: &[&str] = &["being created", "being deleted", "in progress"];
/// Words about what was made right before the order, and is not found yet.
const NOT_YET: &[&str] = &["environment", "key", "keypair"];
/// Words about what the settings or the Offer name. Such words may say of which environment.
const NAMED: &[&str] = &["image", "flavor"];

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let text = |pointer: &str| answer.json_at::<String>(pointer).unwrap_or_default();
    let words = text("/message");
    let creates = answer.effect() == Effect::Creates;
    let says = |phrases| says(&words, phrases);
    let (kind, remedy) = match answer.status.as_u16() {
        400 | 409 if !creates && says(BUSY) => (ErrorKind::Transient, None),
        // A 403 is a permission that is missing, also that to read a credit or a limit.
        400 | 402 | 409 if says(UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        400 | 409 if says(QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        400 | 405 | 409 if creates && mentions(&words, SHORTAGES) => (ErrorKind::NoCapacity, None),
        // Nothing was made.
        404 if creates && says(NOT_YET) && !says(NAMED) => (ErrorKind::Transient, None),
        404 if answer.operation() == SSH_KEYS.add => (ErrorKind::Transient, None),
        404 if answer.operation() == ENVIRONMENTS.add => (ErrorKind::InvalidOrder, Some(REMEDIES.settings)),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &text("/error_reason"), &words, remedy)
}

/// Whether the machine that was to be ended is in the middle of something.
pub fn is_busy(error: &ProviderError) -> bool {
    error.kind == ErrorKind::Transient && says(&error.message, BUSY)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
