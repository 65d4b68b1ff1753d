//! How many machines the Pool works towards: `nodes.desired`, more while work waits that is worth them, or none while
//! the Pool sleeps. Translates between the Pool and the decisions of [`crate::pool::autoscale`].
//!
//! The number is in the status before a machine is ordered for it: a leader that comes between finishes what was
//! decided. While the load is not known nothing is decided anew.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    DurationOrNever,
    condition::cut,
    pool::{PoolScaling, ScalingReason},
};
use skyward_core::Usd;

use super::{
    cost,
    draft::{Action, Draft, Why},
    scale,
};
use crate::{
    base::time::{after, elapsed},
    events::{self, EventSpec},
    pool::{
        autoscale::{
            Because, Decision, START, Sight, Unit, decide,
            idle::{Idleness, Rest, rest, waits, woken},
            scale_down_after,
            shrink::goes_in,
        },
        choice::Choice,
        facts::{Bill, MachineFacts},
        load::PoolLoad,
    },
};

/// Until the load is known, or another machine is ready.
const LOOK: Duration = Duration::from_secs(10);
/// A recorded start that differs by less than this part is not written anew.
const SAME_START: u32 = 4;
/// Longest message in the status.
const MAX_MESSAGE: usize = 512;

/// Decides how many machines are wanted, and gives up machines that are unneeded.
pub(crate) fn plan(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let status = &seen.pool.status;
    let mut record = status.scaling.clone().unwrap_or_default();
    // A Pool that an earlier release worked on is not turned off unasked.
    record.never_sleeps_by_default |=
        status.observed_generation.is_some() && status.desired_machines.is_none();
    note_start(draft, &mut record);
    let is_off = seen.pool.spec.nodes.desired == 0 || draft.is_suspended() || draft.expired;
    if is_off {
        (record.idle_since, record.sleeps_at) = (None, None);
        (record.sleeping_since, record.slept_with, record.short_sleeps) = (None, None, None);
    } else {
        sleep(draft, &mut record);
    }
    draft.status.scaling = Some(record);
    if !is_off && !draft.asleep && seen.pool.spec.nodes.grows() {
        follow_the_work(draft);
    }
}

/// Records what was decided, and tells it.
pub(crate) fn record(draft: &mut Draft<'_>) {
    let nodes = &draft.seen.pool.spec.nodes;
    let wanted = draft.wanted();
    draft.status.machines_summary = if nodes.grows() {
        format!("{wanted} ({}-{})", nodes.desired, nodes.most())
    } else {
        wanted.to_string()
    };
    draft.status.desired_machines = Some(wanted);
    let old = draft.seen.pool.status.desired_machines;
    if let Some(old) = old.filter(|old| *old != wanted) {
        let (why, message) = if draft.is_suspended() || draft.is_ended() || nodes.desired == 0 {
            (ScalingReason::Stopped, "no machine is wanted".to_owned())
        } else {
            draft
                .scaled
                .take()
                .unwrap_or_else(|| (ScalingReason::Nodes, "spec.nodes sets this number".to_owned()))
        };
        draft.because(format!("{old} → {wanted} machines: {message}"));
        tell(draft, old, wanted, why, &message);
        let now = Time(draft.now);
        let record = draft.status.scaling.get_or_insert_default();
        record.reason = Some(why);
        record.message = cut(&message, MAX_MESSAGE);
        record.changed_at = Some(now);
    }
    if fails(draft) && draft.status.failed_attempts == 0 && first_ready(draft).is_none() {
        // Of a Pool whose failures are forgotten the first machine is waited for, as of a new one.
        let record = draft.status.scaling.get_or_insert_default();
        if record.sleeps_at.is_none() {
            record.idle_since = None;
        }
    }
    if draft.status.scaling == Some(PoolScaling::default()) {
        draft.status.scaling = None;
    }
}

