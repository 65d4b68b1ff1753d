//! The parts of the protocol that the controller relies on.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use skyward_agent::protocol::{
    Fact, HelloRequest, WatchRequest, fact, finished::Ending, run_state::Phase, version::PROTOCOL_MAX,
};

use crate::machine::{Machine, bash, command, program};

#[tokio::test]
async fn a_start_that_is_repeated_starts_nothing() {
    let mut machine = Machine::start().await;
    let counter = machine.home().join("counter");
    let spec = bash("r", &format!("echo x | tee -a {}", counter.display()));
    machine.begin(spec.clone()).await;
    machine.begin(spec.clone()).await;
    machine.ended("r").await;
    let state = machine.begin(spec).await;
    assert_eq!(state.phase(), Phase::Finished);
    let finished = state.finished.unwrap();
    assert_eq!(
        (finished.ending(), finished.log.len() as u64),
        (Ending::Exited, finished.log_bytes)
    );
    assert_eq!(std::fs::read_to_string(counter).unwrap(), "x\n");
}

#[tokio::test]
async fn an_older_leader_is_refused_for_good() {
    let mut machine = Machine::start().await;
    machine.try_begin(5, command("r", &["true"])).await.unwrap();
    machine.kill_daemon();
    machine.start_daemon().await;
    let refused = machine.try_begin(4, command("s", &["true"])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("stale epoch"));
    let hello = |epoch| HelloRequest {
        protocol_min: 1,
        protocol_max: PROTOCOL_MAX,
        epoch,
        ..HelloRequest::default()
    };
    assert!(machine.agent.hello(hello(4)).await.is_err());
    let reply = machine.agent.hello(hello(6)).await.unwrap().into_inner();
    assert_eq!((reply.protocol, reply.machine.as_str()), (1, "tests/machine"));
    assert!(reply.python.starts_with("3.") && reply.agent_digest.len() == 64);
    assert!(machine.try_begin(5, command("s", &["true"])).await.is_err());
}

#[tokio::test]
async fn a_leader_with_an_older_epoch_of_the_installation_keeps_the_machine_alive_and_commands_nothing() {
    let mut machine = Machine::start().await;
    let hello = |epoch, installation: &str| HelloRequest {
        protocol_min: 1,
        protocol_max: PROTOCOL_MAX,
        epoch,
        epoch_proof: format!("proof of {epoch}"),
        installation: installation.into(),
    };
    machine.agent.hello(hello(7, "here")).await.unwrap();
    machine.kill_daemon();
    machine.start_daemon().await;
    let reply = machine.agent.hello(hello(5, "here")).await.unwrap().into_inner();
    assert_eq!(
        (reply.newest_epoch, reply.epoch_proof.as_str()),
        (7, "proof of 7")
    );
    let lease = |epoch, installation: &str| skyward_agent::protocol::LeaseRequest {
        epoch,
        instance_timeout_ms: 60_000,
        orphan_timeout_ms: 60_000,
        installation: installation.into(),
    };
    machine.agent.renew_lease(lease(5, "here")).await.unwrap();
    let refused = machine.agent.renew_lease(lease(5, "")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    let refused = machine.try_begin(5, command("r", &["true"])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    for refused in [
        machine.agent.hello(hello(9, "elsewhere")).await.map(drop),
        machine.agent.renew_lease(lease(9, "elsewhere")).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), tonic::Code::PermissionDenied);
    }
    machine.try_begin(7, command("r", &["true"])).await.unwrap();
}

