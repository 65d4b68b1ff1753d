//! Bootstraps that fail: in the same way twice, in different ways, at the same time, and after a
//! restart.

use skyward_api::machine::{BootstrapCause, BootstrapFailure};

use super::*;

/// A machine whose bootstrap failed so.
fn broken(slot: u32, attempt: u32, when: i64, line: &str) -> MachineFacts {
    let bootstrap = BootstrapFailure {
        step: "packages".into(),
        ended: "failed (exit code 1)".into(),
        line: line.into(),
        pattern: line.into(),
        cause: None,
    };
    MachineFacts {
        name: format!("m-{slot}-{attempt}"),
        uid: Some(format!("uid-{slot}-{attempt}")),
        attempt,
        failure: Some(Failure {
            at: at(when),
            reason: reason::BOOTSTRAP_FAILED.into(),
            message: format!("Step \"packages\": failed (exit code 1): {line} Its last output:\nabc\n{line}"),
            bootstrap: Some(bootstrap),
        }),
        ..failed(slot, when)
    }
}

fn unreachable(slot: u32, attempt: u32, when: i64) -> MachineFacts {
    let mut machine = broken(slot, attempt, when, "connection refused");
    let failure = machine.failure.as_mut().unwrap().bootstrap.as_mut().unwrap();
    failure.cause = Some(BootstrapCause::Unreachable);
    machine
}

/// The next plan, of another process, which has the records alone.
fn after_restart(seen: &mut Observed, plan: &Plan, machines: Vec<MachineFacts>) {
    seen.pool.status = plan.status.clone();
    seen.machines = machines;
}

fn is_stopped(plan: &Plan) -> bool {
    condition(plan, STALLED).is_some_and(|(_, why, _)| why == reason::BOOTSTRAP_FAILED)
}

/// A Pool that two machines have stopped, one after the other.
fn stopped() -> (Observed, Plan) {
    let mut seen = world(1);
    seen.machines = vec![broken(0, 1, NOW, "no such package")];
    let first = decide(&seen);
    assert!(!is_stopped(&first));
    assert_eq!(first.status.reason, "Provisioning: 1/10 tries failed");
    after_restart(&mut seen, &first, vec![]);
    let again = decide_at(&seen, NOW + 10);
    assert_eq!(created(&again), [0], "one may be bad luck");
    after_restart(&mut seen, &again, vec![broken(0, 2, NOW + 60, "no such package")]);
    let second = decide_at(&seen, NOW + 60);
    (seen, second)
}

#[test]
fn the_second_machine_that_fails_in_the_same_way_stops_the_pool_with_what_it_said() {
    let (mut seen, plan) = stopped();
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(
        (why.as_str(), plan.status.phase),
        (reason::BOOTSTRAP_FAILED, Some(PoolPhase::Stalled))
    );
    for words in [
        "\"m-0-1\", \"m-0-2\"",
        "kubectl skyward logs machine/m-0-2",
        "no such package",
        "abc",
    ] {
        assert!(message.contains(words), "{words} in {message}");
    }
    assert_eq!(plan.status.reason, "BootstrapFailed: given up after 2 tries");
    let told = plan
        .events
        .iter()
        .find(|event| event.reason == "PoolStalled")
        .unwrap();
    assert!(
        told.note.contains("no such package") && !told.note.contains("abc"),
        "{}",
        told.note
    );
    // Neither time nor a restart changes that, and the message stays when the machine is gone.
    after_restart(&mut seen, &plan, vec![]);
    for later in [61, 3_700, 1_000_000] {
        let plan = decide_at(&seen, NOW + later);
        assert_eq!((created(&plan), is_stopped(&plan)), (vec![], true));
        assert_eq!(condition(&plan, STALLED).unwrap().2, message);
        assert_eq!(plan.status.reason, "BootstrapFailed: given up after 2 tries");
        assert!(plan.events.is_empty(), "it is said once: {:?}", plan.events);
    }
}

#[test]
fn a_change_of_the_spec_or_of_what_it_names_is_a_new_chance() {
    let (seen, plan) = stopped();
    let mut gone = seen.clone();
    after_restart(&mut gone, &plan, vec![]);
    gone.tried_with = Some("otherwise".into());
    gone.pool.generation = 2;
    let again = decide_at(&gone, NOW + 61);
    assert_eq!((created(&again), is_stopped(&again)), (vec![0], false));
    // An unknown digest is no change.
    let mut unknown = gone.clone();
    unknown.tried_with = None;
    assert!(is_stopped(&decide_at(&unknown, NOW + 61)));
    // Nor is another number of machines.
    let mut more = gone.clone();
    more.tried_with.clone_from(&seen.tried_with);
    more.pool.spec.nodes.desired = 3;
    let plan = decide_at(&more, NOW + 61);
    assert_eq!((created(&plan), is_stopped(&plan)), (vec![], true));
    assert_eq!(plan.status.failed_attempts, 2);
}

