//! The life of the chart on a real cluster: install on an empty one with Providers as
//! values, upgrade while Tasks run, uninstall, install again; and the same operator
//! without Helm, from `config/default`. It takes the operator away, so it is a test
//! program of its own.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::json;
use skyward_api::{Provider, Task, TaskPhase};
use skyward_testkit::{
    Bucket, Cluster, NODE_IMAGE, OPERATOR_NAMESPACE, Output, PATIENCE, PROVIDER, Result, Space,
    kill_controller, wait_controller_replaced,
};
use tokio::{sync::Mutex, time::Instant};

/// The operator is one: each story has it to itself.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn the_chart_lives_through_install_upgrade_uninstall_and_install() -> Result {
    let _turn = TURN.lock().await;
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
    roles(&space).await?;

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
        "32",
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

/// Kubernetes' own roles `view` and `edit` have ours in them.
async fn roles(space: &Space) -> Result {
    for (role, user) in [("view", "vera"), ("edit", "eddie")] {
        let (role, user) = (format!("--clusterrole={role}"), format!("--user={user}"));
        let bind = ["create", "rolebinding", &user[7..], &role, &user];
        space.kubectl(&bind).await?.ok()?;
    }
    let may = async |user: &str, verb: &str, what: &str, sub: &str| {
        let sub = format!("--subresource={sub}");
        let ask = ["auth", "can-i", verb, what, &sub, "--as", user];
        anyhow::Ok(space.kubectl(&ask).await?.stdout.trim() == "yes")
    };
    for (user, verb, what, sub, expected) in [
        ("vera", "watch", "pools.skyward.dev", "", true),
        ("eddie", "create", "tasks.skyward.dev", "", true),
        ("vera", "create", "tasks.skyward.dev", "", false),
        ("vera", "delete", "machines.skyward.dev", "", false),
        ("eddie", "patch", "pools.skyward.dev", "scale", true),
        ("eddie", "delete", "machines.skyward.dev", "", true),
        ("eddie", "create", "machines.skyward.dev", "", false),
        ("eddie", "patch", "tasks.skyward.dev", "status", false),
        ("vera", "list", "crontasks.skyward.dev", "", true),
        ("vera", "create", "crontasks.skyward.dev", "", false),
        ("eddie", "create", "crontasks.skyward.dev", "", true),
        ("eddie", "patch", "crontasks.skyward.dev", "status", false),
        ("eddie", "update", "bundles.subresources.skyward.dev", "", true),
        ("vera", "get", "bundles.subresources.skyward.dev", "", true),
        ("vera", "update", "bundles.subresources.skyward.dev", "", false),
    ] {
        // Roles are joined by a controller, one by one, a moment after they are installed.
        let joined = tokio::time::timeout(Duration::from_mins(1), async {
            while may(user, verb, what, sub).await? != expected {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            anyhow::Ok(())
        });
        let wrong = || format!("{user}: {verb} {what} {sub} is not {expected}");
        joined.await.with_context(wrong)??;
    }
    for user in ["vera", "eddie"] {
        for sub in ["log", "result"] {
            let path = format!(
                "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/none/{sub}",
                space.name
            );
            let ask = ["get", "--raw", &path, "--as", user];
            let deadline = Instant::now() + Duration::from_secs(PATIENCE);
            loop {
                let error = space.kubectl(&ask).await?.refused()?;
                if error.contains("NotFound") {
                    break;
                }
                // The API server sends nobody to a new API before it has seen it answer.
                ensure!(
                    error.contains("ServiceUnavailable") && Instant::now() < deadline,
                    "{user} may read a {sub}, if there is one: {error}"
                );
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_operator_with_a_bucket_keeps_logs_and_results_there_and_finds_them_after_a_crash() -> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let Some(bucket) = Bucket::start(&cluster).await?.map(Arc::new) else {
        return Ok(());
    };
    // A task of its own, so that a failed assertion leaves no operator with a bucket that is gone.
    let story = {
        let (cluster, bucket) = (cluster.clone(), bucket.clone());
        tokio::spawn(async move { in_a_bucket(&cluster, &bucket).await }).await
    };
    skyward_testkit::install_with(&cluster, &[]).await?;
    drop(bucket);
    story?
}

async fn in_a_bucket(cluster: &Cluster, bucket: &Bucket) -> Result {
    let values = bucket.operator_values(cluster).await?;
    skyward_testkit::install_with(cluster, &values).await?;
    let space = cluster.namespace("bucket").await?;
    space.pool("p", 1, json!({})).await?;
    let source = "def main():\n    print('hello from here')\n    return 'y' * 10_000\n";
    let function = json!({"source": source});
    space.task("kept", "p", json!({"function": function})).await?;
    let kept = space.task_ended("kept").await?;
    let done = kept.status.clone().unwrap_or_default();
    ensure!(done.phase == Some(TaskPhase::Succeeded), "{done:#?}");
    let uid = kept.metadata.uid.unwrap_or_default();
    let objects = bucket.objects(&uid);
    ensure!(
        objects.iter().any(|key| key.starts_with("team/skyward/")),
        "they lie below the prefix: {objects:?}"
    );

    let old = kill_controller(&cluster.client).await?;
    wait_controller_replaced(&cluster.client, old).await?;
    let folder = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks",
        space.name
    );
    for (what, word) in [("log", "hello from here"), ("result", "yyyyyyyyyy")] {
        let path = format!("{folder}/kept/{what}");
        let deadline = Instant::now() + Duration::from_secs(PATIENCE);
        // The new process leads after a moment.
        let read = loop {
            let read = cluster.kubectl(&["get", "--raw", &path]).await?.ok();
            if read.is_ok() || Instant::now() >= deadline {
                break read?;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        ensure!(read.contains(word), "{what}: {read}");
    }

    let brief = json!({"function": function, "ttlSecondsAfterFinished": 2});
    space.task("brief", "p", brief).await?;
    let brief = space.task_ended("brief").await?.metadata.uid.unwrap_or_default();
    space.wait_gone::<Task>("brief", PATIENCE).await?;
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while !bucket.objects(&brief).is_empty() {
        ensure!(
            Instant::now() < deadline,
            "they stayed: {:?}",
            bucket.objects(&brief)
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    space.finish().await
}

/// Type of the field `shmSize` in the CRD of Pools, empty when there is no such field.
async fn shm_size(cluster: &Cluster) -> Result<String> {
    let path =
        "jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.shmSize.maxLength}";
    cluster
        .kubectl(&["get", "crd", "pools.skyward.dev", "-o", path])
        .await?
        .ok()
}

/// A namespace, and a class of which nobody makes volumes, on a cluster that has no other.
const PLACES: &str = "chart-places";

#[tokio::test]
async fn a_place_for_results_that_the_cluster_does_not_have_is_refused_before_the_install() -> Result {
    // The class is for a while the cluster's default one, which others must not meet.
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACES}});
    cluster.apply(&namespace.to_string()).await?.ok()?;
    let story = places(&cluster).await;
    for kind in ["storageclass", "namespace"] {
        let delete = ["delete", kind, PLACES, "--ignore-not-found", "--timeout=300s"];
        cluster.kubectl(&delete).await?.ok()?;
    }
    story
}

/// What Helm says to these values. `--dry-run=server` asks the cluster, as an install does, and
/// does not mind that the operator is there already.
async fn rendered(cluster: &Cluster, more: &[&str]) -> Result<Output> {
    let chart = format!("{}/../../charts/skyward", env!("CARGO_MANIFEST_DIR"));
    let mut args = vec!["template", "other", chart.as_str(), "-n", PLACES];
    args.extend_from_slice(more);
    cluster.helm(&args).await
}

async fn places(cluster: &Cluster) -> Result {
    let asked = "--dry-run=server";
    let class = format!("store.storageClass={PLACES}");
    let places = [
        ("store.storageClass=default", "has no default StorageClass"),
        (class.as_str(), "has no StorageClass \"chart-places\""),
        ("store.existingClaim=mine", "no PersistentVolumeClaim \"mine\""),
    ];
    for (place, words) in places {
        let refusal = rendered(cluster, &["--set", place, asked]).await?.refused()?;
        ensure!(refusal.contains(words), "{place}: {refusal}");
        // Nothing is said without a cluster, or when the check is turned off.
        rendered(cluster, &["--set", place]).await?.ok()?;
        let unchecked = ["--set", place, "--set", "store.check=false", asked];
        rendered(cluster, &unchecked).await?.ok()?;
    }
    let (place, words) = places[0];
    let chart = format!("{}/../../charts/skyward", env!("CARGO_MANIFEST_DIR"));
    let install = ["install", "other", &chart, "-n", PLACES, "--set", place, asked];
    let refusal = cluster.helm(&install).await?.refused()?;
    ensure!(refusal.contains(words), "an install: {refusal}");

    let default = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": PLACES, "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.apply(&class.to_string()).await?.ok()?;
    claim(cluster, "mine").await?;
    for (place, _) in places {
        rendered(cluster, &["--set", place, asked]).await?.ok()?;
    }

    // Helm cannot go on where it may not ask, so there is a way round it.
    let nobody = ["--set", place, asked, "--kube-as-user", "nobody"];
    let refusal = rendered(cluster, &nobody).await?.refused()?;
    ensure!(refusal.contains("forbidden"), "{refusal}");
    let unchecked = [&nobody[..], &["--set", "store.check=false"]].concat();
    rendered(cluster, &unchecked).await?.ok()?;

    // An upgrade, or an install after an uninstall, goes on with the claim that is there.
    claim(cluster, "skyward-store").await?;
    cluster.kubectl(&["delete", "storageclass", PLACES]).await?.ok()?;
    rendered(cluster, &["--set", place, asked]).await?.ok()?;
    Ok(())
}

async fn claim(cluster: &Cluster, name: &str) -> Result {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": PLACES},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.apply(&claim.to_string()).await?.ok().map(drop)
}

/// A volume for the claim of `config/default`, on a cluster without StorageClasses.
const VOLUME: &str = "skyward-config-default";

/// What somebody who works without Helm keeps beside `config/default`: images and volume.
fn kustomization(folder: &std::path::Path) -> Result {
    let operator = std::env::var("SKYWARD_OPERATOR_IMAGE").context("run `make test`")?;
    let node = std::env::var(NODE_IMAGE).context("run `make test`")?;
    let store = std::env::var("SKYWARD_STORE_DIR").context("run `make test`")?;
    let (name, tag) = operator.rsplit_once(':').context("a tag")?;
    let root = format!("{}/../..", env!("CARGO_MANIFEST_DIR"));
    // kustomize takes no absolute paths, and nothing that a link leads to.
    let up = "../".repeat(folder.components().count() - 1);
    let root = fs::canonicalize(root)?;
    let root = format!("{up}{}", root.display().to_string().trim_start_matches('/'));
    let patch = json!([{"op": "add", "path": "/spec/template/spec/containers/0/env/-",
        "value": {"name": "SKYWARD_NODE_IMAGE", "value": node}}]);
    let whole = json!({
        "resources": [format!("{root}/config/default"), "volume.yaml"],
        "images": [{"name": "skyward.dev/operator", "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "Deployment", "name": "skyward-controller"}, "patch": patch.to_string()}],
    });
    fs::write(folder.join("kustomization.yaml"), whole.to_string())?;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME},
        "spec": {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": OPERATOR_NAMESPACE, "name": "skyward-store"},
            "hostPath": {"path": store}}});
    Ok(fs::write(folder.join("volume.yaml"), volume.to_string())?)
}

#[tokio::test]
async fn config_default_brings_the_operator_without_helm_and_takes_it_away() -> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    // What it needs is there before anything is taken away.
    let folder = std::env::temp_dir().join(format!("skyward-kustomize-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    kustomization(&folder)?;
    let uninstall = [
        "uninstall",
        "skyward",
        "--namespace",
        OPERATOR_NAMESPACE,
        "--ignore-not-found",
        "--wait",
    ];
    cluster.helm(&uninstall).await?.ok()?;
    let all = [
        "delete",
        "namespace",
        OPERATOR_NAMESPACE,
        "--ignore-not-found",
        "--timeout=300s",
    ];
    cluster.kubectl(&all).await?.ok()?;

    let path = folder.display().to_string();
    // A task of its own, so that a failed assertion leaves nothing that Helm stumbles over.
    let story = {
        let (cluster, path) = (cluster.clone(), path.clone());
        tokio::spawn(async move { without_helm(&cluster, &path).await }).await
    };
    // As its kustomization.yaml says: first what users made. A story that failed leaves machines.
    let allow = format!("{}=true", skyward_api::labels::ALLOW_DELETION);
    cluster
        .kubectl(&[
            "annotate",
            "providers.skyward.dev",
            "--all",
            "--overwrite",
            &allow,
        ])
        .await?;
    cluster
        .kubectl(&["delete", "providers.skyward.dev", "--all", "--timeout=300s"])
        .await?
        .ok()?;
    cluster
        .kubectl(&["delete", "-k", &path, "--timeout=300s"])
        .await?
        .ok()?;
    fs::remove_dir_all(&folder)?;
    story??;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let left = tokio::time::timeout(Duration::from_mins(5), async {
        while namespaces.get_opt(OPERATOR_NAMESPACE).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let kinds = "crd,clusterrole,clusterrolebinding,apiservice,validatingadmissionpolicy,validatingadmissionpolicybinding,pv";
        let listed = cluster.kubectl(&["get", kinds, "-o", "name"]).await?.ok()?;
        anyhow::Ok(
            listed
                .lines()
                .filter(|name| name.contains("skyward"))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    })
    .await??;
    assert_eq!(left, Vec::<String>::new());
    // The other stories have the operator from the chart; one of them may have installed it before it
    // was taken away here, and `install` does so once.
    skyward_testkit::install_with(&cluster, &[]).await
}

/// What a user does with it.
async fn without_helm(cluster: &Cluster, path: &str) -> Result {
    cluster.kubectl(&["apply", "-k", path]).await?.ok()?;
    for name in ["skyward-controller", "skyward-subresources"] {
        let wait = [
            "-n",
            OPERATOR_NAMESPACE,
            "rollout",
            "status",
            "deployment",
            name,
            "--timeout=300s",
        ];
        cluster.kubectl(&wait).await?.ok()?;
    }
    // Applying it again changes nothing: our own writes are no drift.
    let again = cluster.kubectl(&["apply", "-k", path]).await?.ok()?;
    assert!(
        !again.contains("configured") && !again.contains("created"),
        "{again}"
    );

    let space = cluster.namespace("kustomize").await?;
    let samples = format!("{}/../../config/samples/", env!("CARGO_MANIFEST_DIR"));
    space.kubectl(&["apply", "-f", &samples]).await?.ok()?;
    let done = space.task_ended("function").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let log = ["skyward", "logs", "script-bash", "-n", &space.name];
    space.task_ended("script-bash").await?;
    let log = cluster.kubectl(&log).await?.ok()?;
    assert!(log.contains("hello, world"), "{log}");
    space.finish().await
}
