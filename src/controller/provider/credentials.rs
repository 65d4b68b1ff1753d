//! The Secret with the credentials of an account: read anew before each look at the
//! account. [`super::rotation`] says when it changed, so that a rotated one is used at once.

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::{Api, Client};
use skyward_api::{Provider as ProviderObject, provider::ProviderSpec};
use skyward_core::{CredentialKey, Credentials, ErrorKind, ProviderError, Secret};

use super::rotation;

/// Credentials, and the version of their Secret.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub credentials: Credentials,
    /// UID and resource version; `""` without a Secret.
    pub version: String,
}

/// Reads the Secret that the Provider names, in the namespace of the operator.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    provider: &ProviderObject,
) -> Result<Read, ProviderError> {
    let Some(reference) = &provider.spec.credentials_secret_ref else {
        return Ok(Read::default());
    };
    let name = &reference.name;
    let api: Api<SecretObject> = Api::namespaced(client.clone(), namespace);
    let secret = match api.get_opt(name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            return Err(failed(
                ErrorKind::CredentialsMissing,
                format!("there is no Secret \"{name}\" in namespace \"{namespace}\""),
            ));
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            return Err(failed(
                ErrorKind::CredentialsMissing,
                format!(
                    "the operator may not read Secret \"{name}\" in namespace \"{namespace}\"; restore the Role of the chart"
                ),
            ));
        }
        // The message of any other error may quote the Secret's content.
        Err(_) => {
            return Err(failed(
                ErrorKind::Transient,
                format!("the API server did not give Secret \"{name}\" of namespace \"{namespace}\""),
            ));
        }
    };
    of_secret(name, namespace, secret)
}

fn failed(kind: ErrorKind, message: String) -> ProviderError {
    ProviderError::new(kind, "read the credentials", message)
}

/// The credentials in the Secret. A Secret without keys was not filled yet, or was emptied to
/// revoke them: that is not the same as no Secret, with which some clouds take the operator's own
/// identity.
fn of_secret(name: &str, namespace: &str, secret: SecretObject) -> Result<Read, ProviderError> {
    let version = rotation::version(&secret);
    let mut keys = Vec::new();
    for (key, value) in secret.data.unwrap_or_default() {
        let text = String::from_utf8(value.0).map_err(|_| {
            failed(
                ErrorKind::CredentialsMissing,
                format!("key {key} of Secret \"{name}\" is not text; write it without a second base64"),
            )
        })?;
        // `echo` leaves a trailing line feed; no credential has one.
        keys.push((key, Secret::new(text.trim_end_matches(['\r', '\n']))));
    }
    if keys.is_empty() {
        return Err(failed(
            ErrorKind::CredentialsMissing,
            format!("Secret \"{name}\" in namespace \"{namespace}\" is empty"),
        ));
    }
    Ok(Read {
        credentials: Credentials::new(keys),
        version,
    })
}

