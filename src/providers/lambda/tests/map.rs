use rstest::rstest;
use skyward_core::{Usd, machine::Dial};

use super::*;
use crate::fixtures;

fn order() -> Order {
    Order {
        instance_type: "gpu_1x_a10".into(),
        region: "us-west-1".into(),
        ..fixtures::order()
    }
}

fn instances() -> Vec<Instance> {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/lambda/instances.json")).unwrap();
    serde_json::from_value(body["data"].clone()).unwrap()
}

#[test]
fn an_order_names_one_key_and_carries_its_mark() {
    let written = body(&order(), &Settings::default(), "key");
    assert_eq!(written["ssh_key_names"], json!(["key"]));
    assert_eq!(written["hostname"], "skyward-train-0-1");
    assert!(written.get("image").is_none());
    let mut instance = instances().remove(1);
    instance.tags = serde_json::from_value(written["tags"].clone()).unwrap();
    assert_eq!(instance.mark(), Some(order().mark));
    let family = Settings {
        image_family: Some("ubuntu-24-04".into()),
        ..Settings::default()
    };
    assert_eq!(
        body(&order(), &family, "key")["image"],
        json!({ "family": "ubuntu-24-04" })
    );
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let instances = instances();
    let machine = machine(&instances[0]).unwrap();
    assert_eq!(machine.mark, order().mark);
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(machine.rental.hourly_price, Some(Usd::cents(75)));
    assert_eq!(machine.rental.region.as_deref(), Some("us-west-1"));
    assert_eq!(
        machine.endpoint.unwrap().dial,
        Dial::Address("198.51.100.2:22".parse().unwrap())
    );
    assert!(super::machine(&instances[1]).is_none());
}

#[rstest]
#[case("booting", "Starting")]
#[case("something-new", "Starting")]
#[case("active", "Running")]
#[case("unhealthy", "Lost")]
#[case("terminating", "Stopping")]
#[case("terminated", "Lost")]
#[case("preempted", "Reclaimed")]
fn each_status_has_its_phase(#[case] status: &str, #[case] expected: &str) {
    let mut instance = instances().remove(0);
    status.clone_into(&mut instance.status);
    let phase = format!("{:?}", machine(&instance).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert_eq!(instance.gone(), ["terminated", "preempted"].contains(&status));
}

#[test]
fn a_machine_without_an_address_is_not_running_yet() {
    let mut instance = instances().remove(0);
    instance.ip = None;
    assert!(matches!(
        machine(&instance).unwrap().phase,
        ProviderPhase::Starting(Some(_))
    ));
}
