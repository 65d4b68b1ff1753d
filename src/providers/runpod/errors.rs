//! Maps failures of RunPod to kinds of the contract. Pure.

use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Answer, Effect, Remedies, judge},
    said, says,
};

use super::wire::{GraphError, Problem};

const REMEDIES: Remedies = Remedies {
    settings: "Correct the runpod settings of the Provider, or what its Pool overrides",
    credentials: "Make an API key in the console of RunPod and write it as RUNPOD_API_KEY into the Provider's Secret",
    permission: "Give the API key the right to read and write, over REST and GraphQL",
    credit: "Add credit to the RunPod account",
};

/// The error of a failure over REST.
pub fn provider_error(answer: &Answer) -> ProviderError {
    let problem: Problem = answer.maybe().unwrap_or_default();
    let creates = answer.effect() == Effect::Creates;
    let (kind, remedy) = match answer.status.as_u16() {
        // 400: a rule that is broken, or no such machine free: RunPod does not tell them
        // apart. 403: this account may not rent this machine.
        400 | 403 if creates => (ErrorKind::NoCapacity, None),
        400 | 422 => (ErrorKind::InvalidOrder, Some(REMEDIES.settings)),
        404 if creates => (
            ErrorKind::InvalidOrder,
            Some("Something that the runpod settings name does not exist"),
        ),
        409 => (ErrorKind::Transient, None),
        _ => judge(answer, &REMEDIES),
    };
    let words: Vec<String> = [problem.detail, problem.errors.join("; ")]
        .iter()
        .map(|text| said(text))
        .filter(|text| !text.is_empty())
        .collect();
    answer.failure(kind, &problem.title, &words.join(". "), remedy)
}

/// The error of an answer of GraphQL with HTTP 200.
pub fn graph_error(answer: &Answer, errors: &[GraphError]) -> ProviderError {
    let first = errors.first().cloned().unwrap_or_default();
    let code = first.extensions.and_then(|more| more.code).unwrap_or_default();
    let says = |phrases: &[&str]| says(&first.message, phrases);
    let (kind, remedy) = match code.as_str() {
        "SUPPLY_CONSTRAINT" => (ErrorKind::NoCapacity, None),
        "UNAUTHENTICATED" | "UNAUTHORIZED" => (ErrorKind::Credentials, Some(REMEDIES.credentials)),
        "FORBIDDEN" => (ErrorKind::Permission, Some(REMEDIES.permission)),
        // The words first: codes are often left out.
        _ if says(&["not authorized", "unauthorized"]) => {
            (ErrorKind::Credentials, Some(REMEDIES.credentials))
        }
        _ if says(&["forbidden", "access denied", "permission", "permissions"]) => {
            (ErrorKind::Permission, Some(REMEDIES.permission))
        }
        _ if says(&[
            "no longer any instances available",
            "no instances available",
            "supply",
        ]) =>
        {
            (ErrorKind::NoCapacity, None)
        }
        _ if says(&["balance", "insufficient funds", "credit", "credits"]) => {
            (ErrorKind::NoCredit, Some(REMEDIES.credit))
        }
        // Somebody bid more since the offers were read.
        _ if says(&["bid", "bids", "outbid"]) => (
            ErrorKind::NoCapacity,
            Some("A higher runpod.bidMultiplier wins more often"),
        ),
        _ if says(&["spend limit", "quota", "quotas", "maximum number", "your limit"]) => {
            (ErrorKind::Quota(said(&first.message)), None)
        }
        "BAD_REQUEST" | "BAD_USER_INPUT" | "GRAPHQL_VALIDATION_FAILED" | "GRAPHQL_PARSE_FAILED" => {
            (ErrorKind::InvalidOrder, Some(REMEDIES.settings))
        }
        _ => (answer.lost(), None),
    };
    let words = if first.message.trim().is_empty() {
        "RunPod gave no reason"
    } else {
        &first.message
    };
    answer.failure(kind, &code, words, remedy)
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
