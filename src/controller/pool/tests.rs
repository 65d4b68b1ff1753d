//! Tables over the Pool's plan, and properties that hold for every world.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use rstest::rstest;
use skyward_api::{
    MachinePhase,
    condition::{READY, RECONCILING, STALLED, find, reason},
    machine::Market,
    pool::{Place, PoolPhase, PoolSpec, PoolStatus},
};
use skyward_core::{MachineRef, Mark};

use super::{
    fleet::{Limits, Used},
    observe::{
        AccountFacts, Failure, Leftovers, MachineFacts, NamespaceFacts, Observed, PoolFacts, ProviderFacts,
    },
    plan::{Action, Next, Plan, Why, audit::audit, plan},
};
use crate::{
    board::PoolLoad,
    provider::{
        offers::{Book, tests::offer},
        shortage::{REMEMBERED, Scarce, Shortages},
    },
};

const NOW: i64 = 100_000;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A Pool that wants that many machines, of a world in which all is well.
pub(crate) fn world(desired: u32) -> Observed {
    let spec: PoolSpec =
        serde_json::from_value(serde_json::json!({ "provider": "local", "nodes": { "desired": desired } }))
            .unwrap();
    Observed {
        cluster: "cluster".into(),
        pool: PoolFacts {
            namespace: "team".into(),
            name: "train".into(),
            uid: "0a1b2c3d-0000".into(),
            generation: 1,
            created_at: at(0),
            deleting_since: None,
            finalizer: true,
            spec,
            status: PoolStatus {
                observed_generation: Some(1),
                last_attempt: 100,
                ..PoolStatus::default()
            },
        },
        machines: Vec::new(),
        load: Some(PoolLoad::default()),
        providers: BTreeMap::from([("local".to_owned(), provider())]),
        namespace: NamespaceFacts::Active,
        missing_references: Ok(Vec::new()),
        has_references: false,
        offers: BTreeMap::from([(
            "local".to_owned(),
            Arc::new(Book::of([offer("local-x", serde_json::json!({}))])),
        )]),
        shortages: Arc::default(),
        leftovers: Leftovers::NotAsked,
    }
}

/// A Provider that can be used without limits.
pub(crate) fn provider() -> ProviderFacts {
    ProviderFacts {
        account: AccountFacts::Ready,
        admits: Ok(()),
        overridable: BTreeSet::new(),
        limits: Limits::default(),
        used: Used::default(),
        month: None,
        month_in_namespace: None,
        billing_step_seconds: 1,
        billing_minimum_seconds: 0,
    }
}

fn of_local(seen: &mut Observed) -> &mut ProviderFacts {
    seen.providers.get_mut("local").unwrap()
}

pub(crate) fn ready(slot: u32) -> MachineFacts {
    MachineFacts {
        name: format!("m-{slot}"),
        uid: Some(format!("uid-{slot}")),
        slot,
        attempt: slot + 1,
        phase: MachinePhase::Ready,
        ready: true,
        deleting: false,
        current: true,
        provisioned: true,
        ready_at: Some(at(1_000)),
        failure: None,
        runs: Some(0),
        address: format!("10.0.0.{slot}"),
        hourly_price: "0".into(),
        place: Place {
            provider: "local".into(),
            region: String::new(),
        },
        market: Market::OnDemand,
        reclaimed: false,
        bill: None,
        concern: None,
    }
}

fn booting(slot: u32) -> MachineFacts {
    MachineFacts {
        phase: MachinePhase::Accepted,
        ready: false,
        provisioned: false,
        ready_at: None,
        address: String::new(),
        concern: Some((reason::BOOTING.into(), "it boots".into())),
        ..ready(slot)
    }
}

fn failed(slot: u32, when: i64) -> MachineFacts {
    MachineFacts {
        phase: MachinePhase::Failed,
        failure: Some(Failure {
            at: at(when),
            reason: reason::IMAGE_PULL_FAILED.into(),
            message: "image \"x\" cannot be pulled".into(),
        }),
        ..booting(slot)
    }
}

fn busy(slot: u32) -> MachineFacts {
    MachineFacts {
        runs: Some(2),
        ..ready(slot)
    }
}

