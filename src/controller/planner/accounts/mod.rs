//! What decisions know of the accounts of Providers.
//!
//! - [`facts`]: a Provider, its account and a namespace, as plans know them.
//! - [`resolved`]: a Provider's spec with its defaults.
//! - [`offers`]: what can be rented there; [`unavailable`]: what was refused lately.
//! - [`host_keys`]: what vouches for the host keys of its machines.
//! - [`quota`], [`limits`]: how many Machines there may be, and which limit binds; [`cost`]: what
//!   was spent.
//! - [`orphans`]: which machines of a list no record stands for.

pub mod cost;
pub mod facts;
pub mod host_keys;
pub mod limits;
pub mod offers;
pub mod orphans;
pub mod quota;
pub mod resolved;
pub mod unavailable;
