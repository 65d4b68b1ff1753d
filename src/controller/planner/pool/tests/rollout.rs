//! A changed image goes from machine to machine in place.

use skyward_api::{
    condition::is_true,
    environment::EnvironmentFailure,
    machine::{BootstrapCause, BootstrapFailure},
};

use super::*;
use crate::events;

/// A world of ready machines with the environment "a", whose image asks for "b".
fn changed(machines: Vec<MachineFacts>) -> Observed {
    let mut seen = world(u32::try_from(machines.len()).unwrap());
    seen.machines = machines;
    seen.environment = Some("b".into());
    seen
}

fn with(machine: MachineFacts, hash: &str, changing_to: &str) -> MachineFacts {
    let environment = MachineEnvironment {
        hash: hash.into(),
        changing_to: changing_to.into(),
        ..MachineEnvironment::default()
    };
    MachineFacts {
        changing: !changing_to.is_empty() && machine.ready_at.is_some(),
        environment: Some(environment),
        ..machine
    }
}

fn failed_to(machine: MachineFacts, hash: &str, when: i64, cause: Option<BootstrapCause>) -> MachineFacts {
    let mut machine = machine;
    let name = machine.name.clone();
    let environment = machine.environment.as_mut().unwrap();
    environment.failed = Some(EnvironmentFailure {
        hash: hash.into(),
        machine: name,
        failure: BootstrapFailure {
            step: "packages".into(),
            cause,
            ..BootstrapFailure::default()
        },
        message: "Step \"packages\": failed (exit code 1): no such package".into(),
        at: Time(at(when)),
    });
    machine
}

/// The next look, after the status of a plan was written.
fn then(seen: &Observed, plan: &Plan) -> Observed {
    let mut seen = seen.clone();
    seen.pool.status = plan.status.clone();
    seen
}

fn environment(plan: &Plan) -> &PoolEnvironment {
    plan.status.environment.as_ref().unwrap()
}

fn turn(plan: &Plan) -> &str {
    &environment(plan).turn
}

fn stalled(plan: &Plan) -> Option<(&str, &str)> {
    find(&plan.status.conditions, STALLED)
        .filter(|stalled| stalled.status == "True")
        .map(|stalled| (stalled.reason.as_str(), stalled.message.as_str()))
}

#[test]
fn an_image_that_did_not_change_gives_no_machine_a_turn() {
    let mut seen = changed(vec![ready(0), ready(1)]);
    seen.environment = Some("a".into());
    let plan = decide(&then(&seen, &decide(&seen)));
    assert_eq!((turn(&plan), environment(&plan).proven), ("", true));
    assert!(plan.actions.is_empty() && plan.events.is_empty());
}

#[test]
fn a_changed_image_orders_replaces_and_ends_nothing_and_one_idle_machine_begins_the_head_last() {
    let mut busy = busy(2);
    busy.runs = Some(3);
    let seen = changed(vec![ready(0), ready(1), busy]);
    let plan = decide(&seen);
    assert_eq!(plan.actions, []);
    let record = environment(&plan);
    assert_eq!((record.hash.as_str(), record.proven), ("b", false));
    assert_eq!(record.turn, "m-1");
    assert_eq!(record.turn_since, Some(Time(at(NOW))));
    assert!(is_true(&plan.status.conditions, READY), "Tasks go on");
    let reconciling = find(&plan.status.conditions, RECONCILING).unwrap();
    assert_eq!(reconciling.reason, reason::CHANGING_ENVIRONMENT);
    assert!(reconciling.message.contains("\"m-1\""), "{}", reconciling.message);
    assert_eq!(
        plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(),
        [events::reason::ENVIRONMENT_CHANGING, events::reason::POOL_READY]
    );
    // The same again, until the machine has changed.
    let again = decide_at(&then(&seen, &plan), NOW + 60);
    assert_eq!(environment(&again), record);
    assert!(again.events.is_empty());
}

