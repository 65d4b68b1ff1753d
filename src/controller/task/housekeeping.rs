//! What nobody waits for: ended Tasks are deleted when their time has come, and the store
//! is swept of Tasks that are gone.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use skyward_api::Task;
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, sleep, timeout},
};

use crate::{context::Context, guard::Guarded, pool::plan::after};

/// Tasks of one page of a list.
const PAGE: u32 = 500;
const DEADLINE: Duration = Duration::from_mins(1);
const SWEEP: Duration = Duration::from_hours(1);
/// What is younger may belong to a Task that a list does not show yet.
const YOUNG: Duration = Duration::from_mins(10);
/// Longest sleep while nothing is due.
const IDLE: Duration = Duration::from_hours(1);
/// Pause after something that failed.
const AGAIN: Duration = Duration::from_secs(30);

/// An ended Task with a time to be deleted at. Ordered by that time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    at: Timestamp,
    namespace: String,
    name: String,
    uid: String,
}

/// Ended Tasks with a time to be deleted at: one line for each, however often it is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expiry(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    due: Mutex<BTreeSet<Due>>,
    changed: Notify,
}

impl Expiry {
    /// from whoever saw a Task end --Due--> to [`expire`].
    pub(crate) fn at(&self, namespace: &str, name: &str, uid: &str, at: Timestamp) {
        self.put(Due {
            at,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        });
    }

    fn put(&self, due: Due) {
        self.lock().insert(due);
        self.0.changed.notify_one();
    }

    /// The next one whose time has come; else how long until then.
    fn next(&self, now: Timestamp) -> Result<Due, Duration> {
        let mut waiting = self.lock();
        match waiting.first() {
            Some(first) if first.at <= now => waiting.pop_first().ok_or(IDLE),
            Some(first) => {
                let left = first.at.as_millisecond() - now.as_millisecond();
                Err(Duration::from_millis(u64::try_from(left).unwrap_or_default()).min(IDLE))
            }
            None => Err(IDLE),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Due>> {
        self.0.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes ended Tasks when their time has come; begins with those that ended earlier.
pub(crate) async fn expire(context: Context, expiry: Expiry) {
    tokio::select! {
        () = async { tokio::join!(find_all_expiring(&context, &expiry), delete_all_due(&context, &expiry)); } => {}
        () = context.shutdown.cancelled() => {}
    }
}

async fn delete_all_due(context: &Context, expiry: &Expiry) {
    loop {
        match expiry.next(Timestamp::now()) {
            Ok(mut due) => {
                if !delete(context, &due).await {
                    due.at = Timestamp::now() + AGAIN;
                    expiry.put(due);
                }
            }
            Err(wait) => tokio::select! {
                () = sleep(wait) => {}
                () = expiry.0.changed.notified() => {}
            },
        }
    }
}

/// Those that ended while no controller was there; tried until they are known.
async fn find_all_expiring(context: &Context, expiry: &Expiry) {
    let mut pause = AGAIN;
    while let Err(error) = find_expiring(context, expiry).await {
        tracing::warn!(%error, "ended Tasks could not be listed, so those with a ttl stay for now; it is tried again");
        sleep(pause).await;
        pause = (pause * 2).min(SWEEP);
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

async fn find_expiring(context: &Context, expiry: &Expiry) -> Result<(), String> {
    let api: Api<Guarded<Task>> = Api::all(context.client.clone());
    for phase in ["Succeeded", "Failed"] {
        let mut params = ListParams::default()
            .limit(PAGE)
            .fields(&format!("status.phase={phase}"));
        loop {
            let page = timeout(DEADLINE, api.list(&params))
                .await
                .map_err(|_| "the API server does not answer".to_owned())?
                .map_err(|error| error.to_string())?;
            for task in page.items.iter().filter_map(|task| task.0.as_ref().ok()) {
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
                    after(end, Duration::from_secs(u64::from(ttl))),
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
pub(crate) async fn run(context: Context, expiry: Expiry) {
    futures::future::join(expire(context.clone(), expiry), sweep(context)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_tasks_come_when_their_time_has_come_and_once_however_often_they_are_told() {
        let expiry = Expiry::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        expiry.at("n", "later", "b", at(20));
        for _ in 0..3 {
            expiry.at("n", "sooner", "a", at(10));
        }
        assert_eq!(expiry.next(at(4)), Err(Duration::from_secs(6)));
        assert_eq!(expiry.next(at(10)).unwrap().uid, "a");
        assert_eq!(expiry.next(at(10)), Err(Duration::from_secs(10)));
        assert_eq!(expiry.next(at(30)).unwrap().uid, "b");
        assert_eq!(expiry.next(at(30)), Err(IDLE));
    }
}
