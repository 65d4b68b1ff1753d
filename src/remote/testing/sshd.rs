//! A real OpenSSH server on a port of its own, as the user who runs the tests.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use skyward_core::{Secret, machine::Dial};

use crate::{budget::Budget, dial, key, meter::Meter, ssh};

const SSHD: &str = "/usr/sbin/sshd";

/// A port of its own: below the ports that the kernel gives to connections, since the server is
/// restarted on it while other tests connect, and above those of a local cluster's etcd, which may
/// start meanwhile.
fn own_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 24_000 + u16::try_from(std::process::id() % 60).unwrap() * 100;
    (0..10_000)
        .map(|_| begin + NEXT.fetch_add(1, Ordering::Relaxed))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

/// A server and its directory.
pub(super) struct Sshd {
    pub(super) private_key: Secret,
    pub(super) public_key: String,
    pub(super) user: String,
    port: u16,
    extra: String,
    process: Option<Child>,
    directory: tempfile::TempDir,
}

impl Sshd {
    /// A running server.
    pub(super) fn start() -> Self {
        Self::with("")
    }

    /// A running server with more lines of configuration.
    pub(super) fn with(extra: &str) -> Self {
        let mut sshd = Self::prepared("ed25519", extra);
        sshd.run();
        sshd
    }

    /// A server that is not running yet.
    pub(super) fn prepared(kind: &str, extra: &str) -> Self {
        assert!(
            Path::new(SSHD).exists(),
            "these tests need a real SSH server and {SSHD} is not there: apt-get install -y openssh-server"
        );
        let directory = tempfile::tempdir().unwrap();
        let (private_key, public_key) = key::generate_keypair("test").unwrap();
        fs::create_dir(directory.path().join("home")).unwrap();
        fs::write(directory.path().join("authorized"), &public_key).unwrap();
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let user = String::from_utf8(user).unwrap().trim().to_owned();
        if user == "root" {
            // Its own place for separating privileges; the package's service makes it otherwise.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let port = own_port();
        let sshd = Self {
            private_key,
            public_key,
            user,
            port,
            extra: extra.to_owned(),
            process: None,
            directory,
        };
        sshd.new_host_key(kind);
        sshd
    }

    /// Makes another host key; used from the next start.
    pub(super) fn new_host_key(&self, kind: &str) {
        let file = self.path("host_key");
        let _ = fs::remove_file(&file);
        let status = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-t", kind, "-f"])
            .arg(&file)
            .status();
        assert!(status.unwrap().success());
    }

    /// Starts it and waits until it listens.
    pub(super) fn run(&mut self) {
        let home = self.home();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {host}\nPidFile none\nUsePAM no\nStrictModes no\n\
             AuthorizedKeysFile {authorized}\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nSetEnv HOME={home}\nLogLevel ERROR\nMaxStartups 200\n{extra}\n",
            port = self.port,
            host = self.path("host_key").display(),
            authorized = self.path("authorized").display(),
            extra = self.extra,
        );
        fs::write(self.path("config"), config).unwrap();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let child = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(self.path("config"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(child.unwrap());
        let deadline = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect(self.address()).is_err() {
            assert!(
                Instant::now() < deadline,
                "sshd does not listen: {}",
                fs::read_to_string(self.path("log")).unwrap()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it and every connection of it.
    pub(super) fn kill(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let children = children(process.id());
        process.kill().unwrap();
        process.wait().unwrap();
        for child in children {
            for process in children_and_self(child) {
                let _ = Command::new("kill")
                    .args(["-KILL", &process.to_string()])
                    .stderr(Stdio::null())
                    .status();
            }
        }
    }

    /// Connections it has now.
    pub(super) fn connections(&self) -> usize {
        self.process
            .as_ref()
            .map_or(0, |process| children(process.id()).len())
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(super) fn dial(&self) -> Dial {
        Dial::Address(self.address())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The HOME that commands see.
    pub(super) fn home(&self) -> String {
        self.path("home").to_str().unwrap().to_owned()
    }

    /// The agent's home.
    pub(super) fn agent_home(&self) -> String {
        self.path("agent").to_str().unwrap().to_owned()
    }

    /// A file of the agent's home.
    pub(super) fn read(&self, name: &str) -> String {
        let path = self.path("agent").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Logs in.
    pub(super) async fn connect(
        &self,
        key: &Secret,
        host_key: Option<&str>,
    ) -> Result<ssh::Connection, ssh::ConnectError> {
        let stream = dial::dial(&self.dial(), None).await.unwrap();
        ssh::Connection::open(
            stream,
            &ssh::Login {
                user: &self.user,
                private_key: key,
                password: None,
                host_key,
            },
            Meter::new(Budget::default().account("tests")),
        )
        .await
    }

    /// Logs in with the right key.
    pub(super) async fn login(&self) -> ssh::Connection {
        self.connect(&self.private_key, None).await.unwrap()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Processes whose parent this is.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            after_name.split(' ').nth(1) == Some(parent.to_string().as_str())
        })
        .collect()
}

fn children_and_self(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    all.extend(children(process));
    all
}
