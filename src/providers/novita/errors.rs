//! Maps failures of Novita to kinds of the contract. Pure. Which codes there are is not published, but for
//! `INSUFFICIENT_RESOURCE`: words tell a shortage, a quota, a lack of credit and a mistake apart.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said, says,
};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the novita settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid API key as NOVITA_API_KEY into the Provider's Secret (console of Novita, Key Management)",
    permission: "Use an API key of an account, or of a member of a team, that may make and delete GPU instances",
    credit: "Add credit to the Novita account",
};

/// What to do about a quota.
const RAISE: &str = "Return what is not needed, or ask Novita's support to raise the quota";

/// Novita's own code of a shortage.
const SHORTAGE: &[&str] = &["insufficient resource", "insufficient resources"];
/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["balance", "credit", "credits", "payment", "arrears"];
/// Words about a limit of the account.
const QUOTAS: &[&str] = &["quota", "quotas", "limit", "exceeds", "exceeded"];
/// Other words about a shortage.
const SHORTAGES: &[&str] = &["sold out", "stock", "capacity", "not enough"];
/// Words about a machine that is not there. Other things may be missing as well, so it must be an instance.
const UNKNOWN: &[&str] = &["instance not found", "instance does not exist"];

/// The error of a failure, also with a status of success.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let reason = answer.told(&["/reason"]);
    let words = answer.told(&["/message", "/error"]);
    let text = format!("{reason} {words}");
    let says = |phrases| says(&text, phrases);
    let creates = answer.effect() == Effect::Creates;
    // A failure of the service itself has no words that count: an order may have had its effect, and another one with
    // another image would make a second machine.
    let (kind, remedy) = match answer.status.as_u16() {
        401 | 429 => judge(answer, &REMEDIES),
        200..500 if creates && says(SHORTAGE) => (ErrorKind::NoCapacity, None),
        200..500 if says(UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        200..500 if creates && says(QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        200..500 if creates && says(SHORTAGES) => (ErrorKind::NoCapacity, None),
        200..500 if !creates && says(UNKNOWN) => (ErrorKind::NotFound, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, &reason, &words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
