//! A real OpenSSH server on this machine, and OpenSSH's client for it: what sessions are measured
//! against, and the raw limit of what goes through one.

use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use skyward_core::Secret;
use skyward_remote::key;

use crate::measure::skipped;

const SSHD: &str = "/usr/sbin/sshd";

/// The server with a folder of its own; agents have their homes in it.
pub(crate) struct SshServer {
    pub(crate) directory: tempfile::TempDir,
    server: Child,
    pub(crate) address: SocketAddr,
    pub(crate) user: String,
    pub(crate) private_key: Secret,
    pub(crate) public_key: String,
}

impl SshServer {
    /// Starts it; `None`, and a word to the person, where there is none.
    pub(crate) fn start() -> anyhow::Result<Option<Self>> {
        if Path::new(SSHD).exists() {
            return Self::prepare().map(Some);
        }
        skipped(&format!("there is no {SSHD}; apt-get install -y openssh-server"));
        Ok(None)
    }

    fn prepare() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        let (private_key, public_key) =
            key::generate_keypair("bench").map_err(|error| anyhow::anyhow!("no key: {error}"))?;
        for folder in ["home", "agents/x86_64", "agents/aarch64", "m"] {
            fs::create_dir_all(at(folder))?;
        }
        fs::write(at("authorized"), &public_key)?;
        let mut options = fs::OpenOptions::new();
        let mut key = options.write(true).create_new(true).mode(0o600).open(at("key"))?;
        key.write_all(private_key.expose().as_bytes())?;
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
        let process = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(at("config"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(at("log"))?)
            .spawn()?;
        let server = Self {
            directory,
            server: process,
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
        Ok(server)
    }

    /// OpenSSH's client, which runs this command on the machine. A shared
    /// connection is kept for later commands.
    pub(crate) fn client(&self, shared: bool, command: &str) -> Command {
        let at = |name: &str| self.directory.path().join(name);
        let mut ssh = Command::new("ssh");
        ssh.arg("-i")
            .arg(at("key"))
            .args(["-p", &self.address.port().to_string()]);
        ssh.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
        ]);
        ssh.arg(format!("UserKnownHostsFile={}", at("known").display()));
        if shared {
            let path = format!("ControlPath={}", at("shared").display());
            ssh.args(["-o", "ControlMaster=auto", "-o", "ControlPersist=30", "-o", &path]);
        }
        ssh.args([
            "-o",
            "LogLevel=ERROR",
            &format!("{}@127.0.0.1", self.user),
            command,
        ]);
        ssh
    }

    /// The folder of one machine.
    pub(crate) fn home(&self, number: usize) -> PathBuf {
        self.directory.path().join("m").join(number.to_string())
    }
}

impl Drop for SshServer {
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
