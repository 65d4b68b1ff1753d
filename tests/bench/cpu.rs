//! Processor time that each program of this machine used between two snapshots, as the kernel
//! counts it. Other load on the machine lowers rates, but does not change these figures.

use std::{collections::BTreeMap, fs};

/// The kernel counts in hundredths of a second, whatever its own clock is.
const MS_PER_TICK: f64 = 10.0;

/// Programs that a Task keeps busy, in the order in which they are shown.
const KINDS: [(&str, &str); 10] = [
    ("controller", "the controller"),
    ("agent", "the agents' daemons"),
    ("runs", "shims and the work itself"),
    ("sshd", "the machines' SSH servers"),
    ("apiserver", "kube-apiserver"),
    ("etcd", "etcd"),
    ("kubelet", "kubelet and containerd"),
    ("control-plane", "the other parts of the control plane"),
    ("bench", "this program"),
    ("other", "everything else on this machine"),
];

#[derive(Clone, Copy)]
struct Used {
    kind: &'static str,
    /// By the process itself.
    own: u64,
    /// By children that ended and that it waited for.
    children: u64,
}

/// What every process has used so far.
pub(crate) struct Snapshot(BTreeMap<u32, Used>);

impl Snapshot {
    /// Reads the processor time of all processes of this machine.
    pub(crate) fn take() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(ids.filter_map(|pid| Some((pid, used(pid)?))).collect())
    }
}

/// Milliseconds by kind of program.
#[derive(Default)]
pub(crate) struct Spent(BTreeMap<&'static str, f64>);

impl Spent {
    /// Adds what was used between two snapshots.
    pub(crate) fn add(&mut self, before: &Snapshot, after: &Snapshot) {
        for (pid, now) in &after.0 {
            let (own, children) = before.0.get(pid).map_or((0, 0), |was| (was.own, was.children));
            let ms = |now: u64, was: u64| now.saturating_sub(was) as f64 * MS_PER_TICK;
            *self.0.entry(now.kind).or_default() += ms(now.own, own);
            // A shim and what it ran show up at the daemon that waited for them.
            if now.kind == "agent" {
                *self.0.entry("runs").or_default() += ms(now.children, children);
            }
        }
    }

    /// Milliseconds of each kind, divided by `count`.
    pub(crate) fn per(&self, count: u32) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
        KINDS.into_iter().map(move |(kind, words)| {
            let ms = self.0.get(kind).copied().unwrap_or_default();
            (kind, words, ms / f64::from(count.max(1)))
        })
    }

    /// Milliseconds of one kind.
    pub(crate) fn of(&self, kind: &str) -> f64 {
        self.0.get(kind).copied().unwrap_or_default()
    }
}

fn used(pid: u32) -> Option<Used> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold anything: fields are counted from its last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok());
    Some(Used {
        kind: kind(pid),
        own: field(11)? + field(12)?,
        children: field(13)? + field(14)?,
    })
}

fn kind(pid: u32) -> &'static str {
    if pid == std::process::id() {
        return "bench";
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    let mut words = command.split('\0');
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    let first = words.next().unwrap_or_default();
    match name {
        "skyward" if first == "controller" => "controller",
        "skyward-agent" if first == "daemon" => "agent",
        "skyward-agent" => "runs",
        "kube-apiserver" => "apiserver",
        "etcd" => "etcd",
        "kubelet" | "containerd" | "containerd-shim-runc-v2" => "kubelet",
        "kube-controller-manager" | "kube-scheduler" | "kube-proxy" => "control-plane",
        _ if name.starts_with("sshd") => "sshd",
        _ => "other",
    }
}
