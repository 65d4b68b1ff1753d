//! Tasks of all kinds, as users write them.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase, TaskStatus};
use skyward_testkit::{PATIENCE, Result, Space};

use crate::story;

pub(crate) fn status(task: Task) -> TaskStatus {
    task.status.unwrap_or_default()
}

pub(crate) fn value(task: &Task) -> Value {
    let results = task
        .status
        .as_ref()
        .map(|s| s.results.clone())
        .unwrap_or_default();
    results.first().and_then(|r| r.value.clone()).unwrap_or_default()
}

pub(crate) async fn run(space: &Space, name: &str, spec: Value) -> Result<Task> {
    space.task(name, "p", spec).await?;
    space.task_ended(name).await
}

#[tokio::test]
async fn commands_scripts_and_functions_report_what_they_did() -> Result {
    let space = story("kinds").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;

    let done = status(run(&space, "command", json!({"command": ["echo", "hello  world"]})).await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(done.results[0].exit_code, Some(0));
    assert_eq!(done.results[0].log_tail.trim(), "hello  world");
    assert_eq!((done.attempt, done.restarts, done.done.as_str()), (1, 0, "1/1"));

    let done = status(
        run(
            &space,
            "exit",
            json!({"script": {"source": "echo to-err >&2; exit 7"}}),
        )
        .await?,
    );
    assert_eq!(done.phase, Some(TaskPhase::Failed));
    assert_eq!(done.reason, "NonZeroExit");
    assert_eq!(done.results[0].exit_code, Some(7));
    assert!(done.results[0].log_tail.contains("to-err"));

    let source = "import sys\nprint(sys.version_info[0])\n";
    let done = status(
        run(
            &space,
            "python",
            json!({"script": {"interpreter": "python", "source": source}}),
        )
        .await?,
    );
    assert_eq!(done.results[0].log_tail.trim(), "3", "{done:#?}");

    let source = "def add(a, b, *, scale=1):\n    return {'sum': (a + b) * scale, 'none': None}\n";
    let function =
        json!({"function": {"source": source, "entrypoint": "add", "args": [2, 3], "kwargs": {"scale": 10}}});
    let task = run(&space, "function", function).await?;
    assert_eq!(value(&task), json!({"sum": 50, "none": null}), "{task:#?}");

    let source = "def main(*args, **kwargs):\n    print(args, kwargs)\n";
    let given = json!({"source": source, "args": [null, {"a": null, "b": [null, 1]}], "kwargs": {"x": null, "y": {"z": null}}});
    // By kubectl, whose annotation keeps the nulls that the API server drops.
    let nulls = json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": {"name": "null"},
        "spec": {"pool": "p", "function": given}});
    space.apply(&nulls.to_string()).await?.ok()?;
    let done = status(space.task_ended("null").await?);
    let arrived = "(None, {'a': None, 'b': [None, 1]}) {'x': None, 'y': {'z': None}}";
    assert_eq!(done.results[0].log_tail.trim(), arrived, "{done:#?}");

    let done = status(run(&space, "missing", json!({"command": ["/no/such/program"]})).await?);
    assert_eq!(done.reason, "StartFailed", "{done:#?}");
    assert!(done.results[0].message.contains("/no/such/program"), "{done:#?}");

    let done = status(run(&space, "signal", json!({"script": {"source": "kill -KILL $$"}})).await?);
    assert_eq!(
        (done.reason.as_str(), done.results[0].signal.as_str()),
        ("KilledBySignal", "SIGKILL")
    );
    space.finish().await
}

