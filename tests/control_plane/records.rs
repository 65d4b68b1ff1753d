//! Records and statuses are written by the operator alone, and Pools are made for Tasks of authors alone who may make
//! Pools: tests of what the chart's admission policies refuse, and that they hinder neither deletions nor repairs by
//! hand.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use skyward_control_plane_tests::{api, cluster, path};
use skyward_testkit::{Cluster, OPERATOR_NAMESPACE, PATIENCE, Space};
use tokio::time::{Instant, sleep};

/// A user with all rights that roles can give, and not exempt.
const MALLORY: &str = "mallory";
/// A user with the same rights, and exempt.
const RESTORER: &str = "restorer";

/// The chart's policies under names of this story. They bind its namespace; of Offers, which
/// have none, all: there the cluster's administrator is exempt.
async fn policies(space: &Space) -> Result<Vec<Value>> {
    let chart = path("charts/skyward");
    let values = [
        "store.hostPath=/data",
        "admissionPolicy.exempt[0].kind=Group",
        "admissionPolicy.exempt[0].name=system:masters",
        "admissionPolicy.exempt[1].kind=User",
        "admissionPolicy.exempt[1].name=restorer",
    ];
    let mut args = vec!["template", "skyward", &chart, "--namespace", OPERATOR_NAMESPACE];
    args.extend(["--show-only", "templates/admission-policy.yaml"]);
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    let yaml = space.cluster.helm(&args).await?.ok()?;
    let own = |name: &Value| json!(format!("{}-{}", name.as_str().unwrap_or_default(), space.name));
    let mut objects = Vec::new();
    for document in yaml.split("\n---\n") {
        let mut object: Value = serde_yaml::from_str(document)?;
        object["metadata"]["name"] = own(&object["metadata"]["name"]);
        if object["kind"] == "ValidatingAdmissionPolicyBinding" {
            object["spec"]["policyName"] = own(&object["spec"]["policyName"]);
            object["spec"]["matchResources"] = json!({ "namespaceSelector": {
                "matchLabels": { "kubernetes.io/metadata.name": space.name } } });
        }
        objects.push(object);
    }
    ensure!(
        objects.len() == 8,
        "four policies and their bindings: {objects:#?}"
    );
    Ok(objects)
}

/// The policies, and two people who may do everything that roles can give; as one manifest, which
/// is applied.
async fn in_force(space: &Space) -> Result<String> {
    let mut objects = policies(space).await?;
    let subjects = [MALLORY, RESTORER]
        .map(|user| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }));
    objects.push(
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": space.name }, "roleRef": { "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": subjects }),
    );
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    space.cluster.apply(&all).await?.ok()?;
    Ok(all)
}

async fn withdrawn(cluster: &Cluster, all: &str) -> Result<()> {
    let delete = ["delete", "--ignore-not-found", "-f", "-"];
    let limit = Duration::from_secs(60);
    cluster
        .run("kubectl", &delete, Some(all), limit)
        .await?
        .ok()
        .map(drop)
}

fn machine(name: &str) -> Value {
    json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name },
        "spec": { "pool": "none", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "nowhere", "offer": "o",
            "instanceType": "t", "market": "OnDemand", "hourlyPrice": "0", "token": name, "templateHash": "h" } })
}

fn offer(name: &str) -> Value {
    json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": "Offer", "metadata": { "name": name },
        "spec": { "provider": "nowhere", "instanceType": "t", "cpu": 4, "memory": "16G", "architecture": "amd64",
            "availability": "Yes", "connected": true } })
}

/// `kubectl … --as WHO`, with this on its standard input.
async fn kubectl(
    space: &Space,
    who: &str,
    args: &[&str],
    input: Option<&Value>,
) -> Result<skyward_testkit::Output> {
    let input = input.map(Value::to_string);
    let mut all = vec!["-n", space.name.as_str(), "--as", who];
    all.extend_from_slice(args);
    let limit = Duration::from_secs(120);
    space.cluster.run("kubectl", &all, input.as_deref(), limit).await
}

async fn create(space: &Space, who: &str, object: &Value) -> Result<skyward_testkit::Output> {
    kubectl(space, who, &["create", "-f", "-"], Some(object)).await
}

async fn patch(
    space: &Space,
    who: &str,
    what: &str,
    sub: &str,
    change: Value,
) -> Result<skyward_testkit::Output> {
    let (sub, change) = (format!("--subresource={sub}"), change.to_string());
    let mut args = vec!["patch", what, "--type=merge", "-p", change.as_str()];
    if sub != "--subresource=" {
        args.push(&sub);
    }
    kubectl(space, who, &args, None).await
}

