//! Pools that grow and shrink: what the plan makes of the decisions of `pool::autoscale`.

mod sleep;

use std::time::Duration;

use proptest::prelude::*;
use skyward_api::pool::{PoolScaling, ScalingReason};

use super::{properties::any_machine, *};
use crate::{events, money::Tariff, pool::facts::Bill, pool::load::Demand};

/// A Pool that this release made, with that spec beside its Provider.
fn pool(more: serde_json::Value) -> Observed {
    let mut seen = world(1);
    let mut spec = serde_json::json!({ "provider": "local" });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    seen.pool.spec = serde_json::from_value(spec).unwrap();
    seen.pool.status.desired_machines = Some(seen.pool.spec.nodes.desired);
    seen
}

fn growing() -> Observed {
    pool(serde_json::json!({ "nodes": { "desired": 1, "max": 4 } }))
}

/// Work that waits, of an hour each, while one place is taken.
fn waits(seen: &mut Observed, places: u32) {
    let load = seen.load.as_mut().unwrap();
    let typical = Duration::from_hours(1);
    load.places_each = 1;
    load.runs.insert("m-0".into(), 1);
    load.demand = Demand {
        places,
        backlog: Some(typical * places),
        typical: Some(typical),
        running_since: Some(at(NOW - 10)),
        ..Demand::default()
    };
}

/// Nothing runs or waits since then, and so many machines were of use before.
fn is_idle_since(seen: &mut Observed, machines: u32, second: i64) {
    let mut load = PoolLoad::default();
    load.uses.note(machines, at(0));
    load.uses.note(0, at(second));
    seen.load = Some(load);
}

fn told(plan: &Plan, reason: &str) -> Vec<String> {
    let of = plan.events.iter().filter(|event| event.reason == reason);
    of.map(|event| event.note.clone()).collect()
}

fn scaling(plan: &Plan) -> PoolScaling {
    plan.status.scaling.clone().unwrap_or_default()
}

/// What the next plan sees.
fn after(seen: &Observed, plan: &Plan) -> Observed {
    let mut seen = seen.clone();
    seen.pool.status = plan.status.clone();
    seen
}

#[test]
fn a_pool_grows_in_one_decision_that_is_on_record_and_tells_its_price() {
    let mut seen = growing();
    seen.machines = vec![busy(0)];
    waits(&mut seen, 9);
    let plan = decide(&seen);
    assert_eq!(created(&plan), [1, 2, 3]);
    assert_eq!(plan.status.desired_machines, Some(4));
    assert_eq!(plan.status.machines_summary, "4 (1-4)");
    assert_eq!(plan.status.ready_summary, "1/4");
    assert_eq!(scaling(&plan).reason, Some(ScalingReason::WorkWaits));
    let notes = told(&plan, events::reason::POOL_GROWS);
    assert!(
        notes.len() == 1 && notes[0].starts_with("1 → 4 machines: waiting work would take 9 places"),
        "{notes:?}"
    );
    assert!(
        notes[0].contains("3 ordered now, for ") && notes[0].contains("USD per hour"),
        "{notes:?}"
    );
    // A Pool with as many machines as its spec asks for is Ready while it grows.
    let (status, why, _) = condition(&plan, READY).unwrap();
    assert_eq!((status.as_str(), why.as_str()), ("True", reason::PARTIALLY_READY));
}

#[test]
fn a_leader_that_comes_between_a_decision_and_its_orders_makes_them_without_knowing_the_load() {
    let mut seen = growing();
    seen.machines = vec![busy(0)];
    seen.pool.status.desired_machines = Some(3);
    seen.load = None;
    let plan = decide(&seen);
    assert_eq!(created(&plan), [1, 2]);
    assert_eq!(plan.status.desired_machines, Some(3));
    assert!(
        told(&plan, events::reason::POOL_GROWS).is_empty(),
        "that was told"
    );
}

