//! Which machines a Task gets: pure, over the free places of one moment.
//!
//! Tasks are placed one after the other in the order of the queue. A Task that must wait for places
//! on certain machines (`All`, or a rank) reserves the free ones, so that Tasks behind it cannot
//! take them one by one and starve it.

use std::collections::{BTreeMap, BTreeSet};

use skyward_api::{MAX_RANKS, task::Placement};

use crate::task::model::SlotAttempt;

/// A machine that takes runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which.
    pub place: SlotAttempt,
    /// Runs that it can still take.
    pub free: u32,
    /// Runs that it has.
    pub used: u32,
    /// A number of the environment that its runs find: equal ones are the same.
    pub environment: usize,
}

/// Why a Task must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Every suitable place is taken.
    NoPlace,
    /// Fewer machines take runs than it needs.
    FewMachines {
        /// How many take runs.
        ready: u32,
        /// How many it needs.
        wanted: u32,
    },
    /// Machines that take runs have different environments: the Pool's image changed.
    Environments {
        /// How many have the one that most have.
        newest: u32,
        /// How many take runs.
        ready: u32,
    },
    /// The Pool never has a machine of that rank.
    OutOfRange,
    /// It has more processes on each machine than a machine has places.
    FewPlaces {
        /// The processes.
        processes: u32,
    },
    /// It would have more ranks than a Task may have.
    ManyRanks {
        /// How many machines take runs.
        ready: u32,
        /// Its processes on each of them.
        processes: u32,
    },
}

/// Gives out the places of one moment.
#[derive(Debug)]
pub struct Planner {
    // In order of slots: the index is the rank.
    rooms: Vec<Room>,
    size: Size,
    last: Option<SlotAttempt>,
}

/// How large a Pool is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Machines that it wants.
    pub desired: u32,
    /// Machines with which broadcasts start.
    pub min: u32,
    /// Places of each machine.
    pub concurrency: u32,
}

impl Planner {
    /// A planner over the machines that take runs; `last` got the newest single run.
    pub fn new(mut rooms: Vec<Room>, size: Size, last: Option<SlotAttempt>) -> Self {
        rooms.sort_unstable_by_key(|room| room.place);
        // While a slot's machine is being replaced there may be two of it: the newer counts.
        let mut newest: Vec<Room> = Vec::with_capacity(rooms.len());
        for room in rooms {
            match newest.last_mut() {
                Some(before) if before.place.slot == room.place.slot => *before = room,
                _ => newest.push(room),
            }
        }
        Self {
            rooms: newest,
            size,
            last,
        }
    }

    /// Whether nothing is left for anybody.
    pub fn is_exhausted(&self) -> bool {
        self.rooms.iter().all(|room| room.free == 0)
    }

    /// Machine that got the newest single run.
    pub const fn last(&self) -> Option<SlotAttempt> {
        self.last
    }

    /// The machines of the ranks 0, 1, …, or why it must wait.
    pub fn place(&mut self, placement: Placement) -> Result<Vec<SlotAttempt>, Wait> {
        match placement {
            Placement::One => self.one(&BTreeSet::new()),
            Placement::All(processes) => self.all(processes),
            Placement::Rank(rank) => self.rank(rank),
        }
    }

    /// The machine of the first rank, if there is room for the Task now; nothing is given out.
    pub fn first(&self, placement: Placement) -> Result<SlotAttempt, Wait> {
        let mut trial = Self {
            rooms: self.rooms.clone(),
            ..*self
        };
        let places = trial.place(placement)?;
        places.first().copied().ok_or(Wait::NoPlace)
    }

    /// The machines of so many single runs, or of as many as there is room for, without some machines.
    pub fn some(&mut self, wanted: u32, without: &BTreeSet<SlotAttempt>) -> Vec<SlotAttempt> {
        let found = (0..wanted).map_while(|_| self.one(without).ok());
        found.flatten().collect()
    }

    /// Reserves room for a Task that is about to be placed.
    pub fn hold(&mut self, placement: Placement) {
        let last = self.last;
        let _ = self.place(placement);
        self.last = last;
    }

    /// Least loaded; among equals the next one after the last.
    fn one(&mut self, without: &BTreeSet<SlotAttempt>) -> Result<Vec<SlotAttempt>, Wait> {
        if self.rooms.is_empty() {
            return Err(Wait::FewMachines { ready: 0, wanted: 1 });
        }
        let last = self.last;
        let room = self
            .rooms
            .iter_mut()
            .filter(|room| room.free > 0 && !without.contains(&room.place))
            .min_by_key(|room| (room.used, last.is_some_and(|last| room.place <= last), room.place))
            .ok_or(Wait::NoPlace)?;
        room.free -= 1;
        room.used += 1;
        let place = room.place;
        self.last = Some(place);
        Ok(vec![place])
    }

