//! The answers of Vultr.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde_json::{Value, json};
use skyward_providers::vultr::{
    config::{Mode, Settings},
    errors::provider_error,
    map, offers,
    wire::{Instance, Plan},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("vultr", "plans.json"),
        fixture!("vultr", "instances.json"),
        json!({ "available_plans": ["vcg-a16-2c-8g-2vram"] }),
    ];
    known.extend(bodies(fixture!("vultr", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Vultr", &KNOWN);
    heard.judged(provider_error, &["/instance/id", "/ssh_key/id"]);
    for instance in ["/instances", "/bare_metals"]
        .map(|at| heard.each::<Instance>(at))
        .concat()
    {
        machine(&instance, map::machine(&instance).as_ref());
    }
    let stock: BTreeSet<String> = heard.at("/available_plans").unwrap_or_default();
    let stock = BTreeMap::from([("ewr".to_owned(), stock)]);
    for mode in [Mode::Cloud, Mode::BareMetal] {
        let settings = Settings {
            mode: Some(mode),
            ..Settings::default()
        };
        let plans = ["/plans", "/plans_metal"]
            .map(|at| heard.each::<Plan>(at))
            .concat();
        let plans: Vec<Plan> = plans.into_iter().map(|plan| Plan { mode, ..plan }).collect();
        for plan in &plans {
            assert!(offers::price(plan).is_none_or(|price| !price.is_zero()));
        }
        offered(&offers::offers(&plans, &stock, &settings));
    }
}
