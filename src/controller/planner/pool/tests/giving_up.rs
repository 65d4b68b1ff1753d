//! Machines that go: because fewer, others or none are wanted.

use super::*;
use crate::pool::facts::{ordered_from, providers_of};

#[test]
fn a_pool_that_goes_is_held_only_by_those_that_it_ordered_from() {
    let mut seen = world(1);
    let candidates = serde_json::json!({ "candidates": [{ "provider": "never" }, { "provider": "used" }] });
    seen.pool.spec = serde_json::from_value(candidates).unwrap();
    let place = |provider: &str| Place {
        provider: provider.into(),
        region: "eu".into(),
    };
    // The spec no longer names one of the Providers.
    seen.pool.status.places = vec![place("earlier"), place("used")];
    let asked = providers_of(&seen.pool);
    assert_eq!(
        asked.iter().map(String::as_str).collect::<Vec<_>>(),
        ["earlier", "never", "used"]
    );
    let holds = |name: &&String| ordered_from(&seen.pool, name);
    assert_eq!(
        asked.iter().filter(holds).collect::<Vec<_>>(),
        ["earlier", "used"]
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
fn a_deleted_pool_goes_only_when_the_provider_says_that_nothing_is_left() {
    let mut seen = world(1);
    seen.pool.deleting_since = Some(at(NOW - 1));
    seen.machines = vec![busy(0)];
    assert_eq!(
        deleted(&decide(&seen)),
        [("m-0".to_owned(), Why::PoolDeleted, false)]
    );
    seen.machines.clear();
    seen.leftovers = RemainingMachines::Unknown("the API is away".into());
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
        started: false,
    };
    seen.leftovers = RemainingMachines::Known(vec![("local".to_owned(), machine)]);
    assert!(matches!(
        decide(&seen).actions.as_slice(),
        [Action::DeleteUnrecorded(_, _)]
    ));
    for gone in [
        RemainingMachines::Known(vec![]),
        RemainingMachines::NoProvider,
        RemainingMachines::NotAsked,
    ] {
        seen.leftovers = gone;
        assert_eq!(
            decide(&seen).actions,
            [Action::DeleteLogs, Action::ReleaseKey, Action::RemoveFinalizer]
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

/// Its order may be on its way, or be known to a former leader alone.
#[rstest]
#[case::never_ordered(false, 1)]
#[case::perhaps_ordered(true, 0)]
fn the_slot_of_a_machine_that_is_given_up_is_free_when_it_was_certainly_not_ordered(
    #[case] perhaps_ordered: bool,
    #[case] orders: usize,
) {
    let mut seen = world(1);
    seen.machines = vec![MachineFacts {
        refused: true,
        deleting: true,
        perhaps_ordered,
        ..booting(0)
    }];
    assert_eq!(created(&decide(&seen)).len(), orders);
}
