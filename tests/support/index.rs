//! The package index that this machine uses for Python, so that node Pods can use it, too. It is
//! determined when the tests run, and not written into the project.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{Cluster, Result, Space};

/// Longest wait for an answer of the index.
const PATIENCE: Duration = Duration::from_secs(60);
/// Settings of pip that say where packages come from; others are paths of this machine.
const WHERE: [&str; 3] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"];

/// An index of Python packages that answers.
pub struct PackageIndex {
    /// Its URL.
    pub url: String,
    /// Certificates that a Pod must trust to reach it, as PEM.
    pub ca_bundle: String,
    /// What pip in a Pod must find in its environment.
    pub environment: BTreeMap<String, String>,
}

/// The index that this machine uses; `None` where there is none in reach.
///
/// `SKYWARD_TEST_INDEX` names another one, and is empty where there is none;
/// `SKYWARD_CA_BUNDLE` is the file of the certificates.
pub async fn package_index(cluster: &Cluster) -> Result<Option<PackageIndex>> {
    let ask = async |args: &[&str]| {
        let output = cluster.run("python3", args, None, PATIENCE).await?;
        anyhow::Ok(output.ok().ok().map(|text| text.trim().to_owned()))
    };
    let mut environment = settings()?;
    // Named for the tests, set for pip, or written in pip's files; else pip's default.
    let mut named = std::env::var("SKYWARD_TEST_INDEX")
        .ok()
        .or_else(|| environment.get("PIP_INDEX_URL").cloned());
    if named.is_none() {
        named = ask(&["-m", "pip", "config", "get", "global.index-url"]).await?;
    }
    let built_in = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)";
    let url = match &named {
        Some(url) => {
            environment.insert("PIP_INDEX_URL".to_owned(), url.clone());
            named
        }
        None => ask(&["-c", built_in]).await?,
    };
    let Some(url) = url.filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    let reach = format!(
        "import urllib.request; urllib.request.urlopen({:?} + '/six/', timeout=20).read(100)",
        url.trim_end_matches('/')
    );
    if ask(&["-c", &reach]).await?.is_none() {
        return Ok(None);
    }
    let bundle = std::env::var_os("SKYWARD_CA_BUNDLE").map_or_else(
        || PathBuf::from("/etc/ssl/certs/ca-certificates.crt"),
        PathBuf::from,
    );
    let ca_bundle = std::fs::read_to_string(&bundle)
        .with_context(|| format!("read the certificates in {}", bundle.display()))?;
    Ok(Some(PackageIndex {
        url,
        ca_bundle,
        environment,
    }))
}

/// The certificates that Pods must trust to reach the index, as the Pool names them.
pub async fn certificates(space: &Space, index: &PackageIndex) -> Result {
    // Too large for what `kubectl apply` remembers in an annotation.
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "proxy"},
        "data": {"ca.crt": index.ca_bundle}});
    let args = ["-n", space.name.as_str(), "create", "-f", "-"];
    space
        .cluster
        .run("kubectl", &args, Some(&object.to_string()), PATIENCE)
        .await?
        .ok()
        .map(drop)
}

/// What the image of a Pool says so that its machines reach that index, once [`certificates`] are there.
pub fn image_with(index: &PackageIndex) -> Value {
    let env: Vec<Value> = index
        .environment
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    json!({"env": env, "caBundleRef": {"name": "proxy"}})
}

/// This machine's settings of where packages come from, as `make cluster-up` wrote them down.
fn settings() -> Result<BTreeMap<String, String>> {
    let Some(file) = std::env::var_os("SKYWARD_PIP_ENV").map(PathBuf::from) else {
        return Ok(BTreeMap::new());
    };
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| WHERE.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}
