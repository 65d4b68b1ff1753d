//! What a user sees with kubectl, and what a Task sees of itself.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use skyward_api::{Pool, Task, TaskPhase};
use skyward_testkit::{PATIENCE, PROVIDER, Result, Space};

use crate::story;

/// The first line of a table.
async fn header(space: &Space, what: &[&str]) -> Result<String> {
    let mut args = vec!["get"];
    args.extend_from_slice(what);
    let table = space.kubectl(&args).await?.ok()?;
    let words: Vec<&str> = table
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    Ok(words.join(" "))
}

#[tokio::test]
async fn columns_short_names_wait_and_watch_serve_a_person() -> Result {
    let space = story("view").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    let all = space
        .cluster
        .kubectl(&["api-resources", "--categories=skyward", "--no-headers"])
        .await?
        .ok()?;
    for short in ["skprov", "skoffer", "skpool", "skmach", "sktask"] {
        assert!(all.contains(short), "{short} is missing in\n{all}");
    }

    // `-w` shows each transition as it happens: the Task ends when it was seen to run.
    let machine = space.ready_machines("p").await?.remove(0).name_any();
    let script = format!(
        "seen=$(mktemp); kubectl -n {name} get tasks -w --no-headers >$seen & watch=$!
        until grep -q 'watched.*Running' $seen; do sleep 0.2; done
        until kubectl -n {name} exec {machine} -- touch /tmp/go; do sleep 1; done
        until grep -q 'watched.*Succeeded' $seen; do sleep 0.2; done
        kill $watch; cat $seen; rm $seen",
        name = space.name
    );
    let args = ["300", "sh", "-c", &script];
    let watch = space
        .cluster
        .run("timeout", &args, None, std::time::Duration::from_secs(310));
    let run = async {
        let gated = json!({"script": {"source": "while [ ! -e /tmp/go ]; do sleep 0.1; done"}});
        space.task("watched", "p", gated).await?;
        space.task("fails", "p", json!({"command": ["false"]})).await?;
        for condition in ["Failed", "Finished"] {
            let condition = format!("--for=condition={condition}");
            let wait = ["wait", &condition, "task/fails", "--timeout=300s"];
            space.kubectl(&wait).await?.ok()?;
        }
        let wait = [
            "wait",
            "--for=condition=Finished",
            "task/watched",
            "--timeout=300s",
        ];
        space.kubectl(&wait).await?.ok()
    };
    let (watched, ended) = tokio::join!(watch, run);
    ended?;
    let watched = watched?.stdout;
    assert!(
        watched.contains("Running") && watched.contains("Succeeded"),
        "-w shows both: {watched}"
    );
    let wait = [
        "wait",
        "--for=jsonpath={.status.phase}=Ready",
        "pool/p",
        "--timeout=60s",
    ];
    space.kubectl(&wait).await?.ok()?;
    space
        .kubectl(&["wait", "--for=condition=Ready", "pool/p", "--timeout=60s"])
        .await?
        .ok()?;

    let task = json!({"placement": 0, "command": ["true"]});
    space.task("first", "p", task).await?;
    space.task_ended("first").await?;
    for (what, columns) in [
        (
            "pools",
            "NAME PROVIDER ACCELERATOR MACHINES READY PHASE REASON $/H SPENT AGE",
        ),
        ("tasks", "NAME POOL MODE DONE PROGRESS STATUS REASON DURATION AGE"),
        (
            "machines.skyward.dev",
            "NAME POOL SLOT PROVIDER PHASE STEP MARKET $/H AGE",
        ),
        (
            "offers",
            "NAME PROVIDER ACCELERATOR COUNT GPU-MEMORY CPU MEMORY ON-DEMAND SPOT AVAILABLE CONNECTED AGE",
        ),
    ] {
        assert_eq!(header(&space, &[what]).await?, columns, "{what}");
    }
    // Written with candidates alone it shows as much as one that names its Provider.
    let candidates = json!([
        {"provider": PROVIDER, "accelerator": {"name": "A100-80GB"}},
        {"provider": PROVIDER, "accelerator": {"name": "H100", "count": 8}},
    ]);
    let either = json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": {"name": "either"},
        "spec": {"candidates": candidates, "nodes": {"desired": 0}}});
    space.create_json(either).await?;
    let off = [
        "wait",
        "--for=jsonpath={.status.phase}=Off",
        "pool/either",
        "--timeout=300s",
    ];
    space.kubectl(&off).await?.ok()?;
    for (pool, expected) in [
        ("either", format!("either {PROVIDER} A100,H100 0 0/0 Off")),
        ("p", format!("p {PROVIDER} 1 1/1 Ready")),
    ] {
        let row = space
            .kubectl(&["get", "pool", pool, "--no-headers"])
            .await?
            .ok()?;
        let words: Vec<&str> = row.split_whitespace().collect();
        assert!(words.join(" ").starts_with(&expected), "{row}");
    }
    let wide = header(&space, &["machines.skyward.dev", "-o", "wide"]).await?;
    assert!(wide.contains("ADDRESS") && wide.contains("ID"), "{wide}");
    let explain = space
        .cluster
        .kubectl(&["explain", "pool.spec.nodes.min"])
        .await?
        .ok()?;
    assert!(explain.contains("broadcasts start"), "{explain}");
    space.finish().await
}

