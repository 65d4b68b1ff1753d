//! The agent as it runs on a machine: the built binary, real processes, a real socket.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod bundles;
mod crashes;
mod git;
mod git_host;
mod gpu;
mod hostile;
mod items;
mod machine;
mod memory;
mod output;
mod reclaim;
mod results;
mod service;
mod starting;
mod stopping;
mod warm;
