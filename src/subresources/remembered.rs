//! A small cache of short-lived answers, with a limit on their number.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Answers, each with its own time to live.
#[derive(Debug)]
pub struct Remembered<K, V> {
    most: usize,
    known: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    /// A cache of at most so many answers.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            known: Mutex::default(),
        }
    }

    /// The answer for a key, if it is known and still good.
    pub fn get(&self, key: &K) -> Option<V> {
        let known = self.known.lock();
        let (until, value) = known.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Remembers an answer, if there is room.
    pub fn put(&self, key: K, value: V, lasts: Duration) {
        let now = Instant::now();
        let mut known = self.known.lock();
        if known.len() >= self.most {
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() < self.most || known.contains_key(&key) {
            known.insert(key, (now + lasts, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_are_good_for_their_time_and_are_never_too_many() {
        let remembered = Remembered::new(2);
        let second = Duration::from_secs(1);
        remembered.put("a", 1, second);
        remembered.put("b", 2, second * 9);
        remembered.put("c", 3, second);
        assert_eq!(
            ["a", "b", "c"].map(|key| remembered.get(&key)),
            [Some(1), Some(2), None]
        );
        tokio::time::advance(second).await;
        assert_eq!(remembered.get(&"a"), None);
        remembered.put("c", 3, second);
        remembered.put("b", 4, second);
        assert_eq!(["b", "c"].map(|key| remembered.get(&key)), [Some(4), Some(3)]);
    }
}