#[tokio::test]
async fn functions_say_what_is_wrong_with_them() -> Result {
    let space = story("functions").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 4}})).await?;
    let cases = [
        (
            "raises",
            "def main():\n    raise ValueError('no luck')\n",
            "FunctionRaised",
            "ValueError: no luck",
        ),
        ("syntax", "def main(:\n", "BadSource", "line 1"),
        ("entry", "def other():\n    pass\n", "BadSource", "main"),
        (
            "json",
            "def main():\n    return lambda: 1\n",
            "ResultNotJSON",
            "value is a function",
        ),
    ];
    for (name, source, reason, message) in cases {
        let done = status(run(&space, name, json!({"function": {"source": source}})).await?);
        assert_eq!(done.reason, reason, "{name}: {done:#?}");
        assert!(done.results[0].message.contains(message), "{name}: {done:#?}");
    }
    let source = "def main():\n    return 'x' * 5_000_000\n";
    let task = run(&space, "large", json!({"function": {"source": source}})).await?;
    let done = status(task);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(done.results[0].value, None, "5 MB do not belong into status");
    assert_eq!(done.results[0].value_bytes, Some(5_000_002));
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/large/result",
        space.name
    );
    let stored = space.cluster.patiently(&["get", "--raw", &path]).await?;
    assert_eq!(stored.trim().len(), 5_000_002);
    space.finish().await
}

#[tokio::test]
async fn several_processes_on_each_machine_are_ranks_with_logs_and_results_of_their_own() -> Result {
    let space = story("processes").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 3}})).await?;
    let source = "
import os, skyward
def main(data):
    info = skyward.instance_info()
    print('this is', info.rank)
    names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'SKYWARD_NODE_RANK', 'SKYWARD_NUM_NODES')
    return {'env': [int(os.environ[name]) for name in names], 'shard': skyward.shard(data), 'head': info.is_head,
            'info': [info.rank, info.world_size, info.local_rank, info.local_world_size, info.node, info.total_nodes],
            'host': info.hostname, 'port': os.environ['MASTER_PORT']}
";
    let spec = json!({"placement": "All", "processesPerMachine": 2,
        "function": {"source": source, "args": [(0..8).collect::<Vec<_>>()]}});
    let done = status(run(&space, "all", spec).await?);
    assert_eq!(
        (done.phase, &*done.done, &*done.succeeded_ranks),
        (Some(TaskPhase::Succeeded), "4/4", "0-3"),
        "{done:#?}"
    );
    let mut hosts = Vec::new();
    let mut ports = std::collections::BTreeSet::new();
    for result in &done.results {
        let value = result.value.clone().unwrap_or_default();
        let (rank, node, local) = (result.rank, result.rank / 2, result.rank % 2);
        assert_eq!(value["env"], json!([rank, 4, local, 2, node, 2]), "{value}");
        assert_eq!(value["info"], value["env"]);
        assert_eq!(value["shard"], json!([rank, rank + 4]));
        assert_eq!(value["head"], json!(rank == 0));
        assert_eq!(result.log_tail.trim(), format!("this is {rank}"));
        hosts.push(value["host"].to_string());
        ports.insert(value["port"].to_string());
    }
    assert!(
        hosts[0] == hosts[1] && hosts[2] == hosts[3] && hosts[1] != hosts[2],
        "{hosts:?}"
    );
    assert_eq!(ports.len(), 1, "all ranks meet at one port");

    let exits =
        json!({"placement": "All", "processesPerMachine": 3, "script": {"source": "exit $LOCAL_RANK"}});
    let failed = status(run(&space, "exits", exits).await?);
    assert_eq!(
        (&*failed.reason, &*failed.succeeded_ranks, &*failed.failed_ranks),
        ("NonZeroExit", "0,3", "1-2,4-5"),
        "{failed:#?}"
    );
    let codes: Vec<_> = failed.results.iter().map(|result| result.exit_code).collect();
    assert_eq!(codes, [0, 1, 2, 0, 1, 2].map(Some));

    let many = json!({"placement": "All", "processesPerMachine": 4, "command": ["true"]});
    space.task("many", "p", many).await?;
    let message = space
        .condition::<Task>("many", "Scheduled", "TooManyProcesses")
        .await?;
    assert!(
        message.contains("set worker.concurrency of the Pool to 4"),
        "{message}"
    );
    let patch = r#"{"spec":{"worker":{"concurrency":4}}}"#;
    space
        .kubectl(&["patch", "pool", "p", "--type=merge", "-p", patch])
        .await?
        .ok()?;
    let done = status(space.task_ended("many").await?);
    assert_eq!(
        (done.phase, &*done.done),
        (Some(TaskPhase::Succeeded), "8/8"),
        "{done:#?}"
    );
    space.finish().await
}

