//! What the controllers tell each other in memory: hints, which the observed world overrules.
//!
//! - [`pool_loads`]: what each dispatcher knows of its Pool.
//! - [`awaited`]: Tasks that other Tasks wait for.
//! - [`looked`]: which namespaces were looked at for room in the result store.
//! - [`live`]: where Tasks run now, for clients that read a log while it is written.

pub mod awaited;
pub mod live;
pub mod looked;
pub mod pool_loads;
