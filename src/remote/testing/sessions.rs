//! Whole sessions: from nothing to Ready, losses, failures, removal.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use skyward_core::machine::Dial;
use tokio::time::timeout;

use super::{
    SOON,
    fake::{FakeAgent, LIE, NEWER, Server},
    is_failed, is_ready, sessions, sessions_through, spec,
    sshd::Sshd,
    until, wait,
};
use crate::{
    agent::{AgentError, RunReader as _},
    bootstrap,
    dial::{PodDialer, Stream},
    key,
    sessions::{FailureKind, HostKey, Lease, MachineKey, SessionState, Stage},
};

fn serve(sshd: &Sshd, fake: &FakeAgent, machine: &str) -> Server {
    Server::start(&sshd.agent_home(), &format!("tests/{machine}"), &fake.digest(), 7)
}

fn failure(state: &SessionState) -> (FailureKind, Option<&str>, &str) {
    match &state.stage {
        Stage::Failed(failure) => (failure.kind, failure.step.as_deref(), &failure.message),
        other => panic!("not failed: {other:?}"),
    }
}

#[tokio::test]
async fn a_machine_becomes_ready_and_its_agent_answers() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = serve(&sshd, &fake, "m");
    let (sessions, mut changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    let machine = spec.machine.clone();
    let started = Instant::now();
    sessions.ensure(spec.clone());
    assert!(sessions.agent(&machine).is_none());
    let state = wait(&sessions, &machine, is_ready).await;
    println!(
        "ensure to ready, nothing on the machine yet: {:?}",
        started.elapsed()
    );

    assert_eq!(changed.recv().await, Some(machine.clone()));
    assert!(state.reachable_at <= state.bootstrapped_at && state.bootstrapped_at <= state.ready_at);
    let facts = state.agent.unwrap();
    assert_eq!(
        (facts.python.as_str(), facts.accelerators),
        ("3.11.2", vec!["H100".to_owned()])
    );

    let agent = sessions.agent(&machine).unwrap();
    let mut facts = agent.watch(41).await.unwrap();
    assert_eq!(facts.next().await.unwrap().unwrap().seq, 42);
    assert_eq!(
        agent.stop("r", Duration::ZERO, "test").await,
        Err(AgentError::NotFound)
    );
    let busy = agent.start(crate::protocol::RunSpec::default()).await;
    assert_eq!(busy, Err(AgentError::Busy("the journal has no room".into())));
    until("the lease was renewed at once", || {
        server.leases.load(Ordering::Relaxed) >= 1
    })
    .await;

    // The learnt host key comes back pinned: nothing changes.
    let hellos = server.hellos.load(Ordering::Relaxed);
    sessions.ensure(crate::SessionSpec {
        host_key: HostKey::Known(state.host_key.unwrap()),
        ..spec
    });
    assert_eq!(sessions.agent(&machine).unwrap().connection, agent.connection);
    assert_eq!(server.hellos.load(Ordering::Relaxed), hellos);

    sessions.shutdown().await;
    assert!(sessions.state(&machine).is_none());
    let end = timeout(SOON, facts.next()).await.unwrap();
    assert!(matches!(end, Some(Err(AgentError::Disconnected(_)))), "{end:?}");
    until("the server ended the connection", || sshd.connections() == 0).await;
}

#[tokio::test]
async fn a_machine_that_is_not_there_yet_is_dialled_until_it_is() {
    let (mut sshd, fake) = (Sshd::prepared("ed25519", ""), FakeAgent::new());
    let _server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    let refused = |state: &SessionState| matches!(&state.stage, Stage::Dialing { last_error: Some(e) } if e.contains("could not connect to 127.0.0.1"));
    wait(&sessions, &spec.machine, refused).await;
    sshd.run();
    wait(&sessions, &spec.machine, is_ready).await;
    sessions.shutdown().await;
}

/// Panics twice, and then finds the way.
struct Stumbles {
    times: AtomicU32,
    server: SocketAddr,
}

#[async_trait::async_trait]
impl PodDialer for Stumbles {
    async fn dial(&self, _: &str, _: &str, _: u16) -> std::io::Result<Box<dyn Stream>> {
        assert!(
            self.times.fetch_add(1, Ordering::Relaxed) >= 2,
            "a panic that a test planted"
        );
        Ok(Box::new(tokio::net::TcpStream::connect(self.server).await?))
    }
}

