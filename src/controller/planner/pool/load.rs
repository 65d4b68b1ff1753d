//! What a dispatcher knows of its Pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

/// What one dispatcher knows of its Pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Runs on each Machine, by the Machine's name: runs that are placed and not yet collected.
    pub runs: BTreeMap<String, u32>,
    /// Machines that the dispatcher knows are given up, or change their environment: they get no more runs.
    pub closed: BTreeSet<String>,
    /// Runs that ended and whose results cannot be stored.
    pub unstored: u32,
    /// Tasks that wait.
    pub queued: u32,
    /// Tasks that run.
    pub running: u32,
    /// Items of maps that run: those without an outcome that no machine runs.
    pub queued_items: u32,
    /// Places of each machine; 0 counts as one.
    pub places_each: u32,
    /// Machines of the Task that runs on the most machines at once, as a broadcast does: it fills them all, however many
    /// places they have.
    pub widest: u32,
    /// Since when the Task waits for a start that has waited longest; `None`: none waits.
    pub oldest: Option<Timestamp>,
    /// The work that waits for machines.
    pub demand: Demand,
    /// When how many machines were last of use.
    pub uses: Uses,
}

/// Work that waits for machines, and how long such work lasts. Tasks fill it; any other work that has items adds its
/// places and its backlog here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Places that the work would take at once, on any machine of the Pool.
    pub places: u32,
    /// Of these, the places of further workers of maps that run.
    pub for_maps: u32,
    /// How long one place would take for all items of these maps, as far as is known.
    pub items: Duration,
    /// How long one place would take for all of that work, these items included; `None` where nothing is known of the
    /// Tasks.
    pub backlog: Option<Duration>,
    /// Tasks that wait for certain machines, as broadcasts do: a Pool wakes for them and does not grow.
    pub fixed: u32,
    /// Of these Tasks, the broadcasts: they run on all machines, so none goes while one waits. The others need
    /// machines that `nodes.desired` keeps in any case.
    pub broadcasts: u32,
    /// How long Tasks usually last on one place.
    pub typical: Option<Duration>,
    /// When the work that runs now began, in the median.
    pub running_since: Option<Timestamp>,
}

impl Demand {
    /// Whether any work waits for machines.
    pub const fn waits(&self) -> bool {
        self.places > 0 || self.fixed > 0
    }

    /// Whether work waits for more machines than `nodes.desired` keeps.
    pub const fn keeps_machines(&self) -> bool {
        self.places > 0 || self.broadcasts > 0
    }
}

impl PoolLoad {
    /// Whether the Pool does nothing: no work waits or runs, and each value is collected.
    pub fn is_idle(&self) -> bool {
        !self.demand.waits() && self.unstored == 0 && self.runs.values().all(|runs| *runs == 0)
    }

    /// How many machines its work fills, work that waits included.
    pub fn machines_in_use(&self) -> u32 {
        let filled = self.taken().saturating_add(self.demand.places);
        let machines = filled.div_ceil(self.places_each.max(1));
        machines.max(self.widest).max(u32::from(!self.is_idle()))
    }

    /// Places that are taken by runs, and by values that are not collected.
    pub fn taken(&self) -> u32 {
        self.runs
            .values()
            .fold(0_u32, |all, runs| all.saturating_add(*runs))
    }

    /// Machines that have a run, or a value that is not collected.
    pub fn busy_machines(&self) -> u32 {
        let busy = self.runs.values().filter(|runs| **runs > 0).count();
        u32::try_from(busy).unwrap_or(u32::MAX)
    }

    /// Whether another load says the same, apart from times and from the number of items, which no plan reads.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self {
            runs,
            closed,
            unstored,
            queued,
            running,
            places_each,
            widest,
            demand,
            queued_items: _,
            oldest: _,
            uses: _,
        } = self;
        *runs == other.runs
            && *closed == other.closed
            && (*unstored, *queued, *running) == (other.unstored, other.queued, other.running)
            && (*places_each, *widest) == (other.places_each, other.widest)
            && (demand.places, demand.fixed, demand.broadcasts)
                == (other.demand.places, other.demand.fixed, other.demand.broadcasts)
    }
}

/// Larger numbers of machines are not told apart: no Pool has more.
const MOST_MACHINES: u32 = 512;

