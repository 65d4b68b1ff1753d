//! How a Task stands in the queue of its Pool, in the words of its status: pure. The count is
//! rewritten only when it has changed much, and not too often, or each Task that starts would cost
//! a write for each Task behind it.

use std::fmt;

/// How a Task stands in the queue of its Pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Places that are taken.
    pub(super) taken: u32,
    /// Places that there are.
    pub(super) places: u32,
    /// Tasks that come first.
    pub(super) before: u32,
}

impl Standing {
    /// For the user.
    pub(super) fn of(self, pool: &str) -> impl fmt::Display {
        let Self {
            taken,
            places,
            before,
        } = self;
        let before = match before {
            0 => "no Task".to_owned(),
            1 => "1 Task".to_owned(),
            many => format!("{many} Tasks"),
        };
        format!("{taken} of {places} places of Pool \"{pool}\" taken, {before} before it")
    }
}

/// How many Tasks come first, read from a recorded message.
pub(super) fn before_in(message: &str) -> Option<u32> {
    let mut words = message.strip_suffix(" before it")?.rsplit(' ');
    let _tasks = words.next().filter(|word| word.starts_with("Task"))?;
    match words.next()? {
        "no" => Some(0),
        number => number.parse().ok(),
    }
}

/// Whether the count has halved or doubled since it was recorded.
pub(super) const fn has_changed_much(told: u32, now: u32) -> bool {
    now.saturating_mul(2) <= told && told > 0 || told.saturating_mul(2) < now
}

/// Tasks that end in a second from which on writes for all waiting Tasks would slow them down.
const BUSY: usize = 20;
/// A wait that ends within this many seconds is not worth a write.
const SOON: usize = 2;

/// Whether a Task with so many before it is about to start, when so many ended in a second.
pub(super) const fn starts_soon(before: usize, ended: usize) -> bool {
    ended > BUSY && before < ended.saturating_mul(SOON)
}

/// How many waits may be written in a second in which so many Tasks end.
pub(super) const fn most_told(ended: usize) -> usize {
    if ended > BUSY { BUSY } else { 200 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_back_from_what_was_told() {
        for (before, words) in [
            (0, "no Task before it"),
            (1, "1 Task before"),
            (41, ", 41 Tasks before it"),
        ] {
            let standing = Standing {
                taken: 8,
                places: 8,
                before,
            };
            let text = standing.of("np").to_string();
            assert!(text.starts_with("8 of 8 places of Pool \"np\" taken, "), "{text}");
            assert!(text.contains(words), "{text}");
            assert_eq!(before_in(&text), Some(before));
        }
        for other in [
            "",
            " before it",
            "many Tasks before it",
            "nothing",
            "3 machines before it",
        ] {
            assert_eq!(before_in(other), None, "{other}");
        }
    }

    #[test]
    fn a_queue_of_thousands_costs_each_task_few_counts() {
        let (mut told, mut writes) = (10_000, 0);
        for now in (0..10_000).rev() {
            if has_changed_much(told, now) {
                (told, writes) = (now, writes + 1);
            }
        }
        assert_eq!((told, writes), (0, 14));
        assert!(!has_changed_much(0, 0) && !has_changed_much(40, 41));
        assert!(has_changed_much(3, 7), "more urgent ones came");
    }

    #[test]
    fn who_starts_in_a_moment_is_told_nothing_before() {
        assert!(starts_soon(179, 90));
        assert!(!starts_soon(180, 90));
        assert!(!starts_soon(0, 1), "a write more is nothing where little ends");
        assert!(most_told(90) < most_told(1));
    }
}
