//! The ground floor: what every room of the controller may use. Nothing here knows a room above.
//!
//! - [`queue`]: keys of objects to look at; [`broadcast`]: what the watches saw, to all who asked;
//!   [`backoff`]: how long to wait after failures in a row;
//!   [`caught`]: panics as errors.

pub mod backoff;
pub mod broadcast;
pub(crate) mod caught;
pub mod queue;
