//! What Pools cost: each machine is settled once, budgets end, and the last amount is said once.

use super::*;
use crate::{events, pool::facts::RemainingMachines};

/// Notes of the plan's Events about the final cost.
fn said(seen: &Observed) -> Vec<String> {
    let events = decide(seen).events.into_iter();
    let finals = events.filter(|event| event.reason == events::reason::COST_FINAL);
    finals.map(|event| event.note).collect()
}

#[test]
fn a_machine_that_is_gone_is_settled_once() {
    let mut seen = market(json!({ "provider": "a" }), &[("a", "a-1", price("1"))]);
    seen.machines = vec![
        billed(0, "3.6", NOW - 1000, Some(NOW - 100)),
        billed(1, "3.6", NOW - 500, None),
    ];
    let first = decide(&seen).status.cost.unwrap();
    assert_eq!((first.settled.as_str(), first.spot.as_str()), ("0.9", "0.9"));
    assert_eq!(
        (first.savings_vs_on_demand.as_str(), first.spent.as_str()),
        ("0.9", "1.4")
    );
    assert_eq!(first.counted, ["uid-0"]);
    seen.pool.status.cost = Some(first.clone());
    assert_eq!(decide(&seen).status.cost, Some(first.clone()), "not twice");
    seen.machines.remove(0);
    let after = decide(&seen).status.cost.unwrap();
    assert_eq!((after.settled, after.counted), (first.settled, Vec::new()));
}

#[test]
fn a_spent_budget_returns_all_machines_and_a_new_period_goes_on() {
    let spec = |budget: Value| json!({ "provider": "a", "nodes": { "desired": 2 }, "budget": budget });
    let offers = [("a", "a-1", price("3.6"))];
    let machines = || {
        vec![
            billed(0, "3.6", NOW - 1000, None),
            billed(1, "3.6", NOW - 1000, None),
        ]
    };
    let mut rich = market(spec(json!({ "maxTotalCost": "2.1" })), &offers);
    rich.machines = machines();
    let plan = decide(&rich);
    assert!(given_up(&plan).is_empty());
    let Next::After(wait) = plan.next else {
        panic!("{:?}", plan.next)
    };
    assert_eq!(wait.as_secs(), 50, "0.1 USD are left at 7.2 an hour");

    let mut spent = market(spec(json!({ "maxTotalCost": "2" })), &offers);
    spent.machines = machines();
    let plan = decide(&spent);
    assert_eq!(given_up(&plan).len(), 2);
    assert_eq!(stalled(&plan).unwrap().0, reason::BUDGET_SPENT);
    assert_eq!(plan.status.phase, Some(PoolPhase::Stalled));
    assert!(orders(&plan).is_empty());

    let mut next = market(spec(json!({ "maxTotalCost": "2", "period": "24h" })), &offers);
    next.pool.created_at = Timestamp::from_second(NOW - 86_400 - 10).unwrap();
    next.pool.status.cost = serde_json::from_value(json!({
        "spent": "5", "settled": "5", "spot": "5", "onDemand": "0", "savingsVsOnDemand": "0",
        "periodStart": Timestamp::from_second(NOW - 86_400 - 10).unwrap().to_string(),
    }))
    .unwrap();
    let plan = decide(&next);
    assert_eq!(orders(&plan).len(), 2, "what was spent before counts no more");
    assert_eq!(plan.status.cost.unwrap().spent_before_period, "5");
}

#[test]
fn a_period_that_began_while_nobody_looked_has_what_was_spent_in_it() {
    let spec = json!({ "provider": "a", "budget": { "maxTotalCost": "100", "period": "24h" } });
    let mut seen = market(spec, &[("a", "a-1", price("3.6"))]);
    seen.pool.created_at = at(NOW - 86_400 - 1000);
    seen.machines = vec![
        billed(0, "3.6", NOW - 5000, None),
        billed(1, "3.6", NOW - 400, None),
    ];
    let cost = decide(&seen).status.cost.unwrap();
    assert_eq!(cost.spent, "5.4");
    assert_eq!(cost.spent_before_period, "4", "1 USD and 0.4 were spent since");
}

#[test]
fn what_a_pool_cost_is_said_once_when_nothing_is_left_of_it() {
    let mut seen = market(
        json!({ "provider": "a", "nodes": { "desired": 0 } }),
        &[("a", "a-1", price("1"))],
    );
    seen.machines = vec![billed(0, "3.6", NOW - 1000, Some(NOW - 100))];
    seen.pool.status = decide(&seen).status;
    assert_eq!(said(&seen), Vec::<String>::new(), "its record is still there");
    seen.machines.clear();
    let notes = said(&seen);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        note.contains("0.9 USD in all") && note.contains("0.9 on the spot market"),
        "{note}"
    );
    assert!(
        note.contains("on demand it would have been 0.9 USD more"),
        "{note}"
    );
    let last = seen.clone();
    seen.pool.status = decide(&seen).status;
    assert_eq!(said(&seen), Vec::<String>::new(), "and not again");
    seen = last;
    seen.pool.spec.nodes.desired = 1;
    assert_eq!(said(&seen), Vec::<String>::new(), "another machine follows");
    seen.pool.deleting_since = Some(at(NOW));
    seen.leftovers = RemainingMachines::Known(Vec::new());
    assert_eq!(said(&seen).len(), 1);
}

#[test]
fn a_pool_that_cost_nothing_says_so_once_too() {
    let mut seen = market(
        json!({ "provider": "a", "nodes": { "desired": 0 } }),
        &[("a", "a-1", price("0"))],
    );
    seen.machines = vec![billed(0, "0", NOW - 1000, Some(NOW - 100))];
    seen.pool.status = decide(&seen).status;
    assert_eq!(said(&seen), Vec::<String>::new(), "its record is still there");
    seen.machines.clear();
    let notes = said(&seen);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.starts_with("Its machines cost 0 USD in all since"), "{note}");
    assert!(!note.contains("on demand"), "{note}");
    seen.pool.status = decide(&seen).status;
    assert_eq!(said(&seen), Vec::<String>::new(), "and not again");
}

#[test]
fn a_machine_that_is_gone_costs_nothing_more_an_hour() {
    let mut seen = market(json!({ "provider": "a" }), &[("a", "a-1", price("1"))]);
    let costs = |hourly: &str, machine: MachineFacts| MachineFacts {
        hourly_price: hourly.parse().unwrap(),
        ..machine
    };
    seen.machines = vec![
        costs("3.6", billed(0, "3.6", NOW - 1000, Some(NOW - 100))),
        costs("1.5", billed(1, "1.5", NOW - 500, None)),
    ];
    assert_eq!(decide(&seen).status.hourly_cost, "1.5");
}