#[test]
fn machines_that_were_under_way_before_a_change_do_not_count_after_it() {
    let (mut seen, plan) = stopped();
    // The records of the failed machines stay for a while, and one more machine was being prepared.
    let old = seen.machines[0].clone();
    after_restart(&mut seen, &plan, vec![old.clone()]);
    seen.tried_with = Some("otherwise".into());
    let again = decide_at(&seen, NOW + 61);
    assert!(!is_stopped(&again));
    let late = broken(1, 100, NOW + 70, "no such package");
    after_restart(&mut seen, &again, vec![old, late]);
    assert!(
        !is_stopped(&decide_at(&seen, NOW + 70)),
        "they were prepared as it was before"
    );
    // Machines that were ordered since do count.
    let both = vec![
        broken(0, 102, NOW + 90, "no such package"),
        broken(1, 103, NOW + 91, "no such package"),
    ];
    after_restart(&mut seen, &again, both);
    assert!(is_stopped(&decide_at(&seen, NOW + 91)));
}

#[test]
fn nodes_that_fail_at_the_same_time_stop_the_pool_and_the_others_go_on() {
    let mut seen = world(4);
    let at_once = |slot| broken(slot, slot + 1, NOW, "no such package");
    let bootstrapping = MachineFacts {
        phase: MachinePhase::Bootstrapping,
        ..booting(3)
    };
    seen.machines = vec![at_once(0), at_once(1), at_once(2), bootstrapping];
    let plan = decide(&seen);
    assert!(is_stopped(&plan));
    assert_eq!(plan.status.failed_attempts, 3, "tries are counted in machines");
    assert_eq!(deleted_names(&plan), ["m-0-1", "m-1-2", "m-2-3"]);
    // A machine that becomes ready proves that machines can.
    after_restart(
        &mut seen,
        &plan,
        vec![MachineFacts {
            ready_at: Some(at(NOW + 5)),
            ..ready(3)
        }],
    );
    assert!(!is_stopped(&decide_at(&seen, NOW + 6)));
    // The row of failed tries ends when it has been ready for a minute.
    let plan = decide_at(&seen, NOW + 65);
    assert_eq!((created(&plan), is_stopped(&plan)), (vec![0, 1, 2], false));
    // Only once: a machine that was ready before proves nothing about later failures.
    let mut later = vec![
        broken(0, 102, NOW + 100, "no such package"),
        broken(1, 103, NOW + 100, "no such package"),
    ];
    later.extend(seen.machines.clone());
    after_restart(&mut seen, &plan, later);
    let plan = decide_at(&seen, NOW + 100);
    assert!(is_stopped(&plan));
    assert_eq!(created(&plan), Vec::<u32>::new());
    assert_eq!(
        deleted_names(&plan),
        ["m-0-102", "m-1-103"],
        "the ready one stays"
    );
}

#[test]
fn failures_of_different_kinds_are_tried_up_to_the_limit() {
    let mut seen = world(1);
    let mut now = NOW;
    for (number, line) in (1..=9).zip(["a", "b", "c", "d", "e", "f", "g", "h", "i"]) {
        seen.machines = vec![broken(0, number, now, line)];
        let plan = decide_at(&seen, now);
        assert!(condition(&plan, STALLED).is_none(), "{line}");
        after_restart(&mut seen, &plan, vec![]);
        now += 400;
    }
    seen.machines = vec![broken(0, 10, now, "j")];
    let plan = decide_at(&seen, now);
    assert_eq!(condition(&plan, STALLED).unwrap().1, reason::PROVISIONING_FAILED);
    assert_eq!(plan.status.reason, "ProvisioningFailed: given up after 10 tries");
    let kept = plan.status.bootstrap.unwrap().failures;
    assert_eq!(kept.len(), 6, "what is remembered is bounded");
    assert_eq!(
        (kept[0].failure.line.as_str(), kept[5].failure.line.as_str()),
        ("e", "j")
    );
}

#[test]
fn a_way_that_comes_back_after_another_counts_and_so_does_one_of_another_provider() {
    let mut seen = world(1);
    for (attempt, line) in [(1, "a"), (2, "b")] {
        seen.machines = vec![broken(0, attempt, NOW + i64::from(attempt), line)];
        let plan = decide_at(&seen, NOW + i64::from(attempt));
        assert!(!is_stopped(&plan));
        after_restart(&mut seen, &plan, vec![]);
    }
    let mut elsewhere = broken(0, 3, NOW + 60, "a");
    elsewhere.place.provider = "other".into();
    seen.machines = vec![elsewhere];
    assert!(is_stopped(&decide_at(&seen, NOW + 60)));
}

