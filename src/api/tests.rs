//! Records that were written before the names of the resources were settled, as the API server
//! shows them afterwards: without the fields that are gone. The controller reads such records, or
//! an upgrade would lose machines that cost money, and runs. And records of a newer version, which a
//! rollback leaves.

use serde_json::json;

use crate::{
    Machine, Offer, Pool, PoolPhase, Task,
    offer::Architecture,
    pool::{Allocation, ScalingReason, Selection},
    task::{Placement, SlotAttempt},
};

#[test]
fn the_record_of_a_machine_is_read() {
    let machine: Machine = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "p-b723a-0-1", "namespace": "n" },
        "spec": {
            "account": "a", "architecture": "x86_64", "attempt": 1, "hourlyPrice": "2", "instanceType": "amd64/2cpu/25GB",
            "accelerator": { "name": "L4", "count": 0.5 },
            "grantedAccelerator": { "name": "L4", "count": 0.5 },
            "market": "OnDemand", "offer": "local-amd64-2cpu-25gb", "offerId": "amd64-2cpu-25gb", "pool": "p", "poolUid": "u",
            "provider": "local", "slot": 0, "templateHash": "fd7f9f5a26087a3f", "token": "u-0-1",
        },
        "status": { "phase": "Ready", "id": "i" },
    }))
    .unwrap();
    assert_eq!(machine.spec.architecture, Some(Architecture::Amd64));
    assert_eq!(
        machine
            .spec
            .granted_accelerator
            .map(|granted| granted.count.number()),
        Some(0.5)
    );
}

#[test]
fn an_offer_is_read_so_that_it_can_be_deleted() {
    let offer: Offer = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Offer", "metadata": { "name": "local-amd64-2cpu-25gb" },
        "spec": {
            "architecture": "x86_64", "availability": "Yes", "connected": true, "id": "amd64-2cpu-25gb",
            "instanceType": "amd64/2cpu/25GB", "lowestPrice": "0", "onDemandPrice": "0", "provider": "local",
        },
    }))
    .unwrap();
    assert_eq!(offer.spec.architecture, Architecture::Amd64);
}

#[test]
fn a_pool_and_a_task_that_runs_are_read() {
    let pool: Pool = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": { "name": "p" },
        "spec": {
            "provider": "x", "selection": "first", "allocation": "spot-if-available", "architecture": "x86_64",
            "accelerator": { "name": "L4", "count": 2 }, "candidates": [{ "allocation": "on-demand" }],
        },
    }))
    .unwrap();
    assert_eq!(pool.spec.selection, Some(Selection::First));
    assert_eq!(pool.spec.allocation, Some(Allocation::SpotIfAvailable));
    assert_eq!(pool.spec.candidates[0].allocation, Some(Allocation::OnDemand));

    let task: Task = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
        "spec": { "pool": "p", "command": ["true"], "placement": "all" },
        "status": { "phase": "Running", "attempt": 1, "mode": "command/all", "placed": ["0.1", "12.34"] },
    }))
    .unwrap();
    assert_eq!(task.spec.parsed_placement(), Some(Placement::All(1)));
    let placed = task.status.unwrap().placed;
    assert_eq!(
        placed,
        [
            SlotAttempt { slot: 0, attempt: 1 },
            SlotAttempt {
                slot: 12,
                attempt: 34
            }
        ]
    );
    assert_eq!(
        serde_json::to_value(placed[1]).unwrap(),
        json!({ "slot": 12, "attempt": 34 }),
        "in the settled form"
    );
    for wrong in [json!("0"), json!("a.b"), json!({ "slot": 1 }), json!(7)] {
        assert!(
            serde_json::from_value::<SlotAttempt>(wrong.clone()).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn a_pool_is_read_whose_phase_and_reason_only_a_newer_version_knows() {
    let status = |phase: &str, reason: &str| {
        let pool: Pool = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": { "name": "p" },
            "spec": { "provider": "x" },
            "status": { "phase": phase, "machines": 2, "scaling": { "reason": reason, "startSeconds": 40 } },
        }))
        .unwrap();
        let status = pool.status.unwrap();
        let scaling = status.scaling.unwrap();
        assert_eq!((status.machines, scaling.start_seconds), (2, Some(40)));
        (status.phase, scaling.reason)
    };
    assert_eq!(status("Dreaming", "ItIsNight"), (None, None));
    assert_eq!(
        status("Sleeping", "Woken"),
        (Some(PoolPhase::Sleeping), Some(ScalingReason::Woken))
    );
}
