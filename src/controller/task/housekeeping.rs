//! Background work: deletes ended Tasks when their ttl has passed, and their logs and results when the retention of
//! these has; sweeps the store of Tasks that are gone, and of bundles that no Task names.

mod bundles;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
    runtime::reflector::ObjectRef,
};
use parking_lot::Mutex;
use skyward_api::{Task, task::Kept};
use skyward_core::clock;
use skyward_planner::{base::time::after, cron::facts::has_on_record, task::model::Uid};
use skyward_store::Store;
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, sleep, timeout},
};

use crate::{
    context::Context,
    deadline::words,
    guard::Guarded,
    metrics::Metrics,
    task::{reclaim, router::PAGE},
};

/// How often the store is swept and ended Tasks, which are not watched, are listed.
const SWEEP: Duration = Duration::from_hours(1);
/// A later look finds a Task that is due later; until then it takes no memory.
const HORIZON: Duration = Duration::from_hours(2);
/// Younger objects may belong to a Task that a list does not show yet.
const YOUNG: Duration = Duration::from_mins(10);
/// Longest sleep while nothing is due.
const IDLE: Duration = Duration::from_hours(1);
/// Between two looks at whether proof of a restore would be known.
const LOOK: Duration = Duration::from_secs(1);
/// What a map keeps stays for so long after it has expired: a user may have asked just before that items run again, and then
/// the log of the map is needed.
const RETRY: Duration = Duration::from_mins(10);
/// Pause after a failure.
const AGAIN: Duration = Duration::from_secs(30);
/// Tasks at which one look at the store may fail: what cannot be deleted of one Task holds up no other one, and a store that is
/// down is not asked for all of them.
const FAILURES: usize = 10;
/// Pause after the Task was changed in between.
const AT_ONCE: Duration = Duration::from_secs(1);

/// An ended Task whose ttl may have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    at: Timestamp,
    uid: Uid,
    namespace: Box<str>,
    name: Box<str>,
}

/// Ended Tasks that may be deleted soon: one entry for each, with its newest time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expiry(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    lines: Mutex<Lines>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    /// Namespace and name, by time.
    due: BTreeMap<(Timestamp, Uid), (Box<str>, Box<str>)>,
    times: HashMap<Uid, Timestamp>,
}

impl Lines {
    fn put(&mut self, due: Due) {
        if let Some(before) = self.times.insert(due.uid.clone(), due.at) {
            self.due.remove(&(before, due.uid.clone()));
        }
        self.due.insert((due.at, due.uid), (due.namespace, due.name));
    }

    /// When the first one is due.
    fn first(&self) -> Option<Timestamp> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn pop(&mut self) -> Option<Due> {
        let ((at, uid), (namespace, name)) = self.due.pop_first()?;
        self.times.remove(&uid);
        Some(Due {
            at,
            uid,
            namespace,
            name,
        })
    }
}

impl Expiry {
    /// from the code that saw a Task end --Due--> to [`expire`].
    pub(crate) fn at(&self, namespace: &str, name: &str, uid: &str, at: Timestamp) {
        self.put(Due {
            at,
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
        });
    }

    fn put(&self, due: Due) {
        if due.at <= after(clock::now(), HORIZON) {
            self.0.lines.lock().put(due);
            self.0.changed.notify_one();
        }
    }

    /// The next due Task; else how long until one is due.
    fn next(&self, now: Timestamp) -> Result<Due, Duration> {
        let mut lines = self.0.lines.lock();
        match lines.first() {
            Some(at) if at <= now => lines.pop().ok_or(IDLE),
            Some(at) => {
                let left = at.as_millisecond() - now.as_millisecond();
                Err(Duration::from_millis(u64::try_from(left).unwrap_or_default()).min(IDLE))
            }
            None => Err(IDLE),
        }
    }
}

/// Deletes ended Tasks when their ttl has passed; begins with Tasks that ended earlier.
async fn expire(context: &Context, expiry: &Expiry) {
    tokio::join!(
        find_all_expiring(context, expiry),
        delete_all_due(context, expiry)
    );
}

