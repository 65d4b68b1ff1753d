//! Maps failures of JarvisLabs to kinds of the contract. Pure. JarvisLabs has no codes, and refuses with a status of
//! success too: the words tell failures apart.

use serde_json::Value;
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    mentions, said, says, whole,
};

use super::{client::LOOK, wire};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the jarvislabs settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid API token as JL_API_KEY into the Provider's Secret (jarvislabs.ai, Settings, API Keys)",
    permission: "Ask JarvisLabs' support why the account may not do this",
    credit: "Add money to the wallet of the JarvisLabs account",
};

/// What to do about a quota.
const RAISE: &str = "Return what is not needed, or ask JarvisLabs' support to raise the limit";

/// Words about a token that is refused.
const DENIALS: &[&str] = &["unauthorized", "invalid token", "not authenticated"];
/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["balance", "wallet", "recharge", "credit", "credits", "payment"];
/// Words about a limit of the account.
const QUOTAS: &[&str] = &["quota", "quotas", "limit", "exceed", "exceeds", "exceeded"];
/// Words about servers that are taken.
const SHORTAGES: &[&str] = &["capacity", "available", "enough", "free", "stock", "sold out"];
/// Words about what the settings name.
const NAMED: &[&str] = &["template", "framework", "script", "hdd", "storage"];
/// Words about a machine or a key that there is not.
const GONE: &[&str] = &["not found", "does not exist", "no such"];

/// Whether an answer is a refusal: by its status, by its flag, or since it names no machine that it made.
pub fn is_refused(answer: &Answer) -> bool {
    let told: Value = answer.maybe().unwrap_or_default();
    let makes = answer.effect() == Effect::Creates;
    let made = || whole(&told["machine_id"]).is_some_and(|id| id > 0);
    !answer.is_success() || wire::success(&told) == Some(false) || makes && !made()
}

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let words = answer.told(&["/message", "/error", "/detail"]);
    let creates = answer.effect() == Effect::Creates;
    let says = |phrases| says(&words, phrases);
    let (kind, remedy) = match answer.status.as_u16() {
        200..300 if says(DENIALS) => (ErrorKind::Credentials, Some(REMEDIES.credentials)),
        // The flag is about the machine that is looked for.
        200..300 if answer.operation() == LOOK => (ErrorKind::NotFound, None),
        200..300 | 400..404 | 409 if says(UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        200..300 | 400 | 404 | 409 if says(QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        200..300 | 400 | 404 | 409 if creates && mentions(&words, SHORTAGES) => (ErrorKind::NoCapacity, None),
        200..300 if !creates && says(GONE) => (ErrorKind::NotFound, None),
        // Whether it was done is not known.
        200..300 => (answer.lost(), None),
        400 | 404 | 409 if creates && says(NAMED) => (ErrorKind::InvalidOrder, Some(REMEDIES.settings)),
        // JarvisLabs has no code for a shortage.
        400 | 404 | 409 if creates => (ErrorKind::NoCapacity, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, "", &words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
