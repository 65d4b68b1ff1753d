//! How many more machines the waiting work is worth.
//!
//! A machine that is ordered now helps only with the work that is left when it takes work. So many machines are worth
//! their orders that each of them, with the machines that exist, has work for at least its own start, and at least for
//! the least time that is billed. Machines on their way count as machines, however slow their orders are.
//!
//! How long work lasts is what such work lasted before. Where none has ended, the age of what runs is a lower bound:
//! the Pool grows as that age does. Where most of what runs is much older than what ended before, the age counts too,
//! and a decision at most doubles the machines, since a single long run must not order machines for a thousand
//! short ones.

use std::time::Duration;

use jiff::Timestamp;

use crate::{base::time::elapsed, pool::load::Demand};

/// The machines that a decision counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Places of each machine, at least one.
    pub each: u32,
    /// Machines that take work.
    pub working: u32,
    /// Places of these machines that are taken.
    pub taken: u32,
    /// Machines that are on their way, or are to be ordered already.
    pub coming: u32,
    /// How long a machine takes from its order until it takes work.
    pub start: Duration,
    /// Least time that is billed of a machine.
    pub minimum: Duration,
}

/// How long work lasts, as far as can be told.
struct Estimate {
    /// All that waits, on one place.
    backlog: Duration,
    /// What is left of a run.
    remaining: Duration,
    /// Whether what runs shows that earlier durations say little now.
    doubtful: bool,
}

/// How many more machines are worth their orders.
pub fn growth(demand: &Demand, capacity: &Capacity, now: Timestamp) -> u32 {
    if demand.places == 0 {
        return 0;
    }
    if capacity.working == 0 && capacity.coming == 0 {
        return 1;
    }
    let each = capacity.each.max(1);
    let Estimate {
        backlog,
        remaining,
        doubtful,
    } = estimate(demand, now);
    // Fewer pieces than a machine has places keep it for as long as one of them lasts.
    let waiting = backlog / each.min(demand.places);
    let places = capacity.working.saturating_mul(each);
    let taken = capacity.taken.min(places);
    let free = places - taken;
    if free >= demand.places {
        // Something else than places is missing, such as room in the result store.
        return 0;
    }
    let start = capacity.start;
    let free_now = start.saturating_mul(free);
    let free_soon = free_now.saturating_add(start.saturating_sub(remaining).saturating_mul(taken));
    let busy_then = remaining.saturating_sub(start).saturating_mul(taken);
    let left = waiting
        .saturating_sub(free_soon / each)
        .saturating_add(busy_then / each);
    let worth = start.max(capacity.minimum).as_millis().max(1);
    let machines = u32::try_from(left.as_millis() / worth).unwrap_or(u32::MAX);
    let mut more = machines
        .saturating_sub(capacity.working)
        .min((demand.places - free).div_ceil(each));
    if doubtful {
        more = more.min(capacity.working.max(1));
    }
    more.saturating_sub(capacity.coming)
}

