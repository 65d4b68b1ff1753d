//! A plan of a Machine, and what its steps found.

use std::time::Duration;

use jiff::Timestamp;
use skyward_api::{MachineStatus, machine::BootstrapFailure};
use skyward_core::machine::{Endpoint, Rental};

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
    /// The machine is given up: the output of its bootstrap is kept before the status is written.
    pub keep_log: bool,
    /// Hash of an environment that was made, and the versions of its packages, which are kept before the
    /// status is written.
    pub keep_lock: Option<(String, String)>,
    /// Why the plan is as it is.
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
        /// What its host key must be.
        trust: Trust,
        /// Hash of the environment to make there; `None` = it is connected as it is.
        environment: Option<String>,
    },
    /// Closes the connection.
    Disconnect,
    /// Asks the provider to delete it.
    Delete,
    /// Lets the record go.
    RemoveFinalizer,
    /// Its agent refuses our epoch: check whether we still lead.
    DoubtLeadership,
}

/// The host key that a machine must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This one, in OpenSSH form: it is on record, or the provider reports it.
    Key(String),
    /// Any that the machine proves with the token of its boot data.
    Proof,
    /// Any: the first one counts.
    FirstContact,
}

/// The steps' findings, from which a status is made.
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
    /// Why the machine is beyond repair: reason and message.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Which step of its bootstrap failed.
    pub(crate) bootstrap: Option<BootstrapFailure>,
    /// Why the machine, which took runs, cannot be reached.
    pub(crate) lost_connection: Option<String>,
    /// Its agent answers and refuses our epoch.
    pub(crate) epoch_ahead: bool,
}

impl Plan {
    /// Looks again after that long at the latest.
    pub(crate) fn requeue_after(&mut self, after: Duration) {
        self.next.requeue_after(after);
    }

    /// Looks again at that time at the latest.
    pub(crate) fn requeue_at(&mut self, now: Timestamp, at: Timestamp) {
        self.requeue_after(elapsed(now, at).max(Duration::from_millis(20)));
    }
}