async fn delete_all_due(context: &Context, expiry: &Expiry) {
    loop {
        match expiry.next(clock::now()) {
            Ok(mut due) if context.holds.any() || !context.awaited.may_go(&due.namespace, &due.name) => {
                // Nothing is deleted while this cluster may have been restored, and no Task of which another one has
                // yet to learn that it has ended.
                due.at = after(clock::now(), AGAIN);
                expiry.put(due);
            }
            Ok(mut due) => {
                let is_settled = |task: &Task| is_settled(context, task);
                let again = delete(
                    &context.client,
                    &context.store,
                    &context.metrics,
                    &due,
                    is_settled,
                );
                if let Some(at) = again.await {
                    due.at = at;
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

/// Finds Tasks that ended while no controller ran, whose time was far away, or that got a ttl after
/// their end.
async fn find_all_expiring(context: &Context, expiry: &Expiry) {
    let mut pause = AGAIN;
    let mut dropped = Dropped::new();
    loop {
        match find_expiring(&context.client, expiry).await {
            Ok(passed) => {
                pause = AGAIN;
                // Not one after the other: however slow the store is, Tasks with a ttl are looked for in time.
                let dropping = timeout(SWEEP, drop_passed(context, passed, &mut dropped));
                let _ = tokio::join!(dropping, sleep(SWEEP));
            }
            Err(error) => {
                tracing::warn!(%error, "ended Tasks could not be listed, so Tasks with a ttl stay for now; it is tried again");
                sleep(pause).await;
                pause = (pause * 2).min(SWEEP);
            }
        }
    }
}

/// Whether the CronTask that made a Task has that on record: it would make a Task that is gone again.
fn is_settled(context: &Context, task: &Task) -> bool {
    let mut owners = task.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.find(|owner| owner.controller == Some(true) && owner.kind == "CronTask") else {
        return true;
    };
    let cron = ObjectRef::new(&owner.name).within(&task.namespace().unwrap_or_default());
    let cron = context.caches.cron_tasks.get(&cron);
    cron.is_none_or(|cron| has_on_record(&cron, task))
}

/// When an ended Task is to be deleted, by its present spec; `None`: never.
fn time_of(task: &Task) -> Option<Timestamp> {
    let ttl = task.spec.ttl_seconds_after_finished?;
    Some(after(task.ended_at()?, Duration::from_secs(u64::from(ttl))))
}

/// Something of an ended Task whose retention has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Passed {
    uid: Uid,
    namespace: Box<str>,
    name: Box<str>,
    kept: Kept,
    /// When it expired.
    at: Timestamp,
}

/// What was deleted of Tasks that are still there, and when it had expired: to look for it again each hour costs several
/// requests to a bucket for each of these Tasks.
type Dropped = BTreeSet<(Uid, Kept, Timestamp)>;

impl Passed {
    fn key(&self) -> (Uid, Kept, Timestamp) {
        (self.uid.clone(), self.kept, self.at)
    }
}

/// Leaves out what was deleted by an earlier look, and forgets Tasks that are gone or were begun anew.
fn leave_out(passed: &mut Vec<Passed>, dropped: &mut Dropped) {
    let there: Dropped = passed.iter().map(Passed::key).collect();
    dropped.retain(|known| there.contains(known));
    passed.retain(|passed| !dropped.contains(&passed.key()));
}

/// What has expired of a Task, by its present spec.
fn passed(task: &Task, now: Timestamp) -> Vec<Passed> {
    let Some(uid) = &task.metadata.uid else {
        return Vec::new();
    };
    let stays = if task.spec.for_each.is_some() {
        RETRY
    } else {
        Duration::ZERO
    };
    let uid: Uid = uid.as_str().into();
    let all = [Kept::Logs, Kept::Results].into_iter();
    let expiries = all.filter_map(|kept| Some((kept, task.expiry(kept)?)));
    expiries
        .filter(|(_, at)| after(*at, stays) <= now)
        .map(|(kept, at)| Passed {
            uid: uid.clone(),
            namespace: task.namespace().unwrap_or_default().into(),
            name: task.name_any().into(),
            kept,
            at,
        })
        .collect()
}

/// Deletes from the store what has expired. Readers are told already that it has, so this need not be at once; where it
/// fails the next look finds it again.
async fn drop_passed(context: &Context, mut passed: Vec<Passed>, dropped: &mut Dropped) {
    leave_out(&mut passed, dropped);
    if passed.is_empty() {
        return;
    }
    // A Task of a restored cluster may have an end that is not its last one: wait until a restore would be known.
    while !context.remembers_all() {
        sleep(LOOK).await;
    }
    if context.holds.any() {
        return;
    }
    // What a map has yet to read stays, as does all once a restore is found: it is looked at again an hour later.
    let may_go = |one: &Passed| !context.holds.any() && context.awaited.may_go(&one.namespace, &one.name);
    match drop_stored(&context.client, &context.store, &passed, dropped, may_go).await {
        Ok(0) => {}
        Ok(deleted) => tracing::info!(
            deleted,
            "logs and results whose retention has passed were deleted"
        ),
        Err(error) => {
            tracing::warn!(%error, "logs and results whose retention has passed stay for now; it is tried again in an hour");
        }
    }
}

/// Answers of how many Tasks something was deleted, or the first failure.
async fn drop_stored(
    client: &Client,
    store: &Arc<Store>,
    passed: &[Passed],
    dropped: &mut Dropped,
    may_go: impl Fn(&Passed) -> bool,
) -> Result<usize, String> {
    let stored = store.task_uids().await.map_err(|error| error.to_string())?;
    let stored: HashSet<String> = stored.into_iter().collect();
    let (mut deleted, mut failures) = (0, Vec::new());
    for one in passed {
        let any = if stored.contains(&*one.uid) {
            match has_still_passed(client, one).await {
                Ok(true) if may_go(one) => drop_one(store, one).await,
                // What the next look finds of it decides.
                Ok(_) => continue,
                Err(error) => Err(error),
            }
        } else {
            Ok(false)
        };
        match any {
            Ok(any) => {
                deleted += usize::from(any);
                dropped.insert(one.key());
            }
            Err(error) => failures.push(error),
        }
        if failures.len() >= FAILURES {
            break;
        }
    }
    failures.into_iter().next().map_or(Ok(deleted), Err)
}

/// Whether it has expired by what the Task says now. The list of what has expired may be an hour old where the store is slow:
/// a user may have given the Task more time since, and may have its items run again.
async fn has_still_passed(client: &Client, one: &Passed) -> Result<bool, String> {
    let tasks: Api<Guarded<Task>> = Api::namespaced(client.clone(), &one.namespace);
    let task = tasks.get_opt(&one.name).await.map_err(|error| words(&error))?;
    // The sweep deletes what is left of a Task that is gone.
    let task = task.and_then(|task| task.0.ok());
    Ok(task.is_some_and(|task| passed(&task, clock::now()).contains(one)))
}

/// Answers whether there was anything to delete.
async fn drop_one(store: &Arc<Store>, one: &Passed) -> Result<bool, String> {
    let any = match one.kept {
        Kept::Logs => store.drop_logs(&one.uid).await,
        Kept::Results => store.drop_results(&one.uid).await,
    };
    any.map_err(|error| error.to_string())
}

/// Deletes the Task if it is still due and settled. Answers when to look again; `None`: it is gone, or stays.
async fn delete(
    client: &Client,
    store: &Store,
    metrics: &Metrics,
    due: &Due,
    is_settled: impl Fn(&Task) -> bool,
) -> Option<Timestamp> {
    let again = |pause| Some(after(clock::now(), pause));
    let tasks: Api<Guarded<Task>> = Api::namespaced(client.clone(), &due.namespace);
    // A change after its end counts, for example to stay.
    let task = match tasks.get_opt(&due.name).await {
        Ok(task) => task.and_then(|task| task.0.ok())?,
        Err(error) => {
            tracing::warn!(task = %due.name, %error, "an expired Task could not be read");
            return again(AGAIN);
        }
    };
    if task.metadata.uid.as_deref() != Some(&*due.uid) {
        // Another one of that name.
        return None;
    }
    let at = time_of(&task)?;
    if at > clock::now() {
        return Some(at);
    }
    if !is_settled(&task) {
        return again(AGAIN);
    }
    let api: Api<Task> = Api::namespaced(client.clone(), &due.namespace);
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: task.metadata.uid,
        resource_version: task.metadata.resource_version,
    });
    metrics.api_write("Task");
    match api.delete(&due.name, &params).await {
        Ok(_) => {
            if let Err(error) = store.discard(&due.uid).await {
                tracing::warn!(uid = %due.uid, %error, "logs and results of an expired Task stay for now");
            }
            None
        }
        Err(kube::Error::Api(answer)) if answer.code == 404 => None,
        Err(kube::Error::Api(answer)) if answer.code == 409 => again(AT_ONCE),
        Err(error) => {
            tracing::warn!(task = %due.name, %error, "an expired Task could not be deleted");
            again(AGAIN)
        }
    }
}

/// Lists all ended Tasks, a page at a time, and notes the Tasks that are due soon. Answers which of their logs and results
/// have expired.
async fn find_expiring(client: &Client, expiry: &Expiry) -> Result<Vec<Passed>, String> {
    let now = clock::now();
    let mut expired = Vec::new();
    let api: Api<Guarded<Task>> = Api::all(client.clone());
    for phase in ["Succeeded", "Failed"] {
        let mut params = ListParams::default()
            .limit(PAGE)
            .fields(&format!("status.phase={phase}"));
        loop {
            let page = api.list(&params).await.map_err(|error| words(&error))?;
            for task in page.items.iter().filter_map(|task| task.0.as_ref().ok()) {
                expired.extend(passed(task, now));
                let metadata = &task.metadata;
                if let Some(at) = time_of(task)
                    && let Some(namespace) = &metadata.namespace
                    && let Some(name) = &metadata.name
                    && let Some(uid) = &metadata.uid
                {
                    expiry.at(namespace, name, uid, at);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
    }
    Ok(expired)
}

/// Deletes stored logs and results of Tasks that are gone, and bundles that no Task names: now, and every
/// hour.
async fn sweep(context: &Context) {
    let mut hourly = tokio::time::interval(SWEEP);
    hourly.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        hourly.tick().await;
        // A Task that a restored cluster has forgotten is not gone: wait until a restore would be
        // known.
        while !context.remembers_all() {
            sleep(LOOK).await;
        }
        if context.holds.any() {
            continue;
        }
        // The sweep tells which namespace to charge for objects of an older version.
        if let Err(error) = context.store.count().await {
            tracing::warn!(%error, "what is in the result store could not all be counted");
        }
        match sweep_once(context).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "logs and results of Tasks that are gone were deleted"),
            Err(error) => {
                tracing::warn!(%error, "the result store could not be swept; it is tried again in an hour");
            }
        }
        match bundles::sweep(&context.client, &context.store, bundles::KEPT).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "uploaded bundles that no Task names were deleted"),
            Err(error) => {
                tracing::warn!(%error, "uploaded bundles that no Task names stay for now; it is tried again in an hour");
            }
        }
    }
}

