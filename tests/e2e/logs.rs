//! Logs and results, and who may read them.

use serde_json::json;
use skyward_api::TaskPhase;
use skyward_testkit::Result;

use crate::story;

#[tokio::test]
async fn full_logs_are_read_through_the_api_and_the_plugin() -> Result {
    let space = story("logs").await?;
    space.pool("p", 2, json!({})).await?;
    space
        .task(
            "count",
            "p",
            json!({"script": {"source": "for i in $(seq 1 20000); do echo line-$i; done; echo err >&2"}}),
        )
        .await?;
    let done = space.task_ended("count").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/count/log",
        space.name
    );
    let log = space.cluster.kubectl(&["get", "--raw", &path]).await?.ok()?;
    assert_eq!(
        log.lines().filter(|l| l.starts_with("line-")).count(),
        20_000,
        "each line once"
    );
    assert_eq!(log.lines().next(), Some("line-1"));
    let tail = space
        .cluster
        .kubectl(&["get", "--raw", &format!("{path}?tailLines=3")])
        .await?
        .ok()?;
    assert_eq!(tail.lines().count(), 3, "{tail}");

    let namespace = space.name.clone();
    let plugin = |args: &'static [&'static str]| {
        let (cluster, namespace) = (space.cluster.clone(), namespace.clone());
        async move {
            let mut all = vec!["skyward", "-n", namespace.as_str()];
            all.extend_from_slice(args);
            cluster.kubectl(&all).await
        }
    };
    let log = plugin(&["logs", "count", "--tail", "2"]).await?.ok()?;
    assert_eq!(log.lines().count(), 2, "{log}");
    space.task("each", "p", json!({"placement": "all", "function": {"source": "import skyward\ndef main():\n    print('on', skyward.instance_info().node)\n    return skyward.instance_info().node * 10\n"}})).await?;
    space.task_ended("each").await?;
    let results = plugin(&["results", "each", "-o", "json"]).await?.ok()?;
    let results: serde_json::Value = serde_json::from_str(&results)?;
    assert!(results.to_string().contains("10"), "{results}");
    let log = plugin(&["logs", "each", "--rank", "1"]).await?.ok()?;
    assert!(log.contains("on 1") && !log.contains("on 0"), "{log}");
    space.finish().await
}

#[tokio::test]
async fn follow_shows_lines_as_they_come_and_ends_with_the_task() -> Result {
    let space = story("follow").await?;
    space.pool("p", 1, json!({})).await?;
    space
        .task(
            "ticks",
            "p",
            json!({"script": {"source": "for i in 1 2 3 4 5; do echo tick-$i; sleep 0.3; done"}}),
        )
        .await?;
    let log = space
        .cluster
        .kubectl(&["skyward", "-n", &space.name, "logs", "-f", "ticks"])
        .await?
        .ok()?;
    let ticks: Vec<&str> = log.lines().filter(|l| l.contains("tick-")).collect();
    assert_eq!(ticks.len(), 5, "each line once: {log}");
    space.finish().await
}

#[tokio::test]
async fn who_lacks_the_right_gets_403() -> Result {
    let space = story("rbac").await?;
    space.pool("p", 1, json!({})).await?;
    space
        .task(
            "t",
            "p",
            json!({"function": {"source": "def main():\n    return 42\n"}}),
        )
        .await?;
    space.task_ended("t").await?;
    let base = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/t",
        space.name
    );
    let user = format!("system:serviceaccount:{}:default", space.name);
    for sub in ["log", "result"] {
        let path = format!("{base}/{sub}");
        let error = space
            .cluster
            .kubectl(&["get", "--raw", &path, "--as", &user])
            .await?
            .refused()?;
        assert!(error.to_lowercase().contains("forbidden"), "{error}");
    }
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "results"},
        "rules": [{"apiGroups": ["subresources.skyward.dev"], "resources": ["tasks/result"], "verbs": ["get"]}]});
    space.create_json(role).await?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "results"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "results"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": space.name}]});
    space.create_json(binding).await?;
    // A decision may be remembered for a few seconds; the right arrives within that time.
    let path = format!("{base}/result");
    let mut result = String::new();
    for _ in 0..50 {
        let output = space
            .cluster
            .kubectl(&["get", "--raw", &path, "--as", &user])
            .await?;
        if output.code == Some(0) {
            result = output.stdout;
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert_eq!(result.trim(), "42");
    let error = space
        .cluster
        .kubectl(&["get", "--raw", &format!("{base}/log"), "--as", &user])
        .await?
        .refused()?;
    assert!(error.to_lowercase().contains("forbidden"), "{error}");
    space.finish().await
}
