//! How many machines a Pool with `nodes.max` works towards, between `nodes.desired` and that ceiling. Pure: what a
//! decision may know is in [`Sight`], the time is an argument; [`super::plan::autoscale`] translates.
//!
//! - [`growth`]: how many more machines the waiting work is worth, in one decision.
//! - [`shrink`]: which idle machines go.
//! - [`idle`]: when the whole Pool has nothing to do, and sleeps.
//!
//! A Pool grows only while work waits and shrinks only while none does, and no machine goes sooner than
//! `scaleDownAfter` after its order: a decision is not reversed while the machine of that decision starts.

pub mod growth;
pub mod idle;
pub mod shrink;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use skyward_core::Usd;

use self::{
    growth::{Capacity, growth},
    shrink::{Surplus, surplus},
};
use super::load::PoolLoad;

/// How long a machine takes from its order until it takes work, where none has told it.
pub const START: Duration = Duration::from_mins(2);
/// Least `scaleDownAfter` that is not asked for: work that comes each half minute keeps its machines.
const LEAST_AFTER: Duration = Duration::from_mins(1);
/// Between two looks at work that waits: a part of the time that a machine takes to start, within these bounds.
const SOONEST_LOOK: Duration = Duration::from_secs(1);
const LATEST_LOOK: Duration = Duration::from_secs(15);
const LOOKS_PER_START: u32 = 8;

/// `scaleDownAfter` of a Pool that does not say it. A machine that is idle for as long as its successor takes to
/// start has cost as much as the successor will: waiting so long is never worse than twice the best wait.
pub fn scale_down_after(start: Duration) -> Duration {
    start.max(LEAST_AFTER)
}

/// What a decision may know.
#[derive(Clone, Debug)]
pub struct Sight<'a> {
    /// `nodes.desired`.
    pub floor: u32,
    /// `nodes.max`.
    pub ceiling: u32,
    /// Machines that the Pool worked towards before.
    pub target: u32,
    /// How many more machines the budget bears; `None` without a budget.
    pub affordable: Option<u32>,
    /// What the dispatcher knows; `None` = nothing yet, which is not idle.
    pub load: Option<&'a PoolLoad>,
    /// Machines that are neither failed nor going.
    pub machines: Vec<Unit>,
    /// How long a machine takes from its order until it takes work.
    pub start: Duration,
    /// Least time that is billed of a machine: one step at least.
    pub minimum: Duration,
    /// How long a machine must be unneeded before it is returned.
    pub after: Duration,
}

/// A machine of a [`Sight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Whether it takes work.
    pub ready: bool,
    /// Whether it certainly has no run and no value that is not collected, and nothing else needs it now.
    pub idle: bool,
    /// When it was ordered; `None` = just now.
    pub ordered_at: Option<Timestamp>,
    /// Whether its bill has begun.
    pub billed: bool,
    /// USD per hour.
    pub price: Usd,
    /// Its slot.
    pub slot: u32,
    /// Whether other machines depend on it: it goes last.
    pub head: bool,
    /// How long until the time before its next billing step, in which it may go; zero where it may at any time.
    pub goes_in: Duration,
}

/// Why a Pool works towards a number of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// As before.
    Unchanged,
    /// `nodes.desired` or `nodes.max` moved.
    Bounds,
    /// Work waits.
    Work,
    /// Machines have been unneeded.
    Idle,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Machines that the Pool works towards.
    pub target: u32,
    /// Why.
    pub because: Because,
    /// Which machines of [`Sight::machines`] go.
    pub gone: Vec<usize>,
    /// When to look again, if nothing changes before.
    pub look: Option<Duration>,
}

/// Decides.
pub fn decide(sight: &Sight<'_>, now: Timestamp) -> Decision {
    let target = sight.target.clamp(sight.floor, sight.ceiling.max(sight.floor));
    let decision = |target, because, gone, look| Decision {
        target,
        because,
        gone,
        look,
    };
    let moved = if target == sight.target {
        Because::Unchanged
    } else {
        Because::Bounds
    };
    let Some(load) = sight.load else {
        return decision(target, moved, Vec::new(), Some(LATEST_LOOK));
    };
    let live = u32::try_from(sight.machines.len()).unwrap_or(u32::MAX);
    if load.demand.keeps_machines() {
        // Orders that could not be made until now, for which too little work waits by now, are not made any more.
        let there = live.max(load.busy_machines()).max(sight.floor);
        if there < target && grow(sight, load, there, now) == 0 {
            return decision(there, Because::Idle, Vec::new(), Some(look(sight.start)));
        }
        let more = grow(sight, load, target, now);
        if more == 0 {
            return decision(target, moved, Vec::new(), Some(look(sight.start)));
        }
        // A leader may have died between the record of a lower number and the deletions: machines that have got work
        // since stay. Idle ones do not count here, since an old list shows machines whose deletion was ordered.
        let there = target.max(load.busy_machines().min(live));
        let target = there.saturating_add(more).min(sight.ceiling.max(target));
        return decision(target, Because::Work, Vec::new(), Some(look(sight.start)));
    }
    let Surplus { gone, look } = surplus(sight, &load.uses, now);
    let left = live.saturating_sub(u32::try_from(gone.len()).unwrap_or(u32::MAX));
    // An order that is still to come, and for which no work waits any more, is not made. The place of a machine that was
    // lost is kept while its dispatcher still counts the machine's runs: they are about to wait again.
    let least = target.min(left.max(load.busy_machines())).max(sight.floor);
    let because = if least < target { Because::Idle } else { moved };
    decision(least, because, gone, look)
}

fn grow(sight: &Sight<'_>, load: &PoolLoad, target: u32, now: Timestamp) -> u32 {
    let ready = sight.machines.iter().filter(|machine| machine.ready).count();
    let working = u32::try_from(ready).unwrap_or(u32::MAX);
    let capacity = Capacity {
        each: load.places_each.max(1),
        working,
        taken: load.taken(),
        coming: target.saturating_sub(working),
        start: sight.start,
        minimum: sight.minimum,
    };
    growth(&load.demand, &capacity, now)
        .min(sight.ceiling.saturating_sub(target))
        .min(sight.affordable.unwrap_or(u32::MAX))
}

fn look(start: Duration) -> Duration {
    (start / LOOKS_PER_START).clamp(SOONEST_LOOK, LATEST_LOOK)
}
