//! Which host keys count: on record, reported, proved, or shown first.

use super::*;

/// A machine that just runs, at a Provider with verified host keys, without a reported one.
fn running(keys: HostKeys) -> Observed {
    let mut seen = world();
    seen.account = AccountState::Ready {
        policy: HostKeyPolicy::Verified,
    };
    seen.host_keys = keys;
    demands_proof(&mut seen, keys == HostKeys::Proved);
    seen.provider = there(ProviderPhase::Running);
    if let LookupOutcome::There(machine) = &mut seen.provider {
        machine.host_key = None;
    }
    seen.machine.status.id = "pod-uid".into();
    seen.machine.status.accepted_at = Some(Time(at(NOW - 60)));
    seen
}

/// Its Provider demands a proof or none, and did when the machine was recorded.
fn demands_proof(seen: &mut Observed, proof: bool) {
    seen.machine.spec.proves_host_key = proof;
    seen.terms.as_mut().unwrap().provider.proves_host_keys = proof;
}

fn trusted(seen: &Observed) -> Option<Trust> {
    match plan(seen, at(NOW)).actions.as_slice() {
        [Action::Connect { trust, .. }] => Some(trust.clone()),
        _ => None,
    }
}

fn key(text: &str) -> Trust {
    Trust::Key(text.to_owned())
}

#[test]
fn a_key_that_the_cloud_reports_is_the_one_to_be_shown() {
    let mut seen = running(HostKeys::Reported);
    assert_eq!(why(&plan(&seen, at(NOW))).1, reason::SSH_REFUSED);
    seen.provider = there(ProviderPhase::Running);
    assert_eq!(trusted(&seen), Some(key("ssh-ed25519 AAAA")));
}

#[test]
fn a_machine_proves_its_key_once_and_then_only_the_recorded_key_counts() {
    let mut seen = running(HostKeys::Proved);
    assert_eq!(trusted(&seen), Some(Trust::Proof));
    seen.session = Some(session(bootstrapping()));
    let recorded = *plan(&seen, at(NOW)).status.unwrap();
    assert_eq!(recorded.host_key, "ssh-ed25519 AAAA");
    seen.machine.status = recorded;
    assert_eq!(trusted(&seen), Some(key("ssh-ed25519 AAAA")));
    // As after a restart: the record is all that is left.
    seen.session = None;
    assert_eq!(trusted(&seen), Some(key("ssh-ed25519 AAAA")));
}

#[test]
fn a_proof_that_its_status_does_not_have_yet_is_not_asked_for_again_however_long_it_boots() {
    let mut seen = running(HostKeys::Proved);
    seen.machine.status.accepted_at = Some(Time(at(NOW - 3600)));
    seen.session = Some(session(bootstrapping()));
    assert_eq!(trusted(&seen), Some(Trust::Proof));
}

/// Its programs may have read the token of its boot data by then.
#[test]
fn a_record_that_lost_its_key_as_after_a_restore_is_not_proved_anew() {
    let waits = waits();
    let longest = i64::try_from((waits.provision + waits.ssh).as_secs()).unwrap();
    let mut seen = running(HostKeys::Proved);
    seen.machine.status.accepted_at = Some(Time(at(NOW - longest)));
    assert_eq!(trusted(&seen), Some(Trust::Proof));
    seen.machine.status.accepted_at = Some(Time(at(NOW - longest - 1)));
    let refused = plan(&seen, at(NOW));
    assert_eq!(refused.actions, [Action::Disconnect]);
    let (phase, reason, message) = why(&refused);
    assert_eq!(
        (phase, reason.as_str()),
        (Some(MachinePhase::Failed), reason::HOST_KEY_NOT_VERIFIED)
    );
    assert!(
        message.contains("no key of this machine is on record"),
        "{message}"
    );
    // The record may be even older: from before its order was accepted.
    seen.machine.status = MachineStatus::default();
    seen.machine.created_at = at(NOW - 86_400);
    assert_eq!(why(&plan(&seen, at(NOW))).1, reason::HOST_KEY_NOT_VERIFIED);
}

