//! Machines that have to prove their host keys: honest, slow, and with somebody in between.

use std::{fs, process::Command, sync::Arc};

use skyward_core::{Secret, machine::Dial, proof};
use tokio::net::{TcpListener, TcpStream};

use super::{
    fake::{FakeAgent, Server},
    is_failed, is_ready, sessions, spec,
    sshd::Sshd,
    wait,
};
use crate::sessions::{FailureKind, HostKey, SessionSpec, SessionState, Stage};

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Writes each command down, and reads a proof from a place of the test.
const FORCED: &str = r#"ForceCommand printf '%s\n' "$SSH_ORIGINAL_COMMAND" >>"$HOME/commands"; case $SSH_ORIGINAL_COMMAND in "cat /etc/ssh/skyward_host_key_proof") exec cat "$HOME/proof";; *) exec /bin/sh -c "$SSH_ORIGINAL_COMMAND";; esac"#;

/// A machine that has not proved its key yet.
fn machine() -> Sshd {
    Sshd::with(FORCED)
}

/// Does what the first boot of this machine does, with that token.
fn boot(machine: &Sshd, token: &str) {
    let path = |name: &str| machine.path(name).display().to_string();
    let script = proof::script(&Secret::new(token))
        .replace("/etc/ssh/ssh_host_ed25519_key.pub", &path("host_key.pub"))
        .replace(proof::FILE, &path("home/proof"));
    fs::write(path("boot"), script + "wait\n").unwrap();
    assert!(Command::new("sh").arg(path("boot")).status().unwrap().success());
}

/// Somebody who answers for that machine with another host key, knows its proof and lets
/// everybody in.
fn in_between(machine: &Sshd) -> Sshd {
    let other = self::machine();
    fs::write(other.path("authorized"), &machine.public_key).unwrap();
    fs::copy(machine.path("home/proof"), other.path("home/proof")).unwrap();
    other
}

fn proved(machine: &Sshd) -> SessionSpec {
    SessionSpec {
        host_key: HostKey::Proved(Secret::new(TOKEN)),
        ..spec(machine, "m")
    }
}

fn serve(machine: &Sshd, fake: &FakeAgent) -> Server {
    Server::start(&machine.agent_home(), "tests/m", &fake.digest(), 7)
}

fn commands(machine: &Sshd) -> String {
    fs::read_to_string(machine.path("home/commands")).unwrap_or_default()
}

fn failure(state: &SessionState) -> (FailureKind, &str) {
    match &state.stage {
        Stage::Failed(failure) => (failure.kind, &failure.message),
        other => panic!("not failed: {other:?}"),
    }
}

/// A port that leads to that machine, as those of hosts whose machines have no address do.
async fn port_to(machine: &Sshd) -> Dial {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, to) = (listener.local_addr().unwrap(), machine.address());
    tokio::spawn(async move {
        while let Ok((mut here, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut there = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
            });
        }
    });
    Dial::Address(port)
}

#[tokio::test]
async fn a_machine_that_proves_its_host_key_becomes_ready_also_behind_a_proxied_port() {
    let (machine, fake) = (machine(), FakeAgent::new());
    boot(&machine, TOKEN);
    let _server = serve(&machine, &fake);
    for proxied in [false, true] {
        let (sessions, _changed) = sessions(&fake);
        let mut spec = proved(&machine);
        if proxied {
            spec.endpoint.dial = port_to(&machine).await;
        }
        sessions.ensure(spec.clone());
        let state = wait(&sessions, &spec.machine, is_ready).await;
        let shown = fs::read_to_string(machine.path("host_key.pub")).unwrap();
        let learnt = state.host_key.expect("it is reported, to be recorded");
        assert!(shown.starts_with(&learnt), "{shown} {learnt}");

        // The recorded key changes nothing for the connection.
        let agent = sessions.agent(&spec.machine).unwrap();
        sessions.ensure(SessionSpec {
            host_key: HostKey::Known(learnt),
            ..spec.clone()
        });
        assert_eq!(
            sessions.agent(&spec.machine).unwrap().connection,
            agent.connection
        );
        sessions.shutdown().await;
    }
    assert!(
        !commands(&machine).contains(TOKEN),
        "the token never goes over SSH"
    );
}

