//! The environment of a machine's runs: when it changes, and what the record says meanwhile.

use std::collections::BTreeSet;

use skyward_api::environment::{MachineEnvironment, PoolEnvironment};
use skyward_core::{diagnosis::Diagnosis, session::EnvironmentState};

use super::*;
use crate::{events, machine::facts::Asked};

/// A Pool whose image asks for the environment `hash`, and the machine whose turn it is.
fn asks_for(seen: &mut Observed, hash: &str, turn: &str) {
    let mut pool = Pool::clone(&pool());
    let environment = PoolEnvironment {
        hash: hash.into(),
        turn: turn.into(),
        turn_since: (!turn.is_empty()).then_some(Time(at(NOW))),
        ..PoolEnvironment::default()
    };
    pool.status.get_or_insert_default().environment = Some(environment);
    seen.pool = Some(Arc::new(pool));
    seen.asked = Some(Asked {
        template: "h".into(),
        apt: BTreeSet::from(["00000001".to_owned()]),
    });
}

/// A machine that is Ready with the environment "a", which its Pool asks for.
fn has_a() -> Observed {
    let mut seen = up();
    asks_for(&mut seen, "a", "");
    seen.machine.status.environment = Some(MachineEnvironment {
        hash: "a".into(),
        apt: vec!["00000001".into()],
        ..MachineEnvironment::default()
    });
    says(&mut seen, Some("a"));
    seen.last_write = Some(at(NOW));
    seen
}

fn says(seen: &mut Observed, in_use: Option<&str>) {
    let environment = EnvironmentState {
        in_use: in_use.map(str::to_owned),
        ..EnvironmentState::default()
    };
    seen.session.as_mut().unwrap().environment = environment;
}

/// The hash that the session is told to make, of each connection.
fn made(plan: &Plan) -> Vec<Option<&str>> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Connect { environment, .. } => Some(environment.as_deref()),
            _ => None,
        })
        .collect()
}

fn environment(plan: &Plan) -> &MachineEnvironment {
    status(plan).environment.as_ref().unwrap()
}

/// The next look, after the status was written.
fn then(seen: &Observed, plan: &Plan) -> Observed {
    let mut seen = seen.clone();
    if let Some(status) = &plan.status {
        seen.machine.status = *status.clone();
    }
    seen
}

#[test]
fn a_new_machine_gets_the_environment_of_its_pool_and_packages_are_on_record_before_a_step_runs() {
    let mut seen = world();
    asks_for(&mut seen, "b", "");
    seen.provider = there(ProviderPhase::Running);
    let first = plan(&seen, at(NOW));
    assert_eq!(environment(&first).changing_to, "b");
    assert_eq!(environment(&first).apt, ["00000001"]);
    assert_eq!(made(&first), [Some("b")]);
    let mut seen = then(&seen, &first);
    seen.session = Some(session(Stage::Ready));
    says(&mut seen, Some("b"));
    let ready = plan(&seen, at(NOW));
    let known = environment(&ready);
    assert_eq!((known.hash.as_str(), known.is_changing()), ("b", false));
    assert_eq!(why(&ready).1, reason::AGENT_READY);
    assert_eq!(made(&ready), [None]);
}

#[test]
fn a_machine_that_became_ready_with_an_older_image_says_so() {
    let mut seen = world();
    asks_for(&mut seen, "b", "");
    seen.provider = there(ProviderPhase::Running);
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    asks_for(&mut seen, "c", "");
    seen.session = Some(session(Stage::Ready));
    says(&mut seen, Some("b"));
    assert_eq!(environment(&plan(&seen, at(NOW))).hash, "b");
}

/// The image changed between the last step of its bootstrap and the record that it is Ready.
#[test]
fn a_machine_that_makes_another_environment_as_it_becomes_ready_takes_no_runs_until_that_ends() {
    let mut seen = world();
    asks_for(&mut seen, "b", "");
    seen.provider = there(ProviderPhase::Running);
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    seen.session = Some(session(Stage::Ready));
    says(&mut seen, None);
    let ready = plan(&seen, at(NOW));
    assert!(status(&ready).ready_at.is_some());
    assert_eq!(environment(&ready).changing_to, "b");
    let mut seen = then(&seen, &ready);
    says(&mut seen, Some("b"));
    let done = plan(&seen, at(NOW + 5));
    assert_eq!(
        (environment(&done).hash.as_str(), environment(&done).is_changing()),
        ("b", false)
    );
}

