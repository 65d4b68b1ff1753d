//! Tables over the Machine's plan, by subject.

mod deletion;
mod doubts;
mod environment;
mod host_keys;
mod missing;
mod price;
mod queue;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rstest::rstest;
use skyward_api::{
    MachinePhase, MachineStatus, Pool,
    condition::{self, ACCEPTED, NewCondition, READY, STALLED, find, reason},
    machine::MachineSpec,
    provider::HostKeyPolicy,
};
use skyward_core::session::{self, SessionFailure, SessionState, Stage};
use skyward_core::{
    Deletion, ErrorKind, ProviderError, ProviderMachine, ProviderPhase, Usd,
    machine::{Dial, Endpoint, Failure, FailureKind},
    provider::HostKeys,
};

use super::{
    facts::{AccountState, LookupOutcome, MachineFacts, Observed, Queued, Terms, Waits},
    plan::{
        draft::{Action, Plan, Trust},
        plan,
    },
};
use crate::{
    accounts::{facts::NamespaceFacts, unavailable::Unavailable},
    base::requeue::Next,
    pool::resolved::{ResolvedPool, Timeouts},
    records::is_refused,
};

const NOW: i64 = 100_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(crate) fn endpoint() -> Endpoint {
    Endpoint {
        dial: Dial::Address("10.0.0.7:2222".parse().unwrap()),
        user: "root".into(),
        password: None,
    }
}

pub(crate) fn pool() -> Arc<Pool> {
    let spec = serde_json::from_value(serde_json::json!({ "provider": "local" })).unwrap();
    let mut pool = Pool::new("train", spec);
    pool.metadata.namespace = Some("team".into());
    pool.metadata.uid = Some("pool-uid".into());
    pool.metadata.generation = Some(1);
    Arc::new(pool)
}

/// A Machine that was just recorded, in a world in which all is well.
pub(crate) fn world() -> Observed {
    let spec: MachineSpec = serde_json::from_value(serde_json::json!({
        "pool": "train", "poolUid": "pool-uid", "slot": 0, "attempt": 1, "provider": "local", "offer": "local-x",
        "instanceType": "x", "market": "OnDemand", "hourlyPrice": "0", "token": "t", "templateHash": "h"
    }))
    .unwrap();
    Observed {
        billed_so_far: Usd::ZERO,
        counted_by_provider: true,
        machine: MachineFacts {
            namespace: "team".into(),
            name: "m".into(),
            uid: "machine-uid".into(),
            spec,
            status: MachineStatus::default(),
            created_at: at(NOW - 10),
            deleting_since: None,
            finish_runs: false,
            finalizer: true,
        },
        pool: Some(pool()),
        current: true,
        asked: None,
        account: AccountState::Ready {
            policy: HostKeyPolicy::TrustOnFirstUse,
        },
        provider: LookupOutcome::Absent,
        order: None,
        order_not_before: None,
        queued: None,
        deletion: None,
        session: None,
        missing: None,
        disconnected_since: None,
        off_since: None,
        runs: Some(0),
        last_write: None,
        tells_changes: true,
        poll_interval: Duration::from_secs(2),
        settle_time: Duration::ZERO,
        billed_time: skyward_core::provider::BilledTime::Existing,
        starting_at: None,
        unseen_until: None,
        knows_token: true,
        host_keys: HostKeys::Reported,
        waits: waits(),
        terms: Some(Terms {
            namespace: NamespaceFacts::Active,
            provider: crate::pool::tests::provider(),
            provider_goes: false,
            beyond: Usd::ZERO,
            budget: None,
        }),
    }
}

/// The timeouts of a Pool that sets none.
pub(crate) fn waits() -> Waits {
    Waits::of(Timeouts::default(), Duration::from_mins(5))
}

fn there(phase: ProviderPhase) -> LookupOutcome {
    let seen = world();
    LookupOutcome::There(Box::new(ProviderMachine {
        id: "pod-uid".into(),
        mark: seen.machine.mark("cluster"),
        endpoint: (phase == ProviderPhase::Running).then(endpoint),
        private_address: Some("10.0.0.7".into()),
        private_interface: None,
        host_key: Some("ssh-ed25519 AAAA".into()),
        rental: skyward_core::machine::Rental::default(),
        phase,
    }))
}

