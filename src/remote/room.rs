//! Room that namespaces share, counted in units, without any namespace keeping out another.
//!
//! A namespace has at most [`Terms::each`] units. The first part of them ([`Terms::guaranteed`])
//! is its own: no other namespace can have it. Units beyond that come from one part that all
//! namespaces share. [`Terms::guarantees`] namespaces have a guarantee at the same time; the
//! namespaces that come after them have the shared part only.
//!
//! A waiter gets all its units at once: no waiter holds a part and waits for the rest. Waiters of
//! one namespace are served in their order, and so are the waiters for the shared part.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How much there is, in units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The most that one namespace may have.
    pub(crate) each: usize,
    /// The part of that which no other namespace can take.
    pub(crate) guaranteed: usize,
    /// Namespaces that have a guaranteed part at the same time.
    pub(crate) guarantees: usize,
    /// Units that all namespaces share, beyond the guaranteed parts.
    pub(crate) shared: usize,
}

/// Room of one kind.
pub(crate) struct Rooms(Mutex<Inner>);

struct Inner {
    terms: Terms,
    /// Units taken of the shared part.
    shared: usize,
    /// Guarantees that namespaces have now.
    given: usize,
    /// Namespaces that hold units.
    namespaces: HashMap<Arc<str>, Taken>,
    waiting: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Default)]
struct Taken {
    units: usize,
    guaranteed: usize,
}

impl Taken {
    fn of_the_shared(self) -> usize {
        self.units.saturating_sub(self.guaranteed)
    }
}

struct Waiter {
    namespace: Arc<str>,
    units: usize,
    granted_tx: oneshot::Sender<Grant>,
}

/// Whether a caller may have now the units that it asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Yes,
    /// Not now: its namespace would have too much.
    NotOwn,
    /// Not now: too much of the shared part would be taken.
    NotShared,
}

/// Room that is taken until this is dropped.
#[must_use]
pub(crate) struct Grant {
    rooms: Arc<Rooms>,
    namespace: Arc<str>,
    units: usize,
}

impl Grant {
    pub(crate) fn units(&self) -> usize {
        self.units
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({})", self.units)
    }
}

impl fmt::Debug for Rooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rooms").finish_non_exhaustive()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // A waiter that has left meanwhile gives its grant back at once.
        let granted = {
            let mut inner = self.rooms.0.lock();
            inner.give_back(&self.namespace, self.units);
            inner.next()
        };
        for waiter in granted {
            let grant = self.rooms.grant(&waiter.namespace, waiter.units);
            drop(waiter.granted_tx.send(grant));
        }
    }
}

impl Inner {
    /// The units of a namespace, with the guarantee that it has or would get.
    fn taken(&self, namespace: &str) -> Taken {
        let mut taken = self.namespaces.get(namespace).copied().unwrap_or_default();
        if taken.guaranteed == 0 && self.given < self.terms.guarantees {
            taken.guaranteed = self.terms.guaranteed;
        }
        taken
    }

    fn verdict(&self, namespace: &str, units: usize) -> Verdict {
        let now = self.taken(namespace);
        let then = Taken {
            units: now.units + units,
            ..now
        };
        let more = then.of_the_shared() - now.of_the_shared();
        if then.units > self.terms.each {
            Verdict::NotOwn
        } else if more > 0 && self.shared + more > self.terms.shared {
            Verdict::NotShared
        } else {
            Verdict::Yes
        }
    }

    fn take(&mut self, namespace: &Arc<str>, units: usize) {
        if units == 0 {
            return;
        }
        let taken = self.taken(namespace);
        let known = self.namespaces.entry(namespace.clone()).or_default();
        self.shared -= known.of_the_shared();
        self.given += usize::from(known.guaranteed == 0 && taken.guaranteed > 0);
        *known = Taken {
            units: taken.units + units,
            ..taken
        };
        self.shared += known.of_the_shared();
    }

