//! How often it is written how far Tasks are, over all Pools: a program may say it as often as it likes, and each
//! write goes to every watcher of Tasks. A Pool that gets none has one of the next second's, in the order in which
//! Pools asked: one whose dispatcher is always the first to ask takes none from the others.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use skyward_planner::base::key::Key;
use tokio::time::Instant;

/// Writes in a second.
const EACH_SECOND: usize = 5;
/// A Pool that has not asked for so long has nothing to write any more: dispatchers ask each second.
const ASKED: Duration = Duration::from_secs(3);

/// Counts the writes of the second that began last.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    begun: Option<Instant>,
    taken: usize,
    /// Pools that got none when they last asked, and when that was.
    waiting: VecDeque<(Key, Instant)>,
}

impl Pace {
    /// Whether that Pool may have another write.
    pub(crate) fn take(&self, pool: &Key, now: Instant) -> bool {
        let second = &mut *self.0.lock();
        let is_over = |begun: Instant| now.duration_since(begun) >= Duration::from_secs(1);
        if second.begun.is_none_or(is_over) {
            (second.begun, second.taken) = (Some(now), 0);
            second
                .waiting
                .retain(|(_, asked)| now.duration_since(*asked) < ASKED);
        }
        let free = EACH_SECOND - second.taken;
        let place = second.waiting.iter().position(|(waiting, _)| waiting == pool);
        let before = place.unwrap_or(second.waiting.len());
        let may = before < free;
        match place {
            Some(place) if may => drop(second.waiting.remove(place)),
            Some(place) => second.waiting[place].1 = now,
            None if may => {}
            None => second.waiting.push_back((pool.clone(), now)),
        }
        second.taken += usize::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str) -> Key {
        Key::new("n", name)
    }

    #[test]
    fn there_are_five_writes_in_a_second() {
        let (pace, now) = (Pace::default(), Instant::now());
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        let taken = |milliseconds| {
            let taken = (0..100).filter(|_| pace.take(&pool("p"), at(milliseconds)));
            taken.count()
        };
        assert_eq!((taken(0), taken(999), taken(1000), taken(1500)), (5, 0, 5, 0));
        assert_eq!(taken(60_000), 5);
    }

    #[test]
    fn a_pool_that_is_always_the_first_to_ask_keeps_no_other_one_waiting() {
        let (pace, now) = (Pace::default(), Instant::now());
        let mut quiet = 0;
        for second in 0..10 {
            let at = now + Duration::from_secs(second);
            while pace.take(&pool("loud"), at) {}
            quiet += u32::from(pace.take(&pool("quiet"), at));
        }
        assert_eq!(quiet, 5, "at least each second time");
    }

    #[test]
    fn of_a_hundred_pools_each_has_its_turn() {
        let (pace, now) = (Pace::default(), Instant::now());
        let names: Vec<Key> = (0..100).map(|number| pool(&format!("p{number}"))).collect();
        let mut had = [0; 100];
        for second in 0..40 {
            for (name, had) in names.iter().zip(&mut had) {
                *had += u32::from(pace.take(name, now + Duration::from_secs(second)));
            }
        }
        assert!(had.iter().all(|had| *had == 2), "{had:?}");
    }

    #[test]
    fn a_pool_that_has_nothing_to_write_any_more_keeps_no_turn() {
        let (pace, now) = (Pace::default(), Instant::now());
        for number in 0..10 {
            pace.take(&pool(&format!("p{number}")), now);
        }
        let later = now + Duration::from_secs(60);
        assert_eq!((0..9).filter(|_| pace.take(&pool("p"), later)).count(), 5);
    }
}