#[tokio::test]
async fn a_pickled_function_that_the_machine_cannot_read_says_what_is_missing() -> Result {
    let space = story("pickles").await?;
    space.pool("p", 1, json!({})).await?;
    let python = "import sys\ndef main(): return '%d.%d' % sys.version_info[:2]";
    let here = value(&run(&space, "python", json!({"function": {"source": python}})).await?);
    let here = here.as_str().unwrap_or_default().to_owned();
    for (name, version, expected) in [
        ("other", "3.1.7", "pickled with Python 3.1.7 and the machine has"),
        ("none", &*here, "needs the packages cloudpickle and lz4"),
    ] {
        let pickle = json!({"data": "AAAA", "python": version, "cloudpickle": "3.1.1"});
        let done = status(run(&space, name, json!({"function": {"pickle": pickle}})).await?);
        assert_eq!(
            (done.phase, &*done.reason),
            (Some(TaskPhase::Failed), "BadSource"),
            "{done:#?}"
        );
        assert!(done.results[0].message.contains(expected), "{done:#?}");
    }
    space.finish().await
}

#[tokio::test]
async fn a_broadcast_gives_each_machine_its_rank_and_its_peers() -> Result {
    let space = story("broadcast").await?;
    space.pool("p", 3, json!({})).await?;
    let source = "
import os, skyward
def main(data):
    info = skyward.instance_info()
    return {'rank': info.node, 'total': info.total_nodes, 'head': info.is_head, 'peers': len(info.peers),
            'shard': skyward.shard(data), 'addr': info.head_addr, 'port': info.head_port,
            'env': [os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'SKYWARD_NODE_RANK', 'SKYWARD_NUM_NODES')]}
";
    let spec = json!({"placement": "All", "function": {"source": source, "args": [[1, 2, 3, 4, 5, 6]]}});
    let done = status(run(&space, "all", spec).await?);
    assert_eq!(
        (done.phase, done.done.as_str()),
        (Some(TaskPhase::Succeeded), "3/3"),
        "{done:#?}"
    );
    assert_eq!(done.succeeded_ranks, "0-2");
    let mut seen = Vec::new();
    let mut heads = std::collections::BTreeSet::new();
    for result in &done.results {
        let value = result.value.clone().unwrap_or_default();
        assert_eq!(value["rank"], json!(result.rank));
        assert_eq!(
            (&value["total"], &value["peers"]),
            (&json!(3), &json!(3)),
            "{value}"
        );
        assert_eq!(value["head"], json!(result.rank == 0));
        assert_eq!(value["env"][0], json!(result.rank.to_string()));
        heads.insert(format!("{}:{}", value["addr"], value["port"]));
        seen.extend(value["shard"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(heads.len(), 1, "every rank must be given the same head");
    let mut seen: Vec<i64> = seen.iter().filter_map(Value::as_i64).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6], "shards must be disjoint and complete");

    let source = "import skyward\ndef main():\n    return skyward.instance_info().node\n";
    let head = run(
        &space,
        "head",
        json!({"placement": "Head", "function": {"source": source}}),
    )
    .await?;
    let slot = space
        .ready_machines("p")
        .await?
        .first()
        .map(|m| m.metadata.name.clone().unwrap_or_default());
    assert_eq!(Some(status(head).results[0].machine.clone()), slot);
    let third = status(run(&space, "rank", json!({"placement": 2, "command": ["true"]})).await?);
    let machine = space
        .ready_machines("p")
        .await?
        .pop()
        .and_then(|m| m.metadata.name);
    assert_eq!(Some(third.results[0].machine.clone()), machine);
    space.finish().await
}

