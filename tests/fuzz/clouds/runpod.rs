//! The answers of RunPod.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;
use skyward_providers::runpod::{
    config::Settings,
    errors::{graph_error, provider_error},
    kind::{Cloud, Kind},
    map,
    offers::{self, Catalogue},
    wire::{Graph, Pod},
};

use super::{Heard, bodies, failed, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("runpod", "pods.json"),
        fixture!("runpod", "catalogue.json"),
    ];
    known.extend(bodies(fixture!("runpod", "graphql.json")));
    known.extend(bodies(fixture!("runpod", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "RunPod", &KNOWN);
    heard.judged(provider_error, &["/id"]);
    if let Some(graph) = heard.at::<Graph>("") {
        failed(&graph_error(&heard.answer, &graph.errors));
    }
    for pod in heard.each::<Pod>("/pods") {
        machine(&pod, map::machine(&pod).as_ref());
    }
    let settings = Settings::default();
    let gpus = heard.each("/gpus");
    for gpu in &gpus {
        if let Some(price) = offers::price_of_gpus(&gpus, &gpu.id, 8, Cloud::Secure) {
            let _ = map::bid(
                price,
                settings.bid_multiplier(),
                gpu.max_count.secure,
                Some(price),
            );
        }
    }
    let mut spot = heard.each("/data/gpuTypes");
    spot.extend(heard.each("/spot"));
    let catalogue = Catalogue {
        gpus: BTreeMap::from([(1, gpus.clone()), (8, gpus)]),
        spot,
    };
    let centers = [heard.each("/dataCenters"), heard.each("/centers")].concat();
    for cloud in [Cloud::Secure, Cloud::Community] {
        let all = offers::gpus(cloud, &catalogue, &centers, &settings);
        for offer in &all {
            let kind = Kind::parse(&offer.instance_type).expect("an instance type of ours is one");
            assert_eq!(kind.to_string(), offer.instance_type);
        }
        offered(&all);
    }
    let cpus = heard.each("/cpus");
    offered(&offers::cpus(&cpus, &settings));
    let _ = offers::price_of_cpus(&cpus, "cpu3c", 2);
}
