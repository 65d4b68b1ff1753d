//! The answers of Google Cloud.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};
use skyward_core::ErrorKind;
use skyward_providers::gcp::{
    config::Settings,
    errors::{failure, is_busy, of_operation, provider_error},
    kind::Kind,
    map,
    offers::{self, Catalogue, Sold},
    wire::{Instance, Operation, Place, Scope},
};

use super::{Heard, WORDS, bodies, failed, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("gcp", "instances.json"),
        fixture!("gcp", "catalogue.json"),
        json!({ "project": { "name": "acme", "quotas": [{ "metric": "GPUS_ALL_REGIONS", "limit": 1.0, "usage": 0.0 }] },
            "regions": [{ "name": "us-central1", "quotas": [{ "metric": "NVIDIA_L4_GPUS", "limit": 1.0 }] }] }),
        json!({ "operation": { "name": "o", "status": "DONE", "targetId": "7", "httpErrorStatusCode": 503,
            "error": { "errors": [{ "code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no" }] } } }),
    ];
    known.extend(bodies(fixture!("gcp", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Google Cloud", &KNOWN);
    heard.judged(provider_error, &["/name", "/targetId"]);
    let refused = provider_error(&heard.answer);
    assert!(!is_busy(&refused) || refused.kind == ErrorKind::Transient);
    let zones: BTreeMap<String, Scope<Instance>> = heard.at("/list/items").unwrap_or_default();
    for listed in map::listed(zones.into_iter().collect()).unwrap_or_default() {
        for is_ended in [false, true] {
            machine(&listed, map::machine(&listed, is_ended).as_ref());
        }
        let _ = (listed.zone(), listed.market(), Kind::of(&listed).to_string());
    }
    if let Some(operation) = heard.at::<Operation>("/operation")
        && let Some(error) = of_operation(&operation, "create the instance")
    {
        failed(&error);
        assert!(failure(error).message.len() <= WORDS);
    }
    let (project, regions) = (heard.at::<Place>("/project"), heard.each("/regions"));
    if let Some(project) = project {
        let facts = map::facts(&project, &regions, &Settings::default());
        assert!(facts.iter().all(|fact| !fact.value.is_empty()));
    }
    let sold = Sold {
        machines: heard.each("/machineTypes"),
        accelerators: heard.each("/acceleratorTypes"),
    };
    let catalogue = Catalogue::from([("us-central1-a".to_owned(), sold)]);
    let all = offers::offers(&catalogue, &Settings::default());
    for offer in &all {
        let kind = Kind::parse(&offer.instance_type).expect("an instance type of ours is one");
        assert_eq!(kind.to_string(), offer.instance_type);
    }
    offered(&all);
}
