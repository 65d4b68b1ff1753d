//! Fields that may change after creation, and fields that may not.

use anyhow::Result;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use skyward_control_plane_tests::{api, cluster, object};
use skyward_testkit::Cluster;

/// The API server's refusal of a change, by a dry run.
async fn refusal(
    cluster: &Cluster,
    kind: &str,
    namespace: &str,
    name: &str,
    spec: Value,
) -> Result<Option<String>> {
    let try_only = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = Patch::Merge(json!({ "spec": spec }));
    match api(&cluster.client, kind, namespace)
        .patch(name, &try_only, &change)
        .await
    {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn a_task_changes_only_where_that_means_something() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("fixed").await?;
    let tasks = api(&cluster.client, "Task", &space.name);
    let create = PostParams::default();
    // Held, so that an operator on this cluster leaves them alone.
    let function =
        "{pool: p, suspend: true, function: {source: a, args: [1, {b: [1, 2]}], kwargs: {c: {d: 1}}}}";
    tasks
        .create(&create, &object("Task", "function", function)?)
        .await?;
    let command = "{pool: p, suspend: true, command: [a], placement: 1, env: [{name: A, value: a}]}";
    tasks
        .create(&create, &object("Task", "command", command)?)
        .await?;
    let own = "{suspend: true, command: [a], poolTemplate: {spec: {provider: x, candidates: [{settings: {a: [1]}}]}}}";
    tasks.create(&create, &object("Task", "own", own)?).await?;
    let map = "{pool: p, suspend: true, command: [a], forEach: {items: [1, {a: null}], parallelism: 3}}";
    tasks.create(&create, &object("Task", "map", map)?).await?;

    let refused = [
        (
            "own",
            json!({ "poolTemplate": { "spec": { "nodes": { "desired": 2 } } } }),
            "poolTemplate",
        ),
        (
            "own",
            json!({ "poolTemplate": { "spec": { "candidates": [{ "settings": { "a": [2] } }] } } }),
            "poolTemplate",
        ),
        (
            "own",
            json!({ "poolTemplate": null, "pool": "p" }),
            "poolTemplate",
        ),
        ("map", json!({ "forEach": { "items": [1, { "a": 2 }] } }), "items"),
        (
            "map",
            json!({ "forEach": { "maxFailedItems": 3 } }),
            "maxFailedItems",
        ),
        ("map", json!({ "forEach": null }), "forEach"),
        ("function", json!({ "forEach": { "count": 3 } }), "forEach"),
        ("function", json!({ "pool": "q" }), "pool"),
        ("function", json!({ "function": { "source": "b" } }), "function"),
        (
            "function",
            json!({ "function": { "entrypoint": "b" } }),
            "function",
        ),
        (
            "function",
            json!({ "function": { "args": [2, { "b": [1, 2] }] } }),
            "function",
        ),
        (
            "function",
            json!({ "function": { "args": [1, { "b": [1, 3] }] } }),
            "function",
        ),
        ("function", json!({ "function": { "args": null } }), "function"),
        (
            "function",
            json!({ "function": { "kwargs": { "c": { "d": 2 } } } }),
            "function",
        ),
        (
            "function",
            json!({ "function": { "kwargs": { "e": 1 } } }),
            "function",
        ),
        (
            "function",
            json!({ "function": null, "command": ["a"] }),
            "function",
        ),
        ("command", json!({ "command": ["b"] }), "command"),
        (
            "command",
            json!({ "command": null, "script": { "source": "a" } }),
            "script",
        ),
        ("command", json!({ "placement": "All" }), "placement"),
        ("command", json!({ "placement": null }), "placement"),
        (
            "command",
            json!({ "placement": "All", "processesPerMachine": 2 }),
            "processesPerMachine",
        ),
        ("command", json!({ "timeout": "1h" }), "timeout"),
        ("command", json!({ "activeDeadline": "1h" }), "activeDeadline"),
        ("command", json!({ "queueTimeout": "1h" }), "queueTimeout"),
        (
            "command",
            json!({ "terminationGracePeriod": "1s" }),
            "terminationGracePeriod",
        ),
        (
            "command",
            json!({ "retries": { "onInterruption": 1 } }),
            "retries",
        ),
        ("command", json!({ "output": { "stdout": "Head" } }), "output"),
        (
            "command",
            json!({ "env": [{ "name": "A", "value": "b" }] }),
            "env",
        ),
        ("command", json!({ "env": null }), "env"),
        (
            "command",
            json!({ "envFrom": [{ "secretRef": { "name": "s" } }] }),
            "envFrom",
        ),
        ("command", json!({ "workingDir": "/data" }), "workingDir"),
        (
            "command",
            json!({ "dependsOn": [{ "task": "other" }] }),
            "dependsOn",
        ),
    ];
    for (name, change, field) in refused {
        let message = refusal(&cluster, "Task", &space.name, name, change.clone())
            .await?
            .unwrap_or_default();
        let expected = format!("{field} cannot be changed; create another Task");
        assert!(message.contains(&expected), "{change}: {message}");
    }
    let fewer = json!({ "forEach": { "parallelism": 2 } });
    assert_eq!(refusal(&cluster, "Task", &space.name, "map", fewer).await?, None);
    for change in [
        json!({ "suspend": false }),
        json!({ "priority": 7 }),
        json!({ "ttlSecondsAfterFinished": 60 }),
        json!({ "retention": { "logs": "1h" } }),
        json!({ "retention": null }),
        json!({ "command": ["a"] }),
    ] {
        assert_eq!(
            refusal(&cluster, "Task", &space.name, "command", change.clone()).await?,
            None,
            "{change}"
        );
    }
    space.finish().await
}

#[tokio::test]
async fn a_pool_may_change_in_every_way() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("pool").await?;
    let pool = object("Pool", "p", "{provider: nowhere, nodes: {desired: 0}}")?;
    api(&cluster.client, "Pool", &space.name)
        .create(&PostParams::default(), &pool)
        .await?;
    for change in [
        json!({ "provider": "other" }),
        json!({ "nodes": { "desired": 3 } }),
        json!({ "accelerator": { "name": "L4" } }),
        json!({ "image": { "pip": ["numpy"] } }),
        json!({ "suspend": true }),
    ] {
        assert_eq!(
            refusal(&cluster, "Pool", &space.name, "p", change.clone()).await?,
            None,
            "{change}"
        );
    }
    space.finish().await
}

