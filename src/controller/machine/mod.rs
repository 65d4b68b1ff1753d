//! One machine from order to Ready to gone.

pub mod connector;

use skyward_remote::sessions::Stage;

use crate::context::Context;

/// Runs until shutdown.
pub async fn run(context: Context) {
    context.shutdown.cancelled().await;
}

/// Name of a stage, for metrics.
pub const fn stage_name(stage: &Stage) -> &'static str {
    match stage {
        Stage::Dialing { .. } => "dialing",
        Stage::Bootstrapping { .. } => "bootstrapping",
        Stage::Ready => "ready",
        Stage::Reconnecting { .. } => "reconnecting",
        Stage::Failed(_) => "failed",
    }
}