    /// The ranks of one machine follow each other.
    fn all(&mut self, processes: u32) -> Result<Vec<SlotAttempt>, Wait> {
        let ready = self.rooms.len() as u32;
        let min = self.size.min.max(1);
        if ready < min {
            return Err(Wait::FewMachines { ready, wanted: min });
        }
        // Nothing is reserved for what cannot start before a person changes something.
        if processes > self.size.concurrency {
            return Err(Wait::FewPlaces { processes });
        }
        if ready.saturating_mul(processes) > MAX_RANKS {
            return Err(Wait::ManyRanks { ready, processes });
        }
        // Nothing is reserved: machines change only when they are idle, so others may use them meanwhile.
        let newest = self.most_alike();
        if newest < ready {
            return Err(Wait::Environments { newest, ready });
        }
        let complete = self.rooms.iter().all(|room| room.free >= processes);
        // Reserved for the Task even if it cannot start now.
        for room in &mut self.rooms {
            room.free = room.free.saturating_sub(processes);
            room.used += if complete { processes } else { 0 };
        }
        if complete {
            let each = |room: &Room| std::iter::repeat_n(room.place, processes as usize);
            Ok(self.rooms.iter().flat_map(each).collect())
        } else {
            Err(Wait::NoPlace)
        }
    }

    /// How many machines have the same environment at most.
    fn most_alike(&self) -> u32 {
        let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
        for room in &self.rooms {
            *counts.entry(room.environment).or_default() += 1;
        }
        counts.into_values().max().unwrap_or_default()
    }

