//! Life of Pools, and Pools that cannot work.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::json;
use skyward_api::{Machine, Pool, PoolPhase, Provider, TaskPhase};
use skyward_testkit::{OPERATOR_NAMESPACE, PATIENCE, PROVIDER, Result, Space};

use tokio::time::{Duration, Instant, sleep};

use crate::story;

async fn phase(space: &Space, name: &str, wanted: PoolPhase) -> Result<Pool> {
    space
        .wait(name, &format!("{wanted:?}"), PATIENCE, |p: &Pool| {
            p.status.as_ref().and_then(|s| s.phase) == Some(wanted)
        })
        .await
}

/// Nothing of the Pool is left: no Pod, Machine, key.
async fn nothing_left(space: &Space, uid: &str) -> Result {
    assert_eq!(space.count::<Machine>().await?, 0, "a Machine stayed");
    let pods = space
        .api::<Pod>()
        .list(&ListParams::default().labels(&format!("skyward.dev/pool-uid={uid}")))
        .await?;
    assert!(
        pods.items.iter().all(|p| p.metadata.deletion_timestamp.is_some()),
        "a Pod stayed"
    );
    let secrets: Api<Secret> = Api::namespaced(space.cluster.client.clone(), OPERATOR_NAMESPACE);
    assert!(
        secrets.get_opt(&format!("pool-{uid}")).await?.is_none(),
        "the Pool's key stayed"
    );
    Ok(())
}

#[tokio::test]
async fn a_pool_grows_shrinks_turns_off_and_leaves_nothing() -> Result {
    let space = story("scale").await?;
    space.pool("p", 1, json!({})).await?;
    let pool = space.pool_ready("p").await?;
    let uid = pool.uid().unwrap_or_default();
    space.kubectl(&["scale", "pool/p", "--replicas=3"]).await?.ok()?;
    space
        .wait("p", "3/3", PATIENCE, |p: &Pool| {
            p.status.as_ref().is_some_and(|s| s.ready_summary == "3/3")
        })
        .await?;

    // The busy machine stays, idle ones go, whatever their slots are.
    space
        .task("busy", "p", json!({"placement": 2, "command": ["sleep", "640"]}))
        .await?;
    let busy = space.task_phase("busy", TaskPhase::Running).await?;
    space.kubectl(&["scale", "pool/p", "--replicas=1"]).await?.ok()?;
    space
        .wait("p", "1/1", PATIENCE, |p: &Pool| {
            p.status
                .as_ref()
                .is_some_and(|s| s.ready_summary == "1/1" && s.machines == 1)
        })
        .await?;
    let kept = space.ready_machines("p").await?;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].spec.slot, 2, "the machine with the run is kept");
    let now = space
        .api::<skyward_api::Task>()
        .get("busy")
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(
        (now.phase, now.attempt),
        (Some(TaskPhase::Running), busy.status.unwrap_or_default().attempt)
    );

    space.kubectl(&["delete", "task", "busy"]).await?.ok()?;
    space.kubectl(&["scale", "pool/p", "--replicas=0"]).await?.ok()?;
    phase(&space, "p", PoolPhase::Off).await?;
    space
        .kubectl(&["delete", "pool", "p", "--timeout=300s"])
        .await?
        .ok()?;
    nothing_left(&space, &uid).await?;
    space.finish().await
}