fn decide(seen: &Observed) -> Plan {
    decide_at(seen, NOW)
}

fn decide_at(seen: &Observed, now: i64) -> Plan {
    let plan = plan(seen, at(now));
    assert_eq!(audit(seen, &plan), Vec::<String>::new(), "{plan:#?}");
    plan
}

fn created(plan: &Plan) -> Vec<u32> {
    let slot = |action: &Action| match action {
        Action::CreateMachine { spec, .. } => Some(spec.slot),
        _ => None,
    };
    plan.actions.iter().filter_map(slot).collect()
}

fn deleted(plan: &Plan) -> Vec<(String, Why, bool)> {
    let name = |action: &Action| match action {
        Action::DeleteMachine {
            name,
            why,
            finish_runs,
            ..
        } => Some((name.clone(), *why, *finish_runs)),
        _ => None,
    };
    plan.actions.iter().filter_map(name).collect()
}

fn deleted_names(plan: &Plan) -> Vec<String> {
    deleted(plan).into_iter().map(|(name, _, _)| name).collect()
}

fn condition(plan: &Plan, type_: &str) -> Option<(String, String, String)> {
    find(&plan.status.conditions, type_).map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
}

#[test]
fn the_finalizer_comes_before_the_first_machine() {
    let mut seen = world(2);
    seen.pool.finalizer = false;
    let plan = decide(&seen);
    assert_eq!(
        (plan.actions, plan.next),
        (vec![Action::AddFinalizer], Next::Again)
    );
}

#[test]
fn an_empty_pool_orders_all_machines_with_attempts_on_record_first() {
    let plan = decide(&world(3));
    assert_eq!(created(&plan), [0, 1, 2]);
    assert_eq!(plan.actions[0], Action::EnsureKey);
    assert_eq!(plan.status.last_attempt, 103);
    assert_eq!(plan.status.phase, Some(PoolPhase::Provisioning));
    assert_eq!(plan.status.ready_summary, "0/3");
}

#[test]
fn a_plan_on_a_world_that_matches_does_nothing() {
    let mut seen = world(2);
    seen.machines = vec![ready(0), ready(1)];
    let first = decide(&seen);
    seen.pool.status = first.status;
    let second = decide_at(&seen, NOW + 50);
    assert_eq!(
        (second.actions, second.events, second.next),
        (vec![], vec![], Next::Wait)
    );
    assert_eq!(second.status, seen.pool.status);
    assert_eq!(second.status.phase, Some(PoolPhase::Ready));
    assert_eq!(second.status.head_address, "10.0.0.0");
    assert!(
        condition(
            &Plan {
                status: second.status,
                ..Plan::default()
            },
            RECONCILING
        )
        .is_none()
    );
}

#[test]
fn a_lost_machine_is_replaced_at_once_and_does_not_count_as_a_failed_try() {
    let mut seen = world(2);
    let mut lost = failed(0, NOW - 1);
    lost.ready_at = Some(at(1_000));
    seen.machines = vec![lost, ready(1)];
    let plan = decide(&seen);
    assert_eq!(deleted(&plan), [("m-0".to_owned(), Why::Failed, false)]);
    assert_eq!(created(&plan), [0]);
    assert_eq!(plan.status.failed_attempts, 0);
    assert!(plan.events.iter().any(|event| event.reason == "MachineReplaced"));
}

#[test]
fn a_machine_that_drains_keeps_its_slot_until_it_is_gone() {
    let mut seen = world(2);
    seen.machines = vec![
        ready(0),
        MachineFacts {
            deleting: true,
            ..busy(1)
        },
    ];
    assert_eq!(created(&decide(&seen)), Vec::<u32>::new());
    seen.machines.pop();
    assert_eq!(created(&decide(&seen)), [1]);
}

