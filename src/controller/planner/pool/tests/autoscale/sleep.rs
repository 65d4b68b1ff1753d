//! Pools that sleep, wake, are off and end.

use skyward_api::pool::PoolCost;

use super::*;

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
    assert_eq!(soon.status.reason, "sleeps at 1970-01-02T03:50:00Z", "a column");
    assert_eq!(quiet.status.reason, "");
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
fn another_leader_counts_from_work_that_came_and_went_between_two_looks() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, NOW - 400);
    let mut seen = after(&seen, &decide(&seen));
    let uses = &mut seen.load.as_mut().unwrap().uses;
    uses.note(1, at(NOW + 50));
    uses.note(0, at(NOW + 60));
    let awake = decide_at(&seen, NOW + 200);
    assert!(deleted(&awake).is_empty());
    let mut seen = after(&seen, &awake);
    let mut load = PoolLoad::default();
    load.uses.note(0, at(NOW + 205));
    seen.load = Some(load);
    assert!(deleted(&decide_at(&seen, NOW + 210)).is_empty());
    assert_eq!(deleted(&decide_at(&seen, NOW + 660)).len(), 2);
}

#[test]
fn what_a_leader_recorded_whose_clock_was_ahead_keeps_no_machine_that_has_no_work() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, NOW - 400);
    seen.pool.status.scaling = Some(PoolScaling {
        idle_since: Some(Time(at(NOW + 86_400))),
        ..PoolScaling::default()
    });
    let seen = after(&seen, &decide(&seen));
    assert_eq!(deleted(&decide_at(&seen, NOW + 600)).len(), 2);
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

#[test]
fn a_pool_whose_machines_are_paid_for_an_hour_sleeps_just_before_the_end_of_the_first() {
    let mut seen = sleepy();
    is_idle_since(&mut seen, 1, NOW - 400);
    seen.machines[0].bill = Some(by_the_hour(NOW - 1800));
    seen.machines[1].bill = Some(by_the_hour(NOW - 600));
    let soon = decide(&seen);
    let end = NOW + 1800 - 120;
    assert_eq!(scaling(&soon).sleeps_at, Some(Time(at(end))));
    let seen = after(&seen, &soon);
    let paid = decide_at(&seen, end - 1);
    assert_eq!(scaling(&paid).sleeps_at, scaling(&soon).sleeps_at);
    assert!(deleted(&paid).is_empty());
    assert_eq!(paid.next, Next::After(Duration::from_secs(1)));
    assert_eq!(deleted(&decide_at(&seen, end)).len(), 2);
    // The wait would pay another hour for these.
    let mut missing = seen.clone();
    missing.machines.pop();
    let mut starts = missing.clone();
    starts.machines.push(booting(1));
    for seen in [missing, starts] {
        let plan = decide_at(&seen, NOW + 200);
        assert_eq!(
            (created(&plan), plan.status.phase),
            (vec![], Some(PoolPhase::Sleeping))
        );
    }
}

#[test]
fn a_pool_that_is_deleted_while_it_sleeps_goes_without_an_order() {
    let mut seen = asleep_since(NOW - 50);
    seen.pool.deleting_since = Some(at(NOW));
    seen.leftovers = RemainingMachines::Known(Vec::new());
    let plan = decide(&seen);
    assert_eq!(created(&plan), Vec::<u32>::new());
    assert!(plan.actions.contains(&Action::RemoveFinalizer), "{plan:#?}");
}

/// A Pool that is idle since that second, and sleeps when its Provider says so: after ten minutes.
fn idle_as_its_provider_allows(second: i64) -> Observed {
    let mut seen = sleepy();
    seen.pool.spec.idle_timeout = None;
    of_local(&mut seen).idle_timeout = Some(Duration::from_mins(10));
    is_idle_since(&mut seen, 1, second);
    seen
}

#[test]
fn a_machine_in_the_place_of_a_lost_one_puts_off_no_sleep_that_was_told() {
    let seen = idle_as_its_provider_allows(NOW - 400);
    let mut seen = after(&seen, &decide(&seen));
    for machines in [vec![], vec![booting(0), booting(1)]] {
        seen.machines = machines;
        let starts = decide_at(&seen, NOW + 100);
        assert_eq!(scaling(&starts).sleeps_at, Some(Time(at(NOW + 200))));
        seen = after(&seen, &starts);
    }
    seen.machines = vec![ready(0), ready(1)];
    for machine in &mut seen.machines {
        machine.ready_at = Some(at(NOW + 150));
    }
    assert_eq!(deleted(&decide_at(&seen, NOW + 200)).len(), 2);
    seen.load.as_mut().unwrap().demand.places = 1;
    let works = decide_at(&seen, NOW + 200);
    assert_eq!((deleted(&works), scaling(&works).sleeps_at), (vec![], None));
}