#[tokio::test]
async fn an_autoscaler_of_kubernetes_scales_a_pool() -> Result {
    let space = story("autoscaler").await?;
    space.pool("p", 1, json!({})).await?;
    let pool = space.pool_ready("p").await?;
    let selector = pool.status.unwrap_or_default().selector;
    let raw = format!(
        "/apis/skyward.dev/v1alpha1/namespaces/{}/pools/p/scale",
        space.name
    );
    let scale: Value = serde_json::from_str(&space.kubectl(&["get", "--raw", &raw]).await?.ok()?)?;
    assert_eq!(
        (
            &scale["spec"]["replicas"],
            &scale["status"]["replicas"],
            &scale["status"]["selector"]
        ),
        (&json!(1), &json!(1), &json!(selector)),
        "{scale}"
    );
    assert!(!selector.is_empty());
    for kind in ["pods", "machines.skyward.dev"] {
        let found = space
            .kubectl(&["get", kind, "-l", &selector, "-o", "name"])
            .await?
            .ok()?;
        assert_eq!(
            found.lines().count(),
            1,
            "the selector matches the {kind} of the Pool: {found}"
        );
    }
    // Below minReplicas it scales without any metric, so that none need be served here.
    space
        .create_json(json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "p"},
            "spec": {"scaleTargetRef": {"apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "name": "p"},
                "minReplicas": 2, "maxReplicas": 3}}))
        .await?;
    space
        .wait("p", "2/2", PATIENCE, |p: &Pool| {
            p.status.as_ref().is_some_and(|s| s.ready_summary == "2/2")
        })
        .await?;
    let conditions = |autoscaler: &HorizontalPodAutoscaler| {
        let status = autoscaler.status.clone().unwrap_or_default();
        status.conditions.unwrap_or_default()
    };
    // Then it asks for the metrics of what the selector matches; here nothing serves them.
    let judged = |autoscaler: &HorizontalPodAutoscaler| {
        conditions(autoscaler).iter().any(|c| c.type_ == "ScalingActive")
    };
    let autoscaler = space
        .wait("p", "judged by its selector", PATIENCE, judged)
        .await?;
    let able = conditions(&autoscaler);
    assert!(
        able.iter()
            .any(|c| c.type_ == "AbleToScale" && c.status == "True")
            && able
                .iter()
                .all(|c| c.reason.as_deref() != Some("InvalidSelector")),
        "{able:#?}"
    );
    space.finish().await
}

#[tokio::test]
async fn names_of_253_characters_work_to_the_end() -> Result {
    let space = story("names").await?;
    let pool = format!("{}.{}", "p".repeat(200), "q".repeat(52));
    let task = "t".repeat(253);
    assert_eq!((pool.len(), task.len()), (253, 253));
    space.pool(&pool, 1, json!({})).await?;
    let source = "import os\ndef main():\n    print('hello')\n    return [os.environ['SKYWARD_POOL'], os.environ['SKYWARD_TASK']]\n";
    space
        .task(
            &task,
            &pool,
            json!({"placement": "All", "function": {"source": source}}),
        )
        .await?;
    let done = space.task_ended(&task).await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(done.results[0].value, Some(json!([pool, task])));
    let log = space
        .cluster
        .kubectl(&["skyward", "-n", &space.name, "logs", &task])
        .await?
        .ok()?;
    assert_eq!(log.trim(), "hello");
    let scale = format!("pool/{pool}");
    space.kubectl(&["scale", &scale, "--replicas=2"]).await?.ok()?;
    space
        .wait(&pool, "2/2", PATIENCE, |p: &Pool| {
            p.status.as_ref().is_some_and(|s| s.ready_summary == "2/2")
        })
        .await?;
    space.kubectl(&["delete", &scale, "--timeout=300s"]).await?.ok()?;
    space.finish().await
}

