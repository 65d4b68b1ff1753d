//! Budgets of the memory that messages of machines may fill.
//!
//! Limits of single messages (`limits.rs`) bound one machine. They do not bound a hundred machines
//! that all send the largest message without its last byte. So three uses are charged to budgets of
//! the machine's namespace and of the installation:
//!
//! - messages that a connection holds beyond [`FREE`], because they are incomplete or their readers
//!   have not taken them yet ([`Meter`](crate::meter::Meter));
//! - output of bootstrap scripts beyond a small amount;
//! - in a budget of their own, facts that wait for their dispatcher, are claimed by no Task, or
//!   wait to be collected. Collecting needs room on a connection, so facts must not take all of it.
//!
//! Without room a connection is not read, and is given up when that lasts long. Such a connection
//! is always of a namespace that has used its own part: a part of each budget is guaranteed to
//! every namespace (`room.rs`), as long as machines of at most [`GUARANTEES`] namespaces fill
//! anything at the same time.
//!
//! No set of connections waits for each other: while a connection holds next to nothing, it takes
//! at once all the room that its open calls can fill, and a call that would need more is not made
//! before there is room for its answer. So a connection with room waits for no more, only for its
//! machine and the readers of its messages.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    connector::WINDOW,
    room::{Grant, Rooms, Terms},
};

const MIB: usize = 1024 * 1024;
/// Budgets are counted in units of this many bytes.
pub(crate) const UNIT: usize = 1024;
/// Namespaces to which a part of each budget is guaranteed at the same time.
const GUARANTEES: usize = 12;
/// How much facts of machines may hold. A fact takes up to twice as much while it is decoded and
/// copied.
const FACTS: Terms = Terms {
    each: 4 * MIB / UNIT,
    guaranteed: MIB / UNIT,
    guarantees: GUARANTEES,
    shared: 8 * MIB / UNIT,
};
/// How many bytes of that the facts of one machine may hold.
const MACHINE_FACTS: usize = 2 * MIB;
/// How much connections and scripts may hold. The guaranteed part is enough for any one connection.
const WIRE: Terms = Terms {
    each: 15 * MIB / 2 / UNIT,
    guaranteed: MOST.div_ceil(UNIT),
    guarantees: GUARANTEES,
    shared: 10 * MIB / UNIT,
};
/// Bytes that a connection may hold without asking: answers, and facts without logs.
pub(crate) const FREE: usize = 32 * 1024;
/// Most bytes that HTTP/2 lets a connection hold, and a little.
pub(crate) const MOST: usize = WINDOW as usize + FREE;
/// How long a connection, or a stream of facts, waits for room before it is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The budgets of the installation and of its namespaces.
#[derive(Clone, Debug)]
pub struct Budget {
    facts: Arc<Rooms>,
    wire: Arc<Rooms>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            facts: Rooms::new(FACTS),
            wire: Rooms::new(WIRE),
        }
    }
}

impl Budget {
    /// The account that one machine of that namespace is charged to.
    pub fn account(&self, namespace: &str) -> Account {
        Account {
            machine: Arc::new(Semaphore::new(MACHINE_FACTS / UNIT)),
            namespace: Arc::from(namespace),
            budget: self.clone(),
        }
    }
}

/// The account that one machine is charged to. Clones are the same account.
#[derive(Clone, Debug)]
pub struct Account {
    /// Room for its facts.
    machine: Arc<Semaphore>,
    namespace: Arc<str>,
    budget: Budget,
}

/// Room that is taken until this is dropped.
#[must_use]
pub struct Charge {
    grant: Grant,
    _machine: Option<OwnedSemaphorePermit>,
}

impl From<Grant> for Charge {
    fn from(grant: Grant) -> Self {
        Self {
            grant,
            _machine: None,
        }
    }
}

impl Charge {
    pub(crate) fn bytes(&self) -> usize {
        self.grant.units() * UNIT
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({} KiB)", self.bytes() / 1024)
    }
}

/// Room for something that is copied: the room is taken until the last copy is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    _charges: Arc<Vec<Charge>>,
}

impl From<Vec<Charge>> for Room {
    fn from(charges: Vec<Charge>) -> Self {
        Self {
            _charges: Arc::new(charges),
        }
    }
}

