//! Evidence of old memory, and decisions about it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use skyward_api::{
    condition::{self, NewCondition, RESTORE_DETECTED, reason},
    provider::{AfterRestore, RestoreDecision},
};
use skyward_core::{Mark, ProviderMachine, ProviderPhase, Usd, machine::Rental};

use super::{
    evidence::{Evidence, Remembered, Standing, brake},
    verdict::{Seen, Verdict, digest, verdict},
};
use crate::accounts::orphans::{self, Rules, Sightings};

pub(crate) const SETTLE: Duration = Duration::from_secs(10);
pub(crate) const PATIENCE: Duration = Duration::from_hours(24);

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(crate) fn machine(id: &str, pool_uid: &str, attempt: u32) -> ProviderMachine {
    ProviderMachine {
        id: id.into(),
        mark: Mark {
            cluster: "here".into(),
            namespace: "team".into(),
            pool: "train".into(),
            pool_uid: pool_uid.into(),
            machine: format!("m-{id}"),
            machine_uid: format!("uid-{id}"),
            slot: 0,
            attempt,
        },
        phase: ProviderPhase::Running,
        endpoint: None,
        private_address: None,
        private_interface: None,
        host_key: None,
        rental: Rental {
            hourly_price: Some(Usd::new(25, 1)),
            ..Rental::default()
        },
    }
}

/// A cluster with the Pool "here", which has counted 5 attempts, and that had the Pool "gone".
fn remembered() -> Remembered {
    Remembered {
        pools: [("here".to_owned(), 5)].into(),
        had: ["gone".to_owned()].into(),
        ..Remembered::default()
    }
}

fn rules<'a>() -> Rules<'a> {
    Rules {
        marks_prove: true,
        strange_end: false,
        held: false,
        decision: None,
        ended_lately: 0,
    }
}

/// A look long after each machine was first seen.
fn look(listed: &[ProviderMachine], rules: &Rules<'_>) -> orphans::Plan {
    let seen: Sightings = listed.iter().map(|machine| (machine.id.clone(), at(0))).collect();
    orphans::plan("here", listed, &remembered(), rules, &seen, SETTLE, at(1000))
}

fn ended(plan: &orphans::Plan) -> Vec<String> {
    let ids = plan.delete.iter().filter_map(|machine| machine.id.clone());
    ids.collect()
}

fn judge(evidence: &Evidence, conditions: &[Condition], annotation: Option<&str>, now: i64) -> Verdict {
    let seen = Seen {
        evidence: Some(evidence),
        epoch: None,
        conditions,
        decision: None,
        annotation,
        heard: true,
        patience: PATIENCE,
    };
    verdict(&seen, at(now))
}

fn written(verdict: &Verdict, old: &[Condition], now: i64) -> Vec<Condition> {
    let conditions: Vec<NewCondition> = verdict.condition.clone().into_iter().collect();
    condition::apply(old, &conditions, Some(1), at(now))
}

#[test]
fn an_ordinary_orphan_ends_as_ever_and_proves_nothing() {
    let plan = look(&[machine("a", "here", 5), machine("b", "here", 1)], &rules());
    assert_eq!(ended(&plan), ["a", "b"]);
    assert!(!plan.evidence.may_prove());
    assert_eq!(judge(&plan.evidence, &[], None, 0), Verdict::default());
}

#[test]
fn an_attempt_that_was_never_counted_or_a_pool_without_a_trace_is_proof_and_ends_nothing() {
    for strange in [machine("s", "here", 6), machine("s", "never", 1)] {
        let listed = [strange, machine("o", "here", 2)];
        let plan = look(&listed, &rules());
        assert!(plan.evidence.may_prove());
        assert!(
            ended(&plan).is_empty(),
            "not even the ordinary one: the record may be old too"
        );
        let verdict = judge(&plan.evidence, &[], None, 0);
        assert!(verdict.held);
        let condition = verdict.condition.unwrap();
        assert_eq!(
            (condition.status, condition.reason),
            (Some(true), reason::RESTORE_PROVED)
        );
        let digest = digest(["s"].into_iter());
        for part in [
            "s",
            "2.5 $/h",
            &format!("Adopt@{digest}"),
            &format!("End@{digest}"),
        ] {
            assert!(condition.message.contains(part), "{part}: {}", condition.message);
        }
    }
}

/// The evidence of the first list that shows these machines.
fn first_look(listed: &[ProviderMachine]) -> orphans::Plan {
    let never = Sightings::new();
    orphans::plan("here", listed, &remembered(), &rules(), &never, SETTLE, at(0))
}

