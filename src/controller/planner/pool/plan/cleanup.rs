//! The Pool is being deleted: its machines first, then its key, then its finalizer.
//!
//! Machines drain by themselves: the dispatcher stops their runs, and a Machine waits
//! for it, at most `timeouts.shutdown` and a little longer. The finalizer goes only when no record
//! is left and the provider lists nothing with the Pool's mark; a list that failed is not an empty
//! one. A Pool that never ordered anything, and one whose Provider is gone (the Machines' own
//! finalizers have decided), goes at once.

use std::{collections::BTreeSet, time::Duration};

use skyward_core::PoolScope;

use super::draft::{Action, Draft, Why};
use crate::{
    events::{self, EventSpec},
    pool::facts::{RemainingMachines, regions_at},
};

pub(crate) fn plan(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    if !seen.pool.finalizer {
        draft.because("nothing of ours holds the Pool");
        return;
    }
    if !seen.machines.is_empty() {
        for machine in seen.machines.iter().filter(|machine| !machine.deleting) {
            draft.give_up(machine, Why::PoolDeleted, false);
        }
        draft.because(format!("{} machines are not gone yet", seen.machines.len()));
        return;
    }
    match &seen.leftovers {
        RemainingMachines::NotAsked => draft.because("nothing was ever ordered"),
        RemainingMachines::NoProvider => draft.because("the Provider is gone, there is nobody to ask"),
        RemainingMachines::Unknown(why) => {
            draft.because(format!("it is not known what the provider still has: {why}"));
            draft.requeue_after(Duration::from_secs(5));
            return;
        }
        RemainingMachines::Known(left) if left.is_empty() => draft.because("the provider has nothing left"),
        RemainingMachines::Known(left) => {
            for (provider, machine) in left {
                let (provider, machine) = (provider.clone(), machine.clone());
                draft.actions.push(Action::DeleteUnrecorded(provider, machine));
            }
            draft.because(format!("the provider still has {} machines", left.len()));
            draft.requeue_after(Duration::from_secs(2));
            return;
        }
    }
    let used: BTreeSet<&String> = seen
        .pool
        .status
        .places
        .iter()
        .map(|place| &place.provider)
        .collect();
    for provider in used {
        draft.actions.push(Action::Release {
            provider: provider.clone(),
            scope: PoolScope {
                cluster: seen.cluster.clone(),
                pool_uid: seen.pool.uid.clone(),
                regions: regions_at(&seen.pool, provider),
            },
        });
    }
    draft.actions.push(Action::DeleteLogs);
    draft.actions.push(Action::ReleaseKey);
    draft.actions.push(Action::RemoveFinalizer);
    draft.events.push(EventSpec::normal(
        events::reason::POOL_DESTROYED,
        "Delete",
        "All machines of the Pool, what they shared and its key are gone",
    ));
}
