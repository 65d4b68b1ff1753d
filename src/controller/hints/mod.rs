//! What the controllers tell each other in memory: hints, never truth. The observed world wins.
//!
//! - [`pool_load`]: what a dispatcher knows of its Pool; [`pool_loads`]: that of all Pools.
//! - [`live`]: where Tasks run now, for clients that read a log while it is written.

pub mod live;
pub mod pool_loads;
