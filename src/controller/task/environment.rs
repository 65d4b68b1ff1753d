//! Makes the order for a run's agent, with the run's environment and `instance_info`.
//! Pure.

use std::collections::BTreeMap;

use serde_json::json;
use skyward_api::{
    Task,
    duration::Duration,
    pool,
    shared::{EnvVar, Size},
    task::Interpreter,
};
use skyward_core::accelerator::{self, Visible};
use skyward_planner::task::{message::StartOrder, references::Resolved};
use skyward_remote::protocol::{Command, Devices, Function, Pickle, RunSpec, Script, Worker, run_spec::Work};

use crate::task::arguments;

/// Largest return value that is kept, in bytes; the Task fails with ResultTooLarge above it.
pub(crate) const RESULT_LIMIT: u64 = 256 * 1024 * 1024;
/// Ports of attempts: below the ports that Linux gives out by itself.
const FIRST_PORT: u32 = 20_000;
const PORTS: u32 = 12_000;

/// The order for the agent.
pub(crate) fn run_spec(order: &StartOrder, namespace: &str, task: &Task, resolved: &Resolved) -> RunSpec {
    let spec = &task.spec;
    let place = Coordinates::of(order);
    let (stdout, stderr) = spec
        .output
        .as_ref()
        .map_or((true, true), |output| output.keeps(order.run.rank));
    let stream = |is_kept: bool| if is_kept { "all" } else { "none" }.to_owned();
    let milliseconds =
        |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    RunSpec {
        run_id: order.run.to_string(),
        namespace: namespace.to_owned(),
        task: order.name.to_string(),
        work: work(task),
        env: environment(order, task, resolved, &place).into_iter().collect(),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        timeout_ms: spec
            .timeout
            .as_ref()
            .and_then(Duration::parse)
            .map_or(0, milliseconds),
        grace_ms: milliseconds(order.grace),
        // Without a name the agent takes its default, which fits the user that SSH logs in as.
        user: order.pool.user.clone().unwrap_or_default(),
        instance_info: instance_info(order, &place),
        log_limit: order.pool.log_limit,
        result_limit: RESULT_LIMIT,
        bundle: order.source.clone().unwrap_or_default(),
        stdout: stream(stdout),
        stderr: stream(stderr),
        places: order.pool.concurrency,
        // The agent gives that place if it is free: processes and accelerators are then in one order.
        place: place.local_rank,
        devices: devices(order),
        preload: order.pool.preload.clone(),
        worker: order.items.map(|total| Worker {
            total,
            fresh: !order.pool.reuse_processes,
            threads: order
                .pool
                .items_at_once(spec.for_each.as_ref().and_then(|for_each| for_each.parallelism)),
        }),
    }
}

/// The accelerators that the places of the machine divide among them.
fn devices(order: &StartOrder) -> Option<Devices> {
    if order.pool.concurrency == 1 || order.pool.devices == pool::Devices::Share {
        return None;
    }
    let accelerator = order.accelerator.as_ref()?;
    let Visible { variable, each } = accelerator::visible(&accelerator.name)?;
    // A part of an accelerator is not divided.
    let count = (accelerator.count.number() as u32).saturating_mul(each);
    (count > 0).then(|| Devices {
        variable: variable.to_owned(),
        count,
    })
}

fn work(task: &Task) -> Option<Work> {
    let spec = &task.spec;
    if let Some(argv) = &spec.command {
        return Some(Work::Command(Command { argv: argv.clone() }));
    }
    if let Some(script) = &spec.script {
        let interpreter = match script.interpreter.unwrap_or_default() {
            Interpreter::Bash => "bash",
            Interpreter::Python => "python",
        };
        return Some(Work::Script(Script {
            interpreter: interpreter.to_owned(),
            source: script.source.clone(),
        }));
    }
    let function = spec.function.as_ref()?;
    let (args, kwargs) = arguments::written(task, function);
    Some(Work::Function(Function {
        source: function.source.clone().unwrap_or_default(),
        module: function.module.clone().unwrap_or_default(),
        // As it was sent: nothing but the run reads it.
        pickle: function.pickle.as_ref().map(|pickle| Pickle {
            data: pickle.data.clone(),
            python: pickle.python.clone(),
            cloudpickle: pickle.cloudpickle.clone(),
        }),
        entrypoint: function.entrypoint.clone().unwrap_or_else(|| "main".to_owned()),
        args_json: args.to_string(),
        kwargs_json: kwargs.to_string(),
    }))
}

