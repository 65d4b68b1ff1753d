//! The answers of Scaleway.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};
use skyward_providers::scaleway::{
    config::Settings,
    errors::{is_busy, provider_error},
    map,
    offers::{self, Kinds, Shortages},
    wire::{Disk, Image, Machine, Server},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("scaleway", "servers.json"),
        fixture!("scaleway", "kinds.json"),
    ];
    known.extend(bodies(fixture!("scaleway", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Scaleway", &KNOWN);
    heard.judged(provider_error, &["/server/id"]);
    let _ = is_busy(&provider_error(&heard.answer));
    let (servers, disks) = (heard.each::<Server>("/servers"), heard.each::<Disk>("/volumes"));
    for found in map::machines(servers, disks) {
        machine(&found, map::machine(&found).as_ref());
        if let Machine::Disk(disk) = &found {
            assert!(disk.tags.is_some(), "a disk without a mark is nothing of ours");
        }
    }
    let _ = map::image(&heard.each::<Image>("/images"));
    let stock: BTreeMap<String, Value> = heard.at("/availability/servers").unwrap_or_default();
    let shortages = Shortages::from([("fr-par-2", offers::shortages(stock.into_iter().collect()))]);
    let kinds = Kinds::from([("fr-par-2", heard.at("/servers").unwrap_or_default())]);
    let rate = serde_json::from_value(json!({ "usd": "1.08", "asOf": "2026-11-01" }));
    let settings = Settings {
        exchange_rate: rate.ok(),
        ..Settings::default()
    };
    for kind in kinds.values().flat_map(BTreeMap::values) {
        let price = offers::price(kind, settings.exchange_rate.as_ref());
        assert!(price.is_none_or(|price| !price.is_zero()));
    }
    offered(&offers::offers(&kinds, &shortages, &settings));
}