#[tokio::test]
async fn a_proof_that_is_not_there_yet_is_waited_for_and_nothing_else_is_sent() {
    let (machine, fake) = (machine(), FakeAgent::new());
    let _server = serve(&machine, &fake);
    let (sessions, _changed) = sessions(&fake);
    let spec = proved(&machine);
    sessions.ensure(spec.clone());
    let not_yet = |state: &SessionState| matches!(&state.stage, Stage::Dialing { last_error: Some(why) } if why.contains("not proved yet"));
    for text in [None, Some(""), Some("no proof"), Some(&*"0".repeat(100_000))] {
        if let Some(text) = text {
            fs::write(machine.path("home/proof"), text).unwrap();
        }
        let tries = commands(&machine).lines().count();
        super::until("it is asked again", || {
            commands(&machine).lines().count() > tries + 1
        })
        .await;
        let state = wait(&sessions, &spec.machine, not_yet).await;
        assert_eq!((state.host_key, state.reachable_at), (None, None));
    }
    assert!(
        commands(&machine)
            .lines()
            .all(|line| line == format!("cat {}", proof::FILE)),
        "{}",
        commands(&machine)
    );
    boot(&machine, TOKEN);
    wait(&sessions, &spec.machine, is_ready).await;
    sessions.shutdown().await;
}

#[tokio::test]
async fn somebody_in_between_is_refused_also_behind_a_proxied_port_and_learns_nothing() {
    let (machine, fake) = (machine(), FakeAgent::new());
    boot(&machine, TOKEN);
    let other = Arc::new(in_between(&machine));
    for dial in [other.dial(), port_to(&other).await] {
        let (sessions, _changed) = sessions(&fake);
        let mut spec = proved(&machine);
        spec.endpoint.dial = dial;
        sessions.ensure(spec.clone());
        let state = wait(&sessions, &spec.machine, is_failed).await;
        let (kind, message) = failure(&state);
        assert_eq!(kind, FailureKind::HostKeyNotProved);
        assert!(message.contains("somebody is in between"), "{message}");
        assert_eq!(state.host_key, None, "its key is never recorded");
        sessions.shutdown().await;
    }
    let asked = format!("cat {}\n", proof::FILE);
    assert_eq!(commands(&other), asked.repeat(2), "nothing else was sent");
}

#[tokio::test]
async fn a_proof_by_another_token_is_refused() {
    let (machine, fake) = (machine(), FakeAgent::new());
    boot(&machine, &TOKEN.replace("00", "01"));
    let (sessions, _changed) = sessions(&fake);
    let spec = proved(&machine);
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, is_failed).await;
    assert_eq!(failure(&state).0, FailureKind::HostKeyNotProved);
    sessions.shutdown().await;
}

#[tokio::test]
async fn once_a_key_is_proved_no_other_proof_is_taken() {
    let (mut machine, fake) = (machine(), FakeAgent::new());
    boot(&machine, TOKEN);
    let _server = serve(&machine, &fake);
    let (sessions, _changed) = sessions(&fake);
    let spec = proved(&machine);
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, is_ready).await;
    machine.kill();
    machine.new_host_key("ed25519");
    boot(&machine, TOKEN);
    machine.run();
    let state = wait(&sessions, &spec.machine, is_failed).await;
    assert_eq!(failure(&state).0, FailureKind::HostKeyChanged);
    sessions.shutdown().await;
}

#[test]
fn a_session_that_is_printed_shows_no_token() {
    let printed = format!("{:?}", HostKey::Proved(Secret::new(TOKEN)));
    assert!(!printed.contains(TOKEN), "{printed}");
}
