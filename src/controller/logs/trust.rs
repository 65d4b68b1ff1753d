//! Our certificates in the cluster: reads the Secrets, carries out [`super::certs::plan`],
//! and tells the Kubernetes API server whom to trust (caBundle of the APIService).

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, Service},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use skyward_api::labels;
use skyward_subresources::{GROUP, SERVICE, VERSION, reload::CERTS_SECRET};
use tokio::time::timeout;

use super::certs::{self, Data};

/// Secret with the authority's key; only the controller reads it.
const AUTHORITY_SECRET: &str = "skyward-authority";
/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// What could not be done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A call to the API server failed.
    #[error("{what}: {source}")]
    Call {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: kube::Error,
    },
    /// No answer.
    #[error("{0}: the API server did not answer in time")]
    Timeout(String),
    /// A certificate could not be made.
    #[error("making certificates: {0}")]
    Make(#[from] rcgen::Error),
}

async fn call<T>(what: impl Into<String>, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(Error::Call { what: what.into(), source }),
        Err(_) => Err(Error::Timeout(what.into())),
    }
}

/// Makes and renews what is due; answers the leaves' Secret as it is now.
pub(super) async fn refresh(client: &Client, namespace: &str, now: Timestamp) -> Result<Data, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let (authority_object, mut authority) = read(&api, AUTHORITY_SECRET).await?;
    let (leaf_object, mut leaves) = read(&api, CERTS_SECRET).await?;
    let plan = certs::plan(&authority, &leaves, namespace, now);
    if plan == certs::Plan::default() {
        return Ok(leaves);
    }
    tracing::info!(?plan, "certificates of the aggregated API are made or renewed");
    certs::issue(&plan, &mut authority, &mut leaves, namespace, now)?;
    // The authority first: leaves of an authority that nobody has are worth nothing, while
    // missing leaves are seen and made by the next plan.
    if plan.authority != certs::Authority::Keep {
        write(&api, AUTHORITY_SECRET, authority_object, authority).await?;
    }
    write(&api, CERTS_SECRET, leaf_object, leaves.clone()).await?;
    Ok(leaves)
}

async fn read(api: &Api<Secret>, name: &str) -> Result<(Option<Secret>, Data), Error> {
    let object = call(format!("reading the Secret {name:?}"), api.get_opt(name)).await?;
    let data = object.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
    Ok((object, data.into_iter().map(|(key, value)| (key, value.0)).collect()))
}

/// Writes over exactly what was read: whoever was faster wins, and the next plan sees it.
async fn write(api: &Api<Secret>, name: &str, old: Option<Secret>, data: Data) -> Result<(), Error> {
    let data = data.into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    let what = format!("writing the Secret {name:?}");
    if let Some(old) = old {
        let metadata = ObjectMeta { managed_fields: None, ..old.metadata.clone() };
        let secret = Secret { data: Some(data), metadata, ..old };
        call(what, api.replace(name, &PostParams::default(), &secret)).await?;
    } else {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(ours()), ..ObjectMeta::default() },
            data: Some(data),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        call(what, api.create(&PostParams::default(), &secret)).await?;
    }
    Ok(())
}