/// A leader dies after the record of a growth and so many of its orders.
#[rstest]
fn whatever_was_ordered_when_a_leader_died_the_next_one_orders_the_rest_and_no_more(
    #[values(0, 1, 2, 3)] made: u32,
    #[values(true, false)] knows_load: bool,
) {
    let mut seen = growing();
    seen.machines = vec![busy(0)];
    waits(&mut seen, 9);
    let first = decide(&seen);
    assert_eq!(created(&first), [1, 2, 3]);
    let mut seen = after(&seen, &first);
    seen.machines.extend((1..=made).map(booting));
    if !knows_load {
        seen.load = None;
    }
    let next = decide_at(&seen, NOW + 30);
    assert_eq!(created(&next), (made + 1..=3).collect::<Vec<_>>());
    assert_eq!((next.status.desired_machines, deleted(&next)), (Some(4), vec![]));
    assert!(
        told(&next, events::reason::POOL_GROWS).is_empty(),
        "that was told"
    );
    let mut seen = after(&seen, &next);
    seen.machines = vec![busy(0), booting(1), booting(2), booting(3)];
    assert!(created(&decide_at(&seen, NOW + 60)).is_empty());
}

#[test]
fn orders_of_a_leader_that_died_are_not_made_when_their_work_is_done() {
    let mut seen = growing();
    seen.pool.status.desired_machines = Some(4);
    seen.machines = vec![ready(0), booting(1)];
    seen.machines[1].ordered_at = Some(at(NOW - 10));
    is_idle_since(&mut seen, 1, NOW - 1);
    let plan = decide(&seen);
    assert!(created(&plan).is_empty());
    assert_eq!(plan.status.desired_machines, Some(2), "one is on its way");
}

#[test]
fn growth_that_no_offer_fits_is_no_reason_to_act() {
    let mut seen = growing();
    seen.machines = vec![busy(0)];
    of_local(&mut seen).limits.total = Some(1);
    of_local(&mut seen).used.total = 1;
    waits(&mut seen, 9);
    let plan = decide(&seen);
    assert!(created(&plan).is_empty());
    assert_eq!(condition(&plan, STALLED), None);
    let (status, _, message) = condition(&plan, READY).unwrap();
    assert!(status == "True" && message.contains("limit"), "{message}");
}

/// A Pool of one to four that has its floor, works towards four, and whose other machines failed at that time.
fn growth_fails(when: i64) -> Observed {
    let mut seen = growing();
    seen.pool.status.desired_machines = Some(4);
    seen.machines = vec![busy(0), failed(1, when), failed(2, when), failed(3, when)];
    waits(&mut seen, 9);
    seen
}

/// The same, once the failed machines are gone.
fn without_failed(seen: &Observed, plan: &Plan) -> Observed {
    let mut seen = after(seen, plan);
    seen.machines.retain(|machine| machine.failure.is_none());
    seen
}

#[test]
fn machines_that_fail_beyond_the_floor_are_told_and_tried_again_later_and_stall_no_pool() {
    let seen = growth_fails(NOW);
    let plan = decide(&seen);
    assert_eq!((created(&plan), plan.status.failed_attempts), (vec![], 0));
    assert_eq!(scaling(&plan).growth_failures, Some(3));
    assert_eq!(condition(&plan, STALLED), None);
    let (status, why, _) = condition(&plan, READY).unwrap();
    assert_eq!((status.as_str(), why.as_str()), ("True", reason::PARTIALLY_READY));
    let (_, why, message) = condition(&plan, RECONCILING).unwrap();
    assert_eq!(why, reason::GROWTH_FAILED);
    for words in [
        "3 machines beyond nodes.desired",
        "a change of the Pool",
        "cannot be pulled",
    ] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(plan.status.reason, "GrowthFailed");
    assert_eq!(told(&plan, events::reason::GROWTH_FAILED).len(), 1);
    // A crash before the deletions: the same failures are seen again, and counted once.
    let again = decide_at(&after(&seen, &plan), NOW + 1);
    assert_eq!(scaling(&again).growth_failures, Some(3));
    assert!(
        told(&again, events::reason::GROWTH_FAILED).is_empty(),
        "once is enough"
    );
    let seen = without_failed(&seen, &plan);
    let (_, _, message) = condition(&decide_at(&seen, NOW + 39), RECONCILING).unwrap();
    assert!(
        message.contains("cannot be pulled"),
        "the machine is gone: {message}"
    );
    assert_eq!(
        created(&decide_at(&seen, NOW + 40)),
        [1, 2, 3],
        "10 s, doubled twice"
    );
}

