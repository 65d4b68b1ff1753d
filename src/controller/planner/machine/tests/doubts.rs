//! Orders whose answer is lost: never sent twice, never forgotten.

use skyward_api::Machine;
use skyward_core::{machine::Rental, provider::Capabilities};

use super::*;
use crate::machine::facts::{Looked, MachineMemory, Outcomes};

fn error(kind: ErrorKind) -> Result<String, ProviderError> {
    Err(ProviderError::new(kind, "order the machine", "no"))
}

#[test]
fn what_may_have_been_ordered_is_not_ordered_again_before_lists_would_show_it() {
    let mut seen = world();
    seen.knows_token = false;
    seen.unseen_until = Some(at(NOW + 30));
    let waits = plan(&seen, at(NOW));
    assert!(waits.actions.is_empty(), "{:?}", waits.actions);
    assert!(matches!(waits.next, Next::After(_)));
    assert_eq!(plan(&seen, at(NOW + 30)).actions, [Action::Order]);
    seen.knows_token = true;
    assert_eq!(
        plan(&seen, at(NOW)).actions,
        [Action::Order],
        "it is the same order"
    );
}

#[test]
fn gone_is_believed_of_a_machine_that_would_have_been_shown_by_now() {
    let mut seen = deleting(world());
    seen.unseen_until = Some(at(NOW + 30));
    seen.deletion = Some(Ok(Deletion::Gone));
    let waits = plan(&seen, at(NOW + 29));
    assert!(waits.actions.is_empty(), "{:?}", waits.actions);
    assert_eq!(waits.next, Next::After(Duration::from_secs(1)));
    let goes = |plan: Plan| plan.actions.contains(&Action::RemoveFinalizer);
    assert!(goes(plan(&seen, at(NOW + 30))));
    // Copies that lag: one of them showed it, and another does not.
    seen.machine.status.running_at = Some(Time(at(NOW - 1)));
    assert!(!goes(plan(&seen, at(NOW + 29))));
}

#[test]
fn a_bill_ends_when_its_machine_was_first_away_unless_it_comes_back() {
    let mut seen = deleting(world());
    seen.unseen_until = Some(at(NOW + 30));
    seen.deletion = Some(Ok(Deletion::Gone));
    let away = plan(&seen, at(NOW));
    assert_eq!(status(&away).billed_until, Some(Time(at(NOW))));
    seen.machine.status = status(&away).clone();
    assert!(plan(&seen, at(NOW + 9)).status.is_none(), "it is on record");
    seen.deletion = Some(Ok(Deletion::InProgress));
    let back = plan(&seen, at(NOW + 10));
    assert_eq!(
        status(&back).billed_until,
        None,
        "it was on the bill all the time"
    );
}

#[test]
fn what_shows_up_only_while_it_goes_comes_on_record_before_it_is_deleted() {
    let mut seen = deleting(world());
    seen.provider = there(ProviderPhase::Running);
    if let LookupOutcome::There(there) = &mut seen.provider {
        there.rental = Rental {
            billed_since: Some(at(NOW - 7)),
            ..Rental::default()
        };
    }
    let learns = plan(&seen, at(NOW));
    assert_eq!(status(&learns).id, "pod-uid");
    assert_eq!(status(&learns).billed_since, Some(Time(at(NOW - 7))));
    assert!(learns.actions.contains(&Action::Delete));
}

#[test]
fn a_failed_machine_that_was_never_heard_of_is_asked_about_when_it_goes() {
    let mut machine = world().machine;
    machine.status.phase = Some(MachinePhase::Failed);
    assert!(!machine.is_asked_about());
    machine.deleting_since = Some(at(NOW));
    assert!(machine.is_asked_about());
    machine.status.id = "known".into();
    assert!(!machine.is_asked_about());
    machine.status.phase = Some(MachinePhase::Deleting);
    assert!(machine.is_asked_about());
    machine.status.gone_at = Some(Time(at(NOW)));
    assert!(!machine.is_asked_about(), "it is gone");
}

