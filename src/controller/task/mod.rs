//! One serial dispatcher for each Pool, from queue to result.
//!
//! ```text
//! watch of active Tasks ─┐                        ┌─ status writes (API server)
//! Pools, Machines ───────┼─> router ─> dispatcher ┼─ runs (agents, over sessions)
//! connections, facts ────┘             (pure)     └─ logs and results (store)
//! ```
//!
//! Begin reading at `planner/task/dispatcher/mod.rs`: a state machine without I/O. `actor.rs` feeds a dispatcher and `effects.rs` carries its
//! effects out; `router.rs` watches Tasks, knows all dispatchers and waits for
//! none of them (`inbox.rs`); `own_pool.rs` makes and deletes the Pool of one Task, `delivery.rs` brings files to machines, `git.rs` has machines fetch them; `collect.rs` copies logs and results, in turns (`remote/turns.rs`) of some
//! length (`pace.rs`), `writes.rs` writes statuses, `inline.rs` decides which values a status shows; `housekeeping.rs` deletes expired
//! Tasks and stale data; `map/` runs the items of a Task with `forEach`.

mod actor;
mod arguments;
mod collect;
mod delivery;
mod effects;
mod environment;
mod git;
mod housekeeping;
mod inbox;
mod inline;
mod map;
mod own_pool;
mod pace;
mod progress;
mod reclaim;
mod router;
mod tail;
mod told;
mod writes;

use crate::context::Context;

/// Runs until shutdown.
pub async fn run(context: Context) {
    // Subscribed before the caches are read, so that no change falls between.
    let changes = context.feed.subscribe();
    let caches = context.caches.clone();
    let ready = async {
        caches.pools.wait_until_ready().await.is_ok() && caches.machines.wait_until_ready().await.is_ok()
    };
    if context.shutdown.run_until_cancelled(ready).await != Some(true) {
        return;
    }
    let expiry = housekeeping::Expiry::default();
    let runner = effects::EffectRunner::new(context.clone(), expiry.clone());
    let panics = &context.panics;
    let housekeeping = panics.keep("housekeeping", || {
        housekeeping::run(context.clone(), expiry.clone())
    });
    futures::future::join(router::run(runner, changes), housekeeping).await;
}