#[tokio::test]
async fn a_session_that_panics_begins_anew_and_says_so() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = serve(&sshd, &fake, "m");
    let Dial::Address(server) = sshd.dial() else {
        unreachable!("it listens here")
    };
    let times = AtomicU32::new(0);
    let (sessions, _changed) = sessions_through(&fake, Some(Arc::new(Stumbles { times, server })));
    let mut spec = spec(&sshd, "m");
    spec.endpoint.dial = Dial::PodPort {
        namespace: "tests".into(),
        pod: "m".into(),
        port: 22,
    };
    sessions.ensure(spec.clone());
    let says = |state: &SessionState| matches!(&state.stage, Stage::Dialing { last_error: Some(why) } if why.contains("error within this controller"));
    wait(&sessions, &spec.machine, says).await;
    wait(&sessions, &spec.machine, is_ready).await;
    sessions.shutdown().await;
}

#[tokio::test]
async fn a_killed_server_is_reconnected_with_the_key_that_was_learnt() {
    let (mut sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    let machine = spec.machine.clone();
    sessions.ensure(spec);
    let first = wait(&sessions, &machine, is_ready).await;
    let agent = sessions.agent(&machine).unwrap();

    sshd.kill();
    wait(&sessions, &machine, |state| {
        matches!(state.stage, Stage::Reconnecting { .. })
    })
    .await;
    assert!(sessions.agent(&machine).is_none());
    assert!(matches!(agent.hello().await, Err(AgentError::Disconnected(_))));
    sshd.run();
    let started = Instant::now();
    let again = wait(&sessions, &machine, is_ready).await;
    println!("server back to ready: {:?}", started.elapsed());
    assert_eq!(
        (again.ready_at, again.reachable_at),
        (first.ready_at, first.reachable_at)
    );
    assert_ne!(sessions.agent(&machine).unwrap().connection, agent.connection);
    // The agent ran all the time: it was started once.
    assert_eq!(sshd.read("started").lines().count(), 1);

    sshd.kill();
    sshd.new_host_key("ed25519");
    sshd.run();
    let state = wait(&sessions, &machine, is_failed).await;
    assert_eq!(failure(&state).0, FailureKind::HostKeyChanged);
    assert!(failure(&state).2.contains("SHA256:"));
    sessions.shutdown().await;
}

#[tokio::test]
async fn a_machine_that_breaks_a_limit_is_not_talked_with_any_more_although_it_was_ready() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = ready_before(&sshd);
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, is_ready).await;
    let agent = sessions.agent(&spec.machine).unwrap();
    let mut facts = agent.watch(LIE).await.unwrap();
    let told = timeout(SOON, facts.next()).await.unwrap();
    assert!(
        matches!(&told, Some(Err(AgentError::Protocol(words))) if words.contains("no run's id")),
        "{told:?}"
    );
    // Later answers do not count either.
    assert!(matches!(agent.hello().await, Err(AgentError::Protocol(_))));
    let state = wait(&sessions, &spec.machine, is_failed).await;
    assert_eq!(failure(&state).0, FailureKind::ProtocolViolation);
    assert!(failure(&state).2.contains("no run's id"), "{state:?}");
    assert!(sessions.agent(&spec.machine).is_none());
    until("the connection is closed", || sshd.connections() == 0).await;
    sessions.shutdown().await;
}

fn is_down(state: &SessionState, words: &[&str]) -> bool {
    assert!(!is_failed(state), "{state:?}");
    matches!(&state.stage, Stage::Reconnecting { last_error, .. } if words.iter().all(|word| last_error.contains(word)))
}

/// A spec of a controller that started after the machine had become ready.
fn ready_before(sshd: &Sshd) -> crate::SessionSpec {
    crate::SessionSpec {
        ready_at: Some("2026-01-02T03:04:05Z".parse().unwrap()),
        ..spec(sshd, "m")
    }
}

#[tokio::test]
async fn a_step_that_takes_too_long_leaves_a_machine_that_was_ready_as_it_is() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let gate = sshd.path("gate");
    let mut spec = ready_before(&sshd);
    // The steps before it must fit in as well, however busy the machine is.
    spec.bootstrap.total_timeout = Duration::from_secs(10);
    spec.bootstrap.shell_vars.insert(
        "A".into(),
        format!("while [ ! -e '{}' ]; do sleep 0.05; done", gate.display()),
    );
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, |state| {
        is_ready(state) && state.environment.failed.is_some()
    })
    .await;
    assert_eq!(state.ready_at, spec.ready_at, "the first time, not this one");
    let (_, failure) = state.environment.failed.unwrap();
    assert!(
        failure.message.contains("did not end within"),
        "{}",
        failure.message
    );
    sessions.shutdown().await;
}