    fn give_back(&mut self, namespace: &str, units: usize) {
        let Some(known) = self.namespaces.get_mut(namespace) else {
            return;
        };
        self.shared -= known.of_the_shared();
        known.units -= units;
        self.shared += known.of_the_shared();
        if known.units == 0 {
            self.given -= usize::from(known.guaranteed > 0);
            self.namespaces.remove(namespace);
        }
    }

    /// Takes out the waiters that may have their units now, and takes the units for them.
    fn next(&mut self) -> Vec<Waiter> {
        let mut granted = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut behind: HashSet<Arc<str>> = HashSet::new();
        let mut shared_is_awaited = false;
        waiting.retain(|waiter| !waiter.granted_tx.is_closed());
        for waiter in waiting {
            let verdict = self.verdict_behind(&waiter, &behind, shared_is_awaited);
            if verdict == Verdict::Yes {
                self.take(&waiter.namespace, waiter.units);
                granted.push(waiter);
                continue;
            }
            shared_is_awaited |= verdict == Verdict::NotShared;
            behind.insert(waiter.namespace.clone());
            self.waiting.push_back(waiter);
        }
        granted
    }

    /// The verdict for a waiter that waits behind others.
    fn verdict_behind(
        &self,
        waiter: &Waiter,
        behind: &HashSet<Arc<str>>,
        shared_is_awaited: bool,
    ) -> Verdict {
        if behind.contains(&waiter.namespace) {
            return Verdict::NotOwn;
        }
        let verdict = self.verdict(&waiter.namespace, waiter.units);
        let is_of_the_shared = || self.takes_of_the_shared(&waiter.namespace, waiter.units);
        if verdict == Verdict::Yes && shared_is_awaited && is_of_the_shared() {
            return Verdict::NotShared;
        }
        verdict
    }

    fn takes_of_the_shared(&self, namespace: &str, units: usize) -> bool {
        let taken = self.taken(namespace);
        taken.units + units > taken.guaranteed
    }

    /// Whether a caller that comes now may have its units before the waiters.
    fn may_at_once(&self, namespace: &Arc<str>, units: usize) -> bool {
        let open = || {
            self.waiting
                .iter()
                .filter(|waiter| !waiter.granted_tx.is_closed())
        };
        if open().any(|waiter| waiter.namespace == *namespace) {
            return false;
        }
        let awaited =
            || open().any(|waiter| self.verdict(&waiter.namespace, waiter.units) == Verdict::NotShared);
        self.verdict(namespace, units) == Verdict::Yes
            && !(self.takes_of_the_shared(namespace, units) && awaited())
    }
}

impl Rooms {
    pub(crate) fn new(terms: Terms) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            terms,
            shared: 0,
            given: 0,
            namespaces: HashMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    fn grant(self: &Arc<Self>, namespace: &Arc<str>, units: usize) -> Grant {
        Grant {
            rooms: self.clone(),
            namespace: namespace.clone(),
            units,
        }
    }

    /// Takes so many units, if that is possible without waiting.
    pub(crate) fn try_take(self: &Arc<Self>, namespace: &Arc<str>, units: usize) -> Option<Grant> {
        let mut inner = self.0.lock();
        inner.may_at_once(namespace, units).then(|| {
            inner.take(namespace, units);
            self.grant(namespace, units)
        })
    }

