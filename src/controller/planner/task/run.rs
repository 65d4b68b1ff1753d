//! Facts that an agent tells about a run, and the room that they take.
//!
//! The controller makes these from the messages of the agent's protocol, so that decisions know no
//! transport.

use std::fmt;

use crate::task::model::RunId;

/// How far a run is, as its program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Parts of the work that are done.
    pub done: u64,
    /// All parts; 0 where the program does not say.
    pub total: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The agent does not say.
    #[default]
    Unknown,
    /// The process exited; its exit code says how.
    Exited,
    /// A signal that we did not send ended it.
    Signaled,
    /// We ended it, at the end of its timeout.
    TimedOut,
    /// We ended it, on request.
    Stopped,
    /// There is no such program, directory or user.
    StartFailed,
    /// Its watcher was killed: the exit code is not known.
    ShimLost,
    /// The disk of its machine is full.
    DiskFull,
    /// The Python function raised.
    FunctionRaised,
    /// A syntax error, a missing entrypoint, or arguments that do not fit.
    BadSource,
    /// The return value cannot be written as JSON.
    ResultNotJson,
    /// The return value is larger than what is kept.
    ResultTooLarge,
    /// Its machine was restarted while it ran.
    MachineRestarted,
    /// It, or its watcher, was killed for want of memory.
    OutOfMemory,
    /// Its watcher was killed, and not by the run: it may run again.
    Interrupted,
}

/// The end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub ending: Ending,
    /// Exit code of a process that exited.
    pub exit_code: i32,
    /// The signal that killed it, else 0.
    pub signal: i32,
    /// One sentence for the user; `""` where it just exited with 0.
    pub message: String,
    /// Class of the exception that a function raised, or `""`.
    pub exception: String,
    /// When it began, as Unix time in milliseconds.
    pub started_ms: u64,
    /// When it ended, as Unix time in milliseconds.
    pub finished_ms: u64,
    /// Size of the encoded log, with what is not kept any more.
    pub log_bytes: u64,
    /// What of it is not kept, and output lost for want of disk.
    pub log_dropped_bytes: u64,
    /// The whole encoded log when it is small.
    pub log: Vec<u8>,
    /// The end of its output, decoded, as raw bytes.
    pub log_tail: Vec<u8>,
    /// Size of the JSON return value, 0 = none.
    pub result_bytes: u64,
    /// The return value when it is small.
    pub result: Vec<u8>,
    /// Whether there is a return value.
    pub has_result: bool,
    /// Of a function: whether it was forked from a warm parent. `None`: other work, or nobody told.
    pub forked: Option<bool>,
}

/// A fact about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Which run.
    pub run: RunId,
    /// How it ended; `None`: it was started.
    pub finished: Option<Finished>,
}

/// What an agent answers about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// No known state.
    Unknown,
    /// It starts, or runs.
    Running,
    /// It has ended.
    Finished(Finished),
}

/// Room taken from a budget until this is dropped.
pub type Permit = Box<dyn fmt::Debug + Send + Sync>;

/// What an agent told, with the room that it takes of its namespace's budget. Dropping it gives the
/// room back.
#[derive(Debug)]
pub struct Told<T> {
    /// What it told.
    pub what: T,
    /// The room that this takes.
    pub room: Option<Permit>,
}

/// A fact of our own, or too small to be counted.
impl<T> From<T> for Told<T> {
    fn from(what: T) -> Self {
        Self { what, room: None }
    }
}