#[test]
fn where_nothing_vouches_for_a_key_nothing_is_ordered() {
    let mut seen = running(HostKeys::FirstContact);
    assert_eq!(why(&plan(&seen, at(NOW))).1, reason::SSH_REFUSED);
    seen.machine.status = MachineStatus::default();
    seen.provider = LookupOutcome::Absent;
    let refused = plan(&seen, at(NOW));
    assert!(!refused.actions.contains(&Action::Order), "{:?}", refused.actions);
    let (phase, _, message) = why(&refused);
    assert_eq!(phase, Some(MachinePhase::Failed), "its Pool gives it up");
    assert!(message.contains("hostKeyPolicy: TrustOnFirstUse"), "{message}");
    for keys in [HostKeys::Proved, HostKeys::Reported] {
        seen.host_keys = keys;
        demands_proof(&mut seen, keys == HostKeys::Proved);
        assert_eq!(plan(&seen, at(NOW)).actions, [Action::Order]);
    }
}

/// Whatever the session has learnt: a key of the first contact is no proof.
#[test]
fn a_machine_that_was_ordered_without_a_token_is_replaced_at_once_unless_its_key_is_on_record() {
    let mut seen = running(HostKeys::Proved);
    seen.machine.spec.proves_host_key = false;
    for session in [None, Some(session(bootstrapping()))] {
        seen.session = session;
        let refused = plan(&seen, at(NOW));
        assert_eq!(refused.actions, [Action::Disconnect]);
        let (phase, reason, message) = why(&refused);
        assert_eq!(
            (phase, reason.as_str()),
            (Some(MachinePhase::Failed), reason::HOST_KEY_NOT_VERIFIED)
        );
        assert!(message.contains("recorded without a token"), "{message}");
    }
    seen.machine.status.host_key = "ssh-ed25519 AAAA".into();
    assert_eq!(trusted(&seen), Some(key("ssh-ed25519 AAAA")));
}

#[test]
fn the_first_key_counts_where_no_other_policy_is_asked_for() {
    for keys in [HostKeys::Proved, HostKeys::Reported, HostKeys::FirstContact] {
        let mut seen = running(keys);
        seen.account = AccountState::Ready {
            policy: HostKeyPolicy::TrustOnFirstUse,
        };
        assert_eq!(trusted(&seen), Some(Trust::FirstContact));
    }
}

#[test]
fn a_proof_of_another_key_ends_the_machine_with_a_reason_of_its_own() {
    let mut seen = running(HostKeys::Proved);
    let failure = SessionFailure::new(
        session::FailureKind::HostKeyNotProved,
        "somebody is in between".into(),
    );
    seen.session = Some(SessionState {
        stage: Stage::Failed(failure),
        ..SessionState::default()
    });
    let (phase, reason, message) = why(&plan(&seen, at(NOW)));
    assert_eq!(
        (phase, reason.as_str()),
        (Some(MachinePhase::Failed), reason::HOST_KEY_NOT_VERIFIED)
    );
    assert!(message.contains("somebody is in between"), "{message}");
}

#[test]
fn runs_that_drain_are_reached_by_the_same_rules() {
    let without_key = running(HostKeys::FirstContact);
    let mut seen = deleting(up());
    (seen.account, seen.host_keys) = (without_key.account, without_key.host_keys);
    seen.provider = without_key.provider;
    seen.machine.status.host_key.clear();
    seen.runs = Some(1);
    let connects = |seen: &Observed| {
        let actions = plan(seen, at(NOW + 1)).actions;
        actions
            .iter()
            .any(|action| matches!(action, Action::Connect { .. }))
    };
    assert!(!connects(&seen));
    seen.machine.status.host_key = "ssh-ed25519 AAAA".into();
    assert!(connects(&seen));
}
