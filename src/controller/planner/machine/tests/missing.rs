//! An object that prepares a machine went missing between its order and its connection.

use super::*;

const WHY: &str = "Secret \"index\" of namespace \"team\" has no key password; add it";

/// An accepted machine that runs, whose missing object showed at the try to connect.
fn waiting() -> Observed {
    let mut seen = world();
    seen.machine.status.id = "pod-uid".into();
    seen.provider = there(ProviderPhase::Running);
    seen.missing = Some(WHY.into());
    seen
}

#[test]
fn what_is_missing_is_said_by_the_machine_and_it_is_tried_again() {
    let first = plan(&waiting(), at(NOW));
    let status = first.status.expect("it says so at once");
    assert_eq!(status.phase, Some(MachinePhase::Accepted));
    let ready = find(&status.conditions, READY).unwrap();
    assert_eq!(
        (
            ready.status.as_str(),
            ready.reason.as_str(),
            ready.message.as_str()
        ),
        ("False", reason::REFERENCE_NOT_FOUND, WHY)
    );
    assert!(matches!(first.actions.as_slice(), [Action::Connect { .. }]));
}

#[test]
fn a_machine_that_was_reached_says_what_is_missing_too() {
    let mut seen = waiting();
    seen.machine.status.reachable_at = Some(Time(at(NOW - 5)));
    let status = plan(&seen, at(NOW)).status.unwrap();
    let ready = find(&status.conditions, READY).unwrap();
    assert_eq!(ready.reason, reason::REFERENCE_NOT_FOUND);
    assert_eq!(ready.message, WHY);
}

#[test]
fn one_that_waited_in_vain_fails_with_what_is_missing_and_not_with_ssh() {
    let mut seen = waiting();
    seen.machine.status.running_at = Some(Time(at(NOW - 300)));
    let last = plan(&seen, at(NOW));
    let (phase, reason, message) = why(&last);
    assert_eq!(phase, Some(MachinePhase::Failed));
    assert_eq!(reason, reason::REFERENCE_NOT_FOUND);
    assert!(
        message.contains(WHY) && message.contains("timeouts.ssh"),
        "{message}"
    );
}

#[test]
fn nothing_is_said_of_it_once_the_machine_is_connected() {
    let mut seen = waiting();
    seen.machine.status.ready_at = Some(Time(at(NOW - 5)));
    let plan = plan(&seen, at(NOW));
    let is_missing = |status: &MachineStatus| {
        status
            .conditions
            .iter()
            .any(|condition| condition.reason == reason::REFERENCE_NOT_FOUND)
    };
    assert!(!plan.status.is_some_and(|status| is_missing(&status)));
}
