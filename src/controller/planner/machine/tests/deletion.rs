//! A machine drains, is deleted, and its record goes.

use skyward_core::{Usd, provider::BilledTime};

use super::*;

#[test]
fn a_busy_machine_drains_and_an_idle_one_goes() {
    let mut seen = deleting(up());
    seen.runs = Some(1);
    let drains = plan(&seen, at(NOW + 1));
    assert_eq!(why(&drains).0, Some(MachinePhase::Draining));
    assert!(
        matches!(drains.actions.as_slice(), [Action::Connect { .. }]),
        "its runs are still reached"
    );
    seen.runs = None;
    assert_eq!(
        why(&plan(&seen, at(NOW + 1))).0,
        Some(MachinePhase::Draining),
        "unknown is not idle"
    );
    seen.runs = Some(0);
    assert_eq!(
        plan(&seen, at(NOW + 1)).actions,
        [Action::Disconnect, Action::Delete]
    );
}

#[test]
fn draining_ends_at_the_shutdown_timeout_unless_its_runs_may_finish() {
    let mut seen = deleting(up());
    seen.runs = Some(1);
    assert!(
        plan(&seen, at(NOW + 134))
            .actions
            .iter()
            .all(|action| *action != Action::Delete)
    );
    assert!(plan(&seen, at(NOW + 135)).actions.contains(&Action::Delete));
    seen.machine.finish_runs = true;
    assert!(!plan(&seen, at(NOW + 100_000)).actions.contains(&Action::Delete));
    let mut pool = (*pool()).clone();
    pool.metadata.deletion_timestamp = Some(Time(at(NOW + 200)));
    seen.pool = Some(Arc::new(pool));
    assert!(!plan(&seen, at(NOW + 334)).actions.contains(&Action::Delete));
    assert!(
        plan(&seen, at(NOW + 335)).actions.contains(&Action::Delete),
        "its Pool's end ends it"
    );
}

#[test]
fn a_machine_whose_runs_may_finish_does_not_drain_for_ever_when_nobody_hears_of_them() {
    let mut seen = deleting(up());
    seen.machine.finish_runs = true;
    seen.runs = Some(1);
    seen.disconnected_since = Some(at(NOW));
    let orphan = i64::try_from(seen.waits.orphan.as_secs()).unwrap();
    let drains = plan(&seen, at(NOW + orphan - 1));
    assert!(!drains.actions.contains(&Action::Delete), "{drains:?}");
    assert_eq!(drains.next, Next::After(Duration::from_secs(1)));
    assert!(plan(&seen, at(NOW + orphan)).actions.contains(&Action::Delete));
}

#[rstest]
#[case(session::FailureKind::HostKeyChanged)]
#[case(session::FailureKind::ProtocolViolation)]
fn runs_of_a_machine_that_is_trusted_no_more_are_not_waited_for(#[case] kind: session::FailureKind) {
    let mut seen = deleting(up());
    seen.machine.finish_runs = true;
    seen.runs = Some(1);
    seen.disconnected_since = Some(at(NOW));
    assert!(!plan(&seen, at(NOW + 1)).actions.contains(&Action::Delete));
    let failure = SessionFailure::new(kind, "it shows another host key than before".to_owned());
    seen.session = Some(SessionState {
        stage: Stage::Failed(failure),
        ..SessionState::default()
    });
    assert!(plan(&seen, at(NOW + 1)).actions.contains(&Action::Delete));
}

#[test]
fn a_pool_that_is_turned_off_pays_for_no_run_to_its_end() {
    let mut seen = deleting(up());
    seen.machine.finish_runs = true;
    seen.runs = Some(1);
    seen.off_since = Some(at(NOW + 1000));
    assert!(!plan(&seen, at(NOW + 1134)).actions.contains(&Action::Delete));
    assert!(plan(&seen, at(NOW + 1135)).actions.contains(&Action::Delete));
}

