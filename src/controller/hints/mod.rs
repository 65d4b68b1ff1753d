//! What the controllers tell each other in memory: hints, which the observed world overrules.
//!
//! - [`pool_loads`]: what each dispatcher knows of its Pool.
//! - [`live`]: where Tasks run now, for clients that read a log while it is written.

pub mod live;
pub mod pool_loads;
