//! Facts about the machine that the controller is told in `Hello`.

use std::{collections::HashMap, io, path::PathBuf, process::Stdio, time::Duration};

use nix::ifaddrs::getifaddrs;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::{home::Home, processes};
use crate::protocol::{ACCELERATORS, ADDRESSES, NAME_BYTES};

/// How long the machine's own programs may take to answer.
const PROBE: Duration = Duration::from_secs(5);

/// Names one life of this machine: of the kernel, and in a container of its first process.
pub(crate) fn boot_id() -> io::Result<String> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let first_process = processes::start_time(1).unwrap_or(0);
    Ok(format!("{}-{first_process}", kernel.trim()))
}

/// Whether process 1 is not an init system that answers `shutdown`.
pub(crate) fn is_container() -> bool {
    !processes::name(1)
        .is_some_and(|name| matches!(name.as_str(), "systemd" | "init" | "openrc-init" | "runit"))
}

/// SHA-256 of our own executable.
pub(crate) fn digest() -> io::Result<String> {
    let mut file = std::fs::File::open("/proc/self/exe")?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(format!("{:x}", hasher.finalize()))
}

/// The first IPv4 address of each network interface but the loopback. Networks may come up later,
/// so this is read each time.
pub(crate) fn addresses() -> HashMap<String, String> {
    let mut addresses = HashMap::new();
    for interface in getifaddrs().into_iter().flatten() {
        let address = interface.address.as_ref().and_then(|a| a.as_sockaddr_in());
        if addresses.len() == ADDRESSES {
            break;
        }
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            addresses
                .entry(interface.interface_name)
                .or_insert_with(|| address.ip().to_string());
        }
    }
    addresses
}

/// Answers of the machine's programs, each asked once.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    accelerators: OnceCell<Vec<String>>,
    /// By interpreter: bootstrap may install another one while we run.
    python: tokio::sync::Mutex<Option<(PathBuf, String)>>,
}

impl Probes {
    /// Names of the accelerators, one for each.
    pub(crate) async fn accelerators(&self) -> Vec<String> {
        let ask = async {
            let answer = ask("nvidia-smi", &["--query-gpu=name", "--format=csv,noheader"])
                .await
                .unwrap_or_default();
            answer
                .lines()
                .map(name)
                .filter(|name| !name.is_empty())
                .take(ACCELERATORS)
                .collect()
        };
        self.accelerators.get_or_init(|| ask).await.clone()
    }

    /// Version of the interpreter that functions run with, or nothing.
    pub(crate) async fn python(&self, home: &Home) -> String {
        let program = home.python();
        let mut known = self.python.lock().await;
        if let Some((of, version)) = known.as_ref()
            && *of == program
        {
            return version.clone();
        }
        let code = "import sys; print('%d.%d.%d' % sys.version_info[:3])";
        let version = ask(&program.to_string_lossy(), &["-c", code])
            .await
            .unwrap_or_default();
        // An interpreter that prints more at its start prints it before.
        let version = name(version.lines().last().unwrap_or_default());
        if !version.is_empty() {
            *known = Some((program, version.clone()));
        }
        version
    }
}

/// A line of a program's output as a name: short, and without control characters.
fn name(line: &str) -> String {
    let mut name: String = line.trim().chars().filter(|c| !c.is_control()).collect();
    name.truncate(name.floor_char_boundary(NAME_BYTES));
    name
}

async fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PROBE, output).await.ok()?.ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_harms_no_terminal_whatever_the_program_printed() {
        assert_eq!(name(" NVIDIA H100\u{1b}[2J\r"), "NVIDIA H100[2J");
        assert!(name(&"ä".repeat(NAME_BYTES)).len() <= NAME_BYTES);
    }
}
