//! Processes inside Pods, seen from the node: the tests run on it. Only processes whose
//! control group names the Pod's UID are ever signalled.

use std::{fs, io::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use tokio::time::Instant;

use crate::{OPERATOR_NAMESPACE, PATIENCE, Result};

/// Processes of a Pod whose command line contains the text, as pids of the node.
pub fn pids_in_pod(uid: &str, text: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let also = uid.replace('-', "_");
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            // The command line is read out of the memory of the process: of few of them.
            (groups.contains(uid) || groups.contains(&also)) && {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&command)
                    .replace('\0', " ")
                    .contains(text)
            }
        })
        .collect();
    pids.sort_unstable();
    pids
}

async fn controller_pod(client: &Client) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    let params = ListParams::default().labels("app.kubernetes.io/component=controller");
    let running = |p: &Pod| {
        p.metadata.deletion_timestamp.is_none()
            && p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
    };
    pods.list(&params)
        .await?
        .items
        .into_iter()
        .find(running)
        .context("no controller Pod is running")
}

/// Pid (on the node) of the controller.
pub async fn controller_pid(client: &Client) -> Result<u32> {
    let uid = controller_pod(client).await?.uid().unwrap_or_default();
    pids_in_pod(&uid, "skyward")
        .first()
        .copied()
        .context("the controller's process is not on this node")
}

/// Ends the controller with SIGKILL, as a crash would.
pub async fn kill_controller(client: &Client) -> Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let found = match controller_pid(client).await {
            Ok(pid) if end(pid)? => return Ok(pid),
            Ok(pid) => anyhow!("kill -9 {pid} failed"),
            Err(error) => error,
        };
        // It may be restarting: one that has lost its Lease ends by itself.
        if Instant::now() >= deadline {
            return Err(found);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Fills the disk of an agent's home, which must be [`SMALL_DISK`](crate::SMALL_DISK). Answers with the file that takes up
/// the room, and with nothing where the machine is gone or the disk has room left.
pub fn fill_disk(uid: &str) -> Option<PathBuf> {
    /// More than the disk has.
    const MOST_MIB: usize = 256;
    let pid = pids_in_pod(uid, "skyward-machine").first().copied()?;
    let path = PathBuf::from(format!("/proc/{pid}/root/opt/skyward/fill"));
    let mut file = fs::File::create(&path).ok()?;
    let piece = vec![0; 1 << 20];
    let is_full = (0..MOST_MIB).any(|_| file.write_all(&piece).is_err());
    if !is_full {
        // The machine may go meanwhile, and the file with it.
        let _ = fs::remove_file(&path);
        return None;
    }
    Some(path)
}

/// Sends SIGKILL; returns whether the process existed.
fn end(pid: u32) -> Result<bool> {
    let pid = pid.to_string();
    let status = std::process::Command::new("kill").args(["-9", &pid]).status()?;
    Ok(status.success())
}

/// Waits until another controller process than `old` runs; returns its pid.
pub async fn wait_controller_replaced(client: &Client, old: u32) -> Result<u32> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while Instant::now() < deadline {
        let pod = controller_pod(client).await.ok().and_then(|pod| pod.uid());
        // In the same Pod, most of the time: then the API server need not be asked again.
        for _ in 0..20 {
            let pids = pod.as_ref().map(|uid| pids_in_pod(uid, "skyward"));
            if let Some(pid) = pids.unwrap_or_default().first().filter(|pid| **pid != old) {
                return Ok(*pid);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    bail!("no new controller process within {PATIENCE} s of the old one's end")
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All of it.
    pub whole: u64,
    /// What is its own.
    pub anonymous: u64,
    /// Pages of files, the program first of all: shared, and given back when others need room.
    pub file: u64,
}

/// Resident memory of the controller.
pub async fn controller_memory(client: &Client) -> Result<Memory> {
    let pid = controller_pid(client).await?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let part = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: u64 = kib.with_context(|| format!("{name} is missing"))?.parse()?;
        anyhow::Ok(kib * 1024)
    };
    Ok(Memory {
        whole: part("VmRSS:")?,
        anonymous: part("RssAnon:")?,
        file: part("RssFile:")?,
    })
}
