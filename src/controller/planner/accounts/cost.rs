//! What the machines of a Provider cost: machines that are gone are settled once, by month and
//! namespace. Pure.
//!
//! As with a Pool, a Machine's record stays until its cost is counted here, and its UID
//! stays here until its record is gone.
//!
//! A status has its bounds, so the month's spending is kept for [`NAMESPACES`] namespaces by name
//! (the counters of Metwally's "space saving"). When one more namespace spends, the namespace that
//! spent least makes room, and its spending becomes the most that any namespace without a counter
//! may have spent: each of these is counted with that amount. So no namespace's month begins anew;
//! a namespace without a counter is counted with too much rather than too little, by at most a
//! thousandth of the month's total.
//!
//! Tenants may read a Provider, so namespaces stand in it under pseudonyms
//! ([`Pseudonyms`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::{Timestamp, tz::TimeZone};
use kube_core::ResourceExt;
use skyward_api::{Machine, provider::ProviderCost};
use skyward_core::Usd;

use crate::money::{Cost, Tariff, billed_since, billed_until};

/// Makes pseudonyms of namespaces, for objects that other tenants read.
pub trait Pseudonyms: fmt::Debug + Send + Sync {
    /// The same for each namespace, and another one for any other; it begins with `#`, as no
    /// namespace does. A reader who has no key can neither tell the namespace from it nor find the
    /// pseudonym of a namespace that they know.
    fn pseudonym(&self, namespace: &str) -> String;
}

/// Most namespaces that a Provider remembers the month's spending of.
const NAMESPACES: usize = 1000;

/// The cost as it is to be recorded; `None` while nothing was ever spent.
pub fn settle(
    old: Option<&ProviderCost>,
    machines: &[Arc<Machine>],
    pseudonyms: &dyn Pseudonyms,
    now: Timestamp,
) -> Option<ProviderCost> {
    let mut cost = old.cloned().unwrap_or_default();
    let month = month(now);
    if cost.month != month {
        cost.month.clone_from(&month);
        "0".clone_into(&mut cost.settled_this_month);
        cost.settled_this_month_by_namespace.clear();
        cost.settled_this_month_elsewhere.clear();
    }
    let there: BTreeSet<String> = machines.iter().filter_map(|machine| machine.uid()).collect();
    cost.counted.retain(|uid| there.contains(uid));
    let mut ledger = Ledger::of(&cost, pseudonyms);
    let mut settled = settled(&cost);
    let mut this_month = Usd::or_zero(&cost.settled_this_month);
    let mut hourly = Usd::ZERO;
    for machine in machines {
        let Some(uid) = machine.uid() else { continue };
        let Some(since) = billed_since(machine) else {
            continue;
        };
        let tariff = Tariff::of(machine);
        if !is_gone(machine) {
            hourly += tariff.hourly;
        } else if !cost.counted.contains(&uid) {
            let whole = tariff.cost(since, billed_until(machine).unwrap_or(now));
            settled += whole;
            let in_month = in_this_month(machine, now);
            this_month += in_month;
            let namespace = machine.namespace().unwrap_or_default();
            ledger.add(pseudonyms.pseudonym(&namespace), in_month);
            cost.counted.push(uid);
        }
    }
    if old.is_none() && hourly.is_zero() && settled.total().is_zero() {
        return None;
    }
    cost.hourly = hourly.to_string();
    cost.settled = settled.total().exact();
    cost.spot = settled.spot.exact();
    cost.on_demand = settled.on_demand.exact();
    cost.settled_this_month = this_month.exact();
    cost.savings_vs_on_demand = settled.savings.exact();
    ledger.write(&mut cost);
    Some(cost)
}

/// What machines that are gone cost, by market.
pub fn settled(cost: &ProviderCost) -> Cost {
    let spot = Usd::or_zero(&cost.spot);
    Cost {
        spot,
        // Includes spending that was settled before markets were told apart.
        on_demand: Usd::or_zero(&cost.settled) - spot,
        savings: Usd::or_zero(&cost.savings_vs_on_demand),
    }
}

/// The month's spending by namespace, within bounds.
struct Ledger {
    /// By the namespace's pseudonym.
    kept: BTreeMap<String, Usd>,
    /// Most that a namespace without a counter may have spent.
    elsewhere: Usd,
}

impl Ledger {
    fn of(cost: &ProviderCost, pseudonyms: &dyn Pseudonyms) -> Self {
        let kept = cost.settled_this_month_by_namespace.iter();
        Self {
            kept: kept
                .map(|(name, amount)| (pseudonym(name, pseudonyms), Usd::or_zero(amount)))
                .collect(),
            elsewhere: Usd::or_zero(&cost.settled_this_month_elsewhere),
        }
    }