fn tell(draft: &mut Draft<'_>, old: u32, wanted: u32, why: ScalingReason, message: &str) {
    let (reason, action) = match why {
        ScalingReason::WorkWaits => (events::reason::POOL_GROWS, "Grow"),
        ScalingReason::MachinesIdle => (events::reason::POOL_SHRINKS, "Shrink"),
        ScalingReason::Sleeping => (events::reason::POOL_SLEEPS, "Sleep"),
        ScalingReason::Woken => (events::reason::POOL_WAKES, "Wake"),
        ScalingReason::Nodes | ScalingReason::Stopped => return,
    };
    let prices = draft.actions.iter().filter_map(|action| match action {
        Action::CreateMachine { spec, .. } => Some(Usd::or_zero(&spec.hourly_price)),
        _ => None,
    });
    let (ordered, price) = prices.fold((0_u32, Usd::ZERO), |(ordered, sum), price| {
        (ordered + 1, sum + price)
    });
    let costs = match ordered {
        0 if wanted > old => "; none of them can be ordered now".to_owned(),
        0 => String::new(),
        _ => format!("; {ordered} ordered now, for {price} USD per hour"),
    };
    let note = format!("{old} → {wanted} machines: {message}{costs}");
    draft.events.push(EventSpec::normal(reason, action, note));
}

/// How long a machine of this Pool takes from its order until it takes Tasks.
fn start(draft: &Draft<'_>) -> Duration {
    let scaling = draft.status.scaling.as_ref();
    let recorded = scaling.and_then(|record| record.start_seconds);
    recorded.map_or(START, |seconds| Duration::from_secs(u64::from(seconds.max(1))))
}

fn note_start(draft: &Draft<'_>, record: &mut PoolScaling) {
    if !draft.seen.pool.spec.nodes.grows() {
        return;
    }
    let took = |machine: &MachineFacts| Some(elapsed(machine.ordered_at?, machine.ready_at?).as_secs());
    let mut all: Vec<u64> = draft.seen.machines.iter().filter_map(took).collect();
    all.sort_unstable();
    let Some(median) = all.get(all.len() / 2) else {
        return;
    };
    let median = u32::try_from(*median).unwrap_or(u32::MAX).max(1);
    let is_same = |known: u32| known.abs_diff(median) <= known / SAME_START;
    if !record.start_seconds.is_some_and(is_same) {
        record.start_seconds = Some(median);
    }
}

fn follow_the_work(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let nodes = &seen.pool.spec.nodes;
    let all: Vec<&MachineFacts> = draft.live().collect();
    let start = start(draft);
    let set = seen.pool.spec.autoscale.as_ref();
    let set = set.and_then(|set| set.scale_down_after.as_ref()?.parse());
    let target = match seen.pool.status.desired_machines {
        None | Some(0) => nodes.desired,
        Some(target) => target,
    };
    // With `spotPercent` the market of a machine depends on how many are wanted.
    draft.target = target.saturating_add(1);
    let grows = seen.load.as_ref().is_some_and(|load| load.demand.places > 0);
    let next = if grows { scale::next_order(draft) } else { None };
    let minimum = least_bill(draft, next.as_ref());
    let sight = Sight {
        floor: nodes.desired,
        ceiling: nodes.most(),
        target,
        affordable: next.and_then(|next| affordable(draft, next.price, start.max(minimum))),
        load: seen.load.as_ref(),
        machines: units(draft, &all),
        start,
        minimum,
        after: set.unwrap_or_else(|| scale_down_after(start)),
    };
    let Decision {
        target,
        because,
        gone,
        look,
    } = decide(&sight, draft.now);
    draft.target = target;
    if let Some(look) = look {
        draft.requeue_after(look);
    }
    let given_up = gone
        .iter()
        .filter(|at| draft.give_up(all[**at], Why::Idle, true))
        .count();
    let why = match because {
        Because::Unchanged => return,
        Because::Bounds => (ScalingReason::Nodes, "spec.nodes sets this number".to_owned()),
        Because::Work => (ScalingReason::WorkWaits, work_in_words(seen.load.as_ref())),
        Because::Idle if given_up == 0 => (
            ScalingReason::MachinesIdle,
            "no work waits that is worth more machines, and no more are ordered".to_owned(),
        ),
        Because::Idle => (
            ScalingReason::MachinesIdle,
            format!(
                "no Task waits; {given_up} machines have been unneeded for {} and are returned",
                in_words(sight.after)
            ),
        ),
    };
    // That the Pool woke says more than that it grew.
    draft.scaled.get_or_insert(why);
}