#[rstest]
#[case::refused(error(ErrorKind::NoCapacity), None)]
#[case::later(error(ErrorKind::Transient), None)]
#[case::lost(error(ErrorKind::Indeterminate), Some(NOW))]
#[case::unavailable(error(ErrorKind::Outage), Some(NOW))]
#[case::accepted(Ok("id".to_owned()), Some(NOW))]
fn only_a_plain_refusal_leaves_no_doubt(
    #[case] answer: Result<String, ProviderError>,
    #[case] expected: Option<i64>,
) {
    let mut memory = MachineMemory::default();
    memory.ordered(&answer, at(NOW));
    let until = world().machine.unseen_until(&memory, Duration::ZERO);
    assert_eq!(until, expected.map(at));
}

#[test]
fn the_leader_before_may_have_ordered_in_its_last_moment() {
    let machine = world().machine;
    let settle = Duration::from_secs(30);
    assert_eq!(machine.unseen_until(&MachineMemory::default(), settle), None);
    let inherited = MachineMemory::inherited(at(NOW));
    assert_eq!(machine.unseen_until(&inherited, settle), Some(at(NOW + 30)));
}

#[rstest]
#[case::shown_as_it_was_before_it_ran(ProviderPhase::Starting(None))]
#[case::shown_as_it_was_before_it_halted(ProviderPhase::Running)]
fn a_machine_that_ran_and_is_not_connected_is_looked_at_again_soon(#[case] shown: ProviderPhase) {
    let mut seen = up();
    seen.session = None;
    seen.disconnected_since = Some(at(NOW - 60));
    seen.runs = Some(1);
    seen.tells_changes = false;
    seen.provider = there(shown);
    let waits = plan(&seen, at(NOW));
    assert!(
        matches!(waits.next, Next::After(wait) if wait <= seen.poll_interval),
        "nothing else would tell: {:?}",
        waits.next
    );
}

/// As after a restart, with credentials that were revoked meanwhile.
#[test]
fn a_machine_that_works_is_dialled_and_kept_while_its_provider_cannot_be_asked() {
    let mut seen = up();
    seen.session = None;
    seen.disconnected_since = Some(at(NOW));
    seen.account = AccountState::Waiting;
    seen.provider = LookupOutcome::Unknown(None);
    let endpoint = endpoint();
    let trust = Trust::Key(seen.machine.status.host_key.clone());
    let dial = Action::Connect {
        endpoint,
        trust,
        environment: None,
    };
    assert_eq!(plan(&seen, at(NOW)).actions, std::slice::from_ref(&dial));
    // After a day of silence it is still not known to be lost.
    let later = plan(&seen, at(NOW + 86_400));
    assert_eq!(why(&later).0, Some(MachinePhase::Ready));
    seen.machine.deleting_since = Some(at(NOW));
    seen.runs = Some(1);
    assert!(
        plan(&seen, at(NOW)).actions.contains(&dial),
        "its results are wanted"
    );
    seen.machine.status.host_key.clear();
    assert!(
        !plan(&seen, at(NOW)).actions.contains(&dial),
        "its address may be somebody else's by now"
    );
}

/// Without a Provider no answer may ever come, and its Tasks would run for ever.
#[rstest]
#[case::and_its_client_too(AccountState::Gone, LookupOutcome::Unknown(None))]
#[case::and_its_credentials_were_revoked(AccountState::Departed, LookupOutcome::Unknown(Some("revoked".into())))]
fn a_lost_machine_whose_provider_was_removed_is_given_up(
    #[case] account: AccountState,
    #[case] answer: LookupOutcome,
) {
    let mut seen = up();
    seen.session = None;
    seen.disconnected_since = Some(at(NOW));
    seen.account = account;
    seen.provider = answer;
    seen.runs = Some(1);
    let orphan = i64::try_from(seen.waits.orphan.as_secs()).unwrap();
    let kept = plan(&seen, at(NOW + orphan - 1));
    assert_eq!(why(&kept).0, Some(MachinePhase::Ready));
    let lost = plan(&seen, at(NOW + orphan));
    assert_eq!(
        (why(&lost).0, why(&lost).1.as_str()),
        (Some(MachinePhase::Failed), reason::MACHINE_LOST)
    );
}

