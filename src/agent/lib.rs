//! The agent of a machine. The library is what both ends of the connection share: the
//! protocol (`protocol/`, generated from `agent.v1.proto`) and the encoding of logs
//! ([`log`]). With feature `daemon` it also holds what runs on the machine ([`daemon`]);
//! the operator links the library without it. The life of a run is told in
//! `docs/agent.md`.

#[cfg(feature = "daemon")]
pub mod daemon;
pub mod log;
pub mod protocol;