    /// Takes so many units, and waits until there are enough.
    pub(crate) async fn take(self: &Arc<Self>, namespace: &Arc<str>, units: usize) -> Grant {
        let granted_rx = {
            let mut inner = self.0.lock();
            if inner.may_at_once(namespace, units) {
                inner.take(namespace, units);
                return self.grant(namespace, units);
            }
            let (granted_tx, granted_rx) = oneshot::channel();
            inner.waiting.push_back(Waiter {
                namespace: namespace.clone(),
                units,
                granted_tx,
            });
            granted_rx
        };
        // The sender is in the queue until it is used.
        granted_rx.await.unwrap_or_else(|_| self.grant(namespace, 0))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms {
        each: 8,
        guaranteed: 2,
        guarantees: 3,
        shared: 10,
    };

    fn name(number: usize) -> Arc<str> {
        Arc::from(format!("n{number}"))
    }

    /// Takes units one by one until there are no more; returns how many.
    fn all(rooms: &Arc<Rooms>, namespace: usize, held: &mut Vec<Grant>) -> usize {
        let before = held.len();
        while let Some(grant) = rooms.try_take(&name(namespace), 1) {
            held.push(grant);
        }
        held.len() - before
    }

    #[test]
    fn other_namespaces_have_their_guarantee_whatever_some_hold_for_good() {
        let rooms = Rooms::new(TERMS);
        let mut held = Vec::new();
        assert_eq!(all(&rooms, 0, &mut held), 8, "what one namespace may have");
        assert_eq!(
            all(&rooms, 1, &mut held),
            6,
            "two of its own, and what is left of the shared"
        );
        assert_eq!(all(&rooms, 2, &mut held), 2, "its own");
        assert_eq!(
            all(&rooms, 3, &mut held),
            0,
            "more namespaces than there are guarantees"
        );
        drop(held);
        let inner = rooms.0.lock();
        assert_eq!((inner.shared, inner.given, inner.namespaces.len()), (0, 0, 0));
    }

    #[test]
    fn who_waits_for_much_gets_it_all_at_once_and_before_those_who_came_later() {
        let rooms = Rooms::new(TERMS);
        let (a, b) = (name(0), name(1));
        let first = rooms.try_take(&a, 6).expect("nobody else has anything");
        let mut much = Box::pin(rooms.take(&a, 8));
        assert!(much.as_mut().now_or_never().is_none());
        assert!(rooms.try_take(&a, 1).is_none(), "another one waits");
        let mut little = Box::pin(rooms.take(&a, 1));
        assert!(little.as_mut().now_or_never().is_none());
        assert!(rooms.try_take(&b, 2).is_some(), "others do not wait for it");
        drop(first);
        let much = much.as_mut().now_or_never().expect("its turn");
        assert!(little.as_mut().now_or_never().is_none());
        drop(much);
        assert!(little.as_mut().now_or_never().is_some());
    }

    #[test]
    fn who_leaves_while_waiting_or_just_when_it_is_given_room_keeps_none() {
        let rooms = Rooms::new(TERMS);
        let a = name(0);
        let first = rooms.try_take(&a, 8).expect("nobody else has anything");
        let mut left: Vec<_> = (0..3).map(|_| Box::pin(rooms.take(&a, 8))).collect();
        for wait in &mut left {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        left.pop();
        drop(first);
        drop(left);
        assert_eq!(rooms.0.lock().namespaces.len(), 0);
    }

    proptest! {
        /// Namespaces take and give back; the counts match, and no guarantee is broken.
        #[test]
        fn the_counts_are_those_of_what_is_held(
            steps in proptest::collection::vec((0_usize..6, 1_usize..9, any::<bool>()), 1..200)
        ) {
            let rooms = Rooms::new(TERMS);
            let mut held: Vec<(usize, Grant)> = Vec::new();
            for (namespace, units, give) in steps {
                if give && !held.is_empty() {
                    drop(held.remove(units % held.len()));
                } else if let Some(grant) = rooms.try_take(&name(namespace), units) {
                    held.push((namespace, grant));
                }
                let inner = rooms.0.lock();
                for namespace in 0..6 {
                    let sum: usize = held.iter().filter(|(of, _)| *of == namespace).map(|(_, grant)| grant.units()).sum();
                    let taken = inner.namespaces.get(&*name(namespace)).copied().unwrap_or_default();
                    prop_assert_eq!(taken.units, sum);
                    prop_assert!(sum <= TERMS.each);
                }
                let shared: usize = inner.namespaces.values().map(|taken| taken.of_the_shared()).sum();
                prop_assert_eq!(shared, inner.shared);
                prop_assert!(shared <= TERMS.shared);
                prop_assert_eq!(inner.namespaces.values().filter(|taken| taken.guaranteed > 0).count(), inner.given);
            }
        }
    }
}