#[test]
fn a_recorded_id_of_another_machine_is_gone_for_us_and_told() {
    let mut seen = deleting(up());
    seen.deletion = Some(Ok(Deletion::Foreign));
    let goes = plan(&seen, at(NOW + 1));
    assert_eq!(goes.actions, [Action::Disconnect, Action::RemoveFinalizer]);
    let told = &goes.events[0];
    assert_eq!(told.reason, crate::events::reason::FOREIGN_MACHINE);
    assert!(
        told.note.contains("pod-uid") && told.note.contains("left as it is"),
        "{}",
        told.note
    );
    // The cloud may not show the machine that was just ordered by that id yet.
    seen.unseen_until = Some(at(NOW + 30));
    let waits = plan(&seen, at(NOW + 1));
    assert!(!waits.actions.contains(&Action::RemoveFinalizer) && waits.events.is_empty());
}

#[test]
fn a_machine_whose_provider_object_is_gone_is_deleted_while_its_client_is_at_hand() {
    let mut seen = deleting(up());
    seen.runs = Some(0);
    seen.account = AccountState::Departed;
    assert!(plan(&seen, at(NOW)).actions.contains(&Action::Delete));
    let mut unordered = world();
    unordered.account = AccountState::Departed;
    assert!(!plan(&unordered, at(NOW)).actions.contains(&Action::Order));
}

#[rstest]
#[case(ErrorKind::Credentials)]
#[case(ErrorKind::Permission)]
fn a_machine_whose_provider_was_removed_after_its_credentials_is_let_go(#[case] kind: ErrorKind) {
    let mut seen = deleting(up());
    seen.runs = Some(0);
    seen.account = AccountState::Departed;
    let met = |kind| Some(Err(ProviderError::new(kind, "delete the machine", "no")));
    seen.deletion = met(kind);
    let early = plan(&seen, at(NOW + 1));
    assert!(
        !early.actions.contains(&Action::RemoveFinalizer),
        "it may come back"
    );
    assert_eq!(early.next, Next::After(Duration::from_secs(19)));
    let late = plan(&seen, at(NOW + 20));
    assert!(late.actions.contains(&Action::RemoveFinalizer));
    assert!(
        late.events
            .iter()
            .any(|event| event.note.contains("could not be asked"))
    );
    seen.deletion = met(ErrorKind::Transient);
    assert!(
        !plan(&seen, at(NOW + 3600))
            .actions
            .contains(&Action::RemoveFinalizer),
        "that passes"
    );
}

/// Gone from the account of a Provider that was removed by force.
#[rstest]
#[case::nobody_can_be_asked(AccountState::Gone, None)]
#[case::the_account_refuses(
    AccountState::Departed,
    Some(Err(ProviderError::new(ErrorKind::Credentials, "delete the machine", "no")))
)]
fn what_a_machine_cost_counts_although_its_provider_was_removed_by_force(
    #[case] account: AccountState,
    #[case] deletion: Option<Result<Deletion, ProviderError>>,
) {
    let mut seen = deleting(up());
    seen.provider = LookupOutcome::Unknown(None);
    seen.account = account;
    seen.deletion = deletion;
    seen.machine.spec.hourly_price = "3.6".into();
    seen.machine.status.accepted_at = Some(Time(at(NOW - 980)));
    seen.billed_so_far = Usd::from(1);
    let early = plan(&seen, at(NOW + 5));
    assert!(
        early.status.is_none_or(|status| status.gone_at.is_none()),
        "it may come back"
    );
    let late = plan(&seen, at(NOW + 20));
    assert!(
        !late.actions.contains(&Action::RemoveFinalizer),
        "nobody has counted it"
    );
    assert_eq!(late.next, Next::Again);
    assert!(
        late.events
            .iter()
            .any(|event| event.note.contains("could not be asked"))
    );
    let on_record = status(&late).clone();
    assert_eq!(
        (on_record.gone_at.clone(), on_record.cost.as_deref()),
        (Some(Time(at(NOW + 20))), Some("1"))
    );
    // The record goes when its Pool has counted the cost.
    seen.machine.status = on_record;
    seen.deletion = None;
    assert!(plan(&seen, at(NOW + 21)).actions.is_empty());
    seen.pool = None;
    assert!(
        plan(&seen, at(NOW + 21))
            .actions
            .contains(&Action::RemoveFinalizer)
    );
}