    fn rank(&mut self, rank: u32) -> Result<Vec<SlotAttempt>, Wait> {
        if rank >= self.size.desired {
            return Err(Wait::OutOfRange);
        }
        // Not before the Pool has its minimum: while it comes up, the lowest slot may be the
        // last to be Ready, and the head would be whichever machine was first.
        let ready = self.rooms.len() as u32;
        let wanted = self.size.min.max(rank + 1);
        let few = Wait::FewMachines { ready, wanted };
        if ready < wanted {
            return Err(few);
        }
        let room = usize::try_from(rank)
            .ok()
            .and_then(|rank| self.rooms.get_mut(rank))
            .ok_or(few)?;
        if room.free == 0 {
            return Err(Wait::NoPlace);
        }
        room.free -= 1;
        room.used += 1;
        Ok(vec![room.place])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rooms(free: &[u32]) -> Vec<Room> {
        free.iter()
            .enumerate()
            .map(|(slot, free)| Room {
                place: SlotAttempt {
                    slot: slot as u32,
                    attempt: 1,
                },
                free: *free,
                used: 4 - free,
                environment: 0,
            })
            .collect()
    }

    fn of(desired: u32, min: u32) -> Size {
        Size {
            desired,
            min,
            concurrency: 4,
        }
    }

    fn planner(free: &[u32]) -> Planner {
        Planner::new(rooms(free), of(free.len() as u32, free.len() as u32), None)
    }

    fn slots(placed: Result<Vec<SlotAttempt>, Wait>) -> Vec<u32> {
        placed.unwrap().into_iter().map(|place| place.slot).collect()
    }

    #[test]
    fn one_goes_to_the_least_loaded_then_around() {
        let mut planner = planner(&[2, 4, 4]);
        let taken: Vec<u32> = (0..6)
            .flat_map(|_| slots(planner.place(Placement::One)))
            .collect();
        assert_eq!(taken, [1, 2, 1, 2, 0, 1]);
        let mut idle = Planner::new(
            rooms(&[4, 4, 4]),
            of(3, 3),
            Some(SlotAttempt { slot: 1, attempt: 1 }),
        );
        assert_eq!(slots(idle.place(Placement::One)), [2]);
        assert_eq!(slots(idle.place(Placement::One)), [0]);
    }

    #[test]
    fn the_first_machine_is_told_without_giving_it_out() {
        let mut planner = planner(&[0, 1]);
        for _ in 0..3 {
            let first = planner.first(Placement::One).map(|place| place.slot);
            assert_eq!(first, Ok(1));
        }
        assert_eq!(planner.first(Placement::All(1)), Err(Wait::NoPlace));
        assert_eq!(slots(planner.place(Placement::One)), [1]);
        assert_eq!(planner.first(Placement::One), Err(Wait::NoPlace));
    }

    #[test]
    fn all_waits_for_one_free_place_on_each_machine_and_keeps_what_is_free() {
        let mut planner = planner(&[1, 0, 2]);
        assert_eq!(planner.place(Placement::All(1)), Err(Wait::NoPlace));
        // Machine 0's only place is kept; machine 2 has one more.
        assert_eq!(slots(planner.place(Placement::One)), [2]);
        assert_eq!(planner.place(Placement::One), Err(Wait::NoPlace));
        assert!(planner.is_exhausted());
    }

    #[test]
    fn several_processes_of_a_machine_follow_each_other_and_take_a_place_each() {
        let mut planner = planner(&[2, 3]);
        assert_eq!(slots(planner.place(Placement::All(2))), [0, 0, 1, 1]);
        assert_eq!(slots(planner.place(Placement::One)), [1]);
        assert!(planner.is_exhausted());
    }

    #[test]
    fn processes_wait_for_places_on_each_machine_and_keep_what_is_free() {
        let mut planner = planner(&[2, 4]);
        assert_eq!(planner.place(Placement::All(3)), Err(Wait::NoPlace));
        // One place of machine 1 is more than is waited for.
        assert_eq!(slots(planner.place(Placement::One)), [1]);
        assert!(planner.is_exhausted());
    }

    #[test]
    fn processes_that_can_never_start_reserve_nothing() {
        let mut planner = planner(&[4, 4]);
        let few = Err(Wait::FewPlaces { processes: 5 });
        assert_eq!(planner.place(Placement::All(5)), few);
        let mut large = Planner::new(rooms(&[4; 251]), of(251, 251), None);
        let many = Err(Wait::ManyRanks {
            ready: 251,
            processes: 2,
        });
        assert_eq!(large.place(Placement::All(2)), many);
        for mut planner in [planner, large] {
            let machines = planner.rooms.len();
            assert_eq!(
                planner.place(Placement::All(1)).map(|places| places.len()),
                Ok(machines)
            );
            assert!(planner.rooms.iter().all(|room| room.free == 3));
        }
        let mut largest = Planner::new(rooms(&[4; 250]), of(250, 250), None);
        assert_eq!(
            largest.place(Placement::All(2)).map(|places| places.len()),
            Ok(500)
        );
    }

    #[test]
    fn all_waits_for_one_environment_and_keeps_no_machine_from_others_meanwhile() {
        let mut machines = rooms(&[1, 1, 1]);
        machines[1].environment = 1;
        let mut planner = Planner::new(machines.clone(), of(3, 3), None);
        let differ = Wait::Environments { newest: 2, ready: 3 };
        assert_eq!(planner.place(Placement::All(1)), Err(differ));
        assert_eq!(slots(planner.place(Placement::Rank(1))), [1]);
        assert_eq!(slots(planner.place(Placement::One)), [0]);
        for room in &mut machines {
            room.environment = 1;
        }
        let mut planner = Planner::new(machines, of(3, 3), None);
        assert_eq!(slots(planner.place(Placement::All(1))), [0, 1, 2]);
    }

    #[test]
    fn all_starts_with_the_minimum_of_machines() {
        let mut planner = Planner::new(rooms(&[1, 1]), of(4, 2), None);
        assert_eq!(slots(planner.place(Placement::All(1))), [0, 1]);
        let mut planner = Planner::new(rooms(&[1, 1]), of(4, 3), None);
        assert_eq!(
            planner.place(Placement::All(1)),
            Err(Wait::FewMachines { ready: 2, wanted: 3 })
        );
        // A Task reserves nothing while machines are missing: others may use them meanwhile.
        assert_eq!(slots(planner.place(Placement::One)), [0]);
    }

    #[test]
    fn a_rank_is_the_nth_machine_that_takes_runs() {
        let mut machines = rooms(&[1, 1, 1]);
        machines.remove(1);
        let mut early = Planner::new(machines.clone(), of(3, 3), None);
        let few = Wait::FewMachines { ready: 2, wanted: 3 };
        assert_eq!(
            early.place(Placement::Rank(0)),
            Err(few),
            "the Pool is not ready yet"
        );
        let mut planner = Planner::new(machines, of(3, 2), None);
        assert_eq!(slots(planner.place(Placement::Rank(1))), [2]);
        assert_eq!(planner.place(Placement::Rank(1)), Err(Wait::NoPlace));
        assert_eq!(
            planner.place(Placement::Rank(2)),
            Err(Wait::FewMachines { ready: 2, wanted: 3 })
        );
        assert_eq!(planner.place(Placement::Rank(3)), Err(Wait::OutOfRange));
        assert_eq!(slots(planner.place(Placement::Rank(0))), [0]);
    }

    #[test]
    fn of_two_machines_in_a_slot_the_newer_counts() {
        let mut machines = rooms(&[1]);
        machines.push(Room {
            place: SlotAttempt { slot: 0, attempt: 2 },
            free: 1,
            used: 0,
            environment: 0,
        });
        let mut planner = Planner::new(machines, of(1, 1), None);
        assert_eq!(
            planner.place(Placement::All(1)),
            Ok(vec![SlotAttempt { slot: 0, attempt: 2 }])
        );
    }

    fn placement() -> impl Strategy<Value = Placement> {
        prop_oneof![
            Just(Placement::One),
            (1_u32..4).prop_map(Placement::All),
            (0_u32..6).prop_map(Placement::Rank)
        ]
    }

    proptest! {
        #[test]
        fn no_machine_ever_gets_more_than_it_can_take(
            free in proptest::collection::vec(0_u32..4, 0..6),
            wants in proptest::collection::vec(placement(), 0..40),
            min in 0_u32..6,
        ) {
            let mut planner = Planner::new(rooms(&free), of(6, min), None);
            let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
            for want in wants {
                if let Ok(places) = planner.place(want) {
                    if let Placement::All(processes) = want {
                        prop_assert_eq!(places.len(), free.len() * processes as usize);
                    }
                    for place in places {
                        *taken.entry(place.slot).or_default() += 1;
                    }
                }
            }
            for (slot, taken) in taken {
                prop_assert!(taken <= free[slot as usize]);
            }
        }
    }
}
