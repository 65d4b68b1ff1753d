//! The same for small clouds, whose answers contradict themselves and what is told of them.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skyward_core::Market;
use skyward_provider_kit::{
    lookup::Listed,
    owners::{Named, Owner},
    ssh,
};
use skyward_providers::{jarvislabs, massedcompute, novita, tensordock};

use crate::clouds::{Heard, bodies, failed, fixture, machine, offered, seeds};

fn jarvislabs_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("jarvislabs", "instances.json"),
        fixture!("jarvislabs", "servers.json"),
        json!([{ "ssh_key": "ssh-ed25519 AAAA skyward c p ns pool", "key_name": "sky-k", "key_id": "7" }]),
        json!({ "success": true, "machine_id": 412233 }),
    ];
    known.extend(bodies(fixture!("jarvislabs", "errors.json")));
    known
}

pub(crate) fn jarvislabs_seeds() -> Vec<Vec<u8>> {
    seeds(&jarvislabs_known())
}

pub(crate) fn jarvislabs(data: &[u8]) {
    use jarvislabs::{
        config::Settings,
        errors::{is_refused, provider_error},
        map,
        offers::{self, Catalogue},
        wire::{Machine, success},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(jarvislabs_known);
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

fn massedcompute_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("massedcompute", "instances.json"),
        fixture!("massedcompute", "inventory.json"),
        json!({ "runningInstance": { "uuid": "u", "name": "n", "status": "rented", "os_booted": 1 } }),
        json!({ "response": "4c75e43b-1111-4222-8333-444455556666", "sshKey": { "id": "k", "name": "n" } }),
    ];
    known.extend(bodies(fixture!("massedcompute", "errors.json")));
    known
}

pub(crate) fn massedcompute_seeds() -> Vec<Vec<u8>> {
    seeds(&massedcompute_known())
}

pub(crate) fn massedcompute(data: &[u8]) {
    use massedcompute::{
        errors::provider_error,
        map,
        offers::{self, is_spot},
        wire::{Instance, Inventory, Told},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(massedcompute_known);
    let heard = Heard::of(data, "Massed Compute", &KNOWN);
    heard.judged(provider_error, &["/response", "/sshKey/id"]);
    let told = heard.at::<Told>("").map_or_else(Vec::new, |told| told.0);
    for instance in heard.each::<Instance>("/runningInstances").iter().chain(&told) {
        for ended in [false, true] {
            machine(instance, map::machine(instance, ended).as_ref());
        }
    }
    if let Some(inventory) = heard.at::<Inventory>("/gpu_inventory") {
        let made = offers::offers(&inventory);
        for offer in &made {
            for market in [Market::OnDemand, Market::Spot] {
                let sold = offers::sold(&inventory, &offer.instance_type, market);
                assert!(sold.is_none_or(|(written, price)| {
                    written.trim() == offer.instance_type
                        && !price.is_zero()
                        && (market == Market::Spot) == is_spot(&written)
                }));
            }
        }
        offered(&made);
    }
}

fn novita_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("novita", "instances.json"),
        fixture!("novita", "products.json"),
        json!({ "instance": { "id": "a", "status": "pending", "connectComponentSSH": { "sshCommand": "ssh -p 7 root@a.b" } } }),
        json!({ "id": "9f0c2a7be1d4", "instanceId": "9f0c2a7be1d4" }),
    ];
    known.extend(bodies(fixture!("novita", "errors.json")));
    known
}

pub(crate) fn novita_seeds() -> Vec<Vec<u8>> {
    seeds(&novita_known())
}

pub(crate) fn novita(data: &[u8]) {
    use novita::{
        client::{is_refused, one},
        errors::provider_error,
        map,
        offers::{COUNTS, Catalogue},
        wire::{Instance, Product},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(novita_known);
    let heard = Heard::of(data, "Novita", &KNOWN);
    heard.judged(provider_error, &["/id", "/instanceId"]);
    match one(&heard.answer) {
        // What is there was not refused.
        Ok(Some(_)) => assert!(!heard.answer.is_success() || !is_refused(&heard.answer)),
        Ok(None) => {}
        Err(error) => failed(&error),
    }
    for listed in heard.each::<Instance>("/instances") {
        let seen = map::machine(&listed, false);
        machine(&listed, seen.as_ref());
        if let Some(password) = seen.and_then(|seen| seen.endpoint?.password) {
            assert!(!password.expose().is_empty());
        }
        let ended = map::machine(&listed, true);
        assert_eq!(ended.map(|ended| ended.mark), listed.mark());
    }
    let products = || heard.each::<Product>("/data");
    let catalogue = Catalogue::new(COUNTS.map(|_| products()));
    let offers = catalogue.offers();
    for offer in &offers {
        for (market, price) in [(Market::OnDemand, offer.on_demand), (Market::Spot, offer.spot)] {
            // Of two products with one id the first counts.
            let sold = catalogue
                .sold(&offer.instance_type, market)
                .map(|(_, price)| price);
            assert!(sold.is_some() || price.is_none() || products().len() > 1);
        }
    }
    offered(&offers);
}

fn tensordock_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("tensordock", "instances.json"),
        fixture!("tensordock", "instance.json"),
        fixture!("tensordock", "locations.json"),
    ];
    known.extend(bodies(fixture!("tensordock", "errors.json")));
    known
}

pub(crate) fn tensordock_seeds() -> Vec<Vec<u8>> {
    seeds(&tensordock_known())
}

pub(crate) fn tensordock(data: &[u8]) {
    use tensordock::{
        config::Settings,
        errors::{is_refused, provider_error},
        map, offers,
        wire::{self, Machine},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(tensordock_known);
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