#[test]
fn a_failed_try_is_waited_for_twice_as_long_each_time_and_counted_once() {
    let mut seen = world(1);
    seen.machines = vec![failed(0, NOW)];
    let plan = decide(&seen);
    assert_eq!((plan.status.failed_attempts, created(&plan)), (1, vec![]));
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(10)));
    // A crash before the deletion: the same failure is seen again.
    seen.pool.status = plan.status;
    assert_eq!(decide_at(&seen, NOW + 1).status.failed_attempts, 1);
    // It is gone, and the message is not.
    seen.machines.clear();
    let waiting = decide_at(&seen, NOW + 2);
    assert!(
        condition(&waiting, READY)
            .unwrap()
            .2
            .contains("Last failure: Machine \"m-0\", ImagePullFailed: image")
    );
    assert_eq!(created(&decide_at(&seen, NOW + 10)), [0]);
    // The second failure waits for 20 s.
    seen.machines = vec![failed(0, NOW + 20)];
    let second = decide_at(&seen, NOW + 20);
    assert_eq!(second.status.failed_attempts, 2);
    assert_eq!(second.next, Next::After(std::time::Duration::from_secs(20)));
}

#[test]
fn a_refusal_for_want_of_room_moves_on_to_the_next_offer_at_once_and_counts_when_there_is_none() {
    let price = |price: &str| serde_json::json!({ "onDemandPrice": price });
    let mut seen = world(1);
    let book = Book::of([offer("cheap", price("1")), offer("dear", price("2"))]);
    seen.offers = BTreeMap::from([("local".to_owned(), Arc::new(book))]);
    let refused = |slot, when| {
        let mut machine = failed(slot, when);
        let failure = machine.failure.as_mut().unwrap();
        failure.reason = reason::NO_CAPACITY.into();
        machine
    };
    let ordered = |plan: &Plan| {
        plan.actions.iter().find_map(|action| match action {
            Action::CreateMachine { spec, .. } => Some(spec.offer.clone()),
            _ => None,
        })
    };
    let mut short = Shortages::default();
    let mut refuse = |name: &str| {
        let what = Scarce::Offer {
            offer: name.into(),
            spot: false,
        };
        short.remember(what, "sold out".into(), at(NOW), REMEMBERED);
        Arc::new(short.clone())
    };
    // Even while an earlier failure of another kind would have to be waited for.
    seen.pool.status.failed_attempts = 1;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 1)));
    seen.shortages = refuse("cheap");
    seen.machines = vec![refused(0, NOW)];
    let plan = decide(&seen);
    assert_eq!(ordered(&plan).as_deref(), Some("dear"));
    assert_eq!(plan.status.failed_attempts, 1, "it is no failed try");
    seen.shortages = refuse("dear");
    seen.machines = vec![refused(0, NOW + 1)];
    seen.pool.status = plan.status;
    let last = decide_at(&seen, NOW + 1);
    assert_eq!((ordered(&last), last.status.failed_attempts), (None, 2));
    assert_eq!(last.next, Next::After(std::time::Duration::from_secs(20)));
    // Then the cheapest is asked for again, although its time has not passed.
    seen.pool.status = last.status;
    seen.machines.clear();
    assert_eq!(ordered(&decide_at(&seen, NOW + 21)).as_deref(), Some("cheap"));
}

#[test]
fn an_attempt_is_not_used_again_although_somebody_reset_the_status() {
    let mut seen = world(2);
    seen.pool.status.last_attempt = 0;
    seen.machines = vec![MachineFacts {
        attempt: 41,
        ..ready(0)
    }];
    let plan = decide(&seen);
    assert_eq!((created(&plan), plan.status.last_attempt), (vec![1], 42));
}

#[test]
fn after_the_last_try_the_pool_is_stalled_with_what_the_provider_said() {
    let mut seen = world(1);
    seen.pool.status.failed_attempts = 9;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 100)));
    seen.machines = vec![failed(0, NOW)];
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(
        (why.as_str(), plan.status.phase),
        (reason::PROVISIONING_FAILED, Some(PoolPhase::Stalled))
    );
    assert!(message.contains("image \"x\" cannot be pulled"), "{message}");
    seen.pool.status = plan.status;
    seen.machines.clear();
    assert_eq!(created(&decide_at(&seen, NOW + 3_599)), Vec::<u32>::new());
    assert_eq!(created(&decide_at(&seen, NOW + 3_600)), [0]);
    seen.pool.generation = 2;
    assert_eq!(
        created(&decide_at(&seen, NOW + 60)),
        [0],
        "a change of the spec is a new chance"
    );
}