#[rstest]
#[case::a_boot_costs_nothing(BilledTime::Running, Some(NOW - 5), "0.06")]
#[case::but_where_it_does(BilledTime::Existing, Some(NOW - 5), "0.6")]
#[case::nobody_saw_it_boot(BilledTime::Running, None, "0.6")]
fn a_machine_that_never_ran_costs_what_its_cloud_bills(
    #[case] billed_time: BilledTime,
    #[case] starting_at: Option<i64>,
    #[case] cost: &str,
) {
    let mut seen = deleting(world());
    seen.machine.spec.hourly_price = "3.6".into();
    seen.machine.spec.billing_minimum = Some(skyward_api::Duration::of_seconds(60));
    seen.machine.status.id = "i-1".into();
    seen.machine.status.accepted_at = Some(Time(at(NOW - 600)));
    seen.billed_time = billed_time;
    seen.starting_at = starting_at.map(at);
    seen.billed_so_far = "0.6".parse().unwrap();
    seen.deletion = Some(Ok(Deletion::Gone));
    assert_eq!(status(&plan(&seen, at(NOW))).cost.as_deref(), Some(cost));
}

#[test]
fn a_machine_given_up_waits_until_its_dispatcher_knows_that() {
    let mut seen = deleting(up());
    seen.machine.finish_runs = true;
    // `PoolLoads` knows of no run, and not that the dispatcher saw the end of the machine.
    seen.runs = None;
    assert!(!plan(&seen, at(NOW)).actions.contains(&Action::Delete));
    seen.runs = Some(0);
    assert!(plan(&seen, at(NOW)).actions.contains(&Action::Delete));
}

#[test]
fn the_record_goes_only_when_the_provider_says_that_the_machine_is_gone() {
    let mut seen = deleting(up());
    seen.deletion = Some(Ok(Deletion::InProgress));
    let ordered = plan(&seen, at(NOW + 1));
    assert_eq!(why(&ordered).0, Some(MachinePhase::Deleting));
    assert!(!ordered.actions.contains(&Action::RemoveFinalizer));
    seen.deletion = Some(Err(ProviderError::new(
        ErrorKind::Transient,
        "delete the Pod",
        "away",
    )));
    assert!(
        !plan(&seen, at(NOW + 1))
            .actions
            .contains(&Action::RemoveFinalizer)
    );
    seen.deletion = Some(Ok(Deletion::Gone));
    assert!(
        plan(&seen, at(NOW + 1))
            .actions
            .contains(&Action::RemoveFinalizer)
    );
}

#[test]
fn a_provider_that_cannot_be_asked_holds_the_record_and_one_that_is_gone_does_not() {
    let mut seen = deleting(up());
    seen.provider = LookupOutcome::Unknown(None);
    seen.account = AccountState::Waiting;
    let waiting = plan(&seen, at(NOW + 3600));
    assert!(!waiting.actions.contains(&Action::RemoveFinalizer));
    seen.account = AccountState::Gone;
    assert!(
        !plan(&seen, at(NOW + 5))
            .actions
            .contains(&Action::RemoveFinalizer),
        "it may come back"
    );
    assert!(
        plan(&seen, at(NOW + 20))
            .actions
            .contains(&Action::RemoveFinalizer)
    );
}

#[test]
fn a_failed_machine_stays_failed_while_it_is_deleted_and_does_not_drain() {
    let mut seen = deleting(up());
    seen.machine.status.phase = Some(MachinePhase::Failed);
    seen.machine.status.conditions = condition::apply(
        &[],
        &[NewCondition::new(STALLED, true, reason::MACHINE_LOST, "lost")],
        None,
        at(NOW),
    );
    seen.runs = Some(3);
    assert!(plan(&seen, at(NOW + 1)).actions.contains(&Action::Delete));
    seen.deletion = Some(Ok(Deletion::InProgress));
    assert!(plan(&seen, at(NOW + 1)).status.is_none());
}