#[test]
fn a_ready_machine_is_connected_as_it_is_while_it_is_not_its_turn() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "other");
    let planned = plan(&seen, at(NOW));
    assert_eq!((made(&planned), &planned.status), (vec![None], &None));
}

#[rstest]
#[case::runs_are_left(Some(1))]
#[case::it_may_get_a_run_just_now(None)]
fn a_machine_does_not_begin_before_its_dispatcher_says_that_it_has_no_runs_and_gets_none(
    #[case] runs: Option<u32>,
) {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    seen.runs = runs;
    assert_eq!(made(&plan(&seen, at(NOW))), [None]);
    seen.runs = Some(0);
    assert_eq!(made(&plan(&seen, at(NOW))), [Some("b")]);
    seen.session = Some(session(Stage::Dialing { last_error: None }));
    assert_eq!(made(&plan(&seen, at(NOW))), [None], "it is not connected");
}

#[test]
fn a_change_is_on_record_until_the_machine_says_that_it_has_the_new_environment() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    let begun = plan(&seen, at(NOW));
    assert_eq!(
        environment(&begun).changing_to,
        "b",
        "at once, although a write was a moment ago"
    );
    assert_eq!(why(&begun).1, reason::CHANGING_ENVIRONMENT);
    assert_eq!(why(&begun).0, Some(MachinePhase::Ready));
    let mut seen = then(&seen, &begun);
    says(&mut seen, None);
    seen.session.as_mut().unwrap().environment.step = Some("4/5 packages".into());
    seen.last_write = None;
    let midst = plan(&seen, at(NOW));
    assert_eq!(status(&midst).step, "4/5 packages");
    assert!(why(&midst).2.contains("4/5 packages"), "{}", why(&midst).2);
    let mut seen = then(&seen, &midst);
    says(&mut seen, Some("b"));
    seen.session.as_mut().unwrap().environment.times = "packages 3.2 s".into();
    let done = plan(&seen, at(NOW));
    assert_eq!(
        (environment(&done).hash.as_str(), environment(&done).is_changing()),
        ("b", false)
    );
    assert_eq!(why(&done).1, reason::AGENT_READY);
    assert_eq!((made(&done), status(&done).step.as_str()), (vec![None], ""));
    assert_eq!(done.events[0].reason, events::reason::ENVIRONMENT_CHANGED);
    let note = &done.events[0].note;
    assert!(note.ends_with("; its steps: packages 3.2 s"), "{note}");
}

fn step_fails() -> SessionFailure {
    let diagnosis = Diagnosis::of("failed (exit code 1)", "error: no such package torhc");
    SessionFailure {
        kind: session::FailureKind::StepFailed,
        step: Some("packages".into()),
        message: "failed (exit code 1): error: no such package torhc".into(),
        diagnosis: Some(Box::new(diagnosis)),
    }
}

#[test]
fn a_change_that_failed_leaves_the_machine_with_its_environment_and_it_takes_runs() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    says(&mut seen, Some("a"));
    seen.session.as_mut().unwrap().environment.failed = Some(("b".into(), Box::new(step_fails())));
    let failed = plan(&seen, at(NOW + 5));
    let known = environment(&failed);
    assert_eq!((known.hash.as_str(), known.is_changing()), ("a", false));
    let record = known.failed.as_ref().unwrap();
    assert_eq!((record.hash.as_str(), record.machine.as_str()), ("b", "m"));
    assert_eq!(
        (record.failure.step.as_str(), record.at.0),
        ("packages", at(NOW + 5))
    );
    assert!(
        record.message.contains("no such package torhc"),
        "{}",
        record.message
    );
    assert_eq!(why(&failed).1, reason::AGENT_READY);
    assert!(failed.keep_log);
    assert_eq!(failed.events[0].reason, events::reason::ENVIRONMENT_FAILED);
    assert_eq!(made(&failed), [None]);
    // It is still its turn, until its Pool has looked: it does not begin again.
    let seen = then(&seen, &failed);
    let again = plan(&seen, at(NOW + 6));
    assert_eq!(
        (made(&again), &again.status, again.keep_log),
        (vec![None], &None, false)
    );
    // A later turn counts anew.
    let mut later = seen.clone();
    says(&mut later, Some("a"));
    let mut pool = Pool::clone(later.pool.as_ref().unwrap());
    let environment = pool.status.as_mut().unwrap().environment.as_mut().unwrap();
    environment.turn_since = Some(Time(at(NOW + 3600)));
    later.pool = Some(Arc::new(pool));
    assert_eq!(made(&plan(&later, at(NOW + 3600))), [Some("b")]);
}

