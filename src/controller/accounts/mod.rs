//! What concerns the accounts of Providers and is no reconciler.
//!
//! - [`clients`]: the accounts that answered; [`facts`]: what plans may know of them.
//! - [`offers`]: what can be rented there; [`unavailable`]: what was refused lately.
//! - [`fleet`]: the Machines of all Pools, new Machines that no watch has shown yet among them.
//! - [`quota`], [`limits`]: how many Machines there may be, and which limit binds; [`cost`]: what
//!   was spent.
//! - [`sweeps`]: find what belongs to nothing any more, and end it.

pub mod clients;
pub mod fleet;
pub mod offers;
pub mod sweeps;
pub mod unavailable;
