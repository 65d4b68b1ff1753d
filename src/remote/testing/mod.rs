//! Tests against a real OpenSSH server on this machine. All changes to "the machine" happen in a
//! temporary directory, which the server sets as HOME.

mod agent;
mod bootstrap;
mod connection;
mod environments;
mod fake;
pub(crate) mod packages;
mod password;
mod proof;
mod sessions;
mod sshd;

use std::time::Duration;

use skyward_core::machine::Endpoint;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    time::timeout,
};

use crate::{
    bootstrap::Spec,
    dial::PodDialer,
    patience::Patience,
    sessions::{HostKey, Lease, MachineKey, SessionSpec, SessionState, Sessions, Stage},
    testing::{fake::FakeAgent, sshd::Sshd},
};

/// Longest wait for anything in a test.
const SOON: Duration = Duration::from_mins(2);

/// A session spec for a machine on that server, with an agent's home in its directory.
fn spec(sshd: &Sshd, name: &str) -> SessionSpec {
    SessionSpec {
        machine: MachineKey::new("tests", name),
        endpoint: Endpoint {
            dial: sshd.dial(),
            user: sshd.user.clone(),
            password: None,
        },
        private_key: sshd.private_key.clone(),
        host_key: HostKey::First,
        bootstrap: Spec {
            home: Some(sshd.agent_home()),
            authorized_key: sshd.public_key.clone(),
            step_timeout: Duration::from_mins(1),
            total_timeout: SOON,
            ..Spec::default()
        },
        lease: Lease {
            instance_timeout: Duration::from_mins(5),
            orphan_timeout: Duration::from_hours(1),
        },
        retry_interval: Duration::from_millis(500),
        epoch: 7,
        epoch_proof: "proof of 7".into(),
        installation: "here".into(),
        ready_at: None,
    }
}

/// Sessions of a controller that uploads the fake agent.
fn sessions(fake: &FakeAgent) -> (std::sync::Arc<Sessions>, mpsc::Receiver<MachineKey>) {
    sessions_through(fake, None)
}

/// The same, with a way to the ports of Pods.
fn sessions_through(
    fake: &FakeAgent,
    pods: Option<std::sync::Arc<dyn PodDialer>>,
) -> (std::sync::Arc<Sessions>, mpsc::Receiver<MachineKey>) {
    let (sender, receiver) = mpsc::channel(64);
    let patience = Patience {
        login: Duration::from_millis(300),
        greeting: Duration::from_secs(2),
        proof: Duration::from_secs(2),
        agent: Duration::from_secs(2),
        outdated: Duration::from_millis(200),
        mending: Duration::from_millis(200),
        epoch_ahead: (Duration::from_millis(100), Duration::from_millis(200)),
        stays: Duration::from_millis(200),
        panicked: (Duration::from_millis(100), Duration::from_millis(200)),
        ..Patience::default()
    };
    (
        Sessions::with_patience(fake.binaries(), pods, sender, patience),
        receiver,
    )
}

/// Waits for a state of a machine's session.
async fn wait(
    sessions: &Sessions,
    machine: &MachineKey,
    wanted: impl Fn(&SessionState) -> bool,
) -> SessionState {
    let mut changes = sessions.subscribe();
    let search = async {
        loop {
            changes.borrow_and_update();
            if let Some(state) = sessions.state(machine)
                && wanted(&state)
            {
                return state;
            }
            changes.changed().await.expect("sessions live on");
        }
    };
    // As long as the bootstrap may take, if that is long.
    let limit = SOON.max(sessions.longest_bootstrap(machine));
    let found = timeout(limit, search).await.ok();
    found.unwrap_or_else(|| {
        panic!(
            "the session never became as wanted; it is {:?}",
            sessions.state(machine)
        )
    })
}

fn is_ready(state: &SessionState) -> bool {
    state.stage == Stage::Ready
}

fn is_failed(state: &SessionState) -> bool {
    matches!(state.stage, Stage::Failed(_))
}

/// Waits for a condition by polling.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let poll = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(SOON, poll).await.is_ok(), "never happened: {what}");
}

/// Sends bytes through a stream that echoes them.
async fn echo(mut stream: Box<dyn crate::Stream>, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).await.unwrap();
    let mut back = vec![0; bytes.len()];
    timeout(SOON, stream.read_exact(&mut back))
        .await
        .expect("an echo in time")
        .unwrap();
    back
}