#[test]
fn spot_machines_that_are_taken_back_more_often_than_a_pool_may_be_idle_keep_it_awake_no_longer() {
    let mut seen = idle_as_its_provider_allows(NOW - 5_000);
    for begin in [0, 200, 400] {
        let mut back = ready(0);
        back.ready_at = Some(at(NOW + begin));
        for (second, machines) in [
            (0, vec![back]),
            (100, vec![]),
            (150, vec![booting(0), booting(1)]),
        ] {
            seen.machines = machines;
            let plan = decide_at(&seen, NOW + begin + second);
            assert_eq!(plan.status.desired_machines, Some(2));
            let since = scaling(&plan).idle_since;
            assert_eq!(since, Some(Time(at(NOW))), "from the first machine on");
            seen = after(&seen, &plan);
        }
    }
    let asleep = decide_at(&seen, NOW + 600);
    assert_eq!(asleep.status.phase, Some(PoolPhase::Sleeping));
}

#[test]
fn a_pool_that_starts_waits_for_its_first_machine_after_a_wake_a_change_or_failures_that_are_forgotten() {
    let mut raised = asleep_since(NOW - 50);
    raised.pool.spec.nodes.desired = 3;
    let mut changed = sleepy();
    changed.machines = vec![booting(0)];
    changed.pool.generation = 2;
    let mut forgotten = never_ready();
    forgotten.machines.clear();
    forgotten.pool.generation = 2;
    for mut seen in [raised, changed, forgotten] {
        is_idle_since(&mut seen, 1, NOW - 5_000);
        let mut seen = after(&seen, &decide(&seen));
        seen.pool.status.observed_generation = Some(seen.pool.generation);
        seen.machines = vec![booting(0)];
        let starts = decide_at(&seen, NOW + 3_000);
        assert_eq!(scaling(&starts).idle_since, None);
        assert_ne!(starts.status.phase, Some(PoolPhase::Sleeping));
    }
}

/// Nothing has waited for as long as the Pool may be idle, and its last machines failed before they took Tasks.
fn never_ready() -> Observed {
    let mut seen = sleepy();
    seen.machines = vec![booting(0)];
    is_idle_since(&mut seen, 1, NOW - 600);
    seen.pool.status.failed_attempts = 2;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 30)));
    seen
}

#[test]
fn a_pool_whose_machines_never_become_ready_sleeps_when_nothing_waits_and_keeps_its_last_failure() {
    let mut seen = never_ready();
    let mut first = seen.clone();
    first.pool.status.failed_attempts = 0;
    assert!(deleted(&decide(&first)).is_empty(), "its first machine starts");
    let mut waiting = seen.clone();
    waiting.load.as_mut().unwrap().demand.places = 1;
    assert!(deleted(&decide(&waiting)).is_empty(), "a Task waits for it");
    assert!(deleted(&decide_at(&seen, NOW - 1)).is_empty(), "too early");
    seen.machines.push(failed(1, NOW - 10));
    let asleep = decide(&seen);
    assert!(created(&asleep).is_empty());
    let gone = deleted(&asleep);
    assert!(gone.contains(&("m-0".to_owned(), Why::Asleep, true)), "{gone:?}");
    assert_eq!(asleep.status.phase, Some(PoolPhase::Sleeping));
    let mut seen = after(&seen, &asleep);
    seen.machines.clear();
    let later = decide_at(&seen, NOW + 60);
    let (status, why, message) = condition(&later, READY).unwrap();
    assert_eq!((status.as_str(), why.as_str()), ("True", reason::SLEEPING));
    assert!(message.contains("cannot be pulled"), "{message}");
    seen.load.as_mut().unwrap().demand.places = 1;
    let woken = decide_at(&seen, NOW + 9_000);
    assert_eq!(created(&woken), [0, 1], "the next Task wakes it");
}

#[test]
fn a_pool_that_has_no_machine_between_two_failed_tries_sleeps_as_its_providers_say() {
    let mut seen = never_ready();
    seen.pool.spec.idle_timeout = None;
    seen.machines.clear();
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 3600)));
    assert_eq!(
        created(&decide(&seen)),
        [0, 1],
        "the hour is over, and machines cost nothing"
    );
    of_local(&mut seen).idle_timeout = Some(Duration::from_mins(10));
    let asleep = decide(&seen);
    assert_eq!(created(&asleep), Vec::<u32>::new());
    assert_eq!(asleep.status.phase, Some(PoolPhase::Sleeping));
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
fn a_leader_that_comes_between_the_record_of_a_sleep_and_its_deletions_finishes_them_or_wakes_the_pool() {
    let mut seen = asleep_since(NOW - 5);
    seen.machines = vec![ready(0), ready(1)];
    let mut unknown = seen.clone();
    unknown.load = None;
    for machine in &mut unknown.machines {
        machine.runs = None;
    }
    assert!(deleted(&decide(&unknown)).is_empty(), "unknown is not idle");
    assert_eq!(deleted(&decide(&seen)).len(), 2);
    seen.load.as_mut().unwrap().demand.places = 1;
    let woken = decide(&seen);
    assert_eq!((created(&woken), deleted(&woken)), (vec![], vec![]));
    assert_eq!(woken.status.desired_machines, Some(2));
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
fn a_pool_lives_no_longer_because_the_clock_of_an_earlier_leader_was_ahead() {
    let mut seen = pool(serde_json::json!({ "maxLifetime": "1h" }));
    seen.machines = vec![busy(0)];
    seen.pool.status.lifetime = decide_at(&seen, NOW + 86_400).status.lifetime;
    let seen = after(&seen, &decide(&seen));
    assert_eq!(deleted(&decide_at(&seen, NOW + 3600)).len(), 1);
}
