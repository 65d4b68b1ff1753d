//! Maps failures of DigitalOcean to kinds of the contract. Pure. Codes say no more than the status
//! does: a shortage, a limit and a mistake are all `unprocessable_entity`, and words tell them
//! apart.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said, says,
};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the digitalocean settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid token as DIGITALOCEAN_TOKEN into the Provider's Secret (control panel of DigitalOcean, API, Tokens)",
    permission: "Give the token the scopes that docs/providers/digitalocean.md lists, and ask DigitalOcean's support for access to GPU Droplets where the team has none",
    credit: "Put the billing of the DigitalOcean team in order",
};

/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["billing", "payment", "past due", "balance", "card", "locked"];
/// Words about a limit of the account, which is 0 for GPUs until somebody asks for them.
const LIMITS: &[&str] = &[
    "limit",
    "limits",
    "quota",
    "exceed",
    "exceeds",
    "exceeded",
    "not enabled",
];
/// Words about a size that a region does not have.
const SHORTAGES: &[&str] = &["available", "unavailable", "out of stock", "sold out", "capacity"];

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let text = |pointer: &str| answer.json_at::<String>(pointer).unwrap_or_default();
    let words = text("/message");
    let creates = answer.effect() == Effect::Creates;
    let (kind, remedy) = match answer.status.as_u16() {
        400 | 403 | 422 if creates && says(&words, UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        400 | 403 | 422 if creates && says(&words, LIMITS) => (
            ErrorKind::Quota(said(&words)),
            Some("Return what is not needed, or ask DigitalOcean's support to raise the limits of the team"),
        ),
        400 | 422 if creates && says(&words, SHORTAGES) => (ErrorKind::NoCapacity, None),
        // Another action is under way: "Droplet already has a pending event."
        422 if says(&words, &["pending event"]) => (ErrorKind::Transient, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &text("/id"), &words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
