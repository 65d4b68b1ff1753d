//! Tells reconcilers which objects to look at again: sets of keys that coalesce.
//!
//! A [`Wakeups`] holds each key at most once, however often it is woken, so it is
//! bounded by the number of objects, never blocks the code that wakes and never loses
//! a wake-up. Controllers, dispatchers and watches talk to each other only this way.

use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures::{Stream, stream};
use tokio::sync::Notify;

use crate::board::Key;

/// A coalescing queue of keys.
#[derive(Debug)]
pub struct Wakeups<K> {
    queue: Mutex<Queue<K>>,
    notify: Notify,
}

#[derive(Debug)]
struct Queue<K> {
    order: VecDeque<K>,
    members: HashSet<K>,
}

impl<K: Clone + Eq + Hash + Send + 'static> Wakeups<K> {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                order: VecDeque::new(),
                members: HashSet::new(),
            }),
            notify: Notify::new(),
        })
    }

    /// Adds a key unless it waits already.
    pub fn wake(&self, key: K) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.members.insert(key.clone()) {
            queue.order.push_back(key);
            drop(queue);
            self.notify.notify_one();
        }
    }

    /// The oldest key, if any waits.
    pub fn try_next(&self) -> Option<K> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let key = queue.order.pop_front()?;
        queue.members.remove(&key);
        Some(key)
    }

    /// The oldest key; waits for one. Cancel-safe; for one reader.
    pub async fn next(&self) -> K {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            self.notify.notified().await;
        }
    }

    /// All keys, as they come.
    pub fn stream(self: Arc<Self>) -> impl Stream<Item = K> + Send + 'static
    where
        K: Sync,
    {
        stream::unfold(self, |this| async move {
            let key = this.next().await;
            Some((key, this))
        })
    }
}

/// How often in a row something failed, for each object: when to try again, and when to
/// say so. Bounded by the number of objects.
#[derive(Debug)]
pub struct Failures<K>(Mutex<HashMap<K, u32>>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Failures<K> {
    /// It failed again; how often in a row.
    pub fn again(&self, key: K) -> u32 {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// It succeeded, or is gone.
    pub fn none<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Wait before the next try: the first, doubled with each failure, at most a minute.
    pub fn pause<Q>(&self, key: &Q, first: Duration) -> Duration
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.get(key).copied().unwrap_or(1);
        first
            .saturating_mul(2_u32.saturating_pow(count.saturating_sub(1).min(16)))
            .min(Duration::from_mins(1).max(first))
    }
}

/// What a watch saw.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    /// A Pool was added, changed or removed.
    Pool(Key),
    /// A Machine was added, changed or removed.
    Machine {
        /// The Machine.
        machine: Key,
        /// Its Pool.
        pool: Key,
    },
    /// A Provider was added, changed or removed.
    Provider(String),
    /// Offers of that Provider changed.
    Offers(String),
}

/// Tells every subscriber. As [`Feed<Changed>`] of the context: what the watches
/// of [`crate::context::Caches`] saw, after the cache has it.
#[derive(Clone, Debug)]
pub struct Feed<C = Changed>(Arc<Mutex<Subscribers<C>>>);

type Subscribers<C> = Vec<Weak<Wakeups<C>>>;

impl<C> Default for Feed<C> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<C: Clone + Eq + Hash + Send + 'static> Feed<C> {
    /// From now on, every change; each at least once after it happened. Objects that are
    /// there already are not repeated: read the caches after subscribing.
    pub fn subscribe(&self) -> Arc<Wakeups<C>> {
        let wakeups = Wakeups::new();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::downgrade(&wakeups));
        wakeups
    }

    /// Tells all.
    pub fn tell(&self, change: &C) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|subscriber| match subscriber.upgrade() {
                Some(wakeups) => {
                    wakeups.wake(change.clone());
                    true
                }
                None => false,
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_woken_twice_comes_once_and_in_order() {
        let wakeups = Wakeups::new();
        wakeups.wake(1);
        wakeups.wake(2);
        wakeups.wake(1);
        assert_eq!(wakeups.next().await, 1);
        assert_eq!(wakeups.next().await, 2);
        assert_eq!(wakeups.try_next(), None);
        wakeups.wake(1);
        assert_eq!(wakeups.next().await, 1);
    }

    #[test]
    fn what_goes_on_failing_is_tried_less_and_less_often() {
        let failures: Failures<String> = Failures::default();
        let first = Duration::from_secs(3);
        let pauses: Vec<u64> = (0..7)
            .map(|_| {
                failures.again("a".to_owned());
                failures.pause("a", first).as_secs()
            })
            .collect();
        assert_eq!(pauses, [3, 6, 12, 24, 48, 60, 60]);
        failures.none("a");
        assert_eq!(failures.pause("a", first), first);
    }

    #[test]
    fn a_dropped_subscriber_is_forgotten() {
        let feed = Feed::default();
        let one = feed.subscribe();
        drop(feed.subscribe());
        feed.tell(&Changed::Provider("a".into()));
        assert_eq!(one.try_next(), Some(Changed::Provider("a".into())));
        assert_eq!(feed.0.lock().unwrap().len(), 1);
    }
}
