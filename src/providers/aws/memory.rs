//! Answers that are remembered for a while: one call for all who ask at once, bounded in
//! number, forgotten by age. Only ever a hint: whatever is remembered can be asked again.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::OnceCell, time::Instant};

/// Answers by key.
pub struct Memory<K, T> {
    lifetime: Duration,
    most: usize,
    entries: Mutex<BTreeMap<K, Entry<T>>>,
}

struct Entry<T> {
    since: Instant,
    answer: Arc<OnceCell<Arc<T>>>,
}

impl<K: Ord + Clone, T> Memory<K, T> {
    /// Remembers at most this many answers, each for at most this long.
    pub const fn new(lifetime: Duration, most: usize) -> Self {
        Self {
            lifetime,
            most,
            entries: Mutex::new(BTreeMap::new()),
        }
    }

    /// What is remembered, else the answer to the question. A failure is not remembered.
    pub async fn get<E, F>(&self, key: K, ask: impl FnOnce() -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.get_at(Instant::now(), key, ask).await
    }

    async fn get_at<E, F>(&self, now: Instant, key: K, ask: impl FnOnce() -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.entry(now, key)
            .get_or_try_init(|| async { ask().await.map(Arc::new) })
            .await
            .cloned()
    }

    /// What is remembered now, without asking.
    pub fn known(&self, key: &K) -> Option<Arc<T>> {
        self.known_at(Instant::now(), key)
    }

    fn known_at(&self, now: Instant, key: &K) -> Option<Arc<T>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries
            .get(key)
            .filter(|entry| now.duration_since(entry.since) < self.lifetime)
            .and_then(|entry| entry.answer.get().cloned())
    }

    /// Forgets what the test admits.
    pub fn forget(&self, test: impl Fn(&K) -> bool) {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|key, _| !test(key));
    }

    fn entry(&self, now: Instant, key: K) -> Arc<OnceCell<Arc<T>>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(&key)
            && now.duration_since(entry.since) < self.lifetime
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
                since: now,
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

    async fn ask(memory: &Memory<u32, u32>, now: Instant, key: u32, asked: &AtomicU32) -> u32 {
        let answer: Result<_, ()> = memory
            .get_at(now, key, || async {
                tokio::task::yield_now().await;
                Ok(asked.fetch_add(1, Ordering::SeqCst))
            })
            .await;
        *answer.unwrap()
    }

    #[tokio::test]
    async fn many_ask_at_once_and_one_call_is_made_until_it_is_old() {
        let memory = Memory::new(Duration::from_secs(60), 2);
        let asked = AtomicU32::new(0);
        let now = Instant::now();
        let all = join_all((0..8).map(|_| ask(&memory, now, 1, &asked))).await;
        assert!(all.iter().all(|answer| *answer == 0));
        let later = now + Duration::from_secs(61);
        assert_eq!(memory.known_at(later, &1), None);
        assert_eq!(ask(&memory, later, 1, &asked).await, 1);
    }

    #[tokio::test]
    async fn the_oldest_is_forgotten_when_there_are_too_many() {
        let memory = Memory::new(Duration::from_secs(60), 2);
        let asked = AtomicU32::new(0);
        let start = Instant::now();
        for key in 1..=3 {
            ask(&memory, start + Duration::from_secs(key.into()), key, &asked).await;
        }
        assert_eq!((memory.known(&1), memory.known(&3)), (None, Some(Arc::new(2))));
    }

    #[tokio::test]
    async fn a_failure_is_asked_again() {
        let memory: Memory<u32, u32> = Memory::new(Duration::from_secs(60), 2);
        assert_eq!(memory.get(1, || async { Err("no") }).await, Err("no"));
        assert_eq!(
            memory.get(1, || async { Ok::<_, ()>(7) }).await.as_deref(),
            Ok(&7)
        );
    }
}
