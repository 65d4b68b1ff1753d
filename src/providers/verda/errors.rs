//! Maps failures of Verda to kinds of the contract. Pure.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    mentions, said,
};

use super::wire::Failure;

/// What a person can do.
pub const REMEDIES: Remedies = Remedies {
    settings: "Correct the verda settings of the Provider, or what its Pool overrides",
    credentials: "Make a Cloud API credential in the console of Verda and write VERDA_CLIENT_ID and VERDA_CLIENT_SECRET into the Provider's Secret",
    permission: "Give the Cloud API credential the rights to instances, volumes, SSH keys and scripts",
    credit: "Add credit to the Verda project",
};

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let failure: Failure = answer.maybe().unwrap_or_default();
    let says = |words: &[&str]| mentions(&failure.message, words);
    let creates = answer.effect() == Effect::Creates;
    let (kind, remedy) = match answer.status.as_u16() {
        // Verda also reports a missing machine in this way.
        400 if says(&["invalid instance id"]) => (ErrorKind::NotFound, None),
        400 | 403 if says(&["quota", "limit reached", "limit exceeded"]) => (
            ErrorKind::Quota(said(&failure.message)),
            Some("Return what is not needed, or ask Verda to raise the quota of the project"),
        ),
        400 if says(&["operating system is not valid"]) => (
            ErrorKind::InvalidOrder,
            Some(
                "Write an image that this machine type supports into verda.image of the Provider, or leave it out",
            ),
        ),
        // The status of a failing server, but these words mean that nothing was made.
        503 if creates && says(&["capacity"]) => (ErrorKind::NoCapacity, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &failure.code, &failure.message, remedy)
}

/// What a refusal to delete means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is nothing to delete any more.
    Gone,
    /// Not yet: it is being made.
    NotYet,
    /// Anything else.
    Other,
}

/// Verda has no codes for these, only words.
pub fn refusal(message: &str) -> Refusal {
    if mentions(message, &["discontinued instance", "invalid instance id"]) {
        Refusal::Gone
    } else if mentions(message, &["provisioning instance"]) {
        Refusal::NotYet
    } else {
        Refusal::Other
    }
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
