//! Machines at which the items of a map cannot begin, such as one whose disk is full: their workers end, and none is added
//! there for a pause, which is longer each time. Other machines come first meanwhile. What such an item counts as is
//! decided elsewhere (`planner/map/fitness.rs`), and so is what follows where no machine can begin any (`anew.rs`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use skyward_api::condition::{cut, reason};

use super::{super::Dispatcher, MapState, SAID, Trouble};
use crate::{
    base::time::after,
    task::{
        model::{RunId, SlotAttempt, Uid},
        status::Why,
    },
};

/// A machine that gets no worker of a map for now, or that got none for a while.
#[derive(Debug)]
pub(super) struct Rest {
    /// How often in this attempt.
    times: u32,
    /// Until when; `None`: it is over.
    until: Option<Timestamp>,
    /// Name of the machine.
    machine: String,
    /// How an item ended there last, in words.
    how: String,
}

impl MapState {
    /// Whether a worker, or its machine, gets no item any more.
    pub(super) fn is_unfit(&self, rank: u32, place: SlotAttempt) -> bool {
        self.unfit.contains_key(&rank) || self.rests(place)
    }

    fn rests(&self, place: SlotAttempt) -> bool {
        self.resting.get(&place).is_some_and(|rest| rest.until.is_some())
    }

    /// Machines that get no worker now.
    pub(super) fn resting(&self) -> BTreeSet<SlotAttempt> {
        let all = self.resting.keys().copied();
        all.filter(|place| self.rests(*place)).collect()
    }

    /// What a user has to know of machines that get no worker now.
    pub(super) fn why_machines_rest(&self) -> Option<Why> {
        let rest = self.resting.values().find(|rest| rest.until.is_some())?;
        let message = format!(
            "{}: its items go to other machines, and it is tried again after a pause, which is longer each time. See to \
             what it says, or delete Machine \"{}\" to have another one in its place",
            rest.how, rest.machine
        );
        Some(Why::new(reason::MACHINE_UNFIT, message))
    }
}

impl Dispatcher {
    /// Takes note of workers whose machine cannot begin items. Those of one machine that end together count once.
    pub(super) fn rest_machines(&mut self, uid: &Uid, told: &BTreeMap<u32, Why>, now: Timestamp) {
        let Some((task, attempt, map)) = self.running(uid) else {
            return;
        };
        let policy = self.policy(&task.entry);
        let mut unfit = BTreeMap::new();
        let mut rests: BTreeMap<SlotAttempt, Rest> = BTreeMap::new();
        for (rank, why) in told {
            let run = self.runs.get(&RunId::new(uid, attempt.number, *rank));
            let Some(run) = run.filter(|_| !map.unfit.contains_key(rank)) else {
                continue;
            };
            let (machine, said) = (&run.machine, cut(&why.message, SAID));
            let how = format!(
                "machine \"{machine}\" could not begin items ({}: {said})",
                why.reason
            );
            unfit.insert(*rank, how.clone());
            if map.rests(run.place) {
                continue;
            }
            let times = map.resting.get(&run.place).map_or(0, |rest| rest.times);
            let times = times.saturating_add(1);
            let rest = Rest {
                times,
                until: Some(after(now, policy.pause(times))),
                machine: machine.to_string(),
                how,
            };
            rests.insert(run.place, rest);
        }
        if let Some(map) = self.map_mut(uid) {
            map.unfit.extend(unfit);
            map.resting.extend(rests);
        }
    }

    /// Machines whose pause has passed may get a worker again.
    pub(super) fn wake_machines(&mut self, uid: &Uid, now: Timestamp) {
        let Some(map) = self.map_mut(uid) else { return };
        let mut is_over = false;
        for rest in map.resting.values_mut() {
            if rest.until.is_some_and(|at| at <= now) {
                rest.until = None;
                is_over = true;
            }
        }
        if !is_over {
            return;
        }
        let is_stale = |trouble: &Trouble| trouble.why.reason == reason::MACHINE_UNFIT;
        if map.resting().is_empty() && map.trouble.as_ref().is_some_and(is_stale) {
            map.trouble = None;
        }
        self.dirty = true;
    }
}
