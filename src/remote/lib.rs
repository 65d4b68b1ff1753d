//! The operator's side of a machine: SSH, bootstrap, and the session with its agent.
