//! What concerns the accounts of Providers and is no reconciler.
//!
//! - [`clients`]: the accounts that answered.
//! - [`offers`]: what can be rented there; [`unavailable`]: what was refused lately.
//! - [`fleet`]: the Machines of all Pools, new Machines that no watch has shown yet among them.
//! - [`sweeps`]: find what belongs to nothing any more, and end it.

pub mod clients;
pub mod fleet;
pub mod offers;
pub mod sweeps;
pub mod unavailable;
