//! Processes of the machine as `/proc` shows them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Name of the variable that marks every process of a run with the run's folder.
pub(crate) const RUN_VARIABLE: &str = "SKYWARD_RUN_FOLDER";

/// All descendants of `ancestor`, not itself. Zombies are left out: they are dead already.
pub(crate) fn descendants(ancestor: i32) -> BTreeSet<i32> {
    below(ancestor, |_| false).collect()
}

/// All descendants that are no zombies, without a process that `is_skipped` and its descendants.
fn below(ancestor: i32, is_skipped: impl Fn(i32) -> bool) -> impl Iterator<Item = i32> {
    let mut children: BTreeMap<i32, Vec<(i32, char)>> = BTreeMap::new();
    for pid in all() {
        if let Some((state, parent)) = state_and_parent(pid) {
            children.entry(parent).or_default().push((pid, state));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(pid) = open.pop() {
        let mut alive = children.remove(&pid).unwrap_or_default();
        alive.retain(|(child, _)| !is_skipped(*child));
        open.extend(alive.iter().map(|(child, _)| child));
        found.extend(alive);
    }
    found
        .into_iter()
        .filter(|(_, state)| *state != 'Z')
        .map(|(pid, _)| pid)
}

/// That process and all its descendants, without zombies.
pub(crate) fn tree(root: i32) -> BTreeSet<i32> {
    let mut found = descendants(root);
    if state_and_parent(root).is_some_and(|(state, _)| state != 'Z') {
        found.insert(root);
    }
    found
}

/// The children of this process, zombies too.
pub(crate) fn children() -> BTreeSet<i32> {
    let own = std::process::id() as i32;
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists: Option<Vec<String>> = threads
        .map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok())
        .collect();
    match lists {
        Some(lists) => lists
            .iter()
            .flat_map(|list| list.split_ascii_whitespace())
            .filter_map(|pid| pid.parse().ok())
            .collect(),
        // Some kernels have no such files.
        None => all().filter(|pid| parent(*pid) == Some(own)).collect(),
    }
}

/// The parent of a process.
fn parent(pid: i32) -> Option<i32> {
    state_and_parent(pid).map(|(_, parent)| parent)
}

/// Whether it is a child of this process that belongs to that user.
pub(crate) fn is_child_of_user(pid: i32, uid: u32) -> bool {
    parent(pid) == Some(std::process::id() as i32) && user(pid) == Some(uid)
}

/// Processes that carry the mark of a run, with their descendants.
pub(crate) fn of_run(folder: &Path) -> BTreeSet<i32> {
    let mark = format!("{RUN_VARIABLE}={}", folder.display()).into_bytes();
    let marked = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry == mark))
    };
    let own = std::process::id() as i32;
    let roots: Vec<i32> = all().filter(|pid| *pid != own).filter(marked).collect();
    let mut found: BTreeSet<i32> = roots.iter().copied().collect();
    for root in roots {
        found.extend(descendants(root));
    }
    found
}

/// The supervisor of this daemon, if it has one: processes that lose their watcher become its
/// children.
pub(crate) fn supervisor() -> Option<i32> {
    let parent = nix::unistd::getppid().as_raw();
    is_ours(parent, "supervise").then_some(parent)
}

/// Processes of that user below the supervisor that neither a living shim nor a living keeper watches.
pub(crate) fn unwatched(supervisor: i32, uid: u32) -> BTreeSet<i32> {
    let unwatched = below(supervisor, |pid| is_ours(pid, "shim") || is_ours(pid, "keeper"));
    unwatched.filter(|pid| user(*pid) == Some(uid)).collect()
}

/// Whether it is a process of the agent's in that role. Users choose the arguments of their own
/// processes, so its user counts.
fn is_ours(pid: i32, role: &str) -> bool {
    let own = nix::unistd::Uid::effective().as_raw();
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes()) && user(pid) == Some(own)
}

/// The user that a process belongs to (the real one), whichever user's rights it has for now.
fn user(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().next()?.parse().ok()
}

/// Memory of a process, in KiB.
pub(crate) fn resident(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    size.split_ascii_whitespace().next()?.parse().ok()
}

/// Ends the processes that `find` names, and all that they start meanwhile: all are stopped before
/// the first is killed, so that none can replace another. `find` is called until it finds none, at
/// most a few hundred times.
pub(crate) fn kill_all(find: impl Fn() -> BTreeSet<i32>) -> bool {
    for _ in 0..300 {
        let mut stopped = BTreeSet::new();
        loop {
            let new: BTreeSet<i32> = &find() - &stopped;
            if new.is_empty() || stopped.len() > 100_000 {
                break;
            }
            for pid in &new {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGSTOP);
            }
            stopped.extend(new);
        }
        if stopped.is_empty() {
            return true;
        }
        for pid in stopped {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    false
}

/// Start time of a process in clock ticks since boot: together with its number it names a
/// process for good.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    stat_fields(pid)?.nth(19)?.parse().ok()
}

/// The command name of a process.
pub(crate) fn name(pid: i32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .ok()
        .map(|name| name.trim_end().to_owned())
}

fn all() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let mut fields = stat_fields(pid)?;
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Fields of `/proc/<pid>/stat` from the state on. The name before it may hold anything, so
/// they begin after its last parenthesis.
fn stat_fields(pid: i32) -> Option<std::vec::IntoIter<String>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<String> = String::from_utf8_lossy(&stat[end + 1..])
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect();
    Some(fields.into_iter())
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn grandchildren_in_sessions_of_their_own_are_found_and_killed() {
        let mark = PathBuf::from(format!("/test-{}", std::process::id()));
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & wait",
            ])
            .env(RUN_VARIABLE, &mark)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        while of_run(&mark).len() < 5 {
            std::thread::yield_now();
        }
        assert!(descendants(std::process::id() as i32).contains(&(shell.id() as i32)));
        assert!(kill_all(|| of_run(&mark)));
        shell.wait().unwrap();
        assert!(of_run(&mark).is_empty());
    }

    #[test]
    fn a_child_is_known_with_its_descendants_until_it_is_a_zombie() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & wait"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = shell.id() as i32;
        while tree(pid).len() < 2 {
            std::thread::yield_now();
        }
        let own = nix::unistd::Uid::effective().as_raw();
        assert!(children().contains(&pid) && is_child_of_user(pid, own));
        assert!(!is_child_of_user(pid, own + 1) && !is_child_of_user(1, own));
        assert!(kill_all(|| tree(pid)));
        assert!(
            children().contains(&pid) && tree(pid).is_empty(),
            "a zombie is a child"
        );
        shell.wait().unwrap();
        assert!(!children().contains(&pid));
    }

    #[test]
    fn the_start_time_tells_a_process_from_a_later_one() {
        assert!(start_time(std::process::id() as i32).unwrap() > start_time(1).unwrap_or(0));
        assert_eq!(start_time(i32::MAX), None);
    }
}
