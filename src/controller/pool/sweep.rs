//! Finds machines that carry our mark and belong to nothing, and deletes them, also a second
//! one of the same record; and wakes Machines of which their provider lists something else
//! than is on record.
//!
//! The provider is listed first and our own records are read afterwards: the other way
//! round, a machine ordered in between would look like an orphan. A machine must be seen
//! twice, a settle time apart. A list that failed says nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};
use skyward_api::{Machine, MachinePhase, Provider as ProviderObject};
use skyward_core::{MachineRef, ProviderMachine, ProviderPhase, Scope};
use tokio::time::timeout;

use super::{accounts, leftover_sweep, plan::elapsed};
use crate::{
    context::{Account, Context},
    events::{self, EventSpec},
    runtime::key_of,
};

/// Time between two sweeps.
const EVERY: Duration = Duration::from_mins(1);
/// Shortest time between two sightings of an orphan.
const LEAST_SETTLE: Duration = Duration::from_secs(5);
/// Longest wait for a provider's list, and for a deletion to be accepted.
const DEADLINE: Duration = Duration::from_mins(1);

/// Orphans of one account that are deleted at the same time.
const AT_ONCE: usize = 8;

/// When each orphan of one Provider was first seen, by the provider's id.
pub(crate) type Sightings = BTreeMap<String, Timestamp>;

/// Records, by their UIDs: the provider's id of each, `""` while it has none.
pub(crate) type Records = BTreeMap<String, String>;

/// What is remembered of one Provider between two sweeps.
#[derive(Clone, Debug, Default)]
struct Memory {
    sightings: Sightings,
    /// Why it could not be listed; said once.
    problem: Option<String>,
}

/// What to do about the machines of one Provider.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Seen long enough: to be deleted.
    pub(crate) delete: Vec<MachineRef>,
    /// Seen, but not long enough.
    pub(crate) watch: BTreeSet<String>,
}

/// Decides, for the complete list of one Provider.
pub(crate) fn plan(
    cluster: &str,
    listed: &[ProviderMachine],
    known: &Records,
    sightings: &Sightings,
    settle: Duration,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    for machine in listed {
        let ours = machine.mark.cluster == cluster;
        let on_its_way_out = machine.phase == ProviderPhase::Stopping;
        // A record without id may be of any machine that carries its mark.
        let has_record = known
            .get(&machine.mark.machine_uid)
            .is_some_and(|id| id.is_empty() || *id == machine.id);
        if !ours || on_its_way_out || has_record {
            continue;
        }
        let first = sightings.get(&machine.id);
        if first.is_some_and(|first| elapsed(*first, now) >= settle) {
            plan.delete.push(MachineRef {
                id: Some(machine.id.clone()),
                mark: machine.mark.clone(),
                region: machine.rental.region.clone().unwrap_or_default(),
            });
        } else {
            plan.watch.insert(machine.id.clone());
        }
    }
    plan
}

/// Sweeps until shutdown.
pub(super) async fn run(context: Context) {
    accounts::each_until_shutdown(&context, |name| keep_swept(&context, name)).await;
}

/// Sweeps one account until it is gone.
async fn keep_swept(context: &Context, name: String) -> String {
    let mut memory = Memory::default();
    while let Some(account) = context.providers.get(&name) {
        let again;
        (memory, again) = sweep_account(context, &name, &account, memory).await;
        // Another account may have orphans from before.
        accounts::pause(&context.providers, &name, &account.origin, again).await;
    }
    name
}