#[test]
fn growth_that_failed_too_often_is_tried_with_one_machine_each_hour() {
    let mut seen = growth_fails(NOW);
    seen.pool.spec.max_provision_attempts = Some(3);
    let plan = decide(&seen);
    assert_eq!(condition(&plan, STALLED), None);
    let seen = without_failed(&seen, &plan);
    assert!(created(&decide_at(&seen, NOW + 3599)).is_empty());
    let trial = decide_at(&seen, NOW + 3600);
    assert_eq!(created(&trial), [1]);
    let mut seen = after(&seen, &trial);
    seen.machines.push(booting(1));
    assert!(
        created(&decide_at(&seen, NOW + 3700)).is_empty(),
        "one is on its way"
    );
    let mut fails = seen.clone();
    fails.machines[1] = failed(1, NOW + 3800);
    let failed_again = decide_at(&fails, NOW + 3800);
    assert_eq!(scaling(&failed_again).growth_failures, Some(4));
    assert!(created(&decide_at(&without_failed(&fails, &failed_again), NOW + 7399)).is_empty());
    seen.machines[1] = busy(1);
    seen.machines[1].ordered_at = Some(at(NOW + 3600));
    seen.machines[1].ready_at = Some(at(NOW + 3800));
    seen.load.as_mut().unwrap().runs.insert("m-1".into(), 1);
    let works = decide_at(&seen, NOW + 3860);
    assert_eq!(
        (scaling(&works).growth_failures, created(&works)),
        (None, vec![2, 3])
    );
}

#[test]
fn growth_that_waits_holds_up_no_machine_of_the_floor() {
    let seen = growth_fails(NOW);
    let plan = decide(&seen);
    let mut seen = without_failed(&seen, &plan);
    seen.machines.clear();
    let replaced = decide_at(&seen, NOW + 2);
    assert_eq!(
        (created(&replaced), replaced.status.failed_attempts),
        (vec![0], 0)
    );
    // What fails while the floor is not there counts for the Pool.
    let mut lost = growth_fails(NOW);
    lost.machines.remove(0);
    let plan = decide(&lost);
    assert_eq!(
        (plan.status.failed_attempts, scaling(&plan).growth_failures),
        (3, None)
    );
}

#[test]
fn a_changed_pool_grows_at_once() {
    let seen = growth_fails(NOW);
    let mut seen = without_failed(&seen, &decide(&seen));
    seen.pool.generation = 2;
    assert_eq!(created(&decide_at(&seen, NOW + 1)), [1, 2, 3]);
}

#[test]
fn two_bootstraps_beyond_the_floor_that_fail_in_the_same_way_stop_growth_and_not_the_pool() {
    let mut seen = growth_fails(NOW);
    for machine in &mut seen.machines[1..] {
        let failure = machine.failure.as_mut().unwrap();
        failure.reason = reason::BOOTSTRAP_FAILED.into();
        failure.bootstrap = Some(skyward_api::machine::BootstrapFailure {
            step: "packages".into(),
            ended: "failed (exit code 1)".into(),
            line: "no such package".into(),
            pattern: "no such package".into(),
            cause: None,
        });
    }
    let plan = decide(&seen);
    assert_eq!(condition(&plan, STALLED), None);
    assert_eq!(condition(&plan, RECONCILING).unwrap().1, reason::GROWTH_FAILED);
    let mut seen = without_failed(&seen, &plan);
    assert!(created(&decide_at(&seen, NOW + 3599)).is_empty());
    assert_eq!(created(&decide_at(&seen, NOW + 3600)), [1]);
    seen.machines.clear();
    let replaced = decide_at(&seen, NOW + 2);
    assert_eq!(
        (created(&replaced), condition(&replaced, STALLED)),
        (vec![0], None)
    );
}

