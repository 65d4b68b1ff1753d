//! What the machines of a Provider cost: those that are gone are settled once, by month.
//! Pure.
//!
//! As with a Pool, a Machine's record stays until its cost is counted here, and its UID
//! stays here until its record is gone.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use kube::ResourceExt;
use rust_decimal::Decimal;
use skyward_api::{Machine, provider::ProviderCost};

use crate::money::{Tariff, billed_since, shown};

/// The cost as it is to be recorded; `None` while nothing was ever spent.
pub(super) fn settle(
    old: Option<&ProviderCost>,
    machines: &[Arc<Machine>],
    now: Timestamp,
) -> Option<ProviderCost> {
    let mut cost = old.cloned().unwrap_or_default();
    let month = month(now);
    if cost.month != month {
        cost.month.clone_from(&month);
        "0".clone_into(&mut cost.settled_this_month);
    }
    let there: BTreeSet<String> = machines.iter().filter_map(|machine| machine.uid()).collect();
    cost.counted.retain(|uid| there.contains(uid));
    let decimal = |text: &str| text.parse::<Decimal>().unwrap_or_default();
    let mut settled = decimal(&cost.settled);
    let mut this_month = decimal(&cost.settled_this_month);
    let mut savings = decimal(&cost.savings_vs_on_demand);
    let mut hourly = Decimal::ZERO;
    for machine in machines {
        let Some(uid) = machine.uid() else { continue };
        let Some(since) = billed_since(machine) else {
            continue;
        };
        let tariff = Tariff::of(machine);
        match gone_at(machine) {
            None => hourly += tariff.hourly,
            Some(gone) if !cost.counted.contains(&uid) => {
                let whole = tariff.cost(since, gone);
                settled += whole.total();
                savings += whole.savings;
                this_month += tariff.cost(since.max(month_start(now)), gone).total();
                cost.counted.push(uid);
            }
            Some(_) => {}
        }
    }
    if old.is_none() && hourly.is_zero() && settled.is_zero() {
        return None;
    }
    cost.hourly = shown(hourly);
    cost.settled = exact(settled);
    cost.settled_this_month = exact(this_month);
    cost.savings_vs_on_demand = exact(savings);
    Some(cost)
}

/// What was and is being spent in this month, in USD.
pub fn spent_this_month(cost: Option<&ProviderCost>, machines: &[Arc<Machine>], now: Timestamp) -> Decimal {
    let settled = cost
        .filter(|cost| cost.month == month(now))
        .and_then(|cost| cost.settled_this_month.parse::<Decimal>().ok())
        .unwrap_or_default();
    let running: Decimal = machines
        .iter()
        .filter(|machine| gone_at(machine).is_none())
        .filter_map(|machine| Some((machine, billed_since(machine)?)))
        .map(|(machine, since)| Tariff::of(machine).cost(since.max(month_start(now)), now).total())
        .sum();
    settled + running
}

fn gone_at(machine: &Machine) -> Option<Timestamp> {
    machine.status.as_ref()?.gone_at.as_ref().map(|time| time.0)
}

fn exact(amount: Decimal) -> String {
    amount.round_dp(12).normalize().to_string()
}

/// The month in UTC, as `2026-11`.
fn month(now: Timestamp) -> String {
    now.to_zoned(TimeZone::UTC).strftime("%Y-%m").to_string()
}

fn month_start(now: Timestamp) -> Timestamp {
    now.to_zoned(TimeZone::UTC)
        .first_of_month()
        .and_then(|day| day.start_of_day())
        .map_or(now, |start| start.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(uid: &str, since: &str, gone_at: Option<&str>) -> Arc<Machine> {
        let object = serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": uid, "uid": uid },
            "spec": { "pool": "p", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "a", "offer": "o",
                "instanceType": "x", "market": "OnDemand", "hourlyPrice": "2", "token": "t", "templateHash": "h" },
            "status": { "acceptedAt": since, "goneAt": gone_at },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn a_machine_is_settled_once_and_forgotten_with_its_record() {
        let now = at("2026-11-21T12:00:00Z");
        let machines = [
            machine("gone", "2026-11-21T10:00:00Z", Some("2026-11-21T11:00:00Z")),
            machine("runs", "2026-11-21T11:30:00Z", None),
        ];
        let first = settle(None, &machines, now).unwrap();
        assert_eq!((first.hourly.as_str(), first.settled.as_str()), ("2", "2"));
        assert_eq!(settle(Some(&first), &machines, now), Some(first.clone()));
        assert_eq!(spent_this_month(Some(&first), &machines, now), Decimal::from(3));
        let after = settle(Some(&first), &machines[1..], now).unwrap();
        assert_eq!((after.settled.as_str(), after.counted.len()), ("2", 0));
    }

    #[test]
    fn a_month_begins_with_what_is_spent_in_it() {
        let now = at("2026-12-01T01:00:00Z");
        let november = ProviderCost {
            month: "2026-11".into(),
            settled: "100".into(),
            settled_this_month: "100".into(),
            ..ProviderCost::default()
        };
        let machines = [machine(
            "long",
            "2026-11-01T00:00:00Z",
            Some("2026-12-01T00:30:00Z"),
        )];
        assert_eq!(spent_this_month(Some(&november), &[], now), Decimal::ZERO);
        let december = settle(Some(&november), &machines, now).unwrap();
        assert_eq!(
            (december.month.as_str(), december.settled_this_month.as_str()),
            ("2026-12", "1")
        );
        assert!(december.settled.parse::<Decimal>().unwrap() > Decimal::from(1_000));
    }

    #[test]
    fn what_costs_nothing_leaves_no_trace() {
        assert_eq!(settle(None, &[], at("2026-11-21T12:00:00Z")), None);
    }
}
