//! Which Machines a Pool should have.

pub mod fleet;

use crate::context::Context;

/// Runs until shutdown.
pub async fn run(context: Context) {
    context.shutdown.cancelled().await;
}
