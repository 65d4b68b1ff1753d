//! The accounts of Providers, shared by the reconcilers.
//!
//! - [`clients`]: the accounts that answered.
//! - [`offers`]: what can be rented there; [`unavailable`]: what was refused lately.
//! - [`fleet`]: the Machines of all Pools, new Machines that no watch has shown yet among them.
//! - [`sweeps`]: find orphaned machines and resources, and end them.

pub mod clients;
pub mod fleet;
pub mod offers;
pub mod sweeps;
pub mod unavailable;
