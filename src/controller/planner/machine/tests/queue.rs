//! Orders that wait for their turn at a cloud: that wait is no time of their machines.

use super::*;
use crate::machine::facts::{MachineMemory, Queued};

/// Long after it was recorded, with such an order.
fn queued(since: i64, until: i64) -> Observed {
    let mut seen = world();
    seen.machine.created_at = at(since);
    seen.queued = Some(Queued {
        since: at(since),
        until: at(until),
    });
    seen
}

fn limited(wait: Option<u64>) -> Result<String, ProviderError> {
    let kind = ErrorKind::RateLimited(wait.map(Duration::from_secs));
    Err(ProviderError::new(
        kind,
        "order",
        "too many calls wait for their turn",
    ))
}

fn has_failed(plan: &Plan) -> bool {
    plan.status
        .as_ref()
        .is_some_and(|status| status.phase == Some(MachinePhase::Failed))
}

#[test]
fn a_machine_whose_order_waited_for_its_turn_has_its_whole_time_to_boot() {
    let mut seen = queued(NOW - 2000, NOW - 1);
    seen.order = Some(Ok("pod-uid".into()));
    let accepted = plan(&seen, at(NOW));
    assert_eq!(why(&accepted).0, Some(MachinePhase::Accepted));
    seen.machine.status = status(&accepted).clone();
    seen.order = None;
    seen.provider = there(ProviderPhase::Starting(Some("pulling".into())));
    assert!(!has_failed(&plan(&seen, at(NOW + 299))));
    assert_eq!(why(&plan(&seen, at(NOW + 300))).1, reason::PROVISION_TIMEOUT);
}

#[test]
fn a_machine_that_is_accepted_late_is_not_given_up_for_that() {
    // Its Provider could not be asked before.
    let mut seen = world();
    seen.machine.created_at = at(NOW - 400);
    seen.order = Some(Ok("pod-uid".into()));
    assert_eq!(why(&plan(&seen, at(NOW))).0, Some(MachinePhase::Accepted));
}

#[rstest]
#[case::and_nobody_knows_how_long(None, NOW)]
#[case::and_for_how_long(Some(600), NOW + 600)]
fn an_order_that_is_told_to_wait_does_so_without_using_up_its_time(
    #[case] wait: Option<u64>,
    #[case] until: i64,
) {
    let mut memory = MachineMemory::default();
    memory.ordered(&limited(Some(5)), at(NOW - 1000));
    memory.ordered(&limited(wait), at(NOW));
    let since = at(NOW - 1000);
    assert_eq!(
        memory.queued,
        Some(Queued {
            since,
            until: at(until)
        })
    );
    let mut seen = queued(NOW - 1000, NOW);
    seen.queued = memory.queued;
    seen.order = Some(limited(wait));
    let waits = plan(&seen, at(NOW));
    assert!(!has_failed(&waits) && why(&waits).2.contains("wait for their turn"));
    // Other failures are no wait for a turn.
    let refused = Err(ProviderError::new(ErrorKind::Transient, "order", "away"));
    memory.ordered(&refused, at(NOW + 700));
    assert_eq!(memory.queued, seen.queued);
    seen.order = Some(refused);
    assert!(!has_failed(&plan(&seen, at(until + 299))));
    assert!(has_failed(&plan(&seen, at(until + 300))));
}

#[test]
fn what_its_cloud_turns_away_for_ever_is_given_up() {
    let hours = NOW + 2 * 3600;
    let mut seen = queued(NOW, hours + 299);
    seen.order = Some(limited(None));
    assert!(!has_failed(&plan(&seen, at(hours + 299))));
    assert_eq!(why(&plan(&seen, at(hours + 300))).1, reason::PROVISION_TIMEOUT);
    // The order is not tried once more, since it may never have a turn.
    seen.order = None;
    assert_eq!(plan(&seen, at(hours + 299)).actions, [Action::Order]);
    let late = plan(&seen, at(hours + 300));
    assert!(
        has_failed(&late) && !late.actions.contains(&Action::Order),
        "{late:?}"
    );
}

#[test]
fn a_new_leader_does_not_hold_against_a_machine_how_long_it_waited_before() {
    let mut seen = queued(NOW - 2000, NOW - 2000);
    seen.queued = MachineMemory::inherited(at(NOW)).queued;
    // The former leader may have ordered it.
    seen.knows_token = false;
    seen.unseen_until = Some(at(NOW + 30));
    assert!(!has_failed(&plan(&seen, at(NOW + 1))));
}
