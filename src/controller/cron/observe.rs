//! Lists the Tasks that a CronTask has made, past all caches: ended ones are not watched.

use std::sync::Arc;

use kube::{Api, ResourceExt, api::ListParams};
use skyward_api::{CronTask, Task, labels};
use skyward_planner::{
    base::memory::ClusterMemory,
    cron::facts::{Child, Observed, Refusal},
};

use crate::{context::Context, cron::namespace_of, deadline::words, guard::Guarded};

/// Tasks of one page of a list. Any user may make a Task of more than a MiB.
const PAGE: u32 = 50;
/// Pages of one look: where retention keeps thousands of ended Tasks, the oldest of them are looked at, since their
/// names have their times.
const PAGES: usize = 20;
/// Tasks that have not ended, and ended Tasks, listed apart so that many ended Tasks hide no other one.
const PHASES: [&str; 3] = [
    "status.phase!=Succeeded,status.phase!=Failed",
    "status.phase=Succeeded",
    "status.phase=Failed",
];

/// Gathers; makes no decision.
pub(super) async fn observe(context: &Context, cron: &Arc<CronTask>, refusal: Option<Refusal>) -> Observed {
    let served = context.config.serves(&namespace_of(cron));
    let children = if served {
        match children(context, cron).await {
            Ok(children) => Some(children),
            Err(error) => {
                tracing::warn!(
                    cron_task = cron.name_any(),
                    error,
                    "the Tasks of a CronTask could not be listed"
                );
                None
            }
        }
    } else {
        Some(Vec::new())
    };
    let memory = if context.holds.any() {
        ClusterMemory::Held
    } else if context.remembers_all() {
        ClusterMemory::Whole
    } else {
        ClusterMemory::Unproved
    };
    Observed {
        cron: cron.clone(),
        children,
        served,
        memory,
        refusal,
    }
}

async fn children(context: &Context, cron: &CronTask) -> Result<Vec<Child>, String> {
    let (uid, namespace) = (cron.uid().unwrap_or_default(), namespace_of(cron));
    let api: Api<Guarded<Task>> = Api::namespaced(context.client.clone(), &namespace);
    let label = format!("{}={uid}", labels::CRON_TASK_UID);
    let mut children = Vec::new();
    for phases in PHASES {
        let mut params = ListParams::default().labels(&label).fields(phases).limit(PAGE);
        for _ in 0..PAGES {
            let page = api.list(&params).await.map_err(|error| words(&error))?;
            let ours = page.items.iter().filter_map(|task| match &task.0 {
                Ok(task) => Child::of(task, &uid),
                // One that an older operator cannot read goes on all the same, and a second one beside it costs money.
                Err(invalid) if phases == PHASES[0] => Child::not_ended(&invalid.metadata, &uid),
                Err(_) => None,
            });
            children.extend(ours.map(|child| Child {
                awaited: !context.awaited.may_go(&namespace, &child.name),
                ..child
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
    }
    Ok(children)
}
