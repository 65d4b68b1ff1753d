//! The versions of the Python packages that a machine found for the environment of its Pool: a Secret in the operator's
//! namespace, named by the UID of the Pool, with the versions of its newest environment.
//!
//! The first machine of its kind (architecture and Python) that has made an environment decides: what is kept for its hash
//! is never replaced. A Secret and no
//! ConfigMap, because the operator has the right to write those there already, and nobody of the Pool's namespace may
//! say what machines install.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use skyward_api::labels;

/// Entry of the environment's hash.
const HASH: &str = "environment";
/// Entry of the versions.
const VERSIONS: &str = "versions";
/// Most bytes of the versions of all kinds of machines; those of further kinds are found by each machine.
const MOST: usize = 512 * 1024;

/// Why versions are not read or kept.
#[derive(Debug, thiserror::Error)]
#[error("could not {0} the Secret with the versions of the Pool's packages")]
pub struct Error(&'static str, #[source] kube::Error);

/// Name of the Secret of a Pool.
fn secret_name(pool_uid: &str) -> String {
    format!("versions-{pool_uid}")
}

/// The versions of that environment; `None` while no machine has made it.
pub async fn get(
    client: &Client,
    namespace: &str,
    pool_uid: &str,
    hash: &str,
) -> Result<Option<String>, Error> {
    let found = read(client, namespace, pool_uid).await?;
    Ok(found.and_then(|secret| of(&secret, hash)))
}

/// Keeps the versions of that environment for one kind of machine, unless there are some.
pub async fn keep(
    client: &Client,
    namespace: &str,
    pool_uid: &str,
    hash: &str,
    versions: &str,
) -> Result<(), Error> {
    let secrets = secrets(client, namespace);
    let found = read(client, namespace, pool_uid).await?;
    let known = found.as_ref().and_then(|secret| of(secret, hash));
    let Some(versions) = with(known.as_deref(), versions) else {
        return Ok(());
    };
    let entry = |text: &str| ByteString(text.as_bytes().to_vec());
    let name = secret_name(pool_uid);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            labels: Some(BTreeMap::from([
                (labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned()),
                (labels::POOL_UID.to_owned(), pool_uid.to_owned()),
            ])),
            // Another writer in between is told by a conflict, and read.
            resource_version: found
                .as_ref()
                .and_then(|secret| secret.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([
            (HASH.to_owned(), entry(hash)),
            (VERSIONS.to_owned(), entry(&versions)),
        ])),
        ..Secret::default()
    };
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..PostParams::default()
    };
    let answer = if found.is_some() {
        secrets.replace(&name, &params, &secret).await
    } else {
        secrets.create(&params, &secret).await
    };
    answer.map(|_| ()).map_err(|error| Error("write", error))
}

/// Deletes the versions; fine when there are none.
pub async fn delete(client: &Client, namespace: &str, pool_uid: &str) -> Result<(), Error> {
    let name = secret_name(pool_uid);
    match secrets(client, namespace)
        .delete(&name, &DeleteParams::default())
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error("delete", error)),
    }
}

/// What is kept when a machine found this list: the line in front names the kind of machine that it is for. `None` where
/// nothing changes.
fn with(known: Option<&str>, list: &str) -> Option<String> {
    let Some(known) = known else {
        return Some(list.to_owned());
    };
    let kind = list.lines().next().unwrap_or_default();
    let is_known = known.lines().any(|line| line == kind);
    let is_small = known.len() + list.len() < MOST;
    (!is_known && is_small).then(|| format!("{known}\n{list}"))
}

async fn read(client: &Client, namespace: &str, pool_uid: &str) -> Result<Option<Secret>, Error> {
    let answer = secrets(client, namespace).get_opt(&secret_name(pool_uid)).await;
    answer.map_err(|error| Error("read", error))
}

fn of(secret: &Secret, hash: &str) -> Option<String> {
    let data = secret.data.as_ref()?;
    let is_it = data.get(HASH).is_some_and(|known| known.0 == hash.as_bytes());
    let versions = data.get(VERSIONS).filter(|_| is_it)?;
    String::from_utf8(versions.0.clone()).ok()
}

fn secrets(client: &Client, namespace: &str) -> Api<Secret> {
    Api::namespaced(client.clone(), namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_one_environment() {
        let secret: Secret = serde_json::from_value(serde_json::json!({
            "metadata": {},
            // "a" and "numpy==2"
            "data": { "environment": "YQ==", "versions": "bnVtcHk9PTI=" }
        }))
        .unwrap();
        assert_eq!(of(&secret, "a").as_deref(), Some("numpy==2"));
        assert_eq!(of(&secret, "b"), None);
        assert_eq!(of(&Secret::default(), "a"), None);
    }

    #[test]
    fn the_first_machine_of_each_kind_decides() {
        let first = "# x86_64 3.12\nnumpy==2.3";
        let all = with(None, first).unwrap();
        assert_eq!(all, first);
        assert_eq!(with(Some(&all), "# x86_64 3.12\nnumpy==2.4"), None);
        let all = with(Some(&all), "# aarch64 3.12\nnumpy==2.2").unwrap();
        assert_eq!(all, "# x86_64 3.12\nnumpy==2.3\n# aarch64 3.12\nnumpy==2.2");
        let large = format!("# s390x 3.12\n{}", "a".repeat(MOST));
        assert_eq!(with(Some(&all), &large), None);
    }
}
