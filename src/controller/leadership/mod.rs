//! Which process leads, and what it may do until another one does.
//!
//! - [`lease`]: the Lease that replicas of one installation compete for, and its epoch.
//! - [`claim`]: which installation of the cluster leads, where there are several.
//! - [`fence`]: all writes pass it, and it is open only while this process leads.
//! - [`step_down`]: settles doubts whether this process still leads.

pub mod claim;
pub mod fence;
pub mod lease;
pub mod step_down;
