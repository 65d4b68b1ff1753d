//! Logs and results, and the users who may read them.

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
    let log = space.cluster.patiently(&["get", "--raw", &path]).await?;
    assert_eq!(
        log.lines().filter(|l| l.starts_with("line-")).count(),
        20_000,
        "each line once"
    );
    assert_eq!(log.lines().next(), Some("line-1"));
    let tail = space
        .cluster
        .patiently(&["get", "--raw", &format!("{path}?tailLines=3")])
        .await?;
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
    space.task("each", "p", json!({"placement": "All", "function": {"source": "import skyward\ndef main():\n    print('on', skyward.instance_info().node)\n    return skyward.instance_info().node * 10\n"}})).await?;
    space.task_ended("each").await?;
    let results = plugin(&["results", "each", "-o", "json"]).await?.ok()?;
    let results: serde_json::Value = serde_json::from_str(&results)?;
    assert!(results.to_string().contains("10"), "{results}");
    let log = plugin(&["logs", "each", "--rank", "1"]).await?.ok()?;
    assert!(log.contains("on 1") && !log.contains("on 0"), "{log}");
    space.finish().await
}

#[tokio::test]
async fn output_is_kept_of_the_ranks_and_streams_that_were_chosen_and_of_no_others() -> Result {
    let space = story("output").await?;
    space.pool("p", 2, json!({})).await?;
    let source = "
import sys, skyward

@skyward.stdout(only='head')
def quiet(rank):
    print('decorated', rank)

def main():
    rank = skyward.instance_info().node
    print('out', rank)
    print('err', rank, file=sys.stderr)
    quiet(rank)
    with skyward.redirect_output(lambda text: None):
        print('never')
";
    for (name, output) in [
        ("all", json!(null)),
        ("head", json!({"stdout": "Head"})),
        ("second", json!({"stdout": "None", "ranks": [1]})),
    ] {
        let spec = json!({"placement": "All", "output": output, "function": {"source": source}});
        space.task(name, "p", spec).await?;
    }
    for (name, expected) in [
        ("all", "decorated 0,err 0,err 1,out 0,out 1"),
        ("head", "decorated 0,err 0,err 1,out 0"),
        ("second", "err 1"),
    ] {
        let done = space.task_ended(name).await?.status.unwrap_or_default();
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
        let path = format!(
            "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/{name}/log",
            space.name
        );
        let log = space.cluster.patiently(&["get", "--raw", &path]).await?;
        // Of several ranks each line begins with its rank.
        let mut lines: Vec<&str> = log
            .lines()
            .map(|line| line.split_once("] ").map_or(line, |(_, text)| text))
            .collect();
        lines.sort_unstable();
        assert_eq!(lines.join(","), expected, "{name}: {log}");
    }
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

const MISSING: &str = " bytes of this log are missing here: more than the Pool's logs.limit was printed ---";

/// The numbers that were printed, and how many bytes are said to be missing between them.
fn numbers_and_missing(log: &str) -> Result<(Vec<u64>, Vec<u64>)> {
    let (mut numbers, mut missing) = (Vec::new(), Vec::new());
    for line in log.lines() {
        match line
            .strip_prefix("--- ")
            .and_then(|line| line.strip_suffix(MISSING))
        {
            Some(bytes) => missing.push(bytes.replace(',', "").parse()?),
            None => numbers.push(line.parse()?),
        }
    }
    Ok((numbers, missing))
}

#[tokio::test]
async fn a_run_that_prints_more_than_its_limit_keeps_its_beginning_and_its_end() -> Result {
    let space = story("log-limit").await?;
    space.pool("p", 1, json!({"logs": {"limit": "1Mi"}})).await?;
    // About 150 MB as it is stored, as fast as the machine takes it; then more, slowly.
    let source = "def main():\n    import time\n    for n in range(1, 6_000_001):\n        print(n)\n    for n in range(6_000_001, 6_000_021):\n        print(n, flush=True)\n        time.sleep(0.2)\n    return 'done'\n";
    space
        .task("much", "p", json!({"function": {"source": source}}))
        .await?;
    let plugin = |args: &'static [&'static str]| {
        let (cluster, namespace) = (space.cluster.clone(), space.name.clone());
        async move {
            let mut all = vec!["skyward", "-n", namespace.as_str()];
            all.extend_from_slice(args);
            cluster.kubectl(&all).await
        }
    };
    // Read while it prints, and once all of it is in the store.
    let followed = plugin(&["logs", "-f", "much"]).await?.ok()?;
    let done = space.task_ended("much").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let stored = plugin(&["logs", "much"]).await?.ok()?;
    for (which, log) in [("followed", &followed), ("stored", &stored)] {
        let (numbers, missing) = numbers_and_missing(log)?;
        assert_eq!(numbers.first(), Some(&1), "{which}");
        assert_eq!(numbers.last(), Some(&6_000_020), "{which}: {missing:?}");
        assert!(
            numbers.is_sorted_by(|one, next| one < next),
            "no line comes twice"
        );
        let jumps = numbers.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
        assert_eq!(jumps, missing.len(), "{missing:?}");
        // How much depends on how fast the machine is read while it prints; more than the machine
        // keeps at once in any case.
        assert!(missing.iter().sum::<u64>() > 1 << 20, "{which}: {missing:?}");
    }
    let tail = plugin(&["logs", "much", "--tail", "3"]).await?.ok()?;
    assert_eq!(tail, "6000018\n6000019\n6000020\n");
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/much/log?format=records",
        space.name
    );
    let records = space.cluster.patiently(&["get", "--raw", &path]).await?;
    assert!(
        records
            .lines()
            .any(|line| line.starts_with("~ 1 0 ") && line.ends_with(" limit"))
    );
    let value = plugin(&["results", "much", "-o", "raw"]).await?.ok()?;
    assert_eq!(value.trim(), "\"done\"");
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

#[tokio::test]
async fn several_tasks_are_read_at_once_by_name_and_by_label() -> Result {
    let space = story("several").await?;
    space.pool("p", 1, json!({})).await?;
    for name in ["one", "two"] {
        space
            .create_json(json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
                "metadata": {"name": name, "labels": {"sweep": "lr"}},
                "spec": {"pool": "p", "function": {"source": format!("def main():\n    print('{name} ran')\n    return '{name}'\n")}}}))
            .await?;
    }
    let plugin = |args: &'static [&'static str]| {
        let (cluster, namespace) = (space.cluster.clone(), space.name.clone());
        async move {
            let all = [&["skyward", "-n", namespace.as_str()], args].concat();
            cluster.kubectl(&all).await
        }
    };
    let log = plugin(&["logs", "-f", "-l", "sweep=lr"]).await?.ok()?;
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[one/0] one ran", "[two/0] two ran"]);
    let results = plugin(&["results", "-l", "sweep=lr", "-o", "json"]).await?.ok()?;
    let results: serde_json::Value = serde_json::from_str(&results)?;
    assert_eq!(
        (&results["one"][0]["value"], &results["two"][0]["value"]),
        (&json!("one"), &json!("two"))
    );
    // One that is not there keeps no other from being shown.
    let half = plugin(&["logs", "one", "absent"]).await?;
    assert_eq!(half.code, Some(1), "{half:?}");
    assert_eq!(half.stdout.trim(), "[one/0] one ran");
    assert!(half.stderr.contains("absent"), "{}", half.stderr);
    let error = plugin(&["logs", "-f", "one", "two", "--max-log-requests", "1"])
        .await?
        .refused()?;
    assert!(error.contains("--max-log-requests"), "{error}");
    space.finish().await
}
