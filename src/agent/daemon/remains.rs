//! Ends a run whose watcher was killed: its processes are ended, and the evidence decides how the
//! run ended. Only where no process of the run can have killed the watcher and none goes on is it
//! no fault of the run, so that it may run again.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs::File,
    io,
    time::{Duration, Instant},
};

use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

use super::{files, home::RunFolder, memory::Kills, processes, shim::out_of_memory};
use crate::protocol::finished::Ending;

const WATCHER: &str = "the agent's watcher of this run was killed";
/// How long the keeper of a fork may take to end what its run left.
const KEEPER: Duration = Duration::from_secs(5);

/// The file that a watcher writes just before it starts the work.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    /// User that the work runs as.
    pub(super) uid: u32,
    pub(super) kills: Option<Kills>,
}

impl Begun {
    /// Fails if the file exists: the work must not start twice.
    pub(super) fn leave(&self, folder: &RunFolder) -> io::Result<()> {
        let file = File::create_new(folder.begun())?;
        // The file's existence counts. On a full disk only its content is missing.
        let _ = serde_json::to_writer(file, self);
        Ok(())
    }

    fn find(folder: &RunFolder) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.begun()).ok()?).ok()
    }
}

/// The file that a watcher writes before it gives a run to a fork of a warm parent. A fork has no
/// mark in its environment, and another parent than the watcher.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Forked {
    pid: i32,
    /// When it started: another process may have its number by now.
    start: u64,
}

impl Forked {
    /// A living process.
    pub(super) fn of(pid: i32) -> Option<Self> {
        let start = processes::start_time(pid)?;
        Some(Self { pid, start })
    }

    pub(super) fn leave(self, folder: &RunFolder) -> io::Result<()> {
        Ok(serde_json::to_writer(files::create(folder.forked())?, &self)?)
    }

    fn find(folder: &RunFolder) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.forked()).ok()?).ok()
    }

    /// Whether the process exists, be it as a zombie.
    fn exists(self) -> bool {
        processes::start_time(self.pid) == Some(self.start)
    }

    /// What is alive of it.
    fn tree(self) -> BTreeSet<i32> {
        if self.exists() {
            processes::tree(self.pid)
        } else {
            BTreeSet::new()
        }
    }

    /// Waits until its keeper has ended what it left: only then the keeper reaps it.
    fn wait(self) -> bool {
        let until = Instant::now() + KEEPER;
        while self.exists() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// The evidence.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Whether the work ran as another user than the agent, so that it cannot have killed the
    /// watcher.
    is_foreign: bool,
    /// Whether all its processes are known to be dead.
    all_dead: bool,
    /// How many processes the kernel killed for want of memory while it ran, if that is known.
    memory_kills: Option<u64>,
}

/// Ends the processes of such a run, and says how the run ended.
pub(super) fn end(folder: &RunFolder) -> (Ending, String) {
    let begun = Begun::find(folder);
    let own = Uid::effective().as_raw();
    let foreign = begun.as_ref().map(|begun| begun.uid).filter(|uid| *uid != own);
    let forked = Forked::find(folder);
    let supervisor = processes::supervisor();
    let found = RefCell::new(BTreeSet::<i32>::new());
    let killed = processes::kill_all(|| {
        let mut left = processes::of_run(folder.path());
        left.extend(forked.map(Forked::tree).unwrap_or_default());
        // A process that removed the mark of its run is found by its new parent.
        if let (Some(uid), Some(supervisor)) = (foreign, supervisor) {
            left.extend(processes::unwatched(supervisor, uid));
        }
        found.borrow_mut().extend(&left);
        left
    });
    let killed = killed && forked.is_none_or(Forked::wait);
    if !killed {
        tracing::error!(run = %folder.path().display(), "processes of a lost run could not be ended");
    }
    tracing::info!(run = %folder.path().display(), ended = found.borrow().len(), "the watcher of a run was killed");
    judge(Seen {
        is_foreign: foreign.is_some(),
        all_dead: killed && supervisor.is_some(),
        memory_kills: begun.and_then(|begun| begun.kills?.since()),
    })
}

fn judge(seen: Seen) -> (Ending, String) {
    let left = "so its exit code is unknown; what it left running was ended";
    match seen {
        Seen {
            is_foreign: true,
            memory_kills: Some(1..),
            ..
        } => (Ending::OutOfMemory, out_of_memory(WATCHER)),
        Seen {
            is_foreign: true,
            all_dead: true,
            memory_kills: Some(0),
        } => (
            Ending::Interrupted,
            format!("{WATCHER} by somebody else than the run, {left}"),
        ),
        Seen {
            memory_kills: Some(1..),
            ..
        } => (
            Ending::ShimLost,
            format!("{WATCHER}, {left}. While it ran, the kernel killed a process for want of memory"),
        ),
        Seen { .. } => (Ending::ShimLost, format!("{WATCHER}, {left}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_told_from_a_later_process_with_its_number() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let folder = tempfile::tempdir().unwrap();
        let folder = crate::daemon::home::Home::new(folder.path()).run("r");
        assert!(Forked::find(&folder).is_none());
        std::fs::create_dir_all(folder.path()).unwrap();
        Forked::of(pid).unwrap().leave(&folder).unwrap();
        let forked = Forked::find(&folder).unwrap();
        assert_eq!(forked.tree(), [pid].into());
        let later = Forked {
            start: forked.start - 1,
            ..forked
        };
        assert!(later.tree().is_empty() && later.wait());
        child.kill().unwrap();
        while !forked.tree().is_empty() {
            std::thread::yield_now();
        }
        assert!(forked.exists(), "it is not reaped yet");
        child.wait().unwrap();
        assert!(forked.wait() && Forked::of(pid).is_none());
    }

    #[test]
    fn only_what_the_run_cannot_have_done_and_what_is_over_is_an_interruption() {
        for is_foreign in [false, true] {
            for all_dead in [false, true] {
                for memory_kills in [None, Some(0), Some(2)] {
                    let seen = Seen {
                        is_foreign,
                        all_dead,
                        memory_kills,
                    };
                    let expected = match (is_foreign, all_dead, memory_kills) {
                        (true, _, Some(2)) => Ending::OutOfMemory,
                        (true, true, Some(0)) => Ending::Interrupted,
                        _ => Ending::ShimLost,
                    };
                    let (ending, message) = judge(seen);
                    assert_eq!(ending, expected, "{seen:?}");
                    assert_eq!(message.contains("memory"), memory_kills == Some(2), "{message}");
                }
            }
        }
    }
}
