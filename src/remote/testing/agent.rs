//! The real agent at the other end.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::StreamExt as _;
use skyward_bundle::{File, LIMITS, pack};
use tokio::{sync::mpsc, time::timeout};

use super::{SOON, is_ready, spec, sshd::Sshd, wait};
use crate::{
    AgentBinaries, AgentError, SessionSpec, Sessions,
    patience::Patience,
    protocol::{Command as Work, PART_BYTES, RunSpec, fact, finished::Ending, run_spec},
    sessions::Stage,
};

/// The agent that cargo built.
fn built() -> PathBuf {
    let beside_tests = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("skyward-agent");
    let path = std::env::var_os("SKYWARD_AGENT_BIN").map_or(beside_tests, PathBuf::from);
    assert!(
        path.is_file(),
        "the agent is not at \"{}\": build it with `cargo build -p skyward-agent`, or name it in SKYWARD_AGENT_BIN",
        path.display()
    );
    path
}

/// A machine whose agent is ended with it.
struct Machine {
    sshd: Sshd,
    spec: SessionSpec,
}

impl Machine {
    fn new(sshd: Sshd) -> Self {
        let mut spec = spec(&sshd, "real");
        // The agent must never stop the machine that runs the tests.
        spec.bootstrap.stop_command = Some("true".into());
        Self { sshd, spec }
    }