#[test]
fn a_list_that_may_be_outdated_holds_until_the_next_one_and_proves_nothing() {
    let listed = [machine("s", "never", 1), machine("o", "here", 2)];
    let plan = first_look(&listed);
    assert!(plan.watch.contains("s"), "it is looked for again soon");
    assert!(ended(&plan).is_empty());
    let first = judge(&plan.evidence, &[], None, 0);
    assert!(first.held && first.condition.is_none(), "{first:?}");
    // The machine was gone: an outdated list has shown it.
    let nothing = look(&listed[1..], &rules()).evidence;
    assert_eq!(judge(&nothing, &[], None, 20), Verdict::default());
    let again = judge(&look(&listed, &rules()).evidence, &[], None, 20);
    assert_eq!(again.condition.unwrap().reason, reason::RESTORE_PROVED);
}

#[test]
fn a_decision_does_not_free_a_provider_while_another_machine_may_be_proof() {
    let known = look(&[machine("a", "never", 1)], &rules()).evidence;
    let conditions = written(&judge(&known, &[], None, 0), &[], 0);
    let mut both = first_look(&[machine("b", "never", 1)]).evidence;
    both.orphans.extend(known.orphans);
    let end = format!("End@{}", digest(["a"].into_iter()));
    let decided = judge(&both, &conditions, Some(&end), 60);
    assert!(decided.held);
    assert_eq!(decided.decided.unwrap().machines, ["a"]);
}

#[test]
fn an_attempt_that_no_pool_has_counted_is_proof_at_once() {
    let plan = first_look(&[machine("s", "here", 6)]);
    let verdict = judge(&plan.evidence, &[], None, 0);
    assert_eq!(verdict.condition.unwrap().reason, reason::RESTORE_PROVED);
}

#[test]
fn what_a_pool_counts_since_is_no_proof_that_it_was_not_forgotten() {
    let listed = [machine("s", "here", 6), machine("o", "here", 6)];
    let mut known = remembered();
    known.recorded.insert("uid-o".into());
    let seen: Sightings = listed.iter().map(|machine| (machine.id.clone(), at(0))).collect();
    let plan = orphans::plan("here", &listed, &known, &rules(), &seen, SETTLE, at(1000));
    assert!(plan.evidence.may_prove(), "that attempt was counted twice");
    let orphans = plan.evidence.orphans.iter();
    let strange = orphans.filter(|orphan| orphan.standing == Standing::Strange);
    assert_eq!(
        strange.map(|orphan| orphan.id.as_str()).collect::<Vec<_>>(),
        ["s"]
    );
}

#[test]
fn an_attempt_that_another_record_has_was_counted_twice() {
    let listed = [machine("s", "here", 3), machine("o", "here", 2)];
    let mut known = remembered();
    let attempt = ("here".to_owned(), 3);
    known.attempts.insert(attempt, "uid-of-the-record".into());
    let seen: Sightings = listed.iter().map(|machine| (machine.id.clone(), at(0))).collect();
    let plan = orphans::plan("here", &listed, &known, &rules(), &seen, SETTLE, at(1000));
    assert!(plan.evidence.may_prove() && ended(&plan).is_empty());
}

#[test]
fn a_mark_that_machines_write_proves_nothing_and_its_machine_waits_for_a_decision() {
    let theirs = Rules {
        marks_prove: false,
        ..rules()
    };
    let plan = look(&[machine("s", "never", 1), machine("o", "here", 2)], &theirs);
    assert_eq!(ended(&plan), ["o"], "nothing else is held up");
    let verdict = judge(&plan.evidence, &[], None, 0);
    assert!(!verdict.held);
    assert_eq!(verdict.condition.unwrap().reason, reason::RESTORE_SUSPECTED);
    // Beside machines of Pools that are gone, too: the next leader must know.
    let gone = (0..4).map(|n| machine(&format!("f{n}"), "gone", 1));
    let listed: Vec<ProviderMachine> = gone.chain([machine("s", "never", 1)]).collect();
    let both = look(&listed, &theirs).evidence;
    assert!(both.too_many);
    let verdict = judge(&both, &[], None, 0);
    assert_eq!(verdict.condition.unwrap().reason, reason::RESTORE_SUSPECTED);
}

