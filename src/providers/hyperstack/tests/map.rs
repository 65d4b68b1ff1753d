use rstest::rstest;
use skyward_core::{ErrorKind, Usd, machine::Dial};

use super::*;
use crate::fixtures;

fn order() -> Order {
    Order {
        instance_type: "n3-H100x1".into(),
        region: "CANADA-1".into(),
        ..fixtures::order()
    }
}

fn machines() -> Vec<Machine> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/hyperstack/machines.json")).unwrap();
    serde_json::from_value(body["instances"].take()).unwrap()
}

fn images() -> Vec<Group<Image>> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/hyperstack/catalogue.json")).unwrap();
    serde_json::from_value(body["images"].take()).unwrap()
}

fn written(order: &Order, network: Option<&str>) -> Value {
    body(order, "sky-e", "sky-k", "Ubuntu", network).unwrap()
}

#[test]
fn an_order_names_what_its_pool_has_and_carries_its_mark() {
    let written = written(&order(), None);
    assert_eq!(written["environment_name"], "sky-e");
    assert_eq!(written["key_name"], "sky-k");
    assert_eq!(written["image_name"], "Ubuntu");
    assert_eq!(written["flavor_name"], "n3-H100x1");
    assert_eq!(written["count"], 1);
    assert_eq!(written["assign_floating_ip"], true);
    assert_eq!(written["enable_port_randomization"], false);
    assert_eq!(written["create_bootable_volume"], false);
    let name = written["name"].as_str().unwrap();
    assert!(
        name.starts_with("skyward-train-0-1-") && name.len() <= NAME,
        "{name}"
    );
    let script = written["user_data"].as_str().unwrap();
    assert!(
        script.starts_with("#!/bin/sh\n") && script.contains("sleep 5"),
        "{script}"
    );
    let mut machine = machines().remove(1);
    assert_eq!(machine.mark(), None);
    machine.labels = serde_json::from_value(written["labels"].clone()).unwrap();
    assert_eq!(machine.mark(), Some(order().mark));
}

#[test]
fn labels_have_no_spaces_and_a_mark_comes_back_from_them() {
    let mut order = order();
    order.mark.pool = "train.v2".into();
    order.mark.machine = "m".repeat(150);
    let mut machine = machines().remove(0);
    machine.labels = serde_json::from_value(written(&order, None)["labels"].clone()).unwrap();
    let labels = machine.labels.as_ref().unwrap();
    let fits = |label: &String| label.len() <= 82 && !label.contains([' ', '.', ',']);
    assert!(labels.iter().all(fits), "{labels:?}");
    assert!(machine.mark().unwrap().is(&order.mark));
}

#[test]
fn user_data_that_hyperstack_would_refuse_are_never_sent() {
    let mut order = order();
    order.boot_script = "x".repeat(70_000);
    let refused = body(&order, "e", "k", "i", None).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidOrder);
}

#[rstest]
#[case::alone(None, &[("tcp", "0.0.0.0/0", 22, 22)])]
#[case::together(
    Some("10.0.0.0/24"),
    &[("tcp", "0.0.0.0/0", 22, 22), ("tcp", "10.0.0.0/24", 1, 65_535), ("udp", "10.0.0.0/24", 1, 65_535)]
)]
fn ssh_is_let_in_and_the_network_of_a_pool_that_needs_it(
    #[case] network: Option<&str>,
    #[case] expected: &[(&str, &str, u16, u16)],
) {
    let written = written(&order(), network);
    let rules = written["security_rules"].as_array().unwrap();
    let expected: Vec<Value> = expected
        .iter()
        .map(|(protocol, from, first, last)| {
            json!({
                "direction": "ingress", "ethertype": "IPv4", "protocol": protocol, "remote_ip_prefix": from,
                "port_range_min": first, "port_range_max": last,
            })
        })
        .collect();
    assert_eq!(*rules, expected);
}

#[rstest]
#[case("10.0.3.0/24", Some("10.0.3.0/24"))]
#[case(" 192.168.0.0/16\n", Some("192.168.0.0/16"))]
#[case::everybody("0.0.0.0/0", None)]
#[case::too_many("10.0.0.0/8", None)]
#[case::of_the_internet("198.51.100.0/24", None)]
#[case::no_network("10.0.0.1", None)]
#[case::no_bits("10.0.0.0/99", None)]
#[case::nothing("", None)]
fn only_a_private_network_of_some_size_is_let_in(#[case] cidr: &str, #[case] expected: Option<&str>) {
    assert_eq!(network(cidr).as_deref(), expected);
}

