//! Publishes changes to every subscriber: each has a [`WorkQueue`] of its own, which coalesces.

use std::{
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use skyward_planner::base::key::Key;

use super::queue::WorkQueue;

/// What a watch saw.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
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
    /// A namespace was added, changed or removed.
    Namespace(String),
    /// A CronTask was added, changed or removed.
    CronTask(Key),
}

/// Publishes to every subscriber. The context's [`Broadcast<Change>`] has the changes that the
/// watches of [`crate::caches::Caches`] saw, after the cache has them.
#[derive(Clone, Debug)]
pub struct Broadcast<C = Change>(Arc<Mutex<Subscribers<C>>>);

type Subscribers<C> = Vec<Weak<WorkQueue<C>>>;

impl<C> Default for Broadcast<C> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<C: Clone + Eq + Hash + Send + 'static> Broadcast<C> {
    /// A queue of every change from now on, each at least once after it happened. Existing objects
    /// are not repeated: read the caches after subscribing.
    pub fn subscribe(&self) -> Arc<WorkQueue<C>> {
        let wakeups = WorkQueue::new();
        self.0.lock().push(Arc::downgrade(&wakeups));
        wakeups
    }

    /// Publishes a change.
    pub fn publish(&self, change: &C) {
        self.0.lock().retain(|subscriber| match subscriber.upgrade() {
            Some(wakeups) => {
                wakeups.enqueue(change.clone());
                true
            }
            None => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_subscriber_is_forgotten() {
        let feed = Broadcast::default();
        let one = feed.subscribe();
        drop(feed.subscribe());
        feed.publish(&Change::Provider("a".into()));
        assert_eq!(one.try_next(), Some(Change::Provider("a".into())));
        assert_eq!(feed.0.lock().len(), 1);
    }
}