#[tokio::test]
async fn a_pool_can_be_deleted_at_any_time() -> Result {
    let space = story("delete").await?;
    // while it is created
    space.pool("creating", 3, json!({})).await?;
    space
        .kubectl(&["delete", "pool", "creating", "--timeout=300s"])
        .await?
        .ok()?;
    assert_eq!(space.count::<Machine>().await?, 0);
    // while it is bootstrapped
    space
        .pool(
            "booting",
            1,
            json!({"image": {"shellVars": {"SLOW": "sleep 60"}}}),
        )
        .await?;
    space
        .wait("booting", "has a machine under way", PATIENCE, |p: &Pool| {
            p.status.as_ref().is_some_and(|s| s.machines == 1)
        })
        .await?;
    space
        .kubectl(&["delete", "pool", "booting", "--timeout=300s"])
        .await?
        .ok()?;
    assert_eq!(space.count::<Machine>().await?, 0);
    // while Tasks run
    space
        .pool("busy", 2, json!({"timeouts": {"shutdown": "2s"}}))
        .await?;
    let uid = space.pool_ready("busy").await?.uid().unwrap_or_default();
    space
        .task(
            "runs",
            "busy",
            json!({"script": {"source": "trap 'echo bye; exit 0' TERM; sleep 650 & wait"}}),
        )
        .await?;
    space
        .task(
            "waits",
            "busy",
            json!({"placement": "All", "command": ["sleep", "1"]}),
        )
        .await?;
    space.task_phase("runs", TaskPhase::Running).await?;
    space
        .kubectl(&["delete", "pool", "busy", "--timeout=300s"])
        .await?
        .ok()?;
    for name in ["runs", "waits"] {
        let done = space.task_ended(name).await?.status.unwrap_or_default();
        assert_eq!(done.reason, "PoolDeleted", "{name}: {done:#?}");
    }
    nothing_left(&space, &uid).await?;
    // its namespace
    space.pool("last", 2, json!({})).await?;
    space.pool_ready("last").await?;
    space
        .task("lost", "last", json!({"command": ["sleep", "660"]}))
        .await?;
    space.task_phase("lost", TaskPhase::Running).await?;
    space.finish().await
}

#[tokio::test]
async fn pools_that_cannot_work_say_why_and_recover() -> Result {
    let space = story("bad-pools").await?;
    space
        .pool("typo", 1, json!({"provider": "no-such-provider"}))
        .await?;
    let message = space
        .condition::<Pool>("typo", "Ready", "ProviderNotFound")
        .await?;
    assert!(
        message.contains("no-such-provider") && message.contains(PROVIDER),
        "{message}"
    );
    space.pool("big", 1, json!({"cpu": 1000})).await?;
    let message = space
        .condition::<Pool>("big", "Ready", "NoAvailableProvider")
        .await?;
    assert!(message.contains("cpu"), "{message}");
    space
        .pool("gpu", 1, json!({"accelerator": {"name": "H100"}}))
        .await?;
    let message = space
        .condition::<Pool>("gpu", "Ready", "NoAvailableProvider")
        .await?;
    assert!(message.contains("accelerator"), "{message}");
    space.pool("off", 0, json!({})).await?;
    phase(&space, "off", PoolPhase::Off).await?;
    let refused = |nodes: &str| {
        format!(
            "apiVersion: skyward.dev/v1alpha1\nkind: Pool\nmetadata: {{name: x}}\nspec: {{provider: local, nodes: {nodes}}}\n"
        )
    };
    let error = space.apply(&refused("{desired: 10000}")).await?.refused()?;
    assert!(error.contains("500"), "{error}");
    let error = space.apply(&refused("{desired: 2, min: 3}")).await?.refused()?;
    assert!(
        error.contains("nodes.min must not be above nodes.desired"),
        "{error}"
    );
    space
        .pool(
            "secret",
            1,
            json!({"image": {"envFrom": [{"secretRef": {"name": "absent"}}]}}),
        )
        .await?;
    let message = space
        .condition::<Pool>("secret", "Ready", "ReferenceNotFound")
        .await?;
    assert!(message.contains("absent"), "{message}");
    space
        .create_json(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "absent"}, "stringData": {"A": "1"}}))
        .await?;
    space.pool_ready("secret").await?;
    space.finish().await
}

