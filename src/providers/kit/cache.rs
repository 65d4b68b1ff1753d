//! A cache of answers: one call for all concurrent callers, bounded in number, forgotten by age.
//! Only a hint: every answer can be asked for again.
//!
//! The crate `moka` has such caches too, but tests could not advance its clock, and a look without
//! a call would be async: this cache is shorter than workarounds for both.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::OnceCell, time::Instant};

/// Answers by key.
pub struct Cache<K, T> {
    lifetime: Duration,
    most: usize,
    entries: Mutex<BTreeMap<K, Entry<T>>>,
}

struct Entry<T> {
    since: Instant,
    answer: Arc<OnceCell<Arc<T>>>,
}

impl<K: Ord + Clone, T> Cache<K, T> {
    /// Remembers at most this many answers, each for at most this long.
    pub const fn new(lifetime: Duration, most: usize) -> Self {
        Self {
            lifetime,
            most,
            entries: Mutex::new(BTreeMap::new()),
        }
    }

    /// The remembered answer, else that of `ask`. A failure is not remembered.
    pub async fn get<E, F>(&self, key: K, ask: impl FnOnce() -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.entry(key)
            .get_or_try_init(|| async { ask().await.map(Arc::new) })
            .await
            .cloned()
    }

    /// The remembered answer, without asking.
    pub fn known(&self, key: &K) -> Option<Arc<T>> {
        let entries = self.entries.lock();
        entries
            .get(key)
            .filter(|entry| entry.since.elapsed() < self.lifetime)
            .and_then(|entry| entry.answer.get().cloned())
    }

    /// Remembers this from now on.
    pub fn insert(&self, key: K, answer: T) {
        // A new entry, even where the former one is young.
        self.entries.lock().remove(&key);
        let entry = self.entry(key);
        // Only a concurrent caller can have the new entry.
        let _ = entry.set(Arc::new(answer));
    }

    /// Forgets the keys that the test admits.
    pub fn forget(&self, test: impl Fn(&K) -> bool) {
        self.entries.lock().retain(|key, _| !test(key));
    }

    fn entry(&self, key: K) -> Arc<OnceCell<Arc<T>>> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&key)
            && entry.since.elapsed() < self.lifetime
        {
            return entry.answer.clone();
        }
        if entries.len() >= self.most && !entries.contains_key(&key) {
            let oldest = entries
                .iter()
                .min_by_key(|(_, entry)| entry.since)
                .map(|(key, _)| key.clone());
            oldest.map(|key| entries.remove(&key));
        }
        let answer = Arc::new(OnceCell::new());
        entries.insert(
            key,
            Entry {
                since: Instant::now(),
                answer: answer.clone(),
            },
        );
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::join_all;

    use super::*;

    async fn ask(cache: &Cache<u32, u32>, key: u32, asked: &AtomicU32) -> u32 {
        let answer: Result<_, ()> = cache
            .get(key, || async {
                tokio::task::yield_now().await;
                Ok(asked.fetch_add(1, Ordering::SeqCst))
            })
            .await;
        *answer.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn many_ask_at_once_and_one_call_is_made_until_it_is_old() {
        let cache = Cache::new(Duration::from_secs(60), 2);
        let asked = AtomicU32::new(0);
        let all = join_all((0..8).map(|_| ask(&cache, 1, &asked))).await;
        assert!(all.iter().all(|answer| *answer == 0));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(cache.known(&1), None);
        assert_eq!(ask(&cache, 1, &asked).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_is_forgotten_when_there_are_too_many() {
        let cache = Cache::new(Duration::from_secs(60), 2);
        let asked = AtomicU32::new(0);
        for key in 1..=3 {
            ask(&cache, key, &asked).await;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((cache.known(&1), cache.known(&3)), (None, Some(Arc::new(2))));
    }

    #[tokio::test]
    async fn a_failure_is_asked_again() {
        let cache: Cache<u32, u32> = Cache::new(Duration::from_secs(60), 2);
        assert_eq!(cache.get(1, || async { Err("no") }).await, Err("no"));
        assert_eq!(cache.get(1, || async { Ok::<_, ()>(7) }).await.as_deref(), Ok(&7));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_inserted_again_is_remembered_for_as_long_once_more() {
        let cache = Cache::new(Duration::from_secs(60), 10);
        cache.insert("one", 1);
        cache.insert("two", 1);
        tokio::time::advance(Duration::from_secs(40)).await;
        cache.insert("two", 2);
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(
            (cache.known(&"one"), cache.known(&"two")),
            (None, Some(Arc::new(2)))
        );
    }
}
