//! Which idle machines go.
//!
//! Not the idleness of one machine counts, but how many machines the work filled at most in the last
//! `scaleDownAfter`: Tasks are spread over machines, so that a little work would keep each of them from ever being idle
//! for long. Of the machines that are too many, those that are idle now go: first machines whose bill has not begun,
//! then the dearest, of equal ones the highest slot, and the head last. Where a machine is billed in long steps it goes
//! just before its next one. Another one goes in place of it meanwhile, but neither the head nor one that costs less to
//! keep for that long than the dearer one costs more in an hour: nobody would ever exchange those two again.

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;

use super::{Sight, Unit};
use crate::{
    base::time::{after, elapsed},
    pool::load::Uses,
};

/// A billing step from which on a machine waits for its end.
const LONG_STEP: Duration = Duration::from_mins(1);
/// How long before the end of a step a machine goes, at least and at most: its end takes a moment.
const LEAST_MARGIN: Duration = Duration::from_secs(10);
const MOST_MARGIN: Duration = Duration::from_mins(2);
/// Of a step, this part.
const MARGIN_OF_STEP: u32 = 6;
/// How long a machine counts as if it stayed that is left in place of another one.
const STAYS: Duration = Duration::from_hours(1);

/// Machines that go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surplus {
    /// Which machines of [`Sight::machines`].
    pub gone: Vec<usize>,
    /// When others may follow.
    pub look: Option<Duration>,
}

impl Surplus {
    fn look_in(&mut self, wait: Duration) {
        let wait = wait.max(Duration::from_millis(1));
        self.look = Some(self.look.map_or(wait, |sooner| sooner.min(wait)));
    }
}

/// Which machines go, where no work waits.
pub fn surplus(sight: &Sight<'_>, uses: &Uses, now: Timestamp) -> Surplus {
    let mut surplus = Surplus::default();
    let live = u32::try_from(sight.machines.len()).unwrap_or(u32::MAX);
    let mut keep = live.max(sight.floor);
    while keep > sight.floor {
        // So many machines are of use now: the time in which they are of none has not begun.
        let unused = uses
            .unused_since(keep)
            .map_or(Duration::ZERO, |since| elapsed(since, now));
        if unused < sight.after {
            surplus.look_in(sight.after.saturating_sub(unused));
            break;
        }
        keep -= 1;
    }
    let mut order: Vec<usize> = (0..sight.machines.len()).collect();
    order.sort_by_key(|at| {
        let machine = &sight.machines[*at];
        (
            machine.head,
            machine.billed,
            Reverse(machine.price),
            Reverse(machine.slot),
        )
    });
    let too_many = live.saturating_sub(keep) as usize;
    // Machines that still start and go later: no machine that takes work goes in place of one of them.
    let mut later = 0;
    // Machines that take work and go later.
    let mut waiting: Vec<(&Unit, Duration)> = Vec::new();
    for at in order {
        if surplus.gone.len() + later >= too_many {
            break;
        }
        let machine = &sight.machines[at];
        if !machine.idle {
            // A run of a moment: its end is no news that wakes a Pool.
            surplus.look_in(super::LATEST_LOOK);
            continue;
        }
        let wait = until_it_may_go(machine, sight.after, now);
        if wait.is_zero() {
            let stays_for = |(other, wait): &&(&Unit, Duration)| is_worth_keeping(machine, other, *wait);
            let held = waiting.iter().filter(stays_for).count();
            if surplus.gone.len() + later + held < too_many {
                surplus.gone.push(at);
            }
            continue;
        }
        surplus.look_in(wait);
        if machine.ready {
            waiting.push((machine, wait));
        } else {
            later += 1;
        }
    }
    surplus
}

/// Whether a machine stays until another one may go after so long a wait, and does not go in place of it.
fn is_worth_keeping(machine: &Unit, other: &Unit, wait: Duration) -> bool {
    let (price, dearer) = (machine.price.to_f64(), other.price.to_f64());
    machine.head || price * wait.as_secs_f64() < (dearer - price) * STAYS.as_secs_f64()
}

fn until_it_may_go(machine: &Unit, scale_down_after: Duration, now: Timestamp) -> Duration {
    let Some(ordered_at) = machine.ordered_at else {
        return scale_down_after;
    };
    let young = elapsed(now, after(ordered_at, scale_down_after));
    if machine.billed {
        young.max(machine.goes_in)
    } else {
        young
    }
}

/// How long until a machine may go that is billed in steps of that length, and whose bill grows next after `left`.
pub fn goes_in(step: Duration, left: Duration) -> Duration {
    if step < LONG_STEP {
        return Duration::ZERO;
    }
    let margin = (step / MARGIN_OF_STEP).clamp(LEAST_MARGIN, MOST_MARGIN);
    left.saturating_sub(margin)
}