fn units(draft: &Draft<'_>, machines: &[&MachineFacts]) -> Vec<Unit> {
    let head = machines.iter().map(|machine| machine.slot).min();
    let connected = draft.seen.pool.spec.is_connected();
    let environment = draft.seen.pool.status.environment.as_ref();
    let turn = environment.map_or("", |record| record.turn.as_str());
    let unit = |machine: &&MachineFacts| Unit {
        ready: machine.ready,
        idle: machine.uid.is_some() && machine.is_idle() && !machine.changing && machine.name != turn,
        ordered_at: machine.ordered_at,
        billed: machine.bill.is_some(),
        price: machine.hourly_price,
        slot: machine.slot,
        head: connected && Some(machine.slot) == head,
        goes_in: machine
            .bill
            .as_ref()
            .map_or(Duration::ZERO, |bill| until_next_step(bill, draft.now)),
    };
    machines.iter().map(unit).collect()
}

/// How long until a machine may go without paying for time in which it is gone.
fn until_next_step(bill: &Bill, now: jiff::Timestamp) -> Duration {
    let tariff = &bill.tariff;
    let step = if elapsed(bill.since, now) < tariff.minimum {
        tariff.step.max(tariff.minimum)
    } else {
        tariff.step
    };
    goes_in(step, tariff.next_step(bill.since, now))
}

/// Until when, from that time on, all machines are paid for in any case. Where one is missing or starts, the wait would
/// cost another one.
fn while_paid(draft: &Draft<'_>, then: jiff::Timestamp) -> jiff::Timestamp {
    let is_whole = draft.live().count() >= draft.seen.pool.spec.nodes.desired as usize;
    let left = |machine: &MachineFacts| match &machine.bill {
        Some(bill) if is_whole && machine.ready => until_next_step(bill, then),
        _ => Duration::ZERO,
    };
    after(then, draft.live().map(left).min().unwrap_or_default())
}

/// Least time that is billed of the next machine: one step at least. Where none can be ordered now, it may be of any
/// Provider.
fn least_bill(draft: &Draft<'_>, next: Option<&Choice<'_>>) -> Duration {
    let is_next = |name: &str| next.is_none_or(|next| next.candidate.provider == name);
    let providers = draft.seen.providers.iter().filter(|(name, _)| is_next(name));
    let billed = providers.map(|(_, facts)| facts.billing_minimum_seconds.max(facts.billing_step_seconds));
    Duration::from_secs(u64::from(billed.max().unwrap_or_default()))
}

/// How many more machines at that price the rest of the budget bears beside those on their way, each for its start and
/// its least bill.
fn affordable(draft: &Draft<'_>, price: Usd, least: Duration) -> Option<u32> {
    let left = cost::left(draft)?;
    let each = price.to_f64() * least.as_secs_f64() / 3600.0;
    if each <= 0.0 {
        return None;
    }
    let borne = (left.to_f64() / each).clamp(0.0, 1000.0).floor() as u32;
    let coming = draft.live().filter(|machine| machine.ready_at.is_none()).count();
    Some(borne.saturating_sub(u32::try_from(coming).unwrap_or(u32::MAX)))
}

fn work_in_words(load: Option<&PoolLoad>) -> String {
    let Some(load) = load else {
        return String::new();
    };
    let lasts = match load.demand.backlog {
        Some(backlog) => format!(", about {} of work", in_words(backlog)),
        None => ", and nothing is known of how long that lasts".to_owned(),
    };
    format!(
        "waiting work would take {} places at once{lasts}",
        load.demand.places
    )
}

/// A duration without what nobody reads.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3600),
    }
}

