//! What the API server serves beside the objects: scale, selectable fields, columns.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use skyward_api::{Pool, Task};
use skyward_control_plane_tests::{api, cluster, object};

#[tokio::test]
async fn kubectl_scales_a_pool() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("scale").await?;
    let pools = api(&cluster.client, "Pool", &space.name);
    pools
        .create(
            &PostParams::default(),
            &object("Pool", "p", "{provider: nowhere, nodes: {min: 1}}")?,
        )
        .await?;
    let raw = format!(
        "/apis/skyward.dev/v1alpha1/namespaces/{}/pools/p/scale",
        space.name
    );
    let scale: Value = serde_json::from_str(&space.kubectl(&["get", "--raw", &raw]).await?.ok()?)?;
    assert_eq!(
        scale["spec"]["replicas"], 1,
        "the default stands where /scale reads it: {scale}"
    );

    space.kubectl(&["scale", "pool/p", "--replicas=4"]).await?.ok()?;
    assert_eq!(pools.get("p").await?.data["spec"]["nodes"]["desired"], 4);
    let message = space
        .kubectl(&["scale", "pool/p", "--replicas=501"])
        .await?
        .refused()?;
    assert!(message.contains("at most 500 machines"), "{message}");
    // Off, although nodes.min is 1.
    space.kubectl(&["scale", "pool/p", "--replicas=0"]).await?.ok()?;
    space.finish().await
}

#[tokio::test]
async fn an_autoscaler_can_scale_a_pool() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("hpa").await?;
    let pools = space.api::<Pool>();
    let spec = json!({ "provider": "nowhere", "suspend": true });
    let pool: Pool = serde_json::from_value(json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
        "metadata": { "name": "p" }, "spec": spec }))?;
    let made = pools.create(&PostParams::default(), &pool).await?;
    let uid = made.metadata.uid.context("a UID")?;
    // As the controller writes it.
    let status = json!({ "status": { "selector": format!("skyward.dev/pool-uid={uid}"), "machines": 1 } });
    pools
        .patch_status("p", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": { "name": "p" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "name": "p" },
            "minReplicas": 2,
            "maxReplicas": 3,
            "metrics": [{ "type": "Resource", "resource": { "name": "cpu",
                "target": { "type": "Utilization", "averageUtilization": 80 } } }],
        },
    }))?;
    let autoscalers = space.api::<HorizontalPodAutoscaler>();
    autoscalers.create(&PostParams::default(), &autoscaler).await?;
    let able = |autoscaler: &HorizontalPodAutoscaler| {
        autoscaler
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .any(|condition| condition.type_ == "AbleToScale" && condition.status == "True")
    };
    space
        .wait::<HorizontalPodAutoscaler>("p", "AbleToScale", 120, able)
        .await?;
    // Below its minimum it scales at once, without any metric.
    space
        .wait::<Pool>("p", "scaled to 2", 120, |pool| pool.spec.nodes.desired == 2)
        .await?;
    space.finish().await
}

#[tokio::test]
async fn a_task_that_leaves_the_selected_phase_looks_deleted() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("fields").await?;
    let tasks: Api<Task> = space.api();
    let task = object("Task", "t", "{pool: p, suspend: true, command: [a]}")?;
    api(&cluster.client, "Task", &space.name)
        .create(&PostParams::default(), &task)
        .await?;
    let params = WatchParams::default()
        .fields("status.phase=Running,spec.pool=p")
        .timeout(60);
    let phase = async |phase: &str| {
        let status = Patch::Merge(json!({ "status": { "phase": phase } }));
        tasks.patch_status("t", &PatchParams::default(), &status).await
    };
    let stream = tasks.watch(&params, "0").await?;
    futures::pin_mut!(stream);
    phase("Running").await?;
    let seen = tokio::time::timeout(Duration::from_secs(30), async {
        let mut seen = Vec::new();
        while let Some(event) = stream.try_next().await? {
            match event {
                WatchEvent::Added(_) => {
                    seen.push("added");
                    phase("Succeeded").await?;
                }
                WatchEvent::Deleted(task) => {
                    seen.push("deleted");
                    let now = tasks.get("t").await.context("but it is there")?;
                    anyhow::ensure!(now.metadata.uid == task.metadata.uid, "the same Task");
                    return anyhow::Ok(seen);
                }
                WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(error) => bail!("{error:?}"),
            }
        }
        anyhow::Ok(seen)
    })
    .await??;
    assert_eq!(seen, ["added", "deleted"]);
    space.finish().await
}

#[tokio::test]
async fn columns_show_what_a_person_wants() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("columns").await?;
    let columns = [
        (
            "pools",
            &[
                "NAME",
                "PROVIDER",
                "ACCELERATOR",
                "MACHINES",
                "READY",
                "PHASE",
                "REASON",
                "$/H",
                "SPENT",
                "AGE",
            ][..],
        ),
        (
            "tasks",
            &[
                "NAME", "POOL", "MODE", "DONE", "PROGRESS", "STATUS", "REASON", "DURATION", "AGE",
            ],
        ),
        (
            "crontasks",
            &[
                "NAME", "SCHEDULE", "ZONE", "SUSPEND", "ACTIVE", "REASON", "LAST", "AGE",
            ],
        ),
        (
            "providers",
            &[
                "NAME", "TYPE", "READY", "OFFERS", "MACHINES", "$/H", "REASON", "AGE",
            ],
        ),
        (
            "machines",
            &[
                "NAME", "POOL", "SLOT", "PROVIDER", "PHASE", "STEP", "MARKET", "$/H", "AGE",
            ],
        ),
    ];
    let pool = object("Pool", "p", "{provider: nowhere, suspend: true}")?;
    api(&cluster.client, "Pool", &space.name)
        .create(&PostParams::default(), &pool)
        .await?;
    let task = object("Task", "p", "{pool: p, suspend: true, command: [a]}")?;
    api(&cluster.client, "Task", &space.name)
        .create(&PostParams::default(), &task)
        .await?;
    for (kind, expected) in columns {
        let scope = match kind {
            "providers" => String::new(),
            _ => format!("namespaces/{}/", space.name),
        };
        let raw = format!("/apis/skyward.dev/v1alpha1/{scope}{kind}");
        let mut request = kube::api::Request::new(raw).list(&kube::api::ListParams::default())?;
        let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
        request.headers_mut().insert("accept", table.parse()?);
        let table: Value = serde_json::from_str(&cluster.client.request_text(request).await?)?;
        let names: Vec<_> = table["columnDefinitions"]
            .as_array()
            .context("columns")?
            .iter()
            .filter(|column| column["priority"] == 0)
            .map(|column| column["name"].as_str().unwrap_or_default().to_uppercase())
            .collect();
        assert_eq!(names, expected, "{kind}");
    }
    // Short names and the category.
    for name in ["skpool", "sktask", "skmach", "skyward"] {
        space.kubectl(&["get", name]).await?.ok()?;
    }
    cluster.kubectl(&["get", "skprov,skoffer"]).await?.ok()?;
    space.finish().await
}
