//! What every room may use. Nothing here uses another room.
//!
//! - [`key`]: what the metadata of an object says; [`digest`]: short digests for names.
//! - [`time`]: arithmetic with times; [`requeue`]: when an object is looked at again.

pub mod digest;
pub mod key;
pub mod memory;
pub mod requeue;
pub mod time;