#[tokio::test]
async fn instance_info_has_every_field_of_the_python_library() -> Result {
    let space = story("info").await?;
    space.pool("p", 2, json!({})).await?;
    let source = "
import socket, skyward
def main():
    i = skyward.instance_info()
    return {
        'node': i.node, 'worker': i.worker, 'total_nodes': i.total_nodes, 'workers_per_node': i.workers_per_node,
        'accelerators': i.accelerators, 'total_accelerators': i.total_accelerators,
        'head_addr': i.head_addr, 'head_port': i.head_port, 'job_id': i.job_id, 'attempt_id': i.attempt_id,
        'slot': i.slot, 'pool_nodes': i.pool_nodes,
        'peers': [{'node': p.node, 'private_ip': p.private_ip, 'public_ip': p.public_ip} for p in i.peers],
        'accelerator': i.accelerator and i.accelerator.type,
        'interface': i.network.interface, 'bandwidth_gbps': i.network.bandwidth_gbps,
        'global_worker_index': i.global_worker_index, 'total_workers': i.total_workers,
        'is_head': i.is_head, 'free': skyward.is_head(i), 'hostname': i.hostname == socket.gethostname(),
        'names': [type(i).__name__, type(i.peers[0]).__name__, type(i.network).__name__],
    }
";
    space
        .task(
            "info",
            "p",
            json!({"placement": "All", "function": {"source": source}}),
        )
        .await?;
    let task: Task = space.task_ended("info").await?;
    let done = task.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let machines = space.ready_machines("p").await?;
    let addresses: Vec<String> = machines
        .iter()
        .map(|m| m.status.clone().unwrap_or_default().address)
        .collect();
    let attempt = format!("{}-1", task.metadata.uid.unwrap_or_default());
    let pool = space.pool_ready("p").await?.metadata.uid.unwrap_or_default();
    for rank in [0, 1] {
        let value = done.results[rank].value.clone().unwrap_or_default();
        assert!(
            value["head_port"].as_u64().is_some_and(|port| port > 1024),
            "{value}"
        );
        let expected = json!({
            "node": rank, "worker": 0, "total_nodes": 2, "workers_per_node": 1,
            "accelerators": 0, "total_accelerators": 0,
            "head_addr": addresses[0], "head_port": value["head_port"], "job_id": pool, "attempt_id": attempt,
            "slot": rank, "pool_nodes": 2,
            "peers": [{"node": 0, "private_ip": addresses[0], "public_ip": ""},
                      {"node": 1, "private_ip": addresses[1], "public_ip": ""}],
            "accelerator": null, "interface": "eth0", "bandwidth_gbps": null,
            "global_worker_index": rank, "total_workers": 2,
            "is_head": rank == 0, "free": rank == 0, "hostname": true,
            "names": ["InstanceInfo", "PeerInfo", "NetworkInfo"],
        });
        assert_eq!(value, expected);
    }
    parts_and_accelerators(&space).await?;
    space.finish().await
}

/// On the two machines of the Pool, which have no accelerator.
async fn parts_and_accelerators(space: &Space) -> Result {
    let source = "
import skyward
def main():
    numbers, letters = skyward.shard(list(range(4)), 'abcd', shuffle=True, seed=42)
    sampler, epochs = skyward.DistributedSampler(range(100)), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return {
        'numbers': numbers, 'letters': ''.join('abcd'[number] for number in numbers) == letters,
        'in_order': list(skyward.DistributedSampler(range(5), shuffle=False)),
        'epochs': [len(epoch) for epoch in epochs] == [50, 50] and epochs[0] != epochs[1],
        'accelerator': skyward.current_accelerator(),
        'nvidia': [skyward.is_nvidia(), skyward.is_nvidia('H100')],
        'trainium': [skyward.is_trainium(), skyward.is_trainium('trn1')],
    }
";
    let spec = json!({"placement": "All", "function": {"source": source}});
    space.task("parts", "p", spec).await?;
    let done = space.task_ended("parts").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let mut numbers = Vec::new();
    for (rank, in_order) in [(0, [0, 2, 4]), (1, [1, 3, 0])] {
        let mut value = done.results[rank].value.clone().unwrap_or_default();
        let mine = value["numbers"].take();
        numbers.extend(
            mine.as_array()
                .into_iter()
                .flatten()
                .filter_map(serde_json::Value::as_u64),
        );
        let expected = json!({
            "numbers": null, "letters": true, "in_order": in_order, "epochs": true,
            "accelerator": null, "nvidia": [false, true], "trainium": [false, true],
        });
        assert_eq!(value, expected);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);
    Ok(())
}