fn session(stage: Stage) -> SessionState {
    SessionState {
        reachable_at: (!matches!(stage, Stage::Dialing { .. } | Stage::Unproved { .. })).then(|| at(NOW - 2)),
        bootstrapped_at: (stage == Stage::Ready).then(|| at(NOW - 1)),
        ready_at: (stage == Stage::Ready).then(|| at(NOW - 1)),
        host_key: Some("ssh-ed25519 AAAA".into()),
        stage,
        ..SessionState::default()
    }
}

fn bootstrapping() -> Stage {
    Stage::Bootstrapping {
        step: "packages".into(),
        index: 3,
        total: 6,
    }
}

/// A Machine that has been Ready for long, as its status says.
fn up() -> Observed {
    let mut seen = world();
    seen.provider = there(ProviderPhase::Running);
    seen.session = Some(session(Stage::Ready));
    let written = *plan(&seen, at(NOW)).status.unwrap();
    seen.machine.status = written;
    seen
}

fn status(plan: &Plan) -> &MachineStatus {
    plan.status.as_deref().expect("the plan writes a status")
}

fn why(plan: &Plan) -> (Option<MachinePhase>, String, String) {
    let ready = find(&status(plan).conditions, READY).unwrap();
    (status(plan).phase, ready.reason.clone(), ready.message.clone())
}

#[test]
fn a_recorded_machine_is_ordered_at_once_and_its_first_write_says_accepted() {
    let mut seen = world();
    let first = plan(&seen, at(NOW));
    assert_eq!(
        (first.actions.as_slice(), first.next),
        ([Action::Order].as_slice(), Next::Again)
    );
    assert!(first.status.is_none());
    seen.order = Some(Ok("pod-uid".into()));
    let second = plan(&seen, at(NOW));
    assert_eq!(why(&second).0, Some(MachinePhase::Accepted));
    assert_eq!(status(&second).id, "pod-uid");
    assert!(
        second.actions.is_empty(),
        "it is not ordered twice: {:?}",
        second.actions
    );
}

#[test]
fn a_machine_ordered_before_a_crash_is_adopted_and_not_ordered_again() {
    let mut seen = world();
    seen.provider = there(ProviderPhase::Starting(None));
    let plan = plan(&seen, at(NOW));
    assert!(plan.actions.is_empty());
    assert_eq!(status(&plan).id, "pod-uid");
}

#[test]
fn from_order_to_ready_it_costs_three_writes() {
    let mut seen = world();
    let mut writes = 0;
    let mut round = |seen: &mut Observed, millis: i64| {
        let plan = plan(seen, Timestamp::from_millisecond(NOW * 1000 + millis).unwrap());
        if let Some(status) = plan.status {
            seen.machine.status = *status;
            seen.last_write = Some(Timestamp::from_millisecond(NOW * 1000 + millis).unwrap());
            writes += 1;
        }
    };
    round(&mut seen, 0);
    seen.order = Some(Ok("pod-uid".into()));
    round(&mut seen, 10);
    seen.order = None;
    for what in ["scheduled", "pulling", "its SSH server starts"] {
        seen.provider = there(ProviderPhase::Starting(Some(what.into())));
        round(&mut seen, 500);
    }
    seen.provider = there(ProviderPhase::Running);
    round(&mut seen, 900);
    seen.session = Some(session(Stage::Dialing {
        last_error: Some("refused".into()),
    }));
    round(&mut seen, 950);
    for index in 1..=6 {
        seen.session = Some(session(Stage::Bootstrapping {
            step: "s".into(),
            index,
            total: 6,
        }));
        round(&mut seen, 1000 + i64::from(index) * 100);
    }
    seen.session = Some(session(Stage::Ready));
    round(&mut seen, 1800);
    assert_eq!(
        (seen.machine.status.phase, writes),
        (Some(MachinePhase::Ready), 3)
    );
}