    fn add(&mut self, pseudonym: String, amount: Usd) {
        if amount.is_zero() {
            return;
        }
        let spent = self.kept.get(&pseudonym).copied().unwrap_or(self.elsewhere);
        self.kept.insert(pseudonym, spent + amount);
        while self.kept.len() > NAMESPACES {
            let least = self.kept.iter().min_by_key(|(_, amount)| **amount);
            let Some((least, amount)) = least.map(|(name, amount)| (name.clone(), *amount)) else {
                return;
            };
            self.kept.remove(&least);
            self.elsewhere = self.elsewhere.max(amount);
        }
    }

    fn write(self, cost: &mut ProviderCost) {
        cost.settled_this_month_elsewhere = if self.elsewhere.is_zero() {
            String::new()
        } else {
            self.elsewhere.exact()
        };
        let kept = self.kept.into_iter();
        cost.settled_this_month_by_namespace = kept
            .map(|(namespace, amount)| (namespace, amount.exact()))
            .collect();
    }
}

/// The pseudonym under which a Provider has that amount: versions before 0.2 kept names.
fn pseudonym(name: &str, pseudonyms: &dyn Pseudonyms) -> String {
    if name.starts_with('#') {
        name.to_owned()
    } else {
        pseudonyms.pseudonym(name)
    }
}

/// What a machine cost in this month, in USD, until now or until it was gone.
fn in_this_month(machine: &Machine, now: Timestamp) -> Usd {
    let Some(since) = billed_since(machine) else {
        return Usd::ZERO;
    };
    let from = since.max(month_start(now));
    let until = billed_until(machine).unwrap_or(now);
    if until <= from && from > since {
        // The machine was gone before the month began.
        return Usd::ZERO;
    }
    Tariff::of(machine).cost(from, until).total()
}

/// What was and is being spent in this month, in USD: in all namespaces, or in one.
pub fn spent_this_month(
    cost: Option<&ProviderCost>,
    machines: &[Arc<Machine>],
    namespace: Option<(&str, &dyn Pseudonyms)>,
    now: Timestamp,
) -> Usd {
    let this_month = cost.filter(|cost| cost.month == month(now));
    let settled = this_month.map_or(Usd::ZERO, |cost| match namespace {
        None => Usd::or_zero(&cost.settled_this_month),
        Some((namespace, pseudonyms)) => {
            let kept = &cost.settled_this_month_by_namespace;
            let amount = kept
                .get(&pseudonyms.pseudonym(namespace))
                .or_else(|| kept.get(namespace));
            Usd::or_zero(amount.unwrap_or(&cost.settled_this_month_elsewhere))
        }
    });
    let namespace = namespace.map(|(namespace, _)| namespace);
    // A machine that is gone counts here until its settled cost does.
    let counted = |machine: &Machine| {
        is_gone(machine)
            && machine
                .uid()
                .is_some_and(|uid| cost.is_some_and(|cost| cost.counted.contains(&uid)))
    };
    let unsettled: Usd = machines
        .iter()
        .filter(|machine| namespace.is_none() || machine.metadata.namespace.as_deref() == namespace)
        .filter(|machine| !counted(machine))
        .map(|machine| in_this_month(machine, now))
        .sum();
    settled + unsettled
}

