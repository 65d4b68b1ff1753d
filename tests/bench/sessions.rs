//! Memory of a live session in the controller: the same `Sessions` that the controller has, in
//! this process, each with a real agent behind a real SSH server on this machine.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use skyward_core::{
    Secret,
    machine::{Dial, Endpoint},
};
use skyward_remote::{
    AgentBinaries, HostKey, MachineKey, SessionSpec, Sessions,
    bootstrap::Spec,
    key,
    sessions::{Lease, Stage},
};
use tokio::sync::mpsc;

use crate::measure::{figure, ms};

const SSHD: &str = "/usr/sbin/sshd";
/// Sessions that are open before memory is measured, so that what all sessions share is not
/// counted.
const FIRST: usize = 10;
const MORE: usize = 100;
/// How many at once the bar for the way to Ready is about.
const AT_ONCE: usize = 50;

/// Memory of one more session, and how long fifty take to become Ready together.
pub(crate) async fn run(agent: &Path) -> anyhow::Result<()> {
    if !Path::new(SSHD).exists() {
        #[expect(clippy::print_stderr, reason = "said to the person who runs the benchmark")]
        {
            eprintln!("sessions: skipped, there is no {SSHD}: apt-get install -y openssh-server");
        }
        return Ok(());
    }
    let place = Place::prepare(agent)?;
    let (changed, mut changes) = mpsc::channel(64);
    let drain = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    let agents = AgentBinaries::from_directory(&place.directory.path().join("agents"))?;
    let sessions = Sessions::new(agents, None, changed);

    connect(&sessions, &place, 0..FIRST).await?;
    let before = resident()?;
    let begun = Instant::now();
    connect(&sessions, &place, FIRST..FIRST + AT_ONCE).await?;
    let took = begun.elapsed();
    connect(&sessions, &place, FIRST + AT_ONCE..FIRST + MORE).await?;
    // Leases are renewed, buffers have had their first use.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let each = resident()?.saturating_sub(before) as f64 / MORE as f64;
    figure(
        "memory_per_session",
        each / 1024.0,
        "KiB",
        "64",
        &format!("{MORE} sessions on top of {FIRST}"),
    );
    figure(
        "ssh_to_ready_50",
        ms(took),
        "ms",
        "15000",
        "with the machines' side of it on the same processors",
    );
    sessions.shutdown().await;
    drain.abort();
    Ok(())
}

async fn connect(sessions: &Sessions, place: &Place, numbers: std::ops::Range<usize>) -> anyhow::Result<()> {
    let machines: Vec<MachineKey> = numbers
        .map(|number| {
            let spec = place.spec(number);
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

/// An SSH server with a folder of its own; agents have their homes in it.
struct Place {
    directory: tempfile::TempDir,
    server: Child,
    address: SocketAddr,
    user: String,
    private_key: Secret,
    public_key: String,
}

impl Place {
    fn prepare(agent: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        let (private_key, public_key) =
            key::generate_keypair("bench").map_err(|error| anyhow::anyhow!("no key: {error}"))?;
        for folder in ["home", "agents/x86_64", "agents/aarch64", "m"] {
            fs::create_dir_all(at(folder))?;
        }
        fs::copy(
            agent,
            at("agents").join(std::env::consts::ARCH).join("skyward-agent"),
        )
        .with_context(|| format!("the agent {} cannot be read", agent.display()))?;
        fs::write(at("authorized"), &public_key)?;
        let user = String::from_utf8(Command::new("id").arg("-un").output()?.stdout)?;
        if user.trim() == "root" {
            fs::create_dir_all("/run/sshd")?;
        }
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-t", "ed25519", "-f"])
            .arg(at("host_key"))
            .status()?;
        anyhow::ensure!(made.success(), "ssh-keygen failed");
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        fs::write(at("config"), server_config(address, directory.path()))?;
        let server = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(at("config"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(at("log"))?)
            .spawn()?;
        let place = Self {
            directory,
            server,
            address,
            user: user.trim().to_owned(),
            private_key,
            public_key,
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            anyhow::ensure!(Instant::now() < deadline, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(place)
    }

    fn home(&self, number: usize) -> PathBuf {
        self.directory.path().join("m").join(number.to_string())
    }

    fn spec(&self, number: usize) -> SessionSpec {
        SessionSpec {
            machine: MachineKey::new("bench", format!("m-{number}")),
            endpoint: Endpoint {
                dial: Dial::Address(self.address),
                user: self.user.clone(),
            },
            private_key: self.private_key.clone(),
            host_key: HostKey::First,
            bootstrap: Spec {
                home: Some(self.home(number).to_string_lossy().into_owned()),
                authorized_key: self.public_key.clone(),
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
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        // Supervisors and daemons have their home among their arguments.
        let place = self.directory.path().to_string_lossy().into_owned();
        for _ in 0..2 {
            for pid in processes_with(&place) {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        }
    }
}

fn server_config(address: SocketAddr, directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "Port {}\nListenAddress 127.0.0.1\nHostKey {directory}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n\
         AuthorizedKeysFile {directory}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\nSetEnv HOME={directory}/home\nLogLevel ERROR\nMaxStartups 200\n",
        address.port()
    )
}

fn processes_with(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(text)
        })
        .collect()
}