#[test]
fn of_pools_that_are_gone_no_machine_is_ended_while_they_are_too_many() {
    let many = |count: usize| -> Vec<ProviderMachine> {
        (0..count).map(|n| machine(&format!("f{n}"), "gone", 1)).collect()
    };
    assert_eq!(ended(&look(&many(3), &rules())).len(), 3);
    let plan = look(&many(4), &rules());
    assert!(ended(&plan).is_empty() && plan.evidence.too_many);
    let verdict = judge(&plan.evidence, &[], None, 0);
    assert!(!verdict.held, "others go on");
    assert_eq!(verdict.condition.unwrap().reason, reason::TOO_MANY_ORPHANS);
    // Machines that ended within the hour count: no mistake ends them three at a time.
    let lately = Rules {
        ended_lately: 3,
        ..rules()
    };
    assert!(ended(&look(&many(1), &lately)).is_empty());
    assert_eq!((brake(0), brake(15), brake(100)), (3, 3, 20));
}

#[test]
fn a_decision_names_what_a_person_saw_and_no_other_machine() {
    let first = look(&[machine("a", "never", 1)], &rules()).evidence;
    let conditions = written(&judge(&first, &[], None, 0), &[], 0);
    let end = format!("End@{}", digest(["a"].into_iter()));
    let both = look(&[machine("a", "never", 1), machine("b", "never", 2)], &rules()).evidence;
    let stale = judge(&both, &conditions, Some(&end), 60);
    assert!(
        stale.held && stale.decided.is_none(),
        "another machine came to light"
    );
    for nonsense in ["End", "End@", "Delete@x", "Adopt@0", ""] {
        assert!(judge(&first, &conditions, Some(nonsense), 60).held, "{nonsense}");
    }
    let decided = judge(&first, &conditions, Some(&end), 60);
    let decision = decided.decided.unwrap();
    assert_eq!(
        (decision.decision, decision.machines.clone(), decided.held),
        (AfterRestore::End, vec!["a".to_owned()], false)
    );
    // The account was not listed since: a decision is not taken again.
    let conditions = written(&decided_condition(&decision), &conditions, 60);
    let seen = Seen {
        evidence: Some(&first),
        epoch: None,
        conditions: &conditions,
        decision: Some(&decision),
        annotation: Some(&end),
        heard: true,
        patience: PATIENCE,
    };
    let again = verdict(&seen, at(61));
    assert!(again.decided.is_none() && !again.held);
    // Then that machine is ended, and no other.
    let told = Rules {
        decision: Some(&decision),
        ..rules()
    };
    let plan = look(&[machine("a", "never", 1)], &told);
    assert_eq!(ended(&plan), ["a"]);
    assert!(!plan.evidence.may_prove(), "what is decided is no proof any more");
    let plan = look(&[machine("a", "never", 1), machine("c", "never", 1)], &told);
    assert_eq!(ended(&plan), ["a"]);
    assert!(plan.evidence.may_prove());
}

fn decided_condition(decision: &RestoreDecision) -> Verdict {
    Verdict {
        condition: Some(NewCondition::new(
            RESTORE_DETECTED,
            false,
            reason::RESTORE_ENDED,
            decision.digest.clone(),
        )),
        ..Verdict::default()
    }
}

#[test]
fn what_is_adopted_is_never_ended_also_when_its_attempt_was_counted_since() {
    let decision = RestoreDecision {
        decision: AfterRestore::Adopt,
        digest: "d".into(),
        decided_at: Time(at(0)),
        epoch: 9,
        attempts: [("here".to_owned(), 99)].into(),
        machines: vec!["a".into()],
        earlier: Vec::new(),
    };
    let told = Rules {
        decision: Some(&decision),
        ..rules()
    };
    for attempt in [2, 99] {
        let plan = look(&[machine("a", "here", attempt)], &told);
        assert!(ended(&plan).is_empty() && plan.evidence.orphans.is_empty());
    }
}

#[test]
fn a_hold_outlives_its_leader_and_its_proof_and_ends_with_the_time() {
    let proof = look(&[machine("a", "never", 1)], &rules()).evidence;
    let conditions = written(&judge(&proof, &[], None, 0), &[], 0);
    // The next leader has listed nothing yet; then its machine stopped itself.
    let seen = Seen {
        evidence: None,
        epoch: None,
        conditions: &conditions,
        decision: None,
        annotation: None,
        heard: true,
        patience: PATIENCE,
    };
    assert!(verdict(&seen, at(100)).held);
    let nothing = look(&[], &rules()).evidence;
    assert!(judge(&nothing, &conditions, None, 200).held);
    let over = judge(&nothing, &conditions, None, 24 * 3600);
    assert!(!over.held);
    assert_eq!(over.decided.unwrap().decision, AfterRestore::End);
    assert_eq!(over.condition.unwrap().reason, reason::RESTORE_ENDED);
}

