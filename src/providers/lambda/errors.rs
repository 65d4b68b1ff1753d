//! What Lambda answers instead of what was asked for becomes a kind of the contract. Pure.
//! Its codes count, not the status: a shortage is a 400.

use skyward_core::{ErrorKind, ProviderError};

use super::wire::Failure;
use skyward_provider_kit::{
    http::{Answer, Effect},
    said,
};

/// The error of an answer that is none of success.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let failure = answer.maybe::<Failure>().unwrap_or_default().error;
    let (kind, remedy) = judge(answer, &failure.code, &failure.message);
    answer.failure(kind, &failure.code, &failure.message, remedy)
}

fn judge(answer: &Answer, code: &str, words: &str) -> (ErrorKind, Option<&'static str>) {
    let creates = answer.effect() == Effect::Creates;
    let settings = Some("Correct the lambda settings of the Provider, or what its Pool overrides");
    match (code, answer.status.as_u16()) {
        ("instance-operations/launch/insufficient-capacity", _) => (ErrorKind::NoCapacity, None),
        ("global/quota-exceeded", _) => (
            ErrorKind::Quota(said(words)),
            Some("Return what is not needed, or ask Lambda to raise the quota of the account"),
        ),
        ("global/invalid-address", _) => (
            ErrorKind::NoCredit,
            Some("Put the billing of the Lambda account in order"),
        ),
        ("global/account-inactive", _) => (
            ErrorKind::Permission,
            Some("Put the Lambda account in order, or ask Lambda why it is inactive"),
        ),
        ("global/duplicate" | "global/conflict", _) => (ErrorKind::AlreadyExists, None),
        ("global/object-does-not-exist" | "global/not-found", 400 | 404) if creates => {
            (ErrorKind::InvalidOrder, settings)
        }
        ("global/object-does-not-exist" | "global/not-found", 400 | 404) | (_, 404) => {
            (ErrorKind::NotFound, None)
        }
        (_, 401) => (
            ErrorKind::Credentials,
            Some(
                "Make an API key in the console of Lambda and write it as LAMBDA_API_KEY into the Provider's Secret",
            ),
        ),
        (_, 403) => (
            ErrorKind::Permission,
            Some("The account may not do this; ask its owner, or Lambda"),
        ),
        (_, 429) => (ErrorKind::RateLimited(None), None),
        (_, 400..500) => (ErrorKind::InvalidOrder, settings.filter(|_| creates)),
        _ if creates => (ErrorKind::Indeterminate, None),
        _ => (ErrorKind::Transient, None),
    }
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
