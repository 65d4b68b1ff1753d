//! The agent of a machine: protocol.