#[test]
fn a_ready_machine_at_rest_writes_nothing() {
    let plan = plan(&up(), at(NOW + 1000));
    assert!(plan.status.is_none() && plan.events.is_empty());
    assert_eq!(plan.next, Next::Wait);
}

#[test]
fn an_unknown_answer_changes_nothing() {
    let mut seen = up();
    seen.provider = LookupOutcome::Unknown(Some("the API is away".into()));
    let plan = plan(&seen, at(NOW + 10));
    assert!(plan.status.is_none() && plan.actions.is_empty(), "{plan:?}");
}

#[rstest]
#[case(ErrorKind::NoCapacity, reason::NO_CAPACITY)]
#[case(ErrorKind::Quota("vCPUs".into()), reason::QUOTA_EXCEEDED)]
#[case(ErrorKind::NoCredit, reason::NO_CREDIT)]
#[case(ErrorKind::MachineFailed, reason::MACHINE_FAILED)]
fn an_order_that_cannot_succeed_fails_the_machine(#[case] kind: ErrorKind, #[case] expected: &str) {
    let mut seen = world();
    seen.order = Some(Err(ProviderError::new(kind, "create the Pod", "no")));
    let plan = plan(&seen, at(NOW));
    assert_eq!(
        (why(&plan).0, why(&plan).1.as_str()),
        (Some(MachinePhase::Failed), expected)
    );
    assert!(find(&status(&plan).conditions, STALLED).is_some());
}

#[test]
fn a_refused_order_is_tried_again_and_says_why_meanwhile() {
    let mut seen = world();
    seen.order = Some(Err(ProviderError::new(
        ErrorKind::InvalidOrder,
        "create the Pod",
        "no pull Secret \"x\"",
    )));
    let first = plan(&seen, at(NOW));
    assert_eq!(why(&first).1, reason::ORDER_REFUSED);
    assert_ne!(why(&first).0, Some(MachinePhase::Failed));
    let not_before = first.order_not_before.unwrap();
    seen.machine.status = *first.status.unwrap();
    seen.order = None;
    seen.order_not_before = Some(not_before);
    let early = plan(&seen, at(NOW));
    assert!(early.actions.is_empty() && early.status.is_none(), "{early:?}");
    assert_eq!(plan(&seen, not_before).actions, [Action::Order]);
    let late = plan(&seen, at(NOW + 300));
    assert_eq!(late.actions, [Action::Order], "a try comes before the verdict");
}

#[rstest]
#[case(FailureKind::ImagePull, reason::IMAGE_PULL_FAILED)]
#[case(FailureKind::Lost, reason::MACHINE_LOST)]
#[case(FailureKind::OutOfMemory, reason::OUT_OF_MEMORY)]
#[case(FailureKind::NoRoom, reason::NO_CAPACITY)]
#[case(FailureKind::UnusableImage, reason::MACHINE_FAILED)]
fn what_the_provider_says_is_the_reason(#[case] kind: FailureKind, #[case] expected: &str) {
    let mut seen = world();
    seen.provider = there(ProviderPhase::failed(kind, "because"));
    let plan = plan(&seen, at(NOW));
    assert_eq!(
        why(&plan),
        (
            Some(MachinePhase::Failed),
            expected.to_owned(),
            "because".to_owned()
        )
    );
    assert_eq!(plan.actions, [Action::Disconnect]);
}

