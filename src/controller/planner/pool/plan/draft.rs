//! A plan, and a plan in the making: what its steps read and write.

use std::time::Duration;

use jiff::Timestamp;
use skyward_api::{
    machine::MachineSpec,
    pool::{PoolStatus, ScalingReason},
};
use skyward_core::{MachineRef, PoolScope, Usd};

use crate::{
    base::requeue::Next,
    events::{self, EventSpec},
    pool::{
        choice::ResolvedCandidate,
        facts::{MachineFacts, Observed},
    },
};

/// What a Pool should do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The status to record before anything is done.
    pub status: PoolStatus,
    /// The effects, in this order.
    pub actions: Vec<Action>,
    /// What to tell people afterwards.
    pub events: Vec<EventSpec>,
    /// When to look again, if nothing changes before.
    pub next: Next,
    /// Why the plan is as it is, step by step.
    pub reasons: Vec<String>,
}

/// One effect, fully decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Puts our finalizer on the Pool.
    AddFinalizer,
    /// Makes the Pool's SSH key, if it has none.
    EnsureKey,
    /// Records a machine, which orders it.
    CreateMachine {
        /// Its name.
        name: String,
        /// The record.
        spec: Box<MachineSpec>,
    },
    /// Gives up a machine.
    DeleteMachine {
        /// Its name.
        name: String,
        /// Its UID, so that no later Machine of that name is deleted.
        uid: String,
        /// Why.
        why: Why,
        /// Let its runs finish, however long they take.
        finish_runs: bool,
    },
    /// Deletes a machine that the Provider lists although it has no record.
    DeleteUnrecorded(String, MachineRef),
    /// Returns what the Pool's machines shared at a Provider.
    Release {
        /// Name of the Provider.
        provider: String,
        /// The Pool, and its regions.
        scope: PoolScope,
    },
    /// Deletes the stored output of its machines' bootstraps.
    DeleteLogs,
    /// Deletes the Pool's SSH key.
    ReleaseKey,
    /// Lets the Pool go.
    RemoveFinalizer,
}

/// Why a machine is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It failed.
    Failed,
    /// It vanished, or the cloud took it back.
    Lost,
    /// Fewer are wanted.
    NotWanted,
    /// It was unneeded for `autoscale.scaleDownAfter`.
    Idle,
    /// The Pool sleeps.
    Asleep,
    /// The Pool asks for another kind of machine now.
    Outdated,
    /// Another machine has its slot.
    Duplicate,
    /// The Pool is suspended.
    Suspended,
    /// The machines that it must reach are not available in its place.
    Moved,
    /// Its terms hold no longer, so it was not ordered.
    Withdrawn,
    /// Its order was refused as it is or by a cloud that takes none now, and something else fits.
    Refused,
    /// The cloud takes it back.
    Reclaimed,
    /// The Pool has spent its budget.
    BudgetSpent,
    /// The Pool has reached its `maxLifetime`.
    LifetimeExceeded,
    /// The Pool is being deleted.
    PoolDeleted,
}

impl Why {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Failed => "it failed",
            Self::Lost => "it was lost",
            Self::NotWanted => "fewer machines are wanted",
            Self::Idle => "no work has needed it for a while",
            Self::Asleep => "the Pool has nothing to do and sleeps",
            Self::Outdated => "the Pool asks for another kind of machine now",
            Self::Duplicate => "another machine has its slot",
            Self::Suspended => "the Pool is suspended",
            Self::Moved => "the machines that it must reach are not available where it is; all of them move",
            Self::Withdrawn => "its terms hold no longer, so it was not ordered",
            Self::Refused => "its order was refused, and another offer fits",
            Self::Reclaimed => "the cloud takes it back",
            Self::BudgetSpent => "the Pool has spent its budget",
            Self::LifetimeExceeded => "the Pool has reached its maxLifetime",
            Self::PoolDeleted => "the Pool is being deleted",
        }
    }
}

/// Why machines cannot be created now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Reason of the conditions.
    pub reason: &'static str,
    /// What is wrong and what would help.
    pub message: String,
    /// Whether somebody must act.
    pub stalled: bool,
}

impl Block {
    /// Somebody must act.
    pub const fn stalled(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            stalled: true,
        }
    }

    /// It passes by itself.
    pub const fn waiting(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            stalled: false,
        }
    }
}

/// How far a Pool may grow beyond `nodes.desired` now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Growth {
    /// As far as it wants.
    #[default]
    Free,
    /// By one machine, which shows whether growth works again.
    Trial,
    /// Not at all for some time, for this reason.
    Waits(Block),
}

/// A plan in the making, which the steps of `plan` write one after the other.
pub(crate) struct Draft<'a> {
    pub(crate) seen: &'a Observed,
    /// The Pool's candidates.
    pub(crate) candidates: &'a [ResolvedCandidate],
    pub(crate) now: Timestamp,
    pub(crate) status: PoolStatus,
    pub(crate) actions: Vec<Action>,
    pub(crate) events: Vec<EventSpec>,
    pub(crate) reasons: Vec<String>,
    pub(crate) next: Next,
    pub(crate) block: Option<Block>,
    /// Names of machines this plan gives up.
    pub(crate) given_up: Vec<String>,
    /// Slots this plan orders machines for.
    pub(crate) ordered: Vec<u32>,
    /// What the last failure was, in words.
    pub(crate) last_failure: Option<String>,
    /// Whether an Offer that was not refused lately could be ordered now.
    pub(crate) elsewhere: bool,
    /// What its machines have cost.
    pub(crate) spent: Usd,
    /// Whether its budget is spent.
    pub(crate) over_budget: bool,
    /// Whether it has reached its `maxLifetime`.
    pub(crate) expired: bool,
    /// Whether it sleeps.
    pub(crate) asleep: bool,
    /// Machines that it works towards while nothing keeps it from having any.
    pub(crate) target: u32,
    /// Why that is another number than before.
    pub(crate) scaled: Option<(ScalingReason, String)>,
    /// How far it may grow beyond `nodes.desired`.
    pub(crate) growth: Growth,
}

