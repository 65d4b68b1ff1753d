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
    state::{Collect, Run, RunStage, Stage, Unclaimed, has_result_left},
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
        let missing = self.runs.values().any(|run| {
            let matters = (run.needs_machine() && !run.recalling) || run.keeps_items();
            matters && !self.machines.contains_key(&run.place)
        });
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
        self.lose_items(&there, now);
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
        let placed = self.tasks.get(&id.uid).and_then(|task| match &task.stage {
            Stage::Running(attempt) => Some(attempt.started_at),
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => None,
        });
        if let Some(run) = self.runs.get_mut(id) {
            run.lost_at = Some(now);
            run.stage = match &run.out_of_memory {
                Some(why) if run.is_starved() => {
                    // No more facts will come: the agent was killed too.
                    let mut finished = synthetic(Ending::OutOfMemory, why.to_string(), now);
                    // When it began, nobody knows any more.
                    if let Some(placed) = run.placed_at.or(placed) {
                        finished.started_ms = u64::try_from(placed.as_millisecond()).unwrap_or_default();
                    }
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
        let old: Vec<(RunId, SlotAttempt)> = self
            .unclaimed
            .iter()
            .filter(|((_, place), run)| {
                gone(place) || now.duration_since(run.since).unsigned_abs() >= UNCLAIMED
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in old {
            let (id, place) = &key;
            let Some(unclaimed) = self.unclaimed.get_mut(&key) else {
                continue;
            };
            let Some(machine) = self.machines.get(place).map(|machine| machine.name.clone()) else {
                self.unclaimed.remove(&key);
                self.dirty = true;
                continue;
            };
            let elsewhere = self.runs.get(id).filter(|run| run.place != *place);
            // Only one machine has the run of a Task, and one after the other stops and forgets it.
            if elsewhere.is_some_and(|run| !run.discard || run.forgetting || run.start.is_some()) {
                unclaimed.wait(now);
                continue;
            }
            let count = discarded.entry(*place).or_default();
            let is_full = *count >= MOST_DISCARDED;
            let age = now.duration_since(unclaimed.since).unsigned_abs();
            if is_full && age < NEVER_CLAIMED {
                continue;
            }
            *count += 1;
            let Some(unclaimed) = self.unclaimed.remove(&key) else {
                continue;
            };
            self.dirty = true;
            let claimed = self.runs.get(id).is_some_and(|run| run.place == *place);
            // A machine that connects anew tells of a dropped run again.
            if claimed || is_full {
                continue;
            }
            let stage = unclaimed.finished.map_or(RunStage::Running, RunStage::Finished);
            let mut run = Run::new(*place, machine, stage);
            run.sent = true;
            run.discard();
            run.stop = Some((GRACE, "Unclaimed"));
            if let Some(other) = self.runs.insert(id.clone(), run) {
                // That machine may never answer: it has its turn again later.
                let waiting = Unclaimed::of(&other, now);
                self.unclaimed.insert((id.clone(), other.place), waiting);
            }
            self.drive(id, now);
        }
    }

    /// Runs that agents told of, and of which nothing else is known there, with their places.
    pub(super) fn unknown(&self) -> impl Iterator<Item = (SlotAttempt, &Unclaimed)> {
        let is_unknown =
            |(id, place): &(RunId, SlotAttempt)| self.runs.get(id).is_none_or(|known| known.place != *place);
        self.unclaimed
            .iter()
            .filter(move |(key, _)| is_unknown(key))
            .map(|((_, place), unclaimed)| (*place, unclaimed))
    }
}
