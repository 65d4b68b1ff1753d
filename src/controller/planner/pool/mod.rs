//! Which Machines a Pool should have.
//!
//! - [`plan`]: the decision, begin reading there; [`facts`]: what the plan may know.
//! - [`choice`]: the cheapest offers that fit; [`template`]: the record of a Machine to create.
//! - [`resolved`]: a Pool's spec with all defaults; [`environment`]: what its image makes of a machine.
//! - [`autoscale`]: how many machines waiting work is worth, which idle machines go, and when a Pool sleeps.
//! - [`load`]: what a Pool's dispatcher knows; [`suspension`]: why a Pool has no machines by intention.

pub mod autoscale;
pub mod choice;
pub mod environment;
pub mod facts;
pub mod load;
pub mod plan;
pub mod resolved;
pub mod suspension;
pub mod template;

#[cfg(test)]
pub(crate) mod tests;
