//! CronTasks: makes Tasks by the clock, and deletes old ones.
//!
//! Begin reading at [`skyward_planner::cron::plan`]: what should happen next, as a pure function. [`observe`] lists the
//! Tasks that a CronTask has made, [`act`] carries the plan out; this file says when a CronTask is looked at: when it
//! changes, when one of its Tasks came or ended, and when its time comes.

mod act;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use skyward_api::CronTask;
use skyward_planner::{
    base::{
        key::{Key, key_of},
        requeue::Next,
    },
    cron::{
        facts::{Observed, Refusal},
        plan::{self, Plan},
    },
};

use crate::{
    api::ApiError,
    base::broadcast::Change,
    context::Context,
    newest::Record,
    reconcile::{Reconcile, drive},
};

/// CronTasks looked at at the same time.
const CONCURRENCY: u16 = 8;

/// Runs until shutdown.
pub async fn run(context: Context) {
    let queue = context.cron_wakeups.clone();
    let reconciles = drive(
        CronTasks(context.clone()),
        &context,
        context.caches.cron_tasks.clone(),
        queue.clone().stream(),
        CONCURRENCY,
    );
    let changes = context.feed.subscribe();
    for cron in context.caches.cron_tasks.state() {
        queue.enqueue(key_of(cron.as_ref()));
    }
    let route = async {
        loop {
            if let Change::CronTask(key) = changes.next().await {
                queue.enqueue(key);
            }
        }
    };
    tokio::select! {
        () = reconciles => {}
        () = route => {}
    }
}

struct CronTasks(Context);

/// Hints about one CronTask; losing them costs a refused write.
#[derive(Default)]
struct CronMemory {
    refusal: Option<Refusal>,
    /// Refusals in a row for that time of the schedule.
    times: u32,
}

impl CronMemory {
    /// The API server did not take the Task for that time.
    fn refused(&mut self, Refused { at, why }: Refused, now: Timestamp) {
        let is_again = self.refusal.as_ref().is_some_and(|refusal| refusal.at == at);
        self.times = if is_again { self.times.saturating_add(1) } else { 1 };
        self.refusal = Some(Refusal {
            at,
            why,
            until: plan::not_before(now, self.times),
        });
    }
}

/// The API server did not take a Task.
struct Refused {
    /// The time of the schedule that it was for.
    at: Timestamp,
    /// For the user.
    why: String,
}

impl Reconcile for CronTasks {
    const KIND: &'static str = "CronTask";
    const CONTROLLER: &'static str = "cron";

    type Object = CronTask;
    type Memory = CronMemory;
    type Seen = Observed;
    type Plan = Plan;
    type Outcomes = Option<Refused>;
    type Error = ApiError;

    async fn observe(
        &self,
        cron: &Arc<CronTask>,
        memory: &mut CronMemory,
        refused: Option<Refused>,
    ) -> Observed {
        if let Some(refused) = refused {
            memory.refused(refused, skyward_core::clock::now());
        }
        observe::observe(&self.0, cron, memory.refusal.clone()).await
    }

    fn plan(&self, seen: &Observed, _: &mut CronMemory, now: Timestamp) -> Plan {
        plan::plan(seen, now)
    }

    fn next(plan: &Plan) -> Next {
        plan.next
    }

    async fn act(
        &self,
        record: &mut Record<'_, CronTask>,
        memory: &mut CronMemory,
        _: &Observed,
        plan: Plan,
    ) -> Result<Option<Refused>, ApiError> {
        let makes = plan.make.is_some();
        let refused = act::act(&self.0, record, plan).await?;
        if makes && refused.is_none() {
            *memory = CronMemory::default();
        }
        Ok(refused)
    }

    fn warn(key: &Key, error: &ApiError, source: Option<String>, times: u32) {
        tracing::warn!(cron_task = %key, %error, source, times, "a CronTask could not be reconciled; trying again");
    }
}

/// Namespace of a CronTask.
fn namespace_of(cron: &CronTask) -> String {
    cron.namespace().unwrap_or_default()
}