#[rstest]
#[case::for_others_only_by_advice("n3-H100x1", Some("Ubuntu Server 24.04 LTS R575 CUDA 12.9"))]
#[case::for_it_alone("n3-H100-SXM5x8", Some("Ubuntu Server 26.04 LTS R600 CUDA 13.0"))]
#[case::for_it_and_another("n3-H200x8", Some("Ubuntu Server 26.04 LTS R600 CUDA 13.0"))]
fn the_newest_public_ubuntu_with_cuda_that_a_flavor_may_have_is_taken(
    #[case] flavor: &str,
    #[case] expected: Option<&str>,
) {
    assert_eq!(image(&images(), flavor).as_deref(), expected);
    assert_eq!(image(&images()[1..], flavor), None);
}

#[test]
fn a_virtual_machine_is_a_machine_and_what_is_not_ours_is_none() {
    let mut machines = machines();
    machines[0].price = Some(Usd::cents(190));
    let found = machine(&machines[0], false).unwrap();
    assert_eq!((found.id.as_str(), &found.mark), ("101", &order().mark));
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.private_address.as_deref(), Some("10.0.0.4"));
    assert_eq!(found.rental.region.as_deref(), Some("CANADA-1"));
    assert_eq!(found.rental.hourly_price, Some(Usd::cents(190)));
    assert_eq!(found.rental.billed_since, time(Some("2026-01-01T00:00:00Z")));
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
    assert!(machine(&machines[1], false).is_none());
}

#[test]
fn a_machine_keeps_its_environment_and_no_other_one_until_it_is_gone() {
    let mut machines = machines();
    assert!(machines[0].is_in("7") && !machines[0].is_in("8"));
    // Of another person, whose environment is not told.
    assert!(!machines[1].is_in("7"));
    machines[0].status = json!("DELETING");
    assert!(machines[0].is_in("7"));
    machines[0].status = json!("DELETED");
    assert!(!machines[0].is_in("7"));
}

#[rstest]
#[case("CREATING", false, "Starting")]
#[case("BUILD", false, "Starting")]
#[case("ACTIVE", true, "Running")]
#[case("ACTIVE", false, "Starting")]
#[case("REBOOTING", true, "Starting")]
#[case("RESTORING", true, "Starting")]
#[case("ERROR", false, "NoCapacity")]
#[case("ERROR", true, "Lost")]
#[case("STOPPING", true, "Stopped")]
#[case("SHUTOFF", true, "Stopped")]
#[case("HIBERNATING", true, "Stopped")]
#[case("HIBERNATED", true, "Stopped")]
#[case("DELETING", true, "Stopping")]
#[case("SOMETHING_NEW", true, "Starting")]
fn each_status_has_its_phase(#[case] status: &str, #[case] attached: bool, #[case] expected: &str) {
    let mut found = machines().remove(0);
    found.status = json!(status);
    if !attached {
        found.floating_ip_status = Some("ATTACHING".into());
    }
    let phase = format!("{:?}", machine(&found, false).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}

#[rstest]
#[case("SHUTOFF", false, "Reclaimed")]
#[case("HIBERNATED", false, "Reclaimed")]
#[case("DELETING", false, "Reclaimed")]
#[case("DELETED", false, "Reclaimed")]
#[case("ERROR", false, "Reclaimed")]
#[case::we_ended_it("DELETING", true, "Stopping")]
#[case::it_runs("ACTIVE", false, "Running")]
fn a_spot_machine_that_halts_and_that_we_did_not_end_was_taken_back(
    #[case] status: &str,
    #[case] is_ended: bool,
    #[case] expected: &str,
) {
    let mut found = machines().remove(0);
    found.status = json!(status);
    found.flavor["gpu"] = json!("A100-80G-PCIe-spot");
    let phase = format!("{:?}", machine(&found, is_ended).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert_eq!(found.gone(), status == "DELETED");
}