#[tokio::test]
async fn only_the_operator_writes_records_and_anybody_with_the_right_deletes_them() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("records").await?;
    let name = space.name.clone();
    let all = in_force(&space).await?;
    let story = story(&space).await;
    // Offers have no namespace that takes them away.
    for offer in ["forged", "restored"].map(|offer| format!("offer/{offer}-{name}")) {
        cluster
            .kubectl(&["delete", &offer, "--ignore-not-found"])
            .await?
            .ok()?;
    }
    // The namespace goes while the policies are in force.
    let gone = match story {
        Ok(()) => space.finish().await,
        Err(error) => Err(error),
    };
    withdrawn(&cluster, &all).await?;
    gone
}

#[tokio::test]
async fn a_provider_with_machines_is_deleted_only_when_that_is_meant() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("protected").await?;
    let all = in_force(&space).await?;
    let story = protected(&space).await;
    // Providers have no namespace that takes them away; the cluster's administrator is exempt.
    let name = format!("p-{}", space.name);
    let delete = ["delete", "providers.skyward.dev", &name, "--ignore-not-found"];
    cluster.kubectl(&delete).await?.ok()?;
    withdrawn(&cluster, &all).await?;
    story?;
    space.finish().await
}

#[tokio::test]
async fn a_pool_is_made_only_for_a_task_whose_author_may_make_pools() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("authors").await?;
    let all = in_force(&space).await?;
    let story = authors(&space).await;
    withdrawn(&cluster, &all).await?;
    story?;
    space.finish().await
}

/// A user of this namespace alone who may create these kinds there.
async fn may_create(space: &Space, who: &str, kinds: &[&str]) -> Result<()> {
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": who, "namespace": space.name },
        "rules": [{ "apiGroups": ["skyward.dev"], "resources": kinds, "verbs": ["create", "get", "patch"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": who, "namespace": space.name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": who },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who }] });
    let both = json!({ "apiVersion": "v1", "kind": "List", "items": [role, binding] }).to_string();
    space.cluster.apply(&both).await?.ok().map(drop)
}

async fn authors(space: &Space) -> Result<()> {
    may_create(space, "author", &["tasks", "crontasks"]).await?;
    may_create(space, "engineer", &["tasks", "crontasks", "pools"]).await?;
    let task = |name: &str, spec: Value| json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": name }, "spec": spec });
    let own = |name: &str| {
        let template = json!({ "spec": { "provider": "nowhere" } });
        task(
            name,
            json!({ "suspend": true, "command": ["a"], "poolTemplate": template }),
        )
    };
    // A policy is in force a moment after it is stored.
    let deadline = Instant::now() + Duration::from_secs(60);
    let try_only = ["create", "--dry-run=server", "-f", "-"];
    while kubectl(space, "author", &try_only, Some(&own("own"))).await?.code == Some(0) {
        ensure!(
            Instant::now() < deadline,
            "a Task with a poolTemplate is not refused"
        );
        sleep(Duration::from_millis(200)).await;
    }
    let message = create(space, "author", &own("own")).await?.refused()?;
    let who = format!("\"author\" may create no Pools in namespace \"{}\"", space.name);
    for words in [
        who.as_str(),
        "Name a Pool of the namespace in spec.pool",
        "pools.skyward.dev",
    ] {
        ensure!(message.contains(words), "{words}: {message}");
    }
    let shared = task(
        "shared",
        json!({ "pool": "p", "suspend": true, "command": ["a"] }),
    );
    create(space, "author", &shared).await?.ok()?;
    // A template is not brought in later, either.
    let change = json!({ "spec": { "pool": null, "poolTemplate": { "spec": { "provider": "nowhere" } } } });
    let message = patch(space, "author", "task.skyward.dev/shared", "", change)
        .await?
        .refused()?;
    ensure!(message.contains("cannot be changed"), "{message}");
    create(space, "engineer", &own("own")).await?.ok()?;
    // The other fields of such a Task belong to everybody who may change Tasks.
    let urgent = json!({ "spec": { "priority": 5 } });
    patch(space, "author", "task.skyward.dev/own", "", urgent)
        .await?
        .ok()?;
    // A CronTask makes Tasks in the operator's name, which may make Pools.
    let nightly = |template: Value| {
        let task = json!({ "spec": template });
        let spec = json!({ "schedule": "0 3 * * *", "suspend": true, "taskTemplate": task });
        json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask", "metadata": { "name": "nightly" }, "spec": spec })
    };
    let own = json!({ "command": ["a"], "poolTemplate": { "spec": { "provider": "nowhere" } } });
    let message = create(space, "author", &nightly(own.clone())).await?.refused()?;
    ensure!(message.contains(&who), "{message}");
    let shared = json!({ "command": ["a"], "pool": "p" });
    create(space, "author", &nightly(shared)).await?.ok()?;
    let later = json!({ "spec": { "taskTemplate": { "spec": { "pool": null, "poolTemplate": own["poolTemplate"] } } } });
    let name = "crontask.skyward.dev/nightly";
    let message = patch(space, "author", name, "", later.clone()).await?.refused()?;
    ensure!(message.contains(&who), "{message}");
    patch(space, "engineer", name, "", later).await?.ok()?;
    // Then its schedule is a matter of Pools as well, and its metadata is not.
    let often = json!({ "spec": { "schedule": "* * * * *" } });
    let message = patch(space, "author", name, "", often).await?.refused()?;
    ensure!(message.contains(&who), "{message}");
    let label = json!({ "metadata": { "labels": { "team": "a" } } });
    patch(space, "author", name, "", label).await?.ok().map(drop)
}

