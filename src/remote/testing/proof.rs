//! Machines that have to prove their host keys: honest, slow, and with somebody in between.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, process::Command};

use skyward_core::{Secret, machine::Dial, proof};
use tokio::net::{TcpListener, TcpStream};

use super::{
    fake::{FakeAgent, Server},
    is_failed, is_ready, sessions, spec,
    sshd::Sshd,
    wait,
};
use crate::{
    key,
    sessions::{FailureKind, HostKey, SessionSpec, SessionState, Stage},
};

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

/// An attacker that answers for that machine with a host key of its own, lets the Pool's key in, and
/// answers each command, which it writes down, by this command of a shell.
fn attacker(machine: &Sshd, answers: &str) -> Sshd {
    let other = Sshd::with(&format!(
        r#"ForceCommand printf '%s\n' "$SSH_ORIGINAL_COMMAND" >>"$HOME/commands"; {answers}"#
    ));
    fs::write(other.path("authorized"), &machine.public_key).unwrap();
    other
}

/// The command by which an attacker that has a login of its own at the machine passes on what it is
/// asked, and the answer.
fn passed_on(machine: &Sshd) -> String {
    let (private, public) = key::generate_keypair("attacker").unwrap();
    let file = machine.path("attacker");
    let mut options = fs::OpenOptions::new();
    let mut written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)
        .unwrap();
    written.write_all(private.expose().as_bytes()).unwrap();
    let both = format!("{}\n{public}\n", machine.public_key);
    fs::write(machine.path("authorized"), both).unwrap();
    let (port, user) = (machine.address().port(), &machine.user);
    format!(
        r#"exec ssh -q -F none -p {port} -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null {user}@127.0.0.1 "$SSH_ORIGINAL_COMMAND""#,
        file.display()
    )
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

fn is_unproved(state: &SessionState) -> bool {
    matches!(state.stage, Stage::Unproved { .. })
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
    for text in [None, Some(""), Some("no proof"), Some(&*"0".repeat(100_000))] {
        if let Some(text) = text {
            fs::write(machine.path("home/proof"), text).unwrap();
        }
        let tries = commands(&machine).lines().count();
        super::until("it is asked again", || {
            commands(&machine).lines().count() > tries + 1
        })
        .await;
        let state = wait(&sessions, &spec.machine, is_unproved).await;
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

/// What an attacker may answer to the question for the proof, and whether that ends the session: an
/// answer that may still become a proof does not.
fn answers(machine: &Sshd) -> [(String, bool); 7] {
    let proof = machine.path("home/proof").display().to_string();
    [
        (format!("exec cat {proof}"), true),
        (passed_on(machine), true),
        ("printf %064d 0".to_owned(), true),
        ("exec head -c 100 /dev/urandom".to_owned(), false),
        (":".to_owned(), false),
        ("exec yes".to_owned(), false),
        ("exec sleep 20".to_owned(), false),
    ]
}

#[tokio::test]
async fn whatever_an_attacker_answers_its_host_key_is_not_taken_and_nothing_else_is_sent_to_it() {
    let (machine, fake) = (machine(), FakeAgent::new());
    boot(&machine, TOKEN);
    for (answer, fails) in answers(&machine) {
        let attacker = attacker(&machine, &answer);
        for dial in [attacker.dial(), port_to(&attacker).await] {
            let (sessions, _changed) = sessions(&fake);
            let mut spec = proved(&machine);
            spec.endpoint.dial = dial;
            let before = commands(&attacker).lines().count();
            sessions.ensure(spec.clone());
            let state = if fails {
                let state = wait(&sessions, &spec.machine, is_failed).await;
                let (kind, message) = failure(&state);
                assert_eq!(kind, FailureKind::HostKeyNotProved, "{answer}");
                assert!(message.contains("somebody is in between"), "{message}");
                state
            } else {
                super::until("the attacker is asked again", || {
                    commands(&attacker).lines().count() > before + 1
                })
                .await;
                wait(&sessions, &spec.machine, is_unproved).await
            };
            assert_eq!(
                (state.host_key, state.reachable_at),
                (None, None),
                "{answer}: its key is never recorded"
            );
            sessions.shutdown().await;
        }
        let asked = format!("cat {}", proof::FILE);
        let sent = commands(&attacker);
        assert!(sent.lines().all(|line| line == asked), "{answer}: {sent}");
    }
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
