//! Carries out the decision about a restored cluster; makes no choices. Each step can be repeated:
//! the decision stays in the Provider's status until all steps are done.

use kube::{Api, ResourceExt, api::PostParams};
use skyward_api::{Pool, provider::RestoreDecision};

use crate::{context::Context, deadline::words, leadership::lease};

/// Pools that have counted fewer attempts than their machines' marks say, with the highest attempt
/// in these marks.
pub(crate) fn behind<'a>(
    decision: &'a RestoreDecision,
    pools: impl IntoIterator<Item = &'a Pool>,
) -> Vec<(&'a Pool, u32)> {
    let last = |pool: &Pool| pool.status.as_ref().map_or(0, |status| status.last_attempt);
    pools
        .into_iter()
        .filter_map(|pool| {
            let attempt = *decision.attempts.get(pool.metadata.uid.as_deref()?)?;
            (last(pool) < attempt).then_some((pool, attempt))
        })
        .collect()
}

/// Raises the last attempts of Pools to the marks of machines that this cluster does not remember,
/// and the epoch above the epochs that machines proved. Returns whether all of it is done.
pub(crate) async fn carry_out(context: &Context, decision: &RestoreDecision) -> bool {
    let pools = context.caches.pools.state();
    let mut done = true;
    for (pool, attempt) in behind(decision, pools.iter().map(AsRef::as_ref)) {
        if let Err(problem) = raise_attempt(context, pool, attempt).await {
            tracing::warn!(
                pool = pool.name_any(),
                problem,
                "the last attempt of a Pool could not be raised; it is tried again"
            );
            done = false;
        }
    }
    if !done || decision.epoch < context.epoch {
        return done;
    }
    match lease::raise_epoch(&context.client, &context.config, context.epoch, decision.epoch).await {
        Ok(()) => {
            tracing::warn!(
                epoch = decision.epoch,
                "machines proved this epoch: the process ends, and leads again with a higher one"
            );
            context.holds.restart.cancel();
        }
        Err(error) => {
            tracing::warn!(%error, "the epoch could not be raised; it is tried again");
        }
    }
    false
}

async fn raise_attempt(context: &Context, pool: &Pool, attempt: u32) -> Result<(), String> {
    let namespace = pool.namespace().unwrap_or_default();
    let api: Api<Pool> = Api::namespaced(context.client.clone(), &namespace);
    let mut object = pool.clone();
    object.status.get_or_insert_default().last_attempt = attempt;
    context.metrics.api_write("Pool");
    let name = pool.name_any();
    // With its UID and version: neither another Pool of that name nor a newer count is written over.
    let written = api.replace_status(&name, &PostParams::default(), &object).await;
    written.map(drop).map_err(|error| words(&error))
}
