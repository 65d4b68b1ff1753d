//! Maps failures of Vultr to kinds of the contract. Pure. There are no codes: status and words
//! count. A shortage, a limit and a mistake are all a 400.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said, says,
};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the vultr settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid API key as VULTR_API_KEY into the Provider's Secret, and admit the operator's address in the key's access control (customer portal of Vultr, Account, API)",
    permission: "Admit the operator's address in the access control of the API key, and give its user the rights to see and deploy servers (customer portal of Vultr, Account)",
    credit: "Put the billing of the Vultr account in order",
};

/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["billing", "payment", "balance", "funds", "credit card"];
/// Words about a limit of the account.
const LIMITS: &[&str] = &["limit", "limits", "maximum", "exceed", "exceeds", "exceeded"];
/// Words about a plan that a region does not have; the exact text is not documented.
const SHORTAGES: &[&str] = &[
    "invalid plan",
    "available",
    "unavailable",
    "out of stock",
    "sold out",
    "capacity",
];

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let words: String = answer.json_at("/error").unwrap_or_default();
    let creates = answer.effect() == Effect::Creates;
    let (kind, remedy) = match answer.status.as_u16() {
        400 | 403 if creates && says(&words, UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        400 | 403 if creates && says(&words, LIMITS) => (
            ErrorKind::Quota(said(&words)),
            Some("Return what is not needed, or ask Vultr's support to raise the limits of the account"),
        ),
        400 if creates && says(&words, SHORTAGES) => (ErrorKind::NoCapacity, None),
        // A machine cannot be ended in the first minutes of its installation.
        400 if says(&words, &["locked"]) => (ErrorKind::Transient, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, "", &words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
