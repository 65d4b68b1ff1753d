//! Maps errors of the API server to kinds of the contract. Pure.

use std::time::Duration;

use kube::core::Status;
use skyward_core::{ErrorKind, NotLeading, ProviderError};
use skyward_provider_kit::{chain, http::Effect};

/// The error of one call.
pub fn provider_error(operation: &'static str, effect: Effect, error: &kube::Error) -> ProviderError {
    if let Some(refused) = NotLeading::caused(error) {
        return refused.of(operation);
    }
    match error {
        kube::Error::Api(status) => from_status(operation, effect, status),
        other => ProviderError::new(effect.lost(), operation, chain(other)),
    }
}

/// The call did not end within its deadline.
pub fn timed_out(operation: &'static str, effect: Effect, after: Duration) -> ProviderError {
    ProviderError::new(
        effect.lost(),
        operation,
        format!("the API server did not answer within {} s", after.as_secs()),
    )
}

fn from_status(operation: &'static str, effect: Effect, status: &Status) -> ProviderError {
    let (kind, remedy) = judge(effect, status);
    let message = match remedy {
        Some(remedy) => format!("{}. {remedy}", status.message.trim_end_matches('.')),
        None => status.message.clone(),
    };
    ProviderError {
        kind,
        operation,
        code: (!status.reason.is_empty()).then(|| status.reason.clone()),
        message,
        quota_region: None,
    }
}

fn judge(effect: Effect, status: &Status) -> (ErrorKind, Option<&'static str>) {
    let said = status.message.as_str();
    let details = status.details.as_ref();
    let cause = |reason: &str| details.is_some_and(|d| d.causes.iter().any(|cause| cause.reason == reason));
    if cause("NamespaceTerminating") || said.contains("because it is being terminated") {
        return (
            ErrorKind::MachineFailed,
            Some("Nothing can be made in a namespace that is being deleted"),
        );
    }
    match status.code {
        401 => (
            ErrorKind::Credentials,
            Some("The operator's own service account is refused; reinstall its RBAC"),
        ),
        403 => forbidden(said),
        404 if effect == Effect::Creates => (
            ErrorKind::MachineFailed,
            Some("Its namespace is gone, and with it the Pool"),
        ),
        404 => (ErrorKind::NotFound, None),
        409 if status.is_already_exists() => (ErrorKind::AlreadyExists, None),
        409 => (ErrorKind::Transient, None),
        400 | 413 | 422 => (
            ErrorKind::InvalidOrder,
            Some("Correct the Provider's container settings"),
        ),
        429 => {
            let after = details
                .map(|d| d.retry_after_seconds)
                .filter(|seconds| *seconds > 0);
            (
                ErrorKind::RateLimited(after.map(|seconds| Duration::from_secs(seconds.into()))),
                None,
            )
        }
        // The webhook runs before anything is stored.
        _ if said.contains("failed calling webhook") => (
            ErrorKind::Transient,
            Some("An admission webhook of this cluster does not answer"),
        ),
        _ => (effect.lost(), None),
    }
}

fn forbidden(said: &str) -> (ErrorKind, Option<&'static str>) {
    let has = |sign: &str| said.contains(sign);
    if has("exceeded quota") {
        return (
            ErrorKind::Quota(said.to_owned()),
            Some("Raise the namespace's ResourceQuota, or ask for fewer or smaller machines in the Pool"),
        );
    }
    // The default account of a new namespace appears a moment after it.
    let new = has("error looking up service account") && has("\"default\" not found");
    // Quotas on resources demand that each Pod names its amounts.
    let remedy = if has("failed quota") && has("must specify") {
        "Set cpu and memory in the Pool, or resources in the Provider's container settings"
    } else if has("violates PodSecurity") {
        "Set container.securityProfile: Restricted in the Provider, or admit such Pods by the namespace's label pod-security.kubernetes.io/enforce"
    } else if new {
        return (ErrorKind::Transient, None);
    } else if has("error looking up service account") {
        "Create the service account in the Pool's namespace, or correct container.serviceAccountName of the Provider"
    } else if has("no RuntimeClass") || has("RuntimeClass") && has("not found") {
        "Create the RuntimeClass, or correct container.runtimeClassName of the Provider"
    } else if (has("maximum ") || has("minimum ")) && has(" usage per ") || has("limit to request ratio") {
        // Such as: maximum memory usage per Container is 1Gi, but limit is 2Gi
        "Ask for amounts in the Pool that the namespace's LimitRange admits, or change the LimitRange"
    } else if has("admission webhook") || has("ValidatingAdmissionPolicy") {
        "A policy of this cluster refuses such Pods"
    } else if has(" cannot ") && has("User ") {
        return (
            ErrorKind::Permission,
            Some(
                "The operator's role lacks this right; reinstall its RBAC, with the namespace among the chart's namespaces and rbac.container left on",
            ),
        );
    } else {
        return (ErrorKind::InvalidOrder, None);
    };
    (ErrorKind::InvalidOrder, Some(remedy))
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