#[test]
fn why_functions_are_not_forked_stays_on_record_until_the_agent_tells_something_else() {
    let mut seen = up();
    for (told, expected, is_event) in [
        (None, "", false),
        (Some("threads"), "threads", true),
        (Some("threads"), "threads", false),
        (None, "threads", false),
        (Some(""), "", false),
    ] {
        seen.session.as_mut().unwrap().not_forked = told.map(str::to_owned);
        let plan = plan(&seen, at(NOW));
        let notes: Vec<&str> = plan
            .events
            .iter()
            .filter(|event| event.reason == crate::events::reason::NOT_FORKED)
            .map(|event| event.note.as_str())
            .collect();
        assert_eq!(notes.len(), usize::from(is_event), "{told:?}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains(": threads;")), "{notes:?}");
        if let Some(new) = plan.status {
            seen.machine.status = *new;
        }
        assert_eq!(seen.machine.status.not_forked, expected, "{told:?}");
    }
}

#[test]
fn a_notice_is_on_record_at_once_whoever_tells_it() {
    let told_by_provider = {
        let mut seen = up();
        let LookupOutcome::There(machine) = &mut seen.provider else {
            unreachable!()
        };
        machine.rental.reclaim_at = Some(at(NOW + 120));
        seen
    };
    let mut told_by_agent = up();
    told_by_agent.session.as_mut().unwrap().reclaim_at = Some(at(NOW + 120));
    for mut seen in [told_by_provider, told_by_agent] {
        // Although something was written just before.
        seen.last_write = Some(at(NOW));
        let plan = plan(&seen, at(NOW));
        assert_eq!(status(&plan).reclaim_at, Some(Time(at(NOW + 120))));
        let (phase, reason, message) = why(&plan);
        assert_eq!(
            (phase, reason.as_str()),
            (Some(MachinePhase::Ready), reason::PREEMPTED)
        );
        assert!(message.contains("1970-01-02T03:48:40Z"), "{message}");
        assert_eq!(plan.events[0].reason, crate::events::reason::PREEMPTED);

        seen.machine.status = status(&plan).clone();
        let again = super::plan::plan(&seen, at(NOW + 1));
        assert!(again.status.is_none() && again.events.is_empty(), "once");
    }
}

#[test]
fn a_notice_for_a_machine_that_drains_is_on_record_for_its_runs_to_be_stopped() {
    let mut seen = deleting(up());
    seen.machine.finish_runs = true;
    seen.runs = Some(2);
    seen.session.as_mut().unwrap().reclaim_at = Some(at(NOW + 120));
    let plan = plan(&seen, at(NOW));
    assert_eq!(status(&plan).reclaim_at, Some(Time(at(NOW + 120))));
    assert!(!plan.actions.contains(&Action::Delete));
}

#[test]
fn a_vanished_machine_is_lost() {
    let mut seen = up();
    seen.provider = LookupOutcome::Absent;
    let plan = plan(&seen, at(NOW + 10));
    assert_eq!(
        (why(&plan).0, why(&plan).1.as_str()),
        (Some(MachinePhase::Failed), reason::MACHINE_LOST)
    );
    assert!(plan.events.iter().any(|event| event.reason == "MachineLost"));
}

#[test]
fn a_list_that_lags_after_the_order_is_no_loss() {
    let mut seen = world();
    seen.machine.status.id = "i".into();
    seen.machine.status.accepted_at = Some(Time(at(NOW - 3)));
    seen.settle_time = Duration::from_secs(10);
    assert!(
        plan(&seen, at(NOW))
            .status
            .is_none_or(|status| status.phase != Some(MachinePhase::Failed))
    );
    assert_eq!(why(&plan(&seen, at(NOW + 7))).1, reason::MACHINE_LOST);
}

#[rstest]
#[case::no_address(there(ProviderPhase::Starting(Some("pulling".into()))), None, 300, reason::PROVISION_TIMEOUT, "pulling")]
#[case::no_ssh(there(ProviderPhase::Running), Some(Stage::Dialing { last_error: Some("refused".into()) }), 301, reason::SSH_TIMEOUT, "refused")]
#[case::no_proof(there(ProviderPhase::Running), Some(Stage::Unproved { last_error: "it is empty".into() }), 301, reason::HOST_KEY_NOT_VERIFIED, "SSH answers, and the machine has not proved its host key: it is empty")]
#[case::no_bootstrap(
    there(ProviderPhase::Running),
    Some(bootstrapping()),
    304,
    reason::BOOTSTRAP_TIMEOUT,
    "step 3 of 6, \"packages\""
)]
fn each_stage_has_its_time(
    #[case] provider: LookupOutcome,
    #[case] stage: Option<Stage>,
    #[case] seconds: i64,
    #[case] expected: &str,
    #[case] words: &str,
) {
    let mut seen = world();
    seen.provider = provider;
    seen.session = stage.map(session);
    let first = plan(&seen, at(NOW));
    seen.machine.status = *first.status.unwrap();
    assert!(
        plan(&seen, at(NOW + seconds - 2))
            .status
            .is_none_or(|s| s.phase != Some(MachinePhase::Failed))
    );
    let (phase, reason, message) = why(&plan(&seen, at(NOW + seconds)));
    assert_eq!((phase, reason.as_str()), (Some(MachinePhase::Failed), expected));
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_failing_step_shows_its_last_output() {
    let mut seen = world();
    seen.provider = there(ProviderPhase::Running);
    seen.session = Some(session(Stage::Failed(SessionFailure {
        kind: session::FailureKind::StepFailed,
        step: Some("packages".into()),
        message: "exit code 100: E: Unable to locate package nope".into(),
        diagnosis: None,
    })));
    let (_, reason, message) = why(&plan(&seen, at(NOW)));
    assert_eq!(reason, reason::BOOTSTRAP_FAILED);
    assert_eq!(
        message,
        "Step \"packages\": exit code 100: E: Unable to locate package nope"
    );
}

#[test]
fn a_machine_that_breaks_a_limit_of_the_protocol_is_given_up_also_when_it_was_ready_and_has_runs() {
    let broke = || {
        session(Stage::Failed(SessionFailure {
            kind: session::FailureKind::ProtocolViolation,
            step: None,
            message: "the machine sent 65 accelerators; at most 64 are allowed".into(),
            diagnosis: None,
        }))
    };
    let mut on_its_way = world();
    on_its_way.provider = there(ProviderPhase::Running);
    let mut working = up();
    working.runs = Some(3);
    for mut seen in [on_its_way, working] {
        seen.session = Some(broke());
        let plan = plan(&seen, at(NOW));
        let (phase, reason, message) = why(&plan);
        assert_eq!(phase, Some(MachinePhase::Failed));
        assert_eq!(reason, reason::PROTOCOL_VIOLATION);
        assert!(message.contains("at most 64"), "{message}");
        assert_eq!(plan.actions, [Action::Disconnect]);
    }
}

#[test]
fn a_blink_of_the_connection_is_nothing_and_a_long_loss_shows() {
    let mut seen = up();
    seen.session = Some(session(Stage::Reconnecting {
        last_error: "reset".into(),
        since: at(NOW),
    }));
    seen.disconnected_since = Some(at(NOW));
    let blink = plan(&seen, at(NOW + 5));
    assert!(blink.status.is_none() && blink.next != Next::Wait);
    let lost = plan(&seen, at(NOW + 10));
    assert_eq!(
        (why(&lost).0, why(&lost).1.as_str()),
        (Some(MachinePhase::Ready), reason::CONNECTION_LOST)
    );
    assert_eq!(
        why(&plan(&seen, at(NOW + 300))).1,
        reason::MACHINE_LOST,
        "an idle one is given up after timeouts.ssh"
    );
    seen.runs = Some(1);
    assert_eq!(
        why(&plan(&seen, at(NOW + 300))).1,
        reason::CONNECTION_LOST,
        "one with runs is not"
    );
    seen.runs = None;
    assert_eq!(
        why(&plan(&seen, at(NOW + 300))).1,
        reason::CONNECTION_LOST,
        "unknown is not idle"
    );
}

fn deleting(mut seen: Observed) -> Observed {
    seen.machine.deleting_since = Some(at(NOW));
    seen
}

#[rstest]
#[case(ErrorKind::NoCapacity, Unavailable::Offer { offer: "local-x".into(), spot: false })]
#[case(ErrorKind::Quota("vCPUs".into()), Unavailable::Quota { provider: "local".into(), region: String::new(), zones: false, spot: false, accelerator: String::new() })]
#[case(ErrorKind::NoCredit, Unavailable::Account { provider: "local".into() })]
fn what_is_refused_for_want_of_room_is_remembered(#[case] kind: ErrorKind, #[case] expected: Unavailable) {
    let mut seen = world();
    seen.order = Some(Err(ProviderError::new(kind, "order", "sold out")));
    let plan = plan(&seen, at(NOW));
    let (what, said) = plan.shortage.clone().unwrap();
    assert_eq!(what, expected);
    assert!(said.contains("sold out"), "{said}");
    let why = why(&plan).1;
    assert!(
        reason::SHORTAGES.contains(&why.as_str()),
        "{why}: the Pool orders another"
    );
}

#[rstest]
#[case::when_ordered(true)]
#[case::after_the_order_was_accepted(false)]
fn a_quota_of_a_region_of_zones_is_remembered_for_the_region(#[case] at_once: bool) {
    let mut seen = world();
    let region = Some("us-central1".to_owned());
    if at_once {
        let mut error = ProviderError::new(ErrorKind::Quota("GPUs".into()), "order", "no more");
        error.quota_region = region;
        seen.order = Some(Err(error));
    } else {
        seen.provider = there(ProviderPhase::Failed(Failure {
            kind: FailureKind::NoCapacity,
            message: "no more".into(),
            quota_region: region,
        }));
    }
    let (what, _) = plan(&seen, at(NOW)).shortage.unwrap();
    let expected = Unavailable::Quota {
        provider: "local".into(),
        region: "us-central1".into(),
        zones: true,
        spot: false,
        accelerator: String::new(),
    };
    assert_eq!(what, expected);
}

#[rstest]
#[case(ErrorKind::InvalidOrder, Unavailable::Order { pool: "pool-uid".into(), template: "h".into(), provider: "local".into(), region: String::new(), spot: false, offer: "local-x".into() })]
#[case(ErrorKind::Permission, Unavailable::Right { provider: "local".into(), region: String::new(), spot: false })]
fn an_order_refused_as_it_is_waits_and_is_remembered_so_that_its_pool_may_move_on(
    #[case] kind: ErrorKind,
    #[case] expected: Unavailable,
) {
    let mut seen = world();
    seen.order = Some(Err(ProviderError::new(kind, "order", "no default VPC")));
    let plan = plan(&seen, at(NOW));
    assert_eq!(plan.shortage.clone().map(|(what, _)| what), Some(expected));
    assert_eq!(
        (why(&plan).0, why(&plan).1.as_str()),
        (Some(MachinePhase::Ordered), reason::ORDER_REFUSED)
    );
}

/// The cloud is asked again meanwhile only when no second machine can come of it.
#[rstest]
#[case::with_a_token(true, 5)]
#[case::by_a_look(false, 60)]
fn an_order_that_a_cloud_under_maintenance_leaves_in_doubt_lets_its_pool_move_on(
    #[case] knows_token: bool,
    #[case] again: i64,
) {
    let mut seen = world();
    seen.knows_token = knows_token;
    seen.settle_time = Duration::from_secs(60);
    seen.order = Some(Err(ProviderError::new(ErrorKind::Outage, "order", "HTTP 503")));
    let told = plan(&seen, at(NOW));
    let outage = Unavailable::Outage {
        provider: "local".into(),
    };
    assert_eq!(told.shortage.clone().map(|(what, _)| what), Some(outage));
    assert_eq!(
        (why(&told).0, why(&told).1.as_str()),
        (Some(MachinePhase::Ordered), reason::PROVIDER_UNAVAILABLE)
    );
    assert_eq!(told.order_not_before, Some(at(NOW + again)));
    assert!(is_refused(status(&told)), "its Pool may give it up");
    // What the answer was stays while it is too early to ask again.
    seen.machine.status = status(&told).clone();
    seen.order_not_before = told.order_not_before;
    seen.order = None;
    let waits = plan(&seen, at(NOW + 1));
    assert!(waits.actions.is_empty(), "{:?}", waits.actions);
    assert!(waits.status.is_none_or(|status| is_refused(&status)));
}

/// What may have been ordered is waited for; another kind of silence says nothing of the cloud.
#[rstest]
#[case::never_ordered(|_: &mut Observed| {}, true)]
#[case::its_order_met_an_outage(
    |seen: &mut Observed| {
        seen.unseen_until = Some(at(NOW + 60));
        seen.order = Some(Err(ProviderError::new(ErrorKind::Outage, "order", "HTTP 503")));
    },
    true
)]
#[case::perhaps_ordered(|seen: &mut Observed| seen.unseen_until = Some(at(NOW + 60)), false)]
#[case::ordered(|seen: &mut Observed| seen.machine.status.id = "i-1".into(), false)]
#[case::waits_for_its_turn(
    |seen: &mut Observed| seen.queued = Some(Queued { since: at(NOW), until: at(NOW + 9) }),
    false
)]
#[case::on_nodes_of_the_cluster(
    |seen: &mut Observed| seen.terms.as_mut().unwrap().provider.own_nodes = true,
    false
)]
fn a_cloud_that_answers_nothing_lets_the_pool_of_a_machine_that_is_not_there_move_on(
    #[case] happens: fn(&mut Observed),
    #[case] expected: bool,
) {
    let mut seen = world();
    seen.provider = LookupOutcome::Unknown(Some("HTTP 503".into()));
    happens(&mut seen);
    let waits = plan(&seen, at(NOW));
    assert!(waits.actions.is_empty(), "{:?}", waits.actions);
    assert!(matches!(waits.next, Next::After(_)));
    assert_eq!(waits.shortage.is_some(), expected, "{:?}", waits.shortage);
    assert_eq!(waits.status.is_some_and(|status| is_refused(&status)), expected);
}

