//! The answers of TensorDock.

use std::sync::LazyLock;

use serde_json::Value;
use skyward_provider_kit::lookup::Listed;
use skyward_providers::tensordock::{
    config::Settings,
    errors::{is_refused, provider_error},
    map, offers,
    wire::{self, Machine},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("tensordock", "instances.json"),
        fixture!("tensordock", "instance.json"),
        fixture!("tensordock", "locations.json"),
    ];
    known.extend(bodies(fixture!("tensordock", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "TensorDock", &KNOWN);
    let _ = is_refused(&heard.answer);
    heard.judged(provider_error, &[]);
    let one = wire::machine(heard.body.clone());
    let all: Vec<Machine> = wire::machines(&heard.body).unwrap_or_default();
    for listed in one.iter().chain(&all) {
        assert!(!listed.id.is_empty() && listed.id.len() <= 128);
        assert!(!listed.is_in_doubt() || listed.mark().is_none());
        let seen = map::machine(listed);
        let dialled = seen.as_ref().and_then(|seen| seen.endpoint.as_ref());
        assert!(dialled.is_none() || listed.forwards.is_array());
        machine(listed, seen.as_ref());
    }
    let told = heard.body.pointer("/data/locations").and_then(Value::as_array);
    let locations = wire::locations(told.map(Vec::as_slice).unwrap_or_default());
    let made = offers::offers(&locations, &Settings::default());
    for offer in &made {
        assert!(offer.on_demand.is_some_and(|price| !price.is_zero()));
    }
    offered(&made);
}
