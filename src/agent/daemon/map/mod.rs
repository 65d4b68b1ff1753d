//! Items of maps on this machine: what each place was given, what began, and how it ended
//! (`docs/decisions/0024-maps.md` says why).
//!
//! - [`queue`]: what a place has still to run. Pure; the shim and a daemon that reads what a shim left use the same.
//! - [`place`]: what the watcher of a place does next. It knows neither processes nor files.
//! - [`runner`]: the protocol with the Python that runs a function for each item (`python/skyward/_items.py`).
//! - [`variables`]: an item in the arguments of a command.
//! - [`share`]: the file of a place, which the shim writes. It survives the shim and the daemon, and events that were
//!   reported from it survive a restart of the machine.
//! - [`streams`]: which of the controller's streams counts.
//! - [`outbox`]: how the daemon reads such a file: what to report, and what to delete.
//! - [`links`]: the protocol between the daemon and a watcher.
//! - [`teller`]: the daemon's reports about one worker, in their order.
//!
//! Nothing here knows processes: how an item is run is the shim's.

pub(crate) mod links;
pub(crate) mod outbox;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod runner;
pub(crate) mod share;
pub(crate) mod streams;
pub(crate) mod teller;
pub(crate) mod variables;
