//! The ways in for tests that make up what a machine sends. Nothing else uses them.

use std::io;

pub use crate::bootstrap::hostile::{Heard, bootstrap};
use crate::{Agent, budget::Account, connector, dial::Stream, limits::Breach, meter::Meter};

/// The agent at the other end of a stream, as a session opens it over a channel of SSH.
pub async fn agent(stream: Box<dyn Stream>, account: Account) -> io::Result<Agent> {
    let (wire, _) = connector::open(stream, Meter::new(account), Breach::default()).await?;
    Ok(Agent::new(wire, "here", 7, "proof of 7"))
}