/// The problem with its remedy: which keys of which Secret, in which namespace. Clouds know nothing
/// of Secrets, so this is added here for all of them.
pub(super) fn explained(
    problem: ProviderError,
    spec: &ProviderSpec,
    namespace: &str,
    keys: &[CredentialKey],
) -> ProviderError {
    let is_missing = match problem.kind {
        ErrorKind::CredentialsMissing => true,
        ErrorKind::Credentials | ErrorKind::Permission => false,
        _ => return problem,
    };
    let required: Vec<&str> = keys
        .iter()
        .filter(|key| key.required)
        .map(|key| key.name)
        .collect();
    let all: Vec<&str> = keys.iter().map(|key| key.name).collect();
    let needs = required.join(", ");
    let secret = spec.credentials_secret_ref.as_ref().map(|secret| &secret.name);
    let said = problem.message.trim_end_matches(['.', ' ']);
    let message = match (secret, is_missing) {
        // Machines that are Pods need no credentials.
        (None, _) if all.is_empty() => return problem,
        (None, false) => format!("{said}. The Provider names no Secret, so these are the operator's own"),
        // Such a cloud takes the operator's identity, and says itself where it looked for it.
        (None, true) if required.is_empty() => return problem,
        (None, true) => format!(
            "the Provider names no Secret. Make one with {needs} in namespace \"{namespace}\", the operator's, and name it in credentialsSecretRef"
        ),
        (Some(secret), true) if required.is_empty() => format!(
            "{said}. Secret \"{secret}\" of namespace \"{namespace}\", the operator's and not a Pool's, may have the keys {}; it is read again as soon as it changes",
            all.join(", ")
        ),
        (Some(secret), true) => format!(
            "{said}. Write {needs} into Secret \"{secret}\" of namespace \"{namespace}\", the operator's and not a Pool's; it is read again as soon as it changes"
        ),
        (Some(secret), false) => format!(
            "{said}. They are {} of Secret \"{secret}\" in namespace \"{namespace}\"; it is read again as soon as it changes",
            if required.is_empty() { all } else { required }.join(", ")
        ),
    };
    ProviderError { message, ..problem }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(data: &Value) -> Result<Read, ProviderError> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "data": data,
            "metadata": { "name": "keys", "uid": "u", "resourceVersion": "7" },
        });
        of_secret("keys", "operator", serde_json::from_value(secret).unwrap())
    }

    #[test]
    fn a_secret_without_keys_is_not_the_same_as_no_secret() {
        for empty in [json!({}), Value::Null] {
            let error = of(&empty).unwrap_err();
            assert_eq!(error.kind, ErrorKind::CredentialsMissing);
            assert!(
                error
                    .message
                    .contains("Secret \"keys\" in namespace \"operator\" is empty"),
                "{error}"
            );
        }
    }

    #[test]
    fn which_keys_there_must_be_says_the_provider() {
        // "x" and a line feed.
        let read = of(&json!({ "UNKNOWN": "eAo=" })).unwrap();
        assert_eq!(read.version, "u/7");
        assert_eq!(read.credentials.get("UNKNOWN").map(Secret::expose), Some("x"));
        let error = read.credentials.require("TOKEN").unwrap_err();
        assert!(error.message.contains("has no key TOKEN"), "{error}");
    }

    #[test]
    fn what_is_no_text_is_named_by_its_key() {
        let error = of(&json!({ "TOKEN": "/w==" })).unwrap_err();
        assert_eq!(error.kind, ErrorKind::CredentialsMissing);
        assert!(error.message.contains("key TOKEN of Secret"), "{error}");
    }

    const KEYS: &[CredentialKey] = &[
        CredentialKey {
            name: "ID",
            required: true,
            what: "",
        },
        CredentialKey {
            name: "TOKEN",
            required: true,
            what: "",
        },
        CredentialKey {
            name: "SESSION",
            required: false,
            what: "",
        },
    ];

    fn said(kind: ErrorKind, message: &str, secret: Option<&str>, keys: &[CredentialKey]) -> String {
        let spec = json!({
            "verda": {}, "allowedNamespaces": {},
            "credentialsSecretRef": secret.map(|name| json!({ "name": name })),
        });
        let spec = serde_json::from_value(spec).unwrap();
        let problem = ProviderError::new(kind, "look", message);
        explained(problem, &spec, "operator", keys).message
    }

    #[test]
    fn what_is_missing_or_refused_is_named_by_secret_key_and_namespace() {
        use ErrorKind::{Credentials, CredentialsMissing, Permission, Transient};
        assert_eq!(
            said(
                CredentialsMissing,
                "the Secret has no key TOKEN",
                Some("keys"),
                KEYS
            ),
            "the Secret has no key TOKEN. Write ID, TOKEN into Secret \"keys\" of namespace \"operator\", the operator's and not a Pool's; it is read again as soon as it changes"
        );
        for kind in [Credentials, Permission] {
            assert_eq!(
                said(kind, "Forbidden. Ask the cloud.", Some("keys"), KEYS),
                "Forbidden. Ask the cloud. They are ID, TOKEN of Secret \"keys\" in namespace \"operator\"; it is read again as soon as it changes"
            );
        }
        assert_eq!(
            said(CredentialsMissing, "the Secret has no key ID", None, KEYS),
            "the Provider names no Secret. Make one with ID, TOKEN in namespace \"operator\", the operator's, and name it in credentialsSecretRef"
        );
        // No key is required, as at AWS, whose own message has the remedy.
        let optional = &KEYS[2..];
        assert_eq!(said(CredentialsMissing, "none", None, optional), "none");
        assert!(
            said(CredentialsMissing, "none", Some("keys"), optional).contains("may have the keys SESSION;")
        );
        assert!(said(Credentials, "no", None, KEYS).ends_with("these are the operator's own"));
        // Pods need no credentials, and other problems are not about them.
        assert_eq!(
            said(Permission, "pods is forbidden", None, &[]),
            "pods is forbidden"
        );
        assert_eq!(said(Transient, "later", Some("keys"), KEYS), "later");
    }
}