#[tokio::test]
async fn the_queue_runs_by_priority_then_age_and_never_above_concurrency() -> Result {
    let space = story("queue").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 1}})).await?;
    space.pool_ready("p").await?;
    space
        .task(
            "first",
            "p",
            json!({"script": {"source": "while [ ! -e /tmp/go ]; do sleep 0.1; done"}}),
        )
        .await?;
    space.task_phase("first", TaskPhase::Running).await?;
    for (name, priority) in [("low", -5), ("middle", 0), ("high", 10)] {
        space
            .task(name, "p", json!({"priority": priority, "command": ["true"]}))
            .await?;
    }
    // A controller that was killed a moment ago reaches no machine at first, and says so.
    let full = "1 of 1 places of Pool \"p\" taken, no Task before it";
    space
        .wait("high", full, PATIENCE, |task: &Task| {
            let conditions = task.status.iter().flat_map(|status| &status.conditions);
            let mut waiting = conditions.filter(|c| c.reason == "WaitingForMachine");
            waiting.any(|c| c.type_ == "Scheduled" && c.message == full)
        })
        .await?;
    let queue = ["skyward", "queue", "p", "-n", &space.name];
    let shown = space.cluster.kubectl(&queue).await?.ok()?;
    let places: Vec<Vec<&str>> = shown
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().take(4).collect())
        .collect();
    let expected = [
        ["p", "1", "high", "10"],
        ["p", "2", "middle", "0"],
        ["p", "3", "low", "-5"],
    ];
    assert_eq!(places, expected, "{shown}");
    let one = ["skyward", "queue", "--task", "low", "-n", &space.name];
    let shown = space.cluster.kubectl(&one).await?.ok()?;
    assert!(
        shown.lines().count() == 2 && shown.contains("-5"),
        "its place alone: {shown}"
    );
    for numbers in ["runningTasks}=1", "waitingTasks}=3"] {
        let numbers = format!("--for=jsonpath={{.status.{numbers}");
        let wait = ["wait", &numbers, "pool/p", "--timeout=300s"];
        space.kubectl(&wait).await?.ok()?;
    }
    let uid = pod_uid(&space, "p").await?;
    open_gate(&space, &uid).await?;
    let mut ends = Vec::new();
    for name in ["high", "middle", "low"] {
        let done = status(space.task_ended(name).await?);
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
        ends.push(done.started_at.map(|t| t.0));
    }
    assert!(
        ends.windows(2).all(|w| w[0] <= w[1]),
        "high before middle before low: {ends:?}"
    );
    space.finish().await
}

#[tokio::test]
async fn a_chain_of_three_tasks_runs_in_order_also_over_two_pools_and_a_failure_ends_what_depends_on_it()
-> Result {
    let space = story("chain").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 4}})).await?;
    space.pool("q", 1, json!({"worker": {"concurrency": 4}})).await?;
    let after = |task: &str| json!({"command": ["true"], "dependsOn": [{"task": task}]});
    // The last one first: what does not exist yet is waited for.
    space.task("third", "p", after("second")).await?;
    let missing = space
        .condition::<Task>("third", "Scheduled", "WaitingForTask")
        .await?;
    assert_eq!(missing, "waits for Task \"second\", which does not exist yet");
    space.task("second", "q", after("first")).await?;
    space
        .task("first", "p", json!({"command": ["sleep", "1"]}))
        .await?;
    let mut times = Vec::new();
    for name in ["first", "second", "third"] {
        let done = status(space.task_ended(name).await?);
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{name}: {done:#?}");
        times.extend(
            done.started_at
                .zip(done.finished_at)
                .map(|(start, end)| (start.0, end.0)),
        );
    }
    assert!(
        times.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "each starts after the one before it has ended: {times:?}"
    );

    space.task("broken", "p", json!({"command": ["false"]})).await?;
    space.task("dependent", "q", after("broken")).await?;
    let last = json!({"command": ["true"], "dependsOn": [{"task": "dependent", "status": "Finished"}]});
    space.task("cleanup", "p", last).await?;
    let failed = status(space.task_ended("dependent").await?);
    assert_eq!((failed.reason.as_str(), failed.attempt), ("DependencyFailed", 0));
    let cleaned = status(space.task_ended("cleanup").await?);
    assert_eq!(cleaned.phase, Some(TaskPhase::Succeeded));

    space.task("one", "p", after("two")).await?;
    space.task("two", "q", after("one")).await?;
    for name in ["one", "two"] {
        space
            .condition::<Task>(name, "Scheduled", "DependencyCycle")
            .await?;
    }
    space
        .kubectl(&["delete", "tasks.skyward.dev", "one"])
        .await?
        .ok()?;
    assert_eq!(status(space.task_ended("two").await?).reason, "DependencyFailed");
    space.finish().await
}

