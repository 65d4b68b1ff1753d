//! Who must look at what again: sets of keys that coalesce.
//!
//! A [`Wakeups`] holds each key at most once, however often it is woken, so it is
//! bounded by the number of objects, never blocks the one who wakes and never loses
//! a wake-up. Controllers, dispatchers and watches talk to each other only this way.

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
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

/// Tells everyone who subscribed. As [`Feed<Changed>`] of the context: what the watches
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
    fn a_dropped_subscriber_is_forgotten() {
        let feed = Feed::default();
        let one = feed.subscribe();
        drop(feed.subscribe());
        feed.tell(&Changed::Provider("a".into()));
        assert_eq!(one.try_next(), Some(Changed::Provider("a".into())));
        assert_eq!(feed.0.lock().unwrap().len(), 1);
    }
}
