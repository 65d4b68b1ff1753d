//! The attacker of `intruder.sh`, without a Pod: a real SSH server of this machine.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::backend::Intruder;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/backend/pods/intruder.sh");

struct Attacker {
    folder: PathBuf,
    port: u16,
    process: Child,
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // Its script has become the server itself.
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn output(command: &mut Command) -> Vec<u8> {
    command.stdin(Stdio::null()).output().unwrap().stdout
}

fn key(file: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(file)
        .status();
    assert!(made.unwrap().success());
}

impl Attacker {
    fn start(intruder: Intruder) -> Self {
        let name = format!("intruder-{}-{}", intruder.word(), std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("own")).unwrap();
        key(&folder.join("user"));
        fs::write(folder.join("skyward_host_key_proof"), "proof of the machine\n").unwrap();
        if output(Command::new("id").arg("-u")) == b"0\n" {
            // The place for separating privileges, which the package's service makes otherwise.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let at = folder.display();
        let config = format!(
            "ListenAddress 127.0.0.1\nUsePAM no\nStrictModes no\nAuthorizedKeysFile {at}/user.pub\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        );
        fs::write(folder.join("config"), config).unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let log = fs::File::create(folder.join("log")).unwrap();
        let process = Command::new("sh")
            .args([SCRIPT, intruder.word(), &port.to_string()])
            .args([folder.join("own"), folder.join("config")])
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let attacker = Self {
            folder,
            port,
            process,
        };
        let deadline = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(attacker.folder.join("log")).unwrap();
            assert!(Instant::now() < deadline, "it does not listen: {log}");
            std::thread::yield_now();
        }
        attacker
    }

    /// What it answers when it is asked to carry out this command, or the beginning of that.
    fn answers(&self, command: &str) -> Vec<u8> {
        let user = String::from_utf8(output(Command::new("id").arg("-un"))).unwrap();
        let ssh = format!(
            "ssh -q -F none -i {}/user -p {} -o BatchMode=yes -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile=/dev/null {}@127.0.0.1 '{command}' | head -c 1000",
            self.folder.display(),
            self.port,
            user.trim(),
        );
        output(Command::new("sh").args(["-c", &ssh]))
    }

    fn proof(&self) -> Vec<u8> {
        self.answers(&format!("cat {}/skyward_host_key_proof", self.folder.display()))
    }
}

/// Whether an answer is what was told.
type IsRight = fn(&[u8]) -> bool;

#[test]
fn an_attacker_shows_a_key_of_its_own_lets_in_and_answers_what_it_was_told_to() {
    let told: [(Intruder, IsRight); 4] = [
        (Intruder::Copied, |answer| answer == b"proof of the machine\n"),
        (Intruder::Garbage, |answer| answer.len() == 64),
        (Intruder::Nothing, <[u8]>::is_empty),
        (Intruder::Endless, |answer| answer == "y\n".repeat(500).as_bytes()),
    ];
    for (intruder, is_right) in told {
        let attacker = Attacker::start(intruder);
        let answer = attacker.proof();
        assert!(is_right(&answer), "{intruder:?}: {answer:?}");
        assert_eq!(attacker.answers("echo $((6 * 7))"), b"42\n", "{intruder:?}");
        let scan = Command::new("ssh-keyscan")
            .args(["-t", "ed25519", "-p", &attacker.port.to_string(), "127.0.0.1"])
            .output();
        let shown = String::from_utf8(scan.unwrap().stdout).unwrap();
        let own = fs::read_to_string(attacker.folder.join("own/host_key.pub")).unwrap();
        let own = own.split(' ').nth(1).unwrap();
        assert!(shown.contains(own), "{intruder:?}: {shown}");
        let asked = fs::read_to_string(attacker.folder.join("own/commands")).unwrap();
        assert_eq!(asked.lines().count(), 2, "{intruder:?}: {asked}");
    }
}
