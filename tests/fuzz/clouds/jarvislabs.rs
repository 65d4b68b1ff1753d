//! The answers of JarvisLabs.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_provider_kit::{
    lookup::Listed,
    owners::{Named, Owner},
    ssh,
};
use skyward_providers::jarvislabs::{
    config::Settings,
    errors::{is_refused, provider_error},
    map,
    offers::{self, Catalogue},
    wire::{Machine, success},
};

use super::{Heard, bodies, machine, offered};

fn known() -> Vec<Value> {
    let mut known = vec![
        fixture!("jarvislabs", "instances.json"),
        fixture!("jarvislabs", "servers.json"),
        json!([{ "ssh_key": "ssh-ed25519 AAAA skyward c p ns pool", "key_name": "sky-k", "key_id": "7" }]),
        json!({ "success": true, "machine_id": 412_233 }),
    ];
    known.extend(bodies(fixture!("jarvislabs", "errors.json")));
    known
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    super::seeds(&known())
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let heard = Heard::of(data, "JarvisLabs", &KNOWN);
    heard.judged(provider_error, &["/machine_id"]);
    let _ = is_refused(&heard.answer);
    let keys = heard.each::<Value>("");
    let owners = keys
        .iter()
        .filter_map(|key| Owner::read(key["ssh_key"].as_str()?));
    let owners: Vec<Owner> = owners.collect();
    for owner in &owners {
        let written = owner.key("ssh-ed25519 AAAA");
        assert_eq!(Owner::read(&written).as_ref(), Some(owner));
        assert_eq!(owner.reference().len(), 5);
    }
    let owner = Owner::read("ssh-ed25519 AAAA skyward c p ns pool").expect("the key of a Pool");
    for mut listed in heard.each::<Machine>("/instances") {
        let name = listed.text("instance_name").to_owned();
        listed.mark = Named::read(&name).map(|named| named.mark(&owner));
        machine(&listed, map::machine(&listed, false).as_ref());
        let ended = map::machine(&listed, true);
        assert_eq!(ended.map(|ended| ended.mark), listed.mark());
        let dialled = ssh::endpoint(listed.text("ssh_str"), "root");
        assert!(dialled.is_none_or(|dialled| !dialled.user.starts_with('-')));
    }
    let catalogue = Catalogue {
        servers: heard.each::<Value>("/server_meta"),
        in_rupees: success(&heard.body) == Some(true),
        rate: None,
    };
    for template in ["pytorch", "vm"] {
        let settings = json!({ "template": template });
        let settings: Settings = serde_json::from_value(settings).expect("settings");
        offered(&offers::offers(&catalogue, &settings));
    }
}