fn is_gone(machine: &Machine) -> bool {
    machine
        .status
        .as_ref()
        .is_some_and(|status| status.gone_at.is_some())
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

    #[derive(Debug)]
    struct Reversed;

    impl Pseudonyms for Reversed {
        fn pseudonym(&self, namespace: &str) -> String {
            format!("#{}", namespace.chars().rev().collect::<String>())
        }
    }

    fn seal() -> Reversed {
        Reversed
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
        let first = settle(None, &machines, &seal(), now).unwrap();
        assert_eq!((first.hourly.as_str(), first.settled.as_str()), ("2", "2"));
        assert_eq!((first.spot.as_str(), first.on_demand.as_str()), ("0", "2"));
        assert_eq!(settle(Some(&first), &machines, &seal(), now), Some(first.clone()));
        let spent = |cost: Option<&ProviderCost>| spent_this_month(cost, &machines, None, now);
        assert_eq!(spent(Some(&first)), Usd::from(3));
        assert_eq!(
            spent(None),
            Usd::from(3),
            "not settled yet, and spent all the same"
        );
        let after = settle(Some(&first), &machines[1..], &seal(), now).unwrap();
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
        assert_eq!(spent_this_month(Some(&november), &[], None, now), Usd::ZERO);
        let december = settle(Some(&november), &machines, &seal(), now).unwrap();
        assert_eq!(
            (december.month.as_str(), december.settled_this_month.as_str()),
            ("2026-12", "1")
        );
        assert!(december.settled.parse::<Usd>().unwrap() > Usd::from(1_000));
    }

    #[test]
    fn a_month_is_known_by_namespace_whether_settled_or_not() {
        let now = at("2026-11-21T12:00:00Z");
        let of = |namespace: &str, uid: &str, gone_at: Option<&str>| {
            let mut machine = machine(uid, "2026-11-21T10:00:00Z", gone_at).as_ref().clone();
            machine.metadata.namespace = Some(namespace.into());
            Arc::new(machine)
        };
        let machines = [
            of("blue", "b", Some("2026-11-21T11:00:00Z")),
            of("red", "r", Some("2026-11-21T10:30:00Z")),
            of("red", "runs", None),
        ];
        let settled = settle(None, &machines, &seal(), now).unwrap();
        for cost in [None, Some(&settled)] {
            let spent = |namespace| spent_this_month(cost, &machines, Some((namespace, &seal())), now);
            assert_eq!(
                [spent("blue"), spent("red"), spent("green")],
                [Usd::from(2), Usd::from(5), Usd::ZERO]
            );
        }
        let next_month = settle(Some(&settled), &[], &seal(), at("2026-12-01T00:00:00Z")).unwrap();
        assert!(next_month.settled_this_month_by_namespace.is_empty());
    }

    #[test]
    fn no_namespace_begins_its_month_anew_however_many_spend() {
        let now = at("2026-11-21T12:00:00Z");
        let of = |n: usize| format!("team-{n}");
        let mut cost = None;
        let mut spent = BTreeMap::<String, Usd>::new();
        // 1,500 namespaces, each several times, most of them little.
        for round in 0..3 {
            for n in 0..1_500 {
                let hours = 1 + (n * 7 + round) % 11;
                let since = format!("2026-11-21T{:02}:00:00Z", 12 - hours.min(12));
                let mut machine = machine(&format!("{n}-{round}"), &since, Some("2026-11-21T12:00:00Z"))
                    .as_ref()
                    .clone();
                machine.metadata.namespace = Some(of(n));
                *spent.entry(of(n)).or_default() += in_this_month(&machine, now);
                cost = settle(cost.as_ref(), &[Arc::new(machine)], &seal(), now);
            }
        }
        let cost = cost.unwrap();
        assert_eq!(cost.settled_this_month_by_namespace.len(), NAMESPACES);
        let total: Usd = spent.values().sum();
        assert_eq!(Usd::or_zero(&cost.settled_this_month), total);
        let error = total / NAMESPACES;
        for (namespace, spent) in &spent {
            let known = spent_this_month(Some(&cost), &[], Some((namespace, &seal())), now);
            assert!(
                known >= *spent && known <= *spent + error,
                "{namespace} spent {spent} and is known for {known}, with {error} at most between them"
            );
        }
        let december = settle(Some(&cost), &[], &seal(), at("2026-12-01T00:00:00Z")).unwrap();
        let new = spent_this_month(
            Some(&december),
            &[],
            Some(("team-1", &seal())),
            at("2026-12-01T00:00:00Z"),
        );
        assert_eq!(
            (new, december.settled_this_month_elsewhere.as_str()),
            (Usd::ZERO, "")
        );
    }

    #[test]
    fn a_machine_that_was_gone_before_the_month_is_no_part_of_it() {
        let machines = [machine(
            "old",
            "2026-11-01T00:00:00Z",
            Some("2026-11-30T23:00:00Z"),
        )];
        let settled = settle(None, &machines, &seal(), at("2026-12-01T00:00:01Z")).unwrap();
        assert_eq!(settled.settled_this_month, "0");
        assert_ne!(settled.settled, "0");
    }

    #[test]
    fn what_costs_nothing_leaves_no_trace() {
        assert_eq!(settle(None, &[], &seal(), at("2026-11-21T12:00:00Z")), None);
    }

    #[test]
    fn a_reader_of_a_provider_learns_no_namespace_and_amounts_kept_by_name_go_on() {
        let now = at("2026-11-21T12:00:00Z");
        let old: ProviderCost = serde_json::from_value(serde_json::json!({
            "settled": "12", "month": "2026-11", "settledThisMonth": "12",
            "settledThisMonthByNamespace": { "team-a": "5", "team-b": "7" },
        }))
        .unwrap();
        let spent = |cost: &ProviderCost, namespace| {
            spent_this_month(Some(cost), &[], Some((namespace, &seal())), now)
        };
        let mut machine = machine("m", "2026-11-21T10:00:00Z", Some("2026-11-21T11:00:00Z"))
            .as_ref()
            .clone();
        machine.metadata.namespace = Some("team-a".into());
        let new = settle(Some(&old), &[Arc::new(machine)], &seal(), now).unwrap();
        for (cost, of_a) in [(&old, 5), (&new, 7)] {
            assert_eq!(
                [
                    spent(cost, "team-a"),
                    spent(cost, "team-b"),
                    spent(cost, "team-c")
                ],
                [Usd::from(of_a), Usd::from(7), Usd::ZERO]
            );
        }
        let shown = serde_json::to_string(&new).unwrap();
        assert!(!shown.contains("team"), "{shown}");
        let again = settle(Some(&new), &[], &seal(), now).unwrap();
        assert_eq!(
            again.settled_this_month_by_namespace,
            new.settled_this_month_by_namespace
        );
    }
}