/// What is read about a machine that nothing but its provider tells of.
fn looked(machine: &Machine, facts: MachineFacts, answer: LookupOutcome) -> Looked<'_> {
    Looked {
        machine,
        facts,
        pool: None,
        timeouts: Timeouts::default(),
        current: true,
        asked: None,
        provider: None,
        capabilities: None,
        kind: None,
        terms: None,
        tells_changes: false,
        answer,
        asked_at: at(NOW),
        session: None,
        runs: None,
        outcomes: Outcomes::default(),
    }
}

/// Its list was read while it did not show the machine yet, and came after every list would have.
#[test]
fn an_answer_that_came_late_proves_what_was_there_when_it_was_asked_for() {
    let slow = Capabilities {
        settle_time: Duration::from_secs(30),
        ..Capabilities::of("slow")
    };
    let mut facts = deleting(world()).machine;
    facts.status.accepted_at = Some(Time(at(NOW - 8)));
    let machine = Machine::new("m", facts.spec.clone());
    let seen = |asked: i64, deletion: Option<i64>, now: i64| {
        let looked = Looked {
            capabilities: Some(&slow),
            asked_at: at(asked),
            outcomes: Outcomes {
                deletion: deletion.map(|_| Ok(Deletion::Gone)),
                deletion_asked_at: deletion.map(at),
                ..Outcomes::default()
            },
            ..looked(&machine, facts.clone(), LookupOutcome::Absent)
        };
        looked
            .observed(&mut MachineMemory::default(), at(now))
            .unseen_until
    };
    assert_eq!(seen(NOW, None, NOW), Some(at(NOW + 22)));
    assert_eq!(
        seen(NOW, None, NOW + 25),
        Some(at(NOW + 47)),
        "the answer is as old as the question"
    );
    assert_eq!(
        seen(NOW + 25, Some(NOW), NOW + 25),
        Some(at(NOW + 47)),
        "also that of the deletion, whatever was looked at since"
    );
    assert_eq!(seen(NOW + 25, None, NOW + 25), Some(at(NOW + 22)));
}

/// The former order died with its machine, and the list lags.
#[test]
fn what_an_accepted_order_made_is_not_taken_for_an_earlier_machine_of_its_mark() {
    let facts = world().machine;
    let machine = Machine::new("m", facts.spec.clone());
    let LookupOutcome::There(earlier) = there(ProviderPhase::Running) else {
        panic!("it is there");
    };
    let seen = |accepted: &str| {
        let looked = Looked {
            outcomes: Outcomes {
                order: Some(Ok(accepted.to_owned())),
                ..Outcomes::default()
            },
            ..looked(&machine, facts.clone(), LookupOutcome::There(earlier.clone()))
        };
        looked.observed(&mut MachineMemory::default(), at(NOW)).provider
    };
    assert!(matches!(seen("another"), LookupOutcome::Absent));
    assert!(matches!(seen(&earlier.id), LookupOutcome::There(_)));
}

#[test]
fn a_machine_with_runs_that_a_lagging_list_does_not_show_drains_all_the_same() {
    let mut seen = deleting(world());
    seen.machine.status.ready_at = Some(Time(at(NOW - 5)));
    seen.runs = Some(1);
    seen.provider = LookupOutcome::Absent;
    seen.unseen_until = Some(at(NOW + 10));
    assert!(!plan(&seen, at(NOW)).actions.contains(&Action::Delete));
    seen.unseen_until = Some(at(NOW - 1));
    assert!(
        plan(&seen, at(NOW)).actions.contains(&Action::Delete),
        "it is lost"
    );
}
