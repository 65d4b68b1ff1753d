//! The cost of the Pool's machines: machines that are gone are settled once, and a spent budget
//! ends the others.
//!
//! A Machine's record stays until its cost is counted here, and its UID stays here until
//! its record is gone: whatever crashes in between, it counts exactly once.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use skyward_api::{
    Machine, Pool,
    condition::reason,
    pool::{Budget, PoolCost},
};
use skyward_core::Usd;

use super::draft::{Block, Draft, Why};
use crate::{
    base::{
        key::created_at,
        time::{after, elapsed},
    },
    events::{self, EventSpec},
    money::Cost,
    pool::facts::{Bill, bill},
};

/// Longest time between two looks at a budget.
const LOOK: Duration = Duration::from_mins(1);

/// Settles machines that are gone.
pub(crate) fn settle(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let mut cost = draft.status.cost.clone().unwrap_or_default();
    cost.counted.retain(|uid| {
        seen.machines
            .iter()
            .any(|machine| machine.uid.as_deref() == Some(uid))
    });
    let mut settled = settled(&cost);
    for machine in &seen.machines {
        let (Some(uid), Some(bill)) = (&machine.uid, &machine.bill) else {
            continue;
        };
        if bill.gone_at.is_some() && !cost.counted.contains(uid) {
            settled += bill.cost(draft.now);
            cost.counted.push(uid.clone());
            draft.because(format!("\"{}\" is gone and settled", machine.name));
        }
    }
    let running: Cost = seen.running_bills().map(|bill| bill.cost(draft.now)).sum();
    let spent = settled.total() + running.total();
    if spent.is_zero() && draft.status.cost.is_none() {
        return;
    }
    cost.spent = spent.to_string();
    cost.settled = settled.total().exact();
    cost.spot = settled.spot.exact();
    cost.on_demand = settled.on_demand.exact();
    cost.savings_vs_on_demand = settled.savings.exact();
    let first = seen.bills().map(|bill| bill.since).min();
    cost.since.get_or_insert(Time(first.unwrap_or(draft.now)));
    draft.status.cost = Some(cost);
    draft.spent = spent;
}

fn settled(cost: &PoolCost) -> Cost {
    Cost {
        spot: Usd::or_zero(&cost.spot),
        on_demand: Usd::or_zero(&cost.on_demand),
        savings: Usd::or_zero(&cost.savings_vs_on_demand),
    }
}

/// Says what the Pool cost, once no machine is left and none is wanted.
pub(crate) fn announce(draft: &mut Draft<'_>) {
    let pool = &draft.seen.pool;
    let over = pool.deleting_since.is_some() || draft.wanted() == 0;
    let last_is_gone = draft.seen.machines.is_empty() && pool.status.machines > 0;
    if !over || !last_is_gone {
        return;
    }
    // A Pool whose machines cost nothing has no record of a cost, and says so all the same.
    let cost = draft.status.cost.clone().unwrap_or_default();
    let all = settled(&cost);
    let since = cost.since.as_ref().map_or(pool.created_at, |time| time.0);
    let parts = format!(
        ": {} on the spot market, {} on demand{}",
        all.spot,
        all.on_demand,
        match all.savings.cmp(&Usd::ZERO) {
            Ordering::Equal => String::new(),
            Ordering::Less => format!("; on demand it would have been {} USD less", all.savings.abs()),
            Ordering::Greater => format!("; on demand it would have been {} USD more", all.savings),
        }
    );
    let note = format!(
        "Its machines cost {} USD in all since {since:.0}{}",
        all.total(),
        if all.total().is_zero() { "" } else { &parts }
    );
    draft
        .events
        .push(EventSpec::normal(events::reason::COST_FINAL, "Settle", note));
}

/// Ends all machines once the budget is spent.
pub(crate) fn budget(draft: &mut Draft<'_>) {
    let Some(budget) = &draft.seen.pool.spec.budget else {
        return;
    };
    let Some(most) = budget.max_total_cost.usd() else {
        return;
    };
    let end = begin_period(draft, budget);
    let cost = draft.status.cost.as_ref();
    let before = cost.map_or(Usd::ZERO, |cost| Usd::or_zero(&cost.spent_before_period));
    let spent = draft.spent - before;
    if spent < most {
        let bills = draft.seen.running_bills();
        let hourly: Usd = bills.map(|bill| bill.tariff.hourly).sum();
        draft.requeue_after(time_left(most - spent, hourly));
        return;
    }
    draft.over_budget = true;
    let live: Vec<_> = draft.live().collect();
    for machine in live {
        draft.give_up(machine, Why::BudgetSpent, false);
    }
    let then = match end {
        Some(end) => {
            draft.requeue_after(elapsed(draft.now, end));
            format!("It goes on with the next period, at {end:.0}.")
        }
        None => "Raise budget.maxTotalCost to go on.".to_owned(),
    };
    let message = format!(
        "The budget of {most} USD is spent ({spent} USD); machines are returned and Tasks wait. {then}"
    );
    draft.block(Block::stalled(reason::BUDGET_SPENT, message));
}