async fn sweep_account(
    context: &Context,
    name: &str,
    account: &Account,
    mut memory: Memory,
) -> (Memory, Duration) {
    let mut regions: BTreeSet<String> = context
        .caches
        .machines
        .state_filter(|machine| machine.spec.provider == name)
        .iter()
        .map(|machine| machine.spec.region.clone())
        .collect();
    // What lost its record may stand where nothing is recorded any more.
    regions.extend(leftover_sweep::regions(context, name));
    let is_gone = context
        .caches
        .providers
        .get(&ObjectRef::<ProviderObject>::new(name))
        .is_none();
    let scope = Scope {
        cluster: context.cluster.clone(),
        pool_uid: None,
        regions: regions.into_iter().collect(),
    };
    let listed = match timeout(DEADLINE, account.provider.list(&scope)).await {
        Ok(Ok(listed)) => Ok(listed),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    };
    let listed = match listed {
        Ok(listed) => listed,
        Err(problem) => {
            if memory.problem.is_none() {
                tracing::warn!(provider = name, %problem, "machines could not be listed; the sweep skips this Provider until they can");
            }
            memory.problem = Some(problem);
            return (memory, EVERY);
        }
    };
    if memory.problem.take().is_some() {
        tracing::info!(provider = name, "machines can be listed again");
    }
    // Only now, after the list: what was recorded meanwhile is known too.
    let records = context.caches.machines.state();
    let read = records.iter().filter_map(|machine| {
        let id = machine.status.as_ref().map(|status| status.id.clone());
        Some((machine.uid()?, id.unwrap_or_default()))
    });
    let unread = context.caches.unreadable.all();
    let known: Records = unread
        .into_iter()
        .map(|uid| (uid, String::new()))
        .chain(read)
        .collect();
    wake_changed(context, name, &listed);
    let settle = account.provider.capabilities().settle_time.max(LEAST_SETTLE);
    let now = Timestamp::now();
    let plan = plan(&context.cluster, &listed, &known, &memory.sightings, settle, now);
    memory.sightings.retain(|id, _| plan.watch.contains(id));
    let mut again = EVERY;
    for id in &plan.watch {
        memory.sightings.entry(id.clone()).or_insert(now);
        again = again.min(settle + Duration::from_millis(500));
    }
    let is_clean = plan.watch.is_empty() && plan.delete.is_empty();
    stream::iter(plan.delete)
        .for_each_concurrent(AT_ONCE, |machine| {
            delete_orphan(context, name, &account.provider, machine)
        })
        .await;
    if is_gone && is_clean && context.fleet.used(name, "").total == 0 {
        // Its Provider was removed by force; its last machine is gone since, and not merely
        // its last record.
        context.providers.remove(name);
    }
    (memory, again)
}

/// Machines of which the list tells what is not on record: their own reconcile finds out.
fn wake_changed(context: &Context, provider: &str, listed: &[ProviderMachine]) {
    for machine in context.caches.machines.state() {
        if machine.spec.provider == provider && is_news(&machine, listed) {
            context.machine_wakeups.wake(key_of(machine.as_ref()));
        }
    }
}

/// Whether a list tells something of a Machine that is not on record: it is missing, it runs
/// no more, or it will be taken back. One that is Ready is looked at for nothing else.
pub(crate) fn is_news(machine: &Machine, listed: &[ProviderMachine]) -> bool {
    let status = machine.status.as_ref();
    let uid = machine.uid().unwrap_or_default();
    let Some(status) = status.filter(|status| !status.id.is_empty()) else {
        return false;
    };
    let shown = listed.iter().find(|listed| listed.mark.machine_uid == uid);
    shown.is_none_or(|shown| {
        let halted = status.phase == Some(MachinePhase::Ready) && shown.phase != ProviderPhase::Running;
        let reclaimed = status.reclaim_at.is_none() && shown.rental.reclaim_at.is_some();
        halted || reclaimed
    })
}