async fn pod_uid(space: &Space, pool: &str) -> Result<String> {
    let machine = space.ready_machines(pool).await?.remove(0);
    Ok(machine.metadata.name.unwrap_or_default())
}

/// Lets the Task "first" go on: it waits for a file on its machine.
async fn open_gate(space: &Space, pod: &str) -> Result {
    space
        .kubectl(&["exec", pod, "--", "touch", "/tmp/go"])
        .await?
        .ok()
        .map(drop)
}

#[tokio::test]
async fn environment_comes_from_pool_task_secrets_and_config_maps() -> Result {
    let space = story("env").await?;
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
            "stringData": {"TOKEN": "canary-4711-canary", "BOTH": "from-secret"}}),
        )
        .await?;
    space
        .create_json(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"MODE": "fast"}}))
        .await?;
    space.pool("p", 1, json!({"image": {"env": [{"name": "LEVEL", "value": "pool"}, {"name": "POOLED", "value": "yes"}]}})).await?;
    let script = "echo token=$TOKEN mode=$MODE level=$LEVEL pooled=$POOLED both=$BOTH len=${#TOKEN} dir=$PWD";
    let done = status(
        run(
            &space,
            "env",
            json!({"script": {"source": script}, "workingDir": "/tmp",
                "envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}],
                "env": [{"name": "LEVEL", "value": "task"}, {"name": "BOTH", "value": "from-task"}]}),
        )
        .await?,
    );
    let tail = &done.results[0].log_tail;
    assert!(
        tail.contains("mode=fast level=task pooled=yes both=from-task len=18 dir=/tmp"),
        "{tail}"
    );
    assert!(
        !tail.contains("canary-4711-canary"),
        "values of Secrets are masked in status: {tail}"
    );
    let all = space
        .kubectl(&["get", "skyward,events", "-o", "yaml"])
        .await?
        .ok()?;
    assert!(
        !all.contains("canary-4711-canary"),
        "a Secret's value must stand nowhere but in the Secret"
    );

    space
        .task(
            "missing",
            "p",
            json!({"command": ["true"], "envFrom": [{"secretRef": {"name": "later"}}]}),
        )
        .await?;
    let message = space
        .condition::<Task>("missing", "Scheduled", "ReferenceNotFound")
        .await?;
    assert!(message.contains("later"), "{message}");
    space
        .create_json(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"}, "stringData": {"A": "b"}}))
        .await?;
    let done = status(space.task_ended("missing").await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let _: (Option<Secret>, Option<ConfigMap>) = (None, None);
    space.finish().await
}

#[tokio::test]
async fn timeout_ends_the_whole_process_group_with_a_grace() -> Result {
    let space = story("timeout").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 4}})).await?;
    space.pool_ready("p").await?;
    let polite =
        json!({"timeout": "5s", "script": {"source": "trap 'echo bye; exit 3' TERM; sleep 600 & wait"}});
    let done = status(run(&space, "polite", polite).await?);
    assert_eq!(done.reason, "TimedOut", "{done:#?}");
    assert!(
        done.results[0].log_tail.contains("bye"),
        "it may say goodbye: {done:#?}"
    );
    let stubborn = json!({"timeout": "1s", "terminationGracePeriod": "1s",
        "script": {"source": "trap '' TERM; (trap '' TERM; setsid sleep 611) & sleep 612"}});
    let done = status(run(&space, "stubborn", stubborn).await?);
    assert_eq!(done.reason, "TimedOut", "{done:#?}");
    let pod = pod_uid(&space, "p").await?;
    let left = space
        .kubectl(&["exec", &pod, "--", "ps", "-eo", "args"])
        .await?
        .ok()?;
    assert!(!left.contains("sleep 61"), "no descendant may stay: {left}");
    space.finish().await
}

