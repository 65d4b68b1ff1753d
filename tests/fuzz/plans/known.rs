//! Worlds from which the fuzzer begins.

use serde_json::{Value, json};
use skyward_api::labels;

/// A world at work, one that is deleted, and one with nothing in it yet.
pub(super) fn known() -> Vec<Value> {
    let pool = json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
        "metadata": {
            "name": "train", "namespace": "team", "uid": "p", "generation": 2, "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [labels::FINALIZER]
        },
        "spec": {
            "candidates": [
                { "provider": "acme", "accelerator": { "name": "H100", "count": 1, "memory": "80Gi" }, "cpu": 2, "memory": "4Gi",
                  "disk": "50G", "region": "eu", "allocation": "SpotIfAvailable", "maxHourlyCost": "4" },
                { "provider": "acme", "instanceType": "cpu" }
            ],
            "selection": "Cheapest", "spotPercent": 50, "topology": "Connected",
            "budget": { "maxTotalCost": "100", "period": "24h" },
            "nodes": { "desired": 3, "min": 1 },
            "image": { "python": "3.12", "pip": ["numpy"], "apt": ["git"], "env": [{ "name": "A", "value": "b" }],
                       "envFrom": [{ "secretRef": { "name": "s" } }], "shellVars": { "GPU": "nvidia-smi -L" } },
            "worker": { "concurrency": 2, "user": "root" }, "shmSize": "1Gi", "logs": { "limit": "1Gi" },
            "timeouts": { "provision": "5m", "ssh": "5m", "bootstrap": "10m", "shutdown": "2m" },
            "maxProvisionAttempts": 5, "provisionRetryDelay": "10s", "sshRetryInterval": "5s",
            "retries": { "onInterruption": 3 }, "orphanTimeout": "24h", "suspend": false
        },
        "status": {
            "phase": "Provisioning", "provider": "acme", "machines": 1, "lastAttempt": 2, "failedAttempts": 1,
            "lastFailureAt": "2026-01-01T00:01:00Z", "observedGeneration": 1, "hourlyCost": "2",
            "places": [{ "provider": "acme", "region": "eu" }],
            "cost": { "spent": "1.5", "settled": "0.5", "spot": "0", "onDemand": "0.5", "savingsVsOnDemand": "0",
                      "since": "2026-01-01T00:00:00Z", "periodStart": "2026-01-01T00:00:00Z", "spentBeforePeriod": "0",
                      "counted": ["m0"] },
            "bootstrap": { "triedWith": "x", "afterAttempt": 1, "failures": [{
                "failure": { "step": "packages", "ended": "failed (exit code 1)", "line": "E: no", "pattern": "E: no", "cause": "Unreachable" },
                "machines": ["train-0-1"], "lastAt": "2026-01-01T00:01:00Z" }] },
            "conditions": [{ "type": "Ready", "status": "False", "reason": "Provisioning", "message": "0/3",
                             "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 }]
        }
    });
    let machine = json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine",
        "metadata": {
            "name": "train-0-2", "namespace": "team", "uid": "m1", "generation": 1, "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:02:00Z", "finalizers": [labels::FINALIZER]
        },
        "spec": {
            "pool": "train", "poolUid": "p", "slot": 0, "attempt": 2, "provider": "acme", "account": "acme",
            "offer": "acme-h100", "offerId": "h100", "instanceType": "h100", "offerAccelerator": "H100", "region": "eu",
            "market": "Spot", "hourlyPrice": "0.5", "maxHourlyCost": "4", "onDemandPrice": "2", "billingStep": "60s",
            "billingMinimum": "1h", "accelerator": { "name": "H100", "count": 1 },
            "grantedAccelerator": { "name": "H100", "count": 1, "memory": "80Gi" }, "cpu": 2, "memory": "4Gi", "disk": "50G",
            "architecture": "amd64", "provesHostKey": true, "token": "t", "templateHash": "h"
        },
        "status": {
            "phase": "Ready", "id": "i-1", "address": "192.0.2.1", "sshPort": 22, "sshUser": "root",
            "privateAddress": "10.0.0.1", "hostKey": "ssh-ed25519 AAAA", "acceptedAt": "2026-01-01T00:02:01Z",
            "hourlyPrice": "0.5", "billedSince": "2026-01-01T00:02:01Z", "runningAt": "2026-01-01T00:03:00Z",
            "bootstrapTimeout": "10m", "reachableAt": "2026-01-01T00:03:10Z", "readyAt": "2026-01-01T00:04:00Z",
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "",
                             "lastTransitionTime": "2026-01-01T00:04:00Z", "observedGeneration": 1 }]
        }
    });
    let provider = json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
        "metadata": { "name": "acme", "uid": "a", "generation": 1, "resourceVersion": "1", "finalizers": [labels::FINALIZER] },
        "spec": {
            "verda": { "region": "FIN-01" }, "overridable": ["image"], "allowedNamespaces": { "matchLabels": { "a": "b" } },
            "limits": { "machines": 10, "machinesPerNamespace": 5, "hourlyCost": "100", "hourlyCostPerNamespace": "50",
                        "monthlyCost": "1000", "monthlyCostPerNamespace": "500",
                        "namespaces": [{ "selector": { "matchLabels": { "a": "b" } }, "machines": 3, "hourlyCost": "20", "monthlyCost": "200" }] },
            "hostKeyPolicy": "TrustOnFirstUse", "refreshInterval": "5m", "requestTimeout": "30s", "instanceTimeout": "5m"
        },
        "status": {
            "type": "verda", "account": "acme", "offers": 2, "machines": 1, "refreshedAt": "2026-01-01T00:00:30Z",
            "cost": { "hourly": "0.5", "settled": "1", "spot": "0", "onDemand": "1", "savingsVsOnDemand": "0", "month": "2026-01",
                      "settledThisMonth": "1", "settledThisMonthByNamespace": { "#team": "1" }, "counted": ["m0"] },
            "barredOffers": [{ "offer": "acme-x", "market": "Spot", "until": "2026-01-01T01:00:00Z", "message": "dear" }],
            "afterRestore": { "decision": "Adopt", "digest": "d", "decidedAt": "2026-01-01T00:00:00Z", "epoch": 3,
                              "attempts": { "p": 2 }, "machines": ["m1"], "earlier": [] },
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "",
                             "lastTransitionTime": "2026-01-01T00:00:30Z", "observedGeneration": 1 }]
        }
    });
    let offer = json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Offer", "metadata": { "name": "acme-h100" },
        "spec": {
            "provider": "acme", "id": "h100", "instanceType": "h100", "region": "eu", "cpu": 16, "memory": "64Gi",
            "accelerator": { "name": "H100", "count": 1, "memory": "80Gi", "formFactor": "SXM" }, "disk": "100G",
            "architecture": "amd64", "onDemandPrice": "2", "spotPrice": "0.5", "lowestPrice": "0.5", "availability": "Yes", "connected": true
        }
    });
    let world = json!({
        "now": "2026-01-01T00:05:00Z", "pass": [0, 60, 3600],
        "pool": pool, "machines": [machine], "provider": provider, "offers": [offer],
        "labels": { "a": "b" },
        "sold": [
            { "id": "h100", "gpu": "H100", "count": 1.0, "gb": 80.0, "region": "eu", "vcpus": 16.0, "memory": 64.0, "onDemand": "2", "spot": "0.5" },
            { "id": "cpu", "region": "eu", "vcpus": 4.0, "memory": 16.0, "onDemand": "0.1" }
        ],
        "rented": { "phase": 1, "address": "192.0.2.1", "price": "0.5", "billedSince": "2026-01-01T00:02:01Z", "reclaimAt": null },
        "answers": [0, 0, 4, 0], "session": 3, "step": "packages", "output": "E: no such package",
        "load": { "queued": 1, "running": 1, "unstored": 0, "runs": { "train-0-2": 1 } }
    });
    let mut deleted = world.clone();
    for object in ["/pool", "/provider", "/machines/0"] {
        if let Some(object) = deleted.pointer_mut(object) {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:04:30Z");
        }
    }
    let mut new = world.clone();
    for object in ["/pool", "/provider"] {
        if let Some(object) = new.pointer_mut(object) {
            object["status"] = json!({});
            object["metadata"]["finalizers"] = json!([]);
        }
    }
    new["machines"] = json!([]);
    vec![world, deleted, new]
}
