use rstest::rstest;
use skyward_core::{
    Usd,
    machine::{Dial, Failure},
};
use skyward_provider_kit::marks::Tag;

use super::*;
use crate::fixtures;

const INSTANCES: &str = include_str!("../../tests/fixtures/verda/instances.json");

fn instances() -> Vec<Instance> {
    serde_json::from_str(INSTANCES).unwrap()
}

fn order() -> Order {
    Order {
        instance_type: "1H100.80S.22V".into(),
        region: "FIN-03".into(),
        ..fixtures::order()
    }
}

#[test]
fn the_mark_comes_back_as_it_went() {
    let order = order();
    let body = body(&order, &Settings::default(), "img", "key", Some("script"));
    let tags: Vec<Tag> = serde_json::from_value(body["tags"].clone()).unwrap();
    assert_eq!(TAGS.read(&tags), Some(order.mark.clone()));
    assert!(tags.len() <= 10 && tags.iter().all(|tag| tag.key == tag.key.to_lowercase()));
    // The disk can be found when the machine is gone.
    let disk: Vec<Tag> = serde_json::from_value(body["os_volume"]["tags"].clone()).unwrap();
    assert_eq!(TAGS.read(&disk), Some(order.mark));
}

#[test]
fn an_order_on_demand_and_one_for_spot() {
    let mut order = order();
    let body_of = |order: &Order| body(order, &Settings::default(), "img", "key", None);
    let body = body_of(&order);
    assert_eq!(body["hostname"], "skyward-train-0-1");
    assert_eq!(body["location_code"], "FIN-03");
    assert_eq!(body["is_spot"], false);
    assert_eq!(body["os_volume"]["size"], 100);
    assert!(body["os_volume"].get("on_spot_discontinue").is_none());
    assert!(body.get("startup_script_id").is_none());
    order.market = Market::Spot;
    order.disk_bytes = Some(500_000_000_000);
    let body = body_of(&order);
    assert_eq!(body["is_spot"], true);
    assert_eq!(body["os_volume"]["size"], 500);
    assert_eq!(body["os_volume"]["on_spot_discontinue"], "delete_permanently");
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let instances = instances();
    let machine = machine(&instances[0]).unwrap();
    assert_eq!(machine.mark, order().mark);
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(machine.rental.hourly_price, Some(Usd::cents(317)));
    assert_eq!(machine.rental.billed_since, "2026-11-20T10:00:00Z".parse().ok());
    let endpoint = machine.endpoint.unwrap();
    assert_eq!(endpoint.dial, Dial::Address("65.108.1.2:22".parse().unwrap()));
    assert!(super::machine(&instances[1]).is_none());
}

#[rstest]
#[case("new", "Starting")]
#[case("ordered", "Starting")]
#[case("provisioning", "Starting")]
#[case("validating", "Starting")]
#[case("unknown", "Starting")]
#[case("something_new", "Starting")]
#[case("running", "Running")]
#[case("offline", "Stopped")]
#[case("no_capacity", "NoCapacity")]
#[case("error", "Other")]
#[case("installation_failed", "Other")]
#[case("hibernating", "Lost")]
#[case("deleting", "Stopping")]
#[case("discontinued", "Lost")]
fn each_status_has_its_phase(#[case] status: &str, #[case] expected: &str) {
    let mut instance = instances().remove(0);
    status.clone_into(&mut instance.status);
    let phase = format!("{:?}", machine(&instance).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
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

#[test]
fn a_spot_machine_that_is_gone_was_taken_back() {
    let mut instance = instances().remove(0);
    instance.is_spot = true;
    instance.status = "discontinued".into();
    assert!(instance.gone());
    let phase = machine(&instance).unwrap().phase;
    assert!(matches!(
        phase,
        ProviderPhase::Failed(Failure {
            kind: FailureKind::Reclaimed,
            ..
        })
    ));
}

#[rstest]
#[case(1.0, &["ubuntu-22.04-cuda-12.4", "ubuntu-24.04-cuda-12.8-open", "ubuntu-24.04-cuda-13.0-open", "ubuntu-24.04-cuda-13.0-open-docker"], "ubuntu-24.04-cuda-13.0-open")]
#[case(1.0, &["ubuntu-20.04-cuda-11.8", "ubuntu-22.04-cuda-12.0"], "ubuntu-22.04-cuda-12.0")]
#[case(1.0, &[], "ubuntu-24.04-cuda-13.0-open")]
#[case(0.0, &["ubuntu-22.04", "ubuntu-24.04", "ubuntu-24.04-cuda-13.0-open"], "ubuntu-24.04")]
#[case(0.0, &[], "ubuntu-24.04")]
fn the_newest_image_that_the_machine_supports(
    #[case] gpus: f64,
    #[case] os: &[&str],
    #[case] expected: &str,
) {
    let kind: InstanceType = serde_json::from_value(json!({
        "instance_type": "x", "price_per_hour": "1", "gpu": { "number_of_gpus": gpus }, "supported_os": os,
    }))
    .unwrap();
    assert_eq!(image(&kind), expected);
}
