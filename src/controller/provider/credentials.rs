//! The Secret with the credentials of an account: read anew before each look at the
//! account. [`super::rotation`] says when it changed, so that a rotated one is used at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::{Api, Client};
use skyward_api::Provider as ProviderObject;
use skyward_core::{Credentials, ErrorKind, ProviderError, Secret};
use tokio::time::timeout;

use super::rotation;

/// Longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(10);

/// Credentials, and which version of the Secret they are.
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
    let secret = match timeout(DEADLINE, api.get_opt(name)).await {
        Ok(Ok(Some(secret))) => secret,
        Ok(Ok(None)) => {
            return Err(failed(
                ErrorKind::Credentials,
                format!(
                    "there is no Secret \"{name}\" in namespace \"{namespace}\"; create it there, not in the namespace of a Pool"
                ),
            ));
        }
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
            return Err(failed(
                ErrorKind::Permission,
                format!(
                    "the operator may not read Secret \"{name}\" in namespace \"{namespace}\"; restore the Role of the chart"
                ),
            ));
        }
        // The message of any other error may quote what it could not read.
        Ok(Err(_)) | Err(_) => {
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

/// What is in the Secret. One without keys was not filled yet, or was emptied to revoke them:
/// it is not the same as none, with which some clouds take the operator's own identity.
fn of_secret(name: &str, namespace: &str, secret: SecretObject) -> Result<Read, ProviderError> {
    let version = rotation::version(&secret);
    let mut keys = Vec::new();
    for (key, value) in secret.data.unwrap_or_default() {
        let text = String::from_utf8(value.0).map_err(|_| {
            failed(
                ErrorKind::Credentials,
                format!("key {key} of Secret \"{name}\" is not text; write it without a second base64"),
            )
        })?;
        // A trailing line feed is what `echo` leaves; no credential has one.
        keys.push((key, Secret::new(text.trim_end_matches(['\r', '\n']))));
    }
    if keys.is_empty() {
        return Err(failed(
            ErrorKind::Credentials,
            format!(
                "Secret \"{name}\" in namespace \"{namespace}\" is empty; write the keys into it that the page of the provider names, or leave credentialsSecretRef out where none are needed"
            ),
        ));
    }
    Ok(Read {
        credentials: Credentials::new(keys),
        version,
    })
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
            assert_eq!(error.kind, ErrorKind::Credentials);
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
        assert_eq!(error.kind, ErrorKind::Credentials);
        assert!(error.message.contains("key TOKEN of Secret"), "{error}");
    }
}