async fn protected(space: &Space) -> Result<()> {
    let name = format!("p-{}", space.name);
    let what = format!("providers.skyward.dev/{name}");
    let provider = |owner: Option<Value>| {
        json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
            "metadata": { "name": name, "ownerReferences": owner.into_iter().collect::<Vec<_>>() },
            "spec": { "container": {}, "allowedNamespaces": {} } })
    };
    let uses = |machines: u32| json!({ "status": { "machines": machines, "offers": 0 } });
    let delete = ["delete", what.as_str(), "--timeout=60s"];
    create(space, MALLORY, &provider(None)).await?.ok()?;
    patch(space, RESTORER, &what, "status", uses(2)).await?.ok()?;

    // A policy is in force a moment after it is stored.
    let deadline = Instant::now() + Duration::from_secs(60);
    let try_only = ["delete", what.as_str(), "--dry-run=server"];
    while kubectl(space, MALLORY, &try_only, None).await?.code == Some(0) {
        ensure!(Instant::now() < deadline, "its deletion is not refused");
        sleep(Duration::from_millis(200)).await;
    }
    let message = kubectl(space, MALLORY, &delete, None).await?.refused()?;
    let remedy = format!("kubectl annotate providers.skyward.dev {name} skyward.dev/allow-deletion=true");
    for words in ["has 2 machine(s)", "Delete its Pools first", remedy.as_str()] {
        ensure!(message.contains(words), "{words}: {message}");
    }
    // Another value says nothing, and everything else may be changed.
    let annotate = |value: &'static str| ["annotate", what.as_str(), "--overwrite", value];
    for value in ["skyward.dev/allow-deletion=yes", "note=mine"] {
        kubectl(space, MALLORY, &annotate(value), None).await?.ok()?;
        kubectl(space, MALLORY, &delete, None).await?.refused()?;
    }
    let meant = annotate("skyward.dev/allow-deletion=true");
    kubectl(space, MALLORY, &meant, None).await?.ok()?;
    kubectl(space, MALLORY, &delete, None).await?.ok()?;

    // Without machines nothing is asked, nor of an exempt account.
    for (who, machines) in [(MALLORY, 0), (RESTORER, 2)] {
        create(space, MALLORY, &provider(None)).await?.ok()?;
        patch(space, RESTORER, &what, "status", uses(machines))
            .await?
            .ok()?;
        kubectl(space, who, &delete, None).await?.ok()?;
    }

    // The garbage collector deletes an object that lost its owner.
    let owner = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name }, "rules": [] });
    create(space, MALLORY, &owner).await?.ok()?;
    let uid = ["get", "clusterrole", &name, "-o", "jsonpath={.metadata.uid}"];
    let uid = space.cluster.kubectl(&uid).await?.ok()?;
    let owner = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": name, "uid": uid });
    create(space, MALLORY, &provider(Some(owner))).await?.ok()?;
    patch(space, RESTORER, &what, "status", uses(1)).await?.ok()?;
    kubectl(space, MALLORY, &["delete", "clusterrole", &name], None)
        .await?
        .ok()?;
    // The garbage collector learns of new kinds twice a minute.
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    let left = ["get", what.as_str(), "--ignore-not-found", "-o", "name"];
    while !space.cluster.kubectl(&left).await?.ok()?.trim().is_empty() {
        ensure!(
            Instant::now() < deadline,
            "the garbage collector may not delete it"
        );
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn story(space: &Space) -> Result<()> {
    // A policy is in force a moment after it is stored.
    let deadline = Instant::now() + Duration::from_secs(60);
    let try_only = ["create", "--dry-run=server", "-f", "-"];
    let mut enforced = 0;
    while enforced < 2 {
        enforced = 0;
        for object in [machine("forged"), offer(&format!("forged-{}", space.name))] {
            let answer = kubectl(space, MALLORY, &try_only, Some(&object)).await?;
            enforced += usize::from(answer.code != Some(0));
        }
        ensure!(Instant::now() < deadline, "forged records are not refused");
        sleep(Duration::from_millis(200)).await;
    }
    refused(space).await?;
    free(space).await
}

/// Forged records, edited specs and edited statuses, with the remedy.
async fn refused(space: &Space) -> Result<()> {
    let (offer_name, forged) = (
        format!("restored-{}", space.name),
        format!("forged-{}", space.name),
    );
    // An exempt account restores all of it.
    for object in [machine("m"), offer(&offer_name)] {
        create(space, RESTORER, &object).await?.ok()?;
    }
    patch(
        space,
        RESTORER,
        "machine/m",
        "status",
        json!({ "status": { "id": "i-1" } }),
    )
    .await?
    .ok()?;
    for (kind, spec) in [
        (
            "Pool",
            json!({ "provider": "nowhere", "nodes": { "desired": 0 } }),
        ),
        ("Task", json!({ "pool": "p", "suspend": true, "command": ["a"] })),
    ] {
        let object = json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": kind, "metadata": { "name": "p" }, "spec": spec });
        create(space, MALLORY, &object).await?.ok()?;
    }
    let status = json!({ "status": { "phase": "Failed" } });
    let ready = json!({ "status": { "phase": "Ready" } });
    for (what, answer) in [
        ("a Machine", create(space, MALLORY, &machine("forged")).await?),
        ("an Offer", create(space, MALLORY, &offer(&forged)).await?),
        (
            "the spec of an Offer",
            patch(
                space,
                MALLORY,
                &format!("offer/{offer_name}"),
                "",
                json!({ "spec": { "cpu": 400 } }),
            )
            .await?,
        ),
        (
            "the status of a Machine",
            patch(space, MALLORY, "machine/m", "status", status.clone()).await?,
        ),
        (
            "the status of a Pool",
            patch(space, MALLORY, "pool/p", "status", ready).await?,
        ),
        (
            "the status of a Task",
            patch(space, MALLORY, "task.skyward.dev/p", "status", status).await?,
        ),
    ] {
        let message = answer.refused().with_context(|| what.to_owned())?;
        for words in ["only the operator", "admissionPolicy.exempt", MALLORY] {
            let said = message.to_lowercase();
            ensure!(said.contains(&words.to_lowercase()), "{what}: {message}");
        }
    }
    let spec = patch(
        space,
        MALLORY,
        "machine/m",
        "",
        json!({ "spec": { "token": "other" } }),
    )
    .await?;
    spec.refused()?;
    Ok(())
}

/// The policies do not restrict metadata and deletion.
async fn free(space: &Space) -> Result<()> {
    for args in [
        &["annotate", "machine/m", "note=mine"][..],
        &["label", "machine/m", "team=a"],
        &["scale", "pool/p", "--replicas=1"],
        &["scale", "pool/p", "--replicas=0"],
        &["delete", "machine", "m", "--timeout=60s"],
    ] {
        kubectl(space, MALLORY, args, None).await?.ok()?;
    }
    for cascade in ["--cascade=foreground", "--cascade=background", "--cascade=orphan"] {
        create(space, RESTORER, &machine("d")).await?.ok()?;
        let delete = ["delete", "machine", "d", cascade, "--timeout=60s"];
        kubectl(space, MALLORY, &delete, None)
            .await?
            .ok()
            .context(cascade)?;
    }
    // What the garbage collector deletes with its owner.
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "owner" } });
    create(space, MALLORY, &owner).await?.ok()?;
    let uid = ["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"];
    let uid = space.kubectl(&uid).await?.ok()?;
    let mut owned = machine("owned");
    owned["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": uid, "blockOwnerDeletion": true }]);
    create(space, RESTORER, &owned).await?.ok()?;
    let delete = [
        "delete",
        "configmap",
        "owner",
        "--cascade=foreground",
        "--timeout=60s",
    ];
    kubectl(space, MALLORY, &delete, None).await?.ok()?;

    // A finalizer that nobody removes any more is removed by hand.
    let machines = api(&space.cluster.client, "Machine", &space.name);
    create(space, RESTORER, &machine("stuck")).await?.ok()?;
    let hold = Patch::Merge(json!({ "metadata": { "finalizers": ["example.org/stuck"] } }));
    machines.patch("stuck", &PatchParams::default(), &hold).await?;
    kubectl(
        space,
        MALLORY,
        &["delete", "machine", "stuck", "--wait=false"],
        None,
    )
    .await?
    .ok()?;
    let release = json!({ "metadata": { "finalizers": null } });
    patch(space, MALLORY, "machine/stuck", "", release).await?.ok()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let left: Vec<DynamicObject> = machines.list(&ListParams::default()).await?.items;
        if left.is_empty() {
            break;
        }
        ensure!(Instant::now() < deadline, "still there: {left:#?}");
        sleep(Duration::from_millis(200)).await;
    }
    // One that goes with its namespace.
    create(space, RESTORER, &machine("last")).await?.ok().map(drop)
}