async fn sweep_once(context: &Context) -> Result<usize, String> {
    // The store first: a Task is always older than its logs and results.
    let stored = context
        .store
        .task_uids()
        .await
        .map_err(|error| error.to_string())?;
    if stored.is_empty() {
        return Ok(0);
    }
    let there = reclaim::uids(&Api::all(context.client.clone())).await?;
    for (uid, namespace) in there.iter().filter(|(uid, _)| context.store.is_nobodys(uid)) {
        let adopted = context.store.adopt(uid, namespace).await;
        adopted.map_err(|error| error.to_string())?;
    }
    let (mut deleted, mut failures) = (0, Vec::new());
    for uid in stored.iter().filter(|uid| !there.contains_key(*uid)) {
        match delete_gone(&context.store, uid).await {
            Ok(is_deleted) => deleted += usize::from(is_deleted),
            Err(error) => failures.push(error.to_string()),
        }
        if failures.len() >= FAILURES {
            break;
        }
    }
    failures.into_iter().next().map_or(Ok(deleted), Err)
}

/// Deletes what is stored of a Task that is gone, unless it is young; answers whether that was done.
async fn delete_gone(store: &Store, uid: &str) -> Result<bool, skyward_store::Error> {
    let is_old = store.age(uid).await?.is_some_and(|age| age > YOUNG);
    if is_old {
        store.delete_task(uid).await?;
    }
    Ok(is_old)
}

/// Runs both until shutdown.
pub(crate) async fn run(context: Context, expiry: Expiry) {
    let both = async { tokio::join!(expire(&context, &expiry), sweep(&context)) };
    context.shutdown.run_until_cancelled(both).await;
}

#[cfg(test)]
mod tests;