#[rstest]
#[case::idle_ones_first_from_the_highest_slot(vec![busy(3), ready(2), ready(1), ready(0)], 2, &["m-2", "m-1"])]
#[case::those_on_their_way_before_idle_ones(vec![ready(3), booting(2), ready(1), ready(0)], 3, &["m-2"])]
#[case::then_busy_ones(vec![busy(3), busy(2), ready(1), busy(0)], 2, &["m-1", "m-3"])]
#[case::an_idle_head_before_a_busy_one(vec![busy(1), ready(0)], 1, &["m-0"])]
#[case::the_head_last_among_equals(vec![busy(1), busy(0)], 1, &["m-1"])]
#[case::all(vec![busy(1), ready(0)], 0, &["m-0", "m-1"])]
fn shrinking(#[case] machines: Vec<MachineFacts>, #[case] desired: u32, #[case] expected: &[&str]) {
    let mut seen = world(desired);
    seen.machines = machines;
    seen.machines.sort_by_key(|machine| machine.slot);
    let plan = decide(&seen);
    assert_eq!(deleted_names(&plan), expected);
    assert!(
        deleted(&plan)
            .iter()
            .all(|(_, why, finish)| *why == Why::NotWanted && *finish)
    );
}

#[test]
fn a_machine_whose_load_is_not_known_is_not_touched() {
    let mut seen = world(0);
    seen.load = None;
    seen.machines = vec![
        MachineFacts {
            runs: None,
            ..ready(0)
        },
        MachineFacts {
            runs: None,
            ..booting(1)
        },
    ];
    assert_eq!(
        deleted_names(&decide(&seen)),
        ["m-1"],
        "only the one that never took runs"
    );
}

#[test]
fn outdated_machines_are_replaced_one_at_a_time_when_idle() {
    let old = |machine: MachineFacts| MachineFacts {
        current: false,
        ..machine
    };
    let mut seen = world(3);
    seen.machines = vec![old(ready(0)), old(busy(1)), old(ready(2))];
    assert_eq!(deleted(&decide(&seen)), [("m-2".to_owned(), Why::Outdated, true)]);
    // While one is replaced, the others stay.
    seen.machines = vec![old(ready(0)), old(busy(1)), booting(2)];
    assert_eq!(deleted_names(&decide(&seen)), Vec::<String>::new());
    // With a lower minimum more go at a time.
    seen.pool.spec.nodes.min = Some(1);
    seen.machines = vec![old(ready(0)), old(ready(1)), old(ready(2))];
    assert_eq!(deleted_names(&decide(&seen)), ["m-2", "m-1"]);
    // And none when no new one could be ordered.
    seen.offers.clear();
    assert_eq!(deleted_names(&decide(&seen)), Vec::<String>::new());
}

#[rstest]
#[case(AccountFacts::NotFound(vec!["gpu".into()]), reason::PROVIDER_NOT_FOUND, "There are: gpu")]
#[case(AccountFacts::NotFound(vec![]), reason::PROVIDER_NOT_FOUND, "There is none yet")]
#[case(AccountFacts::NotReady("Provider \"local\" is not ready: revoked".into()), reason::PROVIDER_NOT_READY, "revoked")]
fn a_pool_says_what_is_wrong_with_its_provider(
    #[case] account: AccountFacts,
    #[case] expected: &str,
    #[case] words: &str,
) {
    let mut seen = world(1);
    of_local(&mut seen).account = account;
    let plan = decide(&seen);
    let (status, why, message) = condition(&plan, READY).unwrap();
    assert_eq!(
        (status.as_str(), why.as_str(), created(&plan)),
        ("False", expected, vec![])
    );
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_namespace_that_is_not_allowed_and_a_missing_secret_are_named() {
    let mut seen = world(1);
    of_local(&mut seen).admits = Err("team=ml".into());
    assert!(
        condition(&decide(&seen), STALLED)
            .unwrap()
            .2
            .contains("asks for labels team=ml")
    );
    let mut seen = world(1);
    seen.has_references = true;
    seen.missing_references = Ok(vec!["Secret \"hf\"".into()]);
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::REFERENCE_NOT_FOUND);
    assert!(
        message.starts_with("Secret \"hf\" of namespace \"team\" does not exist. Create it"),
        "{message}"
    );
    assert_ne!(plan.next, Next::Wait, "no watch tells us of Secrets");
}