#[test]
fn a_refused_order_beyond_the_floor_is_told_and_stalls_no_pool() {
    let mut seen = growing();
    seen.pool.status.desired_machines = Some(2);
    let refused = MachineFacts {
        refused: true,
        concern: Some((reason::ORDER_REFUSED.into(), "no default VPC".into())),
        ..booting(1)
    };
    seen.machines = vec![busy(0), refused];
    waits(&mut seen, 1);
    let plan = decide(&seen);
    assert_eq!(condition(&plan, STALLED), None);
    let (_, why, message) = condition(&plan, RECONCILING).unwrap();
    assert!(
        why == reason::GROWTH_FAILED && message.contains("no default VPC"),
        "{message}"
    );
    seen.machines.remove(0);
    assert_eq!(
        condition(&decide(&seen), STALLED).unwrap().1,
        reason::ORDER_REFUSED
    );
}

#[test]
fn idle_machines_go_after_the_wait_the_dearest_first_and_the_head_never() {
    let mut seen = growing();
    seen.pool.status.desired_machines = Some(4);
    seen.machines = (0..4).map(ready).collect();
    seen.machines[1].hourly_price = Usd::from(9);
    // A machine of this Pool takes 100 seconds to start, so it may be idle as long.
    is_idle_since(&mut seen, 4, NOW - 99);
    assert!(deleted(&decide(&seen)).is_empty());
    is_idle_since(&mut seen, 2, NOW - 60);
    let plan = decide(&seen);
    let gone = deleted(&plan);
    assert_eq!(
        gone,
        [
            ("m-1".to_owned(), Why::Idle, true),
            ("m-3".to_owned(), Why::Idle, true)
        ]
    );
    assert_eq!((plan.status.desired_machines, created(&plan)), (Some(2), vec![]));
    assert_eq!(scaling(&plan).reason, Some(ScalingReason::MachinesIdle));
    assert_eq!(told(&plan, events::reason::POOL_SHRINKS).len(), 1);
}

#[test]
fn scale_down_after_is_what_the_pool_says() {
    let mut seen = pool(serde_json::json!({
        "nodes": { "desired": 1, "max": 4 }, "autoscale": { "scaleDownAfter": "10m" }
    }));
    seen.pool.status.desired_machines = Some(2);
    seen.machines = vec![ready(0), ready(1)];
    is_idle_since(&mut seen, 2, NOW - 599);
    let plan = decide(&seen);
    assert!(deleted(&plan).is_empty());
    assert_eq!(plan.next, Next::After(Duration::from_secs(1)));
    is_idle_since(&mut seen, 2, NOW - 600);
    assert_eq!(deleted_names(&decide(&seen)), ["m-1"]);
}

#[test]
fn a_machine_that_is_billed_by_the_hour_is_ordered_for_an_hour_of_work_and_not_for_less() {
    let mut seen = growing();
    seen.machines = vec![busy(0)];
    waits(&mut seen, 4);
    let demand = &mut seen.load.as_mut().unwrap().demand;
    let typical = Duration::from_mins(10);
    (demand.typical, demand.backlog) = (Some(typical), Some(typical * 4));
    assert_eq!(created(&decide(&seen)), [1, 2, 3]);
    of_local(&mut seen).billing_step_seconds = 3600;
    assert!(created(&decide(&seen)).is_empty());
}

