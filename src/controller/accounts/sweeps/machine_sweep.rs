//! Finds machines with our mark and without a record and deletes them, also a second machine of the
//! same record; and wakes Machines whose provider lists news about them.
//!
//! The provider is listed first and our own records are read afterwards: the other way
//! round, a machine ordered in between would look like an orphan. A machine must be seen
//! twice, a settle time apart. A failed list says nothing; where each namespace is listed by
//! itself, only the namespace of the failed list is unknown. A list's evidence about this cluster's
//! own memory is judged first: [`crate::restore`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use skyward_api::provider::AfterRestore;
use skyward_core::{Deletion, MachineRef, ProviderMachine, clock, provider::MarkWriters};
use skyward_planner::{
    accounts::orphans::{Rules, Sightings, is_news, plan},
    base::{key::key_of, time::elapsed},
    events::{self, EventSpec},
    restore::evidence::{self, Remembered, Standing, brake},
};

use super::{each_until_shutdown, listing::Listing, pause, resource_sweep};
use crate::{accounts::clients::Account, base::broadcast::Change, context::Context, deadline::words, keys};

/// Time between two sweeps.
const EVERY: Duration = Duration::from_mins(1);
/// Shortest time between two sightings of an orphan.
const LEAST_SETTLE: Duration = Duration::from_secs(5);
/// Longest wait for a provider's list, and for a deletion to be accepted.
const DEADLINE: Duration = Duration::from_mins(1);

/// Orphans of one account that are deleted at the same time.
const AT_ONCE: usize = 8;

/// Most Pools of strange machines that one sweep looks up. Further machines stay strange: users of
/// a namespace can write any mark on their Pods.
const MOST_TRACED: usize = 200;
/// How long an ended machine of a Pool that is gone counts for the brake.
const LATELY: Duration = Duration::from_hours(1);

/// What is remembered of one Provider between two sweeps.
#[derive(Clone, Debug, Default)]
struct SweepMemory {
    sightings: Sightings,
    /// When machines of Pools that are gone were ended, within the last hour.
    ended: Vec<Timestamp>,
    /// Why it could not be listed; logged once.
    problem: Option<String>,
}

/// Sweeps until shutdown.
pub(crate) async fn run(context: Context) {
    each_until_shutdown(&context, "sweep", |name| keep_swept(&context, name)).await;
}

/// Sweeps one account until it is gone.
async fn keep_swept(context: &Context, name: String) -> String {
    let mut memory = SweepMemory::default();
    while let Some(account) = context.providers.get(&name) {
        let again;
        (memory, again) = sweep_account(context, &name, &account, memory).await;
        // Another account may have orphans from before.
        pause(&context.providers, &name, &account.revision, again).await;
    }
    name
}

async fn sweep_account(
    context: &Context,
    name: &str,
    account: &Account,
    mut memory: SweepMemory,
) -> (SweepMemory, Duration) {
    let mut regions: BTreeSet<String> = context
        .caches
        .machines_at(name)
        .iter()
        .map(|machine| machine.spec.region.clone())
        .collect();
    // A machine that lost its record may be in a region where no machine is recorded any more.
    regions.extend(resource_sweep::regions(context, name));
    let object = context.caches.provider(name);
    let is_gone = object.is_none();
    let scope = context.scope(regions);
    let listing = Listing::ask(account.provider.as_ref(), &scope, DEADLINE).await;
    match listing.problem() {
        Some(problem) => {
            if memory.problem.is_none() {
                tracing::warn!(provider = name, %problem, "machines could not be listed; the sweep skips these until they can");
            }
            memory.problem = Some(problem);
        }
        None if memory.problem.take().is_some() => {
            tracing::info!(provider = name, "machines can be listed again");
        }
        None => {}
    }
    if listing.says_nothing() {
        return (memory, EVERY);
    }
    // Read after the list, so that machines recorded meanwhile are known too.
    let records = context.caches.machines.state();
    let read = records.iter().filter_map(|machine| {
        let id = machine.status.as_ref().map(|status| status.id.clone());
        Some((machine.uid()?, id.unwrap_or_default()))
    });
    let unread = context.caches.unreadable.all();
    let mut remembered = Remembered {
        records: unread
            .into_iter()
            .map(|uid| (uid, String::new()))
            .chain(read)
            .collect(),
        attempts: records
            .iter()
            .filter_map(|machine| {
                let attempt = (machine.spec.pool_uid.clone(), machine.spec.attempt);
                Some((attempt, machine.uid()?))
            })
            .collect(),
        recorded: listing
            .machines
            .iter()
            .map(|machine| &machine.mark.machine_uid)
            .filter(|uid| context.fleet.was_recorded(uid))
            .cloned()
            .collect(),
        pools: counted(context, name),
        had: BTreeSet::new(),
    };
    wake_changed(context, name, &listing);
    if let Err(problem) = trace_pools(context, name, &listing.machines, &mut remembered).await {
        tracing::warn!(
            provider = name,
            problem,
            "whether this cluster had the Pools of some machines is not known; the next sweep tries again"
        );
        return (memory, EVERY);
    }
    let decision = object
        .as_ref()
        .and_then(|object| object.status.as_ref()?.after_restore.as_ref());
    let writers = account.provider.capabilities().mark_writers;
    let settle = account.provider.capabilities().settle_time.max(LEAST_SETTLE);
    let now = clock::now();
    memory.ended.retain(|at| elapsed(*at, now) < LATELY);
    let rules = Rules {
        marks_prove: evidence::is_proof(writers),
        strange_end: writers == MarkWriters::Namespaces,
        held: context.holds.is_held(name),
        decision,
        ended_lately: memory.ended.len(),
    };
    let plan = plan(
        &context.cluster,
        &listing.machines,
        &remembered,
        &rules,
        &memory.sightings,
        settle,
        now,
    );
    memory.ended.extend(std::iter::repeat_n(
        now,
        plan.forgotten.min(brake(plan.evidence.listed)),
    ));
    let is_there = |id: &String| plan.watch.contains(id) || plan.strange.contains(id);
    memory.sightings.retain(|id, _| is_there(id));
    let mut again = EVERY;
    for id in &plan.watch {
        memory.sightings.entry(id.clone()).or_insert(now);
        again = again.min(settle + Duration::from_millis(500));
    }
    let is_clean = listing.problem().is_none() && plan.evidence.orphans.is_empty() && plan.delete.is_empty();
    if context.holds.listed(name, plan.evidence) {
        // Pools that waited for the list record their Machines now.
        context.feed.publish(&Change::Provider(name.to_owned()));
    }
    stream::iter(plan.delete)
        .for_each_concurrent(AT_ONCE, |machine| {
            // A person's decision passes the gate; a hold that began meanwhile stops other ends.
            let id = machine.id.as_deref().unwrap_or_default();
            let is_decided = decision.is_some_and(|decision| decision.about(id) == Some(AfterRestore::End));
            let client = if is_decided {
                &account.ungated
            } else {
                &account.provider
            };
            delete_orphan(context, name, client, machine)
        })
        .await;
    if is_gone && is_clean && context.fleet.used(name, "").total == 0 {
        // The Provider was removed by force, and its last machine, not merely its last record, is
        // gone.
        context.providers.remove(name);
    }
    (memory, again)
}

