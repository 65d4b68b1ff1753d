//! Puts the operator on the cluster under test, once for each test program.

use anyhow::Context as _;
use tokio::sync::OnceCell;

use crate::{Cluster, Result};

/// Namespace of the operator under test.
pub const OPERATOR_NAMESPACE: &str = "skyward-system";
/// The container Provider that stories use.
pub const PROVIDER: &str = "local";
/// Variable that names the image of node Pods.
pub const NODE_IMAGE: &str = "SKYWARD_NODE_IMAGE";

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// Installs (or upgrades to) the chart of this checkout with the images under test.
pub async fn install(cluster: &Cluster) -> Result {
    INSTALLED
        .get_or_try_init(|| install_with(cluster, &[]))
        .await
        .copied()
}

/// The same with more `--set` values, each time it is called.
pub async fn install_with(cluster: &Cluster, more: &[String]) -> Result {
    let mut values = operator_values()?;
    values.extend_from_slice(more);
    install_chart(cluster, &chart(), &values).await
}

/// Installs (or upgrades to) the chart of that folder or package, and waits until its Pods are ready.
pub async fn install_chart(cluster: &Cluster, chart: &str, values: &[String]) -> Result {
    let mut args = vec![
        "upgrade",
        "--install",
        "skyward",
        chart,
        "--namespace",
        OPERATOR_NAMESPACE,
        "--create-namespace",
        "--wait",
        "--timeout",
        "180s",
    ];
    for value in values {
        args.extend(["--set", value.as_str()]);
    }
    cluster.helm(&args).await?.ok().context("install the chart")?;
    Ok(())
}

/// Path of the chart in this checkout.
pub(crate) fn chart() -> String {
    format!("{}/../../charts/skyward", env!("CARGO_MANIFEST_DIR"))
}

/// `--set` values for the images under test and a result store on the node.
pub fn operator_values() -> Result<Vec<String>> {
    let operator = std::env::var("SKYWARD_OPERATOR_IMAGE")
        .context("SKYWARD_OPERATOR_IMAGE is not set; run `make test`")?;
    let node = std::env::var(NODE_IMAGE).context("SKYWARD_NODE_IMAGE is not set; run `make test`")?;
    let (repository, tag) = operator
        .rsplit_once(':')
        .context("SKYWARD_OPERATOR_IMAGE needs a tag")?;
    let store =
        std::env::var("SKYWARD_STORE_DIR").context("SKYWARD_STORE_DIR is not set; run `make test`")?;
    Ok(vec![
        format!("image.repository={repository}"),
        format!("image.tag={tag}"),
        "image.pullPolicy=IfNotPresent".to_owned(),
        format!("nodeImage={node}"),
        format!("store.hostPath={store}"),
        "store.hostPathPrepared=true".to_owned(),
        format!("providers.{PROVIDER}.container.imagePullPolicy=IfNotPresent"),
        // Stories and benchmarks write statuses, and run controllers of their own, as the
        // cluster's administrator; what others may is tried with --as.
        "admissionPolicy.exempt[0].kind=Group".to_owned(),
        "admissionPolicy.exempt[0].name=system:masters".to_owned(),
    ])
}