/// What is left of the budget of this period; `None` without a budget.
pub(crate) fn left(draft: &Draft<'_>) -> Option<Usd> {
    let budget = draft.seen.pool.spec.budget.as_ref()?;
    let most = budget.max_total_cost.usd()?;
    let spent = match Period::of(budget, draft.seen.pool.created_at, draft.now) {
        Some(period) if period.passed > 0 => {
            let bills = draft.seen.bills();
            let since: Usd = bills.map(|bill| spent_since(bill, period.start, draft.now)).sum();
            let cost = draft.status.cost.as_ref();
            let recorded =
                cost.filter(|cost| cost.period_start.as_ref().map(|time| time.0) == Some(period.start));
            // Machines that are gone and whose records are gone too are known to the record alone.
            recorded.map_or(since, |cost| {
                draft.spent - Usd::or_zero(&cost.spent_before_period)
            })
        }
        Some(_) | None => draft.spent,
    };
    Some((most - spent).max(Usd::ZERO))
}

/// Time until the rest of the budget is spent, at most [`LOOK`].
fn time_left(left: Usd, hourly: Usd) -> Duration {
    // A time beyond the range of a duration becomes [`LOOK`].
    let seconds = Duration::try_from_secs_f64((left * 3600).to_f64() / hourly.to_f64());
    seconds.unwrap_or(LOOK).clamp(Duration::from_secs(1), LOOK)
}

/// The part of a bill that came after a time.
fn spent_since(bill: &Bill, start: Timestamp, now: Timestamp) -> Usd {
    let whole = bill.cost(now).total();
    if bill.since >= start {
        whole
    } else if bill.gone_at.is_some_and(|gone| gone <= start) {
        Usd::ZERO
    } else {
        whole - bill.tariff.cost(bill.since, start).total()
    }
}

/// A period of a budget.
struct Period {
    /// How many periods have passed.
    passed: i64,
    start: Timestamp,
    length: Duration,
}

impl Period {
    /// The current period of a Pool that was created then; `None` for a budget without periods.
    fn of(budget: &Budget, created: Timestamp, now: Timestamp) -> Option<Self> {
        let period = budget.period.as_ref()?.parse()?;
        let length = i64::try_from(period.as_secs())
            .ok()
            .filter(|seconds| *seconds > 0)?;
        let passed = now.duration_since(created).as_secs().max(0).div_euclid(length);
        let start = created
            .checked_add(SignedDuration::from_secs(passed.saturating_mul(length)))
            .unwrap_or(created);
        Some(Self {
            passed,
            start,
            length: period,
        })
    }
}

/// The budget of a Pool and what is spent of it, in USD, from the records: the same count as the
/// Pool's plan makes, for callers that need it before. `None` without a budget.
pub fn of_budget(pool: &Pool, machines: &[Arc<Machine>], now: Timestamp) -> Option<(Usd, Usd)> {
    let budget = pool.spec.budget.as_ref()?;
    let most = budget.max_total_cost.usd()?;
    let cost = pool.status.as_ref().and_then(|status| status.cost.clone());
    let cost = cost.unwrap_or_default();
    let bills: Vec<(bool, Bill)> = machines
        .iter()
        .filter_map(|machine| {
            let counted = machine.uid().is_some_and(|uid| cost.counted.contains(&uid));
            Some((counted, bill(machine)?))
        })
        .collect();
    let running = bills.iter().filter(|(counted, _)| !counted);
    let total = settled(&cost).total() + running.map(|(_, bill)| bill.cost(now).total()).sum::<Usd>();
    let before = match Period::of(budget, created_at(pool), now) {
        Some(period) if cost.period_start.as_ref().map(|time| time.0) != Some(period.start) => {
            // The period began, and the status does not say so yet.
            let since = |(_, bill): &(bool, Bill)| spent_since(bill, period.start, now);
            if period.passed == 0 {
                Usd::ZERO
            } else {
                total - bills.iter().map(since).sum::<Usd>()
            }
        }
        Some(_) | None => Usd::or_zero(&cost.spent_before_period),
    };
    Some((most, total - before))
}

/// Begins the current period; answers with its end.
fn begin_period(draft: &mut Draft<'_>, budget: &Budget) -> Option<Timestamp> {
    let Period {
        passed,
        start,
        length,
    } = Period::of(budget, draft.seen.pool.created_at, draft.now)?;
    if let Some(cost) = &mut draft.status.cost
        && cost.period_start.as_ref().map(|time| time.0) != Some(start)
    {
        // The first period counts everything; a later one may have begun while no controller ran.
        cost.spent_before_period = if passed == 0 {
            String::new()
        } else {
            let bills = draft.seen.bills();
            let since: Usd = bills.map(|bill| spent_since(bill, start, draft.now)).sum();
            (draft.spent - since).exact()
        };
        cost.period_start = Some(Time(start));
    }
    Some(after(start, length))
}