#[test]
fn machines_that_run_stay_when_a_secret_goes() {
    let mut seen = world(1);
    seen.machines = vec![ready(0)];
    seen.has_references = true;
    seen.missing_references = Ok(vec!["Secret \"hf\"".into()]);
    let plan = decide(&seen);
    assert_eq!(
        (deleted_names(&plan), plan.status.phase),
        (vec![], Some(PoolPhase::Ready))
    );
    assert!(condition(&plan, STALLED).is_some());
}

#[test]
fn a_limit_lets_in_what_fits_and_names_itself() {
    let mut seen = world(4);
    of_local(&mut seen).limits = Limits {
        total: Some(10),
        in_namespace: Some(3),
        ..Limits::default()
    };
    of_local(&mut seen).used = Used {
        total: 5,
        in_namespace: 1,
        ..Used::default()
    };
    let plan = decide(&seen);
    assert_eq!(created(&plan), [0, 1]);
    let message = condition(&plan, STALLED).unwrap().2;
    assert!(
        message.contains("2 machine(s) cannot be ordered") && message.contains("machinesPerNamespace is 3"),
        "{message}"
    );
}

#[test]
fn a_suspended_pool_returns_all_machines() {
    let mut seen = world(2);
    seen.pool.spec.suspend = Some(true);
    seen.machines = vec![busy(0), booting(1)];
    let plan = decide(&seen);
    assert_eq!(deleted_names(&plan), ["m-0", "m-1"]);
    assert!(
        deleted(&plan)
            .iter()
            .all(|(_, why, finish)| *why == Why::Suspended && !*finish)
    );
    assert_eq!(plan.status.phase, Some(PoolPhase::Suspended));
}

#[test]
fn a_pool_of_zero_is_off_and_as_it_should_be() {
    let plan = decide(&world(0));
    assert_eq!((plan.actions, plan.status.phase), (vec![], Some(PoolPhase::Off)));
}

#[test]
fn with_fewer_than_wanted_but_enough_it_is_partially_ready() {
    let mut seen = world(3);
    seen.pool.spec.nodes.min = Some(1);
    seen.machines = vec![ready(0), booting(1), booting(2)];
    let plan = decide(&seen);
    assert_eq!(condition(&plan, READY).unwrap().1, reason::PARTIALLY_READY);
    assert_eq!(
        (plan.status.ready_summary.as_str(), plan.status.phase),
        ("1/3", Some(PoolPhase::Ready))
    );
}

#[test]
fn a_deleted_pool_goes_only_when_the_provider_says_that_nothing_is_left() {
    let mut seen = world(1);
    seen.pool.deleting_since = Some(at(NOW - 1));
    seen.machines = vec![busy(0)];
    assert_eq!(
        deleted(&decide(&seen)),
        [("m-0".to_owned(), Why::PoolDeleted, false)]
    );
    seen.machines.clear();
    seen.leftovers = Leftovers::Unknown("the API is away".into());
    let waiting = decide(&seen);
    assert!(waiting.actions.is_empty() && condition(&waiting, READY).unwrap().2.contains("the API is away"));
    let machine = MachineRef {
        id: Some("i".into()),
        mark: Mark {
            cluster: "cluster".into(),
            namespace: "team".into(),
            pool: "train".into(),
            pool_uid: "0a1b2c3d-0000".into(),
            machine: "m".into(),
            machine_uid: "u".into(),
            slot: 0,
            attempt: 1,
        },
        region: String::new(),
    };
    seen.leftovers = Leftovers::Known(vec![("local".to_owned(), machine)]);
    assert!(matches!(
        decide(&seen).actions.as_slice(),
        [Action::DeleteLeftover(_, _)]
    ));
    for gone in [
        Leftovers::Known(vec![]),
        Leftovers::NoProvider,
        Leftovers::NotAsked,
    ] {
        seen.leftovers = gone;
        assert_eq!(
            decide(&seen).actions,
            [Action::ReleaseKey, Action::RemoveFinalizer]
        );
    }
}