#[tokio::test]
async fn a_machine_that_was_ready_and_does_not_let_us_in_is_tried_again() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let (sessions, _changed) = sessions(&fake);
    let spec = crate::SessionSpec {
        private_key: key::generate_keypair("x").unwrap().0,
        ..ready_before(&sshd)
    };
    sessions.ensure(spec.clone());
    // The message once the patience has run out.
    wait(&sessions, &spec.machine, |state| {
        is_down(state, &["Another key is in its authorized_keys"])
    })
    .await;
    sessions.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_refuses_our_epoch_gets_no_command_and_is_asked_again() {
    for spec in [|sshd: &Sshd| spec(sshd, "m"), ready_before] {
        let (sshd, fake) = (Sshd::start(), FakeAgent::new());
        let server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 8);
        let (sessions, _changed) = sessions(&fake);
        let spec = spec(&sshd);
        sessions.ensure(spec.clone());
        wait(&sessions, &spec.machine, is_ahead).await;
        assert!(sessions.agent(&spec.machine).is_none(), "no command reaches it");
        until("it was asked again", || {
            server.hellos.load(Ordering::Relaxed) >= 3
        })
        .await;
        assert!(is_ahead(&sessions.state(&spec.machine).unwrap()));
        drop(server);
        // The agent accepts our epoch after all.
        let _server = serve(&sshd, &fake, "m");
        wait(&sessions, &spec.machine, is_ready).await;
        sessions.shutdown().await;
    }
}

#[tokio::test]
async fn an_agent_that_greets_us_and_refuses_what_comes_next_gets_no_more_commands() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, is_ready).await;
    let agent = sessions.agent(&spec.machine).unwrap();
    server.refuses_commands.store(true, Ordering::Relaxed);
    assert_eq!(agent.forget(vec!["r".into()]).await, Err(AgentError::StaleEpoch));
    wait(&sessions, &spec.machine, |_| {
        sessions
            .agent(&spec.machine)
            .is_none_or(|other| other.connection != agent.connection)
    })
    .await;
    sessions.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_names_a_newer_epoch_gets_its_lease_and_no_command() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), NEWER);
    let (sessions, _changed) = sessions(&fake);
    let spec = ready_before(&sshd);
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, is_ahead).await;
    let claim = state.newer_epoch.unwrap();
    assert_eq!((claim.epoch, claim.proof.as_str()), (NEWER, "proof of 100"));
    assert!(sessions.agent(&spec.machine).is_none());
    until("its lease is renewed", || {
        server.leases.load(Ordering::Relaxed) >= 1
    })
    .await;
    until("it was asked again", || {
        server.hellos.load(Ordering::Relaxed) >= 3
    })
    .await;
    // The leader took a higher epoch meanwhile.
    sessions.ensure(crate::SessionSpec {
        epoch: NEWER,
        ..spec.clone()
    });
    let state = wait(&sessions, &spec.machine, is_ready).await;
    assert_eq!(state.newer_epoch, None);
    sessions.shutdown().await;
}

#[test]
fn what_no_leader_can_have_sent_is_not_kept() {
    let claim = |newest_epoch, epoch_proof: String| {
        let hello = crate::protocol::HelloReply {
            newest_epoch,
            epoch_proof,
            ..Default::default()
        };
        crate::sessions::epoch_claim(&hello, 7)
    };
    assert_eq!(claim(7, "p".into()), None);
    assert_eq!(claim(8, "p".into()).unwrap().proof, "p");
    let far = claim(u64::MAX, "p".into()).unwrap();
    assert_eq!((far.epoch, far.proof.as_str()), (2_147_483_647, ""));
    assert_eq!(claim(8, "p".repeat(1000)).unwrap().proof, "");
}

fn is_ahead(state: &SessionState) -> bool {
    state.stage == Stage::EpochAhead
}

