//! Fair turns for a bounded number of workers: namespaces have their turns one after the other, and
//! within a namespace its lanes (its Pools, or its machines), so that none waits for all the work
//! of another. A namespace has at most a part of the turns. The memory of one turn is bounded, so
//! that of a namespace is bounded too; and a namespace whose machines stand still in their turns
//! does not keep others from having one.
//!
//! [`Queue`] is the order, and pure. [`Turns`] lets callers wait for their turn.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The items that wait, in the order of the turns.
#[derive(Debug)]
pub struct Queue<T> {
    namespaces: VecDeque<Lane<Lane<T>>>,
}

/// The items of one name that wait.
#[derive(Debug)]
struct Lane<T> {
    name: String,
    waiting: VecDeque<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            namespaces: VecDeque::new(),
        }
    }
}

impl<T> Queue<T> {
    /// Adds an item at the end of that lane.
    pub fn push(&mut self, namespace: &str, name: &str, item: T) {
        let namespace = lane(&mut self.namespaces, namespace);
        lane(&mut namespace.waiting, name).waiting.push_back(item);
    }

    /// Takes out the next item of the namespaces that may have a turn; returns both.
    pub fn pop(&mut self, may: impl Fn(&str) -> bool) -> Option<(String, T)> {
        let at = self.namespaces.iter().position(|lane| may(&lane.name))?;
        let mut namespace = self.namespaces.remove(at)?;
        let item = namespace.waiting.pop_front().and_then(|mut lane| {
            let item = lane.waiting.pop_front();
            put_back(&mut namespace.waiting, lane);
            item
        });
        let name = namespace.name.clone();
        put_back(&mut self.namespaces, namespace);
        item.map(|item| (name, item))
    }
}

/// The lane of that name; a new one is the last.
fn lane<'a, T>(lanes: &'a mut VecDeque<Lane<T>>, name: &str) -> &'a mut Lane<T> {
    let at = lanes
        .iter()
        .position(|lane| lane.name == name)
        .unwrap_or_else(|| {
            lanes.push_back(Lane {
                name: name.to_owned(),
                waiting: VecDeque::new(),
            });
            lanes.len() - 1
        });
    &mut lanes[at]
}

/// Puts back a lane that had its turn and has more items, behind the other lanes.
fn put_back<T>(lanes: &mut VecDeque<Lane<T>>, lane: Lane<T>) {
    if !lane.waiting.is_empty() {
        lanes.push_back(lane);
    }
}

/// A fixed number of turns at the same time.
#[derive(Debug)]
pub struct Turns(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    counts: Counts,
    queue: Queue<oneshot::Sender<Turn>>,
}

#[derive(Debug)]
struct Counts {
    free: usize,
    /// Turns that a namespace may have at the same time.
    each: usize,
    /// Turns that each namespace has now, where it has any.
    taken: HashMap<String, usize>,
}

impl Counts {
    fn may(&self, namespace: &str) -> bool {
        self.free > 0 && self.taken.get(namespace).is_none_or(|taken| *taken < self.each)
    }

    fn take(&mut self, namespace: &str) {
        self.free -= 1;
        *self.taken.entry(namespace.to_owned()).or_default() += 1;
    }

    fn give_back(&mut self, namespace: &str) {
        self.free += 1;
        if let Some(taken) = self.taken.get_mut(namespace) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(namespace);
            }
        }
    }
}

/// A turn; dropping it gives it to the next waiter.
#[derive(Debug)]
pub struct Turn {
    namespace: String,
    /// `None`: the waiter had left, so nobody took the turn.
    turns: Option<Arc<Turns>>,
}

