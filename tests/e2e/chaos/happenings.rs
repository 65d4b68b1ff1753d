//! What can happen to the cluster, and when: a pure function from a seed to a timetable. Nothing else
//! of this program is random, so a seed tells a round whole.

use std::{fmt, time::Duration};

use skyward_cloudsim::Chance;

/// Machines of the Pool of a round.
pub(crate) const MACHINES: u64 = 3;
/// Tasks are created, and things happen, for this long.
pub(crate) const WORK: Duration = Duration::from_secs(45);
/// Then the Pool is deleted, and things happen for this long.
const END: Duration = Duration::from_secs(10);

/// A process that is killed or paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Process {
    /// The leader.
    Controller,
    /// Supervisor and daemon of a machine's agent.
    Agent,
    /// The watchers of the runs of a machine.
    Watchers,
    /// The SSH server of a machine, with its connections.
    Sshd,
    /// The API server of the cluster.
    ApiServer,
    /// The database of the cluster.
    Etcd,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// SIGKILL. API server and etcd are started again when it is over, the others by their guards.
    Killed(Process),
    /// SIGSTOP, and SIGCONT when it is over.
    Paused(Process),
    /// A machine's Pod is deleted.
    PodDeleted,
    /// The first process of a machine's Pod is killed, as when the machine loses its power.
    PowerLost,
    /// No packet passes between the controller and a machine.
    LinkCut,
    /// Few bytes a second reach a machine.
    LinkSlowed,
    /// The disk of a machine's agent is full.
    DiskFilled,
    /// The clock of all is wrong by so many seconds.
    ClockStepped(i64),
}

/// What this machine must have or allow for a happening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Processes, files and the API server alone.
    Nothing,
    /// The program of that name.
    Program(&'static str),
    /// The permission to change the clock, which belongs to the whole machine.
    Clock,
}

impl Happening {
    /// What it needs.
    pub(crate) const fn needs(self) -> Need {
        match self {
            Self::LinkCut => Need::Program("iptables"),
            Self::LinkSlowed => Need::Program("tc"),
            Self::ClockStepped(_) => Need::Clock,
            _ => Need::Nothing,
        }
    }

    /// Whether the runs of its machine, or some of them, may start again because of it.
    pub(crate) const fn interrupts(self) -> bool {
        matches!(
            self,
            Self::PodDeleted | Self::PowerLost | Self::Killed(Process::Watchers)
        )
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = |process: Process| match process {
            Process::Controller => "the controller is",
            Process::Agent => "the agent is",
            Process::Watchers => "the watchers are",
            Process::Sshd => "sshd is",
            Process::ApiServer => "the API server is",
            Process::Etcd => "etcd is",
        };
        match self {
            Self::Killed(which) => write!(f, "{} killed", process(*which)),
            Self::Paused(which) => write!(f, "{} paused", process(*which)),
            Self::PodDeleted => f.write_str("the Pod is deleted"),
            Self::PowerLost => f.write_str("the first process is killed"),
            Self::LinkCut => f.write_str("the link is cut"),
            Self::LinkSlowed => f.write_str("the link is slowed"),
            Self::DiskFilled => f.write_str("the disk is filled"),
            Self::ClockStepped(seconds) => write!(f, "the clock is stepped by {seconds} s"),
        }
    }
}

/// When, what, where and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Since the beginning of its part of the round.
    pub(crate) at: Duration,
    /// What.
    pub(crate) what: Happening,
    /// The slot of the machine, where it is one's.
    pub(crate) slot: u64,
    /// Until it is undone, where it is undone.
    pub(crate) lasts: Duration,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f64(), self.lasts.as_secs_f64());
        write!(f, "{at:4.1} s: {} (slot {}, {lasts:.1} s)", self.what, self.slot)
    }
}

