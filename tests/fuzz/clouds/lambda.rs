//! The answers of Lambda.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_providers::lambda;

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("lambda", "instances.json"),
        fixture!("lambda", "types.json"),
        json!({ "data": [{ "name": "us-west-1" }, { "name": "eu-1" }] }),
        json!({ "data": { "instance_ids": ["a"], "id": "k" } }),
    ];
    known.extend(bodies(fixture!("lambda", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Lambda", &KNOWN);
    heard.judged(
        lambda::errors::provider_error,
        &["/data/instance_ids/0", "/data/id"],
    );
    for instance in heard.each::<lambda::wire::Instance>("/data") {
        machine(&instance, lambda::map::machine(&instance).as_ref());
    }
    let regions = heard.each("/data");
    if let Some(types) = heard.at("/data") {
        for preferred in [None, Some("eu-1")] {
            offered(&lambda::offers::offers(&types, &regions, preferred));
        }
    }
}
