use rstest::rstest;
use skyward_core::{ErrorKind, Usd, machine::Dial, order::PoolShape};

use super::*;
use crate::{digitalocean::wire::Gpus, fixtures};

fn order() -> Order {
    Order {
        instance_type: "gpu-h100x1-80gb".into(),
        region: "tor1".into(),
        ..fixtures::order()
    }
}

fn droplets() -> Vec<Droplet> {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/digitalocean/droplets.json")).unwrap();
    serde_json::from_value(body["droplets"].clone()).unwrap()
}

fn size(model: &str, count: u32) -> Size {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/digitalocean/sizes.json")).unwrap();
    Size {
        gpu_info: Some(Gpus {
            count,
            model: model.into(),
            vram: Value::Null,
        }),
        ..serde_json::from_value(body["sizes"][4].clone()).unwrap()
    }
}

fn written(order: &Order, settings: &Settings) -> Value {
    body(
        order,
        settings,
        &size("nvidia_h100", 1),
        "512189",
        "skyward-a-p-uid.b",
    )
    .unwrap()
}

#[test]
fn an_order_names_one_key_and_one_image_and_carries_its_mark() {
    let written = written(&order(), &Settings::default());
    assert_eq!(written["name"], "skyward-train-0-1");
    assert_eq!(
        (&written["region"], &written["size"]),
        (&json!("tor1"), &json!("gpu-h100x1-80gb"))
    );
    assert_eq!(written["image"], "gpu-h100x1-base");
    assert_eq!(written["ssh_keys"], json!([512_189]));
    assert_eq!(written["with_droplet_agent"], false);
    assert_eq!(written.get("vpc_uuid"), None);
    let script = written["user_data"].as_str().unwrap();
    assert!(
        script.starts_with("#!/bin/sh\n") && script.contains("sleep 5"),
        "{script}"
    );
    let mut droplet = droplets().remove(1);
    assert_eq!(
        droplet.mark(),
        None,
        "a tag that somebody wrote by hand is no mark"
    );
    assert_eq!(written["tags"][1], "skyward-a-p-uid:b");
    droplet.tags = serde_json::from_value(written["tags"].clone()).unwrap();
    assert_eq!(droplet.mark(), Some(order().mark));
}

#[test]
fn a_tag_has_the_letters_and_the_length_that_tags_have() {
    let mut order = order();
    order.mark.pool = "train.v2".into();
    order.mark.namespace = "n".repeat(63);
    order.mark.machine = "m".repeat(150);
    let tag = mark_tag(&order.mark).unwrap();
    assert!(tag.len() <= 255 && !tag.contains('.'), "{tag}");
    assert!(MARK.read(&tag).unwrap().is(&order.mark));
    order.mark.pool_uid = "u".repeat(250);
    let refused = mark_tag(&order.mark).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
}

#[rstest]
#[case("nvidia_h100", 1, None, json!("gpu-h100x1-base"))]
#[case("nvidia_l40s", 2, None, json!("gpu-h100x1-base"))]
#[case("nvidia_h200", 8, None, json!("gpu-h100x8-base"))]
#[case("amd_mi300x", 8, None, json!("gpu-amd-base"))]
#[case("nvidia_h100", 1, Some("ubuntu-24-04-x64"), json!("ubuntu-24-04-x64"))]
#[case("nvidia_h100", 8, Some("63663980"), json!(63_663_980))]
fn the_image_fits_the_gpus_unless_the_settings_name_one(
    #[case] model: &str,
    #[case] count: u32,
    #[case] image: Option<&str>,
    #[case] expected: Value,
) {
    let settings = Settings {
        image: image.map(Into::into),
        vpc_uuid: Some("v".into()),
        ..Settings::default()
    };
    let written = body(&order(), &settings, &size(model, count), "1", "f").unwrap();
    assert_eq!(written["image"], expected);
    assert_eq!(written["vpc_uuid"], "v");
}

