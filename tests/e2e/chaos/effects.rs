//! Carries happenings out, and undoes them: at their end, when the round fails, and, where a program
//! before was killed, at the start of the next one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use skyward_testkit::{Result, pids_in_pod};

use crate::{
    components,
    happenings::{Happening, Moment, Need, Process},
    scene::{Machine, Scene},
};

/// Words by which rules of ours are known. They hold the name of the cluster's network, so `make
/// cluster-down` removes the rules as well.
const COMMENT: &str = "skyward-pods-chaos";
/// The bridge of the local cluster.
const BRIDGE: &str = "skyward0";

/// Undoes an effect when it is dropped.
#[must_use]
pub(crate) struct Undo(Option<Box<dyn FnOnce() -> Result + Send>>);

impl Undo {
    fn by(undo: impl FnOnce() -> Result + Send + 'static) -> Self {
        Self(Some(Box::new(undo)))
    }

    /// What is not undone: another part of the cluster does it.
    const fn nothing() -> Self {
        Self(None)
    }

    /// Whether there is something to wait for.
    pub(crate) const fn is_something(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take()
            && let Err(error) = undo()
        {
            println!("    an effect is not undone: {error:#}");
        }
    }
}

/// What came of a happening.
pub(crate) enum Outcome {
    /// It was carried out, at that machine.
    Carried(Option<String>, Undo),
    /// It could not be, for that reason.
    Missed(String),
}

/// Carries out a happening. It returns at once; the effect lasts until its [`Undo`] is dropped.
pub(crate) fn carry_out(moment: &Moment, scene: &Scene) -> Result<Outcome> {
    if let Some(missing) = missing(moment.what.needs()) {
        return Ok(Outcome::Missed(missing));
    }
    let machine = scene.machines.iter().find(|m| u64::from(m.slot) == moment.slot);
    let missed = |why: &str| Ok(Outcome::Missed(why.to_owned()));
    let (undo, at) = match moment.what {
        Happening::Killed(process) | Happening::Paused(process) => {
            let of_a_machine = matches!(process, Process::Agent | Process::Watchers | Process::Sshd);
            let at = machine.filter(|_| of_a_machine);
            let found = find(process, scene, at);
            if found.is_empty() {
                return missed("no such process runs");
            }
            let undo = if matches!(moment.what, Happening::Paused(_)) {
                signal(&found, "-STOP")?;
                Undo::by(move || signal(&found, "-CONT"))
            } else {
                let undo = component(process).map_or_else(Undo::nothing, |name| {
                    components::keep_away(name);
                    Undo::by(move || components::bring_back(name))
                });
                signal(&found, "-KILL")?;
                undo
            };
            (undo, at)
        }
        happening => {
            let Happening::ClockStepped(seconds) = happening else {
                let Some(machine) = machine else {
                    return missed("the machine of this slot is not Ready");
                };
                // A machine may vanish under the tools.
                return Ok(match at_machine(happening, machine, scene) {
                    Ok(Some(undo)) => Outcome::Carried(Some(machine.name.clone()), undo),
                    Ok(None) => Outcome::Missed("the machine is gone, or has it already".to_owned()),
                    Err(error) => Outcome::Missed(format!("{error:#}")),
                });
            };
            shift_clock(seconds)?;
            (Undo::by(move || shift_clock(-seconds)), None)
        }
    };
    Ok(Outcome::Carried(at.map(|machine| machine.name.clone()), undo))
}

fn at_machine(what: Happening, machine: &Machine, scene: &Scene) -> Result<Option<Undo>> {
    match what {
        Happening::PowerLost => {
            let mut first = alive(pids_in_pod(&machine.uid, "skyward-machine"));
            first.truncate(1);
            signal(&first, "-KILL")?;
            Ok((!first.is_empty()).then(Undo::nothing))
        }
        Happening::LinkCut => cut_link(&scene.controller_ip, &machine.ip).map(Some),
        Happening::LinkSlowed => slow_link(machine),
        Happening::DiskFilled => Ok(fill_disk(machine)),
        // By the API server, which may have to be asked again.
        _ => Ok(Some(Undo::nothing())),
    }
}