#[test]
fn machines_change_one_after_the_other_until_all_have_the_environment() {
    let mut seen = changed(vec![ready(0), ready(1), ready(2)]);
    let mut turns = Vec::new();
    for _ in 0..3 {
        let plan = decide(&seen);
        let name = turn(&plan).to_owned();
        seen = then(&seen, &plan);
        let place = seen
            .machines
            .iter()
            .position(|machine| machine.name == name)
            .unwrap();
        seen.machines[place] = with(ready(place as u32), "a", "b");
        let midst = decide(&seen);
        assert_eq!(turn(&midst), name, "it has begun");
        assert!(is_true(&midst.status.conditions, READY));
        seen = then(&seen, &midst);
        seen.machines[place] = with(ready(place as u32), "b", "");
        turns.push(name);
    }
    assert_eq!(turns, ["m-2", "m-1", "m-0"], "the head last");
    let plan = decide(&seen);
    assert_eq!((turn(&plan), environment(&plan).proven), ("", true));
    assert_eq!(plan.events[0].reason, events::reason::ENVIRONMENT_CHANGED);
    assert!(!is_true(&plan.status.conditions, RECONCILING));
}

#[test]
fn a_busy_machine_waits_with_its_turn_and_gives_it_to_one_that_is_idle_sooner() {
    let with_runs = |slot, runs| MachineFacts {
        runs: Some(runs),
        ..busy(slot)
    };
    let seen = changed(vec![with_runs(0, 1), with_runs(1, 2), with_runs(2, 5)]);
    let plan = decide(&seen);
    assert_eq!(turn(&plan), "m-0", "the fewest runs");
    let mut seen = then(&seen, &plan);
    seen.machines[1] = with_runs(1, 1);
    seen.machines[2] = with_runs(2, 0);
    let plan = decide(&seen);
    assert_eq!(turn(&plan), "m-2");
    let mut seen = then(&seen, &plan);
    seen.machines[0] = with_runs(0, 0);
    assert_eq!(turn(&decide(&seen)), "m-2", "it may have begun");
    seen.machines[0] = with(with_runs(0, 0), "a", "b");
    assert_eq!(turn(&decide(&seen)), "m-0", "it has begun on an older record");
}

#[test]
fn a_machine_whose_load_is_not_known_or_that_is_not_connected_has_no_turn() {
    let unknown = MachineFacts {
        runs: None,
        ..ready(1)
    };
    let away = MachineFacts {
        ready: false,
        concern: Some((reason::CONNECTION_LOST.into(), "it is dialled".into())),
        ..ready(0)
    };
    let plan = decide(&changed(vec![away, unknown]));
    assert_eq!(turn(&plan), "");
    assert!(plan.actions.is_empty());
}

#[test]
fn the_first_machine_that_fails_stops_the_rollout_and_all_go_on_as_they_are() {
    let seen = changed(vec![ready(0), ready(1), booting(2)]);
    let plan = decide(&seen);
    let mut seen = then(&seen, &plan);
    seen.machines[1] = failed_to(ready(1), "b", NOW + 5, None);
    // One machine is lost as well.
    seen.machines.pop();
    let plan = decide_at(&seen, NOW + 10);
    assert_eq!(plan.actions, [], "nothing is ordered, replaced or ended");
    assert_eq!(turn(&plan), "");
    let (why, message) = stalled(&plan).unwrap();
    assert_eq!(why, reason::IMAGE_FAILED);
    assert!(
        message.contains("\"m-1\"") && message.contains("no such package"),
        "{message}"
    );
    let later = then(&seen, &plan);
    let plan = decide_at(&later, NOW + 100_000);
    assert_eq!(stalled(&plan).unwrap().0, reason::IMAGE_FAILED, "also much later");
    // Another image begins anew, also the former one.
    for hash in ["c", "a"] {
        let mut seen = later.clone();
        seen.environment = Some(hash.into());
        let plan = decide_at(&seen, NOW + 20);
        assert_eq!(stalled(&plan), None);
        assert_eq!(turn(&plan), if hash == "c" { "m-1" } else { "" });
        assert_eq!(created(&plan), [2]);
    }
}