#[tokio::test]
async fn an_agent_that_died_is_started_again_over_the_same_connection() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, is_ready).await;
    assert_eq!(sshd.read("started").lines().count(), 1);

    std::fs::write(sshd.path("agent/broken"), "out of order").unwrap();
    drop(server);
    // Runs may go on there, so it is tried until somebody mends it.
    wait(&sessions, &spec.machine, |state| {
        is_down(state, &["step \"start\"", "out of order", "exit code"])
    })
    .await;
    std::fs::remove_file(sshd.path("agent/broken")).unwrap();
    let server = serve(&sshd, &fake, "m");
    wait(&sessions, &spec.machine, is_ready).await;
    let agent = sessions.agent(&spec.machine).unwrap();
    let path = sshd.agent_home();
    drop(server);
    wait(&sessions, &spec.machine, |state| !is_ready(state)).await;
    let _server = Server::start(&path, "tests/m", &fake.digest(), 7);
    wait(&sessions, &spec.machine, is_ready).await;
    assert_ne!(
        sessions.agent(&spec.machine).unwrap().connection,
        agent.connection
    );
    assert!(sshd.connections() >= 1);
    sessions.shutdown().await;
}

/// A machine without units, cron or any other way to start programs at boot.
#[tokio::test]
async fn a_machine_that_rebooted_and_started_no_agent_gets_one_over_ssh() {
    let (mut sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    let before = wait(&sessions, &spec.machine, is_ready).await;
    assert_eq!(before.agent.unwrap().boot_id, "boot");

    sshd.kill();
    drop(server);
    // The file of the socket outlives its process.
    let socket = std::path::Path::new(&sshd.agent_home()).join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    sshd.run();
    until("the agent is started again", || {
        sshd.read("started").lines().count() >= 2
    })
    .await;
    let _server = Server::start_in("after", &sshd.agent_home(), "tests/m", &fake.digest(), 7);
    let after = wait(&sessions, &spec.machine, is_ready).await;
    assert_eq!(after.agent.unwrap().boot_id, "after");
    assert_eq!(after.ready_at, before.ready_at);
    sessions.shutdown().await;
}

#[tokio::test]
async fn a_server_that_forwards_no_sockets_is_no_obstacle() {
    let (sshd, fake) = (
        Sshd::with("AllowStreamLocalForwarding no\nAllowTcpForwarding no"),
        FakeAgent::new(),
    );
    let _server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, is_ready).await;
    let agent = sessions.agent(&spec.machine).unwrap();
    assert_eq!(download(&agent, 3).await, 3 << 20);
    sessions.shutdown().await;
}

async fn download(agent: &crate::Agent, mebibytes: u64) -> usize {
    let mut stream = agent.read_result("r", mebibytes).await.unwrap();
    let mut count = 0;
    while let Some(chunk) = stream.next().await {
        count += chunk.unwrap().data.len();
    }
    count
}

#[tokio::test]
async fn a_key_that_is_refused_fails_after_some_patience() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let (sessions, _changed) = sessions(&fake);
    let spec = crate::SessionSpec {
        private_key: key::generate_keypair("x").unwrap().0,
        ..spec(&sshd, "m")
    };
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, is_failed).await;
    assert_eq!(failure(&state).0, FailureKind::AuthRefused);
    assert!(
        failure(&state).2.contains(&format!("user \"{}\"", sshd.user)),
        "{state:?}"
    );
    assert!(!format!("{state:?}{spec:?}").contains("PRIVATE"));
    // The same spec is not a new attempt; another key is.
    sessions.ensure(spec.clone());
    assert!(is_failed(&sessions.state(&spec.machine).unwrap()));
    let _server = serve(&sshd, &fake, "m");
    sessions.ensure(crate::SessionSpec {
        private_key: sshd.private_key.clone(),
        ..spec.clone()
    });
    wait(&sessions, &spec.machine, is_ready).await;
    sessions.shutdown().await;
}

#[tokio::test]
async fn an_agent_of_another_machine_is_left_alone() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = serve(&sshd, &fake, "other");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, is_failed).await;
    assert_eq!(failure(&state).0, FailureKind::AgentRefused);
    let expected = "belongs to machine \"tests/other\"";
    assert!(failure(&state).2.contains(expected), "{state:?}");
    sessions.shutdown().await;
}

#[tokio::test]
async fn the_lease_is_renewed_and_its_times_can_change_without_a_new_connection() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let slow = spec(&sshd, "m");
    sessions.ensure(slow.clone());
    wait(&sessions, &slow.machine, is_ready).await;
    let connection = sessions.agent(&slow.machine).unwrap().connection;
    until("first lease", || server.leases.load(Ordering::Relaxed) == 1).await;
    let lease = Lease {
        instance_timeout: Duration::from_millis(400),
        ..slow.lease
    };
    sessions.ensure(crate::SessionSpec {
        lease,
        ..slow.clone()
    });
    until("renewals at the new pace", || {
        server.leases.load(Ordering::Relaxed) >= 4
    })
    .await;
    assert_eq!(sessions.agent(&slow.machine).unwrap().connection, connection);
    sessions.shutdown().await;
}

