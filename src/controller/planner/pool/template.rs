//! What a Pool asks of each of its machines: names, digest, and the record to create.

use skyward_api::{
    Duration,
    machine::{MachineSpec, Market},
    offer::OfferedAccelerator,
    shared::{Count, Size},
};
use skyward_core::Usd;

use super::{choice::Choice, facts::PoolFacts};
use crate::accounts::facts::ProviderFacts;

/// How many times its Offer's price a machine of a marketplace may cost where the Pool has no
/// `maxHourlyCost`.
const MARKETPLACE: u32 = 2;

/// The record of a machine that will be ordered. Price and ceiling are frozen here: acting on the
/// record needs no choice.
///
/// `spare` is what the machine may cost per hour beyond its price before it passes a limit of its
/// Provider; `None` without such a limit. `nonce` is random: a cluster that was restored counts
/// attempts anew, and clouds still know the tokens of its earlier attempts.
pub fn machine_spec(
    pool: &PoolFacts,
    provider: &ProviderFacts,
    slot: u32,
    attempt: u32,
    choice: &Choice<'_>,
    spare: Option<Usd>,
    nonce: u64,
) -> MachineSpec {
    let (candidate, offer) = (choice.candidate, choice.offer);
    MachineSpec {
        pool: pool.name.clone(),
        pool_uid: pool.uid.clone(),
        slot,
        attempt,
        provider: candidate.provider.clone(),
        account: provider.account_id.clone(),
        offer: offer.name().to_owned(),
        offer_id: offer.spec().id.clone(),
        instance_type: offer.spec().instance_type.clone(),
        offer_accelerator: offer.accelerator.clone(),
        region: offer.spec().region.clone(),
        market: choice.market,
        hourly_price: choice.price.exact(),
        max_hourly_cost: Some(max_hourly_cost(provider, choice, spare).exact()),
        on_demand_price: offer.spec().on_demand_price.clone(),
        billing_step: Some(Duration::of_seconds(provider.billing_step_seconds.max(1))),
        billing_minimum: Some(Duration::of_seconds(provider.billing_minimum_seconds)),
        accelerator: candidate.accelerator.clone(),
        granted_accelerator: granted(provider, choice),
        cpu: candidate.cpu,
        memory: candidate.memory.map(Size::of),
        disk: candidate.disk.map(Size::of),
        architecture: Some(offer.spec().architecture),
        settings: candidate.settings.as_object().cloned(),
        installation: None,
        proves_host_key: provider.proves_host_keys,
        token: token(&pool.uid, slot, attempt, nonce),
        template_hash: candidate.template.clone(),
    }
}

/// The token of an order; 64 characters, which AWS takes, suffice for most.
fn token(pool_uid: &str, slot: u32, attempt: u32, nonce: u64) -> String {
    format!("{pool_uid}-{slot}-{attempt}-{nonce:016x}")
}

/// The accelerators that the machine will have. A rented machine has all accelerators of the
/// Offer, which may be more than was asked for; a Pod gets those of its node that it asks for.
fn granted(provider: &ProviderFacts, choice: &Choice<'_>) -> Option<OfferedAccelerator> {
    let offered = choice.offer.spec().accelerator.as_ref()?;
    let count = if provider.own_nodes {
        choice
            .candidate
            .accelerator
            .as_ref()?
            .count
            .unwrap_or(Count::of(1.0))
    } else {
        offered.count
    };
    Some(OfferedAccelerator {
        name: choice.offer.accelerator.clone(),
        count,
        ..offered.clone()
    })
}

