//! The kernel's memory killer: which processes it takes first, and whether it took any.
//!
//! The work of a run must go before the run's watcher, and the watcher before the daemon. The
//! kernel takes the process with the highest score; ours are never below the agent's own, since
//! many containers do not allow that.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// The highest score that there is.
const FIRST: i32 = 1000;
const SCORE: &str = "/proc/self/oom_score_adj";
/// The mount of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// Counts for the whole kernel, also for the neighbours of a container.
const WHOLE_MACHINE: &str = "/proc/vmstat";

fn score() -> Option<i32> {
    fs::read_to_string(SCORE).ok()?.trim().parse().ok()
}

/// Best effort: a sandbox may have no such file.
fn set_score(score: i32) {
    let _ = fs::write(SCORE, score.to_string());
}

/// Has this process, and all that it starts, taken first.
pub(super) fn go_first() {
    set_score(FIRST);
}

/// Puts this process, a watcher, between its agent, whose score it was started with, and work.
pub(super) fn go_before_the_agent() {
    if let Some(agent) = score() {
        set_score(watcher(agent));
    }
}

const fn watcher(agent: i32) -> i32 {
    agent + (FIRST - agent) / 2
}

/// While it lives, new children of this process are taken first. A child has its parent's score
/// from its first moment on; a later change would miss the child's own children.
#[derive(Debug)]
pub(super) struct ChildrenFirst(Option<i32>);

impl ChildrenFirst {
    pub(super) fn begin() -> Self {
        let own = score();
        if own.is_some() {
            set_score(FIRST);
        }
        Self(own)
    }
}

impl Drop for ChildrenFirst {
    fn drop(&mut self) {
        if let Some(own) = self.0 {
            set_score(own);
        }
    }
}

/// How many processes the kernel had killed for want of memory at some time, and where it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kills {
    counter: PathBuf,
    count: u64,
}

impl Kills {
    /// The present count; `None` where the kernel does not tell.
    pub(super) fn now(is_container: bool) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        counters(&groups, is_container).into_iter().find_map(|counter| {
            let count = read(&counter)?;
            Some(Self { counter, count })
        })
    }

    /// Kills since then; `None` where that cannot be known any more.
    pub(super) fn since(&self) -> Option<u64> {
        read(&self.counter)?.checked_sub(self.count)
    }
}

/// Where the kernel may count for this process, best first. A container may see its group's name
/// outside of it: then its own group is at the mount.
fn counters(groups: &str, is_container: bool) -> Vec<PathBuf> {
    let mut counters = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => (Path::new(GROUPS).to_owned(), "memory.events"),
            some if some.split(',').any(|controller| controller == "memory") => {
                (Path::new(GROUPS).join("memory"), "memory.oom_control")
            }
            _ => continue,
        };
        counters.push(mount.join(path.trim_start_matches('/')).join(file));
        counters.push(mount.join(file));
    }
    if !is_container {
        counters.push(WHOLE_MACHINE.into());
    }
    counters
}

fn read(counter: &Path) -> Option<u64> {
    count(&fs::read_to_string(counter).ok()?)
}

fn count(text: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_stands_between_its_agent_and_its_work_wherever_that_is() {
        for agent in [-1000, -997, 0, 2, 500, 998] {
            let watcher = watcher(agent);
            assert!(agent < watcher && watcher < FIRST, "{agent} {watcher}");
        }
        // Never lower than before, even without room in between.
        assert_eq!((watcher(999), watcher(1000)), (999, 1000));
    }

    #[test]
    fn kills_are_found_in_either_kind_of_control_group() {
        assert_eq!(count("low 0\noom 3\noom_kill 2\noom_group_kill 1\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn a_process_is_counted_where_it_is_and_never_among_the_neighbours_of_its_container() {
        let paths = |groups, container| -> Vec<String> {
            let counters = counters(groups, container);
            counters.iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(
            paths("0::/system.slice/agent.service\n", false),
            [
                "/sys/fs/cgroup/system.slice/agent.service/memory.events",
                "/sys/fs/cgroup/memory.events",
                "/proc/vmstat"
            ]
        );
        assert_eq!(
            paths("11:cpu,memory:/docker/a:b\n1:name=systemd:/\n", true),
            [
                "/sys/fs/cgroup/memory/docker/a:b/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control"
            ]
        );
    }

    #[test]
    fn what_is_counted_since_is_what_came_since() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kills = Kills {
            counter: file.path().to_owned(),
            count: 2,
        };
        for (text, since) in [
            ("oom_kill 2\n", Some(0)),
            ("oom_kill 5\n", Some(3)),
            // A control group was made anew under that name.
            ("oom_kill 0\n", None),
            ("", None),
        ] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(kills.since(), since, "{text:?}");
        }
        drop(file);
        assert_eq!(kills.since(), None);
    }
}