/// How long the Pool may be idle: as its spec says, else as the Providers of its machines say. A Pool whose machines fail
/// has none between two tries, and an idle Pool may lose the last one: then each of its Providers counts.
fn idle_timeout(draft: &Draft<'_>, record: &PoolScaling) -> Option<Duration> {
    let seen = draft.seen;
    match &seen.pool.spec.idle_timeout {
        Some(set) => set.get(),
        None if record.never_sleeps_by_default => None,
        None => {
            let facts = draft
                .live()
                .filter_map(|machine| seen.providers.get(&machine.place.provider));
            let of_machines = facts.filter_map(|facts| facts.idle_timeout).min();
            let is_idle = record.idle_since.is_some();
            if (is_idle || fails(draft)) && draft.live().next().is_none() {
                seen.providers
                    .values()
                    .filter_map(|facts| facts.idle_timeout)
                    .min()
            } else {
                of_machines
            }
        }
    }
}

/// Whether the last tries to get a machine failed, by the record.
const fn fails(draft: &Draft<'_>) -> bool {
    draft.seen.pool.status.failed_attempts > 0
}

fn sleep(draft: &mut Draft<'_>, record: &mut PoolScaling) {
    if let Some(since) = record.sleeping_since.clone() {
        if wakes(draft, record) {
            wake(draft, record, since.0);
        } else {
            draft.asleep = true;
            // A floor that is lowered and raised again wakes the Pool, too.
            let desired = draft.seen.pool.spec.nodes.desired;
            record.slept_with = record.slept_with.map(|before| before.min(desired));
        }
        return;
    }
    let timeout = idle_timeout(draft, record);
    let seen = draft.seen;
    let observed = seen.pool.status.observed_generation;
    if timeout.is_some() && observed.is_some_and(|observed| observed != seen.pool.generation) {
        // A person, or what stands for one, has just thought of this Pool.
        record.idle_since = begun(draft);
        record.sleeps_at = None;
    }
    let since = idle_since(draft, record);
    if since.is_none() && seen.load.as_ref().is_some_and(|load| !load.is_idle()) {
        (record.idle_since, record.sleeps_at) = (None, None);
    }
    let idle = Idleness {
        timeout,
        short_sleeps: record.short_sleeps.unwrap_or_default(),
        since,
    };
    let found = match (rest(idle, draft.now), idle.ends()) {
        (Rest::Soon(_) | Rest::Now, Some(end)) => {
            let at = while_paid(draft, end);
            if at > draft.now { Rest::Soon(at) } else { Rest::Now }
        }
        (found, _) => found,
    };
    match found {
        Rest::Awake(look) => {
            let is_known = seen.load.is_some();
            if is_known {
                record.sleeps_at = None;
                // Another leader, and machines in the place of lost ones, count on from here; and not from before work
                // that came and went between two looks.
                let is_first = timeout.is_some() && first_ready(draft).is_some();
                if is_first || record.idle_since.is_some() {
                    note_idle(record, since);
                }
            }
            if let Some(look) = look {
                draft.requeue_after(if is_known { look } else { look.min(LOOK) });
            }
        }
        Rest::Soon(at) => {
            draft.requeue_after(elapsed(draft.now, at));
            note_idle(record, since);
            if record.sleeps_at.is_none() {
                let note = format!(
                    "Nothing has run or waited since {:.0}: the Pool sleeps at {at:.0} and returns its machines, unless work comes (idleTimeout of the Pool, or of its Provider)",
                    since.unwrap_or(draft.now)
                );
                let reason = events::reason::POOL_SLEEPS_SOON;
                draft.events.push(EventSpec::normal(reason, "Wait", note));
            }
            record.sleeps_at = Some(Time(at));
        }
        Rest::Now => {
            draft.asleep = true;
            (record.idle_since, record.sleeps_at) = (None, None);
            record.sleeping_since = Some(Time(draft.now));
            record.slept_with = Some(seen.pool.spec.nodes.desired);
            let bills = seen.running_bills().map(|bill| bill.tariff.hourly);
            let message = format!(
                "nothing has run or waited since {:.0}; machines that cost {} USD per hour are returned, and the next Task wakes the Pool",
                since.unwrap_or(draft.now),
                bills.sum::<Usd>()
            );
            draft.scaled = Some((ScalingReason::Sleeping, message));
        }
    }
}

