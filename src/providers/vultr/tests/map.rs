use rstest::rstest;
use skyward_core::{Usd, machine::Dial, order::PoolShape};

use super::*;
use crate::fixtures;

fn order() -> Order {
    Order {
        instance_type: "vcg-a16-2c-8g-2vram".into(),
        region: "ewr".into(),
        ..fixtures::order()
    }
}

fn instances(list: &str) -> Vec<Instance> {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/vultr/instances.json")).unwrap();
    serde_json::from_value(body[list].clone()).unwrap()
}

fn user_data(body: &Value) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let data = body["user_data"].as_str().unwrap();
    String::from_utf8(BASE64_STANDARD.decode(data).unwrap()).unwrap()
}

#[test]
fn an_order_names_one_key_and_one_image_and_carries_its_mark() {
    let written = body(&order(), &Settings::default(), Mode::Cloud, "key");
    assert_eq!(written["sshkey_id"], json!(["key"]));
    assert_eq!(written["os_id"], 2284);
    assert_eq!(written["hostname"], "skyward-train-0-1");
    assert!(user_data(&written).contains("sleep 5"));
    let mut instance = instances("instances").remove(1);
    instance.tags = serde_json::from_value(written["tags"].clone()).unwrap();
    assert_eq!(instance.mark(), Some(order().mark));
}

#[rstest]
#[case(Some("docker"), None, json!({ "image_id": "docker" }))]
#[case(None, Some("s-1"), json!({ "snapshot_id": "s-1" }))]
#[case(Some("docker"), Some("s-1"), json!({ "snapshot_id": "s-1" }))]
fn an_image_or_a_snapshot_takes_the_place_of_the_operating_system(
    #[case] image: Option<&str>,
    #[case] snapshot: Option<&str>,
    #[case] expected: Value,
) {
    let settings = Settings {
        os_id: Some(1743),
        image_id: image.map(Into::into),
        snapshot_id: snapshot.map(Into::into),
        ..Settings::default()
    };
    let written = body(&order(), &settings, Mode::Cloud, "key");
    for field in ["os_id", "image_id", "snapshot_id"] {
        assert_eq!(written.get(field), expected.get(field), "{field}");
    }
}

#[rstest]
#[case(Mode::Cloud, false, false)]
#[case(Mode::Cloud, true, true)]
#[case(Mode::BareMetal, true, false)]
fn only_virtual_machines_of_pools_that_need_it_join_a_network(
    #[case] mode: Mode,
    #[case] connected: bool,
    #[case] joins: bool,
) {
    let mut order = order();
    order.pool = PoolShape {
        machines: 2,
        connected,
    };
    let written = body(&order, &Settings::default(), mode, "key");
    assert_eq!(written.get("enable_vpc"), joins.then_some(&json!(true)));
    assert_eq!(user_data(&written).contains("ufw allow from"), joins);
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let mut instances = instances("instances");
    instances[0].price = Some(Usd::new(59, 3));
    let machine = machine(&instances[0]).unwrap();
    assert_eq!(machine.mark, order().mark);
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(machine.private_address.as_deref(), Some("10.1.96.3"));
    assert_eq!(machine.rental.region.as_deref(), Some("ewr"));
    assert_eq!(machine.rental.hourly_price, Some(Usd::new(59, 3)));
    assert_eq!(machine.rental.billed_since, time(Some("2026-01-01T00:00:00Z")));
    assert_eq!(
        machine.endpoint.unwrap().dial,
        Dial::Address("198.51.100.2:22".parse().unwrap())
    );
    assert!(super::machine(&instances[1]).is_none());
}

#[test]
fn bare_metal_runs_though_it_tells_nothing_of_power_and_installation() {
    let mut metal = instances("bare_metals").remove(0);
    let running = machine(&metal).unwrap();
    assert_eq!(running.phase, ProviderPhase::Running);
    assert_eq!(running.private_address, None);
    metal.main_ip = Some("0.0.0.0".into());
    let waiting = machine(&metal).unwrap();
    assert!(matches!(waiting.phase, ProviderPhase::Starting(Some(_))));
    assert_eq!(waiting.endpoint, None);
}

#[rstest]
#[case("pending", "running", "none", "Starting")]
#[case("active", "running", "none", "Starting")]
#[case("active", "running", "locked", "Starting")]
#[case("active", "running", "installingbooting", "Starting")]
#[case("active", "running", "ok", "Running")]
#[case("active", "stopped", "ok", "Stopped")]
#[case("suspended", "running", "ok", "Lost")]
#[case("failed", "running", "none", "Other")]
#[case("resizing", "running", "ok", "Starting")]
#[case("something-new", "running", "ok", "Starting")]
fn each_status_has_its_phase(
    #[case] status: &str,
    #[case] power: &str,
    #[case] server: &str,
    #[case] expected: &str,
) {
    let mut instance = instances("instances").remove(0);
    status.clone_into(&mut instance.status);
    instance.power_status = Some(power.into());
    instance.server_status = Some(server.into());
    let phase = format!("{:?}", machine(&instance).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}