/// Ten minutes of work each wait for a Pool with that spec, beside a Provider that bills by the hour and has one Offer.
fn beside_hours(more: serde_json::Value, local: serde_json::Value, hours: serde_json::Value) -> Observed {
    let mut seen = pool(serde_json::json!({
        "nodes": { "desired": 1, "max": 4 }, "candidates": [{}, { "provider": "hours" }]
    }));
    let mut spec = serde_json::to_value(&seen.pool.spec).unwrap();
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    seen.pool.spec = serde_json::from_value(spec).unwrap();
    let by_the_hour = ProviderFacts {
        billing_step_seconds: 3600,
        ..provider()
    };
    seen.providers.insert("hours".into(), by_the_hour);
    let index = |name, spec| Arc::new(OfferIndex::of([offer(name, spec)]));
    seen.offers.insert("local".into(), index("local-x", local));
    seen.offers.insert("hours".into(), index("hours-x", hours));
    seen.machines = vec![busy(0)];
    waits(&mut seen, 4);
    let demand = &mut seen.load.as_mut().unwrap().demand;
    let typical = Duration::from_mins(10);
    (demand.typical, demand.backlog) = (Some(typical), Some(typical * 4));
    seen
}

#[rstest]
#[case::it_is_dearer("Independent", "9", vec![1, 2, 3])]
#[case::it_would_be_ordered("Independent", "0.5", vec![])]
#[case::the_others_stand_elsewhere("Connected", "0.5", vec![1, 2, 3])]
fn a_cloud_that_bills_by_the_hour_keeps_a_pool_from_growing_only_where_it_would_be_ordered(
    #[case] topology: &str,
    #[case] price: &str,
    #[case] expected: Vec<u32>,
) {
    let seen = beside_hours(
        serde_json::json!({ "topology": topology }),
        serde_json::json!({ "onDemandPrice": "1" }),
        serde_json::json!({ "provider": "hours", "onDemandPrice": price }),
    );
    assert_eq!(created(&decide(&seen)), expected);
}

#[test]
fn a_pool_of_the_spot_market_grows_by_the_bill_of_that_market() {
    let mut seen = beside_hours(
        serde_json::json!({ "topology": "Independent", "spotPercent": 100 }),
        serde_json::json!({ "onDemandPrice": "2", "spotPrice": "0.2" }),
        serde_json::json!({ "provider": "hours", "onDemandPrice": "1" }),
    );
    seen.machines[0].market = Market::Spot;
    assert_eq!(created(&decide(&seen)), [1, 2, 3]);
}

#[test]
fn where_nothing_can_be_ordered_the_longest_bill_counts() {
    let mut seen = beside_hours(
        serde_json::json!({ "topology": "Independent", "maxHourlyCost": "0.1" }),
        serde_json::json!({ "onDemandPrice": "1" }),
        serde_json::json!({ "provider": "hours", "onDemandPrice": "2" }),
    );
    let plan = decide(&seen);
    assert_eq!((created(&plan), plan.status.desired_machines), (vec![], Some(1)));
    assert_eq!(condition(&plan, STALLED), None);
    seen.pool.spec.max_hourly_cost = None;
    assert_eq!(created(&decide(&seen)), [1, 2, 3]);
}

#[test]
fn a_budget_orders_no_machine_whose_start_it_does_not_bear() {
    let mut seen = pool(serde_json::json!({
        "nodes": { "desired": 1, "max": 4 }, "budget": { "maxTotalCost": "0.000001" }
    }));
    seen.offers = BTreeMap::from([(
        "local".to_owned(),
        Arc::new(OfferIndex::of([offer(
            "local-x",
            serde_json::json!({ "onDemandPrice": "3" }),
        )])),
    )]);
    seen.machines = vec![busy(0)];
    waits(&mut seen, 9);
    let plan = decide(&seen);
    assert!(created(&plan).is_empty());
    assert_eq!(plan.status.desired_machines, Some(1));
}

