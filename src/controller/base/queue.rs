//! Which objects are to be looked at again: sets of keys that coalesce.
//!
//! A [`WorkQueue`] holds each key at most once, however often it is enqueued, so it is
//! bounded by the number of objects, never blocks the code that enqueues and never
//! loses a key. Controllers, dispatchers and watches talk to each other only this way.

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
    sync::Arc,
};

use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A coalescing queue of keys.
#[derive(Debug)]
pub struct WorkQueue<K> {
    queue: Mutex<Queue<K>>,
    notify: Notify,
}

#[derive(Debug)]
struct Queue<K> {
    order: VecDeque<K>,
    members: HashSet<K>,
}

impl<K: Clone + Eq + Hash + Send + 'static> WorkQueue<K> {
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
    pub fn enqueue(&self, key: K) {
        let mut queue = self.queue.lock();
        if queue.members.insert(key.clone()) {
            queue.order.push_back(key);
            drop(queue);
            self.notify.notify_one();
        }
    }

    /// The oldest key, if any waits.
    pub fn try_next(&self) -> Option<K> {
        let mut queue = self.queue.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_woken_twice_comes_once_and_in_order() {
        let wakeups = WorkQueue::new();
        wakeups.enqueue(1);
        wakeups.enqueue(2);
        wakeups.enqueue(1);
        assert_eq!(wakeups.next().await, 1);
        assert_eq!(wakeups.next().await, 2);
        assert_eq!(wakeups.try_next(), None);
        wakeups.enqueue(1);
        assert_eq!(wakeups.next().await, 1);
    }
}