    /// Processes of its agent: the processes that name its home.
    fn processes(&self) -> Vec<u32> {
        let home = self.sshd.agent_home();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id: &u32| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("skyward-agent") && line.contains(&home)
        })
        .collect()
    }

    fn kill_agent(&self) {
        for id in self.processes() {
            let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for _ in 0..10 {
            if self.processes().is_empty() {
                return;
            }
            self.kill_agent();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn controller() -> (std::sync::Arc<Sessions>, mpsc::Receiver<crate::MachineKey>) {
    let (sender, receiver) = mpsc::channel(64);
    (
        Sessions::new(
            AgentBinaries::of_this_architecture(built()).unwrap(),
            None,
            sender,
        ),
        receiver,
    )
}

async fn ready(sessions: &Sessions, machine: &Machine) {
    wait(sessions, &machine.spec.machine, |state| {
        assert!(!matches!(state.stage, Stage::Failed(_)), "{state:?}");
        is_ready(state)
    })
    .await;
}

/// Waits for Ready over another connection; the loss in between may be too brief to be seen.
async fn ready_again(sessions: &Sessions, machine: &Machine, before: u64) {
    wait(sessions, &machine.spec.machine, |state| {
        let agent = sessions.agent(&machine.spec.machine);
        is_ready(state) && agent.is_some_and(|agent| agent.connection != before)
    })
    .await;
}

fn command(id: &str, script: &str) -> RunSpec {
    let work = run_spec::Work::Command(Work {
        argv: ["/bin/sh", "-c", script].map(String::from).to_vec(),
    });
    RunSpec {
        run_id: id.into(),
        namespace: "tests".into(),
        task: "t".into(),
        work: Some(work),
        ..RunSpec::default()
    }
}

/// Runs a command and waits for its end; answers with its exit code and the end of its output.
async fn run(sessions: &Sessions, machine: &Machine, id: &str, script: &str) -> (i32, String) {
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    let mut facts = agent.watch(0).await.unwrap();
    agent.start(command(id, script)).await.unwrap();
    let end = async {
        while let Some(fact) = facts.next().await {
            let fact = fact.unwrap();
            if let (true, Some(fact::Fact::Finished(finished))) = (fact.run_id == id, fact.fact) {
                return finished;
            }
        }
        panic!("facts ended");
    };
    let finished = timeout(SOON, end).await.unwrap();
    assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
    (
        finished.exit_code,
        String::from_utf8_lossy(&finished.log_tail).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_agent_runs_a_command_with_the_environment_of_its_machine() {
    let mut machine = Machine::new(Sshd::start());
    machine
        .spec
        .bootstrap
        .shell_vars
        .insert("CAPTURED".into(), "echo here".into());
    let (sessions, _changed) = controller();
    let started = Instant::now();
    sessions.ensure(machine.spec.clone());
    ready(&sessions, &machine).await;
    println!(
        "ensure to ready, with the real agent to upload and start: {:?}",
        started.elapsed()
    );
    let result = run(&sessions, &machine, "run-1", "echo found $CAPTURED; exit 3").await;
    assert_eq!(result, (3, "found here\n".to_owned()));
    sessions.shutdown().await;

    // A new controller takes over: the agent is there and knows the run.
    let (sessions, _changed) = controller();
    let started = Instant::now();
    sessions.ensure(SessionSpec {
        epoch: 8,
        ..machine.spec.clone()
    });
    ready(&sessions, &machine).await;
    println!("ensure to ready, everything in place: {:?}", started.elapsed());
    assert_eq!(run(&sessions, &machine, "run-1", "echo not again").await.0, 3);
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    agent.forget(vec!["run-1".into()]).await.unwrap();

    // Killed with its supervisor: it is started again.
    let before = agent.connection;
    machine.kill_agent();
    ready_again(&sessions, &machine, before).await;
    assert_eq!(run(&sessions, &machine, "run-2", "exit 0").await.0, 0);
    sessions.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_another_version_is_replaced_once_it_runs_nothing() {
    let machine = Machine::new(Sshd::start());
    let (sessions, _changed) = controller();
    sessions.ensure(machine.spec.clone());
    ready(&sessions, &machine).await;
    let gate = machine.sshd.path("gate");
    let script = format!("while [ ! -e '{}' ]; do sleep 0.05; done; exit 4", gate.display());
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    agent.start(command("long", &script)).await.unwrap();
    sessions.shutdown().await;

    // The next controller brings another build.
    let other = machine.sshd.path("other-agent");
    let mut bytes = std::fs::read(built()).unwrap();
    bytes.extend(b"another build");
    std::fs::write(&other, bytes).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let binaries = AgentBinaries::of_this_architecture(&other).unwrap();
    let digest = binaries.get(std::env::consts::ARCH).unwrap().digest.clone();
    let (sender, _changed) = mpsc::channel(64);
    let patience = Patience {
        outdated: Duration::from_millis(200),
        ..Patience::default()
    };
    let sessions = Sessions::with_patience(binaries, None, sender, patience);
    sessions.ensure(SessionSpec {
        epoch: 8,
        ..machine.spec.clone()
    });
    ready(&sessions, &machine).await;
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    let busy = agent.hello().await.unwrap();
    assert!(busy.agent_digest != digest && busy.running == 1, "{busy:?}");

    std::fs::write(gate, "").unwrap();
    ready_again(&sessions, &machine, agent.connection).await;
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    assert_eq!(agent.hello().await.unwrap().agent_digest, digest);
    // The agent knows the outcome of the other controller's run.
    assert_eq!(run(&sessions, &machine, "long", "echo not again").await.0, 4);
    sessions.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_that_the_agent_tells_is_part_of_what_is_known_of_its_machine() {
    let mut machine = Machine::new(Sshd::start());
    machine.spec.bootstrap.reclaim_command = Some("echo 2026-01-02T03:04:05Z".into());
    let (sessions, _changed) = controller();
    sessions.ensure(machine.spec.clone());
    ready(&sessions, &machine).await;
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    let mut facts = agent.watch(0).await.unwrap();
    let told = async {
        loop {
            if let Some(fact::Fact::Reclaim(reclaim)) = facts.next().await.unwrap().unwrap().fact {
                return reclaim;
            }
        }
    };
    let reclaim = timeout(SOON, told).await.unwrap();
    sessions.reclaimed(&machine.spec.machine, reclaim);
    let state = sessions.state(&machine.spec.machine).unwrap();
    assert_eq!(state.reclaim_at, Some("2026-01-02T03:04:05Z".parse().unwrap()));
    sessions.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_agent_is_reached_through_its_bridge() {
    let machine = Machine::new(Sshd::with("AllowStreamLocalForwarding no"));
    let (sessions, _changed) = controller();
    sessions.ensure(machine.spec.clone());
    ready(&sessions, &machine).await;
    assert_eq!(
        run(&sessions, &machine, "run-1", "echo through the bridge")
            .await
            .1,
        "through the bridge\n"
    );
    sessions.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_of_several_parts_is_brought_and_a_run_finds_its_files() {
    let machine = Machine::new(Sshd::start());
    let (sessions, _changed) = controller();
    sessions.ensure(machine.spec.clone());
    ready(&sessions, &machine).await;
    let agent = sessions.agent(&machine.spec.machine).unwrap();
    assert!(agent.takes_bundles());
    let content = vec![7; 5 * PART_BYTES / 2];
    let file = File {
        path: "data/large",
        executable: false,
        content: &content,
    };
    let bundle = pack([file], LIMITS).unwrap();
    let digest = bundle.digest.to_string();
    assert_eq!(agent.has_bundle(&digest).await, Ok(false));
    let start = |id: &str| {
        agent.start(RunSpec {
            bundle: digest.clone(),
            ..command(id, "wc -c < data/large")
        })
    };
    let early = start("early").await;
    assert!(
        matches!(&early, Err(AgentError::Disconnected(why)) if why.contains("not on this machine")),
        "{early:?}"
    );
    let bytes = Bytes::from(bundle.bytes);
    // At the same time, as for two runs.
    let (one, other) = tokio::join!(
        agent.put_bundle(&digest, &bytes),
        agent.put_bundle(&digest, &bytes)
    );
    assert_eq!((one, other), (Ok(()), Ok(())));
    assert_eq!(agent.has_bundle(&digest).await, Ok(true));
    start("run-1").await.unwrap();
    let again = "exit 5";
    assert_eq!(
        run(&sessions, &machine, "run-1", again).await,
        (0, format!("{}\n", content.len()))
    );
    let forged = bytes.slice(..bytes.len() - 1);
    let refused = agent
        .put_bundle(&format!("sha256:{}", "0".repeat(64)), &forged)
        .await;
    assert!(
        matches!(&refused, Err(AgentError::Busy(why)) if why.contains("not the bundle")),
        "{refused:?}"
    );
    sessions.shutdown().await;
}

/// Prints the memory of a live session; not a gate, since the allocator keeps memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures only"]
async fn what_live_sessions_cost() {
    const COUNT: usize = 40;
    let machines: Vec<Machine> = (0..COUNT).map(|_| Machine::new(Sshd::start())).collect();
    let (sessions, _changed) = controller();
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let before = resident();
    let started = Instant::now();
    for (number, machine) in machines.iter().enumerate() {
        let mut spec = machine.spec.clone();
        spec.machine.name = format!("real-{number}");
        sessions.ensure(spec);
    }
    for machine in sessions.machines() {
        wait(&sessions, &machine, is_ready).await;
    }
    println!(
        "{COUNT} machines at once, SSH to ready with the real agent: {:?}",
        started.elapsed()
    );
    println!(
        "resident memory for each session: {} KiB",
        resident().saturating_sub(before) / COUNT
    );
    sessions.shutdown().await;
    println!(
        "still resident without sessions: {} KiB for each",
        resident().saturating_sub(before) / COUNT
    );
}