/// Values that differ only in their room are equal.
impl PartialEq for Room {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Room {}

impl Account {
    /// Takes room for a fact, if there is some now.
    pub fn try_take(&self, bytes: usize) -> Option<Charge> {
        let units = bytes.div_ceil(UNIT);
        let machine = self.machine.clone().try_acquire_many_owned(permits(units)).ok()?;
        let grant = self.budget.facts.try_take(&self.namespace, units)?;
        Some(Charge {
            grant,
            _machine: Some(machine),
        })
    }

    /// Takes room for a fact, when there is some; first come, first served. `None`: there was none
    /// for long. While it waits, unread bytes stay on the machine's connection, whose room others
    /// may need.
    pub async fn take(&self, bytes: usize) -> Option<Charge> {
        let units = bytes.div_ceil(UNIT);
        let take = async {
            // The semaphore is never closed.
            let machine = self.machine.clone().acquire_many_owned(permits(units)).await.ok();
            Charge {
                grant: self.budget.facts.take(&self.namespace, units).await,
                _machine: machine,
            }
        };
        timeout(PATIENCE, take).await.ok()
    }

    /// Takes room for the output of a script, if there is some now.
    pub(crate) fn try_take_for_script(&self, bytes: usize) -> Option<Charge> {
        let grant = self.budget.wire.try_take(&self.namespace, bytes.div_ceil(UNIT))?;
        Some(grant.into())
    }

    /// Takes room for messages, when there is some.
    pub(crate) fn take_for_messages(&self, bytes: usize) -> BoxFuture<'static, Charge> {
        let Self {
            namespace, budget, ..
        } = self.clone();
        async move { budget.wire.take(&namespace, bytes.div_ceil(UNIT)).await.into() }.boxed()
    }
}

fn permits(units: usize) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::STREAM_WINDOW;

    const OWN_FACTS: usize = MIB;

    #[test]
    fn a_namespace_has_its_guarantee_although_three_others_hold_all_that_they_can_get() {
        let budget = Budget::default();
        let mut taken = Vec::new();
        let mut scripts = Vec::new();
        for namespace in ["a", "b", "c"] {
            let machines: Vec<_> = (0..10).map(|_| budget.account(namespace)).collect();
            for machine in &machines {
                taken.extend(std::iter::from_fn(|| machine.try_take(64 * 1024)));
                scripts.extend(std::iter::from_fn(|| machine.try_take_for_script(64 * 1024)));
            }
            assert!(machines[0].try_take(64 * 1024).is_none());
        }
        let other = budget.account("d");
        assert!(other.try_take(OWN_FACTS).is_some(), "its facts have room");
        let messages = other.take_for_messages(MOST).now_or_never();
        assert!(
            messages.is_some(),
            "and so has a connection of its machines, whatever it needs"
        );
    }

    #[test]
    fn a_machine_cannot_use_up_the_budget_of_its_namespace() {
        let budget = Budget::default();
        let (liar, honest) = (budget.account("a"), budget.account("a"));
        let all = liar.try_take(MACHINE_FACTS);
        assert!(all.is_some() && liar.try_take(1).is_none());
        assert!(honest.try_take(MACHINE_FACTS).is_some());
    }

    #[test]
    fn facts_that_wait_to_be_collected_leave_room_for_collecting_them() {
        let budget = Budget::default();
        let machines: Vec<Account> = (0..100).map(|_| budget.account("a")).collect();
        let facts: Vec<_> = machines.iter().map_while(|m| m.try_take(MIB)).collect();
        assert!(facts.len() < machines.len());
        assert!(machines[0].take_for_messages(MOST).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_gets_it_when_it_is_given_back_and_gives_up_after_some_time() {
        let budget = Budget::default();
        let account = budget.account("a");
        let first = account.take(MACHINE_FACTS).await;
        assert!(
            account.take(UNIT).await.is_none(),
            "a stream of facts is read later"
        );
        let second = account.take(UNIT);
        tokio::pin!(second);
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(format!("{:?}", second.await), "Some(Charge(1 KiB))");
    }

    #[test]
    fn a_namespace_has_room_for_as_many_transfers_as_may_take_place_there() {
        // One stream of facts, and one of a log or a result.
        let transfer = 2 * STREAM_WINDOW as usize + FREE;
        assert!(WIRE.each * UNIT / transfer >= 12);
    }
}