#[tokio::test]
async fn an_id_that_is_no_name_of_a_folder_is_refused() {
    let mut machine = Machine::start().await;
    let refused = machine
        .try_begin(1, command("../r", &["true"]))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn two_watchers_see_the_same_facts_and_a_late_one_only_what_it_has_not_seen() {
    let mut machine = Machine::start().await;
    let mut watchers = Vec::new();
    for _ in 0..2 {
        watchers.push(
            machine
                .agent
                .watch(WatchRequest {
                    since: 0,
                    mark_replay: false,
                })
                .await
                .unwrap()
                .into_inner(),
        );
    }
    for run_id in ["a", "b"] {
        machine.run(command(run_id, &["true"])).await;
    }
    let mut seen: Vec<Vec<Fact>> = Vec::new();
    for watcher in &mut watchers {
        let mut facts = Vec::new();
        while facts.len() < 4 {
            facts.push(watcher.message().await.unwrap().unwrap());
        }
        seen.push(facts);
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].is_sorted_by_key(|fact| fact.seq));
    let since = seen[0][2].seq;
    machine.kill_daemon();
    machine.start_daemon().await;
    let mut late = machine
        .agent
        .watch(WatchRequest {
            since,
            mark_replay: false,
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(late.message().await.unwrap().unwrap(), seen[0][3]);
    // A client that knows facts which this agent never had starts from the beginning.
    let mut lost = machine
        .agent
        .watch(WatchRequest {
            since: 1 << 40,
            mark_replay: false,
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(lost.message().await.unwrap().unwrap(), seen[0][0]);
}

#[tokio::test]
async fn the_bridge_carries_bytes_both_ways() {
    let machine = Machine::start().await;
    let mut bridge = Command::new(program())
        .args(["bridge", "--home"])
        .arg(machine.home())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The start of an HTTP/2 connection with empty settings; the server answers with its own.
    let mut input = bridge.stdin.take().unwrap();
    input
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut header = [0; 9];
    bridge.stdout.as_mut().unwrap().read_exact(&mut header).unwrap();
    assert_eq!(header[3], 4, "a frame of settings");
    drop(input);
    bridge.wait().unwrap();
}

/// Not a benchmark: prints what `make bench` measures elsewhere, and fails only when a poll
/// has crept into the way.
#[tokio::test]
async fn many_short_runs_take_little_time_each() {
    const RUNS: u32 = 100;
    let mut machine = Machine::start().await;
    let mut facts = machine
        .agent
        .watch(WatchRequest {
            since: 0,
            mark_replay: false,
        })
        .await
        .unwrap()
        .into_inner();
    let (mut latencies, mut usual) = (Vec::new(), Vec::new());
    for index in 0..RUNS {
        // The cost of any process just now: the machine may be busy.
        let begun = Instant::now();
        Command::new("true").status().unwrap();
        usual.push(begun.elapsed());
        let begun = Instant::now();
        machine.begin(command(&format!("r-{index}"), &["true"])).await;
        loop {
            let fact = facts.message().await.unwrap().unwrap();
            if matches!(fact.fact, Some(fact::Fact::Finished(_))) {
                break;
            }
        }
        latencies.push(begun.elapsed());
    }
    latencies.sort();
    usual.sort();
    let begun = Instant::now();
    let starts = (0..RUNS).map(|index| {
        let mut agent = machine.agent.clone();
        async move {
            let spec = Some(command(&format!("s-{index}"), &["true"]));
            agent
                .start(skyward_agent::protocol::StartRequest { epoch: 1, spec })
                .await
                .unwrap();
        }
    });
    futures::future::join_all(starts).await;
    let mut ended = 0;
    while ended < RUNS {
        let fact = facts.message().await.unwrap().unwrap();
        ended += u32::from(matches!(fact.fact, Some(fact::Fact::Finished(_))));
    }
    let rate = f64::from(RUNS) / begun.elapsed().as_secs_f64();
    println!(
        "one after the other: median {:?}; all at once: {rate:.0}/s",
        latencies[RUNS as usize / 2]
    );
    let (median, usual) = (latencies[RUNS as usize / 2], usual[RUNS as usize / 2]);
    assert!(
        median < Duration::from_millis(200) + 30 * usual,
        "{median:?}, where a process takes {usual:?}"
    );
}

#[tokio::test]
async fn whoever_asks_is_told_where_the_recorded_facts_end() {
    let mut machine = Machine::start().await;
    machine.run(command("before", &["true"])).await;
    let request = WatchRequest {
        since: 0,
        mark_replay: true,
    };
    let mut facts = machine.agent.watch(request).await.unwrap().into_inner();
    let mut told = Vec::new();
    loop {
        let fact = facts.message().await.unwrap().unwrap();
        if let Some(fact::Fact::Replayed(replayed)) = fact.fact {
            assert!(fact.run_id.is_empty() && replayed.accepted.is_empty());
            break;
        }
        told.push(fact.run_id);
    }
    assert_eq!(told, ["before", "before"]);
    machine.begin(command("after", &["true"])).await;
    assert_eq!(facts.message().await.unwrap().unwrap().run_id, "after");
}
