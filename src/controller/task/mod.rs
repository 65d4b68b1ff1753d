//! Stub; its owner replaces it.

use crate::context::Context;

/// Runs until shutdown.
pub async fn run(context: Context) {
    context.shutdown.cancelled().await;
}

pub mod live;

mod dispatcher;
mod message;
mod model;
mod placement;
mod status;
mod tail;
