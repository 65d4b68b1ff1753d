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
    let failed = |kind, message: String| ProviderError::new(kind, "read the credentials", message);
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
    Ok(Read {
        credentials: Credentials::new(keys),
        version,
    })
}
