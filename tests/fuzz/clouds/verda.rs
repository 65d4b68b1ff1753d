//! The answers of Verda.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_providers::verda::{
    errors,
    map::{self, TAGS},
    offers::{Catalogue, offers},
    wire::{ActionResult, Instance, InstanceType, Volume},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("verda", "catalogue.json"),
        fixture!("verda", "instances.json"),
        json!([{ "id": "v", "name": "n", "status": "detached" }]),
        json!([{ "id": "m", "status": "error", "error": "no", "statusCode": 400 }]),
    ];
    known.extend(bodies(fixture!("verda", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Verda", &KNOWN);
    heard.judged(errors::provider_error, &["/id"]);
    let _ = errors::refusal(&heard.answer.text());
    let _ = heard.each::<ActionResult>("");
    for instance in heard.each::<Instance>("") {
        machine(&instance, map::machine(&instance).as_ref());
    }
    for volume in heard.each::<Volume>("") {
        let _ = TAGS.read(&volume.tags);
    }
    let types = heard.each::<InstanceType>("/types");
    for kind in &types {
        assert!(!map::image(kind).is_empty());
    }
    let made = offers(
        &Catalogue {
            types: &types,
            locations: &heard.each("/locations"),
            on_demand: &heard.each("/on_demand"),
            spot: &heard.each("/spot"),
        },
        "FIN-01",
    );
    offered(&made);
}
