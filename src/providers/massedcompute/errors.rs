//! Maps failures of Massed Compute to kinds of the contract. Pure. There are no codes: words tell failures of one
//! status apart. A failure of 5xx says nothing about whether an order was carried out, whatever its words are.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    mentions, said, says,
    shared::SSH_KEYS,
};

use super::client::TERMINATE;

const REMEDIES: Remedies = Remedies {
    settings: "Correct the massedcompute settings of the Provider, or what its Pool overrides",
    credentials: "Write a valid API token as MASSED_API_KEY into the Provider's Secret (console of Massed Compute, Settings, API)",
    permission: "Write an API token with full access as MASSED_API_KEY into the Provider's Secret: a read-only one orders and ends nothing",
    credit: "Set a recharge amount and its threshold in the billing of the Massed Compute account",
};

/// What to do about an image that a product does not support.
const OTHER_IMAGE: &str =
    "Write an image that the product supports into massedcompute.imageId of the Provider, or leave it out";
/// What to do about a limit.
const RAISE: &str = "Return what is not needed, or ask Massed Compute's support to raise the limit";
/// What to do about a key that is refused.
const NO_KEY: &str = "If it stays so, ask Massed Compute's support why it takes no SSH key";

/// Longest body that is words and no page.
const LONGEST: usize = 300;

/// Words about a machine that is not there.
const NOT_THERE: &[&str] = &["no valid vms", "no valid vm"];
/// Words about the image.
const IMAGE: &[&str] = &["image", "images", "imageid"];
/// Words about a key that was made right before the order, and is not found yet.
const KEY: &[&str] = &["ssh key", "ssh keys", "sshkey", "sshkeys"];
/// Words about an account that cannot pay.
const UNPAID: &[&str] = &[
    "billing", "payment", "funds", "balance", "credit", "credits", "recharge",
];
/// Words about a limit of the account.
const QUOTAS: &[&str] = &["quota", "quotas", "limit", "limits", "maximum"];
/// Words about a product that cannot be had now.
const SHORTAGES: &[&str] = &[
    "capacity",
    "failed to launch",
    "out of stock",
    "sold out",
    "available",
    "insufficient",
    "product not found",
];

/// The words of a failure. Not every failure is JSON.
fn words(answer: &Answer) -> String {
    let told = answer.told(&["/message", "/error"]);
    let text = answer.text();
    let is_text = text.len() <= LONGEST && !text.trim_start().starts_with(['{', '[', '<']);
    if told.is_empty() && is_text {
        text.trim_matches(['"', '\n', ' ']).to_owned()
    } else {
        told
    }
}

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let words = words(answer);
    let creates = answer.effect() == Effect::Creates;
    let operation = answer.operation();
    let says = |phrases| says(&words, phrases);
    let (kind, remedy) = match answer.status.as_u16() {
        _ if operation == TERMINATE && says(NOT_THERE) => (ErrorKind::NotFound, None),
        400 | 404 | 409 | 422 if creates && says(IMAGE) => (ErrorKind::InvalidOrder, Some(OTHER_IMAGE)),
        // Nothing was made.
        400 | 404 | 409 | 422 if creates && says(KEY) => (ErrorKind::Transient, None),
        400 | 404 | 409 | 422 if creates && says(UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        400 | 404 | 409 | 422 if creates && says(QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        400 | 404 | 409 | 422 if creates && mentions(&words, SHORTAGES) => (ErrorKind::NoCapacity, None),
        // Massed Compute is known to refuse valid keys at times.
        400 | 422 if operation == SSH_KEYS.add => (ErrorKind::Transient, Some(NO_KEY)),
        400 | 409 | 422 if operation == TERMINATE => (ErrorKind::Transient, None),
        _ => judge(answer, &REMEDIES),
    };
    answer.failure(kind, "", &words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