fn missing(need: Need) -> Option<String> {
    match need {
        Need::Nothing => None,
        Need::Program(name) => {
            let path = std::env::var("PATH").unwrap_or_default();
            let there = path
                .split(':')
                .any(|folder| Path::new(folder).join(name).exists());
            (!there).then(|| format!("there is no {name}"))
        }
        Need::Clock => (std::env::var("CHAOS_CLOCK").as_deref() != Ok("1"))
            .then(|| "CHAOS_CLOCK is not 1: the clock is the whole machine's".to_owned()),
    }
}

/// A process, and when it began: a pid alone may be another process's by the time of its undoing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pid(pub(crate) u32, pub(crate) String);

fn alive(pids: Vec<u32>) -> Vec<Pid> {
    pids.into_iter()
        .filter_map(|pid| Some(Pid(pid, born(pid)?)))
        .collect()
}

/// The fields of `stat` behind the name of a process.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// When a process began; `None` for a process that has ended and was not collected yet.
pub(crate) fn born(pid: u32) -> Option<String> {
    let fields = stat(pid)?;
    (fields.first()? != "Z").then(|| fields.get(19).cloned())?
}

fn signal(pids: &[Pid], signal: &str) -> Result {
    for Pid(pid, since) in pids {
        if born(*pid).as_ref() == Some(since) {
            // It may end before it is hit.
            let _ = Command::new("kill").args([signal, &pid.to_string()]).output()?;
        }
    }
    Ok(())
}

const fn component(process: Process) -> Option<&'static str> {
    match process {
        Process::ApiServer => Some("kube-apiserver"),
        Process::Etcd => Some("etcd"),
        _ => None,
    }
}

fn find(process: Process, scene: &Scene, machine: Option<&Machine>) -> Vec<Pid> {
    if let Some(name) = component(process) {
        return components::pid(name).into_iter().collect();
    }
    if process == Process::Controller {
        let mut pids = alive(pids_in_pod(&scene.controller_uid, "skyward"));
        pids.truncate(1);
        return pids;
    }
    let Some(machine) = machine else { return Vec::new() };
    let (program, words): (&str, &[&str]) = match process {
        Process::Agent => ("skyward-agent", &[" supervise ", " daemon "]),
        Process::Watchers => ("skyward-agent", &[" shim "]),
        _ => ("sshd", &["sshd"]),
    };
    let pids = words.iter().flat_map(|word| pids_in_pod(&machine.uid, word));
    // The work's arguments may hold any word.
    let runs = |pid: &u32| {
        let exe = fs::read_link(format!("/proc/{pid}/exe")).ok();
        exe.and_then(|exe| Some(exe.file_name()?.to_str()?.starts_with(program)))
            .unwrap_or_default()
    };
    alive(pids.filter(runs).collect())
}

pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{command:?}: {said}");
    Ok(output)
}

fn rules(action: &str, ends: [&str; 2]) -> Result {
    for [from, to] in [ends, [ends[1], ends[0]]] {
        let rule = ["-w", "5", action, "FORWARD", "-s", from, "-d", to];
        let drop = ["-m", "comment", "--comment", COMMENT, "-j", "DROP"];
        run(Command::new("iptables").args(rule).args(drop))?;
    }
    Ok(())
}

fn cut_link(controller: &str, machine: &str) -> Result<Undo> {
    let ends = [controller.to_owned(), machine.to_owned()];
    let undo = Undo::by(move || rules("-D", [&ends[0], &ends[1]]));
    rules("-I", [controller, machine])?;
    Ok(undo)
}

