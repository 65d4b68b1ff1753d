//! How long to wait after failures in a row.

use std::{borrow::Borrow, collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;

/// Failures in a row of each object: when to try again, and when to log. Bounded by the number of
/// objects.
#[derive(Debug)]
pub struct Backoff<K>(Mutex<HashMap<K, u32>>);

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Backoff<K> {
    /// Counts a failure; answers how many there are in a row.
    pub fn failed(&self, key: K) -> u32 {
        let mut failures = self.0.lock();
        let count = failures.entry(key).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Forgets an object that succeeded or is gone.
    pub fn succeeded<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.lock().remove(key);
    }

    /// Wait before the next try: the first, doubled with each failure, at most a minute.
    pub fn delay<Q>(&self, key: &Q, first: Duration) -> Duration
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let failures = self.0.lock();
        let count = failures.get(key).copied().unwrap_or(1);
        first
            .saturating_mul(2_u32.saturating_pow(count.saturating_sub(1).min(16)))
            .min(Duration::from_mins(1).max(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_failing_is_tried_less_and_less_often() {
        let failures: Backoff<String> = Backoff::default();
        let first = Duration::from_secs(3);
        let pauses: Vec<u64> = (0..7)
            .map(|_| {
                failures.failed("a".to_owned());
                failures.delay("a", first).as_secs()
            })
            .collect();
        assert_eq!(pauses, [3, 6, 12, 24, 48, 60, 60]);
        failures.succeeded("a");
        assert_eq!(failures.delay("a", first), first);
    }
}
