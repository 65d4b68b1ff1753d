//! The ground floor: what every room of the controller may use. Nothing here uses another room.
//!
//! - [`queue`]: keys of objects to look at; [`broadcast`]: changes that the watches saw, for all
//!   subscribers; [`backoff`]: how long to wait after failures in a row; [`caught`]: panics as
//!   errors; `written`: JSON as a user wrote it.

pub mod backoff;
pub mod broadcast;
pub(crate) mod caught;
pub mod queue;
pub(crate) mod written;