#[tokio::test]
async fn a_machine_is_a_record() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("record").await?;
    let spec = "{pool: none, poolUid: u, slot: 0, attempt: 1, provider: nowhere, offer: o, instanceType: t, \
                market: OnDemand, hourlyPrice: '0', token: k, templateHash: h}";
    api(&cluster.client, "Machine", &space.name)
        .create(&PostParams::default(), &object("Machine", "m", spec)?)
        .await?;
    let answer = refusal(
        &cluster,
        "Machine",
        &space.name,
        "m",
        json!({ "hourlyPrice": "1" }),
    )
    .await;
    let _ = space.kubectl(&["delete", "machine", "m", "--wait=false"]).await?;
    let message = answer?.unwrap_or_default();
    assert!(
        message.contains("a Machine's spec is a record and cannot be changed"),
        "{message}"
    );
    space.finish().await
}

#[tokio::test]
async fn spec_and_status_are_written_apart() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("apart").await?;
    let tasks = api(&cluster.client, "Task", &space.name);
    let mut task = object("Task", "t", "{pool: p, suspend: true, command: [a]}")?;
    task.data["status"] = json!({ "phase": "Succeeded" });
    let made = tasks.create(&PostParams::default(), &task).await?;
    assert_ne!(
        made.data["status"]["phase"], "Succeeded",
        "a status cannot be created: {:?}",
        made.data
    );

    let params = PatchParams::default();
    let merge = Patch::Merge(json!({ "status": { "mode": "by/hand" } }));
    let patched = tasks.patch("t", &params, &merge).await?;
    assert_ne!(
        patched.data["status"]["mode"], "by/hand",
        "nor changed beside the subresource"
    );
    let merge = Patch::Merge(json!({ "spec": { "priority": 9 }, "status": { "attempt": 3 } }));
    let patched = tasks.patch_status("t", &params, &merge).await?;
    assert_eq!(patched.data["status"]["attempt"], 3);
    assert_eq!(
        patched.data["spec"]["priority"],
        Value::Null,
        "status leaves the spec alone"
    );
    space.finish().await
}

#[tokio::test]
async fn null_is_an_argument_like_any_other() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("null").await?;
    // As kubectl sends it: what it applies is kept in an annotation and compared the next time.
    let manifest = "
apiVersion: skyward.dev/v1alpha1
kind: Task
metadata: {name: t}
spec:
  pool: p
  suspend: true
  function: {source: 'def main(*a, **k): pass', args: [null, {a: null, b: [null, 1]}], kwargs: {x: null}}
";
    space.apply(manifest).await?.ok()?;
    space.apply(manifest).await?.ok()?;
    // It drops nulls of maps from a new object; the operator finds them in that annotation.
    let applied = api(&cluster.client, "Task", &space.name).get("t").await?;
    let annotation = &applied.annotations()["kubectl.kubernetes.io/last-applied-configuration"];
    assert!(annotation.contains(r#""args":[null,{"a":null,"b":[null,1]}],"kwargs":{"x":null}"#));
    let args = ["-n", space.name.as_str(), "apply", "--server-side", "-f", "-"];
    let other = manifest.replace("name: t}", "name: merged}");
    let patience = std::time::Duration::from_secs(60);
    cluster
        .run("kubectl", &args, Some(&other), patience)
        .await?
        .ok()?;
    let tasks = api(&cluster.client, "Task", &space.name);
    let written = json!({ "args": [null, { "a": null, "b": [null, 1] }], "kwargs": { "x": null } });
    let dropped = json!({ "args": [null, { "b": [null, 1] }], "kwargs": {} });
    let labels = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    tasks.patch("t", &PatchParams::default(), &labels).await?;
    let priority = Patch::Merge(json!({ "spec": { "priority": 3 } }));
    tasks.patch("t", &PatchParams::default(), &priority).await?;
    // As the operator writes it.
    let status: Patch<Value> = Patch::Json(serde_json::from_value(
        json!([{ "op": "add", "path": "/status", "value": { "phase": "Suspended", "attempt": 0 } }]),
    )?);
    tasks.patch_status("t", &PatchParams::default(), &status).await?;
    assert_eq!(tasks.get("t").await?.data["status"]["phase"], "Suspended");
    for (name, written) in [("t", &dropped), ("merged", &written)] {
        let task = tasks.get(name).await?;
        for part in ["args", "kwargs"] {
            assert_eq!(task.data["spec"]["function"][part], written[part], "{name}");
        }
    }
    for other in [
        json!({ "args": [1] }),
        json!({ "args": [null, { "b": [null, 2] }] }),
        json!({ "kwargs": { "x": 1 } }),
    ] {
        let message = refusal(&cluster, "Task", &space.name, "t", json!({ "function": other })).await?;
        let message = message.unwrap_or_default();
        assert!(
            message.contains("function cannot be changed"),
            "{other}: {message}"
        );
    }
    space.finish().await
}