/// The last attempt of each Pool when this process began to lead, by the Pool's UID, as far as it says something
/// about machines at that Provider.
fn counted(context: &Context, provider: &str) -> BTreeMap<String, u32> {
    let pools = context.caches.pools.state();
    let uids = pools.iter().filter_map(|pool| pool.uid());
    uids.map(|uid| {
        let last = context.holds.counted_before(provider, &uid);
        (uid, last)
    })
    .collect()
}

/// Looks up, without any cache, whether this cluster had the Pools of machines that look strange.
/// A Pool's key is made before its first order and deleted after its last machine.
async fn trace_pools(
    context: &Context,
    provider: &str,
    listed: &[ProviderMachine],
    remembered: &mut Remembered,
) -> Result<(), String> {
    let strange: BTreeSet<(String, String, String)> = evidence::orphans(&context.cluster, listed, remembered)
        .filter(|(_, standing)| *standing == Standing::Strange)
        .map(|(machine, _)| {
            let mark = &machine.mark;
            (mark.pool_uid.clone(), mark.namespace.clone(), mark.pool.clone())
        })
        .collect();
    for (uid, namespace, name) in strange.into_iter().take(MOST_TRACED) {
        if context.holds.remembers(&uid) {
            remembered.had.insert(uid);
            continue;
        }
        let key = keys::get(&context.client, &context.config.namespace, &uid);
        match key.await {
            Ok(None) => {}
            // A damaged key is a trace as well.
            Ok(Some(_)) | Err(keys::Error::Damaged(..)) => {
                context.holds.had(&uid);
                remembered.had.insert(uid.clone());
            }
            Err(error) => return Err(error.to_string()),
        }
        // A mark that is the name of its machine tells no name of its Pool: its key alone is a trace.
        if namespace.is_empty() || name.is_empty() {
            continue;
        }
        let pools: kube::Api<skyward_api::Pool> = kube::Api::namespaced(context.client.clone(), &namespace);
        let pool = pools.get_opt(&name).await.map_err(|error| words(&error))?;
        let is_it = pool.is_some_and(|pool| pool.uid().as_deref() == Some(uid.as_str()));
        let last = is_it.then(|| context.holds.counted_before(provider, &uid));
        remembered.pools.extend(last.map(|last| (uid, last)));
    }
    Ok(())
}

/// Wakes Machines about which the list has news, for their own reconcile to judge.
fn wake_changed(context: &Context, provider: &str, listing: &Listing) {
    for machine in context.caches.machines.state() {
        let is_told_of = machine
            .namespace()
            .is_some_and(|namespace| listing.covers(&namespace));
        if machine.spec.provider == provider && is_told_of && is_news(&machine, &listing.machines) {
            context.machine_wakeups.enqueue(key_of(machine.as_ref()));
        }
    }
}

async fn delete_orphan(
    context: &Context,
    provider: &str,
    client: &std::sync::Arc<dyn skyward_core::Provider>,
    machine: MachineRef,
) {
    let mark = &machine.mark;
    // A mark that is the name of its machine has no room for other names.
    let (name, pool) = if mark.machine.is_empty() {
        (mark.machine_uid.clone(), mark.pool_uid.clone())
    } else {
        (mark.machine.clone(), format!("{}/{}", mark.namespace, mark.pool))
    };
    let what = format!(
        "Machine \"{name}\" of Pool \"{pool}\" (id {}) had no record any more and was deleted",
        machine.id.as_deref().unwrap_or_default()
    );
    match client.delete(&machine).await {
        Ok(Deletion::Foreign) => {
            tracing::warn!(
                provider,
                id = machine.id,
                "what was listed as an orphan carries another mark by now and is left alone"
            );
        }
        Ok(Deletion::Gone | Deletion::InProgress) => {
            tracing::warn!(provider, "{what}");
            context.metrics.orphan_deleted();
            let about = context.provider_reference(provider);
            context.events.publish(
                &about,
                EventSpec::warning(events::reason::ORPHAN_DELETED, "Sweep", what),
            );
        }
        Err(error) => {
            tracing::warn!(provider, %error, "an orphan could not be deleted; the next sweep tries again");
        }
    }
}
