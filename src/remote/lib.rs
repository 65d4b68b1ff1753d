//! The operator's side of a machine: SSH, bootstrap, and the session with its agent.
//!
//! Controllers use [`sessions::Sessions`]: it keeps one supervised task for each machine, which
//! dials it ([`ssh`]), prepares it ([`bootstrap`]) and holds the connection to its agent
//! ([`agent`]). It decides nothing about machines: a failure is reported, and the owner of the
//! machine replaces it. No Kubernetes in here.

pub mod agent;
pub mod binaries;
pub mod bootstrap;
pub mod budget;
pub mod connections;
pub mod dial;
pub mod key;
pub mod places;
pub mod sessions;
pub mod ssh;
pub mod transcript;
pub mod turns;

mod connector;
mod cut;
mod handler;
#[doc(hidden)]
pub mod hostile;
mod limits;
mod mask;
mod meter;
mod patience;
mod proof;
mod quote;
mod room;
mod session;
#[cfg(test)]
mod testing;
mod wire;

pub use skyward_core::diagnosis;

/// Messages of the agent's protocol, as generated.
pub use skyward_agent::protocol;

pub use agent::{Agent, AgentError, RunReader};
pub use binaries::AgentBinaries;
pub use connections::{Connections, Greeted, greet_over};
pub use dial::{PodDialer, Stream};
pub use sessions::{HostKey, MachineKey, SessionSpec, Sessions};