#[test]
fn an_agent_that_refuses_our_epoch_takes_its_own_machine_out_of_use_and_no_other_effect() {
    let mut seen = up();
    seen.session = Some(session(Stage::EpochAhead));
    seen.disconnected_since = Some(at(NOW));
    let ahead = plan(&seen, at(NOW));
    assert_eq!(
        (why(&ahead).0, why(&ahead).1.as_str()),
        (Some(MachinePhase::Ready), reason::EPOCH_AHEAD)
    );
    assert!(ahead.actions.contains(&Action::DoubtLeadership));
    assert!(
        !ahead.actions.contains(&Action::Disconnect),
        "what runs there goes on"
    );
    // Its runs are not known: it is not given up as an idle machine is.
    assert_eq!(seen.runs, Some(0));
    let later = plan(&seen, at(NOW + 3600));
    assert_eq!(why(&later).1, reason::EPOCH_AHEAD);
    let last = plan(&seen, at(NOW + 24 * 3600));
    assert_eq!(why(&last).1, reason::MACHINE_LOST);
    // An agent may name any version: text decides nothing.
    seen.session = Some(session(Stage::Failed(SessionFailure {
        kind: session::FailureKind::AgentRefused,
        step: None,
        message: "the agent takes orders from a newer controller".into(),
        diagnosis: None,
    })));
    assert!(!plan(&seen, at(NOW)).actions.contains(&Action::DoubtLeadership));
}

#[test]
fn a_machine_that_never_took_runs_and_refuses_our_epoch_is_given_up_in_time() {
    let mut seen = up();
    seen.machine.status.ready_at = None;
    seen.session = Some(session(Stage::EpochAhead));
    assert_eq!(why(&plan(&seen, at(NOW))).1, reason::EPOCH_AHEAD);
    assert_eq!(why(&plan(&seen, at(NOW + 400))).1, reason::BOOTSTRAP_TIMEOUT);
}

#[test]
fn an_outdated_machine_is_not_ordered_any_more() {
    let mut seen = world();
    seen.current = false;
    assert!(plan(&seen, at(NOW)).actions.is_empty());
}

#[test]
fn conditions_come_in_the_order_of_a_machines_life() {
    let seen = up();
    let types: Vec<_> = seen
        .machine
        .status
        .conditions
        .iter()
        .map(|c| c.type_.as_str())
        .collect();
    assert_eq!(types, [ACCEPTED, "Reachable", "Bootstrapped", READY]);
}