#[test]
fn of_two_machines_in_one_slot_the_idle_one_goes() {
    let mut seen = world(1);
    let second = MachineFacts {
        name: "late".into(),
        uid: Some("late".into()),
        attempt: 9,
        ..booting(0)
    };
    seen.machines = vec![busy(0), second];
    assert_eq!(
        deleted(&decide(&seen)),
        [("late".to_owned(), Why::Duplicate, true)]
    );
}

fn any_machine(slot: u32) -> impl Strategy<Value = MachineFacts> {
    (
        0..5_u8,
        any::<bool>(),
        prop::option::of(0..3_u32),
        any::<bool>(),
        0..200_i64,
    )
        .prop_map(move |(kind, deleting, runs, current, ago)| {
            let machine = match kind {
                0 => booting(slot),
                1 => failed(slot, NOW - ago),
                2 => MachineFacts {
                    uid: None,
                    ..booting(slot)
                },
                _ => ready(slot),
            };
            let deleting = deleting && machine.uid.is_some();
            MachineFacts {
                deleting,
                current,
                runs,
                ..machine
            }
        })
}

fn any_world() -> impl Strategy<Value = Observed> {
    let machines = prop::collection::vec(prop::bool::weighted(0.7), 6).prop_flat_map(|present| {
        let machines: Vec<_> = present
            .iter()
            .enumerate()
            .filter(|(_, p)| **p)
            .map(|(slot, _)| any_machine(slot as u32))
            .collect();
        machines
    });
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (
        machines,
        0..7_u32,
        0..7_u32,
        flags,
        0..4_u8,
        0..3_u8,
        0..12_u32,
        prop::option::of(0..8_u32),
    )
        .prop_map(
            |(
                machines,
                desired,
                min,
                (suspend, deleting, missing, no_offer),
                account,
                namespace,
                failures,
                limit,
            )| {
                let mut seen = world(desired);
                of_local(&mut seen).used = Used {
                    total: machines.len() as u32,
                    in_namespace: machines.len() as u32,
                    ..Used::default()
                };
                seen.machines = machines;
                seen.pool.spec.nodes.min = Some(min.min(desired));
                seen.pool.spec.suspend = Some(suspend);
                seen.pool.deleting_since = deleting.then(|| at(NOW - 5));
                if deleting && seen.machines.is_empty() {
                    seen.leftovers = Leftovers::Unknown("away".into());
                }
                seen.missing_references = if missing { Err("away".into()) } else { Ok(vec![]) };
                if no_offer {
                    seen.offers.clear();
                }
                of_local(&mut seen).account = match account {
                    0 => AccountFacts::NotFound(vec![]),
                    1 => AccountFacts::NotReady("away".into()),
                    _ => AccountFacts::Ready,
                };
                seen.namespace = match namespace {
                    0 => NamespaceFacts::Terminating,
                    _ => NamespaceFacts::Active,
                };
                seen.pool.status.failed_attempts = failures;
                seen.pool.status.last_failure_at = (failures > 0).then(|| Time(at(NOW - 30)));
                of_local(&mut seen).limits = Limits {
                    total: limit,
                    ..Limits::default()
                };
                seen
            },
        )
}

proptest! {
    #[test]
    fn every_plan_keeps_the_rules(seen in any_world()) {
        let plan = plan(&seen, at(NOW));
        prop_assert_eq!(audit(&seen, &plan), Vec::<String>::new());
    }

    #[test]
    fn the_same_world_gives_the_same_plan(seen in any_world()) {
        prop_assert_eq!(plan(&seen, at(NOW)), plan(&seen, at(NOW)));
    }

    #[test]
    fn a_status_once_written_is_not_written_again(seen in any_world()) {
        let mut seen = seen;
        let mut first = plan(&seen, at(NOW));
        prop_assume!(first.actions.is_empty());
        seen.pool.status = first.status.clone();
        let second = plan(&seen, at(NOW));
        first.events.clear();
        prop_assert_eq!(second.status, first.status);
        prop_assert!(second.events.is_empty(), "{:?}", second.events);
    }
}
