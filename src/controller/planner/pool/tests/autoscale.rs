//! Pools that grow, shrink, sleep and end: what the plan makes of the decisions of `pool::autoscale`.

use std::time::Duration;

use proptest::prelude::*;
use skyward_api::pool::{PoolCost, PoolScaling, ScalingReason};

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

fn sleepy() -> Observed {
    let mut seen = pool(serde_json::json!({ "nodes": { "desired": 2 }, "idleTimeout": "10m" }));
    seen.machines = vec![ready(0), ready(1)];
    seen
}

#[test]
fn a_pool_that_has_nothing_to_do_says_that_it_will_sleep_and_sleeps() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, NOW - 399);
    let quiet = decide(&seen);
    assert_eq!(
        (told(&quiet, events::reason::POOL_SLEEPS_SOON).len(), quiet.next),
        (0, Next::After(Duration::from_secs(1)))
    );
    is_idle_since(&mut seen, 1, NOW - 400);
    let soon = decide(&seen);
    assert_eq!(told(&soon, events::reason::POOL_SLEEPS_SOON).len(), 1);
    assert_eq!(scaling(&soon).sleeps_at, Some(Time(at(NOW + 200))));
    let seen = after(&seen, &soon);
    let again = decide_at(&seen, NOW + 1);
    assert!(
        told(&again, events::reason::POOL_SLEEPS_SOON).is_empty(),
        "once is enough"
    );
    let asleep = decide_at(&seen, NOW + 200);
    assert_eq!(deleted(&asleep).len(), 2);
    assert!(
        deleted(&asleep)
            .iter()
            .all(|(_, why, finish)| *why == Why::Asleep && *finish)
    );
    let (status, why, _) = condition(&asleep, READY).unwrap();
    assert_eq!((status.as_str(), why.as_str()), ("True", reason::SLEEPING));
    assert_eq!(asleep.status.phase, Some(PoolPhase::Sleeping));
    assert_eq!(
        (asleep.status.desired_machines, asleep.status.reason.as_str()),
        (Some(0), "Sleeping")
    );
    assert_eq!(told(&asleep, events::reason::POOL_SLEEPS).len(), 1);
    let mut seen = after(&seen, &asleep);
    seen.machines.clear();
    let still = decide_at(&seen, NOW + 9_000);
    assert!(
        created(&still).is_empty()
            && still
                .events
                .iter()
                .all(|event| event.reason == events::reason::COST_FINAL)
    );
}

#[test]
fn a_restart_of_the_controller_does_not_begin_the_wait_anew_once_it_was_told() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, NOW - 400);
    let mut seen = after(&seen, &decide(&seen));
    let mut load = PoolLoad::default();
    load.uses.note(0, at(NOW + 150));
    seen.load = None;
    assert!(
        deleted(&decide_at(&seen, NOW + 200)).is_empty(),
        "unknown is not idle"
    );
    seen.load = Some(load);
    assert_eq!(deleted(&decide_at(&seen, NOW + 200)).len(), 2);
}

#[test]
fn a_run_an_uncollected_value_and_waiting_work_keep_a_pool_awake() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, 0);
    let mut run = seen.clone();
    run.load.as_mut().unwrap().runs.insert("m-1".into(), 1);
    let mut unstored = seen.clone();
    unstored.load.as_mut().unwrap().unstored = 1;
    let mut waiting = seen.clone();
    waiting.load.as_mut().unwrap().demand.fixed = 1;
    for awake in [run, unstored, waiting] {
        assert!(deleted(&decide(&awake)).is_empty());
    }
    assert_eq!(deleted(&decide(&seen)).len(), 2);
}

/// Asleep since then.
fn asleep_since(second: i64) -> Observed {
    let mut seen = sleepy();
    seen.machines.clear();
    seen.pool.status.desired_machines = Some(0);
    seen.pool.status.scaling = Some(PoolScaling {
        sleeping_since: Some(Time(at(second))),
        slept_with: Some(2),
        ..PoolScaling::default()
    });
    seen
}

#[test]
fn the_next_task_wakes_a_pool_and_a_short_sleep_makes_the_next_wait_longer() {
    for (slept, short) in [(5_000, None), (599, Some(1))] {
        let mut seen = asleep_since(NOW - slept);
        seen.load.as_mut().unwrap().demand.places = 1;
        let plan = decide(&seen);
        assert_eq!(created(&plan), [0, 1], "at once");
        assert_eq!(scaling(&plan).reason, Some(ScalingReason::Woken));
        assert_eq!(
            (scaling(&plan).sleeping_since, scaling(&plan).short_sleeps),
            (None, short)
        );
        let notes = told(&plan, events::reason::POOL_WAKES);
        assert!(
            notes.len() == 1 && notes[0].contains("sleeps after 20m") == short.is_some(),
            "{notes:?}"
        );
    }
}

#[test]
fn a_raised_floor_and_a_timeout_that_is_never_wake_a_pool_and_an_unknown_load_does_not() {
    let mut unknown = asleep_since(NOW - 50);
    unknown.load = None;
    assert!(created(&decide(&unknown)).is_empty());
    let mut raised = asleep_since(NOW - 50);
    raised.pool.spec.nodes.desired = 3;
    assert_eq!(created(&decide(&raised)), [0, 1, 2]);
    let mut never = asleep_since(NOW - 50);
    never.pool.spec.idle_timeout = Some(skyward_api::DurationOrNever("Never".into()));
    assert_eq!(created(&decide(&never)), [0, 1]);
    let mut lowered = asleep_since(NOW - 50);
    lowered.pool.spec.nodes.desired = 1;
    let plan = decide(&lowered);
    assert!(created(&plan).is_empty());
    let mut again = after(&lowered, &plan);
    again.pool.spec.nodes.desired = 2;
    assert_eq!(created(&decide(&again)), [0, 1]);
}

