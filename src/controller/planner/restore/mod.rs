//! A cluster whose memory is older than its machines: restored from a backup, or a copy.
//! docs/decisions/0011-restored-clusters.md has the reasons.
//!
//! - [`evidence`]: what a list of machines says about this cluster's memory.
//! - [`verdict`]: whether a Provider is held, and what a person decided about it.

pub mod evidence;
pub mod verdict;

#[cfg(test)]
pub(crate) mod tests;
