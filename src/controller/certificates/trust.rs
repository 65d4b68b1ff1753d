//! Our certificates in the cluster: reads the Secrets, carries out [`crate::certificates::issuer::plan`],
//! and tells the Kubernetes API server which authorities to trust (caBundle of the APIService).

use std::{collections::BTreeMap, fmt::Debug};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use skyward_api::labels;
use skyward_subresources::{
    GROUP, SERVICE, VERSION,
    reload::{AUTHORITIES_CONFIG_MAP, CERTS_SECRET, CONTROLLER_CERTS_SECRET, key},
};

use super::issuer::{self, Data, Secrets};

/// Secret with the authority's key; only the controller reads it.
const AUTHORITY_SECRET: &str = "skyward-authority";
/// What could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A call to the API server failed.
    #[error("{what}: {source}")]
    Call {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: kube::Error,
    },
    /// A certificate could not be made.
    #[error("making certificates: {0}")]
    Make(#[from] rcgen::Error),
}

async fn call<T>(
    what: impl Into<String>,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    call.await.map_err(|source| Error::Call {
        what: what.into(),
        source,
    })
}

/// Makes and renews the certificates that are due; answers with the controller's own leaves.
pub(crate) async fn refresh(client: &Client, namespace: &str, now: Timestamp) -> Result<Data, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let authority = read(&api, AUTHORITY_SECRET).await?;
    let apiserver = read(&api, CERTS_SECRET).await?;
    let controller = read(&api, CONTROLLER_CERTS_SECRET).await?;
    let mut secrets = Secrets {
        authority: data_of(authority.as_ref()),
        apiserver: data_of(apiserver.as_ref()),
        controller: data_of(controller.as_ref()),
    };
    let plan = issuer::plan(&secrets, namespace, now);
    if plan == issuer::Plan::default() {
        return Ok(secrets.controller);
    }
    tracing::info!(?plan, "certificates are made or renewed");
    issuer::issue(&plan, &mut secrets, namespace, now)?;
    // The authority first: leaves of an unpublished authority are worth nothing, while the next
    // plan makes missing leaves.
    write(&api, AUTHORITY_SECRET, authority, &secrets.authority).await?;
    write(&api, CERTS_SECRET, apiserver, &secrets.apiserver).await?;
    write(&api, CONTROLLER_CERTS_SECRET, controller, &secrets.controller).await?;
    Ok(secrets.controller)
}

/// Publishes the authorities for clients that read metrics and may not read our Secrets.
pub(crate) async fn publish(client: &Client, namespace: &str, bundle: &[u8]) -> Result<(), Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let name = AUTHORITIES_CONFIG_MAP;
    let existing = call(format!("reading the ConfigMap {name:?}"), api.get_opt(name)).await?;
    let text = String::from_utf8_lossy(bundle).into_owned();
    let data: BTreeMap<String, String> = [(key::AUTHORITIES.to_owned(), text)].into();
    if existing
        .as_ref()
        .is_some_and(|map| map.data.as_ref() == Some(&data))
    {
        return Ok(());
    }
    let wanted = ConfigMap {
        metadata: metadata(name, existing.as_ref().map(|old| &old.metadata)),
        data: Some(data),
        ..ConfigMap::default()
    };
    put(&api, name, existing.is_some(), &wanted).await
}

async fn read(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, Error> {
    call(format!("reading the Secret {name:?}"), api.get_opt(name)).await
}

fn data_of(secret: Option<&Secret>) -> Data {
    let data = secret.and_then(|secret| secret.data.clone()).unwrap_or_default();
    data.into_iter().map(|(key, value)| (key, value.0)).collect()
}

/// Writes what is news, with the version that was read: the faster writer wins, and the next plan
/// sees its Secret.
async fn write(api: &Api<Secret>, name: &str, old: Option<Secret>, data: &Data) -> Result<(), Error> {
    if data_of(old.as_ref()) == *data {
        return Ok(());
    }
    let exists = old.is_some();
    let bytes = |(key, value): (&String, &Vec<u8>)| (key.clone(), ByteString(value.clone()));
    let secret = Secret {
        metadata: metadata(name, old.as_ref().map(|old| &old.metadata)),
        data: Some(data.iter().map(bytes).collect()),
        ..old.unwrap_or_else(|| Secret {
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        })
    };
    put(api, name, exists, &secret).await
}

/// Makes an object, or replaces the one that was read.
async fn put<K>(api: &Api<K>, name: &str, exists: bool, wanted: &K) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let what = format!("writing the {} {name:?}", K::kind(&()));
    let params = PostParams::default();
    if exists {
        call(what, api.replace(name, &params, wanted)).await?;
    } else {
        call(what, api.create(&params, wanted)).await?;
    }
    Ok(())
}

