//! Runs of machines that are gone, and runs that no Task claims.
//!
//! A machine is gone when a fresh list of Machines says so. What its runs came to may have
//! left it before: with the fact, or into the store under an earlier leader. Only a run of
//! which that is not so is lost, and runs again.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use skyward_api::condition::reason;
use skyward_remote::protocol::finished::Ending;

use super::{
    Dispatcher, STORE_AGAIN, UNCLAIMED,
    runs::synthetic,
    state::{Collect, Run, RunStage, has_result_left},
};
use crate::task::{
    message::{CollectError, Collected, Effect},
    model::{GRACE, Place, RunId},
};

impl Dispatcher {
    /// Runs on machines that the cache does not show: look past the cache before believing it.
    pub(super) fn look_for_lost(&mut self) {
        let missing = self
            .runs
            .values()
            .any(|run| run.needs_machine() && !run.recalling && !self.machines.contains_key(&run.place));
        if missing && self.viewed && !self.listing {
            self.listing = true;
            self.effects.push(Effect::ListMachines);
        }
    }

    pub(super) fn on_machines_listed(&mut self, result: Result<Vec<Place>, String>, now: Timestamp) {
        self.listing = false;
        let Ok(there) = result else { return };
        let there: BTreeSet<Place> = there.into_iter().collect();
        let gone = |run: &Run| {
            run.needs_machine() && !self.machines.contains_key(&run.place) && !there.contains(&run.place)
        };
        for id in self.run_ids(gone) {
            let Some(run) = self.runs.get_mut(&id) else {
                continue;
            };
            match &run.stage {
                _ if run.discard => self.lose(&id, now),
                // What is under way decides; then it is looked at again.
                RunStage::Finished(_) if matches!(run.collect, Collect::InFlight) => {}
                // What it came to has left the machine: it does not run again.
                RunStage::Finished(finished) if has_result_left(finished) => {
                    run.gone = true;
                    run.not_before = None;
                    self.drive(&id, now);
                }
                RunStage::Starting | RunStage::Running | RunStage::Finished(_) => self.recall(&id, now),
                // Its placement may just be written; decided when that is known.
                RunStage::Reserved | RunStage::Lost => {}
            }
        }
    }

    /// Its machine is gone: did an earlier leader bring what it came to into the store?
    fn recall(&mut self, id: &RunId, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id)
            && !run.recalling
            && run.not_before.is_none_or(|at| at <= now)
        {
            run.recalling = true;
            self.effects.push(Effect::Recall(id.clone()));
        }
    }

    pub(super) fn on_recalled(
        &mut self,
        id: &RunId,
        result: Result<Option<Box<Collected>>, CollectError>,
        now: Timestamp,
    ) {
        let Some(run) = self.runs.get_mut(id) else { return };
        run.recalling = false;
        let decided = run.discard || !run.needs_machine() || matches!(run.collect, Collect::InFlight);
        match result {
            _ if decided => {}
            Ok(Some(collected)) => {
                let ending = match collected.reason {
                    reason::STOPPED => Ending::Stopped,
                    reason::INTERRUPTED => Ending::MachineRestarted,
                    _ => Ending::Exited,
                };
                run.stage = RunStage::Finished(Arc::new(synthetic(ending, String::new(), now)));
                if run.machine.is_empty() {
                    run.machine = collected.result.machine.as_str().into();
                }
                run.collect = Collect::Done(collected);
                run.let_go_on();
                self.dirty = true;
                self.conclude(&id.uid, now);
            }
            Ok(None) => self.lose(id, now),
            // Not known is not lost.
            Err(error) => {
                run.put_off(STORE_AGAIN, now);
                run.hold_up(error.why(), now);
            }
        }
    }

    /// It was on a machine that is gone, and nothing is left of it.
    fn lose(&mut self, id: &RunId, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id) {
            run.stage = RunStage::Lost;
            run.start = None;
            run.let_go_on();
            self.dirty = true;
            self.drive(id, now);
            self.conclude(&id.uid, now);
        }
    }

    /// Runs that no Task has claimed for a while are stopped and forgotten.
    pub(super) fn drop_unclaimed(&mut self, now: Timestamp) {
        if !self.synced || !self.viewed {
            return;
        }
        let gone = |place: &Place| !self.machines.contains_key(place);
        let old: Vec<RunId> = self
            .unclaimed
            .iter()
            .filter(|(_, run)| gone(&run.place) || now.duration_since(run.since).unsigned_abs() >= UNCLAIMED)
            .map(|(id, _)| id.clone())
            .collect();
        for id in old {
            let Some(unclaimed) = self.unclaimed.remove(&id) else {
                continue;
            };
            self.dirty = true;
            let claimed = self.runs.contains_key(&id);
            let Some(machine) = self.machines.get(&unclaimed.place) else {
                continue;
            };
            if claimed {
                continue;
            }
            let stage = unclaimed.finished.map_or(RunStage::Running, RunStage::Finished);
            let mut run = Run::new(unclaimed.place, machine.name.clone(), stage);
            run.sent = true;
            run.discard = true;
            run.stop = Some((GRACE, "Unclaimed"));
            self.runs.insert(id.clone(), run);
            self.drive(&id, now);
        }
    }
}
