//! The answers of DigitalOcean.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_providers::digitalocean::{
    config::Settings,
    errors::provider_error,
    map, offers,
    wire::{Droplet, Size, Tag},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("digitalocean", "sizes.json"),
        fixture!("digitalocean", "droplets.json"),
        json!({
            "tags": [{ "name": "skyward:c:p:m:0:1", "resources": { "count": 0 } }],
        }),
    ];
    known.extend(bodies(fixture!("digitalocean", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "DigitalOcean", &KNOWN);
    heard.judged(provider_error, &["/droplet/id", "/ssh_key/id", "/firewall/id"]);
    for droplet in heard.each::<Droplet>("/droplets") {
        machine(&droplet, map::machine(&droplet).as_ref());
    }
    for tag in heard.each::<Tag>("/tags") {
        let _ = (tag.is_unused(), map::pool_of("c", &tag.name));
    }
    let sizes = heard.each::<Size>("/sizes");
    for size in &sizes {
        assert!(!map::image(size).is_empty());
        assert!(offers::price(Some(size.price_hourly)).is_none_or(|price| !price.is_zero()));
    }
    offered(&offers::offers(&sizes, &Settings::default()));
}