#[test]
fn what_failed_is_tried_again_when_the_pool_asked_for_another_environment_in_between() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    says(&mut seen, Some("a"));
    seen.session.as_mut().unwrap().environment.failed = Some(("b".into(), Box::new(step_fails())));
    let mut seen = then(&seen, &plan(&seen, at(NOW + 5)));
    says(&mut seen, Some("a"));
    asks_for(&mut seen, "a", "");
    let back = plan(&seen, at(NOW + 10));
    assert_eq!(environment(&back).failed, None);
    assert!(back.events.is_empty() && !back.keep_log, "{:?}", back.events);
    let mut seen = then(&seen, &back);
    asks_for(&mut seen, "b", "m");
    assert_eq!(made(&plan(&seen, at(NOW + 20))), [Some("b")]);
}

#[test]
fn a_change_that_has_begun_goes_on_with_the_newest_image_although_the_turn_is_anothers() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    says(&mut seen, None);
    asks_for(&mut seen, "a", "other");
    let back = plan(&seen, at(NOW));
    assert_eq!(environment(&back).changing_to, "a");
    assert_eq!(made(&back), [Some("a")]);
    let mut seen = then(&seen, &back);
    // The session tells first that it has made what it was told before.
    says(&mut seen, Some("b"));
    assert_eq!(made(&plan(&seen, at(NOW))), [Some("a")]);
    says(&mut seen, Some("a"));
    let done = plan(&seen, at(NOW));
    assert_eq!(
        (environment(&done).hash.as_str(), environment(&done).is_changing()),
        ("a", false)
    );
}

#[test]
fn the_machine_has_the_last_word_about_the_environment_in_use() {
    let mut seen = has_a();
    says(&mut seen, Some("x"));
    assert_eq!(environment(&plan(&seen, at(NOW))).hash, "x");
    let long = "y".repeat(1000);
    says(&mut seen, Some(&long));
    assert!(environment(&plan(&seen, at(NOW))).hash.len() <= 16);
    for nothing in [None, Some("")] {
        says(&mut seen, nothing);
        assert_eq!(plan(&seen, at(NOW)).status, None);
    }
}

#[test]
fn a_machine_of_an_older_release_is_taken_over_with_the_image_that_its_pool_has() {
    let mut seen = up();
    assert_eq!(seen.machine.status.environment, None);
    says(&mut seen, Some(""));
    assert_eq!(plan(&seen, at(NOW)).status, None, "its Pool has no record yet");
    asks_for(&mut seen, "a", "");
    seen.asked.as_mut().unwrap().template = "without the image".into();
    let adopted = plan(&seen, at(NOW));
    let known = environment(&adopted);
    assert_eq!((known.hash.as_str(), known.is_changing()), ("a", false));
    assert_eq!(known.template_hash, "without the image");
    assert_eq!(known.apt, ["00000001"]);
    assert_eq!(why(&adopted).1, reason::AGENT_READY);
    // Its Pool asks for another image by now: it is replaced.
    seen.asked = None;
    assert_eq!(plan(&seen, at(NOW)).status, None);
}

#[test]
fn the_versions_of_the_packages_are_kept_before_the_record_says_that_the_machine_has_them() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    says(&mut seen, None);
    let lock = |hash: &str| Some((hash.to_owned(), Arc::from("numpy==2.3.1")));
    seen.session.as_mut().unwrap().environment.lock = lock("b");
    assert_eq!(plan(&seen, at(NOW)).keep_lock, None, "it is not made yet");
    says(&mut seen, Some("b"));
    seen.session.as_mut().unwrap().environment.lock = lock("b");
    let kept = Some(("b".to_owned(), "numpy==2.3.1".to_owned()));
    assert_eq!(plan(&seen, at(NOW)).keep_lock, kept);
    seen.session.as_mut().unwrap().environment.lock = lock("a");
    assert_eq!(plan(&seen, at(NOW)).keep_lock, None, "of another one");
}

#[test]
fn a_secret_that_is_missing_in_the_midst_of_a_change_is_named() {
    let mut seen = has_a();
    asks_for(&mut seen, "b", "m");
    let mut seen = then(&seen, &plan(&seen, at(NOW)));
    seen.missing = Some("there is no Secret \"index\"".into());
    seen.last_write = None;
    let (_, reason, message) = why(&plan(&seen, at(NOW)));
    assert_eq!(reason, reason::CHANGING_ENVIRONMENT);
    assert!(message.contains("Secret \"index\""), "{message}");
}