/// The most that the user is willing to pay. A price on demand is fixed, but for marketplaces: the
/// cheapest machine can be rented once, and the next one or a larger disk costs more. A spot price
/// moves, and is worth it up to the price on demand. The limits of the Provider bound all of them.
fn max_hourly_cost(provider: &ProviderFacts, choice: &Choice<'_>, spare: Option<Usd>) -> Usd {
    let most = choice.candidate.max_hourly_cost;
    let willing = match choice.market {
        Market::OnDemand if provider.marketplace => most.or(Some(choice.price * MARKETPLACE)),
        Market::OnDemand => None,
        Market::Spot => most.or(choice.offer.on_demand),
    };
    let left = spare.map(|spare| choice.price + spare);
    let most = willing.map(|most| left.map_or(most, |left| most.min(left)));
    most.map_or(choice.price, |most| most.max(choice.price))
}

#[cfg(test)]
mod tests {
    use crate::records::machine_name;
    use kube_core::CustomResourceExt;
    use skyward_api::{Pool, pool::PoolSpec};

    use super::*;
    use crate::pool::choice::candidate::template_hashes;

    const UID: &str = "0a1b-2c3d4e5f-ffff";

    #[test]
    fn a_machine_name_is_a_label_whatever_the_pool_is_called() {
        assert_eq!(machine_name("train", UID, 3, 17), "train-0a1b2-3-17");
        let long = machine_name(&"n.".repeat(126), UID, 499, u32::MAX);
        assert!(long.len() <= 63 && !long.contains('.'), "{long}");
        assert_eq!(
            machine_name(&format!("{}.x", "n".repeat(39)), UID, 0, 1),
            format!("{}-0a1b2-0-1", "n".repeat(39))
        );
    }

    #[test]
    fn an_attempt_that_is_counted_again_has_another_token() {
        let uid = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";
        let (before, restored) = (token(uid, 3, 17, 1), token(uid, 3, 17, u64::MAX));
        assert_ne!(before, restored);
        assert!(restored.len() <= 64, "{restored}");
        assert!(
            token(uid, 499, u32::MAX, u64::MAX).len() <= 128,
            "what a record takes"
        );
    }

    /// A value for every field, none of them the default.
    fn values() -> serde_json::Value {
        serde_json::json!({
            "provider": "b",
            "candidates": [{ "provider": "b" }],
            "selection": "First",
            "allocation": "Spot",
            "spotPercent": 40,
            "instanceType": "gpu-8",
            "region": "eu",
            "maxHourlyCost": "2.5",
            "topology": "Independent",
            "budget": { "maxTotalCost": "100" },
            "nodes": { "desired": 7 },
            "accelerator": { "name": "H100" },
            "cpu": 3,
            "memory": "5Gi",
            "disk": "11Gi",
            "architecture": "arm64",
            "image": { "python": "3.12" },
            "worker": {
                "concurrency": 9, "devices": "Share", "executor": "Thread", "preload": ["torch"],
                "reuseProcesses": false, "buffer": 2, "user": "root",
            },
            "shmSize": "2Gi",
            "logs": { "limit": "1Mi" },
            "timeouts": { "provision": "7m" },
            "maxProvisionAttempts": 4,
            "provisionRetryDelay": "3s",
            "sshRetryInterval": "3s",
            "retries": { "onInterruption": 8 },
            "orphanTimeout": "2h",
            "autoscale": { "scaleDownAfter": "5m" },
            "idleTimeout": "20m",
            "maxLifetime": "24h",
            "suspend": true,
        })
    }

    fn spec_with(path: &[&str], value: &serde_json::Value) -> PoolSpec {
        let mut json = serde_json::json!({ "provider": "a" });
        let mut at = &mut json;
        for part in path {
            at = &mut at[*part];
        }
        *at = value.clone();
        serde_json::from_value(json).unwrap()
    }

