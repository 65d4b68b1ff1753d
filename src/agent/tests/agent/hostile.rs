//! Tasks that use up the machine: the agent and the other runs go on.

use skyward_agent::{
    log,
    protocol::{RunSpec, finished::Ending},
};

use crate::machine::{Machine, bash, command, is_alive, processes_with, until};

#[tokio::test]
async fn a_full_disk_is_named_and_hurts_nobody_else() {
    let Some(mut machine) = Machine::start_on_small_disk("100m").await else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let go = tempfile::tempdir().unwrap();
    let flag = go.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done; exit 4", flag.display());
    machine.begin(bash("other", &script)).await;
    machine.started("other").await;
    // With a log that grows at the same time.
    let script = "while :; do echo more; done & cat /dev/zero > big; kill %1; exit 1";
    let finished = machine.run(bash("full", script)).await;
    assert_eq!(finished.ending(), Ending::DiskFull, "{}", finished.message);
    // The end of another run is recorded although the disk is full.
    std::fs::write(&flag, "").unwrap();
    let other = machine.ended("other").await;
    assert_eq!(other.exit_code, 4, "{}", other.message);
    machine.kill_daemon();
    machine.start_daemon().await;
    assert_eq!(machine.ended("other").await, other);
    // Once the controller has collected it there is room again.
    machine.forget("full").await;
    let trash = machine.home().join("trash");
    until("its files are deleted", || {
        std::fs::read_dir(&trash).unwrap().next().is_none()
    })
    .await;
    let finished = machine.run(command("last", &["echo", "room"])).await;
    assert_eq!(
        log::decode(&finished.log, None),
        b"room\n",
        "{}",
        finished.message
    );
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_timeout() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let mut machine = Machine::start_with(&["--user", "nobody"]).await;
    // A small bomb, for the sake of this machine. Half of it leaves group and session.
    let script = "ulimit -u 200; bomb() { bomb | setsid bash -c 'while :; do sleep 86421 & done' & bomb; }; bomb; sleep 86421";
    machine
        .begin(RunSpec {
            timeout_ms: 1500,
            grace_ms: 0,
            ..bash("bomb", script)
        })
        .await;
    machine.started("bomb").await;
    let other = machine
        .run(RunSpec {
            user: "root".into(),
            ..command("other", &["echo", "fine"])
        })
        .await;
    assert_eq!(other.ending(), Ending::Exited);
    let finished = machine.ended("bomb").await;
    assert!(
        matches!(
            finished.ending(),
            Ending::TimedOut | Ending::Signaled | Ending::Exited
        ),
        "{finished:?}"
    );
    assert!(processes_with("86421").into_iter().all(|pid| !is_alive(pid)));
    assert_eq!(
        machine.run(command("next", &["true"])).await.ending(),
        Ending::Exited
    );
}
