//! The answers of Hyperstack.

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};
use skyward_core::ErrorKind;
use skyward_provider_kit::lookup::{Listed, for_now};
use skyward_providers::hyperstack::{
    config::Settings,
    errors::{is_busy, provider_error},
    map,
    offers::{self, Catalogue},
    wire::{Flavor, Group, Image, Machine, Price},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("hyperstack", "machines.json"),
        fixture!("hyperstack", "catalogue.json"),
        json!({ "status": true, "cidr": "10.0.0.0/24", "max_vms": 250 }),
    ];
    known.extend(bodies(fixture!("hyperstack", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "Hyperstack", &KNOWN);
    heard.judged(
        provider_error,
        &["/instances/0/id", "/environment/id", "/keypair/id"],
    );
    let refused = for_now(provider_error(&heard.answer));
    assert!(!is_busy(&refused) || refused.kind == ErrorKind::Transient);
    for listed in heard.each::<Machine>("/instances") {
        machine(&listed, map::machine(&listed, false).as_ref());
        let ended = map::machine(&listed, true);
        assert_eq!(ended.map(|ended| ended.mark), listed.mark());
    }
    let images = heard.each::<Group<Image>>("/images");
    let image = map::image(&images, "n3-H100x1");
    assert!(image.is_none_or(|name| !name.is_empty()));
    let network = heard.body["cidr"].as_str().and_then(map::network);
    assert!(network.is_none_or(|network| !network.starts_with("0.")));
    let groups = heard.each::<Group<Flavor>>("/data");
    let catalogue = Catalogue::new(groups, heard.each::<Price>("/prices"), Timestamp::UNIX_EPOCH);
    for gpu in ["H100-80G-PCIe", "A100-80G-PCIe-spot", "-spot", ""] {
        let _ = offers::is_spot(gpu);
        let price = catalogue.price(gpu, u32::MAX);
        assert!(price.is_none_or(|price| !price.is_zero()));
    }
    offered(&offers::offers(&catalogue, &Settings::default()));
}
