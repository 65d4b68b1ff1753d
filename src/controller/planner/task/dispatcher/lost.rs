//! Runs of machines that are gone, and runs that no Task claims.
//!
//! A machine is gone when a fresh list of Machines says so. The outcome of a run may have left it
//! before: with the fact, or into the store under an earlier leader. Only a run without such an
//! outcome is lost, and runs again. But where the machine was killed for want of memory, another
//! attempt would end the same way: the run failed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    Dispatcher, MOST_DISCARDED, NEVER_CLAIMED, UNCLAIMED,
    runs::synthetic,
    state::{Collect, Run, RunStage, has_result_left},
};
use crate::task::{
    message::{ClusterMemory, Effect},
    model::{GRACE, RunId, SlotAttempt},
    run::Ending,
};

impl Dispatcher {
    /// Runs on machines that the cache does not show: look past the cache before believing it.
    pub(super) fn look_for_lost(&mut self, now: Timestamp) {
        for id in self.run_ids(Run::is_starved) {
            self.recall(&id, now);
        }
        let missing = self
            .runs
            .values()
            .any(|run| run.needs_machine() && !run.recalling && !self.machines.contains_key(&run.place));
        if missing && self.viewed && !self.listing && !self.is_held() {
            self.listing = true;
            self.effects.push(Effect::ListMachines);
        }
    }

    pub(super) fn on_machines_listed(&mut self, result: Result<Vec<SlotAttempt>, String>, now: Timestamp) {
        self.listing = false;
        let Ok(there) = result else { return };
        if self.is_held() {
            return;
        }
        let there: BTreeSet<SlotAttempt> = there.into_iter().collect();
        let gone = |run: &Run| {
            run.needs_machine() && !self.machines.contains_key(&run.place) && !there.contains(&run.place)
        };
        for id in self.run_ids(gone) {
            let Some(run) = self.runs.get_mut(&id) else {
                continue;
            };
            match &run.stage {
                _ if run.discard => self.lose(&id, now),
                // The collection under way decides; then the run is looked at again.
                RunStage::Finished(_) if matches!(run.collect, Collect::InFlight) => {}
                // Its outcome has left the machine: it does not run again.
                RunStage::Finished(finished) if has_result_left(finished) => {
                    run.gone = true;
                    run.not_before = None;
                    self.drive(&id, now);
                }
                RunStage::Starting | RunStage::Running | RunStage::Finished(_) => self.recall(&id, now),
                // Its placement may just be written; decided after the answer.
                RunStage::Reserved | RunStage::Lost => {}
            }
        }
    }

    /// The run was on a machine that is gone, and nothing is left of it.
    pub(super) fn lose(&mut self, id: &RunId, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id) {
            run.stage = match &run.out_of_memory {
                Some(why) if run.is_starved() => {
                    // No more facts will come: the agent was killed too.
                    let finished = synthetic(Ending::OutOfMemory, why.to_string(), now);
                    run.not_before = None;
                    RunStage::Finished(Arc::new(finished))
                }
                Some(_) | None => RunStage::Lost,
            };
            run.room = None;
            run.start = None;
            run.let_go_on();
            self.dirty = true;
            self.drive(id, now);
            self.conclude(&id.uid, now);
        }
    }

    /// Runs that no Task has claimed for a while are stopped and forgotten. They then take no room
    /// of the budget for facts, since their machine may never answer; so there are at most
    /// [`MOST_DISCARDED`] of one machine, and further ones wait.
    pub(super) fn drop_unclaimed(&mut self, now: Timestamp) {
        if !self.synced || !self.viewed || self.memory != ClusterMemory::Whole {
            return;
        }
        let gone = |place: &SlotAttempt| !self.machines.contains_key(place);
        let mut discarded: BTreeMap<SlotAttempt, usize> = BTreeMap::new();
        if !self.unclaimed.is_empty() {
            for run in self.runs.values().filter(|run| run.discard) {
                *discarded.entry(run.place).or_default() += 1;
            }
        }
        let old: Vec<RunId> = self
            .unclaimed
            .iter()
            .filter(|(_, run)| gone(&run.place) || now.duration_since(run.since).unsigned_abs() >= UNCLAIMED)
            .map(|(id, _)| id.clone())
            .collect();
        for id in old {
            let Some(unclaimed) = self.unclaimed.get(&id) else {
                continue;
            };
            let count = discarded.entry(unclaimed.place).or_default();
            let is_full = *count >= MOST_DISCARDED;
            let age = now.duration_since(unclaimed.since).unsigned_abs();
            if is_full && age < NEVER_CLAIMED && self.machines.contains_key(&unclaimed.place) {
                continue;
            }
            *count += 1;
            let Some(unclaimed) = self.unclaimed.remove(&id) else {
                continue;
            };
            self.dirty = true;
            let claimed = self.runs.contains_key(&id);
            let Some(machine) = self.machines.get(&unclaimed.place) else {
                continue;
            };
            // A machine that connects anew tells of a dropped run again.
            if claimed || is_full {
                continue;
            }
            let stage = unclaimed.finished.map_or(RunStage::Running, RunStage::Finished);
            let mut run = Run::new(unclaimed.place, machine.name.clone(), stage);
            run.sent = true;
            run.discard();
            run.stop = Some((GRACE, "Unclaimed"));
            self.runs.insert(id.clone(), run);
            self.drive(&id, now);
        }
    }
}
