//! What holds for every world.

use proptest::prelude::*;

use super::*;

pub(super) fn any_machine(slot: u32) -> impl Strategy<Value = MachineFacts> {
    (
        0..6_u8,
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
                3 => MachineFacts {
                    refused: true,
                    perhaps_ordered: ago % 2 == 0,
                    concern: Some((reason::ORDER_REFUSED.into(), "no".into())),
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
                    seen.leftovers = RemainingMachines::Unknown("away".into());
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
                    1 => NamespaceFacts::NotServed,
                    _ => NamespaceFacts::Active,
                };
                seen.pool.status.failed_attempts = failures;
                seen.pool.status.last_failure_at = (failures > 0).then(|| Time(at(NOW - 30)));
                of_local(&mut seen).limits = Quota {
                    total: limit,
                    ..Quota::default()
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
