//! The life of the chart on a real cluster: install on an empty one with Providers as
//! values, upgrade while Tasks run, uninstall, install again. It takes the operator
//! away, so it is a test program of its own.

use serde_json::json;
use skyward_api::{Provider, TaskPhase};
use skyward_testkit::{Cluster, OPERATOR_NAMESPACE, PROVIDER, Result};

#[tokio::test]
async fn the_chart_lives_through_install_upgrade_uninstall_and_install() -> Result {
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let providers: kube::Api<Provider> = kube::Api::all(cluster.client.clone());
    assert!(
        providers.get_opt(PROVIDER).await?.is_some(),
        "the Provider of the values exists"
    );
    let space = cluster.namespace("chart").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;

    space
        .task(
            "through",
            "p",
            json!({"script": {"source": "sleep 20; echo survived"}}),
        )
        .await?;
    space.task_phase("through", TaskPhase::Running).await?;
    // The cluster as an older version left it: one field of Pools did not exist yet.
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/shmSize";
    let older = json!([{"op": "remove", "path": field}]).to_string();
    cluster
        .kubectl(&["patch", "crd", "pools.skyward.dev", "--type=json", "-p", &older])
        .await?
        .ok()?;
    assert_eq!(shm_size(&cluster).await?, "", "the field is gone");
    let chart = format!("{}/../../charts/skyward", env!("CARGO_MANIFEST_DIR"));
    let values = skyward_testkit::operator_values()?;
    let mut args = vec![
        "upgrade",
        "skyward",
        chart.as_str(),
        "--namespace",
        OPERATOR_NAMESPACE,
        "--wait",
        "--timeout",
        "180s",
    ];
    for value in &values {
        args.extend(["--set", value.as_str()]);
    }
    args.extend(["--set", "logLevel=debug"]);
    cluster.helm(&args).await?.ok()?;
    assert_eq!(
        shm_size(&cluster).await?,
        "string",
        "the upgrade brought the new field"
    );
    let done = space.task_ended("through").await?.status.unwrap_or_default();
    assert_eq!(
        (done.phase, done.attempt),
        (Some(TaskPhase::Succeeded), 1),
        "{done:#?}"
    );

    cluster
        .helm(&[
            "uninstall",
            "skyward",
            "--namespace",
            OPERATOR_NAMESPACE,
            "--wait",
        ])
        .await?
        .ok()?;
    let kept = space.kubectl(&["get", "pools,tasks"]).await?.ok()?;
    assert!(kept.contains("through"), "objects of users stay: {kept}");
    let mut args = vec![
        "install",
        "skyward",
        chart.as_str(),
        "--namespace",
        OPERATOR_NAMESPACE,
        "--wait",
        "--timeout",
        "180s",
    ];
    for value in &values {
        args.extend(["--set", value.as_str()]);
    }
    cluster.helm(&args).await?.ok()?;
    space.task("again", "p", json!({"command": ["true"]})).await?;
    let done = space.task_ended("again").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    space.finish().await
}

/// Type of the field `shmSize` in the CRD of Pools, empty when there is no such field.
async fn shm_size(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.shmSize.type}";
    cluster
        .kubectl(&["get", "crd", "pools.skyward.dev", "-o", path])
        .await?
        .ok()
}
