//! The controller's side: real sessions, and readers that hold as much as a dispatcher that stands
//! still.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use skyward_core::machine::{Dial, Endpoint};
use skyward_remote::{
    AgentBinaries, AgentError, HostKey, MachineKey, RunReader as _, SessionSpec, Sessions, bootstrap, key,
    sessions::{FailureKind, Lease, Stage},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::liar::{LIES, Lie};

/// Liars.
const MACHINES: usize = 100;
/// Length of the attack.
const ATTACK: Duration = Duration::from_secs(30);
/// Most KiB by which the machines of one namespace, and all machines of the installation, may raise
/// our memory.
const ALLOWED_KIB: [i64; 2] = [32 * 1024, 96 * 1024];
/// Longest wait, after the attack, until each machine that breaks a limit has failed: where
/// processors are few and shared, a machine may connect late, and has not lied yet.
const FAILED: Duration = Duration::from_mins(2);
/// Longest wait for an answer of the honest machine: a build machine is slow and shared. The
/// slowest answer is printed.
const ANSWER: Duration = Duration::from_secs(20);

/// The key of a liar; liars are spread over so many namespaces.
fn liar(number: usize, namespaces: usize) -> MachineKey {
    MachineKey::new(format!("liars-{}", number % namespaces), format!("m{number}"))
}

/// Ends the liars with us.
struct Liars(Child);

impl Drop for Liars {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_liars(digest: &str) -> (Liars, u16) {
    let mut child = Command::new(std::env::current_exe().expect("a program has a path"))
        .args(["liars", digest])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program can be started");
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("it says its port");
    (Liars(child), line.trim().parse().expect("a port"))
}

/// Anonymous memory of this process, in KiB.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|number| number.parse().ok())
        .expect("a number of KiB")
}

/// Remembers the most that was resident, until dropped.
struct Watch {
    most: Arc<AtomicI64>,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn start() -> Self {
        let (most, over) = (Arc::<AtomicI64>::default(), Arc::<AtomicBool>::default());
        let (seen, stop) = (most.clone(), over.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                seen.fetch_max(resident(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { most, over }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn spec(machine: MachineKey, port: u16, private_key: &skyward_core::Secret, public_key: &str) -> SessionSpec {
    SessionSpec {
        endpoint: Endpoint {
            dial: Dial::Address(SocketAddr::from(([127, 0, 0, 1], port))),
            user: format!("{}.{}", machine.namespace, machine.name),
            password: None,
        },
        machine,
        private_key: private_key.clone(),
        host_key: HostKey::First,
        bootstrap: bootstrap::Spec {
            authorized_key: public_key.to_owned(),
            ..bootstrap::Spec::default()
        },
        lease: Lease {
            instance_timeout: Duration::from_secs(4),
            orphan_timeout: Duration::from_hours(1),
        },
        retry_interval: Duration::from_millis(500),
        epoch: 7,
        epoch_proof: String::new(),
        installation: String::new(),
        ready_at: None,
    }
}

/// Reads facts as a dispatcher does that never gets to them: each keeps its room, and the stream
/// is read on when there is some. A log is read, and every chunk of it is stored for a second.
async fn stand_still(sessions: Arc<Sessions>, machine: MachineKey) {
    loop {
        let Some(agent) = sessions.agent(&machine) else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let facts = async {
            let mut held = Vec::new();
            let Ok(mut facts) = agent.watch(0).await else {
                return;
            };
            while let Some(Ok(fact)) = facts.next().await {
                let account = agent.account();
                let Some(room) = account.take(1024 + 140 * 1024).await else {
                    return;
                };
                held.push((fact, room));
            }
        };
        let log = async {
            let Ok(mut chunks) = agent.read_log("r-1-0", 0, true).await else {
                return;
            };
            while let Some(Ok(_chunk)) = chunks.next().await {
                sleep(Duration::from_secs(1)).await;
            }
        };
        // Until this connection ends.
        let gone = async {
            while sessions
                .agent(&machine)
                .is_some_and(|now| now.connection == agent.connection)
            {
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            ((), ()) = futures::future::join(facts, log) => {}
            () = gone => {}
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Holds the connections, and judges.
pub(crate) fn hold(namespaces: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(attack(namespaces));
}

async fn attack(namespaces: usize) {
    let allowed = ALLOWED_KIB[usize::from(namespaces > 1)];
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("skyward-agent");
    std::fs::write(&file, vec![b'x'; 8 << 20]).expect("a file that is not run");
    let binaries = AgentBinaries::of_this_architecture(&file).expect("a binary");
    let digest = binaries.get(std::env::consts::ARCH).expect("ours").digest.clone();
    let (_liars, port) = start_liars(&digest);
    let (private_key, public_key) = key::generate_keypair("test").expect("a key");
    let (changed, mut changes) = mpsc::channel(64);
    let drain = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    let sessions = Sessions::new(binaries, None, changed);

    let honest = spec(
        MachineKey::new("honest", "honest"),
        port,
        &private_key,
        &public_key,
    );
    sessions.ensure(honest.clone());
    let ready = async {
        while sessions.agent(&honest.machine).is_none() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ready = timeout(Duration::from_mins(1), ready).await;
    assert!(
        ready.is_ok(),
        "the honest machine never became ready: {:?}",
        sessions.state(&honest.machine)
    );

    let before = resident();
    let watch = Watch::start();
    let mut readers = tokio::task::JoinSet::new();
    for number in 0..MACHINES {
        let spec = spec(liar(number, namespaces), port, &private_key, &public_key);
        readers.spawn(stand_still(sessions.clone(), spec.machine.clone()));
        sessions.ensure(spec);
    }
    let until = Instant::now() + ATTACK;
    let mut slowest = Duration::ZERO;
    let mut answers = 0;
    while Instant::now() < until {
        let asked = Instant::now();
        // The client gives up a question whose answer is late, and the question is asked again.
        let answer = async {
            let mut answered = false;
            while !answered {
                let agent = sessions.agent(&honest.machine);
                let agent = agent.expect("the honest machine stays connected");
                let reply = agent.hello().await;
                let is_late = matches!(reply, Err(AgentError::Disconnected(_)));
                assert!(reply.is_ok() || is_late, "an honest answer: {reply:?}");
                answered = !is_late;
            }
        };
        timeout(ANSWER, answer).await.expect("an answer in time");
        slowest = slowest.max(asked.elapsed());
        answers += 1;
        sleep(Duration::from_millis(50)).await;
    }
    let liars: Vec<MachineKey> = (0..MACHINES).map(|number| liar(number, namespaces)).collect();
    let used = |machine: &&MachineKey| {
        let state = sessions.state(machine).expect("it has a session");
        !matches!(state.stage, Stage::Failed(_))
    };
    let breaks_a_limit = |machine: &&MachineKey| Lie::of(&machine.name).breaks_a_limit();
    let all_failed = async {
        while liars.iter().filter(breaks_a_limit).any(|machine| used(&machine)) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    // What is still used then is told below, with its lie.
    let _ = timeout(FAILED, all_failed).await;
    let most = watch.most.load(Ordering::Relaxed);
    let raised = most - before;
    let mut ends: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for machine in &liars {
        let lie = Lie::of(&machine.name);
        let state = sessions.state(machine).expect("it has a session");
        let end = match state.stage {
            Stage::Failed(failure) => {
                assert_eq!(
                    failure.kind,
                    FailureKind::ProtocolViolation,
                    "{lie:?}: {}",
                    failure.message
                );
                format!("failed: {}", failure.message)
            }
            other => {
                assert!(
                    !lie.breaks_a_limit(),
                    "a machine with {lie:?} is still used: {other:?}"
                );
                format!("{other:?}").chars().take(100).collect()
            }
        };
        ends.entry(format!("{lie:?}")).or_default().push(end);
    }
    assert_eq!(ends.len(), LIES.len());
    let report = format!(
        "{MACHINES} liars of {namespaces} namespaces raised the memory from {before} KiB by {raised} KiB; meanwhile the honest machine answered {answers} times, the slowest took {slowest:?}"
    );
    let mut output = std::io::stdout();
    let _ = std::io::Write::write_all(&mut output, format!("{report}\n").as_bytes());
    if std::env::var_os("LIARS_TOLD").is_some() {
        let _ = std::io::Write::write_all(&mut output, format!("{ends:#?}\n").as_bytes());
    }
    assert!(answers > 20, "{report}");
    assert!(raised <= allowed, "{report}; at most {allowed} KiB are allowed");
    readers.shutdown().await;
    sessions.shutdown().await;
    drain.abort();
}