/// When the first of its machines became ready.
fn first_ready(draft: &Draft<'_>) -> Option<jiff::Timestamp> {
    draft.live().filter_map(|machine| machine.ready_at).min()
}

/// Since when a Pool is idle that is idle from now on; `None`: from its first machine on.
fn begun(draft: &Draft<'_>) -> Option<Time> {
    (first_ready(draft).is_some() || fails(draft)).then_some(Time(draft.now))
}

/// Records since when the Pool is idle. The API server keeps no parts of a second: they are no reason to write.
fn note_idle(record: &mut PoolScaling, since: Option<jiff::Timestamp>) {
    let Some(since) = since else {
        return;
    };
    let recorded = record.idle_since.as_ref();
    if recorded.is_none_or(|recorded| recorded.0.as_second() != since.as_second()) {
        record.idle_since = Some(Time(since));
    }
}

/// Since when the Pool is idle; `None`: it is not, nothing is known, or its first machine starts. A machine that starts in
/// place of one that failed before it took Tasks may fail, too, and each is paid for: such a Pool is idle without any.
fn idle_since(draft: &Draft<'_>, record: &PoolScaling) -> Option<jiff::Timestamp> {
    let load = draft.seen.load.as_ref().filter(|load| load.is_idle())?;
    // What starts in the place of a machine that was lost begins no time again: spot machines may be lost more often than
    // the Pool may be idle. The clock of the leader that wrote it may have been ahead: that must not keep machines without
    // work.
    if let Some(recorded) = &record.idle_since {
        let recorded = recorded.0.min(draft.now);
        return Some(load.uses.last_used(1).map_or(recorded, |last| last.max(recorded)));
    }
    let first_ready = first_ready(draft);
    if first_ready.is_none() && !fails(draft) {
        return None;
    }
    let known = load.uses.unused_since(1)?;
    Some(first_ready.map_or(known, |ready| known.max(ready)))
}

fn wakes(draft: &Draft<'_>, record: &PoolScaling) -> bool {
    let seen = draft.seen;
    let waits = seen.load.as_ref().is_some_and(|load| load.demand.waits());
    let is_raised = record
        .slept_with
        .is_some_and(|before| seen.pool.spec.nodes.desired > before);
    let set = seen.pool.spec.idle_timeout.as_ref();
    waits || is_raised || set.is_some_and(|set| set.get().is_none())
}

fn wake(draft: &mut Draft<'_>, record: &mut PoolScaling, since: jiff::Timestamp) {
    let slept = elapsed(since, draft.now);
    // Which of its Providers would say it is not known while it has no machine.
    let set = draft
        .seen
        .pool
        .spec
        .idle_timeout
        .as_ref()
        .and_then(DurationOrNever::get);
    let facts = draft
        .seen
        .providers
        .values()
        .filter_map(|facts| facts.idle_timeout);
    let timeout = set.or_else(|| facts.min());
    let before = record.short_sleeps.unwrap_or_default();
    let load = draft.seen.load.as_ref().filter(|load| load.demand.waits());
    // A person who wakes the Pool has a reason, and is no rhythm.
    let short = timeout
        .filter(|_| load.is_some())
        .map_or(0, |timeout| woken(timeout, before, slept));
    let later = match timeout {
        Some(timeout) if short > 0 => format!(
            ". It slept only {}: from now on it sleeps after {} without work",
            in_words(slept),
            in_words(waits(timeout, short))
        ),
        _ => String::new(),
    };
    record.short_sleeps = Some(short).filter(|short| *short > 0);
    (record.sleeping_since, record.slept_with) = (None, None);
    record.idle_since = begun(draft);
    let cause = match load {
        Some(load) if load.demand.places > 0 => work_in_words(Some(load)),
        Some(load) => format!("{} Tasks wait", load.demand.fixed),
        None => "nodes.desired was raised, or idleTimeout is Never".to_owned(),
    };
    draft.scaled = Some((ScalingReason::Woken, format!("{cause}{later}")));
}
