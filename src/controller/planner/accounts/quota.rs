//! How many Machines a Provider may have and what they may cost per hour, and how much of that is
//! used.

use skyward_api::{
    Machine, MachinePhase,
    machine::{MachineSpec, MachineStatus},
};
use skyward_core::Usd;

use crate::{money::hourly_price, records::is_refused};

/// Most Machines at once, and most that they may cost per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Of a Provider.
    pub total: Option<u32>,
    /// Of a Provider in one namespace.
    pub in_namespace: Option<u32>,
    /// USD per hour of a Provider.
    pub hourly: Option<Usd>,
    /// USD per hour of a Provider in one namespace.
    pub hourly_in_namespace: Option<Usd>,
    /// The entry of `limits.namespaces` that decides for the namespace.
    pub entry: Option<QuotaEntry>,
}

impl Quota {
    /// Whether one more Machine of that price, or several, would pass a limit.
    pub fn passed_by(&self, used: Used, machines: u32, hourly: Usd) -> bool {
        let many =
            |limit: Option<u32>, used: u32| limit.is_some_and(|limit| used.saturating_add(machines) > limit);
        let dear = |limit: Option<Usd>, used: Usd| limit.is_some_and(|limit| used + hourly > limit);
        many(self.total, used.total)
            || many(self.in_namespace, used.in_namespace)
            || dear(self.hourly, used.hourly)
            || dear(self.hourly_in_namespace, used.hourly_in_namespace)
    }
}

/// Machines of a Provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// In all namespaces.
    pub total: u32,
    /// In the namespace asked for.
    pub in_namespace: u32,
    /// USD per hour in all namespaces.
    pub hourly: Usd,
    /// USD per hour in the namespace asked for.
    pub hourly_in_namespace: Usd,
}

impl Used {
    /// With one more Machine, which counts with that amount per hour; `here`: in the namespace asked for.
    pub fn add(&mut self, hourly: Usd, here: bool) {
        self.total += 1;
        self.hourly += hourly;
        if here {
            self.in_namespace += 1;
            self.hourly_in_namespace += hourly;
        }
    }

    /// With machines that a plan in the making takes.
    #[must_use]
    pub fn with(mut self, machines: u32, hourly: Usd) -> Self {
        self.total += machines;
        self.in_namespace += machines;
        self.hourly += hourly;
        self.hourly_in_namespace += hourly;
        self
    }
}

/// The entry of `limits.namespaces` that decides for a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaEntry {
    /// Its place in the list.
    pub at: usize,
    /// Whether its selector can be read. An unreadable one may be meant for any namespace, so it
    /// admits no machine in any.
    pub readable: bool,
    pub(super) machines: bool,
    pub(super) hourly: bool,
    pub(super) monthly: bool,
}

/// Most that a Machine may come to cost per hour before its provider tells the price: if its
/// recorded price alone counted, a dearer machine would pass a limit unnoticed.
pub fn most_hourly(spec: &MachineSpec) -> Usd {
    let ceiling = Usd::or_zero(spec.max_hourly_cost.as_deref().unwrap_or_default());
    ceiling.max(Usd::or_zero(&spec.hourly_price))
}

/// How much a Machine may come to cost per hour beyond the amount that counts in [`Used`].
pub fn beyond(machine: &Machine) -> Usd {
    (most_hourly(&machine.spec) - counted(machine)).max(Usd::ZERO)
}

/// The amount per hour that counts for a Machine.
pub fn counted(machine: &Machine) -> Usd {
    if is_open(machine) {
        most_hourly(&machine.spec)
    } else {
        hourly_price(machine)
    }
}

/// Whether its order may still be accepted, at a price that nobody knows yet. A Machine that was
/// refused, or is given up, takes no more room than its price: that room is needed at once.
fn is_open(machine: &Machine) -> bool {
    let waits = |status: &MachineStatus| {
        status.accepted_at.is_none()
            && status.hourly_price.is_none()
            && status.phase != Some(MachinePhase::Failed)
            && !is_refused(status)
    };
    machine.metadata.deletion_timestamp.is_none() && machine.status.as_ref().is_none_or(waits)
}