#[tokio::test]
async fn providers_admit_namespaces_and_say_what_is_wrong_with_images() -> Result {
    let space = story("images").await?;
    let closed = space
        .provider(
            "closed",
            json!({"container": {}, "allowedNamespaces": {"matchLabels": {"team": "research"}}}),
        )
        .await?;
    space.pool("stranger", 1, json!({"provider": closed})).await?;
    let message = space
        .condition::<Pool>("stranger", "Ready", "NamespaceNotAllowed")
        .await?;
    assert!(message.contains("team"), "{message}");
    space
        .cluster
        .kubectl(&["label", "namespace", &space.name, "team=research"])
        .await?
        .ok()?;
    space.pool_ready("stranger").await?;

    let absent = space
        .provider(
            "absent",
            json!({"container": {"image": "skyward.dev/no-such-image:1", "imagePullPolicy": "Never"}}),
        )
        .await?;
    space
        .pool(
            "absent",
            1,
            json!({"provider": absent, "provisionRetryDelay": "1s", "maxProvisionAttempts": 2}),
        )
        .await?;
    let message = space
        .condition::<Pool>("absent", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(message.contains("no-such-image"), "{message}");

    let operator = std::env::var("SKYWARD_OPERATOR_IMAGE")?;
    let bare = space
        .provider("bare", json!({"container": {"image": operator}}))
        .await?;
    space
        .pool(
            "bare",
            1,
            json!({"provider": bare, "provisionRetryDelay": "1s", "maxProvisionAttempts": 1}),
        )
        .await?;
    let message = space
        .condition::<Pool>("bare", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(message.contains("/bin/sh"), "{message}");

    // A shell, but no SSH server: every local cluster has this image.
    let plain = space
        .provider(
            "plain",
            json!({"container": {"image": "skyward.dev/busybox:dev", "imagePullPolicy": "Never"}}),
        )
        .await?;
    space
        .pool(
            "plain",
            1,
            json!({"provider": plain, "provisionRetryDelay": "1s", "maxProvisionAttempts": 1}),
        )
        .await?;
    let message = space
        .condition::<Pool>("plain", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(message.contains("has no sshd"), "{message}");

    let limited = space
        .provider("limited", json!({"container": {}, "limits": {"machines": 1}}))
        .await?;
    space
        .pool(
            "limited",
            2,
            json!({"provider": limited, "nodes": {"desired": 2, "min": 1}}),
        )
        .await?;
    let message = space
        .condition::<Pool>("limited", "Stalled", "LimitReached")
        .await?;
    assert!(
        message.starts_with(&format!("limits.machines of Provider \"{limited}\" is 1")),
        "{message}"
    );

    for pool in ["stranger", "absent", "bare", "plain", "limited"] {
        space
            .kubectl(&["delete", "pool", pool, "--timeout=300s"])
            .await?
            .ok()?;
    }
    let providers: Api<Provider> = Api::all(space.cluster.client.clone());
    for name in [closed, absent, bare, plain, limited] {
        space
            .cluster
            .kubectl(&["delete", "provider.skyward.dev", &name, "--timeout=300s"])
            .await?
            .ok()?;
        assert!(providers.get_opt(&name).await?.is_none());
    }
    space.finish().await
}

#[tokio::test]
async fn restricted_pod_security_is_enough_for_a_restricted_provider() -> Result {
    let space = story("restricted").await?;
    let label = "pod-security.kubernetes.io/enforce=restricted";
    space
        .cluster
        .kubectl(&["label", "namespace", &space.name, label])
        .await?
        .ok()?;
    let name = space
        .provider(
            "restricted",
            json!({"container": {"securityProfile": "Restricted"}}),
        )
        .await?;
    space.pool("p", 1, json!({"provider": name})).await?;
    space.task("who", "p", json!({"command": ["id", "-u"]})).await?;
    let done = space.task_ended("who").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_ne!(done.results[0].log_tail.trim(), "0");
    space
        .kubectl(&["delete", "pool", "p", "--timeout=300s"])
        .await?
        .ok()?;
    space
        .cluster
        .kubectl(&["delete", "provider.skyward.dev", &name])
        .await?
        .ok()?;
    space.finish().await
}

#[tokio::test]
async fn a_pool_says_that_a_quota_refuses_its_machines_and_goes_on_when_it_is_raised() -> Result {
    let space = story("quota").await?;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": space.name},
        "spec": {"hard": {"count/machines.skyward.dev": "0"}},
    });
    space.cluster.apply(&quota.to_string()).await?.ok()?;
    // Each new controller tries once more.
    let turn = crate::crash::KILLING.read().await;
    space.pool("p", 1, json!({})).await?;
    let told = space
        .wait("p", "exceeded quota", PATIENCE, |pool: &Pool| {
            let status = pool.status.as_ref();
            status.is_some_and(|status| {
                let mut conditions = status.conditions.iter();
                conditions.any(|condition| condition.message.contains("exceeded quota"))
            })
        })
        .await?;
    let tries = told.status.unwrap_or_default().last_attempt;
    assert!(tries <= 3, "{tries} tries within moments");
    drop(turn);
    space.kubectl(&["delete", "resourcequota", "none"]).await?.ok()?;
    space.pool_ready("p").await?;
    space.finish().await
}

#[tokio::test]
async fn a_provider_is_not_deleted_under_its_machines_by_mistake() -> Result {
    let space = story("protected").await?;
    let name = space.provider("protected", json!({"container": {}})).await?;
    let (what, admin) = (
        format!("provider.skyward.dev/{name}"),
        format!("{}-admin", space.name),
    );
    // The stories' own administrator is exempt from the policy.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": admin},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": admin}],
    });
    space.cluster.apply(&binding.to_string()).await?.ok()?;
    let delete = ["delete", what.as_str(), "--as", &admin, "--timeout=300s"];
    space.pool("p", 1, json!({"provider": name})).await?;
    space.pool_ready("p").await?;
    uses(&space, &name, 1).await?;
    let message = space.cluster.kubectl(&delete).await?.refused()?;
    assert!(
        message.contains("has 1 machine(s)") && message.contains("skyward.dev/allow-deletion=true"),
        "{message}"
    );
    space
        .kubectl(&["delete", "pool", "p", "--timeout=300s"])
        .await?
        .ok()?;
    uses(&space, &name, 0).await?;
    space.cluster.kubectl(&delete).await?.ok()?;
    let unbind = ["delete", "clusterrolebinding", &admin];
    space.cluster.kubectl(&unbind).await?.ok()?;
    space.finish().await
}