#[tokio::test]
async fn deleting_a_task_stops_it_and_suspending_holds_it() -> Result {
    let space = story("cancel").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 4}})).await?;
    space.pool_ready("p").await?;
    let pod = pod_uid(&space, "p").await?;
    space
        .task(
            "doomed",
            "p",
            json!({"terminationGracePeriod": "1s", "command": ["sleep", "621"]}),
        )
        .await?;
    space.task_phase("doomed", TaskPhase::Running).await?;
    wait_process(&space, &pod, "sleep 621", true).await?;
    space
        .kubectl(&["delete", "task", "doomed", "--wait=true"])
        .await?
        .ok()?;
    wait_process(&space, &pod, "sleep 621", false).await?;

    space
        .task("held", "p", json!({"command": ["sleep", "622"]}))
        .await?;
    space.task_phase("held", TaskPhase::Running).await?;
    let suspend = |on: bool| format!(r#"{{"spec":{{"suspend":{on}}}}}"#);
    space
        .kubectl(&["patch", "task", "held", "--type=merge", "-p", &suspend(true)])
        .await?
        .ok()?;
    space.task_phase("held", TaskPhase::Suspended).await?;
    wait_process(&space, &pod, "sleep 622", false).await?;
    space
        .kubectl(&["patch", "task", "held", "--type=merge", "-p", &suspend(false)])
        .await?
        .ok()?;
    let again = status(space.task_phase("held", TaskPhase::Running).await?);
    assert_eq!(
        (again.attempt, again.restarts),
        (2, 1),
        "resuming starts a new attempt: {again:#?}"
    );
    let error = space
        .kubectl(&[
            "patch",
            "task",
            "held",
            "--type=merge",
            "-p",
            r#"{"spec":{"command":["sleep","1"]}}"#,
        ])
        .await?
        .refused()?;
    assert!(error.contains("create another Task"), "{error}");
    space.finish().await
}

async fn wait_process(space: &Space, pod: &str, text: &str, present: bool) -> Result {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(PATIENCE);
    while tokio::time::Instant::now() < deadline {
        let list = space
            .kubectl(&["exec", pod, "--", "ps", "-eo", "args"])
            .await?
            .ok()?;
        if list.lines().any(|l| l.starts_with(text)) == present {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    anyhow::bail!("\"{text}\" in \"{pod}\": expected present={present}")
}

#[tokio::test]
async fn kubectl_wait_and_columns_serve_a_person() -> Result {
    let space = story("columns").await?;
    space
        .task("early", "later", json!({"command": ["echo", "hi"]}))
        .await?;
    let message = space
        .condition::<Task>("early", "Scheduled", "PoolNotFound")
        .await?;
    assert!(message.contains("later"), "{message}");
    space.pool("later", 1, json!({})).await?;
    space
        .kubectl(&["wait", "--for=condition=Finished", "task/early", "--timeout=300s"])
        .await?
        .ok()?;
    let table = space.kubectl(&["get", "tasks,pools,machines"]).await?.ok()?;
    for word in [
        "POOL",
        "MODE",
        "DONE",
        "STATUS",
        "command/One",
        "1/1",
        "Succeeded",
        "READY",
        "PHASE",
    ] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    // One of its own, since a table of what goes in a moment is a matter of luck.
    let brief = json!({"command": ["true"], "ttlSecondsAfterFinished": 1});
    space.task("brief", "later", brief).await?;
    space.wait_gone::<Task>("brief", PATIENCE).await?;
    space.finish().await
}