#[test]
fn user_data_that_digitalocean_would_refuse_are_never_sent() {
    let mut order = order();
    order.boot_script = "x".repeat(70_000);
    let refused = body(&order, &Settings::default(), &size("nvidia_h100", 1), "1", "f").unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidOrder);
}

#[rstest]
#[case::alone(false, &[("tcp", "22", false)])]
#[case::together(true, &[("tcp", "22", false), ("tcp", "0", true), ("udp", "0", true), ("icmp", "0", true)])]
fn a_firewall_lets_ssh_in_and_a_pool_that_needs_it(
    #[case] connected: bool,
    #[case] expected: &[(&str, &str, bool)],
) {
    let mut order = order();
    order.pool = PoolShape {
        machines: 2,
        connected,
    };
    let made = firewall("skyward-a-p-uid.b", admitted(&order));
    assert_eq!(made["tags"], json!(["skyward-a-p-uid:b"]));
    let rules = made["inbound_rules"].as_array().unwrap();
    let rules: Vec<_> = rules
        .iter()
        .map(|rule| {
            let text = |field: &str| rule[field].as_str().unwrap();
            let of_the_pool = rule["sources"]["tags"] == made["tags"];
            assert_eq!(of_the_pool, rule["sources"].get("addresses").is_none());
            (text("protocol"), text("ports"), of_the_pool)
        })
        .collect();
    assert_eq!(rules, expected);
    assert_eq!(made["outbound_rules"].as_array().unwrap().len(), 3);
}

#[test]
fn the_tags_of_a_pool_are_known_and_others_are_not() {
    let uid = |tag: &str| pool_of("c-uid", tag);
    let firewall = marks::content_name("c-uid", "p-uid", SSH);
    assert_eq!(uid(&mark_tag(&order().mark).unwrap()).as_deref(), Some("p-uid"));
    assert_eq!(uid(&tag_of(&firewall)).as_deref(), Some("p-uid"));
    let elsewhere = Mark {
        cluster: "another".into(),
        ..order().mark
    };
    assert_eq!(uid(&mark_tag(&elsewhere).unwrap()), None);
    assert_eq!(uid(&tag_of(&marks::content_name("another", "p-uid", SSH))), None);
    for foreign in ["skyward", "skyward:by-hand", "env:prod"] {
        assert_eq!(uid(foreign), None, "{foreign}");
    }
}

#[test]
fn a_droplet_is_a_machine_and_what_is_not_ours_is_none() {
    let droplets = droplets();
    let machine = machine(&droplets[0]).unwrap();
    assert_eq!(machine.id, "3164444");
    assert_eq!(machine.mark, order().mark);
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(machine.private_address.as_deref(), Some("10.118.0.3"));
    assert_eq!(machine.rental.region.as_deref(), Some("tor1"));
    assert_eq!(machine.rental.hourly_price, Some(Usd::cents(339)));
    assert_eq!(machine.rental.billed_since, time(Some("2026-01-01T00:00:00Z")));
    let endpoint = machine.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
    assert!(super::machine(&droplets[1]).is_none());
}

#[test]
fn an_address_that_says_nothing_hides_no_other() {
    let mut droplet = droplets().remove(0);
    for odd in [
        json!({}),
        json!({ "type": "public" }),
        json!({ "type": "public", "ip_address": "" }),
    ] {
        droplet.networks.v4.insert(0, odd);
    }
    let endpoint = machine(&droplet).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
}

#[rstest]
#[case("new", true, "Starting")]
#[case("active", true, "Running")]
#[case("active", false, "Starting")]
#[case("off", true, "Stopped")]
#[case("archive", true, "Stopped")]
#[case("something-new", true, "Starting")]
fn each_status_has_its_phase(#[case] status: &str, #[case] has_address: bool, #[case] expected: &str) {
    let mut droplet = droplets().remove(0);
    status.clone_into(&mut droplet.status);
    if !has_address {
        droplet.networks.v4.retain(|network| network["type"] == "private");
    }
    let phase = format!("{:?}", machine(&droplet).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}
