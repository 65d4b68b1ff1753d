//! Ends a run whose watcher was killed: its processes are ended, and the evidence decides how the
//! run ended. Only where no process of the run can have killed the watcher and none goes on is it
//! no fault of the run, so that it may run again.

use std::{cell::RefCell, collections::BTreeSet, fs::File, io};

use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

use super::{home::RunFolder, memory::Kills, processes, shim::out_of_memory};
use crate::protocol::finished::Ending;

const WATCHER: &str = "the agent's watcher of this run was killed";

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
    let supervisor = processes::supervisor();
    let found = RefCell::new(BTreeSet::<i32>::new());
    let killed = processes::kill_all(|| {
        let mut left = processes::of_run(folder.path());
        // A process that removed the mark of its run is found by its new parent.
        if let (Some(uid), Some(supervisor)) = (foreign, supervisor) {
            left.extend(processes::unwatched(supervisor, uid));
        }
        found.borrow_mut().extend(&left);
        left
    });
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