#[test]
fn a_budget_counts_the_machines_that_are_on_their_way_and_not_billed_yet() {
    let mut seen = pool(serde_json::json!({
        "nodes": { "desired": 1, "max": 4 }, "budget": { "maxTotalCost": "0.35" }
    }));
    // Machines of this Pool take 100 seconds to start: 0.1 USD each.
    seen.offers = BTreeMap::from([(
        "local".to_owned(),
        Arc::new(OfferIndex::of([offer(
            "local-x",
            serde_json::json!({ "onDemandPrice": "3.6" }),
        )])),
    )]);
    seen.machines = vec![busy(0)];
    waits(&mut seen, 2);
    let first = decide(&seen);
    assert_eq!(first.status.desired_machines, Some(3));
    let mut seen = after(&seen, &first);
    seen.machines.extend([booting(1), booting(2)]);
    waits(&mut seen, 9);
    assert_eq!(decide(&seen).status.desired_machines, Some(4));
    seen.pool.spec.budget =
        Some(serde_json::from_value(serde_json::json!({ "maxTotalCost": "0.25" })).unwrap());
    assert_eq!(decide(&seen).status.desired_machines, Some(3));
}

/// A bill that grows each hour, since then.
fn by_the_hour(since: i64) -> Bill {
    Bill {
        tariff: Tariff {
            hourly: Usd::from(1),
            on_demand: Usd::from(1),
            market: Market::OnDemand,
            step: Duration::from_hours(1),
            minimum: Duration::ZERO,
        },
        since: at(since),
        gone_at: None,
    }
}

#[test]
fn a_machine_that_is_paid_for_an_hour_stays_until_just_before_its_end() {
    let mut seen = growing();
    seen.pool.status.desired_machines = Some(2);
    seen.machines = vec![ready(0), ready(1)];
    is_idle_since(&mut seen, 2, NOW - 500);
    seen.machines[0].bill = Some(by_the_hour(NOW - 1800));
    seen.machines[1].bill = Some(by_the_hour(NOW - 1800));
    let stays = decide(&seen);
    assert!(deleted(&stays).is_empty());
    assert_eq!(stays.next, Next::After(Duration::from_mins(28)));
    seen.machines[1].bill = Some(by_the_hour(NOW - 3500));
    assert_eq!(deleted_names(&decide(&seen)), ["m-1"]);
}

proptest! {
    #[test]
    fn no_plan_of_a_pool_that_grows_leaves_its_bounds_or_breaks_a_rule(
        machines in (0..6_u32).map(any_machine).collect::<Vec<_>>(),
        mask in prop::collection::vec(any::<bool>(), 6),
        (desired, more, target) in (1..4_u32, 1..5_u32, prop::option::of(0..9_u32)),
        (known, places, fixed) in (any::<bool>(), 0..9_u32, 0..2_u32),
        (used, ago) in (0..7_u32, 0..400_i64),
    ) {
        let most = desired + more;
        let mut seen = pool(serde_json::json!({ "nodes": { "desired": desired, "max": most } }));
        seen.pool.status.desired_machines = target;
        let present = machines.into_iter().zip(mask).filter(|(_, present)| *present);
        seen.machines = present.map(|(machine, _)| machine).collect();
        is_idle_since(&mut seen, used, NOW - ago);
        if places > 0 {
            waits(&mut seen, places);
        }
        let load = seen.load.as_mut().unwrap();
        (load.demand.fixed, load.demand.broadcasts) = (fixed, fixed);
        if !known {
            seen.load = None;
        }
        // `decide` audits the plan.
        let plan = decide(&seen);
        let wanted = plan.status.desired_machines.unwrap();
        prop_assert!((desired..=most).contains(&wanted), "{}", wanted);
        let idle = deleted(&plan).into_iter().filter(|(_, why, _)| *why == Why::Idle).count();
        prop_assert!(idle == 0 || (known && places == 0 && fixed == 0), "machines go while work waits");
    }
}