/// The kernel of this machine may have no delays (`netem`); each kernel with `tc` has bounded rates.
fn slow_link(machine: &Machine) -> Result<Option<Undo>> {
    let Some(link) = link_of(machine)? else {
        return Ok(None);
    };
    let there = run(Command::new("tc").args(["qdisc", "show", "dev", &link]))?;
    if String::from_utf8_lossy(&there.stdout).contains("tbf") {
        return Ok(None);
    }
    let add = ["qdisc", "add", "dev", &link, "root", "tbf"];
    let bound = ["rate", "64kbit", "burst", "16kb", "latency", "500ms"];
    run(Command::new("tc").args(add).args(bound))?;
    // The link may go with its Pod.
    Ok(Some(Undo::by(move || {
        remove_bound(&link);
        Ok(())
    })))
}

fn remove_bound(link: &str) {
    let _ = Command::new("tc")
        .args(["qdisc", "del", "dev", link, "root"])
        .output();
}

/// The end on the bridge of a Pod's only link.
fn link_of(machine: &Machine) -> Result<Option<String>> {
    let Some(pid) = pids_in_pod(&machine.uid, "skyward-machine").first().copied() else {
        return Ok(None);
    };
    let inside = ["-n", "ip", "-o", "link", "show", "eth0"];
    let shown = run(Command::new("nsenter")
        .args(["-t", &pid.to_string()])
        .args(inside))?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let peer = shown
        .split_once("@if")
        .and_then(|(_, rest)| rest.split(':').next());
    let mut links = links().into_iter();
    Ok(links.find(|link| {
        let index = fs::read_to_string(format!("/sys/class/net/{link}/ifindex")).unwrap_or_default();
        Some(index.trim()) == peer
    }))
}

fn links() -> Vec<String> {
    let ports = fs::read_dir(format!("/sys/class/net/{BRIDGE}/brif"));
    let ports = ports.into_iter().flatten().flatten();
    ports
        .filter_map(|port| port.file_name().into_string().ok())
        .collect()
}

/// The agent's home has a small file system of its own.
fn fill_disk(machine: &Machine) -> Option<Undo> {
    let path = skyward_testkit::fill_disk(&machine.uid)?;
    Some(Undo::by(move || {
        // It is gone with its machine.
        let _ = fs::remove_file(&path);
        Ok(())
    }))
}

fn clock_record() -> PathBuf {
    std::env::temp_dir().join("skyward-chaos-clock")
}

/// By how much the clock is wrong.
fn clock_is_off() -> i64 {
    let record = fs::read_to_string(clock_record()).unwrap_or_default();
    record.parse().unwrap_or_default()
}

/// Steps the clock, and keeps the sum of all steps for the next start of the program.
fn shift_clock(seconds: i64) -> Result {
    fs::write(clock_record(), (clock_is_off() + seconds).to_string())?;
    let then = Timestamp::now() + SignedDuration::from_secs(seconds);
    let then = format!("@{}.{:09}", then.as_second(), then.subsec_nanosecond());
    run(Command::new("date").args(["-s", &then])).map(drop)
}

/// Undoes what a program that was killed left behind.
pub(crate) fn undo_leftovers() -> Result {
    let off = clock_is_off();
    if off != 0 {
        shift_clock(-off)?;
    }
    if missing(Need::Program("iptables")).is_none() {
        let listed = run(Command::new("iptables").args(["-w", "5", "-S", "FORWARD"]))?;
        for rule in String::from_utf8_lossy(&listed.stdout).lines() {
            if rule.contains(COMMENT) {
                let words = rule.split_whitespace().skip(1).map(|word| word.trim_matches('"'));
                run(Command::new("iptables").args(["-w", "5", "-D"]).args(words))?;
            }
        }
    }
    for link in links() {
        remove_bound(&link);
    }
    for name in components::GUARDED {
        match components::pid(name) {
            Some(pid) => signal(&[pid], "-CONT")?,
            None => components::restart(name)?,
        }
    }
    let stopped = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            groups.contains("/skyward/") && stat(*pid).is_some_and(|fields| fields[0] == "T")
        })
        .collect();
    signal(&alive(stopped), "-CONT")
}

/// How long the effect of a moment lasts.
pub(crate) async fn hold(undo: Undo, lasts: Duration) {
    if undo.is_something() {
        tokio::time::sleep(lasts).await;
    }
}
