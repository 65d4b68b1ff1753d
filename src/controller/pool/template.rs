//! What a Pool asks of each of its machines: names, digest, and the record to create.

use skyward_api::{
    machine::{MachineSpec, Market},
    offer::OfferSpec,
    pool::PoolSpec,
};

use super::observe::PoolFacts;
use crate::keys::short_digest;

/// Digest of what a Pool asks of its machines. A machine with another digest is replaced
/// when it is idle. Numbers of machines, waits and limits are not part of it.
pub fn template_hash(spec: &PoolSpec) -> String {
    let template = serde_json::json!({
        "accelerator": spec.accelerator,
        "vcpus": spec.vcpus,
        "memoryGB": spec.memory_gb,
        "diskGB": spec.disk_gb,
        "architecture": spec.architecture,
        "image": spec.image,
        "shmSize": spec.shm_size,
        "user": spec.worker.as_ref().and_then(|worker| worker.user.as_ref()),
    });
    short_digest(template.to_string().as_bytes())
}

/// Name of a Machine: unique for ever, since the UID of its Pool and an attempt that is
/// never used twice are part of it; a DNS label, since a Pod may have the same name.
pub fn machine_name(pool: &str, pool_uid: &str, slot: u32, attempt: u32) -> String {
    let stem: String = pool
        .chars()
        .take(40)
        .map(|c| if c == '.' { '-' } else { c })
        .collect();
    let uid: String = pool_uid.chars().filter(|c| *c != '-').take(5).collect();
    format!("{}-{uid}-{slot}-{attempt}", stem.trim_end_matches('-'))
}

/// The record of a machine that will be ordered.
pub fn machine_spec(
    pool: &PoolFacts,
    slot: u32,
    attempt: u32,
    offer_name: &str,
    offer: &OfferSpec,
) -> MachineSpec {
    MachineSpec {
        pool: pool.name.clone(),
        pool_uid: pool.uid.clone(),
        slot,
        attempt,
        provider: pool.spec.provider.clone(),
        offer: offer_name.to_owned(),
        instance_type: offer.instance_type.clone(),
        region: offer.region.clone(),
        market: Market::OnDemand,
        hourly_price: offer.on_demand_price.clone().unwrap_or_else(|| "0".to_owned()),
        token: format!("{}-{slot}-{attempt}", pool.uid),
        template_hash: template_hash(&pool.spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_digest_is_about_machines_and_nothing_else() {
        let pool = |json: serde_json::Value| -> PoolSpec { serde_json::from_value(json).unwrap() };
        let base = template_hash(&pool(serde_json::json!({ "provider": "a" })));
        let more = pool(
            serde_json::json!({ "provider": "a", "nodes": { "desired": 4 }, "worker": { "concurrency": 8 } }),
        );
        assert_eq!(template_hash(&more), base);
        let other = pool(serde_json::json!({ "provider": "a", "vcpus": 2 }));
        assert_ne!(template_hash(&other), base);
    }
}
