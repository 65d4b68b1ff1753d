//! Runs that are stopped from outside.

use std::time::Instant;

use skyward_agent::protocol::{RunSpec, finished::Ending, run_state::Phase};

use crate::machine::{Machine, bash, command, is_alive, processes_with, program, reach, until};

#[tokio::test]
async fn a_timeout_ends_the_whole_family_also_what_ignores_it() {
    let mut machine = Machine::start().await;
    let script = "trap '' TERM; setsid bash -c \"trap '' TERM; while :; do sleep 86411; done\" & while :; do sleep 86411; done";
    let spec = RunSpec {
        // Long enough for the traps to be set on a machine that is busy.
        timeout_ms: 3000,
        grace_ms: 200,
        ..bash("r", script)
    };
    let finished = machine.run(spec).await;
    assert_eq!((finished.ending(), finished.signal), (Ending::TimedOut, 9));
    assert_eq!(
        finished.message,
        "it ran longer than its timeout of 3s and was ended with SIGKILL, after the grace period"
    );
    assert!(processes_with("86411").into_iter().all(|pid| !is_alive(pid)));
}

#[tokio::test]
async fn a_task_that_obeys_sigterm_ends_within_its_grace() {
    let mut machine = Machine::start().await;
    machine
        .begin(bash(
            "r",
            "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done",
        ))
        .await;
    machine.printed("r").await;
    let asked = Instant::now();
    let state = machine.stop("r", 60_000).await.unwrap();
    assert_ne!(state.phase(), Phase::Finished);
    let finished = machine.ended("r").await;
    assert_eq!(
        (finished.ending(), finished.exit_code, finished.message.as_str()),
        (Ending::Stopped, 7, "Deleted")
    );
    assert!(asked.elapsed().as_secs() < 30);
}

#[tokio::test]
async fn a_stop_that_comes_before_the_work_has_started_is_not_lost() {
    let mut machine = Machine::start().await;
    for round in 0..10 {
        let run_id = format!("r-{round}");
        machine.begin(command(&run_id, &["sleep", "86412"])).await;
        machine.stop(&run_id, 1000).await.unwrap();
        assert_eq!(machine.ended(&run_id).await.ending(), Ending::Stopped);
    }
}

#[tokio::test]
async fn a_later_stop_with_a_shorter_grace_wins() {
    let mut machine = Machine::start().await;
    machine
        .begin(bash(
            "r",
            "trap '' TERM; echo ready; while :; do sleep 0.01; done",
        ))
        .await;
    machine.printed("r").await;
    machine.stop("r", 3_600_000).await.unwrap();
    machine.stop("r", 0).await.unwrap();
    let finished = machine.ended("r").await;
    assert_eq!((finished.ending(), finished.signal), (Ending::Stopped, 9));
}

#[tokio::test]
async fn an_ended_run_answers_a_stop_with_its_state_and_an_unknown_one_with_not_found() {
    let mut machine = Machine::start().await;
    machine.run(command("r", &["true"])).await;
    let state = machine.stop("r", 0).await.unwrap();
    assert_eq!(state.phase(), Phase::Finished);
    assert_eq!(state.finished.unwrap().ending(), Ending::Exited);
    assert_eq!(
        machine.stop("unknown", 0).await.unwrap_err().code(),
        tonic::Code::NotFound
    );
}

#[tokio::test]
async fn a_machine_that_nobody_cares_for_stops_itself_but_not_while_a_run_is_uncollected() {
    let stopped = tempfile::tempdir().unwrap();
    let file = stopped.path().join("stopped");
    let stop_command = format!("touch {}", file.display());
    let mut machine = Machine::start_with(&["--stop-command", &stop_command]).await;
    machine.run(command("r", &["true"])).await;
    let lease = skyward_agent::protocol::LeaseRequest {
        epoch: 1,
        instance_timeout_ms: 100,
        orphan_timeout_ms: 3_600_000,
        installation: String::new(),
    };
    let reply = machine.agent.renew_lease(lease).await.unwrap().into_inner();
    assert_eq!((reply.running, reply.uncollected), (0, 1));
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    assert!(!file.exists());
    machine.forget("r").await;
    until("the machine stops itself", || file.exists()).await;
}

#[tokio::test]
async fn the_supervisor_starts_a_dead_daemon_again_and_starting_twice_is_once() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        std::process::Command::new(program())
            .args([
                "start",
                "--machine",
                "tests/machine",
                "--stop-command",
                "true",
                "--home",
            ])
            .arg(folder.path())
            .output()
            .unwrap()
    };
    assert_eq!(String::from_utf8(start().stdout).unwrap().trim(), "started");
    assert_eq!(
        String::from_utf8(start().stdout).unwrap().trim(),
        "already running"
    );
    let supervisor: i32 = std::fs::read_to_string(folder.path().join("supervisor.lock"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let daemons = || -> Vec<i32> {
        let children =
            std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        children
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect()
    };
    let first = daemons();
    assert_eq!(first.len(), 1);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(first[0]),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    until("another daemon runs", || {
        daemons().first().is_some_and(|pid| *pid != first[0])
    })
    .await;
    let home = skyward_agent::daemon::Home::new(folder.path());
    let log = std::fs::read_to_string(home.log()).unwrap();
    assert!(
        log.contains("the agent's daemon died and is started again"),
        "{log}"
    );
    reach(&home).await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(supervisor),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    until("supervisor and daemon end", || {
        processes_with(&folder.path().to_string_lossy()).is_empty()
    })
    .await;
    assert!(!home.socket().exists());
}