/// Waits until the Provider's status has that many machines.
async fn uses(space: &Space, provider: &str, machines: u32) -> Result {
    let providers: Api<Provider> = Api::all(space.cluster.client.clone());
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let status = providers.get(provider).await?.status.unwrap_or_default();
        if status.machines == machines {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "not {machines} machines: {status:#?}");
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn namespaces_have_limits_of_their_own_and_the_limit_that_binds_is_named_first() -> Result {
    let space = story("namespace-limits").await?;
    let limits = json!({
        "machines": 10, "machinesPerNamespace": 0,
        "namespaces": [{"selector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}}, "machines": 1}],
    });
    let name = space
        .provider("namespace-limits", json!({"container": {}, "limits": limits}))
        .await?;
    let nodes = json!({"desired": 2, "min": 1});
    space
        .pool("p", 2, json!({"provider": name, "nodes": nodes}))
        .await?;
    let message = space.condition::<Pool>("p", "Stalled", "LimitReached").await?;
    let first = format!("limits.namespaces[0].machines of Provider \"{name}\" is 1, and 1 are in use");
    assert!(
        message.starts_with(&first) && message.matches("limits.").count() == 1,
        "{message}"
    );
    space
        .kubectl(&["delete", "pool", "p", "--timeout=300s"])
        .await?
        .ok()?;
    space.finish().await
}