fn ours() -> BTreeMap<String, String> {
    [(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()
}

/// What to do about the APIService.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    /// Nothing.
    Keep,
    /// Create it: the Service is there, installed without a chart.
    Create,
    /// Write our authorities into it.
    Patch,
    /// Delete it: we made it, and the Service is gone. An APIService without its Service
    /// would make every namespace of the cluster hang in deletion.
    Delete,
    /// It points to another installation.
    Foreign,
}

fn registration(service: bool, existing: Option<&APIService>, namespace: &str, bundle: &[u8]) -> Registration {
    let Some(existing) = existing else {
        return if service { Registration::Create } else { Registration::Keep };
    };
    let spec = existing.spec.as_ref();
    let target = spec.and_then(|spec| spec.service.as_ref());
    let is_here = target.is_some_and(|target| {
        target.namespace.as_deref() == Some(namespace) && target.name.as_deref() == Some(SERVICE)
    });
    if !is_here {
        return if service { Registration::Foreign } else { Registration::Keep };
    }
    if !service {
        let made_by_us = existing.metadata.labels.as_ref().and_then(|l| l.get(labels::MANAGED_BY));
        let made_by_us = made_by_us.is_some_and(|value| value == labels::MANAGER);
        return if made_by_us { Registration::Delete } else { Registration::Keep };
    }
    let trusts_us = spec.is_some_and(|spec| {
        spec.ca_bundle.as_ref().is_some_and(|known| known.0 == bundle) && spec.insecure_skip_tls_verify != Some(true)
    });
    if trusts_us { Registration::Keep } else { Registration::Patch }
}

/// Lets the Kubernetes API server trust the aggregated API, if that is installed.
pub(super) async fn register(client: &Client, namespace: &str, bundle: &[u8]) -> Result<(), Error> {
    let name = format!("{VERSION}.{GROUP}");
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let api: Api<APIService> = Api::all(client.clone());
    let service = call(format!("reading the Service {SERVICE:?}"), services.get_opt(SERVICE)).await?.is_some();
    let existing = call(format!("reading the APIService {name:?}"), api.get_opt(&name)).await?;
    match registration(service, existing.as_ref(), namespace, bundle) {
        Registration::Keep => {}
        Registration::Foreign => {
            tracing::warn!(
                api_service = name,
                "the APIService points to another Service; logs and results of this installation are not served. Two installations cannot share a cluster: remove one"
            );
        }
        Registration::Create => {
            let object: APIService = serde_json::from_value(json!({
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": { "name": name, "labels": ours() },
                "spec": {
                    "group": GROUP, "version": VERSION, "groupPriorityMinimum": 1000, "versionPriority": 100,
                    "service": { "namespace": namespace, "name": SERVICE, "port": 443 },
                    "caBundle": ByteString(bundle.to_vec()),
                },
            }))
            .expect("every field has the type of the API");
            call(format!("creating the APIService {name:?}"), api.create(&PostParams::default(), &object)).await?;
            tracing::info!(api_service = name, "the aggregated API is registered");
        }
        Registration::Patch => {
            let patch = json!({ "spec": { "caBundle": ByteString(bundle.to_vec()), "insecureSkipTLSVerify": false } });
            let parameters = PatchParams { field_manager: Some(labels::MANAGER.to_owned()), ..PatchParams::default() };
            call(format!("writing the APIService {name:?}"), api.patch(&name, &parameters, &Patch::Merge(&patch))).await?;
            tracing::info!(api_service = name, "the API server trusts the aggregated API's authority now");
        }
        Registration::Delete => {
            let uid = existing.and_then(|object| object.metadata.uid);
            let parameters = DeleteParams {
                preconditions: Some(Preconditions { uid, resource_version: None }),
                ..DeleteParams::default()
            };
            call(format!("deleting the APIService {name:?}"), api.delete(&name, &parameters)).await?;
            tracing::info!(api_service = name, "the aggregated API is no longer installed; its registration is removed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn api_service(namespace: &str, manager: &str, bundle: Option<&[u8]>, insecure: bool) -> APIService {
        serde_json::from_value(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "x", "labels": { (labels::MANAGED_BY): manager } },
            "spec": {
                "group": GROUP, "version": VERSION, "groupPriorityMinimum": 1000, "versionPriority": 100,
                "service": { "namespace": namespace, "name": SERVICE },
                "caBundle": bundle.map(|b| ByteString(b.to_vec())), "insecureSkipTLSVerify": insecure,
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case::without_the_api(false, None, Registration::Keep)]
    #[case::installed_without_a_chart(true, None, Registration::Create)]
    #[case::fresh_from_the_chart(true, Some(api_service("ns", "Helm", None, false)), Registration::Patch)]
    #[case::fresh_and_insecure(true, Some(api_service("ns", "Helm", Some(b"CA"), true)), Registration::Patch)]
    #[case::of_an_older_authority(true, Some(api_service("ns", "Helm", Some(b"old"), false)), Registration::Patch)]
    #[case::as_it_should_be(true, Some(api_service("ns", "Helm", Some(b"CA"), false)), Registration::Keep)]
    #[case::left_over_of_ours(false, Some(api_service("ns", "skyward", Some(b"CA"), false)), Registration::Delete)]
    #[case::the_chart_is_going(false, Some(api_service("ns", "Helm", Some(b"CA"), false)), Registration::Keep)]
    #[case::of_another_installation(true, Some(api_service("other", "skyward", None, false)), Registration::Foreign)]
    fn registrations(#[case] service: bool, #[case] existing: Option<APIService>, #[case] expected: Registration) {
        assert_eq!(registration(service, existing.as_ref(), "ns", b"CA"), expected);
    }
}