#[test]
fn one_machine_counts_once_however_often_it_is_seen() {
    let mut seen = world(1);
    seen.machines = vec![broken(0, 1, NOW, "no such package")];
    let plan = decide(&seen);
    for later in 1..5 {
        seen.pool.status = plan.status.clone();
        let again = decide_at(&seen, NOW + later);
        assert!(!is_stopped(&again));
        assert_eq!(again.status.bootstrap, plan.status.bootstrap);
    }
}

#[test]
fn a_machine_that_took_runs_or_is_of_an_older_spec_says_nothing_of_this_one() {
    let mut seen = world(2);
    let mut was_ready = broken(0, 1, NOW, "no such package");
    was_ready.ready_at = Some(at(1_000));
    let mut old = broken(1, 2, NOW, "no such package");
    old.current = false;
    seen.machines = vec![was_ready, old, broken(1, 3, NOW, "no such package")];
    let plan = decide(&seen);
    assert!(!is_stopped(&plan));
    assert_eq!(plan.status.bootstrap.unwrap().failures[0].machines, ["m-1-3"]);
}

#[test]
fn a_server_that_was_not_reached_is_tried_again_after_an_hour() {
    let mut seen = world(2);
    seen.machines = vec![unreachable(0, 1, NOW), unreachable(1, 2, NOW)];
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::BOOTSTRAP_FAILED);
    assert!(message.contains("or an hour has passed"), "{message}");
    assert!(matches!(plan.next, Next::After(wait) if wait.as_secs() <= 3_600));
    after_restart(&mut seen, &plan, vec![]);
    assert_eq!(created(&decide_at(&seen, NOW + 3_599)), Vec::<u32>::new());
    assert_eq!(created(&decide_at(&seen, NOW + 3_600)), [0, 1]);
}

#[test]
fn a_pool_that_was_off_or_suspended_begins_anew() {
    let (seen, plan) = stopped();
    for off in [true, false] {
        let mut gone = seen.clone();
        after_restart(&mut gone, &plan, vec![]);
        if off {
            gone.pool.spec.nodes.desired = 0;
        } else {
            gone.pool.spec.suspend = Some(true);
        }
        let quiet = decide_at(&gone, NOW + 100);
        assert!(condition(&quiet, STALLED).is_none());
        after_restart(&mut gone, &quiet, vec![]);
        gone.pool.spec = seen.pool.spec.clone();
        assert_eq!(created(&decide_at(&gone, NOW + 101)), [0]);
    }
}

#[test]
fn what_stops_the_pool_is_never_forgotten_to_make_room() {
    let (mut seen, plan) = stopped();
    let others = (0..20)
        .map(|n| broken(0, 10 + n, NOW + 70, &format!("other {n}")))
        .collect();
    after_restart(&mut seen, &plan, others);
    let plan = decide_at(&seen, NOW + 70);
    assert!(is_stopped(&plan));
    assert!(condition(&plan, STALLED).unwrap().2.contains("no such package"));
}

#[test]
fn the_digest_is_of_what_machines_are_prepared_with_and_what_it_names() {
    use crate::pool::plan::bootstraps::tried_with;
    let spec = |json: serde_json::Value| -> PoolSpec { serde_json::from_value(json).unwrap() };
    let providers = |generation| BTreeMap::from([("local".to_owned(), Some(generation))]);
    let base = spec(serde_json::json!({ "provider": "local", "image": { "pip": ["a"] } }));
    let of = |spec: &PoolSpec, versions: &str, generation| {
        tried_with(spec, Some(versions), &providers(generation)).unwrap()
    };
    let first = of(&base, "Secret/a@1", 1);
    let scaled = spec(serde_json::json!({
        "provider": "local", "image": { "pip": ["a"] }, "nodes": { "desired": 7, "min": 2 }, "suspend": true
    }));
    assert_eq!(of(&scaled, "Secret/a@1", 1), first);
    let mended = spec(serde_json::json!({ "provider": "local", "image": { "pip": ["b"] } }));
    let patient = spec(serde_json::json!({
        "provider": "local", "image": { "pip": ["a"] }, "timeouts": { "bootstrap": "9m" }
    }));
    for other in [
        of(&mended, "Secret/a@1", 1),
        of(&patient, "Secret/a@1", 1),
        of(&base, "Secret/a@2", 1),
        of(&base, "Secret/a@1", 2),
    ] {
        assert_ne!(other, first);
    }
    assert_eq!(
        tried_with(&base, None, &providers(1)),
        None,
        "unknown is no change"
    );
}