#[test]
fn a_pool_whose_budget_is_spent_while_it_sleeps_says_that_and_not_that_a_task_wakes_it() {
    let mut seen = asleep_since(NOW - 50);
    seen.pool.spec.budget = Some(serde_json::from_value(serde_json::json!({ "maxTotalCost": "1" })).unwrap());
    seen.pool.status.cost = Some(PoolCost {
        settled: "5".into(),
        on_demand: "5".into(),
        ..PoolCost::default()
    });
    let plan = decide(&seen);
    assert_eq!(plan.status.phase, Some(PoolPhase::Stalled));
    let (status, why, _) = condition(&plan, STALLED).unwrap();
    assert_eq!((status.as_str(), why.as_str()), ("True", reason::BUDGET_SPENT));
}

#[test]
fn a_pool_that_is_off_is_off_and_not_asleep() {
    let mut seen = asleep_since(NOW - 50);
    seen.pool.spec.nodes.desired = 0;
    seen.load.as_mut().unwrap().demand.places = 1;
    let plan = decide(&seen);
    assert_eq!(
        (plan.status.phase, created(&plan)),
        (Some(PoolPhase::Off), vec![])
    );
    assert_eq!(scaling(&plan).sleeping_since, None);
}

#[test]
fn where_the_pool_does_not_say_it_the_provider_of_its_machines_does_but_for_pools_of_an_earlier_release() {
    let mut seen = sleepy();
    seen.pool.spec.idle_timeout = None;
    is_idle_since(&mut seen, 1, 0);
    assert!(deleted(&decide(&seen)).is_empty(), "machines that cost nothing");
    of_local(&mut seen).idle_timeout = Some(Duration::from_mins(10));
    assert_eq!(deleted(&decide(&seen)).len(), 2);
    // An earlier release wrote no such number.
    seen.pool.status.desired_machines = None;
    let upgraded = decide(&seen);
    assert!(deleted(&upgraded).is_empty());
    let later = decide_at(&after(&seen, &upgraded), NOW + 100_000);
    assert!(deleted(&later).is_empty(), "an upgrade turns nothing off unasked");
    let mut asked = after(&seen, &upgraded);
    asked.pool.spec.idle_timeout = Some(skyward_api::DurationOrNever("10m".into()));
    assert_eq!(deleted(&decide(&asked)).len(), 2);
}

#[test]
fn a_change_of_the_spec_begins_the_wait_anew() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, 0);
    seen.pool.generation = 2;
    let plan = decide(&seen);
    assert!(deleted(&plan).is_empty());
    assert_eq!(scaling(&plan).idle_since, Some(Time(at(NOW))));
}

#[test]
fn a_pool_that_has_lived_long_enough_ends_until_its_spec_changes() {
    let mut seen = pool(serde_json::json!({ "nodes": { "desired": 2 }, "maxLifetime": "1h" }));
    seen.machines = vec![busy(0), busy(1)];
    let begun = decide(&seen);
    assert_eq!(
        begun.status.lifetime.as_ref().unwrap().since,
        Time(at(NOW)),
        "it counts from now"
    );
    let seen = after(&seen, &begun);
    assert!(deleted(&decide_at(&seen, NOW + 3599)).is_empty());
    let ended = decide_at(&seen, NOW + 3600);
    let gone = deleted(&ended);
    assert!(
        gone.len() == 2
            && gone
                .iter()
                .all(|(_, why, finish)| *why == Why::LifetimeExceeded && !finish)
    );
    let (status, why, _) = condition(&ended, STALLED).unwrap();
    assert_eq!(
        (status.as_str(), why.as_str()),
        ("True", reason::LIFETIME_EXCEEDED)
    );
    let mut seen = after(&seen, &ended);
    seen.machines.clear();
    // An autoscaler moves the floor.
    seen.pool.spec.nodes.desired = 3;
    assert!(created(&decide_at(&seen, NOW + 7200)).is_empty());
    seen.pool.spec.max_lifetime = Some("2h".parse().unwrap());
    let again = decide_at(&seen, NOW + 7200);
    assert_eq!(created(&again), [0, 1, 2]);
    assert_eq!(again.status.lifetime.unwrap().since, Time(at(NOW + 7200)));
}

#[test]
fn a_machine_that_is_paid_for_an_hour_stays_until_just_before_its_end() {
    let mut seen = growing();
    seen.pool.status.desired_machines = Some(2);
    seen.machines = vec![ready(0), ready(1)];
    is_idle_since(&mut seen, 2, NOW - 500);
    let bill = |since| Bill {
        tariff: Tariff {
            hourly: Usd::from(1),
            on_demand: Usd::from(1),
            market: Market::OnDemand,
            step: Duration::from_hours(1),
            minimum: Duration::ZERO,
        },
        since: at(since),
        gone_at: None,
    };
    seen.machines[0].bill = Some(bill(NOW - 1800));
    seen.machines[1].bill = Some(bill(NOW - 1800));
    let stays = decide(&seen);
    assert!(deleted(&stays).is_empty());
    assert_eq!(stays.next, Next::After(Duration::from_mins(28)));
    seen.machines[1].bill = Some(bill(NOW - 3500));
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