#[test]
fn a_pool_whose_machines_all_take_tasks_is_ready_and_says_that_its_image_failed() {
    let seen = changed(vec![failed_to(ready(0), "b", NOW, None)]);
    let plan = decide(&seen);
    assert!(is_true(&plan.status.conditions, READY));
    assert_eq!(plan.status.phase, Some(PoolPhase::Ready));
    assert_eq!(plan.status.reason, reason::IMAGE_FAILED);
    assert!(!is_true(&plan.status.conditions, RECONCILING));
}

#[test]
fn a_server_that_was_not_reached_is_tried_again_after_an_hour_and_a_wrong_package_is_not() {
    for (cause, again) in [(Some(BootstrapCause::Unreachable), true), (None, false)] {
        let seen = changed(vec![failed_to(ready(0), "b", NOW, cause)]);
        let plan = decide(&seen);
        assert!(stalled(&plan).is_some());
        let seen = then(&seen, &plan);
        let soon = decide_at(&seen, NOW + 3599);
        assert!(stalled(&soon).is_some());
        let late = decide_at(&seen, NOW + 3600);
        assert_eq!((stalled(&late).is_none(), turn(&late) == "m-0"), (again, again));
        // The failure of the turn before is not one of the new turn.
        let next = decide_at(&then(&seen, &late), NOW + 3700);
        assert_eq!(stalled(&next).is_none(), again);
    }
}

#[test]
fn the_machine_that_failed_may_be_deleted_and_another_is_ordered() {
    let seen = changed(vec![ready(0), failed_to(ready(1), "b", NOW, None)]);
    let plan = decide(&seen);
    let mut seen = then(&seen, &plan);
    seen.machines.pop();
    let plan = decide(&seen);
    assert_eq!(stalled(&plan), None);
    assert_eq!((created(&plan), turn(&plan)), (vec![1], "m-0"));
}

#[test]
fn a_machine_in_the_midst_of_a_change_goes_on_with_the_newest_image() {
    let mut seen = changed(vec![with(ready(0), "a", "b"), ready(1)]);
    seen.environment = Some("c".into());
    let plan = decide(&seen);
    assert_eq!((turn(&plan), environment(&plan).hash.as_str()), ("m-0", "c"));
    // Back to the environment that all have: the one that has begun must end it.
    seen.environment = Some("a".into());
    let plan = decide(&seen);
    assert_eq!((turn(&plan), environment(&plan).hash.as_str()), ("m-0", "a"));
}

#[test]
fn while_it_is_not_known_what_the_image_asks_for_no_other_machine_begins() {
    let mut seen = changed(vec![ready(0), ready(1)]);
    let plan = decide(&seen);
    seen = then(&seen, &plan);
    seen.environment = None;
    let plan = decide(&seen);
    assert_eq!((turn(&plan), environment(&plan).hash.as_str()), ("", "b"));
    seen.machines[1] = with(ready(1), "a", "b");
    assert_eq!(turn(&decide(&seen)), "m-1", "it has begun");
}

#[test]
fn a_debian_package_that_goes_replaces_machines_instead() {
    let old = MachineFacts {
        current: false,
        ..ready(1)
    };
    let plan = decide(&changed(vec![ready(0), old]));
    assert_eq!(deleted(&plan), [("m-1".to_owned(), Why::Outdated, true)]);
    assert_eq!(turn(&plan), "m-0");
}

#[test]
fn a_machine_that_never_took_runs_has_no_turn_and_is_not_given_up_for_the_image() {
    let booting = with(booting(0), "", "a");
    let plan = decide(&changed(vec![booting]));
    assert_eq!((plan.actions.len(), turn(&plan)), (0, ""));
    assert!(plan.events.is_empty(), "{:?}", plan.events);
}

#[test]
fn a_pool_that_is_off_changes_nothing() {
    let mut seen = changed(vec![ready(0)]);
    seen.pool.spec.nodes.desired = 0;
    let plan = decide(&seen);
    assert_eq!(deleted_names(&plan), ["m-0"]);
    assert_eq!(turn(&plan), "");
}

#[test]
fn the_record_of_an_older_release_that_was_not_looked_at_yet_has_no_turn() {
    let old = MachineFacts {
        environment: None,
        ..ready(0)
    };
    let plan = decide(&changed(vec![old]));
    assert_eq!((plan.actions.len(), turn(&plan)), (0, ""));
}