#[tokio::test]
async fn removal_ends_a_session_at_once_wherever_it_is() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let (sessions, _changed) = sessions(&fake);
    let mut hanging = spec(&sshd, "hanging");
    hanging.bootstrap.shell_vars.insert("A".into(), "sleep 60".into());
    // 192.0.2.0/24 leads nowhere.
    let mut nowhere = spec(&sshd, "nowhere");
    nowhere.endpoint.dial = skyward_core::machine::Dial::Host("192.0.2.1".into(), 22);
    sessions.ensure(hanging.clone());
    sessions.ensure(nowhere.clone());
    let in_step = |state: &SessionState| matches!(&state.stage, Stage::Bootstrapping { step, index: 3, total: 5 } if step == "shell_vars");
    wait(&sessions, &hanging.machine, in_step).await;
    assert_eq!(sessions.machines().len(), 2);
    let started = Instant::now();
    sessions.remove(&hanging.machine);
    sessions.remove(&nowhere.machine);
    assert!(sessions.state(&hanging.machine).is_none());
    until("the connection is closed", || sshd.connections() == 0).await;
    sessions.shutdown().await;
    // The removal waited neither for the step nor for the dial, which takes ten seconds.
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn changes_are_told_once_each_to_a_receiver_that_is_slow() {
    let (sshd, fake) = (Sshd::prepared("ed25519", ""), FakeAgent::new());
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    let sessions = crate::Sessions::new(fake.binaries(), None, sender);
    for number in 0..50 {
        sessions.ensure(spec(&sshd, &format!("m{number:02}")));
    }
    let wanted = |state: &SessionState| matches!(&state.stage, Stage::Dialing { last_error: Some(_) });
    for machine in sessions.machines() {
        wait(&sessions, &machine, wanted).await;
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 50 {
        seen.insert(timeout(SOON, receiver.recv()).await.unwrap().unwrap());
    }
    let none = MachineKey::new("tests", "unknown");
    sessions.remove(&none);
    assert!(sessions.state(&none).is_none());
    sessions.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_results_come_at_a_useful_rate() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = serve(&sshd, &fake, "m");
    let (sessions, _changed) = sessions(&fake);
    let spec = spec(&sshd, "m");
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, is_ready).await;
    let agent = sessions.agent(&spec.machine).unwrap();
    for mebibytes in [10, 128] {
        let started = Instant::now();
        assert_eq!(download(&agent, mebibytes).await, mebibytes as usize * (1 << 20));
        let rate = mebibytes as f64 * 1.048_576 / started.elapsed().as_secs_f64();
        println!("a result of {mebibytes} MiB through gRPC, SSH and a socket: {rate:.0} MB/s");
    }
    sessions.shutdown().await;
}

/// Prints the memory of a live session; not a gate, since the allocator keeps memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures only"]
async fn what_fifty_sessions_cost() {
    let fake = FakeAgent::new();
    let machines: Vec<(Sshd, Server)> = (0..50)
        .map(|number| {
            let sshd = Sshd::start();
            let server = serve(&sshd, &fake, &format!("m{number}"));
            (sshd, server)
        })
        .collect();
    let (sessions, _changed) = sessions(&fake);
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap()
    };
    let before = resident();
    let started = Instant::now();
    for (number, (sshd, _)) in machines.iter().enumerate() {
        sessions.ensure(spec(sshd, &format!("m{number}")));
    }
    for machine in sessions.machines() {
        wait(&sessions, &machine, is_ready).await;
    }
    println!("50 machines at once to ready: {:?}", started.elapsed());
    println!(
        "resident memory for each session, both ends of its gRPC: {} KiB",
        (resident() - before) / 50
    );
    sessions.shutdown().await;
}

#[tokio::test]
async fn the_longest_bootstrap_is_bounded_as_a_whole() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let (sessions, _changed) = sessions(&fake);
    let mut spec = spec(&sshd, "m");
    spec.bootstrap = bootstrap::Spec {
        shell_vars: [("A".to_owned(), "echo waiting >&2; sleep 60".to_owned())].into(),
        total_timeout: Duration::from_secs(10),
        ..spec.bootstrap
    };
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, is_failed).await;
    let (kind, step, message) = failure(&state);
    assert_eq!((kind, step), (FailureKind::StepTimedOut, Some("shell_vars")));
    assert!(message.contains("waiting"), "{message}");
    sessions.shutdown().await;
}