    /// The reference pages are made of these descriptions.
    #[test]
    fn the_reference_says_which_fields_replace_machines_and_it_is_true() {
        let crd = serde_json::to_value(Pool::crd()).unwrap();
        let spec =
            &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        let (values, base) = (
            values(),
            template_hashes(&spec_with(&["nodes"], &serde_json::json!({}))),
        );
        let check = |path: &[&str], schema: &serde_json::Value, value: &serde_json::Value| {
            let words: Vec<&str> = schema["description"]
                .as_str()
                .unwrap_or_default()
                .split_whitespace()
                .collect();
            let text = words.join(" ");
            let says = text.contains("A change replaces machines when idle");
            let replaces = template_hashes(&spec_with(path, value)) != base;
            assert_eq!(says, replaces, "{path:?}: {text}");
            let at_once = text.contains("at any time") || text.contains("at once");
            assert!(
                replaces || at_once,
                "{path:?} does not say when a change takes effect: {text}"
            );
        };
        for (field, schema) in spec.as_object().unwrap() {
            match field.as_str() {
                // The fields of `worker` differ; its own description covers `concurrency`.
                "worker" => {
                    let inner = &schema["properties"];
                    assert!(
                        schema["description"]
                            .as_str()
                            .unwrap()
                            .contains("`concurrency` takes effect at once")
                    );
                    for name in [
                        "user",
                        "devices",
                        "executor",
                        "preload",
                        "reuseProcesses",
                        "buffer",
                    ] {
                        check(&["worker", name], &inner[name], &values["worker"][name]);
                    }
                    let many = spec_with(&["worker", "concurrency"], &values["worker"]["concurrency"]);
                    assert_eq!(template_hashes(&many), base);
                    assert_eq!(
                        inner.as_object().unwrap().len(),
                        7,
                        "a new field of worker: say what it does"
                    );
                }
                "image" => {
                    let text = schema["description"].as_str().unwrap();
                    assert!(text.contains("applied in place"), "{text}");
                    assert_eq!(template_hashes(&spec_with(&["image"], &values["image"])), base);
                }
                other => {
                    assert!(
                        !values[other].is_null(),
                        "a new field {other}: give it a value in this test"
                    );
                    check(&[other], schema, &values[other]);
                }
            }
        }
    }

    #[test]
    fn no_part_of_the_image_alone_replaces_machines() {
        let base = template_hashes(&spec_with(&["image"], &serde_json::json!({})));
        let parts = serde_json::json!({
            "python": "3.11",
            "pip": ["numpy"],
            "pipIndexes": [{ "url": "https://x", "packages": ["a"] }],
            "apt": ["git"],
            "env": [{ "name": "A", "value": "b" }],
            "envFrom": [{ "secretRef": { "name": "s" } }],
            "shellVars": { "A": "echo" },
            "caBundleRef": { "name": "ca" },
        });
        for (part, value) in parts.as_object().unwrap() {
            assert_eq!(
                template_hashes(&spec_with(&["image", part], value)),
                base,
                "{part}"
            );
        }
    }

    #[test]
    fn the_digest_is_about_machines_and_nothing_else() {
        let hashes = |json: serde_json::Value| -> Vec<String> {
            template_hashes(&serde_json::from_value(json).unwrap())
        };
        let base = hashes(serde_json::json!({ "provider": "a" }));
        let more = serde_json::json!({
            "provider": "a", "nodes": { "desired": 4 }, "worker": { "concurrency": 8 },
            "maxHourlyCost": "3", "allocation": "Spot", "selection": "First",
        });
        assert_eq!(hashes(more), base);
        assert_ne!(hashes(serde_json::json!({ "provider": "a", "cpu": 2 })), base);
    }

    #[test]
    fn a_candidate_more_leaves_machines_of_the_others_as_they_are() {
        let hashes = |json: serde_json::Value| -> Vec<String> {
            template_hashes(&serde_json::from_value(json).unwrap())
        };
        let before = hashes(serde_json::json!({ "candidates": [{ "provider": "a" }] }));
        let after = hashes(serde_json::json!({ "candidates": [{ "provider": "b" }, { "provider": "a" }] }));
        assert!(after.contains(&before[0]));
        assert_eq!(hashes(serde_json::json!({ "provider": "a" })), before);
    }
}