#[cfg(test)]
mod tests {
    use skyward_core::Usd;

    use super::*;

    const NOW: i64 = 100_000;
    const AFTER: Duration = Duration::from_mins(2);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn machine(slot: u32) -> Unit {
        Unit {
            ready: true,
            idle: true,
            ordered_at: Some(at(0)),
            billed: true,
            price: Usd::from(1),
            slot,
            head: false,
            goes_in: Duration::ZERO,
        }
    }

    /// How many were of use before, and since when none is.
    fn gone(floor: u32, machines: Vec<Unit>, used: u32, ago: i64) -> (Vec<u32>, Option<Duration>) {
        let mut uses = Uses::default();
        uses.note(used, at(10));
        uses.note(0, at(NOW - ago));
        let sight = Sight {
            floor,
            ceiling: 8,
            target: machines.len() as u32,
            affordable: None,
            load: None,
            machines,
            start: AFTER,
            minimum: Duration::ZERO,
            after: AFTER,
        };
        let surplus = surplus(&sight, &uses, at(NOW));
        let slots = surplus.gone.iter().map(|at| sight.machines[*at].slot).collect();
        (slots, surplus.look)
    }

    #[test]
    fn machines_go_when_they_have_been_of_no_use_for_long_enough_and_never_below_the_floor() {
        let four = || (0..4).map(machine).collect::<Vec<_>>();
        assert_eq!(gone(1, four(), 4, 119), (vec![], Some(Duration::from_secs(1))));
        assert_eq!(gone(1, four(), 4, 120).0, [3, 2, 1]);
        assert_eq!(gone(0, four(), 4, 120).0, [3, 2, 1, 0]);
        assert_eq!(gone(4, four(), 4, 9999), (vec![], None));
        let (slots, look) = gone(1, four(), 2, 30);
        assert_eq!(
            (slots, look),
            (vec![3, 2], Some(Duration::from_secs(90))),
            "two were of use"
        );
    }

    #[test]
    fn the_dearest_goes_first_and_the_head_last() {
        let mut machines: Vec<_> = (0..4).map(machine).collect();
        machines[1].price = Usd::from(9);
        machines[2].price = Usd::from(9);
        machines[0].price = Usd::from(20);
        machines[0].head = true;
        assert_eq!(gone(1, machines.clone(), 1, 500).0, [2, 1, 3]);
        machines[3].billed = false;
        assert_eq!(gone(1, machines, 1, 500).0, [3, 2, 1], "whose bill has not begun");
    }

    #[test]
    fn a_busy_or_young_machine_stays() {
        let mut machines: Vec<_> = (0..3).map(machine).collect();
        machines[2].idle = false;
        machines[1].ordered_at = Some(at(NOW - 100));
        let (slots, look) = gone(0, machines, 0, 500);
        assert_eq!((slots, look), (vec![0], Some(Duration::from_secs(15))));
        let mut fresh = machine(0);
        fresh.ordered_at = None;
        assert_eq!(gone(0, vec![fresh], 0, 500), (vec![], Some(AFTER)));
    }

    #[test]
    fn a_dear_machine_that_may_go_soon_is_not_kept_in_place_of_a_cheap_one() {
        let mut machines: Vec<_> = (0..2).map(machine).collect();
        let soon = Duration::from_secs(30);
        machines[0].price = Usd::from(10);
        machines[0].goes_in = soon;
        assert_eq!(gone(1, machines.clone(), 1, 500), (vec![], Some(soon)));
        machines[0].goes_in = Duration::ZERO;
        assert_eq!(gone(1, machines.clone(), 1, 500).0, [0]);
        machines[0].price = Usd::cents(101);
        machines[0].goes_in = Duration::from_mins(28);
        assert_eq!(gone(1, machines.clone(), 1, 500).0, [1], "the dearer one is paid");
        machines[1].head = true;
        assert!(gone(1, machines, 1, 500).0.is_empty(), "the head goes last");
    }

    #[test]
    fn a_machine_that_is_paid_for_an_hour_goes_just_before_the_next_one() {
        let hour = Duration::from_hours(1);
        assert_eq!(
            goes_in(Duration::from_secs(1), Duration::from_secs(1)),
            Duration::ZERO
        );
        assert_eq!(goes_in(hour, Duration::from_mins(30)), Duration::from_mins(28));
        assert_eq!(goes_in(hour, Duration::from_secs(90)), Duration::ZERO);
        let minute = Duration::from_mins(1);
        assert_eq!(goes_in(minute, minute), Duration::from_secs(50));
        let mut paid = machine(0);
        paid.goes_in = Duration::from_mins(28);
        assert_eq!(
            gone(0, vec![paid], 1, 500),
            (vec![], Some(Duration::from_mins(28)))
        );
    }
}
