//! A home of its own with a real daemon in it, and the calls of the tests.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use skyward_agent::{
    daemon::{Home, connect},
    protocol::{
        Chunk, Fact, Finished, ForgetRequest, Function, HelloRequest, ReadLogRequest, RunSpec, RunState,
        Script, StartRequest, Started, StopRequest, WatchRequest, agent_client::AgentClient, fact,
        run_spec::Work,
    },
};
use tonic::{Status, Streaming, transport::Channel};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The built binary, or the one that `SKYWARD_TEST_AGENT` names, such as the static one.
pub(crate) fn program() -> String {
    std::env::var("SKYWARD_TEST_AGENT").unwrap_or_else(|_| env!("CARGO_BIN_EXE_skyward-agent").to_owned())
}

pub(crate) struct Machine {
    folder: tempfile::TempDir,
    /// Or its supervisor.
    daemon: Option<Child>,
    role: &'static str,
    arguments: Vec<String>,
    /// Its home is a file system of its own.
    mounted: bool,
    pub(crate) agent: AgentClient<Channel>,
}

impl Machine {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        Self::start_as("daemon", arguments).await
    }

    /// As on a machine: with a supervisor, the parent of processes that lose their watcher.
    pub(crate) async fn start_supervised(arguments: &[&str]) -> Self {
        Self::start_as("supervise", arguments).await
    }

    async fn start_as(role: &'static str, arguments: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("skyward").tempdir().unwrap();
        // The users of runs must be able to enter.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let daemon = spawn(role, folder.path(), &arguments);
        let agent = reach(&Home::new(folder.path())).await;
        Self {
            folder,
            daemon: Some(daemon),
            role,
            arguments,
            mounted: false,
            agent,
        }
    }

    /// A machine with a small disk of its own; `None` where we may not mount one.
    pub(crate) async fn start_on_small_disk(size: &str) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("skyward").tempdir().unwrap();
        let options = format!("size={size},mode=755");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .status();
        if !mount.is_ok_and(|status| status.success()) {
            return None;
        }
        let role = "daemon";
        let daemon = spawn(role, folder.path(), &[]);
        let agent = reach(&Home::new(folder.path())).await;
        Some(Self {
            folder,
            daemon: Some(daemon),
            role,
            arguments: Vec::new(),
            mounted: true,
            agent,
        })
    }

    pub(crate) fn home(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn run_folder(&self, run_id: &str) -> PathBuf {
        self.home().join("runs").join(run_id)
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    pub(crate) async fn start_daemon(&mut self) {
        self.daemon = Some(spawn(self.role, self.folder.path(), &self.arguments));
        self.agent = reach(&Home::new(self.folder.path())).await;
    }

    /// Starts the daemon again, with these arguments.
    pub(crate) async fn restart_with(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.kill_daemon();
        self.start_daemon().await;
    }

    /// Waits for the daemon that a supervisor starts after the last one died.
    pub(crate) async fn reconnect(&mut self) {
        self.agent = reach(&Home::new(self.folder.path())).await;
    }

    pub(crate) async fn begin(&mut self, spec: RunSpec) -> RunState {
        self.try_begin(1, spec).await.unwrap()
    }

    pub(crate) async fn try_begin(&mut self, epoch: u64, spec: RunSpec) -> Result<RunState, Status> {
        self.agent
            .start(StartRequest {
                epoch,
                spec: Some(spec),
            })
            .await
            .map(tonic::Response::into_inner)
    }

    pub(crate) async fn stop(&mut self, run_id: &str, grace_ms: u64) -> Result<RunState, Status> {
        let request = StopRequest {
            epoch: 1,
            run_id: run_id.into(),
            grace_ms,
            why: "Deleted".into(),
        };
        self.agent.stop(request).await.map(tonic::Response::into_inner)
    }

    /// Starts a run and waits for its end.
    pub(crate) async fn run(&mut self, spec: RunSpec) -> Finished {
        let run_id = spec.run_id.clone();
        self.begin(spec).await;
        self.ended(&run_id).await
    }

    pub(crate) async fn ended(&mut self, run_id: &str) -> Finished {
        let is_end =
            |fact: &Fact| fact.run_id == run_id && matches!(fact.fact, Some(fact::Fact::Finished(_)));
        match self.fact(is_end).await.fact {
            Some(fact::Fact::Finished(finished)) => finished,
            _ => unreachable!(),
        }
    }

    pub(crate) async fn started(&mut self, run_id: &str) -> Started {
        let is_start =
            |fact: &Fact| fact.run_id == run_id && matches!(fact.fact, Some(fact::Fact::Started(_)));
        match self.fact(is_start).await.fact {
            Some(fact::Fact::Started(started)) => started,
            _ => unreachable!(),
        }
    }

    pub(crate) async fn fact(&mut self, wanted: impl Fn(&Fact) -> bool) -> Fact {
        let mut facts = self
            .agent
            .watch(WatchRequest {
                since: 0,
                mark_replay: false,
            })
            .await
            .unwrap()
            .into_inner();
        let search = async {
            loop {
                let fact = facts
                    .message()
                    .await
                    .unwrap()
                    .expect("the stream of facts does not end");
                if wanted(&fact) {
                    return fact;
                }
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .expect("the fact did not come")
    }

    pub(crate) async fn read_log(&mut self, run_id: &str, offset: u64, follow: bool) -> Streaming<Chunk> {
        self.ask_for_log(run_id, offset, follow, true).await
    }

    /// Reads a log like a controller from before gaps.
    pub(crate) async fn read_log_without_gaps(&mut self, run_id: &str, offset: u64) -> Streaming<Chunk> {
        self.ask_for_log(run_id, offset, false, false).await
    }

    async fn ask_for_log(&mut self, run_id: &str, offset: u64, follow: bool, gaps: bool) -> Streaming<Chunk> {
        let request = ReadLogRequest {
            run_id: run_id.into(),
            offset,
            follow,
            gaps,
        };
        self.agent.read_log(request).await.unwrap().into_inner()
    }

    /// Waits until a run has printed something.
    pub(crate) async fn printed(&self, run_id: &str) {
        let log = self.run_folder(run_id).join("log");
        until("the work prints", || {
            std::fs::metadata(&log).is_ok_and(|log| log.len() > 0)
        })
        .await;
    }

    pub(crate) async fn forget(&mut self, run_id: &str) {
        self.agent
            .forget(ForgetRequest {
                epoch: 1,
                run_ids: vec![run_id.into()],
            })
            .await
            .unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // Shims outlive their daemon; those of this home have it in their arguments.
        for pid in processes_with(&self.home().to_string_lossy()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        }
    }
}

/// Started with signals ignored, as a shell's background process has them.
fn spawn(role: &str, home: &Path, arguments: &[String]) -> Child {
    let ignoring = r#"trap "" HUP INT QUIT USR1 USR2 ALRM TSTP TTIN TTOU; exec "$0" "$@""#;
    // A daemon that outlives its test, since that was killed, must not stop the machine of the tests minutes later.
    let stop_command: &[&str] = if arguments.iter().any(|argument| argument == "--stop-command") {
        &[]
    } else {
        &["--stop-command", "true"]
    };
    Command::new("sh")
        .args(["-c", ignoring])
        .arg(program())
        .args([role, "--machine", "tests/machine", "--home"])
        .arg(home)
        .args(stop_command)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// A connection to the agent. A process that was being started when the last daemon died may
/// keep its socket open for an instant: only an answer counts.
pub(crate) async fn reach(home: &Home) -> AgentClient<Channel> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Ok(channel) = connect(home).await {
            let mut agent = AgentClient::new(channel).max_decoding_message_size(16 << 20);
            let hello = HelloRequest {
                protocol_min: 1,
                protocol_max: 1,
                epoch: 0,
                ..HelloRequest::default()
            };
            if agent.hello(hello).await.is_ok() {
                return agent;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the agent does not answer");
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}

pub(crate) fn parent_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Processes with this text among their arguments.
pub(crate) fn processes_with(text: &str) -> BTreeSet<i32> {
    let found = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&arguments).contains(text).then_some(pid)
    });
    found.filter(|pid| *pid != std::process::id() as i32).collect()
}

pub(crate) fn command(run_id: &str, argv: &[&str]) -> RunSpec {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    spec(run_id, Work::Command(skyward_agent::protocol::Command { argv }))
}

pub(crate) fn bash(run_id: &str, source: &str) -> RunSpec {
    spec(
        run_id,
        Work::Script(Script {
            interpreter: "bash".into(),
            source: source.into(),
        }),
    )
}

pub(crate) fn function(run_id: &str, source: &str, args_json: &str) -> RunSpec {
    let function = Function {
        source: source.into(),
        args_json: args_json.into(),
        ..Function::default()
    };
    spec(run_id, Work::Function(function))
}

fn spec(run_id: &str, work: Work) -> RunSpec {
    RunSpec {
        run_id: run_id.into(),
        namespace: "tests".into(),
        task: "a-task".into(),
        work: Some(work),
        grace_ms: 10_000,
        ..RunSpec::default()
    }
}
