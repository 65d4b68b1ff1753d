//! Maps failures of Vast.ai to kinds of the contract. Pure.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said, says,
};

use super::wire::Failure;

const REMEDIES: Remedies = Remedies {
    settings: "Correct the vastai settings of the Provider, or what its Pool overrides",
    credentials: "Make an API key in the console of Vast.ai and write it as VAST_API_KEY into the Provider's Secret",
    permission: "Give the API key the rights to read the account, to search offers, and to read and write instances and overlay networks; without the last, set vastai.useOverlay: false",
    credit: "Add credit to the Vast.ai account",
};

/// The error of a failure, also with HTTP 200.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let failure: Failure = answer.maybe().unwrap_or_default();
    let code = failure.error.unwrap_or_default();
    let words = failure.msg.or(failure.detail).unwrap_or_default();
    let (kind, remedy) = judged(answer, &code, &words);
    answer.failure(kind, &code, &words, remedy)
}

fn judged(answer: &Answer, code: &str, words: &str) -> (ErrorKind, Option<&'static str>) {
    let creates = answer.effect() == Effect::Creates;
    let text = format!("{code} {words}");
    let says = |phrases: &[&str]| says(&text, phrases);
    let status = answer.status.as_u16();
    // The words count more than the status: a taken offer is 404 with `invalid_args`, or 410.
    if creates
        && status < 500
        && says(&[
            "no such ask",
            "no longer available",
            "not available",
            "already rented",
        ])
    {
        return (ErrorKind::NoCapacity, None);
    }
    if status < 500
        && says(&[
            "lacks credit",
            "lacks credits",
            "insufficient credit",
            "insufficient credits",
            "no credit",
            "no credits",
            "insufficient funds",
        ])
    {
        return (ErrorKind::NoCredit, Some(REMEDIES.credit));
    }
    if creates && status < 500 && status != 429 && says(&["limit exceeded", "limit of", "quota", "quotas"]) {
        return (
            ErrorKind::Quota(said(words)),
            Some("Return what is not needed, or ask Vast.ai to raise the limit of the account"),
        );
    }
    match status {
        400 if says(&["invalid price"]) => (
            ErrorKind::NoCapacity,
            Some("Somebody bids more now; a higher vastai.bidMultiplier wins more often"),
        ),
        // Offers answer 404 to a wrong key.
        404 if says(&[
            "user key",
            "api key",
            "auth",
            "authentication",
            "authorization",
            "unauthorized",
            "not authorized",
        ]) =>
        {
            (ErrorKind::Credentials, Some(REMEDIES.credentials))
        }
        410 if creates => (ErrorKind::NoCapacity, None),
        404 => (ErrorKind::NotFound, None),
        409 => (ErrorKind::InvalidOrder, creates.then_some(REMEDIES.settings)),
        // Also 200 with success: false and no known words.
        _ => judge(answer, &REMEDIES),
    }
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