/// The happenings of a round, by their time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timetable {
    /// While Tasks are created and run.
    pub(crate) work: Vec<Moment>,
    /// While the Pool is deleted. Its machines are going then: the control plane alone is hit.
    pub(crate) end: Vec<Moment>,
}

/// The timetable of a seed, the same on each machine: what a machine cannot do is left out when its time
/// comes. With `times` above 1 as many times more happens, so that more happens at once.
pub(crate) fn timetable(seed: u64, times: u64) -> Timetable {
    let mut chance = Chance::new(seed);
    let count = 6 + chance.below(5);
    let work = moments(&mut chance, count * times, WORK, any);
    let count = 1 + chance.below(2);
    let end = moments(&mut chance, count * times, END, of_the_control_plane);
    Timetable { work, end }
}

fn moments(
    chance: &mut Chance,
    count: u64,
    within: Duration,
    choose: fn(&mut Chance) -> Happening,
) -> Vec<Moment> {
    let mut moments: Vec<Moment> = (0..count)
        .map(|_| Moment {
            at: Duration::from_millis(chance.below(within.as_millis() as u64)),
            what: choose(chance),
            slot: chance.below(MACHINES),
            lasts: Duration::from_millis(1000 + chance.below(19_000)),
        })
        .collect();
    moments.sort_by_key(|moment| moment.at);
    moments
}

fn any(chance: &mut Chance) -> Happening {
    use Process::{Agent, ApiServer, Controller, Etcd, Sshd, Watchers};
    let process = |number| [Controller, Agent, Watchers, Sshd, ApiServer, Etcd][number as usize];
    match chance.below(18) {
        number @ 0..6 => Happening::Killed(process(number)),
        number @ 6..12 => Happening::Paused(process(number - 6)),
        12 => Happening::PodDeleted,
        13 => Happening::PowerLost,
        14 => Happening::LinkCut,
        15 => Happening::LinkSlowed,
        16 => Happening::DiskFilled,
        _ => Happening::ClockStepped([-120, -30, 30, 120][chance.below(4) as usize]),
    }
}

fn of_the_control_plane(chance: &mut Chance) -> Happening {
    let process = [Process::Controller, Process::ApiServer, Process::Etcd][chance.below(3) as usize];
    if chance.below(2) == 0 {
        Happening::Killed(process)
    } else {
        Happening::Paused(process)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_timetable_and_another_seed_another_one() {
        assert_eq!(timetable(7, 1), timetable(7, 1));
        assert_ne!(timetable(7, 1), timetable(8, 1));
    }

    #[test]
    fn every_kind_happens_within_an_hour_of_rounds() {
        let seen: BTreeSet<Happening> = (0..60)
            .flat_map(|seed| timetable(seed, 1).work)
            .map(|moment| match moment.what {
                Happening::ClockStepped(_) => Happening::ClockStepped(0),
                what => what,
            })
            .collect();
        assert_eq!(seen.len(), 18, "{seen:?}");
    }

    #[test]
    fn moments_are_in_order_within_their_part_and_last_from_1_to_20_seconds() {
        for seed in 0..500 {
            let times = 1 + seed % 2;
            let Timetable { work, end } = timetable(seed, times);
            assert!((6 * times..=10 * times).contains(&(work.len() as u64)));
            assert!((times..=2 * times).contains(&(end.len() as u64)));
            for (part, within) in [(&work, WORK), (&end, END)] {
                assert!(part.is_sorted_by_key(|moment| moment.at));
                for moment in part {
                    assert!(moment.at < within && moment.slot < MACHINES, "{moment}");
                    assert!((1..=20).contains(&moment.lasts.as_secs()), "{moment}");
                }
            }
            let in_the_end = |moment: &Moment| match moment.what {
                Happening::Killed(process) | Happening::Paused(process) => {
                    matches!(process, Process::Controller | Process::ApiServer | Process::Etcd)
                }
                _ => false,
            };
            assert!(end.iter().all(in_the_end));
        }
    }
}
