//! Machines that are withdrawn, dearer than recorded, or whose records cannot be read; and
//! budgets that are counted from the record.

use skyward_api::Machine;
use skyward_core::Usd;

use super::*;
use crate::{
    accounts::unavailable::REFUSED,
    pool::{facts::Unread, plan::cost::of_budget},
};

fn failed_of(slot: u32, when: i64, why: &str) -> MachineFacts {
    let mut machine = failed(slot, when);
    let failure = machine.failure.as_mut().unwrap();
    failure.reason = why.into();
    machine
}

#[test]
fn a_machine_that_was_withdrawn_is_given_up_and_is_no_failed_try() {
    let mut seen = world(1);
    seen.machines = vec![failed_of(0, NOW, reason::ORDER_WITHDRAWN)];
    let plan = decide(&seen);
    assert_eq!(deleted(&plan), [("m-0".to_owned(), Why::Withdrawn, false)]);
    assert_eq!(
        (plan.status.failed_attempts, plan.status.last_failure_at.clone()),
        (0, None)
    );
    assert_eq!(
        created(&plan),
        [0],
        "what may be ordered now is ordered at once, under the terms of now"
    );
    // Where no order is admitted, the Pool's own condition says why, and it waits.
    of_local(&mut seen).admits = Err("team=research".into());
    let stalled = decide(&seen);
    assert_eq!(created(&stalled), Vec::<u32>::new());
    assert_eq!(
        condition(&stalled, STALLED).unwrap().1,
        reason::NAMESPACE_NOT_ALLOWED
    );
    assert_eq!(stalled.status.failed_attempts, 0);
}

#[test]
fn an_offer_whose_machine_was_dearer_is_left_alone_for_an_hour_and_that_was_a_failed_try() {
    let mut seen = world(1);
    let mut dear = failed_of(0, NOW, reason::PRICE_TOO_HIGH);
    let mut known = UnavailableOfferings::default();
    let barred = Unavailable::Dear {
        provider: "local".into(),
        offer: "local-x".into(),
        spot: false,
    };
    known.remember(barred, "dear".into(), at(NOW), REFUSED);
    seen.unavailable = Arc::new(known);
    for ready_at in [None, Some(at(1_000))] {
        dear.ready_at = ready_at;
        seen.machines = vec![dear.clone()];
        let plan = decide(&seen);
        assert_eq!(
            plan.status.failed_attempts, 1,
            "also when the price came late: {ready_at:?}"
        );
        assert_eq!(created(&plan), Vec::<u32>::new());
        let mut later = seen.clone();
        later.pool.status = plan.status;
        later.machines.clear();
        let waits = decide_at(&later, NOW + 3_599);
        assert_eq!(created(&waits), Vec::<u32>::new(), "not even as the last resort");
        let (_, why, message) = condition(&waits, STALLED).unwrap();
        assert_eq!(why, reason::NO_AVAILABLE_PROVIDER);
        assert!(
            message.contains("1 were dearer than their price says"),
            "{message}"
        );
        assert_eq!(created(&decide_at(&later, NOW + 3_600)), [0]);
    }
    // Another offer is tried after the Pool's own wait.
    let index = OfferIndex::of([
        offer("local-x", serde_json::json!({})),
        offer("other", serde_json::json!({})),
    ]);
    seen.offers = BTreeMap::from([("local".to_owned(), Arc::new(index))]);
    seen.pool.status = decide(&seen).status;
    seen.machines.clear();
    let plan = decide_at(&seen, NOW + 11);
    let ordered = plan.actions.iter().find_map(|action| match action {
        Action::CreateMachine { spec, .. } => Some(spec.offer.as_str()),
        _ => None,
    });
    assert_eq!(ordered, Some("other"));
}

fn unread(name: &str, slot: Option<u32>) -> Unread {
    Unread {
        name: name.into(),
        pool_uid: "0a1b2c3d-0000".into(),
        slot,
        error: "unknown variant `Auction`".into(),
    }
}

#[test]
fn a_machine_whose_record_cannot_be_read_holds_its_slot_and_the_pool_says_so() {
    for (slot, expected) in [(Some(0), 1), (None, 0)] {
        let mut seen = world(2);
        seen.unread = vec![unread("train-0a1b2-0-7", slot)];
        let plan = decide(&seen);
        assert_eq!(created(&plan), [expected], "one machine is ordered, not two");
        let (_, why, message) = condition(&plan, STALLED).unwrap();
        assert_eq!(why, reason::MACHINE_UNREADABLE);
        for words in ["\"train-0a1b2-0-7\"", "`Auction`", "Upgrade the operator"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(matches!(plan.next, Next::After(_)), "nothing else would tell");
    }
    // Once it is gone or mended, the slot is filled.
    assert_eq!(created(&decide(&world(1))), [0]);
    let mut seen = world(1);
    seen.unread = vec![unread("train-0a1b2-0-7", Some(0))];
    assert_eq!(created(&decide(&seen)), Vec::<u32>::new());
}

#[test]
fn a_budget_is_counted_from_the_record_as_the_pools_own_plan_counts_it() {
    let pool = |period: Option<&str>, cost: serde_json::Value| -> skyward_api::Pool {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "train", "namespace": "team", "uid": "u", "creationTimestamp": at(0) },
            "spec": { "provider": "local", "budget": { "maxTotalCost": "10", "period": period } },
            "status": { "cost": cost },
        }))
        .unwrap()
    };
    let machine = |uid: &str, since: i64, gone: Option<i64>| -> Arc<Machine> {
        Arc::new(
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": uid, "namespace": "team", "uid": uid },
                "spec": { "pool": "train", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "local", "offer": "o",
                    "instanceType": "x", "market": "OnDemand", "hourlyPrice": "2", "token": "t", "templateHash": "h" },
                "status": { "acceptedAt": at(since), "goneAt": gone.map(at) },
            }))
            .unwrap(),
        )
    };
    let usd = |text: &str| text.parse::<Usd>().unwrap();
    let spent = |pool: &skyward_api::Pool, machines: &[Arc<Machine>], now: i64| {
        of_budget(pool, machines, at(now)).map(|(_, spent)| spent)
    };
    let machines = [
        machine("settled", 0, Some(3_600)),
        machine("gone", 0, Some(3_600)),
        machine("runs", 3_600, None),
    ];
    let cost = serde_json::json!({ "onDemand": "2", "settled": "2", "counted": ["settled"] });
    assert_eq!(
        of_budget(&pool(None, cost.clone()), &machines, at(7_200)),
        Some((usd("10"), usd("6"))),
        "what is settled counts once, what is gone and not settled too"
    );
    // Spending before the period does not count in it, whether it is recorded or not.
    let begun = serde_json::json!({
        "onDemand": "2", "settled": "2", "counted": ["settled"], "periodStart": at(3_600), "spentBeforePeriod": "4",
    });
    assert_eq!(spent(&pool(Some("1h"), begun), &machines, 5_400), Some(usd("1")));
    assert_eq!(spent(&pool(Some("1h"), cost), &machines, 5_400), Some(usd("1")));
    let none: skyward_api::Pool = serde_json::from_value(
        serde_json::json!({ "metadata": { "name": "p" }, "spec": { "provider": "a" } }),
    )
    .unwrap();
    assert_eq!(of_budget(&none, &machines, at(0)), None);
}
