//! The protocol between the controller and the agent of one machine: the generated
//! messages and services, and the versions that the two sides negotiate in `Hello`.

use std::{fmt, time::Duration};

#[rustfmt::skip]
mod generated;
pub mod version;

pub use generated::*;

/// Largest message either side accepts: a 1 MiB spec, and facts with an inlined log and
/// result, with much room.
pub const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// A log or result of at most this size travels inside the fact that a run finished.
pub const INLINE_BYTES: usize = 64 * 1024;

/// The end of the output that travels inside the fact that a run finished.
pub const TAIL_BYTES: usize = 2 * 1024;

/// Longest id of an installation, and longest proof of an epoch.
pub const ID_BYTES: usize = 128;

/// Bytes of one [`Chunk`], at most.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// Bytes of one [`Chunk`] as this agent sends them. A reader gives window back for whole chunks
/// only, so that smaller ones keep several on their way.
pub const PIECE_BYTES: usize = 64 * 1024;

/// Bytes of one part of a bundle, at most.
pub const PART_BYTES: usize = 1024 * 1024;

/// The last millisecond of the year 9999: later times cannot be written.
pub const LAST_MS: u64 = 253_402_300_799_999;

/// Longest log or result that can be announced. A log counts all that a run printed, also bytes
/// that its machine did not keep. Sums of two never overflow.
pub const LONGEST: u64 = 1 << 60;

/// The highest signal.
pub const LAST_SIGNAL: i32 = 64;

/// Bytes of the message about the end of a run; one that was cut ends with `…` behind them.
pub const MESSAGE_BYTES: usize = 1000;

/// Bytes of the name of an exception's class.
pub const EXCEPTION_BYTES: usize = 256;

/// Bytes of the reason why functions are not forked.
pub const WHY_BYTES: usize = 300;

/// Bytes of a name or version that a program of the machine printed.
pub const NAME_BYTES: usize = 128;

/// Accelerators of one machine.
pub const ACCELERATORS: usize = 64;

/// Network interfaces of one machine whose address is told.
pub const ADDRESSES: usize = 256;

/// Runs that a machine has promised and not started yet: as many as it may run at the same time.
pub const ACCEPTED: usize = 1024;

/// Bytes of what an item of a map returns, at most.
pub const VALUE_BYTES: usize = 256 * 1024;

/// Items of one chunk, at most.
pub const CHUNK_ITEMS: u32 = 65_536;

/// Bytes of the items of one chunk, at most. A larger item is alone in its chunk.
pub const CHUNK_ITEM_BYTES: usize = 1024 * 1024;

/// The user that fetches from git run as, where the agent is root.
pub const GIT_USER: &str = "skyward-git";

/// Longest fetch of a repository, with the making of its bundle.
pub const FETCH: Duration = Duration::from_mins(2);

/// Whether this can be the id of a run. It becomes the name of a directory.
pub fn is_run_id(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Whether this can name the class of an exception, or no class.
pub fn is_exception(name: &str) -> bool {
    name.len() <= EXCEPTION_BYTES && !name.contains(|c: char| c.is_control() || c.is_whitespace())
}

impl fmt::Debug for RunSpec {
    /// Names the run and what kind of work it is. The environment, arguments and sources may
    /// hold secrets and are left out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RunSpec")
            .field("run_id", &self.run_id)
            .field("namespace", &self.namespace)
            .field("task", &self.task)
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for GitCredential {
    /// Names the host, and nothing of the credential.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GitCredential")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for run_spec::Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Command(_) => "Command",
            Self::Script(_) => "Script",
            Self::Function(_) => "Function",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_is_a_safe_directory_name() {
        assert!(is_run_id("2f1c0e9a-5d1e-4c61-8f6a-000000000000-1-0"));
        for bad in ["", "..", "a/b", "A", "a_b", "a\0", &"a".repeat(129)] {
            assert!(!is_run_id(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_name_of_an_exception_is_short_and_one_word() {
        for good in ["", "ValueError", "main.<locals>.Größe", &"e".repeat(256)] {
            assert!(is_exception(good), "{good:?}");
        }
        for bad in ["a b", "a\n", "\u{1b}[31m", &"e".repeat(257)] {
            assert!(!is_exception(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_printed_spec_shows_no_environment_and_no_source() {
        let spec = RunSpec {
            run_id: "r-1-0".into(),
            env: [("TOKEN".to_owned(), "canary".to_owned())].into(),
            work: Some(run_spec::Work::Script(Script {
                interpreter: "bash".into(),
                source: "canary".into(),
            })),
            instance_info: "canary".into(),
            ..RunSpec::default()
        };
        let start = StartRequest {
            epoch: 1,
            spec: Some(spec),
        };
        assert!(!format!("{start:?}").contains("canary"));
        let fetch = FetchGitRequest {
            credential: Some(GitCredential {
                host: "git.example".into(),
                username: "canary".into(),
                password: "canary".into(),
                ssh_key: "canary".into(),
            }),
            ..FetchGitRequest::default()
        };
        let printed = format!("{fetch:?}");
        assert!(printed.contains("git.example") && !printed.contains("canary"));
    }
}
