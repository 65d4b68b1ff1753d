//! Maps failures of Lambda to kinds of the contract. Pure. The codes count, not the status: a
//! shortage is a 400.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said,
};

use super::wire::Failure;

const REMEDIES: Remedies = Remedies {
    settings: "Correct the lambda settings of the Provider, or what its Pool overrides",
    credentials: "Make an API key in the console of Lambda and write it as LAMBDA_API_KEY into the Provider's Secret",
    permission: "The account may not do this; ask its owner, or Lambda",
    credit: "Put the billing of the Lambda account in order",
};

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let failure = answer.maybe::<Failure>().unwrap_or_default().error;
    let creates = answer.effect() == Effect::Creates;
    let (kind, remedy) = match failure.code.as_str() {
        "instance-operations/launch/insufficient-capacity" => (ErrorKind::NoCapacity, None),
        "global/quota-exceeded" => (
            ErrorKind::Quota(said(&failure.message)),
            Some("Return what is not needed, or ask Lambda to raise the quota of the account"),
        ),
        "global/invalid-address" => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        "global/account-inactive" => (
            ErrorKind::Permission,
            Some("Put the Lambda account in order, or ask Lambda why it is inactive"),
        ),
        "global/duplicate" | "global/conflict" => (ErrorKind::AlreadyExists, None),
        "global/object-does-not-exist" | "global/not-found" if !creates => (ErrorKind::NotFound, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &failure.code, &failure.message, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