async fn delete_orphan(
    context: &Context,
    provider: &str,
    client: &std::sync::Arc<dyn skyward_core::Provider>,
    machine: MachineRef,
) {
    let what = format!(
        "Machine \"{}\" of Pool \"{}/{}\" (id {}) had no record any more and was deleted",
        machine.mark.machine,
        machine.mark.namespace,
        machine.mark.pool,
        machine.id.as_deref().unwrap_or_default()
    );
    match timeout(DEADLINE, client.delete(&machine)).await {
        Ok(Ok(_)) => {
            tracing::warn!(provider, "{what}");
            context.metrics.orphan_deleted();
            let about = context
                .caches
                .providers
                .get(&ObjectRef::<ProviderObject>::new(provider))
                .map_or_else(
                    || ObjectReference {
                        kind: Some("Provider".into()),
                        name: Some(provider.into()),
                        ..Default::default()
                    },
                    |object| object.object_ref(&()),
                );
            context.events.publish(
                &about,
                EventSpec::warning(events::reason::ORPHAN_DELETED, "Sweep", what),
            );
        }
        Ok(Err(error)) => {
            tracing::warn!(provider, %error, "an orphan could not be deleted; the next sweep tries again");
        }
        Err(_) => tracing::warn!(
            provider,
            "an orphan was not deleted in time; the next sweep tries again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use skyward_core::Mark;

    use super::*;

    const SETTLE: Duration = Duration::from_secs(10);

    fn machine(id: &str, cluster: &str, phase: ProviderPhase) -> ProviderMachine {
        ProviderMachine {
            id: id.into(),
            mark: Mark {
                cluster: cluster.into(),
                namespace: "team".into(),
                pool: "train".into(),
                pool_uid: "p".into(),
                machine: format!("m-{id}"),
                machine_uid: format!("uid-{id}"),
                slot: 0,
                attempt: 1,
            },
            phase,
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: skyward_core::machine::Rental::default(),
        }
    }

    #[test]
    fn a_ready_machine_is_looked_at_when_the_list_tells_what_is_not_on_record() {
        let record = |phase: &str, reclaim_at: Option<&str>| -> Machine {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "m-1", "uid": "uid-1" },
                "spec": {
                    "pool": "p", "poolUid": "p", "slot": 0, "attempt": 1, "provider": "a", "offer": "o", "instanceType": "x",
                    "market": "Spot", "hourlyPrice": "1", "token": "t", "templateHash": "h"
                },
                "status": { "id": "1", "phase": phase, "reclaimAt": reclaim_at }
            }))
            .unwrap()
        };
        let ready = record("Ready", None);
        let runs = machine("1", "here", ProviderPhase::Running);
        assert!(!is_news(&ready, std::slice::from_ref(&runs)));
        assert!(is_news(&ready, &[]), "it is missing");
        let halted = machine("1", "here", ProviderPhase::Stopped("exited".into()));
        assert!(is_news(&ready, &[halted]));
        let mut taken = runs;
        taken.rental.reclaim_at = Some("2026-01-01T00:02:00Z".parse().unwrap());
        assert!(is_news(&ready, std::slice::from_ref(&taken)));
        let told = record("Ready", Some("2026-01-01T00:02:00Z"));
        assert!(!is_news(&told, &[taken]), "that is known");
        let boots = machine("1", "here", ProviderPhase::Starting(None));
        assert!(
            !is_news(&record("Accepted", None), &[boots]),
            "it looks by itself"
        );
    }

    fn decide(
        listed: &[ProviderMachine],
        known: &[(&str, &str)],
        sightings: &Sightings,
        second: i64,
    ) -> Plan {
        let known = known
            .iter()
            .map(|&(uid, id)| (uid.to_owned(), id.to_owned()))
            .collect();
        let now = Timestamp::from_second(second).unwrap();
        plan("here", listed, &known, sightings, SETTLE, now)
    }

    #[test]
    fn an_orphan_is_deleted_at_its_second_sighting_a_settle_time_later() {
        let listed = [machine("a", "here", ProviderPhase::Running)];
        assert_eq!(
            decide(&listed, &[], &Sightings::new(), 0).watch,
            BTreeSet::from(["a".to_owned()])
        );
        let seen = Sightings::from([("a".to_owned(), Timestamp::UNIX_EPOCH)]);
        assert!(decide(&listed, &[], &seen, 9).delete.is_empty());
        assert_eq!(decide(&listed, &[], &seen, 10).delete.len(), 1);
    }

    #[test]
    fn what_is_recorded_or_foreign_or_stopping_is_left_alone() {
        let listed = [
            machine("a", "here", ProviderPhase::Running),
            machine("b", "elsewhere", ProviderPhase::Running),
            machine("c", "here", ProviderPhase::Stopping),
        ];
        let seen = ["a", "b", "c"]
            .map(|id| (id.to_owned(), Timestamp::UNIX_EPOCH))
            .into();
        assert_eq!(decide(&listed, &[("uid-a", "a")], &seen, 100), Plan::default());
    }

    #[test]
    fn the_second_machine_of_one_record_is_deleted_once_it_is_known_which_is_the_first() {
        let mut double = machine("b", "here", ProviderPhase::Running);
        double.mark = machine("a", "here", ProviderPhase::Running).mark;
        let listed = [machine("a", "here", ProviderPhase::Running), double];
        let seen = Sightings::from([("b".to_owned(), Timestamp::UNIX_EPOCH)]);
        let ids = |plan: Plan| {
            plan.delete
                .into_iter()
                .filter_map(|machine| machine.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(decide(&listed, &[("uid-a", "a")], &seen, 100)), ["b"]);
        assert_eq!(decide(&listed, &[("uid-a", "")], &seen, 100), Plan::default());
    }
}