/// The place of a run among the runs of its attempt.
struct Coordinates {
    rank: u32,
    /// Number of its machine, and how many machines there are.
    node: u32,
    nodes: usize,
    /// Number of its process on that machine, and how many processes each machine has.
    local_rank: u32,
    processes: u32,
    head: String,
    port: u32,
    attempt: String,
}

impl Coordinates {
    fn of(order: &StartOrder) -> Self {
        let processes = order.processes.max(1);
        // A worker of a map knows no other one: for its work it is the only process.
        let rank = if order.items.is_some() { 0 } else { order.run.rank };
        Self {
            rank,
            node: rank / processes,
            nodes: order.peers.len(),
            local_rank: rank % processes,
            processes,
            head: order
                .peers
                .first()
                .map(|peer| peer.address.clone())
                .unwrap_or_default(),
            port: port(&order.run.uid, order.run.attempt),
            attempt: format!("{}-{}", order.run.uid, order.run.attempt),
        }
    }
}

/// The port of an attempt: the same for each rank, another one for the next attempt.
fn port(uid: &str, attempt: u32) -> u32 {
    let hash = uid.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    FIRST_PORT + (hash % PORTS + attempt % PORTS * 7) % PORTS
}

/// The variables of a run. Later ones win: the Pool's, variables from Secrets and ConfigMaps, the
/// Task's, ours.
fn environment(
    order: &StartOrder,
    task: &Task,
    resolved: &Resolved,
    place: &Coordinates,
) -> BTreeMap<String, String> {
    let pair = |var: &EnvVar| (var.name.clone(), var.value.clone());
    let mut env: BTreeMap<_, _> = order.pool.env.iter().map(pair).collect();
    env.extend(resolved.env.clone());
    env.extend(task.spec.env.iter().map(pair));
    let addresses: Vec<&str> = order.peers.iter().map(|peer| peer.address.as_str()).collect();
    let ours = [
        ("SKYWARD_NODE_RANK", place.node.to_string()),
        ("SKYWARD_NUM_NODES", place.nodes.to_string()),
        ("SKYWARD_HEAD_ADDR", place.head.clone()),
        ("SKYWARD_HEAD_PORT", place.port.to_string()),
        ("SKYWARD_PEERS", addresses.join(",")),
        ("SKYWARD_ATTEMPT", order.run.attempt.to_string()),
        ("SKYWARD_TASK", order.name.to_string()),
        ("SKYWARD_POOL", order.pool.name.clone()),
        ("SKYWARD_JOB_ID", order.pool.uid.clone()),
        ("SKYWARD_ATTEMPT_ID", place.attempt.clone()),
        ("MASTER_ADDR", place.head.clone()),
        ("MASTER_PORT", place.port.to_string()),
        ("RANK", place.rank.to_string()),
        ("WORLD_SIZE", (place.nodes * place.processes as usize).to_string()),
    ];
    env.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    // Frameworks take the first of them as a sign that somebody else starts all processes, so that a Task that
    // does not ask for processes starts its own.
    if task.spec.processes_per_machine.is_some() {
        let launched = [
            ("LOCAL_RANK", place.local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", place.processes.to_string()),
            ("GROUP_RANK", place.node.to_string()),
            ("GROUP_WORLD_SIZE", place.nodes.to_string()),
        ];
        env.extend(launched.map(|(name, value)| (name.to_owned(), value)));
    }
    env
}

/// The answer of `skyward.instance_info()`.
fn instance_info(order: &StartOrder, place: &Coordinates) -> String {
    let accelerator = order.accelerator.as_ref();
    let count = accelerator.map_or(0.0, |accelerator| accelerator.count.number());
    // Machines of one Pool may have different numbers of them.
    let total: f64 = order.peers.iter().map(|peer| peer.accelerators).sum();
    let peers: Vec<_> = order
        .peers
        .iter()
        .enumerate()
        .map(|(node, peer)| {
            json!({ "node": node, "private_ip": peer.address, "public_ip": peer.public_address })
        })
        .collect();
    let trainium = |name: &str| name.to_ascii_lowercase().starts_with("trainium");
    json!({
        "node": place.node,
        "total_nodes": place.nodes,
        "local_rank": place.local_rank,
        "local_world_size": place.processes,
        "accelerators": number(count),
        "total_accelerators": number(total),
        "head_addr": place.head,
        "head_port": place.port,
        "job_id": order.pool.uid,
        "attempt_id": place.attempt,
        "peers": peers,
        "accelerator": accelerator.map(|accelerator| json!({
            "type": accelerator.name,
            "count": number(count),
            "memory_gb": accelerator.memory.as_ref().and_then(Size::card_gb).map(number),
            "is_trainium": trainium(&accelerator.name),
        })),
        "network": { "interface": null, "bandwidth_gbps": null },
        "is_head": place.rank == 0,
        "hostname": null,
        "slot": order.slot,
        "pool_nodes": order.pool.desired,
        "machine": &*order.machine,
        "task": &*order.name,
        "pool": order.pool.name,
        "attempt": order.run.attempt,
    })
    .to_string()
}

/// A whole number without a point.
fn number(count: f64) -> serde_json::Value {
    if count.fract() > 0.0 {
        json!(count)
    } else {
        json!(count as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use skyward_planner::{
        pool::resolved::ResolvedPool,
        task::model::{Peer, PoolView, RunId},
    };

    fn view(pool: &skyward_api::Pool) -> Arc<PoolView> {
        Arc::new(PoolView::of(pool, &ResolvedPool::of(&pool.spec)).unwrap())
    }

    fn order(rank: u32, attempt: u32) -> StartOrder {
        let pool: skyward_api::Pool = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
            "metadata": { "name": "p", "namespace": "n", "uid": "pu", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "provider": "c",
                      "image": { "env": [{ "name": "A", "value": "pool" }, { "name": "B", "value": "pool" }] } },
        }))
        .unwrap();
        StartOrder {
            run: RunId {
                uid: "0b5c6f5e".into(),
                attempt,
                rank,
            },
            name: "t".into(),
            machine: "p-0".into(),
            connection: 1,
            items: None,
            commit: String::new(),
            pool: view(&pool),
            slot: 4,
            accelerator: serde_json::from_value(json!({ "name": "H100", "count": 2, "memory": "80Gi" }))
                .unwrap(),
            peers: vec![
                Peer {
                    address: "10.0.0.1".into(),
                    public_address: Some("203.0.113.7".into()),
                    accelerators: 8.0,
                },
                Peer {
                    address: "10.0.0.2".into(),
                    public_address: None,
                    accelerators: 2.0,
                },
            ],
            processes: 1,
            grace: std::time::Duration::from_secs(30),
            task: None,
            resolved: None,
            source: None,
        }
    }

    fn task(spec: serde_json::Value) -> Task {
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" }, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn the_limit_of_a_log_is_the_pools_and_never_left_to_the_agent() {
        let task = task(json!({ "pool": "p", "command": ["true"] }));
        for (logs, limit) in [(json!(null), 256 << 20), (json!({ "limit": "2Gi" }), 2 << 30)] {
            let pool: skyward_api::Pool = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
                "metadata": { "name": "p", "uid": "pu", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "provider": "c", "logs": logs },
            }))
            .unwrap();
            let order = StartOrder {
                pool: view(&pool),
                ..order(0, 1)
            };
            assert_eq!(
                run_spec(&order, "n", &task, &Resolved::default()).log_limit,
                limit
            );
        }
    }

    #[test]
    fn the_modules_that_a_pool_preloads_are_told_to_the_agent() {
        let task = task(json!({ "pool": "p", "command": ["true"] }));
        let mut order = order(0, 1);
        assert!(
            run_spec(&order, "n", &task, &Resolved::default())
                .preload
                .is_empty()
        );
        let mut view = PoolView::clone(&order.pool);
        view.preload = vec!["torch".to_owned()];
        order.pool = Arc::new(view);
        assert_eq!(
            run_spec(&order, "n", &task, &Resolved::default()).preload,
            ["torch"]
        );
    }

    #[test]
    fn later_sources_of_the_environment_win_and_ours_last() {
        let task = task(json!({ "pool": "p", "command": ["true"],
            "env": [{ "name": "C", "value": "task" }, { "name": "RANK", "value": "9" }] }));
        let resolved = Resolved {
            env: [
                ("B".to_owned(), "secret".to_owned()),
                ("C".to_owned(), "secret".to_owned()),
            ]
            .into(),
            secrets: Arc::default(),
            source: None,
        };
        let spec = run_spec(&order(1, 1), "n", &task, &resolved);
        for (name, value) in [
            ("A", "pool"),
            ("B", "secret"),
            ("C", "task"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("SKYWARD_PEERS", "10.0.0.1,10.0.0.2"),
            ("SKYWARD_ATTEMPT", "1"),
        ] {
            assert_eq!(spec.env.get(name).map(String::as_str), Some(value), "{name}");
        }
        let info: serde_json::Value = serde_json::from_str(&spec.instance_info).unwrap();
        assert_eq!(
            (info["node"].as_u64(), info["total_nodes"].as_u64()),
            (Some(1), Some(2))
        );
        assert_eq!(
            info["accelerator"],
            json!({ "type": "H100", "count": 2, "memory_gb": 80, "is_trainium": false })
        );
        assert_eq!(
            (&info["accelerators"], &info["total_accelerators"]),
            (&json!(2), &json!(10))
        );
        assert_eq!(
            info["peers"],
            json!([
                { "node": 0, "private_ip": "10.0.0.1", "public_ip": "203.0.113.7" },
                { "node": 1, "private_ip": "10.0.0.2", "public_ip": null },
            ])
        );
        assert_eq!(info["is_head"], false);
        assert_eq!((&info["slot"], &info["pool_nodes"]), (&json!(4), &json!(1)));
    }

    #[test]
    fn each_process_of_a_machine_is_told_its_number_among_those_there_and_among_all() {
        let several =
            task(json!({ "pool": "p", "command": ["true"], "placement": "All", "processesPerMachine": 3 }));
        let told: Vec<_> = (0..6)
            .map(|rank| {
                let order = StartOrder {
                    processes: 3,
                    ..order(rank, 1)
                };
                let spec = run_spec(&order, "n", &several, &Resolved::default());
                let info: serde_json::Value = serde_json::from_str(&spec.instance_info).unwrap();
                let number = |name: &str| spec.env[name].parse::<u64>().unwrap();
                assert_eq!(info["node"], json!(number("SKYWARD_NODE_RANK")));
                assert_eq!(number("GROUP_RANK"), number("SKYWARD_NODE_RANK"));
                assert_eq!(info["local_rank"], json!(number("LOCAL_RANK")));
                assert_eq!(u64::from(spec.place), number("LOCAL_RANK"));
                assert_eq!(number("RANK"), u64::from(rank));
                assert_eq!(info["is_head"], json!(rank == 0));
                assert_eq!(
                    (&info["total_nodes"], &info["local_world_size"]),
                    (&json!(2), &json!(3))
                );
                assert_eq!((number("SKYWARD_NUM_NODES"), number("GROUP_WORLD_SIZE")), (2, 2));
                assert_eq!((number("LOCAL_WORLD_SIZE"), number("WORLD_SIZE")), (3, 6));
                assert_eq!(spec.env["SKYWARD_PEERS"], "10.0.0.1,10.0.0.2");
                assert_eq!(info["total_accelerators"], json!(10));
                (number("SKYWARD_NODE_RANK"), number("LOCAL_RANK"))
            })
            .collect();
        assert_eq!(told, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn only_a_task_that_asks_for_processes_has_the_variables_of_a_launcher() {
        let local_rank = |spec: serde_json::Value| {
            let spec = run_spec(&order(1, 1), "n", &task(spec), &Resolved::default());
            spec.env.get("LOCAL_RANK").cloned()
        };
        let plain = json!({ "pool": "p", "command": ["true"], "placement": "All" });
        assert_eq!(local_rank(plain), None);
        let asked = json!({ "pool": "p", "command": ["true"], "placement": "All", "processesPerMachine": 1 });
        assert_eq!(local_rank(asked).as_deref(), Some("0"));
    }

    #[test]
    fn a_pickle_reaches_its_run_as_it_was_sent_whatever_it_holds() {
        // Neither Base64 nor a pickle: a controller that looked into it would stumble.
        let sent = json!({ "data": "gASVCwAAAAAAAACMAm9zlIwGc3lzdGVtlJOULg", "python": "3.12.4", "cloudpickle": "3.1.1" });
        let task = task(json!({ "pool": "p", "function": { "pickle": sent, "args": [1] } }));
        let spec = run_spec(&order(0, 1), "n", &task, &Resolved::default());
        match spec.work {
            Some(Work::Function(function)) => {
                let pickle = function.pickle.unwrap();
                let received = json!({ "data": pickle.data, "python": pickle.python, "cloudpickle": pickle.cloudpickle });
                assert_eq!(received, sent);
                assert_eq!(
                    (&*function.source, &*function.module, &*function.args_json),
                    ("", "", "[1]")
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pools_execution_has_one_id_and_each_attempt_has_its_own() {
        let task = task(json!({ "pool": "p", "command": ["true"] }));
        let ids = |rank, attempt| {
            let spec = run_spec(&order(rank, attempt), "n", &task, &Resolved::default());
            let info: serde_json::Value = serde_json::from_str(&spec.instance_info).unwrap();
            let variables = ["SKYWARD_JOB_ID", "SKYWARD_ATTEMPT_ID"].map(|name| json!(spec.env[name]));
            assert_eq!(variables, [info["job_id"].clone(), info["attempt_id"].clone()]);
            variables
        };
        assert_eq!(ids(0, 1), [json!("pu"), json!("0b5c6f5e-1")]);
        assert_eq!(ids(0, 1), ids(1, 1));
        assert_eq!(ids(1, 2), [json!("pu"), json!("0b5c6f5e-2")]);
    }

    #[test]
    fn a_rank_whose_output_nobody_wants_keeps_none() {
        let streams = |output: serde_json::Value, rank| {
            let task = task(json!({ "pool": "p", "command": ["true"], "output": output }));
            let spec = run_spec(&order(rank, 1), "n", &task, &Resolved::default());
            (spec.stdout, spec.stderr)
        };
        let (all, none) = ("all", "none");
        for (output, head, other) in [
            (json!(null), (all, all), (all, all)),
            (json!({}), (all, all), (all, all)),
            (json!({ "stdout": "Head" }), (all, all), (none, all)),
            (
                json!({ "stdout": "None", "stderr": "Head" }),
                (none, all),
                (none, none),
            ),
            (
                json!({ "stdout": "Head", "ranks": [1] }),
                (none, none),
                (none, all),
            ),
            (json!({ "ranks": [0, 7] }), (all, all), (none, none)),
        ] {
            for (rank, expected) in [(0, head), (1, other)] {
                let (stdout, stderr) = streams(output.clone(), rank);
                assert_eq!((&*stdout, &*stderr), expected, "{output} of rank {rank}");
            }
        }
    }

    #[test]
    fn the_accelerators_of_a_machine_are_divided_among_its_places_unless_the_pool_shares_them() {
        let plain = task(json!({ "pool": "p", "command": ["true"] }));
        let h100 = json!({ "name": "H100", "count": 8 });
        for (concurrency, devices, accelerator, expected) in [
            (
                4,
                pool::Devices::Divide,
                h100.clone(),
                Some(("CUDA_VISIBLE_DEVICES", 8)),
            ),
            (4, pool::Devices::Share, h100.clone(), None),
            (1, pool::Devices::Divide, h100, None),
            (
                4,
                pool::Devices::Divide,
                json!({ "name": "Trainium1", "count": 16 }),
                Some(("NEURON_RT_VISIBLE_CORES", 32)),
            ),
            (
                4,
                pool::Devices::Divide,
                json!({ "name": "H100", "count": 0.5 }),
                None,
            ),
            (
                4,
                pool::Devices::Divide,
                json!({ "name": "TPUv4", "count": 4 }),
                None,
            ),
            (4, pool::Devices::Divide, json!(null), None),
        ] {
            let mut order = order(0, 1);
            let mut view = PoolView::clone(&order.pool);
            (view.concurrency, view.devices) = (concurrency, devices);
            order.pool = Arc::new(view);
            order.accelerator = serde_json::from_value(accelerator.clone()).unwrap();
            let spec = run_spec(&order, "n", &plain, &Resolved::default());
            let found = spec.devices.as_ref().map(|found| (&*found.variable, found.count));
            assert_eq!(
                (spec.places, found),
                (concurrency, expected),
                "{devices:?} of {accelerator}"
            );
        }
    }

    #[test]
    fn a_run_names_its_user_only_where_the_pool_does() {
        let plain = task(json!({ "pool": "p", "command": ["true"] }));
        let user = |order: &StartOrder| run_spec(order, "n", &plain, &Resolved::default()).user;
        let mut order = order(0, 1);
        assert_eq!(user(&order), "");
        let mut pool = PoolView::clone(&order.pool);
        pool.user = Some("root".into());
        order.pool = Arc::new(pool);
        assert_eq!(user(&order), "root");
    }

    #[test]
    fn each_attempt_has_a_port_of_its_own_and_all_ranks_share_it() {
        let port = |rank, attempt| Coordinates::of(&order(rank, attempt)).port;
        assert_eq!(port(0, 1), port(1, 1));
        assert_ne!(port(0, 1), port(0, 2));
        assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&port(0, 77)));
    }

    #[test]
    fn a_run_has_the_files_that_are_on_record_and_a_module_of_theirs() {
        let task = task(
            json!({ "pool": "p", "source": { "configMap": { "name": "code" } },
            "function": { "module": "exp.train", "entrypoint": "run" } }),
        );
        let order = StartOrder {
            source: Some("sha256:first".into()),
            ..order(0, 2)
        };
        let spec = run_spec(&order, "n", &task, &Resolved::default());
        assert_eq!(spec.bundle, "sha256:first");
        match spec.work {
            Some(Work::Function(function)) => {
                assert_eq!((&*function.module, &*function.source), ("exp.train", ""));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_function_carries_its_arguments_as_json() {
        let task = task(json!({ "pool": "p", "timeout": "90s",
            "function": { "source": "def main(a, b): ...", "args": [1, "x"], "kwargs": { "b": [null] } } }));
        let spec = run_spec(&order(0, 1), "n", &task, &Resolved::default());
        assert_eq!((spec.timeout_ms, spec.grace_ms), (90_000, 30_000));
        match spec.work {
            Some(Work::Function(function)) => {
                assert_eq!(function.entrypoint, "main");
                assert_eq!(function.args_json, r#"[1,"x"]"#);
                assert_eq!(function.kwargs_json, r#"{"b":[null]}"#);
            }
            other => panic!("{other:?}"),
        }
    }
}