/// The metadata that were read, or those of a new object of ours.
fn metadata(name: &str, old: Option<&ObjectMeta>) -> ObjectMeta {
    match old {
        Some(old) => ObjectMeta {
            managed_fields: None,
            ..old.clone()
        },
        None => ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
    }
}

/// What to do about the APIService. The chart creates and removes it together with the
/// Service; the authorities in it are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    /// Nothing: it is as it should be, or the aggregated API is not installed.
    Keep,
    /// Write our authorities into it.
    Patch,
    /// It points to another installation.
    Foreign,
}

fn registration(existing: Option<&APIService>, namespace: &str, bundle: &[u8]) -> Registration {
    let Some(spec) = existing.and_then(|existing| existing.spec.as_ref()) else {
        return Registration::Keep;
    };
    let is_here = spec.service.as_ref().is_some_and(|target| {
        target.namespace.as_deref() == Some(namespace) && target.name.as_deref() == Some(SERVICE)
    });
    let trusts_us = spec.ca_bundle.as_ref().is_some_and(|known| known.0 == bundle)
        && spec.insecure_skip_tls_verify != Some(true);
    match (is_here, trusts_us) {
        (false, _) => Registration::Foreign,
        (true, true) => Registration::Keep,
        (true, false) => Registration::Patch,
    }
}

/// Lets the Kubernetes API server trust the aggregated API, if that is installed.
pub(crate) async fn register(client: &Client, namespace: &str, bundle: &[u8]) -> Result<(), Error> {
    let name = format!("{VERSION}.{GROUP}");
    let api: Api<APIService> = Api::all(client.clone());
    let existing = call(format!("reading the APIService {name:?}"), api.get_opt(&name)).await?;
    match registration(existing.as_ref(), namespace, bundle) {
        Registration::Keep => {}
        Registration::Foreign => {
            tracing::warn!(
                api_service = name,
                "the APIService points to another Service; logs and results of this installation are not served. Two installations cannot share a cluster: remove one"
            );
        }
        Registration::Patch => {
            let spec = json!({ "caBundle": ByteString(bundle.to_vec()), "insecureSkipTLSVerify": false });
            let patch = Patch::Merge(json!({ "spec": spec }));
            let parameters = PatchParams::apply(labels::MANAGER);
            call(
                format!("writing the APIService {name:?}"),
                api.patch(&name, &parameters, &patch),
            )
            .await?;
            tracing::info!(
                api_service = name,
                "the API server trusts the aggregated API's authority now"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn api_service(namespace: &str, bundle: Option<&[u8]>, insecure: bool) -> APIService {
        serde_json::from_value(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": "x" },
            "spec": {
                "group": GROUP, "version": VERSION, "groupPriorityMinimum": 1000, "versionPriority": 100,
                "service": { "namespace": namespace, "name": SERVICE },
                "caBundle": bundle.map(|b| ByteString(b.to_vec())), "insecureSkipTLSVerify": insecure,
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case::not_installed(None, Registration::Keep)]
    #[case::fresh_from_the_chart(Some(api_service("ns", None, false)), Registration::Patch)]
    #[case::fresh_and_insecure(Some(api_service("ns", Some(b"CA"), true)), Registration::Patch)]
    #[case::of_an_older_authority(Some(api_service("ns", Some(b"old"), false)), Registration::Patch)]
    #[case::as_it_should_be(Some(api_service("ns", Some(b"CA"), false)), Registration::Keep)]
    #[case::of_another_installation(Some(api_service("other", Some(b"CA"), false)), Registration::Foreign)]
    fn registrations(#[case] existing: Option<APIService>, #[case] expected: Registration) {
        assert_eq!(registration(existing.as_ref(), "ns", b"CA"), expected);
    }
}
