//! Which machines are ordered, and which not.

use super::*;

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
    let plan = Plan {
        status: second.status,
        ..Plan::default()
    };
    let (status, why, _) = condition(&plan, RECONCILING).unwrap();
    assert_eq!(
        (status.as_str(), why.as_str()),
        ("False", reason::ALL_MACHINES_READY),
        "what waits for it gets an answer, as at a Pool that is Stalled"
    );
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
fn a_record_that_no_watch_has_shown_is_looked_for_after_a_while() {
    let mut seen = world(1);
    seen.machines = vec![MachineFacts {
        uid: None,
        ..booting(0)
    }];
    assert_eq!(decide(&seen).next, Next::After(crate::pool::facts::DOUBTFUL));
    seen.pool.deleting_since = Some(at(NOW));
    assert_eq!(decide(&seen).next, Next::After(crate::pool::facts::DOUBTFUL));
}
