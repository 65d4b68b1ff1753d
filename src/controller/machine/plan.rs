//! What a Machine should do next: pure, as the Pool's plan.
//!
//! Ordered → Accepted → Reachable → Bootstrapping → Ready, and Draining → Deleting when it
//! is given up. [`liveness`] alone gives up a machine by time; [`status`] alone makes
//! conditions. What the provider did not answer changes nothing.

pub(crate) mod bootstrap;
pub mod deletion;
pub mod liveness;
pub mod progress;
pub mod rental;
pub mod status;
pub(crate) mod terms;

use std::time::Duration;

use jiff::Timestamp;
use skyward_api::{MachineStatus, machine::BootstrapFailure};
use skyward_core::machine::{Endpoint, Rental};

use super::observe::Observed;
pub use crate::base::requeue::Next;
use crate::{accounts::unavailable::Unavailable, base::time::elapsed, events::EventSpec};

/// What a Machine should do next.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The status to write, if it is worth a write now.
    pub status: Option<Box<MachineStatus>>,
    /// What to do, in this order, after the write.
    pub actions: Vec<Action>,
    /// What to tell people afterwards.
    pub events: Vec<EventSpec>,
    /// When to look again, if nothing changes before.
    pub next: Next,
    /// Not to be ordered again before.
    pub order_not_before: Option<Timestamp>,
    /// An Offer or Provider that has no capacity now, and what the provider said; remembered before
    /// the status is written, so that the Pool's next plan knows it.
    pub shortage: Option<(Unavailable, String)>,
    /// What its bootstrap printed is to be kept, before the status is written: it is given up.
    pub keep_log: bool,
    /// Why.
    pub reasons: Vec<String>,
}

/// One effect, fully decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Orders the machine; the order is made from its record and its Pool.
    Order,
    /// Keeps it connected.
    Connect {
        /// How to reach it.
        endpoint: Endpoint,
        /// The host key it must show; `None` = learn it.
        host_key: Option<String>,
    },
    /// Closes the connection.
    Disconnect,
    /// Asks the provider to delete it.
    Delete,
    /// Lets the record go.
    RemoveFinalizer,
    /// Its agent refuses our epoch: whether we lead still is to be asked.
    DoubtLeadership,
}

/// What the steps found: the facts that a status is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// The provider's id.
    pub(crate) id: Option<String>,
    /// What it waits for, in words.
    pub(crate) waits_for: Option<(&'static str, String)>,
    /// Its endpoint and addresses.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) private_address: Option<String>,
    pub(crate) private_interface: Option<&'static str>,
    /// What the provider says of its time and price.
    pub(crate) rental: Rental,
    /// It is beyond repair.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Which step of its bootstrap failed.
    pub(crate) bootstrap: Option<BootstrapFailure>,
    /// It cannot be reached although it took runs.
    pub(crate) lost_connection: Option<String>,
    /// Its agent answers and refuses our epoch.
    pub(crate) epoch_ahead: bool,
}

/// Decides.
pub fn plan(seen: &Observed, now: Timestamp) -> Plan {
    if seen.machine.deleting_since.is_some() {
        return deletion::plan(seen, now);
    }
    let mut plan = Plan::default();
    if seen.machine.has_failed() {
        plan.reasons.push("it failed; its Pool gives it up".to_owned());
        if seen.session.is_some() {
            plan.actions.push(Action::Disconnect);
        }
        return plan;
    }
    let mut found = progress::find(seen, now, &mut plan);
    if plan.next == Next::Again {
        // A try comes before any verdict, and what it meets is part of the first write.
        return plan;
    }
    if liveness::is_epoch_ahead(seen) {
        plan.reasons.push("its agent refuses our epoch".to_owned());
        found.epoch_ahead = true;
    }
    liveness::judge(seen, now, &mut found, &mut plan);
    if found.failure.is_some() {
        plan.actions = vec![Action::Disconnect];
    }
    if found.epoch_ahead {
        plan.actions.push(Action::DoubtLeadership);
    }
    status::write(seen, now, &found, &mut plan);
    plan
}

impl Plan {
    /// Looks again after that long at the latest.
    pub(crate) fn look_again(&mut self, after: Duration) {
        self.next = match self.next {
            Next::Again => Next::Again,
            Next::Wait => Next::After(after),
            Next::After(sooner) => Next::After(sooner.min(after)),
        };
    }

    /// Looks again at that time at the latest.
    pub(crate) fn look_again_at(&mut self, now: Timestamp, at: Timestamp) {
        self.look_again(elapsed(now, at).max(Duration::from_millis(20)));
    }
}