/// When how many machines of a Pool were last of use, as far as this process has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Since when the dispatcher's load is known.
    since: Option<Timestamp>,
    /// Machines that are of use now.
    now: u32,
    /// For each larger number of machines: when so many were last of use.
    last: BTreeMap<u32, Timestamp>,
}

impl Uses {
    /// From now on so many machines are of use.
    pub fn note(&mut self, machines: u32, at: Timestamp) {
        let machines = machines.min(MOST_MACHINES);
        self.since.get_or_insert(at);
        if machines > self.now {
            self.last = self.last.split_off(&machines.saturating_add(1));
        } else {
            let fell = machines.saturating_add(1)..=self.now;
            self.last.extend(fell.map(|level| (level, at)));
        }
        self.now = machines;
    }

    /// When so many machines were last of use, if this process has seen that and fewer are now.
    pub fn last_used(&self, machines: u32) -> Option<Timestamp> {
        self.last.get(&machines).copied()
    }

    /// Since when fewer than so many machines are of use; `None`: so many are now, or nothing is known.
    pub fn unused_since(&self, machines: u32) -> Option<Timestamp> {
        if machines <= self.now {
            return None;
        }
        self.last.get(&machines).copied().or(self.since)
    }
}

/// Whether a machine became idle between two loads.
pub fn became_idle(old: &PoolLoad, new: &PoolLoad) -> bool {
    let is_idle = |machine: &String| new.runs.get(machine).copied().unwrap_or(0) == 0;
    let ended = old
        .runs
        .iter()
        .any(|(machine, runs)| *runs > 0 && is_idle(machine));
    ended
        || new
            .closed
            .iter()
            .any(|machine| !old.closed.contains(machine) && is_idle(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_number_of_machines_was_last_of_use_when_the_load_fell_below_it() {
        let mut uses = Uses::default();
        assert_eq!(uses.unused_since(1), None, "nothing is known");
        for (machines, second) in [(0, 1), (3, 10), (2, 20), (1, 30), (2, 40), (0, 50)] {
            uses.note(machines, at(second));
        }
        let unused: Vec<_> = (1..=4).map(|machines| uses.unused_since(machines)).collect();
        assert_eq!(unused, [50, 50, 20, 1].map(|second| Some(at(second))));
        uses.note(2, at(60));
        assert_eq!((uses.unused_since(1), uses.unused_since(2)), (None, None));
        assert_eq!(uses.unused_since(3), Some(at(20)));
    }

    #[test]
    fn a_pool_is_idle_only_when_nothing_waits_runs_or_is_uncollected() {
        let idle = PoolLoad {
            queued: 3,
            ..PoolLoad::default()
        };
        assert!(idle.is_idle(), "Tasks that no machine helps do not count");
        let idle = PoolLoad {
            places_each: 4,
            ..idle
        };
        let mut one = idle.clone();
        one.runs.insert("m".into(), 1);
        let mut fixed = idle.clone();
        fixed.demand.fixed = 1;
        let mut places = idle.clone();
        places.demand.places = 9;
        assert!(places.demand.keeps_machines() && !fixed.demand.keeps_machines());
        fixed.demand.broadcasts = 1;
        assert!(fixed.demand.keeps_machines(), "a broadcast runs on all machines");
        let unstored = PoolLoad { unstored: 1, ..idle };
        for busy in [one, fixed, places.clone(), unstored] {
            assert!(!busy.is_idle() && busy.machines_in_use() >= 1, "{busy:?}");
        }
        assert_eq!(places.machines_in_use(), 3);
        places.places_each = 0;
        assert_eq!(places.machines_in_use(), 9);
        let broadcast = PoolLoad {
            runs: (0..3).map(|machine| (format!("m-{machine}"), 1)).collect(),
            places_each: 4,
            widest: 3,
            ..PoolLoad::default()
        };
        assert_eq!(broadcast.machines_in_use(), 3, "it needs each of its machines");
    }

    #[test]
    fn a_time_or_a_number_of_items_alone_is_no_news() {
        let mut later = PoolLoad::default();
        later.uses.note(0, at(1));
        later.demand.running_since = Some(at(2));
        later.oldest = Some(at(3));
        later.queued_items = 4;
        assert!(later.is_like(&PoolLoad::default()));
        later.demand.places = 1;
        assert!(!later.is_like(&PoolLoad::default()));
    }
}