fn estimate(demand: &Demand, now: Timestamp) -> Estimate {
    let age = demand.running_since.map(|since| elapsed(since, now));
    // What items of maps take is measured by itself: a Task of an hour does not make a million of them last as long.
    let tasks = demand.places.saturating_sub(demand.for_maps);
    let of_all = |each: Duration| each.saturating_mul(tasks).saturating_add(demand.items);
    match (demand.typical, age) {
        (Some(typical), Some(age)) if age > typical.saturating_mul(2) => Estimate {
            backlog: of_all(age).max(demand.backlog.unwrap_or_default()),
            remaining: age,
            doubtful: true,
        },
        (Some(typical), age) => Estimate {
            backlog: demand.backlog.unwrap_or_else(|| of_all(typical)),
            remaining: age.map_or(Duration::ZERO, |age| typical.saturating_sub(age)),
            doubtful: false,
        },
        (None, age) => {
            let age = age.unwrap_or_default();
            Estimate {
                backlog: demand.backlog.unwrap_or_else(|| of_all(age)),
                remaining: age,
                doubtful: false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const HOUR: u64 = 3600;

    fn demand(places: u32, typical: Option<u64>, age: Option<u64>) -> Demand {
        let typical = typical.map(Duration::from_secs);
        Demand {
            places,
            typical,
            backlog: typical.map(|each| each * places),
            running_since: age.map(|age| Timestamp::from_second(100_000 - age as i64).unwrap()),
            ..Demand::default()
        }
    }

    fn capacity(working: u32, coming: u32) -> Capacity {
        Capacity {
            each: 1,
            working,
            taken: working,
            coming,
            start: Duration::from_mins(2),
            minimum: Duration::ZERO,
        }
    }

    fn more(demand: &Demand, capacity: &Capacity) -> u32 {
        growth(demand, capacity, Timestamp::from_second(100_000).unwrap())
    }

    #[rstest]
    #[case::nothing_waits(demand(0, Some(HOUR), Some(60)), capacity(1, 0), 0)]
    #[case::no_machine_at_all(demand(1, None, None), capacity(0, 0), 1)]
    #[case::the_first_is_on_its_way(demand(9, None, None), capacity(0, 1), 0)]
    #[case::twenty_of_an_hour_in_one_decision(demand(20, Some(HOUR), Some(0)), capacity(1, 0), 20)]
    #[case::orders_on_their_way_count(demand(20, Some(HOUR), Some(0)), capacity(1, 20), 0)]
    #[case::and_their_shortage_is_made_up_for(demand(20, Some(HOUR), Some(0)), capacity(1, 12), 8)]
    #[case::less_work_than_a_start(demand(20, Some(5), Some(1)), capacity(1, 0), 0)]
    #[case::nothing_is_known_yet(demand(20, None, Some(1)), capacity(1, 0), 0)]
    #[case::the_age_of_what_runs_is_a_lower_bound(demand(20, None, Some(60)), capacity(1, 0), 8)]
    #[case::one_that_waits_behind_a_long_one(demand(1, None, Some(HOUR)), capacity(1, 0), 1)]
    #[case::one_long_run_orders_no_machines_for_short_ones(
        demand(500, Some(1), Some(HOUR)),
        capacity(1, 0),
        1
    )]
    #[case::much_older_runs_double_the_machines(demand(500, Some(1), Some(HOUR)), capacity(4, 0), 4)]
    #[case::many_machines_end_it_sooner_than_another_starts(
        demand(20, Some(60), Some(30)),
        capacity(10, 0),
        0
    )]
    fn so_many_more_machines_are_worth_their_orders(
        #[case] demand: Demand,
        #[case] capacity: Capacity,
        #[case] expected: u32,
    ) {
        assert_eq!(more(&demand, &capacity), expected);
    }

    #[test]
    fn work_that_waits_beside_free_places_for_something_else_orders_no_machine() {
        let idle = Capacity {
            taken: 1,
            ..capacity(3, 0)
        };
        assert_eq!(more(&demand(2, Some(HOUR), Some(0)), &idle), 0);
        assert_eq!(more(&demand(3, Some(HOUR), Some(0)), &idle), 1);
    }

    #[test]
    fn a_machine_of_many_places_is_ordered_for_one_long_run_and_not_for_each() {
        let of_eight = Capacity {
            each: 8,
            taken: 8,
            ..capacity(1, 0)
        };
        assert_eq!(more(&demand(1, Some(HOUR), Some(0)), &of_eight), 1);
        assert_eq!(more(&demand(20, Some(HOUR), Some(0)), &of_eight), 3);
    }

    #[test]
    fn a_machine_whose_least_bill_is_longer_than_the_work_is_not_ordered() {
        let of_hours = Capacity {
            minimum: Duration::from_hours(1),
            ..capacity(1, 0)
        };
        assert_eq!(more(&demand(4, Some(600), Some(0)), &of_hours), 0);
        assert_eq!(more(&demand(4, Some(600), Some(0)), &capacity(1, 0)), 4);
    }

    /// A map that would fill so many further places, with so many seconds of work.
    fn map(places: u32, seconds: u64) -> Demand {
        let items = Duration::from_secs(seconds);
        Demand {
            for_maps: places,
            items,
            backlog: Some(items),
            ..demand(places, None, None)
        }
    }

    #[test]
    fn a_thousand_items_of_a_millisecond_stay_on_one_machine() {
        let quick = Capacity {
            start: Duration::from_secs(2),
            ..capacity(1, 0)
        };
        assert_eq!(more(&map(999, 1), &quick), 0);
    }

    #[test]
    fn twenty_items_of_an_hour_get_their_machines_in_one_decision() {
        assert_eq!(more(&map(19, 20 * HOUR), &capacity(1, 0)), 19);
        // Of a million items no more than have work for the start of their machine: 1,000 seconds are 8 starts.
        assert_eq!(more(&map(999_999, 1000), &capacity(1, 0)), 6);
    }

    #[test]
    fn how_long_a_task_lasts_says_nothing_of_the_items_beside_it() {
        let items = Duration::from_secs(10);
        let unknown = Demand {
            for_maps: 999_999,
            items,
            ..demand(1_000_000, None, Some(120))
        };
        assert_eq!(
            more(&unknown, &capacity(8, 0)),
            0,
            "a Task of two minutes, and ten seconds"
        );
        let older = Demand {
            backlog: Some(items + Duration::from_secs(1)),
            ..demand(1_000_000, Some(1), Some(120))
        };
        let older = Demand {
            for_maps: 999_999,
            items,
            ..older
        };
        assert_eq!(
            more(&older, &capacity(8, 0)),
            0,
            "what runs is older than what ended"
        );
    }
}
