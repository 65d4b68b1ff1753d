//! What the tests of the custom resources share: the CRDs of this checkout on the
//! cluster under test, and objects written as YAML. The tests are in `main.rs`.
//!
//! These tests come before the operator: where one runs, it writes into their Pools, and the
//! chart's admission policies refuse what the tests write in its place.

use std::path::Path;

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;
use skyward_testkit::Cluster;
use tokio::sync::OnceCell;

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// The cluster under test with this checkout's CRDs.
pub async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::connect().await?;
    INSTALLED.get_or_try_init(|| install(&cluster)).await?;
    Ok(cluster)
}

/// Path of a file of this checkout.
pub fn path(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
        .display()
        .to_string()
}

async fn install(cluster: &Cluster) -> Result<()> {
    let crds = path("crds");
    // Replaced and not applied: definitions of another checkout must not stay in force.
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for kind in ["providers", "offers", "pools", "machines", "tasks", "crontasks"] {
        let yaml = std::fs::read_to_string(path(&format!("crds/{kind}.yaml")))?;
        let wanted: CustomResourceDefinition = serde_yaml::from_str(&yaml)?;
        let name = format!("{kind}.skyward.dev");
        match definitions.get_opt(&name).await? {
            None => definitions.create(&PostParams::default(), &wanted).await?,
            Some(mut present) => {
                present.spec = wanted.spec;
                definitions
                    .replace(&name, &PostParams::default(), &present)
                    .await?
            }
        };
    }
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "-f",
        &crds,
    ];
    cluster
        .kubectl(&wait)
        .await?
        .ok()
        .context("waiting for the CRDs")?;
    // Established comes before the API server serves the new schema.
    cluster
        .kubectl(&["get", "providers,offers,pools,machines,tasks,crontasks", "-A"])
        .await?
        .ok()
        .map(drop)
}

/// An untyped client for one of our kinds.
pub fn api(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("skyward.dev", "v1alpha1", kind);
    let resource = ApiResource::from_gvk(&gvk);
    match kind {
        "Provider" | "Offer" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

/// An object of ours from the YAML of its spec.
pub fn object(kind: &str, name: &str, spec: &str) -> Result<DynamicObject> {
    let spec: Value =
        serde_yaml::from_str(spec).with_context(|| format!("the spec of {kind} {name}: {spec}"))?;
    let value = serde_json::json!({
        "apiVersion": "skyward.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    });
    Ok(serde_json::from_value(value)?)
}

/// The API server's refusal of its creation; `None` when it would be accepted.
pub async fn refusal(api: &Api<DynamicObject>, object: &DynamicObject) -> Result<Option<String>> {
    let try_only = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&try_only, object).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}
