//! How often a client may call: windows with a count, and least times between calls.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

/// At most so many calls in a sliding window, by key (a path, an account).
#[derive(Clone, Debug, Default)]
pub struct Windows(BTreeMap<String, VecDeque<Timestamp>>);

impl Windows {
    /// Counts a call of `key`. `Err` is the time until the next one is allowed; a refused
    /// call does not count.
    pub fn call(
        &mut self,
        key: &str,
        limit: usize,
        window: SignedDuration,
        now: Timestamp,
    ) -> Result<usize, SignedDuration> {
        let calls = self.0.entry(key.to_owned()).or_default();
        while calls.front().is_some_and(|at| now.duration_since(*at) >= window) {
            calls.pop_front();
        }
        match calls.front() {
            Some(oldest) if calls.len() >= limit => Err(window - now.duration_since(*oldest)),
            Some(_) | None => {
                calls.push_back(now);
                Ok(limit.saturating_sub(calls.len()))
            }
        }
    }

    /// The oldest call that still counts, as far as the last one of `key` looked.
    pub fn oldest(&self, key: &str) -> Option<Timestamp> {
        self.0.get(key)?.front().copied()
    }
}

/// A least time between two calls, by key.
#[derive(Clone, Debug, Default)]
pub struct Intervals(BTreeMap<String, Timestamp>);

impl Intervals {
    /// Counts a call of `key`. `Err` is the time that is missing; a refused call does not count.
    pub fn call(&mut self, key: &str, least: SignedDuration, now: Timestamp) -> Result<(), SignedDuration> {
        match self.0.get(key) {
            Some(last) if now.duration_since(*last) < least => Err(least - now.duration_since(*last)),
            Some(_) | None => {
                self.0.insert(key.to_owned(), now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_window_slides_and_says_when_the_next_call_is_allowed() {
        let mut windows = Windows::default();
        let minute = SignedDuration::from_mins(1);
        assert_eq!(windows.call("a", 2, minute, at(0)), Ok(1));
        assert_eq!(windows.call("a", 2, minute, at(10)), Ok(0));
        assert_eq!(
            windows.call("a", 2, minute, at(20)),
            Err(SignedDuration::from_secs(40))
        );
        assert_eq!(windows.call("b", 2, minute, at(20)), Ok(1));
        assert_eq!(windows.call("a", 2, minute, at(60)), Ok(0));
        assert_eq!(windows.oldest("a"), Some(at(10)));
    }

    #[test]
    fn a_least_time_between_calls_is_kept_by_key() {
        let mut intervals = Intervals::default();
        let least = SignedDuration::from_millis(4_500);
        assert_eq!(intervals.call("create", least, at(0)), Ok(()));
        assert_eq!(
            intervals.call("create", least, at(3)),
            Err(SignedDuration::from_millis(1_500))
        );
        assert_eq!(intervals.call("delete", least, at(3)), Ok(()));
        assert_eq!(intervals.call("create", least, at(5)), Ok(()));
    }
}
