//! Which process the kernel kills first when memory runs out, and the messages about it.

use std::path::{Path, PathBuf};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid},
};
use skyward_agent::{
    log,
    protocol::{Finished, RunSpec, finished::Ending},
};

use crate::machine::{Machine, bash, command, is_alive, parent_of, processes_with, until};

fn score(pid: i32) -> i32 {
    let path = format!("/proc/{pid}/oom_score_adj");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn the_kernel_takes_work_before_its_watcher_and_the_watcher_before_the_daemon() {
    let mut machine = Machine::start().await;
    let own = score(std::process::id() as i32);
    let helped = RunSpec {
        working_dir: "/".into(),
        ..command("helped", &["cat", "/proc/self/oom_score_adj"])
    };
    for spec in [command("direct", &["cat", "/proc/self/oom_score_adj"]), helped] {
        let finished = machine.run(spec).await;
        assert_eq!(
            log::decode(&finished.log, None),
            b"1000\n",
            "from its first moment"
        );
    }
    machine.begin(bash("r", "sleep 86431 & sleep 86431")).await;
    let work = machine.started("r").await.pid as i32;
    let shim = parent_of(work);
    let daemon = parent_of(shim);
    assert_eq!((score(work), score(daemon)), (1000, own));
    assert!(
        score(daemon) < score(shim) && score(shim) < score(work),
        "{} {} {}",
        score(daemon),
        score(shim),
        score(work)
    );
    machine.stop("r", 1000).await.unwrap();
    machine.ended("r").await;
}

/// Kills the watcher of a run of another user, as the kernel would, on a machine where the kernel
/// counted `kills` processes before the run and `later` by its end.
async fn without_its_watcher(machine: &mut Machine, spec: RunSpec, kills: u64, later: &str) -> Finished {
    let run_id = spec.run_id.clone();
    machine.begin(spec).await;
    machine.printed(&run_id).await;
    let begun = machine.run_folder(&run_id).join("begun");
    let counter = machine.home().join(format!("{run_id}.events"));
    std::fs::write(&counter, later).unwrap();
    let mut left: serde_json::Value = serde_json::from_slice(&std::fs::read(&begun).unwrap()).unwrap();
    left["kills"] = serde_json::json!({ "counter": counter, "count": kills });
    std::fs::write(&begun, left.to_string()).unwrap();
    let shim = parent_of(machine.started(&run_id).await.pid as i32);
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    machine.ended(&run_id).await
}

#[tokio::test]
async fn a_watcher_that_its_run_cannot_have_killed_is_an_interruption_or_a_want_of_memory() {
    if !Uid::effective().is_root() {
        return;
    }
    let mut machine = Machine::start_supervised(&["--user", "nobody"]).await;
    // A process that removes the mark of its run and leaves its session is found all the same.
    let script = "env -i setsid /bin/sh -c 'exec sleep 86432' & echo there; sleep 86432";
    for (run_id, later, expected) in [
        ("no-kill", "oom_kill 2\n", Ending::Interrupted),
        ("a-kill", "oom_kill 3\n", Ending::OutOfMemory),
        ("not-known", "", Ending::ShimLost),
    ] {
        let finished = without_its_watcher(&mut machine, bash(run_id, script), 2, later).await;
        assert_eq!(finished.ending(), expected, "{run_id}: {}", finished.message);
        assert_eq!(finished.log_tail, b"there\n");
        assert!(processes_with("86432").into_iter().all(|pid| !is_alive(pid)));
    }
    // Work that shares the agent's user may have killed the watcher.
    let own = RunSpec {
        user: "root".into(),
        ..bash("own", script)
    };
    let finished = without_its_watcher(&mut machine, own, 2, "oom_kill 3\n").await;
    assert_eq!(finished.ending(), Ending::ShimLost, "{}", finished.message);
    assert!(
        finished.message.contains("for want of memory"),
        "{}",
        finished.message
    );
}

#[tokio::test]
async fn work_whose_death_nobody_can_see_is_no_interruption() {
    if !Uid::effective().is_root() {
        return;
    }
    // Without a supervisor, a process that lost its watcher may have any parent.
    let mut machine = Machine::start_with(&["--user", "nobody"]).await;
    let spec = bash("r", "echo there; sleep 86433");
    let finished = without_its_watcher(&mut machine, spec, 2, "oom_kill 2\n").await;
    assert_eq!(finished.ending(), Ending::ShimLost, "{}", finished.message);
}

/// A control group with little memory that processes can be put into, where we may make one.
struct Group(PathBuf);

impl Group {
    fn make() -> Option<Self> {
        let name = format!("skyward-test-{}", std::process::id());
        let [first, second] = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ]
        .map(|(mount, limit)| {
            let folder = Path::new(mount).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            std::fs::write(group.0.join(limit), "100M").ok()?;
            // Only where swap is counted.
            let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
            Some(group)
        });
        first.or(second)
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn work_that_takes_all_memory_is_killed_alone_and_that_is_said() {
    let Some(group) = Group::make() else {
        eprintln!("skipped: this user may not make a control group for memory");
        return;
    };
    let mut machine = Machine::start().await;
    group.take(machine.daemon_pid());
    let hungry = "x = b''\nwhile True: x += b'x' * 1000000";
    machine.begin(bash("other", "echo there; sleep 86434")).await;
    machine.printed("other").await;
    for (run_id, argv) in [
        ("itself", vec!["python3", "-c", hungry]),
        // Its shell survives and reports it.
        (
            "shell",
            vec!["bash", "-c", "python3 -c \"$1\"; exit $?", "-", hungry],
        ),
    ] {
        let finished = machine.run(command(run_id, &argv)).await;
        assert_eq!(finished.ending(), Ending::OutOfMemory, "{finished:?}");
        assert!(
            finished.message.contains("ran out of memory"),
            "{}",
            finished.message
        );
    }
    machine.stop("other", 1000).await.unwrap();
    assert_eq!(machine.ended("other").await.ending(), Ending::Stopped);
    machine.kill_daemon();
    until("the group is empty", || {
        std::fs::read_to_string(group.0.join("cgroup.procs")).is_ok_and(|all| all.is_empty())
    })
    .await;
}
