//! Maps failures of TensorDock to kinds of the contract. Pure. A failure may come with a status of success; its words
//! are in one of three fields, and no list of them is published.

use serde_json::Value;
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    mentions, said, says,
};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the tensordock settings of the Provider, or what its Pool overrides",
    credentials: "Make an API token in the dashboard of TensorDock (Developer Settings) and write it as TENSORDOCK_API_TOKEN into the Provider's Secret",
    permission: "The organization may not do this, or the token of TENSORDOCK_API_TOKEN is not of it; look into the dashboard of TensorDock, or ask its support",
    credit: "Add credit to the TensorDock organization, of which it wants a dollar at least",
};

/// What to do about a quota.
const RAISE: &str = "Return what is not needed, or ask TensorDock's support to raise the limit";

/// Words about an account that cannot pay.
const UNPAID: &[&str] = &["balance", "credit", "credits", "funds", "payment", "billing"];
/// Words about a limit of the organization.
const QUOTAS: &[&str] = &["quota", "quotas", "limit", "exceed", "exceeds", "exceeded"];
/// Words about an order that is wrong as it is.
const MISTAKES: &[&str] = &["invalid", "required", "must", "validation"];
/// Parts of words about hardware that is not there any more.
const SHORTAGES: &[&str] = &["available", "capacity", "stock", "enough", "sufficient", "host"];
/// Words about a machine that does not exist.
const GONE: &[&str] = &["instance not found", "machine not found", "vm not found"];

/// Whether an answer tells a failure, also with a status of success.
pub fn is_refused(answer: &Answer) -> bool {
    let told = answer.told(&["/error", "/errors"]);
    !answer.is_success() || !matches!(told.as_str(), "" | "false") || told_status(answer).is_some()
}

/// The status of a failure that the body tells: that of a machine is a text.
fn told_status(answer: &Answer) -> Option<u16> {
    let body: Value = answer.maybe()?;
    let status = u16::try_from(body["status"].as_u64()?).ok()?;
    (400..600).contains(&status).then_some(status)
}

/// The error of a failure.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let words = answer.told(&["/error", "/message", "/errors"]);
    let status = match told_status(answer) {
        Some(told) if answer.is_success() => told,
        _ => answer.status.as_u16(),
    };
    let creates = answer.effect() == Effect::Creates;
    let is_of_order = creates && !matches!(status, 401 | 403 | 408 | 425 | 429 | 500..);
    let says = |phrases: &[&str]| says(&words, phrases);
    let (kind, remedy) = match status {
        200..300 | 400 if !creates && says(GONE) => (ErrorKind::NotFound, None),
        _ if is_of_order && says(UNPAID) => (ErrorKind::NoCredit, Some(REMEDIES.credit)),
        _ if is_of_order && says(QUOTAS) => (ErrorKind::Quota(said(&words)), Some(RAISE)),
        // Offers name no images, and settings do.
        400.. if is_of_order && says(&["image"]) => (ErrorKind::InvalidOrder, Some(REMEDIES.settings)),
        200..300 | 400 | 409 if creates && mentions(&words, SHORTAGES) => (ErrorKind::NoCapacity, None),
        // No list of the words about a shortage is published, and other hosts may take the order.
        400 | 404 | 409 if creates && !says(MISTAKES) => (ErrorKind::NoCapacity, None),
        409 if creates => (ErrorKind::InvalidOrder, Some(REMEDIES.settings)),
        _ => {
            let (operation, effect) = (answer.operation(), answer.effect());
            let mut told = Answer::new(operation, effect, "TensorDock", status, &answer.text());
            told.retry_after = answer.retry_after;
            judge(&told, &REMEDIES)
        }
    };
    answer.failure(kind, "", &words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