#[test]
fn a_proved_epoch_holds_until_it_is_decided_and_not_again() {
    let nothing = Evidence::default();
    let conditions = Vec::new();
    let mut seen = Seen {
        evidence: Some(&nothing),
        epoch: Some(12),
        conditions: &conditions,
        decision: None,
        annotation: None,
        heard: true,
        patience: PATIENCE,
    };
    let held = verdict(&seen, at(0));
    assert!(held.held);
    assert!(held.condition.unwrap().message.contains("epoch 12"));
    let adopt = format!("Adopt@{}", digest([].into_iter()));
    seen.annotation = Some(&adopt);
    let decision = verdict(&seen, at(1)).decided.unwrap();
    assert_eq!(decision.epoch, 12);
    seen.decision = Some(&decision);
    assert_eq!(verdict(&seen, at(2)), Verdict::default());
    seen.epoch = Some(13);
    seen.annotation = None;
    assert!(verdict(&seen, at(3)).held, "another restore");
}

#[test]
fn a_message_that_is_cut_names_the_decision_all_the_same() {
    let listed: Vec<ProviderMachine> = (0..50)
        .map(|n| machine(&format!("{n}-{}", "x".repeat(250)), "never", 1))
        .collect();
    let evidence = look(&listed, &rules()).evidence;
    let conditions = written(&judge(&evidence, &[], None, 0), &[], 0);
    let whole = digest(listed.iter().map(|machine| machine.id.as_str()));
    assert!(
        conditions[0].message.contains(&format!("End@{whole} ")),
        "{}",
        conditions[0].message
    );
    assert!(conditions[0].message.ends_with('…'));
}

#[test]
fn a_decision_waits_until_agents_have_told_their_epochs() {
    let evidence = look(&[machine("a", "never", 1)], &rules()).evidence;
    let adopt = format!("Adopt@{}", digest(["a"].into_iter()));
    let mut seen = Seen {
        evidence: Some(&evidence),
        epoch: Some(5),
        conditions: &[],
        decision: None,
        annotation: Some(&adopt),
        heard: false,
        patience: PATIENCE,
    };
    let early = verdict(&seen, at(0));
    assert!(early.held && early.waits && early.decided.is_none());
    // The agent that answered last had the highest epoch.
    (seen.epoch, seen.heard) = (Some(8), true);
    assert_eq!(verdict(&seen, at(1)).decided.unwrap().epoch, 8);
}

#[test]
fn what_is_adopted_ends_when_its_work_is_over() {
    let decision = RestoreDecision {
        decision: AfterRestore::Adopt,
        digest: "d".into(),
        decided_at: Time(at(0)),
        epoch: 0,
        attempts: [].into(),
        machines: vec!["a".into(), "b".into()],
        earlier: Vec::new(),
    };
    let told = Rules {
        decision: Some(&decision),
        ..rules()
    };
    let halted = ProviderMachine {
        phase: ProviderPhase::Stopped("halted".into()),
        ..machine("a", "never", 1)
    };
    let listed = [halted, machine("b", "never", 1)];
    let plan = look(&listed, &told);
    assert_eq!(
        ended(&plan),
        ["a"],
        "its agent stopped it, and it may cost money still"
    );
    assert!(!plan.evidence.may_prove());
    let held = Rules { held: true, ..told };
    assert!(ended(&look(&listed, &held)).is_empty());
}

#[test]
fn what_was_decided_before_holds_beside_another_decision() {
    let adopted = RestoreDecision {
        decision: AfterRestore::Adopt,
        digest: "d".into(),
        decided_at: Time(at(0)),
        epoch: 3,
        attempts: [].into(),
        machines: vec!["a".into()],
        earlier: vec!["e".into()],
    };
    let evidence = look(&[machine("b", "never", 1)], &rules()).evidence;
    let end = format!("End@{}", digest(["b"].into_iter()));
    let seen = Seen {
        evidence: Some(&evidence),
        epoch: None,
        conditions: &[],
        decision: Some(&adopted),
        annotation: Some(&end),
        heard: true,
        patience: PATIENCE,
    };
    let decision = verdict(&seen, at(9)).decided.unwrap();
    assert_eq!(decision.about("a"), Some(AfterRestore::Adopt));
    assert_eq!(decision.about("b"), Some(AfterRestore::End));
    assert_eq!(decision.about("e"), Some(AfterRestore::End));
    assert_eq!((decision.about("c"), decision.epoch), (None, 3));
}
