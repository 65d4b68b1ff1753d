//! Memory of a live session in the controller: the same `Sessions` that the controller has, in
//! this process, each with a real agent behind a real SSH server on this machine.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use skyward_core::machine::{Dial, Endpoint};
use skyward_remote::{
    AgentBinaries, HostKey, MachineKey, SessionSpec, Sessions,
    bootstrap::Spec,
    sessions::{Lease, Stage},
};
use tokio::sync::mpsc;

use crate::{
    measure::{figure, ms},
    ssh_server::SshServer,
};

/// Sessions that are open before memory is measured, so that what all sessions share is not
/// counted.
const FIRST: usize = 10;
const MORE: usize = 100;
/// How many at once the bar for the way to Ready is about.
const AT_ONCE: usize = 50;
/// Longest time until they are Ready, as a multiple of what OpenSSH's client needs for the bare
/// uploads.
const READY: f64 = 1.5;

/// Memory of one more session, and how long fifty take to become Ready together.
pub(crate) async fn run(agent: &Path) -> anyhow::Result<()> {
    let Some(server) = SshServer::start()? else {
        return Ok(());
    };
    let agents = server.directory.path().join("agents");
    let laid = agents.join(std::env::consts::ARCH).join("skyward-agent");
    fs::copy(agent, &laid).with_context(|| format!("the agent {} cannot be read", agent.display()))?;
    // As in the operator's image.
    let compressed = laid.with_extension("gz");
    let gzip = Command::new("gzip").arg("-nk").arg(&laid).status()?;
    anyhow::ensure!(gzip.success(), "gzip failed");
    let raw = uploads(&server, &compressed)?;
    let (changed, mut changes) = mpsc::channel(64);
    let drain = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    let agents = AgentBinaries::from_directory(&agents)?;
    let sessions = Sessions::new(agents, None, changed);

    connect(&sessions, &server, 0..FIRST).await?;
    let before = resident()?;
    let begun = Instant::now();
    connect(&sessions, &server, FIRST..FIRST + AT_ONCE).await?;
    let took = begun.elapsed();
    connect(&sessions, &server, FIRST + AT_ONCE..FIRST + MORE).await?;
    // Leases are renewed, buffers have had their first use.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let each = resident()?.saturating_sub(before) as f64 / MORE as f64;
    figure(
        "memory_per_session",
        each / 1024.0,
        "KiB",
        "128",
        &format!("{MORE} sessions on top of {FIRST}"),
    );
    figure(
        "ssh_to_ready_50",
        ms(took),
        "ms",
        &format!("{:.0}", READY * ms(raw)),
        &format!(
            "as many parallel uploads of the same bytes and first answers of the agent in them, by OpenSSH {:.0} ms",
            ms(raw)
        ),
    );
    sessions.shutdown().await;
    drain.abort();
    Ok(())
}

/// Time in which as many of OpenSSH's clients at once upload the same bytes and have the agent in them answer.
fn uploads(server: &SshServer, compressed: &Path) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let clients: Vec<Child> = (0..AT_ONCE)
        .map(|number| {
            let to = server.directory.path().join(format!("raw-{number}"));
            let to = to.display();
            server
                .client(
                    false,
                    &format!("gzip -dc >{to} && chmod 700 {to} && {to} version"),
                )
                .stdin(fs::File::open(compressed)?)
                .stdout(Stdio::null())
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    for mut client in clients {
        anyhow::ensure!(client.wait()?.success(), "an upload by OpenSSH's client failed");
    }
    Ok(begun.elapsed())
}

async fn connect(
    sessions: &Sessions,
    server: &SshServer,
    numbers: std::ops::Range<usize>,
) -> anyhow::Result<()> {
    let machines: Vec<MachineKey> = numbers
        .map(|number| {
            let spec = spec(server, number);
            let machine = spec.machine.clone();
            sessions.ensure(spec);
            machine
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(180);
    let mut changes = sessions.subscribe();
    loop {
        changes.borrow_and_update();
        let mut ready = 0;
        for machine in &machines {
            match sessions.state(machine).map(|state| state.stage) {
                Some(Stage::Ready) => ready += 1,
                Some(Stage::Failed(failure)) => bail!("session {machine} failed: {}", failure.message),
                _ => {}
            }
        }
        if ready == machines.len() {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        tokio::time::timeout(left, changes.changed())
            .await
            .with_context(|| format!("{ready} of {} sessions were Ready after 180 s", machines.len()))??;
    }
}

/// Resident memory of this process.
fn resident() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.context("VmRSS is missing")?.parse::<u64>()? * 1024)
}

fn spec(server: &SshServer, number: usize) -> SessionSpec {
    SessionSpec {
        machine: MachineKey::new("bench", format!("m-{number}")),
        endpoint: Endpoint {
            dial: Dial::Address(server.address),
            user: server.user.clone(),
            password: None,
        },
        private_key: server.private_key.clone(),
        host_key: HostKey::First,
        bootstrap: Spec {
            home: Some(server.home(number).to_string_lossy().into_owned()),
            authorized_key: server.public_key.clone(),
            // This machine must not stop when a lease runs out.
            stop_command: Some("true".to_owned()),
            total_timeout: Duration::from_secs(170),
            ..Spec::default()
        },
        lease: Lease {
            instance_timeout: Duration::from_secs(3600),
            orphan_timeout: Duration::from_secs(3600),
        },
        retry_interval: Duration::from_secs(1),
        epoch_proof: String::new(),
        installation: String::new(),
        epoch: 1,
        ready_at: None,
    }
}
