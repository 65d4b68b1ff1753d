//! What nobody waits for: ended Tasks are deleted when their time has come, and the store
//! is swept of Tasks that are gone.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use skyward_api::Task;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, timeout},
};

use crate::context::Context;

/// Tasks of one page of a list.
const PAGE: u32 = 500;
const DEADLINE: Duration = Duration::from_mins(1);
const SWEEP: Duration = Duration::from_hours(1);
/// What is younger may belong to a Task that a list does not show yet.
const YOUNG: Duration = Duration::from_mins(10);
/// Pause after a delete that failed.
const AGAIN: Duration = Duration::from_secs(30);

/// An ended Task with a time to be deleted at. Ordered by that time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    at: Timestamp,
    namespace: String,
    name: String,
    uid: String,
}

/// Takes ended Tasks with a time to be deleted at.
#[derive(Clone)]
pub(crate) struct Expiry(mpsc::UnboundedSender<Due>);

impl Expiry {
    /// from whoever saw a Task end --Due--> to [`expire`]. Unbounded, but for each Task
    /// that ended in this process it holds one line at most.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Due>) {
        let (due_tx, due_rx) = mpsc::unbounded_channel();
        (Self(due_tx), due_rx)
    }

    pub(crate) fn at(&self, namespace: &str, name: &str, uid: &str, at: Timestamp) {
        let due = Due {
            at,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        // Fails only at shutdown; the next leader finds the Task in its first list.
        let _ = self.0.send(due);
    }
}

/// Deletes ended Tasks when their time has come; begins with those that ended earlier.
pub(crate) async fn expire(context: Context, expiry: Expiry, mut due_rx: mpsc::UnboundedReceiver<Due>) {
    let mut heap: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    let found = tokio::select! {
        found = find_expiring(&context, &expiry) => found,
        () = context.shutdown.cancelled() => return,
    };
    if let Err(error) = found {
        tracing::warn!(%error, "ended Tasks could not be listed; those with a ttl stay until the next start");
    }
    loop {
        let wait = heap.peek().map_or(Duration::from_hours(1), |Reverse(due)| {
            let left = due.at.as_millisecond() - Timestamp::now().as_millisecond();
            Duration::from_millis(u64::try_from(left).unwrap_or_default())
        });
        tokio::select! {
            () = context.shutdown.cancelled() => return,
            due = due_rx.recv() => match due {
                Some(due) => heap.push(Reverse(due)),
                None => return,
            },
            () = tokio::time::sleep(wait) => {
                if heap.peek().is_some_and(|Reverse(due)| due.at <= Timestamp::now())
                    && let Some(Reverse(mut due)) = heap.pop()
                    && !delete(&context, &due).await
                {
                    due.at = Timestamp::now() + AGAIN;
                    heap.push(Reverse(due));
                }
            }
        }
    }
}

/// Whether it is gone.
async fn delete(context: &Context, due: &Due) -> bool {
    let api: Api<Task> = Api::namespaced(context.client.clone(), &due.namespace);
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(due.uid.clone()),
        resource_version: None,
    });
    context.metrics.api_write("Task");
    match timeout(DEADLINE, api.delete(&due.name, &params)).await {
        Ok(Ok(_)) => {
            if let Err(error) = context.store.delete_task(&due.uid).await {
                tracing::warn!(uid = %due.uid, %error, "logs and results of an expired Task stay for now");
            }
            true
        }
        // 409: another Task of that name has taken its place.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 || status.code == 409 => true,
        Ok(Err(error)) => {
            tracing::warn!(task = %due.name, %error, "an expired Task could not be deleted");
            false
        }
        Err(_) => false,
    }
}

async fn find_expiring(context: &Context, expiry: &Expiry) -> Result<(), kube::Error> {
    let api: Api<Task> = Api::all(context.client.clone());
    for phase in ["Succeeded", "Failed"] {
        let mut params = ListParams::default()
            .limit(PAGE)
            .fields(&format!("status.phase={phase}"));
        loop {
            let page = api.list(&params).await?;
            for task in &page.items {
                let Some(ttl) = task.spec.ttl_seconds_after_finished else {
                    continue;
                };
                let end = task
                    .status
                    .as_ref()
                    .and_then(|status| status.finished_at.as_ref());
                let (Some(namespace), Some(uid)) = (task.namespace(), task.uid()) else {
                    continue;
                };
                let end = end.map_or_else(Timestamp::now, |time| time.0);
                expiry.at(
                    &namespace,
                    &task.name_any(),
                    &uid,
                    end + Duration::from_secs(u64::from(ttl)),
                );
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
    }
    Ok(())
}

/// Deletes what the store has of Tasks that are gone: now, and every hour.
pub(crate) async fn sweep(context: Context) {
    let mut hourly = tokio::time::interval(SWEEP);
    hourly.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.shutdown.cancelled() => return,
            _ = hourly.tick() => {}
        }
        let result = tokio::select! {
            result = sweep_once(&context) => result,
            () = context.shutdown.cancelled() => return,
        };
        match result {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "logs and results of Tasks that are gone were deleted"),
            Err(error) => {
                tracing::warn!(%error, "the result store could not be swept; it is tried again in an hour");
            }
        }
    }
}

async fn sweep_once(context: &Context) -> Result<usize, String> {
    // The store first: a Task is always older than what is stored of it.
    let stored = context
        .store
        .task_uids()
        .await
        .map_err(|error| error.to_string())?;
    if stored.is_empty() {
        return Ok(0);
    }
    let api: Api<Task> = Api::all(context.client.clone());
    let mut there: HashSet<String> = HashSet::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = timeout(DEADLINE, api.list_metadata(&params))
            .await
            .map_err(|_| "the API server does not answer".to_owned())?
            .map_err(|error| error.to_string())?;
        there.extend(page.items.iter().filter_map(ResourceExt::uid));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    let mut deleted = 0;
    for uid in stored.iter().filter(|uid| !there.contains(*uid)) {
        let age = context.store.age(uid).await.map_err(|error| error.to_string())?;
        if age.is_some_and(|age| age > YOUNG) {
            context
                .store
                .delete_task(uid)
                .await
                .map_err(|error| error.to_string())?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

/// Runs both until shutdown.
pub(crate) async fn run(context: Context, expiry: Expiry, due_rx: mpsc::UnboundedReceiver<Due>) {
    futures::future::join(expire(context.clone(), expiry, due_rx), sweep(context)).await;
}
