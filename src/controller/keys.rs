//! The SSH key pair of a Pool: a Secret in the operator's namespace, named by the UID
//! of the Pool.
//!
//! The Secret lies there so that users of the Pool's namespace cannot read the private key. An
//! owner reference cannot cross namespaces, so the Pool's finalizer deletes it.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, api::core::v1::Secret as SecretObject, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use skyward_api::{condition::cut, labels};
use skyward_core::Secret;
use skyward_remote::key::{KeyError, generate_keypair};

/// Entry of the private key.
const PRIVATE: &str = "id_ed25519";
/// Entry of the public key.
const PUBLIC: &str = "id_ed25519.pub";

/// A Pool's key pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolKey {
    /// OpenSSH form.
    pub private: Secret,
    /// The line for `authorized_keys`.
    pub public: String,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not respond.
    #[error("could not {0} the Secret with the Pool's key")]
    Api(&'static str, #[source] kube::Error),
    /// No pair could be made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The Secret exists and lacks an entry.
    #[error(
        "the Secret \"{0}\" has no entry \"{1}\"; delete it, and the Pool's machines are replaced with a new key"
    )]
    Damaged(String, &'static str),
}

/// Name of the Secret of a Pool's key.
pub fn secret_name(pool_uid: &str) -> String {
    format!("pool-{pool_uid}")
}

/// The key of that Pool; `None` when it has none.
pub async fn get(client: &Client, namespace: &str, pool_uid: &str) -> Result<Option<PoolKey>, Error> {
    let name = secret_name(pool_uid);
    let secret = call("read", secrets(client, namespace).get_opt(&name)).await?;
    secret.map(|secret| read(&name, secret)).transpose()
}

/// The key of that Pool, made if it has none. Two callers that make it at once get the same key.
pub async fn ensure(client: &Client, namespace: &str, pool_uid: &str, pool: &str) -> Result<PoolKey, Error> {
    if let Some(key) = get(client, namespace, pool_uid).await? {
        return Ok(key);
    }
    let name = secret_name(pool_uid);
    let (private, public) = generate_keypair(&format!("skyward-pool-{pool_uid}"))?;
    let entry = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = SecretObject {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            labels: Some(BTreeMap::from([
                (labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned()),
                (labels::POOL_UID.to_owned(), pool_uid.to_owned()),
            ])),
            annotations: Some(BTreeMap::from([(labels::POOL.to_owned(), cut(pool, 400))])),
            ..Default::default()
        },
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([
            (PRIVATE.to_owned(), entry(private.expose())),
            (PUBLIC.to_owned(), entry(&public)),
        ])),
        ..Default::default()
    };
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..Default::default()
    };
    match call("create", secrets(client, namespace).create(&params, &secret)).await {
        Ok(_) => Ok(PoolKey { private, public }),
        // Another caller was faster, or an answer of ours was lost: the key that exists counts.
        Err(Error::Api(_, kube::Error::Api(status))) if status.code == 409 => {
            get(client, namespace, pool_uid)
                .await?
                .ok_or(Error::Damaged(name, PRIVATE))
        }
        Err(error) => Err(error),
    }
}

/// Deletes the key; fine when it is gone already.
pub async fn delete(client: &Client, namespace: &str, pool_uid: &str) -> Result<(), Error> {
    let name = secret_name(pool_uid);
    match call(
        "delete",
        secrets(client, namespace).delete(&name, &DeleteParams::default()),
    )
    .await
    {
        Ok(_) => Ok(()),
        Err(Error::Api(_, kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

fn secrets(client: &Client, namespace: &str) -> Api<SecretObject> {
    Api::namespaced(client.clone(), namespace)
}

fn read(name: &str, secret: SecretObject) -> Result<PoolKey, Error> {
    let data = secret.data.unwrap_or_default();
    let entry = |key: &'static str| {
        data.get(key)
            .and_then(|bytes| String::from_utf8(bytes.0.clone()).ok())
            .ok_or_else(|| Error::Damaged(name.to_owned(), key))
    };
    Ok(PoolKey {
        private: Secret::new(entry(PRIVATE)?),
        public: entry(PUBLIC)?,
    })
}

async fn call<T>(what: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    call.await.map_err(|error| Error::Api(what, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_printed() {
        let key = PoolKey {
            private: Secret::new("canary"),
            public: "ssh-ed25519 A".into(),
        };
        assert!(!format!("{key:?}").contains("canary"));
    }

    #[test]
    fn a_secret_without_its_entry_says_what_to_do() {
        let error = read("pool-1", SecretObject::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("has no entry \"id_ed25519\"; delete it"),
            "{error}"
        );
    }
}