impl Turns {
    /// So many turns at the same time, and at most so many of them for one namespace.
    pub fn new(free: usize, each: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            counts: Counts {
                free,
                each,
                taken: HashMap::new(),
            },
            queue: Queue::default(),
        })))
    }

    /// Waits for a turn of that lane of a namespace.
    pub async fn wait(self: &Arc<Self>, namespace: &str, lane: &str) -> Turn {
        let turn_rx = {
            let mut inner = self.0.lock();
            if inner.counts.may(namespace) {
                inner.counts.take(namespace);
                return self.turn(namespace);
            }
            let (turn_tx, turn_rx) = oneshot::channel();
            inner.queue.push(namespace, lane, turn_tx);
            turn_rx
        };
        // The sender is in the queue until it is used.
        turn_rx.await.unwrap_or_else(|_| Turn {
            namespace: namespace.to_owned(),
            turns: None,
        })
    }

    fn turn(self: &Arc<Self>, namespace: &str) -> Turn {
        Turn {
            namespace: namespace.to_owned(),
            turns: Some(self.clone()),
        }
    }

    /// A turn is over: the next waiter that may have it gets it.
    fn pass_on(self: &Arc<Self>, namespace: &str) {
        self.0.lock().counts.give_back(namespace);
        loop {
            let (namespace, turn_tx) = {
                let Inner { counts, queue } = &mut *self.0.lock();
                let Some((namespace, turn_tx)) = queue.pop(|name| counts.may(name)) else {
                    return;
                };
                counts.take(&namespace);
                (namespace, turn_tx)
            };
            if let Err(mut turn) = turn_tx.send(self.turn(&namespace)) {
                // The waiter has left: another one gets the turn, and not by dropping this one.
                turn.turns = None;
                self.0.lock().counts.give_back(&namespace);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.pass_on(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    fn push<T>(queue: &mut Queue<T>, namespace: u8, lane: u8, item: T) {
        queue.push(&format!("n{namespace}"), &format!("l{lane}"), item);
    }

    #[test]
    fn a_namespace_with_a_thousand_waits_no_shorter_than_one_with_a_single_one() {
        let mut queue = Queue::default();
        for item in 0..1000 {
            push(&mut queue, 0, 0, ("loud", item));
        }
        push(&mut queue, 0, 1, ("another lane", 0));
        push(&mut queue, 1, 0, ("quiet", 0));
        let first: Vec<_> = std::iter::from_fn(|| queue.pop(|_| true))
            .map(|(_, item)| item)
            .take(4)
            .collect();
        assert_eq!(
            first,
            [("loud", 0), ("quiet", 0), ("another lane", 0), ("loud", 1)]
        );
    }

    proptest! {
        /// Random pushes and pops: `None` pops; else namespace and lane of a push.
        #[test]
        fn nobody_waits_for_more_than_one_turn_of_each_other_namespace_and_lane_and_nothing_is_lost(
            steps in proptest::collection::vec(
                proptest::option::weighted(0.6, (0..5_u8, 0..3_u8)), 1..300)
        ) {
            let mut queue = Queue::default();
            // Waiting items, by namespace and lane, in order.
            let mut waiting: BTreeMap<(u8, u8), VecDeque<usize>> = BTreeMap::new();
            // Turns of others since a namespace last had one, or began to wait.
            let mut passed: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            let (mut pushed, mut popped) = (0, 0);
            let turns = std::iter::repeat_n(None, 300);
            for step in steps.into_iter().chain(turns) {
                if let Some((namespace, pool)) = step {
                    push(&mut queue, namespace, pool, (namespace, pool, pushed));
                    waiting.entry((namespace, pool)).or_default().push_back(pushed);
                    passed.entry(namespace).or_default();
                    pushed += 1;
                    continue;
                }
                let Some((_, (namespace, pool, item))) = queue.pop(|_| true) else {
                    prop_assert!(waiting.values().all(VecDeque::is_empty));
                    continue;
                };
                popped += 1;
                let own = waiting.get_mut(&(namespace, pool)).and_then(VecDeque::pop_front);
                prop_assert_eq!(own, Some(item), "within a lane the first comes first");
                let still: BTreeSet<u8> = waiting
                    .iter()
                    .filter(|(_, items)| !items.is_empty())
                    .map(|((namespace, _), _)| *namespace)
                    .collect();
                passed.remove(&namespace);
                if still.contains(&namespace) {
                    passed.insert(namespace, Vec::new());
                }
                for (other, turns) in &mut passed {
                    if *other != namespace {
                        prop_assert!(!turns.contains(&namespace), "{other} waits for two turns of {namespace}");
                        turns.push(namespace);
                    }
                }
            }
            prop_assert_eq!(pushed, popped);
        }
    }

    #[tokio::test]
    async fn who_leaves_while_waiting_or_just_when_it_is_its_turn_takes_no_turn_with_it() {
        let turns = Turns::new(1, 1);
        let held = turns.wait("loud", "0").await;
        let mut left: Vec<_> = (0..3).map(|_| Box::pin(turns.wait("loud", "0"))).collect();
        let mut stays = Box::pin(turns.wait("quiet", "0"));
        for wait in &mut left {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        assert!(stays.as_mut().now_or_never().is_none());
        left.pop();
        // The first waiter is given the turn, and leaves without having seen it.
        drop(held);
        drop(left);
        let held = stays.as_mut().now_or_never().expect("it is its turn");
        drop(held);
        assert_eq!(turns.0.lock().counts.free, 1);
        assert!(turns.0.lock().counts.taken.is_empty());
    }

    #[test]
    fn a_namespace_has_its_part_of_the_turns_and_no_more_although_others_are_free() {
        let turns = Turns::new(3, 2);
        let wait = |namespace: &'static str, lane: u8| {
            let turns = turns.clone();
            Box::pin(async move { turns.wait(namespace, &lane.to_string()).await })
        };
        let mut loud: Vec<_> = (0..3)
            .filter_map(|lane| wait("loud", lane).now_or_never())
            .collect();
        assert_eq!(loud.len(), 2);
        let (mut third, mut fourth) = (wait("loud", 3), wait("loud", 4));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(fourth.as_mut().now_or_never().is_none());
        let quiet = wait("quiet", 0).now_or_never();
        assert!(quiet.is_some());
        drop(quiet);
        assert!(
            third.as_mut().now_or_never().is_none(),
            "a turn is free, and is not theirs"
        );
        loud.pop();
        let held = third.as_mut().now_or_never();
        assert!(held.is_some());
        assert!(fourth.as_mut().now_or_never().is_none());
        drop((held, loud));
        assert!(fourth.as_mut().now_or_never().is_some());
        assert!(turns.0.lock().counts.taken.is_empty());
    }
}
