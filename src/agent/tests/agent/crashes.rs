//! After any kill no exit code is lost, no run starts twice and no process stays behind.

use std::{
    io::Read,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Command,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use prost::Message;
use skyward_agent::protocol::{finished::Ending, run_state::Phase};

use crate::machine::{Machine, bash, command, is_alive, parent_of, processes_with, program, until};

#[tokio::test]
async fn an_exit_code_survives_the_daemon() {
    let mut machine = Machine::start().await;
    let go = machine.home().join("go");
    let script = format!(
        "echo before; until [ -e {} ]; do sleep 0.01; done; echo after; exit 42",
        go.display()
    );
    machine.begin(bash("r", &script)).await;
    let started = machine.started("r").await;
    machine.kill_daemon();
    std::fs::write(&go, "").unwrap();
    let folder = machine.run_folder("r");
    until("the shim records the end", || folder.join("exit").exists()).await;
    machine.start_daemon().await;
    let finished = machine.ended("r").await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, 42));
    assert_eq!(finished.log_tail, b"before\nafter\n");
    assert_eq!(finished.started_ms, started.at_ms);
}

#[tokio::test]
async fn a_new_daemon_takes_up_a_run_that_goes_on_and_can_stop_it() {
    let mut machine = Machine::start().await;
    machine
        .begin(bash(
            "r",
            "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done",
        ))
        .await;
    let started = machine.started("r").await;
    machine.printed("r").await;
    for _ in 0..2 {
        machine.kill_daemon();
        machine.start_daemon().await;
    }
    let again = machine.begin(bash("r", "exit 1")).await;
    assert_eq!(
        (again.phase(), again.started_ms),
        (Phase::Running, started.at_ms),
        "{again:?}"
    );
    machine.stop("r", 30_000).await.unwrap();
    let finished = machine.ended("r").await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Stopped, 5));
    assert_eq!(finished.message, "Deleted");
}

#[tokio::test]
async fn a_run_accepted_just_before_the_daemon_died_runs_exactly_once() {
    let mut machine = Machine::start().await;
    let counter = machine.home().join("counter");
    for round in 0..8 {
        let run_id = format!("r-{round}");
        let script = format!("echo {run_id} >> {}", counter.display());
        machine.begin(bash(&run_id, &script)).await;
        machine.kill_daemon();
        machine.start_daemon().await;
        let finished = machine.ended(&run_id).await;
        assert_eq!(
            (finished.ending(), finished.exit_code),
            (Ending::Exited, 0),
            "{}",
            finished.message
        );
    }
    let mut lines: Vec<String> = std::fs::read_to_string(counter)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(
        lines,
        (0..8).map(|round| format!("r-{round}")).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_killed_shim_is_named_and_what_it_watched_is_ended() {
    let mut machine = Machine::start().await;
    machine
        .begin(bash("r", "setsid sleep 86401 & echo $!; sleep 86402"))
        .await;
    let started = machine.started("r").await;
    machine.printed("r").await;
    let shim = parent_of(started.pid as i32);
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    let finished = machine.ended("r").await;
    assert_eq!(finished.ending(), Ending::ShimLost);
    let grandchild: i32 = String::from_utf8(finished.log_tail)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(!is_alive(started.pid as i32) && !is_alive(grandchild));
}

#[tokio::test]
async fn a_task_that_kills_its_parent_ends_alone() {
    let mut machine = Machine::start().await;
    machine.begin(bash("other", "while :; do sleep 0.01; done")).await;
    let finished = machine.run(bash("killer", "kill -9 $PPID; sleep 86403")).await;
    assert_eq!(finished.ending(), Ending::ShimLost);
    machine.stop("other", 1000).await.unwrap();
    assert_eq!(machine.ended("other").await.ending(), Ending::Stopped);
}

#[tokio::test]
async fn a_shim_killed_while_there_is_no_daemon_is_noticed_by_the_next() {
    let mut machine = Machine::start().await;
    machine.begin(bash("r", "sleep 86404")).await;
    let started = machine.started("r").await;
    let shim = parent_of(started.pid as i32);
    machine.kill_daemon();
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    machine.start_daemon().await;
    assert_eq!(machine.ended("r").await.ending(), Ending::ShimLost);
    assert!(!is_alive(started.pid as i32));
}

#[tokio::test]
async fn nothing_outlives_a_run() {
    let mut machine = Machine::start().await;
    let script = "setsid sleep 86405 & sleep 86405 & (setsid sh -c 'sleep 86405; true' &) ; echo done";
    let finished = machine.run(bash("r", script)).await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, 0));
    assert_eq!(finished.log_tail, b"done\n");
    until("all are gone", || {
        processes_with("86405").into_iter().all(|pid| !is_alive(pid))
    })
    .await;
}

/// The daemon looks for the verdict when the connection ends; if the verdict were not there yet,
/// every run would take a pause longer.
#[test]
fn the_verdict_is_there_when_the_connection_to_the_shim_ends() {
    let home = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let spec = command(&format!("r-{round}"), &["true"]);
        let folder = home.path().join("runs").join(&spec.run_id);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("spec"), spec.encode_to_vec()).unwrap();
        let (mut daemon, shim) = UnixStream::pair().unwrap();
        let mut process = Command::new(program())
            .arg("shim")
            .arg(home.path())
            .args([&spec.run_id, ""])
            .stdin(OwnedFd::from(shim))
            .stdout(std::fs::File::create(folder.join("lock")).unwrap())
            .spawn()
            .unwrap();
        daemon.read_to_string(&mut String::new()).unwrap();
        assert!(folder.join("exit").exists(), "in round {round}");
        assert!(process.wait().unwrap().success());
    }
}
