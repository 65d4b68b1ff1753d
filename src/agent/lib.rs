//! The agent of a machine. The library is what both ends of the connection share: the
//! protocol (`protocol/`, generated from `agent.v1.proto`) and the encoding of logs
//! ([`log`]). With feature `daemon` it also holds the program on the machine ([`daemon`]);
//! the operator links the library without it. `docs/agent.md` tells the life of a run.

#[cfg(feature = "daemon")]
pub mod daemon;
pub mod log;
pub mod protocol;