impl<'a> Draft<'a> {
    pub(super) fn new(seen: &'a Observed, candidates: &'a [ResolvedCandidate], now: Timestamp) -> Self {
        Self {
            seen,
            candidates,
            now,
            status: seen.pool.status.clone(),
            actions: Vec::new(),
            events: Vec::new(),
            reasons: Vec::new(),
            next: Next::Wait,
            block: None,
            given_up: Vec::new(),
            ordered: Vec::new(),
            last_failure: None,
            elsewhere: false,
            spent: Usd::ZERO,
            over_budget: false,
            expired: false,
            asleep: false,
            target: seen.pool.spec.nodes.desired,
            scaled: None,
            growth: Growth::Free,
        }
    }

    /// Machines wanted now.
    pub(crate) fn wanted(&self) -> u32 {
        if self.is_suspended() || self.is_ended() || self.asleep {
            0
        } else {
            self.target
        }
    }

    /// Least machines with which the Pool works: machines beyond `nodes.desired` are a gain, and no condition.
    pub(crate) fn least(&self) -> u32 {
        let floor = self.wanted().min(self.seen.pool.spec.nodes.desired);
        self.seen.pool.resolved.least(floor)
    }

    /// Whether the Pool grows and has as many machines that took runs as `nodes.desired` asks for: what fails then is
    /// its growth.
    pub(crate) fn has_floor(&self) -> bool {
        let nodes = &self.seen.pool.spec.nodes;
        let proven = self.live().filter(|machine| machine.ready_at.is_some());
        nodes.grows() && proven.count() >= nodes.desired as usize
    }

    /// Whether a limit of the Pool itself ended it: its budget is spent, or its lifetime over.
    pub(crate) fn is_ended(&self) -> bool {
        self.over_budget || self.expired
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.seen.pool.resolved.suspended
    }

    /// Machines that are neither failed, nor going, nor given up by this plan.
    pub(crate) fn live(&self) -> impl Iterator<Item = &'a MachineFacts> + use<'a, '_> {
        self.seen
            .machines
            .iter()
            .filter(|machine| machine.is_live() && !self.given_up.contains(&machine.name))
    }

    /// Machines that occupy their slot. Machines that this plan gives up still do, unless they
    /// were never ordered: those go before another is ordered.
    pub(crate) fn holding(&self) -> impl Iterator<Item = &'a MachineFacts> + use<'a, '_> {
        self.seen.machines.iter().filter(|machine| {
            let was_ordered = !machine.refused || machine.perhaps_ordered;
            machine.occupies() && (was_ordered || !self.given_up.contains(&machine.name))
        })
    }

    /// Gives up a machine. A machine that the watch has not shown has no UID yet: the next plan
    /// gives it up.
    pub(crate) fn give_up(&mut self, machine: &MachineFacts, why: Why, finish_runs: bool) -> bool {
        let Some(uid) = &machine.uid else { return false };
        self.actions.push(Action::DeleteMachine {
            name: machine.name.clone(),
            uid: uid.clone(),
            why,
            finish_runs,
        });
        self.given_up.push(machine.name.clone());
        if why != Why::PoolDeleted {
            let reason = events::reason::MACHINE_REMOVED;
            let is_named = [Why::Failed, Why::Lost].contains(&why);
            let failure = machine.failure.as_ref().filter(|_| is_named);
            let cause = failure.map_or(String::new(), |failure| format!(" ({})", failure.reason));
            let (name, why) = (&machine.name, why.words());
            let note = format!("Machine \"{name}\" is given up: {why}{cause}");
            self.events.push(EventSpec::normal(reason, "Delete", note));
        }
        true
    }

    pub(crate) fn because(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    pub(crate) fn block(&mut self, block: Block) {
        self.reasons
            .push(format!("blocked, {}: {}", block.reason, block.message));
        self.block = Some(block);
    }

    /// Looks again after that long at the latest.
    pub(crate) fn requeue_after(&mut self, after: Duration) {
        self.next.requeue_after(after);
    }

    pub(super) fn finish(self) -> Plan {
        let Self {
            status,
            actions,
            events,
            reasons,
            next,
            ..
        } = self;
        Plan {
            status,
            actions,
            events,
            next,
            reasons,
        }
    }
}

/// Formats names of Providers for messages.
pub(crate) fn named<'a>(providers: impl IntoIterator<Item = impl AsRef<str>> + 'a) -> String {
    let names: Vec<String> = providers
        .into_iter()
        .map(|name| format!("\"{}\"", name.as_ref()))
        .collect();
    match names.as_slice() {
        [one] => format!("Provider {one}"),
        many => format!("Providers {}", many.join(", ")),
    }
}
