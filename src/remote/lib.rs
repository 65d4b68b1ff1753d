//! The operator's side of a machine: SSH, bootstrap, and the session with its agent.
//!
//! [`sessions::Sessions`] is what controllers use: it keeps one supervised task for each
//! machine, which dials it ([`ssh`]), prepares it ([`bootstrap`]) and holds the
//! connection to its agent ([`agent`]). It decides nothing about machines: a failure is
//! reported, and whoever owns the machine replaces it. No Kubernetes in here.

pub mod agent;
pub mod binaries;
pub mod bootstrap;
pub mod connector;
pub mod dial;
pub mod key;
pub mod sessions;
pub mod ssh;

mod mask;
mod quote;
mod session;
#[cfg(test)]
mod testing;

/// Messages of the agent's protocol, as generated.
pub use skyward_agent::protocol;

pub use agent::{Agent, AgentApi, AgentError};
pub use binaries::AgentBinaries;
pub use dial::{PodDialer, Stream};
pub use sessions::{MachineKey, SessionSpec, Sessions};
